"""Both engines give the same to rounding: every objective, head, optimiser and probe. Which one is
taken, and why."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.fleets import Gated, convolutional
from tests.training.processes import in_a_process
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
    DegenerateLossWarning,
    Huber,
    Pointwise,
    Problem,
    RegressionNet,
    Steps,
    fit,
    seeded,
)
from rlploss.training.engine import ModuleEngine
from rlploss.training.job import make_job
from rlploss.training.kernel_engine import read_chain
from rlploss.training.objectives import Objective

N, D, M, K = 40, 3, 9, 11


def quartic(pred: Tensor, target: Tensor) -> Tensor:
    return (pred - target) ** 4 / (1 + (pred - target) ** 2)


def centred(pred: Tensor, target: Tensor, features: Tensor) -> Tensor:
    return (pred - target - (pred - target).mean(0)).square().mean() + 0.1 * (
        features.mT @ (pred - target)
    ).square().mean()


OBJECTIVES: dict[str, Objective] = {
    "mse": MSE(17),
    "mse all": MSE("all"),
    "mse mixup": MSE(17, mixup=0.3),
    "mae": MAE(17),
    "huber": Huber(17, delta=0.5),
    "cross entropy": CrossEntropy(17),
    "cross entropy mixup": CrossEntropy(17, mixup=0.3),
    "pointwise": Pointwise(quartic, 17),
    "batch loss": BatchLoss(centred, 17),
    "rlp": RLP(M, K),
    "rlp three": RLP(M, K, subsets_per_step=3),
    "rlp all": RLP(M, K, subsets_per_step="all"),
    "rlp form": RLP(30, 90, subsets_per_step="all"),
    "rlp complement": RLP(5, K),
    "rlp sum": RLP(M, K, probe="sum"),
    "rlp draw": RLP(M, K, probe="draw", draw_from="outside"),
    "rlp expected": RLP(M, K, probe="expected", ridge=0.1),
    "rlp ridge": RLP(M, K, ridge=0.5),
    "rlp fresh": RLP(M, K, plan="each-epoch"),
    "rlp fresh sum": RLP(M, K, probe="sum", plan="each-epoch", subsets_per_step=2),
    "rlp fresh draw": RLP(M, K, probe="draw", plan="each-epoch"),
    "rlp mixup": RLP(M, K, mixup=0.3, intercept=False),
    "rlp mixup fresh": RLP(M, K, mixup=0.3, plan="each-epoch"),
    "released": RLP.released(M, K),
    "released cut off": RLP.released(M, K, float32_cutoff=True),
    "paper": RLP.paper(M, K),
    "paper mixup": RLP.paper(M, K, mixup=0.3),
}

HEADS: dict[str, Callable[[], nn.Module]] = {
    "linear": nn.Identity,
    "sigmoid": nn.Sigmoid,
    "softmax": lambda: nn.Softmax(dim=-1),
}

OPTIMIZERS: dict[str, Any] = {
    "adam": Adam(0.005),
    "adam with decay": Adam(0.005, 0.1),
    "adamw": AdamW(0.005),
    "sgd": SGD(0.05),
    "momentum": SGD(0.01, momentum=0.8, weight_decay=0.01),
    "nesterov": SGD(0.01, momentum=0.8, nesterov=True),
}


def table(seed: int = 0, d: int = D, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, d, generator=generator, dtype=torch.float64)
    return X, torch.randint(classes, (N,), generator=generator)


def network(
    d: int, widths: tuple[int, ...], hidden: Callable[[], nn.Module], head: str, bias: bool = True
) -> nn.Module:
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise((d, *widths)):
        layers += [nn.Linear(n_in, n_out, bias=bias), hidden()]
    return nn.Sequential(*layers[:-1], HEADS[head]()).double()


def assert_engines_agree(
    make: Callable[[], nn.Module], X: Tensor, y: Tensor, objective: Objective, **more: Any
) -> None:
    models, curves = [], []
    for engine in ("torch", "kernel"):
        model = seeded(make, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateLossWarning)
            history = fit(
                model, X, y, objective, engine=engine, **{"budget": Steps(200), "seed": 3, **more}
            )
        assert history.settings["engine"] == engine
        models.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        curves.append(torch.from_numpy(history["loss"][1:]))
    torch.testing.assert_close(models[1], models[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-9, atol=1e-12)


# Each objective with each head, and each head and objective with some of the optimisers
GRID = [
    (objective, head, list(OPTIMIZERS)[(i + j * 5) % len(OPTIMIZERS)])
    for i, objective in enumerate(OBJECTIVES)
    for j, head in enumerate(HEADS)
]


@pytest.mark.parametrize(("objective", "head", "optimizer"), GRID)
def test_engines_agree_after_200_steps(objective: str, head: str, optimizer: str) -> None:
    X, y = table()
    assert_engines_agree(
        lambda: network(D, (8, 3), nn.Tanh, head),
        X,
        y,
        OBJECTIVES[objective],
        optimizer=OPTIMIZERS[optimizer],
        validation=(X, y),
        metrics="mse",
    )


@settings(max_examples=100)
@given(
    objective=st.sampled_from(sorted(OBJECTIVES)),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    head=st.sampled_from(sorted(HEADS)),
    hidden=st.sampled_from([nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity]),
    widths=st.lists(st.integers(1, 9), max_size=3),
    bias=st.booleans(),
    d=st.integers(1, 4),
    clip=st.sampled_from([None, 0.02, 1.0]),
    schedule=st.sampled_from([None, "cosine", "linear"]),
    weighted=st.booleans(),
    seed=st.integers(0, 50),
)
@pytest.mark.slow
def test_engines_agree_on_whatever_is_drawn(
    objective: str, optimizer: str, head: str, hidden: Any, widths: list[int], bias: bool, d: int, clip: Any,
    schedule: Any, weighted: bool, seed: int,
) -> None:  # fmt: skip
    X, y = table(seed, d)
    value = OBJECTIVES[objective]
    mixed = (
        value.mixup is not None
        or isinstance(value, BatchLoss)
        or getattr(value, "float32_cutoff", False)
    )
    more: dict[str, Any] = {}
    if weighted and not mixed:
        more["sample_weight"] = (
            torch.rand(N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
        )
    assert_engines_agree(
        lambda: network(d, (*widths, 3), hidden, head, bias),
        X,
        y,
        value,
        optimizer=OPTIMIZERS[optimizer],
        clip_grad=clip,
        schedule=schedule,
        budget=Steps(60),
        **more,
    )


@pytest.mark.parametrize(
    "objective", [MSE(17), RLP(M, K), RLP(M, K, plan="each-epoch"), RLP(M, K, mixup=0.3)]
)
def test_engines_stay_close_in_single_precision(objective: Objective) -> None:
    X, _ = table()
    y = torch.sin(X[:, 0]) + X[:, 1]
    ends = []
    for engine in ("torch", "kernel"):
        model = seeded(lambda: nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 1)), 1)
        fit(model, X, y, objective, budget=Steps(200), optimizer=Adam(0.005), engine=engine)
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=1e-4)


def test_more_than_4096_rows_in_one_step() -> None:
    """Pointwise losses on all rows, subsets of many, and all subsets in one step, too many rows for
    one form."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(5000, D, generator=generator, dtype=torch.float64)
    y = torch.sin(X[:, 0])
    for objective in (
        MSE("all"),
        RLP(100, 20, subsets_per_step=3),
        RLP(100, 60, subsets_per_step="all"),
    ):
        assert_engines_agree(
            lambda: network(D, (6, 1), nn.Tanh, "linear"), X, y, objective, budget=Steps(20)
        )


# Which one is taken


def chosen(model: nn.Module, objective: Objective, **more: Any) -> tuple[str, str]:
    X, _ = table()
    y = X[:, :1]
    history = fit(model.double(), X, y, objective, **{"budget": Steps(2), **more})
    return history.settings["engine"], history.settings["engine_reason"]


def test_a_dense_chain_goes_to_the_kernel_and_callbacks_do_not_prevent_it() -> None:
    assert chosen(RegressionNet(D), RLP(M, K)) == ("kernel", "a dense chain on the CPU")
    assert chosen(RegressionNet(D), RLP(M, K), callbacks=[lambda event: None])[0] == "kernel"
    assert chosen(RegressionNet(D), Pointwise(quartic))[0] == "kernel"
    assert chosen(RegressionNet(D), MSE(), engine="torch") == ("torch", "as asked")
    assert chosen(RegressionNet(D), MSE(), engine="kernel") == ("kernel", "as asked")


def frozen() -> nn.Module:
    model = RegressionNet(D)
    model.fc1.weight.requires_grad_(False)
    return model


def hooked() -> nn.Module:
    model = RegressionNet(D)
    model.fc1.register_forward_hook(lambda module, x, out: 2 * out)
    return model


def hooked_parameter() -> nn.Module:
    model = RegressionNet(D)
    model.fc1.weight.register_hook(lambda g: 2 * g)
    return model


class Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("make", "more", "reason"),
    [
        (
            lambda: nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Flatten(), nn.Linear(3, 1)),
            {},
            "Unflatten is no linear layer",
        ),
        (
            lambda: nn.Sequential(nn.Linear(D, 4), nn.Dropout(), nn.Linear(4, 1)),
            {},
            "Dropout is no linear layer",
        ),
        (
            lambda: nn.Sequential(nn.Linear(D, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)),
            {},
            "BatchNorm1d is no linear",
        ),
        (
            lambda: nn.Sequential(nn.Linear(D, 4), nn.GELU(), nn.Linear(4, 1)),
            {},
            "GELU is no linear layer",
        ),
        (lambda: Doubled(nn.Linear(D, 1)), {}, "Doubled is no linear layer"),
        (frozen, {}, "some of its parameters are frozen"),
        (hooked, {}, "Linear has hooks"),
        (hooked_parameter, {}, "a parameter has hooks"),
        (
            lambda: nn.Linear(D, 1),
            {"optimizer": torch.optim.Adagrad},
            "the optimizer is a function",
        ),
    ],
)
def test_what_the_kernel_cannot_do_is_told(
    make: Callable[[], nn.Module], more: dict[str, Any], reason: str
) -> None:
    engine, why = chosen(make(), MSE(17), **more)
    assert engine == "torch"
    assert reason in why
    with pytest.raises(
        ValueError,
        match=f'engine="kernel" is not possible here: .*{reason}.*; use engine="auto" or "torch"',
    ):
        chosen(make(), MSE(17), engine="kernel", **more)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(2, 1),
        lambda: nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1), nn.Softmax(1)),
        lambda: nn.Sequential(nn.Flatten(2), nn.Linear(2, 1)),
    ],
)
def test_a_network_on_the_last_axis_of_its_rows_is_no_chain_on_flattened_rows(
    make: Callable[[], nn.Module],
) -> None:
    X = torch.randn(20, 2, 2, generator=torch.Generator().manual_seed(0))
    ends = []
    for engine in ("torch", "auto"):
        model = seeded(make, 0)
        history = fit(model, X, X[:, 0], MSE(5), budget=Steps(10), engine=engine)
        assert history.settings["engine"] == "torch"
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*ends)
    with pytest.raises(ValueError, match='engine="kernel" is not possible here'):
        fit(make(), X, X[:, 0], MSE(5), budget=Steps(10), engine="kernel")


def test_a_large_network_goes_to_torch_unless_the_kernel_is_asked_for() -> None:
    engine, why = chosen(RegressionNet(D, hidden=120_000), MSE(17))
    assert engine == "torch"
    assert "multiplications, which torch does as fast" in why
    assert chosen(RegressionNet(D, hidden=120_000), MSE(17), engine="kernel")[0] == "kernel"


def test_the_choice_does_not_depend_on_the_budget() -> None:
    stop: dict[str, Any] = {"callbacks": [lambda event: True]}
    for n in (1, 10**9):
        assert chosen(RegressionNet(D), MSE(17), budget=Steps(n), **stop)[0] == "kernel"


def test_autocast_goes_to_torch() -> None:
    X, _ = table()
    with torch.autocast("cpu"):
        history = fit(RegressionNet(D), X, X[:, :1], MSE(17), budget=Steps(1))
    assert history.settings["engine_reason"] == "autocast is on"


def test_autocast_sees_the_weights_of_every_step() -> None:
    """torch keeps weights that autocast has cast until its block ends, which here is after the
    training."""
    X = table()[0].float()
    net = seeded(lambda: RegressionNet(D), 0)
    with torch.autocast("cpu"):
        history = fit(
            net, X, X[:, :1], MSE(17), budget=Steps(60), optimizer=Adam(1e-2),
            validation=(X, X[:, :1]), evaluate_every=Steps(60),
        )  # fmt: skip
    assert history.last("mse") < 0.5 * history["mse"][0]
    assert history.last("mse") == pytest.approx(
        float(((net(X) - X[:, :1]) ** 2).mean().detach()), rel=0.1
    )


@pytest.mark.parametrize(
    ("model", "widths"),
    [
        (RegressionNet(7), [7, 32, 1]),
        (
            nn.Sequential(
                nn.Flatten(), nn.Identity(), nn.Linear(4, 3, bias=False), nn.Identity(), nn.Tanh()
            ),
            [4, 3],
        ),
        (
            nn.Sequential(
                nn.Sequential(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2), nn.Softmax(1)
            ),
            [4, 3, 2],
        ),
        (nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.ReLU()), None),  # two activations in a row
        (nn.Sequential(nn.Linear(4, 3), nn.GELU()), None),
        (nn.Sequential(nn.ReLU(), nn.Linear(4, 3)), None),
        (nn.Sequential(nn.Linear(4, 3), nn.Softmax(1), nn.Linear(3, 1)), None),
        (nn.Sequential(nn.Linear(4, 3), nn.Softmax(0)), None),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten()), None),
        (nn.Sequential(nn.Flatten(0), nn.Linear(4, 3)), None),
        (nn.Sequential(nn.Flatten(2), nn.Linear(4, 3)), None),
        (nn.Sequential(*[nn.Linear(4, 4)] * 2), None),  # one layer used twice
        (nn.Sequential(), None),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), None),
        (Gated(), None),
        (convolutional(), None),
    ],
)
def test_which_networks_are_chains(model: nn.Module, widths: list[int] | None) -> None:
    found = read_chain(model)
    assert isinstance(found, str) == (widths is None), found
    if not isinstance(found, str):
        layers, _ = found
        assert [layers[0].in_features, *(layer.out_features for layer in layers)] == widths


# Without numba

WITHOUT = """
    import importlib.abc, importlib.util, sys
    import torch
    hidden = sys.argv[1] if len(sys.argv) > 1 else "numba"
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == hidden else real(name, package)
    class Hide(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name.partition(".")[0] == hidden:
                raise ModuleNotFoundError(f"No module named {name!r}")
    sys.meta_path.insert(0, Hide())
    from rlploss import MSE, RegressionNet, Steps, fit
    X = torch.linspace(-1, 1, 60).view(20, 3)
    history = fit(RegressionNet(3), X, X.sum(1), MSE(), budget=Steps(3))
    print(history.settings["engine"], "|", history.settings["engine_reason"])
    try:
        fit(RegressionNet(3), X, X.sum(1), MSE(), budget=Steps(3), engine="kernel")
    except ImportError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", ["scipy", "threadpoolctl"])
def test_the_kernel_needs_numba_alone(package: str) -> None:
    assert in_a_process(WITHOUT, package).startswith("kernel | ")


@pytest.mark.slow
def test_without_numba_torch_trains_and_says_why() -> None:
    first, second = in_a_process(WITHOUT, "numba").splitlines()
    assert first.startswith("torch | ")
    for line in (first, second):
        assert "numba" in line
        assert "not installed" in line
        assert "pip install 'rlploss[kernel]'" in line


def test_importing_does_not_import_numba() -> None:
    code = (
        "import sys, rlploss, rlploss.training; print('numba' in sys.modules, 'scipy' in"
        " sys.modules)"
    )
    assert in_a_process(code).split() == ["False", "False"]


def test_training_that_goes_on_takes_the_settings_of_its_own_optimizer() -> None:
    X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    engines = []
    for decay in (0.0, 0.5):
        net = seeded(lambda: RegressionNet(3), 0)
        adam = Adam(1e-3, weight_decay=decay)
        job = make_job(net, Problem(X, X.sum(1)), objective=MSE(), optimizer=adam)
        engines.append(ModuleEngine(job, 1))
    engines[1].load_state_dict(engines[0].state_dict())
    assert engines[1].optimizer.param_groups[0]["weight_decay"] == 0.5
