"""Optimisers as values: torch's Adam, AdamW and SGD, or a function of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from rlploss._checks import number, one_of
from rlploss._values import Value, positive, put

OptimizerFunction = Callable[[Iterable[nn.Parameter]], Optimizer]


class OptimizerValue(Value):
    """What Adam, AdamW and SGD share: checks, and the making of torch's optimiser."""

    lr: float
    weight_decay: float

    def __post_init__(self) -> None:
        put(self, "lr", positive("lr", self.lr))
        put(self, "weight_decay", number("weight_decay", self.weight_decay, minimum=0.0))

    def make(self, parameters: list[nn.Parameter]) -> Optimizer:
        """Torch's optimiser for these parameters, with its fused update where there is one."""
        # torch's fused SGD fails where a parameter has its first gradient later than others
        fused = parameters[0].device.type in ("cpu", "cuda", "mps") and not getattr(self, "momentum", 0.0)
        kind: Any = getattr(torch.optim, type(self).__name__)
        arguments = {name: value for name, value in self.to_json().items() if name != "kind"}
        return kind(parameters, **arguments, fused=fused)  # type: ignore[no-any-return]  # torch's own class


@dataclass(frozen=True, repr=False)
class Adam(OptimizerValue):
    """Adam with torch's other defaults; `weight_decay` is an L2 penalty: weight_decay/2·‖θ‖² is added to the loss."""

    lr: float = 1e-3
    weight_decay: float = 0.0


@dataclass(frozen=True, repr=False)
class AdamW(OptimizerValue):
    """Adam with decoupled weight decay, 0.01 by default as torch's own."""

    lr: float = 1e-3
    weight_decay: float = 0.01


@dataclass(frozen=True, repr=False)
class SGD(OptimizerValue):
    """Stochastic gradient descent, plain or with momentum, Nesterov's or not."""

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        put(self, "momentum", number("momentum", self.momentum, 0.0, 1.0))
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov=True needs momentum above 0, got 0.0; set momentum, or leave nesterov out")


NAMES: dict[str, type[OptimizerValue]] = {"adam": Adam, "adamw": AdamW}


def as_optimizer(value: object) -> OptimizerValue | OptimizerFunction:
    """Read an optimiser: a value, a name that stands for the value with its defaults, or a function."""
    if isinstance(value, OptimizerValue):
        return value
    if isinstance(value, str):
        return NAMES[one_of("optimizer", value, NAMES)]()
    if isinstance(value, type) and issubclass(value, OptimizerValue):
        raise TypeError(f"optimizer must be a value, got the class {value.__name__}; write {value.__name__}(...)")
    if not callable(value):
        raise TypeError(
            f"optimizer must be Adam(...), AdamW(...), SGD(...) or a function of the parameters, got {value!r}"
        )
    function: OptimizerFunction = value
    return function
