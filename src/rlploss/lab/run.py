"""Run a set of cells: a plan with its expected time, progress with time left, resume, a clean stop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from rlploss.lab.store import Store
from rlploss.lab.study import Cell, Scalar, distinct
from rlploss.lab.workers import Train, Workers

Cost = Callable[[Cell], float]  # predicted seconds of a cell on one core


@dataclass(frozen=True)
class Plan:
    """What a command will do before it does it."""

    todo: tuple[Cell, ...]
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
        alone = sum(self.seconds[c.hash] for c in self.todo if c.task.get("timed"))
        shared = [self.seconds[c.hash] for c in self.todo if not c.task.get("timed")]
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


def duration(seconds: float) -> str:
    """Seconds in words: 8 s, 3 min, 1 h 20 min.

    >>> duration(75)
    '1 min 15 s'
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    if seconds < 600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def calibrated(cost: Cost, store: Store) -> Cost:
    """The predicted cost, corrected by what stored cells of the same kind have taken."""
    ratios: dict[tuple[Scalar, ...], list[float]] = {}
    for cell, seconds in store.costs():
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # of another version: nobody knows its cost
            ratio = seconds / max(cost(cell), 1e-9)
            ratios.setdefault(_kind(cell), []).append(ratio)
    factor = {kind: statistics.median(values) for kind, values in ratios.items()}
    return lambda cell: cost(cell) * factor.get(_kind(cell), 1.0)


def _kind(cell: Cell) -> tuple[Scalar, ...]:
    return cell.arm.objective, cell.arm.get("preset"), cell.task.get("model")


def plan(cells: Iterable[Cell], store: Store, *, cost: Cost, workers: Workers) -> Plan:
    """Which cells are missing, longest first, and what they will cost."""
    cells = distinct(cells)
    todo = [cell for cell in cells if not store.has(cell)]
    estimate = calibrated(cost, store)
    seconds = {cell.hash: estimate(cell) for cell in todo}
    todo.sort(key=lambda cell: -seconds[cell.hash])
    return Plan(tuple(todo), len(cells) - len(todo), seconds, workers.count)


def execute(todo: Plan, store: Store, *, train: Train, workers: Workers, console: Console) -> Finished:
    """Train what the plan says and commit each cell as it comes; Ctrl-C leaves whole cells only."""
    started = time.monotonic()
    failed: dict[str, str] = {}
    trained = 0
    if not todo.todo:
        return Finished(0, failed, 0.0)
    with (
        _Display(todo, console) as display,
        closing(workers.run(train, todo.todo, tell=display.tell, say=display.say)) as running,
    ):
        for outcome in running:
            if outcome.result is None:
                reason = outcome.error or "no reason given"
                failed[outcome.cell.hash] = reason
                store.write_failure(outcome.cell, reason)
            else:
                store.write(outcome.cell, outcome.result)
                trained += 1
            display.finish(outcome.cell, outcome.error)
    return Finished(trained, failed, time.monotonic() - started)


class _Display:
    """Progress in expected seconds: a bar on a terminal, plain lines when piped."""

    def __init__(self, todo: Plan, console: Console) -> None:
        self._plan = todo
        self._console = console
        self._done: dict[str, float] = {}
        self._finished = 0
        self._started = time.monotonic()
        self._last_line = self._started
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("[progress.description]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
                console=console,
            )
            self._task = self._bar.add_task("training", total=len(todo.todo), left="")

    def __enter__(self) -> _Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, cell: Cell, fraction: float) -> None:
        """A cell has come this far."""
        self._done[cell.hash] = min(max(fraction, 0.0), 1.0)
        self._show(cell, line=time.monotonic() - self._last_line > 30.0)

    def finish(self, cell: Cell, error: str | None) -> None:
        """A cell is stored, or has failed."""
        self._done[cell.hash] = 1.0
        self._finished += 1
        if error is not None:
            self.say(f"failed: {cell}: {error}")
        self._show(cell, line=True)

    def say(self, text: str) -> None:
        """A sentence of its own line, above the bar if there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _left(self) -> str:
        total = sum(self._plan.seconds.values())
        done = sum(self._plan.seconds[key] * fraction for key, fraction in self._done.items())
        if done >= total:
            return "done"
        elapsed = time.monotonic() - self._started
        # The prediction at first, what has been seen later on.
        trust = min(1.0, 4.0 * done / total)
        seen = elapsed * (total - done) / done if done > 0 else 0.0
        predicted = self._plan.expected_seconds * (1.0 - done / total)
        return f"{duration(trust * seen + (1.0 - trust) * predicted)} left"

    def _show(self, cell: Cell, *, line: bool) -> None:
        left = self._left()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._finished, description=str(cell), left=left)
        elif line:
            self._last_line = time.monotonic()
            counted = f"[{self._finished}/{len(self._plan.todo)}]"
            self.say(f"{counted} {cell}, {left}")
