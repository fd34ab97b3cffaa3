"""`Dataset`: arrays that cannot be changed by accident; `Entry`: what is known before they are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlploss.datasets.cache import DataFile
from rlploss.datasets.sources import Source

TaskName = Literal["regression", "classification", "reconstruction"]
Array = NDArray[Any]
Arrays = tuple[Array, Array, tuple[str, ...]]  # X, y, feature names
ImageShape = tuple[int, int, int]  # channels, height, width


def frozen(array: Array) -> Array:
    """Return the array, C-contiguous and read-only."""
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """One dataset: features X [rows, d], targets y [rows], and its papers.

    Tables are float64, images float32 in [0, 1] and flat: a row is the image's planes one after the other, and
    `images` gives them their shape back. Class labels are int64. For reconstruction y is X itself. Arrays are
    read-only.
    """

    name: str
    X: Array
    y: Array
    feature_names: tuple[str, ...]
    task: TaskName
    source: str
    licence: str
    citation: str
    image_shape: ImageShape | None = None
    n_official_train: int | None = None  # rows before this one are the original training set, the others its test set

    def __repr__(self) -> str:
        return f'Dataset("{self.name}", {self.task}, {self.n_rows}×{self.n_features})'

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.X)

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return int(self.X.shape[1])

    @property
    def images(self) -> Array:
        """X as images [rows, channels, height, width], without a copy."""
        if self.image_shape is None:
            raise ValueError(f'dataset "{self.name}" has no images: use X')
        return self.X.reshape(self.n_rows, *self.image_shape)


@dataclass(frozen=True)
class Entry:
    """What is known of a dataset before a byte of it is there."""

    name: str
    n_rows: int
    n_features: int
    task: TaskName
    read: Callable[[Mapping[str, bytes]], Arrays]
    source: str
    licence: str
    citation: str
    files: tuple[DataFile, ...] = ()
    sources: tuple[Source, ...] = ()
    directory: str = ""  # in the cache; entries that share files share it
    image_shape: ImageShape | None = None
    n_official_train: int | None = None

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """The tasks it can be loaded for, its own first."""
        return (self.task,) if self.image_shape is None else (self.task, "reconstruction")

    @property
    def n_bytes(self) -> int:
        """Size in the cache."""
        return sum(file.size for file in self.files)
