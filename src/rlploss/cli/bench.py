"""`rlploss bench`: how fast this machine trains."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from rlploss._extras import MissingExtra

N_ROWS, N_FEATURES, SUBSET_SIZE = 2000, 8, 100
LOOP = "a loop in torch"  # what a user would write, without fit
WAYS = {"fit, kernel": "kernel", "fit, torch": "torch", LOOP: ""}  # the engines of fit


def bench(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    steps: Annotated[int, typer.Option(help="Optimiser steps of each measurement.")] = 2000,
) -> None:
    """Measure the optimiser steps per second of this machine: `fit` against a plain loop in torch."""
    from json import dumps

    import torch

    from rlploss import __version__, _checks

    _checks.count("--steps", steps)
    found = {loss: {name: _speed(loss, engine, steps) for name, engine in WAYS.items()} for loss in ("rlp", "mse")}
    setting = f"rlploss {__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    problem = f"{N_ROWS} rows of {N_FEATURES} features, {SUBSET_SIZE} per step, {N_FEATURES}-32-1 network, Adam"
    if json:
        print(dumps({"setting": setting, "problem": problem, "steps_per_second": found}, indent=2))
        return
    print(f"{setting}\n{problem}\n\n{'LOSS':6}{'TRAINED BY':24}{'STEPS PER SECOND':>16}  RATIO")
    for loss, speeds in found.items():
        for name, speed in speeds.items():
            shown = f"{speed:>16,.0f}  {speed / (speeds[LOOP] or 1):.1f}" if speed else f"{'not installed':>16}"
            print(f"{loss:6}{name:24}{shown}")


def _speed(loss: str, engine: str, steps: int) -> float | None:
    """The best of three measurements; None without what the engine needs."""
    try:
        _seconds(loss, engine, min(steps, 100))  # compiles what is compiled
        return max(steps / _seconds(loss, engine, steps) for _ in range(3))
    except MissingExtra:
        return None


def _seconds(loss: str, engine: str, steps: int) -> float:
    """Seconds of so many steps, with `fit`, or without an engine with a loop as one writes it in torch."""
    import torch

    from rlploss import MSE, RLP, RegressionNet, RLPLoss, Steps, balanced_subsets, fit, seeded

    X = torch.randn(N_ROWS, N_FEATURES, generator=torch.Generator().manual_seed(0))
    network, y = seeded(lambda: RegressionNet(N_FEATURES), 0), X.square().mean(dim=1, keepdim=True)
    started = time.perf_counter()
    if engine:
        fit(network, X, y, (RLP if loss == "rlp" else MSE)(SUBSET_SIZE), budget=Steps(steps), engine=engine)
        return time.perf_counter() - started
    rlp, mse = RLPLoss(), torch.nn.MSELoss()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for rows in balanced_subsets(N_ROWS, SUBSET_SIZE, steps, generator=torch.Generator().manual_seed(0)):
        optimizer.zero_grad()
        pred, target = network(X[rows]), y[rows]
        (rlp(pred, target, X[rows]) if loss == "rlp" else mse(pred, target)).backward()
        optimizer.step()
    return time.perf_counter() - started
