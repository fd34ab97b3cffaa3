"""Whether intervals of `predict` hold what they promise, on fresh rows of twenty generated tables.

python -m benchmarks.bench_intervals

Each table has 200 to 400 rows, noise that differs from table to table (normal, heavy-tailed,
skewed, growing with the prediction), and a positive, skewed target in a quarter of them. The winner
of a comparison predicts 2,000 fresh rows of the same kind with intervals of 90 %."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.common import Row, at_most
from benchmarks.run import table as markdown
from rlploss.compare import compare

TABLES, FRESH, COVERAGE = 20, 2_000, 0.9
MEAN, LEAST = (0.88, 0.93), 0.84  # the mean over tables lies between, no table is below
ARMS = ("mean", "ridge", "boosting", "trees")


def made_up(seed: int) -> tuple[pd.DataFrame, np.ndarray, int]:
    """Rows of one kind, with their target, and how many of them are the table."""
    rng = np.random.default_rng([7, seed])
    n, d = int(rng.integers(200, 401)), int(rng.integers(3, 9))
    X = rng.normal(size=(n + FRESH, d))
    y = X @ rng.normal(size=d) + 2 * np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    noise = (
        rng.normal(size=len(X)),
        rng.standard_t(3, size=len(X)),
        rng.exponential(size=len(X)) - 1,
        rng.normal(size=len(X)) * (0.5 + np.abs(X[:, 0])),
    )[seed % 4]
    y = y + rng.uniform(0.3, 2.0) * noise
    y = np.exp(0.4 * y) if seed // 4 % 4 == 3 else y
    return pd.DataFrame(X, columns=[f"x{i}" for i in range(d)]), y, n


def coverage(seed: int) -> float:
    """The part of fresh rows that lies within the intervals of the winner."""
    X, y, n = made_up(seed)
    found = compare(X[:n], y[:n], arms=ARMS, n_splits=10, workers="inline")
    low, high = found.expected().interval(found.best_model().predict(X[n:]), COVERAGE)
    return float(np.mean((low <= y[n:]) & (y[n:] <= high)))


def measure(quick: bool = False) -> list[Row]:
    """The mean coverage against both ends, and the least; with `quick` of four tables."""
    shares = [coverage(seed) for seed in range(4 if quick else TABLES)]
    mean, least = float(np.mean(shares)), min(shares)
    told = f"{mean:.3f} in the mean, {least:.3f} at least, {max(shares):.3f} at most"
    return [
        at_most("intervals: mean coverage / 0.93", mean / MEAN[1], 1, told),
        at_most("intervals: 0.88 / mean coverage", MEAN[0] / mean, 1, ""),
        at_most("intervals: 0.84 / least coverage", LEAST / least, 1, ""),
    ]


if __name__ == "__main__":
    print(markdown(measure()))
