"""What watches a run: early stopping, divergence, progress with time left."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from rlploss._checks import count, number, one_of
from rlploss.training.metrics import HIGHER_IS_BETTER
from rlploss.training.recipes import Recipe
from rlploss.training.rows import AnyRows


class DivergenceError(RuntimeError):
    """The training loss became NaN or infinite."""


def divergence_message(recipe: Recipe, rows: AnyRows, value: float, step: int, lr: float) -> str:
    """Say where the loss was lost and what is most likely to blame. The data were finite at the start."""
    largest = rows.largest()
    if largest > 1e4:
        cause = f"values as large as {largest:.3g} in the data: standardise features and target"
    elif recipe.probe in ("draw", "expected") and recipe.ridge == 0:
        cause = f'the heavy tail of probe="{recipe.probe}": use larger subsets, a ridge, or lower lr'
    else:
        cause = "a learning rate that is too high: lower lr, or set clip_grad"
    epoch = step / recipe.steps_per_epoch
    return f"the loss became {value} at step {step} (epoch {epoch:.2f}) with lr {lr:g}; likely cause: {cause}"


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


@dataclass(frozen=True)
class Progress:
    """How far a run is. `remaining` is the time left in seconds as the pace so far predicts."""

    step: int
    total_steps: int
    elapsed: float
    remaining: float


ProgressFunction = Callable[[Progress], None]


class Reporter:
    """Calls a function, or writes to a stream, a few times a second (on a terminal) or every ten seconds."""

    def __init__(self, progress: bool | ProgressFunction, total: int, stream: TextIO | None = None) -> None:
        self._function = progress if callable(progress) else None
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty() if self._function is None else False
        self.on = bool(progress)
        self.every = 0.25 if self._terminal or self._function is not None else 10.0
        self._total, self._from, self._started = total, 0, time.perf_counter()
        self.due = time.perf_counter() + self.every if self.on else math.inf

    def start_at(self, step: int) -> None:
        """A resumed run has steps behind it that took no time here."""
        self._from = step

    def tell(self, step: int, *, last: bool = False) -> None:
        """Report if it is time to, or if this is the end."""
        now = time.perf_counter()
        if not self.on or (now < self.due and not last):
            return
        self.due = now + self.every
        elapsed = now - self._started
        done = step - self._from
        remaining = elapsed / done * (self._total - step) if done else math.inf
        if self._function is not None:
            self._function(Progress(step, self._total, elapsed, 0.0 if last else remaining))
            return
        left = "done" if last else f"{clock(remaining)} left"
        line = f"step {step}/{self._total} ({step / self._total:.0%}), {clock(elapsed)} elapsed, {left}"
        end = "\n" if last or not self._terminal else ""
        self._stream.write(f"\r{line:<78}{end}" if self._terminal else line + "\n")
        self._stream.flush()


def clock(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
