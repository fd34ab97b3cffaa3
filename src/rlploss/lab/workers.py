"""Where cells are trained: in this process, in a few processes of this machine, or on a cluster (`lab.cluster`).

Anything with the `run` method of `Workers` can take their place: it is handed cells and a training function, and
yields one `Outcome` per cell, in any order. It never writes to the store.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Protocol

from rlploss import _checks
from rlploss.distributed import one_torch_thread
from rlploss.lab.processes import Process, cores, stop
from rlploss.lab.study import AnyCell, CellResult, Tell

Train = Callable[[AnyCell, Tell], CellResult]
TellOf = Callable[[AnyCell, float | None], None]  # how far a cell has come; None: it still trains
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
        return LocalProcesses(int(rest) if rest else cores())
    if kind == "dask":
        from rlploss.lab.cluster import DaskWorkers

        return DaskWorkers(rest)
    raise ValueError(f'workers must be "inline", "local:N" or "dask:tcp://HOST:PORT", got {text!r}; try "local:2"')


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
    due = 0.0

    def told(fraction: float) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + seconds
            tell(float(fraction))

    return told


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch, BLAS and OpenMP in this thread, and for what is loaded meanwhile; as before afterwards.

    Sums that are shared out among threads round differently, so results would depend on where a cell ran.
    """
    from threadpoolctl import threadpool_limits

    before = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    with threadpool_limits(1), one_torch_thread():
        try:
            yield
        finally:
            for name in _THREAD_VARIABLES:
                del os.environ[name]
            os.environ.update(before)


class WorkerLost(Exception):
    """A worker has gone with its cell; without words if it had not begun, which is no try."""


class Worker(Protocol):
    """A process that trains one cell at a time and may die."""

    def train(self, cell: AnyCell) -> Iterator[Outcome | float | None]:
        """Begin a cell. Yield how far it is (None: nothing new), and last its outcome, or raise `WorkerLost`."""


Look = Callable[[int, bool], Sequence[Worker]]  # (cells left, whether one trains alone) to the workers there are


def keep_busy(look: Look, waiting: deque[AnyCell], tell: TellOf, say: Say) -> Generator[Outcome | None]:
    """Give the workers that `look` finds a cell each; yield an outcome for every cell, and None while there is no news.

    A cell whose worker is lost is tried again behind the others, three times in all. Cells whose task is `timed` come
    last, one at a time and on one worker. Who is yielded to may take cells out of those that wait.
    """
    timed, alone = [cell for cell in waiting if cell.task.timed], False
    for cell in timed:
        waiting.remove(cell)
    lost = Counter[AnyCell]()
    busy: dict[Worker, tuple[AnyCell, Iterator[Outcome | float | None]]] = {}
    while waiting or busy or timed:
        if not waiting and not busy:
            waiting.extend(timed)
            timed, alone = [], True
        for worker in look(len(waiting) + len(busy), alone):
            if worker not in busy and waiting:
                cell = waiting.popleft()
                busy[worker] = cell, worker.train(cell)
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

    A cell whose process dies is tried again, three times in all. Cells whose task is `timed` run alone, after the
    others: their seconds are results. With `here`, this process is one of them, and does what one that died leaves;
    the others begin when they are needed and stay until `close`, so that they import everything once.
    """

    count: int
    here: bool = False
    begun: list[Process] = field(default_factory=list, repr=False, compare=False)  # processes that wait already
    _team: list[_Process] = field(default_factory=list, init=False, repr=False, compare=False)
    _lost: int = field(default=0, init=False, repr=False, compare=False)  # processes that died beside this one

    def __post_init__(self) -> None:
        _checks.count("workers", self.count)

    def __str__(self) -> str:
        return f"local:{self.count}"

    def run(self, train: Train, cells: Sequence[AnyCell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        """See `Workers.run`."""
        if any(worker.trains is not train for worker in self._team):
            self.close()
        waiting, stay = deque(cells), False
        running = keep_busy(partial(self._look, train), waiting, tell, say)
        try:
            for outcome in running:
                if outcome is not None:
                    yield outcome
                elif self.here and waiting:
                    yield from self._train_here(train, waiting.popleft(), tell, running)
                else:
                    wait([worker.own.pipe for worker in self._team], 0.2)
            stay = self.here
        finally:
            if not stay:
                self.close()

    def close(self) -> None:
        """End the processes."""
        stop([*self.begun, *(worker.own for worker in self._team)])
        self.begun.clear()
        self._team = []

    def _look(self, train: Train, left: int, alone: bool) -> list[_Process]:
        """The processes that are of use now; beside this one, none takes the place of one that died."""
        gone = [worker for worker in self._team if not worker.own.process.is_alive()]
        stop([worker.own for worker in gone])
        self._team = [worker for worker in self._team if worker not in gone]
        self._lost += len(gone) if self.here else 0
        size = self.count - self.here - self._lost
        if alone:
            size = 0 if self.here else 1
        while len(self._team) < min(size, left - self.here):
            self._team.append(_Process(train, self.begun.pop() if self.begun else Process()))
        return self._team[:size]

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


class _Process:
    """One process that is sent cells, and sends back how far it is and outcomes."""

    def __init__(self, train: Train, process: Process) -> None:
        self.trains, self.own = train, process
        with suppress(OSError):  # it has died already, as the first cell tells
            process.pipe.send(train)

    def train(self, cell: AnyCell) -> Iterator[Outcome | float | None]:
        """See `Worker.train`."""
        process, pipe = self.own.process, self.own.pipe
        with suppress(EOFError, OSError):
            try:
                pipe.send(cell)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                yield Outcome(cell, error=f"the cell cannot be sent: {reason(error)}")
            # A child of a dead process may hold the pipe open. What it sent before it died counts.
            while process.is_alive() or pipe.poll():
                news: Outcome | float | None = None
                while not isinstance(news, Outcome) and pipe.poll():
                    news = pipe.recv()
                yield news
        process.join(1.0)
        raise WorkerLost(f"the worker process died ({self.own.ending()})")


def live(driver: Connection) -> None:
    """What a process does: it is sent the training function, then cells."""
    with suppress(EOFError, OSError):
        train = driver.recv()
        while True:
            cell = driver.recv()
            with one_thread():
                outcome = attempt(train, cell, now_and_then(driver.send, 0.2))
            try:
                driver.send(outcome)
            except Exception as error:
                driver.send(Outcome(cell, error=f"the result cannot be sent: {reason(error)}"))
