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
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rlploss._extras import need
from rlploss.datasets import registry
from rlploss.lab import store, workers
from rlploss.lab.study import AnyCell, TellOf, Train
from rlploss.lab.text import LabError, sentence
from rlploss.lab.workers import Outcome, Say, WorkerLost

TOPIC = "rlploss-progress"  # one for all drivers: the scheduler keeps a fixed number of events per topic
TIMEOUT = 10.0  # seconds for a scheduler to answer at first
PATIENCE = 60.0  # seconds for an answer of one that is connected, but may be busy
LOOK_EVERY = 0.5  # seconds between looks at who is there
PAUSE = 0.02  # seconds between looks at what has come
_ADDRESS = re.compile(r"([a-z]+://)?[^\s/]+:\d{1,5}")


class ClusterError(LabError):
    """The cluster cannot be used; the message is one sentence for the user."""


class DaskWorkers:
    """The workers of the Dask scheduler at `address`, which may come and go.

    Every worker process trains one cell at a time, with one thread; start it with one thread (`--nthreads 1`) and have
    one process per core.
    """

    def __init__(self, address: str) -> None:
        if not _ADDRESS.fullmatch(address):
            wrong = f'workers must be "dask:tcp://HOST:PORT", got {f"dask:{address}"!r}'
            raise ValueError(f"{wrong}; a scheduler prints its address when it starts")
        need("cluster", f'workers "dask:{address}"', "distributed")
        self.address = address
        with _connected(address) as client:
            self.count = max(1, len(_processes(client, address)))

    def run(self, train: Train, cells: Sequence[AnyCell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        with _connected(self.address) as client:
            team = _Team(self.address, client, train, say)
            for outcome in workers.keep_busy(team.look, team.train, deque(cells), tell, say):
                if outcome is None:
                    time.sleep(PAUSE)
                else:
                    yield outcome


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """A client; the scheduler lets go of everything that was asked for by one that leaves."""
    from distributed import Client

    try:
        # Not direct: only the scheduler has to be within reach.
        client = Client(address, timeout=TIMEOUT, set_as_default=False, direct_to_workers=False, name="rlploss")
    except (OSError, ValueError) as error:
        wrong = f"no Dask scheduler answered at {address} within {TIMEOUT:g} s ({sentence(str(error), 200)})"
        raise ClusterError(f"{wrong}; check the address, or start one there: dask scheduler") from None
    log = logging.getLogger("distributed.client")  # pages about a lost scheduler, which is one sentence of ours
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield client
    finally:
        with suppress(OSError, RuntimeError):  # the scheduler may be gone
            client.close(timeout=1.5)
        log.setLevel(level)


def _processes(client: Any, address: str) -> dict[str, str]:
    """The address of every worker process by its id, which tells a restarted one from the one that was there."""
    look = lambda dask_scheduler: {w.server_id: a for a, w in dask_scheduler.workers.items()}  # noqa: E731  # sent
    try:
        if client.status != "running":  # all that was asked of it is forgotten, even if it comes back
            raise OSError("the connection was closed")
        found: dict[str, str] = client.sync(client.run_on_scheduler, look, callback_timeout=PATIENCE)
    except (OSError, RuntimeError, AttributeError) as error:  # an AttributeError once the client has given up
        wrong = f"the Dask scheduler at {address} does not answer any more ({sentence(str(error), 200)})"
        raise ClusterError(f"{wrong}; what is stored is kept, and the same command goes on when it is back") from None
    return found


@dataclass(eq=False)
class _Worker:
    """A worker process as the driver knows it."""

    id: str
    address: str
    held: dict[str, Any] = field(default_factory=dict)  # futures of the data that it has, by SHA-256
    unfit: str = ""  # why it cannot be used


class _Team:
    """One run: who is there, what they have told, and the data they need."""

    def __init__(self, address: str, client: Any, train: Train, say: Say) -> None:
        from distributed.protocol.pickle import dumps

        self.address, self.client, self.say = address, client, say
        module = str(getattr(train, "__module__", ""))
        self.root = module if module.startswith("rlploss.") else ""
        self.versions = versions(self.root)
        function: bytes = dumps(train)
        self.trainer = hashlib.sha256(function).hexdigest()
        self.data = {self.trainer: function}  # what workers need, by SHA-256
        self.told: dict[str, float] = {}  # progress by job
        self.there: dict[str, _Worker] = {}  # by id, those that came first first
        self.due = 0.0  # when to look again
        self.deserted = False
        client.subscribe_topic(TOPIC, lambda event: self.told.__setitem__(event[1]["job"], event[1]["done"]))

    def look(self, most: int) -> list[_Worker]:
        """The workers that can be used, those that came first; says who has come and gone."""
        if time.monotonic() >= self.due:
            self._find()
            self.due = time.monotonic() + LOOK_EVERY
        return [worker for worker in self.there.values() if not worker.unfit][:most]

    def _find(self) -> None:
        found = _processes(self.client, self.address)
        self.there = {i: self.there.get(i) or _Worker(i, found[i]) for i in [*self.there, *found] if i in found}
        if not self.there and not self.deserted:
            scheduler = self.address
            self.say(f"no workers at {scheduler}: waiting for one (dask worker {scheduler} --nthreads 1); Ctrl-C stops")
        elif self.there and self.deserted:
            self.say("a worker has come: going on")
        self.deserted = not self.there
        unfit = dict.fromkeys(worker.unfit for worker in self.there.values())
        if unfit and "" not in unfit:
            raise ClusterError(f"no worker at {self.address} can be used: {'; '.join(unfit)}")

    def train(self, worker: _Worker, cell: AnyCell) -> workers.Training:
        """Have the worker begin a cell."""
        from distributed import KilledWorker

        job = f"rlploss-train-{uuid.uuid4().hex}"
        future: Future[Any] = Future()
        try:
            future = self._submit(job, worker, cell)
            while not future.done() and worker.id in self.there:
                yield self.told.pop(job, None)
            made: Outcome = future.result(timeout=0.0)
        except (TimeoutError, CancelledError, KilledWorker, WorkerLost) as error:
            future.cancel()
            _processes(self.client, self.address)  # which raises, if it is the scheduler that is gone
            self.there.pop(worker.id, None)
            raise error if isinstance(error, WorkerLost) else WorkerLost(f"worker {worker.address} was lost") from None
        except Exception as error:
            if getattr(error, "name", "") == "rlploss":
                worker.unfit = sentence(str(error), 200)
                self.say(f"worker {worker.address} is left aside: {worker.unfit}")
                raise WorkerLost from None
            made = Outcome(cell, error=workers.reason(error))
        yield made

    def _submit(self, job: str, worker: _Worker, cell: AnyCell) -> Future[Any]:
        """Send a cell, and before the first one that needs them the training function and the files of its dataset."""
        item = registry.ENTRIES.get(getattr(cell.task, "dataset", ""))
        files = item.files if item is not None else ()
        if item is not None and any(file.sha256 not in self.data for file in files):
            found = registry.fetch(item.name, progress=False)
            self.data |= {file.sha256: found[file.name] for file in files}
        keys = (self.trainer, *(file.sha256 for file in files))
        for key in keys:
            if key not in worker.held:
                name = f"rlploss-data-{key}-{worker.id}"
                try:
                    sent = self.client.scatter({name: self.data[key]}, workers=[worker.address], timeout=PATIENCE)
                except (OSError, RuntimeError, ValueError, KeyError) as error:  # it has gone, as the next look tells
                    raise WorkerLost from error
                worker.held[key] = sent[name]
        task = pickle.dumps(partial(train_there, job, worker.id, self.root, self.versions, cell, keys))
        # The scheduler unpickles tasks to look at them. It sees bytes only, so it needs neither this package nor torch.
        there = self.client.get_executor(pure=False, workers=[worker.address], allow_other_workers=False)
        held = [worker.held[key] for key in keys]
        future: Future[Any] = there.submit(lambda task, *data: pickle.loads(task)(*data), task, *held, key=job)
        return future


# On a worker. It needs no disk that others see, no data cache of its own, and it never sees the store.

_one_cell = threading.Lock()  # networks are initialised with torch's global generator, and warnings are recorded
_checked: set[str] = set()  # SHA-256 of data that arrived as they were sent


class Unwanted(BaseException):
    """Nobody waits for this cell any more; not an `Exception`, so that no trainer takes it for a failure."""


def train_there(
    job: str, worker: str, root: str, driver: dict[str, str], cell: AnyCell, keys: Sequence[str], *data: bytes
) -> Outcome:
    """Train a cell with the pickled training function and the data files in `data`, whose SHA-256 are `keys`.

    Refused by another process than the one that was asked, and by one whose code is not the driver's. Progress is an
    event of the cluster; telling it ends a training that the driver does not want any more.
    """
    from distributed import get_worker

    here = get_worker()
    if here.id != worker:
        raise WorkerLost(f"worker {here.address} was lost")
    check_code(root, driver)
    check_arrived(dict(zip(keys, data, strict=True)))

    def tell(fraction: float) -> None:
        task = here.state.tasks.get(job)
        if task is None or task.state == "cancelled":
            raise Unwanted
        here.log_event(TOPIC, {"job": job, "done": float(fraction)})

    with _one_cell, workers.one_thread(), registry.lent(dict(zip(keys[1:], data[1:], strict=True))):
        outcome = workers.attempt(lambda cell, tell: pickle.loads(data[0])(cell, tell), cell, tell)
    if outcome.result is None:
        return outcome
    machine = ", ".join(f"{key} {value}" for key, value in store.machine().items())
    notes = (*outcome.result.notes, f"trained by a Dask worker: {machine}")
    return replace(outcome, result=replace(outcome.result, notes=notes))


def versions(root: str) -> dict[str, str]:
    """What driver and workers must share: packages, and the code behind a module of rlploss."""
    return store.versions() | ({"code": store.code_version(root)} if root else {})


def check_code(root: str, driver: dict[str, str]) -> None:
    """Refuse to train for a driver with another torch or other code; the error says what to install."""
    here = versions(root)
    if root and here["code"] != driver["code"]:
        other = next((name for name in ("torch", "rlploss") if here[name] != driver[name]), "")
        what = f"it has {other} {here[other]}, the driver {driver[other]}" if other else ""
        what = what or "its rlploss has other code than the driver's"
        raise ImportError(f"{what}; install the same there", name="rlploss")


def check_arrived(data: dict[str, bytes]) -> None:
    """Refuse data that are not what was sent, by their SHA-256; each is looked at once."""
    for key in data.keys() - _checked:
        found = hashlib.sha256(data[key]).hexdigest()
        if found != key:
            raise ValueError(f"data with SHA-256 {key} were sent, but {found} arrived; check the network")
        _checked.add(key)
