"""A trainer that trains nothing: closed-form curves, so that the laboratory can be tested in milliseconds."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from rlploss.lab.results import CellResult, Run
from rlploss.lab.study import Arm, Budget, Cell, Task, settings
from rlploss.lab.workers import Tell


def cell(name="mse", seeds=(0, 1, 2), *, n=4, **extra):
    """A cell whose arm carries `extra` as settings."""
    task = Task("toy", settings({"dataset": "toy", "model": "regression"}))
    return Cell(Arm(name, name, "released", settings(extra)), task, Budget("epochs", n), tuple(seeds))


def train(cell: Cell, tell: Tell) -> CellResult:
    """Errors that decay with the step at a rate of the arm's; depends on the seed; sleeps if told to."""
    rate = float(cell.arm.get("rate", 0.5))
    if cell.arm.get("fail"):
        raise ValueError("the loss became\n  NaN at step 3")
    if cell.arm.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    while time.monotonic() - started < float(cell.arm.get("sleep", 0.0)):
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
