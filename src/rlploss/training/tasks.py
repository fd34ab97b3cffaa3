"""A network, its rows, its settings and how it is measured: what is fixed before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from rlploss.training import checkpoints
from rlploss.training.budget import Budget, Epochs, Steps, as_budget
from rlploss.training.metrics import MetricFunction, Metrics, rlp_rows
from rlploss.training.objectives import Objective
from rlploss.training.optimizers import OptimizerFunction, OptimizerValue
from rlploss.training.recipes import LOSSES, Recipe, make_recipe
from rlploss.training.rows import AnyRows, Array, Rows, read_rows, weigh

_EVALUATION_ROWS = 16384  # rows per forward pass of an evaluation

ChosenMetrics = Sequence[str | MetricFunction] | str | MetricFunction | None


class Evaluator:
    """The metrics of a run on its validation rows; without rows there is nothing to measure."""

    def __init__(self, metrics: ChosenMetrics, held: Rows | None, classes: bool) -> None:
        if metrics is not None and held is None:
            raise ValueError("metrics are measured on validation rows, got none; pass validation=(X, y)")
        default = "accuracy" if classes else "mse"
        self.metrics = Metrics(() if held is None else default if metrics is None else metrics)
        self.held = held
        self.rows = rlp_rows(held.features) if held is not None and self.metrics.needs_rows else None

    @property
    def names(self) -> tuple[str, ...]:
        """Columns that an evaluation gives."""
        return self.metrics.names

    @torch.no_grad()
    def measure(self, model: nn.Module) -> dict[str, float]:
        """Evaluate the network in evaluation mode."""
        if self.held is None:
            return {}
        training = model.training
        model.eval()
        parts = [model(x).reshape(x.shape[0], -1) for x in torch.split(self.held.x, _EVALUATION_ROWS)]
        model.train(training)
        pred = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.metrics.measure(pred, self.held.y, self.held.features, self.rows)


def evaluation_interval(every: Budget | tuple[int, str] | None, recipe: Recipe) -> int:
    """Steps between evaluations: as asked, or every epoch of an epoch budget, a hundredth of a step budget."""
    if every is None:
        default = isinstance(recipe.budget, Epochs)
        every = Epochs(1) if default else Steps(-(-recipe.total_steps // 100))
    return as_budget("evaluate_every", every).steps(recipe.steps_per_epoch)


@dataclass(frozen=True)
class Task:
    """One network to train: where it is, what it reads, how."""

    model: nn.Module
    rows: AnyRows
    recipe: Recipe
    evaluator: Evaluator

    def describe(self) -> dict[str, Any]:
        """What tells this task from another, as plain values."""
        held = self.evaluator.held
        return {
            **self.recipe.describe(),
            "model": checkpoints.describe_model(self.model),
            "data": self.rows.fingerprint(),
            "validation": None if held is None else checkpoints.fingerprint(held.x, held.y),
            "metrics": list(self.evaluator.names),
        }


def make_task(
    model: nn.Module,
    X: Array | Dataset[Any],
    y: Array | None,
    objective: Objective,
    *,
    optimizer: OptimizerValue | OptimizerFunction,
    sample_weight: Array | None,
    validation: tuple[Array, Array | None] | None,
    metrics: ChosenMetrics,
    device: str | torch.device | None,
    settings: dict[str, Any],
    known: dict[Any, Evaluator] | None = None,
) -> Task:
    """Move the model, read the data and decide the recipe; `settings` are the arguments of `make_recipe`.

    `known` lets the tasks of a fleet share validation rows that are the same objects.
    """
    where = next(model.parameters()).device if device is None else torch.device(device)
    model.to(where)
    loss = LOSSES[type(objective)]
    rows = weigh(read_rows(model, X, y, loss=loss, device=where), sample_weight)
    cutoff = getattr(objective, "float32_cutoff", False)
    if rows.weight is not None and (objective.mixup is not None or cutoff):
        what = "float32_cutoff=True" if cutoff else "mixup"
        raise ValueError(f"sample_weight has no meaning for {what}, got different weights; leave it out")
    recipe = make_recipe(objective, optimizer, rows.n_rows, rows.n_columns, **settings)
    key = (loss, rows.classes, None if validation is None else tuple(id(part) for part in validation))
    if known is not None and key in known:
        return Task(model, rows, recipe, known[key])
    held = None
    if validation is not None:
        read = read_rows(model, *validation, loss=loss, device=where, name="validation ")
        held = read if isinstance(read, Rows) else Rows(*read.read(torch.arange(read.n_rows)), read.classes)
    evaluator = Evaluator(metrics, held, rows.classes)
    if known is not None:
        known[key] = evaluator
    return Task(model, rows, recipe, evaluator)
