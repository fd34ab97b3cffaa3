"""`KernelEngine`: chains of dense layers on the CPU, many steps in one compiled call that holds no lock."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlploss import distributed
from rlploss.loss.planes import probe_rows
from rlploss.training.engine import Engine, Outcome
from rlploss.training.feed import HELD_BYTES, Block, Feed, Window
from rlploss.training.job import Job
from rlploss.training.objectives import RLP, BatchLoss, Huber, Objective, Pointwise
from rlploss.training.optimizers import SGD, Adam, AdamW
from rlploss.training.rows import Table
from rlploss.training.scores import score

# Where torch takes over: multiplications per step, and parameters (benchmarks/bench_engines.py measures both).
MOST_PRODUCTS, MOST_PARAMETERS = 3e7, 3e5
CALL_SECONDS = 0.2  # of one call, so that Ctrl-C, progress and checkpoints need not wait long

_ACTIVATIONS = {nn.Identity: 0, nn.ReLU: 1, nn.Tanh: 2, nn.Sigmoid: 3, nn.Softmax: 4}
_LOSSES = {"mse": 0, "mae": 1, "huber": 2, "cross_entropy": 3}


@dataclass(frozen=True)
class DenseChain:
    """A network that is a chain of linear layers: the layers, and the number of each one's activation."""

    layers: tuple[nn.Linear, ...]
    activations: tuple[int, ...]

    @property
    def n_parameters(self) -> int:
        """All weights and biases."""
        return sum(p.numel() for layer in self.layers for p in layer.parameters())


def read_chain(model: nn.Module) -> DenseChain | str:
    """The chain that a network is, or why it is none."""
    layers: list[nn.Linear] = []
    activations: list[int] = []
    for module in _modules_in_order(model):
        kind = type(module)
        if any(getattr(module, name) for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")):
            return f"{kind.__name__} has hooks"
        if kind is nn.Linear:
            layers.append(module)  # type: ignore[arg-type]  # as its type says
            activations.append(0)
        elif kind is nn.Flatten and not layers and (module.start_dim, module.end_dim) == (1, -1):
            continue
        elif kind in _ACTIVATIONS and kind is not nn.Identity:
            if not layers or activations[-1]:
                return f"{kind.__name__} does not follow a linear layer"
            if kind is nn.Softmax and module.dim not in (-1, 1):
                return "Softmax is not over the outputs"
            activations[-1] = _ACTIVATIONS[kind]
        elif kind is not nn.Identity:
            return f"{kind.__name__} is no linear layer, ReLU, tanh, sigmoid or soft-max"
    if not layers or 4 in activations[:-1]:
        return "it is no chain of linear layers with a soft-max at the end only"
    own = [p for layer in layers for p in layer.parameters()]
    if len({id(p) for p in own}) < len(own) or {id(p) for p in own} != {id(p) for p in model.parameters()}:
        return "it has parameters beside its layers, or uses a layer twice"
    if not all(p.requires_grad for p in own):
        return "some of its parameters are frozen"
    if any(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in own):
        return "a parameter has hooks"
    return DenseChain(tuple(layers), tuple(activations))


def _modules_in_order(model: nn.Module) -> Iterator[nn.Module]:
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        if not any(getattr(model, name) for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")):
            for child in model:
                yield from _modules_in_order(child)
            return
    yield model


def why_not_kernel(job: Job, *, any_size: bool) -> str | None:
    """Why a job cannot be trained by the kernel, or, if sizes count, should not; None if it can."""
    missing = [name for name in ("numba", "scipy", "threadpoolctl") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{missing[0]} is not installed (pip install 'rlploss[kernel]')"
    if distributed.current().world > 1:
        return "several processes train together"
    if job.table.device.type != "cpu":
        return f"the network is on {job.table.device}"
    if not isinstance(job.table, Table):
        return "rows are read from a Dataset"
    if type(job.optimizer) not in (Adam, AdamW, SGD):
        return "the optimizer is a function"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    chain = read_chain(job.model)
    if isinstance(chain, str):
        return chain
    rows = min(job.objective.rows_per_step, job.table.n_rows)
    if isinstance(job.objective, RLP) and rows == job.table.n_rows > 4096:
        return "all subsets in one step of so many rows are scored in parts"
    products = 3.0 * rows * chain.n_parameters
    if not any_size and (products > MOST_PRODUCTS or chain.n_parameters > MOST_PARAMETERS):
        return f"a step takes {products:.0e} multiplications, which torch does as fast"
    return None


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def blas_on_one_thread() -> Iterator[None]:
    """Products of small matrices lose by threads of their own, and their bits must not depend on them."""
    with _controller().limit(limits=1, user_api="blas"):
        yield


class KernelEngine(Engine):
    """The module's parameters are views of one vector while it trains, so that everybody sees the current weights."""

    name = "kernel"

    def __init__(self, job: Job) -> None:
        from rlploss.training import kernel

        chain = read_chain(job.model)
        assert isinstance(chain, DenseChain)
        self.job, self._kernel, self._chain = job, kernel, chain
        self.feed = Feed(job, fits_planes=True)
        dtype = np.float64 if job.table.dtype == torch.float64 else np.float32
        P = chain.n_parameters
        self._theta = torch.zeros(P, dtype=job.table.dtype)
        self.state = kernel.State(
            self._theta.numpy(), np.zeros(P, dtype), np.zeros(P, dtype), np.ones(2), np.zeros(1)
        )
        weights, biases = [], []
        start = 0
        for layer in chain.layers:
            weights.append(start)
            start += layer.weight.numel()
            biases.append(-1 if layer.bias is None else start)
            start += 0 if layer.bias is None else layer.bias.numel()
        widths = [chain.layers[0].in_features, *(layer.out_features for layer in chain.layers)]
        self._net = kernel.Chain(*(np.array(v, np.int64) for v in (widths, chain.activations, weights, biases)))
        self._dtype = dtype
        self._empty = np.zeros(0, dtype)
        self._block: Block | None = None
        self._pace = math.inf  # seconds of a step
        table = job.table
        assert isinstance(table, Table)
        self._x, self._y = _numbers(table.features), _numbers(table.y)

    # The module's parameters and the vector

    def _parameters(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        start = 0
        for layer in self._chain.layers:
            for parameter in layer.parameters():
                yield parameter, self._theta[start : start + parameter.numel()].view(parameter.shape)
                start += parameter.numel()

    def begin(self) -> None:
        """Let the module's parameters be views of the vector."""
        for parameter, view in self._parameters():
            view.copy_(parameter.detach())
            parameter.data = view
        if self.job.engine_state is not None:
            self.load_state_dict(self.job.engine_state)

    def end(self) -> None:
        """Give the module parameters of its own again."""
        for parameter, _ in self._parameters():
            parameter.data = parameter.data.clone()

    # Steps

    def reset_total(self, total: float = 0.0) -> None:
        """Set the running sum of losses."""
        self.state.total[0] = total

    def run(self, window: Window, deadline: float) -> Outcome:
        """Take the steps of a window in calls of about `CALL_SECONDS`."""
        self._use(window.block)
        rates = self.job.rate_factors(window.first, window.last) * self.job.optimizer.lr  # type: ignore[union-attr]  # a value
        started = time.perf_counter()
        taken, n = 0, window.last - window.first
        bad = None
        while taken < n and bad is None:
            size = n - taken if self._outside else int(min(n - taken, max(64, CALL_SECONDS / self._pace)))
            begun = time.perf_counter()
            part = slice(taken, taken + size)
            if self._outside:
                done, status, value = self._steps_outside(window, part, rates, deadline)
            else:
                done, status, value = self._call(window.spans[part], rates[part])
            if status == self._kernel.DOUBTFUL:
                more, status, value = self._careful_step(window, taken + done, rates)
                done += more
            taken += done
            if status == self._kernel.NOT_FINITE:
                bad = value
            now = time.perf_counter()
            self._pace = max((now - begun) / max(done, 1), 1e-9)
            if now >= deadline:
                break
        return Outcome(taken, float(self.state.total[0]), time.perf_counter() - started, bad)

    def _call(self, spans: Any, rates: Any, loss: Any = None, rows: Any = None, part: int = 0, value: float = 0.0) -> Any:
        """One call of the kernel: steps done, status, last value."""
        data = self._rows if rows is None else rows
        data = data._replace(spans=np.ascontiguousarray(spans))
        update = self._update._replace(rates=np.ascontiguousarray(rates))
        return self._kernel.run(
            self._net, data, self._loss if loss is None else loss, update, self.state, self._work, part, value
        )

    def _steps_outside(self, window: Window, part: slice, rates: Any, deadline: float) -> Any:
        """Steps of a loss that is anyone's own function: the kernel does all but ∂loss/∂pred."""
        kernel, C = self._kernel, self._y.shape[1]
        room = self._work.target.size // C
        last = room * (int(self._net.widths.sum()) - C)
        for done, i in enumerate(range(part.start, part.stop)):
            span, rate = window.spans[i : i + 1], rates[i : i + 1]
            self._call(span, rate, part=kernel.FORWARD)
            B = len(self._y) if self._rows.every_row else int(span[0, 1] - span[0, 0])
            pred, target = (
                torch.from_numpy(a).view(B, C) for a in (self._work.acts[last : last + B * C], self._work.target[: B * C])
            )
            value, back = score(self.job.objective, window, i, pred, target)
            self._work.back[last : last + B * C] = back.reshape(-1).numpy()
            _, status, value = self._call(span, rate, part=kernel.BACKWARD, value=value.item())
            if status != kernel.DONE:
                return done, status, value
            if time.perf_counter() >= deadline:
                return done + 1, status, value
        return part.stop - part.start, kernel.DONE, 0.0

    def _careful_step(self, window: Window, i: int, rates: Any) -> Any:
        """A step on a subset whose columns are nearly dependent: its planes are fitted by the loss's own rule of rank."""
        objective, data = self.job.objective, self._rows
        assert isinstance(objective, RLP)
        x, _ = window.inputs(i)
        subsets = x.reshape(-1, objective.shape()[0], x[0].numel())
        rows = probe_rows(subsets, probe=objective.probe, intercept=objective.has_offset)
        loss = self._loss._replace(kind=4, projector=_numbers(rows.to(x.dtype)))
        work = self._work
        self._work = work._replace(seen=np.zeros(rows.shape[1] * self._y.shape[1], self._dtype))
        low, high = window.spans[i]
        parts = {name: getattr(data, name)[low:high] for name in ("rows", "partner", "lam")}
        try:
            return self._call([[0, high - low]], rates[i : i + 1], loss, data._replace(**parts))
        finally:
            self._work = work

    # From the job's values to the kernel's arguments

    def _use(self, block: Block) -> None:
        """Get ready for the steps of a block."""
        if block is self._block:
            return
        self._block = block
        kernel, objective, d, C = self._kernel, self.job.objective, self._x.shape[1], self._y.shape[1]
        none = np.zeros(0, np.int64)
        self._rows = kernel.Rows(
            self._x,
            self._y,
            self._empty if block.weight is None else _numbers(block.weight),
            _numbers(block.rows),
            none if block.partner is None else _numbers(block.partner),
            self._empty if block.lam is None else _numbers(block.lam.to(self.job.table.dtype)),
            np.zeros((0, 2), np.int64),
            block.every_row,
        )
        self._loss = self._make_loss(block, objective)
        self._outside = isinstance(objective, Pointwise | BatchLoss)
        self._update = self._make_update()
        M = self._loss.subset_size
        B = len(self._y) if block.every_row else int((block.spans[:, 1] - block.spans[:, 0]).max())
        q = self._loss.projector.shape[1]
        total = B * int(self._net.widths.sum())
        zeros = (total, total, B * C, B * C, q * C, 2 * M * C, len(self.state.theta))
        fresh = d if block.fits_planes else 0
        planes = (M * fresh, 2 * fresh * fresh, 4 * (fresh + M))
        self._work = kernel.Work(*(np.zeros(n, self._dtype) for n in zeros), *(np.zeros(n) for n in planes))
        ready(kernel.run, self._net, self._rows, self._loss, self._update, self.state, self._work, 0, 0.0)

    def _make_loss(self, block: Block, objective: Objective) -> Any:
        kernel, dtype = self._kernel, self._dtype
        projector, form, rest = np.zeros((0, 1, 1), dtype), np.zeros((0, 0), dtype), block.residual_weight
        delta = objective.delta if isinstance(objective, Huber) else 1.0
        if not isinstance(objective, RLP):
            kind, M, intercept = _LOSSES.get(objective.loss, 8), 1, False
        else:
            M, intercept = objective.shape()[0], bool(objective.has_offset)
            kind = 4
            if block.form is not None:
                kind, form = 5, _numbers(block.form)
            elif block.fits_planes:
                kind = 6 if objective.probe == "subset" else 7
            elif block.projector is not None:
                projector = _numbers(block.projector)
            elif block.every_row or block.weight is not None:  # the residual is seen whole
                projector = np.zeros((len(block.rows) // M, 1, M), dtype)
            else:
                kind = 0
        offset = self._empty if block.offset is None else _numbers(block.offset)
        from rlploss.training.kernel_losses import Loss

        return Loss(kind, float(delta), projector, float(rest), offset, form, M, intercept)

    def _make_update(self) -> Any:
        optimizer, clip = self.job.optimizer, self.job.clip_grad
        assert isinstance(optimizer, Adam | AdamW | SGD)
        kind = {Adam: 0, AdamW: 1, SGD: 2}[type(optimizer)] + int(getattr(optimizer, "nesterov", False))
        momentum = float(getattr(optimizer, "momentum", 0.0))
        clipped = 0.0 if clip is None else float(clip)
        decay = float(optimizer.weight_decay)
        return self._kernel.Update(kind, np.zeros(0), decay, momentum, clipped, 0.9, 0.999, 1e-8)

    # State

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's averages and powers."""
        kept = {name: torch.from_numpy(getattr(self.state, name).copy()) for name in ("first", "second", "powers")}
        return {"engine": self.name, **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with such a state."""
        for name in ("first", "second", "powers"):
            getattr(self.state, name)[:] = state[name].numpy()


def _numbers(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory as an array of the one kind that the kernel is compiled for: contiguous and writable."""
    array: NDArray[Any] = tensor.detach().contiguous().numpy()
    return array


_READY: set[Any] = set()


def ready(run: Any, *arguments: Any) -> None:
    """Compile, or load from disk, for the floating type of these arguments; they hold no steps."""
    from rlploss.training.compiling import warm

    dtype = arguments[4].theta.dtype
    if dtype not in _READY:
        warm(run, *arguments)
        _READY.add(dtype)
