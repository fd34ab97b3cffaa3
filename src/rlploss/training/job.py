"""What one network is trained on and how: optimiser and budget as values, a `Problem`, and a `Job`, a checked one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from rlploss._checks import count, number, one_of
from rlploss._values import Value, plain, positive, put
from rlploss.training.evaluation import ChosenMetrics, Evaluator
from rlploss.training.objectives import RLP, BatchLoss, Objective, as_objective
from rlploss.training.rows import Array, Inputs, Table, digest, read_rows, weigh

Schedule = Callable[[int, int], float]
OptimizerFunction = Callable[[Iterable[nn.Parameter]], Optimizer]  # the values below are such functions too
ChosenOptimizer = OptimizerFunction | str


class OptimizerValue(Value):
    """What Adam, AdamW and SGD share: checks, and the making of torch's optimiser."""

    lr: float
    weight_decay: float

    def __post_init__(self) -> None:
        put(self, "lr", positive("lr", self.lr))
        put(self, "weight_decay", number("weight_decay", self.weight_decay, minimum=0.0))

    def __call__(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Torch's optimiser for these parameters, with its fused update where there is one."""
        parameters = list(parameters)
        # torch's fused SGD fails where a parameter has its first gradient later than others
        fused = parameters[0].device.type in ("cpu", "cuda", "mps") and not getattr(self, "momentum", 0.0)
        kind: Any = getattr(torch.optim, type(self).__name__)
        return kind(parameters, **vars(self), fused=fused)  # type: ignore[no-any-return]  # torch's own class


@dataclass(frozen=True, repr=False)
class Adam(OptimizerValue):
    """Adam with torch's other defaults; `weight_decay` is an L2 penalty: weight_decay/2·‖θ‖² is added to the loss.

    >>> optimizer = Adam(1e-2, weight_decay=1e-4)  # for fit(..., optimizer=optimizer)
    """

    lr: float = 1e-3
    weight_decay: float = 0.0


@dataclass(frozen=True, repr=False)
class AdamW(OptimizerValue):
    """Adam with decoupled weight decay, 0.01 by default as torch's own.

    >>> optimizer = AdamW(1e-2)  # for fit(..., optimizer=optimizer)
    """

    lr: float = 1e-3
    weight_decay: float = 0.01


@dataclass(frozen=True, repr=False)
class SGD(OptimizerValue):
    """Stochastic gradient descent, plain or with momentum, Nesterov's or not.

    >>> optimizer = SGD(0.1, momentum=0.9, nesterov=True)  # for fit(..., optimizer=optimizer)
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        put(self, "momentum", number("momentum", self.momentum, 0.0, 1.0))
        put(self, "nesterov", bool(self.nesterov))
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov=True needs momentum above 0, got 0.0; set momentum, or leave nesterov out")


NAMES: dict[str, type[OptimizerValue]] = {"adam": Adam, "adamw": AdamW}


def as_optimizer(value: object) -> OptimizerFunction:
    """Read an optimiser: a value, a name that stands for the value with its defaults, or a function."""
    if isinstance(value, str):
        return NAMES[one_of("optimizer", value, NAMES)]()
    if isinstance(value, type) and issubclass(value, OptimizerValue):
        raise TypeError(f"optimizer must be a value, got the class {value.__name__}; write {value.__name__}(...)")
    if not callable(value):
        wanted = "Adam(...), AdamW(...), SGD(...) or a function of the parameters"
        raise TypeError(f"optimizer must be {wanted}, got {value!r}")
    return value


class Budget(Value):
    """How long a run is, and what is counted."""

    n: int

    def __post_init__(self) -> None:
        put(self, "n", count(f"{type(self).__name__}(n)", self.n))

    def steps(self, steps_per_epoch: int) -> int:
        """Optimiser steps in all."""
        return self.n


@dataclass(frozen=True, repr=False)
class Epochs(Budget):
    """`n` passes: over the rows for pointwise objectives, over the K subsets for RLP, as the paper counts.

    >>> Epochs(5).steps(steps_per_epoch=20)
    100
    """

    n: int

    def steps(self, steps_per_epoch: int) -> int:
        return self.n * steps_per_epoch


@dataclass(frozen=True, repr=False)
class Steps(Budget):
    """`n` optimiser steps, whatever an epoch is for the objective.

    >>> Steps(5).steps(steps_per_epoch=20)
    5
    """

    n: int


def as_budget(name: str, value: object) -> Budget:
    """Return `value` if it is a budget."""
    if not isinstance(value, Budget):
        rule = f"{name} must be Epochs(n) or Steps(n), so that a comparison always states which"
        raise TypeError(f"{rule}, got {value!r}")
    return value


# Problems and jobs


@dataclass(frozen=True, eq=False)
class Problem:
    """One replica of a fleet: its data, its seed, and whatever it does differently from the rest.

    objective, optimizer and budget replace the arguments of `fit_fleet` of the same name; None leaves them.

    >>> problems = [Problem(torch.eye(9), torch.ones(9), seed=0, optimizer=Adam(lr)) for lr in (1e-3, 1e-2)]
    """

    X: Inputs
    y: Array | None
    _: KW_ONLY
    seed: int = 0
    validation: tuple[Inputs, Array | None] | None = None
    sample_weight: Array | None = None
    objective: Objective | str | None = None
    optimizer: ChosenOptimizer | None = None
    budget: Budget | None = None


@dataclass(frozen=True, eq=False)
class Job:
    """A checked `Problem`: what one network is trained on and how, every default filled in."""

    model: nn.Module
    table: Table
    objective: Objective
    optimizer: OptimizerFunction
    budget: Budget
    seed: int
    schedule: str | Schedule | None
    clip_grad: float | None
    evaluator: Evaluator
    engine_state: dict[str, Any] | None = None  # of an earlier training, whose optimiser this one goes on with

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in one epoch."""
        return self.objective.steps_per_epoch(self.table.n_rows)

    @cached_property
    def total_steps(self) -> int:
        """Optimiser steps in the whole budget."""
        return self.budget.steps(self.steps_per_epoch)

    def rate_factors(self, first: int, last: int) -> NDArray[np.float64]:
        """What the learning rates of steps first..last are multiplied by."""
        if self.schedule is None:
            return np.ones(last - first)
        total, steps = self.total_steps, np.arange(first, last)
        if self.schedule == "linear":
            return np.asarray(1 - steps / total)
        if isinstance(self.schedule, str):  # cosine
            return np.asarray(0.5 * (1 + np.cos(np.pi * steps / total)))
        return np.array([float(self.schedule(int(step), total)) for step in steps])

    def settings(self) -> dict[str, Any]:
        """The settings in force, for `History`: values as they are, functions by name."""
        names = ("objective", "optimizer", "budget", "seed", "schedule", "clip_grad")
        return {name: getattr(self, name) for name in names} | {"n_rows": self.table.n_rows}

    def describe(self) -> dict[str, Any]:
        """What tells this job from another, as plain data: for checkpoints, and for processes to agree on."""
        validation = self.evaluator.validation
        shapes = ", ".join(f"{name} {list(p.shape)} {p.dtype}" for name, p in self.model.named_parameters())
        return {
            **{name: plain(value) for name, value in self.settings().items()},
            "model": f"{type(self.model).__qualname__}({shapes})",
            "layers": [type(part).__qualname__ for part in self.model.modules()],
            "data": self.table.fingerprint(),
            "validation": None if validation is None else digest(validation.x, validation.y),
            "metrics": list(self.evaluator.functions),
        }


def make_job(
    model: nn.Module,
    problem: Problem,
    objective: Objective | str,
    optimizer: ChosenOptimizer,
    budget: Budget,
    metrics: ChosenMetrics = None,
    schedule: str | Schedule | None = None,
    clip_grad: float | None = None,
    device: str | torch.device | None = None,
    *,
    n_processes: int = 1,
    known: dict[Any, Evaluator] | None = None,
    engine_state: dict[str, Any] | None = None,
) -> Job:
    """Check a problem, move its model and read its data; what it leaves open comes from the arguments.

    `known` lets the jobs of a fleet share validation rows that are the same objects.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if torch.is_inference_mode_enabled():
        raise RuntimeError("fit must compute gradients, got torch.inference_mode(); call it outside")
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise ValueError("fit needs whole parameters, got sharded ones; train the module in a loop with RLPLoss")
    wanted = as_objective(objective if problem.objective is None else problem.objective)
    where = next(iter(model.parameters()), torch.zeros(0)).device if device is None else torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must be one that torch can use here, got {str(device)!r} and no GPU; leave it out")
    model.to(where)
    loss = wanted.loss
    table = weigh(read_rows(model, problem.X, problem.y, loss=loss, device=where), problem.sample_weight)
    _check_meaning(wanted, table, n_processes)
    if schedule is not None and not callable(schedule):
        one_of("schedule", schedule, ("cosine", "linear"))
    if problem.validation is not None and (not isinstance(problem.validation, tuple) or len(problem.validation) != 2):
        raise TypeError(f"validation must be a tuple (X, y), got {type(problem.validation).__name__}; write (X, y)")
    known = {} if known is None else known
    key = (loss, table.classes, table.n_outputs, table.x.dtype, where, *map(id, problem.validation or ()))
    if key not in known:
        rows = None
        if problem.validation is not None:
            rows = read_rows(model, *problem.validation, loss=loss, device=where, name="validation ")
            if rows.dataset is not None:
                rows = Table(*rows.read(torch.arange(rows.n_rows)), rows.classes)
        known[key] = Evaluator(metrics, rows, table.classes)
    resolved = wanted.resolve(table.n_rows, table.n_columns, n_processes)
    optimizer = as_optimizer(optimizer if problem.optimizer is None else problem.optimizer)
    budget = as_budget("budget", budget if problem.budget is None else problem.budget)
    seed, clip = count("seed", problem.seed, minimum=0), None if clip_grad is None else positive("clip_grad", clip_grad)
    return Job(model, table, resolved, optimizer, budget, seed, schedule, clip, known[key], engine_state)


def _check_meaning(objective: Objective, table: Table, n_processes: int) -> None:
    """Refuse weights and processes where the objective is no sum over rows or subsets."""
    what = ""
    if isinstance(objective, BatchLoss):
        what = "BatchLoss, which is no sum over rows"
        if n_processes > 1:
            raise ValueError(f"{what} cannot be split among {n_processes} processes; train in one, or use Pointwise")
    elif objective.mixup is not None:
        what = "mixup"
    elif isinstance(objective, RLP) and objective.float32_cutoff:
        what = "float32_cutoff=True"
    if what and table.weight is not None:
        raise ValueError(f"sample_weight has no meaning for {what}, got different weights; leave it out")
