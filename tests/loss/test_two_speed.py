"""The closed form of RLP: the theorem by enumeration and by sampling, and the loss that it gives."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch
from tests.close import assert_close
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap

from rlploss import (
    MSEEquivalentWarning,
    ProjectionBank,
    balanced_subsets,
    kappa,
    rlp_loss,
    two_speed_loss,
)

Matrix = np.ndarray[Any, np.dtype[np.float64]]


def features(kind: str, N: int, d: int, seed: int) -> Tensor:
    x = np.random.default_rng(seed).normal(size=(N, d))
    x = {"normal": x, "cubed": x**3, "log-normal": np.exp(1.2 * x)}[kind]
    return torch.from_numpy(x)


def projection(x: Tensor, intercept: bool = True) -> Matrix:
    """P on the columns of the features, and of ones, of any rank."""
    columns = np.column_stack([x.numpy(), np.ones(len(x))]) if intercept else x.numpy()
    u, s, _ = np.linalg.svd(columns, full_matrices=False)
    u = u[:, s > 1e-10 * s[0]]
    return u @ u.T


def all_subsets(N: int, M: int) -> Tensor:
    return torch.tensor(list(itertools.combinations(range(N), M)))


def mean_form(x: Tensor, plan: Tensor, intercept: bool = True) -> Matrix:
    """Q, by the definition: the mean over subsets of projections/M."""
    N, M = len(x), plan.shape[1]
    Q = np.zeros((N, N))
    for subset in plan.numpy():
        Q[np.ix_(subset, subset)] += projection(x[subset], intercept) / (M * len(plan))
    return Q


def check_theorem(Q: Matrix, P: Matrix, expected: float) -> None:
    """The linear block is P/N, nothing crosses, and the mean of the other eigenvalues is κ/N."""
    N = len(P)
    rest, rank = np.eye(N) - P, round(np.trace(P))
    assert np.abs(P @ Q @ P - P / N).max() < 1e-12
    assert np.abs(P @ Q @ rest).max() < 1e-12
    levels = N * np.linalg.eigvalsh(rest @ Q @ rest)[rank:]
    assert abs(levels.mean() - expected) < 1e-12
    assert levels.min() > -1e-12
    assert levels.max() < 1 + 1e-12


CASES = [
    (kind, N, d, M, intercept)
    for kind in ("normal", "cubed")
    for N, d, M in [
        (8, 2, 5),
        (9, 2, 4),
        (10, 3, 6),
        (12, 2, 6),
        (12, 1, 11),
        (11, 4, 7),
        (7, 2, 7),
    ]
    for intercept in (True, False)
]


@pytest.mark.parametrize(("kind", "N", "d", "M", "intercept"), CASES)
def test_the_theorem_by_enumeration(kind: str, N: int, d: int, M: int, intercept: bool) -> None:
    for seed in range(3):
        x = features(kind, N, d, seed)
        plan, P = all_subsets(N, M), projection(x, intercept)
        expected = kappa(M, N, d + intercept)
        check_theorem(mean_form(x, plan, intercept), P, expected)
        bank = ProjectionBank(x, plan, intercept=intercept)  # the library's own form
        check_theorem(bank.form().numpy(), P, expected)


@pytest.mark.parametrize(("N", "M"), [(9, 2), (9, 3), (8, 4)])
def test_up_to_as_many_rows_as_columns_it_is_mse(N: int, M: int) -> None:
    x = features("normal", N, 3, 0)  # and a column of ones
    assert kappa(M, N, 4) == 1
    assert np.abs(mean_form(x, all_subsets(N, M)) - np.eye(N) / N).max() < 1e-12


def test_features_of_lower_rank_keep_the_linear_part_and_take_the_mean_rank() -> None:
    x = torch.zeros(9, 3, dtype=torch.float64)
    x[:, 0] = torch.arange(9) % 3  # some subsets see one value only
    x[:, 1] = 2 * x[:, 0] + 1
    x[4:6, 2] = torch.tensor([1.0, -2.0])
    plan, P = all_subsets(9, 4), projection(x)
    rank = np.mean([np.trace(projection(x[subset])) for subset in plan])
    assert rank < round(np.trace(P)) == 3
    N, M, p = 9, 4, 3
    expected = (N * rank - M * p) / (M * (N - p))
    check_theorem(mean_form(x, plan), P, expected)
    assert expected < kappa(M, N, p)


@pytest.mark.parametrize(("kind", "spread"), [("normal", 0.091), ("log-normal", 0.184)])
def test_the_theorem_by_sampling(kind: str, spread: float) -> None:
    """A plan in which every row appears equally often has both exact parts; the rest spreads."""
    N, d, M, K = 100, 5, 20, 20_000
    generator = torch.Generator().manual_seed(0)
    for seed in range(3):
        x = features(kind, N, d, seed)
        plan = balanced_subsets(N, M, K, generator=generator)
        assert len(torch.bincount(plan.flatten()).unique()) == 1
        Q, P = ProjectionBank(x, plan).form().numpy(), projection(x)
        check_theorem(Q, P, kappa(M, N, d + 1))
        rest = np.eye(N) - P
        levels = N * np.linalg.eigvalsh(rest @ Q @ rest)[d + 1 :]
        assert abs(levels.std() - spread) < 0.35 * spread


def test_a_plan_counts_rows_in_its_linear_part() -> None:
    x, plan = features("normal", 10, 2, 0), torch.tensor([[0, 1, 2, 3, 4], [4, 5, 6, 7, 0]])
    counts = np.bincount(plan.flatten(), minlength=10)
    columns = np.column_stack([x.numpy(), np.ones(10)])
    assert_close(mean_form(x, plan) @ columns, np.diag(counts) / plan.numel() @ columns)


# The loss


def problem(N: int = 12, d: int = 3, C: int = 2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(N, d, generator=g, dtype=torch.float64) + 0.5
    pred, target = torch.randn(2, N, C, generator=g, dtype=torch.float64)
    return pred.requires_grad_(), target, x


def by_definition(
    r: Tensor, x: Tensor, k: float, weight: Tensor | None = None, intercept: bool = True
) -> Tensor:
    """(‖P R‖² + κ·‖(I − P) R‖²)/(N·C), with weights after a multiplication by √w."""
    columns = torch.cat([x, torch.ones(len(x), int(intercept), dtype=x.dtype)], dim=1)
    root = torch.ones(len(x), 1) if weight is None else (weight / weight.mean()).sqrt()[:, None]
    P = torch.from_numpy(projection(root * columns, intercept=False))
    linear = P @ (root * r)
    return (linear.square().sum() + k * (root * r - linear).square().sum()) / r.numel()


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("k", [0.0, 0.3, 1.0])
def test_value_and_gradient_are_those_of_the_definition(
    k: float, C: int, weighted: bool, intercept: bool
) -> None:
    for seed, N in itertools.product(range(3), (7, 30)):
        pred, target, x = problem(N, 3, C, seed)
        weight = torch.arange(1.0, N + 1, dtype=torch.float64) if weighted else None
        value = two_speed_loss(pred, target, x, k, weight=weight, intercept=intercept)
        expected = by_definition(pred - target, x, k, weight, intercept)
        assert_close(value, expected)
        ours, theirs = (torch.autograd.grad(v, pred)[0] for v in (value, expected))
        assert_close(ours, theirs)


def test_the_ends_are_mse_and_rlp_of_all_rows() -> None:
    pred, target, x = problem()
    assert_close(two_speed_loss(pred, target, x, 1), (pred - target).square().mean(), 1e-15)
    assert_close(two_speed_loss(pred, target, x, 0), rlp_loss(pred, target, x), 1e-15)


def test_shapes_types_and_derivatives() -> None:
    pred, target, x = problem(C=1)
    value = two_speed_loss(pred, target, x, 0.3)
    assert value.shape == ()
    assert_close(two_speed_loss(pred[:, 0], target[:, 0], x, 0.3), value)
    assert_close(two_speed_loss(pred, target, x.view(12, 3, 1, 1), 0.3), value)
    mixed = two_speed_loss(pred.float(), target, x.float(), 0.3)
    assert_close(mixed, value, dtype=torch.float32)
    assert two_speed_loss(pred.bfloat16(), target.bfloat16(), x, 0.3).dtype == torch.float32
    weight = torch.arange(12) % 3
    assert (
        two_speed_loss(pred.float(), target.float(), x, 0.3, weight=weight).dtype is torch.float32
    )
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(
            two_speed_loss(pred.float(), target.float(), x, 0.3), value, dtype=torch.float32
        )
    for w in (None, weight):
        loss = lambda p, w=w: two_speed_loss(p, target, x, 0.3, weight=w)  # noqa: E731
        assert gradcheck(loss, (pred,))
        assert gradgradcheck(loss, (pred,))


def test_a_weight_is_a_number_of_rows() -> None:
    pred, target, x = problem()
    weight = torch.tensor([2, 1, 3, 0, 1, 1, 2, 0, 1, 1, 4, 1])
    again = torch.arange(12).repeat_interleave(weight)
    for intercept in (True, False):
        value = two_speed_loss(pred, target, x, 0.3, weight=weight, intercept=intercept)
        more = two_speed_loss(pred[again], target[again], x[again], 0.3, intercept=intercept)
        assert_close(value, more)
        assert_close(
            two_speed_loss(pred, target, x, 0.3, weight=7.0 * weight, intercept=intercept), value
        )
    equal = two_speed_loss(pred, target, x, 0.3, weight=torch.full((12,), 5.0))
    assert_close(equal, two_speed_loss(pred, target, x, 0.3))


def test_a_row_of_weight_zero_counts_nothing_even_without_a_target() -> None:
    pred, target, x = problem()
    weight = torch.ones(12)
    weight[[2, 7]] = 0
    lost = target.clone()
    lost[[2, 7]] = torch.nan
    rest = torch.tensor([0, 1, 3, 4, 5, 6, 8, 9, 10, 11])
    value = two_speed_loss(pred, lost, x, 0.3, weight=weight)
    assert_close(value, two_speed_loss(pred[rest], target[rest], x[rest], 0.3))
    (gradient,) = torch.autograd.grad(value, pred)
    assert torch.isfinite(gradient).all()
    assert not gradient[[2, 7]].any()


def test_features_of_lower_rank_and_of_any_scale() -> None:
    pred, target, x = problem(20)
    value = two_speed_loss(pred, target, x, 0.3)
    more = torch.cat([x, x[:, :1] - 2 * x[:, 1:2], torch.full((20, 1), 3.0)], dim=1)
    scale = torch.tensor([1e6, 1e-9, 1.0])
    for other in (more, scale * x, x @ torch.tensor([[1.0, 2, 0], [0, 1, 3], [1, 0, 1]]).double()):
        assert_close(two_speed_loss(pred, target, other, 0.3), value)
        weight = torch.arange(20) % 4
        weighted = two_speed_loss(pred, target, x, 0.3, weight=weight)
        assert_close(two_speed_loss(pred, target, other, 0.3, weight=weight), weighted)


def test_no_more_rows_than_columns_is_mse_and_warned_of() -> None:
    pred, target, x = problem(4)
    with pytest.warns(MSEEquivalentWarning, match="equals MSE"):
        value = two_speed_loss(pred, target, x, 0.3)
    assert_close(value, (pred - target).square().mean())


@pytest.mark.parametrize(("B", "k"), [(8, 0.0), (5, 0.25), (6, 0.9), (3, 0.5)])
@pytest.mark.filterwarnings("ignore::rlploss.MSEEquivalentWarning")
def test_on_batches_the_effective_kappa_is_the_one_of_the_docs(B: int, k: float) -> None:
    N, d = 8, 2
    x = features("cubed", N, d, 1)
    batches = all_subsets(N, B)

    def mean(r: Tensor) -> Tensor:
        values = [two_speed_loss(r[b], torch.zeros(B).double(), x[b], k) for b in batches]
        return torch.stack(values).mean()

    r = torch.zeros(N, dtype=torch.float64)
    Q = 0.5 * torch.autograd.functional.hessian(mean, r).numpy()
    check_theorem(Q, projection(x), k + (1 - k) * kappa(B, N, d + 1))


def test_transforms_of_torch() -> None:
    pred, target, x = problem(30, C=1)
    pred = pred.detach()
    weight = torch.arange(30) % 3
    for w in (None, weight):
        loss = lambda p, w=w: two_speed_loss(p, target, x, 0.3, weight=w)  # noqa: E731
        leaf = pred.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(leaf), leaf)
        assert_close(grad(loss)(pred), expected)
        many = torch.stack([pred, 2 * pred, target])
        assert_close(vmap(loss)(many), torch.stack([loss(p) for p in many]))
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        assert_close(compiled(pred), loss(pred))


# kappa


def test_kappa_is_the_ratio_of_the_speeds() -> None:
    assert kappa(20, 100, 6) == 6 * 80 / (20 * 94)
    assert kappa(subset_size=6, n_rows=100, n_columns=6) == 1
    assert kappa(3, 100, 6) == 1
    assert kappa(100, 100, 6) == 0
    assert kappa(50, 100, 100) == kappa(90, 90, 100) == 1  # as many columns as rows: all is linear
    levels = [kappa(M, 100, 6) for M in range(1, 101)]
    assert levels == sorted(levels, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (101, 100, 6),
            "subset_size must be at most n_rows = 100, got 101; take smaller subsets or",
        ),
        ((0, 100, 6), "subset_size must be at least 1, got 0"),
        ((10, 100, 0), "n_columns must be at least 1, got 0"),
        ((10.0, 100, 6), "subset_size must be a whole number, got 10.0 (float)"),
    ],
)
def test_kappa_refuses_what_cannot_be(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        kappa(*arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kappa": 1.5}, "kappa must be in [0, 1], got 1.5"),
        ({"kappa": -0.1}, "kappa must be in [0, 1], got -0.1"),
        ({"kappa": "1"}, "kappa must be a number, got '1' (str)"),
        ({"target": torch.zeros(12)}, "pred and target must have the same shape"),
        ({"features": torch.zeros(11, 3)}, "features and pred must have the same number of rows"),
        ({"weight": torch.ones(11)}, "weight must have shape (12,), one per row, got (11,)"),
        ({"weight": [1] * 12}, "weight must have shape (12,), one per row, got list"),
        (
            {"weight": torch.zeros(12)},
            "weight must hold numbers of at least 0, one of them above 0",
        ),
        ({"weight": -torch.ones(12)}, "one of them above 0, got values from -1 to -1"),
        ({"weight": torch.full((12,), torch.nan)}, "weight must be finite, got nan at index [0]"),
        ({"target": torch.full((12, 2), torch.nan)}, "target must be finite, got nan"),
    ],
)
def test_messages(changes: dict[str, Any], message: str) -> None:
    pred, target, x = problem()
    arguments = {"target": target, "features": x, "kappa": 0.5} | changes
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        two_speed_loss(pred, **arguments)
