import pytest

from rlploss.lab.problems import MODELS, TASK_SETTINGS, VARIANT_SETTINGS, train_rows
from rlploss.lab.train import ARM_SETTINGS
from rlploss.paper import published, studies
from rlploss.paper.catalog import CATALOG, cells_of
from rlploss.paper.cost import expected_seconds, steps_of
from rlploss.paper.protocols import PROTOCOLS, is_rlp
from rlploss.paper.request import SCALES, Request

TRAINED = [
    name for name in CATALOG if name not in ("propositions", "fig-planes", "fig-networks", "tables-hyperparameters")
]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", TRAINED)
def test_every_cell_is_well_formed(name, scale):
    cells = CATALOG[name].cells(Request(scale))
    assert cells
    labels = [(c.task.name, c.arm.protocol, c.arm.name) for c in cells]
    assert len(labels) == len(set(labels))
    for cell in cells:
        assert cell.arm.protocol in PROTOCOLS
        assert {k for k, _ in cell.arm.settings} <= {*ARM_SETTINGS, "output"}
        assert {k for k, _ in cell.task.settings} <= TASK_SETTINGS
        assert {k for v in cell.task.variants for k, _ in v} <= VARIANT_SETTINGS
        assert cell.task.get("model") in MODELS
        assert expected_seconds(cell) > 0
        for variant in cell.task.variants:
            size = cell.arm.get("subset_size")
            assert size is None or size <= train_rows(cell.task, dict(variant))


@pytest.mark.parametrize("name", [n for n in TRAINED if n != "fig-time"])
def test_equal_steps_are_equal_and_so_are_the_rows_per_step(name):
    cells = CATALOG[name].cells(Request("paper"))
    for steps in ("steps", "corrected-steps"):
        for task in {c.task.name for c in cells}:
            mine = [c for c in cells if c.task.name == task and c.arm.protocol == steps]
            # Mixup has epochs of its own for classes, so arms are matched within their kind.
            for mixed in (False, True):
                ours = [c for c in mine if is_rlp(c.arm.name) and c.arm.name.endswith("mixup") == mixed]
                theirs = [c for c in mine if not is_rlp(c.arm.name) and c.arm.name.endswith("mixup") == mixed]
                for a in ours:
                    for b in theirs:
                        assert steps_of(a) == steps_of(b)
                        if steps == "steps" and task != "wine":
                            assert a.arm.get("subset_size") in (b.arm.get("batch_size"), 12)


def test_table1_has_the_papers_hyperparameters():
    cells = {(c.task.name, c.arm.protocol, c.arm.name): c for c in studies.table1(Request("paper"))}
    rlp = cells["linear", "released", "rlp"]
    assert dict(rlp.arm.settings) == {
        "lr": 1e-4, "n_subsets": 1000, "optimizer": "adam", "preset": "released", "subset_size": 100,
    }  # fmt: skip
    assert (rlp.budget.unit, rlp.budget.n) == ("epochs", 200)
    assert rlp.seeds == tuple(range(30))
    assert cells["linear", "steps", "mse"].budget.n == 200_000
    assert cells["california", "steps", "mse"].budget.n == 500_000
    assert cells["linear", "released", "mse_l2"].arm.get("weight_decay") == 1e-4
    assert cells["linear", "released", "mse"].arm.get("weight_decay") is None
    assert cells["linear", "paper", "rlp"].arm.get("preset") == "paper"
    assert cells["linear", "paper", "mse"].arm.get("batch_size") == "all"
    assert cells["wine", "corrected", "rlp"].arm.get("intercept") is True
    assert cells["wine", "corrected", "mse"].task.get("scaling") == "standard"
    assert cells["cifar10", "released", "rlp"].task.get("dataset") == "cifar10-released"
    assert cells["mnist", "released", "rlp"].arm.get("momentum") == 0.99
    assert cells["mnist", "released", "mse"].arm.get("momentum") == 0.0


def test_small_sets_use_adamw_with_its_own_decay():
    cells = {(c.task.name, c.arm.protocol, c.arm.name): c for c in studies.table2(Request("paper"))}
    assert cells["linear", "released", "mse"].arm.get("weight_decay") == published.adamw_weight_decay()
    assert cells["linear", "released", "mse_l2"].arm.get("weight_decay") == 1e-2
    assert cells["wine", "released", "rlp"].arm.get("subset_size") == 12
    assert cells["linear", "released", "rlp"].arm.get("subset_size") == 10


def test_figures_share_the_cells_of_tables():
    request = Request("quick")
    table1 = {c.hash for c in studies.table1(request)}
    assert {c.hash for c in CATALOG["fig-curves"].cells(request)} == table1
    rlp = {c.hash for c in studies.mixup_curves(request) if c.arm.name == "rlp"}
    assert rlp <= table1
    assert {c.hash for c in studies.reconstructions(request)} <= {c.hash for c in studies.table2(request)}


@pytest.mark.parametrize(("budget", "absent"), [("epochs", "steps"), ("steps", "paper")])
def test_a_budget_leaves_the_other_comparison_out(budget, absent):
    found = {c.arm.protocol for c in cells_of(TRAINED, Request("quick", budget)) if not is_rlp(c.arm.name)}
    assert absent not in found
    # RLP itself is needed either way.
    assert any(is_rlp(c.arm.name) for c in cells_of(["table1"], Request("quick", budget)))


def test_narrowing():
    request = Request("quick", datasets=("linear",), arms=("rlp", "mse"), seeds=4)
    cells = cells_of(TRAINED, request)
    assert {c.task.get("dataset") for c in cells} == {"linear"}
    assert {c.arm.name for c in cells} == {"mse", "rlp"}
    assert {c.seeds for c in cells} == {(0, 1, 2, 3)}


def test_requests_round_trip_and_are_checked():
    request = Request("paper", "steps", 7, ("wine",), None)
    assert Request.from_options(request.options()) == request
    assert request.arguments() == "--scale paper --budget steps --seeds 7 --datasets wine"
    with pytest.raises(ValueError, match='scale must be one of "smoke", "quick", "paper", got \'huge\''):
        Request("huge")
    with pytest.raises(ValueError, match='budget must be one of "epochs", "steps", "both"'):
        Request("quick", "hours")
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        Request(seeds=0)
