"""What a comparison found: paired tests that know how many rows they rest on, and what to use, in
three lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from rlploss._scaling import Array
from rlploss.compare.arms import BASELINES, Contender
from rlploss.compare.design import Design
from rlploss.compare.rows import MEASURES
from rlploss.compare.train import Trainer
from rlploss.lab import stats
from rlploss.lab.stats import ALPHA
from rlploss.lab.study import StoredCell
from rlploss.lab.text import number

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

Paired = (
    stats.Comparison
)  # is one arm better than another? Over splits: logarithms of errors, or scores
WIDE = 10.0  # an interval of a ratio up to this is no longer told in percent


def reverse(c: Paired) -> Paired:
    """Return the comparison seen from the other side."""
    if c.scale == "ratio":
        with np.errstate(divide="ignore"):
            effect, low, high = (1 / np.array([c.effect, c.high, c.low])).tolist()
    else:
        effect, low, high = -c.effect, -c.high, -c.low
    return replace(c, effect=effect, low=low, high=high, better=not c.better and effect != c.effect)


def by(c: Paired) -> str:
    """Return how much better ours is: `12 % [5, 19]` of the error, or `2.1 points [0.4, 3.8]` of
    accuracy.
    """
    value, low, high = _amounts(c)
    if c.scale == "difference":
        return f"{_round(value)} points [{_round(low)}, {_round(high)}]"
    return f"{_round(-value)}{' %' * (c.scale == 'ratio')} [{_round(-high)}, {_round(-low)}]"


def gap(c: Paired) -> str:
    """Return a difference that may as well be none, with its interval."""
    if c.scale == "ratio" and c.told[1] > WIDE:
        return (
            f"error {c.effect:.2g} times as large, in an interval too wide to be of use: more"
            " splits narrow it"
        )
    value, low, high = _amounts(c)
    told = {"ratio": f"error {value:+.2g} %", "difference": f"{value:+.2g} points"}.get(
        c.scale, f"error {value:+.2g}"
    )
    return f"{told} [{_round(low)}, {_round(high)}]"


def _amounts(c: Paired) -> list[float]:
    """Return the difference and the ends of its interval: in percent of the error or points, with
    no -0 and no 1e-15.

    An error of 0 has no percent: the differences are then in the error's own unit.
    """
    if c.scale == "gap":
        return [c.effect, *c.told]
    none = 1.0 if c.scale == "ratio" else 0.0
    return [round(100 * (end - none), 6) + 0.0 for end in (c.effect, *c.told)]


def _round(value: float) -> str:
    if not np.isfinite(value):
        return "?"
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


@dataclass(frozen=True)
class Reached:
    """What one arm reached: the measure that decides [splits], the error of every test row, and log
    loss for ties.
    """

    values: Array
    rows: Sequence[NDArray[np.floating]] = ()
    tie: float = 0.0


def levels(reached: Mapping[str, Reached], *, lower_is_better: bool) -> dict[str, float]:
    """The mean of every arm over all splits, so that arms can be ranked.

    Splits differ. An arm that has not all of them is set against the best of those that have, on
    the splits it shares.
    """
    most = max(len(one.values) for one in reached.values())
    whole = [one.values for one in reached.values() if len(one.values) == most]
    lead = min(whole, key=lambda values: float(values.mean()) * (1 if lower_is_better else -1))
    made = {}
    for name, one in reached.items():
        mean, shared = float(one.values.mean()), float(lead[: len(one.values)].mean())
        if len(one.values) < most:
            apart = lower_is_better and shared > 0
            mean = (
                mean / shared * float(lead.mean()) if apart else mean - shared + float(lead.mean())
            )
        made[name] = mean
    return made


def paired(
    ours: Reached, theirs: Reached, *, lower_is_better: bool, overlap: float, n_rows: int = 0
) -> Paired:
    """Compare two arms on the splits that both have.

    Splits of one table overlap, so the variance of the mean is s²·(1/n + `overlap`), the ratio of
    test to training rows (Nadeau and Bengio; 0 for windows of time, which do not overlap). It is at
    least what that many different test rows can tell (for classes the rows on which the two
    disagree, as in McNemar's test), and no interval is narrower than one row to either side.
    """
    n = min(len(ours.values), len(theirs.values))
    a, b = (np.asarray(one.values[:n], dtype=np.float64) for one in (ours, theirs))
    ratio = lower_is_better and bool((a > 0).all() and (b > 0).all())
    least = 0.0
    unit = 0.5 if ratio else 1.0
    rows = list(zip(ours.rows[:n], theirs.rows[:n], strict=True))
    if n > 1 and rows and (ratio or not lower_is_better):
        gaps = [
            x / x.mean() - y / y.mean() if ratio else y - x for x, y in rows
        ]  # of every test row
        total = sum(map(len, gaps))
        seen = min(total, n_rows or total)  # different rows
        share = sum(float(np.sum(np.square(unit * one, dtype=np.float64))) for one in gaps) / total
        one_row = unit * n / total / float(special.stdtrit(n - 1, 1 - ALPHA / 2))
        least = max(math.sqrt(share * seen + unit**2) / seen, one_row)
    return stats.compare(a, b, lower_is_better=lower_is_better, overlap=overlap, least=least)


@dataclass(frozen=True)
class Answer:
    """Paired comparisons of one contender (`ours`) with every other, Holm-corrected together."""

    ours: Contender
    against: Mapping[str, Paired]  # by the name of the other
    rivals: tuple[
        Contender, ...
    ]  # the best network that is not RLP, then the best of the rest; those there are
    best: Contender  # lowest mean error of all; among equally accurate ones the lowest log loss
    second: Contender
    lead: Paired  # of the best over the second; corrected where one of them is ours
    stays: int  # splits in which the dial stayed at its MSE end
    of: int
    beats_nothing: bool  # ours is not shown to be better than the mean, or the class frequencies
    useless: bool  # nor is the best

    def sentence(self, where: str) -> str:
        """Return how ours stands to its rivals in one sentence with its uncertainty; `where` says
        for which rows.
        """
        ours = self.ours.label
        tests = [(rival.label, self.against[rival.name]) for rival in self.rivals]
        levels = [f"{label} ({gap(c)})" for label, c in tests if not c.significant]
        words = [f"{ours} is not distinguishable from {' or '.join(levels)}"] if levels else []
        for label, c in tests:
            if c.word == "better":
                words.append(f"{ours} is better than {label} by {by(c)}")
            elif c.word == "worse":
                words.append(
                    f"{label} is better{'' if words else f' than {ours}'} by {by(reverse(c))}"
                )
        words[0] += f" {where}"
        if self.beats_nothing:
            trivial = "the mean" if "mean" in self.against else "the class frequencies"
            words.append(f"it is not shown to be better than predicting {trivial}")
        elif self.stays and self.of:
            words.append(f"RLP's dial stayed at MSE in {self.stays} of {self.of} splits")
        text = "; ".join(words) + "."
        own = tuple(
            one.label for one in (self.ours, *self.rivals) if one.label == one.name
        )  # losses of users
        return text if text.startswith(own) else text[0].upper() + text[1:]

    def verdict(self, *, at_mse: bool = False) -> str:
        """Return in a few words whether RLP adds anything to a network, such that they fit the best
        arm.

        `at_mse`: the best is RLP with its dial at the MSE end, and is called MSE.
        """
        if not self.ours.is_rlp or self.rivals[0].model:
            return ""
        rival, c = self.rivals[0], self.against[self.rivals[0].name]
        wins = self.best.is_rlp and not at_mse and not self.useless
        mixed = (
            self.best.model == "rlp-cv" and not self.useless
        )  # an ensemble, which may do without RLP
        if c.word == "better":
            if self.useless or self.beats_nothing:
                return "RLP helps a network, which is of no use here"
            if at_mse:
                return "RLP's dial helps, most often at its MSE end"
            ahead = f"RLP helps a network, but {self.best.label} is ahead of it on average"
            return "RLP helps" if wins or mixed else ahead
        if c.word == "worse":
            if wins and self.best is self.ours:
                return f"RLP is ahead of {rival.label} on average only"
            return "RLP alone does not help" if wins or mixed else "RLP does not help"
        if c.word == "undecided" and not (self.of and self.stays == self.of):
            return "Whether RLP adds anything is undecided"
        if wins:
            return f"RLP is not shown to be better than {rival.label}, either will do"
        return "RLP alone adds nothing" if mixed else "RLP adds nothing"


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
    """Compare RLP (or the first network, or the first model) with all others, and return the
    answer.
    """
    ours = min(
        contenders,
        key=lambda one: (
            one.name != "rlp",
            not one.is_rlp,
            bool(one.model),
            one.model in BASELINES,
        ),
    )
    others = [one for one in contenders if one is not ours]

    def test(one: Contender, other: Contender) -> Paired:
        a, b = reached[one.name], reached[other.name]
        return paired(a, b, lower_is_better=lower_is_better, overlap=overlap, n_rows=n_rows)

    made = stats.holm([test(ours, one) for one in others])
    against = {one.name: c for one, c in zip(others, made, strict=True)}

    level = levels(reached, lower_is_better=lower_is_better)

    def rank(one: Contender) -> float:
        return (1.0 if lower_is_better else -1.0) * level[one.name]

    networks = [one for one in others if not one.model and not one.is_rlp]
    rest = [one for one in others if one.model and one.model not in (*BASELINES, "rlp-cv")]
    rivals = tuple(min(group, key=rank) for group in (networks, rest) if group) or (
        min(others, key=rank),
    )
    trivial = [one for one in contenders if one.name in BASELINES]
    best, second = sorted(contenders, key=rank)[:2]
    if (
        not lower_is_better
    ):  # what differs by less than half a test row of a split is equally accurate
        half = 0.5 / max(1, *(len(rows) for rows in reached[best.name].rows), 1)
        tied = [
            one
            for one in contenders
            if rank(one) - rank(best) < half and one.model not in BASELINES
        ]
        best = min(tied, key=lambda one: reached[one.name].tie, default=best)
        second = min((one for one in contenders if one is not best), key=rank)

    def is_useless(one: Contender) -> bool:
        tests = [test(one, baseline) for baseline in trivial if baseline is not one]
        return one in trivial or any(c.p >= ALPHA or not c.better for c in tests)

    lead = test(best, second)
    if ours in (best, second):  # the same test in every line
        lead = against[second.name] if best is ours else reverse(against[best.name])
    return Answer(
        ours, against, rivals, best, second, lead, stays, of, is_useless(ours), is_useless(best)
    )


@dataclass(frozen=True)
class Comparison:
    """What a comparison found. `.table`, `.summary()`, `.best_model()`, `.write(directory)`.

    >>> from rlploss.compare import compare
    >>> X = [[i % 7, i % 5] for i in range(70)]
    >>> found = compare(X, [a + 2 * b + 0.5 for a, b in X], arms=["ridge", "mean"], n_splits=2)
    >>> found.table["arm"].tolist(), found.best_model().predict([[3, 4]]).round(1).tolist()
    (['the mean', 'ridge regression'], [11.5])
    """

    design: Design
    contenders: tuple[Contender, ...]
    cells: Mapping[str, StoredCell]  # by contender
    rows: Trainer  # after sampling
    steps: int
    seeds: tuple[int, ...]
    notes: tuple[str, ...] = ()  # what was not done, and why
    source: str = "the table"
    command: str = ""  # what made it

    @property
    def task(self) -> str:
        """The task, regression or classification."""
        return self.design.target.task

    @property
    def measures(self) -> dict[str, str]:
        """What is measured on the test rows, in words by name; the first decides."""
        return MEASURES[self.task]

    @property
    def lower_is_better(self) -> bool:
        """Whether lower values of the measure that decides are better."""
        return self.task == "regression"

    def values(self, contender: str, measure: str = "") -> Array:
        """Return a measure of one contender [splits], or another number that is kept of every
        split.
        """
        return self.cells[contender].final(measure or next(iter(self.measures)))

    def spread(self, one: Contender, measure: str = "") -> tuple[float, float, float]:
        """Return the mean of a measure over splits, and the ends of its 95 % t-interval, cut where
        none can be.
        """
        measure = measure or next(iter(self.measures))
        mean, low, high = (
            float(end[0]) for end in stats.band(self.values(one.name, measure)[:, None])
        )
        share = measure in ("accuracy", "balanced", "auc", "r2")
        return mean, low if measure == "r2" else max(low, 0.0), min(high, 1.0) if share else high

    def reached(self) -> dict[str, Reached]:
        """Return what every contender reached on the test rows."""
        made = {}
        for one in self.contenders:
            rows = [network.artifacts["rows"] for network in self.cells[one.name].of_variant()]
            tie = 0.0 if self.lower_is_better else float(self.values(one.name, "log_loss").mean())
            made[one.name] = Reached(self.values(one.name), rows, tie)
        return made

    def best_first(self) -> list[Contender]:
        """Return the contenders, ranked by what `levels` makes of them."""
        level = levels(self.reached(), lower_is_better=self.lower_is_better)
        return sorted(
            self.contenders, key=lambda one: level[one.name], reverse=not self.lower_is_better
        )

    def answer(self) -> Answer:
        """Return the verdicts."""
        n_test, n_train = (
            self.values(self.contenders[0].name, name) for name in ("n_test", "n_train")
        )
        reached = self.reached()
        stays, of = self.dial_stays()
        overlap = 0.0 if self.design.time is not None else float(np.mean(n_test / n_train))
        lower, n = self.lower_is_better, len(self.rows.X)
        return answer(
            self.contenders,
            reached,
            lower_is_better=lower,
            overlap=overlap,
            n_rows=n,
            stays=stays,
            of=of,
        )

    def dial_stays(self, contender: str = "rlp") -> tuple[int, int]:
        """Return in how many splits RLP chose the MSE end of its dial, and how many splits there
        are.
        """
        if contender not in self.cells or not self.cells[contender].has("subset_size"):
            return 0, 0
        sizes = self.values(contender, "subset_size")
        return int((sizes == 0).sum()), len(sizes)

    def called(self, one: Contender) -> str:
        """Return the name of an arm by what it was: RLP whose dial stands at its MSE end is MSE."""
        stays, of = self.dial_stays(one.name) if one.is_rlp else (0, 0)
        return one.label.replace("RLP", "MSE", 1) if of and 2 * stays > of else one.label

    def lines(self) -> list[str]:
        """Return what to use, whether RLP adds anything, how sure that is."""
        a = self.answer()
        best, n = self.called(a.best), len(self.values(a.best.name))
        seconds = float(np.mean([network.seconds for network in self.cells[a.best.name].networks]))
        took = f"{seconds:.1f} s" if seconds >= 0.1 else "less than 0.1 s"
        trivial = next((one for one in self.contenders if one.name in BASELINES), None)
        value = float(self.values(a.best.name).mean())
        how = (
            f"root mean squared error {number(value)}"
            if self.lower_is_better
            else f"{value:.1%} right"
        )
        against = ""
        at_mse = best != a.best.label
        if trivial is not None and trivial is not a.best:
            base = float(self.values(trivial.name)[:n].mean())  # of the splits that both have
            against = f", against {base:.1%} for the most frequent class"
            if self.lower_is_better:
                against = f", {100 * (1 - value / base):.0f} % better than predicting the mean"
        stood = (
            f" (RLP's dial stood at its MSE end in {self.dial_stays(a.best.name)[0]} of {n} splits)"
        )
        renamed = stood if at_mse else ""
        use = f"Use {best}{renamed}: {how}{against}; {took} to tune and train."
        if trivial is not None and a.useless:
            use = (
                f"Use none of them: no arm is shown to be better than predicting {trivial.label}"
                f" ({how} for {best})."
            )
        word = a.verdict(at_mse=at_mse)
        told = [use, (f"{word}: " if word else "") + a.sentence("on this table")]
        told[1:1] = [note for note in self.notes if note.startswith("RLP is MSE")]
        second = self.called(a.second)
        if second == best:  # one of them is RLP at its MSE end
            best, second = a.best.label, a.second.label
        n = min(n, len(self.values(a.second.name)))
        many = f"{n} {'windows of time' if self.design.time is not None else 'splits'}"
        useful = "Not sure that any is of use" if trivial is not None and a.useless else ""
        if a.lead.word == "better":
            sure = (
                f"{useful or 'Sure'}: {best} is better than the next, {second}, by {by(a.lead)} in"
                f" {many}"
            )
        else:
            level = f"{second} is not distinguishable from {best} ({gap(reverse(a.lead))})"
            if a.lead.word == "worse":  # an average that a few splits have made
                level = (
                    f"{second} is better than {best} in most splits, not on average"
                    f" ({gap(reverse(a.lead))})"
                )
            sure = f"{useful or 'Not sure'}: {level} in {many}"
        heed = "; the warnings may change this" if self.design.warnings else ""
        told.append(f"{sure}{heed}.")
        return told

    def summary(self) -> str:
        """Return what to use, whether RLP adds anything and how sure that is, a line each."""
        return "\n".join(self.lines())

    @property
    def table(self) -> pd.DataFrame:
        """One row per contender: means, intervals, the paired test against RLP, seconds."""
        from rlploss.compare.report import result_rows

        return pd.DataFrame(result_rows(self))

    def best_model(self) -> Pipeline:
        """Return the winner, trained on all rows: a scikit-learn Pipeline that predicts from raw
        frames.
        """
        from rlploss.compare.model import train_model

        return train_model(self)

    def write(self, directory: str | Path) -> Path:
        """Write report.html, its tables and figures, comparison.json and the model; returns the
        path of the page.
        """
        from rlploss.compare.report import write

        return write(self, Path(directory))

    def __repr__(self) -> str:
        return (
            f"Comparison of {len(self.contenders)} arms on {self.source}, {len(self.seeds)}"
            f" splits\n{self.summary()}"
        )
