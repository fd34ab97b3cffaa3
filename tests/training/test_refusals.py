"""What `fit` refuses: every message names the rule, the value and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlploss import MoonsNet, RegressionNet, Steps, fit, seeded


def data(n: int = 80, d: int = 3) -> tuple[Tensor, Tensor]:
    X = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return X, torch.sin(X[:, 0]) + X[:, 1]


def network() -> nn.Module:
    return seeded(lambda: RegressionNet(3), 0)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"objective": "rpl"}, "objective must be one of .* got 'rpl'; did you mean \"rlp\""),
    ({"budget": 5}, r"budget must be Epochs\(n\) or Steps\(n\).*got 5"),
    ({"budget": (5, "step")}, 'the unit of budget must be one of "epochs", "steps"'),
    ({"budget": (0, "steps")}, r"Steps\(n\) must be at least 1, got 0"),
    ({"preset": "papr"}, 'preset must be one of .*did you mean "paper"'),
    ({"preset": "paper", "probe": "subset"}, "preset=\"paper\" sets probe='draw', got probe='subset'"),
    ({"objective": "rlp+mixup", "preset": "released-autoencoder"}, 'exists for objective "rlp", got "rlp\\+mixup"'),
    ({"objective": "mse", "preset": "paper"}, 'preset has no meaning for objective="mse"'),
    ({"objective": "mse", "subset_size": 5}, 'subset_size has no meaning for objective="mse", got 5'),
    ({"batch_size": 5}, 'batch_size has no meaning for objective="rlp"'),
    ({"mixup_alpha": 0.3}, 'mixup_alpha has no meaning for objective="rlp"'),
    ({"objective": "rlp+mixup", "mixup_alpha": 0.0}, "mixup_alpha must be above 0, got 0.0"),
    ({"subset_size": 81}, "subset_size must be at most the number of rows 80, got 81"),
    ({"subset_size": 80, "n_subsets": 2}, "n_subsets must be at most 1, the number of distinct subsets"),
    ({"n_subsets": 4, "subsets_per_step": 5}, "subsets_per_step must be at most n_subsets = 4, got 5"),
    ({"probe": "mean"}, "probe must be one of"),
    ({"objective": "rlp+mixup", "draw_from": "outside"}, 'draw_from="outside" has no meaning with mixup'),
    ({"plan": "never"}, "plan must be one of"),
    ({"method": "random"}, "method must be one of"),
    ({"optimizer": "adm"}, 'optimizer must be one of .*did you mean "adam"'),
    ({"lr": 0}, "lr must be above 0, got 0.0"),
    ({"lr": "fast"}, "lr must be a number, got 'fast'"),
    ({"momentum": 0.9}, 'momentum has no meaning for optimizer="adam"'),
    ({"optimizer": "sgd_nesterov", "momentum": 0.0}, "needs momentum above 0"),
    ({"optimizer": lambda p: None}, "an optimizer factory must return a torch Optimizer, got NoneType"),
    ({"optimizer": torch.optim.SGD, "lr": 0.1}, "lr belongs in the optimizer factory"),
    ({"schedule": "cos"}, 'schedule must be one of .*did you mean "cosine"'),
    ({"clip_grad": -1.0}, "clip_grad must be above 0"),
    ({"seed": -1}, "seed must be at least 0"),
    ({"metrics": "mse"}, "metrics are measured on validation rows, got none"),
    ({"early_stopping": 3}, "early_stopping needs validation rows"),
    ({"evaluate_every": 10}, "evaluate_every must be Epochs"),
    ({"on_divergence": "hide"}, "on_divergence must be one of"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_settings_are_named(change: dict[str, Any], message: str) -> None:
    X, y = data()
    settings: dict[str, Any] = {"objective": "rlp", "budget": Steps(2), **change}
    with pytest.raises((ValueError, TypeError), match=message):
        fit(network(), X, y, **settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X, y: (X, y[:-1]), "X and y must have the same number of rows, got 80 and 79"),
        (lambda X, y: (X[:0], y[:0]), "X must have at least one row"),
        (lambda X, y: (X[:, :2], y), r"the model must take rows of shape \(2,\), got: "),
        (lambda X, y: (X, torch.stack([y, y], 1)), "as many numbers per row as y has, got 1 and 2"),
        (lambda X, y: (X, (y > 0).long()), "class numbers, but the model has one output"),
        (lambda X, y: (torch.where(X > 2, torch.nan, X), y), "X must be finite, got nan"),
        (lambda X, y: (X, y / 0), "y must be finite, got"),
        (lambda X, y: (np.array([["a"]] * 80), y), "X must be a tensor or array of numbers"),
    ],
)
def test_bad_data_are_named(make: Callable[[Tensor, Tensor], tuple[Any, Any]], message: str) -> None:
    X, y = make(*data())
    with pytest.raises((ValueError, TypeError), match=message):
        fit(network(), X, y, "mse", budget=Steps(1))


def test_bad_classes_are_named() -> None:
    X, _ = data(40, 2)
    with pytest.raises(ValueError, match="class numbers from 0 to 1, one per model output, got 2"):
        fit(MoonsNet(), X, torch.arange(40) % 3, "cross_entropy", budget=Steps(1))
    with pytest.raises(ValueError, match=r"class numbers of shape \(N,\), got \(40, 2\)"):
        fit(MoonsNet(), X, torch.zeros(40, 2, dtype=torch.long), "rlp", budget=Steps(1))
    with pytest.raises(ValueError, match="cross_entropy needs class numbers, or one probability per class"):
        fit(MoonsNet(), X, X[:, 0], "cross_entropy", budget=Steps(1))
    with pytest.raises(ValueError, match="validation X must be finite"):
        fit(MoonsNet(), X, X, "mse", budget=Steps(1), validation=(X / 0, X))


def test_models_without_parameters_or_in_half_precision() -> None:
    X, y = data()
    frozen = network()
    for p in frozen.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="must have parameters to train"):
        fit(frozen, X, y, "mse", budget=Steps(1))
    with pytest.raises(TypeError, match=r"must be float32 or float64, got torch\.bfloat16"):
        fit(network().bfloat16(), X, y, "mse", budget=Steps(1))
