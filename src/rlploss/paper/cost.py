"""What a cell is expected to cost, for plans; stored cells correct these figures (see `lab.run.calibrated`)."""

from __future__ import annotations

from rlploss.lab import problems
from rlploss.lab.study import Cell, Scalar

# Seconds of one core, measured. Small networks of one cell train together: a step costs FLEET_STEP, and
# FLEET_NETWORK more for each; the others train one after another, STEP per step and network. A step as
# printed goes over all K subsets: PRINTED per network, more with mixup, whose factors cannot be kept.
FLEET_STEP, FLEET_NETWORK = 3.5e-4, 1.5e-5
MIXUP_NETWORK = 4e-5
PRINTED_ROW, PRINTED_MIXUP_ROW = 1e-7, 5.5e-7
STEP = {"autoencoder": 3e-4, "lenet5": 1e-3}
STEP_ROW = {"autoencoder": 8e-6, "lenet5": 6e-5}
FACTORS = {"mnist": 0.4, "cifar10": 0.2, "cifar10-released": 0.3}  # per subset, once: images have many columns
EVALUATION = {"autoencoder": 2e-2, "lenet5": 5e-1, "moons": 5e-4, "regression": 5e-4}
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
    model, dataset = str(cell.task.get("model")), str(cell.task.get("dataset"))
    steps, networks = steps_of(cell), cell.n_replicas
    mixed_planes = cell.arm.objective == "rlp+mixup"
    seconds = START + cell.budget.n / cell.budget.every * networks * EVALUATION[model]
    if model in STEP:
        wide = 4.0 if dataset.startswith("cifar10") else 1.0
        rows = cell.arm.get("subset_size") or cell.arm.get("batch_size")
        count = problems.train_rows(cell.task, {}) if rows == "all" else int(rows or 100)
        seconds += steps * networks * wide * (STEP[model] + STEP_ROW[model] * count)
        if cell.arm.objective == "rlp" and model == "autoencoder":
            large = int(cell.arm.get("subset_size") or 0) / 1000
            seconds += networks * int(cell.arm.get("n_subsets") or 0) * FACTORS[dataset] * large**2
    elif cell.arm.get("preset") == "paper":
        rows_read = int(cell.arm.get("n_subsets") or 0) * int(cell.arm.get("subset_size") or 0)
        seconds += steps * networks * rows_read * (PRINTED_MIXUP_ROW if mixed_planes else PRINTED_ROW)
    else:
        each = FLEET_NETWORK + (MIXUP_NETWORK if mixed_planes else 0.0)
        seconds += steps * (FLEET_STEP + each * networks)
    return seconds
