"""`KernelEngine`: chains of dense layers on the CPU, many steps in one compiled call that holds no lock."""

from __future__ import annotations

import math
import sys
import threading
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
from rlploss._extras import missing
from rlploss.loss.planes import probe_rows
from rlploss.training import kernel_types as kt
from rlploss.training.engine import Engine, Outcome
from rlploss.training.feed import Block, Feed, Window
from rlploss.training.job import SGD, Adam, AdamW, Job
from rlploss.training.objectives import RLP, Huber
from rlploss.training.scores import score

# Where torch takes over: multiplications per step, and parameters (benchmarks/bench_engines.py measures both).
MOST_PRODUCTS, MOST_PARAMETERS = 3e7, 3e5
CALL_SECONDS = 0.2  # of one call, so that Ctrl-C, progress and checkpoints need not wait long

_ACTIVATIONS = {nn.ReLU: kt.RELU, nn.Tanh: kt.TANH, nn.Sigmoid: kt.SIGMOID, nn.Softmax: kt.SOFTMAX}
_LOSSES = {"mse": kt.MSE, "mae": kt.MAE, "huber": kt.HUBER, "cross_entropy": kt.CROSS_ENTROPY}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
KERNEL_PACKAGES = ("numba", "scipy", "threadpoolctl")
_MISSING = missing(*KERNEL_PACKAGES)
_TOLD_AFTER = 1.0  # seconds of compiling in silence
_LOCK = threading.Lock()
_READY: set[Any] = set()  # floating types that the kernel is compiled for


@dataclass(frozen=True)
class DenseChain:
    """A network that is a chain of linear layers: the layers, and the number of each one's activation."""

    layers: tuple[nn.Linear, ...]
    activations: tuple[int, ...]
    flattens: bool  # rows of any shape

    @property
    def n_parameters(self) -> int:
        """All weights and biases."""
        return sum(p.numel() for layer in self.layers for p in layer.parameters())


def read_chain(model: nn.Module) -> DenseChain | str:
    """The chain that a network is, or why it is none."""
    layers: list[nn.Linear] = []
    activations: list[int] = []
    flattens = False
    for module in _in_order(model):
        kind = type(module)
        if any(getattr(module, name) for name in _HOOKS):
            return f"{kind.__name__} has hooks"
        if isinstance(module, nn.Linear) and kind is nn.Linear:
            layers.append(module)
            activations.append(kt.IDENTITY)
        elif kind in _ACTIVATIONS:
            if not layers or activations[-1] != kt.IDENTITY:
                return f"{kind.__name__} does not follow a linear layer"
            if isinstance(module, nn.Softmax) and module.dim not in (-1, 1):
                return "Softmax is not over the outputs"
            activations[-1] = _ACTIVATIONS[kind]
        elif isinstance(module, nn.Flatten) and not layers and (module.start_dim, module.end_dim) == (1, -1):
            flattens = True
        elif kind is not nn.Identity:
            return f"{kind.__name__} is no linear layer, ReLU, tanh, sigmoid or soft-max"
    if not layers or kt.SOFTMAX in activations[:-1]:
        return "it is no chain of linear layers with a soft-max at the end only"
    own = [p for layer in layers for p in layer.parameters()]
    if len({id(p) for p in own}) < len(own) or {id(p) for p in own} != {id(p) for p in model.parameters()}:
        return "it has parameters beside its layers, or uses a layer twice"
    if not all(p.requires_grad for p in own):
        return "some of its parameters are frozen"
    if any(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in own):
        return "a parameter has hooks"
    return DenseChain(tuple(layers), tuple(activations), flattens)


def _in_order(model: nn.Module) -> Iterator[nn.Module]:
    plain = isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward
    if isinstance(model, nn.Sequential) and plain and not any(getattr(model, name) for name in _HOOKS):
        for child in model:
            yield from _in_order(child)
    else:
        yield model


def why_not_kernel(job: Job, *, any_size: bool) -> str | None:
    """Why a job cannot be trained by the kernel, or, if sizes count, should not; None if it can."""
    if _MISSING:
        return f"{_MISSING[0]} is not installed (pip install 'rlploss[kernel]')"
    if distributed.current().world > 1:
        return "several processes train together"
    if job.table.x.device.type != "cpu":
        return f"the network is on {job.table.x.device}"
    if job.table.dataset is not None:
        return "rows are read from a Dataset"
    if type(job.optimizer) not in (Adam, AdamW, SGD):
        return "the optimizer is a function"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    chain = read_chain(job.model)
    if isinstance(chain, str):
        return chain
    if len(job.table.x.shape[1:]) != 1 and not chain.flattens:
        return "its rows are not vectors"
    rows = min(job.objective.rows_per_step, job.table.n_rows)
    products = 3.0 * rows * chain.n_parameters
    if not any_size and (products > MOST_PRODUCTS or chain.n_parameters > MOST_PARAMETERS):
        return f"a step takes {products:.0e} multiplications, which torch does as fast"
    return None


@cache
def _controller() -> Any:
    import scipy.linalg.cython_blas  # noqa: F401 - numba's products call it: it must be loaded to be found
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
        from rlploss.training.kernel import run

        chain, table = read_chain(job.model), job.table
        assert isinstance(chain, DenseChain)
        self.job, self._layers = job, chain.layers
        self._run: Any = run
        self.feed = Feed(job, fits_planes=True)
        self._x, self._y = (_numbers(part, table.x.dtype) for part in (table.features, table.y))
        self._dtype = self._x.dtype
        self._theta = torch.zeros(chain.n_parameters, dtype=table.x.dtype)
        first, second = (np.zeros(chain.n_parameters, self._dtype) for _ in range(2))
        self.state = kt.State(self._theta.numpy(), first, second, np.ones(2), np.zeros(1))
        sizes = [0 if p is None else p.numel() for layer in chain.layers for p in (layer.weight, layer.bias)]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        biases = [start if size else -1 for start, size in zip(starts[1::2], sizes[1::2], strict=True)]
        widths = [chain.layers[0].in_features, *(layer.out_features for layer in chain.layers)]
        parts = (widths, chain.activations, starts[::2], biases)
        self._net = kt.Chain(*(np.array(part, np.int64) for part in parts))
        self._block: Block | None = None
        self._rows: Any = None
        self._loss: Any = None
        self._work: Any = None
        self._pace = math.inf  # seconds of a step

    # The module's parameters and the vector

    def _parameters(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        start = 0
        for layer in self._layers:
            for parameter in layer.parameters():
                part = self._theta[start : start + parameter.numel()]
                yield parameter, part.view(parameter.shape[::-1]).permute(*range(parameter.ndim)[::-1])
                start += parameter.numel()

    def begin(self) -> None:
        for parameter, view in self._parameters():
            view.copy_(parameter.detach())
            parameter.data = view
        if self.job.engine_state is not None:
            self.load_state_dict(self.job.engine_state)

    def end(self) -> None:
        for parameter, _ in self._parameters():
            parameter.data = parameter.data.clone()
        self._block = self._rows = self._loss = self._work = None
        self.feed.release()

    # Steps

    def run(self, window: Window, deadline: float) -> Outcome:
        self._use(window.block)
        rates = self.job.rate_factors(window.first, window.last) * self.job.optimizer.lr  # type: ignore[union-attr]  # a value
        started = time.perf_counter()
        taken, n, bad = 0, window.last - window.first, None
        self.state.total[0] = self.total
        while taken < n and bad is None:
            size = n - taken if self._outside else int(min(n - taken, max(64, CALL_SECONDS / self._pace)))
            begun = time.perf_counter()
            part = slice(taken, taken + size)
            if self._outside:
                done, status, value = self._steps_outside(window, part, rates, deadline)
            else:
                done, status, value = self._call(window.spans[part], rates[part])
            if status == kt.DOUBTFUL:
                more, status, value = self._careful_step(window, taken + done, rates)
                done += more
            taken += done
            if status == kt.NOT_FINITE:
                bad = value
            now = time.perf_counter()
            self._pace = max((now - begun) / max(done, 1), 1e-9)
            if self.stopping or now >= deadline:
                break
        self.total = float(self.state.total[0])
        return Outcome(taken, time.perf_counter() - started, bad)

    def _call(
        self, spans: Any, rates: Any, loss: Any = None, rows: Any = None, part: int = 0, value: float = 0.0
    ) -> Any:
        """One call of the kernel: steps done, status, last value."""
        data = self._rows if rows is None else rows
        data = data._replace(spans=np.ascontiguousarray(spans))
        update = self._update._replace(rates=np.ascontiguousarray(rates))
        loss = self._loss if loss is None else loss
        return self._run(self._net, data, loss, update, self.state, self._work, part, value)

    def _steps_outside(self, window: Window, part: slice, rates: Any, deadline: float) -> Any:
        """Steps of a loss that is anyone's own function: the kernel does all but ∂loss/∂pred."""
        C = self._y.shape[1]
        room = self._work.target.size // C
        last = room * (int(self._net.widths.sum()) - C)
        for done, i in enumerate(range(part.start, part.stop)):
            span, rate = window.spans[i : i + 1], rates[i : i + 1]
            self._call(span, rate, part=kt.FORWARD)
            B = len(self._y) if self._rows.every_row else int(span[0, 1] - span[0, 0])
            pred, target = (
                torch.from_numpy(a).view(B, C)
                for a in (self._work.acts[last : last + B * C], self._work.target[: B * C])
            )
            value, back = score(self.job.objective, window, i, pred, target)
            self._work.back[last : last + B * C] = back.reshape(-1).numpy()
            _, status, value = self._call(span, rate, part=kt.BACKWARD, value=value.item())
            if status != kt.DONE:
                return done, status, value
            if self.stopping or time.perf_counter() >= deadline:
                return done + 1, status, value
        return part.stop - part.start, kt.DONE, 0.0

    def _careful_step(self, window: Window, i: int, rates: Any) -> Any:
        """A step on subsets with columns that are nearly dependent, whose planes the loss's own rule of rank fits."""
        objective, data = self.job.objective, self._rows
        assert isinstance(objective, RLP)
        x, _ = window.inputs(i)
        subsets = x.reshape(-1, objective.shape()[0], x[0].numel())
        rows = probe_rows(subsets, objective.planes)
        loss = self._loss._replace(kind=kt.PROJECTED, projector=_numbers(rows, x.dtype))
        low, high = window.spans[i]
        parts = {name: getattr(data, name)[low:high] for name in ("rows", "partner", "lam")}
        return self._call([[0, high - low]], rates[i : i + 1], loss, data._replace(**parts))

    # From the job's values to the kernel's arguments

    def _use(self, block: Block) -> None:
        """Get ready for the steps of a block."""
        if block is self._block:
            return
        self._block = block
        C, spans = self._y.shape[1], np.zeros((0, 2), np.int64)
        weight, lam = (_numbers(part, self._theta.dtype) for part in (block.weight, block.lam))
        rows, partner = (_numbers(part, torch.int64) for part in (block.rows, block.partner))
        self._rows = kt.Rows(self._x, self._y, weight, rows, partner, lam, spans, block.every_row)
        self._loss = self._make_loss(block)
        self._outside = self._loss.kind == kt.OUTSIDE
        self._update = self._make_update()
        B = len(self._y) if block.every_row else int((block.spans[:, 1] - block.spans[:, 0]).max())
        total, P = B * int(self._net.widths.sum()), len(self.state.theta)
        q = max(self._loss.projector.shape[1], self._loss.subset_size)
        sizes = (total, total, B * C, B * C, q * C, P, P, int(self._net.widths.max()))
        self._work = kt.Work(*(np.zeros(n, self._dtype) for n in sizes))
        arguments = (self._net, self._rows, self._loss, self._update, self.state, self._work, kt.WHOLE, 0.0)
        _get_ready(self._run, self._dtype, arguments)

    def _make_loss(self, block: Block) -> kt.Loss:
        objective, real = self.job.objective, self._theta.dtype
        M, kind = 1, _LOSSES.get(objective.loss, kt.OUTSIDE)
        projector, form = np.zeros((0, 1, 1), self._dtype), np.zeros((0, 0), self._dtype)
        if isinstance(objective, RLP):
            M, kind = objective.shape()[0], kt.PROJECTED
            if block.bank is not None:
                kind = kt.OUTSIDE
            elif block.form is not None:
                kind, form = kt.FORM, _numbers(block.form, real)
            elif block.fits_planes:
                kind = kt.FRESH_SUBSET if objective.probe == "subset" else kt.FRESH_SUM
            elif block.projector is not None:
                projector = _numbers(block.projector, real)
            elif block.every_row or block.weight is not None:  # the residual is seen whole
                projector = np.zeros((len(block.rows) // M, 1, M), self._dtype)
            else:
                kind = kt.MSE
        offset = _numbers(block.offset, real)
        delta = objective.delta if isinstance(objective, Huber) else 1.0
        intercept = isinstance(objective, RLP) and objective.planes.intercept
        return kt.Loss(kind, float(delta), projector, float(block.residual_weight), offset, form, M, bool(intercept))

    def _make_update(self) -> kt.Update:
        optimizer = self.job.optimizer
        assert isinstance(optimizer, Adam | AdamW | SGD)
        kind, momentum = {Adam: kt.ADAM, AdamW: kt.ADAMW, SGD: kt.SGD}[type(optimizer)], 0.0
        if isinstance(optimizer, SGD):
            kind, momentum = kt.NESTEROV if optimizer.nesterov else kt.SGD, float(optimizer.momentum)
        decay, clip = float(optimizer.weight_decay), float(self.job.clip_grad or 0.0)
        return kt.Update(kind, np.zeros(0), decay, momentum, clip, 0.9, 0.999, 1e-8)

    # State

    def state_dict(self) -> dict[str, Any]:
        kept = {name: torch.from_numpy(getattr(self.state, name).copy()) for name in ("first", "second", "powers")}
        return {"engine": self.name, **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("first", "second", "powers"):
            getattr(self.state, name)[:] = state[name].numpy()


def _numbers(tensor: Tensor | None, dtype: torch.dtype) -> NDArray[Any]:
    """The tensor's memory as an array of the one kind that the kernel is compiled for: contiguous; None: no numbers."""
    given = torch.zeros(0) if tensor is None else tensor.detach()
    array: NDArray[Any] = given.to(dtype).contiguous().numpy()
    return array


def _get_ready(run: Any, dtype: Any, arguments: tuple[Any, ...]) -> None:
    """Compile the kernel, or load it from disk, for a floating type and arguments that hold no steps.

    After this no other types are accepted: numba would compile again for seconds, in silence.
    """
    from rlploss.training.compiling import forget

    with _LOCK:
        if dtype in _READY:
            return
        told = threading.Timer(_TOLD_AFTER, _tell)
        told.daemon = True
        told.start()
        run.disable_compile(False)
        try:
            run(*arguments)
        except Exception:  # whatever a damaged file on disk leads to
            forget()
            run(*arguments)
        finally:
            told.cancel()
        run.disable_compile(True)
        _READY.add(dtype)


def _tell() -> None:
    print("rlploss: compiling the training kernel, some ten seconds, once on this machine", file=sys.stderr, flush=True)
