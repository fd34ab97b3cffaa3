"""What a task is trained on: from a task's settings and a seed to training and test rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from rlploss import _checks, datasets
from rlploss.datasets import Dataset, Split
from rlploss.datasets.splits import Region
from rlploss.lab.study import Cell, Scalar, Task

MODELS = ("regression", "autoencoder", "lenet5", "moons")
TASK_SETTINGS = frozenset(
    {"dataset", "model", "n_train", "n_test", "first", "region", "scaling", "metrics", "keep", "timed"}
)
VARIANT_SETTINGS = frozenset({"shift", "noise"})


@lru_cache(maxsize=2)
def _load(name: str, task: str | None) -> Dataset:
    return datasets.load(name, task="reconstruction" if task == "reconstruction" else None, progress=False)


def dataset_of(task: Task) -> Dataset:
    """The dataset of a task; an autoencoder's target is its input."""
    return _load(str(task.get("dataset")), "reconstruction" if task.get("model") == "autoencoder" else None)


def check(cell: Cell) -> None:
    """Refuse settings that nobody would read: a misspelt one would otherwise be ignored in silence."""
    for key, _ in cell.task.settings:
        _checks.one_of("task setting", key, TASK_SETTINGS)
    for variant in cell.task.variants:
        for key, _ in variant:
            _checks.one_of("variant setting", key, VARIANT_SETTINGS)
    _checks.one_of("task setting model", cell.task.get("model"), MODELS)


def split(task: Task, variant: Mapping[str, Scalar], seed: int) -> Split:
    """Training and test rows of one seed: the same for every arm, whatever its objective."""
    data = dataset_of(task)
    # Streams of their own, so that noise does not move the split.
    rows, noise = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    n_train, n_test = _size(task, "n_train"), _size(task, "n_test")
    if "shift" in variant:
        region: Region = "mahalanobis" if task.get("region") == "mahalanobis" else "paper"
        made = datasets.shift_split(data, _number(variant["shift"]), region=region, generator=rows)
    elif task.get("first"):
        made = datasets.first_split(data, n_train or data.n_rows // 2, n_test or 1000)
    else:
        made = datasets.size_split(data, n_train, n_test, generator=rows)
    if "noise" in variant:
        made = datasets.add_noise(made, _number(variant["noise"]), generator=noise)
    if task.get("scaling") == "standard":
        made = datasets.standardize(made)
    if task.get("model") == "lenet5":
        made = datasets.as_images(made, side=32)
    return made


def train_rows(task: Task, variant: Mapping[str, Scalar]) -> int:
    """How many training rows to expect, without loading anything: for plans and estimates."""
    from rlploss.datasets.registry import entry

    item = entry(str(task.get("dataset")))
    total = item.n_rows if item.n_official_train is None else 10_000
    if "shift" in variant and task.get("region") != "mahalanobis":
        return max(1, round((1.0 - _number(variant["shift"])) * total))
    return _size(task, "n_train") or total // 2


def n_features(task: Task) -> int:
    """Number of columns, without loading anything."""
    from rlploss.datasets.registry import entry

    return 1024 if task.get("model") == "lenet5" else entry(str(task.get("dataset"))).n_features


def _size(task: Task, key: str) -> int | None:
    value = task.get(key)
    return None if value is None else _checks.count(key, value)


def _number(value: Scalar) -> float:
    return _checks.number("variant", value)
