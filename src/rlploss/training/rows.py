"""Turn what the caller has into tensors a run can use, checked once before the first step."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from rlploss import _checks

Array = Tensor | ArrayLike
Inputs = Array | Dataset[Any]

_ITEMS = 4096  # of a dataset at once: as Python objects they take several times their size


@dataclass(frozen=True, eq=False)
class Table:
    """Inputs x [n, ...] as the network takes them, and targets y [n, C] for its flattened output.

    The rows of a torch `Dataset` are read when a step needs them and in no other order, because they may exceed
    memory; x and y then are the first ones, for their shapes. Items are (input, target), or inputs alone for
    reconstruction. `__getitems__` is used where there is one.
    """

    x: Tensor
    y: Tensor
    classes: bool  # the targets are one-hot class numbers
    weight: Tensor | None = None  # [n] with mean 1; None: all rows count the same
    dataset: Dataset[Any] | None = None  # None: rows are in memory
    loss: str = ""  # that the targets are read for

    @cached_property
    def n_rows(self) -> int:
        """The number of rows, n."""
        return len(self.x) if self.dataset is None else len(self.dataset)  # type: ignore[arg-type]  # it has a length

    @property
    def features(self) -> Tensor:
        """Inputs as a matrix [n, d]."""
        return flat(self.x)

    @property
    def n_columns(self) -> int:
        """Numbers per input, d."""
        return self.x[0].numel()

    @property
    def n_outputs(self) -> int:
        """Numbers per target, C."""
        return self.y.shape[1]

    def read(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some rows."""
        if self.dataset is None or not len(index):
            index = index.to(self.x.device)
            return self.x[index], self.y[index]
        found = []
        for part in torch.split(index, _ITEMS):
            try:
                found.append(self._fetched(part))
            except ValueError:
                for item in part:
                    try:
                        self._fetched(item.view(1))
                    except ValueError as error:
                        raise ValueError(f"item {int(item)}: {error}") from None
                raise
        return torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])

    def _fetched(self, part: Tensor) -> tuple[Tensor, Tensor]:
        assert self.dataset is not None
        inputs, targets = fetch(self.dataset, part.tolist())
        x = _input("the dataset's ", inputs, self.x.device, self.x.dtype)
        return x, _target("the dataset's ", x, targets, self.n_outputs, self.loss)[0]

    def largest(self) -> float:
        """The largest number, without its sign, in the rows of `fingerprint`."""
        return max(abs(float(end)) for part in self._some() for end in torch.aminmax(part))

    def fingerprint(self) -> str:
        """A digest of everything; of a dataset the length, and 64 rows that are spread evenly."""
        found = digest(*self._some(), self.weight)
        return found if self.dataset is None else f"{self.n_rows} rows {found}"

    def _some(self) -> tuple[Tensor, Tensor]:
        if self.dataset is None:
            return self.x, self.y
        return self.read(torch.linspace(0, self.n_rows - 1, min(64, self.n_rows), dtype=torch.float64).long())


def flat(x: Tensor) -> Tensor:
    """Inputs [n, ...] as a matrix [n, d]; single numbers are one column."""
    return x.unsqueeze(-1).flatten(1)


def digest(*values: object) -> str:
    """A short digest of nested plain values, and of the bytes, shapes and types of tensors among them."""
    found = hashlib.blake2b(digest_size=8)
    for value in values:
        for part in _bytes_of(value):
            found.update(part)
    return found.hexdigest()


def _bytes_of(value: object) -> Iterator[bytes | memoryview]:
    if isinstance(value, Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)}".encode()
        if value.numel():
            yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data  # without a copy
    elif isinstance(value, dict | list | tuple):
        yield f"{type(value).__name__} {len(value)}".encode()
        for item in value.items() if isinstance(value, dict) else value:
            yield from _bytes_of(item)
    else:
        yield repr(value).encode()


def fetch(dataset: Dataset[Any], index: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Stack some items of a dataset: inputs, and targets or None."""
    batched = getattr(dataset, "__getitems__", None)
    items = batched(index) if batched is not None else [dataset[i] for i in index]

    def stack(parts: Sequence[object]) -> Tensor:
        return torch.stack([_as_tensor("a dataset's items", part) for part in parts])

    if not isinstance(items[0], tuple | list):
        return stack(items), None
    if wrong := [len(item) for item in items if len(item) != 2]:
        raise TypeError(f"a dataset's items must be (input, target), got {wrong[0]} parts; return two from each item")
    inputs, targets = map(stack, zip(*items, strict=True))
    return inputs, targets


def read_rows(
    model: nn.Module, X: Inputs, y: Array | None, *, loss: str, device: torch.device, name: str = ""
) -> Table:
    """Read X and y for `model`; `y=None` makes the input its own target.

    Whole numbers are class numbers and become one-hot rows; floating numbers are values to regress on, or class
    probabilities for cross entropy. `name` prefixes the arguments in messages.
    """
    if isinstance(X, DataLoader):
        raise TypeError(f"{name}X must be rows, got a DataLoader; fit draws its own batches: pass loader.dataset, None")
    dataset = None
    if isinstance(X, Dataset):
        kind = type(X).__name__
        if y is not None:
            raise ValueError(f"{name}y must be None beside a Dataset, whose items are (input, target)")
        if not hasattr(X, "__len__"):
            raise TypeError(f"a Dataset needs a length to draw rows from, got {kind} without; use a map-style dataset")
        if len(X) == 0:
            raise ValueError(f"{name}X must have at least one row, got an empty {kind}")
        if isinstance(X, TensorDataset) and len(X.tensors) == 2:
            X, y = X.tensors
        else:
            dataset, (X, y) = X, fetch(X, range(min(2, len(X))))
    x = _input(name, X, device, model_dtype(model))
    return Table(x, *_target(name, x, y, output_width(model, x), loss), dataset=dataset, loss=loss)


def _input(name: str, X: Array, device: torch.device, dtype: torch.dtype) -> Tensor:
    x = _as_tensor(f"{name}X", X).to(device=device, dtype=dtype)
    if x.ndim == 0 or x.numel() == 0:
        raise ValueError(f"{name}X must have at least one row and one column, got shape {tuple(x.shape)}")
    _checks.finite(**{f"{name}X": x})
    return x


def _target(name: str, x: Tensor, y: Array | None, width: int, loss: str) -> tuple[Tensor, bool]:
    """Targets [n, C] for inputs x, and whether they are one-hot class numbers."""
    if y is None:
        target, classes = flat(x), False
    else:
        target = _as_tensor(f"{name}y", y).to(x.device)
        if target.ndim == 0 or target.shape[0] != x.shape[0]:
            got = "a scalar" if target.ndim == 0 else str(target.shape[0])
            raise ValueError(f"{name}X and {name}y must have the same number of rows, got {x.shape[0]} and {got}")
        classes = loss == "cross_entropy" or not target.is_floating_point()
        if not target.is_floating_point():
            target = _one_hot(target, width, name)
        elif classes and (target.ndim == 1 or width == 1):
            rule, remedy = "class numbers, or one probability per class", "a model with one output per class"
            got = f"a floating {name}y of shape {tuple(target.shape)} and {width} model outputs"
            raise ValueError(f"cross_entropy needs {rule}, got {got}; pass whole numbers, and {remedy}")
        target = flat(target.to(x.dtype))
        _checks.finite(**{f"{name}y": target})
    if target.shape[1] != width:
        got = f"{width} and {len(target[0])}"
        raise ValueError(f"the model must give as many numbers per row as {name}y has, got {got}")
    return target, classes


def weigh(rows: Table, sample_weight: Array | None) -> Table:
    """The rows with their weights: only ratios count, and a row of weight 0 is a row that is not there."""
    if sample_weight is None:
        return rows
    if rows.dataset is not None:
        raise ValueError("sample_weight needs rows in memory, got a Dataset; pass X and y as tensors or arrays")
    weight = _as_tensor("sample_weight", sample_weight).to(rows.x.device, torch.float64)
    if weight.shape != (rows.n_rows,):
        raise ValueError(f"sample_weight must have shape ({rows.n_rows},), one per row, got {tuple(weight.shape)}")
    _checks.finite(sample_weight=weight)
    if float(weight.min()) < 0 or float(weight.max()) == 0:
        got = f"values from {float(weight.min()):g} to {float(weight.max()):g}"
        raise ValueError(f"sample_weight must hold numbers of at least 0, one of them above 0, got {got}")
    keep = weight > 0
    if not bool(keep.all()):
        rows, weight = replace(rows, x=rows.x[keep], y=rows.y[keep]), weight[keep]
    if float(weight.min()) == float(weight.max()):
        return rows
    return replace(rows, weight=(weight / weight.mean()).to(rows.y.dtype))


def model_dtype(model: nn.Module) -> torch.dtype:
    """The floating type of the parameters: float32 or float64."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model must have parameters to train, got none that require a gradient")
    dtype = parameters[0].dtype
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"the model must be float32 or float64, got {dtype}; call model.float() first")
    return dtype


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Afterwards the module and its parts are in the modes, training or evaluation, that they were in."""
    modes = [(part, part.training) for part in model.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def output_width(model: nn.Module, x: Tensor) -> int:
    """Numbers that the model gives per row, found with a forward pass on two rows in evaluation mode."""
    sample = x[:2]
    try:
        with torch.no_grad(), modes_kept(model):
            out = model.eval()(sample)
    except RuntimeError as error:
        wrong = f"the model must take rows of shape {tuple(x.shape[1:])}, got"
        raise ValueError(f"{wrong}: {str(error).splitlines()[0]}") from error
    if not isinstance(out, Tensor) or out.ndim == 0 or out.shape[0] != sample.shape[0]:
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"the model must give one row of output per row of input, got {got} for {len(sample)} rows")
    return out[0].numel()


def _as_tensor(name: str, value: object) -> Tensor:
    if isinstance(value, Tensor):
        if value.is_complex():
            raise TypeError(f"{name} must be real, got {value.dtype}")
        return value.detach()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be a tensor or array of numbers, got {array.dtype} from {type(value).__name__}")
    if isinstance(value, np.memmap) and array.dtype in (np.float32, np.float64):
        with warnings.catch_warnings():  # nothing here writes to it
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(array)
    # a copy: torch warns about arrays that it may not write to, and the caller may change theirs
    return torch.from_numpy(np.array(array, copy=True))


def _one_hot(labels: Tensor, width: int, name: str) -> Tensor:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels.squeeze(1)
    if labels.ndim != 1:
        wrong = f"{name}y holds whole numbers, which are class numbers of shape (N,), got {tuple(labels.shape)}"
        raise ValueError(f"{wrong}; convert to floating point for regression or for one-hot rows")
    if width < 2:
        wrong = f"{name}y holds whole numbers, which are class numbers, but the model has one output"
        raise ValueError(f"{wrong}; convert y to floating point for regression, or give the model one output per class")
    labels = labels.to(torch.int64)
    low, high = (int(v) for v in torch.aminmax(labels))
    if low < 0 or high >= width:
        worst = low if low < 0 else high
        raise ValueError(f"{name}y must hold class numbers from 0 to {width - 1}, one per model output, got {worst}")
    return nn.functional.one_hot(labels, width)
