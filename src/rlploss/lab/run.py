"""Run a set of cells: a plan with its expected time, progress with time left, resume, a clean stop."""

from __future__ import annotations

import io
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from rlploss._progress import ProgressLine, duration
from rlploss.lab.store import Store
from rlploss.lab.study import distinct
from rlploss.lab.workers import AnyCell, Train, Workers

Cost = Callable[[Any], float]  # predicted seconds of a cell on one core


@dataclass(frozen=True)
class Plan:
    """What a command will do before it does it."""

    todo: tuple[AnyCell, ...]
    stored: int
    seconds: dict[str, float] = field(repr=False)  # predicted, by cell hash
    workers: int = 1

    @property
    def networks(self) -> int:
        """How many networks will be trained."""
        return sum(cell.n_replicas for cell in self.todo)

    @property
    def expected_seconds(self) -> float:
        """Wall-clock time expected: the longest cell, or the work shared out evenly, or what runs alone."""
        alone = sum(self.seconds[c.hash] for c in self.todo if c.task.timed)
        shared = [self.seconds[c.hash] for c in self.todo if not c.task.timed]
        return alone + max([sum(shared) / self.workers, *shared])

    def sentence(self) -> str:
        """The plan in one sentence."""
        if not self.todo:
            return f"All {self.stored} cells are stored already: nothing to train."
        kept = f"{self.stored} stored already, " if self.stored else ""
        cells = len(self.todo) + self.stored
        return (
            f"{cells} cells: {kept}{len(self.todo)} to train ({self.networks} networks), "
            f"about {duration(self.expected_seconds)} on {self.workers} core{'s' * (self.workers > 1)}."
        )


@dataclass(frozen=True)
class Finished:
    """What a run did."""

    trained: int
    failed: dict[str, str]  # reason by cell hash
    seconds: float


def calibrated(cost: Cost, store: Store) -> Cost:
    """The predicted cost, corrected by what stored cells of the same family have taken."""
    ratios: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for cell, seconds in store.costs():
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # of another version: nobody knows its cost
            ratios[cell.arm.family, cell.task.family].append(seconds / max(cost(cell), 1e-9))
    factor = {family: statistics.median(values) for family, values in ratios.items()}
    return lambda cell: cost(cell) * factor.get((cell.arm.family, cell.task.family), 1.0)


def plan(cells: Iterable[AnyCell], store: Store, *, cost: Cost, workers: Workers) -> Plan:
    """Which cells are missing, longest first, and what they will cost."""
    cells = distinct(cells)
    todo = [cell for cell in cells if not store.has(cell)]
    estimate = calibrated(cost, store)
    seconds = {cell.hash: estimate(cell) for cell in todo}
    todo.sort(key=lambda cell: -seconds[cell.hash])
    return Plan(tuple(todo), len(cells) - len(todo), seconds, workers.count)


def execute(todo: Plan, store: Store, *, train: Train, workers: Workers, console: Console) -> Finished:
    """Train what the plan says and commit each cell as it comes; Ctrl-C leaves whole cells only.

    Progress is a line that is rewritten on a terminal, and a line per cell when piped.
    """
    started = time.monotonic()
    failed: dict[str, str] = {}
    trained = 0
    if not todo.todo:
        return Finished(0, failed, 0.0)
    display = _Display(todo, console)
    try:
        with closing(workers.run(train, todo.todo, tell=display.tell, say=display.say)) as running:
            for outcome in running:
                if outcome.result is None:
                    reason = outcome.error or "no reason given"
                    failed[outcome.cell.hash] = reason
                    store.write_failure(outcome.cell, reason)
                else:
                    store.write(outcome.cell, outcome.result)
                    trained += 1
                display.finish(outcome.cell, outcome.error)
    finally:
        display.line.close()
    return Finished(trained, failed, time.monotonic() - started)


class _Display:
    """Progress in expected seconds."""

    def __init__(self, todo: Plan, console: Console) -> None:
        self._plan = todo
        self._total = sum(todo.seconds.values())
        self._done: dict[str, float] = {}
        self._finished = 0
        self._started = time.monotonic()
        stream = io.StringIO() if console.quiet else console.file
        self.line = ProgressLine(self._total, stream=stream, every=30.0)
        self.say = self.line.say

    def tell(self, cell: AnyCell, fraction: float) -> None:
        """A cell has come this far."""
        self._done[cell.hash] = min(max(fraction, 0.0), 1.0)
        self._show(cell)

    def finish(self, cell: AnyCell, error: str | None) -> None:
        """A cell is stored, or has failed."""
        self._done[cell.hash] = 1.0
        self._finished += 1
        if error is not None:
            self.say(f"failed: {cell}: {error}")
        self._show(cell, now=True)

    def _show(self, cell: AnyCell, *, now: bool = False) -> None:
        done = sum(self._plan.seconds[key] * fraction for key, fraction in self._done.items())
        if self._finished == len(self._plan.todo):
            done = self._total
        # The prediction at first, what has been seen later on.
        trust = min(1.0, 4.0 * done / self._total)
        seen = (time.monotonic() - self._started) * (self._total - done) / done if done > 0 else 0.0
        predicted = self._plan.expected_seconds * (1.0 - done / self._total)
        label = f"[{self._finished}/{len(self._plan.todo)}] {cell}"
        self.line.tell(done, label, remaining=trust * seen + (1.0 - trust) * predicted, now=now)
