"""The answer in words: RLP against its best rival among networks, and against what is no network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats as scipy_stats

from rlploss.compare.arms import Arm
from rlploss.lab import stats
from rlploss.lab.stats import Array

BASELINES = ("mean", "prior")
WIDE = 10.0  # an interval of a ratio up to this is no longer told in percent
WORDS = {
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "r2": "R²",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "log_loss": "log loss",
}


@dataclass(frozen=True)
class Answer:
    """Paired comparisons of one arm (`ours`) with every other, Holm-corrected together."""

    ours: Arm
    against: Mapping[str, stats.Comparison]  # by the name of the other arm
    rivals: tuple[Arm, ...]  # the best network that is not RLP, then the best of the rest; those there are
    best: Arm  # lowest mean error of all
    stays: int  # splits in which the dial stayed at its MSE end
    of: int
    beats_nothing: bool  # not even the mean, or the class frequencies, are certainly beaten

    def sentence(self, where: str) -> str:
        """One sentence with its uncertainty."""
        words, levels = [], []
        for rival in self.rivals:
            c = self.against[rival.name]
            if c.word == "level":
                levels.append(f"{rival.label} ({_gap(c)})")
            elif c.word == "better":
                words.append(f"{self.ours.label} is better than {rival.label} by {_by(c, self_better=True)}")
            else:
                words.append(f"{rival.label} is better by {_by(c, self_better=False)}")
        if levels:
            words.insert(0, f"{self.ours.label} is not distinguishable from {' or '.join(levels)}")
        if not words[0].startswith(self.ours.label):
            words[0] = words[0].replace("is better by", f"is better than {self.ours.label} by")
        text = f"{words[0]} {where}" + "".join(f"; {other}" for other in words[1:])
        if self.beats_nothing:
            text += f"; it is not shown to be better than predicting {self._trivial()}"
        elif self.stays and self.of:
            text += f"; RLP's dial stayed at MSE in {self.stays} of {self.of} splits"
        text += "."
        return text[0].upper() + text[1:]

    def _trivial(self) -> str:
        return "the mean" if "mean" in self.against else "the class frequencies"


def answer(
    arms: Sequence[Arm], values: Mapping[str, Array], *, lower_is_better: bool, overlap: float, stays: int, of: int
) -> Answer:
    """Compare RLP (or the first arm, if it is not there) with all others."""
    by_name = {arm.name: arm for arm in arms}
    ours = by_name.get("rlp") or next((arm for arm in arms if arm.is_rlp), arms[0])
    others = [arm for arm in arms if arm is not ours]
    made = [
        stats.compare(values[ours.name], values[arm.name], lower_is_better=lower_is_better, overlap=overlap)
        for arm in others
    ]
    against = {arm.name: corrected(c) for arm, c in zip(others, stats.holm(made), strict=True)}
    sign = 1.0 if lower_is_better else -1.0

    def rank(arm: Arm) -> float:
        return sign * float(np.mean(values[arm.name]))

    networks = [arm for arm in others if arm.objective and not arm.is_rlp]
    rest = [arm for arm in others if not arm.objective and arm.name not in BASELINES]
    rivals = tuple(min(group, key=rank) for group in (networks, rest) if group)
    if not rivals:
        rivals = (min(others, key=rank),)
    trivial = [against[name] for name in BASELINES if name in against]
    return Answer(
        ours, against, rivals, min(arms, key=rank), stays, of, any(not c.better or c.p >= stats.ALPHA for c in trivial)
    )


def corrected(c: stats.Comparison) -> stats.Comparison:
    """The same comparison with the interval that goes with its corrected p-value: it holds 1 (or 0) exactly if p ≥ 5 %.

    Holm multiplied p by some m, so the interval is that of level 1 − 0.05/m, on the scale of the test.
    """
    if c.n < 2 or not 0 < c.p < c.p_holm:
        return c
    wide, usual = (
        float(scipy_stats.t.ppf(1 - level / 2, c.n - 1)) for level in (stats.ALPHA * c.p / c.p_holm, stats.ALPHA)
    )
    if c.scale == "ratio":
        half = math.log(c.high / c.effect) * wide / usual
        return replace(c, low=c.effect * math.exp(-half), high=c.effect * math.exp(half))
    half = (c.high - c.effect) * wide / usual
    return replace(c, low=c.effect - half, high=c.effect + half)


def _by(c: stats.Comparison, *, self_better: bool) -> str:
    """`12 % [5, 19]` of the error, or `2.1 points [0.4, 3.8]` of accuracy: how much better the better one is."""
    if c.scale == "ratio":
        ends = (c.effect, c.high, c.low) if self_better else (1 / c.effect, 1 / c.low, 1 / c.high)
        value, low, high = (100 * (1 - end) for end in ends)
        return f"{_round(value)} % [{_round(low)}, {_round(high)}]"
    ends = (c.effect, c.low, c.high) if self_better else (-c.effect, -c.high, -c.low)
    value, low, high = (100 * end for end in ends)
    return f"{_round(value)} points [{_round(low)}, {_round(high)}]"


def _gap(c: stats.Comparison) -> str:
    """The difference that may as well be none, with its interval."""
    if c.scale == "ratio" and c.high > WIDE:
        return f"error {c.effect:.2g} times as large, in an interval too wide to be of use: more splits narrow it"
    if c.scale == "ratio":
        value, low, high = (100 * (end - 1) for end in (c.effect, c.low, c.high))
        return f"error {value:+.2g} % [{_round(low)}, {_round(high)}]"
    value, low, high = (100 * end for end in (c.effect, c.low, c.high))
    return f"{value:+.2g} points [{_round(low)}, {_round(high)}]"


def _round(value: float) -> str:
    if not np.isfinite(value):
        return "?"
    if abs(value) >= 10:
        return f"{value:.0f}"
    return f"{value:.2g}".replace("-0 ", "0 ")
