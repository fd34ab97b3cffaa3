"""What all estimators share: parameters and their help, the reading of rows, prediction and
export.
"""

from __future__ import annotations

import copy
import inspect
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state, multiclass, validation
from torch import Tensor, nn

from rlploss import RLP
from rlploss._checks import count, one_of, warn
from rlploss._scaling import Array, Scaling
from rlploss.estimators.dial import BATCH
from rlploss.estimators.search import Index
from rlploss.models import build_network, put_together, take_apart

C = TypeVar("C", bound=type)
ROWS: dict[str, Any] = {"dtype": np.float64, "order": "C"}  # how X is read


class Data(NamedTuple):
    """Rows of a table."""

    X: Array  # [n, d]
    target: NDArray[Any]  # numbers [n, C], or class numbers [n]
    weight: Array | None  # [n]

    def part(self, rows: Index) -> Data:
        """Some of the rows."""
        return Data(
            self.X[rows], self.target[rows], None if self.weight is None else self.weight[rows]
        )

    def scaled(self, scaling: Scaling) -> Data:
        """Rows as networks see them; class numbers stay as they are."""
        target = self.target if self.target.ndim == 1 else scaling.targets(self.target)
        return Data(scaling.inputs(self.X), target, self.weight)


class FarRowsWarning(UserWarning):
    """Rows lie far outside the training rows; their predictions are extrapolations."""


class Predictor(nn.Module):
    """Predictions [B], [B, C], or class probabilities [B, C], from raw columns [B, d], in the
    module's own type.
    """

    x_mean: Tensor
    x_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor

    def __init__(self, network: nn.Module, scaling: Scaling, *, flat: bool) -> None:
        super().__init__()
        self.network, self.flat = network, flat
        for name, numbers in vars(scaling).items():
            self.register_buffer(name, torch.tensor(numbers, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x.to(self.x_mean.dtype) - self.x_mean) / self.x_scale
        out: Tensor = self.network(scaled) * self.y_scale + self.y_mean
        return out.squeeze(-1) if self.flat else out


@dataclass(eq=False, repr=False)
class NetworkEstimator(BaseEstimator, ABC):
    """The settings that all estimators have, the reading of rows, prediction and export.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int
        Units of every hidden layer; () is a linear model.
    probe : {"subset", "draw", "expected", "sum"} Where the planes of prediction and target are
        compared. "subset": on the rows of the subset, which is what the paper's released code does.
        "draw": at one training row, drawn anew every epoch. "expected": the mean of "draw" over all
        training rows, taken exactly. "sum": at the sum of the rows of the subset.
    intercept : bool or None Whether planes have an offset. None is True, except for probe="sum",
        where the column of ones would leave nothing but the mean error.
    ridge : float
        λ ≥ 0 of the planes' own ridge penalty. It does not act on the weights of the network.
    standardize : bool
        Whether inputs and targets are centred and scaled by their training rows.
    batch_size : "auto" or int
        Rows per step of losses without subsets; "auto" is min(200, N). One iteration is a pass over
        the rows in such batches, at least 10 steps, the same number for every loss.
    random_state : int, RandomState or None Decides folds or validation rows, initial weights,
        subsets and batches. None is different each time.
    verbose : bool
        Whether to tell how training goes, on standard error.
    device : str or None
        Where to train; None is the CPU. The fitted network is on the CPU in any case.

    Attributes
    ----------
    network_ : the network, or the mixture of networks, on standardised columns; `to_torch()` is the
        whole model.
    scaling_ : what is subtracted from columns and targets, and what they are divided by.
    n_features_in_, feature_names_in_ : the number of columns, and their names if X had some.
    n_outputs_ : the number of targets, or of classes.
    """

    hidden_layer_sizes: int | Iterable[int] = (100,)
    _: KW_ONLY
    probe: str = "subset"
    intercept: bool | None = None
    ridge: float = 0.0
    standardize: bool = True
    batch_size: Any = "auto"
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False
    device: str | None = None

    _flat = False  # whether predictions have one dimension

    @abstractmethod
    def _read_target(self, y: Any, *, first: bool) -> NDArray[Any]:
        """Check y and return it as numbers [n, C], or class numbers [n]; `first` sets what is
        learned from it.
        """

    # Training rows

    def _read(
        self, X: Any, y: Any, sample_weight: Any, *, first: bool
    ) -> tuple[Data, NDArray[np.bool_]]:
        """Check all rows; return those of weight above 0, two at least or one where training goes
        on, and which.
        """
        fewest = 2 if first else 1
        X, y = validation.validate_data(
            self,
            known_frame(X),
            y,
            reset=first,
            multi_output=True,
            ensure_min_samples=fewest,
            **ROWS,
        )
        if sample_weight is None:
            return Data(X, self._read_target(y, first=first), None), np.ones(len(X), dtype=bool)
        weight: Array = validation._check_sample_weight(
            sample_weight, X, dtype=np.float64, ensure_non_negative=True
        )
        kept = weight > 0
        if kept.sum() < fewest:
            rows = f"{'two rows' if first else 'one row'}, got {kept.sum()} of n_samples={len(X)}"
            raise ValueError(f"sample_weight must be above 0 for at least {rows}")
        return Data(X[kept], self._read_target(y[kept], first=first), weight[kept]), kept

    def _scaling(self, data: Data) -> Scaling:
        if not self.standardize:
            return Scaling.none(data.X.shape[1])
        return Scaling.of(data.X, None if data.target.ndim == 1 else data.target, data.weight)

    def _numbers(self, target: NDArray[Any]) -> Array:
        """The target as numbers [n, C]: classes as one-hot rows."""
        return target if target.ndim > 1 else np.eye(self.n_outputs_)[target]

    # Settings

    def _form(self, n_subsets: int | None = None, mixup: float | None = None) -> RLP:
        """RLP without its subset size."""
        return RLP(
            None,
            n_subsets,
            probe=self.probe,
            intercept=self.intercept,
            ridge=self.ridge,
            mixup=mixup,
        )

    def _seed(self) -> int:
        """A seed from `random_state`; None takes fresh entropy and leaves numpy's global state
        alone.
        """
        if self.random_state is None:
            return secrets.randbelow(2**31)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _build(self, seed: int, activation: str, *, softmax: bool) -> nn.Sequential:
        """An untrained network for the rows that were read."""
        hidden = (
            self.hidden_layer_sizes
            if isinstance(self.hidden_layer_sizes, Iterable)
            else [self.hidden_layer_sizes]
        )
        sizes = self.n_features_in_, list(hidden), self.n_outputs_
        return build_network(*sizes, activation=activation, softmax=softmax, seed=seed)

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes, networks as plain data and arrays."""
        state = dict(super().__getstate__())
        for name, value in state.items():
            if isinstance(value, nn.Module):
                weights = {key: array.numpy() for key, array in value.state_dict().items()}
                state[name] = {"network": take_apart(value), "weights": weights}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take all attributes, and put networks together."""
        for name, value in state.items():
            if isinstance(value, dict) and value.keys() == {"network", "weights"}:
                state = state | {name: put_together(value["network"], value["weights"])}
        super().__setstate__(state)

    # Prediction

    def _note_range(self, X: Array, *, goes_on: bool = False) -> None:
        """Remember where training rows lie, beside those of the training before if this one went on
        from it.
        """
        seen = np.vstack([X, *self._range]) if goes_on else X
        self._range: tuple[Array, Array] = seen.min(axis=0), seen.max(axis=0)

    def _read_new(self, X: Any) -> Array:
        """Check rows to predict for, and tell how many of them lie far outside the training
        rows.
        """
        validation.check_is_fitted(self)
        checked: Array = validation.validate_data(self, known_frame(X), reset=False, **ROWS)
        low, high = self._range
        width = high - low
        far = (checked < low - width) | (checked > high + width)
        if far.any():
            where = int(far.sum(axis=0).argmax())
            name = getattr(self, "feature_names_in_", np.arange(len(low)))[where]
            many = (
                f"{int(far.any(axis=1).sum())} of {len(checked)} rows lie outside the training rows"
            )
            most = f"by more than the range of these, most of them in column {name!s}"
            warn(FarRowsWarning, f"{many} {most}; their predictions are extrapolations")
        return checked

    def _predict(self, checked: Array) -> Array:
        """What the network says of rows, some at a time."""
        model = Predictor(self.network_, self.scaling_, flat=self._flat).double()
        with torch.no_grad():
            return torch.cat(
                [model(rows) for rows in torch.split(torch.tensor(checked), 65_536)]
            ).numpy()

    def to_torch(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """A copy of the fitted model as an `nn.Module`, from raw columns [B, d] to what `predict`
        gives.

        Scaling is part of it. In float64 the numbers are those of `predict` (`predict_proba` for
        classes); pass `torch.float32` for a smaller one, say for ONNX.
        """
        validation.check_is_fitted(self)
        return (
            Predictor(copy.deepcopy(self.network_), self.scaling_, flat=self._flat).to(dtype).eval()
        )


class RegressionEstimator(RegressorMixin, NetworkEstimator):
    """An estimator whose target is real numbers, one or several per row."""

    def predict(self, X: Any) -> Array:
        """Predictions (n,), or (n, C) if y had two dimensions."""
        return self._predict(self._read_new(X))

    def _read_target(self, y: NDArray[Any], *, first: bool) -> NDArray[Any]:
        target = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        if first:
            self._flat, self.n_outputs_ = y.ndim == 1, target.shape[1]
        elif target.shape[1] != self.n_outputs_:
            raise ValueError(
                f"y must have {self.n_outputs_} outputs as before, got {target.shape[1]}"
            )
        return target

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class ClassificationEstimator(ClassifierMixin, NetworkEstimator):
    """An estimator whose target is classes.

    Attributes
    ----------
    classes_ : the classes, in the order of the columns of `predict_proba`.
    """

    classes_: NDArray[Any]
    _given_classes: NDArray[Any] | None = None  # where they are known before the rows

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (n, n_classes)."""
        return self._predict(self._read_new(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        most_probable = self.predict_proba(X).argmax(axis=1)
        chosen: NDArray[Any] = self.classes_[most_probable]
        return chosen

    def _read_target(self, y: NDArray[Any], *, first: bool) -> NDArray[Any]:
        multiclass.check_classification_targets(y)
        y = validation.column_or_1d(y, warn=True)
        if first:
            self.classes_ = (
                multiclass.unique_labels(y) if self._given_classes is None else self._given_classes
            )
            self.n_outputs_ = len(self.classes_)
            if self.n_outputs_ < 2:
                raise ValueError(
                    f"{type(self).__name__} needs at least two classes, got 1 class:"
                    f" {self.classes_[0]!r}"
                )
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y must hold classes seen at first, {list(self.classes_)}, got {unknown[0]!r}"
            )
        return np.searchsorted(self.classes_, y)


def batch_of(batch_size: int | str, n_rows: int) -> int:
    """Return the rows of one step."""
    if isinstance(batch_size, str):
        one_of("batch_size", batch_size, ("auto",))
        return min(BATCH, n_rows)
    return min(count("batch_size", batch_size), n_rows)


def documented(cls: C) -> C:
    """Put the parameters and attributes that the classes above it explain into the docstring of an
    estimator.
    """
    section = re.compile(r"\n\n(Parameters|Attributes)\n-+\n(.*?)(?=\n\n|\Z)", re.S)
    told: dict[str, dict[str, str]] = {"Parameters": {}, "Attributes": {}}
    for above in cls.__mro__:
        text = None
        if issubclass(above, NetworkEstimator):
            text = vars(above).get("_written", vars(above).get("__doc__"))
        for title, entries in section.findall(
            inspect.cleandoc(text or "")
        ):  # python -OO leaves none
            for entry in re.split(r"\n(?=\S)", entries):
                told[title].setdefault(entry.partition(" : ")[0], entry)
    lines = [
        told["Parameters"].get(name, "").replace("\n", f", default={parameter.default!r}\n", 1)
        for name, parameter in inspect.signature(cls).parameters.items()
    ]
    about, _, examples = section.sub("", inspect.cleandoc(cls.__doc__ or "")).partition(
        "\n\nExamples\n"
    )
    sections = {"Parameters": lines, "Attributes": told["Attributes"].values()}
    made = [
        f"{title}\n{'-' * len(title)}\n" + "\n".join(entries) for title, entries in sections.items()
    ]
    cls._written = cls.__doc__  # type: ignore[attr-defined]  # for classes below
    cls.__doc__ = "\n\n".join([about, *made, f"Examples\n{examples}"])
    return cls


def known_frame(X: Any) -> Any:
    """X itself; a frame whose column names this version of scikit-learn cannot see, as one of
    pandas.
    """
    names = getattr(X, "columns", None)
    if names is None or not hasattr(X, "to_numpy") or validation._get_feature_names(X) is not None:
        return X
    try:
        import pandas as pd
    except ImportError:
        return X
    return (
        pd.DataFrame(X.to_numpy(), columns=list(names))
        if all(isinstance(name, str) for name in names)
        else X
    )
