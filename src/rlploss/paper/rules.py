"""What the claims of the paper compare: a rule for each kind of claim, which looks at one task
under one protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rlploss._scaling import Array
from rlploss.lab import stats
from rlploss.lab.stats import Contrast
from rlploss.lab.study import StoredCell
from rlploss.lab.text import number
from rlploss.paper.published import PublishedClaim
from rlploss.paper.results import SCORES, Grid, compare, title_of, whole
from rlploss.paper.studies import ARMS, CATALOG


class Placed(NamedTuple):
    """Where RLP is compared with a baseline or a number, what comes out, and with which arms if
    there are several.
    """

    where: str
    comparison: Contrast
    arms: str = ""


def tasks_of(claim: PublishedClaim, study: str) -> Iterable[str]:
    """Return the tasks that a claim speaks of, whatever was asked for: those that it names, or all
    of the study's.
    """
    return claim.tasks or dict.fromkeys(task for task, _, _ in whole(study))


def name_of(claim: PublishedClaim, study: str, task: str) -> str:
    """Return `Wine`, or where a claim is about several studies `Mixup, shift: Wine`."""
    return (
        f"{CATALOG[study]['short']}: {title_of(task)}" if len(claim.studies) > 1 else title_of(task)
    )


def names_of(claim: PublishedClaim, pair: tuple[str, str]) -> str:
    """Return what tells a pair from the others: `against MSE+L2`, `with RLP+mixup`, or both; empty
    if there is one pair.
    """
    if len(claim.pairs) == 1:
        return ""
    ours, theirs = ({arms[side] for arms in claim.pairs} for side in (0, 1))
    mine = f"with {ARMS[pair[0]].label}" if len(ours) > 1 else ""
    return f"{mine} against {ARMS[pair[1]].label}".lstrip() if len(theirs) > 1 else mine


class Place(NamedTuple):
    """Where a claim is looked at: on a task under a protocol, by a metric."""

    grid: Grid
    claim: PublishedClaim
    task: str
    protocol: str
    metric: str

    @property
    def axis(self) -> str:
        """On which the protocol is fair: its arms have the same budget there."""
        return "step" if self.protocol == "steps" else "epoch"

    @property
    def name(self) -> str:
        return name_of(self.claim, self.grid.name, self.task)

    def both(self) -> Iterator[tuple[tuple[str, str], list[StoredCell]]]:
        """Yield each pair of arms with the networks of both; those that were not run are left
        out.
        """
        for pair in self.claim.pairs:
            cells = [*self.grid.stored_arms(self.task, self.protocol, pair).values()]
            if len(cells) == 2:
                yield pair, cells

    def single(self) -> dict[str, StoredCell]:
        """Return RLP and its baselines, each once; empty if one was not run."""
        arms = dict.fromkeys(arm for pair in self.claim.pairs for arm in pair)
        cells = self.grid.stored_arms(self.task, self.protocol, arms)
        return cells if len(cells) == len(arms) else {}


def better(at: Place) -> Iterator[Placed]:
    """Compare the last values, in every variant of the task.

    Where a claim says that RLP converges faster: in how many seeds it reaches the baseline's final
    value first.
    """
    for pair, cells in at.both():
        for variant in sorted({network.variant for network in cells[0].networks}):
            ends = (arm.final(at.metric, variant) for arm in cells)
            yield Placed(at.name, compare(at.metric, *ends), names_of(at.claim, pair))
    if at.metric == at.claim.metrics[0] and at.protocol in ("released", "steps"):
        faster = replace(at.claim, pairs=at.claim.faster)
        for pair, cells in at._replace(claim=faster).both():
            ours, theirs = (
                arrival(arm, at.axis, cells[1].final(at.metric), at.metric) for arm in cells
            )
            yield Placed(f"faster on {at.name}", sooner(ours, theirs), names_of(faster, pair))


def trend(at: Place) -> Iterator[Placed]:
    """Compare a sweep as a whole, by the geometric mean over its levels in each seed; tasks on
    which the claim names every level are compared at every level.
    """
    if at.task in at.claim.strict:
        yield from better(at)
        return
    for pair, cells in at.both():
        levels = range(len(at.grid.cells[at.task, at.protocol, pair[0]].task.variants))
        ends = (np.log([arm.final(at.metric, level) for level in levels]) for arm in cells)
        pooled = (np.exp(logs.mean(axis=0)) for logs in ends)
        yield Placed(at.name, compare(at.metric, *pooled), names_of(at.claim, pair))


def sharper(at: Place) -> Iterator[Placed]:
    """Compare RLP's ratio to a baseline measured with RLP to the same ratio measured with MSE."""
    for pair, cells in at.both():
        by_rlp, by_mse = (
            cells[0].final(metric) / cells[1].final(metric) for metric in ("rlp", "mse")
        )
        yield Placed(at.name, compare("mse", by_rlp, by_mse), names_of(at.claim, pair))


def cost(at: Place) -> Iterator[Placed]:
    """Compare the seconds of an RLP step to those of a baseline's step: at least `above` times?"""
    for _, cells in at._replace(protocol="released").both():
        ours, theirs = (arm.final("seconds") / arm.final("step") for arm in cells)
        yield _bounded(f"{at.name}: RLP step / MSE step", ours / theirs, above=at.claim.above)


class Arrival(NamedTuple):
    """[seeds]: the last evaluation at which a curve had never been at its target, and the first at
    which it is.
    """

    after: Array  # -inf: it begins there
    by: Array  # inf: it never is


def arrival(stored: StoredCell, axis: str, target: Array | float, metric: str) -> Arrival:
    """Return between which epochs or steps each curve first is at its target."""
    curves, targets = stored.matrix(metric), np.reshape(target, (-1, 1))
    hit = curves >= targets if metric in SCORES else curves <= targets
    points = np.array([-np.inf, *stored.axis(axis), np.inf])
    last = np.where(hit.any(axis=1), hit.argmax(axis=1), curves.shape[1])
    return Arrival(points[last], points[last + 1])


def sooner(ours: Arrival, theirs: Arrival) -> Contrast:
    """Compare in how many seeds RLP is there first. Arms may be looked at after other numbers of
    steps.

    So one is first only if it is there at a point where the other is known not to be; else nobody
    is.
    """
    order = np.where(ours.by <= theirs.after, -1.0, np.where(theirs.by <= ours.after, 1.0, 0.0))
    return stats.first(order, 0.0)


def flatter(at: Place) -> Iterator[Placed]:
    """Compare how the error grows from β = 0.5 to 0.9, over its growth from 0.1 to 0.5; less is
    flatter.
    """
    for pair, cells in at.both():
        ends = [[arm.final(at.metric, variant) for variant in (0, 4, 8)] for arm in cells]
        growth = (last * first / middle**2 for first, middle, last in ends)
        yield Placed(at.name, stats.compare(*growth), names_of(at.claim, pair))


def ahead_in_time(at: Place) -> Iterator[Placed]:
    """Compare the values at the last second that both arms have reached; for equal steps, at the
    last step.
    """
    axis = "step" if at.protocol == "steps" else "seconds"
    for _, cells in at._replace(protocol="released").both():
        common = min(float(arm.axis(axis)[-1]) for arm in cells)
        yield Placed(
            at.name, compare(at.metric, *(arm.at(at.metric, axis, common) for arm in cells))
        )


def early(at: Place) -> Iterator[Placed]:
    """Compare the values after some epochs (at equal steps, after as many as ours has taken then),
    and those published.
    """
    for pair, cells in at.both():
        ours, theirs = (ARMS[arm].label for arm in pair)
        for epoch in at.claim.epochs:
            taken = cells[0].axis(at.axis)[cells[0].axis("epoch") <= epoch][-1]
            our_values, their_values = (arm.at(at.metric, at.axis, float(taken)) for arm in cells)
            yield Placed(f"epoch {epoch}", compare(at.metric, our_values, their_values))
            if at.claim.above and at.protocol == "released":
                yield _bounded(ours, our_values, above=at.claim.above)
                yield _bounded(theirs, their_values, below=at.claim.below)


def _bounded(label: str, values: Array, *, below: float = 0.0, above: float = 0.0) -> Placed:
    """Compare the mean over seeds with a number that it should be below, or above."""
    bound, word = (below, "below") if below else (above, "above")
    return Placed(
        f"{label} {word} {number(bound)}:", stats.threshold(values, bound, below=bool(below))
    )


def spread(at: Place) -> Iterator[Placed]:
    """Compare how much the seeds of RLP and of the baselines vary."""
    for (_, base), cells in at.both():
        ends = [arm.final(at.metric) for arm in cells]
        sds = [number(stats.summary(end).sd, 2) for end in ends]
        where = f"sd {sds[0]} against {sds[1]} of {ARMS[base].label}, ratio of typical deviations"
        yield Placed(where, stats.spread(*ends))


def bounds(at: Place) -> Iterator[Placed]:
    """Compare RLP's final error with a number, and that of the baselines with another."""
    for arm, cell in at.single().items():
        bound = {"below": at.claim.below} if arm == "rlp" else {"above": at.claim.above}
        yield _bounded(ARMS[arm].label, cell.final(at.metric), **bound)


def overfit(at: Place) -> Iterator[Placed]:
    """Compare test errors at the end with those at a share of the training; those of the baselines
    should rise, that of RLP fall.
    """
    for arm, cell in at.single().items():
        then = at.claim.level * float(cell.axis(at.axis)[-1])
        change = stats.compare(cell.final(at.metric), cell.at(at.metric, at.axis, then))
        falls = arm == "rlp"
        where = (
            f"{ARMS[arm].label} {'falls' if falls else 'rises'} (final over {at.axis}"
            f" {number(then)})"
        )
        yield Placed(where, change if falls else replace(change, better=not change.better))


def reach(at: Place) -> Iterator[Placed]:
    """Compare when a level is reached: by RLP soon, by the baselines late; at equal steps, RLP
    before the baselines.
    """
    arrivals = {
        arm: arrival(cell, at.axis, at.claim.level, at.metric) for arm, cell in at.single().items()
    }
    for arm, reached in arrivals.items():
        label = ARMS[arm].label
        if at.protocol != "released":
            if arm != "rlp":
                yield Placed(f"RLP before {label}", sooner(arrivals["rlp"], reached))
        elif arm == "rlp":
            yield Placed(
                f"RLP within {at.claim.below:g} epochs",
                stats.first(reached.by, at.claim.below + 1e-9),
            )
        else:
            where = f"{label} after more than {at.claim.above:g} epochs"
            yield Placed(where, stats.first(-reached.by, -at.claim.above))


RULES: dict[str, Callable[[Place], Iterator[Placed]]] = {  # by the name that a claim gives
    "better": better,
    "trend": trend,
    "sharper": sharper,
    "early": early,
    "ahead_in_time": ahead_in_time,
    "cost": cost,
    "flatter": flatter,
    "spread": spread,
    "bounds": bounds,
    "overfit": overfit,
    "reach": reach,
}
