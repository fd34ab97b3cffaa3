"""What a task is trained on: from a task, a variant and a seed to training and test rows."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from rlploss import datasets
from rlploss.datasets import Dataset, Split
from rlploss.datasets.registry import entry
from rlploss.datasets.splits import Region
from rlploss.lab.study import Task, Variant


@lru_cache(maxsize=2)
def _load(name: str, reconstruction: bool) -> Dataset:
    return datasets.load(name, task="reconstruction" if reconstruction else None, progress=False)


def dataset_of(task: Task) -> Dataset:
    """The dataset of a task; an autoencoder's target is its input."""
    return _load(task.dataset, task.model == "autoencoder")


def split(task: Task, variant: Variant, seed: int) -> Split:
    """Training and test rows of one seed: the same for every arm, whatever its objective."""
    data = dataset_of(task)
    # Streams of their own, so that noise does not move the split.
    rows, noise = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    if variant.shift is not None:
        region: Region = "mahalanobis" if task.region == "mahalanobis" else "paper"
        made = datasets.shift_split(data, variant.shift, region=region, generator=rows)
    elif task.first:
        made = datasets.first_split(data, task.n_train or data.n_rows // 2, task.n_test or 1000)
    else:
        made = datasets.size_split(data, task.n_train, task.n_test, generator=rows)
    if variant.noise is not None:
        made = datasets.add_noise(made, variant.noise, generator=noise)
    if task.scaling == "standard":
        made = datasets.standardize(made)
    if task.model == "lenet5":
        made = datasets.as_images(made, side=32)
    return made


def train_rows(task: Task, variant: Variant) -> int:
    """How many training rows to expect, without loading anything: for plans and estimates."""
    item = entry(task.dataset)
    total = item.n_rows if item.n_official_train is None else 10_000
    if variant.shift is not None and task.region != "mahalanobis":
        return max(1, round((1.0 - variant.shift) * total))
    return task.n_train or total // 2


def n_features(task: Task) -> int:
    """Number of columns, without loading anything."""
    return 1024 if task.model == "lenet5" else entry(task.dataset).n_features
