"""Verdicts: the words, and the rule that turns comparisons into one of them.

A claim that RLP is better everywhere *holds* when every comparison that it makes is significant in RLP's favour: all
of them at once, so no correction is needed. It *fails* when at least one comparison is shown not to hold: significantly
the other way (Holm over the claim's comparisons), or no difference worth the name (its interval, Bonferroni's over the
claim's comparisons, lies within a margin), unless that one is significant in favour. Else it is open: a lack of
evidence refutes nothing. What holds in the released loop is *reproduced*; whether it does at equal steps is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlploss.lab import stats
from rlploss.lab.stats import ALPHA, Comparison
from rlploss.lab.text import number
from rlploss.paper.results import Grid, effect, title_of

REPRODUCED = "reproduced"
OPEN_AT_STEPS = "reproduced, undecided at equal steps"
GONE = "reproduced, but gone at equal steps"
UNDECIDED = "undecided"
NOT_REPRODUCED = "not reproduced"
NOT_JUDGED = "not judged at this scale"
NOT_TESTED = "not tested"
TONES = {
    REPRODUCED: "good",
    OPEN_AT_STEPS: "fair",
    GONE: "warn",
    UNDECIDED: "open",
    NOT_REPRODUCED: "bad",
    NOT_JUDGED: "calm",
    NOT_TESTED: "calm",
}
State = Literal["holds", "fails", "open"]
Placed = tuple[str, Comparison]  # where RLP is compared with a baseline or a number, and what comes out


@dataclass(frozen=True)
class Verdict:
    """The word, how far it reaches, and the evidence in a sentence or two."""

    word: str
    evidence: str
    scope: str = ""


def judge(
    held: State | None, at_steps: State | None, evidence: str, scope: str = "", *, judged: bool = True
) -> Verdict:
    """One of the words, from what was shown in the released loop and at equal steps; None: not run."""
    if held is None:
        return Verdict(NOT_TESTED, evidence, scope)
    words = {"fails": NOT_REPRODUCED, "open": UNDECIDED}
    steps = {"fails": GONE, "open": OPEN_AT_STEPS}
    word = words.get(held) or steps.get(at_steps or "", REPRODUCED)
    return Verdict(word if judged else NOT_JUDGED, evidence, scope)


def finding(c: Comparison, n: int = 1) -> str:
    """Better, worse, level (no difference worth the name) or undecided, as one of n comparisons; in favour first."""
    if c.better and c.p < ALPHA:
        return "better"
    if not c.better and c.significant:
        return "worse"
    return "level" if c.is_none(*c.interval(ALPHA / n)) else "undecided"


def findings(found: Sequence[Placed]) -> list[str]:
    """The finding on each comparison of one claim: what is against it is corrected for their number."""
    return [finding(c, len(found)) for c in stats.holm([c for _, c in found])]


def state(found: Sequence[Placed]) -> State | None:
    """Whether a claim holds in every one of its comparisons, fails in one, or is open; None if there are none."""
    words = set(findings(found))
    if not words:
        return None
    return "holds" if words == {"better"} else "fails" if words & {"worse", "level"} else "open"


SAID = {"better": "in favour", "worse": "against", "level": "no difference", "undecided": "undecided"}


def tally(found: Sequence[Placed]) -> str:
    """`in favour in 7 of 8, median ratio 0.12, the least by 2 %; undecided: Wine`; a few are told one by one."""
    if not found:
        return "not run"
    words = findings(found)
    if len(found) <= 3:
        told = zip(found, words, strict=True)
        return "; ".join(f"{where} {effect(c)}, {SAID[word]}" for (where, c), word in told)
    better = [c for (_, c), word in zip(found, words, strict=True) if word == "better"]
    text = f"in favour in {len(better)} of {len(found)}"
    for scale, unit in (("ratio", "%"), ("difference", "points")):
        effects = [c.effect for c in better if c.scale == scale]
        if effects:
            least = number(100 * (1 - max(effects) if scale == "ratio" else min(effects)), 2)
            text += f", median {scale} {number(float(np.median(effects)))}, the least by {least} {unit}"
    whole = Counter(where for where, _ in found)
    for wanted in ("worse", "level", "undecided"):
        mine = Counter(where for (where, _), word in zip(found, words, strict=True) if word == wanted)
        parts = [f"{where} ({k} of {whole[where]})" if k < whole[where] else where for where, k in mine.items()]
        text += f"; {SAID[wanted]}: {', '.join(parts)}" if parts else ""
    return text


def scope_of(grid: Grid, wanted: Sequence[str]) -> tuple[str, list[str]]:
    """`4 of 6 datasets`, empty when all were tested, and sentences that say what was not, and why."""
    there, known = sum(grid.stored(task, "released", "rlp") is not None for task in wanted), grid.tasks()
    told = [f"{title_of(task)} not tested ({why})." for task in wanted if task in known and (why := grid.why(task))]
    left_out = [title_of(task) for task in wanted if task not in known]
    told += [f"Not asked for: {', '.join(left_out)}."] if left_out else []
    return "" if there == len(wanted) else f"{there} of {len(wanted)} datasets", told
