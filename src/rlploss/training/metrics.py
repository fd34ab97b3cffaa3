"""Metrics on validation rows, for one network or a stack of them.

Predictions [..., n, C] and targets [n, C] (or a stack [..., n, C]) give one number per network, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlploss._checks import one_of
from rlploss.loss.planes import probe_rows

METRICS = ("mse", "mae", "rlp", "accuracy", "f1", "cross_entropy")
HIGHER_IS_BETTER = ("accuracy", "f1")

MetricFunction = Callable[[Tensor, Tensor, Tensor], float]


def mse(pred: Tensor, target: Tensor) -> Tensor:
    """Mean squared error over rows and outputs."""
    return (pred - target).square().mean((-2, -1), dtype=torch.float64)


def mae(pred: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error over rows and outputs."""
    return (pred - target).abs().mean((-2, -1), dtype=torch.float64)


def rlp(pred: Tensor, target: Tensor, rows: Tensor) -> Tensor:
    """Table 1's RLP: ‖P(pred − target)‖² / (n·C), P the projection on the columns of all n rows.

    `rows` [q, n] (or a stack) from `rlp_rows`.
    """
    residual = (pred - target).to(torch.float64)
    return (rows @ residual).square().sum((-2, -1)) / residual.shape[-1]


def rlp_rows(features: Tensor) -> Tensor:
    """Rows of the RLP metric [q, n]: the whole set is the one subset, without intercept, as in Table 1."""
    return probe_rows(features.flatten(1).unsqueeze(0)).squeeze(0)


def accuracy(pred: Tensor, target: Tensor) -> Tensor:
    """Share of rows whose largest output is the class of the target (largest too, so one-hot rows will do)."""
    return (pred.argmax(-1) == target.argmax(-1)).to(torch.float64).mean(-1)


def f1(pred: Tensor, target: Tensor) -> Tensor:
    """Macro F1: the mean of 2tp / (2tp + fp + fn) over the classes that occur in predictions or targets."""
    classes = torch.arange(pred.shape[-1], device=pred.device)
    said = pred.argmax(-1).unsqueeze(-1) == classes  # [..., n, C]
    true = target.argmax(-1).unsqueeze(-1) == classes
    hits = (said & true).sum(-2).to(torch.float64)
    total = said.sum(-2) + true.sum(-2)  # 2tp + fp + fn
    score = torch.where(total > 0, 2 * hits / total.clamp(min=1), 0.0)
    return score.sum(-1) / (total > 0).sum(-1)


def cross_entropy(pred: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of logits against class probabilities."""
    return -(target * pred.log_softmax(-1)).sum(-1).mean(-1, dtype=torch.float64)


_PLAIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": mse,
    "mae": mae,
    "accuracy": accuracy,
    "f1": f1,
    "cross_entropy": cross_entropy,
}


class Metrics:
    """The metrics of one run: names from `METRICS`, or functions of (pred, target, features) with a `__name__`."""

    def __init__(self, chosen: Sequence[str | MetricFunction] | str | MetricFunction) -> None:
        if isinstance(chosen, str) or callable(chosen):
            chosen = (chosen,)
        self._functions: dict[str, MetricFunction | None] = {}
        for metric in chosen:
            if callable(metric):
                self._functions[getattr(metric, "__name__", type(metric).__name__)] = metric
            else:
                self._functions[one_of("metrics", metric, METRICS)] = None

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, in order."""
        return tuple(self._functions)

    @property
    def needs_rows(self) -> bool:
        """Whether `rlp_rows` of the validation features are wanted."""
        return "rlp" in self._functions

    def measure(self, pred: Tensor, target: Tensor, features: Tensor, rows: Tensor | None) -> dict[str, float]:
        """All metrics of one network: pred and target [n, C]."""
        return self.measure_stack(pred.unsqueeze(0), target, [features], rows)[0]

    def measure_stack(
        self, pred: Tensor, target: Tensor, features: Sequence[Tensor], rows: Tensor | None
    ) -> list[dict[str, float]]:
        """All metrics of S networks: pred [S, n, C]; target and rows of the RLP metric stacked, or shared."""
        results: list[dict[str, float]] = [{} for _ in range(pred.shape[0])]
        for name, function in self._functions.items():
            if function is not None:
                each = target.expand_as(pred)
                values = [float(function(pred[i], each[i], features[i])) for i in range(pred.shape[0])]
            elif name == "rlp":
                assert rows is not None
                values = rlp(pred, target, rows).tolist()
            else:
                values = _PLAIN[name](pred, target).tolist()
            for result, value in zip(results, values, strict=True):
                result[name] = value
        return results
