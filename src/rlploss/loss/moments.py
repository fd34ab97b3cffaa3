"""Mean and second moments of many rows, a part at a time, and a few points that have the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def same_moments(parts: Callable[[], Iterable[Tensor]]) -> Tensor:
    """2d points [2d, d] in float64 with the mean and the second moments of all rows.

    The probe "expected" depends on rows through Σ = mean of zzᵀ alone, so these points can stand for all rows.
    `parts` gives the rows, each part [n_i, d], and is called twice.
    """
    n, total = column_sums(parts())
    mean = total / n
    return points_with(n, mean, triangle_of(parts(), mean))


def column_sums(parts: Iterable[Tensor]) -> tuple[int, Tensor]:
    """The number of rows, and the sum of each column [d] in float64."""
    n, total = 0, torch.zeros(0, dtype=torch.float64)
    for part in parts:
        here = part.sum(0, dtype=torch.float64)
        total = here if n == 0 else total + here
        n += part.shape[0]
    return n, total


def triangle_of(parts: Iterable[Tensor], mean: Tensor) -> Tensor:
    """R [d, d] of a QR of the rows minus `mean` [d]; no Gram matrix is formed, which would square the condition."""
    triangle = mean.new_zeros(mean.shape[0], mean.shape[0])
    for part in parts:
        triangle = torch.linalg.qr(torch.cat([triangle, part.double() - mean]), mode="r")[1]
    return triangle


def points_with(n: float, mean: Tensor, triangle: Tensor) -> Tensor:
    """Mean ± √(d/n)·r_i for the rows r_i of the triangle: the mean of their zzᵀ is that of the n rows."""
    away = triangle * math.sqrt(triangle.shape[0] / n)
    return torch.cat([mean + away, mean - away])
