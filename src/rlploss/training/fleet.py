"""`fit_fleet`: many replicas of one small network trained together, with the results of `fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlploss._checks import one_of
from rlploss.training.grouping import Common, train_fleet
from rlploss.training.history import Budget, History
from rlploss.training.monitors import EarlyStopping, ProgressFunction, Reporter
from rlploss.training.recipes import OBJECTIVES, Schedule
from rlploss.training.rows import Array
from rlploss.training.runs import Callback
from rlploss.training.tasks import ChosenMetrics, make_task

_RLP_ONLY = (
    "preset",
    "probe",
    "draw_from",
    "method",
    "plan",
    "intercept",
    "ridge",
    "subset_size",
    "n_subsets",
    "subsets_per_step",
)


@dataclass(frozen=True, eq=False)
class Problem:
    """One replica: its data, its seed, and whatever it does differently from the rest of the fleet.

    Every field from `objective` on overrides the argument of `fit_fleet` of the same name; None leaves it.
    """

    X: Array
    y: Array | None
    validation: tuple[Array, Array | None] | None = None
    seed: int = 0
    sample_weight: Array | None = None
    objective: str | None = None
    budget: Budget | tuple[int, str] | None = None
    preset: str | None = None
    probe: str | None = None
    draw_from: str | None = None
    method: str | None = None
    plan: str | None = None
    intercept: bool | None = None
    ridge: float | None = None
    subset_size: int | None = None
    n_subsets: int | None = None
    subsets_per_step: int | str | None = None
    mixup_alpha: float | None = None
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    batch_size: int | None = None
    clip_grad: float | None = None


def fit_fleet(
    build_model: Callable[[int], nn.Module],
    problems: Iterable[Problem],
    objective: str = "rlp",
    *,
    budget: Budget | tuple[int, str],
    preset: str | None = None,
    probe: str | None = None,
    draw_from: str | None = None,
    method: str | None = None,
    plan: str | None = None,
    intercept: bool | None = None,
    ridge: float | None = None,
    subset_size: int | None = None,
    n_subsets: int | None = None,
    subsets_per_step: int | str | None = None,
    mixup_alpha: float | None = None,
    optimizer: str = "adam",
    lr: float | None = None,
    weight_decay: float | None = None,
    momentum: float | None = None,
    batch_size: int | None = None,
    metrics: ChosenMetrics = None,
    evaluate_every: Budget | tuple[int, str] | None = None,
    callbacks: Iterable[Callback] = (),
    early_stopping: EarlyStopping | int | None = None,
    schedule: str | Schedule | None = None,
    clip_grad: float | None = None,
    on_divergence: str = "raise",
    progress: bool | ProgressFunction = False,
    device: str | torch.device | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: Budget | tuple[int, str] | None = None,
    stack: bool | str = "auto",
    compile: bool | str = "auto",
) -> list[History]:
    """Train one replica per problem, together, and return their histories in order.

    Each replica ends where `fit` with the same seed would end, up to rounding; `history.model` is its network.

    Args:
        build_model: called with the seed of each problem; the same architecture each time, see `seeded`.
        problems: the replicas; what a `Problem` does not set is shared and comes from the arguments below.
        objective, budget, ...: as in `fit`. An optimiser by name; rates may differ between replicas.
        on_divergence: `"record"` ends the replica whose loss is not finite and lets the others go on.
        checkpoint: a folder, with one file per stack.
        stack: `"auto"` trains small chains of linear layers as one tensor and everything else one after another,
            `True` stacks whatever can be stacked, `False` nothing.
        compile: `"auto"` compiles five steps into one call where that is predicted to pay for the compiling.

    Example:
        >>> from rlploss import RegressionNet, Steps, seeded
        >>> X = torch.linspace(-1, 1, 60).view(20, 3)
        >>> fleet = [Problem(X, X.sum(1), seed=s, lr=lr) for s in range(2) for lr in (1e-3, 1e-2)]
        >>> done = fit_fleet(lambda seed: seeded(lambda: RegressionNet(3), seed), fleet, "mse", budget=Steps(4))
        >>> [int(h.last("step")) for h in done]
        [4, 4, 4, 4]
    """
    problems = list(problems)
    if callable(optimizer):
        raise TypeError("fit_fleet takes an optimizer by name, got a function; use fit for a factory of your own")
    shared: dict[str, Any] = {
        "budget": budget,
        "preset": preset,
        "probe": probe,
        "draw_from": draw_from,
        "method": method,
        "plan": plan,
        "intercept": intercept,
        "ridge": ridge,
        "subset_size": subset_size,
        "n_subsets": n_subsets,
        "subsets_per_step": subsets_per_step,
        "mixup_alpha": mixup_alpha,
        "lr": lr,
        "weight_decay": weight_decay,
        "momentum": momentum,
        "batch_size": batch_size,
        "clip_grad": clip_grad,
    }
    one_of("on_divergence", on_divergence, ("raise", "record"))
    tasks = []
    known: dict[Any, Any] = {}
    for problem in problems:
        chosen, mine = settings_of(problem, objective, shared)
        task = make_task(
            build_model(problem.seed),
            problem.X,
            problem.y,
            mine,
            sample_weight=problem.sample_weight,
            validation=problem.validation,
            metrics=metrics,
            device=device,
            settings={**chosen, "optimizer": optimizer, "seed": problem.seed, "schedule": schedule},
            known=known,
        )
        tasks.append(task)
    common = Common(
        schedule=schedule,
        evaluate_every=evaluate_every,
        callbacks=tuple(callbacks),
        early_stopping=early_stopping,
        on_divergence=on_divergence,
        folder=None if checkpoint is None else Path(checkpoint),
        checkpoint_every=checkpoint_every,
    )
    reporter = Reporter(progress, sum(task.recipe.total_steps for task in tasks))
    return train_fleet(tasks, common, stack=stack, compile=compile, reporter=reporter)


def settings_of(problem: Problem, objective: str, shared: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Settings and objective of one replica: its own, then the shared ones as far as they mean something to it."""
    one_of("objective", objective, OBJECTIVES)
    own = {f.name: getattr(problem, f.name) for f in fields(problem) if f.name in shared}
    mine = objective if problem.objective is None else one_of("objective", problem.objective, OBJECTIVES)
    idle: set[str] = set()
    if mine != objective:  # a shared setting may be there for the others
        idle |= {"batch_size"} if mine.startswith("rlp") else set(_RLP_ONLY)
        idle |= set() if mine.endswith("+mixup") else {"mixup_alpha"}
    chosen = {
        name: own[name] if own[name] is not None else None if name in idle else value for name, value in shared.items()
    }
    return chosen, mine
