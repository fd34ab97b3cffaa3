"""RLPRegressorCV on 100 rows, against what one would otherwise tune: every case, winning or losing.

    python -m benchmarks.small_tables [--draws 10] [--quick]

Each draw takes 100 rows for training and up to 2,000 others for testing. MLPRegressor and gradient boosting are tuned
by grid search, ridge regression by its own cross-validation, all with five folds; networks and ridge on standardised
columns. Writes benchmarks/results/small_tables.md and .csv.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.common import Row
from benchmarks.studies import write_results
from rlploss import datasets
from rlploss.estimators import RLPRegressor, RLPRegressorCV
from rlploss.lab import stats

DATASETS = ("diabetes", "california", "wine")
N_TRAIN, N_TEST = 100, 2000
JOBS = 2  # processes of a grid search; the networks of a fleet use as many threads


def tuned_mlp(seed: int) -> Any:
    """MLPRegressor on standardised columns and target: weight decay, size and learning rate by grid search."""
    network = TransformedTargetRegressor(MLPRegressor(random_state=seed), transformer=StandardScaler())
    grid = {
        "transformedtargetregressor__regressor__alpha": [1e-4, 1e-2, 1.0, 10.0],
        "transformedtargetregressor__regressor__hidden_layer_sizes": [(100,), (50, 50)],
        "transformedtargetregressor__regressor__learning_rate_init": [1e-3, 3e-3],
    }
    return GridSearchCV(make_pipeline(StandardScaler(), network), grid, cv=5, n_jobs=JOBS)


def tuned_boosting(seed: int) -> Any:
    """Gradient boosting: number and depth of trees and learning rate by grid search."""
    grid = {"n_estimators": [50, 150, 400], "max_depth": [1, 3], "learning_rate": [0.03, 0.1]}
    return GridSearchCV(GradientBoostingRegressor(random_state=seed), grid, cv=5, n_jobs=JOBS)


MODELS: dict[str, Callable[[int], Any]] = {
    "RLPRegressorCV": lambda seed: RLPRegressorCV(random_state=seed),
    "RLPRegressorCV, one network": lambda seed: RLPRegressorCV(random_state=seed, ensemble=False),
    "RLPRegressor": lambda seed: RLPRegressor(random_state=seed),
    "MLPRegressor, tuned": tuned_mlp,
    "ridge, tuned": lambda seed: make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 4, 15))),
    "gradient boosting, tuned": tuned_boosting,
}


def errors(X: np.ndarray, y: np.ndarray, seed: int) -> dict[str, tuple[float, float]]:
    """Test MSE over the variance of y, and seconds of training, of every model on one draw."""
    order = np.random.default_rng(seed).permutation(len(X))
    train, test = order[:N_TRAIN], order[N_TRAIN : N_TRAIN + N_TEST]
    found = {}
    for name, make in MODELS.items():
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLPRegressor says when it has not converged
            model = make(seed).fit(X[train], y[train])
        seconds = time.perf_counter() - started
        error = float(np.mean((model.predict(X[test]) - y[test]) ** 2) / y.var())
        found[name] = (error, seconds)
    return found


def main() -> int:
    """Measure every draw and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="one draw; writes nothing")
    options = parser.parse_args()
    n_draws = 1 if options.quick else options.draws
    shown: list[Row] = []
    exact: list[Row] = []
    for name in DATASETS:
        data = datasets.load(name, progress=False)
        X, y = np.asarray(data.X, dtype=np.float64), np.asarray(data.y, dtype=np.float64).ravel()
        drawn = []
        for seed in range(n_draws):
            drawn.append(errors(X, y, seed))
            print(name, seed, {k: round(v[0], 4) for k, v in drawn[-1].items()}, flush=True)
        ours = np.array([one["RLPRegressorCV"][0] for one in drawn])
        others = [m for m in MODELS if m != "RLPRegressorCV"]
        made = stats.holm([stats.compare(ours, np.array([o[m][0] for o in drawn])) for m in others])
        against = dict(zip(others, made, strict=True))
        for model in MODELS:
            values, seconds = (np.array([one[model][i] for one in drawn]) for i in (0, 1))
            c = against.get(model)
            shown.append(
                {
                    "data": name,
                    "model": model,
                    "test error": f"{np.exp(np.log(values).mean()):.4f}",
                    "RLPRegressorCV / it": "" if c is None else f"{c.effect:.3f} [{c.low:.3f}, {c.high:.3f}]",
                    "RLPRegressorCV is": "" if c is None else c.word,
                    "seconds": f"{np.median(seconds):.2f}",
                }
            )
            exact += [
                {"data": name, "model": model, "draw": i, "mse": float(v), "seconds": float(s)}
                for i, (v, s) in enumerate(zip(values, seconds, strict=True))
            ]
    if not options.quick:
        write_results(
            "small_tables",
            f"RLPRegressorCV on {N_TRAIN} rows",
            f"Geometric mean over {n_draws} draws of the test MSE over the variance of the target; ratios with 95 % "
            "bootstrap intervals; better, worse or level by a paired t-test over draws on logarithms, Holm-corrected "
            f"per dataset; median seconds of training on {JOBS} cores. Made by "
            f"`python -m benchmarks.small_tables --draws {n_draws}`.",
            shown,
            exact,
        )
    for row in shown:
        print(" | ".join(str(v) for v in row.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
