"""The report in plain words: what RLP is, what reproduced, what happened at equal steps."""

from __future__ import annotations

from collections.abc import Sequence

from rlploss.lab.report import Claim
from rlploss.lab.text import number
from rlploss.paper import published, verdicts
from rlploss.paper.published import words_of
from rlploss.paper.results import Grid, StoredResults, title_of


def summary(results: StoredResults, claims: Sequence[Claim], scale: str) -> tuple[str, ...]:
    """One paragraph for a newcomer."""
    grid = results.grid("table1")
    words = [_told("what"), *([] if grid is None else _table1_words(grid)), _claims_words(claims, scale)]
    return (" ".join(words),)


def _told(key: str, **numbers: object) -> str:
    return words_of((key,))[0].format(**numbers)


def _table1_words(grid: Grid) -> list[str]:
    if not grid.request.at.judged:
        return [_told("smoke")]
    words = []
    released, steps = (_found(grid, protocol) for protocol in ("released", "steps"))
    if released:
        ahead = _listed(released, "better", " datasets")
        words += [_told("equal-epochs", ahead=ahead), _told("more-steps", ratio=_steps_ratio(grid))]
    if steps:
        words.append(_told("equal-steps", ahead=_listed(steps, "better"), behind=_listed(steps, "worse")))
    return words


def _found(grid: Grid, protocol: str) -> dict[str, str]:
    """The word for RLP against MSE on each dataset that was run."""
    found = [(title_of(t), c) for t in published.DATASETS if (c := grid.compare(t, protocol, "rlp", "mse")) is not None]
    return {title: c.word for title, c in verdicts.corrected(found)}


def _listed(words: dict[str, str], wanted: str, what: str = "") -> str:
    """`2 of 6 datasets (Wine, Linear)`."""
    names = [title for title, word in words.items() if word == wanted]
    return f"{len(names)} of {len(words)}{what}" + (f" ({', '.join(names)})" if names else "")


def _steps_ratio(grid: Grid) -> str:
    """How many times as many steps an epoch gives to RLP."""
    pairs = [[grid.stored(task, "released", arm) for arm in ("rlp", "mse")] for task in published.DATASETS]
    ratios = [float(a.axis("step")[-1] / b.axis("step")[-1]) for a, b in pairs if a is not None and b is not None]
    low, high = min(ratios), max(ratios)
    return number(low) if high - low < 0.5 else f"{low:.0f} to {high:.0f}"


def _claims_words(claims: Sequence[Claim], scale: str) -> str:
    words = (verdicts.REPRODUCED, verdicts.GONE, verdicts.NOT_REPRODUCED)
    counts = [sum(claim.verdict == word for claim in claims) for word in words]
    numbers = {"n": len(claims), "scale": scale, "judged": sum(counts), "rest": len(claims) - sum(counts)}
    reproduced, gone, not_reproduced = counts
    if not sum(counts):
        return _told("none-judged", **numbers)
    return _told("judged", reproduced=reproduced, gone=gone, not_reproduced=not_reproduced, **numbers)
