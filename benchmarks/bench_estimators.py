"""What the estimators promise about time and error."""

from __future__ import annotations

import statistics
import time
import warnings

import numpy as np
from sklearn.neural_network import MLPRegressor

from benchmarks.common import Row, at_most, timed
from rlploss.estimators import RLPRegressor, RLPRegressorCV


def table(n: int, d: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows with offsets and scales, a target that is half linear, half not, and noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = X[:, 0] - 2 * X[:, 1] + 2 * np.sin(2 * X[:, 2]) + X[:, 3] * X[:, 4] + rng.normal(size=n)
    return X * np.geomspace(0.1, 100.0, d) + np.linspace(-50, 50, d), 1000 + 200 * y


def cross_validation(n: int, d: int, limit: float) -> Row:
    """The whole search with its defaults and without doublings, against seconds."""
    X, y = table(n, d)
    RLPRegressorCV(max_iter=1, max_doublings=0).fit(X, y)  # compiles the kernel
    seconds = []
    for seed in range(3):
        started = time.perf_counter()
        RLPRegressorCV(max_doublings=0, random_state=seed).fit(X, y)
        seconds.append(time.perf_counter() - started)
    took = statistics.median(seconds)
    return at_most(
        f"RLPRegressorCV, {n:,} rows × {d} columns / {limit:g} s", took / limit, 1, timed(took)
    )


def first_fit(quick: bool) -> Row:
    """The error of a first fit on 1,000 rows, out of the box, against MLPRegressor out of the
    box."""
    ratios, seconds = [], []
    for seed in range(1 if quick else 5):
        X, y = table(3000, seed=seed)
        started = time.perf_counter()
        ours = RLPRegressor(random_state=seed).fit(X[:1000], y[:1000])
        seconds.append(time.perf_counter() - started)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says itself that it has not converged
            theirs = MLPRegressor(random_state=seed).fit(X[:1000], y[:1000])
        errors = [np.mean((m.predict(X[1000:]) - y[1000:]) ** 2) for m in (ours, theirs)]
        ratios.append(float(errors[0] / errors[1]))
    detail = (
        f"1,000 rows × 10 columns, defaults; RLPRegressor takes {timed(statistics.median(seconds))}"
    )
    return at_most("test error RLPRegressor / MLPRegressor", statistics.median(ratios), 1, detail)


def measure(quick: bool = False) -> list[Row]:
    """All claims."""
    return [cross_validation(100, 10, 1), cross_validation(1000, 20, 3), first_fit(quick)]
