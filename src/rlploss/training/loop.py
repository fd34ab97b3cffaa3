"""`Loop`: one job from its start, or its checkpoint, to its end: evaluations, stopping, divergence, checkpoints."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlploss import distributed
from rlploss._checks import one_of
from rlploss._progress import Reporter
from rlploss.training import checkpoint as files
from rlploss.training.engine import Engine, Outcome
from rlploss.training.evaluation import Callback, EarlyStopping, Event, History, Stopper
from rlploss.training.feed import stream
from rlploss.training.job import Budget, Epochs, Job, OptimizerValue, Steps, as_budget
from rlploss.training.objectives import RLP
from rlploss.training.rows import modes_kept

CHECKPOINT_SECONDS = 30.0


class DivergenceError(RuntimeError):
    """The training loss became NaN or infinite."""


@dataclass(frozen=True)
class Supervision:
    """How runs are watched: the same for all jobs of a fleet."""

    evaluate_every: Budget | None = None
    callbacks: tuple[Callback, ...] = ()
    early_stopping: EarlyStopping | int | None = None
    on_divergence: str = "raise"
    checkpoint: str | Path | None = None  # a file, or a folder with one for each replica of a fleet
    checkpoint_every: Budget | None = None

    def __post_init__(self) -> None:
        one_of("on_divergence", self.on_divergence, ("raise", "record"))
        if self.checkpoint_every is not None and self.checkpoint is None:
            raise ValueError("checkpoint_every needs a place to write to, got none; pass checkpoint=PATH")

    def path(self, replica: int | None) -> Path | None:
        """Where the checkpoint of a run is, if it has one."""
        if self.checkpoint is None:
            return None
        return Path(self.checkpoint) / ("" if replica is None else f"replica-{replica:04}.pt")


class Loop:
    """The state of one run. `next()` gives a stretch of steps to take, `took` notes how it went."""

    def __init__(
        self, job: Job, engine: Engine, watch: Supervision, reporter: Reporter, reason: str, number: int | None
    ) -> None:
        self.job, self.engine, self.watch, self.reporter, self.number = job, engine, watch, reporter, number
        self.share = distributed.current()
        stopping = watch.early_stopping
        self.stopper = None if stopping is None else Stopper(stopping, job.evaluator.functions)
        self.step, self.seconds, self.loss_count = 0, 0.0, 0
        self.best: dict[str, Tensor] | None = None  # the weights of the best evaluation
        self.history = History({**job.settings(), "engine": engine.name, "engine_reason": reason}, model=job.model)
        every = watch.evaluate_every
        if every is None:  # every epoch of an epoch budget, a hundredth of a step budget
            every = Epochs(1) if isinstance(job.budget, Epochs) else Steps(-(-job.total_steps // 100))
        self._evaluate_every = as_budget("evaluate_every", every).steps(job.steps_per_epoch)
        self._path = watch.path(number)
        by_clock = watch.checkpoint_every is None
        save_every = job.budget if by_clock else watch.checkpoint_every
        self._save_every = as_budget("checkpoint_every", save_every).steps(job.steps_per_epoch)
        saves = by_clock and self._path is not None and self.share.rank == 0
        self._save_seconds = CHECKPOINT_SECONDS if saves else math.inf
        self._save_at = time.perf_counter() + self._save_seconds
        if self._path is not None and getattr(job.objective, "has_generator", False):
            kind = type(job.objective).__name__
            raise ValueError(f"a checkpoint cannot keep the generator of a {kind}; leave out one of the two")
        self._modes = ExitStack()
        self._modes.enter_context(modes_kept(job.model))
        # dropout, and a loss of one's own, draw from torch's default generators: they depend on the seed from here on
        self._generators = [torch.default_generator]
        device = job.table.x.device
        if device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[device.index])
        purpose = "model" if self.share.rank == 0 else f"model {self.share.rank}"  # other rows, other dropout
        for generator in self._generators:
            generator.manual_seed(stream(job.seed, purpose).initial_seed())

    # The stretches

    def begin(self) -> None:
        """Start, or go on from the checkpoint."""
        if self.job.engine_state is not None:
            self.engine.load_state_dict(self.job.engine_state)
        spec: dict[str, Any] = {}
        if self.share.world > 1 or self._path is not None:
            rule = None if self.stopper is None else str(self.stopper.rule)
            watched = {"evaluate_every": self._evaluate_every, "early_stopping": rule, "engine": self.engine.name}
            spec = {**self.job.describe(), **watched}
            if not isinstance(self.job.optimizer, OptimizerValue):
                spec["optimizer_settings"] = list(self.engine.settings)
        if self.share.world > 1:
            distributed.agree(spec)
            distributed.share_model(self.job.model)
        if self._path is not None:
            threads = torch.get_num_threads() if self.engine.name == "torch" else 1
            where = files.environment(self.job.table.x.device, threads, self.share.world)
            self._file = files.CheckpointFile(self._path, spec, where)
            state = self._file.load() if self.share.world == 1 else distributed.by_first(self._file.load)
            if state is not None:
                with files.refusing(self._path):
                    self._restore(state)
        self.reporter.add(self.step, resumed=True)
        if not self.history.stopped:
            if not self.job.model.training:  # else parts that are in evaluation mode stay there
                self.job.model.train()
            if self.step == 0:
                self._evaluate()

    def next(self) -> Callable[[], Outcome] | None:
        """The next stretch of steps, as a function to call; None at the end of the run."""
        if self.history.stopped:
            return None
        due = ((self.step // every + 1) * every for every in (self._evaluate_every, self._save_every))
        window = self.engine.feed.window(self.step, min(self.job.total_steps, *due))
        deadline = min(self.reporter.due, self._save_at)
        return lambda: self.engine.run(window, deadline)

    def took(self, outcome: Outcome) -> None:
        """Note how a stretch went: evaluate, save and stop where it is time to."""
        self.step += outcome.steps
        self.loss_count += outcome.steps
        self.seconds += outcome.seconds
        end = self.step == self.job.total_steps
        if outcome.bad is not None:
            self._diverged(outcome.bad)
        elif end or self.step % self._evaluate_every == 0:
            self._evaluate()
            if end and not self.history.stopped:
                self.history.stopped = "budget"
        if self.history.stopped:
            if self.stopper is not None:
                self.history.best_step = self.stopper.best_step
            if self.best is not None:
                self.job.model.load_state_dict(self.best)
        due = self.step % self._save_every == 0 or time.perf_counter() >= self._save_at
        if self._path is not None and outcome.bad is None and (self.history.stopped or due):
            self._save()
        self.reporter.add(outcome.steps + (self.job.total_steps - self.step if self.history.stopped else 0))

    def leave(self) -> None:
        """Put back what was lent: the module owns its weights again, and its parts are in the modes they were in."""
        self.engine.end()
        self._modes.close()

    def _evaluate(self) -> None:
        """Measure, note, tell the callbacks, and see whether to stop."""
        measured = self.job.evaluator.measure(self.job.model)
        mean = self.engine.total / self.loss_count if self.loss_count else math.nan
        self.loss_count, self.engine.total = 0, 0.0
        step, history, found = self.step, self.history, {"loss": mean, **measured}
        epoch, samples = step / self.job.steps_per_epoch, self.job.objective.samples(step, self.job.table.n_rows)
        history.add({"step": step, "epoch": epoch, "samples": samples, "seconds": self.seconds, **found})
        if self.stopper is not None:
            rule = self.stopper.rule
            if self.stopper.better(measured[rule.metric], step) and rule.restore_best:
                self.best = copy.deepcopy(self.job.model.state_dict())
            if self.stopper.waited >= rule.patience:
                history.stopped = "early stopping"
        event = Event(step, epoch, samples, self.seconds, found, lambda: self.job.model, self.number or 0)
        with modes_kept(self.job.model) if self.watch.callbacks else nullcontext():
            answers = [callback(event) for callback in self.watch.callbacks]
        asked = any(isinstance(answer, bool | np.bool_) and answer for answer in answers)
        if self.watch.callbacks and self.share.world > 1:  # one process that stops stops all
            asked = distributed.any_of(asked)
        if asked and not history.stopped:
            history.stopped = "callback"

    def _diverged(self, value: float) -> None:
        """Say where the loss was lost and what is most likely to blame. The data were finite at the start."""
        job, objective = self.job, self.job.objective
        largest = job.table.largest()
        if largest > 1e4:
            cause = f"values as large as {largest:.3g} in the data: standardise features and target"
        elif isinstance(objective, RLP) and objective.probe in ("draw", "expected") and objective.ridge == 0:
            cause = f'the heavy tail of probe="{objective.probe}": use larger subsets, a ridge, or lower lr'
        else:
            cause = "a learning rate that is too high: lower lr, or set clip_grad"
        rate = getattr(job.optimizer, "lr", None)
        with_rate = "" if rate is None else f" with lr {rate * float(job.rate_factors(self.step, self.step + 1)[0]):g}"
        replica = "" if self.number is None else f"replica {self.number}: "
        place = f"step {self.step} (epoch {self.step / job.steps_per_epoch:.2f})"
        message = f"{replica}the loss became {value} at {place}{with_rate}; likely cause: {cause}"
        if self.watch.on_divergence == "raise":
            raise DivergenceError(message)
        self.history.stopped, self.history.message = "diverged", message

    # Checkpoints

    def _save(self) -> None:
        if self.share.rank > 0:
            return
        state = {name: getattr(self, name) for name in ("step", "seconds", "loss_count", "best")}
        state |= {name: getattr(self.history, name) for name in ("columns", "stopped", "best_step")}
        weights = {"model": self.job.model.state_dict(), "engine": self.engine.state_dict()}
        random = [generator.get_state() for generator in self._generators]
        self._file.save({**state, **weights, "random": random, "loss_sum": self.engine.total})
        self._save_at = time.perf_counter() + self._save_seconds

    def _restore(self, state: dict[str, Any]) -> None:
        self.step, self.seconds, self.loss_count = state["step"], state["seconds"], state["loss_count"]
        self.best, self.engine.total = state["best"], state["loss_sum"]
        if self.best is not None:
            self.job.model.load_state_dict(self.best)  # so that weights of another model are refused now
        self.job.model.load_state_dict(state["model"])
        for name in ("columns", "stopped", "best_step"):
            setattr(self.history, name, state[name])
        if self.stopper is not None:
            for step, value in zip(self.history["step"], self.history[self.stopper.rule.metric], strict=True):
                self.stopper.better(float(value), int(step))
        if not self.history.stopped:
            self.engine.load_state_dict(state["engine"])
        if self.share.rank == 0:  # the others' were not kept
            for generator, bits in zip(self._generators, state["random"], strict=True):
                generator.set_state(bits)
