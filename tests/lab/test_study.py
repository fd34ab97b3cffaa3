import dataclasses
import json
import subprocess
import sys

import pytest
from tests.lab import stub

from rlploss.lab.study import Arm, Budget, Cell, Study, Task, canonical_json, distinct, grid, settings


def test_settings_are_sorted_and_defaults_are_dropped():
    assert settings({"lr": 1e-4, "batch_size": 10, "ridge": None}) == (("batch_size", 10), ("lr", 1e-4))


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ([1], TypeError, r"setting 'a' must be text, a number or a bool, got \[1\] \(list\)"),
        (float("nan"), ValueError, "setting 'a' must be finite, got nan"),
    ],
)
def test_settings_refuse_what_is_not_plain(value, error, text):
    with pytest.raises(error, match=text):
        settings({"a": value})


def test_names_are_not_part_of_the_identity_and_everything_else_is():
    base = stub.cell(rate=0.5)
    renamed = dataclasses.replace(base, arm=dataclasses.replace(base.arm, name="x", protocol="y"))
    assert renamed.hash == base.hash
    others = [
        stub.cell(rate=0.6),
        stub.cell("mae", rate=0.5),
        stub.cell(seeds=(0, 1), rate=0.5),
        stub.cell(n=5, rate=0.5),
        dataclasses.replace(base, budget=Budget("steps", 4)),
        dataclasses.replace(base, budget=Budget("epochs", 4, 2)),
        dataclasses.replace(base, task=Task("toy", settings({"dataset": "other"}))),
        dataclasses.replace(base, task=dataclasses.replace(base.task, variants=(settings({"noise": 0.1}),))),
    ]
    assert len({base.hash, *(o.hash for o in others)}) == len(others) + 1


def test_spec_round_trips_through_json():
    cell = stub.cell(rate=0.1, lr=1e-4, flag=True)
    assert Cell.from_spec(json.loads(canonical_json(cell.spec()))).hash == cell.hash


def test_hash_is_the_same_in_another_process():
    code = "from tests.lab import stub; print(stub.cell(rate=0.1, lr=1e-4).hash)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == stub.cell(rate=0.1, lr=1e-4).hash


def test_grid_is_the_whole_product_and_distinct_keeps_the_first():
    arms = [Arm("a", "mse"), Arm("b", "mse"), Arm("c", "mae")]
    tasks = [Task("t", settings({"dataset": "t"})), Task("u", settings({"dataset": "u"}))]
    study = grid("s", arms, tasks, [Budget("epochs", 2), Budget("steps", 7)], range(3))
    assert len(study) == 3 * 2 * 2
    assert [c.arm.name for c in distinct(study)] == ["a", "a", "c", "c"] * 2
    assert study.hash != Study("s", study.cells[1:]).hash


def test_bad_cells_say_so():
    with pytest.raises(ValueError, match=r"distinct seeds, at least one, got \(1, 1\)"):
        stub.cell(seeds=(1, 1))
    with pytest.raises(ValueError, match="at least one variant, got none"):
        Task("t", variants=())
    with pytest.raises(ValueError, match='budget unit must be one of "epochs", "steps"'):
        Budget("hours", 3)
    with pytest.raises(ValueError, match="budget must be at least 1, got 0"):
        Budget("steps", 0)
