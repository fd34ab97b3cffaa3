"""A trainer that trains nothing: closed-form curves, so that the laboratory can be tested in milliseconds."""

from __future__ import annotations

import hashlib
import os
import signal
import time

import numpy as np

from rlploss.datasets import registry
from rlploss.datasets.cache import DataFile
from rlploss.datasets.dataset import Entry
from rlploss.lab.results import CellResult, Run, Tell
from rlploss.lab.study import Arm, Budget, Cell, Task, settings


def _read_tiny(files):
    values = np.frombuffer(files["tiny.csv"], np.uint8).astype(np.float64)
    return values[:, None], values, ("x",)


TINY_BYTES = bytes(range(250)) * 200
TINY = Entry(
    "tiny", 50_000, 1, "regression", _read_tiny, "made up", "none", "none", directory="tiny",
    files=(DataFile("tiny.csv", hashlib.sha256(TINY_BYTES).hexdigest(), len(TINY_BYTES)),),
)  # fmt: skip


def cell(name="mse", seeds=(0, 1, 2), *, n=4, dataset="toy", timed=None, **extra):
    """A cell whose arm carries `extra` as settings."""
    task = Task("toy", settings({"dataset": dataset, "model": "regression", "timed": timed}))
    return Cell(Arm(name, name, "released", settings(extra)), task, Budget("epochs", n), tuple(seeds))


def train(cell: Cell, tell: Tell) -> CellResult:
    """Errors that decay with the step at a rate of the arm's; depends on the seed; sleeps, fails or dies if told to.

    `ledger` is a file that gets a line per try; with `die_times` the first so many tries die; with `until` it goes on
    when that file is there.
    """
    rate = float(cell.arm.get("rate", 0.5))
    tries = 0
    if cell.arm.get("ledger"):
        with open(str(cell.arm.get("ledger")), "a") as file:
            file.write(f"{rate} {os.getpid()}\n")
        tries = sum(line.split()[0] == str(rate) for line in read_ledger(cell.arm.get("ledger")))
    if cell.arm.get("fail"):
        raise ValueError("the loss became\n  NaN at step 3")
    if cell.arm.get("die") or tries <= int(cell.arm.get("die_times", -1)):
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    gate = cell.arm.get("until")
    while time.monotonic() - started < float(cell.arm.get("sleep", 0.0)) or (gate and not os.path.exists(str(gate))):
        tell(0.5)
        time.sleep(0.01)
    runs = []
    for variant in range(len(cell.task.variants)):
        for seed in cell.seeds:
            scale = 1.0 + np.random.default_rng([seed, variant]).uniform()
            steps = list(range(1, cell.budget.n + 1))
            curve = {
                "step": steps,
                "epoch": steps,
                "samples": [100 * s for s in steps],
                "seconds": [0.01 * s for s in steps],
                "mse": [scale * rate**s for s in steps],
                "rlp": [0.5 * scale * rate**s for s in steps],
            }
            runs.append(Run(seed, variant, curve, 0.1, {"grid": np.full((2, 3), seed, np.float32)}))
    return CellResult(tuple(runs), "plain", 1, 0.2)


def train_on_file(cell: Cell, tell: Tell) -> CellResult:
    """As `train`, after a look at a dataset that has a file; for workers, whose registry does not know it yet."""
    registry.ENTRIES.setdefault("tiny", TINY)
    assert registry.load(str(cell.task.get("dataset")), download=False).n_rows == len(TINY_BYTES)
    return train(cell, tell)


def threads(cell: Cell, tell: Tell) -> CellResult:
    """Fails with the numbers of threads that torch, BLAS and OpenMP have here, and what later ones would have."""
    import threadpoolctl
    import torch

    counts = [torch.get_num_threads(), *(lib["num_threads"] for lib in threadpoolctl.threadpool_info())]
    raise RuntimeError(f"{set(counts)} {os.environ['OMP_NUM_THREADS']}")


def read_ledger(path):
    """The lines: `rate pid`, one per try."""
    with open(str(path)) as file:
        return file.read().splitlines()
