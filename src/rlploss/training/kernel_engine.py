"""Train chains of dense layers on the CPU, many steps in one compiled call without a lock."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlploss._extras import missing
from rlploss.loss.planes import PlaneForm, probe_rows
from rlploss.training import kernel_types as kt
from rlploss.training.engine import Engine, Factors, Outcome, Spans, step_value
from rlploss.training.feed import Block, FreshPlanes, KeptPlanes, OneForm, make_feed
from rlploss.training.job import SGD, Adam, AdamW, Job
from rlploss.training.objectives import Pointwise

# Above these numbers of multiplications per step and of parameters torch is as fast (measured by
# benchmarks/bench_engines.py).
MOST_PRODUCTS, MOST_PARAMETERS = 3e8, 1e5
CHECK_STEPS = 1000  # steps of a compiled loss between two comparisons with torch
CALL_SECONDS = 0.2  # the length of one call: Ctrl-C, progress and checkpoints wait for its end

_ACTIVATIONS = {nn.ReLU: kt.RELU, nn.Tanh: kt.TANH, nn.Sigmoid: kt.SIGMOID, nn.Softmax: kt.SOFTMAX}
LOSSES = {"mse": kt.MSE, "mae": kt.MAE, "huber": kt.HUBER, "cross_entropy": kt.CROSS_ENTROPY}
_OPTIMIZERS = {Adam: kt.ADAM, AdamW: kt.ADAMW, SGD: kt.SGD}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Hooks that apply to all modules.
_EVERYWHERE = [getattr(nn.modules.module, f"_global{name}") for name in _HOOKS]
_MISSING = bool(missing("numba"))
_NOTICE = "rlploss: compiling the training kernel takes about five seconds, once on this machine"
_LOCK = threading.Lock()
_READY: set[Any] = set()  # pairs of a kernel function and a floating type for which it is compiled

Chain = tuple[list[nn.Linear], list[int]]  # layers, and the number of each layer's activation


def read_chain(model: nn.Module) -> Chain | str:
    """Return the network as a chain of layers, or the reason why it is not one."""
    layers: list[nn.Linear] = []
    activations: list[int] = []
    # In order; a module that is used twice appears twice.
    for _, module in model.named_modules(remove_duplicate=False):
        kind = type(module)
        if any(getattr(module, name) for name in _HOOKS) or any(map(len, _EVERYWHERE)):
            return f"{kind.__name__} has hooks"
        if "forward" in vars(module):
            return f"{kind.__name__} has a forward of its own"
        frame = kind is nn.Identity or kind.forward is nn.Sequential.forward  # its parts come next
        flattens = isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)
        if isinstance(module, nn.Linear) and kind is nn.Linear:
            layers.append(module)
            activations.append(kt.IDENTITY)
        elif kind in _ACTIVATIONS:
            if not layers or activations[-1] != kt.IDENTITY:
                return f"{kind.__name__} does not follow a linear layer"
            if getattr(module, "dim", -1) not in (-1, 1):
                return "Softmax is not over the outputs"
            activations[-1] = _ACTIVATIONS[kind]
        elif not (frame or (flattens and not layers)):
            return f"{kind.__name__} is no linear layer, ReLU, tanh, sigmoid or soft-max"
    own = [p for layer in layers for p in layer.parameters()]
    theirs = {id(p) for p in model.parameters()}
    apart = len({p.data_ptr() for p in own}) == len(own) and {id(p) for p in own} == theirs
    reasons = {
        "it is no chain of linear layers with a soft-max at the end only": (
            not layers or kt.SOFTMAX in activations[:-1]
        ),
        "one of its layers has parts of its own": (
            any(part._modules and not isinstance(part, nn.Sequential) for part in model.modules())
        ),
        "it has parameters beside its layers, or uses a layer twice": not apart,
        "some of its parameters are frozen": not all(p.requires_grad for p in own),
        "a parameter has hooks": any(
            p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in own
        ),
    }
    return _first(reasons) or (layers, activations)


def kernel_chain(job: Job, *, any_size: bool) -> Chain | str:
    """Return the chain that the kernel should train, or the reason why it should not."""
    x, chain = job.table.x, read_chain(job.model)
    flattens = any(isinstance(part, nn.Flatten) for part in job.model.modules())
    n_parameters = sum(p.numel() for p in job.model.parameters())
    products = 3.0 * min(job.objective.rows_per_step, len(x)) * n_parameters
    large = products > MOST_PRODUCTS or n_parameters > MOST_PARAMETERS
    reasons = {
        "numba is not installed (pip install 'rlploss[kernel]')": _MISSING,
        f"the network is on {x.device}": x.device.type != "cpu",
        "the optimizer is a function": type(job.optimizer) not in _OPTIMIZERS,
        "autocast is on": torch.is_autocast_enabled("cpu"),
        str(chain): isinstance(chain, str),
        "its rows are not vectors": x.ndim != 2 and not flattens,
        f"a step takes {products:.0e} multiplications, which torch does as fast": (
            large and not any_size
        ),
    }
    return _first(reasons) or chain


def _first(reasons: dict[str, bool]) -> str | None:
    """Return the first reason that holds."""
    return next((reason for reason, holds in reasons.items() if holds), None)


class KernelEngine(Engine):
    """Trains a vector of all weights, copied from the module before a stretch and back after it."""

    name = "kernel"

    def __init__(self, job: Job, total_steps: int, chain: Chain) -> None:
        from rlploss.training import kernel  # imported here, because it needs numba

        self.job, self._kernel, (layers, activations) = job, kernel, chain
        self.feed = make_feed(job, total_steps, fits_planes=True)
        self._as_array = partial(_numbers, dtype=job.table.x.dtype)
        self._x, self._y = self._as_array(job.table.features), self._as_array(job.table.y)
        self._dtype = self._x.dtype
        # The parameters as the network has them, and as parts of one vector, with weights
        # transposed.
        own = [p for layer in layers for p in (layer.weight, layer.bias)]
        sizes = [0 if p is None else p.numel() for p in own]
        starts = np.cumsum([0, *sizes])
        theta = torch.zeros(sum(sizes), dtype=job.table.x.dtype)
        self._module: list[Tensor] = [p for p in own if p is not None]
        parts = torch.split(theta, [p.numel() for p in self._module])
        self._views = [
            part.view(p.shape[::-1]).permute(*range(p.ndim)[::-1])
            for part, p in zip(parts, self._module, strict=True)
        ]
        widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
        biases = np.where(sizes[1::2], starts[1::2], -1)
        shape = (widths, activations, starts[:-1:2], biases)
        self._net = kt.Chain(*(np.array(part, np.int64) for part in shape))
        first, second = np.zeros((2, len(theta)), self._dtype)
        self.state = kt.State(theta.numpy(), first, second, np.ones(2), np.zeros(1))
        optimizer: Any = job.optimizer  # a value, as `kernel_chain` has checked
        self._lr, nesterov = optimizer.lr, getattr(optimizer, "nesterov", False)
        self._update = kt.Update(
            kt.NESTEROV if nesterov else _OPTIMIZERS[type(optimizer)],
            np.zeros(0),
            optimizer.weight_decay,
            float(getattr(optimizer, "momentum", 0.0)),
            float(job.clip_grad or 0.0),
        )
        B, C, P = self.feed.most_rows, job.table.n_outputs, len(theta)
        room = {
            "acts": B * sum(widths),
            "back": B * sum(widths),
            "target": B * C,
            "residual": B * C,
            "gathered": 2 * B * C,
            "seen": B * C,
            "gradient": P,
            "before": P,
            "turned": max(sizes),
            "ones": B,
        }
        self._work: Any = kt.Work(**{name: np.zeros(n, self._dtype) for name, n in room.items()})
        self._work.ones[:] = 1
        self._block: Block | None = None  # the block for which the next two are prepared
        self._rows: Any = None
        self._loss: Any = None
        self._own, self.note = self._compile_own()
        self.in_pool = self._own is not None or job.objective.loss in (*LOSSES, "rlp", "two_speed")
        self._pace = math.inf  # seconds of a step
        self._followed = False  # whether a user's loss is known not to use the weights
        self._compiling = 0.0  # seconds, since `run` began

    # Steps

    @torch.no_grad()
    def run(self, block: Block, spans: Spans, factors: Factors, deadline: float) -> Outcome:
        started, self._compiling = time.perf_counter(), 0.0
        self._use(block)
        rates = np.full(len(spans), self._lr) if factors is None else factors * self._lr
        taken, bad = 0, None
        torch._foreach_copy_(self._views, self._module)
        self.state.total[0] = self.total
        try:
            while taken < len(spans) and bad is None:
                begun = time.perf_counter()
                outside = self._loss.kind == kt.OUTSIDE
                n = 1 if outside else int(min(len(spans), max(1, CALL_SECONDS / self._pace)))
                if self._own is not None:
                    n = min(n, self._steps_until_check(spans[taken : taken + 1]))
                some = self._rows._replace(spans=spans[taken : taken + n])
                update = self._update._replace(rates=rates[taken : taken + n])
                step = partial(self._step_outside, block) if outside else self._call
                done, status, value = step(some, update)
                taken += done
                self.trusted -= done
                bad = value if status == kt.NOT_FINITE else None
                now = time.perf_counter()
                self._pace = max((now - begun) / max(done, 1), 1e-9)
                if self.stopping or now >= deadline:
                    break
        finally:
            with torch.no_grad():  # an interrupt may have left gradients on
                torch._foreach_copy_(self._module, self._views)
        self.total = float(self.state.total[0])
        return Outcome(taken, time.perf_counter() - started - self._compiling, bad)

    def _call(self, rows: Any, update: Any, part: int = kt.WHOLE, value: float = 0.0) -> Any:
        """Call the kernel once, and return the steps done, the status and the last value."""
        return self._kernel.run(
            self._net, rows, self._loss, update, self.state, self._work, part, value
        )

    def _step_outside(self, block: Block, rows: Any, update: Any) -> Any:
        """Take a step with a user's loss: torch computes ∂loss/∂pred, the kernel the rest."""
        span, outputs, (features, pred, target) = self._outputs(rows, update)
        with torch.enable_grad():
            value = step_value(
                self.feed,
                block,
                span,
                features=features.clone(),
                pred=pred.requires_grad_(),
                target=target,
            )
        weights = () if self._followed else self._module
        back, *others = torch.autograd.grad(value, (pred, *weights), allow_unused=bool(weights))
        if any(other is not None for other in others):
            raise ValueError(
                "the kernel follows a loss through the predictions alone, got one that uses the"
                ' weights too; pass engine="torch"'
            )
        self._followed = True
        self._work.back[outputs] = back.reshape(-1).numpy()
        return self._call(rows, update, kt.BACKWARD, value.item())

    def _outputs(self, rows: Any, update: Any) -> tuple[Any, slice, list[Tensor]]:
        """Run the network on the rows of one step. Return their span, the place of the outputs, and
        features, predictions and targets.
        """
        self._call(rows, update, kt.FORWARD)
        (span,), work, (N, C) = rows.spans.tolist(), self._work, self._y.shape
        B = N if rows.every_row else span[1] - span[0]
        last = work.acts.size - work.target.size  # where the outputs begin
        outputs = slice(last, last + B * C)
        parts = work.acts[: B * self._x.shape[1]], work.acts[outputs], work.target[: B * C]
        return span, outputs, [torch.from_numpy(part).view(B, -1) for part in parts]

    # A user's loss, compiled

    def _compile_own(self) -> tuple[Any, str]:
        """Compile a pointwise loss; return it, or None, and a remark for the history."""
        if not isinstance(self.job.objective, Pointwise):
            return None, ""
        from rlploss.training.own import compile_loss

        table, function = self.job.table, self.job.objective.function
        own = compile_loss(function, table.n_outputs, table.x.dtype)
        if isinstance(own, str):
            return None, f"; its loss is left to torch: {own}"
        return own, "; its loss is compiled"

    def _steps_until_check(self, spans: Spans) -> int:
        """Compare the compiled loss with torch's if due; return the steps to the next one."""
        if self.trusted <= 0:
            rows = self._rows._replace(spans=spans)
            _, _, (_, pred, target) = self._outputs(rows, self._update)
            difference = self._own.difference(pred, target)
            if difference:  # the function may have changed, for example in a callback
                self._own, _ = self._compile_own()
                if self._own is None or self._own.difference(pred, target):
                    raise RuntimeError(difference)
                self._loss = self._loss._replace(address=self._own.address)
            self.trusted = CHECK_STEPS
        return self.trusted

    # From the job's values to the kernel's arguments

    def _use(self, block: Block) -> None:
        """Prepare the kernel's arguments for the steps of a block."""
        if block is self._block:
            return
        self._block, feed = block, self.feed
        partner, lam = (getattr(block.rows, name, None) for name in ("partner", "lam"))
        self._rows = kt.Rows(
            self._x,
            self._y,
            self._as_array(feed.weight),
            _numbers(block.rows.index, torch.int64),
            _numbers(partner, torch.int64),
            self._as_array(lam),
            block.spans[:0],
            feed.every_row,
        )
        self._loss = self._make_loss(block)
        if feed.every_row:
            self._work.acts[: self._x.size], self._work.target[:] = self._x.ravel(), self._y.ravel()
        self._compiling += _ready(
            self._kernel.run, self._dtype, partial(self._call, self._rows, self._update)
        )

    def _make_loss(self, block: Block) -> Any:
        objective, planes, M = self.job.objective, block.planes, self.feed.unit
        kind, delta = LOSSES.get(objective.loss, kt.OUTSIDE), getattr(objective, "delta", 1.0)
        address, kappa = 0, getattr(objective, "kappa", 0.0)
        if self._own is not None:
            kind, address = kt.COMPILED, self._own.address
        projector, form = np.zeros((0, 1, 1), self._dtype), np.zeros((0, 0), self._dtype)
        a, offset = 0.0, None
        if isinstance(planes, OneForm):
            kind, form = kt.FORM, self._as_array(planes.matrix)
        elif isinstance(planes, FreshPlanes):
            kind, projector = kt.PROJECTED, self._fit_planes(block, planes.form)
        elif isinstance(planes, KeptPlanes):
            kind, a, offset = kt.PROJECTED, planes.residual_weight, planes.offset
            if planes.projector is not None:
                projector = self._as_array(planes.projector)
            elif self.feed.every_row or self.feed.weight is not None:
                projector = np.zeros((len(block.rows.index) // M, 1, M), self._dtype)
            else:
                kind = kt.MSE
        return kt.Loss(
            kind, float(delta), projector, float(a), self._as_array(offset), form, M, kappa, address
        )

    def _fit_planes(self, block: Block, form: PlaneForm) -> Any:
        """Return the projector [K, q, M] of subsets that are used once: from the kernel, or by the
        careful path for subsets that the kernel doubts.
        """
        M, summed = self.feed.unit, form.probe == "sum"
        ends = np.arange(M, len(block.rows.index) + 1, M)
        q = 1 if summed else form.n_columns(self._x.shape[1])
        projector = np.empty((len(ends), q, M), self._dtype)
        data = self._rows._replace(spans=np.stack([ends - M, ends], axis=1))
        fit = partial(self._kernel.fit_planes, data, form.intercept, summed)
        self._compiling += _ready(self._kernel.fit_planes, self._dtype, partial(fit, projector[:0]))
        doubtful = np.flatnonzero(~fit(projector))
        if len(doubtful):
            some = [
                block.rows.of(self.job.table.features, end - M, end)
                for end in ends[doubtful].tolist()
            ]
            projector[doubtful] = probe_rows(torch.stack(some), form).numpy()
        return projector

    # State

    def state_dict(self) -> dict[str, Any]:
        moments = {
            name: torch.from_numpy(getattr(self.state, name).copy())
            for name in ("first", "second", "powers")
        }
        return {"engine": self.name, **moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("first", "second", "powers"):
            getattr(self.state, name)[:] = state[name].numpy()


def _numbers(tensor: Tensor | None, dtype: torch.dtype) -> Any:
    """Return the tensor's memory as a contiguous array, for which the kernel is compiled; None
    becomes an empty array.
    """
    return (torch.zeros(0) if tensor is None else tensor.detach()).to(dtype).contiguous().numpy()


def _ready(function: Any, dtype: Any, call: Callable[[], object]) -> float:
    """Compile a function of the kernel for a floating type, or load it from disk, by a call without
    steps; return the seconds.

    Afterwards the function accepts no other types, for which numba would silently compile again for
    seconds.
    """
    from rlploss.training.compiling import config, forget

    started = time.perf_counter()
    with _LOCK:
        if (function, dtype) not in _READY:
            notice = threading.Timer(3.0, print, [_NOTICE], {"file": sys.stderr, "flush": True})
            notice.daemon = True
            notice.start()
            function.disable_compile(False)
            before = config.OPT
            config.OPT = type(before)(2)  # as fast as level 3, and half a second less to compile
            try:
                call()
            except Exception:  # a damaged file on disk may raise anything
                forget()
                call()
            finally:
                config.OPT = before
                notice.cancel()
            function.disable_compile(True)
            _READY.add((function, dtype))
    return time.perf_counter() - started
