"""What a run leaves behind (`History`), and what its callbacks are told (`Event`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from rlploss._checks import one_of

AXES = ("step", "epoch", "samples", "seconds")


@dataclass(frozen=True)
class Event:
    """What a callback is told after every evaluation. `model()` returns the network as it is now."""

    step: int
    epoch: float
    samples: int
    seconds: float
    metrics: dict[str, float]
    model: Callable[[], nn.Module]
    replica: int = 0


@dataclass
class History:
    """The curves of one run against step, epoch, samples seen and training seconds.

    One entry per evaluation, the first at step 0. `loss` is the mean training loss over the steps since the entry
    before (nan at step 0); the other columns are the metrics on the validation rows. Seconds count training only,
    not evaluation, callbacks or checkpoints; in a fleet they are those of the whole stack that trained together.

    Example:
        `history["mse"]` is a column, `history.last("mse")` its end, `history.columns` all of them.
    """

    settings: dict[str, Any]
    columns: dict[str, list[float]] = field(default_factory=dict)
    stopped: str = ""  # "budget", "early stopping", "callback" or "diverged"
    best_step: int | None = None  # with early stopping: the step whose weights are restored
    message: str = ""  # what happened, where `stopped` is "diverged"
    model: nn.Module | None = None

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """Return one column as an array."""
        one_of("the column", name, self.columns)
        return np.asarray(self.columns[name], dtype=np.float64)

    def __len__(self) -> int:
        """Return the number of evaluations."""
        return len(self.columns.get("step", ()))

    def last(self, name: str) -> float:
        """Return the last value of one column."""
        return float(self[name][-1])

    def add(self, values: dict[str, float]) -> None:
        """Append one entry; every entry has the same columns."""
        for name, value in values.items():
            self.columns.setdefault(name, []).append(float(value))
