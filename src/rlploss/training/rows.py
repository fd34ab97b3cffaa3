"""Read and check the caller's data once, before the first step, and turn it into tensors."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from rlploss import _checks

Array = Tensor | ArrayLike


@dataclass(frozen=True, eq=False)
class RowTable:
    """Inputs x [n, ...] as the network takes them, targets y [n, C] for its flattened output."""

    x: Tensor
    y: Tensor
    classes: bool  # whether the targets are one-hot class numbers
    weight: Tensor | None = None  # [n] with mean 1; None: equal weights

    @property
    def n_rows(self) -> int:
        """The number of rows, n."""
        return len(self.x)

    @property
    def features(self) -> Tensor:
        """Inputs as a matrix [n, d]."""
        return flat(self.x)

    @property
    def n_columns(self) -> int:
        """The number of values per input, d."""
        return self.x[0].numel()

    @property
    def n_outputs(self) -> int:
        """The number of values per target, C."""
        return self.y.shape[1]

    def largest(self) -> float:
        """Return the largest absolute value."""
        return max(abs(float(end)) for part in (self.x, self.y) for end in torch.aminmax(part))


def flat(x: Tensor) -> Tensor:
    """Return inputs [n, ...] as a matrix [n, d]; single numbers become one column."""
    return x.unsqueeze(-1).flatten(1)


def digest(*values: object) -> str:
    """Return a short digest of nested plain values and of the bytes, shapes and types of tensors in
    them.
    """
    hasher = hashlib.blake2b(digest_size=8)
    for value in values:
        for part in _bytes_of(value):
            hasher.update(part)
    return hasher.hexdigest()


def _bytes_of(value: object) -> Iterator[bytes | memoryview]:
    if isinstance(value, Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)}".encode()
        # without a copy
        yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    elif isinstance(value, dict | list | tuple):
        yield f"{type(value).__name__} {len(value)}".encode()
        for item in value.items() if isinstance(value, dict) else value:
            yield from _bytes_of(item)
    else:
        yield repr(value).encode()


def read_rows(
    model: nn.Module, X: Array, y: Array | None, *, loss: str, device: torch.device, name: str = ""
) -> RowTable:
    """Read X and y for `model`; `y=None` makes the input its own target.

    Whole numbers are class numbers and become one-hot rows. Floating numbers are regression
    targets, or class probabilities for cross entropy. `name` prefixes the arguments in messages.
    """
    if isinstance(X, Dataset | DataLoader | Mapping):
        raise TypeError(
            f"{name}X must be a tensor or an array, got a {type(X).__name__}; put its rows into one"
            " tensor, map them from a file (np.memmap), or write a loop with RLPLoss"
        )
    x = _as_tensor(f"{name}X", X).to(device=device, dtype=model_dtype(model))
    if x.ndim == 0 or x.numel() == 0:
        raise ValueError(
            f"{name}X must have at least one row and one column, got shape {tuple(x.shape)}"
        )
    _checks.finite(**{f"{name}X": x})
    return RowTable(x, *_target(name, x, y, width=output_width(model, x), loss=loss))


def _target(name: str, x: Tensor, y: Array | None, width: int, loss: str) -> tuple[Tensor, bool]:
    """Return targets [n, C] for inputs x, and whether they are one-hot class numbers."""
    if y is None:
        target, classes = flat(x), False
    else:
        target = _as_tensor(f"{name}y", y).to(x.device)
        if target.ndim == 0 or len(target) != len(x):
            raise ValueError(
                f"{name}X and {name}y must have the same number of rows, got {len(x)} and"
                f" {len(target) if target.ndim else 'a scalar'}"
            )
        classes = loss == "cross_entropy" or not target.is_floating_point()
        if not target.is_floating_point():
            target = _one_hot(target, width, name)
        elif classes and (target.ndim == 1 or width == 1):
            raise ValueError(
                "cross_entropy needs class numbers, or one probability per class, got a floating"
                f" {name}y of shape {tuple(target.shape)} and {width} model outputs; pass whole"
                " numbers, and a model with one output per class"
            )
        target = flat(target.to(x.dtype))
        _checks.finite(**{f"{name}y": target})
    if target.shape[1] != width:
        raise ValueError(
            f"the model must give as many numbers per row as {name}y has, got {width} and"
            f" {target.shape[1]}"
        )
    return target, classes


def weigh(rows: RowTable, sample_weight: Array | None) -> RowTable:
    """Return the rows with their weights; only ratios matter, and rows of weight 0 are left out."""
    if sample_weight is None:
        return rows
    given = _as_tensor("sample_weight", sample_weight).to(rows.x.device)
    weight = _checks.row_weights("sample_weight", given, rows.n_rows)
    keep = weight > 0
    if not bool(keep.all()):
        rows, weight = replace(rows, x=rows.x[keep], y=rows.y[keep]), weight[keep]
    if float(weight.min()) == float(weight.max()):
        return rows
    return replace(rows, weight=(weight / weight.mean()).to(rows.y.dtype))


def model_dtype(model: nn.Module) -> torch.dtype:
    """Return the floating type of the parameters: float32 or float64."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError(
            "the model must have parameters to train, got none that require a gradient"
        )
    dtype = parameters[0].dtype
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"the model must be float32 or float64, got {dtype}; call model.float() first"
        )
    return dtype


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Restore the modes (training or evaluation) of the module and its parts at the end of the
    block.
    """
    modes = [(part, part.training) for part in model.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def output_width(model: nn.Module, x: Tensor) -> int:
    """Return the number of outputs per row, from a forward pass on two rows in evaluation mode."""
    sample = x[:2]
    try:
        with torch.no_grad(), modes_kept(model):
            out = model.eval()(sample)
    except RuntimeError as error:
        raise ValueError(
            f"the model must take rows of shape {tuple(x.shape[1:])}, got:"
            f" {str(error).splitlines()[0]}"
        ) from error
    if not isinstance(out, Tensor) or out.ndim == 0 or len(out) != len(sample):
        raise ValueError(
            "the model must give one row of output per row of input, got"
            f" {tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__} for"
            f" {len(sample)} rows"
        )
    return out[0].numel()


def _as_tensor(name: str, value: object) -> Tensor:
    if isinstance(value, Tensor):
        if value.is_complex():
            raise TypeError(f"{name} must be real, got {value.dtype}")
        return value.detach()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"{name} must be a tensor or array of numbers, got {array.dtype} from"
            f" {type(value).__name__}"
        )
    if isinstance(value, np.memmap) and array.dtype in (np.float32, np.float64):
        with warnings.catch_warnings():  # this code never writes to it
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(array)
    # A copy: torch warns about read-only arrays, and the caller may change the original.
    return torch.from_numpy(np.array(array, copy=True))


def _one_hot(labels: Tensor, width: int, name: str) -> Tensor:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels.squeeze(1)
    if labels.ndim != 1:
        raise ValueError(
            f"{name}y holds whole numbers, which are class numbers of shape (N,), got"
            f" {tuple(labels.shape)}; convert to floating point for regression or for one-hot rows"
        )
    if width < 2:
        raise ValueError(
            f"{name}y holds whole numbers, which are class numbers, but the model has one output;"
            " convert y to floating point for regression, or give the model one output per class"
        )
    labels = labels.to(torch.int64)
    low, high = (int(v) for v in torch.aminmax(labels))
    if low < 0 or high >= width:
        raise ValueError(
            f"{name}y must hold class numbers from 0 to {width - 1}, one per model output, got"
            f" {low if low < 0 else high}"
        )
    return nn.functional.one_hot(labels, width)
