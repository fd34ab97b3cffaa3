"""What a comparison measured, and what follows from it in numbers: paired tests that know how many
rows they rest on, who is best, and whether anything is of use.

A run hands over `Results`; everything that is said or drawn later comes from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rlploss._scaling import Array
from rlploss.compare.metrics import METRICS, Metric, metric_of
from rlploss.lab import stats
from rlploss.lab.stats import ALPHA

Paired = (
    stats.Contrast
)  # is one arm better than another? Over splits: logarithms of errors, or scores
ROLES = ("rlp", "network", "mixture", "model", "baseline")
FEW_SPLITS = 5  # with fewer, a test that shows nothing may only mean that there are too few


@dataclass(frozen=True)
class ArmResult:
    """What one arm reached on the splits that it was trained on: the first of all, in their order.

    `predicted` are the test rows of each split [n, C], in the target's own units or as
    probabilities. `details` are further numbers of each split: "subset_size" (0 where the dial of
    RLP stood at its MSE end), "log" (whether it predicts logarithms), "late" (whether more steps
    might help), and of networks the arrays that figures need.
    """

    name: str  # what --arms takes
    label: str  # what every line, table and figure calls it; no two arms share one
    role: str  # one of ROLES; a mixture holds networks with RLP and without
    predicted: Sequence[Array]
    seconds: Sequence[float]
    details: Mapping[str, Array] = field(default_factory=dict)
    style: str = "grey"

    @property
    def at_mse(self) -> int:
        """In how many splits the dial of RLP stood at its MSE end."""
        return int((np.asarray(self.details.get("subset_size", ())) == 0).sum())

    @property
    def is_mse(self) -> bool:
        """Whether it is RLP that was MSE in most splits."""
        return self.role == "rlp" and 2 * self.at_mse > len(self.predicted)


@dataclass(frozen=True)
class Results:
    """All that an answer rests on: the arms, and the truth of the test rows of every split."""

    task: str
    metric: Metric  # which decides
    arms: tuple[ArmResult, ...]
    truth: Sequence[NDArray[Any]]  # of the test rows of each split: numbers, or class numbers
    n_train: Sequence[int]  # of each split
    n_rows: int  # rows that were used, each counted once
    windows: bool = False  # splits are windows of time, which do not overlap

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What is measured, the metric that decides first."""
        return self.metric, *(m for m in METRICS[self.task] if m is not self.metric)

    def arm(self, name: str) -> ArmResult:
        """Return an arm by its name."""
        return next(arm for arm in self.arms if arm.name == name)

    @cached_property
    def losses(self) -> Mapping[tuple[str, str], Sequence[Array]]:
        """The losses of the test rows of each split, by arm and metric."""
        return {
            (arm.name, m.name): [
                m.losses(p, t) for p, t in zip(arm.predicted, self.truth, strict=False)
            ]
            for arm in self.arms
            for m in self.metrics
        }

    def values(self, name: str, metric: str = "") -> Array:
        """Return a measure of one arm [splits]; that which decides, or another."""
        m = metric_of(self.task, metric) if metric else self.metric
        return np.array([m.value(losses) for losses in self.losses[name, m.name]])

    def spread(self, name: str, metric: str = "") -> tuple[float, float, float]:
        """Return the mean of a measure over splits, and the ends of its 95 % t-interval, cut where
        none can be.
        """
        m = metric_of(self.task, metric) if metric else self.metric
        mean, low, high = (float(end[0]) for end in stats.band(self.values(name, m.name)[:, None]))
        low = low if m.name == "r2" else max(low, 0.0)
        return mean, low, high if m.lower_is_better else min(high, 1.0)

    @cached_property
    def reached(self) -> dict[str, Reached]:
        """What every arm reached, by name."""
        tie = "log_loss" if self.metric.name == "accuracy" else self.metric.name
        return {
            arm.name: Reached(
                self.values(arm.name),
                self.losses[arm.name, self.metric.name],
                float(self.values(arm.name, tie).mean()),
            )
            for arm in self.arms
        }

    @cached_property
    def answer(self) -> Answer:
        """The tests, and who is best."""
        n_test = np.array([len(truth) for truth in self.truth])
        overlap = 0.0 if self.windows else float(np.mean(n_test / np.array(self.n_train)))
        return answer(
            self.arms, self.reached, metric=self.metric, overlap=overlap, n_rows=self.n_rows
        )

    def best_first(self) -> list[ArmResult]:
        """Return the arms, ranked by what `levels` makes of them."""
        level = levels(self.reached, lower_is_better=self.metric.lower_is_better)
        return sorted(
            self.arms, key=lambda arm: level[arm.name], reverse=not self.metric.lower_is_better
        )


@dataclass(frozen=True)
class Reached:
    """What one arm reached: the metric that decides [splits], the loss of every test row in it, and
    log loss for ties.
    """

    values: Array
    rows: Sequence[NDArray[np.floating]] = ()
    tie: float = 0.0


def levels(reached: Mapping[str, Reached], *, lower_is_better: bool) -> dict[str, float]:
    """Return the mean of every arm over all splits, so that arms can be ranked.

    Splits differ. An arm that has not all of them is set against the best of those that have, on
    the splits it shares.
    """
    most = max(len(arm.values) for arm in reached.values())
    whole = [arm.values for arm in reached.values() if len(arm.values) == most]
    lead = min(whole, key=lambda values: float(values.mean()) * (1 if lower_is_better else -1))
    level = {}
    for name, arm in reached.items():
        mean, shared = float(arm.values.mean()), float(lead[: len(arm.values)].mean())
        if len(arm.values) == most:
            level[name] = mean
        elif lower_is_better and shared > 0:
            level[name] = mean / shared * float(lead.mean())
        else:
            level[name] = mean - shared + float(lead.mean())
    return level


def reverse(c: Paired) -> Paired:
    """Return the comparison seen from the other side."""
    if c.scale == "ratio":
        with np.errstate(divide="ignore"):
            effect, low, high = (1 / np.array([c.effect, c.high, c.low])).tolist()
    else:
        effect, low, high = -c.effect, -c.high, -c.low
    return replace(c, effect=effect, low=low, high=high, better=not c.better and effect != c.effect)


def paired(
    ours: Reached, theirs: Reached, *, metric: Metric, overlap: float, n_rows: int = 0
) -> Paired:
    """Compare two arms on the splits that both have.

    Splits of one table overlap, so the variance of the mean is s²·(1/n + `overlap`), the ratio of
    test to training rows (Nadeau and Bengio; 0 for windows of time, which do not overlap). It is at
    least what that many different test rows can tell (for accuracy the rows on which the two
    disagree, as in McNemar's test), and no interval is narrower than one row to either side.
    """
    n = min(len(ours.values), len(theirs.values))
    a, b = (np.asarray(arm.values[:n], dtype=np.float64) for arm in (ours, theirs))
    ratio = metric.lower_is_better and bool((a > 0).all() and (b > 0).all())
    least = 0.0
    unit = 0.5 if ratio and metric.form == "root" else 1.0
    rows = list(zip(ours.rows[:n], theirs.rows[:n], strict=True))
    if n > 1 and rows and (ratio or not metric.lower_is_better):
        gaps = [
            x / x.mean() - y / y.mean() if ratio else y - x for x, y in rows
        ]  # of every test row
        total = sum(map(len, gaps))
        seen = min(total, n_rows or total)  # different rows
        share = sum(float(np.sum(np.square(unit * gap, dtype=np.float64))) for gap in gaps) / total
        one_row = unit * n / total / float(special.stdtrit(n - 1, 1 - ALPHA / 2))
        least = max(math.sqrt(share * seen + unit**2) / seen, one_row)
    return stats.compare(a, b, lower_is_better=metric.lower_is_better, overlap=overlap, least=least)


@dataclass(frozen=True)
class Answer:
    """Paired comparisons of one arm (`ours`) with every other, Holm-corrected together."""

    ours: ArmResult
    against: Mapping[str, Paired]  # by the name of the other
    rivals: tuple[
        ArmResult, ...
    ]  # the best network that is not RLP, then the best of the rest; those there are
    best: ArmResult  # lowest mean error of all; among equally accurate ones the lowest log loss
    leader: ArmResult  # the best arm to speak of: not the mean, or the class frequencies
    second: ArmResult  # the next best, or what the leader is not shown to be better than
    lead: Paired  # of the leader over the second; corrected where one of them is ours
    use: str  # "best"; "none": not shown to be better than the baseline; "few": too few splits
    ours_is_useless: bool = False  # ours is not shown to be better than the baseline
    baseline: ArmResult | None = None

    @property
    def of_use(self) -> bool:
        """Whether the best arm is shown to be better than the baseline."""
        return self.use == "best"


def answer(
    arms: Sequence[ArmResult],
    reached: Mapping[str, Reached],
    *,
    metric: Metric,
    overlap: float,
    n_rows: int = 0,
) -> Answer:
    """Compare RLP (or the first network, or the first model) with all others, and return the
    answer.
    """
    ours = min(arms, key=lambda arm: (arm.name != "rlp", ROLES.index(arm.role)))
    others = [arm for arm in arms if arm is not ours]

    def test(arm: ArmResult, other: ArmResult) -> Paired:
        a, b = reached[arm.name], reached[other.name]
        return paired(a, b, metric=metric, overlap=overlap, n_rows=n_rows)

    tests = stats.holm([test(ours, arm) for arm in others])
    against = {arm.name: c for arm, c in zip(others, tests, strict=True)}
    level = levels(reached, lower_is_better=metric.lower_is_better)

    def rank(arm: ArmResult) -> float:
        return (1.0 if metric.lower_is_better else -1.0) * level[arm.name]

    groups = ([arm for arm in others if arm.role == role] for role in ("network", "model"))
    rivals = tuple(min(group, key=rank) for group in groups if group)
    order = sorted(arms, key=rank)
    best = order[0]
    if metric.name == "accuracy":  # less than half a test row of a split is no difference
        half = 0.5 / max(1, *(len(rows) for rows in reached[best.name].rows), 1)
        tied = [arm for arm in order if rank(arm) - rank(best) < half and arm.role != "baseline"]
        best = min(tied, key=lambda arm: reached[arm.name].tie, default=best)
    baseline = next((arm for arm in arms if arm.role == "baseline"), None)
    leader = best
    if best.role == "baseline":
        leader = next(arm for arm in order if arm is not best)
    second = next(arm for arm in order if arm is not leader)
    use = "best"
    if baseline is not None and not _is_shown(c := test(leader, baseline)):
        second = baseline
        few = c.n < FEW_SPLITS and c.word == "undecided" and best is leader
        use = "few" if few else "none"
    lead = test(leader, second)
    if ours is leader:  # the same test in every line
        lead = against[second.name]
    elif ours is second:
        lead = reverse(against[leader.name])
    return Answer(
        ours=ours,
        against=against,
        rivals=rivals or (min(others, key=rank),),
        best=best,
        leader=leader,
        second=second,
        lead=lead,
        use=use,
        ours_is_useless=baseline is not None
        and (ours is baseline or not _is_shown(test(ours, baseline))),
        baseline=baseline,
    )


def _is_shown(c: Paired) -> bool:
    """Return whether an arm is shown to be better than the baseline."""
    return c.p < ALPHA and c.better
