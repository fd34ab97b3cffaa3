import dataclasses

import numpy as np
import pytest

from rlploss import MSE, RLP, SGD, Adam, CrossEntropy, Epochs
from rlploss.lab.study import Arm, Cell, Task, Variant
from rlploss.lab.train import split, train, train_rows

RLP_SMALL, MSE_SMALL, ADAM = RLP(20, n_subsets=5), MSE(20), Adam(1e-3)


def make(objective=MSE_SMALL, *, seeds=(0, 1), optimizer=ADAM, **task):
    given = {
        "dataset": "linear",
        "model": "regression",
        "n_train": 60,
        "n_test": 50,
        "metrics": ("mse", "rlp"),
    }
    arm = Arm("a", objective, optimizer, protocol="released")
    return Cell(arm, Task("t", **(given | task)), Epochs(4), seeds, evaluate_every=2)


def quiet(fraction):
    assert 0.0 <= fraction <= 1.0


@pytest.mark.parametrize("objective", [MSE_SMALL, RLP_SMALL])
def test_a_cell_gives_one_curve_per_variant_and_seed(objective):
    cell = make(objective, variants=(Variant(noise=0.1), Variant(noise=0.5)))
    result = train(cell, quiet)
    assert [(r.variant, r.seed) for r in result.networks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for run in result.networks:
        assert run.curve["epoch"] == [0.0, 2.0, 4.0]
        assert {"step", "samples", "seconds", "mse", "rlp"} <= set(run.curve)
        assert all(r <= m + 1e-9 for r, m in zip(run.curve["rlp"], run.curve["mse"], strict=True))
    ends = [r.curve["mse"][-1] for r in result.networks]
    assert len(set(ends)) == 4


def test_the_same_cell_gives_the_same_numbers():
    first, second = (train(make(RLP_SMALL), quiet) for _ in range(2))
    for a, b in zip(first.networks, second.networks, strict=True):
        assert a.curve["mse"] == b.curve["mse"]


def test_arms_share_split_and_initial_weights():
    a, b = (train(make(objective), quiet) for objective in (MSE_SMALL, RLP_SMALL))
    for x, y in zip(a.networks, b.networks, strict=True):
        assert x.curve["mse"][0] == y.curve["mse"][0]


def test_full_batches_take_one_step_per_epoch():
    result = train(make(MSE(60)), quiet)
    assert result.networks[0].curve["step"][-1] == 4.0


def test_what_is_stored_says_how_large_batches_were():
    swept = make(MSE(), variants=(Variant(shift=0.3), Variant(shift=0.99)))
    sizes = [made["batch_size"] for made in train(swept, quiet).objectives]
    assert max(sizes) == 100 > min(sizes)
    (made,) = train(make(RLP(20)), quiet).objectives
    assert (made["subset_size"], made["n_subsets"], made["subsets_per_step"]) == (20, 1000, 1)


def test_splits_follow_their_task():
    half = Task("t", "linear", "regression")
    assert len(split(half, Variant(), 0).X_train) == 3000
    assert train_rows(half, Variant()) == 3000
    shifted, level = dataclasses.replace(half, dataset="nonlinear"), Variant(shift=0.9)
    assert abs(len(split(shifted, level, 0).X_train) - train_rows(shifted, level)) < 100
    quiet_rows, noisy = (split(half, v, 3) for v in (Variant(), Variant(noise=0.5)))
    assert np.array_equal(quiet_rows.train_rows, noisy.train_rows)
    assert not np.array_equal(quiet_rows.X_train, noisy.X_train)
    standard = dataclasses.replace(half, scaling="standard")
    assert np.abs(split(standard, Variant(), 0).X_train.mean(axis=0)).max() < 1e-6
    first = dataclasses.replace(half, first=True, n_train=5, n_test=4)
    assert split(first, Variant(), 0).train_rows.tolist() == [0, 1, 2, 3, 4]


def test_moons_keeps_a_decision_boundary():
    made = {"dataset": "moons", "model": "moons", "metrics": ("accuracy", "f1"), "keep": "boundary"}
    result = train(make(CrossEntropy(20), **made), quiet)
    assert result.networks[0].artifacts["boundary"].shape == (60, 60)
    assert result.networks[1].artifacts == {}


def test_warnings_become_notes():
    result = train(make(RLP.released(4, n_subsets=5)), quiet)
    assert any("equals MSE" in note for note in result.notes)


def test_a_diverging_seed_is_named():
    with pytest.raises(RuntimeError, match="seed 0: the loss became"):
        train(make(optimizer=SGD(1e30)), quiet)
