"""Training: `fit` and `fit_fleet` against the plain released loop, and against the usual DataLoader loop.

The released loop is written here from its formula: one network, one step per subset, two least-squares solutions per
step. Regression network, 3,000 rows, d = 7, M = batch = 100, Adam.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import Row, at_least, at_most, paired, timed
from rlploss import Epochs, Event, Problem, RegressionNet, Steps, balanced_subsets, fit, fit_fleet, seeded

N, D, M, K = 3000, 7, 100, 1000


def problem(seed: int = 0) -> Problem:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(N, D, generator=g)
    return Problem(X, X @ torch.randn(D, 1, generator=g) + torch.sin(3 * X[:, :1]), seed=seed)


def build(seed: int) -> nn.Module:
    return seeded(lambda: RegressionNet(D), seed)


def released_loop() -> Callable[[], None]:
    """One step per call."""
    data, model = problem(), build(0)
    plan = balanced_subsets(N, M, K, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batches = itertools.cycle(range(K))

    def step() -> None:
        rows = plan[next(batches)]
        x, y = data.X[rows], data.y[rows]
        optimizer.zero_grad()
        h = model(x)
        predicted, observed = torch.linalg.lstsq(x, h).solution, torch.linalg.lstsq(x, y).solution
        nn.functional.mse_loss(x @ predicted, x @ observed).backward()
        optimizer.step()

    return step


def loader_epoch() -> Callable[[], None]:
    """One epoch of MSE per call, as it is usually written."""
    data, model = problem(), build(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    loader = DataLoader(TensorDataset(data.X, data.y), batch_size=M, shuffle=True)

    def epoch() -> None:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

    return epoch


def during_fit(
    objective: str, steps: int, rounds: int, other: Callable[[], float], **settings: object
) -> list[tuple[float, float]]:
    """Seconds per step of `fit` and of `other`, measured in turns: `other` runs in a callback, which is not counted."""
    data, pairs, seen = problem(), [], [0.0]

    def take_turns(event: Event) -> None:
        mine = (event.seconds - seen[0]) / steps
        seen[0] = event.seconds
        if event.step > steps:  # the first stretch has the factors in it
            pairs.append((mine, other()))

    fit(
        build(0),
        data.X,
        data.y,
        objective,
        budget=Steps(steps * (rounds + 1)),
        evaluate_every=Steps(steps),
        callbacks=[take_turns],
        lr=1e-4,
        compile=False,
        **settings,
    )
    return pairs


def ratio(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Median of b/a, and the two medians."""
    a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
    return statistics.median(y / x for x, y in pairs), a, b


RLP = {"preset": "released", "subset_size": M, "n_subsets": K}


def one_network(rounds: int) -> list[Row]:
    steps = 100
    step = released_loop()

    def released() -> float:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - start) / steps

    def mse() -> float:
        pairs = during_fit("mse", steps, 3, lambda: 0.0, batch_size=M)
        return statistics.median(a for a, _ in pairs)

    speed, a, b = ratio(during_fit("rlp", steps, rounds, released, **RLP))
    rows = [
        at_least("fit, RLP step: times faster than the released loop", speed, 1.5, f"{timed(a)} against {timed(b)}")
    ]
    speed, a, b = ratio(during_fit("rlp", steps, rounds, mse, **RLP))
    rows.append(at_most("fit, RLP step / its own MSE step", 1 / speed, 1.10, f"{timed(a)} / {timed(b)}"))
    data, epochs = problem(), 5

    def ours() -> None:
        fit(build(0), data.X, data.y, "mse", budget=Epochs(epochs), batch_size=M, lr=1e-4, compile=False)

    usual = loader_epoch()

    def theirs() -> None:
        for _ in range(epochs):
            usual()

    value, a, b = paired(ours, theirs, rounds=max(5, rounds // 2), warm_up=1)
    detail = f"{timed(a / epochs)} against {timed(b / epochs)}, all of fit's own costs included"
    rows.append(at_least("fit, MSE epoch: times faster than DataLoader(TensorDataset)", 1 / value, 3.0, detail))
    return rows


def fleet_seconds(n: int, epochs: int, problems: list[Problem]) -> float:
    """Seconds per seed-step of a whole fleet, from call to return."""
    start = time.perf_counter()
    fit_fleet(build, problems[:n], budget=Epochs(epochs), evaluate_every=Epochs(10), lr=1e-4, compile=True, **RLP)
    return (time.perf_counter() - start) / (n * epochs * K)


def released_seconds(steps: int = 300) -> float:
    """Seconds per step of the released loop."""
    step = released_loop()
    for _ in range(20):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def fleets(rounds: int, epochs: int) -> list[Row]:
    problems = [problem(seed) for seed in range(300)]
    for n in (30, 300):
        fleet_seconds(n, 1, problems)  # compiles
    pairs, sizes = [], []
    for _ in range(rounds):
        # the same 300 replicas as ten fleets, half of them before and half after the one of 300
        ten = [fleet_seconds(30, epochs, problems[i : i + 30]) for i in range(0, 150, 30)]
        pairs.append((ten[-1], released_seconds()))
        large = fleet_seconds(300, epochs, problems)
        ten += [fleet_seconds(30, epochs, problems[i : i + 30]) for i in range(150, 300, 30)]
        sizes.append((large, statistics.mean(ten)))
    speed, a, b = ratio(pairs)
    name = "30 seeds as a fleet, compiled before: times the released loop's seed-steps per second"
    rows = [at_least(name, speed, 100, f"{1 / a:,.0f} against {1 / b:,.0f} per second")]
    speed, a, b = ratio(sizes)
    detail = f"{1 / a:,.0f} against {1 / b:,.0f} seed-steps per second"
    rows.append(at_least("300 replicas: throughput relative to 30", speed, 1.0, detail))
    return rows


def table_1_run() -> Row:
    """30 seeds, 200 epochs of 1,000 subsets, in a fresh process whose compiler has no cache."""
    before = released_seconds()
    environment = {**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.bench_training", "--table-1"]
    found = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    loop = statistics.mean([before, released_seconds()])
    speed = loop / found["seconds_per_seed_step"]
    detail = f"{found['seconds']:.0f} s instead of {loop * 30 * 200 * K / 3600:.1f} h"
    return at_least("Table 1, 30 seeds, 200 epochs, compiling included: times the released loop", speed, 60, detail)


def measure(quick: bool = False) -> list[Row]:
    """All claims about training."""
    rows = one_network(rounds=7 if quick else 21)
    rows += fleets(rounds=2 if quick else 3, epochs=10 if quick else 20)
    if not quick:
        rows.append(table_1_run())
    return rows


def costs(quick: bool = False) -> list[Row]:
    """How the cost grows: with steps, and with replicas."""
    problems = [problem(seed) for seed in range(300)]
    rows = []
    for n in (1, 10, 30) if quick else (1, 3, 10, 30, 60, 120, 300):
        fleet_seconds(n, 1, problems)
        epochs = max(2, 60 // n)
        each = min(fleet_seconds(n, epochs, problems) for _ in range(3))
        rows.append(cost(n, epochs * K, each))
    for epochs in (2, 4) if quick else (5, 10, 20, 40):
        rows.append(cost(30, epochs * K, fleet_seconds(30, epochs, problems)))
    return rows


def cost(replicas: int, steps: int, each: float) -> Row:
    """One line of the table of costs."""
    total = each * replicas * steps
    return {"replicas": replicas, "steps": steps, "seconds": total, "µs per seed-step": each * 1e6}


if __name__ == "__main__":
    if "--table-1" in sys.argv:
        started = time.perf_counter()
        fit_fleet(build, [problem(s) for s in range(30)], budget=Epochs(200), evaluate_every=Epochs(10), lr=1e-4, **RLP)
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "seconds_per_seed_step": seconds / (30 * 200 * K)}))
    else:
        for row in measure(quick="--quick" in sys.argv):
            print(json.dumps(row, ensure_ascii=False))
