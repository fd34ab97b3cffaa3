"""A verdict, or a reason why there is none, for every claim of the paper: which comparisons each kind makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from rlploss._scaling import Array
from rlploss.lab import stats
from rlploss.lab.report import Claim
from rlploss.lab.study import StoredCell
from rlploss.lab.text import number
from rlploss.paper import published, verdicts
from rlploss.paper.measure import TS, Measurement
from rlploss.paper.protocols import ARMS, axis_of
from rlploss.paper.published import Pairs, PublishedClaim
from rlploss.paper.results import SCORES, Grid, StoredResults, title_of
from rlploss.paper.verdicts import Placed, Verdict

Rule = Callable[[PublishedClaim, StoredResults], Verdict]


def all_claims(results: StoredResults) -> list[Claim]:
    """Every claim of `published.toml` with its verdict."""
    made = []
    for claim in published.CLAIMS:
        found = RULES[claim.rule](claim, results)
        made.append(Claim(claim.id, claim.text, found.word, verdicts.TONES[found.word], found.scope, found.evidence))
    # Judged claims first; within a verdict the paper's order.
    return sorted(made, key=lambda claim: list(verdicts.TONES).index(claim.verdict))


class Place(NamedTuple):
    """Where a claim is looked at: on a task under a protocol, by a metric, for some pairs of arms."""

    grid: Grid
    claim: PublishedClaim
    task: str
    protocol: str
    metric: str
    pairs: Pairs

    @property
    def axis(self) -> str:
        """The axis on which the protocol is fair."""
        return axis_of(self.protocol)

    def both(self, pairs: Pairs | None = None) -> Iterator[tuple[str, str, list[StoredCell]]]:
        """Each pair of arms by their labels, and the networks of both; those that were not run are left out."""
        for pair in self.pairs if pairs is None else pairs:
            found = [*self.grid.found(self.task, self.protocol, pair).values()]
            if len(found) == 2 and len(found[0].of_variant()) == len(found[1].of_variant()):
                yield ARMS[pair[0]].label, ARMS[pair[1]].label, found

    def single(self) -> dict[str, StoredCell]:
        """RLP and its baselines, each once; empty if one was not run."""
        arms = dict.fromkeys(arm for pair in self.pairs for arm in pair)
        found = self.grid.found(self.task, self.protocol, arms)
        return found if len(found) == len(arms) else {}

    def compare(self, ours: Array, theirs: Array) -> stats.Comparison:
        """Paired over seeds, by the metric."""
        return stats.compare(ours, theirs, lower_is_better=self.metric not in SCORES)


Compare = Callable[[Place], Iterator[Placed]]  # what was run there: nothing, or one comparison and more


def verdict(claim: PublishedClaim, results: StoredResults, compare: Compare) -> Verdict:
    """The verdict on a claim that holds if every comparison which it makes is in its favour."""
    grids = [grid for name in claim.studies if (grid := results.grid(name)) is not None]
    if not grids:
        return Verdict(verdicts.NOT_TESTED, f"Needs `rlploss reproduce {' '.join(claim.studies)}`.")
    wanted = claim.tasks or grids[0].whole_tasks()
    absent = [name for name in claim.studies if name not in results.requests]
    scope, missing = verdicts.scope_of(grids[0], wanted)
    missing += [f"Not asked for: {', '.join(absent)}."] if absent else []
    released, steps = (_compared(grids, claim, protocol, compare) for protocol in ("released", "steps"))
    if not released:
        return Verdict(verdicts.NOT_TESTED, " ".join(missing) or "No runs.", scope)
    evidence = [
        claim.note,
        f"Equal epochs: {verdicts.tally(released)}.",
        f"Equal steps: {verdicts.tally(steps)}.",
        _counted_beside(grids, claim, compare),
        *missing,
    ]
    judged = all(grid.request.at.judged for grid in grids)
    states = verdicts.state(released), verdicts.state(steps)
    return verdicts.judge(*states, " ".join(filter(None, evidence)), scope, judged=judged)


def _compared(
    grids: Sequence[Grid], claim: PublishedClaim, protocol: str, compare: Compare, pairs: Pairs = ()
) -> list[Placed]:
    """Every comparison of a claim under a protocol that was run."""
    return [
        placed
        for grid in grids
        for metric in claim.metrics
        for task in claim.tasks or grid.whole_tasks()
        for placed in compare(Place(grid, claim, task, protocol, metric, pairs or claim.pairs))
    ]


def _counted_beside(grids: Sequence[Grid], claim: PublishedClaim, compare: Compare) -> str:
    """One sentence on the same comparisons under another protocol."""
    if not claim.beside:
        return ""
    found = _compared(grids, claim, claim.beside["protocol"], compare, claim.beside.get("pairs", ()))
    count = verdicts.findings(found).count("better")
    return str(claim.beside["words"]).format(better=count, n=len(found)) if found else ""


def _final(at: Place) -> Iterator[Placed]:
    """The last values, in every variant of the task.

    Where a claim says that RLP converges faster: in how many seeds it reaches the baseline's final value first.
    """
    for pair in at.pairs:
        cell = at.grid.cell(at.task, at.protocol, pair[0])
        for variant in range(0 if cell is None else len(cell.task.variants)):
            if (c := at.grid.compare(at.task, at.protocol, *pair, at.metric, variant)) is not None:
                yield title_of(at.task), c
    told = at.metric == at.claim.metrics[0] and at.protocol in ("released", "steps")
    for _, _, found in at.both(at.claim.faster if told else ()):
        each = (reached(arm, at.axis, found[1].final(at.metric), at.metric) for arm in found)
        yield f"{title_of(at.task)}, faster", stats.first(*each)


def reached(stored: StoredCell, axis: str, target: Array | float, metric: str) -> Array:
    """[seeds]: the epoch or step at which each curve first is at its target; inf if it never is."""
    curves = stored.matrix(metric)
    targets = np.broadcast_to(np.asarray(target, dtype=np.float64), len(curves))[:, None]
    hit = curves >= targets if metric in SCORES else curves <= targets
    return np.where(hit.any(axis=1), stored.axis(axis)[hit.argmax(axis=1)], np.inf)


def _flattening(at: Place) -> Iterator[Placed]:
    """How the error grows from β = 0.5 to 0.9, over its growth from 0.1 to 0.5; less is flatter."""
    for _, _, found in at.both():
        ends = [[arm.final(at.metric, variant) for variant in (0, 4, 8)] for arm in found]
        yield title_of(at.task), stats.compare(*(last * first / middle**2 for first, middle, last in ends))


def _in_time(at: Place) -> Iterator[Placed]:
    """The values at the last second that both arms have reached; for equal steps, at the last step."""
    axis = "step" if at.protocol == "steps" else "seconds"
    for _, _, found in at._replace(protocol="released").both():
        common = min(float(arm.axis(axis)[-1]) for arm in found)
        yield title_of(at.task), at.compare(*(arm.at(at.metric, axis, common) for arm in found))


def _early(at: Place) -> Iterator[Placed]:
    """The values after some epochs (at equal steps, after as many as ours has taken then), and those published."""
    for our_label, their_label, found in at.both():
        for epoch in at.claim.epochs:
            taken = found[0].axis(at.axis)[found[0].axis("epoch") <= epoch][-1]
            ours, theirs = (arm.at(at.metric, at.axis, float(taken)) for arm in found)
            yield f"epoch {epoch}", at.compare(ours, theirs)
            if at.claim.above and at.protocol == "released":
                least, most = at.claim.above, at.claim.below
                yield f"{our_label} above {number(least)}:", stats.threshold(ours, least, below=False)
                yield f"{their_label} below {number(most)}:", stats.threshold(theirs, most, below=True)


def _spread(at: Place) -> Iterator[Placed]:
    """RLP's seeds vary less."""
    for _, label, found in at.both():
        ends = [arm.final(at.metric) for arm in found]
        sds = " to ".join(number(stats.summary(end).sd, 2) for end in ends)
        yield f"against {label} (sd {sds}), typical deviation", stats.spread(*ends)


def _bounds(at: Place) -> Iterator[Placed]:
    """RLP's final error is below one number while the baselines stay above another."""
    for arm, cell in at.single().items():
        ours = arm == "rlp"
        bound, word = (at.claim.below, "below") if ours else (at.claim.above, "above")
        yield f"{ARMS[arm].label} {word} {number(bound)}:", stats.threshold(cell.final(at.metric), bound, below=ours)


def _overfit(at: Place) -> Iterator[Placed]:
    """The baselines' test error rises from a share of the training to its end, RLP's falls."""
    for arm, cell in at.single().items():
        early = cell.at(at.metric, at.axis, at.claim.level * float(cell.axis(at.axis)[-1]))
        ends = (cell.final(at.metric), early)
        word, sides = ("falls", ends) if arm == "rlp" else ("rises (early over final)", ends[::-1])
        yield f"{ARMS[arm].label} {word}", stats.compare(*sides)


def _reach(at: Place) -> Iterator[Placed]:
    """In most seeds RLP reaches a level soon, the baselines late; at equal steps, RLP before the baselines."""
    first = {arm: reached(cell, at.axis, at.claim.level, at.metric) for arm, cell in at.single().items()}
    ours = first.pop("rlp", None)
    if ours is not None and at.protocol == "released":
        yield f"RLP within {at.claim.below:g} epochs", stats.first(ours, at.claim.below + 1e-9)
    for arm, theirs in first.items():
        label = ARMS[arm].label
        if at.protocol == "released":
            yield f"{label} after more than {at.claim.above:g} epochs", stats.first(-theirs, -at.claim.above)
        elif ours is not None:
            yield f"RLP before {label}", stats.first(ours, theirs)


# The propositions and the other statements that are measured without training.

Judged = tuple[verdicts.State, dict[str, object]]  # what was shown, and the numbers that its words need


def measured(claim: PublishedClaim, results: StoredResults) -> Verdict:
    """The verdict on a statement that was measured."""
    grid = results.grid("propositions")
    if grid is None:
        return Verdict(verdicts.NOT_TESTED, "Needs `rlploss reproduce propositions`.")
    (task,) = claim.tasks
    cell, stored = grid.entries[task, "measured", "measured"]
    if stored is None:
        return Verdict(verdicts.NOT_TESTED, grid.why(task))
    shown, numbers = JUDGES[task](cell.task, stored)
    return verdicts.judge(shown, None, claim.note.format(**numbers), claim.scope, judged=grid.request.scale != "smoke")


def _proposition_1(task: Measurement, stored: StoredCell) -> Judged:
    """RLP along E[Y|X] + tδ is lowest at t = 0, and every step away from it costs something; at an atom it is free."""
    generic, atom = 0, 1
    names = ["lowest", *(f"mean {t:g}" for t in TS)], ["lowest_error", *(f"error {t:g}" for t in TS)]
    lowest, *means = (stored.mean(name, generic) for name in names[0])
    error, *errors = (stored.mean(name, generic) / len(stored.of_variant()) ** 0.5 for name in names[1])
    rises = [mean > 4 * its for mean, its in zip(means, errors, strict=True)]
    free = max(abs(stored.mean(f"mean {t:g}", atom)) for t in TS)
    words = {"lowest": number(lowest), "error": number(error), "cost": "nothing" if free < 1e-12 else number(free)}
    against = abs(lowest) > 4 * error or any(mean < -4 * its for mean, its in zip(means, errors, strict=True))
    shown: verdicts.State = "fails" if against else "holds" if all(rises) else "open"
    return shown, words | {"rises": sum(rises), "n": len(rises)}


def _proposition_2(task: Measurement, stored: StoredCell) -> Judged:
    """Never for every convergent step (the note has the proof); counted is where condition (iii) holds."""
    n = len(task.variants)
    where = [index for index in range(n) if stored.mean("holds", index) > 0.5]
    nearer = [stored.mean("nearer", k) > 0.5 for k in where]
    return "fails", {"m": len(where), "n": n, "nearer": sum(nearer)}


def _algorithm_1(task: Measurement, stored: StoredCell) -> Judged:
    """No row is in no subset, and no two subsets are equal."""
    printed = {k: at for k, at in enumerate(task.variants) if at.method == "paper"}
    missing, equal = (max(float(stored.final(key, k).max()) for k in printed) for key in ("missing", "equal"))
    words = [
        f"N = {at.N}, M = {at.M}, K = {at.K}: {number(stored.mean('missing', k))} rows in no subset"
        for k, at in printed.items()
    ]
    return "holds" if missing == equal == 0 else "fails", {"missing": "; ".join(words), "equal": f"{equal:g}"}


def _empirical(task: Measurement, stored: StoredCell) -> Judged:
    """The error falls with N, to less than half."""
    errors = [stored.mean("error", k) for k in range(len(task.variants))]
    falling = bool((np.diff(errors) < 0).all()) and errors[-1] < 0.5 * errors[0]
    words = [f"N = {at.N}: {number(error)}" for at, error in zip(task.variants, errors, strict=True)]
    return "holds" if falling else "fails", {"errors": ", ".join(words)}


def _planes(task: Measurement, stored: StoredCell) -> Judged:
    """No residual on generic points changes no plane."""
    generic, origin, single = (stored.mean("nullity", k) for k in range(3))
    return "fails" if generic else "holds", {
        "generic": f"{generic:g}",
        "origin": f"{origin:g}",
        "single": f"{single:g}",
    }


JUDGES: dict[str, Callable[[Measurement, StoredCell], Judged]] = {
    "valley": _proposition_1,
    "condition": _proposition_2,
    "coverage": _algorithm_1,
    "empirical": _empirical,
    "planes": _planes,
}


RULES: dict[str, Rule] = {
    "better": partial(verdict, compare=_final),
    "early": partial(verdict, compare=_early),
    "ahead-in-time": partial(verdict, compare=_in_time),
    "flatter": partial(verdict, compare=_flattening),
    "spread": partial(verdict, compare=_spread),
    "bounds": partial(verdict, compare=_bounds),
    "overfit": partial(verdict, compare=_overfit),
    "reach": partial(verdict, compare=_reach),
    "measured": measured,
}
