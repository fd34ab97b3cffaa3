"""RLPRegressorCV on 100 rows, against what one would otherwise tune: every case, winning or losing.

    python -m benchmarks.small_tables [--draws 20] [--quick] [--fresh]

Each draw takes 100 rows for training and up to 2,000 others for testing. MLPRegressor and gradient boosting are tuned
by grid search with five folds, ridge regression by leave-one-out; networks and ridge on standardised
columns. Writes benchmarks/results/small_tables.md and .csv after every draw; a stopped run goes on from them.
"""

from __future__ import annotations

import argparse
import csv
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
from benchmarks.studies import RESULTS, write_results
from rlploss import datasets
from rlploss.estimators import RLPRegressor, RLPRegressorCV
from rlploss.lab import stats

DATASETS = ("diabetes", "california", "wine")
N_TRAIN, N_TEST = 100, 2000
JOBS = 2  # processes of a grid search
LEAD = (
    "Geometric mean over draws of the test MSE over the variance of the target; ratios with 95 % bootstrap intervals; "
    "better, worse or level by a paired t-test over draws on logarithms, Holm-corrected per dataset; median seconds of "
    f"training, grid searches in {JOBS} processes. Made by `OMP_NUM_THREADS=1 python -m benchmarks.small_tables`."
)


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


def stored() -> dict[tuple[str, int], dict[str, tuple[float, float]]]:
    """What an earlier run measured: by dataset and draw, the error and the seconds of every model."""
    path = RESULTS / "small_tables.csv"
    found: dict[tuple[str, int], dict[str, tuple[float, float]]] = {}
    if path.exists():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                models = found.setdefault((row["data"], int(row["draw"])), {})
                models[row["model"]] = (float(row["mse"]), float(row["seconds"]))
    return {key: models for key, models in found.items() if set(models) == set(MODELS)}


def rows_of(name: str, drawn: list[dict[str, tuple[float, float]]]) -> list[Row]:
    """The table of one dataset: RLPRegressorCV against every other model, paired over draws."""
    ours = np.array([one["RLPRegressorCV"][0] for one in drawn])
    others = [m for m in MODELS if m != "RLPRegressorCV"]
    made = stats.holm([stats.compare(ours, np.array([o[m][0] for o in drawn])) for m in others])
    against = dict(zip(others, made, strict=True))
    shown: list[Row] = []
    for model in MODELS:
        values, seconds = (np.array([one[model][i] for one in drawn]) for i in (0, 1))
        c = against.get(model)
        shown.append(
            {
                "data": name,
                "draws": len(drawn),
                "model": model,
                "test error": f"{np.exp(np.log(values).mean()):.4f}",
                "RLPRegressorCV / it": "" if c is None else f"{c.effect:.3f} [{c.low:.3f}, {c.high:.3f}]",
                "RLPRegressorCV is": "" if c is None else c.word,
                "seconds": f"{np.median(seconds):.2f}",
            }
        )
    return shown


def write(found: dict[tuple[str, int], dict[str, tuple[float, float]]]) -> list[Row]:
    """Write both files from all draws there are; returns the rows shown."""
    by_data = {name: [m for (data, _), m in sorted(found.items()) if data == name] for name in DATASETS}
    shown = [row for name, drawn in by_data.items() if len(drawn) > 1 for row in rows_of(name, drawn)]
    exact: list[Row] = [
        {"data": data, "model": model, "draw": draw, "mse": mse, "seconds": seconds}
        for (data, draw), models in sorted(found.items())
        for model, (mse, seconds) in models.items()
    ]
    if shown:
        write_results("small_tables", f"RLPRegressorCV on {N_TRAIN} rows", LEAD, shown, exact)
    return shown


def main() -> int:
    """Measure the draws that are not there yet, and write the tables after each of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="one draw; reads and writes nothing")
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured before")
    options = parser.parse_args()
    found = {} if options.fresh or options.quick else stored()
    tables = {}
    for name in DATASETS:
        data = datasets.load(name, progress=False)
        tables[name] = np.asarray(data.X, dtype=np.float64), np.asarray(data.y, dtype=np.float64).ravel()
    shown: list[Row] = []
    for seed in range(1 if options.quick else options.draws):
        for name, (X, y) in tables.items():
            if (name, seed) in found:
                continue
            found[name, seed] = errors(X, y, seed)
            print(name, seed, {k: round(v[0], 4) for k, v in found[name, seed].items()}, flush=True)
        shown = [] if options.quick else write(found)
    for row in shown:
        print(" | ".join(str(v) for v in row.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
