"""What `fit` refuses: every message names the rule, the value and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rlploss import (
    MSE,
    RLP,
    SGD,
    Adam,
    BatchLoss,
    EarlyStopping,
    Epochs,
    MoonsNet,
    Pointwise,
    RegressionNet,
    RLPLoss,
    Steps,
    fit,
    seeded,
)


def data(n: int = 80, d: int = 3) -> tuple[Tensor, Tensor]:
    X = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return X, torch.sin(X[:, 0]) + X[:, 1]


def network() -> nn.Module:
    return seeded(lambda: RegressionNet(3), 0)


def step(pred: Tensor, target: Tensor, features: Tensor) -> float:
    return 0.0


def no_gradient(pred: Tensor, target: Tensor) -> Tensor:
    return (pred.detach() - target).square()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"objective": "rpl"}, "objective must be one of .* got 'rpl'; did you mean \"rlp\""),
    ({"objective": "rlp+mixup"}, "objective must be one of"),
    ({"validation": data()[0]}, r"validation must be a tuple \(X, y\), got Tensor; write \(X, y\)"),
    (
        {"validation": data(), "metrics": ["mse", "mse"]},
        "metrics must have names of their own, got 'mse' again; rename",
    ),
    (
        {"validation": data(), "metrics": step},
        "metrics must have names of their own, got 'step' again",
    ),
    (
        {"validation": data(), "metrics": [], "early_stopping": 3},
        "early_stopping needs validation rows and a metric, got none",
    ),
    ({"objective": RLP}, r"objective must be a value, got the class RLP; write RLP\(\.\.\.\)"),
    (
        {"objective": nn.MSELoss()},
        r"got MSELoss\(\); wrap a function of your own in Pointwise or BatchLoss",
    ),
    (
        {"objective": None},
        r"objective must be a value such as RLP\(\) or MSE\(\), or its name, got None",
    ),
    ({"budget": 5}, r"budget must be Epochs\(n\) or Steps\(n\).*got 5"),
    (
        {"budget": (5, "steps")},
        r"budget must be Epochs\(n\) or Steps\(n\), .*states which, got \(5, 'steps'\)",
    ),
    ({"objective": RLP(81)}, "subset_size must be at most n_rows = 80, got 81"),
    ({"objective": RLP(80, 2)}, "n_subsets must be at most 1, the number of different subsets"),
    (
        {"objective": RLP(n_subsets=4, subsets_per_step=5)},
        "subsets_per_step must be at most n_subsets = 4, got 5",
    ),
    (
        {"objective": RLP(80, 1, probe="draw", draw_from="outside")},
        'draw_from="outside" needs rows outside the subset',
    ),
    (
        {"objective": Pointwise(lambda a, b: (a - b).mean())},
        r"one value per row \(80,\) or per output \(80, 1\), got \(\)",
    ),
    (
        {"objective": Pointwise(lambda a, b: 1.0)},
        "one value per row .*got float; leave out the mean",
    ),
    ({"objective": Pointwise(no_gradient)}, "must depend on the predictions by torch operations"),
    (
        {"objective": BatchLoss(lambda a, b, x: (a - b).square())},
        r"must return one number, got \(80, 1\); take the mean",
    ),
    (
        {"objective": BatchLoss(RLPLoss()), "sample_weight": np.arange(1, 81)},
        "sample_weight has no meaning for BatchLoss",
    ),
    (
        {"objective": RLP(mixup=0.3), "sample_weight": np.arange(1, 81)},
        "sample_weight has no meaning for mixup",
    ),
    (
        {"objective": RLP.released(float32_cutoff=True), "sample_weight": np.arange(1, 81)},
        "sample_weight has no meaning for float32_cutoff=True",
    ),
    ({"optimizer": "adm"}, 'optimizer must be one of .*did you mean "adam"'),
    ({"optimizer": "sgd"}, "optimizer must be one of"),  # without a rate of its own there is none
    ({"optimizer": Adam}, r"optimizer must be a value, got the class Adam; write Adam\(...\)"),
    (
        {"optimizer": 3},
        (
            r"optimizer must be Adam\(...\), AdamW\(...\), SGD\(...\) or a function of the"
            r" parameters, got 3"
        ),
    ),
    (
        {"optimizer": lambda p: None},
        "an optimizer function must return a torch Optimizer .*, got NoneType",
    ),
    (
        {"optimizer": lambda p: torch.optim.LBFGS(p)},
        r"whose step needs no closure, got LBFGS; return Adam or SGD, or write a loop with RLPLoss",
    ),
    ({"schedule": "cos"}, 'schedule must be one of .*did you mean "cosine"'),
    (
        {"schedule": torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1)], 1.0), 5)},
        r"or a function \(step, total\) -> factor of lr, got <.*StepLR object",
    ),
    (
        {"schedule": torch.optim.lr_scheduler.StepLR},
        r"or a function \(step, total\) -> factor of lr, got <class '.*StepLR'>",
    ),
    (
        {"schedule": lambda step, total: 1.0 if step < 1 else None},
        "must return a finite factor of lr, got None at step 1; return 1.0 where lr is to stay",
    ),
    ({"schedule": lambda step, total: float("nan")}, "finite factor of lr, got nan at step 0"),
    ({"clip_grad": -1.0}, "clip_grad must be above 0"),
    ({"seed": -1}, "seed must be at least 0"),
    ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
    ({"metrics": "mse"}, "metrics are measured on validation rows, got none"),
    ({"metrics": "msee", "validation": data(9)}, 'metrics must be one of .*did you mean "mse"'),
    ({"early_stopping": 3}, "early_stopping needs validation rows"),
    ({"early_stopping": 0, "validation": data(9)}, "early_stopping must be at least 1, got 0"),
    (
        {"early_stopping": EarlyStopping("mae"), "validation": data(9)},
        'the metric of early_stopping must be one of "mse"',
    ),
    ({"evaluate_every": 10}, "evaluate_every must be Epochs"),
    ({"checkpoint_every": Steps(3)}, "checkpoint_every needs a place to write to"),
    ({"on_divergence": "hide"}, "on_divergence must be one of"),
    ({"engine": "gpu"}, 'engine must be one of "auto", "kernel", "torch"'),
    (
        {"device": "cuda"},
        "device must be one that torch can use here, got 'cuda' and no GPU; leave it out",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_settings_are_named(change: dict[str, Any], message: str) -> None:
    if change.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    X, y = data()
    settings: dict[str, Any] = {"objective": "rlp", "budget": Steps(2), **change}
    with pytest.raises((ValueError, TypeError), match=message):
        fit(network(), X, y, **settings)


@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.parametrize("function", [lambda a, b: (a - b).mean(), no_gradient])
def test_a_bad_loss_leaves_the_model_whole(function: Any, engine: str) -> None:
    X, y = data()
    model = network()
    with pytest.raises(ValueError, match=r"Pointwise function|torch operations"):
        fit(model, X, y, Pointwise(function), budget=Steps(2), engine=engine)
    for p in model.parameters():
        assert p.untyped_storage().nbytes() == p.numel() * 4
        assert p.is_contiguous()
    assert torch.equal(model.fc1.weight, network().fc1.weight)


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.1},
        {"batch_size": 5},
        {"subset_size": 5},
        {"preset": "paper"},
        {"mixup_alpha": 0.3},
        {"momentum": 0.9},
        {"compile": True},
        {"stack": True},
    ],
)
def test_what_belongs_to_a_value_is_no_argument_of_fit(change: dict[str, Any]) -> None:
    X, y = data()
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        fit(network(), X, y, MSE(), budget=Steps(1), **change)


def test_a_budget_is_needed() -> None:
    X, y = data()
    with pytest.raises(TypeError, match="budget"):
        fit(network(), X, y, MSE())


def test_a_generator_of_a_batch_loss_beside_a_checkpoint(tmp_path: Any) -> None:
    X, y = data()
    drawing = BatchLoss(RLPLoss(probe="draw", generator=torch.Generator()))
    with pytest.raises(ValueError, match="a checkpoint cannot keep the generator of a BatchLoss"):
        fit(network(), X, y, drawing, budget=Steps(1), checkpoint=tmp_path / "run.pt")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X, y: (X, y[:-1]), "X and y must have the same number of rows, got 80 and 79"),
        (lambda X, y: (X, y[0]), "X and y must have the same number of rows, got 80 and a scalar"),
        (lambda X, y: (X[:0], y[:0]), "X must have at least one row"),
        (lambda X, y: (X[:, :2], y), r"the model must take rows of shape \(2,\), got: "),
        (lambda X, y: (X, torch.stack([y, y], 1)), "as many numbers per row as y has, got 1 and 2"),
        (lambda X, y: (X, (y > 0).long()), "class numbers, but the model has one output"),
        (lambda X, y: (torch.where(X > 2, torch.nan, X), y), "X must be finite, got nan"),
        (lambda X, y: (X, y / 0), "y must be finite, got"),
        (lambda X, y: (np.array([["a"]] * 80), y), "X must be a tensor or array of numbers"),
        (lambda X, y: (X.to(torch.complex64), y), "X must be real, got torch.complex64"),
        (
            lambda X, y: (DataLoader(TensorDataset(X, y)), None),
            "^X must be a tensor or an array, got a DataLoader; .* write a loop with RLPLoss",
        ),
        (
            lambda X, y: (TensorDataset(X, y), None),
            r"^X must be a tensor or an array, got a TensorDataset; .* \(np\.memmap\)",
        ),
        (
            lambda X, y: ({"a": X, "b": X}, y),
            "^X must be a tensor or an array, got a dict; put its rows into one tensor",
        ),
    ],
)
def test_bad_data_are_named(
    make: Callable[[Tensor, Tensor], tuple[Any, Any]], message: str
) -> None:
    X, y = make(*data())
    with pytest.raises((ValueError, TypeError), match=message):
        fit(network(), X, y, "mse", budget=Steps(1))


def test_a_loader_as_validation_is_named() -> None:
    X, y = data()
    with pytest.raises(TypeError, match="validation X must be a tensor or an array, got a"):
        fit(
            network(),
            X,
            y,
            "mse",
            budget=Steps(1),
            validation=(DataLoader(TensorDataset(X, y)), None),
        )


def test_bad_classes_are_named() -> None:
    X, _ = data(40, 2)
    with pytest.raises(ValueError, match="class numbers from 0 to 1, one per model output, got 2"):
        fit(MoonsNet(), X, torch.arange(40) % 3, "cross_entropy", budget=Steps(1))
    with pytest.raises(ValueError, match=r"class numbers of shape \(N,\), got \(40, 2\)"):
        fit(MoonsNet(), X, torch.zeros(40, 2, dtype=torch.long), "rlp", budget=Steps(1))
    with pytest.raises(
        ValueError, match="cross_entropy needs class numbers, or one probability per class"
    ):
        fit(MoonsNet(), X, X[:, 0], "cross_entropy", budget=Steps(1))
    with pytest.raises(ValueError, match="validation X must be finite"):
        fit(MoonsNet(), X, X, "mse", budget=Steps(1), validation=(X / 0, X))


def test_models_that_cannot_be_trained() -> None:
    X, y = data()
    frozen = network()
    for p in frozen.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="must have parameters to train"):
        fit(frozen, X, y, "mse", budget=Steps(1))
    with pytest.raises(TypeError, match=r"must be float32 or float64, got torch\.bfloat16"):
        fit(network().bfloat16(), X, y, "mse", budget=Steps(1))
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got type"):
        fit(RegressionNet, X, y, "mse", budget=Steps(1))
    with pytest.raises(ValueError, match="one row of output per row of input"):
        fit(
            nn.Sequential(nn.Linear(3, 1), nn.Flatten(0), nn.Unflatten(0, (1, -1))),
            X,
            y,
            "mse",
            budget=Steps(1),
        )


def test_epochs_and_rates_are_checked_when_the_values_are_made() -> None:
    with pytest.raises(ValueError, match=r"Epochs\(n\) must be at least 1, got -3"):
        Epochs(-3)
    with pytest.raises(ValueError, match=r"lr must be above 0, got 0\.0"):
        Adam(0)
    with pytest.raises(TypeError, match="lr must be a number, got 'fast'"):
        Adam("fast")
    with pytest.raises(ValueError, match="nesterov=True needs momentum above 0"):
        SGD(0.1, nesterov=True)
