import pytest

from rlploss.lab.problems import train_rows
from rlploss.lab.study import Cell, Variant
from rlploss.paper import published
from rlploss.paper.cost import expected_seconds, steps_of
from rlploss.paper.protocols import PROTOCOLS, is_rlp
from rlploss.paper.request import SCALES, Request
from rlploss.paper.studies import STUDIES, cells_of
from rlploss.training.job import SGD, Adam, AdamW, Epochs, Steps
from rlploss.training.objectives import MSE, RLP

TRAINED = [
    name for name in STUDIES if name not in ("propositions", "fig-planes", "fig-networks", "tables-hyperparameters")
]


def by_key(name, request):
    return {(c.task.name, c.arm.protocol, c.arm.name): c for c in STUDIES[name](request)}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", TRAINED)
def test_every_cell_is_well_formed(name, scale):
    cells = STUDIES[name](Request(scale))
    assert cells
    labels = [(c.task.name, c.arm.protocol, c.arm.name) for c in cells]
    assert len(labels) == len(set(labels))
    for cell in cells:
        assert cell.arm.protocol in PROTOCOLS
        assert Cell.from_spec(cell.spec()).hash == cell.hash
        assert expected_seconds(cell) > 0
        for variant in cell.task.variants:
            size = getattr(cell.arm.objective, "subset_size", None)
            assert size is None or size <= train_rows(cell.task, variant)


@pytest.mark.parametrize("name", [n for n in TRAINED if n != "fig-time"])
def test_equal_steps_are_equal_and_so_are_the_rows_per_step(name):
    cells = STUDIES[name](Request("paper"))
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
                            assert a.arm.objective.subset_size in (b.arm.objective.batch_size, 12)


def test_table1_has_the_papers_hyperparameters():
    cells = by_key("table1", Request("paper"))
    rlp = cells["linear", "released", "rlp"]
    assert rlp.arm.objective == RLP.released(100, 1000)
    assert rlp.arm.optimizer == Adam(1e-4)
    assert rlp.budget == Epochs(200)
    assert rlp.seeds == tuple(range(30))
    assert cells["linear", "steps", "mse"].budget == Steps(200_000)
    assert cells["california", "steps", "mse"].budget == Steps(500_000)
    assert cells["linear", "released", "mse_l2"].arm.optimizer == Adam(1e-4, weight_decay=1e-4)
    assert cells["linear", "released", "mse"].arm.optimizer == Adam(1e-4)
    assert cells["linear", "paper", "rlp"].arm.objective == RLP.paper(100, 1000)
    assert cells["linear", "paper", "mse"].arm.objective == MSE("all")
    assert cells["wine", "corrected", "rlp"].arm.objective.intercept is True
    assert cells["wine", "corrected", "mse"].task.scaling == "standard"
    assert cells["cifar10", "released", "rlp"].task.dataset == "cifar10-released"
    assert cells["mnist", "released", "rlp"].arm.objective == RLP.released(1000, 100, float32_cutoff=True)
    assert cells["mnist", "released", "rlp"].arm.optimizer == SGD(0.01, momentum=0.99)
    assert cells["mnist", "released", "mse"].arm.optimizer == SGD(0.01)
    assert cells["mnist", "paper", "mse"].arm.optimizer == SGD(0.01, momentum=0.9, nesterov=True)


def test_small_sets_use_adamw_with_its_own_decay():
    cells = by_key("table2", Request("paper"))
    assert cells["linear", "released", "mse"].arm.optimizer == AdamW(5e-4, published.adamw_weight_decay())
    assert cells["linear", "released", "mse_l2"].arm.optimizer == AdamW(5e-4, 1e-2)
    assert cells["wine", "released", "rlp"].arm.objective.subset_size == 12
    assert cells["linear", "released", "rlp"].arm.objective.subset_size == 10


def test_released_classifiers_end_in_a_soft_max_and_leave_torchs_weight_decay():
    cells = by_key("fig-mnist-classes", Request("paper"))
    released, printed = cells["mnist_classes", "released", "ce"], cells["mnist_classes", "paper", "ce"]
    assert (released.arm.output, released.arm.optimizer) == ("softmax", AdamW(2e-3, 0.01))
    assert (printed.arm.output, printed.arm.optimizer) == ("logits", AdamW(2e-3, published.adamw_weight_decay()))
    assert cells["mnist_classes", "paper", "rlp"].arm.output == "sigmoid"


def test_sweeps_have_nine_levels_and_look_at_the_end():
    shift, noise = (by_key(name, Request("paper"))["wine", "released", "mse"] for name in ("fig-shift", "fig-noise"))
    assert shift.task.variants[0] == Variant(shift=0.1)
    assert noise.task.variants[-1] == Variant(noise=0.9)
    assert len(shift.task.variants) == len(noise.task.variants) == 9
    assert shift.evaluate_every == shift.budget.n


def test_figures_share_the_cells_of_tables():
    request = Request("quick")
    hashes = {name: {c.hash for c in STUDIES[name](request)} for name in TRAINED}
    assert hashes["fig-curves"] == hashes["table1"]
    assert {c.hash for c in STUDIES["fig-mixup-curves"](request) if c.arm.name == "rlp"} <= hashes["table1"]
    assert hashes["fig-reconstructions"] <= hashes["table2"]


@pytest.mark.parametrize(("budget", "absent"), [("epochs", "steps"), ("steps", "paper")])
def test_a_budget_leaves_the_other_comparison_out(budget, absent):
    found = {c.arm.protocol for c in cells_of(TRAINED, Request("quick", budget)) if not is_rlp(c.arm.name)}
    assert absent not in found
    # RLP itself is needed either way.
    assert any(is_rlp(c.arm.name) for c in cells_of(["table1"], Request("quick", budget)))


def test_narrowing():
    request = Request("quick", datasets=("linear",), arms=("rlp", "mse"), seeds=4)
    cells = cells_of(TRAINED, request)
    assert {c.task.dataset for c in cells} == {"linear"}
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
