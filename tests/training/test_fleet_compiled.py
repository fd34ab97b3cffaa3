"""Compiled calls give what plain steps give; where nothing can be compiled, that is told or done without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.fleets import RLP, D, Gated, build, check_against_fit, convolutional, data, replicas
from torch import nn

from rlploss import Problem, RegressionNet, Steps, fit, fit_fleet


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


def test_a_missing_compiler_means_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    X, y = data(0)
    fit_fleet(build(), [Problem(X, y)], "mse", budget=Steps(200_000), callbacks=[lambda event: True])
    with pytest.raises(ValueError, match=r"compile=True is not possible here: no C\+\+ compiler"):
        fit_fleet(build(), [Problem(X, y)], "mse", budget=Steps(2), compile=True)


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
    from rlploss.training.grouping import _pays
    from rlploss.training.stacking import Architecture

    architecture = Architecture(RegressionNet(7), (7,))
    assert not _pays(architecture, 100, 30, 6_000)
    assert _pays(architecture, 100, 30, 200_000)
    assert not _pays(architecture, 100, 1, 20_000)


@pytest.mark.parametrize(
    ("model", "widths"),
    [
        (RegressionNet(7), [7, 32, 1]),
        (nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(4, 3, bias=False), nn.Identity(), nn.Tanh()), [4, 3]),
        (nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.ReLU()), None),  # two activations in a row
        (nn.Sequential(nn.Linear(4, 3), nn.GELU()), None),
        (nn.Sequential(nn.ReLU(), nn.Linear(4, 3)), None),
        (nn.Sequential(*[nn.Linear(4, 4)] * 2), None),  # one layer used twice
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), None),
        (Gated(), None),
    ],
)
def test_which_networks_are_chains(model: nn.Module, widths: list[int] | None) -> None:
    from rlploss.training.stacking import Architecture

    architecture = Architecture(model, (4,))
    assert (architecture.layers is None) == (widths is None)
    if widths is not None:
        assert architecture.widths == widths
