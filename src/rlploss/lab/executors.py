"""Who trains cells: this process, processes of this machine, or the workers of a Dask cluster.

Each is a `concurrent.futures.Executor`. `lab.run` submits cells to it, waits, and stores what
comes.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import connection, resource_tracker
from typing import TYPE_CHECKING, Any

from rlploss._extras import need
from rlploss.lab.text import LabError, sentence

if TYPE_CHECKING:
    from rlploss.lab.study import AnyCell, CellResult, Train

Call = Callable[..., Any]
STOPPED_FOR = 60.0  # seconds after which a process that is stopped is reported
TIMEOUT, PATIENCE = 10.0, 60.0  # seconds for a scheduler to answer at first, and once connected
_ADDRESS = re.compile(r"([a-z]+://)?[^\s/]+:\d{1,5}")
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Workers:
    """Who is to train, and how many cells at once."""

    kind: str
    count: int = 1
    address: str = ""

    def start(self, size: int) -> Team:
        """Return an executor for at most `size` cells at once."""
        if self.kind == "dask":
            return Cluster(self.address, size)
        return Processes(size) if self.kind == "local" else ThisProcess()


def parse_workers(text: str) -> Workers:
    """Return what `inline` (this process), `local:N` (N processes) or `dask:ADDRESS` stands for.

    >>> parse_workers("local:2").count
    2
    """
    kind, _, rest = text.partition(":")
    if text == "inline":
        return Workers(kind)
    if kind == "local" and re.fullmatch("[1-9][0-9]{0,3}|", rest):
        return Workers(kind, int(rest or cores()))
    if kind == "dask" and _ADDRESS.fullmatch(rest):
        need("cluster", f'workers "{text}"', "distributed")
        with Cluster(rest) as cluster:
            return Workers(kind, max(1, cluster.size), rest)
    raise ValueError(
        f'workers must be "inline", "local:N" or "dask:tcp://HOST:PORT", got {text!r}; try'
        ' "local:2"'
    )


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def attempt(train: Train, cell: AnyCell) -> CellResult | str:
    """Train one cell. An exception becomes a reason, because not every one can be sent back."""
    try:
        return train(cell, lambda fraction: None)
    except (Exception, SystemExit) as error:  # a cell that fails is reported; the others go on
        return reason(error)


def reason(error: BaseException) -> str:
    """Return an exception as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class Team(Executor):
    """An executor that trains cells. At the end of a `with` statement it stops all work at once."""

    size = 1  # how many cells it trains at once

    def check(self) -> None:
        """Raise BrokenExecutor if a worker has died, LabError if there can be none any more."""

    def news(self) -> str:
        """Return what the user should know about the workers now, as a rule nothing."""
        return ""

    def death(self) -> str:
        """Return how a worker has died."""
        return "a worker was lost"


class ThisProcess(Team):
    """Make each call in this process, at the moment it is submitted."""

    def submit(self, fn: Call, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return a future that is done."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


# Processes of this machine


class Processes(Team, ProcessPoolExecutor):
    """Fresh processes that compute with one thread, ignore Ctrl-C, and end with this process."""

    def __init__(self, size: int) -> None:
        # "spawn": no lock, no open store and no thread of this process is inherited.
        context = multiprocessing.get_context("spawn")
        super().__init__(size, mp_context=context, initializer=_prepare_process)
        # Nor would it end before a process has taken its call, which one that died never does.
        self._call_queue.cancel_join_thread()  # type: ignore[attr-defined]  # no public name
        self._results = self._result_queue._writer  # type: ignore[attr-defined]  # no public name
        self.size = size
        self._team = self._processes  # which the pool forgets when it shuts down
        self._last_running = time.monotonic()  # when no process was stopped

    def submit(self, fn: Call, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a process make the call; a new one, if all are busy and there may be more."""
        with _interrupts_held():
            return super().submit(_on_one_thread, fn, *args, **kwargs)

    def check(self) -> None:
        """Raise BrokenExecutor if a process has died: the pool may wait for half a result."""
        if any(process.exitcode is not None for process in list(self._team.values())):
            raise BrokenExecutor

    def news(self) -> str:
        """Return which processes have been stopped for a minute; nobody finishes their cells."""
        numbers = " ".join(str(number) for number in list(self._team) if _is_stopped(number))
        if not numbers:
            self._last_running = time.monotonic()
        return (time.monotonic() - self._last_running >= STOPPED_FOR) * (
            f"worker processes have been stopped for a minute: {numbers}; kill -CONT {numbers} lets"
            " them go on, kill -KILL has their cells tried again"
        )

    def death(self) -> str:
        """Return how a process has died, once all have ended: the others were terminated or killed,
        so any other code is that of the one to blame.
        """
        ours = {-signal.SIGKILL: 1, -signal.SIGTERM: 2, 0: 3}
        code = min(
            (process.exitcode or 0 for process in list(self._team.values())),
            key=lambda code: ours.get(code, 0),
            default=0,
        )
        how = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
        return f"a worker process died ({how})"

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Kill the processes, whatever they do."""
        for process in list(self._team.values()):
            process.kill()
        # The pool would wait for the other half of a result whose process died while it sent it.
        self._results.close()
        super().shutdown(wait, cancel_futures=cancel_futures)


def _prepare_process() -> None:
    """Leave Ctrl-C to the driver, and exit when the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gone = [multiprocessing.parent_process().sentinel]  # type: ignore[union-attr]  # there is one
    threading.Thread(target=lambda: (connection.wait(gone), os._exit(1)), daemon=True).start()


def _on_one_thread(function: Call, *arguments: Any) -> Any:
    """Make a call with one thread: sums that are shared out among threads round differently, so
    results would depend on where a cell is trained.
    """
    from threadpoolctl import threadpool_limits

    from rlploss._torch import one_torch_thread

    os.environ.update(_ONE_THREAD)  # for libraries that are loaded later
    with threadpool_limits(1), one_torch_thread():
        return function(*arguments)


def _is_stopped(process: int) -> bool:
    """Return whether a process that this one started is stopped."""
    with suppress(ChildProcessError, AttributeError):  # Windows has no such thing
        look = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process, look) is not None
    return False


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C from processes that are started in here, even while they import; this process
    gets it afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # its own start would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# A Dask cluster, whose workers have this package and fetch data themselves


class Cluster(Team):
    """The workers of a Dask scheduler, which gives the cell of a lost worker to another one.

    With `size` 1 all cells go to the same worker, as long as it is there.
    """

    def __init__(self, address: str, size: int = 0) -> None:
        from distributed import Client

        with _answering(address):
            # Not direct: only the scheduler has to be within reach.
            self._client = Client(
                address, timeout=TIMEOUT, set_as_default=False, direct_to_workers=False
            )
        self._address, self.addresses = address, list[str]()
        self.check()
        pinned = {"workers": self.addresses[:1], "allow_other_workers": True} if size == 1 else {}
        self._executor = self._client.get_executor(pure=False, **pinned)

    def submit(self, fn: Call, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a worker make the call, if all of its code is that of this process."""
        from distributed.protocol.pickle import dumps

        from rlploss.lab.store import code_version

        call = dumps(partial(_call_there, code_version("**/*.py"), fn, *args, **kwargs))
        # The scheduler unpickles tasks; it sees bytes only, so it needs neither this package nor
        # torch.
        future: Future[Any] = self._executor.submit(lambda data: pickle.loads(data)(), call)
        return future

    def check(self) -> None:
        """Count the workers. Without any the scheduler keeps the cells until one comes."""
        with _answering(self._address):
            scheduler = self._client.scheduler
            if self._client.status != "running" or scheduler is None:
                raise OSError("the connection was closed")  # what was asked for is forgotten
            cores = self._client.sync(scheduler.ncores, workers=None, callback_timeout=PATIENCE)
        self.addresses, self.size = sorted(cores), len(cores)

    def news(self) -> str:
        """Say so if there are no workers."""
        return (self.size == 0) * (
            f"no workers at {self._address}: waiting for one (dask worker {self._address}"
            " --nthreads 1); Ctrl-C stops"
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let go of everything that was asked for."""
        with suppress(OSError, RuntimeError):  # the scheduler may be gone
            self._client.close(timeout=1.5)


@contextmanager
def _answering(address: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError, AttributeError) as error:
        raise LabError(
            f"no Dask scheduler answers at {address} ({sentence(str(error), 200)}); check the"
            " address, or start one there (dask scheduler) and give the same command again"
        ) from None


_one_cell = threading.Lock()  # networks are initialised with torch's global generator


def _call_there(version: str, function: Call, *arguments: Any) -> CellResult | str:
    """Make the call on a worker of a cluster, if its code is that of the driver."""
    from distributed import get_worker

    from rlploss.lab.store import code_version, machine

    if code_version("**/*.py") != version:
        raise ImportError(
            f"the worker {get_worker().address} has another torch or other code of rlploss than"
            " this process; install the same there",
            name="rlploss",
        )
    with _one_cell:
        outcome: CellResult | str = _on_one_thread(function, *arguments)
    if isinstance(outcome, str):
        return outcome
    place = ", ".join(f"{key} {value}" for key, value in machine().items())
    return replace(outcome, notes=(*outcome.notes, f"trained by a Dask worker: {place}"))
