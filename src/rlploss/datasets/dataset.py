"""`Dataset`: arrays that cannot be changed by accident."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

TaskName = Literal["regression", "classification", "reconstruction"]
Array = NDArray[Any]
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
