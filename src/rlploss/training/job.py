"""Define what one network is trained on and how: optimisers, budgets, a `Problem`, and a checked
one, a `Job`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from rlploss._checks import count, named, number, positive
from rlploss._values import Value, put
from rlploss.training.evaluation import ChosenMetrics, Evaluator
from rlploss.training.objectives import RLP, BatchLoss, Objective, as_objective
from rlploss.training.rows import Array, RowTable, digest, read_rows, weigh

# The values below are such functions too.
OptimizerFunction = Callable[[Iterable[nn.Parameter]], Optimizer]
ChosenOptimizer = OptimizerFunction | str


class OptimizerValue(Value):
    """The base of Adam, AdamW and SGD: checks their settings and creates torch's optimiser."""

    checks: ClassVar = {"lr": positive, "weight_decay": partial(number, minimum=0.0)}
    lr: float
    weight_decay: float

    def __call__(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return torch's optimiser for these parameters, with its fused update if it has one."""
        parameters = list(parameters)
        # torch's fused SGD fails if one parameter gets its first gradient later than others.
        fused = parameters[0].device.type in ("cpu", "cuda", "mps") and not getattr(
            self, "momentum", 0.0
        )
        return _TORCH[type(self)](parameters, **vars(self), fused=fused)


@dataclass(frozen=True, repr=False)
class Adam(OptimizerValue):
    """Adam with torch's other defaults; `weight_decay` is an L2 penalty, which adds
    weight_decay/2·‖θ‖² to the loss.

    >>> optimizer = Adam(1e-2, weight_decay=1e-4)  # for fit(..., optimizer=optimizer)
    """

    lr: float = 1e-3
    weight_decay: float = 0.0


@dataclass(frozen=True, repr=False)
class AdamW(OptimizerValue):
    """Adam with decoupled weight decay; the default is 0.01, as in torch.

    >>> optimizer = AdamW(1e-2)  # for fit(..., optimizer=optimizer)
    """

    lr: float = 1e-3
    weight_decay: float = 0.01


@dataclass(frozen=True, repr=False)
class SGD(OptimizerValue):
    """Stochastic gradient descent, with or without momentum (plain or Nesterov's).

    >>> optimizer = SGD(0.1, momentum=0.9, nesterov=True)  # for fit(..., optimizer=optimizer)
    """

    checks: ClassVar = {
        **OptimizerValue.checks,
        "momentum": partial(number, minimum=0.0, maximum=1.0),
        "nesterov": lambda _, value: bool(value),
    }
    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.momentum == 0:
            raise ValueError(
                "nesterov=True needs momentum above 0, got 0.0; set momentum, or leave nesterov out"
            )


NAMES: dict[str, type[OptimizerValue]] = {"adam": Adam, "adamw": AdamW}
_TORCH: dict[type[OptimizerValue], Callable[..., Optimizer]] = {
    Adam: torch.optim.Adam,
    AdamW: torch.optim.AdamW,
    SGD: torch.optim.SGD,
}


def as_optimizer(value: object) -> OptimizerFunction:
    """Read an optimiser: a value, a name that stands for the value with its defaults, or a
    function.
    """
    optimizer: object = named("optimizer", value, OptimizerValue, NAMES)
    if not callable(optimizer):
        raise TypeError(
            "optimizer must be Adam(...), AdamW(...), SGD(...) or a function of the parameters, got"
            f" {value!r}"
        )
    return optimizer


@dataclass(frozen=True, repr=False)
class Budget(Value):
    """The length of a run, and the unit that is counted."""

    n: int

    def __post_init__(self) -> None:
        put(self, "n", count(f"{type(self).__name__}(n)", self.n))

    def steps(self, steps_per_epoch: int) -> int:
        """Return the total number of optimiser steps."""
        return self.n


@dataclass(frozen=True, repr=False)
class Epochs(Budget):
    """`n` passes: over the rows for pointwise objectives, over the K subsets for RLP, as the paper
    counts.

    >>> Epochs(5).steps(steps_per_epoch=20)
    100
    """

    def steps(self, steps_per_epoch: int) -> int:
        return self.n * steps_per_epoch


@dataclass(frozen=True, repr=False)
class Steps(Budget):
    """`n` optimiser steps, whatever an epoch is for the objective.

    >>> Steps(5).steps(steps_per_epoch=20)
    5
    """


def as_budget(name: str, value: object) -> Budget:
    """Return `value` if it is a budget."""
    if not isinstance(value, Budget):
        raise TypeError(
            f"{name} must be Epochs(n) or Steps(n), so that a comparison always states which, got"
            f" {value!r}"
        )
    return value


# Problems and jobs


@dataclass(frozen=True, eq=False)
class Problem:
    """One replica of a fleet: its data, its seed, and the settings in which it differs.

    objective, optimizer and budget replace the arguments of `fit_fleet` of the same name; None
    takes those.

    >>> X, y, rates = torch.eye(9), torch.ones(9), (1e-3, 1e-2)
    >>> problems = [Problem(X, y, seed=0, optimizer=Adam(lr)) for lr in rates]
    """

    X: Array
    y: Array | None
    _: KW_ONLY
    seed: int = 0
    validation: tuple[Array, Array | None] | None = None
    sample_weight: Array | None = None
    objective: Objective | str | None = None
    optimizer: ChosenOptimizer | None = None
    budget: Budget | None = None


@dataclass(frozen=True, eq=False)
class Job:
    """A checked `Problem`: the data and the rule by which one network is trained, with all defaults
    filled in.

    How long it is trained and how it is evaluated is not part of it.
    """

    model: nn.Module
    table: RowTable
    evaluator: Evaluator
    objective: Objective
    optimizer: OptimizerFunction
    clip_grad: float | None
    seed: int
    # the engine's state after an earlier training, which this one continues
    state: dict[str, Any] | None = None

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in one epoch."""
        return self.objective.steps_per_epoch(self.table.n_rows)

    def describe(self) -> dict[str, Any]:
        """Describe this job's model and data as plain data, so that checkpoints can tell jobs
        apart.
        """
        validation = self.evaluator.validation
        shapes = ", ".join(
            f"{name} {list(p.shape)} {p.dtype}" for name, p in self.model.named_parameters()
        )
        return {
            "model": f"{type(self.model).__qualname__}({shapes})",
            "layers": [type(part).__qualname__ for part in self.model.modules()],
            "data": digest(self.table.x, self.table.y, self.table.weight),
            "validation": None if validation is None else digest(validation.x, validation.y),
            "metrics": list(self.evaluator.functions),
        }


def make_job(
    model: nn.Module,
    problem: Problem,
    *,
    objective: Objective | str = RLP(),  # noqa: B008 - a frozen value
    optimizer: ChosenOptimizer = Adam(),  # noqa: B008 - as above
    metrics: ChosenMetrics = None,
    clip_grad: float | None = None,
    device: str | torch.device | None = None,
    state: dict[str, Any] | None = None,
    known: dict[Any, Evaluator] | None = None,
) -> Job:
    """Check a problem, move its model to the device and read its data. The arguments fill in what
    it leaves open.

    `known` lets the jobs of a fleet share validation rows if they are the same objects.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "fit must compute gradients, got torch.inference_mode(); call it outside"
        )
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise ValueError(
            "fit needs whole parameters, got sharded ones; train the module in a loop with RLPLoss"
        )
    wanted = as_objective(objective if problem.objective is None else problem.objective)
    first = next(iter(model.parameters()), torch.zeros(0))
    where = first.device if device is None else torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device must be one that torch can use here, got {str(device)!r} and no GPU; leave"
            " it out"
        )
    model.to(where)
    loss = wanted.loss
    table = read_rows(model, problem.X, problem.y, loss=loss, device=where)
    table = weigh(table, problem.sample_weight)
    _check_meaning(wanted, table)
    pair = problem.validation
    if pair is not None and (not isinstance(pair, tuple) or len(pair) != 2):
        raise TypeError(
            f"validation must be a tuple (X, y), got {type(pair).__name__}; write (X, y)"
        )
    known = {} if known is None else known
    key = (loss, table.classes, table.n_outputs, table.x.dtype, where, *map(id, pair or ()))
    if key not in known:
        rows = None
        if pair is not None:
            rows = read_rows(model, *pair, loss=loss, device=where, name="validation ")
        known[key] = Evaluator(metrics, rows, table.classes)
    return Job(
        model,
        table,
        known[key],
        objective=wanted.resolve(table.n_rows, table.n_columns),
        optimizer=as_optimizer(optimizer if problem.optimizer is None else problem.optimizer),
        clip_grad=None if clip_grad is None else positive("clip_grad", clip_grad),
        seed=count("seed", problem.seed, minimum=0),
        state=state,
    )


def _check_meaning(objective: Objective, table: RowTable) -> None:
    """Refuse weights if the objective is not a sum over rows or subsets."""
    has_no_weights = {
        "BatchLoss, which is no sum over rows": isinstance(objective, BatchLoss),
        "mixup": objective.mixup is not None,
        "float32_cutoff=True": isinstance(objective, RLP) and objective.float32_cutoff,
    }
    for name, is_so in has_no_weights.items():
        if is_so and table.weight is not None:
            raise ValueError(
                f"sample_weight has no meaning for {name}, got different weights; leave it out"
            )
