"""How a network is measured on validation rows, and when that stops a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlploss._checks import count, number, one_of
from rlploss.loss.planes import probe_rows
from rlploss.training.rows import Table

METRICS = ("mse", "mae", "rlp", "accuracy", "f1", "cross_entropy")
HIGHER_IS_BETTER = ("accuracy", "f1")
_ROWS = 16384  # per forward pass

MetricFunction = Callable[[Tensor, Tensor, Tensor], float]
ChosenMetrics = Sequence[str | MetricFunction] | str | MetricFunction | None


# Predictions and targets [n, C] -> one number


def mse(pred: Tensor, target: Tensor) -> float:
    """Mean squared error over rows and outputs."""
    return float((pred - target).square().mean(dtype=torch.float64))


def mae(pred: Tensor, target: Tensor) -> float:
    """Mean absolute error over rows and outputs."""
    return float((pred - target).abs().mean(dtype=torch.float64))


def accuracy(pred: Tensor, target: Tensor) -> float:
    """Share of rows whose largest output is the class of the target (largest too, so one-hot rows will do)."""
    return float((pred.argmax(1) == target.argmax(1)).double().mean())


def f1(pred: Tensor, target: Tensor) -> float:
    """Macro F1: the mean of 2tp / (2tp + fp + fn) over the classes that occur in predictions or targets."""
    classes = torch.arange(pred.shape[1], device=pred.device)
    said, true = pred.argmax(1, keepdim=True) == classes, target.argmax(1, keepdim=True) == classes  # [n, C]
    total = said.sum(0) + true.sum(0)  # 2tp + fp + fn
    scores = 2 * (said & true).sum(0).double() / total
    return float(scores[total > 0].mean())


def cross_entropy(pred: Tensor, target: Tensor) -> float:
    """Cross entropy of logits against class probabilities."""
    return float(-(target * pred.log_softmax(1)).sum(1).mean(dtype=torch.float64))


_PLAIN: dict[str, Callable[[Tensor, Tensor], float]] = {
    "mse": mse,
    "mae": mae,
    "accuracy": accuracy,
    "f1": f1,
    "cross_entropy": cross_entropy,
}


class Evaluator:
    """The metrics of a run on its validation rows: names from `METRICS`, or functions of (pred, target, features).

    Without validation rows there is nothing to measure. The metric "rlp" is Table 1's: ‖P(pred − target)‖² / (n·C), P
    the projection on the columns of all n validation rows, without an intercept.
    """

    def __init__(self, metrics: ChosenMetrics, validation: Table | None, classes: bool) -> None:
        if metrics is not None and validation is None:
            raise ValueError("metrics are measured on validation rows, got none; pass validation=(X, y)")
        if metrics is None:
            metrics = () if validation is None else ("accuracy" if classes else "mse",)
        chosen = (metrics,) if isinstance(metrics, str) or callable(metrics) else metrics
        self._functions: dict[str, MetricFunction | None] = {}
        for metric in chosen:
            if callable(metric):
                self._functions[getattr(metric, "__name__", type(metric).__name__)] = metric
            else:
                self._functions[one_of("metrics", metric, METRICS)] = None
        self.validation = validation
        self._projector: Tensor | None = None
        if validation is not None and "rlp" in self._functions:
            self._projector = probe_rows(validation.features.unsqueeze(0)).squeeze(0)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that an evaluation gives."""
        return tuple(self._functions)

    @torch.no_grad()
    def measure(self, model: nn.Module) -> dict[str, float]:
        """Evaluate the network in evaluation mode."""
        if self.validation is None or not self._functions:
            return {}
        training = model.training
        model.eval()
        parts = [model(x).reshape(x.shape[0], -1) for x in torch.split(self.validation.x, _ROWS)]
        model.train(training)
        pred, target = parts[0] if len(parts) == 1 else torch.cat(parts), self.validation.y
        found = {}
        for name, function in self._functions.items():
            if function is not None:
                found[name] = float(function(pred, target, self.validation.features))
            elif name == "rlp":
                assert self._projector is not None
                seen = self._projector @ (pred - target).double()
                found[name] = float(seen.square().sum()) / target.shape[1]
            else:
                found[name] = _PLAIN[name](pred, target)
        return found


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when a validation metric has not improved by more than `min_delta` for `patience` evaluations.

    The weights of the best evaluation are put back at the end (`restore_best`). `higher_is_better=None` knows the
    direction of the built-in metrics and takes lower as better for functions.
    """

    metric: str
    patience: int = 10
    min_delta: float = 0.0
    restore_best: bool = True
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        count("patience", self.patience)
        number("min_delta", self.min_delta, minimum=0.0)


class Stopper:
    """The running state of `EarlyStopping` for one network."""

    def __init__(self, rule: EarlyStopping) -> None:
        self.rule = rule
        up = rule.higher_is_better
        self._sign = -1.0 if (rule.metric in HIGHER_IS_BETTER if up is None else up) else 1.0
        self.best = math.inf
        self.best_step = 0
        self.waited = 0

    def better(self, metrics: dict[str, float], step: int) -> bool:
        """Take in one evaluation; True if it is the best so far."""
        value = self._sign * metrics[self.rule.metric]
        if value < self.best - self.rule.min_delta or (math.isinf(self.best) and math.isfinite(value)):
            self.best, self.best_step, self.waited = value, step, 0
            return True
        self.waited += 1
        return False

    @property
    def done(self) -> bool:
        """Whether patience has run out."""
        return self.waited >= self.rule.patience

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.best, self.best_step, self.waited = state["best"], state["best_step"], state["waited"]


def make_stopper(early_stopping: EarlyStopping | int | None, metrics: tuple[str, ...]) -> Stopper | None:
    """Read `early_stopping`: a rule, or a patience for the first metric."""
    if early_stopping is None:
        return None
    if not metrics:
        raise ValueError("early_stopping needs validation rows to watch a metric on, got none; pass validation=(X, y)")
    if not isinstance(early_stopping, EarlyStopping):
        early_stopping = EarlyStopping(metrics[0], patience=count("early_stopping", early_stopping))
    one_of("the metric of early_stopping", early_stopping.metric, metrics)
    return Stopper(early_stopping)
