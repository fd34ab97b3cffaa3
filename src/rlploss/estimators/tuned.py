"""Models of scikit-learn whose settings are chosen with as much care as those of the networks: on
the same folds, by squared error, the target as it is or as its logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_classifier
from sklearn.dummy import DummyClassifier
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from sklearn.utils import check_random_state, validation

from rlploss._scaling import Array
from rlploss.estimators.search import choose
from rlploss.estimators.selection import TargetScale, inner_folds, log_choices

# rows from which a Gaussian process has its hyperparameters, and its predictions
GP_ROWS, GP_ITERATIONS = (150, 1000), 12


class Tuned(BaseEstimator):
    """What `TunedRegressor` and `TunedClassifier` share: the choice of settings.

    Parameters
    ----------
    estimator : the model.
    grid : sequence of dict
        Its settings to choose from.
    stages : (str, sequence of int) or None
        A number of trees to choose from beside them; each model is trained once, with the most.
    quick : dict or None
        Settings in force only while others are chosen, such as fewer trees.
    log_target : "auto" or bool
        Whether the logarithm of the target is predicted; "auto" tries both where it is positive and
        skewed.
    cv : as of `NetworkCV`.
    random_state : decides the folds.

    Attributes
    ----------
    model_ : the model with the best setting, trained on all rows.
    best_params_ : this setting, and whether it predicts logarithms as "log".
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        estimator: Any,
        grid: Sequence[Mapping[str, Any]] = ({},),
        *,
        stages: tuple[str, Sequence[int]] | None = None,
        quick: Mapping[str, Any] | None = None,
        log_target: bool | str = False,
        cv: Any = "auto",
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.grid = grid
        self.stages = stages
        self.quick = quick
        self.log_target = log_target
        self.cv = cv
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, folds: Any = None) -> Self:
        """Choose the setting on folds of the rows X (n, d) with targets y (n,), and train it on
        all.
        """
        X, y = validation.validate_data(self, X, y, dtype=np.float64)
        logs: Sequence[bool] = (False,)
        if is_classifier(self):
            self.classes_, y = np.unique(y, return_inverse=True)
            truth = np.eye(len(self.classes_))[y]
            scales: dict[bool, TargetScale | None] = {False: None}
        else:
            truth = np.asarray(y, dtype=np.float64)[:, None]
            logs = log_choices(self.log_target, truth)
            scales = {log: TargetScale.of(y, log=log) for log in logs}
        tries = [(log, setting) for log in logs for setting in self.grid]
        name, stages = self.stages or ("", (0,))
        errors, sizes = np.zeros((len(tries), 1, len(stages))), [1]
        if errors.size > 1:
            target = y if is_classifier(self) else truth
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            splits = inner_folds(self.cv, target, seed) if folds is None else list(folds)
            sizes = [len(outside) for _, outside in splits]
            errors = np.zeros((len(tries), len(splits), len(stages)))
            last = {name: stages[-1]} if self.stages else {}
            for at, (log, setting) in enumerate(tries):
                tried, scale = {**setting, **(self.quick or {}), **last}, scales[log]
                for fold, (inside, outside) in enumerate(splits):
                    fitted = self._fitted(tried, X[inside], y[inside], scale)
                    outputs = self._staged(fitted, X[outside], scale)
                    errors[at, fold] = [np.mean((out - truth[outside]) ** 2) for out in outputs]
        choice = choose(errors, sizes)
        log, setting = tries[choice.setting]
        best = dict(setting)
        if self.stages:
            best[name] = stages[choice.evaluations[choice.setting]]
        self.best_params_: dict[str, Any] = {**best, "log": log}
        self.target_ = scales[log]
        self.model_ = self._fitted(best, X, y, self.target_)
        return self

    def _fitted(
        self, setting: Mapping[str, Any], X: Array, y: NDArray[Any], scale: TargetScale | None
    ) -> Any:
        if scale is not None:
            y = scale.scaled(y)
        elif len(np.unique(y)) == 1:
            return DummyClassifier().fit(X, y)
        return clone(self.estimator).set_params(**setting).fit(X, y)

    def _staged(self, fitted: Any, X: Array, scale: TargetScale | None) -> list[Array]:
        """Return predictions [n, C] for every stage: numbers, or chances of all classes."""
        method = "predict" if scale else "predict_proba"
        stages = self.stages[1] if self.stages else (0,)
        if self.stages and hasattr(fitted, f"staged_{method}"):
            every = enumerate(getattr(fitted, f"staged_{method}")(X), start=1)
            outputs = [out for n, out in every if n in stages]
        else:
            outputs = [getattr(fitted, method)(X)] * len(stages)
        if scale is not None:
            return [scale.original(out.reshape(len(X), 1)) for out in outputs]
        wide = np.zeros((len(outputs), len(X), len(self.classes_)))
        wide[:, :, fitted.classes_] = outputs
        return list(wide)

    def _outputs(self, X: Any) -> Array:
        validation.check_is_fitted(self)
        X = validation.validate_data(self, X, dtype=np.float64, reset=False)
        return self._staged(self.model_, X, self.target_)[-1]


class TunedRegressor(RegressorMixin, Tuned):
    """A regressor of scikit-learn with its settings chosen by folds, on a standardised target.

    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = TunedRegressor(Ridge(), [{"alpha": 0.01}, {"alpha": 1e4}]).fit(X, y)
    >>> model.best_params_
    {'alpha': 0.01, 'log': False}
    """

    def predict(self, X: Any) -> Array:
        """Predictions (n,)."""
        return self._outputs(X)[:, 0]


class TunedClassifier(ClassifierMixin, Tuned):
    """A classifier of scikit-learn with its settings chosen by folds, by the Brier score.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = TunedClassifier(LogisticRegression(max_iter=1000), [{"C": 1.0}, {"C": 9.0}])
    >>> model.fit(X, y).classes_
    array([0, 1, 2])
    """

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (n, n_classes)."""
        return self._outputs(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        chosen: NDArray[Any] = self.classes_[self._outputs(X).argmax(axis=1)]
        return chosen


class FewRowsGP(RegressorMixin, BaseEstimator):
    """A Gaussian process with a linear and an RBF kernel that takes its hyperparameters from few
    rows, and its predictions from some.
    """

    def __init__(self, *, random_state: Any = None) -> None:
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the kernel to at most 150 of the rows, in few steps: the last ones change nothing."""
        X, y = validation.validate_data(self, X, y, dtype=np.float64)
        few, some = (slice(None, None, -(-len(X) // most)) for most in GP_ROWS)
        kernel = (
            kernels.ConstantKernel() * kernels.RBF() + kernels.DotProduct() + kernels.WhiteKernel()
        )
        search = GaussianProcessRegressor(
            kernel, optimizer=_few_steps, random_state=self.random_state
        )
        fitted = search.fit(X[few], y[few]).kernel_
        self.model_ = GaussianProcessRegressor(fitted, optimizer=None).fit(X[some], y[some])
        return self

    def predict(self, X: Any) -> Array:
        """Predictions (n,)."""
        validation.check_is_fitted(self)
        predicted: Array = self.model_.predict(validation.validate_data(self, X, reset=False))
        return predicted


def _few_steps(objective: Any, start: Array, bounds: Any) -> tuple[Array, float]:
    best = optimize.minimize(
        objective,
        start,
        method="L-BFGS-B",
        jac=True,
        bounds=bounds,
        options={"maxiter": GP_ITERATIONS},
    )
    return best.x, float(best.fun)
