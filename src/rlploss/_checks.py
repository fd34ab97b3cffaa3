"""Check what users pass in; each message states the rule, the value received and the remedy."""

from __future__ import annotations

import difflib
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sized
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from torch import Tensor

REDUCTIONS = ("none", "mean", "sum")
DRAW_FROM = ("train", "outside")
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_COUNTLESS = 1 << 63


def one_of(name: str, value: object, options: Iterable[str], otherwise: str = "") -> str:
    """Return `value` if it is one of `options`; `otherwise` names what else the caller takes."""
    options = tuple(options)
    if value in options:
        return str(value)
    near = difflib.get_close_matches(str(value), options, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    listed = ", ".join(f'"{o}"' for o in options)
    raise ValueError(f"{name} must be one of {listed}{otherwise}, got {value!r}{hint}")


def count(name: str, value: object, minimum: int = 1, maximum: int | None = None) -> int:
    """Return `value` as an int within [minimum, maximum]; bools and fractions are refused."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__})")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {int(value)}")
    if maximum is not None and int(value) > maximum:
        raise ValueError(f"{name} must be at most {maximum:,}, got {int(value)}")
    return int(value)


def number(
    name: str, value: object, minimum: float = -math.inf, maximum: float = math.inf
) -> float:
    """Return `value` as a finite float within [minimum, maximum]."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    result = float(value)
    if not (-math.inf < result < math.inf and minimum <= result <= maximum):
        rule = "finite"
        if maximum < math.inf:
            rule = f"in [{minimum:g}, {maximum:g}]"
        elif minimum > -math.inf:
            rule = f"finite and at least {minimum:g}"
        raise ValueError(f"{name} must be {rule}, got {result!r}")
    return result


def positive(name: str, value: object) -> float:
    """Return `value` as a finite float above zero."""
    result = number(name, value)
    if result <= 0:
        raise ValueError(f"{name} must be above 0, got {result!r}")
    return result


def named(name: str, value: object, kind: type, names: Mapping[str, Any]) -> Any:
    """Turn one of `names` into its value with defaults, and refuse a class in place of a value.
    Return anything else unchanged.
    """
    if isinstance(value, str):
        return names[one_of(name, value, names)]()
    if isinstance(value, type) and issubclass(value, kind):
        raise TypeError(
            f"{name} must be a value, got the class {value.__name__}; write {value.__name__}(...)"
        )
    return value


class Checked:
    """A frozen dataclass that checks its fields when it is created.

    `checks` maps a field to a function of (name, value), which returns the value to store or raises
    an error. None is not checked if it is the default.
    """

    checks: ClassVar[Mapping[str, Callable[[str, Any], Any]]] = {}

    def __post_init__(self) -> None:
        """Check the fields."""
        for name, check in self.checks.items():
            value, default = getattr(self, name), getattr(type(self), name, ...)
            if value is not None or default is not None:
                object.__setattr__(self, name, check(name, value))


class DegenerateLossWarning(UserWarning):
    """The requested loss equals a simpler one, or has no finite expectation."""


class MSEEquivalentWarning(DegenerateLossWarning):
    """rank(x) = M: the subset probe sees the whole residual, so RLP equals MSE."""


class MeanOnlyWarning(DegenerateLossWarning):
    """The sum probe sees only the mean residual of each subset."""


class HeavyTailWarning(DegenerateLossWarning):
    """M is so close to the number of columns that the fitted planes are unreliable."""


def warn(kind: type[Warning], text: str) -> None:
    """Warn at the line of the caller's code; Python's own filter then keeps it to once per line."""
    if torch.compiler.is_compiling():
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("rlploss", "torch.")
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=level)


def pair(pred: Tensor, target: Tensor) -> None:
    """Check that predictions and targets are floating tensors of one shape (N,), (N, 1) or
    (N, C).
    """
    for name, value in (("pred", pred), ("target", target)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if not torch.compiler.is_compiling() and torch._C._is_tracing():
        raise RuntimeError(
            "torch.jit.trace would keep the number of rows of its example; trace the network"
            " without the loss, or use torch.export"
        )
    if pred.shape != target.shape:
        hint = ""
        if pred.ndim == 2 and target.shape == pred.shape[:1] and not target.is_floating_point():
            hint = "; give class numbers as one_hot(target, pred.shape[1]), and pred as soft-max"
        elif pred.numel() == target.numel():
            hint = "; reshape one of them, broadcasting would compare every row with every other"
        got = f"{tuple(pred.shape)} and {tuple(target.shape)}"
        raise ValueError(f"pred and target must have the same shape, got {got}{hint}")
    if pred.ndim not in (1, 2):
        raise ValueError(
            f"pred must have shape (N,), (N, 1) or (N, C), got {tuple(pred.shape)}; flatten"
            " the others into rows, as pred.flatten(0, -2) does"
        )
    if pred.ndim == 2 and pred.shape[1] == 0:
        raise ValueError(
            f"pred must have at least one output column, got shape {tuple(pred.shape)}"
        )
    if not pred.is_floating_point() or target.is_complex():
        raise TypeError(
            f"pred and target must be real floating tensors, got {pred.dtype} and {target.dtype}"
        )


def feature_matrix(features: Tensor, n_rows: int | None = None) -> Tensor:
    """Return features as a matrix (N, d): (N,) is one column, and images are flattened."""
    if not isinstance(features, Tensor):
        raise TypeError(
            f"features must be a torch.Tensor, got {type(features).__name__}; put all columns into"
            " one, as torch.cat does"
        )
    if features.is_complex():
        raise TypeError(f"features must be real, got {features.dtype}")
    if features.ndim == 0:
        raise ValueError("features must have shape (N, d), got a scalar")
    flat = features if features.ndim == 2 else features.unsqueeze(-1).flatten(1)
    if flat.shape[0] == 0 or flat.shape[1] == 0:
        raise ValueError(
            f"features must have at least one row and one column, got shape {tuple(features.shape)}"
        )
    if n_rows is not None and flat.shape[0] != n_rows:
        wrong = (
            f"features and pred must have the same number of rows, got {flat.shape[0]} and {n_rows}"
        )
        raise ValueError(f"{wrong}; the argument order is (pred, target, features)")
    return flat


def row_weights(name: str, weight: Tensor, n_rows: int, *, values: bool = True) -> Tensor:
    """Return row weights [N] in float64: none below 0, and at least one above. `values=False` does
    not check the numbers.
    """
    if not isinstance(weight, Tensor) or weight.shape != (n_rows,):
        got: object = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"{name} must have shape ({n_rows},), one per row, got {got}")
    weight = weight.detach().to(torch.float64)
    if not values:
        return weight
    finite(**{name: weight})
    low, high = float(weight.min()), float(weight.max())
    if low < 0 or high == 0:
        got = f"values from {low:g} to {high:g}"
        raise ValueError(f"{name} must hold numbers of at least 0, one of them above 0, got {got}")
    return weight


def n_different(n_rows: int, subset_size: int) -> int:
    """Return the number of subsets, min(C(N, M), 2⁶³); no plan is larger than the limit, which
    saves computing huge numbers.
    """
    few = min(subset_size, n_rows - subset_size)
    return min(math.comb(n_rows, few), _COUNTLESS) if few < 63 else _COUNTLESS  # C(N, M) ≥ 2^few


def plan_sizes(n_rows: object, subset_size: object, n_subsets: object) -> tuple[int, int, int]:
    """Return N, M, K of a plan; refuse more subsets than exist."""
    if isinstance(n_rows, Sized):
        raise TypeError(
            f"n_rows must be a whole number, got a {type(n_rows).__name__}; pass its length,"
            f" {len(n_rows)}"
        )
    n, m, k = (
        count("n_rows", n_rows),
        count("subset_size", subset_size),
        count("n_subsets", n_subsets),
    )
    if m > n:
        raise ValueError(
            f"subset_size must be at most n_rows = {n}, got {m}; take smaller subsets or more rows"
        )
    if n >= 1 << 31:
        raise ValueError(f"n_rows must be below 2**31, got {n}; draw from a part of the rows")
    total = n_different(n, m)
    if total < min(k, _COUNTLESS):
        wrong = (
            f"n_subsets must be at most {total}, the number of different subsets of {m} out of {n}"
            f" rows, got {k}"
        )
        raise ValueError(f"{wrong}; ask for at most {total}")
    if k * m >= 1 << 48:
        wrong = f"n_subsets * subset_size must be below 2**48 to fit in memory, got {k} * {m}"
        raise ValueError(f"{wrong}; draw a smaller plan anew each epoch instead")
    return n, m, k


def cpu_generator(name: str, value: object) -> torch.Generator | None:
    """Return `value` if it is None or a generator on the CPU."""
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(f"{name} must be a torch.Generator or None, got {type(value).__name__}")
    if value is not None and value.device.type != "cpu":
        wrong = f"{name} must be on the CPU, where plans are made, got one on {value.device}"
        raise ValueError(f"{wrong}; pass torch.Generator() and move the plan")
    return value


def replayable(generator: torch.Generator | None) -> None:
    """Refuse a generator where the code may run twice and would then draw other subsets."""
    if generator is None:
        return
    remedy = "leave generator=None (torch.manual_seed), or draw outside and pass subsets"
    if torch.compiler.is_compiling():
        raise RuntimeError(f"a generator cannot be part of compiled or exported code; {remedy}")
    if torch._C._current_graph_task_id() != -1:  # inside a backward pass
        raise RuntimeError(
            "activation checkpointing would draw other subsets from generator the second time;"
            f" {remedy}"
        )


def subset_plan(
    subsets: Tensor, n_rows: int, draw_from: str = "train", *, values: bool = True
) -> None:
    """Check a plan [K, M] of row numbers, and that it leaves rows to draw from. `values=False` does
    not check the numbers.
    """
    if not isinstance(subsets, Tensor) or subsets.dtype != torch.int64 or subsets.ndim != 2:
        got = (
            f"{tuple(subsets.shape)} {subsets.dtype}"
            if isinstance(subsets, Tensor)
            else type(subsets).__name__
        )
        raise ValueError(
            f"subsets must be an int64 tensor of shape (K, M), got {got}; see balanced_subsets"
        )
    if subsets.shape[0] == 0 or subsets.shape[1] == 0:
        raise ValueError(
            f"subsets must hold at least one subset of one row, got shape {tuple(subsets.shape)}"
        )
    outside(draw_from, subsets.shape[1], n_rows)
    if not values:
        return
    low, high = (int(v) for v in torch.aminmax(subsets))
    if low < 0 or high >= n_rows:
        bad = low if low < 0 else high
        raise ValueError(f"subsets must hold row numbers from 0 to {n_rows - 1}, got {bad}")
    if draw_from == "outside":
        ordered = subsets.sort(dim=1).values
        again = ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]]
        if again.numel():
            wrong = (
                'draw_from="outside" needs subsets that name every row once, got row'
                f" {int(again[0])} twice in one"
            )
            raise ValueError(f'{wrong}; take the row out, or use draw_from="train"')


def probe_points(points: Tensor | None, probe: str, n_features: int, n_subsets: int | None) -> None:
    """Check probe points: (K, d) for probe="draw", (n, d) for "expected", None for other
    probes.

    Without a plan (`n_subsets=None`) the batch is one subset.
    """
    if points is None:
        if probe == "draw" and n_subsets is None:
            wrong = 'probe="draw" with the whole batch as one subset needs probe_points, got None'
            raise ValueError(f"{wrong}; pass them, or pass subsets")
        return
    if probe not in ("draw", "expected"):
        raise ValueError(f'probe_points has no meaning for probe="{probe}"; leave it out')
    n_points = (n_subsets or 1) if probe == "draw" else points.shape[0]
    if points.shape != (n_points, n_features):
        shape = f"({n_points if probe == 'draw' else 'n'}, {n_features})"
        raise ValueError(
            f"probe_points must have shape {shape} to go with the features, got"
            f" {tuple(points.shape)}"
        )


def outside(draw_from: str, subset_size: int, n_rows: int) -> None:
    """Refuse draw_from="outside" if the subset contains every row."""
    if draw_from == "outside" and subset_size >= n_rows:
        wrong = (
            f'draw_from="outside" needs rows outside the subset, got subset_size {subset_size} of'
            f" {n_rows} rows"
        )
        raise ValueError(f'{wrong}; use smaller subsets, or draw_from="train"')


def subset_numbers(which: object, n_subsets: int, values: bool = True) -> Tensor:
    """Return the numbers of one or several subsets as int64 [k]. `values=False` does not check
    them.
    """
    try:
        numbers = torch.as_tensor(which)
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.empty(1)
    if numbers.ndim > 1 or (numbers.dtype not in _WHOLE and numbers.numel()):
        why = f"which must be a number of a subset, several of them, a slice or None, got {which!r}"
        raise TypeError(f"{why}; subsets are numbered from 0 to {n_subsets - 1}")
    numbers = numbers.reshape(-1).to(torch.int64)
    wrong = numbers[(numbers < -n_subsets) | (numbers >= n_subsets)] if values else numbers[:0]
    if wrong.numel():
        raise ValueError(f"which must be a subset from 0 to {n_subsets - 1}, got {int(wrong[0])}")
    return numbers


def finite(**tensors: Tensor | None) -> None:
    """Refuse NaN and inf, naming the tensor and the first place; finite tensors cost one cheap
    pass.
    """
    for name, value in tensors.items():
        if value is None or not value.is_floating_point() or math.isfinite(value.detach().sum()):
            continue
        bad = ~torch.isfinite(value.detach())
        if bool(bad.any()):  # a sum can overflow where every number is finite
            where = tuple(int(i) for i in bad.nonzero()[0])
            number = float(value.detach()[where])
            wrong = (
                f"{name} must be finite, got {number} at index {list(where)} ({int(bad.sum())} such"
                " values in all)"
            )
            diverged = " or lower the learning rate" if name == "pred" else ""
            raise ValueError(f"{wrong}; clean the data{diverged}")
