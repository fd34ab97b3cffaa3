"""`fit` and `fit_fleet`: Algorithms 2 and 3 of the paper, the released loop, every baseline, for any `nn.Module`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlploss import distributed
from rlploss._checks import one_of
from rlploss._extras import need
from rlploss._files import GENERATOR
from rlploss._progress import ProgressFunction, Reporter
from rlploss.training import checkpoint as files
from rlploss.training.engine import Engine, ModuleEngine, Outcome
from rlploss.training.evaluation import Callback, ChosenMetrics, EarlyStopping, Evaluator, History
from rlploss.training.job import Adam, Budget, ChosenOptimizer, Job, Problem, Schedule, make_job
from rlploss.training.kernel_engine import KernelEngine, why_not_kernel
from rlploss.training.loop import Loop, Supervision
from rlploss.training.objectives import RLP, Objective
from rlploss.training.rows import Array, Inputs

ENGINES = ("auto", "kernel", "torch")


def fit(
    model: nn.Module,
    X: Inputs,
    y: Array | None,
    objective: Objective | str = RLP(),  # noqa: B008 - a frozen value
    *,
    budget: Budget,
    optimizer: ChosenOptimizer = Adam(),  # noqa: B008 - as above
    seed: int = 0,
    sample_weight: Array | None = None,
    validation: tuple[Inputs, Array | None] | None = None,
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
        X: inputs [N, ...], tensor or array; a `np.memmap` is not copied, and not changed. Or a map-style `Dataset` of
            (input, target), beside y=None: its rows are read, and its subsets factored, a window of steps at a time.
        y: targets. Floating: regression, [N] or [N, C]. Whole numbers: class numbers [N], which objectives see as
            one-hot rows. None: the input is the target (reconstruction).
        objective: a value: `RLP(...)`, `MSE(...)`, `MAE(...)`, `Huber(...)`, `CrossEntropy(...)` (on logits),
            `Pointwise(function)`, `BatchLoss(function)`. A name, `"rlp"` or `"mse"`, stands for the value with its
            defaults. `RLP.paper(...)` is Algorithm 2 (with mixup Algorithm 3) as printed, `RLP.released(...)` the loop
            behind the published numbers.
        budget: `Epochs(n)` or `Steps(n)`. An epoch is a pass over the N rows, or over the K subsets for RLP.
        optimizer: `Adam(...)`, `AdamW(...)`, `SGD(...)`, or a function of the parameters. L2 is `weight_decay`.
        seed: decides plan, order and draws. Initial weights are the model's own; see `seeded`.
        sample_weight: [N], at least 0; only ratios count. A row of weight w counts w times in a pointwise loss, and
            planes are fitted by weighted least squares: x and residual are multiplied by √w. Rows of weight 0 are
            left out. Not with mixup or `BatchLoss`.
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
            in the History. Either way the weights are finite ones from before it and the last checkpoint stays.
        progress: True writes to stderr; a function gets a `Progress`.
        device: where to train; default where the model is.
        checkpoint: a file. If it exists the run continues from it, to the very bits of an uninterrupted run.
        checkpoint_every: `Epochs(n)` or `Steps(n)`; default every 30 seconds. Always written at the end.
        engine: `"kernel"` trains chains of linear layers on the CPU in one compiled call for many steps, `"torch"` any
            module. `"auto"` takes the kernel where it can and is faster; `history.settings["engine_reason"]` says why
            not. Rounding differs between the two, so a checkpoint belongs to one of them, and "auto" follows it.

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
    problem = Problem(X, y, seed=seed, validation=validation, sample_weight=sample_weight)
    settings = (objective, optimizer, budget, metrics, schedule, clip_grad, device)
    job = make_job(model, problem, *settings, n_processes=distributed.current().world)
    watch = Supervision(evaluate_every, tuple(callbacks), early_stopping, on_divergence, checkpoint, checkpoint_every)
    return train([job], watch, engine=engine, progress=progress)[0].history


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

    Each replica ends with the very bits that `fit` with its seed gives; `history.model` is its network. Replicas that
    the kernel trains share the cores, as many at a time as torch has threads; others train one after another.

    Args:
        build_model: called with the seed of each problem; see `seeded`.
        problems: the replicas; what a `Problem` does not set is shared and comes from the other arguments, which are
            those of `fit`.
        callbacks: called with an `Event`, whose `replica` says which; one that returns True stops that replica.
        on_divergence: `"record"` ends the replica whose loss is not finite and lets the others go on.
        checkpoint: a folder, with one file per replica.

    Example:
        >>> from rlploss import Adam, RegressionNet, Steps, seeded
        >>> X = torch.linspace(-1, 1, 60).view(20, 3)
        >>> fleet = [Problem(X, X.sum(1), seed=s, optimizer=Adam(lr)) for s in range(2) for lr in (1e-3, 1e-2)]
        >>> done = fit_fleet(lambda seed: seeded(lambda: RegressionNet(3), seed), fleet, "mse", budget=Steps(4))
        >>> [int(h.last("step")) for h in done]
        [4, 4, 4, 4]
    """
    if isinstance(build_model, nn.Module) or not callable(build_model):
        raise TypeError(
            f"build_model must be a function of a seed that returns a module, got {type(build_model).__name__}; write "
            "lambda seed: seeded(lambda: MyNet(), seed)"
        )
    if distributed.current().world > 1:
        raise ValueError("fit_fleet trains in one process; under torchrun call fit, or give each process its own fleet")
    if isinstance(problems, Problem):
        raise TypeError("problems must be a list of Problem values, got one Problem; write [Problem(X, y)]")
    known: dict[Any, Evaluator] = {}
    jobs: list[Job] = []
    settings = (objective, optimizer, budget, metrics, schedule, clip_grad, device)
    for problem in (problems := list(problems)):  # kept: `known` goes by the identity of what they hold
        if not isinstance(problem, Problem):
            raise TypeError(f"problems must be Problem values, got {type(problem).__name__}; write Problem(X, y)")
        model = build_model(problem.seed)
        if any(model is job.model for job in jobs):
            raise ValueError("build_model must build a network for each replica, got the same one again")
        jobs.append(make_job(model, problem, *settings, known=known))
    watch = Supervision(evaluate_every, tuple(callbacks), early_stopping, on_divergence, checkpoint, checkpoint_every)
    return [loop.history for loop in train(jobs, watch, engine=engine, progress=progress, fleet=True)]


# From jobs to loops


def train(
    jobs: Sequence[Job],
    watch: Supervision,
    *,
    engine: str = "auto",
    progress: bool | ProgressFunction = False,
    fleet: bool = False,
) -> list[Loop]:
    """Train all jobs, and return their loops in order.

    Kernel calls go to a pool of threads, some loops at a time, so that few hold their factors. Everything else, models,
    evaluations and callbacks among it, happens in the calling thread, because torch has one generator for all.
    """
    one_of("engine", engine, ENGINES)
    reporter = Reporter(distributed.current().rank == 0 and progress, sum(job.total_steps for job in jobs))
    threads = torch.get_num_threads()
    pool: ThreadPoolExecutor | None = None
    running: dict[Future[Outcome], Loop] = {}
    loops: list[Loop] = []

    def advance(loop: Loop, outcome: Outcome | None) -> None:
        """Begin a loop, or note how its stretch went; then give its next one to the pool, or take it here."""
        # the bits of factors and metrics must not depend on how many there are
        with distributed.one_torch_thread() if isinstance(loop.engine, KernelEngine) else nullcontext():
            loop.begin() if outcome is None else loop.took(outcome)
            while (stretch := loop.next()) is not None:
                if pool is not None and loop.engine.in_pool:
                    running[pool.submit(stretch)] = loop
                    return
                loop.took(stretch())
        loop.leave()

    generators = {job.table.x.device for job in jobs if job.table.x.device.type == "cuda"}
    with GENERATOR, ExitStack() as stack, torch.random.fork_rng(devices=list(generators)):
        try:
            for number, job in enumerate(jobs):
                replica = number if fleet else None
                made, reason = _choose_engine(job, engine, watch.path(replica))
                loops.append(Loop(job, made, watch, reporter, reason, replica))
                if pool is None and isinstance(made, KernelEngine):
                    stack.callback(torch.set_num_threads, threads)
                    # torch has one thread in each of the pool's too: bits must not depend on how many
                    workers = ThreadPoolExecutor(threads, "rlploss", torch.set_num_threads, (1,))
                    pool = stack.enter_context(workers)
                advance(loops[-1], None)
                while len(running) > (threads if number + 1 < len(jobs) else 0):
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        advance(running.pop(future), future.result())
        finally:
            for loop in loops:
                loop.engine.stopping = True
            wait(running)
            for loop in loops:
                loop.leave()
    reporter.end()
    return loops


def _choose_engine(job: Job, engine: str, path: Path | None) -> tuple[Engine, str]:
    """The engine of a job and why it is that one; a checkpoint's own comes first."""
    earlier = None if job.engine_state is None else job.engine_state["engine"]
    if path is not None and path.exists():
        earlier = files.read(path)["spec"].get("engine")
    wanted = earlier if engine == "auto" and earlier in ENGINES else engine
    because = "as asked" if wanted == engine else "its earlier training used it"
    if wanted == "torch":
        return ModuleEngine(job), because
    if wanted == "kernel":
        need("kernel", 'engine="kernel"', "numba")
    reason = why_not_kernel(job, any_size=wanted == "kernel")
    if reason is None:
        return KernelEngine(job), "a dense chain on the CPU" if wanted == "auto" else because
    if engine == "kernel":
        raise ValueError(f'engine="kernel" is not possible here: {reason}; use engine="auto" or "torch"')
    return ModuleEngine(job), reason  # and where that cannot go on with a checkpoint, the checkpoint says so
