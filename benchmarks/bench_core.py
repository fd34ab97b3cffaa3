"""The loss itself: a training step with it, against a training step with MSE or with the released
formula."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.common import Row, at_least, at_most, paired, timed
from rlploss import Autoencoder, ProjectionBank, RegressionNet, RLPLoss, balanced_subsets

Loss = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def stepper(model: nn.Module, X: Tensor, y: Tensor, loss: Loss) -> Callable[[], None]:
    """One optimiser step per call, over batches X [K, M, ...] laid out beforehand."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batches = itertools.cycle(range(len(X)))

    def step() -> None:
        j = next(batches)
        optimizer.zero_grad()
        loss(model(X[j]), y[j], X[j], j).backward()
        optimizer.step()

    return step


def mse(pred: Tensor, target: Tensor, features: Tensor, j: int) -> Tensor:
    return nn.functional.mse_loss(pred, target)


def released_for_images(pred: Tensor, target: Tensor, features: Tensor, j: int) -> Tensor:
    """x·pinv(xᵀx)·xᵀ·h against the target, with the pseudo-inverse anew in every step."""
    inverse = torch.linalg.pinv(features.mT @ features)
    return nn.functional.mse_loss(features @ (inverse @ (features.mT @ pred)), target)


def regression(rounds: int) -> list[Row]:
    rows = []
    for d in (5, 8, 11, 16):
        g = torch.Generator().manual_seed(d)
        X, y = torch.randn(3000, d, generator=g), torch.randn(3000, 1, generator=g)
        plan = balanced_subsets(3000, 100, 1000, generator=g)
        bank, fresh = ProjectionBank(X, plan), RLPLoss()
        Xp, yp = X[plan], y[plan]
        base = stepper(RegressionNet(d), Xp, yp, mse)
        kept = stepper(RegressionNet(d), Xp, yp, lambda p, t, x, j, bank=bank: bank.loss(p, t, j))
        anew = stepper(RegressionNet(d), Xp, yp, lambda p, t, x, j, fresh=fresh: fresh(p, t, x))
        for name, step, limit in (
            ("kept factors", kept, 1.10),
            ("RLPLoss on a fresh batch", anew, 1.45),
        ):
            # a step is short: many short rounds, so that a disturbance spoils few of them
            ratio, a, b = paired(step, base, rounds=5 * rounds, repeat=20)
            rows.append(
                at_most(
                    f"step with {name}, d = {d}, M = 100 / MSE step",
                    ratio,
                    limit,
                    f"{timed(a)} / {timed(b)}",
                )
            )
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(3000, 8, generator=g), torch.randn(3000, 1, generator=g)
    plan = balanced_subsets(3000, 100, 1000, generator=g)
    base = stepper(RegressionNet(8), X[plan], y[plan], mse)

    def hundred() -> None:
        for _ in range(100):
            base()

    ratio, a, b = paired(lambda: ProjectionBank(X, plan), hundred, rounds=rounds)
    rows.append(
        at_most(
            "building a bank, K = 1000, M = 100, d = 8 / 100 MSE steps",
            ratio,
            1.0,
            f"{timed(a)} / {timed(b)}",
        )
    )
    return rows


def form(rounds: int, many: int) -> list[Row]:
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(1000, 8, generator=g), torch.randn(1000, 1, generator=g)
    steps, built = {}, ""
    for K in (100, many):
        start = time.perf_counter()
        bank = ProjectionBank(X, balanced_subsets(1000, 100, K, generator=g))
        bank.loss(y, y)  # the form is made on the first call
        built = f"K = {K} built in {timed(time.perf_counter() - start)}"
        steps[K] = stepper(
            RegressionNet(8), X[None], y[None], lambda p, t, x, j, bank=bank: bank.loss(p, t)
        )
    ratio, a, b = paired(steps[many], steps[100], rounds=rounds, repeat=40)
    name = f"all-rows step with {many:,} subsets / with 100, N = 1000"
    return [at_most(name, ratio, 1.0, f"{timed(a)} / {timed(b)}; {built}")]


def images(rounds: int) -> list[Row]:
    rows = []
    g = torch.Generator().manual_seed(0)
    # pixels as in MNIST: many never used, so that 1000 rows of 784 columns have rank below 784
    X = torch.rand(1, 1000, 784, generator=g) * (torch.rand(784, generator=g) < 0.75)
    plan = torch.arange(1000).view(1, -1)
    bank = ProjectionBank(X[0], plan)
    kept = stepper(Autoencoder(784), X, X, lambda p, t, x, j: bank.loss(p, t, j))
    released = stepper(Autoencoder(784), X, X, released_for_images)
    ratio, a, b = paired(released, kept, rounds=rounds, repeat=2)
    rows.append(
        at_least(
            f"autoencoder 784-32-784, M = 1000: released formula / kept factors ({bank.kind})",
            ratio,
            10,
            f"{timed(a)} / {timed(b)}",
        )
    )
    X = torch.rand(1, 1000, 3072, generator=g)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bank = ProjectionBank(X[0], plan)
    kept = stepper(Autoencoder(3072), X, X, lambda p, t, x, j: bank.loss(p, t, j))
    base = stepper(Autoencoder(3072), X, X, mse)
    ratio, a, b = paired(kept, base, rounds=rounds, repeat=4)
    name = f"autoencoder 3072-32-3072, M = 1000, rank M: kept factors ({bank.kind}) / MSE"
    rows.append(at_most(name, ratio, 1.05, f"{timed(a)} / {timed(b)}"))
    return rows


def measure(quick: bool = False) -> list[Row]:
    rounds = 5 if quick else 21
    return regression(rounds) + form(rounds, 2_000 if quick else 100_000) + images(rounds)


def costs(quick: bool = False) -> list[Row]:
    """Cost and memory against M, d, K and C, one at a time from a common centre; not a claim, a
    table."""
    centre = {"M": 100, "d": 8, "K": 1000, "C": 1}
    cases = [centre]
    for name, values in {"M": (25, 400), "d": (2, 32), "K": (250, 4000), "C": (4, 16)}.items():
        cases += [{**centre, name: value} for value in values]
    rows: list[Row] = []
    for case in cases:
        M, d, K, C = case["M"], case["d"], case["K"], case["C"]
        g = torch.Generator().manual_seed(0)
        N = 5000
        X, y = torch.randn(N, d, generator=g), torch.randn(N, C, generator=g)
        plan = balanced_subsets(N, M, K, generator=g)
        start = time.perf_counter()
        bank = ProjectionBank(X, plan, dense_rows=0)
        built = time.perf_counter() - start
        pred = torch.randn(N, C, generator=g, requires_grad=True)
        some = pred.detach()[plan[0]].requires_grad_()
        target = y[plan[0]]
        one, base, _ = 0.0, 0.0, 0
        ratio, one, base = paired(
            lambda: bank.loss(some, target, 0).backward(),  # noqa: B023 - at once
            lambda: nn.functional.mse_loss(some, target).backward(),  # noqa: B023 - at once
            rounds=5 if quick else 15,
            repeat=50,
        )
        _, epoch, _ = paired(
            lambda: bank.loss(pred, y).backward(),  # noqa: B023 - at once
            lambda: None,
            rounds=3 if quick else 9,
        )
        rows.append(
            {
                **case,
                "bank": timed(built),
                "memory": f"{bank.nbytes / 2**20:.2f} MiB",
                "one subset": timed(one),
                "MSE of M rows": timed(base),
                "all K subsets": timed(epoch),
            }
        )
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
