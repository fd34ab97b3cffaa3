"""`RLPRegressor` and `RLPClassifier`: settings to `fit`, stopping, going on where the last call ended."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from sklearn.utils.multiclass import unique_labels

from rlploss import MSE, RLP, Adam, EarlyStopping, Event, History, Problem, Steps
from rlploss._checks import count, number, one_of
from rlploss._scaling import Array, Scaling
from rlploss.estimators import dial
from rlploss.estimators.base import ClassificationEstimator, Data, NetworkEstimator, RegressionEstimator
from rlploss.estimators.parameters import documented
from rlploss.training.fit import train
from rlploss.training.job import make_job
from rlploss.training.loop import Supervision
from rlploss.training.objectives import Objective


@dataclass(eq=False, repr=False, kw_only=True)
class MLP(NetworkEstimator):
    """The settings and the training of one network; subclasses read the target and name the losses."""

    activation: str = field(default="relu", kw_only=False)
    loss: str = "rlp"
    subset_size: int | float | str = "auto"
    n_subsets: int | str = "auto"
    mixup: float | None = None
    alpha: float = 1e-4
    learning_rate_init: float = 1e-3
    max_iter: int = 200
    tol: float = 1e-4
    n_iter_no_change: int = 20
    early_stopping: bool = False
    validation_fraction: float = 0.1
    warm_start: bool = False
    _losses: ClassVar[tuple[str, ...]]

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on rows X (n, d) and targets y: numbers (n,) or (n, C), or classes (n,).

        `sample_weight` (n,) fits the planes by weighted least squares; rows of weight 0 are left out.
        """
        return self._fit(X, y, sample_weight, goes_on=self.warm_start and hasattr(self, "network_"))

    def _fit(self, X: Any, y: Any, sample_weight: Any, *, goes_on: bool, partial: bool = False) -> Self:
        """Train; `goes_on` keeps weights and scaling of the training before; `partial` is one iteration."""
        self._check_settings()
        kind = (self._hidden(), self.activation, self._head())
        if goes_on and kind != self._kind:
            raise ValueError(
                "hidden_layer_sizes, activation and what the loss reads must stay as they were where training goes on, "
                f"got {kind} after {self._kind}; call fit with warm_start=False to begin anew"
            )
        X, target, weight = self._weighted(*self._read(X, y, sample_weight, first=not goes_on), first=not goes_on)
        seed, rows, validation = self._seed(), X, None
        if self.early_stopping and not partial:
            (X, target, weight), validation = self._hold_out(X, target, weight, seed)
        if goes_on:  # a copy: training that fails leaves the estimator as it was
            scaling, network, state = self.scaling_, copy.deepcopy(self.network_).float(), self._engine_state
        else:
            network = self._build(seed, self.activation, softmax=kind[-1] == "probabilities")
            scaling, state = self._scaling(X, target, weight), None
        objective = self._objective(X, target, weight)
        # accuracy on few rows stands still for long while the network still learns: what is smooth decides
        metric = "cross_entropy" if self._head() == "logits" else "mse"
        held = None if validation is None else scaled(scaling, *validation)
        patience = None if partial else self.n_iter_no_change
        rule = StoppingRule("loss" if held is None else metric, self.tol, patience, verbose=bool(self.verbose))
        steps = dial.steps_per_iteration(len(X), self._batch(len(X)))
        job = make_job(
            network,
            Problem(*scaled(scaling, X, target), seed=seed, sample_weight=weight, validation=held),
            objective=objective,
            optimizer=Adam(self.learning_rate_init, self.alpha),
            budget=Steps(steps * (1 if partial else self.max_iter)),
            metrics=None if held is None else (metric, "accuracy") if target.ndim == 1 else metric,
            device=self.device,
            engine_state=state,
        )
        # EarlyStopping keeps the best weights; the rule alone decides when to stop
        kept = None if held is None else EarlyStopping(metric, patience=self.max_iter + 1)
        (loop,) = train([job], Supervision(Steps(steps), callbacks=(rule,), early_stopping=kept))
        self.scaling_, self.network_ = scaling, network.to("cpu").double()
        self._note_range(rows, goes_on=goes_on)
        self._kind: tuple[tuple[int, ...], str, str] = kind
        self._engine_state: dict[str, Any] = loop.engine.state_dict()  # Adam's averages, for training that goes on
        self._fitted_head = kind[-1]
        self.subset_size_ = objective.subset_size if isinstance(objective, RLP) else None
        self.n_subsets_ = objective.n_subsets if isinstance(objective, RLP) else None
        self.loss_curve_: list[float] = [*(self.loss_curve_ if goes_on else []), *rule.losses]
        self.n_iter_, self.loss_ = len(self.loss_curve_), self.loss_curve_[-1]
        self.best_loss_ = None if held is not None else min(self.loss_curve_)
        self._note_validation(loop.history, None if validation is None else validation[1])
        return self

    def _hold_out(
        self, X: Array, target: NDArray[Any], weight: Array | None, seed: int
    ) -> tuple[Data, tuple[Array, NDArray[Any]]]:
        """Training rows and validation rows; classes keep their shares."""
        classes = target if target.ndim == 1 else None
        train, test = train_test_split(
            np.arange(len(X)), test_size=self.validation_fraction, random_state=seed, stratify=classes
        )
        if len(train) < 2:
            raise ValueError(
                f"early_stopping with validation_fraction={self.validation_fraction} must leave at least two "
                f"training rows, got {len(train)} of n_samples={len(X)}; lower validation_fraction"
            )
        rows = X[train], target[train], None if weight is None else weight[train]
        return rows, (X[test], target[test])

    def _objective(self, X: Array, target: NDArray[Any], weight: Array | None) -> Objective:
        """What `fit` makes small."""
        n_rows, n_features = X.shape
        batch = self._batch(n_rows)
        if self.loss != "rlp":
            return dial.POINTWISE[self.loss](batch, mixup=self.mixup)
        n_subsets = None if self.n_subsets == "auto" else count("n_subsets", self.n_subsets)
        form = self._form(n_subsets, self.mixup)
        p = dial.n_columns(n_features, form)
        if isinstance(self.subset_size, str):
            one_of("subset_size", self.subset_size, ("auto",))
            y = target if target.ndim > 1 else np.eye(self._n_outputs())[target]
            size = dial.auto_subset_size(X, y, weight, intercept=p > n_features)
            if size is None:
                return MSE(batch, mixup=self.mixup)
            return dial.with_subsets(form, size, n_rows, n_features)
        place = dial.Dial.of("subset_size", self.subset_size)
        if place.rows is not None and place.rows > n_rows:
            raise ValueError(
                f"subset_size must be at most the number of rows {n_rows}, got {place.rows}; pass a fraction instead"
            )
        return dial.with_subsets(form, place.subset_size(n_rows, p), n_rows, n_features)

    def _note_validation(self, history: History, target: NDArray[Any] | None) -> None:
        """Set the scores on validation rows with these targets: accuracy for classes, else R² over all outputs."""
        self.validation_scores_: list[float] | None = None
        self.best_validation_score_: float | None = None
        if target is None:
            return
        if target.ndim == 1:
            scores = history["accuracy"]
        else:
            variance = float(self.scaling_.targets(target).var(axis=0).mean())
            scores = 1 - history["mse"] / variance if variance > 0 else np.zeros(len(history))
        self.validation_scores_ = scores[1:].tolist()
        self.best_validation_score_ = float(scores[history["step"] == history.best_step][0])

    def _check_settings(self) -> None:
        one_of("loss", self.loss, self._losses)
        count("max_iter", self.max_iter)
        count("n_iter_no_change", self.n_iter_no_change)
        number("tol", self.tol, minimum=0.0)
        number("alpha", self.alpha, minimum=0.0)
        number("validation_fraction", self.validation_fraction, 0.0, 1.0)


class StoppingRule:
    """A callback of `fit`: stops it after `patience` iterations in a row that do not lower `metric` by `tol`.

    It also keeps the training loss of every iteration, and prints it with `verbose`. A patience of None never stops.
    """

    def __init__(self, metric: str, tol: float, patience: int | None, *, verbose: bool) -> None:
        self.losses: list[float] = []
        self._metric, self._tol, self._patience, self._verbose = metric, tol, patience, verbose
        self._best, self._waited = math.inf, 0

    def __call__(self, event: Event) -> bool:
        """Take in one iteration; True stops the run."""
        if event.step == 0:
            return False
        self.losses.append(event.metrics["loss"])
        if self._verbose:
            print(f"Iteration {len(self.losses)}, loss = {self.losses[-1]:.8f}", flush=True)
        value = event.metrics[self._metric]
        self._waited = self._waited + 1 if value > self._best - self._tol else 0
        self._best = min(self._best, value)
        return self._patience is not None and self._waited >= self._patience


def scaled(scaling: Scaling, X: Array, target: NDArray[Any]) -> tuple[Array, NDArray[Any]]:
    """Rows as the network sees them; class numbers [n] stay as they are."""
    return scaling.inputs(X), target if target.ndim == 1 else scaling.targets(target)


@documented("""
loss : {"rlp", "mse", "mae", "huber"}
    What is made small: RLP, or the squared, absolute or Huber's error. Errors count on the standardised target: Huber's
    turns linear at one standard deviation.
""")
class RLPRegressor(RegressionEstimator, MLP):
    """A multilayer perceptron for regression, trained with the Random Linear Projections loss.

    Inputs and targets are standardised inside. Names are those of scikit-learn's `MLPRegressor` where the meaning
    is the same.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}
    n_outputs_ : the number of targets.
    validation_scores_, best_validation_score_ : R² on the validation rows of `early_stopping`, of every iteration and
        of the network that is kept; None without it.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> RLPRegressor(random_state=0).fit(X[:300], y[:300]).score(X[300:], y[300:]) > 0.4
    True
    """

    _losses = ("rlp", "mse", "mae", "huber")

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one more iteration, on these rows; the first call fixes the scaling."""
        return self._fit(X, y, sample_weight, goes_on=hasattr(self, "network_"), partial=True)


@documented("""
loss : {"rlp", "cross_entropy", "mse"}
    What is made small. With RLP and MSE the error is probability minus one-hot class, the probabilities from a
    soft-max; with cross entropy the network gives logits.
""")
class RLPClassifier(ClassificationEstimator, MLP):
    """A multilayer perceptron for classification, trained with the Random Linear Projections loss.

    Inputs are standardised inside. Names are those of scikit-learn's `MLPClassifier` where the meaning is the same.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}
    classes_ : the classes, in the order of the columns of `predict_proba`.
    validation_scores_, best_validation_score_ : accuracy on the validation rows of `early_stopping`, of every
        iteration and of the network that is kept, the one with the lowest squared error of the probabilities (cross
        entropy with that loss); accuracy itself stands still on few rows while there is more to learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> RLPClassifier(random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    _losses = ("rlp", "cross_entropy", "mse")

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
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
        try:
            return self._fit(X, y, sample_weight, goes_on=not first, partial=True)
        finally:
            self._given_classes = None

    def _head(self) -> str:
        return "logits" if self.loss == "cross_entropy" else "probabilities"
