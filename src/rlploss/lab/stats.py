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


def _picks(n: int) -> NDArray[np.int64]:
    """[RESAMPLES, n]: the seeds of each bootstrap sample, the same for every call with the same n."""
    return np.random.default_rng(SEED).integers(n, size=(RESAMPLES, n))


def _interval(statistics: Array) -> tuple[float, float]:
    low, high = np.quantile(statistics[np.isfinite(statistics)], [0.025, 0.975])
    return float(low), float(high)


def summary(values: Array) -> Summary:
    """Describe one arm over its seeds."""
    values = np.asarray(values, dtype=np.float64)
    n = len(values)
    if n == 0:
        raise ValueError("a summary needs at least one seed, got none")
    if n == 1:
        return Summary(float(values[0]), math.nan, math.nan, math.nan, 1)
    return Summary(float(values.mean()), float(values.std(ddof=1)), *_interval(values[_picks(n)].mean(axis=1)), n)


def band(matrix: Array) -> tuple[Array, Array, Array]:
    """Mean and pointwise 95 % t-interval of [seeds, points]: the curve and its confidence band."""
    n = len(matrix)
    mean = matrix.mean(axis=0)
    if n < 2:
        return mean, mean, mean
    half = scipy_stats.t.ppf(0.975, n - 1) * scipy_stats.sem(matrix)
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
    n, mean = len(differences), float(differences.mean())
    p, low, high = 1.0, -math.inf, math.inf
    if n > 1:
        error = differences.std(ddof=1) * math.sqrt(1.0 / n + overlap)
        with np.errstate(divide="ignore", invalid="ignore"):
            p = 2.0 * float(scipy_stats.t.sf(abs(mean) / error, n - 1))
        half = float(scipy_stats.t.ppf(0.975, n - 1) * error)
        low, high = (mean - half, mean + half) if overlap else _interval(differences[_picks(n)].mean(axis=1))
    p = 1.0 if math.isnan(p) else p  # it says nothing: NaN, or all equal
    better = mean < 0 if lower_is_better else mean > 0
    if not ratio:
        return Comparison(mean, low, high, p, n, better, "difference")
    with np.errstate(over="ignore"):
        effect, low, high = np.exp([mean, low, high]).tolist()
    return Comparison(effect, low, high, p, n, better, "ratio")


def holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The same comparisons with p-values corrected for their number (Holm's step-down)."""
    p = np.array([comparison.p for comparison in comparisons])
    order = p.argsort()
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, p[order] * np.arange(len(p), 0, -1)))
    return [replace(c, p_holm=float(q)) for c, q in zip(comparisons, corrected, strict=True)]


def same_as_published(ours: Array, mean: float, sd: float) -> bool:
    """Whether the mean of our seeds lies within one published standard deviation of the published mean."""
    return bool(abs(float(np.mean(ours)) - mean) <= sd)


def variance_ratio(ours: Array, theirs: Array) -> Comparison:
    """Ratio of standard deviations (ours / theirs): Pitman-Morgan's paired test of equal variances."""
    n = len(ours)
    if n < 3 or not ours.std() or not theirs.std():
        return Comparison(math.nan, math.nan, math.nan, 1.0, n, False, "ratio")
    total, difference = ours + theirs, ours - theirs
    if not total.std() or not difference.std():
        return Comparison(1.0, 1.0, 1.0, 1.0, n, False, "ratio")
    p = float(scipy_stats.pearsonr(total, difference).pvalue)
    picks = _picks(n)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = ours[picks].std(axis=1) / theirs[picks].std(axis=1)
    ratio = float(ours.std() / theirs.std())
    return Comparison(ratio, *_interval(ratios), p, n, ratio < 1, "ratio")
