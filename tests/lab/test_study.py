import dataclasses
import json
import subprocess
import sys

import pytest
from tests.lab import stub

from rlploss import MAE, MSE, RLP, SGD, Adam, Epochs, Pointwise, Steps
from rlploss.compare.arms import arms_for
from rlploss.lab.study import Arm, Cell, Task, Variant, canonical_json, distinct

ARM = Arm("rlp", RLP(20, n_subsets=5), Adam(1e-4), protocol="released")
TASK = Task("t", "linear", "regression", n_train=60)
BUDGET = Epochs(4)


def cell(arm=ARM, task=TASK, budget=BUDGET, seeds=(0, 1), **more):
    return Cell(arm, task, budget, seeds, **more)


def test_names_are_not_part_of_the_identity_and_everything_else_is():
    base = cell()
    renamed = cell(
        dataclasses.replace(ARM, name="x", protocol="y"), dataclasses.replace(TASK, name="z")
    )
    assert renamed.hash == base.hash
    others = [
        cell(dataclasses.replace(ARM, objective=RLP(21, n_subsets=5))),
        cell(dataclasses.replace(ARM, optimizer=SGD(1e-4))),
        cell(dataclasses.replace(ARM, output="softmax")),
        cell(seeds=(0,)),
        cell(budget=Epochs(5)),
        cell(budget=Steps(4)),
        cell(evaluate_every=2),
        cell(task=dataclasses.replace(TASK, dataset="other")),
        cell(task=dataclasses.replace(TASK, metrics=("mse", "rlp"))),
        cell(task=dataclasses.replace(TASK, variants=(Variant(noise=0.1),))),
    ]
    assert len({base.hash, *(o.hash for o in others)}) == len(others) + 1


def test_a_cell_is_shown_by_its_labels():
    assert str(cell(budget=Steps(4000))) == "t · released · rlp · 4,000 steps"
    assert str(cell(Arm("mse", "mse", Adam()))) == "t · mse · 4 epochs"
    ridge = next(arm for arm in arms_for("regression") if arm.name == "ridge")
    assert str(cell(ridge, budget=Steps(4000))) == "t · ridge"  # takes no steps
    assert cell(task=dataclasses.replace(TASK, variants=(Variant(), Variant(shift=0.5)))).keys == [
        (0, 0), (0, 1), (1, 0), (1, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "made", [cell(), stub.cell(rate=0.1, timed=True)], ids=["lab", "of another room"]
)
def test_spec_round_trips_through_json(made):
    read = Cell.from_spec(json.loads(canonical_json(made.spec())))
    assert read.hash == made.hash
    assert type(read.arm) is type(made.arm)
    assert read.task == dataclasses.replace(made.task, name="")


def test_a_spec_with_a_function_is_not_loaded():
    """It would import a module, or run a file, that somebody else named."""
    spec = json.loads(canonical_json(cell(Arm("own", Pointwise(isinstance), Adam())).spec()))
    with pytest.raises(ValueError, match="isinstance is not loaded: functions are refused here"):
        Cell.from_spec(spec)


@pytest.mark.parametrize(
    "change",
    [
        {"arm": {"kind": "Adam"}},
        {"arm": 3},
        {"task": {"kind": "Task", "trian": 3}},
        {"seeds": []},
        {"budget": None},
    ],
)
def test_strange_specs_are_refused(change):
    with pytest.raises((ValueError, TypeError)):
        Cell.from_spec(cell().spec() | change)


def test_hash_is_the_same_in_another_process():
    code = "from tests.lab.test_study import cell; print(cell().hash)"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == cell().hash


def test_distinct_keeps_the_first():
    arms = [Arm("a", MSE(), Adam()), Arm("b", MSE(), Adam()), Arm("c", MAE(), Adam())]
    assert [c.arm.name for c in distinct(cell(arm) for arm in arms)] == ["a", "c"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: cell(seeds=(1, 1)), r"distinct seeds, at least one, got \(1, 1\)"),
        (lambda: cell(seeds=()), r"distinct seeds, at least one, got \(\)"),
        (lambda: cell(evaluate_every=0), "evaluate_every must be at least 1, got 0"),
        (lambda: cell(budget=3), r"budget must be Epochs\(n\) or Steps\(n\), got 3"),
        (
            lambda: Arm("a", "mse", "adam"),
            r"optimizer of an arm must be Adam\(...\), .*, got 'adam'",
        ),
        (lambda: Arm("a", MSE, Adam()), r"got the class MSE; write MSE\(...\)"),
        (lambda: Arm("a", MSE(), Adam(), output="tanh"), "output must be one of .*, got .tanh."),
        (lambda: Task("t", "linear", "transformer"), "model must be one of"),
        (lambda: Task("t", "linear", "moons", keep="boundaries"), 'did you mean "boundary"'),
        (lambda: Task("t", "linear", "moons", n_train=0), "n_train must be at least 1, got 0"),
        (lambda: Task("t", "linear", "moons", variants=()), "at least one variant, got none"),
        (lambda: Variant(shift=1.5), r"shift must be in \[0, 1\], got 1.5"),
        (lambda: Variant(noise=float("nan")), "noise must be .*, got nan"),
    ],
)
def test_what_makes_no_sense_cannot_be_made(make, text):
    with pytest.raises((ValueError, TypeError), match=text):
        make()
