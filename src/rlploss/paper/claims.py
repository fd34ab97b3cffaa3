"""A verdict on every claim of the paper: the words, the comparisons that each claim makes, and the rule between them.

A claim that RLP is better everywhere *holds* when every comparison that it makes is significant in RLP's favour: all
of them at once, so no correction is needed. It *fails* when at least one comparison is shown not to hold: significantly
the other way (Holm over the claim's comparisons), or no difference worth the name (its interval, Bonferroni's over the
claim's comparisons, lies within a margin), unless that one is significant in favour. Else it is open: a lack of
evidence refutes nothing. What holds in the released loop is *reproduced*; whether it does at equal steps is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from rlploss._scaling import Array
from rlploss.lab import stats
from rlploss.lab.report import Claim
from rlploss.lab.stats import ALPHA, Comparison
from rlploss.lab.study import StoredCell
from rlploss.lab.text import number
from rlploss.paper import published
from rlploss.paper.measure import TS, Measurement
from rlploss.paper.published import Pairs, PublishedClaim
from rlploss.paper.results import SCORES, Grid, Results, compare, effect, title_of
from rlploss.paper.studies import ARMS

TONES = {  # the words of a verdict, in the order of the report
    "reproduced": "good",
    "reproduced, undecided at equal steps": "fair",
    "reproduced, but gone at equal steps": "warn",
    "undecided": "open",
    "not reproduced": "bad",
    "not judged at this scale": "calm",
    "not tested": "calm",
}
REPRODUCED, OPEN_AT_STEPS, GONE, UNDECIDED, NOT_REPRODUCED, NOT_JUDGED, NOT_TESTED = TONES
SAID = {"better": "in favour", "worse": "against", "level": "no difference", "undecided": "undecided"}
State = Literal["holds", "fails", "open"]
Placed = tuple[str, Comparison]  # where RLP is compared with a baseline or a number, and what comes out


def judge(held: State | None, at_steps: State | None, *, judged: bool = True) -> str:
    """One of the words, from what was shown in the released loop and at equal steps; None: not run."""
    if held is None:
        return NOT_TESTED
    if not judged:
        return NOT_JUDGED
    words = {"fails": NOT_REPRODUCED, "open": UNDECIDED}
    steps = {"fails": GONE, "open": OPEN_AT_STEPS}
    return words.get(held) or steps.get(at_steps or "", REPRODUCED)


def findings(found: Sequence[Placed]) -> list[str]:
    """Better, worse, level (no difference worth the name) or undecided, for each comparison of one claim.

    Significance in favour comes first; what is against the claim is corrected for the number of comparisons.
    """

    def finding(c: Comparison) -> str:
        if c.better and c.p < ALPHA:
            return "better"
        if not c.better and c.significant:
            return "worse"
        return "level" if c.is_none(*c.interval(ALPHA / len(found))) else "undecided"

    return [finding(c) for c in stats.holm([c for _, c in found])]


def state(found: Sequence[Placed]) -> State | None:
    """Whether a claim holds in every one of its comparisons, fails in one, or is open; None if there are none."""
    words = set(findings(found))
    if not words:
        return None
    return "holds" if words == {"better"} else "fails" if words & {"worse", "level"} else "open"


def tally(found: Sequence[Placed]) -> str:
    """`in favour in 7 of 8, median ratio 0.12, the least by 2 %; undecided: Wine`; a few are told one by one."""
    if not found:
        return "not run"
    told = [(where, c, word) for (where, c), word in zip(found, findings(found), strict=True)]
    if len(told) <= 3:
        return "; ".join(f"{where} {effect(c)}, {SAID[word]}" for where, c, word in told)
    better = [c for _, c, word in told if word == "better"]
    text = f"in favour in {len(better)} of {len(told)}"
    for scale, unit in (("ratio", "%"), ("difference", "points")):
        effects = [c.effect for c in better if c.scale == scale]
        if effects:
            least = number(100 * (1 - max(effects) if scale == "ratio" else min(effects)), 2)
            text += f", median {scale} {number(float(np.median(effects)))}, the least by {least} {unit}"
    whole = Counter(where for where, _ in found)
    for wanted in ("worse", "level", "undecided"):
        mine = Counter(where for where, _, word in told if word == wanted)
        parts = [f"{where} ({k} of {whole[where]})" if k < whole[where] else where for where, k in mine.items()]
        text += f"; {SAID[wanted]}: {', '.join(parts)}" if parts else ""
    return text


def all_claims(results: Results) -> list[Claim]:
    """Every claim of `published.toml` with its verdict; judged claims first, within a verdict in the paper's order."""
    made = [verdict(claim, results) for claim in published.CLAIMS]
    return sorted(made, key=lambda claim: list(TONES).index(claim.verdict))


def verdict(claim: PublishedClaim, results: Results) -> Claim:
    """The claim with a word, the evidence in a sentence or two, and how far it reaches."""
    grids = [results[name] for name in claim.studies if name in results]
    if not grids:
        word, evidence, scope = NOT_TESTED, f"Needs `rlploss reproduce {' '.join(claim.studies)}`.", ""
    elif claim.rule == "measured":
        word, evidence, scope = _measured(claim, grids[0])
    else:
        word, evidence, scope = _compared(claim, grids)
    return Claim(claim.id, claim.text, word, TONES[word], scope, evidence)


def _compared(claim: PublishedClaim, grids: Sequence[Grid]) -> tuple[str, str, str]:
    """Word, evidence and scope of a claim that holds if every comparison which it makes is in its favour."""

    def comparisons(protocol: str, pairs: Pairs = claim.pairs) -> list[Placed]:
        axis = "step" if protocol == "steps" else "epoch"
        return [
            placed
            for grid in grids
            for metric in claim.metrics
            for task in claim.tasks or grid.whole
            for placed in RULES[claim.rule](Place(grid, claim, task, protocol, metric, pairs, axis))
        ]

    scope, missing = _scope(grids[0], claim.tasks or tuple(grids[0].whole))
    absent = [name for name in claim.studies if name not in [grid.name for grid in grids]]
    missing += [f"Not asked for: {', '.join(absent)}."] if absent else []
    released, steps = comparisons("released"), comparisons("steps")
    if not released:
        return NOT_TESTED, " ".join(missing) or "No runs.", scope
    evidence = [claim.note, f"Equal epochs: {tally(released)}.", f"Equal steps: {tally(steps)}."]
    if claim.beside:
        also = comparisons(claim.beside["protocol"], claim.beside.get("pairs", claim.pairs))
        words = str(claim.beside["words"]).format(better=findings(also).count("better"), n=len(also))
        evidence.append(words if also else "")
    word = judge(state(released), state(steps), judged=all(grid.request.at.judged for grid in grids))
    return word, " ".join(filter(None, [*evidence, *missing])), scope


def _scope(grid: Grid, wanted: Sequence[str]) -> tuple[str, list[str]]:
    """`4 of 6 datasets`, empty when all were tested, and sentences that say what was not, and why."""
    there, known = sum((task, "released", "rlp") in grid.stored for task in wanted), grid.tasks()
    told = [f"{title_of(task)} not tested ({why})." for task in wanted if task in known and (why := grid.why(task))]
    left_out = [title_of(task) for task in wanted if task not in known]
    told += [f"Not asked for: {', '.join(left_out)}."] if left_out else []
    return "" if there == len(wanted) else f"{there} of {len(wanted)} datasets", told


class Place(NamedTuple):
    """Where a claim is looked at: on a task under a protocol, by a metric, for some pairs of arms."""

    grid: Grid
    claim: PublishedClaim
    task: str
    protocol: str
    metric: str
    pairs: Pairs
    axis: str  # on which the protocol is fair: its arms have the same budget there

    def both(self) -> Iterator[tuple[tuple[str, str], list[StoredCell]]]:
        """Each pair of arms with the networks of both; those that were not run are left out."""
        for pair in self.pairs:
            found = [*self.grid.found(self.task, self.protocol, pair).values()]
            if len(found) == 2:
                yield pair, found

    def single(self) -> dict[str, StoredCell]:
        """RLP and its baselines, each once; empty if one was not run."""
        arms = dict.fromkeys(arm for pair in self.pairs for arm in pair)
        found = self.grid.found(self.task, self.protocol, arms)
        return found if len(found) == len(arms) else {}


def better(at: Place) -> Iterator[Placed]:
    """The last values, in every variant of the task.

    Where a claim says that RLP converges faster: in how many seeds it reaches the baseline's final value first.
    """
    for _, found in at.both():
        for variant in sorted({network.variant for network in found[0].networks}):
            yield title_of(at.task), compare(at.metric, *(arm.final(at.metric, variant) for arm in found))
    if at.metric == at.claim.metrics[0] and at.protocol in ("released", "steps"):
        for _, found in at._replace(pairs=at.claim.faster).both():
            each = (reached(arm, at.axis, found[1].final(at.metric), at.metric) for arm in found)
            yield f"{title_of(at.task)}, faster", stats.first(*each)


def reached(stored: StoredCell, axis: str, target: Array | float, metric: str) -> Array:
    """[seeds]: the epoch or step at which each curve first is at its target; inf if it never is."""
    curves, targets = stored.matrix(metric), np.reshape(target, (-1, 1))
    hit = curves >= targets if metric in SCORES else curves <= targets
    return np.where(hit.any(axis=1), stored.axis(axis)[hit.argmax(axis=1)], np.inf)


def flatter(at: Place) -> Iterator[Placed]:
    """How the error grows from β = 0.5 to 0.9, over its growth from 0.1 to 0.5; less is flatter."""
    for _, found in at.both():
        ends = [[arm.final(at.metric, variant) for variant in (0, 4, 8)] for arm in found]
        yield title_of(at.task), stats.compare(*(last * first / middle**2 for first, middle, last in ends))


def ahead_in_time(at: Place) -> Iterator[Placed]:
    """The values at the last second that both arms have reached; for equal steps, at the last step."""
    axis = "step" if at.protocol == "steps" else "seconds"
    for _, found in at._replace(protocol="released").both():
        common = min(float(arm.axis(axis)[-1]) for arm in found)
        yield title_of(at.task), compare(at.metric, *(arm.at(at.metric, axis, common) for arm in found))


def early(at: Place) -> Iterator[Placed]:
    """The values after some epochs (at equal steps, after as many as ours has taken then), and those published."""
    for pair, found in at.both():
        for epoch in at.claim.epochs:
            taken = found[0].axis(at.axis)[found[0].axis("epoch") <= epoch][-1]
            ours, theirs = (arm.at(at.metric, at.axis, float(taken)) for arm in found)
            yield f"epoch {epoch}", compare(at.metric, ours, theirs)
            if at.claim.above and at.protocol == "released":
                (label, their_label), least, most = (ARMS[arm].label for arm in pair), at.claim.above, at.claim.below
                yield f"{label} above {number(least)}:", stats.threshold(ours, least, below=False)
                yield f"{their_label} below {number(most)}:", stats.threshold(theirs, most, below=True)


def spread(at: Place) -> Iterator[Placed]:
    """RLP's seeds vary less."""
    for (_, base), found in at.both():
        ends = [arm.final(at.metric) for arm in found]
        sds = " to ".join(number(stats.summary(end).sd, 2) for end in ends)
        yield f"against {ARMS[base].label} (sd {sds}), typical deviation", stats.spread(*ends)


def bounds(at: Place) -> Iterator[Placed]:
    """RLP's final error is below one number while the baselines stay above another."""
    for arm, cell in at.single().items():
        ours = arm == "rlp"
        bound, word = (at.claim.below, "below") if ours else (at.claim.above, "above")
        yield f"{ARMS[arm].label} {word} {number(bound)}:", stats.threshold(cell.final(at.metric), bound, below=ours)


def overfit(at: Place) -> Iterator[Placed]:
    """The baselines' test error rises from a share of the training to its end, RLP's falls."""
    for arm, cell in at.single().items():
        ends = cell.final(at.metric), cell.at(at.metric, at.axis, at.claim.level * float(cell.axis(at.axis)[-1]))
        word, sides = ("falls", ends) if arm == "rlp" else ("rises (early over final)", ends[::-1])
        yield f"{ARMS[arm].label} {word}", stats.compare(*sides)


def reach(at: Place) -> Iterator[Placed]:
    """In most seeds RLP reaches a level soon, the baselines late; at equal steps, RLP before the baselines."""
    first = {arm: reached(cell, at.axis, at.claim.level, at.metric) for arm, cell in at.single().items()}
    for arm, taken in first.items():
        label = ARMS[arm].label
        if arm != "rlp" and at.protocol != "released":
            yield f"RLP before {label}", stats.first(first["rlp"], taken)
        elif arm != "rlp":
            yield f"{label} after more than {at.claim.above:g} epochs", stats.first(-taken, -at.claim.above)
        elif at.protocol == "released":
            yield f"RLP within {at.claim.below:g} epochs", stats.first(taken, at.claim.below + 1e-9)


RULES: dict[str, Callable[[Place], Iterator[Placed]]] = {
    rule.__name__: rule for rule in (better, early, ahead_in_time, flatter, spread, bounds, overfit, reach)
}

# The propositions and the other statements that are measured without training, each under the name of its measure: what
# was shown, and the numbers that its words need.

Judged = tuple[State, dict[str, object]]


def _measured(claim: PublishedClaim, grid: Grid) -> tuple[str, str, str]:
    """Word, evidence and scope of a statement that was measured."""
    key = (claim.tasks[0], "measured", "measured")
    if key not in grid.stored:
        return NOT_TESTED, grid.why(claim.tasks[0]), ""
    shown, numbers = MEASURED[claim.tasks[0]](grid.cells[key].task, grid.stored[key])
    return judge(shown, None, judged=grid.request.scale != "smoke"), claim.note.format(**numbers), claim.scope


def valley(task: Measurement, stored: StoredCell) -> Judged:
    """Proposition 1: RLP along E[Y|X] + tδ is lowest at t = 0, and every step away costs something; an atom is free."""
    lowest, *means = (stored.mean(name) for name in ("lowest", *(f"mean {t:g}" for t in TS)))
    errors = (stored.mean(name) for name in ("lowest_error", *(f"error {t:g}" for t in TS)))
    error, *of_means = (value / len(stored.of_variant()) ** 0.5 for value in errors)
    rises = sum(mean > 4 * its for mean, its in zip(means, of_means, strict=True))
    falls = any(mean < -4 * its for mean, its in zip(means, of_means, strict=True))
    free = max(abs(stored.mean(f"mean {t:g}", 1)) for t in TS)  # the second setting has the atom
    words = {"lowest": number(lowest), "error": number(error), "cost": "nothing" if free < 1e-12 else number(free)}
    against = falls or abs(lowest) > 4 * error
    return "fails" if against else "holds" if rises == len(TS) else "open", words | {"rises": rises, "n": len(TS)}


def condition(task: Measurement, stored: StoredCell) -> Judged:
    """Proposition 2: never for every convergent step (the note has the proof); counted is where (iii) holds."""
    n = len(task.variants)
    where = [index for index in range(n) if stored.mean("holds", index) > 0.5]
    return "fails", {"m": len(where), "n": n, "nearer": sum(stored.mean("nearer", k) > 0.5 for k in where)}


def coverage(task: Measurement, stored: StoredCell) -> Judged:
    """Algorithm 1: no row is in no subset, and no two subsets are equal."""
    printed = {k: at for k, at in enumerate(task.variants) if at.method == "paper"}
    missing, equal = (max(float(stored.final(key, k).max()) for k in printed) for key in ("missing", "equal"))
    words = [
        f"N = {at.N}, M = {at.M}, K = {at.K}: {number(stored.mean('missing', k))} rows in no subset"
        for k, at in printed.items()
    ]
    return "holds" if missing == equal == 0 else "fails", {"missing": "; ".join(words), "equal": f"{equal:g}"}


def empirical(task: Measurement, stored: StoredCell) -> Judged:
    """The error falls with N, to less than half."""
    errors = [stored.mean("error", k) for k in range(len(task.variants))]
    falling = bool((np.diff(errors) < 0).all()) and errors[-1] < 0.5 * errors[0]
    words = [f"N = {at.N}: {number(error)}" for at, error in zip(task.variants, errors, strict=True)]
    return "holds" if falling else "fails", {"errors": ", ".join(words)}


def planes(task: Measurement, stored: StoredCell) -> Judged:
    """No residual on generic points changes no plane."""
    free = {where: f"{stored.mean('nullity', k):g}" for k, where in enumerate(("generic", "origin", "single"))}
    return "holds" if free["generic"] == "0" else "fails", {**free}


MEASURED: dict[str, Callable[[Measurement, StoredCell], Judged]] = {
    judge_of.__name__: judge_of for judge_of in (valley, condition, coverage, empirical, planes)
}
