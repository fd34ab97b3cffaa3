"""The rule behind `subset_size="auto"`: test error of several rules over 50 to 5,000 training rows.

    python -m benchmarks.auto_rule [--draws 10] [--quick]

Every network is the one that `RLPRegressor()` trains (100 hidden units, Adam at 1e-3, 200 iterations, standardised
inside) without its stopping rule, so that all rules get the same number of steps. All draws of one cell train as one
fleet. Writes benchmarks/results/auto_rule.md and .csv.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable

import numpy as np

from benchmarks.common import Row
from benchmarks.studies import write_results
from rlploss import MSE, RLP, Adam, Problem, Steps, datasets, fit_fleet
from rlploss._scaling import Scaling
from rlploss.estimators import auto_subset_size
from rlploss.estimators.dial import BATCH, steps_per_iteration, with_subsets
from rlploss.models import build_network

DATASETS = ("diabetes", "california", "wine", "nonlinear")
SIZES = (50, 100, 200, 500, 1000, 2000, 5000)
TEST_ROWS = 2000
# name: (N, p) -> M; None is MSE
RULES: dict[str, Callable[[int, int], int | None]] = {
    "MSE": lambda n, p: None,
    "p + 2": lambda n, p: p + 2,
    "4p": lambda n, p: min(n, 4 * p),
    "min(100, N/2)": lambda n, p: max(p + 2, min(100, n // 2)),
    "√(5pN)": lambda n, p: round(min(0.85 * n, math.sqrt(5 * p * n))),
    "0.85 N": lambda n, p: round(0.85 * n),
    "auto": auto_subset_size,
}


def draw(X: np.ndarray, y: np.ndarray, n_train: int, seed: int) -> tuple[np.ndarray, ...]:
    """Training and test rows, standardised by the training rows."""
    order = np.random.default_rng(seed).permutation(len(X))
    train, test = order[:n_train], order[n_train : n_train + TEST_ROWS]
    scaling = Scaling.of(X[train], y[train, None])
    return tuple(part for rows in (train, test) for part in (scaling.inputs(X[rows]), scaling.targets(y[rows, None])))


def errors(name: str, n_train: int, n_draws: int, iterations: int) -> dict[str, np.ndarray]:
    """Test MSE [draws] of every rule, relative to the variance of the training target."""
    data = datasets.load(name, progress=False)
    X, y = np.asarray(data.X, dtype=np.float64), np.asarray(data.y, dtype=np.float64).ravel()
    drawn = [draw(X, y, n_train, seed) for seed in range(n_draws)]
    d = X.shape[1]
    found: dict[int | None, np.ndarray] = {}
    result = {}
    for rule, size_of in RULES.items():
        size = size_of(n_train, d + 1)
        if size not in found:
            histories = fit_fleet(
                lambda seed: build_network(d, (100,), 1, activation="relu", softmax=False, seed=seed),
                [Problem(a, b, validation=(c, e), seed=seed) for seed, (a, b, c, e) in enumerate(drawn)],
                MSE(min(BATCH, n_train)) if size is None else with_subsets(RLP(), size, n_train, d),
                budget=Steps(iterations * steps_per_iteration(n_train)),
                evaluate_every=Steps(10**6),
                optimizer=Adam(weight_decay=1e-4),
            )
            found[size] = np.array([h.last("mse") for h in histories])
        result[rule] = found[size]
    return result


def main() -> int:
    """Measure every cell and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="two draws, three sizes, short training; writes nothing")
    options = parser.parse_args()
    sizes = (50, 100, 200) if options.quick else SIZES
    n_draws, iterations = (2, 10) if options.quick else (options.draws, 200)
    shown: list[Row] = []
    exact: list[Row] = []
    logs: dict[str, list[float]] = {rule: [] for rule in RULES}
    for name in DATASETS:
        rows = datasets.load(name, progress=False).X
        for n_train in sizes:
            if n_train > len(rows) - 100:
                continue
            found = errors(name, n_train, n_draws, iterations)
            p = rows.shape[1] + 1
            means = {rule: float(np.exp(np.log(v).mean())) for rule, v in found.items()}
            best = min(means.values())
            row: Row = {"data": name, "N": n_train}
            for rule, mean in means.items():
                size = RULES[rule](n_train, p)
                row[rule] = f"{mean:.3f}" if size is None else f"{mean:.3f} (M={size})"
                logs[rule].append(math.log(mean / best))
                for seed, value in enumerate(found[rule]):
                    exact.append(
                        {"data": name, "N": n_train, "rule": rule, "M": size, "draw": seed, "mse": float(value)}
                    )
            shown.append(row)
            print(" | ".join(str(v) for v in row.values()), flush=True)
    total: Row = {"data": "geometric mean of error / best of the row", "N": ""}
    worst: Row = {"data": "worst such ratio", "N": ""}
    for rule, values in logs.items():
        total[rule] = f"{math.exp(float(np.mean(values))):.3f}"
        worst[rule] = f"{math.exp(max(values)):.2f}"
    shown += [total, worst]
    print(" | ".join(str(v) for v in total.values()), "\n", " | ".join(str(v) for v in worst.values()))
    if not options.quick:
        write_results(
            "auto_rule",
            'Subset size "auto" against other rules',
            f"Geometric mean over {n_draws} draws of the test MSE, in units of the variance of the training target. "
            "`RLPRegressor()`'s own network and steps, its stopping rule off. "
            "Made by `python -m benchmarks.auto_rule`.",
            shown,
            exact,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
