"""Every table and figure of the paper as a study: which cells it needs, and what a cell is expected to cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rlploss.lab import train
from rlploss.lab.study import Cell, Task, Variant
from rlploss.paper import published
from rlploss.paper.measure import Measured, Measurement, Setting
from rlploss.paper.protocols import autoencoder_cells, classifier_cells, regression_cells, time_cells
from rlploss.paper.published import DATASETS, IMAGES, REGRESSION
from rlploss.paper.request import Request
from rlploss.training.job import Steps
from rlploss.training.objectives import RLP, BinaryCrossEntropy, Objective

AnyCell = Cell[Any, Any]  # trained or measured
Cells = Callable[[Request], list[AnyCell]]
MAIN = ("mse", "mse_l2", "rlp")
MIXUP = ("mse_mixup", "rlp", "rlp_mixup")
THREE = ("california", "wine", "nonlinear")
LEVELS = tuple(round(0.1 * k, 1) for k in range(1, 10))  # of γ and β
WINE_LONGER, WINE_EPOCHS = "wine-500", 500
HANDICAPPED = ("california", "wine")  # whose raw features differ in scale by orders of magnitude


def each(names: Iterable[str], make: Callable[[Request, str], Sequence[AnyCell]]) -> Cells:
    """The study of those of some datasets that were asked for."""
    return lambda request: [cell for name in request.picked("datasets", names) for cell in make(request, name)]


def joined(*studies: Cells) -> Cells:
    """The cells of several studies as one; of none, a study that trains nothing."""
    return lambda request: [cell for study in studies for cell in study(request)]


def plain(dataset: str) -> Task:
    """A regression task as it is without ablations."""
    return Task(dataset, dataset, "regression", metrics=("mse", "rlp"))


def _half(request: Request, name: str) -> list[Cell]:
    """Half of the rows for training."""
    if name in IMAGES:
        return autoencoder_cells(request, name, MAIN)
    return regression_cells(request, plain(name), "full", MAIN, corrected=name in HANDICAPPED)


def _wine_longer(request: Request, name: str) -> list[Cell]:
    """Wine for 500 epochs too: the paper's text and its Table 1 disagree about Wine after 200."""
    if request.at.epochs("regression", WINE_EPOCHS) < WINE_EPOCHS:
        return []
    task = replace(plain(name), name=WINE_LONGER)
    longer = regression_cells(request, task, "full", MAIN, full_epochs=WINE_EPOCHS)
    return [cell for cell in longer if cell.arm.protocol == "released"]


def _thresholds(request: Request, name: str) -> list[Cell]:
    """Table 1's own cells, and the same with more seeds: for claims that name a number."""
    own = [c for c in regression_cells(request, plain(name), "full", MAIN) if c.arm.protocol in ("released", "steps")]
    seeds = request.threshold_seeds()
    return [*own, *(replace(cell, seeds=seeds) for cell in own if seeds)]


def _few(request: Request, name: str, n_train: int) -> list[Cell]:
    """50 or 100 training examples."""
    if name in IMAGES:
        return autoencoder_cells(request, name, MAIN, n_train=n_train)
    return regression_cells(request, replace(plain(name), n_train=n_train), "small", MAIN)


def three(experiment: str, arms: tuple[str, ...], task: Callable[[str], Task] = plain) -> Cells:
    """The study of one experiment on California, Wine and Nonlinear; `task` makes the task of a dataset."""
    return each(THREE, lambda request, name: regression_cells(request, task(name), experiment, arms))


def sweep(experiment: str, arms: tuple[str, ...], region: str | None = None, suffix: str = "") -> Cells:
    """The study of distribution shift γ, in the paper's region or in one that holds half of the rows, or of noise β."""
    levels = tuple(Variant(**{experiment: level}) for level in LEVELS)
    plain_sweep = Task("", "", "regression", region=region, metrics=("mse",), variants=levels)
    return three(experiment, arms, lambda name: replace(plain_sweep, name=name + suffix, dataset=name))


def mixup_small(n_train: int) -> Cells:
    """The study of mixup with few examples."""
    return three("small", MIXUP, lambda name: replace(plain(name), name=f"{name}-{n_train}", n_train=n_train))


def classes(family: str, dataset: str) -> Cells:
    """The study of a classifier, both sizes, with and without mixup."""
    kinds = [(arms, small) for small in (False, True) for arms in (("ce", "rlp"), ("ce_mixup", "rlp_mixup"))]

    def cells(request: Request, name: str) -> list[Cell]:
        return [cell for arms, small in kinds for cell in classifier_cells(request, family, arms, small=small)]

    return each((dataset,), cells)


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


TABLE1 = joined(each(REGRESSION, _half), each(("wine",), _wine_longer), each(IMAGES, _half))
STUDIES: dict[str, Cells] = {
    "table1": TABLE1,
    "fig-curves": TABLE1,
    "thresholds": each(("linear", "wine"), _thresholds),
    "table2": each(DATASETS, partial(_few, n_train=50)),
    "fig-small-50": each(("california", "wine"), partial(_few, n_train=50)),
    "fig-small-100": each((*THREE, *IMAGES), partial(_few, n_train=100)),
    "fig-shift": joined(sweep("shift", MAIN, "paper"), sweep("shift", MAIN, "mahalanobis", " (half-and-half)")),
    "fig-noise": sweep("noise", MAIN),
    "fig-reconstructions": each(("mnist",), partial(autoencoder_cells, arms=("mse", "rlp"), n_train=50)),
    "fig-mnist-classes": classes("mnist_classes", "mnist"),
    "fig-moons": classes("moons", "moons"),
    "fig-mixup-curves": three("full", MIXUP),
    "fig-mixup-small": joined(mixup_small(50), mixup_small(100)),
    "fig-mixup-shift": sweep("shift", MIXUP, "paper"),
    "fig-mixup-noise": sweep("noise", MIXUP),
    "fig-time": each(THREE, time_cells),
    "fig-mae": three("mae", ("mae", "rlp"), lambda name: replace(plain(name), metrics=("mae", "mse"))),
    "fig-planes": joined(),
    "fig-networks": joined(),
    "tables-hyperparameters": joined(),
    "propositions": propositions,
}


def cells_of(names: Iterable[str], request: Request) -> list[AnyCell]:
    """The cells of some tables and figures, with repetitions."""
    return joined(*(STUDIES[name] for name in names))(request)


# What a cell costs, for plans; stored cells correct these figures (see `lab.run.calibrated`).
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
    each += COST["outside"] if isinstance(objective, BinaryCrossEntropy) else 0.0
    each *= COST["cifar10"] if cell.task.dataset.startswith("cifar10") else 1.0
    each *= COST["fresh"] if mixed and model in SMALL else 1.0
    if isinstance(objective, RLP) and not mixed and model == "autoencoder":
        size, n_subsets, _ = objective.shape()
        seconds += networks * n_subsets * COST["factors"][cell.task.dataset] * (size / 1000) ** 2
    return float(seconds + steps * networks * each)
