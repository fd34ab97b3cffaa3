"""Test over seeds whether two arms differ, and whether a result agrees with a published number.

Two arms of a study share their seeds, and a seed fixes the split and the initial weights, so tests
are paired. A p-value here is about other seeds on the same data, not about other data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import special

from rlploss._scaling import Array

ALPHA = 0.05
# Intervals within these limits count as no difference: 5 %, or one point.
MARGINS = {"ratio": (0.95, 1.05), "difference": (-0.01, 0.01)}
FLIPS = 9_999  # drawn in a permutation test
SEED = 20240715  # of every permutation test, so that a report is the same whenever it is rendered


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation (n − 1) and the 95 % t-interval of the mean, over seeds."""

    mean: float
    sd: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Contrast:
    """How `ours` differs from `theirs` or from a number: one test, and the interval that belongs to
    it.

    The meaning of `effect` depends on `scale`. "ratio": geometric means of errors (ours / theirs).
    "difference": means of scores (ours − theirs). "gap": the same for errors, if one of them is 0
    and has no ratio. "mean": our mean, which is tested against a number. "share": the share of
    seeds in which ours was first. "spread": typical deviations from the median (ours / theirs).
    [low, high] is the 95 % interval of `effect`. It contains "no difference" exactly if the
    two-sided p is 5 % or more. `p_holm` is p corrected over a family of tests, and NaN without a
    family.
    """

    effect: float
    low: float
    high: float
    p: float
    n: int
    better: bool  # the direction of the effect, significant or not
    scale: str
    p_holm: float = math.nan
    at_level: Callable[[float], tuple[float, float]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def significant(self) -> bool:
        """Whether the test, corrected if it belongs to a family, rejects equality at 5 %."""
        return (self.p if math.isnan(self.p_holm) else self.p_holm) < ALPHA

    @property
    def corrected_interval(self) -> tuple[float, float]:
        """The interval at the level of the corrected p. It contains "no difference" exactly if that
        p is 5 % or more.
        """
        return (
            self.interval(ALPHA * self.p / self.p_holm)
            if self.p_holm > self.p
            else (self.low, self.high)
        )

    @property
    def word(self) -> str:
        """The result in a word: "better" or "worse" if significant, "level" if the whole interval
        is negligible, else "undecided".
        """
        if self.significant:
            return "better" if self.better else "worse"
        return "level" if self.is_none(*self.corrected_interval) else "undecided"

    def is_none(self, low: float, high: float) -> bool:
        """Return whether an interval of this scale lies within the margins of a negligible
        difference.
        """
        least, most = MARGINS.get(self.scale, (math.nan, math.nan))
        return least <= low and high <= most

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the interval at a level of at least 95 %: from `at_level`, or for a t-test from
        `low` and `high`.
        """
        if self.at_level is not None:
            return self.at_level(alpha)
        signs_only = self.low == self.high and self.p < 1.0  # equal differences: see `_t_test`
        if self.n < 2 or not math.isfinite(self.high) or (signs_only and self.p >= alpha):
            return -math.inf, math.inf
        wide, usual = (
            float(special.stdtrit(self.n - 1, 1 - level / 2)) for level in (alpha, ALPHA)
        )
        if self.scale == "ratio":
            with np.errstate(over="ignore"):
                factor = float(np.float64(self.high / self.effect) ** (wide / usual))
            return self.effect / factor, self.effect * factor
        half = (self.high - self.effect) * wide / usual
        return self.effect - half, self.effect + half


def summary(values: Array) -> Summary:
    """Describe one arm over its seeds."""
    values = np.asarray(values, dtype=np.float64)
    n = len(values)
    if n == 0:
        raise ValueError("a summary needs at least one seed, got none; train one")
    if n == 1:
        return Summary(mean=float(values[0]), sd=math.nan, low=math.nan, high=math.nan, n=1)
    mean, low, high = (float(end) for end in band(values))
    return Summary(mean=mean, sd=float(values.std(ddof=1)), low=low, high=high, n=n)


def band(matrix: Array) -> tuple[Array, Array, Array]:
    """Return the mean curve of [seeds, points] and its pointwise 95 % t-interval (low, high)."""
    n = len(matrix)
    mean = matrix.mean(axis=0)
    if n < 2:
        return mean, mean, mean
    half = special.stdtrit(n - 1, 0.975) * matrix.std(axis=0, ddof=1) / math.sqrt(n)
    return mean, mean - half, mean + half


def _t_test(
    values: Array, overlap: float = 0.0, least: float = 0.0
) -> tuple[float, float, float, float]:
    """Test whether the mean is 0: return the mean, the two-sided p, and the ends of the 95 %
    interval. The standard error is taken to be at least `least`.

    Values that are all the same have no variance. Then their signs are tested, and the interval is
    a point, or everything if the sign test is not significant.
    """
    n, mean = len(values), float(values.mean())
    if n < 2 or not math.isfinite(mean):
        return mean, 1.0, -math.inf, math.inf
    error = max(float(values.std(ddof=1)) * math.sqrt(1.0 / n + overlap), least)
    if error == mean == 0.0:
        return mean, 1.0, mean, mean
    if error <= 1e-9 * abs(mean):
        p = 2.0 * 0.5**n
        return (mean, p, mean, mean) if p < ALPHA else (mean, p, -math.inf, math.inf)
    half = float(special.stdtrit(n - 1, 0.975)) * error
    return mean, 2.0 * float(special.stdtr(n - 1, -abs(mean) / error)), mean - half, mean + half


def compare(
    ours: Array,
    theirs: Array,
    *,
    lower_is_better: bool = True,
    overlap: float = 0.0,
    least: float = 0.0,
) -> Contrast:
    """Compare two arms by a paired t-test over seeds: on logarithms of errors, which span decades,
    and on differences of scores.

    An error of 0 has no logarithm; then the differences of errors are tested. These have the unit
    of the errors, so no difference counts as negligible.

    Seeds that split the same rows again and again are not independent. `overlap` is the ratio of
    test rows to training rows; the variance of the mean is then s²·(1/n + overlap), after Nadeau
    and Bengio. Its root is at least `least`.
    """
    ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if ours.shape != theirs.shape or ours.ndim != 1:
        raise ValueError(
            f"paired arms need the same seeds, got shapes {ours.shape} and {theirs.shape}; compare"
            " seeds that both have"
        )
    ratio = lower_is_better and bool((ours > 0).all() and (theirs > 0).all())
    mean, p, low, high = _t_test(
        np.log(ours) - np.log(theirs) if ratio else ours - theirs, overlap, least
    )
    better = mean < 0 if lower_is_better else mean > 0
    scale, effect = "gap" if lower_is_better else "difference", mean
    if ratio:
        with np.errstate(over="ignore"):
            scale, (effect, low, high) = "ratio", np.exp([mean, low, high]).tolist()
    return Contrast(effect=effect, low=low, high=high, p=p, n=len(ours), better=better, scale=scale)


def threshold(values: Array, number: float, *, below: bool) -> Contrast:
    """Test whether the mean over seeds is below (or above) a number, by a t-test."""
    mean, p, low, high = _t_test(np.asarray(values, dtype=np.float64) - number)
    better = mean < 0 if below else mean > 0
    return Contrast(
        effect=mean + number,
        low=low + number,
        high=high + number,
        p=p,
        n=len(values),
        better=better,
        scale="mean",
    )


def first(ours: Array, theirs: Array | float) -> Contrast:
    """Test by a sign test in how many seeds ours is less than theirs, or than a number; inf means
    never.

    Ties are left out.
    """
    wins, losses = int(np.sum(ours < theirs)), int(np.sum(ours > theirs))
    n = wins + losses
    if not n:
        return Contrast(effect=math.nan, low=0.0, high=1.0, p=1.0, n=0, better=False, scale="share")
    p = min(1.0, 2.0 * float(special.bdtr(min(wins, losses), n, 0.5)))

    def interval(alpha: float) -> tuple[float, float]:
        """Return Clopper and Pearson's interval."""
        low = float(special.betaincinv(wins, losses + 1, alpha / 2)) if wins else 0.0
        return low, float(special.betaincinv(wins + 1, losses, 1 - alpha / 2)) if losses else 1.0

    return Contrast(
        effect=wins / n,
        low=interval(ALPHA)[0],
        high=interval(ALPHA)[1],
        p=p,
        n=n,
        better=wins > losses,
        scale="share",
        at_level=interval,
    )


def holm(comparisons: Sequence[Contrast]) -> list[Contrast]:
    """Return the same tests with p-values corrected for their number (Holm's step-down)."""
    p = np.array([comparison.p for comparison in comparisons])
    order = p.argsort()
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, p[order] * np.arange(len(p), 0, -1)))
    return [replace(c, p_holm=float(q)) for c, q in zip(comparisons, corrected, strict=True)]


def against_published(ours: Array, mean: float, sd: float, n: int = 30) -> tuple[str, float]:
    """Return "same", "different" or "undecided", and our difference in published standard
    deviations.

    Same: the 90 % Welch interval of the difference lies within one published standard deviation.
    Different: Welch's test rejects equality at 5 %, and it is not the same.
    """
    measured = summary(np.asarray(ours, dtype=np.float64))
    difference = measured.mean - mean
    if measured.n < 2:
        return "undecided", difference / sd
    parts = np.array([measured.sd**2 / measured.n, sd**2 / n])
    error = math.sqrt(parts.sum())
    freedom = parts.sum() ** 2 / (parts**2 / np.array([measured.n - 1, n - 1])).sum()
    if abs(difference) + special.stdtrit(freedom, 0.95) * error <= sd:
        return "same", difference / sd
    rejected = abs(difference) > special.stdtrit(freedom, 1 - ALPHA / 2) * error
    return "different" if rejected else "undecided", difference / sd


def spread(ours: Array, theirs: Array) -> Contrast:
    """Test whether our seeds vary less, by a permutation test within pairs on log |x − median|, and
    return the interval of that test.

    If both vary alike, the two deviations of a pair may change places, so the signs of their
    log-ratios may be flipped. One wild seed counts as one sign. A deviation of 0 has no logarithm,
    so its pair is left out.
    """
    away = [
        np.abs(x - np.median(x))
        for x in (np.asarray(ours, np.float64), np.asarray(theirs, np.float64))
    ]
    varies = (away[0] > 0) & (away[1] > 0)
    n = int(varies.sum())
    if n < 3:
        return Contrast(
            effect=math.nan, low=0.0, high=math.inf, p=1.0, n=n, better=False, scale="spread"
        )
    logs = np.log(away[0][varies] / away[1][varies])
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], size=(FLIPS, n))
    total, flipped, net = logs.sum(), signs @ logs, signs.sum(axis=1)
    # A ratio θ is rejected if the flips of logs − θ reject 0. Each flip reaches the observed sum
    # for all θ between two ends.
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.stack([(total - flipped) / (n - net), (total + flipped) / (n + net)])
    # Flips with equal signs reach the observed sum for every θ.
    ends[:, np.abs(net) == n] = np.array([[-np.inf], [np.inf]])
    lower, upper = np.sort(ends.min(axis=0)), np.sort(ends.max(axis=0))[::-1]
    p = (1 + int(np.sum(np.abs(flipped) >= abs(total) * (1 - 1e-12)))) / (FLIPS + 1)

    def interval(alpha: float) -> tuple[float, float]:
        rank = math.ceil(alpha * (FLIPS + 1)) - 2
        return (
            (float(np.exp(lower[rank])), float(np.exp(upper[rank])))
            if rank >= 0
            else (0.0, math.inf)
        )

    return Contrast(
        effect=float(np.exp(total / n)),
        low=interval(ALPHA)[0],
        high=interval(ALPHA)[1],
        p=p,
        n=n,
        better=total < 0,
        scale="spread",
        at_level=interval,
    )
