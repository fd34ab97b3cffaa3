"""`RLPRegressorCV` and `RLPClassifierCV`: settings, stopping steps and their mixture, chosen by
cross-validation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils.validation import check_is_fitted
from torch import nn

from rlploss import MSE, RLP, Adam, CrossEntropy, Problem
from rlploss._checks import count, number, one_of, positive
from rlploss._extras import need
from rlploss._torch import one_torch_thread
from rlploss.estimators import base, search
from rlploss.estimators.search import Choice, Dial, Index, Replica, Search, Split
from rlploss.models import ACTIVATIONS, WeightedMean
from rlploss.training.job import make_job

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

V = TypeVar("V")
EVALUATIONS = (
    10  # stopping steps to choose from in the first budget; every doubling adds half as many
)
KEPT_BYTES = 2**28  # of weights, and of predictions, at all of them
FLEET_SUBSETS = 100  # per network at most: they are laid out for the whole fleet
LAST_PART = 0.8  # of the budget: a best step beyond it asks for more
DRAWS = 50  # of candidates into the ensemble


class Candidate(NamedTuple):
    """A place on the dial, and what is chosen beside the stopping step."""

    place: Dial
    subset_size: int  # there, in a fold
    alpha: float
    learning_rate: float
    activation: str
    linear: bool


@dataclass(eq=False, repr=False, kw_only=True)
class CrossValidated(base.NetworkEstimator):
    """The settings and the search; subclasses read the target and say what the pointwise end of the
    dial is.

    Parameters
    ----------
    subset_sizes : "auto" or sequence of int or float Places on the dial, as numbers of rows or as
        fractions of the training rows of a fold. Its pointwise end, which has no subsets, is always
        among them, and alone with (). "auto" adds M = √(p·N), the middle of the dial.
    alphas : sequence of float
        Weight decays to choose from: alpha/2·‖weights‖² is added to the mean loss.
    learning_rates : sequence of float
        Learning rates of Adam to choose from.
    activations : sequence of {"relu", "tanh", "logistic", "identity"}
        What follows every hidden layer, to choose from.
    cv : int, splitter or iterable of splits The number of folds, or who makes them (`GroupKFold`,
        `TimeSeriesSplit`), or the folds themselves as pairs of training and validation rows.
    ensemble : bool Whether to predict with the best mixture of the fold models, which are trained
        already. False trains one network on all rows with the best setting.
    max_iter : int
        The first budget, in iterations: the longest training to choose from.
    max_doublings : int How often the budget may double. It does while the best step lies in its
        last fifth, for all settings alike.

    Attributes
    ----------
    cv_results_ : dict of arrays, one entry per setting at its best step: `param_subset_size` (rows
        in a fold; the number of the planes' columns stands for the pointwise end) and the other
        `param_...`, `params` (all of them as a dict), `n_steps`, `share` (in the ensemble, all
        steps together), `split{i}_test_score`, `mean_test_score`, `std_test_score` (negative mean
        squared error in units of y), `rank_test_score`. See `to_frame()` and `plot()`.
    best_params_ : the best setting and its `n_steps`; `subset_size` is for all rows (None: the
        pointwise end).
    best_score_, best_index_ : the `mean_test_score` of the best setting, and its place in
        `cv_results_`.
    ensemble_score_ : the same score of the mixture: at least `best_score_`.
    n_iter_ : iterations of the best setting.
    n_splits_ : the number of folds.
    """

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
        count("max_iter", self.max_iter)
        count("max_doublings", self.max_doublings, minimum=0)
        data, kept = self._read(X, y, sample_weight, first=True)
        seed = self._seed()
        n_rows = len(data.X)
        folds, tests = zip(*self._splits(X, y, groups, kept, data.target, seed), strict=True)
        self.scaling_ = self._scaling(data)
        self._note_range(data.X)
        data = data.scaled(self.scaling_)

        n_fold = min(map(len, folds))
        settings = self._settings(n_fold)
        _, target, weight = data.part(np.concatenate(tests))
        counts = np.ones(len(target)) if weight is None else weight
        replicas = self._replicas(settings, data, folds, seed)
        candidates = Search(
            replicas, [data.X[rows] for rows in tests], self._numbers(target), counts
        )
        choice = self._grow(candidates, n_fold)
        if not np.isfinite(choice.curves[:, 1:]).any():
            raise ValueError(
                f"every network diverged with learning_rates={self.learning_rates}; lower them"
            )
        self._note(settings, candidates, choice, n_fold, n_rows)
        if self.ensemble:
            # networks of a fold count by the rows they have seen: alike in K folds, more and more
            # along time
            seen = np.array([*map(len, folds)], dtype=np.float64)
            self.network_: nn.Module = candidates.network(self._shares, seen / seen.sum())
        else:
            (one,) = self._replicas([settings[choice.setting]], data, [np.arange(n_rows)], seed)
            if steps := self.best_params_["n_steps"]:
                search.train_further([one], steps, steps, progress=bool(self.verbose))
            self.network_ = one.module(-1)
        return self

    def to_frame(self) -> pd.DataFrame:
        """`cv_results_` as a pandas frame, one row per setting, the best first."""
        check_is_fitted(self)
        need("lab", "to_frame", "pandas")
        import pandas as pd

        return pd.DataFrame(self.cv_results_).sort_values("rank_test_score", ignore_index=True)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the cross-validated error against the steps: a line per subset size, its other
        settings at their best.

        Dots are the members of the ensemble, as large as their shares. Needs matplotlib.
        """
        check_is_fitted(self)
        if ax is None:
            need("lab", "plot", "matplotlib")
            from matplotlib.figure import Figure

            ax = Figure(layout="constrained").add_subplot()
        sizes, steps = self.cv_results_["param_subset_size"], self._steps
        for size in dict.fromkeys(sizes.tolist()):
            curves, shares = self._curves[sizes == size], self._shares[sizes == size]
            (line,) = ax.plot(steps, curves.min(axis=0), label=f"{size}")
            s, e = np.nonzero(shares)
            ax.scatter(steps[e], curves[s, e], 400 * shares[s, e], color=line.get_color())
        ax.set(
            xscale="symlog",
            yscale="log",
            xlabel="optimiser steps",
            ylabel="cross-validated squared error",
        )
        ax.legend(title=f"subset size M ({self._p}: {self._end.__name__})")
        return ax

    def _settings(self, n_fold: int) -> list[Candidate]:
        """All that is tried with so many rows in a fold: every place on the dial, its pointwise end
        first.
        """
        alphas = listed("alphas", self.alphas, partial(number, minimum=0.0))
        rates = listed("learning_rates", self.learning_rates, positive)
        kinds = listed("activations", self.activations, partial(one_of, options=ACTIVATIONS))
        places = [search.MSE_END, search.MIDDLE]
        if isinstance(self.subset_sizes, str):
            one_of("subset_sizes", self.subset_sizes, ("auto",))
        else:
            places[1:] = listed("subset_sizes", self.subset_sizes, Dial.of, fewest=0)
        skip = getattr(self, "linear_skip", False)  # classes have no plane to add to
        planes = [skip] if isinstance(skip, bool) else [False, True]
        if len(planes) > 1:
            one_of("linear_skip", skip, ("auto",))
        place_of = {
            self._subset_size(place, n_fold): place for place in reversed(places)
        }  # of equal ones the first
        others = list(itertools.product(alphas, rates, kinds, planes))
        return [
            Candidate(place_of[size], size, *chosen)
            for size in reversed(place_of)
            for chosen in others
        ]

    @property
    def _p(self) -> int:
        """The columns of the planes, and the subset size that stands for the pointwise end."""
        return self._form().planes.n_columns(self.n_features_in_)

    def _subset_size(self, place: Dial, n_rows: int) -> int:
        p = self._p
        return max(p, place.subset_size(n_rows, p))

    def _splits(
        self, X: Any, y: Any, groups: Any, kept: NDArray[np.bool_], target: NDArray[Any], seed: int
    ) -> list[Split]:
        """Folds as places among the rows that are kept, which `target` has; the caller's own count
        all rows.
        """
        if isinstance(self.cv, int | np.integer):
            if groups is not None:
                wrong = f"groups need a splitter that uses them, got cv={self.cv}"
                raise ValueError(f"{wrong}; pass cv=GroupKFold({self.cv})")
            n_folds = min(count("cv", self.cv, minimum=2), len(target))
            smallest = 0 if target.ndim > 1 else int(np.unique(target, return_counts=True)[1].min())
            splitter: Any = KFold(n_folds, shuffle=True, random_state=seed)
            if smallest > 1:  # every class in every fold
                splitter = StratifiedKFold(min(n_folds, smallest), shuffle=True, random_state=seed)
            splits = list(splitter.split(target, target))
        else:
            place, given = np.cumsum(kept) - 1, check_cv(self.cv).split(X, y, groups)
            splits = [(place[train][kept[train]], place[test][kept[test]]) for train, test in given]
        if not splits:
            raise ValueError(
                "cv must give at least one split, got none; pass a list, or a splitter, and no"
                " iterator"
            )
        for train, test in splits:
            if len(train) < 2 or len(test) < 1:
                least = (
                    "at least two training rows and one test row of weight above 0 in every split"
                )
                raise ValueError(
                    f"cv must leave {least}, got {len(train)} and {len(test)}; use fewer splits"
                )
        self.n_splits_ = len(splits)
        return splits

    def _replicas(
        self, settings: list[Candidate], data: base.Data, folds: Sequence[Index], seed: int
    ) -> list[Replica]:
        """Untrained networks for the rows of every fold, setting by setting."""
        parts = [data.part(rows) for rows in folds]
        linear = any(chosen.linear for chosen in settings)
        planes = [search.fit_plane(*part) if linear else None for part in parts]
        made = []
        for chosen, (fold, (x, y, weight)) in itertools.product(settings, enumerate(parts)):
            own = (seed + fold) % 2**31
            plane = planes[fold] if chosen.linear else None
            size = self._subset_size(chosen.place, len(x))
            batch = self._batch(len(x))
            objective = search.objective_at(
                self._form(),
                size,
                *x.shape,
                end=self._end,
                batch_size=batch,
                most_subsets=FLEET_SUBSETS,
            )
            softmax = y.ndim == 1 and isinstance(objective, RLP)
            network = self._build(own, chosen.activation, softmax=softmax)
            head = [layer for layer in network if isinstance(layer, nn.Linear)][-1]
            for parameter in head.parameters():  # before the first step it is the plane, or nothing
                nn.init.zeros_(parameter)
            rest = y if plane is None else y - search.on_plane(plane, x)
            problem = Problem(
                x,
                rest,
                seed=own,
                sample_weight=weight,
                objective=objective,
                optimizer=Adam(chosen.learning_rate, chosen.alpha),
            )
            with one_torch_thread():
                job = make_job(network, problem, device=self.device)
            made.append(Replica(job, plane))
            made[-1].keep()
        return made

    def _grow(self, candidates: Search, n_fold: int) -> Choice:
        """Train, and twice as long again while the best step lies in the last fifth of the
        budget.
        """
        budget = self.max_iter * search.steps_per_iteration(n_fold, self._batch(n_fold))
        numbers = (
            sum(one.kept[0].size / 2 for one in candidates.replicas)
            + candidates.residuals[:, 0].size
        )
        affordable = int(KEPT_BYTES / (8 * numbers * (1 + self.max_doublings / 2)))
        evaluations = max(4, min(EVALUATIONS, affordable))
        candidates.grow(budget, -(-budget // evaluations), progress=bool(self.verbose))
        for _ in range(self.max_doublings):
            choice = candidates.choice()
            if candidates.steps[choice.evaluations[choice.setting]] <= LAST_PART * budget:
                break
            candidates.grow(budget, -(-budget // (evaluations // 2)), progress=bool(self.verbose))
            budget *= 2
        return candidates.choice()

    def _note(
        self,
        settings: list[Candidate],
        candidates: Search,
        choice: Choice,
        n_fold: int,
        n_rows: int,
    ) -> None:
        """Set what a fitted estimator tells: every setting at its best step, and the best for all
        rows.
        """
        shares, error = candidates.mixture(DRAWS if self.ensemble else 1)
        unit = float(np.mean(self.scaling_.y_scale**2))
        folds = -unit * choice.fold_errors
        n_steps = candidates.steps[choice.evaluations]
        best = choice.setting
        with np.errstate(invalid="ignore"):  # infinite errors
            spread = folds.std(axis=1)
        params = [
            {name: value for name, value in chosen._asdict().items() if name != "place"}
            for chosen in settings
        ]
        self.cv_results_: dict[str, Any] = {
            **{
                f"param_{name}": np.array([chosen[name] for chosen in params]) for name in params[0]
            },
            "params": params,
            "n_steps": n_steps,
            "share": shares.sum(axis=1),
            **{f"split{i}_test_score": scores for i, scores in enumerate(folds.T)},
            "mean_test_score": -unit * choice.errors,
            "std_test_score": spread,
            "rank_test_score": np.argsort(choice.order) + 1,
        }
        self.best_index_ = best
        self.best_score_ = -unit * float(choice.errors[best])
        self.ensemble_score_ = max(
            self.best_score_, -unit * error
        )  # one candidate alone may differ by rounding
        size = self._subset_size(settings[best].place, n_rows)
        whole = {"subset_size": None if size == self._p else size, "n_steps": int(n_steps[best])}
        self.best_params_: dict[str, Any] = params[best] | whole
        per_iteration = search.steps_per_iteration(n_fold, self._batch(n_fold))
        self.n_iter_ = max(1, round(int(n_steps[best]) / per_iteration))
        self._steps = candidates.steps
        self._curves = unit * choice.curves
        self._shares = shares


def listed(name: str, values: Any, read: Callable[[str, Any], V], *, fewest: int = 1) -> list[V]:
    """Several values of a setting, each of them read."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list, got {values!r}; write [{values!r}]")
    found = [read(name, value) for value in values]
    if len(found) < fewest:
        raise ValueError(f"{name} must name at least one value, got none")
    return found


@base.documented
@dataclass(eq=False, repr=False, kw_only=True)
class RLPRegressorCV(base.RegressionEstimator, CrossValidated):
    """Multilayer perceptrons whose subset size, weight decay, activation, stopping step and more
    are cross-validated.

    The subset size M is a dial: M up to the number of columns is MSE itself, M = all rows is linear
    regression. The MSE end is always among the candidates; `subset_sizes=()` leaves it alone. All
    folds and settings train as one fleet, longer while that helps. The prediction is the mixture of
    candidates whose out-of-fold error is lowest; it is never above that of the best single one.

    Parameters
    ----------
    linear_skip : "auto" or bool
        Whether a network adds to the plane of a ridge regression. "auto" tries both.

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
class RLPClassifierCV(base.ClassificationEstimator, CrossValidated):
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
    _end = CrossEntropy
