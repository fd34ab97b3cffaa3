"""Training: `fit` and `fit_fleet` against the plain released loop, the usual DataLoader loop, and
scikit-learn's MLP.

The released loop is written here from its formula: one network, one step per subset, two
least-squares solutions per step. Regression network, 3,000 rows, d = 7, M = batch = 100, Adam."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import Row, at_least, at_most, paired, timed
from rlploss import (
    MSE,
    RLP,
    Adam,
    Epochs,
    Pointwise,
    Problem,
    RegressionNet,
    Steps,
    TwoSpeed,
    balanced_subsets,
    fit,
    fit_fleet,
    seeded,
)
from rlploss.training import own

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


ADAM = Adam(1e-4)
KEPT = RLP.released(M, K)
RLP_ON_8 = {  # what a step of the kernel costs by how its planes come about; one network 8-32-1
    "kept": RLP(M, K),
    "fresh": RLP(M, K, plan="each-epoch"),
    "mixup": RLP(M, K, plan="each-epoch", mixup=0.25),
}


def trained(
    objective: object, steps: int, *, data: Problem | None = None, network: object = None
) -> float:
    """Seconds of a whole `fit` of so many steps."""
    data = problem() if data is None else data
    model = build(0) if network is None else network()
    start = time.perf_counter()
    fit(
        model,
        data.X,
        data.y,
        objective,
        budget=Steps(steps),
        optimizer=ADAM,
        evaluate_every=Steps(steps),
    )
    return time.perf_counter() - start


def released_seconds(steps: int = 300) -> float:
    """Seconds per step of the released loop."""
    step = released_loop()
    for _ in range(20):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def ratio(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Median of b/a, and the two medians."""
    a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
    return statistics.median(y / x for x, y in pairs), a, b


def one_network(rounds: int) -> list[Row]:
    trained(KEPT, 10)  # compiles, or loads
    steps = 50_000
    pairs = [(trained(KEPT, steps) / steps, released_seconds()) for _ in range(max(3, rounds // 4))]
    speed, a, b = ratio(pairs)
    detail = f"{timed(a)} against {timed(b)} a step; all of fit's own costs in"
    rows = [
        at_least(
            "fit, one network, RLP step: times faster than the released loop", speed, 80, detail
        )
    ]
    data, epochs = problem(), 300

    def ours() -> None:
        fit(
            build(0),
            data.X,
            data.y,
            MSE(M),
            budget=Epochs(epochs),
            optimizer=ADAM,
            evaluate_every=Epochs(epochs),
        )

    usual = loader_epoch()
    value, a, b = paired(ours, usual, rounds=max(5, rounds // 2), warm_up=1)
    detail = f"{timed(a / epochs)} against {timed(b)}, all of fit's own costs included"
    name = "fit, MSE epoch: times faster than DataLoader(TensorDataset)"
    return [*rows, at_least(name, epochs / value, 50, detail)]


def kinds_of_step(rounds: int) -> list[Row]:
    """RLP step / MSE step inside the kernel, network 8-32-1."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(N, 8, generator=g)
    data, steps = Problem(X, X @ torch.randn(8, 1, generator=g)), 20_000

    def seconds(objective: object, data: Problem = data) -> float:
        model = seeded(lambda: RegressionNet(8), 0)
        settings = {"budget": Steps(steps), "optimizer": ADAM, "evaluate_every": Steps(steps)}
        return fit(model, data.X, data.y, objective, **settings).last("seconds") / steps

    rows = []
    for (name, objective), limit in zip(RLP_ON_8.items(), (1.2, 2.5, 3.0), strict=True):
        seconds(objective)
        value, a, b = ratio(
            [(seconds(MSE(M)), seconds(objective)) for _ in range(max(5, rounds // 2))]
        )
        detail = f"{timed(b)} / {timed(a)}"
        rows.append(
            at_most(f"kernel, RLP step ({name}) / MSE step, 8-32-1, M = 100", value, limit, detail)
        )
    few = Problem(data.X[:M], data.y[:M])
    for name, rows_of, size, limit in (("all rows", few, "all", 1.1), ("batches", data, M, 2.0)):
        seconds(TwoSpeed(0.3, size), rows_of)
        pairs = [
            (seconds(MSE(size), rows_of), seconds(TwoSpeed(0.3, size), rows_of))
            for _ in range(max(5, rounds // 2))
        ]
        value, a, b = ratio(pairs)
        title = f"kernel, TwoSpeed step ({name}) / MSE step, 8-32-1, 100 rows a step"
        rows.append(at_most(title, value, limit, f"{timed(b)} / {timed(a)}"))
    return rows


def charbonnier(pred: Tensor, target: Tensor) -> Tensor:
    return torch.sqrt((pred - target) ** 2 + 1e-3)


def quantile(pred: Tensor, target: Tensor) -> Tensor:
    return torch.maximum(0.9 * (target - pred), -0.1 * (target - pred))


def tukey(pred: Tensor, target: Tensor) -> Tensor:
    e = (pred - target) / 3
    return torch.where(e.abs() < 1, 1 - (1 - e**2) ** 3, torch.ones_like(e))


def log_cosh(pred: Tensor, target: Tensor) -> Tensor:
    return torch.log(torch.cosh(pred - target))


def welsch(pred: Tensor, target: Tensor) -> Tensor:
    return 1 - torch.exp(-0.5 * (pred - target) ** 2)


def cauchy(pred: Tensor, target: Tensor) -> Tensor:
    return torch.log1p(((pred - target) / 2) ** 2)


ARITHMETIC = (quantile, charbonnier, tukey)
LOGS = (log_cosh, welsch, cauchy)  # with exp or log


def losses_of_users(rounds: int) -> list[Row]:
    """A compiled loss against MSE, and against the same loss left to torch, network 8-32-1."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(N, 8, generator=g)
    data = Problem(X, X @ torch.randn(8, 1, generator=g))

    def seconds(objective: object, steps: int = 20_000) -> float:
        model = seeded(lambda: RegressionNet(8), 0)
        settings = {"budget": Steps(steps), "optimizer": ADAM, "evaluate_every": Steps(steps)}
        return fit(model, data.X, data.y, objective, **settings).last("seconds") / steps

    def seconds_by_torch(objective: object) -> float:
        compiling, own.compile_loss = own.compile_loss, lambda *_: "measured so"
        try:
            return seconds(objective, 1000)
        finally:
            own.compile_loss = compiling

    rows, compiling = [], []
    seconds(Pointwise(lambda pred, target: (pred - target) ** 2, M))  # the first in the process
    for functions, slower, faster in ((ARITHMETIC, 1.5, 25), (LOGS, 2.5, 15)):
        for function in functions:
            started = time.perf_counter()
            own.compile_loss(function, 1, torch.float32)
            compiling.append(time.perf_counter() - started)
            objective, name = Pointwise(function, M), function.__name__
            pairs = [(seconds(MSE(M)), seconds(objective)) for _ in range(max(5, rounds // 2))]
            value, a, b = ratio(pairs)
            title = f"compiled loss {name} / MSE, a step, 8-32-1, M = 100"
            rows.append(at_most(title, value, slower, f"{timed(b)} / {timed(a)}"))
            by_torch = statistics.median(seconds_by_torch(objective) for _ in range(3))
            title = f"compiled loss {name}: times faster than left to torch"
            rows.append(at_least(title, by_torch / b, faster, f"{timed(b)} / {timed(by_torch)}"))
    longest = max(compiling)
    title = "compiling a loss, the slowest of six: share of 0.3 s"
    return [*rows, at_most(title, longest / 0.3, 1.0, timed(longest))]


def against_scikit_learn(rounds: int) -> list[Row]:
    """The same network, batch and number of steps, one core each."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor
    from threadpoolctl import threadpool_limits

    rows = []
    for widths, batch, limit in (((8, 32), 100, 30), ((10, 100), 200, 12), ((11, 50, 50), 100, 10)):
        g = torch.Generator().manual_seed(0)
        X = torch.randn(N, widths[0], generator=g)
        y = X.sum(1) + torch.sin(3 * X[:, 0])
        epochs = 10
        steps = epochs * -(-N // batch)
        layers: list[nn.Module] = []
        for n_in, n_out in itertools.pairwise(widths):
            layers += [nn.Linear(n_in, n_out), nn.ReLU()]
        layers.append(nn.Linear(widths[-1], 1))

        def theirs(X=X, y=y, widths=widths, batch=batch, epochs=epochs) -> None:
            settings = {
                "batch_size": batch,
                "max_iter": epochs,
                "alpha": 0.0,
                "tol": 0.0,
                "random_state": 0,
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                MLPRegressor(hidden_layer_sizes=widths[1:], **settings).fit(X.numpy(), y.numpy())

        def ours(X=X, y=y, layers=layers, batch=batch, epochs=10 * epochs) -> None:
            fit(
                nn.Sequential(*layers),
                X,
                y,
                MSE(batch),
                budget=Epochs(epochs),
                evaluate_every=Epochs(epochs),
            )

        with threadpool_limits(1):
            value, a, b = paired(ours, theirs, rounds=max(5, rounds // 2), warm_up=1)
        name = (
            f"fit, MSE on {'-'.join(map(str, widths))}-1: times faster than MLPRegressor, one core"
            " each"
        )
        detail = f"{timed(a / (10 * steps))} against {timed(b / steps)} a step"
        rows.append(at_least(name, 10 / value, limit, detail))
    return rows


def fleet_seconds(
    n: int, epochs: int, problems: list[Problem], threads: int | None = None
) -> float:
    """Seconds per seed-step of a whole fleet, from call to return."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    start = time.perf_counter()
    fit_fleet(
        build, problems[:n], KEPT, budget=Epochs(epochs), evaluate_every=Epochs(10), optimizer=ADAM
    )
    seconds = time.perf_counter() - start
    torch.set_num_threads(before)
    return seconds / (n * epochs * K)


def fleets(rounds: int, epochs: int) -> list[Row]:
    problems = [problem(seed) for seed in range(300)]
    fleet_seconds(2, 1, problems)  # compiles, or loads
    pairs, sizes, threads = [], [], []
    for _ in range(rounds):
        thirty = fleet_seconds(30, epochs, problems)
        pairs.append((thirty, released_seconds()))
        sizes.append((fleet_seconds(300, 10, problems), fleet_seconds(30, 10, problems)))
        threads.append(
            (fleet_seconds(8, epochs, problems, 2), fleet_seconds(8, epochs, problems, 1))
        )
    speed, a, b = ratio(pairs)
    name = "30 seeds as a fleet: times the released loop's seed-steps per second"
    rows = [at_least(name, speed, 200, f"{1 / a:,.0f} against {1 / b:,.0f} per second")]
    speed, a, b = ratio(sizes)
    detail = f"{1 / a:,.0f} against {1 / b:,.0f} seed-steps per second"
    rows.append(at_least("300 replicas: throughput relative to 30", speed, 0.9, detail))
    speed, a, b = ratio(threads)
    rows.append(
        at_least(
            "eight replicas: two threads against one", speed, 1.6, f"{timed(a)} against {timed(b)}"
        )
    )
    return rows


def table_1_run() -> Row:
    """30 seeds, 200 epochs of 1,000 subsets, in a fresh process that has nothing compiled."""
    before = released_seconds()
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "RLPLOSS_CACHE": empty}
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.bench_training", "--table-1"]
        found = json.loads(
            subprocess.run(command, env=environment, capture_output=True, check=True).stdout
        )
    loop = statistics.mean([before, released_seconds()])
    speed = loop / found["seconds_per_seed_step"]
    detail = f"{found['seconds']:.0f} s instead of {loop * 30 * 200 * K / 3600:.1f} h"
    return at_least(
        "Table 1, 30 seeds, 200 epochs, compiling included: times the released loop",
        speed,
        190,
        detail,
    )


def measure(quick: bool = False) -> list[Row]:
    """All claims about training."""
    rounds = 7 if quick else 15
    rows = one_network(rounds) + kinds_of_step(rounds) + against_scikit_learn(rounds)
    rows += losses_of_users(rounds)
    rows += fleets(rounds=2 if quick else 3, epochs=10 if quick else 40)
    if not quick:
        rows.append(table_1_run())
    return rows


def costs(quick: bool = False) -> list[Row]:
    """How the cost grows: with steps, with replicas."""
    problems = [problem(seed) for seed in range(300)]
    rows = []
    for n in (1, 10, 30) if quick else (1, 3, 10, 30, 100, 300):
        epochs = max(2, 120 // n)
        rows.append(cost(n, epochs * K, min(fleet_seconds(n, epochs, problems) for _ in range(3))))
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
        fleet = [problem(s) for s in range(30)]
        fit_fleet(build, fleet, KEPT, budget=Epochs(200), evaluate_every=Epochs(10), optimizer=ADAM)
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "seconds_per_seed_step": seconds / (30 * 200 * K)}))
    else:
        for row in measure(quick="--quick" in sys.argv):
            print(json.dumps(row, ensure_ascii=False))
