"""Verdicts: the words, and the rule that turns comparisons into one of them.

A claim that RLP is better somewhere is *reproduced* when, in the released loop, RLP is better in every
comparison that the claim makes and we could test: the paired test over seeds rejects equality at 5 % after
Holm's correction over the claim's comparisons, in RLP's favour. If the same does not hold when every arm has
the same number of optimiser steps, it is *reproduced, but gone at equal steps*. Otherwise it is *not
reproduced*. At smoke scale nothing is judged, and a claim about so many epochs is judged only when so many
epochs were run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlploss.lab import stats
from rlploss.lab.figures import number
from rlploss.lab.study import Cell
from rlploss.paper.panels import TASKS
from rlploss.paper.protocols import ARMS
from rlploss.paper.request import Request
from rlploss.paper.view import Grid, View

REPRODUCED = "reproduced"
GONE = "reproduced, but gone at equal steps"
NOT_REPRODUCED = "not reproduced"
NOT_TESTED = "not tested"
NOT_JUDGED = "not judged at this scale"
TONES = {REPRODUCED: "good", GONE: "warn", NOT_REPRODUCED: "bad", NOT_JUDGED: "calm", NOT_TESTED: "calm"}


@dataclass(frozen=True)
class Verdict:
    """The word, how far it reaches, and the evidence in a sentence or two."""

    word: str
    evidence: str
    scope: str = ""


@dataclass(frozen=True)
class Evidence:
    """What has been run: a view per table or figure that was asked for."""

    views: dict[str, View]
    _grids: dict[str, Grid] = field(default_factory=dict)

    def grid(self, name: str, cells: Callable[[Request], list[Cell]]) -> Grid | None:
        """The grid of a study, or None if it was not asked for."""
        if name not in self.views:
            return None
        if name not in self._grids:
            view = self.views[name]
            self._grids[name] = view.grid(cells(view.request))
        return self._grids[name]


@dataclass(frozen=True)
class Pair:
    """RLP against one baseline in one place, under two protocols; None where one was not run."""

    where: str
    epochs: stats.Comparison | None
    steps: stats.Comparison | None


def pairs(
    grid: Grid,
    tasks: Iterable[str],
    baselines: Sequence[str],
    *,
    ours: str = "rlp",
    metric: str = "mse",
    variants: int = 1,
    protocols: tuple[str, str] = ("released", "steps"),
) -> list[Pair]:
    """Every comparison of a claim: tasks × baselines × variants."""
    found = []
    for task in tasks:
        for base in baselines:
            for variant in range(variants):
                a, b = (grid.compare(task, p, ours, base, metric, variant) for p in protocols)
                found.append(Pair(TASKS.get(task, task), a, b))
    return found


def judge(held: bool | None, at_steps: bool | None, evidence: str, scope: str = "", *, judged: bool = True) -> Verdict:
    """One of the five words: `held` in the released loop, `at_steps` at equal steps (None: not run)."""
    if held is None:
        return Verdict(NOT_TESTED, evidence, scope)
    if not judged:
        return Verdict(NOT_JUDGED, evidence, scope)
    if not held:
        return Verdict(NOT_REPRODUCED, evidence, scope)
    return Verdict(GONE if at_steps is False else REPRODUCED, evidence, scope)


def better_everywhere(
    found: Sequence[Pair],
    *,
    judged: bool,
    scope: str,
    reason: str,
    extra: str = "",
    also: tuple[bool | None, bool | None] = (None, None),
) -> Verdict:
    """The rule above for a list of comparisons; `also` are further conditions, at equal epochs and at equal steps."""
    epochs = stats.holm([p.epochs for p in found if p.epochs is not None])
    steps = stats.holm([p.steps for p in found if p.steps is not None])
    if not epochs:
        return Verdict(NOT_TESTED, reason or "No runs.", scope)
    held = all(c.significant and c.better for c in epochs) and also[0] is not False
    at_steps = None
    if steps:
        at_steps = all(c.significant and c.better for c in steps) and also[1] is not False
    names = [p.where for p in found if p.epochs is not None]
    step_names = [p.where for p in found if p.steps is not None]
    words = [f"Equal epochs: {tally(epochs, names)}."]
    words.append(f"Equal steps: {tally(steps, step_names)}." if steps else "Equal steps: not run.")
    if extra:
        words.append(extra)
    if reason:
        words.append(reason)
    return judge(held, at_steps, " ".join(words), scope, judged=judged)


def tally(comparisons: Sequence[stats.Comparison], names: Sequence[str]) -> str:
    """`RLP better in 7 of 8, median ratio 0.12; level: Wine against MSE`."""
    n = len(comparisons)
    better = sum(c.word == "better" for c in comparisons)
    middle = float(np.median([c.effect for c in comparisons]))
    text = f"RLP better in {better} of {n}, median {comparisons[0].scale} {number(middle)}"
    if n == 1:
        c = comparisons[0]
        text = f"RLP {c.word}, {c.scale} {number(c.effect)} [{number(c.low)}, {number(c.high)}]"
    for word in ("level", "worse"):
        mine = Counter(name for c, name in zip(comparisons, names, strict=True) if c.word == word)
        if mine and n > 1:
            whole = Counter(names)
            parts = [f"{name} ({k} of {whole[name]})" if k < whole[name] else name for name, k in mine.items()]
            text += f"; {word} on {', '.join(parts)}"
    return text


def run_tasks(grid: Grid, tasks: Iterable[str], arm: str = "rlp") -> list[str]:
    """The tasks whose released runs are there."""
    return [t for t in tasks if grid.has(t, "released", arm)]


def scope_of(grid: Grid, wanted: Sequence[str], full: Callable[[str], int], arm: str = "rlp") -> str:
    """`4 of 6 datasets, 20 of 200 epochs`; empty when the whole claim was tested in full."""
    there = run_tasks(grid, wanted, arm)
    parts = [] if len(there) == len(wanted) else [f"{len(there)} of {len(wanted)} datasets"]
    short: dict[int, list[int]] = {}
    for task in there:
        cell = grid.cell(task, "released", arm)
        if cell is not None and cell.budget.n < full(task):
            short.setdefault(cell.budget.n, []).append(full(task))
    for n, whole in short.items():
        span = f"{min(whole)}" if min(whole) == max(whole) else f"{min(whole)} to {max(whole)}"
        parts.append(f"{n} of {span} epochs")
    return ", ".join(parts)


def missing_words(grid: Grid, wanted: Sequence[str]) -> str:
    """Which parts of a claim have no runs, and why."""
    known = set(grid.tasks())
    parts = [f"{TASKS.get(t, t)} not tested ({grid.why(t)})." for t in wanted if t in known and grid.why(t)]
    left_out = [TASKS.get(t, t) for t in wanted if t not in known]
    if left_out:
        parts.append(f"Not asked for: {', '.join(left_out)}.")
    return " ".join(parts)


def in_full(grid: Grid, task: str, full: int, arm: str = "rlp") -> bool:
    """Whether the released runs of a task have the paper's number of epochs."""
    cell = grid.cell(task, "released", arm)
    return cell is not None and cell.budget.unit == "epochs" and cell.budget.n >= full


def reach(grid: Grid, task: str, protocol: str, arm: str, base: str, metric: str, axis: str) -> float | None:
    """Where on the axis an arm's mean curve first reaches the baseline's final mean; inf if it never does."""
    stored, other = grid.stored(task, protocol, arm), grid.stored(task, protocol, base)
    if stored is None or other is None:
        return None
    higher = metric in ("accuracy", "f1")
    target = float(other.final(metric).mean())
    mean = stored.matrix(metric).mean(axis=0)
    hit = np.flatnonzero(mean >= target if higher else mean <= target)
    return float(stored.axis(axis)[hit[0]]) if hit.size else float("inf")


def faster(
    grid: Grid, tasks: Iterable[str], base: str, metric: str, ours: str = "rlp"
) -> tuple[tuple[bool | None, bool | None], str]:
    """“Converges faster”: RLP reaches the baseline's final value in fewer epochs, and in fewer steps, than it."""
    words, epochs, steps = [], [], []
    for task in tasks:
        a, b = (reach(grid, task, "released", arm, base, metric, "epoch") for arm in (ours, base))
        if a is None or b is None:
            continue
        c, d = (reach(grid, task, "steps", arm, base, metric, "step") for arm in (ours, base))
        epochs.append(a < b)
        text = f"{TASKS.get(task, task)}: {_when(a)} epochs, {ARMS[base]} {_when(b)}"
        if c is not None and d is not None:
            steps.append(c < d)
            text += f" (equal steps: {_when(c)} steps, {ARMS[base]} {_when(d)})"
        words.append(text)
    if not words:
        return (None, None), ""
    verdicts = all(epochs), all(steps) if steps else None
    return verdicts, f"RLP reaches {ARMS[base]}'s final value after: " + "; ".join(words) + "."


def _when(value: float) -> str:
    return f"{value:,.0f}" if np.isfinite(value) else "never"
