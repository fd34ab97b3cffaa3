"""A verdict, or a reason why there is none, for every claim of the paper: one function for each kind of rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from rlploss.lab import stats
from rlploss.lab.report import Claim
from rlploss.lab.results import Array, StoredCell
from rlploss.lab.text import number
from rlploss.paper import propositions, published, verdicts
from rlploss.paper.protocols import ARMS, axis_of
from rlploss.paper.published import PublishedClaim
from rlploss.paper.results import Grid, StoredResults, effect, mean_sd, title_of
from rlploss.paper.verdicts import Placed, Verdict

Rule = Callable[[PublishedClaim, StoredResults], Verdict]
BOTH = ("released", "steps")


def all_claims(results: StoredResults) -> list[Claim]:
    """Every claim of `published.toml` with its verdict."""
    made = []
    for claim in published.claims():
        found = RULES[claim.rule](claim, results)
        tone, folded = verdicts.TONES[found.word], found.word == verdicts.NOT_TESTED
        made.append(Claim(claim.id, claim.text, found.word, tone, found.scope, found.evidence, folded))
    # Judged claims first; within a verdict the paper's order.
    return sorted(made, key=lambda claim: list(verdicts.TONES).index(claim.verdict))


class Place(NamedTuple):
    """Where a claim is looked at: on a task under a protocol, by a metric, for a pair of arms."""

    grid: Grid
    claim: PublishedClaim
    task: str
    protocol: str
    metric: str = "mse"
    pair: tuple[str, str] = ("", "")

    def stored(self, arm: str) -> StoredCell | None:
        """The networks of an arm, or None."""
        return self.grid.stored(self.task, self.protocol, arm)

    def final(self, arm: str, variant: int = 0) -> Array | None:
        """[seeds]: the last values of an arm, or None."""
        return self.grid.final(self.task, self.protocol, arm, self.metric, variant)


def _not_run(claim: PublishedClaim) -> Verdict:
    return Verdict(verdicts.NOT_TESTED, f"Needs `rlploss reproduce {' '.join(claim.studies)}`.")


# RLP is better in every comparison of a claim.

Compare = Callable[[Place], Iterator[Placed]]  # what was run there: nothing, one comparison, or one for each variant


def better(claim: PublishedClaim, results: StoredResults, compare: Compare) -> Verdict:
    """RLP is better everywhere: reproduced by the rule of `verdicts`."""
    grids = [grid for name in claim.studies if (grid := results.grid(name)) is not None]
    if not grids:
        return _not_run(claim)
    wanted = claim.tasks or grids[0].whole_tasks()
    absent = [name for name in claim.studies if name not in results.requests]
    missing = [verdicts.missing_words(grids[0], wanted), f"Not asked for: {', '.join(absent)}." if absent else ""]
    released, steps = (_compared(grids, claim, protocol, compare) for protocol in BOTH)
    scope = verdicts.scope_of(grids[0], wanted, max(claim.epochs, default=None))
    if not released:
        return Verdict(verdicts.NOT_TESTED, " ".join(filter(None, missing)) or "No runs.", scope)
    faster_by_epochs, faster_by_steps, words = verdicts.faster(grids[0], wanted, claim.faster, claim.metrics[0])
    evidence = [
        f"Equal epochs: {verdicts.tally(released)}.",
        f"Equal steps: {verdicts.tally(steps)}.",
        _counted_beside(grids, claim, compare),
        *words,
        claim.note,
        _early_values(grids[0], claim, wanted),
        *missing,
    ]
    held, at_steps = verdicts.all_better(released), verdicts.all_better(steps)
    return verdicts.judge(
        held and faster_by_epochs,
        None if at_steps is None else at_steps and faster_by_steps,
        " ".join(filter(None, evidence)),
        scope,
        judged=all(grid.request.at.judged for grid in grids),
    )


def _compared(
    grids: list[Grid], claim: PublishedClaim, protocol: str, compare: Compare, pairs: published.Pairs = ()
) -> list[Placed]:
    """Every comparison of a claim under a protocol that was run, corrected for their number."""
    return verdicts.corrected(
        [
            placed
            for grid in grids
            for pair in pairs or claim.pairs
            for metric in claim.metrics
            for task in claim.tasks or grid.whole_tasks()
            for placed in compare(Place(grid, claim, task, protocol, metric, pair))
        ]
    )


def _counted_beside(grids: list[Grid], claim: PublishedClaim, compare: Compare) -> str:
    """One sentence on the same comparisons under another protocol."""
    if not claim.beside:
        return ""
    found = _compared(grids, claim, claim.beside["protocol"], compare, claim.beside.get("pairs", ()))
    count = sum(c.word == "better" for _, c in found)
    return str(claim.beside["words"]).format(better=count, n=len(found)) if found else ""


def _final(at: Place) -> Iterator[Placed]:
    """The last values, in every variant of the task."""
    cell = at.grid.cell(at.task, at.protocol, at.pair[0])
    for variant in range(0 if cell is None else len(cell.task.variants)):
        found = at.grid.compare(at.task, at.protocol, *at.pair, at.metric, variant)
        if found is not None:
            yield title_of(at.task), found


def _flattening(at: Place) -> Iterator[Placed]:
    """The share of the whole rise (β from 0.1 to 0.9) that is left after β = 0.5; less is flatter."""
    shares = []
    for arm in at.pair:
        first, middle, last = (at.final(arm, variant) for variant in (0, 4, 8))
        if first is None or middle is None or last is None:
            return
        whole = float((last - first).mean())  # of the mean curve: a single seed's rise may be nearly nothing
        if whole <= 0:
            return
        shares.append((last - middle) / whole)
    # Negated, so that less is better on a difference scale: shares may be negative.
    yield title_of(at.task), stats.compare(-shares[0], -shares[1], lower_is_better=False)


def _in_time(at: Place) -> Iterator[Placed]:
    """The values at the last second that both arms have reached; for equal steps, at the last step."""
    ours, theirs = (at.grid.stored(at.task, "released", arm) for arm in at.pair)
    if ours is not None and theirs is not None:
        axis = "step" if at.protocol == "steps" else "seconds"
        common = min(float(ours.axis(axis)[-1]), float(theirs.axis(axis)[-1]))
        yield title_of(at.task), stats.compare(*(arm.at(at.metric, axis, common) for arm in (ours, theirs)))


def _after(at: Place, epoch: int) -> list[Array]:
    """Values of both arms after an epoch (for equal steps, after as many steps as ours has taken then), if they ran."""
    ours, theirs = (at.stored(arm) for arm in at.pair)
    if ours is None or theirs is None:
        return []
    axis = axis_of(at.protocol)
    value = epoch if axis == "epoch" else float(ours.axis(axis)[ours.axis("epoch") <= epoch][-1])
    return [arm.at(at.metric, axis, value) for arm in (ours, theirs)]


def _early(at: Place) -> Iterator[Placed]:
    """The values after some epochs."""
    for epoch in at.claim.epochs:
        found = _after(at, epoch)
        if found and at.grid.epochs(at.task) >= epoch:
            yield f"epoch {epoch}", stats.compare(*found)


def _early_values(grid: Grid, claim: PublishedClaim, tasks: tuple[str, ...]) -> str:
    """The values themselves, for a claim about some epochs."""
    values = "; ".join(
        f"{ARMS[arm].label} after {epoch}: {number(float(stored.at('mse', 'epoch', epoch).mean()))}"
        for arm in claim.pairs[0]
        for epoch in claim.epochs
        if (stored := grid.stored(tasks[0], "released", arm)) is not None and stored.axis("epoch")[-1] >= epoch
    )
    return f"Test MSE: {values}." if values else ""


# A statement about one task, which holds or does not under a protocol.


class Finding(NamedTuple):
    """Whether a claim holds under a protocol (None: not run), the evidence, and whether more epochs cannot matter."""

    holds: bool | None
    words: str
    decided: bool = False


def on_one_task(claim: PublishedClaim, results: StoredResults, check: Callable[[Place], Finding]) -> Verdict:
    """The check holds in the released loop, and at equal steps; judged if the paper's number of epochs was run."""
    grid, (task,) = results.grid(claim.studies[0]), claim.tasks
    if grid is None:
        return _not_run(claim)
    if not grid.has(task, "released", "rlp"):
        return Verdict(verdicts.NOT_TESTED, verdicts.missing_words(grid, (task,)) or "No runs.")
    needed = max(claim.epochs, default=grid.full_epochs(task))
    enough = grid.epochs(task) >= needed
    scope = "" if enough else f"needs {needed} epochs"
    released, steps = found = [check(Place(grid, claim, task, protocol, claim.metrics[0])) for protocol in BOTH]
    if claim.beside:
        found.append(check(Place(grid, claim, task, claim.beside["protocol"], claim.metrics[0])))
        scope = claim.beside["words"] if released.holds and found[-1].holds is False else scope
    evidence = f"{claim.note} {'; '.join(f.words for f in found if f.words)}.".strip()
    judged = grid.request.at.judged and (enough or released.decided)
    return verdicts.judge(released.holds, steps.holds, evidence[0].upper() + evidence[1:], scope, judged=judged)


def _spread(at: Place) -> Finding:
    """RLP's standard deviation over seeds is the lower one."""
    ours, ratios = at.final("rlp"), []
    for base in at.claim.baselines:
        theirs = at.final(base)
        if ours is not None and theirs is not None:
            ratios.append((ARMS[base].label, stats.variance_ratio(ours, theirs)))
    found = verdicts.corrected(ratios)
    words = [f"{at.protocol}, against {base}: sd ratio {effect(c)}, {c.word}" for base, c in found]
    return Finding(verdicts.all_better(found), "; ".join(words))


def _bounds(at: Place) -> Finding:
    """RLP's final error is below one bound while the baselines stay above another, each up to its interval."""
    arms = ("rlp", *at.claim.baselines)
    finals = {arm: end for arm in arms if (end := at.final(arm)) is not None}
    words = "; ".join(f"{at.protocol} {ARMS[arm].label} {mean_sd(end)}" for arm, end in finals.items())
    if len(finals) < len(arms):
        return Finding(None, words)
    ours, *theirs = (stats.summary(finals[arm]) for arm in arms)
    reached = (ours.mean if ours.n == 1 else ours.low) <= at.claim.below
    return Finding(reached and all((s.mean if s.n == 1 else s.high) >= at.claim.above for s in theirs), words)


def _overfit(at: Place) -> Finding:
    """The baselines' test error rises from a share of the training to its end, RLP's falls."""
    rises, axis = {}, axis_of(at.protocol)
    for arm in (*at.claim.baselines, "rlp"):
        stored = at.stored(arm)
        if stored is not None:
            early = at.claim.level * float(stored.axis(axis)[-1])
            rises[arm] = stats.compare(stored.final("mse"), stored.at("mse", axis, early))
    words = "; ".join(
        f"{at.protocol} {ARMS[arm].label}: final error {number(c.effect)} times that a fifth of the way ({c.word})"
        for arm, c in rises.items()
    )
    if len(rises) <= len(at.claim.baselines):
        return Finding(None, words)
    overfit = all(rises[base].word == "worse" for base in at.claim.baselines)
    return Finding(overfit and rises["rlp"].word == "better", words)


def _reach(at: Place) -> Finding:
    """RLP's mean curve reaches a level soon, the baselines' late; at equal steps, before the baselines."""
    cells = {arm: at.stored(arm) for arm in ("rlp", *at.claim.baselines)}
    first = {arm: verdicts.reach(cell, at.protocol, at.claim.level) for arm, cell in cells.items() if cell is not None}
    told = ", ".join(f"{ARMS[arm].label} {verdicts.when(first.get(arm))}" for arm in cells)
    words = f"{axis_of(at.protocol)}s until {at.claim.level:g}: {told}"
    ours = first.pop("rlp", None)
    if ours is not None and at.protocol == "released" and ours > at.claim.below:
        return Finding(False, words, decided=True)
    if ours is None or not first:
        return Finding(None, words)
    return Finding(min(first.values()) > (at.claim.above if at.protocol == "released" else ours), words)


def _ahead(at: Place) -> Finding:
    """RLP's score after some epochs is the higher one."""
    found = _after(at._replace(pair=at.claim.pairs[0]), at.claim.epochs[0])
    words = [f"{at.protocol} {ARMS[arm].label} {mean_sd(v)}" for arm, v in zip(at.claim.pairs[0], found, strict=False)]
    holds = stats.compare(*found, lower_is_better=False).word == "better" if found else None
    return Finding(holds, "; ".join(words))


RULES: dict[str, Rule] = {
    "better": partial(better, compare=_final),
    "better-early": partial(better, compare=_early),
    "ahead-in-time": partial(better, compare=_in_time),
    "flatter": partial(better, compare=_flattening),
    "spread": partial(on_one_task, check=_spread),
    "bounds": partial(on_one_task, check=_bounds),
    "overfit": partial(on_one_task, check=_overfit),
    "reach": partial(on_one_task, check=_reach),
    "early": partial(on_one_task, check=_ahead),
    "measured": propositions.verdict,
}
