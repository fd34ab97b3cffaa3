"""What an engine is, and `ModuleEngine`: any module, any device, any optimiser, any number of processes."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from rlploss import distributed
from rlploss.loss.quadratic import projected_value, quadratic_value, without_autocast
from rlploss.training.feed import Feed, Window
from rlploss.training.job import Job
from rlploss.training.objectives import RLP, BatchLoss, Objective, OnBatches
from rlploss.training.rows import flat


@dataclass(frozen=True)
class Outcome:
    """How a stretch of steps went."""

    steps: int
    seconds: float
    bad: float | None = None  # the value that was not finite, if there was one; its step was not taken


class Engine(ABC):
    """Takes steps: the network's weights, and the state of its optimiser, are the engine's."""

    name: str
    feed: Feed
    total = 0.0  # the sum of losses since the loop set it to zero: its bits must not depend on how a run is cut
    stopping = False  # asks `run` to come back soon
    settings: Sequence[dict[str, Any]] = ()  # of the groups of torch's optimiser
    in_pool = False  # whether `run` is nothing but compiled calls; anyone's own loss runs in the calling thread

    @abstractmethod
    def run(self, window: Window, deadline: float) -> Outcome:
        """Take the steps of a window, fewer if the deadline passes; nothing that is not finite reaches the weights."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state, for checkpoints and for training that goes on."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with such a state, and with the settings of this job."""

    def end(self) -> None:
        """Let go of what can be made again."""
        self.feed.release()


class ModuleEngine(Engine):
    """One step at a time, by torch."""

    name = "torch"

    def __init__(self, job: Job) -> None:
        self.job, self.share = job, distributed.current()
        if self.share.world > 1:
            _check_for_processes(job.model)
        self.feed = Feed(job)
        self.optimizer = job.optimizer([p for p in job.model.parameters() if p.requires_grad])
        if not isinstance(self.optimizer, Optimizer):
            raise TypeError(f"an optimizer function must return a torch Optimizer, got {type(self.optimizer).__name__}")
        groups = self.optimizer.param_groups
        self._parameters = [p for group in groups for p in group["params"]]
        self.settings = [{name: group[name] for name in group if name != "params"} for group in groups]

    @torch.enable_grad()
    def run(self, window: Window, deadline: float) -> Outcome:
        job, model, parameters = self.job, self.job.model, self._parameters
        factors = job.rate_factors(window.first, window.last)
        before = [parameter.detach().clone() for parameter in parameters]
        started, taken, number, last = time.perf_counter(), 0, 0.0, 0.0
        torch.clear_autocast_cache()  # what an evaluation has left there has no gradient
        for i in range(window.last - window.first):
            if job.schedule is not None:
                for group, own in zip(self.optimizer.param_groups, self.settings, strict=True):
                    group["lr"] = own["lr"] * float(factors[i])
            inputs, target = window.inputs(i)
            for parameter in parameters:
                parameter.grad = None
            if inputs.shape[0]:
                value = score(job.objective, window, i, model(inputs).reshape(inputs.shape[0], -1), target)
                torch.autograd.backward(value)
            else:  # other processes have all rows of this step
                value = inputs.new_zeros(())
            if self.share.world > 1:
                value = distributed.add_up(value, parameters)
            number = value.item()
            if not math.isfinite(number):
                break
            if job.clip_grad is not None:
                nn.utils.clip_grad_norm_(parameters, job.clip_grad)
            self.optimizer.step()
            torch.clear_autocast_cache()  # it has the weights from before
            self.total, taken, last = self.total + number, taken + 1, number
            # processes must stop at the same step; alone the end of the stretch is soon enough
            overflow = self.share.world > 1 and not _finite(parameters)
            if overflow or self.stopping or time.perf_counter() >= deadline:
                break
        if taken and not _finite(parameters):  # an update has overflowed: back to where this stretch began
            with torch.no_grad():
                torch._foreach_copy_(parameters, before)
            self.total, taken, number = self.total - last, taken - 1, math.inf
        return Outcome(taken, time.perf_counter() - started, None if math.isfinite(number) else number)

    def state_dict(self) -> dict[str, Any]:
        return {"engine": self.name, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        for group, own in zip(self.optimizer.param_groups, self.settings, strict=True):
            group.update(own)


def _finite(parameters: list[nn.Parameter]) -> bool:
    return all(bool(torch.isfinite(parameter).all()) for parameter in parameters)


def _check_for_processes(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise ValueError("fit sums gradients of processes itself, got a DistributedDataParallel; pass its .module")
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            wrong = f"{type(module).__name__} sees the rows of one process only; convert the model with"
            raise ValueError(f"{wrong} torch.nn.SyncBatchNorm.convert_sync_batchnorm, or use another normalisation")


def score(objective: Objective, window: Window, i: int, pred: Tensor, target: Tensor) -> Tensor:
    """The value of the i-th step, this process's part of it, for predictions and targets [b, C]; autograd goes on."""
    low, high = window.spans[i].tolist()
    total, index = int(window.totals[i]), window.rows[low:high].to(pred.device)
    weight = None
    if window.weight is not None:
        weight = (window.weight if window.every_row else window.weight[index]).unsqueeze(1)
    if isinstance(objective, OnBatches):
        if isinstance(objective, BatchLoss):
            value = objective.function(pred, target, flat(window.inputs(i)[0]))
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise ValueError(f"a BatchLoss function must return one number, got {_shown(value)}; take the mean")
            value = value.reshape(())
        else:
            value = _mean(objective.values(pred, target), pred, weight, total)
        if not value.requires_grad:
            raise ValueError("a loss must depend on the predictions by torch operations, got one without a gradient")
        return value
    assert isinstance(objective, RLP)
    with without_autocast(pred):
        residual = pred - target if weight is None else (pred - target) * weight
        (M, _, _), C = objective.shape(), residual.shape[1]
        if window.form is not None:
            return quadratic_value(residual, window.form.to(residual.dtype)) / C
        if window.bank is not None:
            return window.bank.loss(residual, torch.zeros_like(residual))
        some = slice(low // M, high // M)
        stack = (residual.index_select(0, index) if window.every_row else residual).view(-1, M, C)
        rows = None if window.projector is None else window.projector[some]
        value = projected_value(stack, rows, window.residual_weight).sum() / (total * C)
        return value if window.offset is None else value + window.offset[some].sum() / total


def _mean(values: object, pred: Tensor, weight: Tensor | None, total: int) -> Tensor:
    """The mean of values [b] or [b, C] over `total` rows and over outputs, with row weights [b, 1]."""
    if not isinstance(values, Tensor) or values.shape not in (pred.shape[:1], pred.shape):
        shapes = f"row ({pred.shape[0]},) or per output {tuple(pred.shape)}, got {_shown(values)}"
        raise ValueError(f"a Pointwise function must return one value per {shapes}; leave out the mean")
    values = values.unsqueeze(1) if values.ndim == 1 else values
    return (values if weight is None else values * weight).sum() / (total * values.shape[1])


def _shown(value: object) -> object:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
