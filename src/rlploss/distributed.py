"""Training in several processes: who has which subsets, and what the processes must agree on.

RLP is a mean over independent subsets, so each subset lies wholly in one process and nothing but gradients (and the
moments of the features, for probe="expected") has to be exchanged. `fit` does all of it by itself once
`torch.distributed` is initialised (`start` does that); the other functions are for training loops of one's own.

Rank r of W has the units r·n//W to (r+1)·n//W of the n units of a step, so counts differ by at most one. A value
over all n is Σ_r of what each process weighs by 1/n (not by its own count): gradients are summed, never averaged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlploss import _checks
from rlploss._scaling import is_constant
from rlploss.loss.planes import points_with, triangle_of

T = TypeVar("T")

_ROWS = 2**16  # at a time


@dataclass(frozen=True)
class Share:
    """The part of one process: rank r of W."""

    rank: int = 0
    world: int = 1

    def of(self, n: Any) -> slice:
        """Which of n units are this process's; n is a number, or an array of them.

        >>> [Share(r, 3).of(7) for r in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
        """
        return slice(self.rank * n // self.world, (self.rank + 1) * n // self.world)


def current() -> Share:
    """The part of this process: of one, unless `torch.distributed` is initialised."""
    if dist.is_available() and dist.is_initialized():
        return Share(dist.get_rank(), dist.get_world_size())
    world = os.environ.get("WORLD_SIZE", "1")
    if world != "1" and "TORCHELASTIC_RUN_ID" in os.environ:
        remedy = "put the training in `with rlploss.distributed.start():`, or call torch.distributed.init_process_group"
        raise RuntimeError(f"torchrun started {world} processes that do not know of each other; {remedy} first")
    return Share()


@contextmanager
def start(backend: str | None = None, *, timeout: float = 600.0) -> Iterator[Share]:
    """Join the processes that torchrun started, and leave them at the end; alone without torchrun.

    Args:
        backend: `"gloo"` or `"nccl"`; default nccl where there is a GPU for each process, else gloo.
        timeout: seconds that a process waits for the others in an exchange before it gives up.
    """
    if "RANK" not in os.environ:
        yield Share()
        return
    if backend is None:
        enough = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        backend = "nccl" if enough else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        yield current()
    finally:
        dist.destroy_process_group()


# What `fit` exchanges


def share_model(model: nn.Module) -> None:
    """Give every process the parameters and buffers of rank 0."""
    for tensor in model.state_dict().values():
        if isinstance(tensor, Tensor):
            dist.broadcast(tensor, src=0)


def add_up(value: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
    """Sum a value and the gradients over all processes, in one exchange; return the sum of the values.

    A parameter without a gradient counts as zero here, and keeps none if it has none anywhere.
    """
    parameters = list(parameters)
    has = [p.grad is not None for p in parameters]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    device, dtype = parameters[0].device, parameters[0].dtype
    marks = torch.tensor(has, dtype=dtype, device=device)
    flat = torch.cat([value.detach().to(device, dtype).view(1), marks, *(p.reshape(-1) for p in parts)])
    dist.all_reduce(flat)
    total, anywhere, *sums = torch.split(flat, [1, len(parts), *(part.numel() for part in parts)])
    for parameter, part, count in zip(parameters, sums, anywhere.tolist(), strict=True):
        if count > 0:
            parameter.grad = part.view_as(parameter)
    return total[0]


def any_of(flag: bool) -> bool:
    """Whether the flag is set in any process."""
    found = [flag] * dist.get_world_size()
    dist.all_gather_object(found, flag)
    return any(found)


def by_first(function: Callable[[], T]) -> T:
    """What the function returns on rank 0, everywhere; its exception too, so that nobody waits for the others."""
    answer: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            answer[0] = function()
        except Exception as error:
            answer[1] = error
    dist.broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise answer[1]
    result: T = answer[0]
    return result


def agree(description: dict[str, Any]) -> None:
    """Refuse to train where processes would train different things."""
    plain = {name: str(value) for name, value in description.items()}
    found: list[dict[str, str]] = [plain] * dist.get_world_size()
    dist.all_gather_object(found, plain)
    for rank, other in enumerate(found):
        for name, value in other.items():
            if value != found[0].get(name):
                got = f"{name} is {found[0].get(name)} on rank 0 and {value} on rank {rank}"
                rule, remedy = "every process must call fit with the same arguments", "the same data, settings and seed"
                raise ValueError(f"{rule}, but {got}; give them {remedy}")


# For loops of one's own


def loss_scale(n_mine: int, *, reduction: str = "mean") -> float:
    """The factor of this process's loss under DistributedDataParallel, which averages gradients over ranks.

    `n_mine` is the number of subsets in this process's loss that count, n the number in all W. For reduction="mean"
    the factor is W·n_mine/n, so that mean_r(factor_r · loss_r) is the mean over all n subsets; for "sum" it is W, or 0
    where n_mine = 0: the loss of a subset that only fills up a short step is weighted away.
    """
    _checks.one_of("reduction", reduction, ("mean", "sum"))
    mine = _checks.count("n_mine", n_mine, minimum=0)
    world = current().world
    if reduction == "sum":
        return float(world if mine else 0)
    total = _everywhere(torch.tensor(float(mine), dtype=torch.float64))
    if float(total) == 0:
        raise ValueError("n_mine must be above 0 in some process, got 0 in all; there is nothing to train on")
    return world * mine / float(total)


def mean_and_std(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [d] of the columns over all processes' rows x [n_r, d], in float64.

    For standardising shards alike. Columns that are constant have deviation 1. In two passes, so that a large
    offset does not spoil the deviation.
    """
    n, mean = _mean(x)
    std = (_everywhere((x.double() - mean).square().sum(0)) / n).sqrt()
    return mean, torch.where(is_constant(mean, std), torch.ones_like(std), std)


def moment_points(x: Tensor) -> Tensor:
    """2d points that have the mean and the second moments of all processes' rows x [n_r, d]: float64 [2d, d].

    The probe "expected" depends on rows through Σ = mean of zzᵀ alone, so these points can stand for all rows:
    `RLPLoss(probe="expected")(pred, target, x, probe_points=moment_points(x_of_this_process).to(x))`.
    """
    n, mean = _mean(x)
    triangle = triangle_of(torch.split(x, _ROWS), mean)
    here = current()
    if here.world > 1:
        every = triangle.new_zeros(here.world, *triangle.shape)
        every[here.rank] = triangle
        triangle = torch.linalg.qr(_everywhere(every).flatten(0, 1), mode="r")[1]
    return points_with(n, mean, triangle)


def _mean(x: Tensor) -> tuple[float, Tensor]:
    if x.ndim != 2:
        raise ValueError(f"x must have shape (n, d), got {tuple(x.shape)}")
    sums = x.sum(0, dtype=torch.float64)
    total = _everywhere(torch.cat([sums, sums.new_tensor([len(x)])]))
    if float(total[-1]) == 0:
        raise ValueError("x must have at least one row in some process, got none")
    return float(total[-1]), total[:-1] / total[-1]


def _everywhere(x: Tensor) -> Tensor:
    """The sum over all processes."""
    if current().world == 1:
        return x
    there = x.cuda() if dist.get_backend() == "nccl" else x  # which takes no other tensors
    dist.all_reduce(there)
    return there.to(x.device)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """One thread for torch: on small products several wait for each other, and what they share out rounds otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
