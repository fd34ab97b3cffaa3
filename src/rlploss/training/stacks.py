"""A stack in training: replicas that share every call, each with its own evaluations and its own end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rlploss.training import checkpoints
from rlploss.training.chunks import Chunk
from rlploss.training.history import Event
from rlploss.training.members import Gauge, Member
from rlploss.training.monitors import DivergenceError, divergence_message
from rlploss.training.recipes import Schedule, learning_rate_factor
from rlploss.training.runs import CHECKPOINT_SECONDS, Callback
from rlploss.training.stacking import Architecture
from rlploss.training.stepping import (
    UNROLL,
    Batch,
    Rates,
    StepKind,
    clip_stack,
    compiled_steps,
    rate_table,
    score_stack,
    update_stack,
)
from rlploss.training.updates import Stepper, made

STRETCH = 8192  # steps after which progress is told and a checkpoint may be written, evaluation or not
COMPILE_SECONDS = 12.0  # measured, like the next: they decide how a stack is run, never what it computes
REPLICA_SECONDS = 3e-6  # one replica in one compiled step


class Stack:
    """Replicas as one tensor. `members` are the real ones; `width` ≥ their number fills up to a compiled shape."""

    def __init__(
        self,
        architecture: Architecture,
        members: list[Member],
        mode: str,
        *,
        width: int,
        compiled: bool,
        schedule: str | Schedule | None,
        callbacks: tuple[Callback, ...],
        on_divergence: str,
        tell: Callable[[int], None],
        checkpoint: Path | None,
        save_every: int,
        reuse: Chunk | None = None,
    ) -> None:
        self.architecture, self.members, self.mode, self.compiled = architecture, members, mode, compiled
        self.schedule, self.callbacks, self.on_divergence, self.tell = (schedule, callbacks, on_divergence, tell)
        self.gauge = Gauge(architecture)
        self.rows = [min(s, len(members) - 1) for s in range(width)]  # which member each row of the stack is
        recipe = members[0].task.recipe
        self.recipes = [members[i].task.recipe for i in self.rows]
        self.chunk = Chunk([members[i].feed for i in self.rows], mode, reuse=reuse)
        self.flat = architecture.flatten([members[i].task.model for i in self.rows])
        loss = "mse" if recipe.loss == "rlp" else recipe.loss
        clips = any(r.clip_grad is not None for r in self.recipes)
        self.kind = StepKind(mode, loss, recipe.optimizer, clips)
        self.rates = self._rates()
        self.first, self.second = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.alive = torch.ones(width, dtype=torch.bool, device=self.flat.device)
        self.optimizer: Optimizer | None = None
        shared = {(r.lr, r.weight_decay, r.momentum) for r in self.recipes}
        if not compiled and len(shared) == 1 and schedule is None:
            self.flat = nn.Parameter(self.flat)
            self.optimizer = made(recipe.how, self.flat)
            self.stepper = Stepper(self.optimizer, recipe)
        self.step, self.seconds = 0, 0.0
        self.path_name = "compiled" if compiled else "stacked"
        for member in members:
            member.history.settings["path"] = self.path_name
        self._path, self._save_every, self._saved_at = checkpoint, save_every, time.perf_counter()
        self._valid = {n: (torch.arange(UNROLL, device=self.flat.device) < n) for n in range(1, UNROLL + 1)}

    def _rates(self) -> Rates:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64).to(self.flat).unsqueeze(1)

        return Rates(
            column([r.weight_decay for r in self.recipes]),
            column([r.momentum for r in self.recipes]),
            column([math.inf if r.clip_grad is None else r.clip_grad for r in self.recipes]),
        )

    # The loop

    def go(self) -> None:
        """Train every member to its end; histories and networks are filled in."""
        if self._path is not None:
            self._spec = {f"replica {m.number}: {k}": v for m in self.members for k, v in self._describe(m).items()}
            self._spec["path"] = self.path_name
            self._environment = checkpoints.environment(self.flat.device, torch.get_num_threads())
            with checkpoints.refusing(self._path):
                self._load(self._path)
        if self.step == 0 and not self.members[0].history.columns:
            self._evaluate(self.members)
        with torch.no_grad():
            while active := self._active():
                stop = min(self.step + STRETCH, *(m.next_stop(self.step) for m in active))
                if self._save_every:
                    stop = min(stop, (self.step // self._save_every + 1) * self._save_every)
                self._advance(stop)
                active = self._active()
                due = [m for m in active if self.step % m.evaluate_every == 0 or self.step == m.total]
                self._evaluate(due)
                for member in due:
                    if self.step == member.total and not member.history.stopped:
                        member.history.stopped = "budget"
                    if member.history.stopped:
                        self._finish(member)
                self._shrink()
                self.tell(sum(min(self.step, m.total) for m in self.members))
                if self._path is not None and (not self._active() or self._due()):
                    self._save(self._path)
        for member in self.members:
            assert member.final is not None
            self.architecture.write(member.final, member.task.model)

    def _row(self, member: Member) -> int:
        return self.rows.index(self.members.index(member))

    def _active(self) -> list[Member]:
        return [m for m in self.members if m.final is None]

    def _due(self) -> bool:
        if self._save_every:
            return self.step % self._save_every == 0
        return time.perf_counter() - self._saved_at >= CHECKPOINT_SECONDS

    def _advance(self, stop: int) -> None:
        """All steps up to `stop`, a part of the chunk at a time."""
        started = time.perf_counter()
        sums = torch.zeros(len(self.rows), dtype=torch.float64)
        n_done = 0
        while self.step < stop and self._active():
            place, there = self.chunk.locate(self.step, remember=self._path is not None)
            n = min(stop - self.step, there, 4096)
            table = rate_table(self.recipes, self.schedule, self.step, n + UNROLL, self.flat.dtype)
            table = table.to(self.flat.device)
            batch = self.chunk.batch()
            losses = self._calls(batch, place, n, table) if self.compiled else self._singles(batch, place, n, table)
            self._check(losses)
            sums += losses.to(torch.float64).sum(0).cpu()
            self.step += n
            n_done += n
        self.seconds += time.perf_counter() - started
        totals = sums.tolist()
        for member in self._active():
            member.loss_sum += totals[self._row(member)]
            member.loss_count += n_done

    def _calls(self, batch: Batch, place: int, n: int, table: Tensor) -> Tensor:
        """Steps in compiled calls of `UNROLL`; the last call may have fewer that count."""
        losses = []
        call: Callable[..., Tensor] | None = None
        rates = self.rates
        for done in range(0, n, UNROLL):
            at = 0 if self.chunk.constant else place + done
            arguments = (
                self.flat,
                self.first,
                self.second,
                self.alive,
                *batch.steps(at, at + UNROLL).parts(),
                table[done : done + UNROLL],
                self._valid[min(UNROLL, n - done)],
                rates.weight_decay,
                rates.momentum,
                rates.clip,
            )
            if call is None:
                paused = time.perf_counter()
                call = compiled_steps(self.architecture, self.kind, arguments)
                self.seconds -= time.perf_counter() - paused  # compiling is not training
            losses.append(call(*arguments))
        return torch.cat(losses)[:n]

    def _singles(self, batch: Batch, place: int, n: int, table: Tensor) -> Tensor:
        """The same steps one at a time."""
        losses = []
        for i in range(n):
            now = batch.at(0 if self.chunk.constant else place + i)
            score = partial(score_stack, self.kind.mode, self.kind.loss, now)
            values, gradient = self.architecture.run(self.flat.detach(), now.x, score)
            losses.append(values)
            if not math.isfinite(values.sum().item()):
                self._freeze(values)
            if self.kind.clips:
                gradient = clip_stack(gradient, self.rates.clip)
            if self.optimizer is not None:
                self.flat.grad = gradient
                self.stepper.step()
                continue
            state = (self.first, self.second)
            fresh, renewed = update_stack(self.kind.optimizer, self.flat, state, gradient, table[i], self.rates)
            use = self.alive.unsqueeze(1)
            self.flat = torch.where(use, fresh, self.flat)
            self.first, self.second = renewed
        return torch.stack(losses)

    def _freeze(self, values: Tensor) -> None:
        """Keep the weights of replicas whose loss is not finite as they are now."""
        lost = (~torch.isfinite(values) & self.alive).nonzero().flatten().tolist()
        for s in lost:
            self.alive[s] = False
            member = self.members[self.rows[s]]
            if member.final is None:
                member.frozen = self._weights(member)

    def _check(self, losses: Tensor) -> None:
        """End the members whose loss [n, S] was not finite: at its first such step, with the weights of that step."""
        bad = ~torch.isfinite(losses)
        if not bool(bad.any()):
            return
        for member in self._active():
            s = self._row(member)
            if not bool(bad[:, s].any()):
                continue
            first = int(bad[:, s].to(torch.int8).argmax())
            recipe = member.task.recipe
            value, step = float(losses[first, s]), self.step + first
            lr = (recipe.lr or 0.0) * learning_rate_factor(self.schedule, step, recipe.total_steps)
            text = f"replica {member.number}: {divergence_message(recipe, member.task.rows, value, step, lr)}"
            if self.on_divergence == "raise":
                raise DivergenceError(text)
            member.final = self._weights(member) if member.frozen is None else member.frozen
            member.history.stopped, member.history.message = "diverged", text

    # Evaluation and ends

    def _evaluate(self, members: list[Member]) -> None:
        """Measure, note, tell the callbacks, and see who stops."""
        index = torch.tensor([self._row(m) for m in members], dtype=torch.int64, device=self.flat.device)
        measured = self.gauge.measure(self.flat.detach()[index], members)
        for member, values in zip(members, measured, strict=True):
            recipe, history = member.task.recipe, member.history
            mean = member.loss_sum / member.loss_count if member.loss_count else math.nan
            member.loss_sum, member.loss_count = 0.0, 0
            epoch, samples = self.step / recipe.steps_per_epoch, recipe.samples(self.step)
            axes = {"step": self.step, "epoch": epoch, "samples": samples, "seconds": self.seconds}
            history.add({**axes, "loss": mean, **values})
            if member.stopper is not None:
                if member.stopper.better(values, self.step) and member.stopper.rule.restore_best:
                    member.best = self._weights(member)
                if member.stopper.done:
                    history.stopped = "early stopping"
            if self.callbacks:
                now = partial(self._network, member)
                told = {"loss": mean, **values}
                event = Event(self.step, epoch, samples, self.seconds, told, now, member.number)
                for callback in self.callbacks:
                    if callback(event) is True and not history.stopped:
                        history.stopped = "callback"

    def _weights(self, member: Member) -> Tensor:
        return self.flat.detach()[self._row(member)].clone()

    def _network(self, member: Member) -> nn.Module:
        """The module of a member with its current weights."""
        self.architecture.write(self._weights(member), member.task.model)
        return member.task.model

    def _finish(self, member: Member) -> None:
        if member.stopper is not None:
            member.history.best_step = member.stopper.best_step
        restored = member.stopper is not None and member.best is not None
        member.final = member.best if restored else self._weights(member)
        member.best = None

    def _shrink(self) -> None:
        """Let go of members that are done, once they are half of the stack; compiled, only if that pays."""
        active = self._active()
        spare = len(self.rows) - len(active)
        if not active or spare < len(active):
            return
        left = max(m.total for m in active) - self.step
        if self.compiled and left * spare * REPLICA_SECONDS < COMPILE_SECONDS:
            return
        self._pick([self._row(member) for member in active])

    def _pick(self, which: list[int]) -> None:
        """Keep these rows of the stack."""
        self.rows = [self.rows[i] for i in which]
        self.recipes = [self.recipes[i] for i in which]
        self.chunk.pick(which)
        self.rates = self._rates()
        self.first, self.second, self.alive = self.first[which], self.second[which], self.alive[which]
        state = None if self.optimizer is None else self.optimizer.state_dict()
        self.flat = self.flat.detach()[which]
        if state is not None:
            for kept in state["state"].values():
                for name, tensor in kept.items():
                    kept[name] = tensor[which] if isinstance(tensor, Tensor) and tensor.ndim == 2 else tensor
            self.flat = nn.Parameter(self.flat)
            self.optimizer = made(self.recipes[0].how, self.flat)
            self.optimizer.load_state_dict(state)
            self.stepper = Stepper(self.optimizer, self.recipes[0])

    # Checkpoints

    def _describe(self, member: Member) -> dict[str, Any]:
        rule = None if member.stopper is None else str(member.stopper.rule)
        return {**member.task.describe(), "evaluate_every": member.evaluate_every, "early_stopping": rule}

    def _save(self, path: Path) -> None:
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "rows": self.rows,
            "flat": self.flat.detach(),
            "first": self.first,
            "second": self.second,
            "alive": self.alive,
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "chunk_start": self.chunk.start,
            "feeds": self.chunk.feed_states,
            "members": [m.state_dict() for m in self.members],
        }
        checkpoints.save(path, self._spec, self._environment, state)
        self._saved_at = time.perf_counter()

    def _load(self, path: Path) -> None:
        state = checkpoints.load(path, self._spec, self._environment)
        if state is None:
            return
        self.step, self.seconds = state["step"], state["seconds"]
        if state["rows"] != self.rows:
            self._pick([self.rows.index(i) for i in state["rows"]])
        with torch.no_grad():
            self.flat.copy_(state["flat"])
        self.first, self.second, self.alive = state["first"], state["second"], state["alive"]
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
            self.stepper.forget()
        for member, kept in zip(self.members, state["members"], strict=True):
            member.load_state_dict(kept)
        if state["feeds"] is not None and self._active():
            for feed, kept in zip(self.chunk.feeds, state["feeds"], strict=True):
                feed.load_state_dict(kept)
            self.chunk.fill_at(state["chunk_start"], remember=True)
