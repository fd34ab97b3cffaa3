"""scikit-learn estimators: a multilayer perceptron trained with RLP, or with any loss that RLP is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# isort: split  (the first import above says what to install where scikit-learn is missing)
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import column_or_1d

from rlploss.estimators.base import RegressionTarget
from rlploss.estimators.predictor import Array
from rlploss.estimators.train import RLPBase
from rlploss.training.history import History


class RLPRegressor(RegressionTarget, RegressorMixin, RLPBase):
    """A multilayer perceptron for regression, trained with the Random Linear Projections loss.

    Inputs and targets are standardised inside. Names are those of scikit-learn's `MLPRegressor` where the meaning
    is the same.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(100,)
    activation : {"relu", "tanh", "logistic", "identity"}, default="relu"
    loss : {"rlp", "mse", "mae", "huber", "rlp+mixup", "mse+mixup"}, default="rlp"
        Errors count on the standardised target: Huber turns linear at one standard deviation.
    subset_size : "auto", int, or float in (0, 1], default="auto"
        M, the rows of one subset, as a number or a fraction of the training rows. It is a dial: up to the number of
        columns RLP is MSE, at all rows it sees only the least-squares plane. "auto" is `auto_subset_size`.
    n_subsets : "auto" or int, default="auto"
        K, the subsets of the plan that training goes through, one per step.
    probe : {"subset", "draw", "expected", "sum"}, default="subset"
    intercept : bool, default=True
        Whether planes have an offset.
    ridge : float, default=0.0
        λ of the planes' own ridge penalty. `alpha` is the penalty on the network.
    mixup_alpha : float, default=0.25
        Shape of the Beta distribution of the losses with mixup.
    standardize : bool, default=True
        Whether to centre and scale inputs and targets by their training rows.
    alpha : float, default=1e-4
        Weight decay: alpha/2·‖weights‖² is added to the mean loss. (`MLPRegressor` divides it by the batch.)
    batch_size : "auto" or int, default="auto"
        Rows per step of the other losses, min(200, N); one iteration is a pass over the rows in such batches, at
        least 10 steps, the same number for every loss.
    learning_rate_init : float, default=1e-3
        Learning rate of Adam.
    max_iter : int, default=200
    tol, n_iter_no_change : float, default=1e-4; int, default=20
        Stop when the loss (with `early_stopping` the validation score) has not improved by `tol` for this many
        iterations. (`MLPRegressor` waits for 10; the loss of random subsets is noisier.)
    early_stopping, validation_fraction : bool, default=False; float, default=0.1
        Hold rows out, and keep the weights that score best on them.
    warm_start : bool, default=False
        Whether `fit` continues from the weights and scaling of the last call.
    random_state : int, RandomState or None, default=None
        Decides initial weights, subsets and held-out rows. None is different each time.
    verbose : bool, default=False
    device : str or None, default=None
        Where to train; the fitted network is on the CPU.

    Attributes
    ----------
    loss_curve_, loss_, best_loss_, n_iter_ : the training loss per iteration, its last and best value, its length.
    validation_scores_, best_validation_score_ : R² on held-out rows with `early_stopping`: of every iteration, and of
        the network that is kept.
    subset_size_, n_subsets_ : M and K in use; None where the loss has no subsets (or "auto" found it to be MSE).
    network_ : the network on standardised columns; `to_torch()` is the whole model.
    n_outputs_, n_features_in_, feature_names_in_

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> RLPRegressor(random_state=0).fit(X[:300], y[:300]).score(X[300:], y[300:]) > 0.4
    True
    """

    _losses = ("rlp", "mse", "mae", "huber", "rlp+mixup", "mse+mixup")

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RLPRegressor:
        """Train on rows X (n, d) and targets y (n,) or (n, C).

        `sample_weight` (n,) fits the planes by weighted least squares; rows of weight 0 are left out.
        """
        self._fit(X, y, sample_weight, restart=not (self.warm_start and hasattr(self, "network_")))
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> RLPRegressor:
        """Train for one more iteration, on these rows; the first call fixes the scaling."""
        self._fit(X, y, sample_weight, restart=not hasattr(self, "network_"), partial=True)
        return self

    def predict(self, X: Any) -> Array:
        """Predictions (n,), or (n, C) if y had two dimensions."""
        return self._predict_rows(X)

    def _stratify(self, target: NDArray[Any]) -> NDArray[Any] | None:
        return None

    def _validation_scores(self, history: History, target: NDArray[Any]) -> list[float]:
        """R² from the mean squared error of the standardised target, over all outputs."""
        variance = float(self.scaling_.targets(target).var(axis=0).mean())
        return [1 - float(error) / variance if variance > 0 else 0.0 for error in history["mse"]]


class RLPClassifier(ClassifierMixin, RLPBase):
    """A multilayer perceptron for classification, trained with the Random Linear Projections loss.

    With RLP and MSE the residual is probability minus one-hot class, the probabilities from a soft-max; with cross
    entropy the network gives logits. Parameters and attributes are those of `RLPRegressor`, except:

    Parameters
    ----------
    loss : {"rlp", "cross_entropy", "mse", "rlp+mixup", "cross_entropy+mixup", "mse+mixup"}, default="rlp"

    Attributes
    ----------
    classes_ : the classes, in the order of the columns of `predict_proba`.
    validation_scores_, best_validation_score_ : accuracy on held-out rows with `early_stopping`, of every iteration
        and of the network that is kept, the one with the lowest squared error of the probabilities (cross entropy with
        that loss); accuracy itself stands still on few rows while there is more to learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> RLPClassifier(random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    _losses = ("rlp", "cross_entropy", "mse", "rlp+mixup", "cross_entropy+mixup", "mse+mixup")
    classes_: NDArray[Any]

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RLPClassifier:
        """Train on rows X (n, d) and classes y (n,).

        `sample_weight` (n,) fits the planes by weighted least squares; rows of weight 0 are left out.
        """
        self._given_classes = None
        self._fit(X, y, sample_weight, restart=not (self.warm_start and hasattr(self, "network_")))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> RLPClassifier:
        """Train for one more iteration, on these rows; the first call needs all `classes` and fixes the scaling."""
        first = not hasattr(self, "network_")
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit, got None")
        if classes is not None:
            given = unique_labels(classes)
            if not first and not np.array_equal(given, self.classes_):
                raise ValueError(
                    f"classes must be the same in every call to partial_fit, got {list(given)} after "
                    f"{list(self.classes_)}"
                )
            self._given_classes = given
        self._fit(X, y, sample_weight, restart=first, partial=True)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (n, n_classes)."""
        return self._predict_rows(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        most_probable = self.predict_proba(X).argmax(axis=1)
        chosen: NDArray[Any] = self.classes_[most_probable]
        return chosen

    def _head(self) -> str:
        return "logits" if self.loss.startswith("cross_entropy") else "probabilities"

    def _n_outputs(self) -> int:
        return len(self.classes_)

    def _read_target(self, y: NDArray[Any], *, first: bool) -> NDArray[Any]:
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        if first:
            given = self._given_classes
            self.classes_ = unique_labels(y) if given is None else given
            if len(self.classes_) < 2:
                raise ValueError(f"RLPClassifier needs at least two classes, got 1 class: {self.classes_[0]!r}")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y must hold classes seen at first, {list(self.classes_)}, got {unknown[0]!r}")
        return np.searchsorted(self.classes_, y)

    def _stratify(self, target: NDArray[Any]) -> NDArray[Any] | None:
        return target

    def _validation_scores(self, history: History, target: NDArray[Any]) -> list[float]:
        return [float(score) for score in history["accuracy"]]
