"""One network in training: the loop behind `fit`, its evaluations and its checkpoints."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from rlploss import distributed
from rlploss.training import checkpoints
from rlploss.training.budget import Budget, as_budget
from rlploss.training.draws import stream
from rlploss.training.feeds import Feed
from rlploss.training.history import Event, History
from rlploss.training.monitors import DivergenceError, EarlyStopping, Reporter, divergence_message, make_stopper
from rlploss.training.recipes import Schedule, learning_rate_factor
from rlploss.training.rows import Rows
from rlploss.training.tasks import Task, evaluation_interval
from rlploss.training.updates import Stepper
from rlploss.training.windows import WindowFeed, needs_windows

Callback = Callable[[Event], object]
CHECKPOINT_SECONDS = 30.0


class Run:
    """The state of one run and the loop that moves it on."""

    def __init__(
        self,
        task: Task,
        *,
        optimizer: Optimizer,
        schedule: str | Schedule | None,
        evaluate_every: Budget | tuple[int, str] | None,
        callbacks: tuple[Callback, ...],
        early_stopping: EarlyStopping | int | None,
        on_divergence: str,
        reporter: Reporter,
        checkpoint: Path | None,
        checkpoint_every: Budget | tuple[int, str] | None,
    ) -> None:
        model, recipe, evaluator = task.model, task.recipe, task.evaluator
        self.task, self.model, self.rows, self.recipe, self.evaluator = (task, model, task.rows, recipe, evaluator)
        self.optimizer, self.schedule, self.callbacks = optimizer, schedule, callbacks
        self.stepper = Stepper(optimizer, recipe)
        self.share = distributed.current()
        self.feed = _make_feed(task, self.share)
        self.stopper = make_stopper(early_stopping, evaluator.names)
        self.on_divergence = on_divergence
        self.reporter = reporter
        self.step = 0
        self.seconds = 0.0
        self.loss_sum, self.loss_count = 0.0, 0
        self.best: dict[str, Tensor] | None = None  # the weights of the best evaluation
        self.history = History({**recipe.describe(), "path": "plain"}, model=model)
        self._evaluate_every = evaluation_interval(evaluate_every, recipe)
        self._base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._path = checkpoint
        self._save_every = 0  # steps; 0 goes by the clock
        if checkpoint_every is not None:
            self._save_every = as_budget("checkpoint_every", checkpoint_every).steps(recipe.steps_per_epoch)
        self._saved_at = time.perf_counter()

    # The loop

    def go(self) -> History:
        """Train to the end of the budget, from the start or from the checkpoint.

        Dropout and its like draw from torch's default generator: it is lent to the run and put back afterwards.
        """
        device = self.rows.device
        training = self.model.training
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            # processes have different rows, so their dropout differs too
            purpose = "model" if self.share.rank == 0 else f"model {self.share.rank}"
            source = stream(self.recipe.seed, purpose).initial_seed()
            for generator in _default_generators(device):
                generator.manual_seed(source)
            try:
                return self._go()
            finally:
                self.model.train(training)

    def _go(self) -> History:
        if self.share.world > 1 or self._path is not None:
            self._spec = self._describe()
        if self.share.world > 1:
            distributed.agree(self._spec)
            distributed.share_model(self.model)
        if self._path is not None:
            self._environment = checkpoints.environment(self.rows.device, torch.get_num_threads())
            self._environment["processes"] = str(self.share.world)
            self._load(self._path)
        self.reporter.start_at(self.step)
        if self.history.stopped:
            return self.history
        self.model.train()
        if len(self.history) == 0:
            self._evaluate()
        total = self.recipe.total_steps
        while self.step < total and not self.history.stopped:
            try:
                self._stretch(self._next_stop())
            except DivergenceError as error:
                if self.on_divergence == "raise":
                    raise
                self.history.stopped, self.history.message = "diverged", str(error)
                return self.history
            if self.step % self._evaluate_every == 0 or self.step == total:
                self._evaluate()
            self.reporter.tell(self.step)
            if self.step == total and not self.history.stopped:
                self.history.stopped = "budget"
            if self.history.stopped:
                self._finish()
            first = self.share.rank == 0  # all have the same weights
            if first and self._path is not None and (self.history.stopped or self._due()):
                self._save(self._path)
        self.reporter.tell(self.step, last=True)
        return self.history

    def _next_stop(self) -> int:
        stop = min(self.recipe.total_steps, (self.step // self._evaluate_every + 1) * self._evaluate_every)
        if self._save_every:
            stop = min(stop, (self.step // self._save_every + 1) * self._save_every)
        return stop

    def _due(self) -> bool:
        """Whether a checkpoint is due."""
        if self._save_every:
            return self.step % self._save_every == 0
        return time.perf_counter() - self._saved_at >= CHECKPOINT_SECONDS

    def _stretch(self, stop: int) -> None:
        """Steps up to `stop`, or until it is time to report or to save."""
        deadline = self.reporter.due
        if self._path is not None and not self._save_every and self.share.rank == 0:
            deadline = min(deadline, self._saved_at + CHECKPOINT_SECONDS)
        per_epoch = self.recipe.steps_per_epoch
        started = time.perf_counter()
        try:
            while self.step < stop:
                position = self.step % per_epoch
                if position == 0:
                    self.feed.begin_epoch()
                if not self._steps(position, min(per_epoch, position + stop - self.step), deadline):
                    break
        finally:
            self.seconds += time.perf_counter() - started

    def _steps(self, first: int, last: int, deadline: float) -> bool:
        """Steps first..last of the current epoch; False if the deadline passed on the way."""
        model, feed, stepper, parameters = self.model, self.feed, self.stepper, self._parameters
        clip, timed, together = self.recipe.clip_grad, deadline < math.inf, self.share.world > 1
        for position in range(first, last):
            if self.schedule is not None:
                self._set_lr()
            inputs = feed.inputs(position)
            for parameter in parameters:
                parameter.grad = None
            if inputs.shape[0]:
                pred = model(inputs)
                flat = pred.detach()
                if flat.ndim != 2:  # [b, C] for the objective, whatever the network's own output shape
                    flat = flat.reshape(flat.shape[0], -1)
                value, back = feed.score(position, flat)
                pred.backward(back if pred.ndim == 2 else back.reshape(pred.shape))
            else:  # other processes have all rows of this step
                value = inputs.new_zeros(())
            if together:
                value = distributed.add_up(value, parameters)
            number = value.item()
            if not math.isfinite(number):
                lr = float(self.optimizer.param_groups[0]["lr"])
                raise DivergenceError(divergence_message(self.recipe, self.rows, number, self.step, lr))
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
            stepper.step()
            self.step += 1
            self.loss_sum += number
            self.loss_count += 1
            if timed and time.perf_counter() >= deadline:
                return False
        return True

    def _set_lr(self) -> None:
        factor = learning_rate_factor(self.schedule, self.step, self.recipe.total_steps)
        for group, base in zip(self.optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base * factor

    def _evaluate(self) -> None:
        """Measure, note, tell the callbacks, and see whether to stop."""
        measured = self.evaluator.measure(self.model)
        mean = self.loss_sum / self.loss_count if self.loss_count else math.nan
        self.loss_sum, self.loss_count = 0.0, 0
        step, recipe = self.step, self.recipe
        epoch, samples = step / recipe.steps_per_epoch, recipe.samples(step)
        axes = {"step": step, "epoch": epoch, "samples": samples, "seconds": self.seconds}
        self.history.add({**axes, "loss": mean, **measured})
        if self.stopper is not None:
            if self.stopper.better(measured, step) and self.stopper.rule.restore_best:
                self.best = copy.deepcopy(self.model.state_dict())
            if self.stopper.done:
                self.history.stopped = "early stopping"
        event = Event(step, epoch, samples, self.seconds, {"loss": mean, **measured}, lambda: self.model)
        for callback in self.callbacks:
            if callback(event) is True and not self.history.stopped:
                self.history.stopped = "callback"
        # one process that stops stops all
        if self.callbacks and self.share.world > 1:
            asked = distributed.any_of(self.history.stopped == "callback")
            if asked and not self.history.stopped:
                self.history.stopped = "callback"

    def _finish(self) -> None:
        if self.stopper is not None:
            self.history.best_step = self.stopper.best_step
        if self.best is not None:
            self.model.load_state_dict(self.best)

    # Checkpoints

    def _describe(self) -> dict[str, Any]:
        """What makes this run this run."""
        rule = None if self.stopper is None else str(self.stopper.rule)
        return {**self.task.describe(), "evaluate_every": self._evaluate_every, "early_stopping": rule, "path": "plain"}

    def _save(self, path: Path) -> None:
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            "model": self.model.state_dict(),
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "feed": self.feed.state_dict(),
            "random": default_generator_state(self.rows.device),
            "stopper": None if self.stopper is None else self.stopper.state_dict(),
            "columns": self.history.columns,
            "stopped": self.history.stopped,
            "best_step": self.history.best_step,
        }
        checkpoints.save(path, self._spec, self._environment, state)
        self._saved_at = time.perf_counter()

    def _load(self, path: Path) -> None:
        def read() -> dict[str, Any] | None:
            return checkpoints.load(path, self._spec, self._environment)

        state = read() if self.share.world == 1 else distributed.by_first(read)
        if state is None:
            return
        with checkpoints.refusing(path):
            self._restore(state)

    def _restore(self, state: dict[str, Any]) -> None:
        """Put back what a checkpoint holds."""
        self.step, self.seconds = state["step"], state["seconds"]
        self.loss_sum, self.loss_count = state["loss_sum"], state["loss_count"]
        self.model.load_state_dict(state["model"])
        self.best = state["best"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.stepper.forget()
        self.history.columns = state["columns"]
        self.history.stopped, self.history.best_step = state["stopped"], state["best_step"]
        if self.stopper is not None:
            self.stopper.load_state_dict(state["stopper"])
        if not self.history.stopped:
            self.feed.load_state_dict(state["feed"])
            if self.share.rank == 0:  # the others' were not kept
                generators = _default_generators(self.rows.device)
                for generator, bits in zip(generators, state["random"], strict=True):
                    generator.set_state(bits)


def _make_feed(task: Task, share: distributed.Share) -> Feed | WindowFeed:
    """Rows that are at hand, or read in windows: from a dataset, from many, or from this process's part."""
    if share.world == 1 and isinstance(task.rows, Rows) and not needs_windows(task.recipe, task.rows):
        return Feed(task.recipe, task.rows)
    if share.world > 1:
        for module in task.model.modules():
            if isinstance(module, nn.parallel.DistributedDataParallel):
                raise ValueError(
                    "fit sums gradients over processes by itself, got a DistributedDataParallel; pass its .module"
                )
            if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
                raise ValueError(
                    f"{type(module).__name__} sees the rows of one process only; convert the model with "
                    "torch.nn.SyncBatchNorm.convert_sync_batchnorm, or use another normalisation"
                )
    return WindowFeed(task.recipe, task.rows, share)


def default_generator_state(device: torch.device) -> list[Tensor]:
    """The state of the generators that dropout and its like draw from."""
    return [generator.get_state() for generator in _default_generators(device)]


def _default_generators(device: torch.device) -> list[torch.Generator]:
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    return generators
