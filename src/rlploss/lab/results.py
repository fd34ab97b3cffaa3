"""What training a cell gives back, and how a stored cell is read: curves over seeds as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
AXES = ("step", "epoch", "samples", "seconds")
Tell = Callable[[float], None]  # a training function tells the fraction done, now and then


@dataclass(frozen=True)
class Run:
    """One seed of one variant: its curve (axes and metrics, one list each) and any arrays worth keeping."""

    seed: int
    variant: int
    curve: Mapping[str, list[float]]
    seconds: float
    artifacts: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True)
class CellResult:
    """All runs of a cell, and how they were made."""

    runs: tuple[Run, ...]
    path: str  # "compiled" or "plain"
    threads: int
    seconds: float
    notes: tuple[str, ...] = ()  # what was worth telling on the way: warnings, each once


@dataclass(frozen=True)
class StoredCell:
    """A cell read from the store: the runs and the provenance of the row."""

    runs: tuple[Run, ...]
    provenance: Mapping[str, Any]
    seconds: float

    @property
    def path(self) -> str:
        """Compiled or plain."""
        return str(self.provenance["path"])

    def of_variant(self, variant: int = 0) -> list[Run]:
        """The runs of one variant, by seed."""
        return sorted((r for r in self.runs if r.variant == variant), key=lambda r: r.seed)

    def has(self, metric: str) -> bool:
        """Whether the runs carry this metric."""
        return all(metric in run.curve for run in self.runs)

    def matrix(self, metric: str, variant: int = 0) -> Array:
        """[seeds, points]: the metric's curve of every seed."""
        return np.array([run.curve[metric] for run in self.of_variant(variant)], dtype=np.float64)

    def axis(self, name: str, variant: int = 0) -> Array:
        """[points]: an axis, mean over seeds (they differ in seconds only)."""
        values: Array = self.matrix(name, variant).mean(axis=0)
        return values

    def final(self, metric: str, variant: int = 0) -> Array:
        """[seeds]: the last value of the metric."""
        values: Array = self.matrix(metric, variant)[:, -1]
        return values

    def at(self, metric: str, axis: str, value: float, variant: int = 0) -> Array:
        """[seeds]: the metric at the last evaluation with axis ≤ value; NaN where there is none."""
        points = np.flatnonzero(self.axis(axis, variant) <= value)
        matrix = self.matrix(metric, variant)
        return matrix[:, points[-1]] if points.size else np.full(len(matrix), np.nan)
