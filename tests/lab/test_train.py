import dataclasses

import numpy as np
import pytest

from rlploss.lab import problems
from rlploss.lab.study import Arm, Budget, Cell, Task, settings
from rlploss.lab.train import train


def make(objective="mse", *, budget=None, seeds=(0, 1), variants=((),), arm=None, **task):
    base = {"dataset": "linear", "model": "regression", "n_train": 60, "n_test": 50, "metrics": "mse,rlp"}
    given = {"lr": 1e-3} | ({"batch_size": 20} if objective == "mse" else {"subset_size": 20, "n_subsets": 5})
    return Cell(
        Arm("a", objective, "released", settings(given | (arm or {}))),
        Task("t", settings(base | task), tuple(settings(dict(v)) for v in variants)),
        budget or Budget("epochs", 4, 2),
        seeds,
    )


def quiet(fraction):
    assert 0.0 <= fraction <= 1.0


@pytest.mark.parametrize("objective", ["mse", "rlp"])
def test_a_cell_gives_one_curve_per_variant_and_seed(objective):
    cell = make(objective, variants=({"noise": 0.1}, {"noise": 0.5}))
    result = train(cell, quiet)
    assert [(r.variant, r.seed) for r in result.runs] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for run in result.runs:
        assert run.curve["epoch"] == [0.0, 2.0, 4.0]
        assert {"step", "samples", "seconds", "mse", "rlp"} <= set(run.curve)
        assert all(r <= m + 1e-9 for r, m in zip(run.curve["rlp"], run.curve["mse"], strict=True))
    ends = [r.curve["mse"][-1] for r in result.runs]
    assert len(set(ends)) == 4


def test_the_same_cell_gives_the_same_numbers():
    first, second = (train(make("rlp"), quiet) for _ in range(2))
    for a, b in zip(first.runs, second.runs, strict=True):
        assert a.curve["mse"] == b.curve["mse"]


def test_arms_share_split_and_initial_weights():
    a, b = (train(make(objective), quiet) for objective in ("mse", "rlp"))
    for x, y in zip(a.runs, b.runs, strict=True):
        assert x.curve["mse"][0] == y.curve["mse"][0]


def test_full_batches_take_one_step_per_epoch():
    result = train(make(arm={"batch_size": "all"}), quiet)
    assert result.runs[0].curve["step"][-1] == 4.0


def test_splits_follow_their_settings():
    half = Task("t", settings({"dataset": "linear", "model": "regression"}))
    assert len(problems.split(half, {}, 0).X_train) == 3000
    assert problems.train_rows(half, {}) == 3000
    shifted = dataclasses.replace(half, settings=settings({"dataset": "nonlinear", "model": "regression"}))
    split = problems.split(shifted, {"shift": 0.9}, 0)
    assert abs(len(split.X_train) - problems.train_rows(shifted, {"shift": 0.9})) < 100
    quiet_rows, noisy = (problems.split(half, v, 3) for v in ({}, {"noise": 0.5}))
    assert np.array_equal(quiet_rows.train_rows, noisy.train_rows)
    assert not np.array_equal(quiet_rows.X_train, noisy.X_train)
    standard = dataclasses.replace(half, settings=settings(dict(half.settings) | {"scaling": "standard"}))
    assert np.abs(problems.split(standard, {}, 0).X_train.mean(axis=0)).max() < 1e-6
    first = dataclasses.replace(
        half, settings=settings(dict(half.settings) | {"first": True, "n_train": 5, "n_test": 4})
    )
    assert problems.split(first, {}, 0).train_rows.tolist() == [0, 1, 2, 3, 4]


def test_moons_keeps_a_decision_boundary():
    cell = make(
        "cross_entropy", arm={"batch_size": 20, "subset_size": None, "n_subsets": None, "output": "logits"},
        dataset="moons", model="moons", metrics="accuracy,f1", keep="boundary",
    )  # fmt: skip
    result = train(cell, quiet)
    assert result.runs[0].artifacts["boundary"].shape == (60, 60)
    assert result.runs[1].artifacts == {}


def test_warnings_become_notes():
    result = train(make("rlp", arm={"subset_size": 4, "preset": "released"}), quiet)
    assert any("exactly MSE" in note for note in result.notes)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (make(arm={"subsetsize": 3}), 'arm setting must be one of .* did you mean "subset_size"'),
        (make(trian=3), "task setting must be one of"),
        (make(variants=({"nois": 0.1},)), 'did you mean "noise"'),
        (make(model="transformer"), "task setting model must be one of"),
    ],
)  # fmt: skip
def test_settings_that_nobody_reads_are_refused(cell, text):
    with pytest.raises(ValueError, match=text):
        train(cell, quiet)


def test_a_diverging_seed_is_named():
    with pytest.raises(RuntimeError, match="seed 0: the loss became"):
        train(make(arm={"lr": 1e30, "optimizer": "sgd"}), quiet)
