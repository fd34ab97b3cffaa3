"""Every table and figure of the paper as a study: which cells it needs, and what a cell is expected to cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rlploss.lab import train
from rlploss.lab.study import AnyCell, Cell
from rlploss.paper import published
from rlploss.paper.measure import Measured, Measurement, Setting
from rlploss.paper.protocols import autoencoder_cells, classifier_cells, regression_cells, time_cells
from rlploss.paper.request import Request
from rlploss.training.job import Steps
from rlploss.training.objectives import RLP, BatchLoss, BinaryCrossEntropy, Objective, Pointwise

Cells = Callable[[Request], list[AnyCell]]
KINDS: dict[str, Callable[..., list[Cell]]] = {
    "regression": regression_cells,
    "autoencoder": autoencoder_cells,
    "classifier": classifier_cells,
    "time": time_cells,
}
SECTIONS = {row["name"]: row for row in published.frozen(published.data("report.toml")["section"])}

OWN_LOSSES_IN = "table1"  # the one place where a reader's losses are trained beside the paper's


def _study(name: str, request: Request) -> list[AnyCell]:
    """The cells of a section, from its rows in `report.toml`; a name instead of rows stands for that section's."""
    rows, arms = SECTIONS[name].get("cells", ()), SECTIONS[name].get("arms", ())
    if isinstance(rows, str):
        return _study(rows, request)
    if name == OWN_LOSSES_IN:
        arms = (*arms, *dict(request.losses))
    return [cell for row in rows for cell in _cells(request, **{"arms": arms} | row)]


def _cells(
    request: Request,
    *,
    on: Sequence[str],
    kind: str = "regression",
    protocols: Sequence[str] = (),
    thresholds: bool = False,
    **options: Any,
) -> Iterator[Cell]:
    for dataset in request.picked("datasets", on):
        made = [c for c in KINDS[kind](request, dataset, **options) if not protocols or c.arm.protocol in protocols]
        yield from made
        seeds = request.threshold_seeds() if thresholds else ()
        yield from (replace(cell, seeds=seeds) for cell in made if seeds)


def propositions(request: Request) -> list[AnyCell]:
    """The statements that are measured, not trained; `smoke` draws less."""
    draws, samples = (1_000, 4) if request.scale == "smoke" else (20_000, 30)
    settings = {
        name: [Setting(**row) for row in rows] for name, rows in published.data("report.toml")["settings"].items()
    }
    settings["empirical"] = [replace(setting, samples=samples) for setting in settings["empirical"]]
    seeds = request.seeds_for("regression")[:3]
    return [
        Cell(Measured(), Measurement(name, name, draws, tuple(variants)), Steps(1), seeds)
        for name, variants in settings.items()
    ]


STUDIES: dict[str, Cells] = {name: partial(_study, name) for name in SECTIONS} | {"propositions": propositions}


def cells_of(names: Iterable[str], request: Request) -> list[AnyCell]:
    """The cells of some tables and figures, with repetitions."""
    return [cell for name in names for cell in STUDIES[name](request)]


# What a cell costs, for plans; stored cells correct these figures (see `lab.run.plan`).
COST = published.data("report.toml")["cost"]
SMALL = ("regression", "moons")  # trained by the kernel


def _resolved(cell: Cell) -> list[tuple[Objective, int]]:
    """The objective with its sizes filled in, and the number of training rows, for every variant."""
    rows = [train.train_rows(cell.task, variant) for variant in cell.task.variants]
    return [(cell.arm.objective.resolve(n, train.n_features(cell.task)), n) for n in rows]


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
    seconds = COST["start"] + cell.budget.n / cell.evaluate_every * networks * COST["evaluation"][model]
    mixed = isinstance(objective, RLP) and objective.mixup is not None
    if model in SMALL and isinstance(objective, RLP) and objective.subsets_per_step == objective.n_subsets:
        each = objective.rows_per_step * COST["printed_mixup_row" if mixed else "printed_row"]
        return float(seconds + steps * networks * each)
    rows = objective.shape()[0] if isinstance(objective, RLP) else objective.rows_per_step
    each = COST["step"][model] + COST["step_row"][model] * rows
    outside = isinstance(objective, BinaryCrossEntropy | Pointwise | BatchLoss)  # autograd finds ∂loss/∂pred
    each += COST["outside"] if outside else 0.0
    each *= COST["cifar10"] if cell.task.dataset.startswith("cifar10") else 1.0
    each *= COST["fresh"] if mixed and model in SMALL else 1.0
    if isinstance(objective, RLP) and not mixed and model == "autoencoder":
        size, n_subsets, _ = objective.shape()
        beyond = n_subsets * COST["factors"][cell.task.dataset] + steps * COST["projected"][cell.task.dataset]
        seconds += networks * beyond * (size / 1000) ** 2
    return float(seconds + steps * networks * each)
