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
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from rlploss import _checks
from rlploss.lab.results import CellResult, Tell
from rlploss.lab.study import Cell

AnyCell = Cell[Any, Any]
Train = Callable[[AnyCell, Tell], CellResult]
TellOf = Callable[[AnyCell, float], None]  # how far a cell has come
Say = Callable[[str], None]  # a sentence for the user: a worker was lost, a cell is tried again

TRIES = 3  # of a cell whose worker dies: a machine may be short of memory once, a cell that always kills is given up
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """A cell with its result, or with the reason why it has none."""

    cell: AnyCell
    result: CellResult | None = None
    error: str | None = None


class Workers(Protocol):
    """Something that trains cells."""

    @property
    def count(self) -> int:
        """How many cells train at once."""

    def run(self, train: Train, cells: Sequence[AnyCell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
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

    def run(self, train: Train, cells: Sequence[AnyCell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        """See `Workers.run`."""
        for cell in cells:
            yield attempt(train, cell, partial(tell, cell))


def attempt(train: Train, cell: AnyCell, tell: Tell) -> Outcome:
    """Train one cell; an exception becomes a reason."""
    try:
        return Outcome(cell, train(cell, tell))
    except Exception as error:  # a cell that fails is reported; the others go on
        return Outcome(cell, error=reason(error))


def reason(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def now_and_then(tell: Tell, seconds: float) -> Tell:
    """The same function, called at most once in so many seconds."""
    last = -seconds

    def told(fraction: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            tell(float(fraction))

    return told


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

    def __init__(self, waiting: deque[AnyCell], say: Say, most: int = TRIES) -> None:
        self._waiting, self._say, self._most = waiting, say, most
        self._lost: Counter[AnyCell] = Counter()

    def lost(self, cell: AnyCell, how: str) -> Outcome | None:
        """Put the cell behind the others once more, or give it up."""
        self._lost[cell] += 1
        if self._lost[cell] >= self._most:
            return Outcome(cell, error=f"{how}, as in each of {self._most} tries" if self._most > 1 else how)
        self._waiting.append(cell)
        self._say(f"{how}; {cell} is tried again ({self._lost[cell] + 1} of {self._most})")
        return None


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

    def run(self, train: Train, cells: Sequence[AnyCell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        """See `Workers.run`."""
        together = [c for c in cells if not c.task.timed]
        alone = [c for c in cells if c.task.timed]
        for batch, size in ((together, self.count), (alone, 1)):
            if batch:
                yield from self._run_batch(train, batch, min(size, len(batch)), tell, say)

    def _run_batch(
        self, train: Train, cells: Sequence[AnyCell], size: int, tell: TellOf, say: Say
    ) -> Generator[Outcome]:
        waiting = deque(cells)
        retries = Retries(waiting, say)
        idle: list[_Process] = []
        busy: list[_Process] = []
        try:
            while waiting or busy:
                while waiting and len(busy) < size:
                    busy.append(idle.pop() if idle else _Process(train))
                    busy[-1].start(waiting.popleft())
                wait_for([worker.future for worker in busy], timeout=0.2, return_when=FIRST_COMPLETED)
                for worker in list(busy):
                    worker.relay(tell)
                    if not worker.future.done() and worker.process.is_alive():
                        continue
                    busy.remove(worker)
                    outcome = worker.outcome()
                    if outcome is None:
                        _stop([worker])
                        outcome = retries.lost(worker.cell, _died(worker.process.exitcode))
                    else:
                        idle.append(worker)
                    if outcome is not None:
                        yield outcome
        finally:
            _stop([*idle, *busy])


class _Process:
    """One process in a pool of its own, so that the pool's death tells which cell died with it."""

    cell: AnyCell
    future: Future[Outcome]

    def __init__(self, train: Train) -> None:
        # "spawn": no lock, no open store and no thread of the driver is inherited.
        context = multiprocessing.get_context("spawn")
        self._progress, theirs = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(train, theirs))
        self._orphans = False
        before = multiprocessing.active_children()
        with _interrupts_held():
            self._pool.submit(os.getpid)  # starts the process
        theirs.close()
        (self.process,) = set(multiprocessing.active_children()) - set(before)

    def start(self, cell: AnyCell) -> None:
        """Begin a cell."""
        self.cell = cell
        try:
            self.future = self._pool.submit(_train, cell)
        except BrokenProcessPool as error:  # it has died since its last cell
            self.future = Future()
            self.future.set_exception(error)

    def relay(self, tell: TellOf) -> None:
        """Pass on what the process has told of its progress."""
        with suppress(EOFError, OSError):
            while self._progress.poll():
                tell(self.cell, self._progress.recv())

    def outcome(self) -> Outcome | None:
        """The outcome of the cell, or None if the process has died."""
        try:
            error = self.future.exception(timeout=1.0)
        except TimeoutError:  # a child of the dead process holds its pipes open, so the pool has not noticed
            self._orphans = True
            return None
        if isinstance(error, BrokenProcessPool):
            return None
        if error is not None:
            return Outcome(self.cell, error=f"the result cannot be sent: {reason(error)}")
        return self.future.result()

    def close(self) -> None:
        """Let go of the pool of a process that has ended."""
        self._progress.close()
        self._pool.shutdown(wait=not self._orphans, cancel_futures=True)


def _stop(team: Sequence[_Process]) -> None:
    """End the processes of a team: all are asked at once, and those that do not go within a second are killed."""
    for worker in team:
        worker.process.terminate()
    deadline = time.monotonic() + 1.0
    for worker in team:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
        worker.close()


def _died(code: int | None) -> str:
    if code is None or code >= 0:
        return f"the worker process died (exit code {code})"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = "without a name"
    return f"the worker process died (killed by signal {-code}, {name})"


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


# In a worker process

_train_here: Train
_progress: Connection


def _begin(train: Train, progress: Connection) -> None:
    """Prepare a worker process: Ctrl-C is the driver's to handle, and without a driver there is nobody to work for."""
    global _train_here, _progress
    _train_here, _progress = train, progress
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


def _train(cell: AnyCell) -> Outcome:
    with one_thread():
        return attempt(_train_here, cell, now_and_then(_progress.send, 0.2))
