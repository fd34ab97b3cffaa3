"""Measure whether the paper's propositions hold, by simulation.

Every estimate uses freshly drawn features from an explicit generator, and has a standard error. The
distributions of features have mean 0 and variance 1 (condition (i) of Proposition 2), so exact
values are known where they exist.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlploss import _checks
from rlploss.loss.functional import rlp_loss
from rlploss.loss.subsets import balanced_subsets

DISTRIBUTIONS = ("gaussian", "uniform", "skewed")
RARE = 0.0085  # the probability of a large value of a skewed feature
Function = Callable[[Tensor], Tensor]  # features [n, d] -> values [n]


class Estimate(NamedTuple):
    """A mean over independent draws and its standard error."""

    mean: float
    error: float


def _estimate(values: Tensor) -> Estimate:
    return Estimate(float(values.mean()), float(values.std()) / math.sqrt(len(values)))


def draw_features(
    distribution: str, n_rows: int, n_features: int, *, generator: torch.Generator
) -> Tensor:
    """Return independent features [n_rows, d] with mean 0 and variance 1.

    "gaussian" and "uniform" are symmetric; "skewed" is continuous, usually small and positive,
    rarely large and negative: U·√(p/(1−p)) with probability 1 − p and −U·√((1−p)/p) with
    probability p = `RARE`, U uniform between 0.5 and 1.5 and scaled to E[U²] = 1.
    """
    _checks.one_of("distribution", distribution, DISTRIBUTIONS)
    shape = (_checks.count("n_rows", n_rows), _checks.count("n_features", n_features))
    if distribution == "gaussian":
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    if distribution == "uniform":
        return math.sqrt(12.0) * (uniform - 0.5)
    small, large = math.sqrt(RARE / (1.0 - RARE)), -math.sqrt((1.0 - RARE) / RARE)
    u = (0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)) / math.sqrt(13.0 / 12.0)
    return u * torch.where(uniform < RARE, large, small)


def _planes_apart(x: Tensor, residual: Tensor, **probe: Any) -> Tensor:
    """Return the loss of Definition 2.2 of each subset [K], without an intercept as in the
    paper.
    """
    with warnings.catch_warnings():
        # This module measures heavy tails.
        warnings.simplefilter("ignore", _checks.HeavyTailWarning)
        nothing = torch.zeros_like(residual)
        return rlp_loss(
            residual, nothing, x, probe="draw", intercept=False, reduction="none", **probe
        )


def _population_values(x: Tensor, residual: Tensor, points: Tensor) -> Tensor:
    """Return the same loss for each of K points, each on its own block of rows: [K]."""
    return _planes_apart(
        x, residual, subsets=torch.arange(len(x)).reshape(len(points), -1), probe_points=points
    )


def noise_floor(n_features: int, subset_size: int, noise: float = 1.0) -> float:
    """Return RLP at h = E[Y|X] for Gaussian features, label noise σ² and an independent probe: σ²·d
    / (M − d − 1).

    It is infinite for M ≤ d + 1, where the mean of (XᵀX)⁻¹ does not exist.

    >>> noise_floor(5, 16), noise_floor(5, 6)
    (0.5, inf)
    """
    d, M = _checks.count("n_features", n_features), _checks.count("subset_size", subset_size)
    variance = _checks.number("noise", noise, 0.0) ** 2
    return variance * d / (M - d - 1) if M > d + 1 else math.inf


def measure_noise_floor(
    n_features: int,
    subset_size: int,
    *,
    noise: float = 1.0,
    n_subsets: int = 20_000,
    generator: torch.Generator,
) -> Estimate:
    """Estimate RLP at the true regression function from Gaussian subsets, probes and label
    noise.
    """
    x = draw_features("gaussian", n_subsets * subset_size, n_features, generator=generator)
    z = draw_features("gaussian", n_subsets, n_features, generator=generator)
    residual = noise * torch.randn(len(x), generator=generator, dtype=torch.float64)
    return _estimate(_population_values(x, residual, z))


class Valley(NamedTuple):
    """RLP along h = E[Y|X] + t·δ: its rise above t = 0 at each t, and the t at which its parabola
    is lowest.
    """

    rises: dict[float, Estimate]
    lowest: Estimate


def measure_valley(
    deviation: Function,
    n_features: int,
    subset_size: int,
    *,
    at: Sequence[float] = (-1.0, 1.0),
    noise: Function | None = None,
    zero_share: float = 0.0,
    n_subsets: int = 20_000,
    generator: torch.Generator,
) -> Valley:
    """Estimate L(h* + tδ) − L(h*) with h* = E[Y|X] and δ = `deviation`, on the same subsets, probes
    and labels for every t.

    Features are Gaussian. Labels have noise(x)·e, where e has mean 0, variance 1 and a skewed
    distribution; None is no noise. A share `zero_share` of the rows is set to 0 (an atom at the
    origin), where planes without an intercept see nothing. Then δ = 1{x = 0} costs nothing, the
    minimiser is not unique, and `lowest` is NaN.
    """
    x = draw_features("gaussian", n_subsets * subset_size, n_features, generator=generator)
    x = x * (torch.rand(len(x), 1, generator=generator, dtype=torch.float64) >= zero_share)
    z = draw_features("gaussian", n_subsets, n_features, generator=generator)
    skewed = -torch.rand(len(x), generator=generator, dtype=torch.float64).log() - 1.0
    labels = torch.zeros_like(skewed) if noise is None else noise(x) * skewed
    delta = deviation(x)
    values = {t: _population_values(x, t * delta - labels, z) for t in {0.0, -1.0, 1.0, *at}}
    floor = values[0.0]
    bend, slope = (values[1.0] + values[-1.0]) / 2 - floor, (values[1.0] - values[-1.0]) / 2
    costs = float(bend.mean()) > 1e-12 * float(values[1.0].mean())  # more than rounding
    lowest = -float(slope.mean() / (2 * bend.mean())) if costs else math.nan
    error = _estimate((slope + 2 * lowest * bend) / (2 * bend.mean())).error
    return Valley({t: _estimate(values[t] - floor) for t in at}, Estimate(lowest, error))


class ConditionThree(NamedTuple):
    """Condition (iii) of Proposition 2: E[a_jk a_lk] ≥ 1/d² for subset rows j, l and feature k of A
    = x⁺.

    Rows are exchangeable, so two numbers suffice: `same` (j = l) and `different` (j ≠ l), each the
    minimum over k.
    """

    same: Estimate
    different: Estimate
    threshold: float
    holds: bool  # both are above the threshold by more than four standard errors


def measure_condition_three(
    distribution: str,
    n_features: int,
    subset_size: int,
    *,
    n_subsets: int = 20_000,
    generator: torch.Generator,
) -> ConditionThree:
    """Estimate E[a_jk a_lk] from fresh subsets."""
    x = draw_features(distribution, n_subsets * subset_size, n_features, generator=generator)
    A = torch.linalg.pinv(x.reshape(n_subsets, subset_size, n_features))  # [n, d, M]
    squares = A.square().mean(dim=2)  # [n, d]: j = l, averaged over exchangeable rows
    products = (A.sum(dim=2).square() - A.square().sum(dim=2)) / (
        subset_size * max(1, subset_size - 1)
    )
    same, different = (min(map(_estimate, values.unbind(dim=1))) for values in (squares, products))
    threshold = 1.0 / n_features**2
    holds = all(mean - 4.0 * error >= threshold for mean, error in (same, different))
    return ConditionThree(same=same, different=different, threshold=threshold, holds=holds)


class StepComparison(NamedTuple):
    """A comparison of one gradient step of size ε on RLP with one on MSE, in the family h_θ = h* +
    (θ* − θ).

    There Y − h ≤ 0 and ∂h/∂θ ≤ 0 (condition (ii)). Both losses are parabolas c·(θ* − θ)², with c =
    1 for MSE, and a step leaves |1 − 2εc| of the distance. RLP's step ends nearer to θ* exactly for
    ε ≤ 1/(c + 1) if its c is at least 1, and for no small ε otherwise.
    """

    curvature: Estimate  # c of RLP
    nearer_for_small_steps: (
        bool  # the conclusion of Proposition 2 as ε → 0, by more than four standard errors
    )
    largest_good_step: float  # RLP's step ends nearer up to this ε; 0 if it never does
    largest_convergent_step: float  # gradient descent converges on both losses below this ε


def compare_steps(
    distribution: str,
    n_features: int,
    subset_size: int,
    *,
    n_subsets: int = 20_000,
    generator: torch.Generator,
) -> StepComparison:
    """Compare the steps with RLP's c = E[(zᵀx⁺1)²], measured on fresh subsets and probes."""
    x = draw_features(distribution, n_subsets * subset_size, n_features, generator=generator)
    z = draw_features(distribution, n_subsets, n_features, generator=generator)
    c, error = curvature = _estimate(_population_values(x, torch.ones_like(x[:, 0]), z))
    return StepComparison(
        curvature=curvature,
        nearer_for_small_steps=c - 1.0 > 4.0 * error,
        largest_good_step=1.0 / (c + 1.0) if c >= 1.0 else 0.0,
        largest_convergent_step=1.0 / max(c, 1.0),
    )


def empirical_error(
    n_rows: int,
    n_features: int,
    subset_size: int,
    *,
    n_samples: int = 30,
    generator: torch.Generator,
) -> float:
    """Estimate the root mean square of (empirical RLP / Definition 2.2 − 1) over samples of
    `n_rows` rows, at h = E[Y|X].

    The empirical loss averages 4 random subsets per row, each with a probe drawn from the rows
    outside it. If the definition is infinite (M ≤ d + 1) the empirical loss cannot converge, and
    the result is NaN.
    """
    truth = noise_floor(n_features, subset_size)
    if not math.isfinite(truth):
        return math.nan
    squares = 0.0
    for _ in range(_checks.count("n_samples", n_samples)):
        x = draw_features("gaussian", n_rows, n_features, generator=generator)
        residual = torch.randn(n_rows, generator=generator, dtype=torch.float64)
        plan = balanced_subsets(n_rows, subset_size, 4 * n_rows, generator=generator)
        value = _planes_apart(
            x, residual, subsets=plan, draw_from="outside", generator=generator
        ).mean()
        squares += (float(value) / truth - 1.0) ** 2
    return math.sqrt(squares / n_samples)


def coverage(subsets: Tensor, n_rows: int) -> dict[str, int]:
    """Count the rows that are in no subset, the repeated subsets, and the least and most
    appearances of a row.
    """
    counts = torch.bincount(subsets.flatten(), minlength=n_rows)
    equal = len(subsets) - len(torch.unique(subsets.sort(dim=1).values, dim=0))
    return {
        "missing": int((counts == 0).sum()),
        "equal": equal,
        "least": int(counts.min()),
        "most": int(counts.max()),
    }


def plane_nullity(features: Tensor, subset_size: int) -> int:
    """Return the dimension of the residuals on `features` [N, d] that change no plane of any of the
    C(N, M) subsets.

    With 0, functions that share all planes are equal on these rows. All subsets are listed, so N
    must be small.
    """
    x = _checks.feature_matrix(features).to(torch.float64)
    n_rows, n_features = x.shape
    if (n_subsets := math.comb(n_rows, subset_size)) > 20_000:
        raise ValueError(
            f"plane_nullity lists all subsets, at most 20000, got {n_subsets}; use fewer rows"
        )
    plan = torch.tensor(list(itertools.combinations(range(n_rows), subset_size)))
    pinv = torch.linalg.pinv(x[plan])  # [K, d, M]
    rows = torch.zeros(len(plan), n_features, n_rows, dtype=x.dtype)
    rows.scatter_(2, plan.unsqueeze(1).expand(-1, n_features, -1), pinv)
    return n_rows - int(torch.linalg.matrix_rank(rows.reshape(-1, n_rows)))
