"""A fleet gives what `fit` gives, replica by replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlploss import (
    Autoencoder,
    Epochs,
    LeNet5,
    MoonsNet,
    Problem,
    RegressionNet,
    Steps,
    fit,
    fit_fleet,
    seeded,
)

D = 4


def data(seed: int, n: int = 60, outputs: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, D, generator=generator, dtype=torch.float64)
    y = torch.sin(X @ torch.randn(D, outputs, generator=generator, dtype=torch.float64))
    return X, y + 0.1 * torch.randn(n, outputs, generator=generator, dtype=torch.float64)


def build(outputs: int = 1) -> Any:
    return lambda seed: seeded(lambda: RegressionNet(D, outputs, hidden=8), seed).double()


def check_against_fit(
    make: Any, problems: list[Problem], objective: str, tolerance: float = 1e-10, **settings: Any
) -> None:
    """Run the fleet and each replica alone, and compare curves and weights."""
    own = ("stack", "compile")
    fleet = fit_fleet(make, problems, objective, **settings)
    alone = {k: v for k, v in settings.items() if k not in own}
    names = (
        "budget",
        "lr",
        "weight_decay",
        "subset_size",
        "n_subsets",
        "batch_size",
        "mixup_alpha",
        "ridge",
        "momentum",
    )
    for number, (problem, ours) in enumerate(zip(problems, fleet, strict=True)):
        model = make(problem.seed)
        mine = {**alone, **{n: getattr(problem, n) for n in names if getattr(problem, n) is not None}}
        theirs = fit(
            model,
            problem.X,
            problem.y,
            objective,
            seed=problem.seed,
            validation=problem.validation,
            sample_weight=problem.sample_weight,
            **mine,
        )
        assert list(ours.columns) == list(theirs.columns), number
        for name in ours.columns:
            if name != "seconds":
                np.testing.assert_allclose(
                    ours[name], theirs[name], rtol=1e-8, atol=tolerance, err_msg=f"{number} {name}"
                )
        assert ours.model is not None
        assert (ours.stopped, ours.best_step) == (theirs.stopped, theirs.best_step)
        for a, b in zip(ours.model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def replicas(n: int = 3, **settings: Any) -> list[Problem]:
    return [Problem(*data(i), validation=data(100 + i), seed=i, **settings) for i in range(n)]


RLP = {"subset_size": 13, "n_subsets": 11}
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
    check_against_fit(
        build(), replicas(), objective, budget=Steps(60), evaluate_every=Steps(25), lr=0.01, **settings
    )


def test_replicas_differ_in_rows_sizes_rates_and_budgets() -> None:
    problems = [
        Problem(*data(0, 60), validation=data(9, 30), seed=0, lr=0.02, subset_size=10, n_subsets=7),
        Problem(
            *data(1, 45), validation=data(8, 20), seed=1, weight_decay=0.3, budget=Steps(35), subset_size=14
        ),
        Problem(*data(2, 80), seed=4, validation=data(7, 30), budget=Epochs(5), subset_size=17, ridge=0.2),
        Problem(*data(2, 80), seed=2, validation=data(7, 30), budget=Steps(200), subset_size=40),
    ]
    check_against_fit(
        build(), problems, "rlp", budget=Steps(60), evaluate_every=Steps(20), n_subsets=9, lr=0.01
    )


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "sgd_nesterov"])
@pytest.mark.parametrize("shared", [True, False])
def test_every_optimiser_shared_or_not(optimizer: str, shared: bool) -> None:
    problems = (
        replicas(2) if shared else [*replicas(1), Problem(*data(1), validation=data(101), seed=1, lr=0.03)]
    )
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
    settings: dict[str, Any] = {
        "subset_size": 15,
        "n_subsets": 20,
        "budget": Steps(500),
        "evaluate_every": Steps(100),
    }
    check_against_fit(build(), replicas(3), "rlp", lr=1e-3, **settings)


@pytest.mark.parametrize("objective", ["rlp", "mse"])
def test_compiled_equals_fit(objective: str) -> None:
    # 7 and 17 steps between evaluations: calls of five steps must also do less than five
    sizes: dict[str, Any] = {"subset_size": 13, "n_subsets": 11} if objective == "rlp" else {"batch_size": 17}
    problems = [*replicas(2), Problem(*data(2), seed=2, validation=data(102), budget=Steps(41), lr=0.02)]
    check_against_fit(
        build(),
        problems,
        objective,
        budget=Steps(75),
        evaluate_every=Steps(17),
        weight_decay=0.1,
        lr=0.01,
        clip_grad=1.0,
        schedule="linear",
        compile=True,
        **sizes,
    )


def test_stopping_early_and_by_callback() -> None:
    seen: list[tuple[int, int]] = []

    def stop_first(event: Any) -> bool:
        seen.append((event.replica, event.step))
        network = event.model()
        assert isinstance(network, nn.Module)
        return event.replica == 0 and event.step >= 20

    settings: dict[str, Any] = {
        "budget": Steps(400),
        "evaluate_every": Steps(10),
        "lr": 0.05,
        "batch_size": 60,
    }
    fleet = fit_fleet(build(), replicas(4), "mse", callbacks=[stop_first], early_stopping=3, **settings)
    assert fleet[0].stopped == "callback"
    assert fleet[0].last("step") == 20
    assert (0, 30) not in seen
    assert "early stopping" in {h.stopped for h in fleet}
    check_against_fit(build(), replicas(4), "mse", early_stopping=3, **settings)


@pytest.mark.parametrize("compile", [False, True])
def test_divergence_ends_one_replica_and_not_the_others(compile: bool) -> None:
    problems = [*replicas(2, clip_grad=1.0), Problem(*data(2), seed=2, validation=data(102), lr=1e250)]
    settings: dict[str, Any] = {"budget": Steps(75), "lr": 0.01, "batch_size": 17, "schedule": "linear"}
    fleet = fit_fleet(build(), problems, "mse", on_divergence="record", compile=compile, **settings)
    assert [h.stopped for h in fleet] == ["budget", "budget", "diverged"]
    alone = fit(build()(2), *data(2), "mse", seed=2, on_divergence="record", **{**settings, "lr": 1e250})
    # rounding decides whether the overflow is inf or nan, not where it is
    assert fleet[2].message.replace("inf", "nan") == f"replica 2: {alone.message}".replace("inf", "nan")
    assert fleet[2].model is not None
    assert alone.model is not None
    for a, b in zip(fleet[2].model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
        assert torch.isfinite(a).all()
    if not compile:
        with pytest.raises(RuntimeError, match="replica 2: the loss became"):
            fit_fleet(build(), problems, "mse", **settings)


class Gated(nn.Module):
    """Not a chain: goes the general way."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, 6), nn.Linear(D, 6)
        self.out = nn.Linear(6, 1)
        self.register_buffer("scale", torch.rand(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x) * torch.sigmoid(self.b(x))) * self.scale


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(3, 1)
    )


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
        lambda seed: seeded(LeNet5, seed).double(),
        digits,
        "cross_entropy",
        budget=Steps(3),
        batch_size=6,
        stack=stack,
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
    problems = [
        Problem(X, y, objective="mse", batch_size=20),
        Problem(X, y, seed=3),
        Problem(X, y, objective="mae"),
    ]
    fleet = fit_fleet(build(), problems, "rlp", budget=Epochs(2), lr=0.01, **RLP)
    assert [h.settings["objective"] for h in fleet] == ["mse", "rlp", "mae"]
    alone = fit(build()(3), X, y, "rlp", budget=Epochs(2), lr=0.01, seed=3, **RLP)
    np.testing.assert_allclose(fleet[1]["loss"], alone["loss"], rtol=1e-9)


def test_more_replicas_than_one_stack_holds() -> None:
    fleet = fit_fleet(build(), replicas(70), "mse", budget=Steps(3), batch_size=20)
    for number in (0, 63, 69):
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
            nn.Linear(D, 8),
            type(layer)(8) if isinstance(layer, nn.BatchNorm1d) else nn.Dropout(),
            nn.Linear(8, 1),
        ).double()

    with pytest.raises(ValueError, match=reason + ".*stack=False"):
        fit_fleet(make, replicas(2), "mse", budget=Steps(2))
    fleet = fit_fleet(make, replicas(2), "mse", budget=Steps(2), stack=False)
    assert [h.last("step") for h in fleet] == [2, 2]


def test_a_missing_compiler_means_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    X, y = data(0)
    fit_fleet(build(), [Problem(X, y)], "mse", budget=Steps(200_000), callbacks=[lambda event: True])
    with pytest.raises(ValueError, match=r"compile=True is not possible here: no C\+\+ compiler"):
        fit_fleet(build(), [Problem(X, y)], "mse", budget=Steps(2), compile=True)


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


# One network in compiled calls


def test_fit_compiled_equals_fit_plain(tmp_path: Path) -> None:
    X, y = data(0)
    settings: dict[str, Any] = {"budget": Steps(64), "validation": data(1), "lr": 0.01, "seed": 4, **RLP}
    plain, compiled = build()(0), build()(0)
    first = fit(plain, X, y, "rlp", compile=False, **settings)
    path = tmp_path / "run.pt"
    second = fit(compiled, X, y, "rlp", compile=True, checkpoint=path, **settings)
    assert second.model is compiled
    for name in first.columns:
        if name != "seconds":
            np.testing.assert_allclose(first[name], second[name], rtol=1e-9, err_msg=name)
    for a, b in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    with pytest.raises(ValueError, match="path is 'compiled' in the file and 'plain' here"):
        fit(build()(0), X, y, "rlp", compile=False, checkpoint=path, **settings)


@pytest.mark.parametrize(
    ("make", "settings", "reason"),
    [
        (lambda: Gated(), {}, "only networks made of torch's own modules"),
        (convolutional, {}, "only chains of linear layers"),
        (lambda: nn.Sequential(nn.Linear(D, 1), nn.Dropout()), {}, "draws random numbers"),
        (lambda: nn.Linear(D, 1), {"optimizer": torch.optim.Adagrad}, "the optimizer is a function"),
        (lambda: nn.Linear(D, 1), {"preset": "paper"}, "not scored by kept factors"),
    ],
)
def test_what_fit_cannot_compile_is_told(make: Any, settings: dict[str, Any], reason: str) -> None:
    X, y = data(0)
    with pytest.raises(ValueError, match=f"compile=True is not possible here: .*{reason}"):
        fit(make().double(), X, y, "rlp", budget=Steps(2), compile=True, **settings, **RLP)


def test_compiling_is_predicted_to_pay_for_long_runs_only() -> None:
    from rlploss.grouping import _pays
    from rlploss.stacking import Architecture

    architecture = Architecture(RegressionNet(7), (7,))
    assert not _pays(architecture, 100, 30, 6_000)
    assert _pays(architecture, 100, 30, 200_000)
    assert not _pays(architecture, 100, 1, 20_000)


@pytest.mark.parametrize(
    ("model", "widths"),
    [
        (RegressionNet(7), [7, 32, 1]),
        (
            nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(4, 3, bias=False), nn.Identity(), nn.Tanh()),
            [4, 3],
        ),
        (nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.ReLU()), None),  # two activations in a row
        (nn.Sequential(nn.Linear(4, 3), nn.GELU()), None),
        (nn.Sequential(nn.ReLU(), nn.Linear(4, 3)), None),
        (nn.Sequential(*[nn.Linear(4, 4)] * 2), None),  # one layer used twice
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), None),
        (Gated(), None),
    ],
)
def test_which_networks_are_chains(model: nn.Module, widths: list[int] | None) -> None:
    from rlploss.stacking import Architecture

    architecture = Architecture(model, (4,))
    assert (architecture.layers is None) == (widths is None)
    if widths is not None:
        assert architecture.widths == widths
