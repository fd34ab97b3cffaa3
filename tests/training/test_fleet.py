"""A fleet gives what `fit` gives, replica by replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.training.fleets import RLP, D, Gated, build, check_against_fit, convolutional, data, replicas
from torch import nn

from rlploss import Autoencoder, Epochs, LeNet5, MoonsNet, Problem, RegressionNet, Steps, fit, fit_fleet, seeded

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mse": ("mse", {"batch_size": 17}),
    "mse full batch": ("mse", {"batch_size": 60}),
    "mae": ("mae", {"batch_size": 17}),
    "huber": ("huber", {"batch_size": 17, "optimizer": "adamw", "weight_decay": 0.1}),
    "mse+mixup": ("mse+mixup", {"batch_size": 17}),
    "default": ("rlp", RLP),
    "released": ("rlp", {"preset": "released", **RLP}),
    "paper": ("rlp", {"preset": "paper", **RLP}),
    "draw each epoch": ("rlp", {"probe": "draw", "plan": "each-epoch", "draw_from": "outside", **RLP}),
    "expected": ("rlp", {"probe": "expected", "ridge": 0.1, **RLP}),
    "sum": ("rlp", {"probe": "sum", **RLP}),
    "3 subsets per step": ("rlp", {"subsets_per_step": 3, **RLP}),
    "quadratic form": ("rlp", {"subsets_per_step": "all", "subset_size": 50, "n_subsets": 90}),
    "complement": ("rlp", {"subset_size": 8, "n_subsets": 11}),
    "rlp+mixup": ("rlp+mixup", RLP),
    "rlp+mixup each epoch": ("rlp+mixup", {"plan": "each-epoch", **RLP}),
}


@pytest.mark.parametrize("case", CASES)
def test_fleet_equals_fit(case: str) -> None:
    objective, settings = CASES[case]
    check_against_fit(build(), replicas(), objective, budget=Steps(60), evaluate_every=Steps(25), lr=0.01, **settings)


def test_replicas_differ_in_rows_sizes_rates_and_budgets() -> None:
    problems = [
        Problem(*data(0, 60), validation=data(9, 30), seed=0, lr=0.02, subset_size=10, n_subsets=7),
        Problem(*data(1, 45), validation=data(8, 20), seed=1, weight_decay=0.3, budget=Steps(35), subset_size=14),
        Problem(*data(2, 80), seed=4, validation=data(7, 30), budget=Epochs(5), subset_size=17, ridge=0.2),
        Problem(*data(2, 80), seed=2, validation=data(7, 30), budget=Steps(200), subset_size=40),
    ]
    check_against_fit(build(), problems, "rlp", budget=Steps(60), evaluate_every=Steps(20), n_subsets=9, lr=0.01)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "sgd_nesterov"])
@pytest.mark.parametrize("shared", [True, False])
def test_every_optimiser_shared_or_not(optimizer: str, shared: bool) -> None:
    problems = replicas(2) if shared else [*replicas(1), Problem(*data(1), validation=data(101), seed=1, lr=0.03)]
    check_against_fit(
        build(),
        problems,
        "mse",
        budget=Epochs(6),
        batch_size=25,
        optimizer=optimizer,
        lr=0.01,
        weight_decay=0.2,
        schedule=None if shared else "cosine",
        clip_grad=0.1,
        **({"momentum": 0.8} if optimizer.startswith("sgd") else {}),
    )


def test_classes_and_a_network_with_two_hidden_layers() -> None:
    problems = []
    for seed in range(2):
        X, _ = data(seed, 50)
        labels = (X[:, 0] * X[:, 1] > 0).long()
        problems.append(Problem(X[:, :2], labels, validation=(X[:30, :2], labels[:30]), seed=seed))

    def network(output: str) -> Any:
        return lambda seed: seeded(lambda: MoonsNet(hidden=6, output=output), seed).double()

    common: dict[str, Any] = {"budget": Epochs(4), "metrics": ("accuracy", "f1", "cross_entropy"), "lr": 0.01}
    for objective in ("cross_entropy", "cross_entropy+mixup"):
        check_against_fit(network("logits"), problems, objective, batch_size=20, **common)
    check_against_fit(network("sigmoid"), problems, "rlp", subset_size=9, n_subsets=12, **common)
    check_against_fit(network("softmax"), problems, "mse", batch_size=20, **common)


def test_multiple_outputs_and_several_validation_shapes() -> None:
    problems = [Problem(*data(i, 50, 3), validation=data(50 + i, 20 + i, 3), seed=i) for i in range(3)]
    settings: dict[str, Any] = {"budget": Epochs(3), "metrics": ("mse", "mae", "rlp"), "lr": 0.01}
    check_against_fit(build(3), problems, "rlp", subset_size=12, n_subsets=9, **settings)
    check_against_fit(build(3), problems, "huber", batch_size=16, **settings)


def test_sample_weights() -> None:
    problems = []
    for seed in range(2):
        X, y = data(seed)
        weight = torch.rand(60, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
        problems.append(Problem(X, y, seed=seed, sample_weight=weight))
    for settings in ({"subset_size": 13, "n_subsets": 11}, {"subset_size": 8, "n_subsets": 11}):
        check_against_fit(build(), problems, "rlp", budget=Epochs(3), lr=0.01, **settings)
    check_against_fit(build(), problems, "mse", budget=Epochs(3), lr=0.01, batch_size=16)


def test_500_steps_agree_to_ten_digits() -> None:
    settings: dict[str, Any] = {"subset_size": 15, "n_subsets": 20, "budget": Steps(500), "evaluate_every": Steps(100)}
    check_against_fit(build(), replicas(3), "rlp", lr=1e-3, **settings)


def test_stopping_early_and_by_callback() -> None:
    seen: list[tuple[int, int]] = []

    def stop_first(event: Any) -> bool:
        seen.append((event.replica, event.step))
        network = event.model()
        assert isinstance(network, nn.Module)
        return event.replica == 0 and event.step >= 20

    settings: dict[str, Any] = {"budget": Steps(400), "evaluate_every": Steps(10), "lr": 0.05, "batch_size": 60}
    fleet = fit_fleet(build(), replicas(4), "mse", callbacks=[stop_first], early_stopping=3, **settings)
    assert fleet[0].stopped == "callback"
    assert fleet[0].last("step") == 20
    assert (0, 30) not in seen
    assert "early stopping" in {h.stopped for h in fleet}
    check_against_fit(build(), replicas(4), "mse", early_stopping=3, **settings)


@pytest.mark.parametrize("factory", [Gated, convolutional])
@pytest.mark.parametrize("stack", [True, False, "auto"])
def test_other_architectures_stacked_or_one_after_another(factory: Any, stack: Any) -> None:
    def make(seed: int) -> nn.Module:
        return seeded(factory, seed).double()

    check_against_fit(make, replicas(2), "rlp", budget=Steps(20), lr=0.01, stack=stack, **RLP)


@pytest.mark.parametrize("stack", [True, "auto"])
def test_the_papers_larger_networks(stack: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(12, 1, 32, 32, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (12,), generator=generator)
    pixels = torch.rand(30, 9, generator=generator, dtype=torch.float64)
    digits = [Problem(images, labels, seed=s, validation=(images, labels)) for s in range(2)]
    check_against_fit(
        lambda seed: seeded(LeNet5, seed).double(), digits, "cross_entropy", budget=Steps(3), batch_size=6, stack=stack
    )
    copies = [Problem(pixels, None, seed=s, validation=(pixels, None)) for s in range(2)]
    check_against_fit(
        lambda seed: seeded(lambda: Autoencoder(9, latent=3), seed).double(),
        copies,
        "rlp",
        budget=Steps(12),
        subset_size=20,
        n_subsets=6,
        optimizer="sgd",
        momentum=0.99,
        stack=stack,
    )


def test_single_precision_stays_close() -> None:
    problems = [Problem(X.float(), y.float(), seed=i) for i, (X, y) in enumerate(data(i) for i in range(2))]
    fleet = fit_fleet(lambda s: build()(s).float(), problems, "rlp", budget=Steps(200), lr=0.01, **RLP)
    for problem, ours in zip(problems, fleet, strict=True):
        alone = fit(
            build()(problem.seed).float(),
            problem.X,
            problem.y,
            "rlp",
            budget=Steps(200),
            lr=0.01,
            seed=problem.seed,
            **RLP,
        )
        np.testing.assert_allclose(ours["loss"], alone["loss"], rtol=0.02)


def test_mixed_objectives_share_a_fleet() -> None:
    X, y = data(0)
    problems = [Problem(X, y, objective="mse", batch_size=20), Problem(X, y, seed=3), Problem(X, y, objective="mae")]
    fleet = fit_fleet(build(), problems, "rlp", budget=Epochs(2), lr=0.01, **RLP)
    assert [h.settings["objective"] for h in fleet] == ["mse", "rlp", "mae"]
    alone = fit(build()(3), X, y, "rlp", budget=Epochs(2), lr=0.01, seed=3, **RLP)
    np.testing.assert_allclose(fleet[1]["loss"], alone["loss"], rtol=1e-9)


def test_more_replicas_than_one_stack_holds() -> None:
    fleet = fit_fleet(build(), replicas(300), "mse", budget=Steps(3), batch_size=20)
    for number in (0, 149, 150, 299):
        alone = fit(build()(number), *data(number), "mse", budget=Steps(3), batch_size=20, seed=number)
        np.testing.assert_allclose(fleet[number]["loss"], alone["loss"], rtol=1e-9)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.BatchNorm1d(8), r"BatchNorm1d \(1\) changes its running statistics"),
        (nn.Dropout(), r"Dropout \(1\) draws random numbers"),
    ],
)
def test_modules_that_cannot_be_stacked_are_refused_with_a_reason(layer: nn.Module, reason: str) -> None:
    def make(seed: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(D, 8), type(layer)(8) if isinstance(layer, nn.BatchNorm1d) else nn.Dropout(), nn.Linear(8, 1)
        ).double()

    with pytest.raises(ValueError, match=reason + ".*stack=False"):
        fit_fleet(make, replicas(2), "mse", budget=Steps(2))
    fleet = fit_fleet(make, replicas(2), "mse", budget=Steps(2), stack=False)
    assert [h.last("step") for h in fleet] == [2, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stack": "yes"}, "stack must be True, False or \"auto\", got 'yes'"),
        ({"objective": "rpl"}, 'objective must be one of .*did you mean "rlp"'),
        ({"optimizer": lambda p: None}, "fit_fleet takes an optimizer by name"),
        ({"on_divergence": "ignore"}, "on_divergence must be one of"),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], message: str) -> None:
    X, y = data(0)
    settings: dict[str, Any] = {"objective": "mse", "budget": Steps(2), **change}
    with pytest.raises((ValueError, TypeError), match=message):
        fit_fleet(build(), [Problem(X, y)], **settings)


def test_different_architectures_are_refused() -> None:
    def make(seed: int) -> nn.Module:
        return RegressionNet(D, hidden=4 + seed).double()

    with pytest.raises(ValueError, match=r"same architecture.*replica 1 differs"):
        fit_fleet(make, replicas(2), "mse", budget=Steps(2))


def test_an_empty_fleet() -> None:
    assert fit_fleet(build(), [], "mse", budget=Steps(2)) == []
