"""Run one training job from its start or checkpoint to its end: evaluate, stop, save
checkpoints.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlploss._checks import one_of
from rlploss._extras import need
from rlploss._progress import Reporter
from rlploss._values import Value, plain
from rlploss.training import checkpoint as files
from rlploss.training.engine import Engine, ModuleEngine, Outcome
from rlploss.training.evaluation import AXES, Callback, EarlyStopping, Event, History, Stopper
from rlploss.training.feed import stream
from rlploss.training.job import Budget, Epochs, Job, OptimizerValue, Steps, as_budget
from rlploss.training.kernel_engine import KernelEngine, kernel_chain
from rlploss.training.objectives import RLP
from rlploss.training.rows import modes_kept

ENGINES = ("auto", "kernel", "torch")
CHECKPOINT_SECONDS = 30.0

Schedule = Callable[[int, int], float]


class DivergenceError(RuntimeError):
    """The training loss became NaN or infinite."""


SCHEDULES: dict[str, Callable[[NDArray[np.int64], int], NDArray[np.float64]]] = {
    "cosine": lambda steps, total: 0.5 * (1 + np.cos(np.pi * steps / total)),
    "linear": lambda steps, total: 1 - steps / total,
}


def as_schedule(name: str, value: object) -> object:
    """Return `value` if it is a function, or the name of a schedule."""
    if callable(value) and not isinstance(value, type):  # no class of a scheduler
        return value
    return one_of(name, value, SCHEDULES, ", or a function (step, total) -> factor of lr")


@dataclass(frozen=True, repr=False)
class Supervision(Value):
    """The length of a run, and how it is evaluated, stopped and saved."""

    checks: ClassVar = {
        "budget": as_budget,
        "schedule": as_schedule,
        "evaluate_every": as_budget,
        "on_divergence": partial(one_of, options=("raise", "record")),
        "checkpoint_every": as_budget,
        "engine": partial(one_of, options=ENGINES),
    }
    budget: Budget
    schedule: str | Schedule | None = None
    evaluate_every: Budget | None = None
    callbacks: tuple[Callback, ...] = ()
    early_stopping: EarlyStopping | int | None = None
    on_divergence: str = "raise"
    checkpoint: str | Path | None = None  # a file; for a fleet a folder with a file per replica
    checkpoint_every: Budget | None = None
    engine: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checkpoint_every is not None and self.checkpoint is None:
            raise ValueError(
                "checkpoint_every needs a place to write to, got none; pass checkpoint=PATH"
            )

    def path(self, replica: int | None) -> Path | None:
        """Return the path of a run's checkpoint, or None."""
        if self.checkpoint is None:
            return None
        return Path(self.checkpoint) / ("" if replica is None else f"replica-{replica:04}.pt")

    def rate_factors(self, first: int, last: int, total: int) -> NDArray[np.float64] | None:
        """Return the factors of the learning rates of steps first..last out of `total`; None means
        1.
        """
        if self.schedule is None:
            return None
        steps = np.arange(first, last)
        if isinstance(self.schedule, str):
            return SCHEDULES[self.schedule](steps, total)
        factors = np.array([self.schedule(int(step), total) for step in steps], dtype=np.float64)
        if not np.isfinite(factors).all():  # None has become nan
            step = int(steps[np.isfinite(factors).argmin()])
            raise ValueError(
                "a schedule must return a finite factor of lr, got"
                f" {self.schedule(step, total)!r} at step {step}; return 1.0 where lr is to stay"
            )
        return factors


# Attributes of a loop that a checkpoint stores.
_OF_LOOP = ("step", "seconds", "loss_count", "best")
# Attributes of its history that a checkpoint stores.
_OF_HISTORY = ("columns", "stopped", "best_step")


class Loop:
    """The state of one run. `next()` returns a stretch of steps to take, `record` takes in its
    outcome.

    At the end it has its `history`, and the optimiser's `state`, with which another `Job` can
    continue.
    """

    def __init__(
        self, job: Job, watch: Supervision, reporter: Reporter, number: int | None
    ) -> None:
        self.job, self.watch, self.reporter, self.number = job, watch, reporter, number
        self.total_steps = watch.budget.steps(job.steps_per_epoch)
        usual = (
            Epochs(1) if isinstance(watch.budget, Epochs) else Steps(-(-self.total_steps // 100))
        )
        self._evaluate_every = (watch.evaluate_every or usual).steps(job.steps_per_epoch)
        self._save_every = (watch.checkpoint_every or watch.budget).steps(job.steps_per_epoch)
        path = watch.path(number)
        # A checkpoint holds the weights, the best weights, and the optimiser's moments in float64.
        most = 2**28 + 16 * sum(weights.nbytes for weights in job.model.parameters())
        self._file = None if path is None else files.CheckpointFile(path, most)
        by_clock = path is not None and watch.checkpoint_every is None
        self._save_seconds = CHECKPOINT_SECONDS if by_clock else math.inf
        self._save_at = time.perf_counter() + self._save_seconds
        if path is not None and getattr(job.objective, "has_generator", False):
            raise ValueError(
                f"a checkpoint cannot keep the generator of a {type(job.objective).__name__}; leave"
                " out one of the two"
            )
        stopping = watch.early_stopping
        self.stopper = None if stopping is None else Stopper(stopping, job.evaluator.functions)
        self.step, self.seconds, self.loss_count = 0, 0.0, 0
        self.best: dict[str, Tensor] | None = None  # the weights of the best evaluation
        self.engine, reason = self._choose_engine()
        settings = {
            "objective": job.objective,
            "optimizer": job.optimizer,
            "clip_grad": job.clip_grad,
            "seed": job.seed,
            "n_rows": job.table.n_rows,
            "budget": watch.budget,
            "schedule": watch.schedule,
            "engine": self.engine.name,
            "engine_reason": reason,
        }
        self.history = History(
            settings, best_step=None if self.stopper is None else 0, model=job.model
        )
        self._modes = ExitStack()
        self._modes.enter_context(modes_kept(job.model))
        # Dropout and a user's loss draw from torch's default generators, which depend on the seed
        # from here on.
        device = job.table.x.device
        cuda = [torch.cuda.default_generators[device.index]] if device.type == "cuda" else []
        self._generators = [torch.default_generator, *cuda]
        for generator in self._generators:
            generator.manual_seed(stream(job.seed, "model").initial_seed())

    def _choose_engine(self) -> tuple[Engine, str]:
        """Choose the engine, and say why. The engine of a checkpoint, or of earlier training, comes
        first.
        """
        job, total, asked = self.job, self.total_steps, self.watch.engine
        earlier = job.state["engine"] if job.state else self._file.engine if self._file else None
        wanted = earlier if asked == "auto" and earlier in ENGINES else asked
        reason = "as asked" if wanted == asked else "its earlier training used it"
        if wanted == "kernel":
            need("kernel", 'engine="kernel"', "numba")
        if wanted != "torch":
            chain = kernel_chain(job, any_size=wanted == "kernel")
            if not isinstance(chain, str):
                why = "a dense chain on the CPU" if wanted == "auto" else reason
                engine = KernelEngine(job, total, chain)
                return engine, why + engine.note
            if asked == "kernel":
                raise ValueError(
                    f'engine="kernel" is not possible here: {chain}; use engine="auto" or "torch"'
                )
            reason = chain  # if torch cannot continue a checkpoint, loading it raises the error
        return ModuleEngine(job, total), reason

    # The stretches

    def begin(self) -> None:
        """Start the run, or continue from the checkpoint."""
        if self.job.state is not None:
            self.engine.load_state_dict(self.job.state)
        if self._file is not None:
            threads = torch.get_num_threads() if self.engine.name == "torch" else 1
            where = files.environment(self.job.table.x.device, threads)
            state = self._file.load(self._spec(), where)
            if state is not None:
                with files.refusing(self._file.path):
                    self._restore(state)
        self.reporter.add(self.step, resumed=True)
        if not self.history.stopped:
            if not self.job.model.training:  # otherwise parts in evaluation mode stay in it
                self.job.model.train()
            if self.step == 0:
                self._evaluate()

    def next(self) -> Callable[[], Outcome] | None:
        """Return the next stretch of steps as a function to call, or None at the end of the run."""
        if self.history.stopped:
            return None
        due = (
            (self.step // every + 1) * every for every in (self._evaluate_every, self._save_every)
        )
        block, spans = self.engine.feed.window(self.step, min(self.total_steps, *due))
        factors = self.watch.rate_factors(self.step, self.step + len(spans), self.total_steps)
        deadline = min(self.reporter.due, self._save_at)
        return partial(self.engine.run, block, spans, factors, deadline)

    def record(self, outcome: Outcome) -> None:
        """Record the outcome of a stretch; evaluate, save and stop if it is time to."""
        self.step += outcome.steps
        self.loss_count += outcome.steps
        self.seconds += outcome.seconds
        end = self.step == self.total_steps
        if outcome.bad is not None:
            self._diverged(outcome.bad)
        elif end or self.step % self._evaluate_every == 0:
            self._evaluate()
            if end and not self.history.stopped:
                self.history.stopped = "budget"
        if self.history.stopped and self.best is not None:
            self.job.model.load_state_dict(self.best)
        due = self.step % self._save_every == 0 or time.perf_counter() >= self._save_at
        if self._file is not None and outcome.bad is None and (self.history.stopped or due):
            self._save(self._file)
        left = self.total_steps - self.step if self.history.stopped else 0
        self.reporter.add(outcome.steps + left)

    def leave(self) -> None:
        """Store the optimiser's state, release the engine, whose factors may be large, and restore
        the modes of the module's parts.
        """
        self.state = self.engine.state_dict()
        del self.engine
        self._modes.close()

    def _evaluate(self) -> None:
        """Measure, record the entry, call the callbacks, and decide whether to stop."""
        job, history, stopper = self.job, self.history, self.stopper
        mean = self.engine.total / self.loss_count if self.loss_count else math.nan
        self.loss_count, self.engine.total = 0, 0.0
        event = Event(
            self.step,
            epoch=self.step / job.steps_per_epoch,
            samples=job.objective.samples(self.step, job.table.n_rows),
            seconds=self.seconds,
            metrics={"loss": mean, **job.evaluator.measure(job.model)},
            model=lambda: job.model,
            replica=self.number or 0,
        )
        history.add({name: getattr(event, name) for name in AXES} | event.metrics)
        if stopper is not None:
            if stopper.better(event.metrics[stopper.rule.metric]):
                history.best_step = self.step
                if stopper.rule.restore_best:
                    self.best = copy.deepcopy(job.model.state_dict())
            if stopper.waited >= stopper.rule.patience:
                history.stopped = "early stopping"
        callbacks = self.watch.callbacks
        with modes_kept(job.model) if callbacks else nullcontext():
            answers = [callback(event) for callback in callbacks]
        if not all(
            str(getattr(call, "__module__", "")).startswith("rlploss.") for call in callbacks
        ):
            self.engine.trusted = 0  # a callback of the user may have changed the loss
        asked = any(isinstance(answer, bool | np.bool_) and answer for answer in answers)
        if asked and not history.stopped:
            history.stopped = "callback"

    def _diverged(self, value: float) -> None:
        """Report the step at which the loss stopped being finite, and the most likely cause; the
        data are known to be finite.
        """
        job, objective, largest = self.job, self.job.objective, self.job.table.largest()
        if largest > 1e4:
            cause = f"values as large as {largest:.3g} in the data: standardise features and target"
        elif isinstance(objective, RLP) and objective.planes.has_points and objective.ridge == 0:
            cause = (
                f'the heavy tail of probe="{objective.probe}": use larger subsets, a ridge, or'
                " lower lr"
            )
        else:
            cause = "a learning rate that is too high: lower lr, or set clip_grad"
        replica = "" if self.number is None else f"replica {self.number}: "
        place = f"step {self.step} (epoch {self.step / job.steps_per_epoch:.2f})"
        if isinstance(job.optimizer, OptimizerValue):
            factors = self.watch.rate_factors(self.step, self.step + 1, self.total_steps)
            place += f" with lr {job.optimizer.lr * (1 if factors is None else factors[0]):g}"
        message = f"{replica}the loss became {value} at {place}; likely cause: {cause}"
        if self.watch.on_divergence == "raise":
            raise DivergenceError(message)
        self.history.stopped, self.history.message = "diverged", message

    # Checkpoints

    def _spec(self) -> dict[str, Any]:
        """Describe this run as plain data, so that a checkpoint can tell runs apart."""
        job, settings = self.job, self.history.settings
        return {
            **{name: plain(settings[name]) for name in settings if name != "engine_reason"},
            **job.describe(),
            "evaluate_every": self._evaluate_every,
            "early_stopping": None if self.stopper is None else plain(self.stopper.rule),
            "optimizer_settings": []
            if isinstance(job.optimizer, OptimizerValue)
            else list(self.engine.settings),
        }

    def _save(self, file: files.CheckpointFile) -> None:
        file.save(
            {
                **{name: getattr(self, name) for name in _OF_LOOP},
                **{name: getattr(self.history, name) for name in _OF_HISTORY},
                "loss_sum": self.engine.total,
                "model": self.job.model.state_dict(),
                "engine": self.engine.state_dict(),
                "random": [generator.get_state() for generator in self._generators],
            }
        )
        self._save_at = time.perf_counter() + self._save_seconds

    def _restore(self, state: dict[str, Any]) -> None:
        for names, place in ((_OF_LOOP, self), (_OF_HISTORY, self.history)):
            vars(place).update({name: state[name] for name in names})
        self.engine.total = state["loss_sum"]
        self.job.model.load_state_dict(state["model"])
        if self.stopper is not None:
            for value in self.history.columns[self.stopper.rule.metric]:
                self.stopper.better(value)
        if not self.history.stopped:
            self.engine.load_state_dict(state["engine"])
        for generator, bits in zip(self._generators, state["random"], strict=True):
            generator.set_state(bits)
