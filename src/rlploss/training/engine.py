"""What an engine is, and `ModuleEngine`: any module, any device, any optimiser, any number of processes."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from rlploss import distributed
from rlploss.training.feed import Feed, Window, stream
from rlploss.training.job import Job, OptimizerValue
from rlploss.training.scores import score


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

    @abstractmethod
    def run(self, window: Window, deadline: float) -> Outcome:
        """Take the steps of a window, fewer if the deadline passes; nothing that is not finite reaches the weights."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state, for checkpoints and for training that goes on."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with such a state."""

    @abstractmethod
    def begin(self) -> None:
        """Begin the run."""

    @abstractmethod
    def end(self) -> None:
        """End it: the module owns its weights, and what can be made again is let go of."""


class ModuleEngine(Engine):
    """One step at a time, by torch. The closed-form gradient of the objective goes into the module's backward pass."""

    name = "torch"

    def __init__(self, job: Job) -> None:
        self.job, self.share = job, distributed.current()
        if self.share.world > 1:
            _check_for_processes(job.model)
        self.feed = Feed(job, self.share)
        parameters = [p for p in job.model.parameters() if p.requires_grad]
        self.optimizer = _make_optimizer(job, parameters)
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]

    def begin(self) -> None:
        """Dropout and its like draw from torch's default generator, which depends on the job's seed from here on."""
        # processes have different rows, so their dropout differs too
        purpose = "model" if self.share.rank == 0 else f"model {self.share.rank}"
        source = stream(self.job.seed, purpose).initial_seed()
        for generator in default_generators(self.job.table.x.device):
            generator.manual_seed(source)
        if self.job.engine_state is not None:
            self.load_state_dict(self.job.engine_state)

    def end(self) -> None:
        self.feed.release()

    def run(self, window: Window, deadline: float) -> Outcome:
        job, model, parameters = self.job, self.job.model, self._parameters
        factors = job.rate_factors(window.first, window.last)
        if _finite(parameters):
            self._finite_weights = [parameter.detach().clone() for parameter in parameters]
        started = time.perf_counter()
        taken = 0
        for i in range(window.last - window.first):
            if job.schedule is not None:
                for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                    group["lr"] = rate * float(factors[i])
            inputs, target = window.inputs(i)
            for parameter in parameters:
                parameter.grad = None
            if inputs.shape[0]:
                pred = model(inputs)
                value, back = score(job.objective, window, i, pred.detach().reshape(inputs.shape[0], -1), target)
                pred.backward(back.reshape(pred.shape))
            else:  # other processes have all rows of this step
                value = inputs.new_zeros(())
            if self.share.world > 1:
                value = distributed.add_up(value, parameters)
            number = value.item()
            if not math.isfinite(number):
                if not _finite(parameters):  # an update has overflowed: back to where the last good stretch began
                    with torch.no_grad():
                        torch._foreach_copy_(parameters, self._finite_weights)
                return Outcome(taken, time.perf_counter() - started, number)
            if job.clip_grad is not None:
                nn.utils.clip_grad_norm_(parameters, job.clip_grad)
            self.optimizer.step()
            self.total += number
            taken += 1
            if self.stopping or time.perf_counter() >= deadline:
                break
        return Outcome(taken, time.perf_counter() - started)

    def state_dict(self) -> dict[str, Any]:
        random = [generator.get_state() for generator in default_generators(self.job.table.x.device)]
        return {"engine": self.name, "optimizer": self.optimizer.state_dict(), "random": random}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # that of this job
        if self.share.rank == 0:  # the others' were not kept
            for generator, bits in zip(default_generators(self.job.table.x.device), state["random"], strict=True):
                generator.set_state(bits)


def _finite(parameters: list[nn.Parameter]) -> bool:
    return all(bool(torch.isfinite(parameter).all()) for parameter in parameters)


def default_generators(device: torch.device) -> list[torch.Generator]:
    """The generators that dropout and its like draw from."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    return generators


def _make_optimizer(job: Job, parameters: list[nn.Parameter]) -> Optimizer:
    if isinstance(job.optimizer, OptimizerValue):
        return job.optimizer.make(parameters)
    made = job.optimizer(parameters)
    if not isinstance(made, Optimizer):
        raise TypeError(f"an optimizer function must return a torch Optimizer, got {type(made).__name__}")
    return made


def _check_for_processes(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise ValueError(
                "fit sums gradients over processes by itself, got a DistributedDataParallel; pass its .module"
            )
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            raise ValueError(
                f"{type(module).__name__} sees the rows of one process only; convert the model with "
                "torch.nn.SyncBatchNorm.convert_sync_batchnorm, or use another normalisation"
            )
