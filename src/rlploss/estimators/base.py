"""What all estimators share: reading of rows, targets and weights, prediction and export."""

from __future__ import annotations

import copy
import secrets
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import (
    _check_sample_weight,
    _get_feature_names,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import Tensor, nn

from rlploss import RLP
from rlploss._checks import count, one_of
from rlploss._scaling import Array, Scaling
from rlploss.estimators.dial import BATCH
from rlploss.models import build_network

HEADS = ("regression", "logits", "probabilities")  # what a network gives
Data = tuple[Array, NDArray[Any], Array | None]  # X [n, d], y, weights [n]


class FarRowsWarning(UserWarning):
    """Rows lie far outside the training rows; their predictions are extrapolations."""


class Predictor(nn.Module):
    """Predictions [B], [B, C], or class probabilities [B, C], from raw columns [B, d].

    `head` says what the network gives: "regression", "logits" or "probabilities". The type of the module decides
    the precision; inputs are converted to it.
    """

    x_mean: Tensor
    x_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor

    def __init__(self, network: nn.Module, scaling: Scaling, *, head: str, flat: bool) -> None:
        super().__init__()
        self.network = network
        self.head, self.flat = one_of("head", head, HEADS), flat
        for name in ("x_mean", "x_scale", "y_mean", "y_scale"):
            self.register_buffer(name, torch.tensor(getattr(scaling, name), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Predict."""
        out: Tensor = self.network((x.to(self.x_mean.dtype) - self.x_mean) / self.x_scale)
        if self.head == "regression":
            out = out * self.y_scale + self.y_mean
        elif self.head == "logits":
            out = out.softmax(-1)
        return out.squeeze(-1) if self.flat else out


class FittedNetwork(BaseEstimator, ABC):
    """Prediction and export of a network on scaled columns."""

    network_: nn.Module
    scaling_: Scaling
    n_features_in_: int
    _fitted_head: str  # what the network gives: "regression", "logits" or "probabilities"
    _flat = False  # whether predictions have one dimension

    def _predictor(self) -> Predictor:
        """Raw columns to predictions, in float64; shares the network."""
        return Predictor(self.network_, self.scaling_, head=self._fitted_head, flat=self._flat).double()

    def _read_new(self, X: Any) -> Array:
        """Check rows to predict for, and tell how many of them lie far outside the training rows."""
        check_is_fitted(self)
        checked: Array = validate_data(self, known_frame(X), reset=False, dtype=np.float64, order="C")
        low, high = self._range
        width = high - low
        far = (checked < low - width) | (checked > high + width)
        if far.any():
            where = int(far.sum(axis=0).argmax())
            name = getattr(self, "feature_names_in_", np.arange(len(low)))[where]
            warnings.warn(
                f"{int(far.any(axis=1).sum())} of {len(checked)} rows lie outside the training rows by more than the "
                f"range of these, most of them in column {name!s}; their predictions are extrapolations",
                FarRowsWarning,
                stacklevel=4,
            )
        return checked

    def _note_range(self, X: Array, *, goes_on: bool = False) -> None:
        """Remember where training rows lie, beside those of the training before if this one went on from it."""
        seen = np.vstack([X, *self._range]) if goes_on else X
        self._range: tuple[Array, Array] = seen.min(axis=0), seen.max(axis=0)

    def _predict_rows(self, X: Any) -> Array:
        checked, predictor, at_once = self._read_new(X), self._predictor(), 65_536
        with torch.no_grad():
            parts = [predictor(torch.tensor(checked[i : i + at_once])).numpy() for i in range(0, len(checked), at_once)]
        return np.concatenate(parts)

    def to_torch(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """A copy of the fitted model as an `nn.Module`, from raw columns [B, d] to what `predict` gives.

        Scaling is part of it. In float64 the numbers are those of `predict` (`predict_proba` for classes); pass
        `torch.float32` for a smaller one, say for ONNX.
        """
        check_is_fitted(self)
        return copy.deepcopy(self._predictor()).to(dtype).eval()


@dataclass(eq=False, repr=False)
class NetworkEstimator(FittedNetwork):
    """The settings that all estimators have, and the reading of rows."""

    hidden_layer_sizes: int | Iterable[int] = (100,)
    _: KW_ONLY
    probe: str = "subset"
    intercept: bool | None = None
    ridge: float = 0.0
    standardize: bool = True
    batch_size: int | str = "auto"
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False
    device: str | None = None

    @abstractmethod
    def _head(self) -> str:
        """What the network is to give: "regression", "logits" or "probabilities"."""

    @abstractmethod
    def _n_outputs(self) -> int:
        """C."""

    @abstractmethod
    def _read_target(self, y: Any, *, first: bool) -> NDArray[Any]:
        """Check y and return it as numbers [n, C], or class numbers [n]; `first` sets what is learned from it."""

    def _read(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> Data:
        """Check all rows; at least two of them have a weight above 0, or one where training goes on."""
        fewest = 2 if first else 1
        if y is None:
            raise ValueError(f"requires y to be passed, but the target y is None; {type(self).__name__} is supervised")
        X, y = validate_data(
            self,
            known_frame(X),
            y,
            reset=first,
            dtype=np.float64,
            order="C",
            multi_output=True,
            y_numeric=self._head() == "regression",
            ensure_min_samples=fewest,
        )
        if sample_weight is None:
            return X, y, None
        weight: Array = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        above = int((weight > 0).sum())
        if above < fewest:
            rows = "two rows" if first else "one row"
            raise ValueError(f"sample_weight must be above 0 for at least {rows}, got {above} of n_samples={len(X)}")
        return X, y, weight

    def _weighted(self, X: Array, y: NDArray[Any], weight: Array | None, *, first: bool) -> Data:
        """The rows of weight above 0, with the target as numbers."""
        if weight is not None:
            X, y, weight = (part[weight > 0] for part in (X, y, weight))
        return X, self._read_target(y, first=first), weight

    def _scaling(self, X: Array, target: NDArray[Any], weight: Array | None) -> Scaling:
        """How rows are scaled; class numbers [n] are not."""
        if not self.standardize:
            return Scaling.none(X.shape[1])
        return Scaling.of(X, None if target.ndim == 1 else target, weight)

    def _batch(self, n_rows: int) -> int:
        if isinstance(self.batch_size, str):
            one_of("batch_size", self.batch_size, ("auto",))
            return min(BATCH, n_rows)
        return min(count("batch_size", self.batch_size), n_rows)

    def _form(self, n_subsets: int | None = None, mixup: float | None = None) -> RLP:
        """RLP without its subset size."""
        return RLP(None, n_subsets, probe=self.probe, intercept=self.intercept, ridge=self.ridge, mixup=mixup)

    def _seed(self) -> int:
        """A seed from `random_state`; None takes fresh entropy and leaves numpy's global state alone."""
        if self.random_state is None:
            return secrets.randbelow(2**31)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _hidden(self) -> tuple[int, ...]:
        sizes = self.hidden_layer_sizes
        return tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)

    def _build(self, seed: int, activation: str, *, softmax: bool) -> nn.Sequential:
        """An untrained network for the rows that were read."""
        sizes = self.n_features_in_, self._hidden(), self._n_outputs()
        return build_network(*sizes, activation=activation, softmax=softmax, seed=seed)


class RegressionEstimator(RegressorMixin, NetworkEstimator):
    """An estimator whose target is real numbers, one or several per row."""

    def predict(self, X: Any) -> Array:
        """Predictions (n,), or (n, C) if y had two dimensions."""
        return self._predict_rows(X)

    def _head(self) -> str:
        return "regression"

    def _n_outputs(self) -> int:
        return self.n_outputs_

    def _read_target(self, y: NDArray[Any], *, first: bool) -> NDArray[Any]:
        target = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        if first:
            self._flat, self.n_outputs_ = y.ndim == 1, target.shape[1]
        elif target.shape[1] != self.n_outputs_:
            raise ValueError(f"y must have {self.n_outputs_} outputs as before, got {target.shape[1]}")
        return target

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class ClassificationEstimator(ClassifierMixin, NetworkEstimator):
    """An estimator whose target is classes."""

    classes_: NDArray[Any]
    _given_classes: NDArray[Any] | None = None  # where they are known before the rows

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (n, n_classes)."""
        return self._predict_rows(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        most_probable = self._predict_rows(X).argmax(axis=1)
        chosen: NDArray[Any] = self.classes_[most_probable]
        return chosen

    def _n_outputs(self) -> int:
        return len(self.classes_)

    def _read_target(self, y: NDArray[Any], *, first: bool) -> NDArray[Any]:
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        if first:
            given = self._given_classes
            self.classes_ = unique_labels(y) if given is None else given
            if len(self.classes_) < 2:
                raise ValueError(f"{type(self).__name__} needs at least two classes, got 1 class: {self.classes_[0]!r}")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y must hold classes seen at first, {list(self.classes_)}, got {unknown[0]!r}")
        return np.searchsorted(self.classes_, y)


def known_frame(X: Any) -> Any:
    """X itself; a frame whose column names this version of scikit-learn cannot see, as one of pandas."""
    names = getattr(X, "columns", None)
    if names is None or not hasattr(X, "to_numpy") or _get_feature_names(X) is not None:
        return X
    try:
        import pandas as pd
    except ImportError:
        return X
    return pd.DataFrame(X.to_numpy(), columns=list(names)) if all(isinstance(name, str) for name in names) else X
