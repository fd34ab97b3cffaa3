"""Run a set of cells: a plan with its expected time, progress with time left, resume, a clean stop."""

from __future__ import annotations

import io
import math
import shlex
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from rich.console import Console

from rlploss._progress import ProgressLine, duration, say
from rlploss.lab.store import Store
from rlploss.lab.study import AnyCell, CellResult, Train, distinct
from rlploss.lab.text import Stopped
from rlploss.lab.workers import Workers
from rlploss.tracking import Logger, MLflowLogger, TensorBoardLogger

Cost = Callable[[Any], float]  # predicted seconds of a cell on one core


@dataclass(frozen=True)
class Plan:
    """What a command will do before it does it."""

    todo: tuple[AnyCell, ...]
    stored: int
    seconds: dict[str, float]  # predicted, by cell hash
    workers: int = 1

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
        work = f"{len(self.todo)} to train ({sum(cell.n_replicas for cell in self.todo)} networks)"
        time_needed = f"about {duration(self.expected_seconds)} on {self.workers} core{'s' * (self.workers > 1)}"
        return f"{len(self.todo) + self.stored} cells: {kept}{work}, {time_needed}."


class Finished(NamedTuple):
    """What a run did."""

    trained: int
    failed: dict[str, str]  # reason by cell hash
    seconds: float


def plan(cells: Iterable[AnyCell], store: Store, *, cost: Cost, workers: Workers, in_turn: bool = False) -> Plan:
    """Which cells are missing, the longest first or in their turn, and what they will cost.

    The predicted cost is corrected by what stored cells of the same family have taken.
    """
    cells = distinct(cells)
    todo = [cell for cell in cells if not store.has(cell)]
    ratios: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for cell, took in store.costs(cells):
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # of another version: nobody knows its cost
            ratios[cell.arm.family, cell.task.family].append(took / max(cost(cell), 1e-9))
    factors = {family: statistics.median(values) for family, values in ratios.items()}
    seconds = {cell.hash: cost(cell) * factors.get((cell.arm.family, cell.task.family), 1.0) for cell in todo}
    if not in_turn:
        todo.sort(key=lambda cell: -seconds[cell.hash])
    return Plan(tuple(todo), len(cells) - len(todo), seconds, workers.count)


class _TimeUp(BaseException):
    """The deadline has passed; no error of a cell, so that no one catches it as such."""


def execute(
    todo: Plan, store: Store, *, train: Train, workers: Workers, console: Console, deadline: float = math.inf
) -> Finished:
    """Train what the plan says and commit each cell as it comes; Ctrl-C and the deadline leave whole cells only.

    Progress is a line that is rewritten on a terminal, and a line per cell when piped. `deadline` is a time of
    `time.monotonic`.
    """
    if not todo.todo:
        return Finished(0, {}, 0.0)
    started = time.monotonic()
    total = sum(todo.seconds.values())
    finished = 0
    failed: dict[str, str] = {}
    far: dict[str, float] = {}  # how far each cell is
    line = ProgressLine(total, stream=io.StringIO() if console.quiet else console.file, every=30.0)

    def tell(cell: AnyCell, fraction: float | None, *, now: bool = False) -> None:
        if fraction is not None:
            far[cell.hash] = min(max(fraction, 0.0), 1.0)
            done = sum(todo.seconds[key] * fraction for key, fraction in far.items())
            label = f"[{finished}/{len(todo.todo)}] {cell}"
            line.tell(total if finished == len(todo.todo) else done, label, now=now)
        if time.monotonic() > deadline:
            raise _TimeUp

    try:
        with suppress(_TimeUp), closing(workers.run(train, todo.todo, tell=tell, say=line.say)) as running:
            for outcome in running:
                if outcome.result is not None:
                    store.write(outcome.cell, outcome.result)
                    note(outcome.cell, outcome.result, line.say)
                else:
                    failed[outcome.cell.hash] = reason = outcome.error or "no reason given"
                    store.write_failure(outcome.cell, reason)
                    line.say(f"failed: {outcome.cell}: {reason}")
                finished += 1
                tell(outcome.cell, 1.0, now=True)
    finally:
        line.close()
    return Finished(finished - len(failed), failed, time.monotonic() - started)


def run_study(
    what: str,
    cells: Iterable[AnyCell],
    store: Store,
    *,
    cost: Cost,
    train: Train,
    workers: Workers,
    console: Console,
    in_turn: bool = False,
) -> None:
    """Train the cells of a study that are not stored: say how long it takes, what was done, what failed or is left."""
    cells = distinct(cells)
    todo = plan(cells, store, cost=cost, workers=workers, in_turn=in_turn)
    say(console, f"{what}. {todo.sentence()}")
    if store.foreign_cells():
        say(console, f"{store.foreign_cells()} stored cells come from other code and are left aside.")
    try:
        done = execute(todo, store, train=train, workers=workers, console=console)
    except KeyboardInterrupt:
        shows = f"rlploss report {shlex.quote(str(store.directory))} shows them"
        raise Stopped(f"{sum(map(store.has, cells))} of {len(cells)} cells are stored, {shows}") from None
    if done.trained:
        say(console, f"Trained {done.trained} cells in {duration(done.seconds)}.")
    if done.failed:
        why = next(iter(done.failed.values()))
        say(console, f"{len(done.failed)} cells failed, the same command tries them again: {why}")


# `--track`: the curves of each stored cell go to MLflow or TensorBoard too, whichever command trains it.

_LOGGERS: list[Logger] = []


@contextmanager
def tracking(track: str) -> Iterator[None]:
    """Inside, cells that are stored are written to `mlflow:URI` or `tensorboard:DIR` as well."""
    kind, _, where = track.partition(":")
    makers: dict[str, Callable[[str], Logger]] = {"mlflow": MLflowLogger, "tensorboard": TensorBoardLogger}
    if not where or kind not in makers:
        raise ValueError(f"--track takes mlflow:URI or tensorboard:DIR, got {track!r}; try tensorboard:runs")
    with makers[kind](where) as logger:
        _LOGGERS.append(logger)
        try:
            yield
        finally:
            _LOGGERS.remove(logger)


def note(cell: AnyCell, result: CellResult, say: Callable[[str], object]) -> None:
    """One run per network of the cell: its settings, its curve, and its single numbers at the end."""
    for logger, network in product(_LOGGERS, result.networks):
        names = [name for name in network.curve if name != "step"]
        steps = [int(step) for step in network.curve.get("step", ())]
        rows = [(step, {name: network.curve[name][i] for name in names}) for i, step in enumerate(steps)]
        if network.values:
            rows.append((steps[-1] if steps else 0, dict(network.values)))
        which = f" · variant {network.variant}" if network.variant else ""
        logger.tell = say
        logger.write(f"{cell}{which} · seed {network.seed}", rows, cell.spec())
