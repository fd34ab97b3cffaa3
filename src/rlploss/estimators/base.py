"""What all estimators share: rules of size, reading of rows and targets, prediction and export."""

from __future__ import annotations

import copy
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import _check_sample_weight, _get_feature_names, check_is_fitted, validate_data
except ImportError:  # pragma: no cover - the extra is installed where tests run
    raise ImportError("rlploss.estimators needs scikit-learn: pip install 'rlploss[sklearn]'") from None

from rlploss._checks import count, one_of
from rlploss.estimators.predictor import Array, Predictor, Scaling, predict_rows
from rlploss.training.objectives import NAMES, RLP, Objective

BATCH = 200  # rows per step of pointwise losses, as in scikit-learn's MLP estimators
FEWEST_STEPS = 10  # in one iteration, so that small tables are trained too
_PLAN_WORK = 10**9  # of K·M·p², the cost of factoring a plan


def steps_per_iteration(n_rows: int, batch_size: int) -> int:
    """Optimiser steps in one iteration: a pass over the rows in batches, at least 10. The same for every loss."""
    return max(FEWEST_STEPS, -(-n_rows // batch_size))


def auto_subset_size(n_rows: int, n_columns: int) -> int:
    """The subset size M that `subset_size="auto"` takes, for N rows and p columns (the intercept included).

    M = 0.85·N up to 100 rows, 8500/N beyond, at least p + 2; N where there are fewer rows (MSE then).
    Few rows want the strong regulariser that large subsets are; many rows can afford to learn what is not linear.
    """
    size = 0.85 * min(n_rows, 10_000 / n_rows)
    return min(n_rows, max(n_columns + 2, round(size)))


def auto_n_subsets(n_rows: int, n_columns: int, subset_size: int) -> int:
    """Subsets in a plan: up to 1000, fewer where factoring them would take more than about a second."""
    enough = min(1000, _PLAN_WORK // (subset_size * n_columns**2))
    return min(max(enough, -(-n_rows // subset_size)), math.comb(n_rows, subset_size))


def auto_subsets_per_step(n_rows: int, subset_size: int) -> int:
    """Small subsets are taken several at a time: as many as fit into 200 rows and into a fifth of all."""
    return max(1, min(BATCH, n_rows // 5) // subset_size)


def subset_objective(
    n_rows: int,
    n_features: int,
    subset_size: int,
    *,
    n_subsets: int | None,
    probe: str,
    intercept: bool,
    ridge: float,
    mixup: float | None = None,
) -> RLP:
    """RLP with subsets of this size; `n_subsets=None` leaves their number to the rule."""
    if n_subsets is None:
        n_subsets = auto_n_subsets(n_rows, n_features + int(intercept), subset_size)
    per_step = min(n_subsets, auto_subsets_per_step(n_rows, subset_size))
    return RLP(
        subset_size,
        n_subsets,
        subsets_per_step=per_step,
        probe=probe,
        intercept=bool(intercept),
        ridge=ridge,
        mixup=mixup,
    )


def batch_objective(loss: str, batch_size: int, mixup: float | None = None) -> Objective:
    """The pointwise objective of this name."""
    made: Any = NAMES[loss]
    return made(batch_size, mixup=mixup)  # type: ignore[no-any-return]  # one of the pointwise classes


def known_frame(X: Any) -> Any:
    """X itself; a frame whose column names this version of scikit-learn cannot see, as one of pandas."""
    names = getattr(X, "columns", None)
    if names is None or not hasattr(X, "to_numpy") or _get_feature_names(X) is not None:
        return X
    if not all(isinstance(name, str) for name in names):
        return X
    try:
        import pandas as pd
    except ImportError:
        return X
    return pd.DataFrame(X.to_numpy(), columns=list(names))


class RowReader(BaseEstimator, ABC):
    """Reading of rows, targets and weights, prediction and export; what every estimator of this package shares."""

    hidden_layer_sizes: int | Iterable[int]
    batch_size: int | str
    random_state: int | np.random.RandomState | None
    network_: nn.Module
    scaling_: Scaling
    n_features_in_: int
    _flat = False  # whether predictions have one dimension

    @abstractmethod
    def _head(self) -> str:
        """What the network ends in."""

    @abstractmethod
    def _read_target(self, y: Any, *, first: bool) -> NDArray[Any]:
        """Check y and return it as numbers [n, C], or class numbers [n]; `first` sets what is learned from it."""

    @abstractmethod
    def _n_outputs(self) -> int:
        """C."""

    # Reading

    def _read(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> tuple[Array, NDArray[Any], Array | None]:
        """Check the data; rows of weight 0 are left out."""
        X, y, weight = self._validated(X, y, sample_weight, first=first)
        if weight is not None:
            keep = weight > 0
            X, y, weight = X[keep], y[keep], weight[keep]
        return X, self._read_target(y, first=first), weight

    def _validated(
        self, X: Any, y: Any, sample_weight: Any, *, first: bool
    ) -> tuple[Array, NDArray[Any], Array | None]:
        """All rows, checked; at least two of them have a weight above 0, or one where training goes on."""
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

    def _hidden(self) -> tuple[int, ...]:
        sizes = self.hidden_layer_sizes
        return tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)

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

    # Prediction and export

    def _predictor(self) -> Predictor:
        """Raw columns to predictions, in float64; shares the network."""
        head = getattr(self, "_trained", {}).get("head", self._head())  # whatever `loss` has been set to since
        return Predictor(self.network_, self.scaling_, head=head, flat=self._flat).double()

    def _predict_rows(self, X: Any) -> Array:
        check_is_fitted(self)
        checked: Array = validate_data(self, known_frame(X), reset=False, dtype=np.float64, order="C")
        return predict_rows(self._predictor(), checked)

    def to_torch(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """A copy of the fitted model as an `nn.Module`, from raw columns [B, d] to what `predict` gives.

        Scaling is part of it. In float64 the numbers are those of `predict` (`predict_proba` for classes); pass
        `torch.float32` for a smaller one, say for ONNX.
        """
        check_is_fitted(self)
        return copy.deepcopy(self._predictor()).to(dtype).eval()


class RegressionTarget:
    """The target of a regression: real numbers, one or several per row."""

    n_outputs_: int
    _flat: bool

    def _head(self) -> str:
        return "regression"

    def _n_outputs(self) -> int:
        return self.n_outputs_

    def _read_target(self, y: NDArray[Any], *, first: bool) -> NDArray[Any]:
        target = np.asarray(y, dtype=np.float64)
        if first:
            self._flat = target.ndim == 1
        target = target.reshape(len(target), -1)
        if first:
            self.n_outputs_ = target.shape[1]
        elif target.shape[1] != self.n_outputs_:
            raise ValueError(f"y must have {self.n_outputs_} outputs as before, got {target.shape[1]}")
        return target

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]  # a mixin: the next class has it
        tags.target_tags.multi_output = True
        return tags
