"""Statistics over seeds: paired tests with their own intervals, Holm's correction, agreement with a
published number.

Two arms of a study share their seeds, and a seed fixes split and initial weights, so comparisons
are paired. A p-value here speaks of other seeds on the same data, not of other data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import special

from rlploss._scaling import Array

ALPHA = 0.05
MARGINS = {
    "ratio": (0.95, 1.05),
    "difference": (-0.01, 0.01),
}  # no difference worth the name: 5 %, or one point
FLIPS = 9_999  # of a permutation test
SEED = 20240715  # of every permutation test: a report is the same each time it is rendered


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation (n − 1) and the 95 % t-interval of the mean, over seeds."""

    mean: float
    sd: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """Is `ours` better than `theirs`, or than a number? One test, and the interval that belongs to
    it.

    `effect` is, by `scale`: "ratio", geometric means of errors (ours / theirs); "difference", means
    of scores (ours − theirs); "gap", the same for errors of which one is 0 and has no ratio;
    "mean", our mean, which is compared with a number; "share", seeds in which ours was first;
    "spread", typical deviations from the median (ours / theirs). [low, high] is its 95 % interval:
    it holds no difference exactly if the two-sided p is 5 % or more. `p_holm` is corrected over a
    family, NaN where there is none.
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
    def told(self) -> tuple[float, float]:
        """The interval at the level of the corrected p: it holds no difference exactly if that is 5
        % or more.
        """
        return (
            self.interval(ALPHA * self.p / self.p_holm)
            if self.p_holm > self.p
            else (self.low, self.high)
        )

    @property
    def word(self) -> str:
        """Better or worse, if that is significant; level, if all of the interval is as good as
        none; or undecided.
        """
        if self.significant:
            return "better" if self.better else "worse"
        return "level" if self.is_none(*self.told) else "undecided"

    def is_none(self, low: float, high: float) -> bool:
        """Whether an interval of this scale lies within what is no difference worth the name."""
        least, most = MARGINS.get(self.scale, (math.nan, math.nan))
        return least <= low and high <= most

    def interval(self, alpha: float) -> tuple[float, float]:
        """The interval at a level of at least 95 %: that of `at_level`, or of a t-test what `low`
        and `high` imply.
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
        return Summary(float(values[0]), math.nan, math.nan, math.nan, 1)
    mean, low, high = (float(end) for end in band(values))
    return Summary(mean, float(values.std(ddof=1)), low, high, n)


def band(matrix: Array) -> tuple[Array, Array, Array]:
    """Mean and pointwise 95 % t-interval of [seeds, points]: the curve and its confidence band."""
    n = len(matrix)
    mean = matrix.mean(axis=0)
    if n < 2:
        return mean, mean, mean
    half = special.stdtrit(n - 1, 0.975) * matrix.std(axis=0, ddof=1) / math.sqrt(n)
    return mean, mean - half, mean + half


def _t_test(
    values: Array, overlap: float = 0.0, least: float = 0.0
) -> tuple[float, float, float, float]:
    """Mean, two-sided p of a mean of 0, and the 95 % interval of the mean, whose standard error is
    at least `least`.

    Values that are all the same have no variance to go by: their signs are tested, and the interval
    is a point, or everything where even that is not significant.
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
) -> Comparison:
    """Paired t-test over seeds: on logarithms for errors, which span decades, on differences for
    scores.

    Errors with a 0 among them have no logarithms: their differences are tested. They have a unit of
    their own, so no size of a difference is as good as none.

    Seeds that split the same rows again and again are not independent: `overlap` is the ratio of
    test to training rows, and the variance of the mean is then s²·(1/n + overlap) after Nadeau and
    Bengio. Its root is never taken to be less than `least`.
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
    if not ratio:
        return Comparison(
            mean, low, high, p, len(ours), better, "gap" if lower_is_better else "difference"
        )
    with np.errstate(over="ignore"):
        effect, low, high = np.exp([mean, low, high]).tolist()
    return Comparison(effect, low, high, p, len(ours), better, "ratio")


def threshold(values: Array, number: float, *, below: bool) -> Comparison:
    """Is the mean over seeds below (or above) a number? A t-test of the mean."""
    mean, p, low, high = _t_test(np.asarray(values, dtype=np.float64) - number)
    better = mean < 0 if below else mean > 0
    return Comparison(mean + number, low + number, high + number, p, len(values), better, "mean")


def first(ours: Array, theirs: Array | float) -> Comparison:
    """In how many seeds do we need less than they do, or than a number? A sign test: inf, never, is
    more than all else.

    Ties count for nobody.
    """
    wins, losses = int(np.sum(ours < theirs)), int(np.sum(ours > theirs))
    n = wins + losses
    if not n:
        return Comparison(math.nan, 0.0, 1.0, 1.0, 0, False, "share")
    p = min(1.0, 2.0 * float(special.bdtr(min(wins, losses), n, 0.5)))

    def interval(alpha: float) -> tuple[float, float]:
        """Clopper and Pearson's."""
        low = float(special.betaincinv(wins, losses + 1, alpha / 2)) if wins else 0.0
        return low, float(special.betaincinv(wins + 1, losses, 1 - alpha / 2)) if losses else 1.0

    return Comparison(wins / n, *interval(ALPHA), p, n, wins > losses, "share", at_level=interval)


def holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The same comparisons with p-values corrected for their number (Holm's step-down)."""
    p = np.array([comparison.p for comparison in comparisons])
    order = p.argsort()
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, p[order] * np.arange(len(p), 0, -1)))
    return [replace(c, p_holm=float(q)) for c, q in zip(comparisons, corrected, strict=True)]


def against_published(ours: Array, mean: float, sd: float, n: int = 30) -> tuple[str, float]:
    """Same, different or undecided, and our difference in published standard deviations.

    Same: the 90 % Welch interval of the difference lies within one published standard deviation.
    Different: Welch's test rejects equality at 5 %, and it is not the same.
    """
    found = summary(np.asarray(ours, dtype=np.float64))
    difference = found.mean - mean
    if found.n < 2:
        return "undecided", difference / sd
    parts = np.array([found.sd**2 / found.n, sd**2 / n])
    error = math.sqrt(parts.sum())
    freedom = parts.sum() ** 2 / (parts**2 / np.array([found.n - 1, n - 1])).sum()
    if abs(difference) + special.stdtrit(freedom, 0.95) * error <= sd:
        return "same", difference / sd
    rejected = abs(difference) > special.stdtrit(freedom, 1 - ALPHA / 2) * error
    return "different" if rejected else "undecided", difference / sd


def spread(ours: Array, theirs: Array) -> Comparison:
    """Do our seeds vary less? A permutation test within pairs on log |x − median|, and the interval
    of that test.

    Under equality the two deviations of a pair may change places, so the signs of their log-ratios
    may be flipped. One wild seed is one sign. Where a value is its own median it has no logarithm,
    and its pair is left out.
    """
    away = [
        np.abs(x - np.median(x))
        for x in (np.asarray(ours, np.float64), np.asarray(theirs, np.float64))
    ]
    kept = (away[0] > 0) & (away[1] > 0)
    n = int(kept.sum())
    if n < 3:
        return Comparison(math.nan, 0.0, math.inf, 1.0, n, False, "spread")
    logs = np.log(away[0][kept] / away[1][kept])
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], size=(FLIPS, n))
    total, flipped, net = logs.sum(), signs @ logs, signs.sum(axis=1)
    # A ratio θ is rejected as the flips of logs − θ are: each flip reaches the observed sum for θ
    # between two ends.
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.stack([(total - flipped) / (n - net), (total + flipped) / (n + net)])
    ends[:, np.abs(net) == n] = np.array(
        [[-np.inf], [np.inf]]
    )  # all signs alike: reached for every θ
    lower, upper = np.sort(ends.min(axis=0)), np.sort(ends.max(axis=0))[::-1]
    p = (1 + int(np.sum(np.abs(flipped) >= abs(total) * (1 - 1e-12)))) / (FLIPS + 1)

    def interval(alpha: float) -> tuple[float, float]:
        rank = math.ceil(alpha * (FLIPS + 1)) - 2
        return (
            (float(np.exp(lower[rank])), float(np.exp(upper[rank])))
            if rank >= 0
            else (0.0, math.inf)
        )

    return Comparison(
        float(np.exp(total / n)), *interval(ALPHA), p, n, total < 0, "spread", at_level=interval
    )
