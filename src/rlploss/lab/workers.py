"""Where cells are trained: in this process, in a few processes of this machine, or on a cluster (`lab.cluster`).

Anything with the `run` method of `Workers` can take their place: it is handed cells and a training function, and
yields one `Outcome` per cell, in any order. It never writes to the store.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pickle import PickleError
from typing import Protocol

from rlploss import _checks
from rlploss.lab.results import CellResult, Tell
from rlploss.lab.study import Cell

Train = Callable[[Cell, Tell], CellResult]
TellOf = Callable[[Cell, float], None]  # how far a cell has come
Say = Callable[[str], None]  # a sentence for the user: a worker was lost, a cell is tried again

TRIES = 3  # of a cell whose worker dies: a machine may be short of memory once, a cell that always kills is given up
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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

    def run(self, train: Train, cells: Sequence[Cell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        """Train the cells, yield outcomes as they come; closing the iterator stops all work."""


def parse_workers(text: str) -> Workers:
    """`"local:2"` (two processes), `"inline"` (this process) or `"dask:tcp://HOST:PORT"` (a Dask cluster).

    >>> parse_workers("local:2").count
    2
    """
    kind, _, rest = text.partition(":")
    if kind == "inline" and not rest:
        return Inline()
    if kind == "local" and (not rest or rest.isdecimal()):
        return LocalProcesses(int(rest) if rest else _cores())
    if kind == "dask":
        from rlploss.lab.cluster import DaskWorkers

        return DaskWorkers(rest)
    raise ValueError(f'workers must be "inline", "local:N" or "dask:tcp://HOST:PORT", got {text!r}; try "local:2"')


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Inline:
    """One cell after another, in this process."""

    count = 1

    def __str__(self) -> str:
        return "inline"

    def run(self, train: Train, cells: Sequence[Cell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        """See `Workers.run`."""
        for cell in cells:
            yield attempt(train, cell, partial(tell, cell))


def attempt(train: Train, cell: Cell, tell: Tell) -> Outcome:
    """Train one cell; an exception becomes a reason."""
    try:
        return Outcome(cell, train(cell, tell))
    except Exception as error:  # a cell that fails is reported; the others go on
        return Outcome(cell, error=reason(error))


def reason(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch, BLAS and OpenMP in this thread, and for what is loaded meanwhile; as before afterwards.

    Sums that are shared out among threads round differently, so results would depend on where a cell ran.
    """
    import torch
    from threadpoolctl import threadpool_limits

    threads, variables = torch.get_num_threads(), {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            for name, value in variables.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


class Retries:
    """Counts how often a cell has lost its worker."""

    def __init__(self, waiting: deque[Cell], say: Say, most: int = TRIES) -> None:
        self._waiting, self._say, self._most = waiting, say, most
        self._lost: Counter[Cell] = Counter()

    def lost(self, cell: Cell, how: str) -> Outcome | None:
        """Put the cell behind the others once more, or give it up."""
        self._lost[cell] += 1
        if self._lost[cell] >= self._most:
            return Outcome(cell, error=f"{how}, as in each of {self._most} tries" if self._most > 1 else how)
        self._waiting.append(cell)
        self._say(f"{how}; {cell} is tried again ({self._lost[cell] + 1} of {self._most})")
        return None


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    cell: Cell | None = field(default=None)


@dataclass(frozen=True)
class LocalProcesses:
    """`count` processes, one thread each, so that results do not depend on how many there are.

    A cell whose process dies is tried again, three times in all. Cells whose task is `timed` run alone, after the
    others: their seconds are results.
    """

    count: int

    def __post_init__(self) -> None:
        _checks.count("workers", self.count)

    def __str__(self) -> str:
        return f"local:{self.count}"

    def run(self, train: Train, cells: Sequence[Cell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        """See `Workers.run`."""
        together = [c for c in cells if not c.task.get("timed")]
        alone = [c for c in cells if c.task.get("timed")]
        for batch, size in ((together, self.count), (alone, 1)):
            if batch:
                yield from self._run_batch(train, batch, min(size, len(batch)), tell, say)

    def _run_batch(self, train: Train, cells: Sequence[Cell], size: int, tell: TellOf, say: Say) -> Generator[Outcome]:
        waiting = deque(cells)
        retries = Retries(waiting, say)
        team: list[_Worker] = []
        try:
            for _ in range(size):  # one by one, so that those that have started are stopped if one cannot
                team.append(_start(train))
            while True:
                for worker in team:
                    if worker.cell is None:
                        _give(worker, waiting)
                busy = {worker.pipe: worker for worker in team if worker.cell is not None}
                if not busy:
                    return
                # A process that dies closes its pipe, unless a child of its own has inherited it: hence the timeout.
                ready = wait(list(busy), timeout=1.0)
                for pipe, worker in busy.items():
                    if pipe in ready:
                        outcome = _receive(worker, tell)
                    elif worker.process.is_alive() or pipe.poll():  # its last words may just have come
                        continue
                    else:
                        outcome = _Death(_died(worker.process))
                    if outcome is None:
                        continue
                    cell, worker.cell = worker.cell, None
                    assert cell is not None
                    if isinstance(outcome, _Death):
                        team.remove(worker)
                        _stop([worker])
                        outcome = retries.lost(cell, outcome.how)
                        if waiting:
                            team.append(_start(train))
                    if outcome is not None:
                        yield outcome
        finally:
            _stop(team)


@dataclass(frozen=True)
class _Death:
    how: str


def _start(train: Train) -> _Worker:
    # "spawn": no lock, no open store and no thread of the driver is inherited.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, train), daemon=True)
    with _interrupts_held():
        process.start()
    theirs.close()
    return _Worker(process, ours)


@contextmanager
def _interrupts_held() -> Generator[None]:
    """Processes started in here never see Ctrl-C, not even while they import; the driver sees it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # its own start would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _give(worker: _Worker, waiting: deque[Cell]) -> None:
    worker.cell = waiting.popleft() if waiting else None
    if worker.cell is not None:
        # A worker that has died shows as the end of its pipe when it is read.
        with suppress(OSError):
            worker.pipe.send(worker.cell)


def _receive(worker: _Worker, tell: TellOf) -> Outcome | _Death | None:
    """The worker's outcome or its death, if there is one; progress is passed on."""
    assert worker.cell is not None
    try:
        message = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(5.0)
        return _Death(_died(worker.process))
    if isinstance(message, float):
        tell(worker.cell, message)
        return None
    assert isinstance(message, Outcome)
    return message


def _died(process: BaseProcess) -> str:
    code = process.exitcode
    if code is None:
        return "the worker process closed its pipe"
    if code >= 0:
        return f"the worker process died (exit code {code})"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = "without a name"
    return f"the worker process died (killed by signal {-code}, {name})"


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
        worker.process.close()  # its handle, not left to the garbage collector


def _work(pipe: Connection, train: Train) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    parent = multiprocessing.parent_process()
    if parent is not None:
        # A driver that was killed leaves nobody to work for.
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    last = 0.0

    def tell(fraction: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 0.2:
            last = now
            pipe.send(float(fraction))

    with one_thread():
        while True:
            try:
                cell = pipe.recv()
                outcome = attempt(train, cell, tell)
                try:
                    pipe.send(outcome)
                except (TypeError, AttributeError, ValueError, RecursionError, PickleError) as error:
                    pipe.send(Outcome(cell, error=f"the result cannot be sent: {reason(error)}"))
            except (EOFError, OSError):
                return
