"""Standardised columns and targets, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlploss._scaling import mean_and_scale

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scaling:
    """What is subtracted and divided by; a column that does not vary is only centred."""

    x_mean: Array  # [d]
    x_scale: Array  # [d]
    y_mean: Array  # [C]
    y_scale: Array  # [C]

    @classmethod
    def of(cls, X: Array, Y: Array | None = None, weight: Array | None = None) -> Scaling:
        """Scaling to mean 0 and standard deviation 1 of X [n, d] and Y [n, C]; None: Y stays as it is."""
        y = (np.zeros(1), np.ones(1)) if Y is None else mean_and_scale(Y, weight)
        return cls(*mean_and_scale(X, weight), *y)

    @classmethod
    def none(cls, n_features: int, n_outputs: int = 1) -> Scaling:
        """Scaling that leaves X [n, d] and Y [n, C] as they are."""
        return cls(np.zeros(n_features), np.ones(n_features), np.zeros(n_outputs), np.ones(n_outputs))

    def inputs(self, X: Array) -> Array:
        """Scaled columns [n, d]."""
        return (X - self.x_mean) / self.x_scale

    def targets(self, Y: Array) -> Array:
        """Scaled targets [n, C]."""
        return (Y - self.y_mean) / self.y_scale

    def original(self, Y: Array) -> Array:
        """Targets or predictions [n, C] in their original units, from scaled ones."""
        return Y * self.y_scale + self.y_mean
