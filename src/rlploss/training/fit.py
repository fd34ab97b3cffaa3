"""`fit` and `fit_fleet`: Algorithms 2 and 3 of the paper, the released loop, every baseline, for
any `nn.Module`.
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
        seed: decides plan, order and draws. Initial weights are the model's own; see `seeded`.
        sample_weight: [N], at least 0; only ratios count. A row of weight w counts w times in a
            pointwise loss, and planes are fitted by weighted least squares: x and residual are
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
            run and is told in the History. Either way the weights are finite ones from before it
            and the last checkpoint stays.
        progress: True writes to stderr; a function gets a `Progress`.
        device: where to train; default where the model is.
        checkpoint: a file. If it exists the run continues from it, to the very bits of an
            uninterrupted run.
        checkpoint_every: `Epochs(n)` or `Steps(n)`; default every 30 seconds. Always written at the
            end.
        engine: `"kernel"` trains chains of linear layers on the CPU in one compiled call for many
            steps, `"torch"` any module. `"auto"` takes the kernel where it can and is faster;
            `history.settings["engine_reason"]` says why not. Rounding differs between the two, so a
            checkpoint belongs to one of them, and "auto" follows it.

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

    Each replica ends with the very bits that `fit` with its seed gives; `history.model` is its
    network. Replicas that the kernel trains share the cores, as many at a time as torch has
    threads; others train one after another.

    Args:
        build_model: called with the seed of each problem; see `seeded`.
        problems: the replicas; what a `Problem` does not set is shared and comes from the other
            arguments, which are those of `fit`.
        callbacks: called with an `Event`, whose `replica` says which; one that returns True stops
            that replica.
        on_divergence: `"record"` ends the replica whose loss is not finite and lets the others go
            on.
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
    problems = list(problems)  # kept: `known` goes by the identity of what they hold
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

    Kernel calls go to a pool of threads, some loops at a time, so that few hold their factors.
    Everything else, models, evaluations and callbacks among it, happens in the calling thread,
    because torch has one generator for all.
    """
    _check_alone()
    total = sum(watch.budget.steps(job.steps_per_epoch) for job, watch in runs)
    reporter = Reporter(progress, total)
    threads = torch.get_num_threads()
    running: dict[Future[Outcome], Loop] = {}
    loops: list[Loop] = []
    begun: set[Loop] = set()  # and not left

    def advance(loop: Loop, outcome: Outcome | None) -> None:
        """Begin a loop, or note how its stretch went; then give its next one to the pool, or take
        it here.
        """
        # the bits of factors and metrics must not depend on how many there are
        with one_torch_thread() if loop.engine.name == "kernel" else nullcontext():
            loop.begin() if outcome is None else loop.took(outcome)
            while (stretch := loop.next()) is not None:
                if loop.engine.in_pool:
                    running[pool.submit(stretch)] = loop
                    return
                loop.took(stretch())
        loop.leave()
        begun.remove(loop)

    devices = {job.table.x.device for job, _ in runs if job.table.x.device.type == "cuda"}
    with borrow_generators(devices), ExitStack() as stack:
        # torch has one thread in each of the pool's too: bits must not depend on how many
        stack.callback(torch.set_num_threads, threads)
        pool = stack.enter_context(
            ThreadPoolExecutor(threads, "rlploss", torch.set_num_threads, (1,))
        )
        try:
            for number, (job, watch) in enumerate(runs):
                loops.append(Loop(job, watch, reporter, number if fleet else None))
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
    """Refuse several processes: each of them would train the whole network."""
    started = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if dist.is_available() and dist.is_initialized():
        started = dist.get_world_size()
    if started > 1:
        raise RuntimeError(
            f"fit trains in one process, got one of {started} that train together; write the loop"
            " of examples/ddp.py, or start the processes apart"
        )
