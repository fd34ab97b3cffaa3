"""Evaluate a network during training: metrics on validation rows, early stopping, and the `History`
of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlploss._checks import count, number, one_of
from rlploss._extras import need
from rlploss._files import write_text
from rlploss._values import Value
from rlploss.loss.planes import probe_rows
from rlploss.loss.quadratic import without_autocast
from rlploss.training.objectives import MAE, MSE, CrossEntropy, OnBatches
from rlploss.training.rows import RowTable, modes_kept

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

HIGHER_IS_BETTER = ("accuracy", "f1")
AXES = ("step", "epoch", "samples", "seconds")
_ROWS = 16384  # rows per forward pass

MetricFunction = Callable[[Tensor, Tensor, Tensor], float]
ChosenMetrics = Sequence[str | MetricFunction] | str | MetricFunction | None


# Metrics: predictions and targets [n, C], and features [n, d], -> one number


def accuracy(pred: Tensor, target: Tensor, features: object = None) -> float:
    """Return the share of rows whose largest output is at the largest target, as with one-hot
    rows.
    """
    return float((pred.argmax(1) == target.argmax(1)).double().mean())


def f1(pred: Tensor, target: Tensor, features: object = None) -> float:
    """Return macro F1: the mean of 2tp / (2tp + fp + fn) over the classes that occur in predictions
    or targets.
    """
    classes = torch.arange(pred.shape[1], device=pred.device)
    said, true = (part.argmax(1, keepdim=True) == classes for part in (pred, target))  # [n, C]
    total = said.sum(0) + true.sum(0)  # 2tp + fp + fn
    scores = 2 * (said & true).sum(0).double() / total
    return float(scores[total > 0].mean())


def _mean_of(loss: OnBatches) -> MetricFunction:
    return lambda pred, target, _: float(loss.values(pred, target).mean(dtype=torch.float64))


def _rlp_of(validation: RowTable) -> MetricFunction:
    """Return Table 1's metric ‖P(pred − target)‖² / (n·C), where P projects on the columns of all n
    rows, without an intercept.
    """
    rows = probe_rows(validation.features.unsqueeze(0)).squeeze(0).to(validation.y.dtype)

    def measure(pred: Tensor, target: Tensor, _: object) -> float:
        with without_autocast(pred):
            along = rows @ (pred - target).to(rows.dtype)
        return float(torch.linalg.vector_norm(along, dtype=torch.float64)) ** 2 / target.shape[1]

    return measure


# Each creates its metric for the validation rows.
METRICS: dict[str, Callable[[RowTable], MetricFunction]] = {
    "mse": lambda _: _mean_of(MSE()),
    "mae": lambda _: _mean_of(MAE()),
    "rlp": _rlp_of,
    "accuracy": lambda _: accuracy,
    "f1": lambda _: f1,
    "cross_entropy": lambda _: _mean_of(CrossEntropy()),
}
CLASS_METRICS = ("accuracy", "f1", "cross_entropy")


class Evaluator:
    """The metrics of a run on its validation rows: names from `METRICS`, or functions of (pred,
    target, features).

    Without validation rows it has no metrics.
    """

    def __init__(self, metrics: ChosenMetrics, validation: RowTable | None, classes: bool) -> None:
        self.validation = validation
        self.functions: dict[str, MetricFunction] = {}  # by the names of the columns of the history
        if validation is None:
            if metrics is not None:
                raise ValueError(
                    "metrics are measured on validation rows, got none; pass validation=(X, y)"
                )
            return
        if metrics is None:
            metrics = "accuracy" if classes else "mse"
        for metric in (metrics,) if isinstance(metrics, str) or callable(metrics) else metrics:
            if callable(metric):
                name, function = getattr(metric, "__name__", type(metric).__name__), metric
            else:
                name, function = metric, METRICS[one_of("metrics", metric, METRICS)](validation)
                if metric in CLASS_METRICS and validation.n_outputs == 1:
                    raise ValueError(
                        f"metrics={metric!r} compares the outputs of classes, got one output; give"
                        " the network one for each class, or pass a function of your own"
                    )
            if name in (*AXES, "loss", *self.functions):
                raise ValueError(
                    f"metrics must have names of their own, got {name!r} again; rename the function"
                )
            self.functions[name] = function

    @torch.no_grad()
    def measure(self, model: nn.Module) -> dict[str, float]:
        """Evaluate the network in evaluation mode."""
        if self.validation is None or not self.functions:
            return {}
        with modes_kept(model):
            model.eval()
            pred = torch.cat(
                [model(x).reshape(x.shape[0], -1) for x in torch.split(self.validation.x, _ROWS)]
            )
        seen = pred, self.validation.y, self.validation.features
        return {name: float(function(*seen)) for name, function in self.functions.items()}


@dataclass(frozen=True, repr=False)
class EarlyStopping(Value):
    """Stop when a validation metric has not improved by more than `min_delta` for `patience`
    evaluations.

    With `restore_best` the best weights are restored. `higher_is_better=None` knows the built-in
    metrics; for others lower is better.

    >>> rule = EarlyStopping("accuracy", patience=20)  # for fit(..., early_stopping=rule)
    """

    checks: ClassVar = {"patience": count, "min_delta": partial(number, minimum=0.0)}
    metric: str
    patience: int = 10
    min_delta: float = 0.0
    restore_best: bool = True
    higher_is_better: bool | None = None


class Stopper:
    """Applies `EarlyStopping`, or a patience for the first metric, to one network, and remembers
    the best value.
    """

    def __init__(self, rule: EarlyStopping | int, metrics: Iterable[str]) -> None:
        if not (metrics := tuple(metrics)):
            raise ValueError(
                "early_stopping needs validation rows and a metric, got none; pass"
                " validation=(X, y), not metrics=[]"
            )
        if not isinstance(rule, EarlyStopping):
            rule = EarlyStopping(metrics[0], patience=count("early_stopping", rule))
        one_of("the metric of early_stopping", rule.metric, metrics)
        known, up = rule.metric in HIGHER_IS_BETTER, rule.higher_is_better
        self.rule, self._sign = rule, -1.0 if (known if up is None else up) else 1.0
        # The best value, and the number of evaluations since then.
        self._best, self.waited = math.inf, 0

    def better(self, value: float) -> bool:
        """Record the metric of one evaluation, and return whether it is the best so far."""
        better = self._sign * value < self._best - self.rule.min_delta
        if better:
            self._best = self._sign * value
        self.waited = 0 if better else self.waited + 1
        return better


@dataclass(frozen=True)
class Event:
    """What a callback receives after every evaluation. `model()` returns the network in its current
    state.

    >>> # fit(..., callbacks=[enough]) ends where it is True
    >>> enough = lambda event: event.metrics["mse"] < 0.1
    """

    step: int
    epoch: float
    samples: int
    seconds: float
    metrics: dict[str, float]
    model: Callable[[], nn.Module]
    replica: int = 0


Callback = Callable[[Event], object]


@dataclass(repr=False)
class History:
    """The curves of one run against step, epoch, samples seen and training seconds.

    It has one entry per evaluation, the first at step 0. `loss` is the mean training loss over the
    steps since the previous entry (NaN at step 0). The other columns are metrics on the validation
    rows. Seconds count training only.

    >>> from rlploss import RegressionNet, Steps, fit
    >>> X, y = torch.eye(4, 2), torch.ones(4)
    >>> history = fit(RegressionNet(2), X, y, "mse", budget=Steps(5), engine="torch")
    >>> history["step"].tolist(), history.last("step"), list(history.columns)
    ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 5.0, ['step', 'epoch', 'samples', 'seconds', 'loss'])
    """

    settings: dict[str, Any]
    columns: dict[str, list[float]] = field(default_factory=dict)
    stopped: str = ""  # "budget", "early stopping", "callback" or "diverged"
    best_step: int | None = None  # the step with the best weights, with early stopping
    message: str = ""  # what happened, if `stopped` is "diverged"
    model: nn.Module | None = None

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """Return one column as an array."""
        one_of("the column", name, self.columns)
        return np.asarray(self.columns[name], dtype=np.float64)

    def __len__(self) -> int:
        """Return the number of evaluations."""
        return len(self.columns.get("step", ()))

    def __repr__(self) -> str:
        """Say in three lines what was trained, how far, and how it ended."""
        trained = (
            f"{self.settings.get('objective')}, {self.settings.get('optimizer')},"
            f" {self.settings.get('budget')}"
        )
        if not len(self):
            return f"History of {trained}\n  nothing evaluated yet\n  {self.message or 'running'}"
        ends = ", ".join(
            f"{name} {self.last(name):.4g}" for name in self.columns if name not in AXES
        )
        end = (
            "diverged"
            if self.stopped == "diverged"
            else f"stopped by {self.stopped or 'nothing yet'}"
        )
        way = f"{self.settings.get('engine', '?')} engine, {self.last('seconds'):.3g} s"
        return (
            f"History of {trained}\n"
            f"  step {self.last('step'):,.0f} (epoch {self.last('epoch'):.4g}): {ends}\n"
            f"  {end}; {way}, {len(self)} evaluations"
        )

    def last(self, name: str) -> float:
        """Return the last value of one column."""
        return float(self[name][-1])

    def add(self, values: dict[str, float]) -> None:
        """Append one entry; every entry has the same columns."""
        for name, value in values.items():
            self.columns.setdefault(name, []).append(float(value))

    def to_frame(self) -> pd.DataFrame:
        """Return the columns as a pandas frame, one row per evaluation."""
        need("lab", "History.to_frame", "pandas")
        import pandas as pd

        return pd.DataFrame(self.columns)

    def to_csv(self, path: str | Path) -> None:
        """Write the columns to a file, one line per evaluation, numbers exact."""
        rows = (map(repr, row) for row in zip(*self.columns.values(), strict=True))
        write_text(Path(path), "".join(",".join(row) + "\n" for row in (self.columns, *rows)))

    def plot(self, *names: str, against: str = "step", ax: Axes | None = None) -> Axes:
        """Plot the named columns (default: all but the axes) against one of the axes, and return
        matplotlib's axes.
        """
        need("lab", "History.plot", "matplotlib")
        from matplotlib.figure import Figure

        one_of("against", against, AXES)
        ax = Figure(figsize=(6, 4), layout="constrained").subplots() if ax is None else ax
        drawn = names or [name for name in self.columns if name not in AXES]
        for name in drawn:
            ax.plot(self[against], self[name], label=name)
        above = all(
            (values[np.isfinite(values)] > 0).all() for values in map(self.__getitem__, drawn)
        )
        ax.set(xlabel=against, yscale="log" if above else "linear")
        ax.legend()
        return ax
