"""`RLPRegressorCV`: the subset size as a dial, chosen by cross-validation with all folds and settings in one fleet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from rlploss._checks import count, number, one_of
from rlploss.estimators.base import (
    RegressionTarget,
    RowReader,
    auto_n_subsets,
    batch_objective,
    steps_per_iteration,
    subset_objective,
)
from rlploss.estimators.folds import AUTO, LINEAR_END, MSE_END, Dial, Keeper, Rows, Split
from rlploss.estimators.predictor import Array, MeanNetwork, Scaling, build_network
from rlploss.training.budget import Steps
from rlploss.training.fit import fit
from rlploss.training.fleet import fit_fleet
from rlploss.training.objectives import Objective
from rlploss.training.optimizers import Adam

# isort: split
from sklearn.base import RegressorMixin
from sklearn.model_selection import KFold, check_cv
from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EVALUATIONS = 40  # stopping steps to choose from
SNAPSHOT_BYTES = 2**28  # of weights kept for them
PLAN = 200  # subsets per network: they are laid out for the whole fleet


def listed(name: str, values: Any) -> list[Any]:
    """Several values, as a list."""
    if not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of numbers, got {values!r}; write [{values!r}]")
    return list(values)


class RLPRegressorCV(RegressionTarget, RegressorMixin, RowReader):
    """A multilayer perceptron whose subset size, weight decay and stopping step are chosen by cross-validation.

    The subset size M is a dial: M up to the number of columns is MSE itself, M = all rows is linear regression. Both
    ends are always among the candidates. All folds and settings train together as one fleet.

    Parameters
    ----------
    subset_sizes : "auto" or sequence of int or float, default="auto"
        Places on the dial, as rows or as fractions of the rows of a fold; both ends are added. "auto" is the two
        ends, the middle of the dial on a logarithmic scale, and 0.85 of the rows.
    alphas : sequence of float, default=(1e-4, 1e-2, 1e-1)
        Weight decays.
    cv : int, splitter or iterable of splits, default=5
    ensemble : bool, default=True
        Predict with the mean of the fold models of the `n_best` settings, which are trained already; False trains one
        network on all rows with the best setting.
    n_best : int, default=8
    max_iter, learning_rate_init : int, default=60; float, default=3e-3
        The longest training to choose from (see `RLPRegressor` for what an iteration is), and the rate of Adam.

    The other parameters are those of `RLPRegressor`.

    Attributes
    ----------
    cv_results_ : dict of arrays, one entry per setting: `param_subset_size` (rows in a fold), `param_alpha`, `params`
        (the two as a dict), `n_steps` (the best number of steps), `split{i}_test_score`, `mean_test_score`,
        `std_test_score` (negative mean squared error in units of y), `rank_test_score`.
    best_params_ : dict with `subset_size` for all rows (None: MSE), `alpha` and `n_steps`.
    best_score_, best_index_, n_splits_, n_outputs_, n_features_in_, feature_names_in_
    n_iter_ : iterations of the best setting.
    network_ : the network, or the mean of networks, on standardised columns.
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Iterable[int] = (100,),
        activation: str = "relu",
        *,
        subset_sizes: str | Sequence[int | float] = "auto",
        alphas: Sequence[float] = (1e-4, 1e-2, 1e-1),
        cv: Any = 5,
        ensemble: bool = True,
        n_best: int = 8,
        probe: str = "subset",
        intercept: bool = True,
        ridge: float = 0.0,
        standardize: bool = True,
        batch_size: int | str = "auto",
        learning_rate_init: float = 3e-3,
        max_iter: int = 60,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
        device: str | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.subset_sizes = subset_sizes
        self.alphas = alphas
        self.cv = cv
        self.ensemble = ensemble
        self.n_best = n_best
        self.probe = probe
        self.intercept = intercept
        self.ridge = ridge
        self.standardize = standardize
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose
        self.device = device

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RLPRegressorCV:
        """Cross-validate on rows X (n, d) and targets y (n,) or (n, C), weighted if asked, and keep the best."""
        dials = self._dials()
        alphas = [number("alphas", a, minimum=0.0) for a in listed("alphas", self.alphas)]
        if not alphas:
            raise ValueError("alphas must name at least one weight decay, got none; 0 is none at all")
        count("max_iter", self.max_iter)
        n_best = count("n_best", self.n_best)
        X, y, weight = self._validated(X, y, sample_weight, first=True)
        seed = self._seed()
        splits = self._splits(X, y, weight, seed)
        if weight is not None:
            X, y, weight = (part[weight > 0] for part in (X, y, weight))
        target = self._read_target(y, first=True)
        self.scaling_ = Scaling.of(X, target, weight, on=self.standardize)
        rows = Rows(self.scaling_.inputs(X), self.scaling_.targets(target), weight)
        fewest = min(len(train) for train, _ in splits)
        steps = self.max_iter * steps_per_iteration(fewest, self._batch(fewest))
        candidates = [(dial, alpha) for dial in self._distinct(dials, fewest) for alpha in alphas]
        fleet = [
            rows.problem(
                train,
                test,
                (seed + fold) % 2**31,
                self._objective(dial, len(train), PLAN),
                Adam(self.learning_rate_init, alpha),
            )
            for dial, alpha in candidates
            for fold, (train, test) in enumerate(splits)
        ]
        every = self._interval(steps, len(fleet))
        keeper = Keeper(rows, splits)
        fit_fleet(
            self._build,
            fleet,
            budget=Steps(steps),
            evaluate_every=Steps(every),
            metrics="mse",
            callbacks=[keeper],
            on_divergence="record",
            progress=bool(self.verbose),
            device=self.device,
        )
        curves = keeper.curves(len(fleet), -(-steps // every)).reshape(len(candidates), len(splits), -1)
        self._choose(candidates, curves, splits, rows, every)
        order = np.argsort(self.cv_results_["rank_test_score"], kind="stable")
        if self.ensemble:
            best_steps = self.cv_results_["n_steps"] // every - 1
            chosen = [
                (setting * len(splits) + fold, int(best_steps[setting]))
                for setting in order[:n_best]
                for fold in range(len(splits))
                if math.isfinite(curves[setting, fold, best_steps[setting]])
            ]
            networks = [keeper.network(replica, at, self._build(0)) for replica, at in chosen]
            self.network_: nn.Module = MeanNetwork(networks)
        else:
            self.network_ = self._refit(rows, candidates[int(order[0])], seed)
        self.network_ = self.network_.to("cpu").double()
        return self

    def predict(self, X: Any) -> Array:
        """Predictions (n,), or (n, C) if y had two dimensions."""
        return self._predict_rows(X)

    def plot_dial(self, ax: Axes | None = None) -> Axes:
        """Draw the cross-validated error against the subset size, one line per weight decay; needs matplotlib."""
        check_is_fitted(self)
        if ax is None:
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

    # Candidates

    def _dials(self) -> list[Dial]:
        sizes = self.subset_sizes
        if isinstance(sizes, str):
            one_of("subset_sizes", sizes, ("auto",))
            return list(AUTO)
        found = [
            Dial(fraction=number("subset_sizes, fractions of the rows,", float(size), 0.0, 1.0))
            if isinstance(size, float | np.floating)
            else Dial(rows=count("subset_sizes", size))
            for size in listed("subset_sizes", sizes)
        ]
        return [MSE_END, *found, LINEAR_END]

    def _columns(self) -> int:
        return self.n_features_in_ + int(self.intercept)

    def _distinct(self, dials: list[Dial], n_rows: int) -> list[Dial]:
        """One dial per subset size, those up to p being one and the same."""
        p = self._columns()
        return list({max(dial.subset_size(n_rows, p), p): dial for dial in reversed(dials)}.values())[::-1]

    def _objective(self, dial: Dial, n_rows: int, n_subsets: int) -> Objective:
        """What is made small at one place on the dial: MSE, or RLP with subsets."""
        p, d = self._columns(), self.n_features_in_
        size = dial.subset_size(n_rows, p)
        if size <= p:
            return batch_objective("mse", self._batch(n_rows))
        plan = min(n_subsets, auto_n_subsets(n_rows, p, size))
        return subset_objective(
            n_rows, d, size, n_subsets=plan, probe=self.probe, intercept=self.intercept, ridge=self.ridge
        )

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

    def _build(self, seed: int) -> nn.Module:
        return build_network(
            self.n_features_in_, self._hidden(), self.n_outputs_, activation=self.activation, softmax=False, seed=seed
        )

    def _interval(self, steps: int, n_networks: int) -> int:
        """Steps between evaluations: enough of them to choose from, few enough to keep all their weights."""
        n_weights = sum(p.numel() for p in self._build(0).parameters())
        affordable = SNAPSHOT_BYTES // (4 * n_weights * n_networks)
        return -(-steps // max(4, min(EVALUATIONS, affordable)))

    def _choose(
        self, candidates: list[tuple[Dial, float]], curves: Array, splits: list[Split], rows: Rows, every: int
    ) -> None:
        """Fill `cv_results_`: every setting at its best step, by the error over all held-out rows."""
        size = np.array([rows.weight_of(test) for _, test in splits])
        with np.errstate(invalid="ignore"):
            mean = (curves * size[:, None]).sum(1) / size.sum()  # [settings, evaluations]
        best = np.argmin(np.where(np.isnan(mean), np.inf, mean), axis=1)
        unit = float(np.mean(self.scaling_.y_scale**2))
        here = np.arange(len(candidates))
        fewest = min(len(train) for train, _ in splits)
        p = self._columns()
        at_best = -curves[here, :, best] * unit  # [settings, folds]
        scores = -mean[here, best] * unit
        if not np.isfinite(scores).any():
            raise ValueError(f"every network diverged with learning_rate_init={self.learning_rate_init}; lower it")
        sizes = [max(p, d.subset_size(fewest, p)) for d, _ in candidates]
        alphas = [alpha for _, alpha in candidates]
        results: dict[str, Any] = {
            "param_subset_size": np.array(sizes),
            "param_alpha": np.array(alphas),
            "params": [{"subset_size": m, "alpha": alpha} for m, alpha in zip(sizes, alphas, strict=True)],
            "n_steps": (best + 1) * every,
            **{f"split{i}_test_score": at_best[:, i] for i in range(len(splits))},
            "mean_test_score": scores,
            "std_test_score": at_best.std(axis=1),
            "rank_test_score": np.argsort(np.argsort(-scores, kind="stable"), kind="stable") + 1,
        }
        self.cv_results_ = results
        self.best_index_ = int(np.argmin(results["rank_test_score"]))
        dial, alpha = candidates[self.best_index_]
        chosen = dial.subset_size(len(rows.x), p)
        steps = int(results["n_steps"][self.best_index_])
        self.best_params_: dict[str, Any] = {
            "subset_size": chosen if chosen > p else None,
            "alpha": alpha,
            "n_steps": steps,
        }
        self.best_score_ = float(scores[self.best_index_])
        self.n_iter_ = max(1, round(steps / steps_per_iteration(fewest, self._batch(fewest))))

    def _refit(self, rows: Rows, setting: tuple[Dial, float], seed: int) -> nn.Module:
        """One network on all rows, with the best setting."""
        dial, alpha = setting
        network = self._build(seed)
        fit(
            network,
            rows.x,
            rows.y,
            self._objective(dial, len(rows.x), 1000),
            budget=Steps(int(self.best_params_["n_steps"])),
            optimizer=Adam(self.learning_rate_init, alpha),
            seed=seed,
            sample_weight=rows.weight,
            device=self.device,
        )
        return network
