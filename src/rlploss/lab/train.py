"""Train one cell: all seeds and variants of one arm on one task, as one fleet."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rlploss import _checks, models
from rlploss._progress import Progress
from rlploss.lab import problems
from rlploss.lab.results import CellResult, Run, Tell
from rlploss.lab.study import Cell, Scalar
from rlploss.training.budget import Epochs, Steps
from rlploss.training.fit import fit_fleet
from rlploss.training.history import Event, History
from rlploss.training.job import Problem
from rlploss.training.objectives import NAMES, RLP, Objective
from rlploss.training.optimizers import SGD, Adam, AdamW, OptimizerValue

ARM_SETTINGS = (
    "preset",
    "probe",
    "draw_from",
    "method",
    "plan",
    "intercept",
    "ridge",
    "subset_size",
    "n_subsets",
    "subsets_per_step",
    "mixup_alpha",
    "optimizer",
    "lr",
    "weight_decay",
    "momentum",
    "batch_size",
)
OPTIMISER = ("optimizer", "lr", "weight_decay", "momentum")
KEPT_EPOCHS = (5, 10, 50)  # of reconstructions
KEPT_IMAGES = 8
GRID = 60  # points along each side of a decision boundary


def train(cell: Cell, tell: Tell) -> CellResult:
    """Train the cell and return its curves; warnings become notes of the result."""
    problems.check(cell)
    for key, _ in cell.arm.settings:
        _checks.one_of("arm setting", key, (*ARM_SETTINGS, "output"))
    started = time.perf_counter()
    keys = [(variant, seed) for variant in range(len(cell.task.variants)) for seed in cell.seeds]
    if cell.task.get("first"):  # nothing is drawn: all seeds share one copy of the rows
        only = _problem(cell, {}, 0)
        fleet = [replace(only, seed=seed) for _, seed in keys]
    else:
        fleet = [_problem(cell, dict(cell.task.variants[variant]), seed) for variant, seed in keys]
    kept: dict[int, dict[str, NDArray[np.float32]]] = {}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for kind in (DeprecationWarning, FutureWarning):  # about torch's own code, not about this run
            warnings.simplefilter("ignore", kind)
        histories = _fit(cell, fleet, tell, _keeper(cell, fleet, kept))
    for index, history in enumerate(histories):
        if history.stopped == "diverged":
            raise RuntimeError(f"seed {keys[index][1]}: {history.message.removeprefix(f'replica {index}: ')}")
    _keep_boundary(cell, histories, kept)
    runs = [
        Run(seed, variant, history.columns, float(history.last("seconds")), kept.get(index, {}))
        for index, ((variant, seed), history) in enumerate(zip(keys, histories, strict=True))
    ]
    return CellResult(
        tuple(runs),
        path=str(histories[0].settings.get("path", "plain")),
        threads=torch.get_num_threads(),
        seconds=time.perf_counter() - started,
        notes=tuple(dict.fromkeys(" ".join(str(w.message).split()) for w in told)),
    )


def _problem(cell: Cell, variant: Mapping[str, Scalar], seed: int) -> Problem:
    X, y, X_test, y_test = problems.split(cell.task, variant, seed).tensors()
    return Problem(X, y, validation=(X_test, y_test), seed=seed)


def _fit(cell: Cell, fleet: list[Problem], tell: Tell, callbacks: list[Callable[[Event], None]]) -> list[History]:
    unit = Epochs if cell.budget.unit == "epochs" else Steps
    n_rows = max(torch.as_tensor(problem.X).shape[0] for problem in fleet)
    metrics = str(cell.task.get("metrics", "mse")).split(",")

    def progress(state: Progress) -> None:
        tell(state.step / max(1, state.total_steps))

    return fit_fleet(
        builder(cell),
        fleet,
        objective_of(cell, n_rows),
        optimizer=optimizer_of(cell),
        budget=unit(cell.budget.n),
        evaluate_every=unit(cell.budget.every),
        metrics=metrics,
        callbacks=callbacks,
        progress=progress,
        on_divergence="record",
    )


def objective_of(cell: Cell, n_rows: int) -> Objective:
    """The objective of an arm; a batch of "all" rows is one of `n_rows`."""
    given: dict[str, Any] = {
        name: cell.arm.get(name) for name in ARM_SETTINGS if cell.arm.get(name) is not None and name not in OPTIMISER
    }
    name, plus, _ = cell.arm.objective.partition("+")
    mixup = given.pop("mixup_alpha", 0.25) if plus else None
    preset = given.pop("preset", None)
    if preset == "released-autoencoder":
        return RLP.released(**given, mixup=mixup, float32_cutoff=True)
    if preset is not None:
        return RLP.released(**given, mixup=mixup) if preset == "released" else RLP.paper(**given, mixup=mixup)
    if given.get("batch_size") == "all":
        given["batch_size"] = n_rows
    made: Any = NAMES[name]
    return made(**given, mixup=mixup)  # type: ignore[no-any-return]  # a subclass of Objective


def optimizer_of(cell: Cell) -> OptimizerValue:
    """The optimiser of an arm."""
    name = str(cell.arm.get("optimizer", "adam"))
    given: dict[str, Any] = {key: cell.arm.get(key) for key in OPTIMISER[1:] if cell.arm.get(key) is not None}
    if name.startswith("sgd"):
        nesterov = name == "sgd_nesterov"
        return SGD(**{"lr": 1e-3, "momentum": 0.9 if nesterov else 0.0} | given, nesterov=nesterov)
    return (Adam if name == "adam" else AdamW)(**{"weight_decay": 0.0} | given)


def builder(cell: Cell) -> Callable[[int], nn.Module]:
    """The network of a task, with the arm's output layer; the seed decides the initial weights."""
    kind = cell.task.get("model")
    output = str(cell.arm.get("output", "logits"))
    width = problems.n_features(cell.task)

    def factory() -> nn.Module:
        if kind == "regression":
            return models.RegressionNet(width)
        if kind == "autoencoder":
            return models.Autoencoder(width)
        if kind == "lenet5":
            return models.LeNet5(output=output)
        return models.MoonsNet(output=output)

    return lambda seed: models.seeded(factory, seed)


def _keeper(
    cell: Cell, fleet: list[Problem], kept: dict[int, dict[str, NDArray[np.float32]]]
) -> list[Callable[[Event], None]]:
    """A callback that keeps reconstructions of the first seed's first test images."""
    if cell.task.get("keep") != "reconstructions":
        return []
    validation = fleet[0].validation
    assert validation is not None
    images = torch.as_tensor(validation[0])[:KEPT_IMAGES]

    def keep(event: Event) -> None:
        if event.replica != 0:
            return
        mine = kept.setdefault(0, {"original": images.numpy()})
        for epoch in KEPT_EPOCHS:
            if event.epoch <= epoch:
                with torch.no_grad():
                    mine[f"epoch {epoch}"] = event.model()(images).numpy()

    return [keep]


def _keep_boundary(cell: Cell, histories: list[History], kept: dict[int, dict[str, NDArray[np.float32]]]) -> None:
    """Keep the first seed's class-1 score on a grid over the plane."""
    if cell.task.get("keep") != "boundary":
        return
    axis_x, axis_y = torch.linspace(-1.8, 2.8, GRID), torch.linspace(-1.4, 1.9, GRID)
    points = torch.stack([g.flatten() for g in torch.meshgrid(axis_x, axis_y, indexing="xy")], dim=1)
    model = histories[0].model
    assert model is not None
    with torch.no_grad():
        scores = model(points)
    kept[0] = {"boundary": (scores[:, 1] - scores[:, 0]).reshape(GRID, GRID).numpy().astype(np.float32)}
