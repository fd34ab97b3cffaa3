"""Cells on a Dask cluster: the driver hands out one cell per worker process, and writes the rows itself.

The driver decides who trains what, and does not leave it to the scheduler. So a worker process trains one cell at a
time, a cell that kills workers is not mixed up with one that waits behind it, and data go to a worker before the first
cell that needs them, once.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import re
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rlploss import _checks
from rlploss.datasets import registry
from rlploss.datasets._progress import Quiet
from rlploss.lab import _remote, provenance
from rlploss.lab.errors import LabError
from rlploss.lab.study import Cell
from rlploss.lab.workers import TRIES, Outcome, Retries, Say, TellOf, Train, reason

LOOK_EVERY = 0.5  # seconds between looks at who is there
PAUSE = 0.02  # seconds between looks at what has come
PATIENCE = 60.0  # seconds for an answer of a scheduler that is connected, but may be busy
SENDS = 2  # pieces of data on their way at once: they pass through the scheduler's memory
_ADDRESS = re.compile(r"([a-z]+://)?[^\s/]+:\d{1,5}")


class ClusterError(LabError):
    """The cluster cannot be used; the message is one sentence for the user."""


class DaskWorkers:
    """The workers of the Dask scheduler at `address`, which may come and go.

    Every worker process trains one cell at a time, with one thread; start it with one thread (`--nthreads 1`) and have
    one process per core. A cell whose worker is lost is tried again on another, `tries` times in all. Cells whose task
    is `timed` come last, one at a time and all on the same worker: their seconds are results.
    """

    def __init__(self, address: str, *, timeout: float = 10.0, tries: int = TRIES) -> None:
        if not _ADDRESS.fullmatch(address):
            raise ValueError(
                f'workers must be "dask:tcp://HOST:PORT", got {f"dask:{address}"!r}; a scheduler prints its '
                "address when it starts"
            )
        self.address = address
        self.timeout = _checks.number("timeout", timeout, minimum=0.1)
        self.tries = _checks.count("tries", tries)
        with self._client() as client:
            self.count = max(1, len(self._addresses(client)))

    def __str__(self) -> str:
        return f"dask:{self.address}"

    def run(self, train: Train, cells: Sequence[Cell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        """See `Workers.run`."""
        with self._client() as client:
            study = _Study(self, client, train, tell, say)
            yield from study.work([c for c in cells if not c.task.get("timed")])
            yield from study.work([c for c in cells if c.task.get("timed")], together=False)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        """A connection; the scheduler lets go of everything that was asked for by a client that leaves."""
        client = self._connect()
        log = logging.getLogger("distributed.client")  # pages about a lost scheduler, which is one sentence of ours
        level = log.level
        log.setLevel(logging.CRITICAL)
        try:
            yield client
        finally:
            with suppress(OSError, RuntimeError):  # the scheduler may be gone
                client.close(timeout=1.5)
            log.setLevel(level)

    def _connect(self) -> Any:
        try:
            from distributed import Client
        except ImportError:
            raise ClusterError(
                f'workers "{self}" need the package distributed, which is not installed: '
                "pip install 'rlploss[cluster]'"
            ) from None
        try:
            return Client(
                self.address,
                timeout=self.timeout,
                set_as_default=False,
                direct_to_workers=False,  # only the scheduler has to be within reach
                name="rlploss",
            )
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"no Dask scheduler answered at {self.address} within {self.timeout:g} s ({_short(error)}); "
                "check the address, or start one there: dask scheduler"
            ) from None

    def _addresses(self, client: Any) -> set[str]:
        """The addresses of all workers."""
        if client.status != "running":  # all that was asked of it is forgotten, even if it comes back
            raise self.lost("the connection was closed")
        try:
            found = client.sync(client.scheduler.ncores, workers=None, callback_timeout=PATIENCE)
        except (OSError, RuntimeError, AttributeError) as error:  # an AttributeError once the client has given up
            raise self.lost(error) from None
        return set(found)

    def lost(self, error: object) -> ClusterError:
        """The scheduler has gone."""
        return ClusterError(
            f"the Dask scheduler at {self.address} does not answer any more ({_short(error)}); what is stored is "
            "kept, and the same command goes on when it is back"
        )


def _short(error: object) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"


@dataclass(eq=False)
class _Seat:
    """A worker as the driver knows it."""

    address: str
    process: str = ""  # unknown until it has introduced itself
    held: frozenset[str] = frozenset()
    job: _Job | None = None
    unfit: str = ""  # why it cannot be used


@dataclass(eq=False)
class _Job:
    """Something asked of a worker."""

    kind: str  # "introduce", "hold" or "train"
    seat: _Seat
    future: Any = field(repr=False)
    cell: Cell | None = None


class _Study:
    """One run: who is there, what they are doing, what is still waiting."""

    def __init__(self, workers: DaskWorkers, client: Any, train: Train, tell: TellOf, say: Say) -> None:
        from distributed import as_completed
        from distributed.protocol.pickle import dumps

        self._workers, self._client, self._tell, self._say = workers, client, tell, say
        self._done = as_completed(loop=client.loop, with_results=True, raise_errors=False)
        self._seats: dict[str, _Seat] = {}
        self._jobs: dict[str, _Job] = {}
        self._waiting: deque[Cell] = deque()
        self._retries = Retries(self._waiting, say, workers.tries)
        self._looked = -LOOK_EVERY
        self._deserted = False
        self._timer: _Seat | None = None  # the one that trains cells whose seconds count
        module = str(getattr(train, "__module__", ""))
        self._root = module if module.startswith("rlploss.") else ""
        self._engine = provenance.engine(self._root) if self._root else ""
        function: bytes = dumps(train)
        self._trainer = hashlib.sha256(function).hexdigest()
        self._data = {self._trainer: function}
        self._events: deque[dict[str, Any]] = deque()
        client.subscribe_topic(_remote.TOPIC, lambda event: self._events.append(event[1]))

    def work(self, cells: Sequence[Cell], *, together: bool = True) -> Generator[Outcome]:
        """Train these cells, as many at once as there are workers or one after the other."""
        self._waiting.extend(cells)
        while self._waiting or any(job.kind == "train" for job in self._jobs.values()):
            came = self._done.next_batch(block=False)
            for future, result in came:
                yield from self._take(future, result)
            if time.monotonic() - self._looked >= LOOK_EVERY:
                yield from self._look()
                self._looked = time.monotonic()
            yield from self._assign(together)
            while self._events:
                event = self._events.popleft()
                job = self._jobs.get(event["job"])
                if job is not None and job.cell is not None:
                    self._tell(job.cell, event["done"])
            if not came:
                time.sleep(PAUSE)

    # Who is there

    def _look(self) -> Iterator[Outcome]:
        addresses = self._workers._addresses(self._client)
        for address in self._seats.keys() - addresses:
            yield from self._lost(self._seats.pop(address))
        for address in sorted(addresses - self._seats.keys()):
            self._seats[address] = _Seat(address)
        for seat in self._seats.values():
            if not seat.process and not seat.unfit and seat.job is None:
                self._ask("introduce", seat, _remote.introduce, self._root)
        if not self._seats and not self._deserted:
            here = self._workers.address
            self._say(f"no workers at {here}: waiting for one (dask worker {here} --nthreads 1); Ctrl-C stops")
        elif self._seats and self._deserted:
            self._say("a worker has come: going on")
        self._deserted = not self._seats
        if self._seats and all(seat.unfit for seat in self._seats.values()):
            reasons = "; ".join(dict.fromkeys(seat.unfit for seat in self._seats.values()))
            raise ClusterError(f"no worker at {self._workers.address} can be used: {reasons}")

    def _lost(self, seat: _Seat) -> Iterator[Outcome]:
        """A worker has gone, or another process answers at its address: its cell is tried elsewhere."""
        job, seat.job, seat.process = seat.job, None, ""
        if job is None:
            return
        if self._jobs.pop(job.future.key, None) is not None:
            job.future.cancel()
        if job.cell is not None:
            given_up = self._retries.lost(job.cell, f"worker {seat.address} was lost")
            if given_up is not None:
                yield given_up

    # What they do

    def _assign(self, together: bool) -> Iterator[Outcome]:
        for seat in self._free(together):
            if not self._waiting:
                return
            cell = self._waiting[0]
            try:
                files = self._files(cell)
            except Exception as error:  # a dataset that cannot be had
                yield Outcome(self._waiting.popleft(), error=reason(error))
                return
            needed = (self._trainer, *files)
            missing = next((key for key in needed if key not in seat.held), None)
            if missing is None:
                self._waiting.popleft()
                self._ask("train", seat, _remote.train, cell, self._trainer, files, cell=cell)
            elif sum(job.kind == "hold" for job in self._jobs.values()) < SENDS:
                self._ask("hold", seat, _remote.hold, missing, self._data[missing], needed)

    def _free(self, together: bool) -> list[_Seat]:
        seats = [seat for seat in self._seats.values() if seat.process and not seat.unfit]
        if not together:
            if self._timer not in seats:
                self._timer = seats[0] if seats else None
            seats = [seat for seat in seats if seat is self._timer]
        return [seat for seat in seats if seat.job is None]

    def _files(self, cell: Cell) -> tuple[str, ...]:
        """The data files that a cell needs, by SHA-256; their bytes are kept to be sent."""
        item = registry.ENTRIES.get(str(cell.task.get("dataset")))
        files = item.files if item is not None else ()
        if item is not None and any(file.sha256 not in self._data for file in files):
            found = registry.fetch(item.name, progress=Quiet())
            self._data |= {file.sha256: found[file.name] for file in files}
        return tuple(file.sha256 for file in files)

    def _ask(
        self, kind: str, seat: _Seat, function: Callable[..., Any], *arguments: Any, cell: Cell | None = None
    ) -> None:
        name = f"rlploss-{kind}-{uuid.uuid4().hex}"
        if kind == "train":
            arguments = (name, *arguments)
        task = pickle.dumps(_remote.Call(function, arguments))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sending large graph")  # it is data, once per worker
            future = self._client.submit(
                pickle.loads, task, key=name, pure=False, workers=[seat.address], allow_other_workers=False
            )
        seat.job = self._jobs[name] = _Job(kind, seat, future, cell)
        self._done.add(future)

    # What comes back

    def _take(self, future: Any, result: Any) -> Iterator[Outcome]:
        from distributed import KilledWorker

        status, job = future.status, self._jobs.pop(future.key, None)
        future.release()  # what the cluster still holds, it computes again when its worker dies
        if job is None:  # no longer wanted
            return
        seat = job.seat
        if status == "finished":
            seat.job = None
            yield from self._accept(job, result)
        elif status == "error" and not isinstance(result[1], KilledWorker):
            seat.job = None
            yield from self._refuse(job, result[1])
        elif self._client.status == "running":  # it has died, or somebody has restarted all workers
            yield from self._lost(seat)
        else:
            raise self._workers.lost(result)

    def _accept(self, job: _Job, result: Outcome | _remote.Card) -> Iterator[Outcome]:
        seat = job.seat
        if isinstance(result, Outcome):
            yield result
            return
        seat.held = result.held
        if job.kind == "introduce":
            seat.process = result.process
            if result.engine != self._engine:
                self._set_aside(seat, _difference(result.versions))
        elif job.cell is not None and result.process == seat.process:  # it had to make room meanwhile
            self._waiting.appendleft(job.cell)
        elif result.process != seat.process:  # restarted at the same address
            seat.job = job
            yield from self._lost(seat)

    def _refuse(self, job: _Job, error: BaseException) -> Iterator[Outcome]:
        if job.cell is not None:
            yield Outcome(job.cell, error=reason(error))
        else:
            self._set_aside(job.seat, f"it cannot take part ({_short(reason(error))})")

    def _set_aside(self, seat: _Seat, why: str) -> None:
        seat.unfit = why
        self._say(f"worker {seat.address} is left aside: {why}")


def _difference(theirs: dict[str, str]) -> str:
    ours = provenance.versions()
    for name in ("torch", "rlploss"):
        if ours[name] != theirs[name]:
            return f"it has {name} {theirs[name]}, the driver {ours[name]}; install the same there"
    return "its rlploss has other code than the driver's; install the same there"
