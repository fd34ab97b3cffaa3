"""The kernel's numbers: a twin in numpy, subsets in bad condition, what is not finite."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.training.fleets import build, data
from torch import Tensor, nn

from rlploss import (
    MAE,
    MSE,
    RLP,
    SGD,
    Adam,
    AdamW,
    BatchLoss,
    CrossEntropy,
    DivergenceError,
    Event,
    Huber,
    Pointwise,
    RegressionNet,
    Steps,
    balanced_subsets,
    fit,
    rlp_loss,
    seeded,
)
from rlploss.loss.mixup import mixup_lambdas
from rlploss.loss.planes import probe_rows
from rlploss.training import kernel, kernel_engine
from rlploss.training.feed import stream
from rlploss.training.objectives import Objective

Array = NDArray[np.float64]

# A twin in numpy: one formula after another, in float64


class Twin:
    """A chain of layers (weight, bias, activation), trained by the textbook."""

    def __init__(self, model: nn.Sequential) -> None:
        self.layers: list[list[Any]] = []
        for module in model:
            if isinstance(module, nn.Linear):
                bias = None if module.bias is None else module.bias.detach().numpy().copy()
                self.layers.append([module.weight.detach().numpy().copy(), bias, "Identity"])
            else:
                self.layers[-1][2] = type(module).__name__
        self.first = [np.zeros_like(p) for p in self.parameters()]
        self.second = [np.zeros_like(p) for p in self.parameters()]
        self.steps = 0

    def parameters(self) -> list[Array]:
        return [p for weight, bias, _ in self.layers for p in (weight, bias) if p is not None]

    def forward(self, x: Array) -> list[Array]:
        outputs = [x]
        for weight, bias, kind in self.layers:
            z = outputs[-1] @ weight.T + (0 if bias is None else bias)
            if kind == "ReLU":
                z = np.where(z > 0, z, 0)
            elif kind == "Tanh":
                z = np.tanh(z)
            elif kind == "Sigmoid":
                z = 1 / (1 + np.exp(-z))
            elif kind == "Softmax":
                z = np.exp(z) / np.exp(z).sum(1, keepdims=True)
            outputs.append(z)
        return outputs

    def gradient(self, outputs: list[Array], back: Array) -> list[Array]:
        found: list[Array] = []
        for (weight, bias, kind), x, out in zip(
            self.layers[::-1], outputs[-2::-1], outputs[:0:-1], strict=True
        ):
            if kind == "ReLU":
                back = back * (out > 0)
            elif kind == "Tanh":
                back = back * (1 - out**2)
            elif kind == "Sigmoid":
                back = back * out * (1 - out)
            elif kind == "Softmax":
                back = np.stack(
                    [(np.diag(p) - np.outer(p, p)) @ g for p, g in zip(out, back, strict=True)]
                )
            if bias is not None:
                found.append(back.sum(0))
            found.append(back.T @ x)
            back = back @ weight
        return found[::-1]

    def step(
        self,
        x: Array,
        loss: Callable[[Array], tuple[float, Array]],
        optimizer: Any,
        clip: float | None,
    ) -> float:
        """Take one step; `loss` gives value and gradient of the predictions."""
        outputs = self.forward(x)
        value, back = loss(outputs[-1])
        gradient = self.gradient(outputs, back)
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradient))
        if clip is not None and norm > clip:
            gradient = [g * clip / (norm + 1e-6) for g in gradient]
        self.steps += 1
        for p, g, m, v in zip(self.parameters(), gradient, self.first, self.second, strict=True):
            if isinstance(optimizer, AdamW):
                p -= optimizer.lr * optimizer.weight_decay * p
            else:
                g = g + optimizer.weight_decay * p
            if isinstance(optimizer, SGD):
                m[:] = optimizer.momentum * m + g
                p -= optimizer.lr * (g + optimizer.momentum * m if optimizer.nesterov else m)
            else:
                m[:] = 0.9 * m + 0.1 * g
                v[:] = 0.999 * v + 0.001 * g**2
                p -= (
                    optimizer.lr
                    * (m / (1 - 0.9**self.steps))
                    / (np.sqrt(v / (1 - 0.999**self.steps)) + 1e-8)
                )
        return value


def mse(pred: Array, y: Array, w: Array) -> tuple[float, Array]:
    each = w[:, None] / pred.size
    return float((each * (pred - y) ** 2).sum()), 2 * each * (pred - y)


def mae(pred: Array, y: Array, w: Array) -> tuple[float, Array]:
    each = w[:, None] / pred.size
    return float((each * np.abs(pred - y)).sum()), each * np.sign(pred - y)


def huber(pred: Array, y: Array, w: Array) -> tuple[float, Array]:
    e, each = pred - y, w[:, None] / pred.size
    value = np.where(np.abs(e) <= 0.3, e**2 / 2, 0.3 * (np.abs(e) - 0.15))
    return float((each * value).sum()), each * np.where(np.abs(e) <= 0.3, e, 0.3 * np.sign(e))


def cross_entropy(pred: Array, y: Array, w: Array) -> tuple[float, Array]:
    p = np.exp(pred) / np.exp(pred).sum(1, keepdims=True)
    return float(-(w[:, None] * y * np.log(p)).sum() / len(pred)), w[:, None] * (p - y) / len(pred)


N, D, C = 24, 3, 3

LOSSES: dict[str, tuple[Objective, Any]] = {
    "mse": (MSE("all"), mse),
    "mae": (MAE("all"), mae),
    "huber": (Huber("all", delta=0.3), huber),
    "cross entropy": (CrossEntropy("all"), cross_entropy),
}
OPTIMIZERS = {
    "adam": Adam(0.02, 0.1),
    "adamw": AdamW(0.02, 0.1),
    "sgd": SGD(0.05, weight_decay=0.1),
    "momentum": SGD(0.05, momentum=0.8, weight_decay=0.1),
    "nesterov": SGD(0.05, momentum=0.8, nesterov=True),
}
NETWORKS: dict[str, Callable[[], nn.Sequential]] = {
    "relu": lambda: nn.Sequential(nn.Linear(D, 6), nn.ReLU(), nn.Linear(6, C)),
    "tanh, no bias, soft-max": lambda: nn.Sequential(
        nn.Linear(D, 5, bias=False),
        nn.Tanh(),
        nn.Linear(5, 4),
        nn.Sigmoid(),
        nn.Linear(4, C, bias=False),
        nn.Softmax(-1),
    ),
    "one layer, sigmoid": lambda: nn.Sequential(nn.Linear(D, C), nn.Sigmoid()),
}


def classes(seed: int = 0) -> tuple[Array, Array, NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(C, size=N)
    return rng.normal(size=(N, D)), np.eye(C)[labels], labels


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_steps_equal_the_twin_in_numpy(
    loss: str, optimizer: str, network: str, weighted: bool, clip: float | None
) -> None:
    X, y, labels = classes()
    weight = np.random.default_rng(1).uniform(0.2, 2, N) if weighted else np.ones(N)
    model = seeded(NETWORKS[network], 2).double()
    twin = Twin(model)
    objective, function = LOSSES[loss]
    w = weight / weight.mean()
    values = [
        twin.step(X, lambda pred: function(pred, y, w), OPTIMIZERS[optimizer], clip)
        for _ in range(8)
    ]
    history = fit(
        model, X, labels, objective, budget=Steps(8), evaluate_every=Steps(1), optimizer=OPTIMIZERS[optimizer],
        clip_grad=clip, sample_weight=weight, engine="kernel",
    )  # fmt: skip
    np.testing.assert_allclose(history["loss"][1:], values, rtol=1e-12)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-11, atol=1e-13)


def test_the_twins_own_gradient() -> None:
    """By differences, so that the twin is no second copy of the same mistake."""
    X, y, _ = classes()
    w = np.random.default_rng(1).uniform(0.2, 2, N)
    for make in NETWORKS.values():
        twin = Twin(seeded(make, 2).double())
        for _, function in LOSSES.values():
            outputs = twin.forward(X)
            gradient = twin.gradient(outputs, function(outputs[-1], y, w)[1])
            for p, g in zip(twin.parameters(), gradient, strict=True):
                at = (0,) * p.ndim
                middle, h = p[at], 1e-6
                p[at] = middle + h
                above = function(twin.forward(X)[-1], y, w)[0]
                p[at] = middle - h
                below = function(twin.forward(X)[-1], y, w)[0]
                p[at] = middle
                assert g[at] == pytest.approx((above - below) / (2 * h), rel=1e-5, abs=1e-9)


def plane_loss(
    x: Array, y: Array, *, probe: str, intercept: bool
) -> Callable[[Array], tuple[float, Array]]:
    """Value and gradient of one subset by the pseudo-inverse."""
    columns = np.column_stack([x, np.ones(len(x))]) if intercept else x
    A = columns @ np.linalg.pinv(columns) / math.sqrt(len(x))
    if probe == "sum":
        A = math.sqrt(len(x)) * A.sum(0, keepdims=True)

    def loss(pred: Array) -> tuple[float, Array]:
        r = pred - y
        return float(((A @ r) ** 2).sum() / C), 2 * A.T @ (A @ r) / C

    return loss


@pytest.mark.parametrize("mixup", [None, 0.4])
@pytest.mark.parametrize("plan", ["once", "each-epoch"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("probe", ["subset", "sum"])
def test_planes_equal_the_twin_in_numpy(
    probe: str, intercept: bool, plan: str, mixup: float | None
) -> None:
    M, K = 9, 5
    X, y, labels = classes()
    model = seeded(NETWORKS["relu"], 2).double()
    twin = Twin(model)
    values = []
    for step in range(12):
        epoch, j = divmod(step, K)
        draws = stream(4, "plan", epoch if plan == "each-epoch" else 0)
        a = balanced_subsets(N, M, K, generator=draws)[j].numpy()
        x, target = X[a], y[a]
        if mixup is not None:
            b = balanced_subsets(N, M, K, generator=draws)[j].numpy()
            lam = float(mixup_lambdas(K, mixup, generator=stream(4, "mixup", epoch))[j])
            x, target = lam * X[a] + (1 - lam) * X[b], lam * y[a] + (1 - lam) * y[b]
        values.append(
            twin.step(x, plane_loss(x, target, probe=probe, intercept=intercept), Adam(0.01), None)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the sum with an intercept
        history = fit(
            model, X, labels, RLP(M, K, probe=probe, intercept=intercept, plan=plan, mixup=mixup), budget=Steps(12),
            evaluate_every=Steps(1), optimizer=Adam(0.01), seed=4, engine="kernel",
        )  # fmt: skip
    np.testing.assert_allclose(history["loss"][1:], values, rtol=1e-11)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-9, atol=1e-12)


# Subsets with columns that are nearly dependent

COLUMNS: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": lambda x: torch.cat([x, torch.ones_like(x[:, :1])], 1),
    "nearly constant": lambda x: torch.cat([x, 1 + 1e-9 * x[:, :1].flip(0)], 1),
    "duplicated": lambda x: torch.cat([x, x[:, :1]], 1),
    "nearly duplicated": lambda x: torch.cat([x, x[:, :1] + 1e-7 * x[:, :1].flip(0)], 1),
    "alike": lambda x: torch.cat([x, x[:, :1] + 1e-3 * x[:, :1].flip(0)], 1),
    "a sum of others": lambda x: torch.cat([x, x[:, :1] + x[:, 1:2]], 1),
    "scales": lambda x: x * torch.tensor([1e6, 1e-6, 1.0], dtype=x.dtype),
    "scales, dependent": lambda x: torch.cat([1e6 * x, 1e-6 * (x[:, :1] + x[:, 1:2])], 1),
    "far from the origin": lambda x: x + torch.tensor([1e3, -1e4, 1e5], dtype=x.dtype),
    "very far from the origin": lambda x: x + torch.tensor([1e8, 0, 0], dtype=x.dtype),
    "rare": lambda x: torch.cat([x, (torch.arange(len(x)) % 20 == 0).to(x.dtype)[:, None]], 1),
    "tiny": lambda x: x * 1e-200,
    "zero": lambda x: torch.cat([x, torch.zeros_like(x[:, :1])], 1),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("probe", ["subset", "sum"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("mixup", [None, 0.4])
def test_fresh_subsets_of_any_condition(
    name: str, probe: str, intercept: bool, mixup: float | None
) -> None:
    """The loss of every fresh subset is that of `rlp_loss`, whose rule of rank is tested against
    exact arithmetic."""
    n, M, K = 80, 12, 7
    generator = torch.Generator().manual_seed(0)
    X = COLUMNS[name](torch.randn(n, 3, generator=generator, dtype=torch.float64))
    y = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    d = X.shape[1]
    size = X.abs().amax(0).clamp(min=1e-290)
    model = nn.Sequential(nn.Linear(d, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(2, d, generator=generator, dtype=torch.float64) / size)
        pred = model(X)
    expected = []
    for epoch in range(2):
        draws = stream(1, "plan", epoch)
        plan = balanced_subsets(n, M, K, generator=draws)
        other = balanced_subsets(n, M, K, generator=draws)
        for j in range(K):
            x, r = X[plan[j]], (pred - y)[plan[j]]
            if mixup is not None:  # a linear model: predictions are mixed as their rows are
                lam = mixup_lambdas(K, mixup, generator=stream(1, "mixup", epoch))[j]
                x = lam * x + (1 - lam) * X[other[j]]
                r = model(x).detach() - (lam * y[plan[j]] + (1 - lam) * y[other[j]])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected.append(
                    float(rlp_loss(r, torch.zeros_like(r), x, probe=probe, intercept=intercept))
                )
    objective = RLP(M, K, probe=probe, intercept=intercept, plan="each-epoch", mixup=mixup)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = fit(
            model, X, y, objective, budget=Steps(2 * K), evaluate_every=Steps(1), optimizer=SGD(1e-300), seed=1,
            engine="kernel",
        )  # fmt: skip
    tolerance = 1e-6 if "nearly" in name else 1e-8 if "far" in name else 2e-11
    np.testing.assert_allclose(history["loss"][1:], expected, rtol=tolerance)


@pytest.mark.parametrize("name", ["duplicated", "rare", "scales", "constant"])
def test_bad_subsets_train_as_they_do_by_torch(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    X = COLUMNS[name](torch.randn(80, 3, generator=generator, dtype=torch.float64))
    X = X / X.abs().amax(0)
    y = torch.randn(80, 2, generator=generator, dtype=torch.float64)
    ends = []
    for engine in ("torch", "kernel"):
        model = seeded(lambda: RegressionNet(X.shape[1], 2), 0).double()
        fit(
            model,
            X,
            y,
            RLP(12, 7, plan="each-epoch"),
            budget=Steps(100),
            optimizer=Adam(0.01),
            engine=engine,
        )
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-8, atol=1e-9)


def test_rare_columns_need_the_careful_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests above test what they say: some subsets go one way and some the other."""
    doubtful: list[int] = []

    def counted(x: Tensor, *form: object) -> Tensor:
        doubtful.append(len(x))
        return probe_rows(x, *form)

    monkeypatch.setattr(kernel_engine, "probe_rows", counted)
    generator = torch.Generator().manual_seed(0)
    X = COLUMNS["rare"](torch.randn(80, 3, generator=generator, dtype=torch.float64))
    fit(
        RegressionNet(4).double(),
        X,
        X[:, 0],
        RLP(12, 7, plan="each-epoch"),
        budget=Steps(100),
        engine="kernel",
    )
    assert 10 < sum(doubtful) < 90


# What is not finite


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_a_loss_of_inf_leaves_the_weights_before_that_step(engine: str) -> None:
    X, y = torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 0.0])
    model = nn.Linear(1, 1, bias=False)
    seen: dict[int, Tensor] = {}

    def watch(event: Event) -> None:
        seen[event.step] = flat(event.model()).clone()

    settings: dict[str, Any] = {
        "budget": Steps(50),
        "optimizer": SGD(1e6),
        "evaluate_every": Steps(1),
    }
    history = fit(
        model,
        X,
        y,
        MSE("all"),
        callbacks=[watch],
        on_divergence="record",
        engine=engine,
        **settings,
    )
    assert history.stopped == "diverged"
    assert "became inf" in history.message
    last = max(seen)
    assert 2 < last < 12
    assert torch.equal(flat(model), seen[last])
    assert torch.isfinite(flat(model)).all()
    assert not torch.isfinite((model(X) ** 2).mean())


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_a_gradient_of_inf_with_a_finite_loss_does_not_reach_the_weights(engine: str) -> None:
    """Predictions of 1e19 have squares of 1e38, which float32 holds; times inputs of 1e20 they are
    too large."""
    X, y = torch.full((2, 1), 1e20), torch.tensor([0.0, 0.0])
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.1)
    before = flat(model).clone()
    with pytest.raises(DivergenceError):
        fit(model, X, y, MSE("all"), budget=Steps(3), optimizer=SGD(1e-9), engine=engine)
    assert torch.equal(flat(model), before)


@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.parametrize("optimizer", [SGD(1e38), Adam(1e38), SGD(1e38, momentum=0.9)])
def test_a_step_that_would_overflow_the_weights(optimizer: Any, engine: str) -> None:
    X, y = data(0)
    model = seeded(lambda: RegressionNet(4), 0)
    with pytest.raises(DivergenceError):
        fit(model, X, 100 * y, MSE("all"), budget=Steps(5), optimizer=optimizer, engine=engine)
    assert torch.isfinite(flat(model)).all()


def with_nan_inside(*rest: nn.Module) -> nn.Sequential:
    """Two sums that overflow, and their difference."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity(), *rest).double()
    with torch.no_grad():
        model[0].weight.fill_(1e308)
        model[2].weight.copy_(torch.tensor([[1.0, -1.0]] * model[2].out_features))
    return model


@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.parametrize("hidden", [nn.ReLU, nn.Tanh, nn.Sigmoid])
def test_nan_inside_the_network_is_not_swallowed(hidden: Any, engine: str) -> None:
    """inf − inf in a hidden unit; ReLU must not make a zero of it."""
    X = torch.linspace(5, 9, 12, dtype=torch.float64).view(6, 2)
    model = with_nan_inside(nn.Linear(2, 3), hidden(), nn.Linear(3, 1))
    assert torch.isnan(model(X)).all()
    with pytest.raises(DivergenceError):
        fit(model, X, torch.zeros(6), MSE(3), budget=Steps(3), engine=engine)


@pytest.mark.parametrize(
    "objective",
    [MSE(3), MAE(3), Huber(3), RLP(4, 3), RLP(4, 3, plan="each-epoch"), CrossEntropy(3)],
)
def test_every_loss_looks_for_nan(objective: Objective) -> None:
    X = torch.linspace(5, 9, 12, dtype=torch.float64).view(6, 2).square()
    model = with_nan_inside(nn.Linear(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(DivergenceError, match="became nan at step 0"):
            fit(model, X, torch.tensor([0, 1] * 3), objective, budget=Steps(3), engine="kernel")


def test_a_loss_may_be_negative() -> None:
    X, y = data(0)

    def minus_correlation(pred: Tensor, target: Tensor, features: Tensor) -> Tensor:
        return -torch.corrcoef(torch.cat([pred, target], 1).mT)[0, 1]

    for objective in (
        BatchLoss(minus_correlation, 20),
        Pointwise(lambda a, b: -torch.exp(-((a - b) ** 2)), 20),
    ):
        history = fit(
            build()(0), X, y, objective, budget=Steps(300), optimizer=Adam(0.01), engine="kernel"
        )
        assert history.stopped == "budget"
        assert history.last("loss") < -0.8


@pytest.mark.parametrize("optimizer", [Adam(0.01), SGD(0.01, momentum=0.9)])
def test_moments_of_dead_units_do_not_become_subnormal(optimizer: Any, tmp_path: Path) -> None:
    """Units that die after some steps: averages of their gradients shrink for ever."""
    X, y = data(0)
    X, y = X.float(), y.float()
    model = build()(0).float()

    def kill(event: Event) -> None:
        if event.step == 100:
            with torch.no_grad():
                event.model().fc1.bias[:4] = -1e4

    path = tmp_path / "run.pt"
    fit(
        model, X, y, MSE("all"), budget=Steps(5100), evaluate_every=Steps(100), optimizer=optimizer, callbacks=[kill],
        checkpoint=path, engine="kernel",
    )  # fmt: skip
    assert (model.fc1.bias[:4] < -1e3).all()
    state = torch.load(path, weights_only=True)["state"]["engine"]
    for name in ("first", "second"):
        values = state[name].abs()
        assert ((values == 0) | (values >= torch.finfo(torch.float32).tiny)).all(), name
    weights = state["first"][: model.fc1.weight.numel()].view(model.fc1.in_features, -1)
    assert (weights[:, :4] == 0).all(), "the units are dead"
    assert (weights[:, 4:8] != 0).any()


def test_averages_of_single_precision_are_not_biased(tmp_path: Path) -> None:
    """1 − β₂ taken in float32 is off by 5e-5, and with it the average of squares."""
    X, y = torch.ones(4, 1), torch.full((4,), 3.0)
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    path = tmp_path / "run.pt"
    fit(
        model,
        X,
        y,
        MSE("all"),
        budget=Steps(1),
        optimizer=Adam(1e-6),
        checkpoint=path,
        engine="kernel",
    )
    state = torch.load(path, weights_only=True)["state"]["engine"]
    assert float(state["first"][0]) == pytest.approx(0.1 * -6, rel=2e-7)
    assert float(state["second"][0]) == pytest.approx(0.001 * 36, rel=2e-7)
    assert state["powers"].tolist() == [0.9, 0.999]
    assert state["powers"].dtype == torch.float64


@numba.njit
def apply_tanh(z):
    kernel.tanh(z)


@numba.njit
def apply_sigmoid(z):
    kernel.sigmoid(z)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 4e-7), (np.float64, 1e-15)])
@pytest.mark.parametrize(
    ("function", "twin"),
    [(apply_tanh, np.tanh), (apply_sigmoid, lambda z: 1 / (1 + np.exp(-z)))],
    ids=["tanh", "sigmoid"],
)
def test_activations_to_the_last_digits(function, twin, dtype, tolerance):
    """Of the value, so far as it is a number of this type: a small one is as right as a large
    one."""
    z = np.concatenate(
        [[0.0, -0.0, np.inf, 1e-30], np.linspace(-87, 87, 9999), np.linspace(-2, 2, 999)]
    ).astype(dtype)
    exact = twin(z.astype(np.float64))
    function(z)
    assert (np.abs(z - exact) <= tolerance * np.abs(exact)).all()
    ends = np.array([-np.inf, np.nan], dtype)
    function(ends)
    assert abs(ends[0] - twin(-np.inf)) < 1e-37
    assert np.isnan(ends[1]), "what is not finite is passed on"
