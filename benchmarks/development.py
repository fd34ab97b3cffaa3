"""The estimators on the development tables: what their defaults and rules are tuned on, and how
they compare there.

    python -m benchmarks.development [--rows 100] [--draws 2] [--quick]

Tables are the development half of the survey's, and those of scikit-learn. Each draw takes up to
`rows` rows, two thirds at most, for training and up to 1,000 others for testing. Boosting is tuned
by grid search with five folds, ridge regression by leave-one-out. Writes
benchmarks/results/development_ROWS.md and .csv."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn import datasets as sk
from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.common import Row
from benchmarks.studies import write_results
from rlploss.datasets.tables import load_table, survey_tables
from rlploss.estimators import RLPRegressor, RLPRegressorCV

GRID = {"learning_rate": [0.03, 0.1], "max_depth": [2, 4], "n_estimators": [100, 300]}
MODELS: dict[str, Callable[[int], Any]] = {
    "RLPRegressorCV": lambda seed: RLPRegressorCV(random_state=seed),
    "its MSE-only twin": lambda seed: RLPRegressorCV(subset_sizes=(), random_state=seed),
    "RLPRegressor": lambda seed: RLPRegressor(random_state=seed),
    "RLPRegressor, MSE": lambda seed: RLPRegressor(loss="mse", random_state=seed),
    "ridge, tuned": lambda seed: make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 4, 15))),
    "boosting, tuned": lambda seed: GridSearchCV(
        GradientBoostingRegressor(random_state=seed, subsample=0.8), GRID
    ),
    "extra trees": lambda seed: ExtraTreesRegressor(300, random_state=seed),
}
PAIRS = [("RLPRegressorCV", name) for name in MODELS if not name.startswith("RLPRegressorCV")]
PAIRS = [*PAIRS, ("RLPRegressor", "RLPRegressor, MSE")]


def tables() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, rows and target of every table."""
    for name, table in survey_tables().items():
        if table.development and not table.classes:
            yield name, *load_table(name, progress=False)
    yield "scikit-learn's diabetes", *sk.load_diabetes(return_X_y=True, scaled=False)
    yield "Friedman 1", *sk.make_friedman1(3000, noise=1.0, random_state=0)
    yield "Friedman 2", *sk.make_friedman2(3000, random_state=0)
    yield "Friedman 3", *sk.make_friedman3(3000, noise=0.1, random_state=0)
    yield "a plane", *sk.make_regression(3000, 20, n_informative=10, noise=60.0, random_state=0)


def errors(X: np.ndarray, y: np.ndarray, n_rows: int, seed: int) -> dict[str, tuple[float, float]]:
    """Test MSE over the variance of y, and seconds of training, of every model on one draw."""
    order = np.random.default_rng(seed).permutation(len(X))
    n = min(n_rows, 2 * len(X) // 3)
    train, test = order[:n], order[n : n + 1000]
    found = {}
    for name, make in MODELS.items():
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rows that lie far outside
            predicted = make(seed).fit(X[train], y[train]).predict(X[test])
        found[name] = (
            float(np.mean((predicted - y[test]) ** 2) / y.var()),
            time.perf_counter() - started,
        )
    return found


def summary(drawn: dict[str, list[dict[str, tuple[float, float]]]]) -> list[Row]:
    """Geometric means over tables of ratios of errors, each table's mean over draws counted
    once."""
    rows: list[Row] = []
    for one, other in PAIRS:
        logs = np.array(
            [np.mean([np.log(d[one][0] / d[other][0]) for d in draws]) for draws in drawn.values()]
        )
        half = 1.96 * logs.std(ddof=1) / np.sqrt(len(logs))
        mean, low, high = (float(np.exp(logs.mean() + shift)) for shift in (0, -half, half))
        shown = f"{mean:.3f} [{low:.3f}, {high:.3f}]"
        ahead = f"{int((logs < 0).sum())} of {len(logs)}"
        rows.append(
            {"error of": one, "over that of": other, "geometric mean": shown, "lower on": ahead}
        )
    return rows


def main() -> int:
    """Measure every table and write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two tables, one draw; writes nothing")
    options = parser.parse_args()
    chosen = list(tables())[: 2 if options.quick else None]
    drawn = {
        name: [
            errors(X, y, options.rows, 100 + seed)
            for seed in range(1 if options.quick else options.draws)
        ]
        for name, X, y in chosen
    }
    shown, exact = (
        summary(drawn),
        [
            {"data": name, "draw": draw, "model": model, "mse": mse, "seconds": seconds}
            for name, draws in drawn.items()
            for draw, models in enumerate(draws)
            for model, (mse, seconds) in models.items()
        ],
    )
    print("\n".join(" | ".join(map(str, row.values())) for row in shown))
    if not options.quick:
        lead = (
            f"Geometric means over {len(drawn)} development tables of ratios of test errors, with"
            f" 95 % intervals over tables; up to {options.rows} training rows, {options.draws}"
            f" draws. Made by `python -m benchmarks.development --rows {options.rows} --draws"
            f" {options.draws}`."
        )
        title = f"The estimators on the development tables, {options.rows} rows"
        write_results(f"development_{options.rows}", title, lead, shown, exact)
    return 0


if __name__ == "__main__":
    sys.exit(main())
