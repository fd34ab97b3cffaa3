"""The named mathematical facts of the loss."""

import itertools

import numpy as np
import pytest
import torch
from tests import oracle
from tests.close import assert_close
from torch.autograd import gradcheck, gradgradcheck

from rlploss import ProjectionBank, balanced_subsets, rlp_loss
from rlploss.loss.planes import PROBES
from rlploss.loss.subsets import draw_rows, rows_outside

pytestmark = pytest.mark.filterwarnings("ignore::rlploss.DegenerateLossWarning")


def table(N=12, d=3, C=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(N, d, generator=g, dtype=torch.float64) + 0.5
    pred, target = torch.randn(2, N, C, generator=g, dtype=torch.float64)
    return X, pred, target


def probe_points(probe, X, K=1):
    return X[:K] * 1.3 if probe == "draw" else X if probe == "expected" else None


def test_subset_probe_is_the_projected_residual_and_the_released_formula():
    X, pred, target = table()
    loss = rlp_loss(pred, target, X, intercept=False)
    q, _ = torch.linalg.qr(X)
    projected = q @ (q.mT @ (pred - target))
    assert_close(loss, projected.square().mean())
    planes = [X @ torch.linalg.lstsq(X, v).solution for v in (pred, target)]
    assert_close(loss, torch.nn.functional.mse_loss(*planes))


@pytest.mark.parametrize("intercept", [False, True])
def test_between_zero_and_mse_with_equality_at_full_row_rank(intercept):
    for M, d in itertools.product(range(1, 9), range(1, 7)):
        X, pred, target = table(M, d, seed=10 * M + d)
        loss, mse = rlp_loss(pred, target, X, intercept=intercept), (pred - target).square().mean()
        assert 0 <= loss <= mse * (1 + 1e-12)
        if d + intercept >= M:
            assert_close(loss, mse)
        else:
            assert loss < mse * (1 - 1e-6)


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("intercept", [False, True])
def test_row_order_does_not_matter(probe, intercept):
    X, pred, target = table()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    options = {"probe": probe, "intercept": intercept, "probe_points": probe_points(probe, X)}
    shuffled = rlp_loss(pred[order], target[order], X[order], **options)
    assert_close(shuffled, rlp_loss(pred, target, X, **options))


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("intercept", [False, True])
def test_a_change_of_basis_does_not_matter(probe, intercept):
    X, pred, target = table()
    T = torch.randn(3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    points = probe_points(probe, X)
    moved = None if points is None else points @ T
    assert_close(
        rlp_loss(pred, target, X @ T, probe=probe, intercept=intercept, probe_points=moved),
        rlp_loss(pred, target, X, probe=probe, intercept=intercept, probe_points=points),
    )


@pytest.mark.parametrize("probe", ["subset", "sum"])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_duplicated_column_does_not_matter(probe, intercept):
    X, pred, target = table()
    twice = torch.cat([X, X[:, :1]], dim=1)
    assert_close(
        rlp_loss(pred, target, twice, probe=probe, intercept=intercept),
        rlp_loss(pred, target, X, probe=probe, intercept=intercept),
    )


@pytest.mark.parametrize("probe", PROBES)
def test_quadratic_scaling_and_blindness(probe):
    X, pred, target = table()
    options = {"probe": probe, "probe_points": probe_points(probe, X), "intercept": False}
    loss = rlp_loss(pred, target, X, **options)
    tripled = rlp_loss(target + 3 * (pred - target), target, X, **options)
    assert_close(tripled, 9 * loss)
    q, _ = torch.linalg.qr(X, mode="complete")
    unseen = q[:, 3:] @ torch.ones(9, 2, dtype=torch.float64)  # orthogonal to every feature
    assert_close(rlp_loss(pred + unseen, target, X, **options), loss)
    assert rlp_loss(target + unseen, target, X, **options) < 1e-25


def test_the_gap_is_linear_in_the_residual():
    """‖A(r₁ + r₂)‖² + ‖A(r₁ − r₂)‖² = 2‖Ar₁‖² + 2‖Ar₂‖² holds for a linear A and for nothing
    else."""
    X, r1, r2 = table()
    zero = torch.zeros_like(r1)
    for probe in PROBES:
        points = probe_points(probe, X)

        def f(r, probe=probe, points=points):
            return rlp_loss(r, zero, X, probe=probe, probe_points=points)

        assert_close(f(r1 + r2) + f(r1 - r2), 2 * f(r1) + 2 * f(r2))


@pytest.mark.parametrize("draw_from", ["train", "outside"])
@pytest.mark.parametrize("intercept", [False, True])
def test_expected_is_the_mean_of_draw(draw_from, intercept):
    X, pred, target = table(N=9)
    plan = balanced_subsets(9, 5, 4, generator=torch.Generator().manual_seed(0))
    expected = rlp_loss(
        pred,
        target,
        X,
        subsets=plan,
        probe="expected",
        draw_from=draw_from,
        intercept=intercept,
        reduction="none",
    )
    for k, rows in enumerate(plan):
        pool = X if draw_from == "train" else X[rows_outside(plan[k : k + 1], 9)[0]]
        drawn = [
            rlp_loss(
                pred[rows],
                target[rows],
                X[rows],
                probe="draw",
                probe_points=z[None],
                intercept=intercept,
            )
            for z in pool
        ]
        assert_close(torch.stack(drawn).mean(), expected[k])


@pytest.mark.parametrize("intercept", [False, True])
def test_sampled_losses_converge_to_the_exact_empirical_loss(intercept):
    X, pred, target = table(N=8, d=2, C=1)
    exact = oracle.exact_empirical_loss(pred.numpy(), target.numpy(), X.numpy(), 5, intercept)
    every = torch.tensor(list(itertools.combinations(range(8), 5)))
    options = {"intercept": intercept, "draw_from": "outside"}
    # all subsets with the expectation taken exactly is the loss itself
    assert_close(rlp_loss(pred, target, X, subsets=every, probe="expected", **options), exact)
    g = torch.Generator().manual_seed(0)
    errors = []
    for repeats in (1, 400):
        loss = rlp_loss(
            pred, target, X, subsets=every.repeat(repeats, 1), probe="draw", generator=g, **options
        )
        errors.append(abs(float(loss) / exact - 1))
    assert errors[1] < 0.03
    sampled = balanced_subsets(8, 5, 20, generator=g)
    some = [float(rlp_loss(pred, target, X, subsets=sampled, probe="expected", **options))]
    assert some[0] != exact


def test_algorithm_2_epoch_loss_is_the_mean_over_the_subsets():
    X, pred, target = table(N=20)
    plan = balanced_subsets(20, 8, 7, generator=torch.Generator().manual_seed(3))
    points = X[torch.arange(7)]
    bank = ProjectionBank(X, plan, probe="draw", intercept=False)
    bank.redraw(points)
    singles = []
    for k, rows in enumerate(plan):
        gap = torch.linalg.pinv(X[rows]) @ (target[rows] - pred[rows])  # M_y − M_h of Algorithm 2
        singles.append((points[k] @ gap).square().mean())
    assert_close(bank.loss(pred, target), torch.stack(singles).mean())


def test_rows_outside_and_draws():
    plan = balanced_subsets(10, 4, 50, generator=torch.Generator().manual_seed(0))
    outside = rows_outside(plan, 10)
    for rows, rest in zip(plan.tolist(), outside.tolist(), strict=True):
        assert sorted(rows + rest) == list(range(10))
    g = torch.Generator().manual_seed(1)
    seen = torch.zeros(50, 10)
    for _ in range(600):
        seen[torch.arange(50), draw_rows(plan, 10, "outside", g)] += 1
    assert (seen.gather(1, plan) == 0).all()
    counts = seen.gather(1, outside)
    assert (counts - 100).abs().max() < 6 * np.sqrt(100)
    assert torch.bincount(draw_rows(plan.repeat(100, 1), 10, "train", g), minlength=10).min() > 400


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("ridge", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(9, 3), (3, 5)])
def test_gradcheck(probe, intercept, ridge, shape):
    X, pred, target = table(*shape)
    pred.requires_grad_()
    points = probe_points(probe, X)
    options = {"probe": probe, "intercept": intercept, "ridge": ridge, "probe_points": points}
    assert gradcheck(lambda p: rlp_loss(p, target, X, **options), (pred,))
    assert gradgradcheck(lambda p: rlp_loss(p, target, X, **options), (pred,))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("ridge", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(9, 3), (3, 5)])
def test_gradcheck_through_the_features(probe, intercept, ridge, shape):
    if shape == (3, 5) and ridge == 0:
        pytest.skip("planes are not unique")
    X, pred, target = table(*shape)
    points = probe_points(probe, X)
    X.requires_grad_()
    pred.requires_grad_()
    options = {"probe": probe, "intercept": intercept, "ridge": ridge}

    def f(p, x):
        return rlp_loss(p, target, x, features_grad=True, probe_points=points, **options)

    with torch.no_grad():
        assert_close(f(pred, X), rlp_loss(pred, target, X, probe_points=points, **options))
    assert gradcheck(f, (pred, X))
    assert gradgradcheck(f, (pred, X))


@pytest.mark.parametrize("probe", ["draw", "expected"])
@pytest.mark.parametrize("draw_from", ["train", "outside"])
def test_features_grad_with_subsets_gives_the_same_value(probe, draw_from):
    X, pred, target = table(N=14)
    plan = balanced_subsets(14, 8, 5, generator=torch.Generator().manual_seed(0))
    values = [
        rlp_loss(
            pred,
            target,
            X,
            subsets=plan,
            probe=probe,
            draw_from=draw_from,
            features_grad=grad,
            generator=torch.Generator().manual_seed(7),
        )
        for grad in (False, True)
    ]
    assert_close(values[1], values[0])


def test_features_carry_no_gradient_unless_asked():
    X, pred, target = table()
    X.requires_grad_()
    pred.requires_grad_()
    rlp_loss(pred, target, X).backward()
    assert X.grad is None
    rlp_loss(pred, target, X, features_grad=True).backward()
    assert X.grad is not None


def test_features_grad_refuses_rank_deficient_features():
    X, pred, target = table()
    X[:, 0] = X[:, 1]
    message = (
        "features_grad=True needs subsets of rank 3, got rank 2 in subset 0 of 12 rows; planes are"
        " not unique there"
    )
    with pytest.raises(ValueError, match=message):
        rlp_loss(pred, target, X, features_grad=True, intercept=False)
