"""A trainer that trains nothing: closed-form curves, so that the laboratory can be tested in
milliseconds."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from rlploss.datasets import registry
from rlploss.datasets.registry import Entry
from rlploss.datasets.sources import DataFile
from rlploss.lab.executors import parse_workers
from rlploss.lab.run import execute, plan
from rlploss.lab.study import Cell, CellResult, Part, Tell, TrainedNetwork
from rlploss.training.job import Epochs


def _read_tiny(files):
    values = np.frombuffer(files["tiny.csv"], np.uint8).astype(np.float64)
    return values[:, None], values, ("x",)


TINY_BYTES = bytes(range(250)) * 200
TINY = Entry(
    "tiny", 50_000, 1, "regression", _read_tiny, "made up", "none", "none", directory="tiny",
    files=(DataFile("tiny.csv", hashlib.sha256(TINY_BYTES).hexdigest(), len(TINY_BYTES)),),
)  # fmt: skip


@dataclass(frozen=True)
class StubArm(Part):
    """An arm of our own: what the trainer below does."""

    name: str
    objective: str
    rate: float = 0.5
    sleep: float = 0.0
    fail: bool = False
    die: bool = False
    die_times: int = -1
    ledger: str = ""
    until: str = ""

    @property
    def family(self):
        return self.objective

    def __str__(self):
        return f"released · {self.name}"


@dataclass(frozen=True)
class StubTask(Part):
    """A task of our own, which has no variants."""

    name: str
    dataset: str = "toy"
    timed: bool = False


def cell(name="mse", seeds=(0, 1, 2), *, n=4, dataset="toy", timed=False, **extra):
    """A cell whose arm carries `extra`."""
    return Cell(
        StubArm(name, name, **extra), StubTask("toy", dataset, timed), Epochs(n), tuple(seeds)
    )


def train(cell: Cell, tell: Tell) -> CellResult:
    """Errors that decay with the step at a rate of the arm's; depends on the seed; sleeps, fails or
    dies if told to.

    `ledger` is a file that gets a line per try; with `die_times` the first so many tries die; with
    `until` it goes on when that file is there."""
    arm, tries = cell.arm, 0
    if arm.ledger:
        with open(arm.ledger, "a") as file:
            file.write(f"{arm.rate} {os.getpid()}\n")
        tries = sum(line.split()[0] == str(arm.rate) for line in read_ledger(arm.ledger))
    if arm.fail:
        raise ValueError("the loss became\n  NaN at step 3")
    if arm.die or tries <= arm.die_times:
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    while time.monotonic() - started < arm.sleep or (arm.until and not os.path.exists(arm.until)):
        tell(0.5)
        time.sleep(0.01)
    networks = []
    for variant, seed in cell.keys:
        scale = 1.0 + np.random.default_rng([seed, variant]).uniform()
        steps = list(range(1, cell.budget.n + 1))
        curve = {
            "step": steps,
            "epoch": steps,
            "samples": [100 * s for s in steps],
            "seconds": [0.01 * s for s in steps],
            "mse": [scale * arm.rate**s for s in steps],
            "rlp": [0.5 * scale * arm.rate**s for s in steps],
        }
        kept = {"grid": np.full((2, 3), seed, np.float32)}
        networks.append(TrainedNetwork(seed, variant, curve, 0.1, {"size": 7.0}, kept))
    return CellResult(tuple(networks), "none", 1, 0.2)


def train_on_file(cell: Cell, tell: Tell) -> CellResult:
    """As `train`, after a look at a dataset that has a file; for workers, whose registry does not
    know it yet."""
    registry.ENTRIES.setdefault("tiny", TINY)
    assert registry.load(cell.task.dataset, download=False).n_rows == len(TINY_BYTES)
    return train(cell, tell)


def threads(cell: Cell, tell: Tell) -> CellResult:
    """Fails with the numbers of threads that torch, BLAS and OpenMP have here, and what later ones
    would have."""
    import threadpoolctl
    import torch

    counts = [
        torch.get_num_threads(),
        *(lib["num_threads"] for lib in threadpoolctl.threadpool_info()),
    ]
    raise RuntimeError(f"{set(counts)} {os.environ['OMP_NUM_THREADS']}")


def read_ledger(path):
    """The lines: `rate pid`, one per try."""
    with open(str(path)) as file:
        return file.read().splitlines()


class Kept:
    """Stands for a store: it keeps what comes in memory."""

    def __init__(self, directory):
        self.directory, self.outcomes = Path(directory), {}
        (self.directory / "runs.sqlite").touch()

    def has(self, cell):
        return False

    def costs(self, known=()):
        return []

    def write(self, cell, result):
        assert cell.arm.rate not in self.outcomes, "a cell came twice"
        self.outcomes[cell.arm.rate] = result

    write_failure = write


def outcomes(cells, workers, train=train, **options):
    """What becomes of the cells, a result or a reason, by rate, and what is said meanwhile."""
    console = Console(file=io.StringIO(), width=300)
    team = parse_workers(workers) if isinstance(workers, str) else workers
    with tempfile.TemporaryDirectory() as folder:
        store = Kept(folder)
        todo = plan(cells, store, cost=lambda cell: 1.0, workers=team)
        execute(todo, store, train=train, workers=team, console=console, **options)
    return store.outcomes, console.file.getvalue()
