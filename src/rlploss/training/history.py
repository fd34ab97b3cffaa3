"""What a run leaves behind (`History`), and what its callbacks are told (`Event`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from rlploss._checks import one_of
from rlploss._extras import need
from rlploss._files import write_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

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


Callback = Callable[[Event], object]


@dataclass(repr=False)
class History:
    """The curves of one run against step, epoch, samples seen and training seconds.

    One entry per evaluation, the first at step 0. `loss` is the mean training loss over the steps since the entry
    before (nan at step 0); the other columns are the metrics on the validation rows. Seconds count training only,
    not evaluation, callbacks or checkpoints.

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

    def __repr__(self) -> str:
        """What was trained, how far, and how it ended, in three lines."""
        trained = f"{self.settings.get('objective')}, {self.settings.get('optimizer')}, {self.settings.get('budget')}"
        if not len(self):
            return f"History of {trained}\n  nothing evaluated yet\n  {self.message or 'running'}"
        ends = ", ".join(f"{name} {self.last(name):.4g}" for name in self.columns if name not in AXES)
        way = f"{self.settings.get('engine', '?')} engine, {self.last('seconds'):.3g} s"
        return (
            f"History of {trained}\n"
            f"  step {self.last('step'):,.0f} (epoch {self.last('epoch'):.4g}): {ends}\n"
            f"  stopped by {self.stopped or 'nothing yet'}; {way}, {len(self)} evaluations"
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
        lines = [
            ",".join(self.columns),
            *(",".join(map(repr, row)) for row in zip(*self.columns.values(), strict=True)),
        ]
        write_text(Path(path), "\n".join(lines) + "\n")

    def plot(self, *names: str, against: str = "step", ax: Axes | None = None) -> Axes:
        """Draw columns, all but the axes if none is named, against one of the axes; return matplotlib's axes."""
        need("lab", "History.plot", "matplotlib")
        from matplotlib.figure import Figure

        one_of("against", against, AXES)
        ax = Figure(figsize=(6, 4), layout="constrained").subplots() if ax is None else ax
        for name in names or [name for name in self.columns if name not in AXES]:
            ax.plot(self[against], self[name], label=name)
        positive = all(np.nanmin(self[name]) > 0 for name in (names or ("loss",)))
        ax.set(xlabel=against, yscale="log" if positive else "linear")
        ax.legend()
        return ax
