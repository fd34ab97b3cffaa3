"""Where cells are trained: in this process, or in a few processes of this machine.

Anything with the `run` method of `Workers` can take their place (a cluster, say): it is handed cells and a
training function, and yields one `Outcome` per cell, in any order. It never writes to the store.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from rlploss import _checks
from rlploss.lab.results import CellResult
from rlploss.lab.study import Cell

Tell = Callable[[float], None]  # a training function tells the fraction done, now and then
Train = Callable[[Cell, Tell], CellResult]


@dataclass(frozen=True)
class Outcome:
    """A cell with its result, or with the reason why it has none."""

    cell: Cell
    result: CellResult | None = None
    error: str | None = None


class Workers(Protocol):
    """Something that trains cells."""

    @property
    def count(self) -> int:
        """How many cells train at once."""

    def run(
        self, train: Train, cells: Sequence[Cell], *, tell: Callable[[Cell, float], None]
    ) -> Generator[Outcome]:
        """Train the cells, yield outcomes as they come; closing the iterator stops all work."""


def parse_workers(text: str) -> Workers:
    """`"local:2"` (two processes) or `"inline"` (this process).

    >>> parse_workers("local:2").count
    2
    """
    kind, _, number = text.partition(":")
    if kind == "inline" and not number:
        return Inline()
    if kind == "local" and (not number or number.isdigit()):
        return LocalProcesses(int(number) if number else os.cpu_count() or 1)
    raise ValueError(f'workers must be "inline" or "local:N", got {text!r}; try "local:2"')


class Inline:
    """One cell after another, in this process."""

    count = 1

    def run(
        self, train: Train, cells: Sequence[Cell], *, tell: Callable[[Cell, float], None]
    ) -> Generator[Outcome]:
        """See `Workers.run`."""
        for cell in cells:
            yield _attempt(train, cell, lambda fraction, cell=cell: tell(cell, fraction))  # type: ignore[misc]


def _attempt(train: Train, cell: Cell, tell: Tell) -> Outcome:
    try:
        return Outcome(cell, train(cell, tell))
    except Exception as error:  # a cell that fails is reported; the others go on
        return Outcome(cell, error=f"{type(error).__name__}: {' '.join(str(error).split())}")


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    cell: Cell | None = field(default=None)


@dataclass(frozen=True)
class LocalProcesses:
    """`count` processes, one torch thread each, so that results do not depend on how many there are.

    Cells whose task is `timed` run alone, after the others: their seconds are results.
    """

    count: int

    def __post_init__(self) -> None:
        _checks.count("workers", self.count)

    def run(
        self, train: Train, cells: Sequence[Cell], *, tell: Callable[[Cell, float], None]
    ) -> Generator[Outcome]:
        """See `Workers.run`."""
        together = [c for c in cells if not c.task.get("timed")]
        alone = [c for c in cells if c.task.get("timed")]
        for batch, size in ((together, self.count), (alone, 1)):
            if batch:
                yield from self._run_batch(train, batch, min(size, len(batch)), tell)

    def _run_batch(
        self, train: Train, cells: Sequence[Cell], size: int, tell: Callable[[Cell, float], None]
    ) -> Generator[Outcome]:
        waiting = deque(cells)
        team: list[_Worker] = []
        try:
            team = [_start(train) for _ in range(size)]
            for worker in team:
                _give(worker, waiting)
            while any(worker.cell is not None for worker in team):
                busy = {worker.pipe: worker for worker in team if worker.cell is not None}
                for ready in wait(list(busy)):
                    worker = busy[ready]  # type: ignore[index]
                    outcome = _receive(worker, tell)
                    if outcome is None:
                        continue
                    yield outcome
                    if not worker.process.is_alive():
                        _stop([worker])
                        team.remove(worker)
                        if not waiting:
                            continue
                        worker = _start(train)
                        team.append(worker)
                    _give(worker, waiting)
        finally:
            _stop(team)


def _start(train: Train) -> _Worker:
    # "spawn": no lock, no open store and no thread of the driver is inherited.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, train), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _give(worker: _Worker, waiting: deque[Cell]) -> None:
    worker.cell = waiting.popleft() if waiting else None
    if worker.cell is not None:
        # A worker that has died shows as the end of its pipe when it is read.
        with suppress(OSError):
            worker.pipe.send(worker.cell)


def _receive(worker: _Worker, tell: Callable[[Cell, float], None]) -> Outcome | None:
    """The worker's outcome, if it has one; progress is passed on; death is an outcome."""
    cell = worker.cell
    assert cell is not None
    try:
        message = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(5.0)
        return Outcome(cell, error=f"the worker process died ({_died(worker.process.exitcode)})")
    if isinstance(message, float):
        tell(cell, message)
        return None
    assert isinstance(message, Outcome)
    return message


def _died(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by signal {-code}, {signal.Signals(-code).name}"
    return f"exit code {code}"


def _stop(team: Sequence[_Worker]) -> None:
    """End the processes of a team: all are asked at once, and those that do not go within a second are killed."""
    for worker in team:
        worker.pipe.close()
        worker.process.terminate()
    deadline = time.monotonic() + 1.0
    for worker in team:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _work(pipe: Connection, train: Train) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    parent = multiprocessing.parent_process()
    if parent is not None:
        # A driver that was killed leaves nobody to work for.
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    import torch

    torch.set_num_threads(1)
    last = 0.0

    def tell(fraction: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 0.2:
            last = now
            pipe.send(float(fraction))

    while True:
        try:
            cell = pipe.recv()
            pipe.send(_attempt(train, cell, tell))
        except (EOFError, OSError):
            return
