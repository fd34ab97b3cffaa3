"""What `fit` does with what is the caller's: modes, losses, callbacks, generators, checkpoints of
other runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlploss import (
    MSE,
    RLP,
    SGD,
    Adam,
    BatchLoss,
    EarlyStopping,
    Pointwise,
    Problem,
    RLPLoss,
    Steps,
    fit,
    fit_fleet,
    seeded,
)
from rlploss.training.kernel_engine import read_chain

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=G)
Y = X[:, :1] + 0.1 * torch.randn(60, 1, generator=G)


def network(activation: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 8), activation(), nn.Linear(8, 1)), 0)


def normalised() -> nn.Sequential:
    return seeded(
        lambda: nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)),
        0,
    )


def test_parts_in_evaluation_mode_stay_there() -> None:
    model = normalised()
    model[1].eval()
    before = model[1].running_mean.clone()
    fit(model, X, Y, "mse", budget=Steps(5), validation=(X, Y))
    assert torch.equal(model[1].running_mean, before)
    assert [part.training for part in model] == [True, False, True, True]
    model.eval()
    fit(model, X, Y, "mse", budget=Steps(5))
    assert not torch.equal(model[1].running_mean, before), (
        "a module in evaluation mode is trained in training mode"
    )
    assert not any(part.training for part in model.modules())


def test_a_callback_may_leave_the_network_in_evaluation_mode() -> None:
    plain, watched = normalised(), normalised()
    fit(plain, X, Y, "mse", budget=Steps(50))
    fit(
        watched,
        X,
        Y,
        "mse",
        budget=Steps(50),
        callbacks=[lambda event: event.model().eval() and None],
    )
    assert torch.equal(plain[0].weight, watched[0].weight)


@pytest.mark.parametrize("answer", [True, np.True_])
def test_a_callback_stops_with_any_true(answer: object) -> None:
    history = fit(network(), X, Y, "mse", budget=Steps(50), callbacks=[lambda event: answer])
    assert history.stopped == "callback"
    assert (
        fit(network(), X, Y, "mse", budget=Steps(50), callbacks=[lambda event: 1]).stopped
        == "budget"
    )


@pytest.mark.parametrize("engine", ["kernel", "torch"])
@pytest.mark.parametrize("objective", [MSE(), RLP(20, 5)])
def test_it_trains_where_gradients_are_off(engine: str, objective: Any) -> None:
    inside, outside = network(), network()
    with torch.no_grad():
        fit(inside, X, Y, objective, budget=Steps(20), engine=engine)
    fit(outside, X, Y, objective, budget=Steps(20), engine=engine)
    assert torch.equal(inside[0].weight, outside[0].weight)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"got torch\.inference_mode"):
        fit(network(), X, Y, objective, budget=Steps(20), engine=engine)


def test_a_loss_that_uses_the_weights_is_not_half_followed() -> None:
    model = network()

    def penalised(pred: Tensor, target: Tensor, features: Tensor) -> Tensor:
        return (pred - target).square().mean() + sum(w.square().sum() for w in model.parameters())

    with pytest.raises(ValueError, match='uses the weights too; pass engine="torch"'):
        fit(model, X, Y, BatchLoss(penalised, 20), budget=Steps(20))
    fit(model, X, Y, BatchLoss(penalised, 20), budget=Steps(20), engine="torch")
    own = torch.ones((), requires_grad=True)  # nobody trains it
    fit(
        model,
        X,
        Y,
        Pointwise(lambda p, t: own * (p - t) ** 2, 20),
        budget=Steps(20),
        engine="kernel",
    )


@pytest.fixture
def hook_of_all_modules() -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    yield
    handle.remove()


def test_a_forward_of_ones_own_or_a_hook_of_all_is_for_torch(hook_of_all_modules: None) -> None:
    assert read_chain(network()) == "Sequential has hooks"


def test_what_only_looks_like_a_chain_is_for_torch() -> None:
    model = network()
    forward = model[0].forward
    model[0].forward = lambda x: 2 * forward(x)
    assert read_chain(model) == "Linear has a forward of its own"
    tied = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    tied[2].weight.data = tied[0].weight.data
    assert "uses a layer twice" in str(read_chain(tied))


def test_a_fleet_needs_a_network_for_each_replica() -> None:
    only = network()
    with pytest.raises(ValueError, match="a network for each replica, got the same one again"):
        fit_fleet(
            lambda seed: only, [Problem(X, Y, seed=s) for s in range(2)], "mse", budget=Steps(3)
        )


@pytest.mark.parametrize("metric", ["accuracy", "f1", "cross_entropy"])
def test_one_output_has_no_classes_to_compare(metric: str) -> None:
    with pytest.raises(
        ValueError, match=f"metrics='{metric}' compares the outputs of classes, got one output"
    ):
        fit(network(), X, Y, "mse", budget=Steps(3), validation=(X, Y), metrics=metric)


def test_rlp_leaves_autocast() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 1)), 0)
    with torch.autocast("cpu", torch.bfloat16):
        expected = float(RLPLoss()(model(X), Y, X).detach())
        found = fit(model, X, Y, RLP(60, 1), budget=Steps(1), optimizer=SGD(1e-12)).last("loss")
    assert found == pytest.approx(expected, rel=1e-6)


def moved(by: float) -> Pointwise:
    return Pointwise(lambda pred, target: (pred - target - by).square())


def rms(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.RMSprop(parameters, lr)


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        ((nn.Tanh, MSE(), Adam()), (nn.ReLU, MSE(), Adam()), "layers is"),
        ((nn.Tanh, MSE(), rms(1e-3)), (nn.Tanh, MSE(), rms(1e-1)), "optimizer"),
        ((nn.Tanh, moved(0.0), Adam()), (nn.Tanh, moved(10.0), Adam()), "objective.function"),
    ],
    ids=["layers", "optimizer", "loss"],
)
def test_the_checkpoint_of_another_run_is_refused(
    first: Any, second: Any, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.pt"

    def run(activation: Any, objective: Any, optimizer: Any) -> Any:
        return fit(
            network(activation),
            X,
            Y,
            objective,
            budget=Steps(9),
            optimizer=optimizer,
            checkpoint=path,
        )

    done = run(*first)
    assert run(*first).columns["loss"] == pytest.approx(done.columns["loss"], nan_ok=True)
    with pytest.raises(ValueError, match=f"must belong to this run, but it differs: .*{what}"):
        run(*second)


ELSEWHERE: dict[str, float] = {"lr": 1e-3}


def from_elsewhere(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, **ELSEWHERE)


@pytest.mark.parametrize("change", [{"lr": 0.1}, {"momentum": 0.9}, {"weight_decay": 0.1}], ids=str)
def test_settings_that_an_optimizer_function_takes_from_elsewhere_tell_runs_apart(
    change: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> Any:
        path = tmp_path / "run.pt"
        settings: dict[str, Any] = {"budget": Steps(9), "checkpoint": path}
        return fit(network(nn.Tanh), X, Y, MSE(), optimizer=from_elsewhere, **settings)

    assert repr(run().columns) == repr(run().columns)  # nan is nan
    for name, value in change.items():
        monkeypatch.setitem(ELSEWHERE, name, value)
    with pytest.raises(ValueError, match=f"differs: optimizer_settings is .*{next(iter(change))}"):
        run()


@pytest.mark.parametrize(
    "other",
    [None, 4, EarlyStopping("mse", 3, 0.5), EarlyStopping("mae", 3), EarlyStopping("mse", 3, restore_best=False)],
    ids=str,
)  # fmt: skip
def test_another_rule_of_stopping_is_another_run(other: Any, tmp_path: Path) -> None:
    def run(rule: Any) -> Any:
        return fit(
            network(nn.Tanh),
            X,
            Y,
            MSE(),
            budget=Steps(9),
            validation=(X, Y),
            metrics=("mse", "mae"),
            early_stopping=rule,
            checkpoint=tmp_path / "run.pt",
        )

    assert repr(run(3).columns) == repr(run(EarlyStopping("mse", 3)).columns)  # nan is nan
    with pytest.raises(ValueError, match=r"differs: early_stopping"):
        run(other)


def test_threads_do_not_disturb_each_others_weights() -> None:
    def trained(seed: int) -> Tensor:
        model = seeded(
            lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)), seed % 4
        )
        fit(model, X, Y, "mse", budget=Steps(5), seed=seed % 4)
        return model[0].weight.detach()

    alone = [trained(seed) for seed in range(4)]
    state = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        for seed, found in enumerate(pool.map(trained, range(60))):
            assert torch.equal(found, alone[seed % 4])
    assert torch.equal(torch.get_rng_state(), state)
