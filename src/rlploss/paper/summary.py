"""The report in plain words: what RLP is, what reproduced, what happened at equal steps."""

from __future__ import annotations

from collections.abc import Sequence

from rlploss.lab.report import Claim
from rlploss.lab.text import number
from rlploss.paper import published, verdicts
from rlploss.paper.results import Grid, StoredResults, title_of

WHAT = (
    "Random Linear Projections (RLP) loss trains a network by comparing planes instead of points: for random groups of "
    "training rows it fits one plane to the targets and one to the predictions, and makes the two agree."
)


def summary(results: StoredResults, claims: Sequence[Claim], scale: str) -> tuple[str, ...]:
    """One paragraph for a newcomer."""
    grid = results.grid("table1")
    words = [WHAT, *([] if grid is None else _table1_words(grid)), _claims_words(claims, scale)]
    return (" ".join(words),)


def _table1_words(grid: Grid) -> list[str]:
    if not grid.request.at.judged:
        return ["This run is a smoke test: it shows that everything works, and judges nothing."]
    words = []
    released, steps = (_counts(grid, protocol) for protocol in ("released", "steps"))
    if released:
        words.append(
            f"Trained as in the paper's released code, for the same number of epochs, RLP has a lower test error than "
            f"MSE on {_listed(released, 'better', ' datasets')}."
        )
        words += _steps_ratio(grid)
    if steps:
        words.append(
            f"With the same number of steps for both, RLP is ahead on {_listed(steps, 'better')} and behind on "
            f"{_listed(steps, 'worse')}."
        )
    return words


def _counts(grid: Grid, protocol: str) -> dict[str, str]:
    """The word for RLP against MSE on each dataset that was run."""
    found = [(title_of(t), c) for t in published.DATASETS if (c := grid.compare(t, protocol, "rlp", "mse")) is not None]
    return {title: c.word for title, c in verdicts.corrected(found)}


def _listed(words: dict[str, str], wanted: str, what: str = "") -> str:
    """`2 of 6 datasets (Wine, Linear)`."""
    names = [title for title, word in words.items() if word == wanted]
    return f"{len(names)} of {len(words)}{what}" + (f" ({', '.join(names)})" if names else "")


def _steps_ratio(grid: Grid) -> list[str]:
    """How many steps an epoch gives to either loss."""
    ratios = []
    for task in published.DATASETS:
        ours, theirs = (grid.stored(task, "released", arm) for arm in ("rlp", "mse"))
        if ours is not None and theirs is not None:
            ratios.append(float(ours.axis("step")[-1] / theirs.axis("step")[-1]))
    low, high = min(ratios), max(ratios)
    span = number(low) if high - low < 0.5 else f"{low:.0f} to {high:.0f}"
    return [f"But those epochs give RLP {span} times as many optimiser steps."]


def _claims_words(claims: Sequence[Claim], scale: str) -> str:
    count = {word: sum(c.verdict == word for c in claims) for word in verdicts.TONES}
    judged = count[verdicts.REPRODUCED] + count[verdicts.GONE] + count[verdicts.NOT_REPRODUCED]
    if not judged:
        return f"None of the paper's {len(claims)} claims could be judged from this run ({scale} scale)."
    return (
        f"Of the paper's {len(claims)} claims this run ({scale} scale) judges {judged}: {count[verdicts.REPRODUCED]} "
        f"reproduced, {count[verdicts.GONE]} reproduced but gone at equal steps, {count[verdicts.NOT_REPRODUCED]} not "
        f"reproduced; {len(claims) - judged} not tested or not judged."
    )
