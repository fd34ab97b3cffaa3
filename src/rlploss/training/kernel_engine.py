"""`KernelEngine`: chains of dense layers on the CPU, many steps in one compiled call that holds no lock."""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlploss import distributed
from rlploss._extras import missing
from rlploss.loss.planes import PlaneForm, probe_rows
from rlploss.training import kernel_types as kt
from rlploss.training.engine import Engine, Outcome, score
from rlploss.training.feed import Feed, Window
from rlploss.training.job import SGD, Adam, AdamW, Job
from rlploss.training.objectives import RLP

# Where torch takes over: multiplications per step, and parameters (benchmarks/bench_engines.py measures both).
MOST_PRODUCTS, MOST_PARAMETERS = 3e8, 1e5
CALL_SECONDS = 0.2  # of one call, so that Ctrl-C, progress and checkpoints need not wait long

_ACTIVATIONS = {nn.ReLU: kt.RELU, nn.Tanh: kt.TANH, nn.Sigmoid: kt.SIGMOID, nn.Softmax: kt.SOFTMAX}
_LOSSES = {"mse": kt.MSE, "mae": kt.MAE, "huber": kt.HUBER, "cross_entropy": kt.CROSS_ENTROPY}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_EVERYWHERE = [getattr(nn.modules.module, f"_global{name}") for name in _HOOKS]  # hooks of every module there is
_MISSING = missing("numba")
_TOLD = "rlploss: compiling the training kernel, some five seconds, once on this machine"
_LOCK = threading.Lock()
_READY: set[Any] = set()  # functions of the kernel, and floating types that they are compiled for


def read_chain(model: nn.Module) -> tuple[list[nn.Linear], list[int]] | str:
    """The chain that a network is, its layers and the number of each one's activation, or why it is none."""
    layers: list[nn.Linear] = []
    activations: list[int] = []
    for _, module in model.named_modules(remove_duplicate=False):  # in order; what is used twice comes twice
        kind = type(module)
        if any(getattr(module, name) for name in _HOOKS) or any(map(len, _EVERYWHERE)):
            return f"{kind.__name__} has hooks"
        if "forward" in vars(module):
            return f"{kind.__name__} has a forward of its own"
        if isinstance(module, nn.Sequential) and kind.forward is nn.Sequential.forward:
            continue  # its parts come next
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
            continue
        elif kind is not nn.Identity:
            return f"{kind.__name__} is no linear layer, ReLU, tanh, sigmoid or soft-max"
    if not layers or kt.SOFTMAX in activations[:-1]:
        return "it is no chain of linear layers with a soft-max at the end only"
    if any(module._modules for module in model.modules() if not isinstance(module, nn.Sequential)):
        return "one of its layers has parts of its own"
    own = [p for layer in layers for p in layer.parameters()]
    if len({p.data_ptr() for p in own}) < len(own) or {id(p) for p in own} != {id(p) for p in model.parameters()}:
        return "it has parameters beside its layers, or uses a layer twice"
    if not all(p.requires_grad for p in own):
        return "some of its parameters are frozen"
    if any(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in own):
        return "a parameter has hooks"
    return layers, activations


def why_not_kernel(job: Job, *, any_size: bool) -> str | None:
    """Why a job cannot be trained by the kernel, or, if sizes count, should not; None if it can."""
    if _MISSING:
        return "numba is not installed (pip install 'rlploss[kernel]')"
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
    if job.table.x.ndim != 2 and not any(isinstance(module, nn.Flatten) for module in job.model.modules()):
        return "its rows are not vectors"
    n_parameters = sum(p.numel() for p in job.model.parameters())
    products = 3.0 * min(job.objective.rows_per_step, job.table.n_rows) * n_parameters
    if not any_size and (products > MOST_PRODUCTS or n_parameters > MOST_PARAMETERS):
        return f"a step takes {products:.0e} multiplications, which torch does as fast"
    return None


class KernelEngine(Engine):
    """Trains one vector with all weights: taken from the module when a stretch begins, and given back when it ends."""

    name = "kernel"

    def __init__(self, job: Job) -> None:
        from rlploss.training.kernel import run

        chain, table = read_chain(job.model), job.table
        assert not isinstance(chain, str)  # what `why_not_kernel` has seen
        self.job, (layers, activations) = job, chain
        self._run = run
        self.in_pool = isinstance(job.objective, RLP) or job.objective.loss in _LOSSES
        self.feed = Feed(job, fits_planes=True)
        self._x, self._y = (_numbers(part, table.x.dtype) for part in (table.features, table.y))
        self._dtype = self._x.dtype
        sizes = [0 if p is None else p.numel() for layer in layers for p in (layer.weight, layer.bias)]
        self._theta = torch.zeros(sum(sizes), dtype=table.x.dtype)
        self._module: list[Tensor] = [p for layer in layers for p in layer.parameters()]
        parts = zip(self._module, torch.split(self._theta, [p.numel() for p in self._module]), strict=True)
        self._views = [part.view(p.shape[::-1]).permute(*range(p.ndim)[::-1]) for p, part in parts]
        first, second = (np.zeros(len(self._theta), self._dtype) for _ in range(2))
        self.state = kt.State(self._theta.numpy(), first, second, np.ones(2), np.zeros(1))
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        biases = [start if size else -1 for start, size in zip(starts[1::2], sizes[1::2], strict=True)]
        widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
        w, a, s, b = (np.array(part, np.int64) for part in (widths, activations, starts[::2], biases))
        self._net = kt.Chain(w, a, s, b)
        optimizer: Any = job.optimizer  # a value, as `why_not_kernel` has seen
        self._lr = optimizer.lr
        kind = {Adam: kt.ADAM, AdamW: kt.ADAMW, SGD: kt.SGD}[type(optimizer)]
        kind = kt.NESTEROV if getattr(optimizer, "nesterov", False) else kind
        momentum = float(getattr(optimizer, "momentum", 0.0))
        self._update = kt.Update(kind, np.zeros(0), optimizer.weight_decay, momentum, float(job.clip_grad or 0.0))
        B, C, P = self.feed.most_rows, table.n_outputs, len(self._theta)
        room = [B * sum(widths), B * sum(widths), B * C, B * C, 2 * B * C, B * C, P, P, max(sizes), B]
        self._work: Any = kt.Work(*(np.zeros(n, self._dtype) for n in room))
        self._work.ones[:] = 1
        self._ready_for: Tensor | None = None  # the rows that the two below are made for
        self._rows: Any = None
        self._loss: Any = None
        self._pace = math.inf  # seconds of a step
        self._followed = False  # whether the graph of a loss from outside has been looked at
        self._compiling = 0.0  # seconds, since `run` began

    def end(self) -> None:
        self.feed.release()
        self._ready_for = self._rows = self._loss = self._work = None

    # Steps

    @torch.no_grad()
    def run(self, window: Window, deadline: float) -> Outcome:
        started, self._compiling = time.perf_counter(), 0.0
        self._use(window)
        rates = self.job.rate_factors(window.first, window.last) * self._lr
        taken, n, bad = 0, window.last - window.first, None
        torch._foreach_copy_(self._views, self._module)
        self.state.total[0] = self.total
        try:
            while taken < n and bad is None:
                begun = time.perf_counter()
                if self._loss.kind == kt.OUTSIDE:
                    done, status, value = self._step_outside(window, taken, rates)
                else:
                    part = slice(taken, taken + int(min(n, max(1, CALL_SECONDS / self._pace))))
                    done, status, value = self._call(self._rows, self._loss, window.spans[part], rates[part])
                taken += done
                bad = value if status == kt.NOT_FINITE else None
                now = time.perf_counter()
                self._pace = max((now - begun) / max(done, 1), 1e-9)
                if self.stopping or now >= deadline:
                    break
        finally:
            torch._foreach_copy_(self._module, self._views)
        self.total = float(self.state.total[0])
        return Outcome(taken, time.perf_counter() - started - self._compiling, bad)

    def _call(self, data: Any, loss: Any, spans: Any, rates: Any, part: int = kt.WHOLE, value: float = 0.0) -> Any:
        """One call of the kernel: steps done, status, last value."""
        data = data._replace(spans=np.ascontiguousarray(spans))
        update = self._update._replace(rates=np.ascontiguousarray(rates))
        return self._run(self._net, data, loss, update, self.state, self._work, part, value)

    def _step_outside(self, window: Window, i: int, rates: Any) -> Any:
        """A step of a loss that is anyone's own function: the kernel does all but ∂loss/∂pred."""
        one, work, C = slice(i, i + 1), self._work, self._y.shape[1]
        here = (self._rows, self._loss, window.spans[one], rates[one])
        self._call(*here, kt.FORWARD)
        n = self._y.size if self._rows.every_row else int(window.spans[i, 1] - window.spans[i, 0]) * C
        last = work.acts.size - work.target.size  # where the outputs begin
        pred, target = (torch.from_numpy(a).view(-1, C) for a in (work.acts[last : last + n], work.target[:n]))
        with torch.enable_grad():
            value = score(self.job.objective, window, i, pred.requires_grad_(), target)
            if not self._followed:
                self._followed = True
                if _reaches(value, self._module):
                    wrong = "the kernel follows a loss through the predictions alone, got one that uses the weights too"
                    raise ValueError(f'{wrong}; pass engine="torch"')
            (back,) = torch.autograd.grad(value, pred)
        work.back[last : last + n] = back.reshape(-1).numpy()
        return self._call(*here, kt.BACKWARD, value.item())

    # From the job's values to the kernel's arguments

    def _use(self, window: Window) -> None:
        """Get ready for the steps that were drawn together with these."""
        if window.rows is self._ready_for:
            return
        self._ready_for = window.rows
        weight, lam = (_numbers(part, self._theta.dtype) for part in (window.weight, window.lam))
        rows, partner = (_numbers(part, torch.int64) for part in (window.rows, window.partner))
        self._rows = kt.Rows(self._x, self._y, weight, rows, partner, lam, window.spans[:0], window.every_row)
        self._loss = self._make_loss(window)
        if window.every_row:
            self._work.acts[: self._x.size], self._work.target[:] = self._x.ravel(), self._y.ravel()
        arguments = (self._net, self._rows, self._loss, self._update, self.state, self._work, kt.WHOLE, 0.0)
        self._compile(self._run, arguments)

    def _make_loss(self, window: Window) -> kt.Loss:
        objective, real = self.job.objective, self._theta.dtype
        M, kind = 1, _LOSSES.get(objective.loss, kt.OUTSIDE)
        projector, form = np.zeros((0, 1, 1), self._dtype), np.zeros((0, 0), self._dtype)
        if isinstance(objective, RLP):
            M, kind = objective.shape()[0], kt.PROJECTED
            if window.bank is not None:
                kind = kt.OUTSIDE
            elif window.form is not None:
                kind, form = kt.FORM, _numbers(window.form, real)
            elif window.fits_planes:
                projector = self._fit_planes(window, M, objective.planes)
            elif window.projector is not None:
                projector = _numbers(window.projector, real)
            elif window.every_row or window.weight is not None:  # the residual is seen whole
                projector = np.zeros((len(window.rows) // M, 1, M), self._dtype)
            else:
                kind = kt.MSE
        delta, offset = float(getattr(objective, "delta", 1.0)), _numbers(window.offset, real)
        return kt.Loss(kind, delta, projector, float(window.residual_weight), offset, form, M)

    def _fit_planes(self, window: Window, M: int, form: PlaneForm) -> Any:
        """The projector [K, q, M] of subsets that are seen once: by the kernel, or with care where it is not sure."""
        from rlploss.training.kernel import fit_planes

        summed, K = form.probe == "sum", len(window.rows) // M
        projector = np.empty((K, 1 if summed else form.n_columns(self._x.shape[1]), M), self._dtype)
        ends = M * np.arange(1, K + 1)
        data = self._rows._replace(spans=np.stack([ends - M, ends], axis=1))
        self._compile(fit_planes, (data, form.intercept, summed, projector[:0]))
        doubtful = np.flatnonzero(~fit_planes(data, form.intercept, summed, projector))
        if len(doubtful):
            x = torch.stack([window.mixed(window.x, end - M, end).flatten(1) for end in ends[doubtful].tolist()])
            projector[doubtful] = probe_rows(x, form).numpy()
        return projector

    def _compile(self, function: Any, arguments: tuple[Any, ...]) -> None:
        """Get a function ready; the seconds of it are no training."""
        started = time.perf_counter()
        _get_ready(function, self._dtype, arguments)
        self._compiling += time.perf_counter() - started

    # State

    def state_dict(self) -> dict[str, Any]:
        kept = {name: torch.from_numpy(getattr(self.state, name).copy()) for name in ("first", "second", "powers")}
        return {"engine": self.name, **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("first", "second", "powers"):
            getattr(self.state, name)[:] = state[name].numpy()


def _reaches(value: Tensor, leaves: list[Tensor]) -> bool:
    """Whether the gradient of a value reaches one of these tensors."""
    waiting, seen = [value.grad_fn], {None}
    while waiting:
        node: Any = waiting.pop()
        if node not in seen:
            seen.add(node)
            if any(getattr(node, "variable", None) is leaf for leaf in leaves):
                return True
            waiting += [before for before, _ in node.next_functions]
    return False


def _numbers(tensor: Tensor | None, dtype: torch.dtype) -> Any:
    """The tensor's memory as an array of the one kind that the kernel is compiled for: contiguous; None: no numbers."""
    return (torch.zeros(0) if tensor is None else tensor.detach()).to(dtype).contiguous().numpy()


def _get_ready(run: Any, dtype: Any, arguments: tuple[Any, ...]) -> None:
    """Compile a function of the kernel, or load it from disk, for a floating type and arguments that hold no steps.

    After this no other types are accepted: numba would compile again for seconds, in silence.
    """
    import numba

    from rlploss.training.compiling import forget

    with _LOCK:
        if (run, dtype) in _READY:
            return
        told = threading.Timer(3.0, print, [_TOLD], {"file": sys.stderr, "flush": True})
        told.daemon = True
        told.start()
        run.disable_compile(False)
        config: Any = numba.config
        before, config.OPT = config.OPT, type(config.OPT)(2)  # as fast as level 3, and compiled half a second sooner
        try:
            run(*arguments)
        except Exception:  # whatever a damaged file on disk leads to
            forget()
            run(*arguments)
        finally:
            config.OPT = before
            told.cancel()
        run.disable_compile(True)
        _READY.add((run, dtype))
