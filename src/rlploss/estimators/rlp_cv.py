"""The cross-validated estimators: `NetworkRegressorCV` and `NetworkClassifierCV` with any loss,
`RLPRegressorCV` and `RLPClassifierCV` with RLP, its dial and the mixture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from rlploss import MSE, CrossEntropy
from rlploss.estimators import base
from rlploss.estimators.network_cv import NetworkCV
from rlploss.models import WeightedMean
from rlploss.training.objectives import Objective


@base.documented
@dataclass(eq=False, repr=False, kw_only=True)
class NetworkRegressorCV(base.RegressionEstimator, NetworkCV):
    """Multilayer perceptrons for numbers with any loss, their settings and stopping step
    cross-validated.

    All folds and settings train as one fleet, those that are worth it longer.

    Parameters
    ----------
    linear_skip : "auto" or bool
        Whether a network adds to the plane of a ridge regression. "auto" tries both.
    log_target : "auto" or bool
        Whether the logarithm of the target is predicted. "auto" tries both for one positive, skewed
        target.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = NetworkRegressorCV(loss="mae", random_state=0).fit(X[:100], y[:100])
    >>> model.score(X[100:], y[100:]) > 0.3
    True
    """

    ensemble: bool = False
    linear_skip: bool | str = False
    log_target: bool | str = False
    _end = MSE
    _losses = ("rlp", "mse", "mae", "huber")

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predictions (n,), or (n, C) if y had two dimensions; with `return_std` also the spread of
        the ensemble.
        """
        checked = self._read_new(X)
        predicted = self._predict(checked)
        if not return_std:
            return predicted
        if not isinstance(self.network_, WeightedMean):
            raise ValueError(
                "return_std needs an ensemble, got ensemble=False; fit with ensemble=True"
            )
        Z = torch.tensor(self.scaling_.inputs(checked))
        with torch.no_grad():
            apart = (self.network_.each(Z) - self.network_(Z)) ** 2
            variance = torch.einsum("k,kbc->bc", self.network_.weights, apart)
        spread = np.sqrt(variance.numpy()) * self.scaling_.y_scale
        return predicted, spread.reshape(predicted.shape)


@base.documented
@dataclass(eq=False, repr=False, kw_only=True)
class NetworkClassifierCV(base.ClassificationEstimator, NetworkCV):
    """Multilayer perceptrons for classes with any loss, their settings and stopping step
    cross-validated.

    The choice is by the squared error of probabilities (the Brier score), whatever the loss.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> NetworkClassifierCV(random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    loss: str | Objective = "cross_entropy"
    ensemble: bool = False
    _end: ClassVar[type[MSE] | type[CrossEntropy]] = MSE
    _losses = ("rlp", "cross_entropy", "mse")


@base.documented
@dataclass(eq=False, repr=False, kw_only=True)
class RLPRegressorCV(NetworkRegressorCV):
    """Multilayer perceptrons whose subset size, weight decay, activation, stopping step and more
    are cross-validated.

    The subset size M is a dial: M up to the number of columns is MSE itself, M = all rows is linear
    regression. The MSE end is always among the candidates; `subset_sizes=()` leaves it alone. All
    folds and settings train as one fleet, those that are worth it longer. The prediction is the
    mixture of candidates whose out-of-fold error is lowest; it is never above that of the best
    single one.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = RLPRegressorCV(random_state=0).fit(X[:100], y[:100])
    >>> model.ensemble_score_ >= model.best_score_
    True
    """

    loss: str | Objective = "rlp"
    ensemble: bool = True
    linear_skip: bool | str = "auto"


@base.documented
@dataclass(eq=False, repr=False, kw_only=True)
class RLPClassifierCV(NetworkClassifierCV):
    """Multilayer perceptrons for classes, their settings, stopping step and mixture
    cross-validated.

    The subset size M is a dial: at all rows probabilities need only match the least-squares plane
    of the classes, up to the number of columns it is pointwise, which is cross entropy here;
    `subset_sizes=()` leaves that end alone. The mixture is chosen as by `RLPRegressorCV`, on the
    squared error of probabilities (the Brier score).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> RLPClassifierCV(random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    hidden_layer_sizes: int | Iterable[int] = (50,)
    loss: str | Objective = "rlp"
    ensemble: bool = True
    _end = CrossEntropy
