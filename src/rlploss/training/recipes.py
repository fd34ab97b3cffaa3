"""Everything that decides a run, checked and with every default filled in: `Recipe`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlploss._checks import count, one_of
from rlploss.training.budget import Budget, as_budget
from rlploss.training.objectives import MAE, MSE, RLP, CrossEntropy, Huber, Objective
from rlploss.training.optimizers import OptimizerFunction, OptimizerValue
from rlploss.training.values import function_name, positive

SCHEDULES = ("cosine", "linear")
LOSSES = {MSE: "mse", MAE: "mae", Huber: "huber", CrossEntropy: "cross_entropy", RLP: "rlp"}

Schedule = Callable[[int, int], float]


@dataclass(frozen=True)
class Recipe:  # what is below `value` and `how` is for the stacked path only
    """One run, fully decided. Fields that the objective has no use for are None."""

    value: Objective  # resolved
    how: OptimizerValue | OptimizerFunction
    budget: Budget
    n_rows: int
    seed: int
    schedule: str | None
    clip_grad: float | None

    @cached_property
    def loss(self) -> str:
        """The name of the loss."""
        return LOSSES[type(self.value)]

    @property
    def mixup_alpha(self) -> float | None:
        """ψ of the mixup, or None."""
        return self.value.mixup

    @property
    def mixup(self) -> bool:
        """Whether rows are mixed in pairs."""
        return self.value.mixup is not None

    @property
    def objective(self) -> str:
        """A name."""
        return self.loss + ("+mixup" if self.mixup else "")

    @property
    def cutoff(self) -> bool:
        """Whether the loss is that of the released autoencoder."""
        return isinstance(self.value, RLP) and self.value.float32_cutoff

    def __getattr__(self, name: str) -> Any:
        """Fields of the objective, None where it has no such field; those of the optimiser."""
        if name in ("lr", "weight_decay", "momentum"):
            return getattr(self.how, name, None if name == "lr" else 0.0)
        if name in (
            "batch_size",
            "probe",
            "draw_from",
            "method",
            "plan",
            "subset_size",
            "n_subsets",
            "subsets_per_step",
        ):
            return getattr(self.value, name, None)
        if name == "intercept":
            return getattr(self.value, name, False)
        if name == "ridge":
            return getattr(self.value, name, 0.0)
        if name == "optimizer":
            if not isinstance(self.how, OptimizerValue):
                return "function"
            return "sgd_nesterov" if getattr(self.how, "nesterov", False) else type(self.how).__name__.lower()
        raise AttributeError(name)

    @cached_property
    def rows_per_epoch(self) -> int:
        """Rows read in one epoch: N, or K·M for RLP."""
        if self.n_subsets is not None and self.subset_size is not None:
            return int(self.n_subsets * self.subset_size)
        return self.n_rows

    @cached_property
    def rows_per_step(self) -> int:
        """Rows read in one step (the last step of an epoch may have fewer)."""
        if self.subsets_per_step is not None and self.subset_size is not None:
            return int(self.subsets_per_step * self.subset_size)
        return int(self.batch_size)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in one epoch."""
        return -(-self.rows_per_epoch // self.rows_per_step)

    @cached_property
    def total_steps(self) -> int:
        """Optimiser steps in the whole budget."""
        return self.budget.steps(self.steps_per_epoch)

    def samples(self, step: int) -> int:
        """Rows read in the first `step` steps."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.rows_per_epoch + rest * self.rows_per_step

    def describe(self) -> dict[str, Any]:
        """The run as plain values, for History and for telling checkpoints apart."""
        return {
            "objective": self.value,
            "optimizer": self.how if isinstance(self.how, OptimizerValue) else f"function {function_name(self.how)}",
            "budget": self.budget,
            "n_rows": self.n_rows,
            "seed": self.seed,
            "schedule": self.schedule,
            "clip_grad": self.clip_grad,
        }


def make_recipe(
    objective: Objective,
    optimizer: OptimizerValue | OptimizerFunction,
    n_rows: int,
    n_features: int,
    *,
    budget: object,
    seed: int,
    schedule: str | Schedule | None,
    clip_grad: float | None,
    n_processes: int = 1,
) -> Recipe:
    """Check the settings of a run and fill in what was left open."""
    return Recipe(
        objective.resolve(n_rows, n_features, n_processes),
        optimizer,
        as_budget("budget", budget),
        n_rows,
        count("seed", seed, minimum=0),
        _schedule_name(schedule),
        None if clip_grad is None else positive("clip_grad", clip_grad),
    )


def learning_rate_factor(schedule: str | Schedule | None, step: int, total: int) -> float:
    """What the learning rate of step `step` (from 0) of `total` is multiplied by."""
    if schedule is None:
        return 1.0
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / total))
    if schedule == "linear":
        return 1 - step / total
    assert callable(schedule)  # names are checked when the recipe is made
    return float(schedule(step, total))


def _schedule_name(schedule: str | Schedule | None) -> str | None:
    if schedule is None:
        return None
    if callable(schedule):
        return f"function {getattr(schedule, '__qualname__', type(schedule).__qualname__)}"
    return one_of("schedule", schedule, SCHEDULES)
