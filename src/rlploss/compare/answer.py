"""The answer: paired tests that know how many rows they rest on, and what to use, in three lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from rlploss._scaling import Array
from rlploss.compare.arms import BASELINES, Contender

ALPHA = 0.05
WIDE = 10.0  # an interval of a ratio up to this is no longer told in percent
NARROW = 1.05  # an interval within this ratio of none, or so many points, is no difference


@dataclass(frozen=True)
class Paired:
    """Is one arm better than another? Paired over splits: logarithms of errors, or scores.

    The interval has the level of the corrected p-value, so that it holds no difference exactly if p is 5 % or more.
    """

    mean: float  # of ours − theirs
    error: float  # its standard error
    n: int
    ratio: bool
    lower_is_better: bool
    times: float = 1.0  # by which Holm multiplies p

    @property
    def p(self) -> float:
        """Two-sided, not corrected."""
        if self.n < 2 or self.mean == 0:
            return 1.0
        if self.error == 0:
            return 0.0
        return 2.0 * float(scipy_stats.t.sf(abs(self.mean) / self.error, self.n - 1))

    @property
    def p_holm(self) -> float:
        """Two-sided, corrected for the number of arms."""
        return min(1.0, self.p * self.times)

    @property
    def better(self) -> bool:
        """The direction of the effect, significant or not."""
        return self.mean < 0 if self.lower_is_better else self.mean > 0

    @property
    def effect(self) -> float:
        """Ratio of geometric means (ours / theirs) for errors, difference of means for scores."""
        return self._shown(self.mean)

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval of the effect."""
        half = math.inf
        if self.n > 1:
            half = float(scipy_stats.t.ppf(1 - ALPHA / 2 / self.times, self.n - 1)) * self.error
        return self._shown(self.mean - half), self._shown(self.mean + half)

    @property
    def word(self) -> str:
        """Better, worse or level."""
        return ("better" if self.better else "worse") if self.p_holm < ALPHA else "level"

    @property
    def is_none(self) -> bool:
        """Whether the whole interval is no difference worth speaking of."""
        low, high = self.interval
        return 1 / NARROW < low and high < NARROW if self.ratio else max(-low, high) < NARROW - 1

    def reverse(self) -> Paired:
        """Return the comparison seen from the other side."""
        return replace(self, mean=-self.mean)

    def _shown(self, value: float) -> float:
        return float(np.exp(np.clip(value, -700, 700))) if self.ratio else value

    def by(self) -> str:
        """Return how much better ours is: `12 % [5, 19]` of the error, or `2.1 points [0.4, 3.8]` of accuracy."""
        low, high = self.interval
        if self.ratio:
            value, least, most = (_round(100 * (1 - end)) for end in (self.effect, high, low))
            return f"{value} % [{least}, {most}]"
        value, least, most = (_round(100 * end) for end in (self.effect, low, high))
        return f"{value} points [{least}, {most}]"

    def gap(self) -> str:
        """Return a difference that may as well be none, with its interval."""
        low, high = self.interval
        if self.ratio and high > WIDE:
            return (
                f"error {self.effect:.2g} times as large, in an interval too wide to be of use: more splits narrow it"
            )
        word, unit, none = ("error ", "%", 1.0) if self.ratio else ("", "points", 0.0)
        value, least, most = (100 * (end - none) + 0.0 for end in (self.effect, low, high))  # no -0
        return f"{word}{value:+.2g} {unit} [{_round(least)}, {_round(most)}]"


def _round(value: float) -> str:
    if not np.isfinite(value):
        return "?"
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


@dataclass(frozen=True)
class Reached:
    """What one arm reached: the measure that decides [splits], the error of every test row, and log loss for ties."""

    values: Array
    rows: Sequence[NDArray[np.floating]] = ()
    tie: float = 0.0


def paired(ours: Reached, theirs: Reached, *, lower_is_better: bool, overlap: float, n_rows: int = 0) -> Paired:
    """Compare two arms on the splits that both have.

    Splits of one table overlap, so the variance of the mean is s²·(1/n + `overlap`), the ratio of test to training rows
    (Nadeau and Bengio; 0 for windows of time, which do not overlap). It is at least what that many different test rows
    can tell (for classes the rows on which the two disagree, as in McNemar's test), and no interval is narrower than
    one row to either side.
    """
    n = min(len(ours.values), len(theirs.values))
    a, b = (np.asarray(one.values[:n], dtype=np.float64) for one in (ours, theirs))
    ratio = lower_is_better and bool((a > 0).all() and (b > 0).all())
    differences = np.log(a) - np.log(b) if ratio else a - b
    if n < 2:
        return Paired(float(differences.mean()), math.inf, n, ratio, lower_is_better)
    variance = float(differences.var(ddof=1)) * (1.0 / n + overlap)
    error, unit = math.sqrt(variance), 0.5 if ratio else 1.0
    rows = list(zip(ours.rows[:n], theirs.rows[:n], strict=True))
    if rows and (ratio or not lower_is_better):
        gaps = [x / x.mean() - y / y.mean() if ratio else y - x for x, y in rows]  # of every test row
        total = sum(map(len, gaps))
        seen = min(total, n_rows or total)  # different rows
        share = sum(float(np.sum(np.square(unit * gap, dtype=np.float64))) for gap in gaps) / total
        one_row = unit * n / total / float(scipy_stats.t.ppf(1 - ALPHA / 2, n - 1))
        error = max(error, math.sqrt(share * seen + unit**2) / seen, one_row)
    return Paired(float(differences.mean()), error, n, ratio, lower_is_better)


def holm(made: Sequence[Paired]) -> list[Paired]:
    """Return the same comparisons corrected for their number (Holm's step-down)."""
    found, least = list(made), 0.0
    for rank, at in enumerate(np.argsort([one.p for one in made], kind="stable")):
        one = made[at]
        least = max(least, min(1.0, one.p * (len(made) - rank)))
        found[at] = replace(one, times=least / one.p if one.p > 0 else float(len(made) - rank))
    return found


@dataclass(frozen=True)
class Answer:
    """Paired comparisons of one contender (`ours`) with every other, Holm-corrected together."""

    ours: Contender
    against: Mapping[str, Paired]  # by the name of the other
    rivals: tuple[Contender, ...]  # the best network that is not RLP, then the best of the rest; those there are
    best: Contender  # lowest mean error of all; among equally accurate ones the lowest log loss
    second: Contender
    lead: Paired  # of the best over the second, not corrected
    stays: int  # splits in which the dial stayed at its MSE end
    of: int
    beats_nothing: bool  # ours is not shown to be better than the mean, or the class frequencies
    useless: bool  # nor is the best

    def sentence(self, where: str) -> str:
        """Return how ours stands to its rivals in one sentence with its uncertainty; `where` says for which rows."""
        ours = self.ours.label
        tests = [(rival.label, self.against[rival.name]) for rival in self.rivals]
        levels = [f"{label} ({c.gap()})" for label, c in tests if c.word == "level"]
        words = [f"{ours} is not distinguishable from {' or '.join(levels)}"] if levels else []
        for label, c in tests:
            if c.word == "better":
                words.append(f"{ours} is better than {label} by {c.by()}")
            elif c.word == "worse":
                words.append(f"{label} is better{'' if words else f' than {ours}'} by {c.reverse().by()}")
        words[0] += f" {where}"
        if self.beats_nothing:
            trivial = "the mean" if "mean" in self.against else "the class frequencies"
            words.append(f"it is not shown to be better than predicting {trivial}")
        elif self.stays and self.of:
            words.append(f"RLP's dial stayed at MSE in {self.stays} of {self.of} splits")
        text = "; ".join(words) + "."
        return text[0].upper() + text[1:]

    def verdict(self) -> str:
        """Return in a few words whether RLP adds anything to a network."""
        if not self.ours.is_rlp or self.rivals[0].model:
            return ""
        c = self.against[self.rivals[0].name]
        if c.word != "level":
            return "RLP helps" if c.better else "RLP does not help"
        nothing = c.is_none or (self.of and self.stays == self.of)
        return "RLP adds nothing" if nothing else "Whether RLP adds anything is undecided"


def answer(
    contenders: Sequence[Contender],
    reached: Mapping[str, Reached],
    *,
    lower_is_better: bool,
    overlap: float,
    n_rows: int = 0,
    stays: int = 0,
    of: int = 0,
) -> Answer:
    """Compare RLP (or the first network, if RLP is not there) with all others, and return the answer."""
    ours = min(contenders, key=lambda one: (one.name != "rlp", not one.is_rlp, bool(one.model)))
    others = [one for one in contenders if one is not ours]

    def test(one: Contender, other: Contender) -> Paired:
        a, b = reached[one.name], reached[other.name]
        return paired(a, b, lower_is_better=lower_is_better, overlap=overlap, n_rows=n_rows)

    made = holm([test(ours, one) for one in others])
    against = {one.name: c for one, c in zip(others, made, strict=True)}

    def rank(one: Contender) -> float:
        return (1.0 if lower_is_better else -1.0) * float(np.mean(reached[one.name].values))

    networks = [one for one in others if not one.model and not one.is_rlp]
    rest = [one for one in others if one.model and one.model not in (*BASELINES, "rlp-cv")]
    rivals = tuple(min(group, key=rank) for group in (networks, rest) if group) or (min(others, key=rank),)
    trivial = [one for one in contenders if one.name in BASELINES]
    best, second = sorted(contenders, key=rank)[:2]
    if not lower_is_better:  # what differs by less than half a test row of a split is equally accurate
        half = 0.5 / max(1, *(len(rows) for rows in reached[best.name].rows), 1)
        tied = [one for one in contenders if rank(one) - rank(best) < half and one.model not in BASELINES]
        best = min(tied, key=lambda one: reached[one.name].tie, default=best)
        second = min((one for one in contenders if one is not best), key=rank)
    lost = [[one is t or test(one, t).p >= ALPHA or not test(one, t).better for t in trivial] for one in (ours, best)]
    return Answer(ours, against, rivals, best, second, test(best, second), stays, of, any(lost[0]), any(lost[1]))
