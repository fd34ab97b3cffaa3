"""Corners that once went wrong: numbers that are not finite, columns of very different size, odd
types."""

import math
import time
import warnings

import numpy as np
import pytest
import torch
from tests.close import assert_close

from rlploss import (
    MSEEquivalentWarning,
    ProjectionBank,
    RLPLoss,
    _checks,
    balanced_subsets,
    rlp_loss,
)
from rlploss.loss.planes import PROBES

pytestmark = pytest.mark.filterwarnings("ignore::rlploss.DegenerateLossWarning")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# Numbers that are not finite


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("shape", [(2, 3), (3, 3), (9, 3)])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("features_grad", [False, True])
def test_features_that_are_not_finite_are_named(probe, intercept, shape, number, features_grad):
    x = torch.randn(*shape, generator=seeded())
    points = torch.ones(1, 3) if probe in ("draw", "expected") else None
    x[1, 2] = number
    r = torch.ones(shape[0])
    options = {"probe": probe, "intercept": intercept, "features_grad": features_grad}
    with pytest.raises(
        ValueError, match=rf"features must be finite, got {number} at index \[1, 2\]"
    ):
        rlp_loss(r, 0 * r, x, probe_points=points, **options)
    with pytest.raises(
        ValueError, match=rf"features must be finite, got {number} at index \[1, 2\]"
    ):
        RLPLoss(**options)(r, 0 * r, x, probe_points=points)


@pytest.mark.parametrize("shape", [(2, 3), (3, 3), (9, 3)])
def test_without_the_check_features_that_are_not_finite_give_nan(shape):
    x = torch.full(shape, math.nan)
    r = torch.ones(shape[0])
    assert torch.isnan(rlp_loss(r, 0 * r, x, check_finite=False))


def nearly_unseen(size, dtype, C=2, M=20, d=15, K=3):
    """A bank of the complement kind, and residuals of which the planes see a part of relative size
    `size`."""
    g = seeded()
    X = torch.randn(M * K, d, generator=g, dtype=torch.float64)
    plan = torch.arange(M * K).view(K, M)
    q, _ = torch.linalg.qr(X.view(K, M, d), mode="complete")
    seen = q[:, :, :d] @ torch.randn(K, d, C, generator=g, dtype=torch.float64)
    rest = q[:, :, d:] @ torch.randn(K, M - d, C, generator=g, dtype=torch.float64)
    unit = [
        part / torch.linalg.vector_norm(part, dim=(1, 2), keepdim=True) for part in (seen, rest)
    ]
    residual = size * unit[0] + unit[1]
    bank = ProjectionBank(X.to(dtype), plan, intercept=False, reduction="none", dense_rows=0)
    assert bank.kind == "complement"
    values = torch.full((K,), size**2, dtype=torch.float64) / (M * C)
    return (
        bank,
        residual.to(dtype).view(M * K, C),
        values,
        2 * size * unit[0].reshape(M * K, C) / (M * C),
    )


@pytest.mark.parametrize("which", [slice(None), torch.arange(3), None, "one by one"])
@pytest.mark.parametrize(
    ("dtype", "size", "rtol"), [(torch.float32, 1e-4, 5e-3), (torch.float64, 1e-6, 1e-8)]
)
def test_a_small_part_that_is_seen_has_the_right_value_and_gradient(which, dtype, size, rtol):
    bank, residual, values, grads = nearly_unseen(size, dtype)
    pred = residual.clone().requires_grad_()
    zero = torch.zeros_like(pred)
    if which == "one by one":
        M = bank.subset_size
        got = torch.cat([bank.loss(pred[j * M : j * M + M], zero[:M], j) for j in range(3)])
    else:
        got = bank.loss(pred, zero, which)
    got.sum().backward()
    assert_close(got, values, rtol)
    assert_close(pred.grad, grads, rtol)


# A bank that loads the state of another


@pytest.mark.parametrize("d", [3, 8, 15])
@pytest.mark.parametrize("probe", ["subset", "expected", "sum"])
@pytest.mark.parametrize("dense_rows", [0, 4096])
def test_a_bank_that_loads_a_state_is_the_bank_that_saved_it(d, probe, dense_rows):
    X = torch.randn(30, d, generator=seeded(), dtype=torch.float64)
    pred, target = torch.randn(2, 30, 2, generator=seeded(1), dtype=torch.float64)
    saved, other = (
        ProjectionBank(X, plan, probe=probe, intercept=False, dense_rows=dense_rows)
        for plan in (
            balanced_subsets(20, 12, 100, generator=seeded(2)),
            balanced_subsets(30, 12, 100),
        )
    )
    other.loss(pred, target)
    other.load_state_dict(saved.state_dict())
    assert_close(other.loss(pred, target), saved.loss(pred, target), 1e-12)
    if dense_rows:
        assert_close(other.form(), saved.form(), 1e-12)


def test_new_points_after_a_loaded_state_are_of_the_loaded_plan():
    X = torch.randn(30, 3, generator=seeded(), dtype=torch.float64)
    pred, target = torch.randn(2, 30, 2, generator=seeded(1), dtype=torch.float64)
    plans = [balanced_subsets(30, 12, 7, generator=seeded(seed)) for seed in (2, 3)]
    saved, other = (
        ProjectionBank(X, plan, probe="draw", intercept=True, generator=seeded(4)) for plan in plans
    )
    other.load_state_dict(saved.state_dict())
    for bank in (saved, other):
        bank.redraw(X[:7] + 1)
    assert_close(other.loss(pred, target), saved.loss(pred, target), 1e-12)


@pytest.mark.parametrize(
    ("name", "options"),
    [("form", {"ridge": 0.1}), ("form", {"intercept": False}), ("features", {})],
)
def test_the_state_of_another_bank_is_refused(name, options):
    X = torch.randn(40, 7, generator=seeded())
    plan = balanced_subsets(40, 10, 4, generator=seeded())
    pred, target = torch.randn(2, 40, generator=seeded(1))
    bank = ProjectionBank(X, plan, ridge=5.0)
    before = bank.loss(pred, target)
    other = ProjectionBank(X if options else X + 1, plan + 0, **({"ridge": 5.0} | options))
    with pytest.raises(ValueError, match=f"state must come from a bank with the same {name}, got"):
        bank.load_state_dict(other.state_dict())
    assert torch.equal(bank.loss(pred, target), before)


# Odd shapes and types


def test_no_outputs_are_refused():
    X = torch.randn(10, 2)
    nothing = torch.zeros(10, 0)
    message = r"pred must have at least one output column, got shape \(10, 0\)"
    for intercept in (False, True):
        with pytest.raises(ValueError, match=message):
            rlp_loss(nothing, nothing, X, intercept=intercept)
        with pytest.raises(ValueError, match=message):
            RLPLoss(4, intercept=intercept)(nothing, nothing, X)
    bank = ProjectionBank(X, torch.arange(10)[None])
    for which in (None, 0, slice(None)):
        with pytest.raises(ValueError, match=message):
            bank.loss(nothing, nothing, which)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
@pytest.mark.parametrize("d", [2, 7, 12])
def test_bool_and_whole_targets_are_numbers(dtype, d):
    X = torch.randn(10, d, generator=seeded())
    pred = torch.randn(10, generator=seeded(1)).requires_grad_()
    target = (torch.arange(10) % 3 == 0).to(dtype)
    plan = torch.arange(10)[None]
    expected = rlp_loss(pred, target.float(), X, intercept=False)
    assert_close(rlp_loss(pred, target, X, intercept=False), expected, 1e-6)
    assert_close(RLPLoss(intercept=False)(pred, target, X), expected, 1e-6)
    bank = ProjectionBank(X, plan, intercept=False)
    for which in (None, 0, slice(None), torch.tensor([0])):
        loss = bank.loss(pred, target, which)
        assert_close(loss, bank.loss(pred, target.float(), which), 1e-6)
        loss.backward()


@pytest.mark.parametrize("probe", ["draw", "expected"])
def test_outside_refuses_a_plan_that_names_a_row_twice(probe):
    """Which rows are left would differ in number from subset to subset."""
    X, r = torch.randn(8, 1, generator=seeded()), torch.ones(8)
    plan = torch.tensor([[7, 1, 3, 0, 4, 6], [2, 5, 0, 3, 5, 1]])
    message = (
        'draw_from="outside" needs subsets that name every row once, got row 5 twice in one; take'
        " the row out"
    )
    with pytest.raises(ValueError, match=message):
        rlp_loss(r, 0 * r, X, subsets=plan, probe=probe, draw_from="outside")
    with pytest.raises(ValueError, match=message):
        ProjectionBank(X, plan, probe=probe, draw_from="outside")
    for draw_from, points in (
        ("train", None),
        ("outside", X[:2]),
    ):  # there nothing depends on what is left
        options = {"probe": probe, "draw_from": draw_from, "probe_points": points}
        assert rlp_loss(r, 0 * r, X, subsets=plan, **options) >= 0
        assert ProjectionBank(X, plan, **options).loss(r, 0 * r) >= 0
    assert (
        rlp_loss(r, 0 * r, X, subsets=plan, draw_from="outside") >= 0
    )  # compares on the subset itself
    assert ProjectionBank(X, plan, draw_from="outside").loss(r, 0 * r) >= 0


def test_which_may_be_any_whole_number_or_several():
    X = torch.randn(30, 3, generator=seeded())
    plan = balanced_subsets(30, 8, 5, generator=seeded())
    pred, target = torch.randn(2, 30, generator=seeded(1))
    bank = ProjectionBank(X, plan)
    rows = plan[3]
    expected = bank.loss(pred[rows], target[rows], 3)
    for which in (
        np.int64(3),
        np.int32(3),
        [3],
        (3,),
        np.array([3]),
        torch.tensor(3),
        torch.tensor([3]).int(),
        -2,
    ):
        assert_close(bank.loss(pred[rows], target[rows], which), expected, 1e-6)
    rows = plan[[3, 1]].flatten()
    several = [
        bank.loss(pred[rows], target[rows], which) for which in ([3, 1], torch.tensor([3, 1]))
    ]
    assert torch.equal(*several)


def test_which_is_refused_in_a_sentence():
    X = torch.randn(30, 3, generator=seeded())
    plan = balanced_subsets(30, 8, 5, generator=seeded())
    bank = ProjectionBank(X, plan)
    zero = torch.zeros(8)
    for which in (True, 1.0, "0", [0.5], torch.tensor([True]), torch.tensor([[0]]), {0}):
        with pytest.raises(
            TypeError,
            match="which must be a number of a subset, several of them, a slice or None, got",
        ):
            bank.loss(zero, zero, which)
    for which, number in ((5, 5), (np.int64(-6), -6), ([5], 5), (torch.tensor([-6]), -6)):
        with pytest.raises(ValueError, match=f"which must be a subset from 0 to 4, got {number}"):
            bank.loss(zero, zero, which)
    for which in ([], slice(2, 2)):
        with pytest.raises(
            ValueError, match="pred must hold the 0 rows of the 0 subsets asked for"
        ):
            bank.loss(zero, zero, which)


def test_counting_subsets_takes_no_time():
    start = time.perf_counter()
    for M in (1, 40, 62, 63, 1000, 200_000, 399_000, 399_999):
        few = min(M, 400_000 - M)
        assert _checks.n_different(400_000, M) == (
            min(math.comb(400_000, few), 2**63) if few < 100 else 2**63
        )
    assert time.perf_counter() - start < 0.5


def test_centred_features_and_a_constant_error_are_seen_by_default():
    """Without an intercept planes through the origin see nothing of a constant error once features
    are centred."""
    X = torch.randn(40, 3, generator=seeded())
    X = X - X.mean(0)
    pred = torch.full((40,), 5.0)
    zero = torch.zeros(40)
    plan = torch.arange(40)[None]
    for loss in (
        rlp_loss(pred, zero, X),
        RLPLoss()(pred, zero, X),
        ProjectionBank(X, plan).loss(pred, zero),
    ):
        assert_close(loss, 25.0, 1e-5)
    assert rlp_loss(pred, zero, X, intercept=False) < 1e-9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summed = rlp_loss(pred, zero, X, probe="sum")
    assert_close(summed, rlp_loss(pred, zero, X, probe="sum", intercept=False))
    with pytest.warns(MSEEquivalentWarning):
        assert_close(rlp_loss(pred, zero, torch.randn(40, 39, generator=seeded())), 25.0, 1e-5)
