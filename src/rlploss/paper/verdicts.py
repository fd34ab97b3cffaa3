"""Verdicts: the words, and the rule that turns comparisons into one of them.

A claim that RLP is better somewhere is *reproduced* when, in the released loop, RLP is better in every comparison that
the claim makes and we could test: the paired test over seeds rejects equality at 5 % after Holm's correction over the
claim's comparisons, in RLP's favour. If the same does not hold when every arm has the same number of optimiser steps,
it is *reproduced, but gone at equal steps*. Otherwise it is *not reproduced*. At smoke scale nothing is judged, and a
claim about so many epochs is judged only when so many epochs were run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlploss.lab import stats
from rlploss.lab.results import StoredCell
from rlploss.lab.text import number
from rlploss.paper.protocols import ARMS, axis_of
from rlploss.paper.published import Pairs
from rlploss.paper.results import SCORES, Grid, effect, title_of

REPRODUCED = "reproduced"
GONE = "reproduced, but gone at equal steps"
NOT_REPRODUCED = "not reproduced"
NOT_TESTED = "not tested"
NOT_JUDGED = "not judged at this scale"
TONES = {REPRODUCED: "good", GONE: "warn", NOT_REPRODUCED: "bad", NOT_JUDGED: "calm", NOT_TESTED: "calm"}
Placed = tuple[str, stats.Comparison]  # where RLP is compared with a baseline, and what comes out


@dataclass(frozen=True)
class Verdict:
    """The word, how far it reaches, and the evidence in a sentence or two."""

    word: str
    evidence: str
    scope: str = ""


def judge(held: bool | None, at_steps: bool | None, evidence: str, scope: str = "", *, judged: bool = True) -> Verdict:
    """One of the five words: `held` in the released loop, `at_steps` at equal steps (None: not run)."""
    if held is None:
        return Verdict(NOT_TESTED, evidence, scope)
    if not judged:
        return Verdict(NOT_JUDGED, evidence, scope)
    if not held:
        return Verdict(NOT_REPRODUCED, evidence, scope)
    return Verdict(GONE if at_steps is False else REPRODUCED, evidence, scope)


def corrected(found: Sequence[Placed]) -> list[Placed]:
    """The same comparisons with Holm's correction for their number."""
    return list(zip([where for where, _ in found], stats.holm([c for _, c in found]), strict=True))


def all_better(found: Sequence[Placed]) -> bool | None:
    """Whether RLP is better in every one of some corrected comparisons; None if there are none."""
    return all(c.word == "better" for _, c in found) if found else None


def tally(found: Sequence[Placed]) -> str:
    """`RLP better in 7 of 8, median ratio 0.12; level on Wine`."""
    if not found:
        return "not run"
    first = found[0][1]
    if len(found) == 1:
        return f"RLP {first.word}, {first.scale} {effect(first)}"
    better = sum(c.word == "better" for _, c in found)
    middle = float(np.median([c.effect for _, c in found]))
    text = f"RLP better in {better} of {len(found)}, median {first.scale} {number(middle)}"
    whole = Counter(where for where, _ in found)
    for word in ("level", "worse"):
        mine = Counter(where for where, c in found if c.word == word)
        parts = [f"{where} ({k} of {whole[where]})" if k < whole[where] else where for where, k in mine.items()]
        text += f"; {word} on {', '.join(parts)}" if parts else ""
    return text


def scope_of(grid: Grid, wanted: Sequence[str], full: int | None = None) -> str:
    """`4 of 6 datasets, 20 of 200 epochs`; empty when all was tested in full, or for `full` epochs if given."""
    there = [task for task in wanted if grid.has(task, "released", "rlp")]
    parts = [] if len(there) == len(wanted) else [f"{len(there)} of {len(wanted)} datasets"]
    short: dict[int, list[int]] = {}
    for task in there:
        needed = full or grid.full_epochs(task)
        if grid.epochs(task) < needed:
            short.setdefault(grid.epochs(task), []).append(needed)
    for n, needed_by in short.items():
        low, high = min(needed_by), max(needed_by)
        parts.append(f"{n} of {low if low == high else f'{low} to {high}'} epochs")
    return ", ".join(parts)


def missing_words(grid: Grid, wanted: Sequence[str]) -> str:
    """Which parts of a claim have no networks, and why."""
    known = grid.tasks()
    parts = [f"{title_of(task)} not tested ({grid.why(task)})." for task in wanted if task in known and grid.why(task)]
    left_out = [title_of(task) for task in wanted if task not in known]
    return " ".join([*parts, *([f"Not asked for: {', '.join(left_out)}."] if left_out else [])])


def reach(stored: StoredCell, protocol: str, target: float, metric: str = "mse") -> float:
    """The epoch, or at equal steps the step, at which the mean curve first reaches `target`; inf if it never does."""
    mean = stored.matrix(metric).mean(axis=0)
    hit = np.flatnonzero(mean >= target if metric in SCORES else mean <= target)
    return float(stored.axis(axis_of(protocol))[hit[0]]) if hit.size else float("inf")


def when(value: float | None) -> str:
    """`1,200`, "never", or "not run"."""
    if value is None:
        return "not run"
    return f"{value:,.0f}" if np.isfinite(value) else "never"


def faster(grid: Grid, tasks: Sequence[str], pairs: Pairs, metric: str) -> tuple[bool, bool, list[str]]:
    """“Converges faster”: RLP reaches the baseline's final value in fewer epochs, and in fewer steps, than it.

    Returns whether that is so wherever it was run, by epochs and by steps, and a sentence for each pair of arms.
    """
    verdicts, sentences = {"released": True, "steps": True}, []
    for pair in pairs:
        label, words = ARMS[pair[1]].label, []
        for task in tasks:
            text = ""
            for protocol in verdicts:
                ours, theirs = (grid.stored(task, protocol, arm) for arm in pair)
                if ours is None or theirs is None:
                    break
                target = float(theirs.final(metric).mean())
                a, b = (reach(stored, protocol, target, metric) for stored in (ours, theirs))
                verdicts[protocol] &= a < b
                told = f"{when(a)} {axis_of(protocol)}s, {label} {when(b)}"
                text += f" (equal steps: {told})" if text else f"{title_of(task)}: {told}"
            words += [text] if text else []
        if words:
            sentences.append(f"RLP reaches {label}'s final value after: {'; '.join(words)}.")
    return verdicts["released"], verdicts["steps"], sentences
