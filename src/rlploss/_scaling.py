"""Mean and scale of the columns of a table: one rule for columns that do not vary."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_ROUNDING = 8 * float(np.finfo(np.float64).eps)


def is_constant(mean: Any, spread: Any) -> Any:
    """Whether columns do not vary: their spread is no more than the rounding of their mean. Arrays or tensors."""
    return spread <= _ROUNDING * abs(mean)


def mean_and_scale(columns: Any, weight: Array | None = None) -> tuple[Array, Array]:
    """Return mean [d] and standard deviation [d] of columns [n, d] in float64; a column that does not vary has scale 1.

    `weight` [n] weighs the rows.

    >>> mean_and_scale(np.array([[1.0, 0.1], [3.0, 0.1]]))
    (array([2. , 0.1]), array([1., 1.]))
    """
    found = np.asarray(columns, dtype=np.float64)
    # Squares of 1e200 would overflow. Division by a power of two rounds nothing.
    top = np.exp2(np.frexp(np.maximum(found.max(axis=0), -found.min(axis=0)))[1] - 1)
    centred = found / top
    mean = np.average(centred, axis=0, weights=weight)
    centred -= mean
    correction = np.average(centred, axis=0, weights=weight)  # the rounding of a sum over many rows
    centred -= correction
    mean = mean + correction
    spread = np.sqrt(np.average(np.square(centred, out=centred), axis=0, weights=weight))
    return mean * top, np.where(is_constant(mean, spread), 1.0, spread * top)
