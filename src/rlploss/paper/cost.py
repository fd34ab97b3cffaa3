"""What a cell is expected to cost, for plans; stored cells correct these figures (see `lab.run.calibrated`)."""

from __future__ import annotations

from rlploss.lab import problems
from rlploss.lab.study import Cell
from rlploss.paper.measure import Measurement
from rlploss.paper.studies import AnyCell
from rlploss.training.job import Steps
from rlploss.training.objectives import RLP, Objective

# Seconds of one core, measured: a step of one network, and more for each of its rows. A step as printed goes over all
# K subsets: PRINTED_ROW for each of their rows, more with mixup, whose planes are fitted anew.
STEP = {"regression": 1.5e-6, "moons": 5e-6, "autoencoder": 3e-4, "lenet5": 1e-3}
STEP_ROW = {"regression": 4e-8, "moons": 3e-7, "autoencoder": 8e-6, "lenet5": 6e-5}
FRESH = 1.6  # times a step whose planes were fitted beforehand, for small networks
PRINTED_ROW, PRINTED_MIXUP_ROW = 3e-8, 1e-7
FACTORS = {"mnist": 0.4, "cifar10": 0.2, "cifar10-released": 0.3}  # per subset, once: images have many columns
EVALUATION = {"autoencoder": 2e-2, "lenet5": 5e-1, "moons": 5e-4, "regression": 5e-4}
START = 0.5
SMALL = ("regression", "moons")  # trained by the kernel


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
    mixed = isinstance(objective, RLP) and objective.mixup is not None
    if model in SMALL and isinstance(objective, RLP) and objective.subsets_per_step == objective.n_subsets:
        return seconds + steps * networks * objective.rows_per_step * (PRINTED_MIXUP_ROW if mixed else PRINTED_ROW)
    rows = objective.shape()[0] if isinstance(objective, RLP) else objective.rows_per_step
    each = STEP[model] + STEP_ROW[model] * rows
    if cell.task.dataset.startswith("cifar10"):
        each *= 4.0
    if mixed and model in SMALL:
        each *= FRESH
    if isinstance(objective, RLP) and not mixed and model == "autoencoder":
        size, n_subsets, _ = objective.shape()
        seconds += networks * n_subsets * FACTORS[cell.task.dataset] * (size / 1000) ** 2
    return seconds + steps * networks * each
