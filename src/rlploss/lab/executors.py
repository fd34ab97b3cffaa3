"""Provide the workers that train cells: this process, local processes, or a Dask cluster.

Each is a `concurrent.futures.Executor`. `lab.run` submits cells to it and stores the results.
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
# Seconds that a scheduler has to answer: the first time, and once connected.
TIMEOUT, PATIENCE = 10.0, 60.0
_ADDRESS = re.compile(r"([a-z]+://)?[^\s/]+:\d{1,5}")
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Workers:
    """Which workers to use, and how many cells they train at once."""

    kind: str
    count: int = 1
    address: str = ""

    def start(self, size: int) -> Team:
        """Return an executor for at most `size` cells at once."""
        if self.kind == "dask":
            return Cluster(self.address, size)
        return Processes(size) if self.kind == "local" else ThisProcess()


def parse_workers(text: str) -> Workers:
    """Read `inline` (this process), `local:N` (N processes) or `dask:ADDRESS`.

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
    """Train one cell. Return an exception as a sentence, because not every exception can be
    pickled.
    """
    try:
        return train(cell, lambda fraction: None)
    except (Exception, SystemExit) as error:  # a failed cell is reported, and the others continue
        return reason(error)


def reason(error: BaseException) -> str:
    """Return an exception as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class Team(Executor):
    """An executor that trains cells. It stops all work at the end of its `with` statement."""

    size = 1  # the number of cells that it trains at once

    def check(self) -> None:
        """Raise BrokenExecutor if a worker has died, LabError if no worker can be reached any
        more.
        """

    def news(self) -> str:
        """Return what the user should know about the workers now; usually nothing."""
        return ""

    def death(self) -> str:
        """Say how a worker died."""
        return "a worker was lost"


class ThisProcess(Team):
    """Runs each call in this process, as soon as it is submitted."""

    def submit(self, fn: Call, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the call, and return a finished future."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


# Processes of this machine


class Processes(Team, ProcessPoolExecutor):
    """New processes that compute on one thread, ignore Ctrl-C, and end with this process."""

    def __init__(self, size: int) -> None:
        # "spawn": the processes inherit no lock, no open store and no thread.
        context = multiprocessing.get_context("spawn")
        super().__init__(size, mp_context=context, initializer=_prepare_process)
        # Otherwise this process could not end while a call waits for a process that died.
        self._call_queue.cancel_join_thread()  # type: ignore[attr-defined]  # no public name
        self._results = self._result_queue._writer  # type: ignore[attr-defined]  # no public name
        self.size = size
        self._team = self._processes  # the pool drops it at shutdown, and `death` reads it later
        self._last_running = time.monotonic()  # the last time when no process was stopped

    def submit(self, fn: Call, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a process run the call; start a process if all are busy and the limit allows it."""
        with _interrupts_held():
            return super().submit(_on_one_thread, fn, *args, **kwargs)

    def check(self) -> None:
        """Raise BrokenExecutor if a process has died; the pool itself may wait for half a
        result.
        """
        if any(process.exitcode is not None for process in list(self._team.values())):
            raise BrokenExecutor

    def news(self) -> str:
        """Name the processes that have been stopped for a minute; their cells do not continue."""
        numbers = " ".join(str(number) for number in list(self._team) if _is_stopped(number))
        if not numbers:
            self._last_running = time.monotonic()
        return (time.monotonic() - self._last_running >= STOPPED_FOR) * (
            f"worker processes have been stopped for a minute: {numbers}; kill -CONT {numbers} lets"
            " them continue, kill -KILL makes rlploss try their cells again"
        )

    def death(self) -> str:
        """Say how the first process died, once all have ended. The pool terminated or killed the
        others, so any other exit code is that of the first.
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
        """Kill the processes at once."""
        for process in list(self._team.values()):
            process.kill()
        # The pool would wait for the rest of a result if its process died while sending it.
        self._results.close()
        super().shutdown(wait, cancel_futures=cancel_futures)


def _prepare_process() -> None:
    """Ignore Ctrl-C, which the parent process handles, and exit when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gone = [multiprocessing.parent_process().sentinel]  # type: ignore[union-attr]  # there is one
    threading.Thread(target=lambda: (connection.wait(gone), os._exit(1)), daemon=True).start()


def _on_one_thread(function: Call, *arguments: Any) -> Any:
    """Run a call on one thread. Sums over several threads round differently, so results would
    depend on the machine that trains a cell.
    """
    from threadpoolctl import threadpool_limits

    from rlploss._torch import one_torch_thread

    os.environ.update(_ONE_THREAD)  # for libraries that load later
    with threadpool_limits(1), one_torch_thread():
        return function(*arguments)


def _is_stopped(process: int) -> bool:
    """Return whether a child process is stopped."""
    with suppress(ChildProcessError, AttributeError):  # not on Windows
        look = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process, look) is not None
    return False


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block Ctrl-C in processes that start inside this block, even while they import; this process
    receives it afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # starting it later would unblock interrupts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# A Dask cluster: its workers have this package and fetch data themselves


class Cluster(Team):
    """The workers of a Dask scheduler, which gives the cell of a lost worker to another
    worker.

    With `size` 1 all cells go to the same worker, as long as it lives.
    """

    def __init__(self, address: str, size: int = 0) -> None:
        from distributed import Client

        with _answering(address):
            # Not direct: only the scheduler needs to be reachable.
            self._client = Client(
                address, timeout=TIMEOUT, set_as_default=False, direct_to_workers=False
            )
        self._address, self.addresses = address, list[str]()
        self.check()
        pinned = {"workers": self.addresses[:1], "allow_other_workers": True} if size == 1 else {}
        self._executor = self._client.get_executor(pure=False, **pinned)

    def submit(self, fn: Call, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a worker run the call; the worker refuses unless its code is that of this
        process.
        """
        from distributed.protocol.pickle import dumps

        from rlploss.lab.store import code_version

        call = dumps(partial(_call_there, code_version("**/*.py"), fn, *args, **kwargs))
        # The scheduler unpickles tasks. This one holds bytes, so the scheduler needs neither this
        # package nor torch.
        future: Future[Any] = self._executor.submit(lambda data: pickle.loads(data)(), call)
        return future

    def check(self) -> None:
        """Count the workers. Without workers the scheduler keeps the cells until one connects."""
        with _answering(self._address):
            scheduler = self._client.scheduler
            if self._client.status != "running" or scheduler is None:
                raise OSError("the connection was closed")  # the scheduler forgets submitted cells
            cores = self._client.sync(scheduler.ncores, workers=None, callback_timeout=PATIENCE)
        self.addresses, self.size = sorted(cores), len(cores)

    def news(self) -> str:
        """Report that there are no workers."""
        return (self.size == 0) * (
            f"no workers at {self._address}: waiting for one (dask worker {self._address}"
            " --nthreads 1); Ctrl-C stops"
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel everything that was submitted."""
        with suppress(OSError, RuntimeError):  # the scheduler may be unreachable
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
    """Run the call on a worker of a cluster, if its code has this version."""
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
