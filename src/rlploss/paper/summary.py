"""The report in plain words: what RLP is, what reproduced, what happened at equal steps."""

from __future__ import annotations

from collections.abc import Sequence

from rlploss.lab import stats
from rlploss.lab.figures import number
from rlploss.lab.report import Claim
from rlploss.paper import published, studies, verdicts
from rlploss.paper.panels import TASKS
from rlploss.paper.verdicts import Evidence
from rlploss.paper.view import Grid

WHAT = (
    "Random Linear Projections (RLP) loss trains a network by comparing planes instead of points: for random groups of "
    "training rows it fits one plane to the targets and one to the predictions, and makes the two agree."
)


def summary(evidence: Evidence, claims: Sequence[Claim], scale: str) -> tuple[str, ...]:
    """One paragraph for a newcomer, and one on how to read it."""
    words = [WHAT]
    grid = evidence.grid("table1", studies.table1)
    if grid is not None:
        words += _table1_words(grid)
    words.append(_claims_words(claims, scale))
    return (" ".join(words),)


def _table1_words(grid: Grid) -> list[str]:
    words = []
    counts = {}
    for protocol in ("released", "steps"):
        found = [(t, grid.compare(t, protocol, "rlp", "mse")) for t in published.DATASETS]
        kept = [(t, c) for t, c in found if c is not None]
        corrected = stats.holm([c for _, c in kept])
        counts[protocol] = [(t, c) for (t, _), c in zip(kept, corrected, strict=True)]
    released, steps = counts["released"], counts["steps"]
    if not grid.view.request.at.judged:
        return ["This run is a smoke test: it shows that everything works, and judges nothing."]
    if released:
        ahead = [TASKS[t] for t, c in released if c.word == "better"]
        words.append(
            f"Trained as in the paper's released code, for the same number of epochs, RLP has a lower test error than "
            f"MSE on {len(ahead)} of {len(released)} datasets{_listed(ahead)}."
        )
        ratio = _steps_ratio(grid)
        if ratio:
            words.append(ratio)
    if steps:
        ahead = [TASKS[t] for t, c in steps if c.word == "better"]
        behind = [TASKS[t] for t, c in steps if c.word == "worse"]
        words.append(
            f"With the same number of steps for both, RLP is ahead on {len(ahead)} of {len(steps)}{_listed(ahead)} and "
            f"behind on {len(behind)}{_listed(behind)}."
        )
    return words


def _listed(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _steps_ratio(grid: Grid) -> str:
    """How many steps an epoch gives to either loss."""
    ratios = []
    for task in published.DATASETS:
        ours, theirs = (grid.stored(task, "released", arm) for arm in ("rlp", "mse"))
        if ours is not None and theirs is not None:
            ratios.append(float(ours.axis("step")[-1] / theirs.axis("step")[-1]))
    if not ratios:
        return ""
    low, high = min(ratios), max(ratios)
    span = number(low) if high - low < 0.5 else f"{low:.0f} to {high:.0f}"
    return f"But those epochs give RLP {span} times as many optimiser steps."


def _claims_words(claims: Sequence[Claim], scale: str) -> str:
    count = {word: sum(c.verdict == word for c in claims) for word in verdicts.TONES}
    judged = count[verdicts.REPRODUCED] + count[verdicts.GONE] + count[verdicts.NOT_REPRODUCED]
    if not judged:
        return f"None of the paper's {len(claims)} claims could be judged from this run ({scale} scale)."
    rest = len(claims) - judged
    return (
        f"Of the paper's {len(claims)} claims this run ({scale} scale) judges {judged}: {count[verdicts.REPRODUCED]} "
        f"reproduced, {count[verdicts.GONE]} reproduced but gone at equal steps, {count[verdicts.NOT_REPRODUCED]} not "
        f"reproduced; {rest} not tested or not judged."
    )
