"""Where cells are trained: in this process, in a few processes of this machine, or on a cluster (`lab.cluster`).

Nothing heavy is imported at the top, so that a process can import what it needs while its driver still does.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from rlploss.lab.study import AnyCell, CellResult, Tell, TellOf, Train

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
    """Something that trains cells; it never writes to the store."""

    count: int  # how many cells train at once

    def run(self, train: Train, cells: Sequence[AnyCell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        """Train the cells, yield an outcome for each as they come; closing the iterator stops all work."""


def parse_workers(text: str) -> Workers:
    """`"local:2"` (two processes), `"inline"` (this process) or `"dask:tcp://HOST:PORT"` (a Dask cluster).

    >>> parse_workers("local:2").count
    2
    """
    kind, _, rest = text.partition(":")
    if kind == "inline" and not rest:
        return Inline()
    if kind == "local" and (not rest or rest.isdecimal()):
        return LocalProcesses(int(rest) if rest else cores())
    if kind == "dask":
        from rlploss.lab.cluster import DaskWorkers

        return DaskWorkers(rest)
    raise ValueError(f'workers must be "inline", "local:N" or "dask:tcp://HOST:PORT", got {text!r}; try "local:2"')


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Inline:
    """One cell after another, in this process."""

    count = 1

    def run(self, train: Train, cells: Sequence[AnyCell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        for cell in cells:
            yield attempt(train, cell, partial(tell, cell))


def attempt(train: Train, cell: AnyCell, tell: Tell) -> Outcome:
    """Train one cell; an exception becomes a reason."""
    try:
        return Outcome(cell, train(cell, tell))
    except (Exception, SystemExit) as error:  # a cell that fails is reported; the others go on
        return Outcome(cell, error=reason(error))


def reason(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch, BLAS and OpenMP in this thread, and for what is loaded meanwhile; as before afterwards.

    Sums that are shared out among threads round differently, so results would depend on where a cell ran.
    """
    from threadpoolctl import threadpool_limits

    from rlploss.distributed import one_torch_thread

    before = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    with threadpool_limits(1), one_torch_thread():
        try:
            yield
        finally:
            for name in _THREAD_VARIABLES:
                del os.environ[name]
            os.environ.update(before)


# Workers that may die: processes of this machine, and those of a cluster

W = TypeVar("W", bound=Hashable)
Training = Iterator[Outcome | float | None]  # how far a cell is, None: nothing new; last its outcome, or `WorkerLost`


class WorkerLost(Exception):
    """A worker has gone with its cell; without words if it had not begun, which is no try."""


def keep_busy(
    look: Callable[[int], Sequence[W]],
    begin: Callable[[W, AnyCell], Training],
    waiting: deque[AnyCell],
    tell: TellOf,
    say: Say,
) -> Generator[Outcome | None]:
    """Have the workers begin a cell each; yield an outcome for every cell, and None while there is no news.

    `look` finds the workers there are, of which so many are of use. A cell whose worker is lost is tried again behind
    the others, three times in all. Cells whose task is `timed` come last, one at a time and on one worker: their
    seconds are results. Who is yielded to may take cells out of those that wait.
    """
    timed = [cell for cell in waiting if cell.task.timed]
    alone = False
    for cell in timed:
        waiting.remove(cell)
    lost: Counter[AnyCell] = Counter()
    busy: dict[W, tuple[AnyCell, Training]] = {}
    while waiting or busy or timed:
        if not waiting and not busy:
            waiting.extend(timed)
            timed.clear()
            alone = True
        for worker in look(1 if alone else len(waiting) + len(busy)):
            if worker not in busy and waiting:
                cell = waiting.popleft()
                busy[worker] = cell, begin(worker, cell)
        before = len(busy)
        for worker, (cell, training) in list(busy.items()):
            try:
                news = next(training)
            except WorkerLost as how:
                del busy[worker]
                lost[cell] += bool(str(how))
                if not str(how):
                    waiting.appendleft(cell)
                elif lost[cell] < TRIES:
                    waiting.append(cell)
                    say(f"{how}; {cell} is tried again ({lost[cell] + 1} of {TRIES})")
                else:
                    yield Outcome(cell, error=f"{how}, as in each of {TRIES} tries")
                continue
            if isinstance(news, Outcome):
                del busy[worker]
                yield news
            else:
                tell(cell, news)
        if len(busy) == before:
            yield None


@dataclass
class LocalProcesses:
    """`count` processes, one thread each, so that results do not depend on how many there are.

    With `here`, this process is one of them, and does what one that died leaves; the others begin when they are needed
    and stay until `close`, so that they import everything once. `team` are processes that wait already.
    """

    count: int
    here: bool = False
    team: list[Process] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"workers must be at least 1, got {self.count}; local:1 is one process")

    def run(self, train: Train, cells: Sequence[AnyCell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        waiting = deque(cells)
        stay = False
        running = keep_busy(self._look, lambda process, cell: process.train(train, cell), waiting, tell, say)
        try:
            for outcome in running:
                if outcome is not None:
                    yield outcome
                elif self.here and waiting:
                    yield from self._train_here(train, waiting.popleft(), tell, running)
                else:
                    wait([process.pipe for process in self.team], 0.2)
            stay = self.here
        finally:
            if not stay:
                self.close()

    def close(self) -> None:
        """End the processes."""
        _stop(self.team)
        self.team.clear()

    def _look(self, most: int) -> list[Process]:
        """The processes that are of use now; beside this one, none takes the place of one that died."""
        gone = [one for one in self.team if not one.process.is_alive()]
        _stop(gone)
        self.team[:] = [one for one in self.team if one not in gone]
        self.count -= len(gone) if self.here else 0
        size = max(0, min(self.count, most) - self.here)
        self.team.extend(Process() for _ in range(size - len(self.team)))
        return self.team[:size]

    def _train_here(
        self, train: Train, cell: AnyCell, tell: TellOf, running: Generator[Outcome | None]
    ) -> Iterator[Outcome]:
        """Train a cell in this process; whenever it tells how far it is, the others are looked after."""
        others: list[Outcome | None] = []
        trouble: list[Exception] = []  # of the others: no failure of this cell

        def told(fraction: float) -> None:
            tell(cell, fraction)
            try:
                others.append(next(running, None))
            except Exception as error:
                trouble.append(error)

        with one_thread():
            outcome = attempt(train, cell, told)
        yield from (one for one in (outcome, *others) if one is not None)
        if trouble:
            raise trouble[0]


class Process:
    """A process that imports some modules, is sent cells, and sends back how far it is and outcomes."""

    def __init__(self, *modules: str) -> None:
        # "spawn": no lock, no open store and no thread of the driver is inherited.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(modules, theirs))
        self._function: Train | None = None  # which it has
        with _interrupts_held():
            self.process.start()
        theirs.close()

    def train(self, function: Train, cell: AnyCell) -> Training:
        """Send a cell, and the function if it is another one than before; see `Training`."""
        with suppress(EOFError, OSError):
            try:
                self.pipe.send((None if function is self._function else function, cell))
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                yield Outcome(cell, error=f"the cell cannot be sent: {reason(error)}")
            self._function = function
            # A child of a dead process may hold the pipe open. What it sent before it died counts.
            while self.process.is_alive() or self.pipe.poll():
                news: Outcome | float | None = None
                while not isinstance(news, Outcome) and self.pipe.poll():
                    news = self.pipe.recv()
                yield news
        self.process.join(1.0)
        code = self.process.exitcode
        ending = f"exit code {code}"
        if code is not None and code < 0:
            name = next((one.name for one in signal.Signals if one == -code), "without a name")
            ending = f"killed by signal {-code}, {name}"
        raise WorkerLost(f"the worker process died ({ending})")


def _stop(team: Sequence[Process]) -> None:
    """End some processes: all are asked at once, and those that do not go within a second are killed."""
    for one in team:
        one.process.terminate()
    deadline = time.monotonic() + 1.0
    for one in team:
        one.process.join(max(0.0, deadline - time.monotonic()))
        if one.process.is_alive():
            one.process.kill()
        one.pipe.close()


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


def _work(modules: Sequence[str], driver: Connection) -> None:
    """The life of a process. Ctrl-C is the driver's to handle; without a driver there is nobody to work for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    for name in modules:
        import_module(name)
    function: Any = None
    with suppress(EOFError, OSError):
        while True:
            new, cell = driver.recv()
            function = new or function
            with one_thread():
                outcome = attempt(function, cell, driver.send)
            try:
                driver.send(outcome)
            except Exception as error:
                driver.send(Outcome(cell, error=f"the result cannot be sent: {reason(error)}"))
