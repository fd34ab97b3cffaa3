"""What training a cell gives back, and how a stored cell is read: curves over seeds as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Tell = Callable[[float], None]  # a training function tells the fraction done, now and then


@dataclass(frozen=True)
class TrainedNetwork:
    """One seed of one variant: its curve (axes and metrics, one list each), single numbers, and arrays to keep."""

    seed: int
    variant: int
    curve: Mapping[str, list[float]]
    seconds: float
    values: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True)
class CellResult:
    """All networks of a cell, and how they were made."""

    networks: tuple[TrainedNetwork, ...]
    engine: str  # which of the engines of `fit_fleet` trained them, "none" where nothing is trained
    threads: int
    seconds: float
    notes: tuple[str, ...] = ()  # what was worth telling on the way: warnings, each once
    objectives: tuple[dict[str, Any], ...] = ()  # as JSON with M and K resolved: one, or one per variant


@dataclass(frozen=True)
class StoredCell:
    """A cell read from the store: the networks and the provenance of the row."""

    networks: tuple[TrainedNetwork, ...]
    provenance: Mapping[str, Any]
    seconds: float

    def of_variant(self, variant: int = 0) -> list[TrainedNetwork]:
        """The networks of one variant, by seed."""
        return sorted((n for n in self.networks if n.variant == variant), key=lambda n: n.seed)

    def has(self, name: str) -> bool:
        """Whether every network has this metric or number."""
        return all(name in network.curve or name in network.values for network in self.networks)

    def matrix(self, metric: str, variant: int = 0) -> Array:
        """[seeds, points]: the metric's curve of every seed."""
        return np.array([network.curve[metric] for network in self.of_variant(variant)], dtype=np.float64)

    def axis(self, name: str, variant: int = 0) -> Array:
        """[points]: "step", "epoch", "samples" or "seconds", mean over seeds (they differ in seconds only)."""
        values: Array = self.matrix(name, variant).mean(axis=0)
        return values

    def final(self, name: str, variant: int = 0) -> Array:
        """[seeds]: the last value of a metric's curve, or the single number of this name."""
        networks = self.of_variant(variant)
        return np.array([n.values[name] if name in n.values else n.curve[name][-1] for n in networks], dtype=np.float64)

    def mean(self, name: str, variant: int = 0) -> float:
        """The mean of `final` over seeds."""
        return float(self.final(name, variant).mean())

    def at(self, metric: str, axis: str, value: float, variant: int = 0) -> Array:
        """[seeds]: the metric at the last evaluation with axis ≤ value; NaN where there is none."""
        points = np.flatnonzero(self.axis(axis, variant) <= value)
        matrix = self.matrix(metric, variant)
        return matrix[:, points[-1]] if points.size else np.full(len(matrix), np.nan)
