"""`weight=` of rows: weighted least squares, by definition; a row of weight 0 counts nothing."""

import itertools

import numpy as np
import pytest
import torch
from tests.close import assert_close

from rlploss import ProjectionBank, RLPLoss, balanced_subsets, rlp_loss, two_speed_loss
from rlploss.loss.subsets import draw_rows, rows_outside

pytestmark = pytest.mark.filterwarnings("ignore::rlploss.DegenerateLossWarning")
N, D, M, K = 20, 3, 9, 6


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def problem(seed=0):
    g = seeded(seed)
    x = torch.randn(N, D, generator=g, dtype=torch.float64) + 3
    pred, target = torch.randn(2, N, 2, generator=g, dtype=torch.float64)
    weight = torch.rand(N, generator=g, dtype=torch.float64) + 0.1
    weight[::7] = 0
    return pred, target, x, weight, balanced_subsets(N, M, K, generator=g)


def by_definition(pred, target, x, weight, plan, *, probe, intercept, ridge, draw_from, at=None):
    """Weighted ridge regression of the residual by the normal equations, subset by subset."""
    w = (weight / weight.mean()).numpy()
    z = x.numpy()
    z = np.column_stack([z, np.ones(N)]) if intercept else z
    penalty = np.diag([ridge] * D + [0.0] * intercept)
    values = []
    for k, rows in enumerate(plan.numpy()):
        own, R = w[rows, None], (pred - target).numpy()[rows]
        gap = np.linalg.solve(z[rows].T @ (own * z[rows]) + penalty, z[rows].T @ (own * R))
        if probe == "subset":
            value = (own * (z[rows] @ gap) ** 2).sum() / M
        elif probe == "sum":
            value = ((own * (z[rows] @ gap)).sum(0) ** 2).sum()
        elif probe == "draw":
            value = ((z[at[k]] @ gap) ** 2).sum()
        else:
            others = rows_outside(plan, N)[k].numpy() if draw_from == "outside" else np.arange(N)
            value = ((z[others] @ gap) ** 2).sum(1) @ w[others] / w[others].sum()
        values.append(value / R.shape[1])
    return np.array(values)


CASES = [
    {"probe": p, "intercept": i, "ridge": r, "draw_from": f}
    for p, i, r, f in itertools.product(
        ("subset", "sum", "draw", "expected"), (True, False), (0.0, 0.4), ("train", "outside")
    )
    if f == "train" or p in ("draw", "expected")
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.parametrize("seed", [0, 1])
def test_the_function_is_the_definition(case, seed):
    pred, target, x, weight, plan = problem(seed)
    at = draw_rows(plan, N, case["draw_from"], seeded(), weight).numpy()
    options = {"subsets": plan, "weight": weight, "reduction": "none", "generator": seeded()}
    expected = by_definition(pred, target, x, weight, plan, **case, at=at)
    assert_close(rlp_loss(pred, target, x, **options, **case), expected, 1e-8)
    through = rlp_loss(pred, target, x, features_grad=True, **(options | {"generator": seeded()}),
                       **case)  # fmt: skip
    assert_close(through, expected, 1e-8)


@pytest.mark.parametrize("case", [c for c in CASES if c["probe"] != "draw"],
                         ids=lambda case: "-".join(map(str, case.values())))  # fmt: skip
@pytest.mark.parametrize("max_bytes", [0, 2**30])
def test_a_bank_is_the_function(case, max_bytes):
    pred, target, x, weight, plan = problem()
    bank = ProjectionBank(x, plan, weight=weight, max_bytes=max_bytes, reduction="none", **case)
    expected = rlp_loss(pred, target, x, subsets=plan, weight=weight, reduction="none", **case)
    target[weight == 0] = torch.nan
    assert_close(bank.loss(pred, target), expected, 1e-8)
    for which in (2, slice(1, 4)):
        rows = plan[which].flatten()
        assert_close(bank.loss(pred[rows], target[rows], which), expected[which].reshape(-1), 1e-8)
    mean = ProjectionBank(x, plan.repeat(30, 1), weight=weight, max_bytes=max_bytes, **case)
    assert mean.prefers_form() or not max_bytes
    assert_close(mean.loss(pred, target), expected.mean(), 1e-8)


def test_one_subset_of_all_rows_and_the_ends_of_two_speeds():
    pred, target, x, weight, _ = problem()
    one = rlp_loss(pred, target, x, weight=weight)
    counts = weight > 0
    kept = (pred[counts], target[counts], x[counts])
    assert_close(one, rlp_loss(*kept, weight=weight[counts]))  # as without those rows
    assert_close(one, two_speed_loss(pred, target, x, 0.0, weight=weight))
    assert_close(one, RLPLoss()(pred, target, x, weight=3 * weight))
    assert_close(rlp_loss(pred, target, x, weight=torch.ones(N)), rlp_loss(pred, target, x))


@pytest.mark.parametrize("subset_size", [None, 9])
def test_a_missing_target_counts_nothing(subset_size):
    pred, target, x, weight, _ = problem()
    pred.requires_grad_()
    losses = []
    for value in (torch.nan, 1e3):
        target[weight == 0] = value
        loss = RLPLoss(subset_size, generator=seeded())(pred, target, x, weight=weight)
        losses.append(loss)
    assert losses[0] == losses[1]
    losses[0].backward()
    assert (pred.grad[weight == 0] == 0).all()
    assert torch.isfinite(pred.grad).all()
    target[weight > 0] = torch.nan
    with pytest.raises(ValueError, match=r"target must be finite, got nan at index \[1, 0\]"):
        RLPLoss(subset_size)(pred, target, x, weight=weight)


@pytest.mark.parametrize("draw_from", ["train", "outside"])
def test_points_are_drawn_from_rows_that_count(draw_from):
    plan = balanced_subsets(N, M, 4000, generator=seeded())
    weight = torch.arange(N, dtype=torch.float64) * (torch.arange(N) % 2)
    rows = draw_rows(plan, N, draw_from, seeded(), weight)
    assert (weight[rows] > 0).all()
    share = torch.bincount(rows, minlength=N) / len(rows)
    if draw_from == "train":
        assert (share - weight / weight.sum()).abs().max() < 0.03
    else:
        assert not (plan == rows.unsqueeze(1)).any()


def test_weights_are_refused_in_a_sentence():
    pred, target, x, weight, plan = problem()
    for bad, message in (
        (weight[1:], r"weight must have shape \(20,\), one per row, got \(19,\)"),
        (-weight, "weight must hold numbers of at least 0, one of them above 0, got"),
        (0 * weight, "weight must hold numbers of at least 0, one of them above 0, got"),
    ):
        with pytest.raises(ValueError, match=message):
            rlp_loss(pred, target, x, weight=bad)
        with pytest.raises(ValueError, match=message):
            ProjectionBank(x, plan, weight=bad)
    with pytest.raises(ValueError, match='weight has no meaning for a bank with probe="draw"; use'):
        ProjectionBank(x, plan, weight=weight, probe="draw")


def test_the_gradient_is_the_one_of_the_definition():
    pred, target, x, weight, plan = problem()
    x.requires_grad_()
    pred.requires_grad_()
    for probe in ("subset", "expected", "sum"):
        assert torch.autograd.gradcheck(
            lambda p, z, probe=probe: rlp_loss(
                p, target, z, subsets=plan, weight=weight, probe=probe, features_grad=True
            ),
            (pred, x),
        )
