"""Statistics over seeds: paired tests, Holm's correction, bootstrap intervals, agreement with a published number.

Two arms of a study share their seeds, and a seed fixes split and initial weights, so comparisons are paired.
A p-value here speaks of other seeds on the same data, not of other data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

Array = NDArray[np.float64]
ALPHA = 0.05
RESAMPLES = 4000
SEED = 20240715  # of every bootstrap: a report is the same each time it is rendered


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation (n − 1) and a bootstrap interval of the mean, over seeds."""

    mean: float
    sd: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """Paired: is `ours` better than `theirs`?

    `effect` is the ratio of geometric means (ours / theirs) for errors, the difference of means (ours −
    theirs) for scores; [low, high] is its bootstrap interval; `p` is two-sided, `p_holm` corrected over its
    family.
    """

    effect: float
    low: float
    high: float
    p: float
    n: int
    better: bool  # the direction of the effect, significant or not
    scale: str  # "ratio" or "difference"
    p_holm: float = math.nan

    @property
    def significant(self) -> bool:
        """Whether the corrected test rejects equality at 5 %."""
        return (self.p if math.isnan(self.p_holm) else self.p_holm) < ALPHA

    @property
    def word(self) -> str:
        """Better, worse or level."""
        return ("better" if self.better else "worse") if self.significant else "level"


def _resampled_means(values: Array) -> Array:
    """[RESAMPLES]: means of bootstrap samples, the same draws for every call with the same length."""
    picks = np.random.default_rng(SEED).integers(len(values), size=(RESAMPLES, len(values)))
    means: Array = values[picks].mean(axis=1)
    return means


def summary(values: Array) -> Summary:
    """Describe one arm over its seeds."""
    values = np.asarray(values, dtype=np.float64)
    n = len(values)
    if n == 0:
        raise ValueError("a summary needs at least one seed, got none")
    mean = float(values.mean())
    if n == 1:
        return Summary(mean, math.nan, math.nan, math.nan, 1)
    low, high = np.quantile(_resampled_means(values), [0.025, 0.975])
    return Summary(mean, float(values.std(ddof=1)), float(low), float(high), n)


def band(matrix: Array) -> tuple[Array, Array, Array]:
    """Mean and pointwise 95 % t-interval of [seeds, points]: the curve and its confidence band."""
    n = len(matrix)
    mean = matrix.mean(axis=0)
    if n < 2:
        return mean, mean, mean
    half = scipy_stats.t.ppf(0.975, n - 1) * matrix.std(axis=0, ddof=1) / math.sqrt(n)
    return mean, mean - half, mean + half


def compare(ours: Array, theirs: Array, *, lower_is_better: bool = True, overlap: float = 0.0) -> Comparison:
    """Paired t-test over seeds: on logarithms for errors, which span decades, on differences for scores.

    Seeds that split the same rows again and again are not independent: `overlap` is the ratio of test to
    training rows, and the variance of the mean is then s²·(1/n + overlap) after Nadeau and Bengio, in the
    test and in the interval, which becomes that of the test.
    """
    ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if ours.shape != theirs.shape or ours.ndim != 1:
        raise ValueError(f"paired arms need the same seeds, got shapes {ours.shape} and {theirs.shape}")
    ratio = lower_is_better and bool((ours > 0).all() and (theirs > 0).all())
    differences = np.log(ours) - np.log(theirs) if ratio else ours - theirs
    n = len(differences)
    mean = float(differences.mean())
    p = _paired_p(differences, overlap)
    if n < 2:
        low, high = -math.inf, math.inf
    elif overlap:
        half = float(scipy_stats.t.ppf(0.975, n - 1)) * _standard_error(differences, overlap)
        low, high = mean - half, mean + half
    else:
        low, high = np.quantile(_resampled_means(differences), [0.025, 0.975])
    back = math.exp if ratio else float
    with np.errstate(over="ignore"):
        limits = (float(np.exp(low)), float(np.exp(high))) if ratio else (float(low), float(high))
    better = mean < 0 if lower_is_better else mean > 0
    return Comparison(back(mean), *limits, p, n, better, "ratio" if ratio else "difference")


def _standard_error(differences: Array, overlap: float) -> float:
    return float(differences.std(ddof=1)) * math.sqrt(1.0 / len(differences) + overlap)


def _paired_p(differences: Array, overlap: float = 0.0) -> float:
    """Two-sided p of the paired t-test; 1 where it says nothing (one seed, NaN, all equal)."""
    if len(differences) < 2 or not np.isfinite(differences).all() or not differences.any():
        return 1.0
    error = _standard_error(differences, overlap)
    freedom = len(differences) - 1
    return _two_sided(abs(float(differences.mean())) / error, freedom) if error > 0.0 else 0.0


def _two_sided(t: float, freedom: int) -> float:
    return float(2.0 * scipy_stats.t.sf(t, freedom))


def holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The same comparisons with p-values corrected for their number (Holm's step-down)."""
    m = len(comparisons)
    order = sorted(range(m), key=lambda i: comparisons[i].p)
    corrected = [0.0] * m
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (m - rank) * comparisons[index].p))
        corrected[index] = running
    return [replace(c, p_holm=p) for c, p in zip(comparisons, corrected, strict=True)]


def same_as_published(ours: Array, mean: float, sd: float) -> bool:
    """Whether the mean of our seeds lies within one published standard deviation of the published mean."""
    return bool(abs(float(np.mean(ours)) - mean) <= sd)


def variance_ratio(ours: Array, theirs: Array) -> Comparison:
    """Ratio of standard deviations (ours / theirs): Pitman-Morgan's paired test of equal variances."""
    n = len(ours)
    sd_ours, sd_theirs = (float(np.std(a, ddof=1)) if n > 1 else math.nan for a in (ours, theirs))
    if n < 3 or not sd_ours or not sd_theirs:
        return Comparison(math.nan, math.nan, math.nan, 1.0, n, False, "ratio")
    total, difference = ours + theirs, ours - theirs
    if not total.std() or not difference.std():
        return Comparison(1.0, 1.0, 1.0, 1.0, n, False, "ratio")
    r = float(np.corrcoef(total, difference)[0, 1])
    p = _two_sided(abs(r) * math.sqrt((n - 2) / max(1.0 - r * r, 1e-300)), n - 2)
    picks = np.random.default_rng(SEED).integers(n, size=(RESAMPLES, n))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = ours[picks].std(axis=1, ddof=1) / theirs[picks].std(axis=1, ddof=1)
    low, high = np.quantile(ratios[np.isfinite(ratios)], [0.025, 0.975])
    ratio = sd_ours / sd_theirs
    return Comparison(ratio, float(low), float(high), p, n, ratio < 1, "ratio")
