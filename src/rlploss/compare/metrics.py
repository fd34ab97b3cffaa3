"""What is measured on test rows. Every measure is made of one loss per row: their mean, its root,
or one minus the mean, so that any of them can decide and be tested row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rlploss import _checks
from rlploss._scaling import Array
from rlploss.compare.read import TableError
from rlploss.lab.text import number

RARE = 0.2  # a class is rare if it has less than this part of an equal share of the rows


@dataclass(frozen=True)
class Metric:
    """A measure: `losses` takes predictions [n, C] and truth (n,), and gives the loss of every row.

    `form` says how they become the measure: "mean", "root" (of the mean) or "score" (one minus the
    mean; higher is better).
    """

    name: str
    words: str
    losses: Callable[[Array, NDArray[Any]], Array]
    form: str = "mean"

    @property
    def lower_is_better(self) -> bool:
        """Whether it is an error; a score is better the higher it is."""
        return self.form != "score"

    def value(self, losses: Array) -> float:
        """Return the measure of rows with these losses."""
        mean = float(losses.mean())
        return {"mean": mean, "root": math.sqrt(mean), "score": 1 - mean}[self.form]

    def told(self, value: float) -> str:
        """Return a value as it is shown: `86.3 %` of accuracy, three digits of anything else."""
        return f"{value:.1%}".replace("%", " %") if "accuracy" in self.words else number(value)


def _squares(predicted: Array, truth: NDArray[Any]) -> Array:
    return np.asarray(np.square(predicted[:, 0] - truth))


def _wrong(predicted: Array, truth: NDArray[Any]) -> Array:
    return np.asarray(predicted.argmax(1) != truth, dtype=np.float64)


def _balanced(predicted: Array, truth: NDArray[Any]) -> Array:
    """Return what is wrong, weighted such that all classes that are there count alike."""
    _, label, counts = np.unique(truth, return_inverse=True, return_counts=True)
    return _wrong(predicted, truth) * (len(truth) / (len(counts) * counts))[label]


def _areas(predicted: Array, truth: NDArray[Any]) -> Array:
    """Return 1 − AUC with what each row adds to it (DeLong's placements); classes against the rest.

    The mean over rows is 1 − AUC exactly, and their variance over n is that of the AUC.
    """
    losses: list[Array] = []
    for label in np.unique(truth):
        mine = truth == label
        share, ranks = float(mine.mean()), stats.rankdata(predicted[:, label])
        if share == 1:
            return np.full(len(truth), np.nan)
        placed = np.empty(len(truth))  # the share of the other side that a row is ranked beyond
        for side, n_others in ((mine, (~mine).sum()), (~mine, mine.sum())):
            placed[side] = (ranks[side] - stats.rankdata(predicted[side, label])) / n_others
        placed[~mine] = 1 - placed[~mine]
        area = placed[mine].mean()
        losses.append(1 - area - (placed - area) / np.where(mine, share, 1 - share))
    return np.asarray(np.mean(losses, axis=0))


def _log_losses(predicted: Array, truth: NDArray[Any]) -> Array:
    return np.asarray(-np.log(np.clip(predicted[np.arange(len(truth)), truth], 1e-7, 1.0)))


def _brier(predicted: Array, truth: NDArray[Any]) -> Array:
    return np.asarray(np.square(predicted - np.eye(predicted.shape[1])[truth]).sum(axis=1))


METRICS = {  # by task; without --metric the first decides
    "regression": (
        Metric("rmse", "root mean squared error", _squares, "root"),
        Metric("mae", "mean absolute error", lambda p, truth: np.abs(p[:, 0] - truth)),
        Metric("r2", "R²", lambda p, truth: _squares(p, truth) / np.var(truth), "score"),
    ),
    "classification": (
        Metric("accuracy", "accuracy", _wrong, "score"),
        Metric("balanced", "balanced accuracy", _balanced, "score"),
        Metric("auc", "AUC", _areas, "score"),
        Metric("log_loss", "log loss", _log_losses),
        Metric("brier", "Brier score", _brier),
    ),
}


def metric_of(task: str, name: str) -> Metric:
    """Return a metric of a task by its name, or by the words for it."""
    known = {metric.name: metric for metric in METRICS[task]}
    names = {metric.words: metric.name for metric in METRICS[task]}
    return known[_checks.one_of("metric", names.get(name, name), known)]


def measure(task: str, predicted: Array, truth: NDArray[Any]) -> dict[str, float]:
    """Return every measure of predictions [n, C], by name."""
    return {m.name: m.value(m.losses(predicted, truth)) for m in METRICS[task]}


def choose_metric(
    task: str, asked: str | None, truths: Sequence[NDArray[Any]], classes: Sequence[str] = ()
) -> tuple[Metric, str]:
    """Return the metric that decides, and why if it is not the usual one.

    `truths` are the test rows of every split. Where a class is rare, accuracy hardly tells a model
    from the most frequent class: AUC decides then, or log loss if a split has no second class.
    """
    one_class = min(len(np.unique(truth)) for truth in truths) < 2
    if asked is not None:
        metric = metric_of(task, asked)
        if asked == "auc" and one_class:
            raise TableError(
                "metric auc needs two classes among the test rows of every split, got one; choose"
                " log_loss"
            )
        return metric, ""
    if task == "classification":
        counts = np.bincount(np.concatenate(truths).astype(np.int64), minlength=len(classes))
        share = float(counts.min() / counts.sum())
        if share < RARE / len(counts):
            metric = metric_of(task, "log_loss" if one_class else "auc")
            rare = classes[int(counts.argmin())]
            return metric, (
                f"{metric.words} decides, because only {share:.1%} of the rows are {rare!r};"
                " --metric changes that"
            ).replace("%", " %")
    return METRICS[task][0], ""
