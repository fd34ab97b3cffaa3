"""`fit_fleet`: many replicas of one small network trained together, with the results of `fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlploss._checks import one_of
from rlploss.training.budget import Budget
from rlploss.training.grouping import Common, train_fleet
from rlploss.training.history import History
from rlploss.training.monitors import EarlyStopping, ProgressFunction, Reporter
from rlploss.training.objectives import RLP, Objective, as_objective
from rlploss.training.optimizers import Adam, OptimizerFunction, OptimizerValue, as_optimizer
from rlploss.training.recipes import Schedule
from rlploss.training.rows import Array
from rlploss.training.runs import Callback
from rlploss.training.tasks import ChosenMetrics, make_task


@dataclass(frozen=True, eq=False)
class Problem:
    """One replica: its data, its seed, and whatever it does differently from the rest of the fleet.

    objective, optimizer and budget replace the arguments of `fit_fleet` of the same name; None leaves them.
    """

    X: Array
    y: Array | None
    _: KW_ONLY
    seed: int = 0
    validation: tuple[Array, Array | None] | None = None
    sample_weight: Array | None = None
    objective: Objective | str | None = None
    optimizer: OptimizerValue | OptimizerFunction | str | None = None
    budget: Budget | tuple[int, str] | None = None


def fit_fleet(
    build_model: Callable[[int], nn.Module],
    problems: Iterable[Problem],
    objective: Objective | str = RLP(),  # noqa: B008 - a frozen value
    *,
    budget: Budget | tuple[int, str],
    optimizer: OptimizerValue | OptimizerFunction | str = Adam(),  # noqa: B008 - as above
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
        objective, budget, ...: see `fit`.
        on_divergence: `"record"` ends the replica whose loss is not finite and lets the others go on.
        checkpoint: a folder, with one file per stack.
        stack: `"auto"` trains small chains of linear layers as one tensor and everything else one after another,
            `True` stacks whatever can be stacked, `False` nothing.
        compile: `"auto"` compiles five steps into one call where that is predicted to pay for the compiling.

    Example:
        >>> from rlploss import Adam, RegressionNet, Steps, seeded
        >>> X = torch.linspace(-1, 1, 60).view(20, 3)
        >>> fleet = [Problem(X, X.sum(1), seed=s, optimizer=Adam(lr)) for s in range(2) for lr in (1e-3, 1e-2)]
        >>> done = fit_fleet(lambda seed: seeded(lambda: RegressionNet(3), seed), fleet, "mse", budget=Steps(4))
        >>> [int(h.last("step")) for h in done]
        [4, 4, 4, 4]
    """
    problems = list(problems)
    one_of("on_divergence", on_divergence, ("raise", "record"))
    tasks = []
    known: dict[Any, Any] = {}
    for problem in problems:
        task = make_task(
            build_model(problem.seed),
            problem.X,
            problem.y,
            as_objective(objective if problem.objective is None else problem.objective),
            optimizer=as_optimizer(optimizer if problem.optimizer is None else problem.optimizer),
            sample_weight=problem.sample_weight,
            validation=problem.validation,
            metrics=metrics,
            device=device,
            settings={
                "budget": budget if problem.budget is None else problem.budget,
                "seed": problem.seed,
                "schedule": schedule,
                "clip_grad": clip_grad,
            },
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
