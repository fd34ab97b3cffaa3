"""The optimiser of one network: torch's own, fused, and called with as little as possible around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from rlploss.training.optimizers import OptimizerValue
from rlploss.training.recipes import Recipe


def make_optimizer(recipe: Recipe, model: nn.Module) -> Optimizer:
    """The optimiser of a run, with torch's fused update where there is one."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if isinstance(recipe.how, OptimizerValue):
        return recipe.how.make(parameters)
    made = recipe.how(parameters)
    if not isinstance(made, Optimizer):
        raise TypeError(f"an optimizer function must return a torch Optimizer, got {type(made).__name__}")
    return made


def made(optimizer: object, flat: Tensor) -> Optimizer:
    """The optimiser of a stack."""
    assert isinstance(optimizer, OptimizerValue)
    return optimizer.make([flat])  # type: ignore[list-item]  # a parameter, as torch sees it


class Stepper:
    """`optimizer.step()`, by torch's functional form where the optimiser is one of ours.

    `Optimizer.step` collects its tensors and checks its hooks anew in every step, which takes longer than the update
    of a small network. Here the lists are kept; the state stays the optimiser's own.
    """

    def __init__(self, optimizer: Optimizer, recipe: Recipe) -> None:
        self._optimizer = optimizer
        self._direct = recipe.lr is not None  # None: a factory made it
        self._call: Callable[[list[Tensor], float], None] | None = None
        self._parameters: list[Tensor] = []

    def step(self) -> None:
        """Update the parameters from their gradients."""
        if self._call is None:
            self._optimizer.step()  # makes the state
            if self._direct:
                self._keep()
            return
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if len(gradients) < len(self._parameters):  # a parameter that this step did not use
            self._optimizer.step()
            return
        with torch.no_grad():
            self._call(gradients, self._optimizer.param_groups[0]["lr"])

    def forget(self) -> None:
        """After the optimiser's state was replaced."""
        self._call = None

    def _keep(self) -> None:
        group = self._optimizer.param_groups[0]
        parameters = group["params"]
        state = [self._optimizer.state[p] for p in parameters]
        if not group.get("fused") or any(p not in self._optimizer.state for p in parameters):
            return
        self._parameters = parameters
        if isinstance(self._optimizer, SGD):
            self._call = _sgd(parameters, state, group)
        elif all(s for s in state):
            self._call = _adam(parameters, state, group, adamw if isinstance(self._optimizer, AdamW) else adam)


def _adam(
    parameters: list[Tensor], state: list[dict[str, Tensor]], group: dict[str, Any], update: Any
) -> Callable[[list[Tensor], float], None]:
    first, second = [s["exp_avg"] for s in state], [s["exp_avg_sq"] for s in state]
    steps = [s["step"] for s in state]
    beta1, beta2 = group["betas"]
    decay, eps = group["weight_decay"], group["eps"]

    def call(gradients: list[Tensor], lr: float) -> None:
        update(
            parameters,
            gradients,
            first,
            second,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            weight_decay=decay,
            eps=eps,
            maximize=False,
        )

    return call


def _sgd(
    parameters: list[Tensor], state: list[dict[str, Tensor]], group: dict[str, Any]
) -> Callable[[list[Tensor], float], None]:
    momentum, decay, nesterov = group["momentum"], group["weight_decay"], group["nesterov"]
    buffers: list[Tensor | None] = [s.get("momentum_buffer") for s in state]

    def call(gradients: list[Tensor], lr: float) -> None:
        sgd(
            parameters,
            gradients,
            buffers,
            fused=True,
            weight_decay=decay,
            momentum=momentum,
            lr=lr,
            dampening=0.0,
            nesterov=nesterov,
            maximize=False,
        )

    return call
