"""`RLPRegressorCV`: the subset size as a dial, chosen by cross-validation with all folds and settings in one fleet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import KFold, check_cv
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from rlploss import RLP, Adam, Event, Problem, Steps, fit, fit_fleet
from rlploss._checks import count, number, one_of
from rlploss._extras import need
from rlploss._scaling import Array
from rlploss.estimators import dial
from rlploss.estimators.base import RegressionEstimator
from rlploss.estimators.dial import Choice, Index, Split, choose
from rlploss.estimators.parameters import documented
from rlploss.training.objectives import Objective

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EVALUATIONS = 40  # stopping steps to choose from
SNAPSHOT_BYTES = 2**28  # of weights kept for them
FLEET_SUBSETS = 200  # per network at most: they are laid out for the whole fleet


@dataclass(frozen=True)
class Setting:
    """What is chosen beside the stopping step: a place on the dial and a weight decay."""

    place: dial.Dial
    alpha: float


@documented("""
subset_sizes : "auto" or sequence of int or float
    Places on the dial, as numbers of rows or as fractions of the training rows of a fold; both ends are added. "auto"
    is the two ends, the middle of the dial on a logarithmic scale, and 0.85 of the rows.
alphas : sequence of float
    Weight decays to choose from: alpha/2·‖weights‖² is added to the mean loss.
cv : int, splitter or iterable of splits
    The number of folds, or who makes them, or the folds themselves as pairs of training and validation rows.
ensemble : bool
    Whether to predict with the mean of the fold models of the `n_best` settings, which are trained already. False
    trains one network on all rows with the best setting.
n_best : int
    The number of settings in the ensemble.
max_iter : int
    The longest training to choose from, in iterations.
random_state : int, RandomState or None
    Decides folds, initial weights, subsets and batches. None is different each time.
""")
@dataclass(eq=False, repr=False, kw_only=True)
class RLPRegressorCV(RegressionEstimator):
    """A multilayer perceptron whose subset size, weight decay and stopping step are chosen by cross-validation.

    The subset size M is a dial: M up to the number of columns is MSE itself, M = all rows is linear regression. Both
    ends are always among the candidates. All folds and settings train together as one fleet.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    cv_results_ : dict of arrays, one entry per setting: `param_subset_size` (rows in a fold), `param_alpha`, `params`
        (the two as a dict), `n_steps` (the best number of steps), `split{i}_test_score`, `mean_test_score`,
        `std_test_score` (negative mean squared error in units of y), `rank_test_score`.
    best_params_ : dict with `subset_size` for all rows (None: MSE), `alpha` and `n_steps`.
    best_score_, best_index_ : the `mean_test_score` of the best setting, and its place in `cv_results_`.
    n_iter_ : iterations of the best setting.
    n_splits_ : the number of folds.
    network_ : the network, or the mean of networks, on standardised columns; `to_torch()` is the whole model.
    scaling_ : what is subtracted from columns and targets, and what they are divided by.
    n_outputs_ : the number of targets.
    n_features_in_, feature_names_in_ : the number of columns, and their names if X had some.
    """

    subset_sizes: str | Sequence[int | float] = "auto"
    alphas: Sequence[float] = (1e-4, 1e-2, 1e-1)
    cv: Any = 5
    ensemble: bool = True
    n_best: int = 8
    learning_rate_init: float = 3e-3
    max_iter: int = 60

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Cross-validate on rows X (n, d) and targets y (n,) or (n, C), weighted if asked, and keep the best."""
        places, alphas = self._candidates()
        n_best, _ = count("n_best", self.n_best), count("max_iter", self.max_iter)
        X, y, weight = self._read(X, y, sample_weight, first=True)
        seed = self._seed()
        splits = self._splits(X, y, weight, seed)
        X, target, weight = self._weighted(X, y, weight, first=True)
        self.scaling_, self._fitted_head = self._scaling(X, target, weight), self._head()
        X, target = self.scaling_.inputs(X), self.scaling_.targets(target)

        n_fold = min(len(train) for train, _ in splits)
        distinct = {self._subset_size(place, n_fold): place for place in reversed(places)}
        settings = [Setting(place, alpha) for place in reversed(distinct.values()) for alpha in alphas]
        problems = [
            Problem(
                X[train],
                target[train],
                seed=(seed + fold) % 2**31,
                sample_weight=None if weight is None else weight[train],
                objective=self._objective(setting, len(train), FLEET_SUBSETS),
                optimizer=Adam(self.learning_rate_init, setting.alpha),
            )
            for setting in settings
            for fold, (train, _) in enumerate(splits)
        ]
        steps = self.max_iter * dial.steps_per_iteration(n_fold, self._batch(n_fold))
        every = self._interval(steps, len(problems))
        evaluated = np.minimum(np.arange(every, steps + every, every), steps)
        folds = [test for _, test in splits]
        recorder = SnapshotRecorder(
            X, target, weight, folds=folds, n_settings=len(settings), n_evaluations=len(evaluated)
        )
        fit_fleet(
            self._build,
            problems,
            budget=Steps(steps),
            evaluate_every=Steps(every),
            callbacks=[recorder],
            on_divergence="record",
            progress=bool(self.verbose),
            device=self.device,
        )
        choice = choose(recorder.errors, [len(f) if weight is None else weight[f].sum() for f in folds])
        if not np.isfinite(choice.errors).any():
            raise ValueError(f"every network diverged with learning_rate_init={self.learning_rate_init}; lower it")
        self._note(settings, choice, evaluated[choice.evaluations], n_fold, len(X))
        if self.ensemble:
            members = [
                recorder.network(setting, fold, choice.evaluations[setting], self._build(0))
                for setting in choice.order[:n_best]
                for fold in range(len(folds))
                if math.isfinite(choice.fold_errors[setting, fold])
            ]
            network: nn.Module = MeanNetwork(members)
        else:
            network = self._build(seed)
            fit(
                network,
                X,
                target,
                self._objective(settings[choice.setting], len(X), dial.MOST_SUBSETS),
                budget=Steps(self.best_params_["n_steps"]),
                optimizer=Adam(self.learning_rate_init, self.best_params_["alpha"]),
                seed=seed,
                sample_weight=weight,
                device=self.device,
            )
        self.network_ = network.to("cpu").double()
        return self

    def plot_dial(self, ax: Axes | None = None) -> Axes:
        """Draw the cross-validated error against the subset size, one line per weight decay; needs matplotlib."""
        check_is_fitted(self)
        if ax is None:
            need("lab", "plot_dial", "matplotlib")
            from matplotlib.figure import Figure

            ax = Figure(layout="constrained").add_subplot()
        results = self.cv_results_
        sizes, alphas = results["param_subset_size"], results["param_alpha"]
        for alpha in dict.fromkeys(alphas.tolist()):
            mine = np.flatnonzero(alphas == alpha)
            mine = mine[np.argsort(sizes[mine])]
            error = results["std_test_score"][mine] / math.sqrt(self.n_splits_)
            ax.errorbar(sizes[mine], -results["mean_test_score"][mine], error, marker="o", label=f"α = {alpha:g}")
        ax.set_xscale("log")
        ax.set_xlabel("subset size M (left end: MSE, right end: linear regression)")
        ax.set_ylabel("cross-validated mean squared error")
        ax.legend(title="weight decay")
        return ax

    def _candidates(self) -> tuple[list[dial.Dial], list[float]]:
        """Places on the dial, both ends among them, and weight decays."""
        alphas = [number("alphas", alpha, minimum=0.0) for alpha in listed("alphas", self.alphas)]
        if not alphas:
            raise ValueError("alphas must name at least one weight decay, got none; 0 is none at all")
        if isinstance(self.subset_sizes, str):
            one_of("subset_sizes", self.subset_sizes, ("auto",))
            return list(dial.DIALS), alphas
        own = [dial.Dial.of("subset_sizes", size) for size in listed("subset_sizes", self.subset_sizes)]
        return [dial.MSE_END, *own, dial.LINEAR_END], alphas

    def _form(self) -> RLP:
        return RLP(probe=self.probe, intercept=self.intercept, ridge=self.ridge)

    def _subset_size(self, place: dial.Dial, n_rows: int) -> int:
        """M for so many rows, at least p, which stands for MSE."""
        p = dial.n_columns(self.n_features_in_, self._form())
        return max(p, place.subset_size(n_rows, p))

    def _objective(self, setting: Setting, n_rows: int, most_subsets: int) -> Objective:
        size, d, batch = self._subset_size(setting.place, n_rows), self.n_features_in_, self._batch(n_rows)
        return dial.objective_at(size, n_rows, d, self._form(), batch_size=batch, most_subsets=most_subsets)

    def _splits(self, X: Array, y: NDArray[Any], weight: Array | None, seed: int) -> list[Split]:
        """Folds as places among the rows of weight above 0; the caller's own splits count all rows."""
        keep = np.ones(len(X), dtype=bool) if weight is None else weight > 0
        if isinstance(self.cv, int | np.integer):
            folds = min(count("cv", self.cv, minimum=2), int(keep.sum()))
            splits = list(KFold(folds, shuffle=True, random_state=seed).split(X[keep]))
        else:
            place = np.cumsum(keep) - 1
            splits = [
                (place[train][keep[train]], place[test][keep[test]]) for train, test in check_cv(self.cv).split(X, y)
            ]
        for train, test in splits:
            if len(train) < 2 or len(test) < 1:
                raise ValueError(
                    "cv must leave at least two training rows and one test row of weight above 0 in every split, got "
                    f"{len(train)} and {len(test)}; use fewer splits"
                )
        self.n_splits_ = len(splits)
        return splits

    def _interval(self, steps: int, n_networks: int) -> int:
        """Steps between evaluations: enough of them to choose from, few enough to keep all their weights."""
        n_weights = sum(p.numel() for p in self._build(0).parameters())
        affordable = SNAPSHOT_BYTES // (4 * n_weights * n_networks)
        return -(-steps // max(4, min(EVALUATIONS, affordable)))

    def _note(self, settings: list[Setting], choice: Choice, n_steps: Index, n_fold: int, n_rows: int) -> None:
        """Set what a fitted estimator tells: every setting at its best step, the best of them for all rows."""
        unit = float(np.mean(self.scaling_.y_scale**2))
        folds = -unit * choice.fold_errors
        sizes = [self._subset_size(setting.place, n_fold) for setting in settings]
        alphas = [setting.alpha for setting in settings]
        with np.errstate(invalid="ignore"):  # infinite errors
            spread = folds.std(axis=1)
        self.cv_results_: dict[str, Any] = {
            "param_subset_size": np.array(sizes),
            "param_alpha": np.array(alphas),
            "params": [{"subset_size": m, "alpha": alpha} for m, alpha in zip(sizes, alphas, strict=True)],
            "n_steps": n_steps,
            **{f"split{i}_test_score": scores for i, scores in enumerate(folds.T)},
            "mean_test_score": -unit * choice.errors,
            "std_test_score": spread,
            "rank_test_score": np.argsort(choice.order) + 1,
        }
        self.best_index_, self.best_score_ = choice.setting, -unit * float(choice.errors[choice.setting])
        best, steps = settings[choice.setting], int(n_steps[choice.setting])
        size: int | None = self._subset_size(best.place, n_rows)
        if size == self._subset_size(dial.MSE_END, n_rows):
            size = None
        self.best_params_: dict[str, Any] = {"subset_size": size, "alpha": best.alpha, "n_steps": steps}
        self.n_iter_ = max(1, round(steps / dial.steps_per_iteration(n_fold, self._batch(n_fold))))


def listed(name: str, values: Any) -> list[Any]:
    """Several values, as a list."""
    if not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of numbers, got {values!r}; write [{values!r}]")
    return list(values)


class SnapshotRecorder:
    """Keeps the weights of every network of a fleet at every evaluation, and its error on its validation rows.

    A callback of `fit_fleet` for networks that go through the folds one after another, setting by setting. Errors are
    squared, of rows X [n, d] and Y [n, C] with weights [n]; `folds` are the validation rows.
    """

    def __init__(
        self, X: Array, Y: Array, weight: Array | None, *, folds: Sequence[Index], n_settings: int, n_evaluations: int
    ) -> None:
        self._folds = [(torch.tensor(X[r]).float(), Y[r], None if weight is None else weight[r]) for r in folds]
        self._kept: list[list[Tensor]] = [[] for _ in range(n_settings * len(folds))]  # flat weights
        self.errors = np.full((n_settings, len(folds), n_evaluations), np.nan)  # NaN from where a network diverged

    def __call__(self, event: Event) -> None:
        """Take in one evaluation of one network."""
        if event.step == 0:
            return
        setting, fold = divmod(event.replica, len(self._folds))
        X, Y, weight = self._folds[fold]
        network, kept = event.model(), self._kept[event.replica]
        first = next(network.parameters())
        with torch.no_grad():
            predicted = network(X.to(first)).double().cpu().numpy()
            flat = nn.utils.parameters_to_vector(network.parameters()).cpu()
        with np.errstate(over="ignore"):
            squared = ((predicted - Y) ** 2).mean(axis=1)
        self.errors[setting, fold, len(kept)] = np.average(squared, weights=weight)
        kept.append(flat)

    def network(self, setting: int, fold: int, evaluation: int, blank: nn.Module) -> nn.Module:
        """A network as it was at one evaluation, put into a blank one."""
        flat = self._kept[setting * len(self._folds) + fold][evaluation]
        nn.utils.vector_to_parameters(flat, blank.parameters())
        return blank


class MeanNetwork(nn.Module):
    """The mean of several networks."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """Predict."""
        return torch.stack([network(x) for network in self.networks]).mean(0)
