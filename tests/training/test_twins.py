"""Each algorithm against a naive twin from the paper's lines: lstsq per step, autograd, torch's own
optimisers.

Every twin is held against both engines.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlploss import (
    MAE,
    MSE,
    RLP,
    SGD,
    Adam,
    AdamW,
    Autoencoder,
    BatchLoss,
    CrossEntropy,
    Epochs,
    Huber,
    LeNet5,
    MeanOnlyWarning,
    Pointwise,
    RegressionNet,
    RLPLoss,
    Steps,
    fit,
    rlp_loss,
    seeded,
)
from rlploss.loss.functional import draw_rows
from rlploss.loss.mixup import mixup_lambdas
from rlploss.loss.subsets import balanced_subsets
from rlploss.training.feed import stream
from rlploss.training.objectives import Objective

N, D, M, K = 40, 3, 9, 7
SEED = 5


@pytest.fixture(params=["torch", "kernel"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def problem(n: int = N, d: int = D, outputs: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = torch.sin(X @ torch.randn(d, outputs, generator=generator, dtype=torch.float64)) + X[:, :1]
    return X, y


def network(n_features: int = D, n_outputs: int = 1) -> nn.Module:
    return seeded(lambda: RegressionNet(n_features, n_outputs), 3).double()


def naive(
    model: nn.Module, losses: Callable[[int], Tensor], steps: int, optimizer: torch.optim.Optimizer
) -> list[float]:
    """Plain gradient descent on losses(step); the model is trained in place."""
    values = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = losses(step)
        loss.backward()
        optimizer.step()
        values.append(float(loss.detach()))
    return values


def planes_apart(x: Tensor, h: Tensor, y: Tensor) -> Tensor:
    """M_h − M_y as the paper writes them, each by its own least squares."""
    return torch.linalg.lstsq(x, h).solution - torch.linalg.lstsq(x, y).solution


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def assert_same(
    ours: nn.Module, twin: nn.Module, history_loss: Tensor, values: list[float]
) -> None:
    torch.testing.assert_close(
        history_loss, torch.tensor(values, dtype=torch.float64), rtol=1e-9, atol=1e-12
    )
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def trained(
    model: nn.Module,
    X: Tensor,
    y: Tensor | None,
    objective: Objective,
    engine: str,
    **settings: Any,
) -> Tensor:
    """Train with `fit`, evaluated at every step, and return the loss of every step."""
    settings = {"optimizer": Adam(0.01), **settings}
    history = fit(
        model, X, y, objective, seed=SEED, evaluate_every=Steps(1), engine=engine, **settings
    )
    assert history.settings["engine"] == engine
    return torch.from_numpy(history["loss"][1:])


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


# The paper's algorithms


@pytest.mark.parametrize("outputs", [1, 2])
def test_released_loop(outputs: int, engine: str) -> None:
    X, y = problem(outputs=outputs)
    ours, twin = network(n_outputs=outputs), network(n_outputs=outputs)
    plan = balanced_subsets(N, M, K, generator=stream(SEED, "plan"))

    def loss(step: int) -> Tensor:
        rows = plan[step % K]
        x, h = X[rows], twin(X[rows])
        return (x @ planes_apart(x, h, y[rows])).square().mean()

    values = naive(twin, loss, 28 * K, adam(twin))
    curve = trained(ours, X, y, RLP.released(M, K), engine, budget=Epochs(28))
    assert_same(ours, twin, curve, values)


def test_algorithm_2(engine: str) -> None:
    X, y = problem()
    ours, twin = network(), network()
    plan = balanced_subsets(N, M, K, method="paper", generator=stream(SEED, "plan"))

    def loss(step: int) -> Tensor:
        points = X[draw_rows(plan, N, "train", stream(SEED, "draw", step))]
        terms = []
        for rows, z in zip(plan, points, strict=True):
            delta = planes_apart(X[rows], twin(X[rows]), y[rows])
            terms.append((delta.mT @ z).square().sum())
        return torch.stack(terms).mean()

    values = naive(twin, loss, 20, adam(twin))
    curve = trained(ours, X, y, RLP.paper(M, K), engine, budget=Epochs(20))
    assert_same(ours, twin, curve, values)


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_algorithm_3_mixup(preset: str, engine: str) -> None:
    X, y = problem()
    ours, twin = network(), network()
    plans = stream(SEED, "plan")
    method = "paper" if preset == "paper" else "balanced"
    a, b = (balanced_subsets(N, M, K, method=method, generator=plans) for _ in range(2))

    def pair(j: int, lam: Tensor) -> Tensor:
        x = lam * X[a[j]] + (1 - lam) * X[b[j]]
        target = lam * y[a[j]] + (1 - lam) * y[b[j]]
        fitted = x @ planes_apart(x, twin(x), target)
        return fitted.sum().square() if preset == "paper" else fitted.square().mean()

    def loss(step: int) -> Tensor:
        per_epoch = 1 if preset == "paper" else K
        lam = mixup_lambdas(K, 0.4, generator=stream(SEED, "mixup", step // per_epoch))
        if preset == "paper":
            return torch.stack([pair(j, lam[j]) for j in range(K)]).mean()
        return pair(step % K, lam[step % K])

    epochs = 20 if preset == "paper" else 6
    values = naive(twin, loss, epochs if preset == "paper" else epochs * K, adam(twin))
    objective = RLP.paper(M, K, mixup=0.4) if preset == "paper" else RLP.released(M, K, mixup=0.4)
    curve = trained(ours, X, y, objective, engine, budget=Epochs(epochs))
    assert_same(ours, twin, curve, values)


@pytest.mark.parametrize("probe", ["subset", "draw", "expected", "sum"])
@pytest.mark.parametrize(("per_step", "n_subsets"), [(1, 7), (3, 7), (5, 7), (7, 7)])
def test_every_probe_with_any_number_of_subsets_per_step(
    probe: str, per_step: int, n_subsets: int, engine: str
) -> None:
    X, y = problem()
    ours, twin = network(), network()
    intercept = probe != "sum"
    plan = balanced_subsets(N, M, n_subsets, generator=stream(SEED, "plan"))
    steps_per_epoch = -(-n_subsets // per_step)

    def loss(step: int) -> Tensor:
        epoch, position = divmod(step, steps_per_epoch)
        which = slice(position * per_step, min((position + 1) * per_step, n_subsets))
        given = None
        if probe == "draw":
            given = X[draw_rows(plan, N, "outside", stream(SEED, "draw", epoch))][which]
        return rlp_loss(
            twin(X),
            y,
            X,
            subsets=plan[which],
            probe=probe,
            intercept=intercept,
            ridge=0.1,
            draw_from="outside",
            probe_points=given,
        )

    values = naive(twin, loss, 3 * steps_per_epoch, adam(twin))
    objective = RLP(
        M, n_subsets, probe=probe, ridge=0.1, draw_from="outside", subsets_per_step=per_step
    )
    curve = trained(ours, X, y, objective, engine, budget=Epochs(3))
    assert_same(ours, twin, curve, values)


# Subsets that are fitted anew


@pytest.mark.parametrize("mixed", [None, 0.4])
@pytest.mark.parametrize(
    ("probe", "intercept"), [("subset", True), ("subset", False), ("sum", True), ("sum", False)]
)
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_plan_for_each_epoch(
    probe: str, intercept: bool, mixed: float | None, outputs: int, engine: str
) -> None:
    X, y = problem(outputs=outputs)
    ours, twin = network(n_outputs=outputs), network(n_outputs=outputs)

    def subset(epoch: int, j: int) -> tuple[Tensor, Tensor]:
        plans = stream(SEED, "plan", epoch)
        a = balanced_subsets(N, M, K, generator=plans)[j]
        if mixed is None:
            return X[a], y[a]
        b = balanced_subsets(N, M, K, generator=plans)[j]
        lam = mixup_lambdas(K, mixed, generator=stream(SEED, "mixup", epoch))[j]
        return lam * X[a] + (1 - lam) * X[b], lam * y[a] + (1 - lam) * y[b]

    def loss(step: int) -> Tensor:
        epoch, position = divmod(step, 4)  # 2, 2, 2 and 1 subsets
        terms = []
        for j in range(2 * position, min(2 * position + 2, K)):
            x, target = subset(epoch, j)
            columns = with_ones(x) if intercept else x
            fitted = columns @ planes_apart(columns, twin(x), target)
            terms.append(
                fitted.sum(0).square().mean() if probe == "sum" else fitted.square().mean()
            )
        return torch.stack(terms).mean()

    values = naive(twin, loss, 24, adam(twin))
    objective = RLP(
        M, K, probe=probe, intercept=intercept, plan="each-epoch", mixup=mixed, subsets_per_step=2
    )
    mean_only = pytest.warns(MeanOnlyWarning) if probe == "sum" and intercept else nullcontext()
    with mean_only:
        curve = trained(ours, X, y, objective, engine, budget=Epochs(6))
    assert_same(ours, twin, curve, values)


# The forms that factors are kept in


def subset_loss(twin: nn.Module, X: Tensor, y: Tensor, plan: Tensor) -> Tensor:
    """The mean over subsets of the mean square of the fitted residual, with an offset."""
    terms = []
    for rows in plan:
        columns = with_ones(X[rows])
        terms.append((columns @ planes_apart(columns, twin(X[rows]), y[rows])).square().mean())
    return torch.stack(terms).mean()


@pytest.mark.parametrize(
    "size", [5, 6, 8]
)  # p = 4: one, two and four directions that planes do not see
def test_small_subsets_are_kept_by_what_they_do_not_see(size: int, engine: str) -> None:
    X, y = problem(outputs=2)
    ours, twin = network(n_outputs=2), network(n_outputs=2)
    plan = balanced_subsets(N, size, 11, generator=stream(SEED, "plan"))
    values = naive(
        twin, lambda step: subset_loss(twin, X, y, plan[step % 11 : step % 11 + 1]), 33, adam(twin)
    )
    curve = trained(ours, X, y, RLP(size, 11), engine, budget=Epochs(3))
    assert_same(ours, twin, curve, values)


@pytest.mark.parametrize("size", [6, 30])
def test_many_subsets_in_one_step_are_one_form(size: int, engine: str) -> None:
    X, y = problem(outputs=2)
    ours, twin = network(n_outputs=2), network(n_outputs=2)
    plan = balanced_subsets(N, size, 90, generator=stream(SEED, "plan"))
    values = naive(twin, lambda step: subset_loss(twin, X, y, plan), 15, adam(twin))
    curve = trained(ours, X, y, RLP(size, 90, subsets_per_step="all"), engine, budget=Epochs(15))
    assert_same(ours, twin, curve, values)


def test_subsets_of_full_rank_are_mse(engine: str) -> None:
    X, y = problem(outputs=2)
    ours, twin = network(n_outputs=2), network(n_outputs=2)
    plan = balanced_subsets(N, 4, 10, generator=stream(SEED, "plan"))
    values = naive(
        twin,
        lambda s: nn.functional.mse_loss(twin(X[plan[s % 10]]), y[plan[s % 10]]),
        30,
        adam(twin),
    )
    with pytest.warns(UserWarning, match="equals MSE"):
        curve = trained(ours, X, y, RLP(4, 10), engine, budget=Epochs(3))
    assert_same(ours, twin, curve, values)


# Losses of rows


def batches(n_rows: int, size: int) -> Iterator[tuple[int, int, Tensor]]:
    """Epoch, place in it and rows of every step, for ever."""
    epoch = 0
    while True:
        order = (
            torch.arange(n_rows)
            if size == n_rows
            else torch.randperm(n_rows, generator=stream(SEED, "shuffle", epoch))
        )
        for position, rows in enumerate(torch.split(order, size)):
            yield epoch, position, rows
        epoch += 1


POINTWISE: dict[str, tuple[Objective, Callable[[Tensor, Tensor], Tensor]]] = {
    "mse": (MSE(12), nn.functional.mse_loss),
    "mae": (MAE(12), nn.functional.l1_loss),
    "huber": (Huber(12), nn.functional.huber_loss),
    "huber 0.5": (Huber(12, delta=0.5), lambda a, b: nn.functional.huber_loss(a, b, delta=0.5)),
    "mse mixup": (MSE(12, mixup=0.25), nn.functional.mse_loss),
    "mae mixup": (MAE(12, mixup=0.25), nn.functional.l1_loss),
    "all rows": (MSE("all"), nn.functional.mse_loss),
    "all rows, huber": (
        Huber(N, delta=2.0),
        lambda a, b: nn.functional.huber_loss(a, b, delta=2.0),
    ),
    "all rows, mixup": (MSE("all", mixup=0.3), nn.functional.mse_loss),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_objectives(name: str, engine: str) -> None:
    objective, function = POINTWISE[name]
    X, y = problem(outputs=2)
    y = 3 * y  # so that the Huber loss has both of its parts
    ours, twin = network(n_outputs=2), network(n_outputs=2)
    size = objective.resolve(N, D).rows_per_step
    per_epoch = -(-N // size)  # 40 rows in batches of 12: the last has 4
    steps = batches(N, size)

    def loss(_: int) -> Tensor:
        epoch, position, rows = next(steps)
        x, target = X[rows], y[rows]
        if objective.mixup is not None:
            mixed = stream(SEED, "mixup", epoch)
            other = torch.randperm(N, generator=mixed)[position * size : (position + 1) * size]
            lam = mixup_lambdas(per_epoch, objective.mixup, generator=mixed)[position]
            x, target = lam * x + (1 - lam) * X[other], lam * target + (1 - lam) * y[other]
        return function(twin(x), target)

    values = naive(twin, loss, 60, adam(twin))
    curve = trained(ours, X, y, objective, engine, budget=Steps(60))
    assert_same(ours, twin, curve, values)


@pytest.mark.parametrize("mixup", [None, 0.25])
def test_cross_entropy_on_logits(mixup: float | None, engine: str) -> None:
    X, _ = problem()
    labels = torch.randint(3, (N,), generator=torch.Generator().manual_seed(2))
    ours, twin = network(n_outputs=3), network(n_outputs=3)
    steps = batches(N, 20)

    def loss(_: int) -> Tensor:
        epoch, position, rows = next(steps)
        if mixup is None:
            return nn.functional.cross_entropy(twin(X[rows]), labels[rows])
        mixed = stream(SEED, "mixup", epoch)
        other = torch.randperm(N, generator=mixed)[position * 20 : position * 20 + 20]
        lam = mixup_lambdas(2, mixup, generator=mixed)[position]
        out = twin(lam * X[rows] + (1 - lam) * X[other])
        # mixup's own form: the loss is mixed, not the labels
        first, second = (nn.functional.cross_entropy(out, labels[which]) for which in (rows, other))
        return lam * first + (1 - lam) * second

    values = naive(twin, loss, 40, adam(twin))
    curve = trained(ours, X, labels, CrossEntropy(20, mixup=mixup), engine, budget=Epochs(20))
    assert_same(ours, twin, curve, values)


def quartic(pred: Tensor, target: Tensor) -> Tensor:
    return (pred - target) ** 4 / (1 + (pred - target) ** 2)


def quartic_of_rows(pred: Tensor, target: Tensor) -> Tensor:
    return quartic(pred, target).sum(1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("function", [quartic, quartic_of_rows])
@pytest.mark.parametrize("size", [12, N])
def test_anyones_loss_of_rows(function: Any, weighted: bool, size: int, engine: str) -> None:
    X, y = problem(outputs=2)
    ours, twin = network(n_outputs=2), network(n_outputs=2)
    weight = torch.rand(N, generator=torch.Generator().manual_seed(7), dtype=torch.float64) + 0.1
    w = weight / weight.mean() if weighted else torch.ones(N, dtype=torch.float64)
    steps = batches(N, size)

    def loss(_: int) -> Tensor:
        _, _, rows = next(steps)
        found = function(twin(X[rows]), y[rows])
        return (w[rows] * (found if found.ndim == 1 else found.mean(1))).mean()

    values = naive(twin, loss, 40, adam(twin))
    more = {"sample_weight": weight} if weighted else {}
    curve = trained(ours, X, y, Pointwise(function, size), engine, budget=Steps(40), **more)
    assert_same(ours, twin, curve, values)


def correlation(pred: Tensor, target: Tensor, features: Tensor) -> Tensor:
    """No sum over rows, and it looks at the features."""
    gap = pred - target
    return (gap.mT @ features / len(pred)).square().sum() + gap.square().mean().sqrt()


@pytest.mark.parametrize("size", [12, N])
@pytest.mark.parametrize("function", [correlation, RLPLoss(intercept=True)])
def test_anyones_loss_of_a_batch(function: Any, size: int, engine: str) -> None:
    n = 36 if size == 12 else N  # whole batches: a plane needs rows
    X, y = (part[:n] for part in problem(outputs=2))
    ours, twin = network(n_outputs=2), network(n_outputs=2)
    steps = batches(n, size)

    def loss(_: int) -> Tensor:
        _, _, rows = next(steps)
        return function(twin(X[rows]), y[rows], X[rows])

    values = naive(twin, loss, 40, adam(twin))
    curve = trained(ours, X, y, BatchLoss(function, size), engine, budget=Steps(40))
    assert_same(ours, twin, curve, values)


def test_features_of_a_batch_loss_are_flattened(engine: str) -> None:
    X, y = problem(d=4)
    seen = []

    def watched(pred: Tensor, target: Tensor, features: Tensor) -> Tensor:
        seen.append((tuple(pred.shape), tuple(target.shape), tuple(features.shape)))
        return correlation(pred, target, features)

    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    fit(model, X.view(N, 2, 2), y, BatchLoss(watched, 10), budget=Steps(3), engine=engine)
    assert set(seen) == {((10, 1), (10, 1), (10, 4))}


# Networks

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Objective]] = {
    "tanh": (lambda: nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 2)), MSE(12)),
    "sigmoid": (lambda: nn.Sequential(nn.Linear(D, 8), nn.Sigmoid(), nn.Linear(8, 2)), Huber(12)),
    "identity": (lambda: nn.Sequential(nn.Linear(D, 8), nn.Identity(), nn.Linear(8, 2)), MSE(12)),
    "one layer": (lambda: nn.Linear(D, 2), MSE(12)),
    "one output": (lambda: nn.Sequential(nn.Linear(D, 1), nn.Tanh(), nn.Linear(1, 1)), MAE(12)),
    "no bias": (
        lambda: nn.Sequential(nn.Linear(D, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False)),
        MSE(12),
    ),
    "depth 3": (
        lambda: nn.Sequential(
            nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, 5, bias=False), nn.Tanh(), nn.Linear(5, 4), nn.Sigmoid(),
            nn.Linear(4, 2),
        ),
        MSE(12),
    ),
    "sigmoid head": (lambda: nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, 2), nn.Sigmoid()), MSE(12)),
    "soft-max head": (
        lambda: nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(dim=-1)),
        MSE(12),
    ),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(D, 8), nn.Tanh()), nn.Sequential(nn.Identity(), nn.Linear(8, 2))),
        MSE(12),
    ),
}  # fmt: skip

LOSSES = {
    "mse": nn.functional.mse_loss,
    "mae": nn.functional.l1_loss,
    "huber": nn.functional.huber_loss,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, engine: str) -> None:
    make, objective = NETWORKS[name]
    ours, twin = (seeded(make, 3).double() for _ in range(2))
    outputs = 1 if name == "one output" else 2
    X, y = problem(outputs=outputs)
    steps = batches(N, 12)

    def loss(_: int) -> Tensor:
        _, _, rows = next(steps)
        return LOSSES[objective.loss](twin(X[rows]), y[rows])

    values = naive(twin, loss, 200, adam(twin))
    curve = trained(ours, X, y, objective, engine, budget=Steps(200))
    assert_same(ours, twin, curve, values)


@pytest.mark.parametrize("head", [nn.Identity, nn.Sigmoid, lambda: nn.Softmax(-1)])
def test_rlp_through_every_head(head: Callable[[], nn.Module], engine: str) -> None:
    X, _ = problem()
    labels = torch.randint(3, (N,), generator=torch.Generator().manual_seed(2))
    one_hot = nn.functional.one_hot(labels, 3).double()
    ours, twin = (
        seeded(
            lambda: nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, 3), head()), 3
        ).double()
        for _ in range(2)
    )
    plan = balanced_subsets(N, M, K, generator=stream(SEED, "plan"))
    values = naive(
        twin, lambda s: subset_loss(twin, X, one_hot, plan[s % K : s % K + 1]), 5 * K, adam(twin)
    )
    curve = trained(ours, X, labels, RLP(M, K), engine, budget=Epochs(5))
    assert_same(ours, twin, curve, values)


# Optimisers

OPTIMISERS: dict[str, tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = {
    "adam": (Adam(0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "adam with decay": (Adam(0.01, 0.1), lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
    "adamw": (AdamW(0.01, 0.1), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
    "adamw, torch's decay": (AdamW(0.01), lambda p: torch.optim.AdamW(p, lr=0.01)),
    "sgd": (SGD(0.01), lambda p: torch.optim.SGD(p, lr=0.01)),
    "momentum": (
        SGD(0.01, momentum=0.7, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1, momentum=0.7),
    ),
    "nesterov": (
        SGD(0.01, momentum=0.7, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1, momentum=0.7, nesterov=True),
    ),
}


SCHEDULES: dict[str, tuple[Any, Callable[[int, int], float]]] = {
    "none": (None, lambda step, total: 1.0),
    "linear": ("linear", lambda step, total: 1 - step / total),
    "cosine": ("cosine", lambda step, total: 0.5 * (1 + math.cos(math.pi * step / total))),
    "own": (lambda step, total: 0.5 + step / total, lambda step, total: 0.5 + step / total),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_schedule_and_clipping(name: str, schedule: str, engine: str) -> None:
    X, y = problem()
    ours, twin = network(), network()
    value, make = OPTIMISERS[name]
    given, factor = SCHEDULES[schedule]
    total = 200 if schedule in ("none", "linear") else 40
    clip = None if schedule == "none" else 0.05
    optimizer = make(twin.parameters())
    for step in range(total):
        optimizer.param_groups[0]["lr"] = 0.01 * factor(step, total)
        optimizer.zero_grad()
        nn.functional.mse_loss(twin(X), y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(twin.parameters(), clip)
        optimizer.step()
    fit(
        ours,
        X,
        y,
        MSE(N),
        budget=Steps(total),
        optimizer=value,
        schedule=given,
        clip_grad=clip,
        engine=engine,
    )
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_a_function_is_used_as_it_is() -> None:
    X, y = problem()
    ours, twin = network(), network()
    history = fit(
        ours, X, y, MSE(N), budget=Steps(4), optimizer=lambda p: torch.optim.Adagrad(p, lr=0.1)
    )
    assert history.settings["engine"] == "torch"
    naive(
        twin,
        lambda _: nn.functional.mse_loss(twin(X), y),
        4,
        torch.optim.Adagrad(twin.parameters(), lr=0.1),
    )
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b)


# The released autoencoder, and images


def test_released_autoencoder_with_its_float32_cut_off(engine: str) -> None:
    generator = torch.Generator().manual_seed(4)
    # images of rank 6 plus a weak rest: float32 arithmetic on xᵀx loses the weak directions
    X = torch.rand(60, 6, generator=generator) @ torch.rand(6, 20, generator=generator) / 6
    X = (X + 1e-5 * torch.rand(60, 20, generator=generator)).clamp(0, 1)
    ours, twin = (seeded(lambda: Autoencoder(20, latent=4), 1) for _ in range(2))
    plan = balanced_subsets(60, 30, 5, generator=stream(SEED, "plan"))
    kept = []

    def loss(step: int) -> Tensor:
        x = X[plan[step % 5]]
        gram = x.mT @ x
        kept.append(int(torch.linalg.matrix_rank(gram)))
        fitted = x @ (torch.linalg.pinv(gram) @ x.mT @ twin(x))
        return nn.functional.mse_loss(fitted, x)

    values = naive(twin, loss, 20, adam(twin))
    curve = trained(
        ours, X, None, RLP.released(30, 5, float32_cutoff=True), engine, budget=Steps(20)
    )
    assert max(kept) < 20, "the cut-off must drop something here, or the test tests nothing"
    torch.testing.assert_close(
        curve, torch.tensor(values, dtype=torch.float64), rtol=1e-4, atol=1e-6
    )
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_the_cut_off_loss_looks_at_targets_that_planes_cannot_reach(engine: str) -> None:
    """mean (P·pred − target)², and not the projection of the residual alone."""
    X, y = problem(outputs=2)
    ours, twin = network(n_outputs=2), network(n_outputs=2)
    plan = balanced_subsets(N, M, K, generator=stream(SEED, "plan"))

    def loss(step: int) -> Tensor:
        x, target = X[plan[step % K]], y[plan[step % K]]
        return nn.functional.mse_loss(x @ torch.linalg.lstsq(x, twin(x)).solution, target)

    values = naive(twin, loss, 3 * K, adam(twin))
    curve = trained(ours, X, y, RLP.released(M, K, float32_cutoff=True), engine, budget=Epochs(3))
    assert_same(ours, twin, curve, values)


def test_images_and_class_numbers_with_rlp() -> None:
    generator = torch.Generator().manual_seed(6)
    X = torch.rand(30, 1, 32, 32, generator=generator)
    labels = torch.randint(10, (30,), generator=generator)
    ours = seeded(lambda: LeNet5(output="sigmoid"), 0)
    twin = copy.deepcopy(ours)
    plan = balanced_subsets(30, 10, 4, generator=stream(SEED, "plan"))
    one_hot = nn.functional.one_hot(labels, 10).float()
    # fewer rows than pixels: the squared error of the probabilities
    values = naive(
        twin, lambda s: nn.functional.mse_loss(twin(X[plan[s]]), one_hot[plan[s]]), 4, adam(twin)
    )
    with pytest.warns(UserWarning, match="equals MSE"):
        curve = trained(ours, X, labels, RLP.released(10, 4), "torch", budget=Steps(4))
    torch.testing.assert_close(
        curve, torch.tensor(values, dtype=torch.float64), rtol=1e-4, atol=1e-6
    )
