"""`RLPRegressor` and `RLPClassifier`: settings to `fit`, stopping, going on where the last call
ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from sklearn.utils.multiclass import unique_labels
from torch import nn

from rlploss import Adam, EarlyStopping, Event, History, Problem, Steps
from rlploss._checks import count, number, one_of
from rlploss._scaling import Scaling
from rlploss.estimators import base, dial
from rlploss.estimators.base import Data, documented
from rlploss.training.evaluation import Callback
from rlploss.training.fit import train
from rlploss.training.job import make_job
from rlploss.training.loop import Supervision
from rlploss.training.objectives import NAMES, Objective


@dataclass(eq=False, repr=False, kw_only=True)
class MLP(base.NetworkEstimator):
    """The settings and the training of one network; subclasses read the target and name the losses.

    Parameters
    ----------
    activation : {"relu", "tanh", "logistic", "identity"}
        What follows every hidden layer.
    subset_size : "auto", int, or float in (0, 1] M, the rows of one subset, as a number or as a
        fraction of the training rows. It is a dial: up to the number of columns RLP is MSE, at all
        rows it sees only the least-squares plane. "auto" is `auto_subset_size(X, y)`: √(p·N) for N
        rows and p columns with the intercept, or MSE where the rows show a curve without much
        noise.
    n_subsets : "auto" or int K, the subsets that training goes through. "auto" is up to 1000, fewer
        where factoring them would take long.
    mixup : float or None ψ of the distribution Beta(ψ, ψ) by which pairs of subsets, or of rows,
        are mixed. None: no mixup. Sample weights are refused with it.
    alpha : float Weight decay: alpha/2·‖weights‖² is added to the mean loss. (scikit-learn's MLP
        divides it by the batch.)
    learning_rate_init : float
        Learning rate of Adam.
    max_iter : int
        The most iterations.
    tol : float An iteration improves if the training loss (with `early_stopping` the validation
        error) is at least this much below the lowest so far.
    n_iter_no_change : int Training stops after this many iterations in a row that do not improve.
        (scikit-learn's MLP has 10; the loss of random subsets is noisier.)
    early_stopping : bool Whether to hold out validation rows, stop by their error, and keep the
        weights where it is lowest.
    validation_fraction : float
        The share of the rows that `early_stopping` holds out.
    warm_start : bool
        Whether `fit` goes on from the weights and the scaling of the last call.

    Attributes
    ----------
    loss_curve_ : the training loss of every iteration.
    loss_, best_loss_ : its last and its lowest value; the latter is None with `early_stopping`.
    n_iter_ : the number of iterations.
    subset_size_, n_subsets_ : M and K in use; None where the loss has no subsets (or "auto" found
        it to be MSE).
    """

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

        `sample_weight` (n,) fits the planes by weighted least squares; rows of weight 0 are left
        out.
        """
        return self._fit(X, y, sample_weight, goes_on=self.warm_start and hasattr(self, "network_"))

    def _fit(
        self, X: Any, y: Any, sample_weight: Any, *, goes_on: bool, partial: bool = False
    ) -> Self:
        """Train; `goes_on` keeps weights and scaling of the training before; `partial` is one
        iteration.
        """
        one_of("loss", self.loss, self._losses)
        for name in ("max_iter", "n_iter_no_change"):
            count(name, getattr(self, name))
        for name in ("tol", "alpha"):
            number(name, getattr(self, name), minimum=0.0)
        number("validation_fraction", self.validation_fraction, 0.0, 1.0)
        data, _ = self._read(X, y, sample_weight, first=not goes_on)
        seed = self._seed()
        rows = data.X
        held = None
        if self.early_stopping and not partial:
            data, held = self._hold_out(data, seed)
        n = len(data.X)
        classes = data.target.ndim == 1
        logits = self.loss == "cross_entropy"
        network = self._build(seed, self.activation, softmax=classes and not logits)
        scaling = self._scaling(data)
        state = None
        if goes_on:  # weights are copied: training that fails leaves the estimator as it was
            if repr(network) != repr(self._trained):
                what = "hidden_layer_sizes, activation and what the loss reads"
                got = f"{self.hidden_layer_sizes}, {self.activation!r} and loss={self.loss!r}"
                wrong = f"{what} must stay as they were where training goes on, got {got}"
                raise ValueError(f"{wrong}; call fit with warm_start=False to begin anew")
            network.load_state_dict(self._trained.state_dict())
            scaling, state = self.scaling_, self._engine_state
        objective = self._objective(data)
        X, y, weight = data.scaled(scaling)
        validation = None if held is None else held.scaled(scaling)[:2]
        problem = Problem(X, y, seed=seed, sample_weight=weight, validation=validation)
        adam = Adam(self.learning_rate_init, self.alpha)
        every = Steps(
            dial.steps_per_iteration(n, base.batch_of(self.batch_size, n))
        )  # an iteration
        budget = Steps(every.n * (1 if partial else self.max_iter))
        # accuracy on few rows stands still for long while the network still learns: what is smooth
        # decides
        metric = "cross_entropy" if logits else "mse"
        metrics = None if held is None else (metric, "accuracy") if classes else metric
        job = make_job(
            network,
            problem,
            objective=objective,
            optimizer=adam,
            metrics=metrics,
            device=self.device,
            state=state,
        )
        # EarlyStopping keeps the best weights; the rule alone decides when to stop
        rule = stopping_rule("loss" if held is None else metric, self.tol, self.n_iter_no_change)
        kept = None if held is None else EarlyStopping(metric, patience=self.max_iter + 1)
        watch = Supervision(budget, evaluate_every=every, callbacks=(rule,), early_stopping=kept)
        (loop,) = train([(job, watch)], progress=bool(self.verbose))
        self.scaling_: Scaling = scaling
        self._trained: nn.Sequential = network.to("cpu").double()
        self.network_ = (
            nn.Sequential(*self._trained, nn.Softmax(dim=-1)) if logits else self._trained
        )
        self._note_range(rows, goes_on=goes_on)
        # Adam's averages, for training that goes on
        self._engine_state: dict[str, Any] = loop.state
        self.subset_size_, self.n_subsets_ = (
            getattr(objective, name, None) for name in ("subset_size", "n_subsets")
        )
        losses = loop.history["loss"][1:].tolist()
        self.loss_curve_: list[float] = [*self.loss_curve_, *losses] if goes_on else losses
        self.n_iter_, self.loss_ = len(self.loss_curve_), self.loss_curve_[-1]
        self.best_loss_ = None if held is not None else min(self.loss_curve_)
        self._note_validation(loop.history, None if validation is None else validation[1])
        return self

    def _hold_out(self, data: Data, seed: int) -> tuple[Data, Data]:
        """Training rows and validation rows; classes keep their shares."""
        rows, share = np.arange(len(data.X)), self.validation_fraction
        classes = data.target if data.target.ndim == 1 else None
        train, test = train_test_split(rows, test_size=share, random_state=seed, stratify=classes)
        if len(train) < 2:
            got = (
                f"at least two training rows, got {len(train)} of n_samples={len(rows)}; lower"
                " validation_fraction"
            )
            raise ValueError(f"early_stopping with validation_fraction={share} must leave {got}")
        return data.part(train), data.part(test)

    def _objective(self, data: Data) -> Objective:
        """What `fit` makes small."""
        X, target, weight = data
        n_rows, d = X.shape
        batch = base.batch_of(self.batch_size, n_rows)
        if self.loss != "rlp":
            return NAMES[self.loss](batch, mixup=self.mixup)
        form = self._form(
            None if self.n_subsets == "auto" else count("n_subsets", self.n_subsets), self.mixup
        )
        p = form.planes.n_columns(d)
        if isinstance(self.subset_size, str):
            one_of("subset_size", self.subset_size, ("auto",))
            size = dial.auto_subset_size(X, self._numbers(target), weight, intercept=p > d)
            return dial.objective_at(form, size, n_rows, d, batch_size=batch)
        place = dial.Dial.of("subset_size", self.subset_size)
        if isinstance(place.size, int) and place.size > n_rows:
            most = f"the number of rows {n_rows}, got {place.size}"
            raise ValueError(f"subset_size must be at most {most}; pass a fraction instead")
        # as asked, even where it is MSE: the warning of the loss says so
        return dial.with_subsets(form, place.subset_size(n_rows, p), n_rows, d)

    def _note_validation(self, history: History, target: NDArray[Any] | None) -> None:
        """Set the scores on validation rows with these targets: accuracy for classes, else R² over
        all outputs.
        """
        self.validation_scores_: list[float] | None = None
        self.best_validation_score_: float | None = None
        if target is None:
            return
        if target.ndim == 1:
            scores = history["accuracy"]
        else:
            variance = float(target.var(axis=0).mean())
            scores = 1 - history["mse"] / variance if variance > 0 else np.zeros(len(history))
        self.validation_scores_ = scores[1:].tolist()
        self.best_validation_score_ = float(scores[history["step"] == history.best_step][0])


def stopping_rule(metric: str, tol: float, patience: int) -> Callback:
    """A callback of `fit`: stops it after `patience` iterations in a row that do not lower `metric`
    by `tol`.
    """
    lowest, waited = math.inf, 0

    def stops(event: Event) -> bool:
        nonlocal lowest, waited
        if event.step:
            value = event.metrics[metric]
            waited = waited + 1 if value > lowest - tol else 0
            lowest = min(lowest, value)
        return waited >= patience

    return stops


@documented
class RLPRegressor(base.RegressionEstimator, MLP):
    """A multilayer perceptron for regression, trained with the Random Linear Projections loss.

    Inputs and targets are standardised inside. Names are those of scikit-learn's `MLPRegressor`
    where the meaning is the same.

    Parameters
    ----------
    loss : {"rlp", "mse", "mae", "huber"} What is made small: RLP, or the squared, absolute or
        Huber's error. Errors count on the standardised target: Huber's turns linear at one standard
        deviation.

    Attributes
    ----------
    validation_scores_, best_validation_score_ : R² on the validation rows of `early_stopping`, of
        every iteration and of the network that is kept; None without it.

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


@documented
class RLPClassifier(base.ClassificationEstimator, MLP):
    """A multilayer perceptron for classification, trained with the Random Linear Projections loss.

    Inputs are standardised inside. Names are those of scikit-learn's `MLPClassifier` where the
    meaning is the same.

    Parameters
    ----------
    loss : {"rlp", "cross_entropy", "mse"} What is made small. With RLP and MSE the error is
        probability minus one-hot class, the probabilities from a soft-max; with cross entropy the
        network gives logits.

    Attributes
    ----------
    validation_scores_, best_validation_score_ : accuracy on the validation rows of
        `early_stopping`, of every iteration and of the network that is kept, the one with the
        lowest squared error of the probabilities (cross entropy with that loss); accuracy itself
        stands still on few rows while there is more to learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> RLPClassifier(random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    _losses = ("rlp", "cross_entropy", "mse")

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one more iteration, on these rows; the first call needs all `classes` and fixes
        the scaling.
        """
        first = not hasattr(self, "network_")
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit, got None")
        given = None if classes is None else unique_labels(classes)
        if given is not None and not first and not np.array_equal(given, self.classes_):
            got = f"{list(given)} after {list(self.classes_)}"
            raise ValueError(f"classes must be the same in every call to partial_fit, got {got}")
        self._given_classes = given
        try:
            return self._fit(X, y, sample_weight, goes_on=not first, partial=True)
        finally:
            self._given_classes = None
