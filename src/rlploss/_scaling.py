"""Standardise columns and targets, with one rule for columns that do not vary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_ROUNDING = 8 * float(np.finfo(np.float64).eps)


def is_constant(mean: Any, spread: Any) -> Any:
    """Return whether columns (arrays or tensors) vary by no more than the rounding of their
    mean.
    """
    return spread <= _ROUNDING * abs(mean)


def mean_and_scale(columns: Any, weight: Array | None = None) -> tuple[Array, Array]:
    """Return mean [d] and scale [d] of columns [n, d] in float64. The scale is the standard
    deviation, or 1 for a column that does not vary.

    `weight` [n] weights the rows.

    >>> mean_and_scale(np.array([[1.0, 0.1], [3.0, 0.1]]))
    (array([2. , 0.1]), array([1., 1.]))
    """
    values = np.asarray(columns, dtype=np.float64)
    # Squares of 1e200 would overflow. Division by a power of two rounds nothing.
    top = np.exp2(np.frexp(np.maximum(values.max(axis=0), -values.min(axis=0)))[1] - 1)
    centred = values / top
    mean = np.average(centred, axis=0, weights=weight)
    centred -= mean
    # Removes the rounding error of a sum over many rows.
    correction = np.average(centred, axis=0, weights=weight)
    centred -= correction
    mean = mean + correction
    spread = np.sqrt(np.average(np.square(centred, out=centred), axis=0, weights=weight))
    return mean * top, np.where(is_constant(mean, spread), 1.0, spread * top)


@dataclass(frozen=True, eq=False)
class Scaling:
    """Means and scales of inputs and targets; a column that does not vary is only centred."""

    x_mean: Array  # [d]
    x_scale: Array  # [d]
    y_mean: Array  # [C]
    y_scale: Array  # [C]

    @classmethod
    def of(cls, X: Array, Y: Array | None = None, weight: Array | None = None) -> Scaling:
        """Return the scaling of X [n, d] and Y [n, C] to mean 0 and standard deviation 1.

        With Y None, targets stay as they are.
        """
        y = (np.zeros(1), np.ones(1)) if Y is None else mean_and_scale(Y, weight)
        return cls(*mean_and_scale(X, weight), *y)

    @classmethod
    def none(cls, n_features: int) -> Scaling:
        """Return a scaling that leaves X [n, d] and Y [n, C] as they are."""
        return cls(np.zeros(n_features), np.ones(n_features), np.zeros(1), np.ones(1))

    def inputs(self, X: Array) -> Array:
        """Return scaled columns [n, d]."""
        return (X - self.x_mean) / self.x_scale

    def targets(self, Y: Array) -> Array:
        """Return scaled targets [n, C]."""
        return (Y - self.y_mean) / self.y_scale
