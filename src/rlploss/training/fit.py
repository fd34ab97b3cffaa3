"""`fit`: Algorithms 2 and 3 of the paper, the released loop, and every baseline, for any `nn.Module`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from rlploss import distributed
from rlploss._checks import one_of
from rlploss.training.budget import Budget
from rlploss.training.grouping import Common, compiled_run
from rlploss.training.history import History
from rlploss.training.monitors import EarlyStopping, ProgressFunction, Reporter
from rlploss.training.objectives import RLP, Objective, as_objective
from rlploss.training.optimizers import Adam, OptimizerFunction, OptimizerValue, as_optimizer
from rlploss.training.recipes import Schedule
from rlploss.training.rows import Array
from rlploss.training.runs import Callback, Run
from rlploss.training.tasks import ChosenMetrics, make_task
from rlploss.training.updates import make_optimizer


def fit(
    model: nn.Module,
    X: Array | Dataset[Any],
    y: Array | None,
    objective: Objective | str = RLP(),  # noqa: B008 - a frozen value
    *,
    budget: Budget | tuple[int, str],
    optimizer: OptimizerValue | OptimizerFunction | str = Adam(),  # noqa: B008 - as above
    seed: int = 0,
    sample_weight: Array | None = None,
    validation: tuple[Array, Array | None] | None = None,
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
    compile: bool | str = "auto",
) -> History:
    """Train `model` in place and return its curves.

    Args:
        model: any module that maps rows [B, ...] to [B], [B, C] or [B, ...]; float32 or float64.
        X: inputs [N, ...], tensor or array; a `np.memmap` is not copied, and not changed. Or a map-style `Dataset` of
            (input, target), beside y=None: its rows are read, and its subsets factored, a window of steps at a time.
        y: targets. Floating: regression, [N] or [N, C]. Whole numbers: class numbers [N], one-hot for every
            objective but cross entropy. None: the input is the target (reconstruction).
        objective: a value: `RLP(...)`, `MSE(...)`, `MAE(...)`, `Huber(...)`, `CrossEntropy(...)` (on logits),
            `Pointwise(function)`, `BatchLoss(function)`. A name, `"rlp"` or `"mse"`, stands for the value with its
            defaults. `RLP.paper(...)` is Algorithm 2 (with mixup Algorithm 3) as printed, `RLP.released(...)` the loop
            behind the published numbers.
        budget: `Epochs(n)` or `Steps(n)`. An epoch is a pass over the N rows, or over the K subsets for RLP.
        optimizer: `Adam(...)`, `AdamW(...)`, `SGD(...)`, or a function of the parameters. L2 is `weight_decay`.
        seed: decides plan, order and draws. Initial weights are the model's own; see `seeded`.
        sample_weight: [N], at least 0; only ratios count. A row of weight w counts w times in a pointwise loss, and
            planes are fitted by weighted least squares: x and residual are multiplied by √w. Rows of weight 0 are
            left out. Not with mixup.
        validation: (X, y) to evaluate on; metrics are not weighted.
        metrics: `"mse"`, `"mae"`, `"rlp"`, `"accuracy"`, `"f1"`, `"cross_entropy"`, or functions of
            (pred, target, features). Default mse, or accuracy for class numbers.
        evaluate_every: `Epochs(n)` or `Steps(n)`; default every epoch of an `Epochs` budget, a hundredth of a
            `Steps` budget. The start and the end are always evaluated.
        callbacks: called with an `Event` after each evaluation; one that returns True stops the run.
        early_stopping: an `EarlyStopping`, or a patience in evaluations for the first metric.
        schedule: `"cosine"`, `"linear"` (both to zero), or a function (step, total) -> factor of lr.
        clip_grad: largest norm of the gradient over all parameters.
        on_divergence: a loss of NaN or inf raises `DivergenceError`, or with `"record"` ends the run and is told
            in the History. Either way the weights are the last finite ones and the last checkpoint stays.
        progress: True writes to stderr; a function gets a `Progress`.
        device: where to train; default where the model is.
        checkpoint: a file. If it exists the run continues from it, to the very bits of an uninterrupted run.
        checkpoint_every: `Epochs(n)` or `Steps(n)`; default every 30 seconds. Always written at the end.
        compile: chains of linear layers can train in compiled calls of five steps, on a CPU ten times as fast after
            about ten seconds of compiling. `"auto"` does so where that is predicted to pay and there are no
            callbacks. Rounding differs between the two ways, so a checkpoint belongs to one of them.

    Under `torch.distributed` (`rlploss.distributed.start`) every process calls `fit` with the same arguments. Each
    step's subsets, or rows, are dealt to the processes, counts differing by at most one, and gradients are summed: the
    weights are those of one process. `subsets_per_step` counts those of all processes and defaults to one for each.
    Rank 0 writes the checkpoint, which any number of processes can resume. Every process gets the History.

    Returns:
        The `History`, with the settings in force and the model.

    Example:
        >>> from rlploss import RegressionNet, Steps
        >>> X = torch.linspace(-1, 1, 60).view(20, 3)
        >>> history = fit(RegressionNet(3), X, X.sum(1), RLP(8, 4), budget=Steps(5))
        >>> history.last("step"), history.last("samples")
        (5.0, 40.0)
    """
    share = distributed.current()
    task = make_task(
        model,
        X,
        y,
        as_objective(objective),
        optimizer=as_optimizer(optimizer),
        sample_weight=sample_weight,
        validation=validation,
        metrics=metrics,
        device=device,
        settings={
            "budget": budget,
            "seed": seed,
            "schedule": schedule,
            "clip_grad": clip_grad,
            "n_processes": share.world,
        },
    )
    common = Common(
        schedule=schedule,
        evaluate_every=evaluate_every,
        callbacks=tuple(callbacks),
        early_stopping=early_stopping,
        on_divergence=one_of("on_divergence", on_divergence, ("raise", "record")),
        folder=None,
        checkpoint_every=checkpoint_every,
    )
    path = None if checkpoint is None else Path(checkpoint)
    if checkpoint_every is not None and path is None:
        raise ValueError("checkpoint_every needs a file to write to, got none; pass checkpoint=PATH")
    reporter = Reporter(progress if share.rank == 0 else False, task.recipe.total_steps)
    stack = compiled_run(task, common, compile=compile, path=path, reporter=reporter)
    if stack is not None:
        stack.go()
        reporter.tell(stack.step, last=True)
        return stack.members[0].history
    run = Run(
        task,
        optimizer=make_optimizer(task.recipe, model),
        schedule=schedule,
        evaluate_every=evaluate_every,
        callbacks=tuple(callbacks),
        early_stopping=early_stopping,
        on_divergence=on_divergence,
        reporter=reporter,
        checkpoint=path,
        checkpoint_every=checkpoint_every,
    )
    return run.go()
