"""What all estimators share: reading of rows, targets and weights, prediction and export."""

from __future__ import annotations

import copy
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, _get_feature_names, check_is_fitted, validate_data
from torch import Tensor, nn

from rlploss._checks import count, one_of
from rlploss._scaling import Array, Scaling
from rlploss.estimators.dial import BATCH
from rlploss.models import build_network

HEADS = ("regression", "logits", "probabilities")  # what a network gives
Data = tuple[Array, NDArray[Any], Array | None]  # X [n, d], y, weights [n]


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

    def _predict_rows(self, X: Any) -> Array:
        check_is_fitted(self)
        checked: Array = validate_data(self, known_frame(X), reset=False, dtype=np.float64, order="C")
        predictor, at_once = self._predictor(), 65_536
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
    activation: str = "relu"
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

    def _seed(self) -> int:
        """A seed from `random_state`; None takes fresh entropy and leaves numpy's global state alone."""
        if self.random_state is None:
            return secrets.randbelow(2**31)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _hidden(self) -> tuple[int, ...]:
        sizes = self.hidden_layer_sizes
        return tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)

    def _build(self, seed: int) -> nn.Sequential:
        """An untrained network for the rows that were read."""
        d, C, softmax = self.n_features_in_, self._n_outputs(), self._head() == "probabilities"
        return build_network(d, self._hidden(), C, activation=self.activation, softmax=softmax, seed=seed)


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
