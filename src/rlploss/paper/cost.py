"""What a cell is expected to cost, for plans; stored cells correct these figures (see `lab.run.calibrated`)."""

from __future__ import annotations

from rlploss.lab import problems
from rlploss.lab.study import Cell, Scalar
from rlploss.paper.protocols import is_rlp

# Seconds of one core: per optimiser step of a fleet (the networks of one cell train together), and what each
# further network adds; per step and network where they train one after another; and per evaluation of a
# network.
FLEET_STEP, FLEET_NETWORK = 8e-4, 1.2e-5
STEP = {"autoencoder": 6e-3, "lenet5": 5e-3, "moons": 4e-4, "regression": 4e-4}
EVALUATION = {"autoencoder": 2e-2, "lenet5": 5e-1, "moons": 1e-3, "regression": 1e-3}
START = 0.5


def steps_of(cell: Cell) -> float:
    """Optimiser steps of a cell, averaged over its variants."""
    if cell.budget.unit == "steps":
        return float(cell.budget.n)
    totals = [cell.budget.n * _steps_per_epoch(cell, dict(variant)) for variant in cell.task.variants]
    return sum(totals) / len(totals)


def _steps_per_epoch(cell: Cell, variant: dict[str, Scalar]) -> float:
    if cell.arm.objective.startswith("rlp"):
        return 1.0 if cell.arm.get("preset") == "paper" else float(cell.arm.get("n_subsets") or 1000)
    batch = cell.arm.get("batch_size")
    if batch == "all":
        return 1.0
    return -(-problems.train_rows(cell.task, variant) // int(batch or 100))


def expected_seconds(cell: Cell) -> float:
    """Seconds of one core."""
    if cell.task.get("measure"):
        return 3.0
    model = str(cell.task.get("model"))
    steps, networks = steps_of(cell), cell.n_replicas
    heavy = 1.0
    if cell.arm.get("preset") == "paper":
        heavy = 10.0  # a step over all K subsets
    elif is_rlp(cell.arm.name) and cell.arm.objective.endswith("+mixup"):
        heavy = 3.0  # factors cannot be kept
    if str(cell.task.get("dataset")).startswith("cifar10"):
        heavy *= 4.0
    if model == "regression" or model == "moons":
        training = steps * heavy * (FLEET_STEP + FLEET_NETWORK * networks)
    else:
        training = steps * heavy * STEP[model] * networks
    evaluations = cell.budget.n / cell.budget.every * networks * EVALUATION[model]
    return START + training + evaluations
