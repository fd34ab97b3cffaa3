"""What runs on a worker of a cluster: saying who it is, holding data, training one cell.

A worker keeps what it is sent in memory, by SHA-256, so that data travel to it once. It needs no disk that others
see, no data cache of its own, and it never sees the store.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from rlploss.datasets import registry
from rlploss.lab import provenance
from rlploss.lab.results import Tell
from rlploss.lab.study import Cell
from rlploss.lab.workers import Outcome, attempt, one_thread

TOPIC = "rlploss-progress"  # one for all drivers: the scheduler keeps a fixed number of events per topic
TELL_EVERY = 0.5  # seconds
MOST_BYTES = 1 << 30  # held for cells to come; what the next cell needs is held whatever its size

PROCESS = uuid.uuid4().hex  # tells a restarted worker from the one that had its address before
received: Counter[str] = Counter()  # how often each piece of data came
_held: OrderedDict[str, bytes] = OrderedDict()  # by SHA-256, the one used last at the end
_one_cell = threading.Lock()  # networks are initialised with torch's global generator, and warnings are recorded


@dataclass(frozen=True)
class Call:
    """A call that happens where it is unpickled: `pickle.loads` of it is the task.

    So a scheduler, which unpickles tasks to look at them, sees bytes only and needs neither this package nor torch.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


@dataclass(frozen=True)
class Card:
    """Who a worker is and what it holds."""

    process: str
    engine: str
    versions: dict[str, str]
    held: frozenset[str]


class Unwanted(BaseException):
    """Nobody waits for this cell any more; not an `Exception`, so that no trainer takes it for a failure."""


def introduce(root: str) -> Card:
    """The card of this process; `root` is the module of the training function, "" if it is not of this package."""
    engine = provenance.engine(root) if root else ""
    return Card(PROCESS, engine, provenance.versions(), frozenset(_held))


def hold(key: str, data: bytes, needed: Collection[str]) -> Card:
    """Keep a piece of data; the oldest of what the next cell does not need makes room for it."""
    found = hashlib.sha256(data).hexdigest()
    if found != key:
        raise ValueError(f"data with SHA-256 {key} were sent, but {found} arrived; check the network")
    received[key] += 1
    _held[key] = data
    for old in [k for k in _held if k not in needed]:
        if sum(map(len, _held.values())) <= MOST_BYTES:
            break
        del _held[old]
    return introduce("")


def train(job: str, cell: Cell, trainer: str, files: Collection[str]) -> Outcome | Card:
    """Train a cell with the pickled training function `trainer` and the data files `files`, both by SHA-256.

    Returns the card instead if one of them is not held (this process is new, or had to make room).
    """
    try:
        function, data = _held[trainer], {key: _held[key] for key in files}
    except KeyError:
        return introduce("")
    for key in (trainer, *files):
        _held.move_to_end(key)
    with _one_cell, one_thread(), registry.lent(data):
        outcome = attempt(lambda cell, tell: pickle.loads(function)(cell, tell), cell, _teller(job))
    if outcome.result is None:
        return outcome
    machine = ", ".join(f"{key} {value}" for key, value in provenance.machine().items())
    notes = (*outcome.result.notes, f"trained by a Dask worker: {machine}")
    return replace(outcome, result=replace(outcome.result, notes=notes))


def _teller(job: str) -> Tell:
    """Progress as an event of the cluster; stops the training if the driver has gone or does not want the cell."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    last = 0.0

    def tell(fraction: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < TELL_EVERY:
            return
        last = now
        task = worker.state.tasks.get(key)
        if task is None or task.state == "cancelled":
            raise Unwanted
        worker.log_event(TOPIC, {"job": job, "done": float(fraction)})

    return tell
