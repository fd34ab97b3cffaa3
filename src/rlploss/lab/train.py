"""Load and split the data of a task, and train one cell of a study as a fleet of networks."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rlploss import datasets, models
from rlploss.datasets import Dataset, Split
from rlploss.datasets.registry import entry
from rlploss.datasets.splits import Region
from rlploss.lab.store import TRAINING
from rlploss.lab.study import Arm, Cell, CellResult, Task, Tell, TrainedNetwork, Variant
from rlploss.training.evaluation import Event
from rlploss.training.fit import fit_fleet
from rlploss.training.job import Problem

# The files that decide a number.
DECIDING = (
    *TRAINING,
    *("datasets/readers.py", "datasets/registry.py", "datasets/splits.py", "lab/train.py"),
)
KEPT_EPOCHS = (5, 10, 50)  # at whose ends reconstructions are stored
KEPT_IMAGES = 8
GRID = 60  # points along each side of a decision boundary


@lru_cache(maxsize=2)
def _load(name: str, reconstruction: bool) -> Dataset:
    return datasets.load(name, task="reconstruction" if reconstruction else None, progress=False)


def split(task: Task, variant: Variant, seed: int) -> Split:
    """Return the training and test rows of one seed, which are the same for every arm."""
    # The target of an autoencoder is its input.
    data = _load(task.dataset, task.model == "autoencoder")
    # Separate random streams: noise does not change the split.
    rows, noise = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    if variant.shift is not None:
        region: Region = "mahalanobis" if task.region == "mahalanobis" else "paper"
        split_rows = datasets.shift_split(data, variant.shift, region=region, generator=rows)
    elif task.first:
        split_rows = datasets.first_split(
            data, task.n_train or data.n_rows // 2, task.n_test or 1000
        )
    else:
        split_rows = datasets.size_split(data, task.n_train, task.n_test, generator=rows)
    if task.held_out is not None:
        split_rows = datasets.hold_out(split_rows, task.held_out)
    if variant.noise is not None:
        split_rows = datasets.add_noise(split_rows, variant.noise, generator=noise)
    if task.scaling == "standard":
        split_rows = datasets.standardize(split_rows)
    return datasets.as_images(split_rows, side=32) if task.model == "lenet5" else split_rows


def train_rows(task: Task, variant: Variant) -> int:
    """Return about how many training rows a task has, without loading anything; plans use it."""
    item = entry(task.dataset)
    total = item.n_rows if item.n_official_train is None else 10_000
    if variant.shift is not None and task.region != "mahalanobis":
        return max(1, round((1.0 - variant.shift) * total))
    n_train = task.n_train or total // 2
    return n_train if task.held_out is None else n_train - round(task.held_out * n_train)


def n_features(task: Task) -> int:
    """Return the number of columns, without loading anything."""
    return 1024 if task.model == "lenet5" else entry(task.dataset).n_features


def train(cell: Cell, tell: Tell) -> CellResult:
    """Train the cell and return its curves; warnings become notes of the result."""
    started = time.perf_counter()
    fleet = _fleet(cell)
    pictures: dict[str, NDArray[np.float32]] = {}  # pictures of the first network
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own code raises them
        warnings.simplefilter("ignore", FutureWarning)
        histories = fit_fleet(
            builder(cell.arm, cell.task),
            fleet,
            cell.arm.objective,
            optimizer=cell.arm.optimizer,
            budget=cell.budget,
            evaluate_every=type(cell.budget)(cell.evaluate_every),
            metrics=cell.task.metrics,
            callbacks=[partial(_keep_reconstructions, pictures, fleet[0])]
            * (cell.task.keep == "reconstructions"),
            progress=lambda state: tell(state.step / max(1, state.total_steps)),
            on_divergence="record",
        )
    for index, history in enumerate(histories):
        if history.stopped == "diverged":
            raise RuntimeError(
                f"seed {cell.keys[index][1]}: {history.message.removeprefix(f'replica {index}: ')}"
            )
    if cell.task.keep == "boundary" and histories[0].model is not None:
        pictures["boundary"] = _boundary(histories[0].model)
    networks = [
        TrainedNetwork(seed, variant, curve=history.columns, seconds=float(history.last("seconds")))
        for (variant, seed), history in zip(cell.keys, histories, strict=True)
    ]
    networks[0] = replace(networks[0], artifacts=pictures)
    shapes = dict.fromkeys(torch.as_tensor(problem.X).flatten(1).shape for problem in fleet)
    return CellResult(
        tuple(networks),
        engine=str(histories[0].settings.get("engine", "torch")),
        threads=torch.get_num_threads(),
        seconds=time.perf_counter() - started,
        notes=tuple(dict.fromkeys(" ".join(str(w.message).split()) for w in caught)),
        objectives=tuple(cell.arm.objective.resolve(*shape).to_json() for shape in shapes),
    )


def _fleet(cell: Cell) -> list[Problem]:
    def problem(variant: Variant, seed: int) -> Problem:
        X, y, X_test, y_test = split(cell.task, variant, seed).tensors()
        return Problem(X, y, validation=(X_test, y_test), seed=seed)

    if cell.task.first:  # nothing is drawn, so all seeds share one copy of the rows
        only = problem(Variant(), 0)
        return [replace(only, seed=seed) for _, seed in cell.keys]
    return [problem(cell.task.variants[variant], seed) for variant, seed in cell.keys]


def builder(arm: Arm, task: Task) -> Callable[[int], nn.Module]:
    """Return a function from a seed to the initial network of a task, with the arm's output
    layer.
    """
    factories: dict[str, Callable[[], nn.Module]] = {
        "regression": lambda: models.RegressionNet(n_features(task)),
        "autoencoder": lambda: models.Autoencoder(n_features(task)),
        "lenet5": lambda: models.LeNet5(output=arm.output),
        "moons": lambda: models.MoonsNet(output=arm.output),
    }
    return lambda seed: models.seeded(factories[task.model], seed)


def _keep_reconstructions(
    pictures: dict[str, NDArray[np.float32]], problem: Problem, event: Event
) -> None:
    """Store the first test images and the first network's reconstructions, up to each epoch of
    `KEPT_EPOCHS`.
    """
    if event.replica != 0 or problem.validation is None:
        return
    images = torch.as_tensor(problem.validation[0])[:KEPT_IMAGES]
    pictures.setdefault("original", images.numpy())
    for epoch in KEPT_EPOCHS:
        if event.epoch <= epoch:
            with torch.no_grad():
                pictures[f"epoch {epoch}"] = event.model()(images).numpy()


def _boundary(model: nn.Module) -> NDArray[np.float32]:
    """Return the class-1 score of a network on a grid over the plane."""
    axes = torch.linspace(-1.8, 2.8, GRID), torch.linspace(-1.4, 1.9, GRID)
    points = torch.stack([g.flatten() for g in torch.meshgrid(*axes, indexing="xy")], dim=1)
    with torch.no_grad():
        scores = model(points)
    return (scores[:, 1] - scores[:, 0]).reshape(GRID, GRID).numpy().astype(np.float32)  # type: ignore[no-any-return]  # an array
