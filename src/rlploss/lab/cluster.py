"""Cells on a Dask cluster: the driver hands out one cell per worker process, and writes the rows itself.

Each task is pinned to one worker process. So a worker trains one cell at a time, a cell that kills workers is not mixed
up with one that waits behind it, and data go to a worker once, before the first cell that needs them.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rlploss import _checks
from rlploss.datasets import registry
from rlploss.lab import provenance
from rlploss.lab.errors import LabError
from rlploss.lab.results import Tell
from rlploss.lab.workers import (
    TRIES,
    AnyCell,
    Outcome,
    Retries,
    Say,
    TellOf,
    Train,
    attempt,
    now_and_then,
    one_thread,
    reason,
)

TOPIC = "rlploss-progress"  # one for all drivers: the scheduler keeps a fixed number of events per topic
TELL_EVERY = 0.5  # seconds
LOOK_EVERY = 0.5  # seconds between looks at who is there
PAUSE = 0.02  # seconds between looks at what has come
PATIENCE = 60.0  # seconds for an answer of a scheduler that is connected, but may be busy
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
            self.count = max(1, len(self.processes(client)))

    def __str__(self) -> str:
        return f"dask:{self.address}"

    def run(self, train: Train, cells: Sequence[AnyCell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        """See `Workers.run`."""
        with self._client() as client:
            team = _Team(self, client, train, tell, say)
            yield from team.work([c for c in cells if not c.task.timed])
            yield from team.work([c for c in cells if c.task.timed], together=False)

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
            # Not direct: only the scheduler has to be within reach.
            return Client(
                self.address, timeout=self.timeout, set_as_default=False, direct_to_workers=False, name="rlploss"
            )
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"no Dask scheduler answered at {self.address} within {self.timeout:g} s ({_short(error)}); "
                "check the address, or start one there: dask scheduler"
            ) from None

    def processes(self, client: Any) -> dict[str, str]:
        """The address of every worker process by its id, which tells a restarted one from the one that was there."""
        if client.status != "running":  # all that was asked of it is forgotten, even if it comes back
            raise self.lost("the connection was closed")
        look = lambda dask_scheduler: {w.server_id: a for a, w in dask_scheduler.workers.items()}  # noqa: E731  # sent
        try:
            found: dict[str, str] = client.sync(client.run_on_scheduler, look, callback_timeout=PATIENCE)
        except (OSError, RuntimeError, AttributeError) as error:  # an AttributeError once the client has given up
            raise self.lost(error) from None
        return found

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
    """A worker process as the driver knows it."""

    id: str
    address: str
    held: dict[str, Any] = field(default_factory=dict)  # futures of the data that it has, by SHA-256
    cell: AnyCell | None = None
    future: Any = None
    unfit: str = ""  # why it cannot be used


class _Team:
    """One run: who is there, what they are doing, what is still waiting."""

    def __init__(self, workers: DaskWorkers, client: Any, train: Train, tell: TellOf, say: Say) -> None:
        from distributed import as_completed
        from distributed.protocol.pickle import dumps

        self._workers, self._client, self._tell, self._say = workers, client, tell, say
        self._done = as_completed(loop=client.loop, with_results=True, raise_errors=False)
        self._seats: dict[str, _Seat] = {}  # by id
        self._busy: dict[str, _Seat] = {}  # by the key of the task
        self._waiting: deque[AnyCell] = deque()
        self._retries = Retries(self._waiting, say, workers.tries)
        self._looked = -LOOK_EVERY
        self._deserted = False
        self._timer: _Seat | None = None  # the one that trains cells whose seconds count
        module = str(getattr(train, "__module__", ""))
        self._root = module if module.startswith("rlploss.") else ""
        self._code_version = provenance.code_version(self._root) if self._root else ""
        function: bytes = dumps(train)
        self._trainer = hashlib.sha256(function).hexdigest()
        self._data = {self._trainer: function}
        self._events: deque[dict[str, Any]] = deque()
        client.subscribe_topic(TOPIC, lambda event: self._events.append(event[1]))

    def work(self, cells: Sequence[AnyCell], *, together: bool = True) -> Generator[Outcome]:
        """Train these cells, as many at once as there are workers or one after the other."""
        self._waiting.extend(cells)
        while self._waiting or self._busy:
            came = self._done.next_batch(block=False)
            for future, result in came:
                yield from self._take(future, result)
            if time.monotonic() - self._looked >= LOOK_EVERY:
                yield from self._look()
                self._looked = time.monotonic()
            yield from self._assign(together)
            while self._events:
                event = self._events.popleft()
                seat = self._busy.get(event["job"])
                if seat is not None and seat.cell is not None:
                    self._tell(seat.cell, event["done"])
            if not came:
                time.sleep(PAUSE)

    def _look(self) -> Iterator[Outcome]:
        """See who has come and who has gone."""
        there = self._workers.processes(self._client)
        for gone in self._seats.keys() - there.keys():
            yield from self._lost(self._seats[gone])
        for id_, address in sorted(there.items(), key=lambda item: item[1]):
            self._seats.setdefault(id_, _Seat(id_, address))
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
        """A worker process has gone: its cell is tried elsewhere."""
        self._seats.pop(seat.id, None)
        cell, seat.cell = seat.cell, None
        if cell is None:
            return
        self._busy.pop(seat.future.key, None)
        seat.future.cancel()
        given_up = self._retries.lost(cell, f"worker {seat.address} was lost")
        if given_up is not None:
            yield given_up

    def _assign(self, together: bool) -> Iterator[Outcome]:
        """Give every free worker a cell."""
        seats = [seat for seat in self._seats.values() if not seat.unfit]
        if not together:
            if self._timer not in seats:
                self._timer = seats[0] if seats else None
            seats = [seat for seat in seats if seat is self._timer]
        for seat in seats:
            if seat.cell is not None or not self._waiting:
                continue
            cell = self._waiting.popleft()
            try:
                sent = self._send(seat, cell)
            except Exception as error:  # a dataset that cannot be had
                yield Outcome(cell, error=reason(error))
                continue
            if sent:
                self._submit(seat, cell)
            else:
                self._waiting.appendleft(cell)

    def _send(self, seat: _Seat, cell: AnyCell) -> bool:
        """Send a worker the trainer and the data files that its cell needs and it has not got, by SHA-256.

        What no cell to come needs is forgotten, there and here. Returns False if the worker cannot be reached.
        """
        to_come = {key for other in (cell, *self._waiting) for key in _files_of(other)}
        seat.held = {key: held for key, held in seat.held.items() if key == self._trainer or key in to_come}
        self._data = {key: data for key, data in self._data.items() if key == self._trainer or key in to_come}
        for key in (self._trainer, *_files_of(cell)):
            if key in seat.held:
                continue
            if key not in self._data:
                found = registry.fetch(cell.task.dataset, progress=False)
                self._data |= {sha256: found[name] for sha256, name in _files_of(cell).items()}
            name = f"rlploss-data-{key}-{seat.id}"
            try:
                sent = self._client.scatter({name: self._data[key]}, workers=[seat.address], timeout=PATIENCE)
            except (OSError, RuntimeError, ValueError, KeyError):  # it has gone, and the next look will tell
                return False
            seat.held[key] = sent[name]
        return True

    def _submit(self, seat: _Seat, cell: AnyCell) -> None:
        keys = (self._trainer, *_files_of(cell))
        job = f"rlploss-train-{uuid.uuid4().hex}"
        task = pickle.dumps(partial(train_there, job, seat.id, self._root, self._code_version, cell, keys))
        # The scheduler unpickles tasks to look at them. It sees bytes only, so it needs neither this package nor torch.
        seat.cell, seat.future = cell, self._client.submit(
            lambda task, *data: pickle.loads(task)(*data), task, *(seat.held[key] for key in keys),
            key=job, pure=False, workers=[seat.address], allow_other_workers=False,
        )  # fmt: skip
        self._busy[job] = seat
        self._done.add(seat.future)

    def _take(self, future: Any, result: Any) -> Iterator[Outcome]:
        """Accept what a task has come to."""
        from distributed import KilledWorker

        status, seat = future.status, self._busy.pop(future.key, None)
        future.release()  # what the cluster still holds, it computes again when its worker dies
        if seat is None or seat.cell is None:  # no longer wanted
            return
        if status == "finished" and isinstance(result, Outcome):
            seat.cell = None
            yield result
        elif status == "finished" and result.id == seat.id:
            self._set_aside(seat, _difference(result.versions))
        elif status == "error" and getattr(result[1], "name", "") == "rlploss":
            self._set_aside(seat, f"it cannot take part ({_short(reason(result[1]))})")
        elif status == "error" and not isinstance(result[1], KilledWorker):
            cell, seat.cell = seat.cell, None
            yield Outcome(cell, error=reason(result[1]))
        elif self._client.status == "running":  # it has died, or another process answers at its address
            yield from self._lost(seat)
        else:
            raise self._workers.lost(result)

    def _set_aside(self, seat: _Seat, why: str) -> None:
        """Use this worker no more; its cell is for the others."""
        if seat.cell is not None:
            self._waiting.appendleft(seat.cell)
        seat.cell, seat.unfit = None, why
        self._say(f"worker {seat.address} is left aside: {why}")


def _files_of(cell: AnyCell) -> dict[str, str]:
    """The names of the data files that a cell needs, by SHA-256."""
    item = registry.ENTRIES.get(getattr(cell.task, "dataset", ""))
    return {} if item is None else {file.sha256: file.name for file in item.files}


def _difference(theirs: dict[str, str]) -> str:
    ours = provenance.versions()
    for name in ("torch", "rlploss"):
        if ours[name] != theirs[name]:
            return f"it has {name} {theirs[name]}, the driver {ours[name]}; install the same there"
    return "its rlploss has other code than the driver's; install the same there"


# On a worker. It needs no disk that others see, no data cache of its own, and it never sees the store.

_one_cell = threading.Lock()  # networks are initialised with torch's global generator, and warnings are recorded
_checked: set[str] = set()  # SHA-256 of data that arrived as they were sent


@dataclass(frozen=True)
class WorkerInfo:
    """Who a worker process is: the answer of one that cannot train the cell it was given."""

    id: str
    versions: dict[str, str]


class Unwanted(BaseException):
    """Nobody waits for this cell any more; not an `Exception`, so that no trainer takes it for a failure."""


def train_there(
    job: str, worker: str, root: str, code_version: str, cell: AnyCell, keys: Sequence[str], *data: bytes
) -> Outcome | WorkerInfo:
    """Train a cell with the pickled training function and the data files in `data`, whose SHA-256 are `keys`.

    Returns who this is instead, if this is another process than the one that was asked, or has other code.
    """
    from distributed import get_worker

    here = get_worker().id
    if here != worker or (root and provenance.code_version(root) != code_version):
        return WorkerInfo(here, provenance.versions())
    check_arrived(dict(zip(keys, data, strict=True)))
    files = dict(zip(keys[1:], data[1:], strict=True))
    with _one_cell, one_thread(), registry.lent(files):
        outcome = attempt(lambda cell, tell: pickle.loads(data[0])(cell, tell), cell, _teller(job))
    if outcome.result is None:
        return outcome
    machine = ", ".join(f"{key} {value}" for key, value in provenance.machine().items())
    notes = (*outcome.result.notes, f"trained by a Dask worker: {machine}")
    return replace(outcome, result=replace(outcome.result, notes=notes))


def check_arrived(data: dict[str, bytes]) -> None:
    """Refuse data that are not what was sent, by their SHA-256; each is looked at once."""
    for key in data.keys() - _checked:
        found = hashlib.sha256(data[key]).hexdigest()
        if found != key:
            raise ValueError(f"data with SHA-256 {key} were sent, but {found} arrived; check the network")
        _checked.add(key)


def _teller(job: str) -> Tell:
    """Progress as an event of the cluster; stops the training if the driver has gone or does not want the cell."""
    from distributed import get_worker

    worker = get_worker()

    def tell(fraction: float) -> None:
        task = worker.state.tasks.get(job)
        if task is None or task.state == "cancelled":
            raise Unwanted
        worker.log_event(TOPIC, {"job": job, "done": fraction})

    return now_and_then(tell, TELL_EVERY)
