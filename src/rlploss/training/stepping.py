"""Optimiser steps of a stack of networks: several in one compiled call, or one at a time with the same algorithm."""

from __future__ import annotations

import os
import shutil
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlploss.training.recipes import Recipe, Schedule, learning_rate_factor
from rlploss.training.scores import pointwise, projected, quadratic
from rlploss.training.stacking import Architecture

UNROLL = 5  # steps per compiled call: enough to hide the call, few enough to compile in seconds
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # torch's defaults for Adam


@dataclass(frozen=True)
class Batch:
    """What a stack reads: one step [S, ...], or T steps [S, T, ...]. Which tensors are there depends on the mode.

    x: inputs [S, B, ...]; y: targets [S, B, C]. weight [S, B, 1]: of each row, 0 for rows that only fill up (modes
    "pointwise" and "complement"). sight: rows W [S, k, q, M] with every scale in them (modes "rows" and
    "complement"), or the quadratic form [S, N, N] (mode "form").
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None
    sight: Tensor | None

    def parts(self) -> tuple[Tensor | None, ...]:
        """The tensors, in a fixed order."""
        return (self.x, self.y, self.weight, self.sight)

    def steps(self, first: int, last: int) -> Batch:
        """Steps first..last of T."""
        return self._cut(slice(first, last))

    def at(self, step: int) -> Batch:
        """One step of T."""
        return self._cut(step)

    def _cut(self, at: int | slice) -> Batch:
        weight, sight = (None if t is None else t[:, at] for t in (self.weight, self.sight))
        return Batch(self.x[:, at], self.y[:, at], weight, sight)


def score_stack(mode: str, loss: str, batch: Batch, pred: Tensor) -> tuple[Tensor, Tensor]:
    """Values [S] and gradient [S, B, C] for predictions [S, B, C]."""
    if mode == "pointwise":
        assert batch.weight is not None
        return pointwise(loss, pred, batch.y, batch.weight)
    residual, sight = pred - batch.y, batch.sight
    assert sight is not None
    if mode == "form":
        return quadratic(residual, sight, 1.0)
    S, k, q, M = sight.shape
    C = residual.shape[-1]
    if C == 1 and torch.compiler.is_compiling():  # fused with its neighbours: faster than a batched product
        r = residual.reshape(S, k, 1, M)
        seen = (sight * r).sum(-1, keepdim=True)  # [S, k, q, 1]
        values, back = (seen * seen).sum((1, 2, 3)), (sight * seen).sum(2).reshape(S, k * M, 1) * 2
    else:
        each, back = projected(residual.reshape(S * k, M, C), sight.reshape(S * k, q, M), 1.0)
        values, back = each.view(S, k).sum(1), back.view(S, k * M, C)
    if mode == "complement":
        whole, rest = pointwise("mse", pred, batch.y, _need(batch.weight))
        values, back = whole - values, rest - back
    return values, back


# Updates


@dataclass(frozen=True)
class Rates:
    """Per-replica settings of the update [S, 1] (shared or not), in the type of the parameters."""

    weight_decay: Tensor
    momentum: Tensor
    clip: Tensor


def rate_table(
    recipes: list[Recipe], schedule: str | Schedule | None, first: int, n_steps: int, dtype: torch.dtype
) -> Tensor:
    """Numbers that change from step to step [n, 3, S]: learning rate, step size, root of the second correction."""
    steps = np.arange(first, first + n_steps)
    lr = np.array([float(r.lr or 0.0) for r in recipes])[None, :]
    if schedule is None:
        lr = np.broadcast_to(lr, (n_steps, len(recipes)))
    else:
        factors = [[learning_rate_factor(schedule, int(t), r.total_steps) for r in recipes] for t in steps]
        lr = lr * np.asarray(factors)
    size, root = lr, np.ones((n_steps, 1))
    if recipes[0].optimizer.startswith("adam"):
        size = lr / (1 - BETA1 ** (steps + 1))[:, None]
        root = np.sqrt(1 - BETA2 ** (steps + 1))[:, None]
    table = np.stack([lr, size, np.broadcast_to(root, lr.shape)], axis=1)
    return torch.from_numpy(table).to(dtype)


def clip_stack(gradient: Tensor, limit: Tensor) -> Tensor:
    """Scale each network's gradient [S, P] to a norm of at most limit [S, 1], as torch's `clip_grad_norm_` does."""
    norm = gradient.square().sum(1, keepdim=True).sqrt()
    return gradient * (limit / (norm + 1e-6)).clamp(max=1.0)


def update_stack(
    optimizer: str, flat: Tensor, state: tuple[Tensor, Tensor], gradient: Tensor, now: Tensor, rates: Rates
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One step of torch's optimiser of that name, each network with settings of its own. now [3, S]."""
    lr, size, root = (row.unsqueeze(1) for row in now)
    first, second = state
    if optimizer == "adamw":
        flat = flat * (1 - lr * rates.weight_decay)
    else:
        gradient = gradient + rates.weight_decay * flat
    if optimizer.startswith("adam"):
        first = first + (gradient - first) * (1 - BETA1)
        second = second * BETA2 + gradient * gradient * (1 - BETA2)
        return flat - size * first / (second.sqrt() / root + EPS), (first, second)
    first = first * rates.momentum + gradient
    ahead = gradient + rates.momentum * first if optimizer == "sgd_nesterov" else first
    return flat - lr * ahead, (first, second)


# Several steps in one compiled call


@dataclass(frozen=True)
class StepKind:
    """What a compiled call is made for, beyond the shapes and strides of its arguments."""

    mode: str
    loss: str
    optimizer: str
    clips: bool


def unrolled(architecture: Architecture, kind: StepKind) -> Callable[..., Tensor]:
    """The function of `UNROLL` steps that is compiled.

    It changes flat, first, second [S, P] and alive [S] in place and returns the losses [U, S]. A step i with
    valid[i] false changes nothing, nor does any step of a replica once its loss was not finite.
    """

    def steps(
        flat: Tensor,
        first: Tensor,
        second: Tensor,
        alive: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
        sight: Tensor | None,
        table: Tensor,
        valid: Tensor,
        weight_decay: Tensor,
        momentum: Tensor,
        clip: Tensor,
    ) -> Tensor:
        chunk, rates = Batch(x, y, weight, sight), Rates(weight_decay, momentum, clip)
        now, state, living = flat, (first, second), alive
        losses = []
        for i in range(UNROLL):
            batch = chunk.at(i)
            values, gradient = architecture.run(now, batch.x, partial(score_stack, kind.mode, kind.loss, batch))
            if kind.clips:
                gradient = clip_stack(gradient, rates.clip)
            fresh, renewed = update_stack(kind.optimizer, now, state, gradient, table[i], rates)
            living = living & (torch.isfinite(values) | ~valid[i])
            use = (living & valid[i]).unsqueeze(1)
            now = torch.where(use, fresh, now)
            state = (torch.where(use, renewed[0], state[0]), torch.where(use, renewed[1], state[1]))
            losses.append(values)
        flat.copy_(now)
        first.copy_(state[0])
        if kind.optimizer.startswith("adam"):
            second.copy_(state[1])
        alive.copy_(living)
        return torch.stack(losses)

    return steps


_COMPILED: dict[Any, Callable[..., Tensor]] = {}


def compiled_steps(
    architecture: Architecture, kind: StepKind, arguments: tuple[Tensor | None, ...]
) -> Callable[..., Tensor]:
    """The compiled call for these shapes: made once per process, and kept."""
    shapes = tuple(None if t is None else (tuple(t.shape), t.stride(), t.dtype) for t in arguments)
    key = (architecture.describe(), kind, shapes, torch.get_num_threads())
    if key not in _COMPILED:
        plain = unrolled(architecture, kind)
        # torch counts recompilations per code object, and different shapes are different programs here
        own = types.FunctionType(
            plain.__code__.replace(co_name=f"steps_{len(_COMPILED)}"),
            plain.__globals__,
            plain.__name__,
            plain.__defaults__,
            plain.__closure__,
        )
        call: Callable[..., Tensor] = torch.compile(own, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})
        state = tuple(t.clone() for t in arguments[:4] if t is not None)  # compiling runs it: not on the real ones
        call(*state, *arguments[4:])
        _COMPILED[key] = call
    return _COMPILED[key]


def compiler_missing() -> str | None:
    """Why nothing can be compiled here, or None: torch.compile on a CPU needs a C++ compiler."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    if any(shutil.which(name) for name in names):
        return None
    return f"no C++ compiler ({' or '.join(names)}) was found"


def _need(value: Tensor | None) -> Tensor:
    assert value is not None
    return value
