"""One replica of a fleet: what is its own while it trains in a stack, and how a stack is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlploss.training.feeds import Feed
from rlploss.training.history import History
from rlploss.training.monitors import Stopper
from rlploss.training.stacking import Architecture
from rlploss.training.tasks import Task

_EVALUATION_NUMBERS = 2**19  # activations of a layer in one forward pass: more rows go in parts that stay in the cache


@dataclass
class Member:
    """One replica: its task, and what is its own while it trains."""

    number: int  # in the fleet
    task: Task
    feed: Feed
    evaluate_every: int
    stopper: Stopper | None
    history: History = field(init=False)
    loss_sum: float = 0.0
    loss_count: int = 0
    best: Tensor | None = None  # flat weights of the best evaluation
    frozen: Tensor | None = None  # flat weights at the first step whose loss is not finite
    final: Tensor | None = None  # flat weights at its end; set when it is done

    def __post_init__(self) -> None:
        self.history = History(self.task.recipe.describe(), model=self.task.model)

    @property
    def total(self) -> int:
        """Steps in its budget."""
        return self.task.recipe.total_steps

    def next_stop(self, step: int) -> int:
        """The next step at which it is evaluated or ends."""
        return min(self.total, (step // self.evaluate_every + 1) * self.evaluate_every)

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "best": self.best,
            "final": self.final,
            "stopper": None if self.stopper is None else self.stopper.state_dict(),
            "columns": self.history.columns,
            "stopped": self.history.stopped,
            "best_step": self.history.best_step,
            "message": self.history.message,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.loss_sum, self.loss_count = state["loss_sum"], state["loss_count"]
        self.best, self.final = state["best"], state["final"]
        if self.stopper is not None:
            self.stopper.load_state_dict(state["stopper"])
        history = self.history
        history.columns, history.stopped = state["columns"], state["stopped"]
        history.best_step, history.message = state["best_step"], state["message"]


class Gauge:
    """Measures members of a stack, all that have validation rows of one shape in one forward pass."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self._held: dict[tuple[int, ...], tuple[Tensor, Tensor, Tensor | None]] = {}  # x, y, rows of the metric

    @torch.no_grad()
    def measure(self, flat: Tensor, members: list[Member]) -> list[dict[str, float]]:
        """The metrics of each member on its validation rows; flat [len(members), P] are their weights."""
        results: dict[int, dict[str, float]] = {}
        groups: dict[Any, list[int]] = {}
        for i, member in enumerate(members):
            held = member.task.evaluator.held
            if held is None:
                results[i] = {}
            else:
                groups.setdefault(held.x.shape, []).append(i)
        for group in groups.values():
            results.update(zip(group, self._measure_alike(flat[group], [members[i] for i in group]), strict=True))
        return [results[i] for i in range(len(members))]

    def _measure_alike(self, flat: Tensor, members: list[Member]) -> list[dict[str, float]]:
        key = tuple(m.number for m in members)
        if key not in self._held:
            if len(self._held) > 8:  # members that end at different times leave many combinations behind
                self._held.clear()
            self._held[key] = _stack_held(members)
        x, y, rows = self._held[key]
        widest = max(x[0, 0].numel(), *self.architecture.widths)
        size = max(1, _EVALUATION_NUMBERS // (len(members) * widest))
        parts = [self.architecture.predict(flat, part) for part in torch.split(x, size, dim=1)]
        features = [m.task.evaluator.held.features for m in members if m.task.evaluator.held is not None]
        return members[0].task.evaluator.metrics.measure_stack(torch.cat(parts, dim=1), y, features, rows)


def _stack_held(members: list[Member]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Validation inputs, targets and rows of the RLP metric [S, n, ...], or [1, n, ...] where all share them."""
    evaluators = [m.task.evaluator for m in members]
    held = [e.held for e in evaluators if e.held is not None]
    rows = [e.rows for e in evaluators if e.rows is not None]
    if all(h is held[0] for h in held):
        return held[0].x.unsqueeze(0), held[0].y.unsqueeze(0), rows[0].unsqueeze(0) if rows else None
    x, y = torch.stack([h.x for h in held]), torch.stack([h.y for h in held])
    return x, y, torch.stack(rows) if rows else None
