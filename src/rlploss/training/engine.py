"""Define engines, which take optimiser steps, and the one for any module, device and optimiser."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from rlploss.loss.quadratic import without_autocast
from rlploss.training.feed import Block, Feed, make_feed
from rlploss.training.job import Job
from rlploss.training.objectives import OnBatches, TwoSpeed
from rlploss.training.rows import flat

Spans = NDArray[np.int64]  # [S, 2]: begin and end of each step in the rows of a block
Factors = NDArray[np.float64] | None  # [S], which multiply the learning rates; None: all are 1


@dataclass(frozen=True)
class Outcome:
    """The outcome of a stretch of steps."""

    steps: int
    seconds: float
    bad: float | None  # a loss that was not finite, whose step was not taken; else None


class Engine(ABC):
    """Takes optimiser steps; it holds the network's weights and the state of the optimiser."""

    name: str
    feed: Feed
    # The sum of losses since the loop set it to zero. Its bits must not depend on how a run is
    # divided into calls.
    total = 0.0
    stopping = False  # asks `run` to return soon
    settings: Sequence[dict[str, Any]] = ()  # of each parameter group of torch's optimiser
    # Whether `run` consists of compiled calls only; a user's loss runs in the calling thread.
    in_pool = False
    note = ""  # a remark on the loss, appended to the reason for this engine
    trusted = 0  # steps left before a compiled loss is compared with torch's again

    @abstractmethod
    def run(self, block: Block, spans: Spans, factors: Factors, deadline: float) -> Outcome:
        """Take the steps of a block with these spans, or fewer if the deadline passes. The weights
        stay finite.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser's state, for checkpoints and for continued training."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with such a state, and with the settings of this job."""


class ModuleEngine(Engine):
    """Takes one step at a time, by torch."""

    name = "torch"

    def __init__(self, job: Job, total_steps: int) -> None:
        self.job, self.feed = job, make_feed(job, total_steps)
        self.optimizer = job.optimizer([p for p in job.model.parameters() if p.requires_grad])
        if not isinstance(self.optimizer, Optimizer) or isinstance(self.optimizer, LBFGS):
            raise TypeError(
                "an optimizer function must return a torch Optimizer whose step needs no closure,"
                f" got {type(self.optimizer).__name__}; return Adam or SGD, or write a loop with"
                " RLPLoss"
            )
        groups = self.optimizer.param_groups
        self._parameters = [p for group in groups for p in group["params"]]
        self.settings = [
            {name: group[name] for name in group if name != "params"} for group in groups
        ]

    @torch.enable_grad()
    def run(self, block: Block, spans: Spans, factors: Factors, deadline: float) -> Outcome:
        job, feed, parameters = self.job, self.feed, self._parameters
        before = [parameter.detach().clone() for parameter in parameters]
        started, taken, number, last = time.perf_counter(), 0, 0.0, 0.0
        torch.clear_autocast_cache()  # entries from an evaluation have no gradient
        for low, high in spans.tolist():
            if factors is not None:
                for group, own in zip(self.optimizer.param_groups, self.settings, strict=True):
                    group["lr"] = own["lr"] * float(factors[taken])
            inputs, target = feed.inputs(block, low, high)
            self.optimizer.zero_grad()
            pred = job.model(inputs).reshape(len(inputs), -1)
            value = step_value(
                feed, block, (low, high), features=flat(inputs), pred=pred, target=target
            )
            torch.autograd.backward(value)
            number = value.item()
            if not math.isfinite(number):
                break
            if job.clip_grad is not None:
                nn.utils.clip_grad_norm_(parameters, job.clip_grad)
            self.optimizer.step()
            torch.clear_autocast_cache()  # it holds the old weights
            self.total, taken, last = self.total + number, taken + 1, number
            if self.stopping or time.perf_counter() >= deadline:
                break
        finite = all(bool(torch.isfinite(parameter).all()) for parameter in parameters)
        # An update overflowed: restore the weights from the start of this stretch.
        if taken and not finite:
            with torch.no_grad():
                torch._foreach_copy_(parameters, before)
            self.total, taken, number = self.total - last, taken - 1, math.inf
        bad = None if math.isfinite(number) else number
        return Outcome(taken, time.perf_counter() - started, bad)

    def state_dict(self) -> dict[str, Any]:
        return {"engine": self.name, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        for group, own in zip(self.optimizer.param_groups, self.settings, strict=True):
            group.update(own)


def step_value(
    feed: Feed, block: Block, span: tuple[int, int], features: Tensor, pred: Tensor, target: Tensor
) -> Tensor:
    """Return the differentiable loss of a step for features [b, d], predictions and targets
    [b, C].
    """
    objective, weight = feed.job.objective, feed.weight
    index = block.rows.index[slice(*span)].to(pred.device)
    if weight is not None:
        weight = (weight if feed.every_row else weight[index]).unsqueeze(1)
    if isinstance(objective, OnBatches):
        value = objective.value(pred, target, features, weight)
        if not value.requires_grad:
            raise ValueError(
                "a loss must depend on the predictions by torch operations, got one without a"
                " gradient"
            )
        return value
    with without_autocast(pred):
        residual = pred - target if weight is None else (pred - target) * weight
        subsets = slice(span[0] // feed.unit, span[1] // feed.unit)
        value = block.planes.value(residual, subsets, index if feed.every_row else None)
        if isinstance(objective, TwoSpeed) and objective.kappa > 0:
            whole = residual.square().mean()
            value = objective.kappa * whole + (1 - objective.kappa) * value
        return value
