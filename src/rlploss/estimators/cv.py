"""`RLPRegressorCV` and `RLPClassifierCV`: settings, stopping steps and their mixture, chosen by cross-validation."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils.validation import check_is_fitted
from torch import nn

from rlploss import MSE, RLP, Adam, CrossEntropy, Problem, Steps
from rlploss._checks import count, number, one_of
from rlploss._extras import need
from rlploss._scaling import Array
from rlploss._values import positive
from rlploss.distributed import one_torch_thread
from rlploss.estimators import dial
from rlploss.estimators.base import ClassificationEstimator, FarRowsWarning, NetworkEstimator, RegressionEstimator
from rlploss.estimators.dial import Choice, Index, Split
from rlploss.estimators.parameters import CV_ATTRIBUTES, CV_PARAMETERS, documented
from rlploss.estimators.replicas import Replica, Search, fit_plane, on_plane, train_further
from rlploss.models import ACTIVATIONS, WeightedMean
from rlploss.training.job import make_job
from rlploss.training.objectives import Objective

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

EVALUATIONS = 10  # stopping steps to choose from in the first budget; every doubling adds half as many
KEPT_BYTES = 2**28  # of weights, and of predictions, at all of them
FLEET_SUBSETS = 100  # per network at most: they are laid out for the whole fleet
LAST_PART = 0.8  # of the budget: a best step beyond it asks for more
DRAWS = 50  # of candidates into the ensemble
PLACES = (dial.MSE_END, dial.Dial(place=0.5))  # on the dial, unless the user says otherwise


@dataclass(frozen=True)
class Setting:
    """What is chosen beside the stopping step."""

    place: dial.Dial
    alpha: float
    learning_rate: float
    activation: str
    linear: bool


@dataclass(eq=False, repr=False, kw_only=True)
class CrossValidated(NetworkEstimator):
    """The settings and the search; subclasses read the target and say what the pointwise end of the dial is."""

    hidden_layer_sizes: int | Iterable[int] = (50,)
    subset_sizes: str | Sequence[int | float] = "auto"
    alphas: Sequence[float] = (1e-4, 1e-2, 1e-1)
    learning_rates: Sequence[float] = (1e-2,)
    activations: Sequence[str] = ("relu", "tanh")
    cv: Any = 5
    ensemble: bool = True
    max_iter: int = 60
    max_doublings: int = 3

    _end: ClassVar[type[MSE] | type[CrossEntropy]]  # what the pointwise end of the dial makes small

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Cross-validate on rows X (n, d) and targets y, weighted if asked, and keep the best.

        `groups` (n,) go to the splitter that is given as `cv`.
        """
        places, *others = self._candidates()
        count("max_iter", self.max_iter)
        count("max_doublings", self.max_doublings, minimum=0)
        X, y, weight = self._read(X, y, sample_weight, first=True)
        seed = self._seed()
        given = X, y, weight
        X, target, weight = self._weighted(*given, first=True)
        splits = self._splits(*given, target, groups, seed)
        self.scaling_ = self._scaling(X, target, weight)
        self._note_range(X)
        X, target = self.scaling_.inputs(X), target if target.ndim == 1 else self.scaling_.targets(target)

        n_fold = min(len(train) for train, _ in splits)
        distinct = {self._subset_size(place, n_fold): place for place in reversed(places)}
        settings = [*itertools.starmap(Setting, itertools.product(reversed(distinct.values()), *others))]
        rows = np.concatenate([test for _, test in splits])
        truth = target[rows] if target.ndim > 1 else np.eye(self._n_outputs())[target[rows]]
        counts = np.ones(len(rows)) if weight is None else weight[rows]
        replicas = self._replicas(settings, X, target, weight, [train for train, _ in splits], seed)
        search = Search(replicas, [X[test] for _, test in splits], truth, counts)
        choice = self._grow(search, n_fold)
        if not np.isfinite(choice.curves[:, 1:]).any():
            raise ValueError(f"every network diverged with learning_rates={self.learning_rates}; lower them")
        shares = self._note(settings, search, choice, n_fold, len(X))
        if self.ensemble:
            # networks of a fold count by the rows they have seen: alike in K folds, more and more along time
            seen = np.array([len(train) for train, _ in splits], dtype=np.float64)
            self.network_: nn.Module = search.network(shares, seen / seen.sum())
        else:
            (one,) = self._replicas([settings[choice.setting]], X, target, weight, [np.arange(len(X))], seed)
            if steps := self.best_params_["n_steps"]:
                train_further([one], steps, steps, progress=bool(self.verbose))
            self.network_ = one.module(-1)
        self._fitted_head = "regression" if target.ndim > 1 else "probabilities"
        return self

    def to_frame(self) -> pd.DataFrame:
        """`cv_results_` as a pandas frame, one row per setting, the best first."""
        check_is_fitted(self)
        need("lab", "to_frame", "pandas")
        import pandas as pd

        return pd.DataFrame(self.cv_results_).sort_values("rank_test_score", ignore_index=True)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the cross-validated error against the steps: a line per subset size, its other settings at their best.

        Dots are the members of the ensemble, as large as their shares. Needs matplotlib.
        """
        check_is_fitted(self)
        if ax is None:
            need("lab", "plot", "matplotlib")
            from matplotlib.figure import Figure

            ax = Figure(layout="constrained").add_subplot()
        sizes, steps = self.cv_results_["param_subset_size"], self._steps
        for size in dict.fromkeys(sizes.tolist()):
            best = self._curves[sizes == size].min(axis=0)
            (line,) = ax.plot(steps, best, label=f"{size}")
            s, e = np.nonzero(np.where((sizes == size)[:, None], self._shares, 0.0))
            ax.scatter(steps[e], self._curves[s, e], 400 * self._shares[s, e], color=line.get_color())
        ax.set(xscale="symlog", yscale="log", xlabel="optimiser steps", ylabel="cross-validated squared error")
        ax.legend(title=f"subset size M ({self._least_columns()}: {self._end.__name__})")
        return ax

    def _candidates(self) -> tuple[list[dial.Dial], list[float], list[float], list[str], list[bool]]:
        """Places on the dial, its pointwise end first, weight decays, learning rates, activations, planes."""
        alphas = [number("alphas", alpha, minimum=0.0) for alpha in listed("alphas", self.alphas)]
        rates = [positive("learning_rates", rate) for rate in listed("learning_rates", self.learning_rates)]
        kinds = [one_of("activations", kind, ACTIVATIONS) for kind in listed("activations", self.activations)]
        if isinstance(self.subset_sizes, str):
            one_of("subset_sizes", self.subset_sizes, ("auto",))
            places = list(PLACES)
        else:
            own = listed("subset_sizes", self.subset_sizes, fewest=0)
            places = [dial.MSE_END, *(dial.Dial.of("subset_sizes", size) for size in own)]
        skip = getattr(self, "linear_skip", False)  # classes have no plane to add to
        if not isinstance(skip, bool):
            one_of("linear_skip", skip, ("auto",))
        return places, alphas, rates, kinds, [skip] if isinstance(skip, bool) else [False, True]

    def _least_columns(self) -> int:
        """p, the subset size that stands for the pointwise end."""
        return dial.n_columns(self.n_features_in_, self._form())

    def _subset_size(self, place: dial.Dial, n_rows: int) -> int:
        p = self._least_columns()
        return max(p, place.subset_size(n_rows, p))

    def _replicas(
        self,
        settings: Sequence[Setting],
        X: Array,
        target: NDArray[Any],
        weight: Array | None,
        folds: Sequence[Index],
        seed: int,
    ) -> list[Replica]:
        """Untrained networks for the rows of every fold, setting by setting."""
        parts = [(X[rows], target[rows], None if weight is None else weight[rows]) for rows in folds]
        planes = [fit_plane(*part) if any(setting.linear for setting in settings) else None for part in parts]
        p, d, made = self._least_columns(), self.n_features_in_, []
        for setting, (fold, (x, y, w)) in itertools.product(settings, enumerate(parts)):
            own, plane = (seed + fold) % 2**31, planes[fold] if setting.linear else None
            size = self._subset_size(setting.place, len(x))
            objective: Objective = self._end(self._batch(len(x)))
            if size > p:
                objective = dial.with_subsets(self._form(), size, len(x), d, most_subsets=FLEET_SUBSETS)
            rest = y if plane is None else y - on_plane(plane, x)
            adam = Adam(setting.learning_rate, setting.alpha)
            problem = Problem(x, rest, seed=own, sample_weight=w)
            softmax = target.ndim == 1 and isinstance(objective, RLP)
            network = self._build(own, setting.activation, softmax=softmax)
            head = [layer for layer in network if isinstance(layer, nn.Linear)][-1]
            for parameter in (head.weight, head.bias):  # before the first step it is the plane, or nothing
                nn.init.zeros_(parameter)
            with one_torch_thread():
                job = make_job(network, problem, objective, adam, Steps(1), device=self.device)
            made.append(Replica(job, plane))
            made[-1].keep()
        return made

    def _grow(self, search: Search, n_fold: int) -> Choice:
        """Train, and twice as long again while the best step lies in the last fifth of the budget."""
        budget = self.max_iter * dial.steps_per_iteration(n_fold, self._batch(n_fold))
        numbers = sum(one.kept[0].size / 2 for one in search.replicas) + search.residuals[:, 0].size
        affordable = int(KEPT_BYTES / (8 * numbers * (1 + self.max_doublings / 2)))
        evaluations = max(4, min(EVALUATIONS, affordable))
        search.grow(budget, -(-budget // evaluations), progress=bool(self.verbose))
        for _ in range(self.max_doublings):
            choice = search.choice()
            if search.steps[choice.evaluations[choice.setting]] <= LAST_PART * budget:
                break
            search.grow(budget, -(-budget // (evaluations // 2)), progress=bool(self.verbose))
            budget *= 2
        return search.choice()

    def _splits(
        self, X: Array, y: NDArray[Any], weight: Array | None, target: NDArray[Any], groups: Any, seed: int
    ) -> list[Split]:
        """Folds as places among the rows of weight above 0, which `target` has; the caller's own count all rows."""
        keep = np.ones(len(X), dtype=bool) if weight is None else weight > 0
        if isinstance(self.cv, int | np.integer):
            if groups is not None:
                raise ValueError(
                    f"groups need a splitter that uses them, got cv={self.cv}; pass cv=GroupKFold({self.cv})"
                )
            n_folds = min(count("cv", self.cv, minimum=2), len(target))
            smallest = 0 if target.ndim > 1 else int(np.unique(target, return_counts=True)[1].min())
            splitter: Any = KFold(n_folds, shuffle=True, random_state=seed)
            if smallest > 1:  # every class in every fold
                splitter = StratifiedKFold(min(n_folds, smallest), shuffle=True, random_state=seed)
            splits = list(splitter.split(target, target))
        else:
            place, given = np.cumsum(keep) - 1, check_cv(self.cv).split(X, y, groups)
            splits = [(place[train][keep[train]], place[test][keep[test]]) for train, test in given]
        for train, test in splits:
            if len(train) < 2 or len(test) < 1:
                raise ValueError(
                    "cv must leave at least two training rows and one test row of weight above 0 in every split, got "
                    f"{len(train)} and {len(test)}; use fewer splits"
                )
        self.n_splits_ = len(splits)
        return splits

    def _note(self, settings: list[Setting], search: Search, choice: Choice, n_fold: int, n_rows: int) -> Array:
        """Set what a fitted estimator tells: every setting at its best step, the best for all rows; return shares."""
        shares, error = search.mixture(DRAWS if self.ensemble else 1)
        unit = float(np.mean(self.scaling_.y_scale**2))
        folds, n_steps = -unit * choice.fold_errors, search.steps[choice.evaluations]
        params = [{"subset_size": self._subset_size(one.place, n_fold), **vars(one)} for one in settings]
        for one in params:
            del one["place"]
        with np.errstate(invalid="ignore"):  # infinite errors
            spread = folds.std(axis=1)
        self.cv_results_: dict[str, Any] = {
            **{f"param_{name}": np.array([one[name] for one in params]) for name in params[0]},
            "params": params,
            "n_steps": n_steps,
            "share": shares.sum(axis=1),
            **{f"split{i}_test_score": scores for i, scores in enumerate(folds.T)},
            "mean_test_score": -unit * choice.errors,
            "std_test_score": spread,
            "rank_test_score": np.argsort(choice.order) + 1,
        }
        best = choice.setting
        self.best_index_, self.best_score_ = best, -unit * float(choice.errors[best])
        self.ensemble_score_ = max(self.best_score_, -unit * error)  # one candidate alone may differ by rounding
        size: int | None = self._subset_size(settings[best].place, n_rows)
        size = None if size == self._least_columns() else size
        self.best_params_: dict[str, Any] = {**params[best], "subset_size": size, "n_steps": int(n_steps[best])}
        per_iteration = dial.steps_per_iteration(n_fold, self._batch(n_fold))
        self.n_iter_ = max(1, round(int(n_steps[best]) / per_iteration))
        self._steps, self._curves, self._shares = search.steps, unit * choice.curves, shares
        return shares


def listed(name: str, values: Any, *, fewest: int = 1) -> list[Any]:
    """Several values, as a list."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list, got {values!r}; write [{values!r}]")
    found = list(values)
    if len(found) < fewest:
        raise ValueError(f"{name} must name at least one value, got none")
    return found


@documented(CV_PARAMETERS, CV_ATTRIBUTES)
@dataclass(eq=False, repr=False, kw_only=True)
class RLPRegressorCV(RegressionEstimator, CrossValidated):
    """Multilayer perceptrons whose subset size, weight decay, activation, stopping step and more are cross-validated.

    The subset size M is a dial: M up to the number of columns is MSE itself, M = all rows is linear regression. The MSE
    end is always among the candidates; `subset_sizes=()` leaves it alone. All folds and settings train as one fleet,
    longer while that helps. The prediction is the mixture of candidates whose out-of-fold error is lowest; it is never
    above that of the best single one.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}
    n_outputs_ : the number of targets.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = RLPRegressorCV(random_state=0).fit(X[:100], y[:100])
    >>> model.ensemble_score_ >= model.best_score_
    True
    """

    linear_skip: bool | str = "auto"
    _end = MSE

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predictions (n,), or (n, C) if y had two dimensions; with `return_std` also the spread of the ensemble."""
        predicted = self._predict_rows(X)
        if not return_std:
            return predicted
        if not isinstance(self.network_, WeightedMean):
            raise ValueError("return_std needs an ensemble, got ensemble=False; fit with ensemble=True")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FarRowsWarning)  # told above
            Z = torch.tensor(self.scaling_.inputs(self._read_new(X)))
        with torch.no_grad():
            each = self.network_.each(Z)
            variance = torch.einsum("k,kbc->bc", self.network_.weights, (each - self.network_(Z)) ** 2)
        spread = np.sqrt(variance.numpy()) * self.scaling_.y_scale
        return predicted, spread.reshape(predicted.shape)


@documented(CV_PARAMETERS, CV_ATTRIBUTES)
class RLPClassifierCV(ClassificationEstimator, CrossValidated):
    """Multilayer perceptrons for classes, their settings, stopping step and mixture cross-validated.

    The subset size M is a dial: at all rows probabilities need only match the least-squares plane of the classes, up to
    the number of columns it is pointwise, which is cross entropy here; `subset_sizes=()` leaves that end alone. The
    mixture is chosen as by `RLPRegressorCV`, on the squared error of probabilities (the Brier score).

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}
    classes_ : the classes, in the order of the columns of `predict_proba`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> RLPClassifierCV(random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    _end = CrossEntropy

    def _head(self) -> str:
        return "probabilities"
