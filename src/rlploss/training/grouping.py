"""Which replicas of a fleet train together, in which form, and which on their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlploss.distributed import current
from rlploss.training.budget import Budget, as_budget
from rlploss.training.checkpoints import describe_model
from rlploss.training.chunks import Chunk, cells_of, mode_of
from rlploss.training.feeds import Feed
from rlploss.training.history import History
from rlploss.training.members import Member
from rlploss.training.monitors import EarlyStopping, Progress, Reporter, make_stopper
from rlploss.training.recipes import Schedule
from rlploss.training.rows import Rows
from rlploss.training.runs import Callback, Run
from rlploss.training.stacking import Architecture, why_not_stackable
from rlploss.training.stacks import COMPILE_SECONDS, Stack
from rlploss.training.stepping import compiler_missing
from rlploss.training.tasks import Task, evaluation_interval
from rlploss.training.updates import make_optimizer
from rlploss.training.windows import needs_windows

# Measured on two cores; they decide how a fleet is run, never what it computes.
STACK_PRODUCTS = 3_000_000  # multiplications per step with which a network keeps the processor busy by itself
CACHE_BYTES = 2**20  # activations of one stack that stay near the processor
CALL_SECONDS = 2e-4  # saved per step by not calling torch's operators one by one
NUMBER_SECONDS = 6e-10  # saved per activation by fusing what is done to it


@dataclass(frozen=True)
class Common:
    """What all replicas share beyond their recipes."""

    schedule: str | Schedule | None
    evaluate_every: Budget | tuple[int, str] | None
    callbacks: tuple[Callback, ...]
    early_stopping: EarlyStopping | int | None
    on_divergence: str
    folder: Path | None
    checkpoint_every: Budget | tuple[int, str] | None


def train_fleet(
    tasks: list[Task], common: Common, *, stack: bool | str, compile: bool | str, reporter: Reporter
) -> list[History]:
    """Train all tasks, stacked where that is possible and pays."""
    _check_switch("stack", stack)
    _check_switch("compile", compile)
    if not tasks:
        return []
    if current().world > 1:
        raise ValueError(
            "fit_fleet trains its replicas in one process, got a torch.distributed job; give each process its own "
            "replicas before the processes join, or train one network with fit"
        )
    _check_same(tasks)
    architecture = Architecture(tasks[0].model, tasks[0].rows.row_shape)
    _check_stackable(tasks[0], stack)
    found: list[tuple[str, Member]] = []
    alone = []
    for number, task in enumerate(tasks):
        made = _member(number, task, common) if _worth_stacking(task, architecture, stack) else None
        if made is None:
            alone.append(number)
        else:
            found.append(made)
    done = 0

    def tell(steps: int) -> None:
        reporter.tell(done + steps)

    histories: dict[int, History] = {}
    for together in _stacks(architecture, found, common, compile, tell):
        together.go()
        for member in together.members:
            histories[member.number] = member.history
            done += member.total
            member.feed.end()  # what later stacks allocate fits where this one was
    for number in alone:
        histories[number] = _train_alone(number, tasks[number], common, tell)
        done += tasks[number].recipe.total_steps
    reporter.tell(done, last=True)
    return [histories[number] for number in range(len(tasks))]


def _stacks(
    architecture: Architecture,
    found: list[tuple[str, Member]],
    common: Common,
    compile: bool | str,
    tell: Callable[[int], None],
) -> Iterator[Stack]:
    """Stacks of equal width per group, so that one compiled call serves them all."""
    count, room = 0, None
    for mode, members in group_members(found):
        width, n_stacks = stack_width(architecture, mode, members, compiled=True)
        compiled = _compiles(architecture, mode, members, width, n_stacks, compile)
        if not compiled:
            width, _ = stack_width(architecture, mode, members, compiled=False)
        for start in range(0, len(members), width):
            part = members[start : start + width]
            path = None if common.folder is None else common.folder / f"stack-{count:04}.pt"
            wide = width if compiled else len(part)
            made = _stack(architecture, part, mode, wide, compiled, common, path, tell, room)
            yield made
            room = made.chunk
            count += 1


def _member(number: int, task: Task, common: Common) -> tuple[str, Member] | None:
    """The task as a member of a stack, and how it is scored there; None if it has to be trained on its own."""
    if needs_windows(task.recipe, task.rows):
        return None
    assert isinstance(task.rows, Rows)  # others are read in windows
    feed = Feed(task.recipe, task.rows)
    mode = mode_of(feed)
    if mode is None:
        return None
    stopper = make_stopper(common.early_stopping, task.evaluator.names)
    return mode, Member(number, task, feed, evaluation_interval(common.evaluate_every, task.recipe), stopper)


def _stack(
    architecture: Architecture,
    members: list[Member],
    mode: str,
    width: int,
    compiled: bool,
    common: Common,
    path: Path | None,
    tell: Callable[[int], None],
    room: Chunk | None = None,
) -> Stack:
    every = 0
    if common.checkpoint_every is not None:
        per_epoch = members[0].task.recipe.steps_per_epoch
        every = as_budget("checkpoint_every", common.checkpoint_every).steps(per_epoch)
    return Stack(
        architecture,
        members,
        mode,
        width=width,
        compiled=compiled,
        schedule=common.schedule,
        callbacks=common.callbacks,
        on_divergence=common.on_divergence,
        tell=tell,
        checkpoint=path,
        save_every=every,
        reuse=room,
    )


def compiled_run(
    task: Task, common: Common, *, compile: bool | str, path: Path | None, reporter: Reporter
) -> Stack | None:
    """One network as a compiled stack of one, where that is possible and asked for or predicted to pay."""
    _check_switch("compile", compile)
    if compile is False:
        return None
    model, recipe = task.model, task.recipe
    if current().world > 1 or needs_windows(recipe, task.rows):
        if compile is True:
            raise not_compiled("rows that are spread over processes, or read in windows, are not laid out beforehand")
        return None
    reason = why_not_stackable(model)
    if not all(type(module).forward.__module__.startswith("torch.nn") for module in model.modules()):
        reason = "only networks made of torch's own modules are compiled, since others would have to be traced"
    elif recipe.lr is None:
        reason = "the optimizer is a function"
    made = None
    if reason is None:
        architecture = Architecture(model, task.rows.row_shape)
        too_large = architecture.products(recipe.rows_per_step) > STACK_PRODUCTS
        if compile == "auto" and (common.callbacks or architecture.layers is None or too_large):
            return None  # a callback may want to touch the network itself
        if compile is True or _pays(architecture, recipe.rows_per_step, 1, recipe.total_steps):
            made = _member(0, task, common)
            reason = "its subsets are not scored by kept factors" if made is None else None
    if made is None:
        if compile is True:
            raise not_compiled(str(reason))
        return None
    mode, member = made
    if not _compiles(architecture, mode, [member], 1, 1, compile):
        return None
    return _stack(architecture, [member], mode, 1, True, common, path, reporter.tell)


def not_compiled(reason: str) -> ValueError:
    """The error of compile=True where nothing can be compiled."""
    return ValueError(f'compile=True is not possible here: {reason}; use compile="auto" or compile=False')


def group_members(found: list[tuple[str, Member]]) -> list[tuple[str, list[Member]]]:
    """Replicas that can share calls: scored alike, with steps and budgets within a factor of two of each other.

    Smaller ones are filled up with zeros, and whoever ends first waits, so a group must not be too mixed.
    """
    kinds: dict[Any, list[Member]] = {}
    for mode, member in found:
        recipe, rows = member.task.recipe, member.task.rows
        loss = "mse" if recipe.loss == "rlp" else recipe.loss
        key = (mode, loss, recipe.optimizer, tuple(rows.row_shape), rows.n_outputs, cells_of(member.feed, mode)[0])
        kinds.setdefault(key, []).append(member)
    groups = []
    for key, members in kinds.items():
        sized = [(cells_of(member.feed, key[0])[1], member.total, member) for member in members]
        sized.sort(key=lambda found: (found[0], found[1], found[2].number))
        group: list[Member] = []
        least = most = fewest = 0  # steps, and rows, in this group
        for n_rows, total, member in sized:
            least, most = min(least, total), max(most, total)
            if not group or n_rows > 2 * fewest or most > 2 * least:
                group = []
                groups.append((key[0], group))
                least, most, fewest = total, total, n_rows
            group.append(member)
    return groups


def stack_width(architecture: Architecture, mode: str, members: list[Member], *, compiled: bool) -> tuple[int, int]:
    """Replicas per stack, and how many stacks, evenly spread.

    Compiled steps are bound by arithmetic: few enough replicas that activations stay near the processor. Plain steps
    are bound by their calls: the more replicas share one the better, as far as memory goes.
    """
    rows = max(math.prod(cells_of(m.feed, mode)) for m in members)
    numbers = rows * sum(architecture.widths) + (rows**2 if mode == "form" else 0)
    if compiled:
        largest = min(32, max(8, CACHE_BYTES // (4 * numbers)))
    else:
        largest = min(256, max(8, 16 * CACHE_BYTES // (4 * numbers)))
    n_stacks = -(-len(members) // largest)
    return -(-len(members) // n_stacks), n_stacks


def _compiles(
    architecture: Architecture, mode: str, members: list[Member], width: int, n_stacks: int, compile: bool | str
) -> bool:
    """Whether a compiled call is possible and predicted to pay for its compilation."""
    missing = compiler_missing()
    on_cpu = members[0].task.rows.device.type == "cpu"
    if compile is True:
        if architecture.layers is None or missing is not None or not on_cpu:
            reason = missing or "only chains of linear layers and activations on a CPU are compiled"
            raise ValueError(f'compile=True is not possible here: {reason}; use compile="auto" or compile=False')
        return True
    if compile is False or architecture.layers is None or missing is not None or not on_cpu:
        return False
    rows = max(math.prod(cells_of(m.feed, mode)) for m in members)
    return _pays(architecture, rows, width, n_stacks * max(m.total for m in members))


def _pays(architecture: Architecture, n_rows: int, width: int, n_steps: int) -> bool:
    """Whether so many steps save more time than compiling takes."""
    numbers = width * n_rows * sum(architecture.widths)
    return n_steps * (CALL_SECONDS + NUMBER_SECONDS * numbers) > COMPILE_SECONDS


def _worth_stacking(task: Task, architecture: Architecture, stack: bool | str) -> bool:
    if isinstance(stack, bool):
        return stack
    # Larger networks, and convolutions at any size, are faster one after another on a processor's few cores.
    return architecture.layers is not None and architecture.products(task.recipe.rows_per_step) <= STACK_PRODUCTS


def _check_stackable(task: Task, stack: bool | str) -> None:
    reason = why_not_stackable(task.model)
    if reason is not None and stack is not False:
        raise ValueError(
            f"a fleet needs networks that can be stacked, but {reason}; use another layer, or stack=False to train "
            "the replicas one after another"
        )


def _check_same(tasks: list[Task]) -> None:
    """All replicas must be the same architecture: the same layers as printed, the same parameters and inputs."""

    def look(task: Task) -> tuple[object, ...]:
        return repr(task.model), describe_model(task.model), task.rows.row_shape, task.rows.n_outputs

    first = look(tasks[0])
    for number, task in enumerate(tasks):
        if look(task) != first:
            raise ValueError(
                f"all replicas must have the same architecture and input shape, but replica {number} differs from "
                "replica 0; train different architectures in fleets of their own"
            )


def _check_switch(name: str, value: bool | str) -> None:
    if not isinstance(value, bool) and value != "auto":
        raise ValueError(f'{name} must be True, False or "auto", got {value!r}')


def _train_alone(number: int, task: Task, common: Common, tell: Callable[[int], None]) -> History:
    """One replica by itself, as `fit` does without compiling."""

    def numbered(callback: Callback) -> Callback:
        return lambda event: callback(replace(event, replica=number))

    def forward(now: Progress) -> None:
        tell(now.step)

    run = Run(
        task,
        optimizer=make_optimizer(task.recipe, task.model),
        schedule=common.schedule,
        evaluate_every=common.evaluate_every,
        callbacks=tuple(numbered(callback) for callback in common.callbacks),
        early_stopping=common.early_stopping,
        on_divergence=common.on_divergence,
        reporter=Reporter(forward, task.recipe.total_steps),
        checkpoint=None if common.folder is None else common.folder / f"replica-{number:04}.pt",
        checkpoint_every=common.checkpoint_every,
    )
    return run.go()
