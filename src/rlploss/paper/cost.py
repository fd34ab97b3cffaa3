"""What a cell is expected to cost, for plans; stored cells correct these figures (see `lab.run.calibrated`)."""

from __future__ import annotations

from rlploss.lab import problems
from rlploss.lab.study import Cell
from rlploss.paper.measure import Measurement
from rlploss.paper.studies import AnyCell
from rlploss.training.job import Steps
from rlploss.training.objectives import RLP, Objective

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


def _resolved(cell: Cell) -> list[tuple[Objective, int]]:
    """The objective with its sizes filled in, and the number of training rows, for every variant."""
    rows = [problems.train_rows(cell.task, variant) for variant in cell.task.variants]
    return [(cell.arm.objective.resolve(n, problems.n_features(cell.task)), n) for n in rows]


def steps_of(cell: Cell) -> float:
    """Optimiser steps of a cell, averaged over its variants."""
    if isinstance(cell.budget, Steps):
        return float(cell.budget.n)
    totals = [cell.budget.steps(objective.steps_per_epoch(n)) for objective, n in _resolved(cell)]
    return sum(totals) / len(totals)


def expected_seconds(cell: AnyCell) -> float:
    """Seconds of one core."""
    if isinstance(cell.task, Measurement):
        return 3.0
    model, networks, steps = cell.task.model, cell.n_replicas, steps_of(cell)
    objective, _ = _resolved(cell)[0]
    seconds = START + cell.budget.n / cell.evaluate_every * networks * EVALUATION[model]
    mixed_planes = isinstance(objective, RLP) and objective.mixup is not None
    if model in STEP:
        wide = 4.0 if cell.task.dataset.startswith("cifar10") else 1.0
        rows = objective.shape()[0] if isinstance(objective, RLP) else objective.rows_per_step
        seconds += steps * networks * wide * (STEP[model] + STEP_ROW[model] * rows)
        if isinstance(objective, RLP) and not mixed_planes and model == "autoencoder":
            size, n_subsets, _ = objective.shape()
            seconds += networks * n_subsets * FACTORS[cell.task.dataset] * (size / 1000) ** 2
    elif isinstance(objective, RLP) and objective.subsets_per_step == objective.n_subsets:
        seconds += steps * networks * objective.rows_per_step * (PRINTED_MIXUP_ROW if mixed_planes else PRINTED_ROW)
    else:
        each = FLEET_NETWORK + (MIXUP_NETWORK if mixed_planes else 0.0)
        seconds += steps * (FLEET_STEP + each * networks)
    return seconds
