"""Compile users' losses: turn a torch function of single rows into machine code for its value and
gradient.

The function is traced once, together with its gradient by the predictions from autograd. Each
operation of the trace becomes a line of code on single numbers, with torch's types and torch's
behaviour at kinks. Numba compiles the lines as a C function, which the kernel calls by its address,
so one compiled kernel serves every loss. Torch computes a loss that mixes rows, draws numbers,
branches on values or uses an operation without a template here.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from functools import cache, lru_cache, reduce
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.fx import Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

Function = Callable[[Tensor, Tensor], Tensor]

# The limit for a loss that mixes the outputs of a row, since each output has lines of its own.
MOST_OUTPUTS = 16
# Relative tolerance of a comparison with torch.
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
_CASTS = {torch.float64: "f8", torch.float32: "f4", torch.int64: "i8", torch.bool: "b1"}
_SCOPE = {
    "np": np,
    "math": math,
    "inf": math.inf,
    "nan": math.nan,
    "f8": np.float64,
    "f4": np.float32,
    "i8": np.int64,
    "b1": np.bool_,
}

# The code of each operation on the numbers {0}, {1} and {2}; `real` is the type of the result. In
# the larger and the smaller of two numbers NaN wins.
_LARGER, _SMALLER = (f"{{0}} if ({{0}} {x} {{1}}) | ({{0}} != {{0}}) else {{1}}" for x in "><")
_ANGLES = ("sin", "cos", "tan", "sinh", "tanh")
_TEMPLATES: dict[str, str] = {
    **{name: f"np.{name}({{0}})" for name in (*_ANGLES, "floor", "ceil", "trunc")},
    **{name: f"np.{name}({{0}})" for name in ("exp", "expm1", "log", "log1p", "log2", "log10")},
    **{name: f"np.{name}({{0}})" for name in ("sqrt", "cosh")},
    **{f"a{name}": f"np.arc{name}({{0}})" for name in _ANGLES},
    **{name: f"math.{name}({{0}})" for name in ("erf", "erfc", "lgamma")},
    **dict.fromkeys(("_to_copy", "clone", "lift_fresh_copy", "convert_element_type"), "{0}"),
    **dict.fromkeys(("copy", "fill"), "{1}"),
    **dict.fromkeys(("logical_and", "bitwise_and"), "{0} & {1}"),
    **dict.fromkeys(("logical_or", "bitwise_or"), "{0} | {1}"),
    **dict.fromkeys(("logical_not", "bitwise_not"), "not {0}"),
    "neg": "-{0}",
    "abs": "abs({0})",
    "reciprocal": "{real}(1) / {0}",
    "isnan": "{0} != {0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "gt": "{0} > {1}",
    "lt": "{0} < {1}",
    "ge": "{0} >= {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "where": "{1} if {0} else {2}",
    "maximum": _LARGER,
    "clamp_min": _LARGER,
    "minimum": _SMALLER,
    "clamp_max": _SMALLER,
    "hypot": "np.hypot({0}, {1})",
    "rsqrt": "{real}(1) / np.sqrt({0})",
    "sign": "{real}({0} > {real}(0)) - {real}({0} < {real}(0))",
}
# Powers with a constant exponent as torch computes them: by roots and products if possible.
_POWERS: dict[str, str] = {
    "0.5": "np.sqrt({0})",
    "-0.5": _TEMPLATES["rsqrt"],
    **{str(kind(n)): f"{{0}} ** {n}" for n in range(-32, 33) for kind in (int, float)},
}
# Other operations, as functions of the current trace and their arguments. Operations that move
# numbers return views, so that an operation in place changes all that share them.
_ALONE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(
        ("full", "full_like"), lambda lines, _, value: np.full(lines.shape, value, object)
    ),
    **dict.fromkeys(
        ("zeros_like", "empty_like", "zero"), lambda lines, _: np.zeros(lines.shape, object)
    ),
    "ones_like": lambda lines, _: np.ones(lines.shape, object),
    "scalar_tensor": lambda lines, value: np.full(lines.shape, value, object),
    "pow": lambda lines, a, b: lines.each(_POWERS.get(str(b), "{0} ** {1}"), a, b),
    **dict.fromkeys(("alias", "detach"), lambda _, a: a),
}
_MIXING: dict[str, Callable[..., Any]] = {  # operations that mix the outputs of a row
    "sum": lambda lines, a, dims=(), keep=False: lines.folded("{0} + {1}", a, dims),
    "amax": lambda lines, a, dims=(), keep=False: lines.folded(_LARGER, a, dims),
    "amin": lambda lines, a, dims=(), keep=False: lines.folded(_SMALLER, a, dims),
    **dict.fromkeys(("view", "_unsafe_view", "unsqueeze", "squeeze"), lambda _, a, *shape: a),
    "expand": lambda lines, a, _: np.broadcast_to(a, lines.shape),
    "broadcast_in_dim": lambda lines, a, shape, dims: np.broadcast_to(
        np.expand_dims(a, [k for k in range(len(shape)) if k not in dims]), lines.shape
    ),
    "permute": lambda _, a, dims: np.transpose(a, dims),
    "cat": lambda _, parts, dim=0: np.concatenate(parts, dim),
    "select": lambda _, a, dim, place: np.moveaxis(a, dim, 0)[place],
    "slice": lambda _, a, dim, low, high: np.moveaxis(np.moveaxis(a, dim, 0)[low:high], 0, dim),
    "arange": lambda _, *ends: np.array(range(*ends), object),
}
_DECOMPOSED = ("_softmax", "_log_softmax", "clamp", "mean", "linalg_vector_norm", "relu", "sigmoid")
# The trace already has this information.
_IGNORED = {"dtype", "layout", "device", "pin_memory", "memory_format"}


@torch.enable_grad()
def values_and_gradient(function: Function, pred: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values of a loss, and the gradient of their sum by the predictions."""
    leaf = pred.detach().requires_grad_(True)
    values = function(leaf, target)
    if not isinstance(values, Tensor) or values.shape not in (pred.shape, pred.shape[:1]):
        raise ValueError("it does not return one value per row or per output")
    (gradient,) = torch.autograd.grad(values, leaf, torch.ones_like(values))
    return values.detach(), gradient


class _Lines(Interpreter):
    """Runs a trace on names instead of numbers, and writes a line of code for every result."""

    def __init__(self, function: Function, n_rows: int, n_outputs: int, dtype: torch.dtype) -> None:
        trace = make_fx(
            lambda pred, target: values_and_gradient(function, pred, target),
            {
                **core_aten_decompositions(),
                **dict[Any, Any](
                    get_decompositions([getattr(torch.ops.aten, name) for name in _DECOMPOSED])
                ),
            },
            "fake",
            _allow_non_fake_inputs=True,
        )(*torch.zeros(2, n_rows, n_outputs, dtype=dtype))
        trace.graph.eliminate_dead_code()
        super().__init__(trace, garbage_collect_values=False)
        self.extra_traceback, self.n_rows, self.lines = False, n_rows, list[str]()
        ops = {_op(node) for node in trace.graph.nodes if node.op == "call_function"}
        held = [getattr(trace, node.target) for node in trace.graph.nodes if node.op == "get_attr"]
        if any(tensor.requires_grad for tensor in held):
            raise ValueError("it uses weights")
        if unknown := ops - {*_TEMPLATES, *_ALONE, *_MIXING}:
            raise ValueError(f"{', '.join(sorted(unknown))} cannot be compiled")
        mixing = ops & {*_MIXING} or any(tensor.ndim for tensor in held)
        width = n_outputs if mixing else 1  # outputs that need lines of their own
        if width > MOST_OUTPUTS:
            raise ValueError(f"it mixes {width} outputs, more than {MOST_OUTPUTS}")
        self.single = {n_rows, n_outputs // width}  # dimensions of these sizes share their lines
        self.inputs = [f"{_CASTS[dtype]}_{x}{j}" for x in "pt" for j in range(width)]
        values, gradient = self.run(*np.array(self.inputs, object).reshape(2, 1, width))
        if values.size < width:  # a value of the whole row counts for each of its outputs
            gradient = self.each(f"{{0}} * {{real}}({width})", gradient)
        places = [
            f"{array}[i * {width} + {j}]"
            for array in ("pred", "target", "values", "back")
            for j in range(width)
        ]
        names = [*self.inputs, *np.broadcast_to(values, gradient.shape).flat, *gradient.flat]
        body = [
            *map("{} = {}".format, names[: 2 * width], places[: 2 * width]),
            *self.lines,
            *map("{} = {}".format, places[2 * width :], names[2 * width :]),
        ]
        head = f"def loss(pred, target, values, back, n):\n    for i in range(n // {width}):"
        self.source = "\n        ".join([head, *body])

    def run_node(self, n: Any) -> Any:
        """Write the lines of one operation; an operation in place changes the names of its
        argument.
        """
        if n.op != "call_function":
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        op, value, self.node = _op(n), n.meta["val"], n
        shapes = [m.meta["val"].shape for m in (n, *n.all_input_nodes)]
        has_rows = [self.n_rows in shape for shape in shapes]
        if any(has_rows) > has_rows[0] or any(self.n_rows in shape[1:] for shape in shapes):
            raise ValueError(f"{op} mixes rows")
        if value.dtype not in _CASTS or {*kwargs} - _IGNORED:
            raise ValueError(f"{op} with {', '.join(kwargs) or value.dtype} cannot be compiled")
        self.shape = tuple(1 if size in self.single else size for size in value.shape)
        write = (_ALONE | _MIXING).get(op)
        result = write(self, *args) if write else self.each(_TEMPLATES[op], *args)
        if n.target._schema.is_mutable:
            args[0][...] = result
            return args[0]
        return result.reshape(self.shape)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return the numbers of a constant."""
        return np.array(getattr(self.module, target).tolist(), object)

    def each(self, template: str, *operands: Any) -> Any:
        """Write a line for each number of the result; operands are names or Python numbers."""
        values: Any = [a.meta["val"] if isinstance(a, Node) else a for a in self.node.args]
        dtype = self.node.meta["val"].dtype
        # A comparison uses the type of its two sides.
        kind = torch.result_type(values[0], values[-1]) if dtype == torch.bool else dtype

        def line(*names: Any) -> str:
            real, cast = _CASTS[dtype], _CASTS[kind]
            own = [a if str(a).startswith(f"{cast}_") else f"{cast}({a!s})" for a in names]
            self.lines.append(
                f"{real}_{len(self.lines)} = {real}({template.format(*own, real=real)})"
            )
            return f"{real}_{len(self.lines) - 1}"

        return np.asarray(np.frompyfunc(line, len(operands), 1)(*operands), object)

    def folded(self, template: str, a: Any, dims: Any) -> Any:
        """Write the lines of a reduction over some dimensions, or over all if none is named."""
        dims = dims or range(a.ndim)
        last = np.moveaxis(a, dims, range(-len(dims), 0))
        parts = last.reshape(-1, math.prod(last.shape[-len(dims) :])).T
        return reduce(lambda total, part: self.each(template, total, part), parts)


def _op(node: Any) -> str:
    """Return the name of a torch operation, without the underscore of operations in place."""
    return str(getattr(node.target, "overloadpacket", node.target).__name__).rstrip("_")


@cache
def _machine_code(source: str, dtype: torch.dtype) -> Any:
    """Compile the source: without fast-math, so that every operation rounds as torch's does."""
    scope = dict(_SCOPE)
    exec(source, scope)
    pointers = ", ".join([f"CPointer({str(dtype).removeprefix('torch.')})"] * 4)
    return numba.cfunc(f"void({pointers}, intp)", error_model="numpy")(scope["loss"])


class CompiledLoss:
    """A loss in machine code, for a number of outputs and a floating type."""

    def __init__(self, function: Function, n_outputs: int, dtype: torch.dtype) -> None:
        self.function, self.dtype = function, dtype
        self._lines, other = (
            _Lines(function, n_rows=n, n_outputs=n_outputs, dtype=dtype) for n in (1009, 1013)
        )
        if self._lines.source != other.source:
            raise ValueError("it uses the number of rows, or differs from call to call")
        # An attribute, because it owns the machine code.
        self._code = _machine_code(self._lines.source, dtype)
        self.address: int = self._code.address
        self._call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_ssize_t)(self.address)
        self.seen = torch.full((2, 1, n_outputs), 0.5, dtype=dtype)  # rows of the last comparison

    def __call__(self, pred: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return a value for each output [B, C], and the gradient of their sum. The value of a
        whole row is repeated for each of its outputs.
        """
        values, back = torch.empty_like(pred), torch.empty_like(pred)
        self._call(*(part.data_ptr() for part in (pred, target, values, back)), pred.numel())
        return values, back

    def difference(self, pred: Tensor, target: Tensor) -> str:
        """Say where the compiled loss differs from torch's on some rows [B, C], and by which
        operation; return an empty text if it does not.
        """
        self.seen = torch.stack([pred[:256], target[:256]]).detach()
        values, gradient = values_and_gradient(self.function, pred, target)
        repeat = pred.numel() // values.numel()
        theirs = values.reshape(len(pred), -1).expand_as(pred), gradient * repeat
        rtol, most = _TOLERANCE[self.dtype], [x.nan_to_num(0, 0, 0).abs().max() for x in self.seen]
        for a, b in zip(self(pred, target), theirs, strict=True):
            # Rounding may be relative to the rows, to 1, or to the largest result.
            size = 1 + float(sum(most) + b.nan_to_num(0, 0, 0).abs().max())
            near = torch.isclose(a, b, rtol, 1e-2 * rtol * size, equal_nan=True)
            for row, column in (~near).nonzero()[:1].tolist():
                return (
                    f"the compiled loss must be torch's, got {a[row, column]:.9g} instead of"
                    f" {b[row, column]:.9g} for the prediction {pred[row, column]:.9g} and the"
                    f" target {target[row, column]:.9g}"
                    f' ({self._culprit(pred[row], target[row], column)}); pass engine="torch"'
                )
        return ""

    def _culprit(self, pred: Tensor, target: Tensor, column: int) -> str:
        """Name the operation of the trace whose numbers differ from its lines for a row [C]."""
        lines, torchs = self._lines, Interpreter(self._lines.module, garbage_collect_values=False)
        width = len(lines.inputs) // 2
        row = [x if width > 1 else x[column].expand_as(x) for x in (pred, target)]
        torchs.run(*(x.repeat(lines.n_rows, 1) for x in row))
        numbers = np.concatenate([x[:width] for x in row])
        scope = dict(zip(lines.inputs, numbers, strict=True)) | _SCOPE
        with np.errstate(all="ignore"):
            exec("\n".join(lines.lines), scope)
            for node in (n for n in lines.env if n.op == "call_function"):
                sizes = (slice(1 if n in lines.single else n) for n in node.meta["val"].shape)
                ours = [eval(str(name), scope) for name in lines.env[node].flat]
                theirs = torchs.env[node][tuple(sizes)].flatten()
                if not np.allclose(ours, theirs, 1e-4, 0, equal_nan=True):
                    return f"by {node.target}"
        return "the function has changed"


_LOCK = threading.RLock()


@lru_cache(64)
def _compiled(function: Function, n_outputs: int, dtype: torch.dtype) -> CompiledLoss | str:
    try:
        return CompiledLoss(function, n_outputs, dtype)
    except Exception as error:  # tracing a user's function may raise anything
        return str(error).partition("\n")[0]


def compile_loss(function: Function, n_outputs: int, dtype: torch.dtype) -> CompiledLoss | str:
    """Compile a loss, or return the reason why torch has to compute it.

    It is compiled once, and again if the function returns other numbers than before.
    """
    call = function.__call__  # type: ignore[operator]  # hashable, whatever the function is
    with _LOCK:
        loss = _compiled(call, n_outputs, dtype)
        if isinstance(loss, CompiledLoss) and loss.difference(*loss.seen):
            _compiled.cache_clear()
            loss = _compiled(call, n_outputs, dtype)
    return loss
