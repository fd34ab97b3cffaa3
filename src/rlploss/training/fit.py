"""Train any `nn.Module` with `fit`, or many at once with `fit_fleet`, on any objective of this
package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rlploss._progress import ProgressFunction, Reporter
from rlploss._torch import borrow_generators, one_torch_thread
from rlploss.training.engine import Outcome
from rlploss.training.evaluation import Callback, ChosenMetrics, EarlyStopping, Evaluator, History
from rlploss.training.job import Adam, Budget, ChosenOptimizer, Job, Problem, make_job
from rlploss.training.loop import Loop, Schedule, Supervision
from rlploss.training.objectives import RLP, Objective
from rlploss.training.rows import Array


def fit(
    model: nn.Module,
    X: Array,
    y: Array | None,
    objective: Objective | str = RLP(),  # noqa: B008 - a frozen value
    *,
    budget: Budget,
    optimizer: ChosenOptimizer = Adam(),  # noqa: B008 - as above
    seed: int = 0,
    sample_weight: Array | None = None,
    validation: tuple[Array, Array | None] | None = None,
    metrics: ChosenMetrics = None,
    evaluate_every: Budget | None = None,
    callbacks: Iterable[Callback] = (),
    early_stopping: EarlyStopping | int | None = None,
    schedule: str | Schedule | None = None,
    clip_grad: float | None = None,
    on_divergence: str = "raise",
    progress: bool | ProgressFunction = False,
    device: str | torch.device | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: Budget | None = None,
    engine: str = "auto",
) -> History:
    """Train `model` in place and return its curves.

    Args:
        model: any module that maps rows [B, ...] to [B], [B, C] or [B, ...]; float32 or float64.
        X: inputs [N, ...], tensor or array; a `np.memmap` is not copied, and not changed.
        y: targets. Floating: regression, [N] or [N, C]. Whole numbers: class numbers [N], which
            objectives see as one-hot rows. None: the input is the target (reconstruction).
        objective: a value: `RLP(...)`, `MSE(...)`, `MAE(...)`, `Huber(...)`, `CrossEntropy(...)`
            (on logits), `Pointwise(function)`, `BatchLoss(function)`. A name, `"rlp"` or `"mse"`,
            stands for the value with its defaults. `RLP.paper(...)` is Algorithm 2 (with mixup
            Algorithm 3) as printed, `RLP.released(...)` the loop behind the published numbers.
        budget: `Epochs(n)` or `Steps(n)`. An epoch is a pass over the N rows, or over the K subsets
            for RLP.
        optimizer: `Adam(...)`, `AdamW(...)`, `SGD(...)`, or a function of the parameters. L2 is
            `weight_decay`.
        seed: decides the plan, the order of rows and all draws. The initial weights are those of
            the model; see `seeded`.
        sample_weight: [N], at least 0; only ratios matter. A row of weight w counts w times in a
            pointwise loss. Planes are fitted by weighted least squares: x and residual are
            multiplied by √w. Rows of weight 0 are left out. Not with mixup or `BatchLoss`.
        validation: (X, y) to evaluate on; metrics are not weighted.
        metrics: `"mse"`, `"mae"`, `"rlp"`, `"accuracy"`, `"f1"`, `"cross_entropy"`, or functions of
            (pred, target, features). Default mse, or accuracy for class numbers.
        evaluate_every: `Epochs(n)` or `Steps(n)`; default every epoch of an `Epochs` budget, a
            hundredth of a `Steps` budget. The start and the end are always evaluated.
        callbacks: called with an `Event` after each evaluation; one that returns True stops the
            run.
        early_stopping: an `EarlyStopping`, or a patience in evaluations for the first metric.
        schedule: `"cosine"`, `"linear"` (both to zero), or a function (step, total) -> factor of
            lr.
        clip_grad: largest norm of the gradient over all parameters.
        on_divergence: a loss of NaN or inf raises `DivergenceError`, or with `"record"` ends the
            run with a message in the History. Either way the weights are the last finite ones, and
            the last checkpoint stays.
        progress: True writes to stderr; a function receives a `Progress`.
        device: where to train; the default is the device of the model.
        checkpoint: a file. If it exists the run continues from it, and ends with the same bits as
            an uninterrupted run.
        checkpoint_every: `Epochs(n)` or `Steps(n)`; default every 30 seconds. A checkpoint is
            always written at the end.
        engine: `"kernel"` trains chains of linear layers on the CPU in one compiled call for many
            steps, `"torch"` any module. `"auto"` takes the kernel if it is possible and faster;
            otherwise `history.settings["engine_reason"]` says why. The two round differently, so a
            checkpoint belongs to one of them, and "auto" takes that one.

    Returns:
        The `History`, with the settings in force and the model.

    Example:
        >>> from rlploss import RegressionNet, Steps
        >>> X = torch.linspace(-1, 1, 60).view(20, 3)
        >>> history = fit(RegressionNet(3), X, X.sum(1), RLP(8, 4), budget=Steps(5))
        >>> history.last("step"), history.last("samples")
        (5.0, 40.0)
    """
    problem = Problem(X, y, seed=seed, validation=validation, sample_weight=sample_weight)
    job = make_job(
        model,
        problem,
        objective=objective,
        optimizer=optimizer,
        metrics=metrics,
        clip_grad=clip_grad,
        device=device,
    )
    watch = Supervision(
        budget,
        schedule=schedule,
        evaluate_every=evaluate_every,
        callbacks=tuple(callbacks),
        early_stopping=early_stopping,
        on_divergence=on_divergence,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        engine=engine,
    )
    return train([(job, watch)], progress=progress)[0].history


def fit_fleet(
    build_model: Callable[[int], nn.Module],
    problems: Iterable[Problem],
    objective: Objective | str = RLP(),  # noqa: B008 - a frozen value
    *,
    budget: Budget,
    optimizer: ChosenOptimizer = Adam(),  # noqa: B008 - as above
    metrics: ChosenMetrics = None,
    evaluate_every: Budget | None = None,
    callbacks: Iterable[Callback] = (),
    early_stopping: EarlyStopping | int | None = None,
    schedule: str | Schedule | None = None,
    clip_grad: float | None = None,
    on_divergence: str = "raise",
    progress: bool | ProgressFunction = False,
    device: str | torch.device | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: Budget | None = None,
    engine: str = "auto",
) -> list[History]:
    """Train one replica per problem and return their histories in order.

    Each replica ends with the same bits as `fit` with its seed; `history.model` is its network. The
    kernel trains as many replicas at a time as torch has threads; other replicas train one after
    another.

    Args:
        build_model: called with the seed of each problem; see `seeded`.
        problems: the replicas. The other arguments, which are those of `fit`, apply to whatever a
            `Problem` does not set.
        callbacks: called with an `Event`, whose `replica` is the number of the replica; one that
            returns True stops that replica.
        on_divergence: `"record"` ends the replica whose loss is not finite, and the others
            continue.
        checkpoint: a folder, with one file per replica.

    Example:
        >>> from rlploss import Adam, RegressionNet, Steps, seeded
        >>> X = torch.linspace(-1, 1, 60).view(20, 3)
        >>> rates = (1e-3, 1e-2)
        >>> grid = [(s, Adam(lr)) for s in range(2) for lr in rates]
        >>> fleet = [Problem(X, X.sum(1), seed=s, optimizer=adam) for s, adam in grid]
        >>> build = lambda seed: seeded(lambda: RegressionNet(3), seed)
        >>> done = fit_fleet(build, fleet, "mse", budget=Steps(4))
        >>> [int(h.last("step")) for h in done]
        [4, 4, 4, 4]
    """
    if isinstance(build_model, nn.Module) or not callable(build_model):
        raise TypeError(
            "build_model must be a function of a seed that returns a module, got"
            f" {type(build_model).__name__}; write lambda seed: seeded(lambda: MyNet(), seed)"
        )
    if isinstance(problems, Problem):
        raise TypeError(
            "problems must be a list of Problem values, got one Problem; write [Problem(X, y)]"
        )
    watch = Supervision(
        budget,
        schedule=schedule,
        evaluate_every=evaluate_every,
        callbacks=tuple(callbacks),
        early_stopping=early_stopping,
        on_divergence=on_divergence,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        engine=engine,
    )
    known: dict[Any, Evaluator] = {}
    runs: list[tuple[Job, Supervision]] = []
    problems = list(problems)  # a list, because `known` relies on the identity of their data
    for problem in problems:
        if not isinstance(problem, Problem):
            raise TypeError(
                f"problems must be Problem values, got {type(problem).__name__}; write"
                " Problem(X, y)"
            )
        model = build_model(problem.seed)
        if any(model is job.model for job, _ in runs):
            raise ValueError(
                "build_model must build a network for each replica, got the same one again"
            )
        job = make_job(
            model,
            problem,
            objective=objective,
            optimizer=optimizer,
            metrics=metrics,
            clip_grad=clip_grad,
            device=device,
            known=known,
        )
        own = watch if problem.budget is None else replace(watch, budget=problem.budget)
        runs.append((job, own))
    return [loop.history for loop in train(runs, progress=progress, fleet=True)]


# From jobs to loops


def train(
    runs: Sequence[tuple[Job, Supervision]],
    *,
    progress: bool | ProgressFunction = False,
    fleet: bool = False,
) -> list[Loop]:
    """Train all jobs, each under its supervision, and return their loops in order.

    Kernel calls run in a pool of threads, some loops at a time, so that only a few hold their
    factors. Everything else, such as models, evaluations and callbacks, runs in the calling thread,
    because torch has one generator for all threads.
    """
    _check_alone()
    total = sum(watch.budget.steps(job.steps_per_epoch) for job, watch in runs)
    reporter = Reporter(progress, total)
    threads = torch.get_num_threads()
    running: dict[Future[Outcome], Loop] = {}
    loops: list[Loop] = []
    begun: set[Loop] = set()  # begun and not yet left

    def advance(loop: Loop, outcome: Outcome | None) -> None:
        """Begin a loop, or record its outcome; then submit its next stretch to the pool, or run it
        here.
        """
        # The bits of factors and metrics must not depend on the number of threads.
        with one_torch_thread() if loop.engine.name == "kernel" else nullcontext():
            loop.begin() if outcome is None else loop.record(outcome)
            while (stretch := loop.next()) is not None:
                if loop.engine.in_pool:
                    running[pool.submit(stretch)] = loop
                    return
                loop.record(stretch())
        loop.leave()
        begun.remove(loop)

    devices = {job.table.x.device for job, _ in runs if job.table.x.device.type == "cuda"}
    with borrow_generators(devices), ExitStack() as stack:
        # Torch runs on one thread in each thread of the pool, so bits do not depend on their
        # number.
        stack.callback(torch.set_num_threads, threads)
        pool = stack.enter_context(
            ThreadPoolExecutor(threads, "rlploss", torch.set_num_threads, (1,))
        )
        try:
            for number, (job, watch) in enumerate(runs):
                loops.append(Loop(job, watch, reporter=reporter, number=number if fleet else None))
                begun.add(loops[-1])
                advance(loops[-1], None)
                while len(running) > (threads if number + 1 < len(runs) else 0):
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        advance(running.pop(future), future.result())
        finally:
            for loop in begun:
                loop.engine.stopping = True
            wait(running)
            for loop in begun:
                loop.leave()
    reporter.end()
    return loops


def _check_alone() -> None:
    """Refuse to run in several processes, each of which would train the whole network."""
    started = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if dist.is_available() and dist.is_initialized():
        started = dist.get_world_size()
    if started > 1:
        raise RuntimeError(
            f"fit trains in one process, got one of {started} that train together; write the loop"
            " of examples/ddp.py, or start the processes apart"
        )
