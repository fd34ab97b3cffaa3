import dataclasses
import re
from pathlib import Path

import pytest

from rlploss.lab.study import Cell, Variant
from rlploss.lab.train import split, train_rows
from rlploss.paper import published
from rlploss.paper.request import SCALES, Request
from rlploss.paper.studies import (
    CATALOG,
    PROTOCOLS,
    STUDIES,
    cells_of,
    expected_seconds,
    is_rlp,
    steps_of,
)
from rlploss.training.job import SGD, Adam, AdamW, Epochs, Steps
from rlploss.training.objectives import MSE, RLP, BinaryCrossEntropy, CrossEntropy

TRAINED = [
    name
    for name in STUDIES
    if name not in ("propositions", "fig-planes", "fig-networks", "tables-hyperparameters")
]


def by_key(name, request):
    return {(c.task.name, c.arm.protocol, c.arm.name): c for c in STUDIES[name](request)}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", TRAINED)
def test_every_cell_is_well_formed(name, scale):
    cells = STUDIES[name](Request(scale))
    assert cells
    labels = [(c.task.name, c.arm.protocol, c.arm.name, c.seeds) for c in cells]
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
                ours = [
                    c for c in mine if is_rlp(c.arm.name) and c.arm.name.endswith("mixup") == mixed
                ]
                theirs = [
                    c
                    for c in mine
                    if not is_rlp(c.arm.name) and c.arm.name.endswith("mixup") == mixed
                ]
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
    assert cells["mnist", "released", "rlp"].arm.objective == RLP.released(
        1000, 100, float32_cutoff=True
    )
    assert cells["mnist", "released", "rlp"].arm.optimizer == SGD(0.01, momentum=0.99)
    assert cells["mnist", "released", "mse"].arm.optimizer == SGD(0.01)
    assert cells["mnist", "paper", "mse"].arm.optimizer == SGD(0.01, momentum=0.9, nesterov=True)


def test_small_sets_use_adamw_with_its_own_decay():
    cells = by_key("table2", Request("paper"))
    assert cells["linear", "released", "mse"].arm.optimizer == AdamW(
        5e-4, published.PROTOCOL["adamw_weight_decay"]
    )
    assert cells["linear", "released", "mse_l2"].arm.optimizer == AdamW(5e-4, 1e-2)
    assert cells["wine", "released", "rlp"].arm.objective.subset_size == 12
    assert cells["linear", "released", "rlp"].arm.objective.subset_size == 10


def test_released_classifiers_end_in_a_soft_max_and_leave_torchs_weight_decay():
    cells = by_key("fig-mnist-classes", Request("paper"))
    released, printed = (
        cells["mnist_classes", "released", "ce"],
        cells["mnist_classes", "paper", "ce"],
    )
    assert (released.arm.output, released.arm.optimizer) == ("softmax", AdamW(2e-3, 0.01))
    assert (printed.arm.output, printed.arm.optimizer) == ("logits", AdamW(2e-3, 1e-4))
    assert cells["mnist_classes", "paper", "rlp"].arm.output == "sigmoid"


def test_released_moons_have_a_sigmoid_and_binary_cross_entropy_in_every_arm():
    cells = by_key("fig-moons", Request("paper"))
    for task, size, rows in (("moons", 50, (500, 500)), ("moons-small", 3, (25, 475))):
        plain, ours = cells[task, "released", "ce"], cells[task, "released", "rlp"]
        assert plain.arm.objective == BinaryCrossEntropy(size)
        assert ours.arm.objective == RLP.released(size, 1000 if task == "moons" else 100)
        assert {plain.arm.output, ours.arm.output} == {"sigmoid"}
        assert plain.arm.optimizer == ours.arm.optimizer == Adam(1e-3)
        assert (plain.task.first, plain.task.n_train, plain.task.n_test) == (True, *rows)
        assert cells[task, "corrected", "ce"].arm.objective == CrossEntropy(size)
        assert cells[task, "corrected", "ce"].arm.output == "logits"
    mixed = {arm: cells["moons-small", "released", arm].arm for arm in ("ce_mixup", "rlp_mixup")}
    assert mixed["ce_mixup"].objective == BinaryCrossEntropy("all", mixup=0.4)
    assert {arm.optimizer for arm in mixed.values()} == {AdamW(1e-3, 0.01)}
    assert cells["moons", "released", "ce_mixup"].arm.optimizer == Adam(1e-3)
    assert cells["moons-small", "steps", "ce_mixup"].arm.objective == BinaryCrossEntropy(
        3, mixup=0.4
    )


def test_released_images_are_the_first_ones():
    for name, task, rows in (
        ("table1", "mnist", (5000, 1000)),
        ("fig-mnist-classes", "mnist_classes", (5000, 5000)),
    ):
        mine = by_key(name, Request("paper"))[task, "released", "rlp"].task
        assert (mine.first, mine.n_train, mine.n_test) == (True, *rows)
        assert not by_key(name, Request("paper"))[task, "paper", "rlp"].task.first


def test_images_have_their_printed_column_with_few_examples_too():
    for name, rows in (("table2", 50), ("fig-small-100", 100)):
        for dataset in ("mnist", "cifar10"):
            cell = by_key(name, Request("paper"))[dataset, "paper", "rlp"]
            assert cell.arm.objective == RLP.paper(10, 100)
            assert (cell.task.dataset, cell.task.n_train, cell.task.first) == (dataset, rows, False)


def test_scale_paper_has_its_seeds_and_full_epochs():
    seeds = {
        **dict.fromkeys(
            ("table2", "fig-mae", "fig-moons", "fig-mixup-curves", "fig-mixup-small", "fig-time"),
            30,
        ),
        **dict.fromkeys(
            ("fig-shift", "fig-noise", "fig-mixup-shift", "fig-mixup-noise", "fig-mnist-classes"),
            10,
        ),
    }
    for name, n in seeds.items():
        cells = [c for c in STUDIES[name](Request("paper")) if c.task.model != "autoencoder"]
        assert {c.seeds for c in cells} == {tuple(range(n))}, name
    for name in TRAINED:
        for cell in STUDIES[name](Request("paper")):
            if cell.task.model in ("autoencoder", "lenet5"):
                assert len(cell.seeds) == (5 if name == "autoencoder-causes" else 10)
    assert {c.seeds for c in cells_of(TRAINED, Request("paper", seeds=4))} == {(0, 1, 2, 3)}


def test_claims_with_a_threshold_have_120_seeds_and_nothing_trains_twice():
    table, more = (STUDIES[name](Request("paper")) for name in ("table1", "thresholds"))
    by_name = {}
    for cell in more:
        by_name.setdefault((cell.task.name, cell.arm.protocol, cell.arm.name), []).extend(
            cell.seeds
        )
    assert len(by_name) == 2 * 2 * 3
    assert {tuple(seeds) for seeds in by_name.values()} == {tuple(range(120))}
    stored = {c.hash for c in table}
    assert {c.seeds for c in more if c.hash in stored} == {tuple(range(30))}
    assert {c.seeds for c in more if c.hash not in stored} == {tuple(range(30, 120))}


def test_california_has_as_many_seeds_in_table_1_and_nowhere_else():
    table, shift = (STUDIES[name](Request("paper")) for name in ("table1", "fig-shift"))
    seeds = {}
    for cell in (c for c in table if c.task.name == "california"):
        seeds.setdefault(cell.arm.protocol, set()).update(cell.seeds)
    assert {k: len(v) for k, v in seeds.items()} == {
        "released": 120,
        "steps": 120,
        "paper": 30,
        "corrected": 30,
        "corrected-steps": 30,
    }
    assert {len(c.seeds) for c in shift} == {10}


def test_the_best_rate_is_chosen_on_training_rows_and_steps_are_equal():
    cells = STUDIES["best-rate"](Request("paper"))
    assert len(cells) == 4 * 5 * 2 * 2  # datasets, rates, held out or not, arms
    for cell in cells:
        assert steps_of(cell) == (500_000 if cell.task.dataset == "california" else 200_000)
    held = [cell.task for cell in cells if cell.task.held_out]
    assert len(held) == len(cells) / 2
    task = next(task for task in held if task.dataset == "linear")
    part, whole = (split(t, Variant(), 3) for t in (task, dataclasses.replace(task, held_out=None)))
    assert (len(part.X_train), len(part.X_test)) == (2400, 600)
    assert {*part.train_rows, *part.test_rows} == {*whole.train_rows}
    assert train_rows(task, Variant()) == 2400


def test_each_cause_changes_one_thing():
    cells = by_key("autoencoder-causes", Request("paper"))

    def differences(dataset, change, arm):
        here, base = (
            cells[f"{dataset} ({name})", "released", arm].spec() for name in (change, "as released")
        )
        parts = {**base["task"], **base["arm"]}, {**here["task"], **here["arm"]}
        return {name for name in parts[0] if parts[0][name] != parts[1][name]}

    assert differences("mnist", "momentum for MSE too", "mse") == {"optimizer"}
    assert differences("mnist", "momentum for MSE too", "rlp") == set()
    assert differences("mnist", "Nesterov", "rlp") == {"optimizer"}
    assert differences("mnist", "MSE in batches of 100", "mse") == {"objective"}
    assert differences("mnist", "exact factors", "rlp") == {"objective"}
    assert differences("mnist", "exact factors", "mse") == set()
    assert differences("cifar10", "random rows", "rlp") == {"first"}
    assert differences("cifar10", "pixels in [0, 1]", "mse") == {"dataset"}


def test_sweeps_have_nine_levels_and_look_at_the_end():
    shift, noise = (
        by_key(name, Request("paper"))["wine", "released", "mse"]
        for name in ("fig-shift", "fig-noise")
    )
    assert shift.task.variants[0] == Variant(shift=0.1)
    assert noise.task.variants[-1] == Variant(noise=0.9)
    assert len(shift.task.variants) == len(noise.task.variants) == 9
    assert shift.evaluate_every == shift.budget.n


def test_figures_share_the_cells_of_tables():
    request = Request("quick")
    hashes = {name: {c.hash for c in STUDIES[name](request)} for name in TRAINED}
    assert hashes["fig-curves"] == hashes["table1"]
    assert {c.hash for c in STUDIES["fig-mixup-curves"](request) if c.arm.name == "rlp"} <= hashes[
        "table1"
    ]
    assert hashes["fig-reconstructions"] <= hashes["table2"]


@pytest.mark.parametrize(("budget", "absent"), [("epochs", "steps"), ("steps", "paper")])
def test_a_budget_leaves_the_other_comparison_out(budget, absent):
    found = {
        c.arm.protocol
        for c in cells_of(TRAINED, Request("quick", budget))
        if not is_rlp(c.arm.name)
    }
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
    assert Request.from_options(dataclasses.asdict(request)) == request
    assert request.arguments() == "--scale paper --budget steps --seeds 7 --datasets wine"
    with pytest.raises(
        ValueError, match='scale must be one of "smoke", "quick", "paper", got \'huge\''
    ):
        Request("huge")
    with pytest.raises(ValueError, match='budget must be one of "epochs", "steps", "both"'):
        Request("quick", "hours")
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        Request(seeds=0)


COSTS = Path(__file__).parents[2] / "docs" / "results" / "costs.md"


@pytest.mark.parametrize(
    "part", COSTS.read_text("utf-8").split("\n## ")[1:], ids=["tables", "images"]
)
def test_predictions_are_within_a_factor_of_what_was_measured(part):
    """The page says 1.5 for every name; its numbers are core seconds of the commands that it
    names."""
    words = re.search(r"rlploss reproduce (.*)", part)[1].split()
    options = dict(
        zip(words[words.index("--scale") :: 2], words[words.index("--scale") + 1 :: 2], strict=True)
    )
    request = Request(
        options["--scale"], "both", int(options["--seeds"]), tuple(options["--datasets"].split(","))
    )
    asked = CATALOG if words[0] == "all" else words[: words.index("--scale")]
    rows = [
        [cell.strip() for cell in row.split(" | ")]
        for row in re.findall(r"(?m)^\| (.*) \|$", part)[2:-1]
    ]
    measured = {row[0].replace("\\|", "|"): float(row[-2].replace(",", "")) for row in rows}
    seen, predicted = set(), {}
    for name in CATALOG:
        if name in asked:
            cells = {cell.hash: cell for cell in cells_of([name], request) if cell.hash not in seen}
            seen |= cells.keys()
            predicted[CATALOG[name]["short"]] = sum(map(expected_seconds, cells.values()))
    assert measured
    for short, seconds in measured.items():
        assert 1 / 1.5 < predicted[short] / seconds < 1.5, (short, predicted[short], seconds)
