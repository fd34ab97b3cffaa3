"""A verdict on every claim of the paper: what its comparisons (see `rules`) come to, in a word and
a few sentences.

A claim that RLP is better everywhere *holds* when every comparison that it makes is significant in
RLP's favour: all of them at once, so no correction is needed. It *fails* when at least one
comparison is shown not to hold: significantly the other way (Holm over the claim's comparisons), or
no difference worth the name (its interval, Bonferroni's over the claim's comparisons, lies within a
margin), unless that one is significant in favour. Else it is open: a lack of evidence refutes
nothing. What holds in the released loop is *reproduced*; whether it does at equal steps is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from rlploss.lab import stats
from rlploss.lab.report import Claim
from rlploss.lab.stats import ALPHA, Contrast
from rlploss.lab.study import StoredCell
from rlploss.lab.text import number
from rlploss.paper import published
from rlploss.paper.measure import TS, Measurement
from rlploss.paper.published import PublishedClaim
from rlploss.paper.results import Grid, Results, effect, mean_error, title_of, whole
from rlploss.paper.rules import RULES, Place, Placed, name_of, names_of, tasks_of

VERDICTS: dict[str, str] = published.REPORT["verdicts"]  # the words, and their tones
REPRODUCED, OPEN_AT_STEPS, GONE, UNDECIDED, NOT_REPRODUCED, NOT_JUDGED, NOT_TESTED = VERDICTS
SAID = {"better": "in favour", "worse": "the other way", "level": "no difference worth the name"}
MARGINS = {"ratio": "within 5 %", "difference": "within 1 point"}  # by scale
State = Literal["holds", "fails", "open"]


class Lost(NamedTuple):
    """What was not run: where a claim compares two arms, why it cannot, and how many comparisons
    that leaves out.
    """

    where: str
    arms: str
    why: str
    n: int


def judge(held: State | None, at_steps: State | None, *, judged: bool = True) -> str:
    """Return one of the words, from what was shown in the released loop (None: not run) and at
    equal steps (None: no such).
    """
    if held is None:
        return NOT_TESTED
    if not judged:
        return NOT_JUDGED
    words = {"fails": NOT_REPRODUCED, "open": UNDECIDED}
    steps = {"fails": GONE, "open": OPEN_AT_STEPS}
    return words.get(held) or steps.get(at_steps or "", REPRODUCED)


def findings(comparisons: Sequence[Placed]) -> list[tuple[str, Contrast]]:
    """For each comparison of one claim its word (see `Contrast.word`), and it with the interval
    that decided.

    Significance in favour comes first; what is against the claim is corrected for the number of
    comparisons.
    """
    return [
        _finding(c, len(comparisons))
        for c in stats.holm([placed.comparison for placed in comparisons])
    ]


def _finding(c: Contrast, n: int) -> tuple[str, Contrast]:
    if c.better and c.p < ALPHA:
        return "better", c
    if not c.better and c.significant:
        low, high = c.corrected_interval
        return "worse", replace(c, low=low, high=high)
    low, high = c.interval(ALPHA / n)
    return "level" if c.is_none(low, high) else "undecided", replace(c, low=low, high=high)


def state(comparisons: Sequence[Placed]) -> State | None:
    """Return whether a claim holds in every one of its comparisons, fails in one, or is open; None
    if there are none.
    """
    words = {word for word, _ in findings(comparisons)}
    if not words:
        return None
    return "holds" if words == {"better"} else "fails" if words & {"worse", "level"} else "open"


def tally(comparisons: Sequence[Placed], lost: Sequence[Lost] = ()) -> str:
    """Return `in favour in 7 of 8, median ratio 0.12, the least by 2 %; undecided: Wine`; a few are
    told one by one.
    """
    if not comparisons:
        return "not run"
    words = findings(comparisons)
    if len(comparisons) <= 3:
        each = zip(comparisons, words, strict=True)
        parts = [f"{_named(placed)} {effect(c)}, {_said(word, [c])}" for placed, (word, c) in each]
        return "; ".join([*parts, *_untested(lost, comparisons)])
    better = [c for word, c in words if word == "better"]
    text = f"in favour in {len(better)} of {len(comparisons)}"
    for scale, unit in (("ratio", "%"), ("difference", "points")):
        effects = [c.effect for c in better if c.scale == scale]
        if effects:
            least = number(100 * (1 - max(effects) if scale == "ratio" else min(effects)), 2)
            text += (
                f", median {scale} {number(float(np.median(effects)))}, the least by {least} {unit}"
            )
    parts = [text]
    for wanted in ("worse", "level", "undecided"):
        mine = [
            placed for placed, (word, _) in zip(comparisons, words, strict=True) if word == wanted
        ]
        if mine:
            said = _said(wanted, [placed.comparison for placed in mine])
            parts.append(f"{said}: {_listed(mine, comparisons)}")
    return "; ".join([*parts, *_untested(lost, comparisons)])


def _said(word: str, comparisons: Iterable[Contrast]) -> str:
    """Return the words for a finding; “no difference” comes with its margin."""
    margins = dict.fromkeys(MARGINS[c.scale] for c in comparisons) if word == "level" else {}
    return SAID.get(word, word) + (f" ({' or '.join(margins)})" if margins else "")


def _untested(lost: Sequence[Lost], comparisons: Sequence[Placed]) -> list[str]:
    """Return `not tested (not run yet): Wine`, for every reason."""
    reasons = {
        why: [loss for loss in lost if loss.why == why]
        for why in dict.fromkeys(loss.why for loss in lost)
    }
    return [
        f"not tested ({why}): {_listed(mine, [*comparisons, *lost])}"
        for why, mine in reasons.items()
    ]


def _named(comparison: Placed | Lost) -> str:
    return f"{comparison.where} {comparison.arms}".rstrip()


def _listed(some: Sequence[Placed | Lost], everything: Sequence[Placed | Lost]) -> str:
    """Return `Wine; California against MSE (3 of 9)`: places by their name if all that is compared
    there is among them.
    """
    by_place = Counter(comparison.where for comparison in everything)
    by_arms = Counter(map(_named, everything))
    parts = []
    for where, count in Counter(comparison.where for comparison in some).items():
        if count == by_place[where]:
            parts.append(where)
            continue
        for name, k in Counter(
            _named(comparison) for comparison in some if comparison.where == where
        ).items():
            parts.append(f"{name} ({k} of {by_arms[name]})" if k < by_arms[name] else name)
    return "; ".join(parts)


def all_claims(results: Results) -> list[Claim]:
    """Return every claim of `published.toml` with its verdict; judged claims first, within a
    verdict in the paper's order.
    """
    verdicts = [verdict(claim, results) for claim in published.CLAIMS]
    return sorted(verdicts, key=lambda claim: list(VERDICTS).index(claim.verdict))


def verdict(claim: PublishedClaim, results: Results) -> Claim:
    """Return the claim with a word, the evidence in a sentence or two, and how far it reaches."""
    grids = [results[name] for name in claim.studies if name in results]
    if not grids:
        word, evidence, scope = (
            NOT_TESTED,
            f"Needs `rlploss reproduce {' '.join(claim.studies)}`.",
            "",
        )
    elif claim.rule == "printed":
        word, evidence, scope = _printed(claim)
    elif claim.rule == "measured":
        word, evidence, scope = _measured(claim, grids[0])
    else:
        word, evidence, scope = _compared(claim, results, grids)
    return Claim(claim.id, claim.text, word, VERDICTS[word], scope, evidence)


def _compared(
    claim: PublishedClaim, results: Results, grids: Sequence[Grid]
) -> tuple[str, str, str]:
    """Word, evidence and scope of a claim that holds if every comparison which it makes is in its
    favour.
    """

    def comparisons(
        claim: PublishedClaim, protocol: str, grids: Sequence[Grid] = grids
    ) -> list[Placed]:
        return [
            placed
            for grid in grids
            for metric in claim.metrics
            for task in tasks_of(claim, grid.name)
            for placed in RULES[claim.rule](Place(grid, claim, task, protocol, metric))
        ]

    released, steps = comparisons(claim, "released"), comparisons(claim, "steps")
    lost, lost_at_steps = missing(claim, results, "released"), missing(claim, results, "steps")
    if not released:
        return NOT_TESTED, f"{'; '.join(_untested(lost, ()))}.", ""
    evidence = [
        claim.untested,
        claim.note,
        f"Equal epochs: {tally(released, lost)}.",
        f"Equal steps: {tally(steps, lost_at_steps)}.",
    ]
    if claim.beside:
        beside = replace(
            claim,
            pairs=claim.beside.get("pairs", claim.pairs),
            rule=claim.beside.get("rule", claim.rule),
        )
        others = comparisons(beside, claim.beside["protocol"])
        better = [word for word, _ in findings(others)].count("better")
        evidence.append(
            str(claim.beside["words"]).format(better=better, n=len(others)) if others else ""
        )
    stated = [grid for grid in grids if grid.name not in claim.unstated]
    held = state(comparisons(claim, "released", stated)) or "open"
    if held == "holds" and len(stated) < len(grids):
        held = "open"
    word = judge(held, state(steps) or "open", judged=all(grid.request.at.judged for grid in grids))
    if claim.untested:
        word = NOT_TESTED
    scope = [_scope(released, lost, ""), _scope(steps, lost_at_steps, " at equal steps")]
    return word, " ".join(filter(None, evidence)), ", ".join(filter(None, scope))


def _scope(comparisons: Sequence[Placed], lost: Sequence[Lost], where: str) -> str:
    """Return `72 of 126 comparisons`, empty if nothing is missing, or everything, which the
    evidence says.
    """
    n = len(comparisons) + sum(loss.n for loss in lost)
    return f"{len(comparisons)} of {n} comparisons{where}" if comparisons and lost else ""


def missing(claim: PublishedClaim, results: Results, protocol: str) -> list[Lost]:
    """Return the comparisons that a claim makes under a protocol, and that were not run or not
    asked for.
    """
    lost = []
    for study in claim.studies:
        cells = whole(study)
        pairs = dict.fromkeys((*claim.pairs, *claim.faster))
        for task, pair in product(tasks_of(claim, study), pairs):
            if not all((task, protocol, arm) in cells for arm in pair):
                continue
            why = (
                results[study].why(task, (protocol,), pair) if study in results else "not asked for"
            )
            if why:
                each = claim.rule == "better" or task in claim.strict
                levels = len(cells[task, protocol, pair[0]].task.variants) if each else 1
                n = levels * len(claim.metrics) * (pair in claim.pairs) + (pair in claim.faster)
                lost.append(Lost(name_of(claim, study, task), names_of(claim, pair), why, n))
    return lost


def _printed(claim: PublishedClaim) -> tuple[str, str, str]:
    """Return word, evidence and scope of a statement about the paper's own hyperparameter table."""
    rates: dict[str, set[float]] = {}
    for (dataset, _), hyper in published.HYPER.items():
        rates.setdefault(dataset, set()).add(hyper.lr)
    several = {dataset: sorted(values) for dataset, values in rates.items() if len(values) > 1}
    listed = "; ".join(
        f"{title_of(dataset)} ({', '.join(f'{rate:g}' for rate in values)})"
        for dataset, values in several.items()
    )
    evidence = claim.note.format(n_same=len(rates) - len(several), n=len(rates), several=listed)
    return NOT_REPRODUCED if several else REPRODUCED, evidence, ""


# The propositions and the other statements that are measured without training, each under the name
# of its measure: what was shown, and the numbers that its words need.

Judged = tuple[State, dict[str, object]]


def _measured(claim: PublishedClaim, grid: Grid) -> tuple[str, str, str]:
    """Word, evidence and scope of a statement that was measured."""
    key = (claim.tasks[0], "measured", "measured")
    if key not in grid.stored:
        return NOT_TESTED, grid.why(claim.tasks[0], ("measured",)), ""
    shown, numbers = MEASURED[claim.tasks[0]](grid.cells[key].task, grid.stored[key])
    return (
        judge(shown, None, judged=grid.request.scale != "smoke"),
        claim.note.format(**numbers),
        claim.scope,
    )


def valley(task: Measurement, stored: StoredCell) -> Judged:
    """Judge Proposition 1: RLP along E[Y|X] + tδ is lowest at t = 0, and every step away costs
    something; an atom is free.
    """
    lowest, *means = (stored.mean(name) for name in ("lowest", *(f"mean {t:g}" for t in TS)))
    error, *of_means = (
        mean_error(stored, name) for name in ("lowest_error", *(f"error {t:g}" for t in TS))
    )
    rises = sum(mean > 4 * its for mean, its in zip(means, of_means, strict=True))
    falls = any(mean < -4 * its for mean, its in zip(means, of_means, strict=True))
    free = max(abs(stored.mean(f"mean {t:g}", 1)) for t in TS)  # the second setting has the atom
    words = {
        "lowest": number(lowest),
        "error": number(error),
        "cost": "nothing" if free < 1e-12 else number(free),
    }
    against = falls or abs(lowest) > 4 * error
    return "fails" if against else "holds" if rises == len(TS) else "open", words | {
        "rises": rises,
        "n": len(TS),
    }


def condition(task: Measurement, stored: StoredCell) -> Judged:
    """Judge Proposition 2: where (iii) holds, a small RLP step ends nearer; and how many
    convergent steps are too large for that.
    """
    n = len(task.variants)
    where = [index for index in range(n) if stored.mean("holds", index) > 0.5]
    nearer = sum(stored.mean("nearer", k) > 0.5 for k in where)
    left = [1 - stored.mean("good_step", k) / stored.mean("convergent_step", k) for k in where]
    words = {"m": len(where), "n": n, "nearer": nearer, "left": f"{max(left, default=1):.1%}"}
    return "holds" if where and nearer == len(where) else "open", words


def coverage(task: Measurement, stored: StoredCell) -> Judged:
    """Judge Algorithm 1: no row is in no subset where M divides N, and no two subsets are equal."""
    printed = {k: at for k, at in enumerate(task.variants) if at.method == "paper"}
    dividing = [k for k, at in printed.items() if at.N % at.M == 0]
    missing, equal = (
        max(float(stored.final(key, k).max()) for k in settings)
        for key, settings in (("missing", dividing), ("equal", printed))
    )
    words = [
        f"N = {at.N}, M = {at.M}, K = {at.K}: {number(stored.mean('missing', k))} rows in no subset"
        for k, at in printed.items()
    ]
    shown = {"missing": "; ".join(words), "equal": f"{equal:g}", "seeds": len(stored.of_variant())}
    return "holds" if missing == equal == 0 else "fails", shown


def empirical(task: Measurement, stored: StoredCell) -> Judged:
    """Judge whether the error falls with N, to less than half."""
    errors = [stored.mean("error", k) for k in range(len(task.variants))]
    falling = bool((np.diff(errors) < 0).all()) and errors[-1] < 0.5 * errors[0]
    words = [
        f"N = {at.N}: {number(error)}" for at, error in zip(task.variants, errors, strict=True)
    ]
    return "holds" if falling else "fails", {"errors": ", ".join(words)}


def planes(task: Measurement, stored: StoredCell) -> Judged:
    """Judge whether every residual on generic points changes a plane."""
    free = {
        where: f"{stored.mean('nullity', k):g}"
        for k, where in enumerate(("generic", "origin", "single"))
    }
    return "holds" if free["generic"] == "0" else "fails", {**free}


MEASURED: dict[str, Callable[[Measurement, StoredCell], Judged]] = {
    "valley": valley,
    "condition": condition,
    "coverage": coverage,
    "empirical": empirical,
    "planes": planes,
}
