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
from dataclasses import replace
from functools import partial
from typing import Any

from rlploss import _checks
from rlploss._extras import need
from rlploss.datasets import registry
from rlploss.lab import store, workers
from rlploss.lab.study import AnyCell, Tell
from rlploss.lab.text import LabError, sentence
from rlploss.lab.workers import Outcome, Say, TellOf, Train, WorkerLost

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
    one process per core. A cell whose worker is lost is tried again on another, three times in all. Cells whose task
    is `timed` come last, one at a time and all on the same worker: their seconds are results.
    """

    def __init__(self, address: str, *, timeout: float = 10.0) -> None:
        if not _ADDRESS.fullmatch(address):
            raise ValueError(
                f'workers must be "dask:tcp://HOST:PORT", got {f"dask:{address}"!r}; a scheduler prints its '
                "address when it starts"
            )
        self.address = address
        self.timeout = _checks.number("timeout", timeout, minimum=0.1)
        need("cluster", f'workers "{self}"', "distributed")
        with self._client() as client:
            self.count = max(1, len(self.processes(client)))

    def __str__(self) -> str:
        return f"dask:{self.address}"

    def run(self, train: Train, cells: Sequence[AnyCell], *, tell: TellOf, say: Say) -> Generator[Outcome]:
        """See `Workers.run`."""
        with self._client() as client:
            team = _Team(self, client, train, say)
            for outcome in workers.keep_busy(team.look, deque(cells), tell, say):
                if outcome is None:
                    time.sleep(PAUSE)
                else:
                    yield outcome

    @contextmanager
    def _client(self) -> Iterator[Any]:
        """A connection; the scheduler lets go of everything that was asked for by a client that leaves."""
        from distributed import Client

        try:
            # Not direct: only the scheduler has to be within reach.
            client = Client(
                self.address, timeout=self.timeout, set_as_default=False, direct_to_workers=False, name="rlploss"
            )
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"no Dask scheduler answered at {self.address} within {self.timeout:g} s "
                f"({sentence(str(error), 200)}); check the address, or start one there: dask scheduler"
            ) from None
        log = logging.getLogger("distributed.client")  # pages about a lost scheduler, which is one sentence of ours
        level = log.level
        log.setLevel(logging.CRITICAL)
        try:
            yield client
        finally:
            with suppress(OSError, RuntimeError):  # the scheduler may be gone
                client.close(timeout=1.5)
            log.setLevel(level)

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
            f"the Dask scheduler at {self.address} does not answer any more ({sentence(str(error), 200)}); what is "
            "stored is kept, and the same command goes on when it is back"
        )


class _Team:
    """One run: who is there, what they have told, and the data they need."""

    def __init__(self, cluster: DaskWorkers, client: Any, train: Train, say: Say) -> None:
        from distributed.protocol.pickle import dumps

        self.client, self.say, self.cluster = client, say, cluster
        module = str(getattr(train, "__module__", ""))
        self.root = module if module.startswith("rlploss.") else ""
        self.versions = versions(self.root)
        function: bytes = dumps(train)
        self.trainer = hashlib.sha256(function).hexdigest()
        self.data = {self.trainer: function}  # what workers need, by SHA-256
        self.told: dict[str, float] = {}  # progress by job
        self.there: dict[str, _DaskWorker] = {}  # by id, those that came first first
        self._looked = -LOOK_EVERY
        self._deserted = False
        client.subscribe_topic(TOPIC, lambda event: self.told.__setitem__(event[1]["job"], event[1]["done"]))

    def look(self, left: int, alone: bool) -> list[_DaskWorker]:
        """The workers that can be used, or `alone` the one that came first; says who has come and gone."""
        if time.monotonic() - self._looked >= LOOK_EVERY:
            self._find()
            self._looked = time.monotonic()
        fit = [worker for worker in self.there.values() if not worker.unfit]
        return fit[:1] if alone else fit

    def _find(self) -> None:
        found, here = self.cluster.processes(self.client), self.cluster.address
        for gone in self.there.keys() - found.keys():
            del self.there[gone]
        for id_, address in found.items():
            self.there.setdefault(id_, _DaskWorker(self, id_, address))
        if not self.there and not self._deserted:
            self.say(f"no workers at {here}: waiting for one (dask worker {here} --nthreads 1); Ctrl-C stops")
        elif self.there and self._deserted:
            self.say("a worker has come: going on")
        self._deserted = not self.there
        unfit = dict.fromkeys(worker.unfit for worker in self.there.values())
        if unfit and "" not in unfit:
            raise ClusterError(f"no worker at {here} can be used: {'; '.join(unfit)}")

    def fetch(self, cell: AnyCell) -> tuple[str, ...]:
        """The data files that a cell needs, by SHA-256; their bytes are kept to be sent."""
        item = registry.ENTRIES.get(getattr(cell.task, "dataset", ""))
        if item is None:
            return ()
        if any(file.sha256 not in self.data for file in item.files):
            found = registry.fetch(item.name, progress=False)
            self.data |= {file.sha256: found[file.name] for file in item.files}
        return tuple(file.sha256 for file in item.files)


class _DaskWorker:
    """A worker process as the driver knows it: its id, its address and the data that it holds."""

    def __init__(self, team: _Team, id_: str, address: str) -> None:
        self._team, self._id, self._address = team, id_, address
        self._held: dict[str, Any] = {}  # futures of data, by SHA-256
        self.unfit = ""  # why it cannot be used

    def train(self, cell: AnyCell) -> Iterator[Outcome | float | None]:
        """See `Worker.train`."""
        from distributed import KilledWorker

        job, team = f"rlploss-train-{uuid.uuid4().hex}", self._team
        future: Future[Any] = Future()
        try:
            future = self._submit(job, cell)
            while not future.done() and self._id in team.there:
                yield team.told.pop(job, None)
            made: Outcome = future.result(timeout=0.0)
        except (TimeoutError, CancelledError, KilledWorker, WorkerLost) as error:
            future.cancel()
            if team.client.status != "running":
                raise team.cluster.lost("the connection was closed") from None
            team.there.pop(self._id, None)
            raise error if isinstance(error, WorkerLost) else WorkerLost(f"worker {self._address} was lost") from None
        except Exception as error:
            if getattr(error, "name", "") == "rlploss":
                self.unfit = sentence(str(error), 200)
                team.say(f"worker {self._address} is left aside: {self.unfit}")
                raise WorkerLost from None
            made = Outcome(cell, error=workers.reason(error))
        yield made

    def _submit(self, job: str, cell: AnyCell) -> Future[Any]:
        team = self._team
        keys = (team.trainer, *team.fetch(cell))
        held = [self._hold(key) for key in keys]
        task = pickle.dumps(partial(train_there, job, self._id, team.root, team.versions, cell, keys))
        # The scheduler unpickles tasks to look at them. It sees bytes only, so it needs neither this package nor torch.
        there = team.client.get_executor(pure=False, workers=[self._address], allow_other_workers=False)
        future: Future[Any] = there.submit(lambda task, *data: pickle.loads(task)(*data), task, *held, key=job)
        return future

    def _hold(self, key: str) -> Any:
        """A future of the data with this SHA-256, which are sent before the first cell that needs them."""
        if key not in self._held:
            name, team = f"rlploss-data-{key}-{self._id}", self._team
            try:
                sent = team.client.scatter({name: team.data[key]}, workers=[self._address], timeout=PATIENCE)
            except (OSError, RuntimeError, ValueError, KeyError) as error:  # it has gone, as the next look tells
                raise WorkerLost from error
            self._held[key] = sent[name]
        return self._held[key]


# On a worker. It needs no disk that others see, no data cache of its own, and it never sees the store.

_one_cell = threading.Lock()  # networks are initialised with torch's global generator, and warnings are recorded
_checked: set[str] = set()  # SHA-256 of data that arrived as they were sent


class Unwanted(BaseException):
    """Nobody waits for this cell any more; not an `Exception`, so that no trainer takes it for a failure."""


def train_there(
    job: str, worker: str, root: str, driver: dict[str, str], cell: AnyCell, keys: Sequence[str], *data: bytes
) -> Outcome:
    """Train a cell with the pickled training function and the data files in `data`, whose SHA-256 are `keys`.

    Refused by another process than the one that was asked, and by one whose code is not the driver's.
    """
    from distributed import get_worker

    if get_worker().id != worker:
        raise WorkerLost(f"worker {get_worker().address} was lost")
    check_code(root, driver)
    check_arrived(dict(zip(keys, data, strict=True)))
    files = dict(zip(keys[1:], data[1:], strict=True))
    with _one_cell, workers.one_thread(), registry.lent(files):
        outcome = workers.attempt(lambda cell, tell: pickle.loads(data[0])(cell, tell), cell, _teller(job))
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


def _teller(job: str) -> Tell:
    """Progress as an event of the cluster; stops the training if the driver has gone or does not want the cell."""
    from distributed import get_worker

    worker = get_worker()

    def tell(fraction: float) -> None:
        task = worker.state.tasks.get(job)
        if task is None or task.state == "cancelled":
            raise Unwanted
        worker.log_event(TOPIC, {"job": job, "done": fraction})

    return workers.now_and_then(tell, TELL_EVERY)
