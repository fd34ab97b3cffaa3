"""Train with MSE and with RLP on the Nonlinear data, and print the test error of both against
optimiser steps.

The paper compares at equal epochs: one pass over K subsets for RLP, one pass over the rows for MSE.
With K = 1000 subsets, and 3000 rows in batches of 100, that is 1000 steps against 30. Here both
take the same steps.
"""

import numpy as np
import torch

from rlploss import MSE, RLP, Adam, Problem, RegressionNet, Steps, fit_fleet, seeded
from rlploss.datasets import load, size_split

STEPS, EVERY, SEEDS = 20_000, 4_000, 5


def main() -> None:
    """Five seeds of each objective, one fleet apiece."""
    data = load("nonlinear")
    problems = []
    for seed in range(SEEDS):
        X, y, X_test, y_test = size_split(data, generator=np.random.default_rng(seed)).tensors(
            dtype=torch.float32
        )
        problems.append(Problem(X, y, validation=(X_test, y_test), seed=seed))

    def build(seed: int) -> torch.nn.Module:
        return seeded(lambda: RegressionNet(X.shape[1]), seed)

    print(f"Nonlinear, 3000 rows, Adam 1e-4, 100 rows per step, test MSE over {SEEDS} seeds\n")
    curves = {}
    for objective in (MSE(batch_size=100), RLP.released(subset_size=100)):
        histories = fit_fleet(
            build,
            problems,
            objective,
            budget=Steps(STEPS),
            optimizer=Adam(1e-4),
            evaluate_every=Steps(EVERY),
        )
        curves[objective.loss] = np.stack([h["mse"] for h in histories])
        steps, epochs = histories[0]["step"], histories[0]["epoch"]
        print(f"{objective}: {epochs[-1]:g} epochs")
    print(f"\n{'steps':>8}  {'MSE':>16}  {'RLP':>16}")
    for i, step in enumerate(steps):
        cells = [f"{c[:, i].mean():.4f} ± {c[:, i].std(ddof=1):.4f}" for c in curves.values()]
        print(f"{step:8.0f}  {cells[0]:>16}  {cells[1]:>16}")


if __name__ == "__main__":
    main()
