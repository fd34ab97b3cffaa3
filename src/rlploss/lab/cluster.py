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
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
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
    Lost,
    Outcome,
    Say,
    TellOf,
    Train,
    attempt,
    in_turn,
    keep_busy,
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
            team = _Team(self, client, train, say)
            for alone, batch in in_turn(cells):
                look = partial(team.look, alone)
                yield from keep_busy(look, batch, tell, say, self.tries, PAUSE)

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


class _Team:
    """One run: who is there, and the data they need."""

    def __init__(self, workers: DaskWorkers, client: Any, train: Train, say: Say) -> None:
        from distributed.protocol.pickle import dumps

        self.client, self.say, self.workers = client, say, workers
        self.progress: dict[str, float] = {}  # by job
        module = str(getattr(train, "__module__", ""))
        self.root = module if module.startswith("rlploss.") else ""
        self.code_version = provenance.code_version(self.root) if self.root else ""
        function: bytes = dumps(train)
        self.trainer = hashlib.sha256(function).hexdigest()
        self.data = {self.trainer: function}
        self._seats: dict[str, _Seat] = {}  # by id
        self._looked = -LOOK_EVERY
        self._deserted = False
        self._timer: _Seat | None = None  # the one that trains cells whose seconds count
        client.subscribe_topic(TOPIC, lambda event: self.progress.__setitem__(event[1]["job"], event[1]["done"]))

    def look(self, alone: bool, left: int) -> list[_Seat]:
        """The workers that can be used, or `alone` one and the same of them; says who has come and gone."""
        if time.monotonic() - self._looked >= LOOK_EVERY:
            self._find()
            self._looked = time.monotonic()
        fit = [seat for seat in self._seats.values() if not seat.unfit and not seat.gone]
        if not alone:
            return fit
        if self._timer not in fit:
            self._timer = fit[0] if fit else None
        return [self._timer] if self._timer else []

    def _find(self) -> None:
        there = self.workers.processes(self.client)
        for gone in self._seats.keys() - there.keys():
            self._seats.pop(gone).gone = True
        for id_, address in sorted(there.items(), key=lambda item: item[1]):
            self._seats.setdefault(id_, _Seat(self, id_, address))
        if not self._seats and not self._deserted:
            here = self.workers.address
            self.say(f"no workers at {here}: waiting for one (dask worker {here} --nthreads 1); Ctrl-C stops")
        elif self._seats and self._deserted:
            self.say("a worker has come: going on")
        self._deserted = not self._seats
        if self._seats and all(seat.unfit for seat in self._seats.values()):
            reasons = "; ".join(dict.fromkeys(seat.unfit for seat in self._seats.values()))
            raise ClusterError(f"no worker at {self.workers.address} can be used: {reasons}")

    def fetch(self, cell: AnyCell) -> tuple[str, ...]:
        """The data files that a cell needs, by SHA-256; their bytes are kept to be sent."""
        item = registry.ENTRIES.get(getattr(cell.task, "dataset", ""))
        if item is None:
            return ()
        if any(file.sha256 not in self.data for file in item.files):
            found = registry.fetch(item.name, progress=False)
            self.data |= {file.sha256: found[file.name] for file in item.files}
        return tuple(file.sha256 for file in item.files)


class _Seat:
    """A worker process as the driver knows it: its id, its address and the data that it holds."""

    def __init__(self, team: _Team, id_: str, address: str) -> None:
        self._team, self._id, self._address = team, id_, address
        self._held: dict[str, Any] = {}  # futures of data, by SHA-256
        self._job = ""
        self.future: Future[Any] | None = None
        self.gone = False
        self.unfit = ""  # why it cannot be used

    def is_alive(self) -> bool:
        return not self.gone

    def relay(self, tell: TellOf) -> None:
        if self._job in self._team.progress:
            tell(self.cell, self._team.progress.pop(self._job))

    def start(self, cell: AnyCell) -> None:
        self.cell, self._job, team = cell, f"rlploss-train-{uuid.uuid4().hex}", self._team
        try:
            keys = (team.trainer, *team.fetch(cell))
            held = [self._hold(key) for key in keys]
        except Exception as error:  # a dataset that cannot be had, or a worker that has gone and the next look tells
            self.future = Future()
            gone = isinstance(error, _Unreachable)
            self.future.set_result(Lost("") if gone else Outcome(cell, error=reason(error)))
            return
        task = pickle.dumps(partial(train_there, self._job, self._id, team.root, team.code_version, cell, keys))
        # The scheduler unpickles tasks to look at them. It sees bytes only, so it needs neither this package nor torch.
        there = team.client.get_executor(pure=False, workers=[self._address], allow_other_workers=False)
        self.future = there.submit(lambda task, *data: pickle.loads(task)(*data), task, *held, key=self._job)

    def _hold(self, key: str) -> Any:
        """A future of the data with this SHA-256, which are sent before the first cell that needs them."""
        if key not in self._held:
            name = f"rlploss-data-{key}-{self._id}"
            try:
                sent = self._team.client.scatter(
                    {name: self._team.data[key]}, workers=[self._address], timeout=PATIENCE
                )
            except (OSError, RuntimeError, ValueError, KeyError) as error:
                raise _Unreachable from error
            self._held[key] = sent[name]
        return self._held[key]

    def outcome(self) -> Outcome | Lost:
        from distributed import KilledWorker

        assert self.future is not None
        if not self.future.done() or self.future.cancelled():
            self.future.cancel()
            if self._team.client.status != "running":
                raise self._team.workers.lost("the connection was closed")
            return self._leave()
        error = self.future.exception()
        if isinstance(error, KilledWorker):
            return self._leave()
        if error is not None and getattr(error, "name", "") == "rlploss":
            return self._set_aside(f"it cannot take part ({_short(reason(error))})")
        if error is not None:
            return Outcome(self.cell, error=reason(error))
        result: Outcome | Lost | WorkerInfo = self.future.result()
        if not isinstance(result, WorkerInfo):
            return result
        if result.id == self._id:
            return self._set_aside(_difference(result.versions))
        return self._leave()  # another process answers at its address

    def _leave(self) -> Lost:
        self.gone = True
        return Lost(f"worker {self._address} was lost")

    def _set_aside(self, why: str) -> Lost:
        self.unfit = why
        self._team.say(f"worker {self._address} is left aside: {why}")
        return Lost("")


class _Unreachable(Exception):
    """A worker does not take data."""


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
