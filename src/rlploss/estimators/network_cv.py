"""The search for the settings, the stopping step and the mixture of networks, by
cross-validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import check_cv
from sklearn.utils.validation import check_is_fitted
from torch import nn

from rlploss import Adam, CrossEntropy, Problem
from rlploss._checks import count
from rlploss._extras import need
from rlploss._scaling import Array, Scaling
from rlploss._torch import one_torch_thread
from rlploss.estimators import base, dial, search
from rlploss.estimators.search import Choice, Index, Replica, Search, Split
from rlploss.estimators.selection import TargetScale, inner_folds, log_choices
from rlploss.estimators.settings import Candidate, Settings, several
from rlploss.models import FromLogarithms
from rlploss.training.job import make_job

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# stopping steps to choose from in the first heat; each further heat adds half as many
EVALUATIONS = 10
FIRST_HEAT, FIRST_EVALUATIONS = 240, 8  # where max_steps is given: steps, and the same
KEPT_BYTES = 2**28  # of weights, and of predictions, at all of them
DRAWS = 50  # of candidates into the ensemble


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkCV(Settings):
    """The search; subclasses read the target and name the losses.

    Parameters
    ----------
    cv : "auto", int, splitter or iterable of splits
        The number of folds, or who makes them (`GroupKFold`, `TimeSeriesSplit`), or the folds
        themselves as pairs of training and validation rows. "auto": 3 folds up to 150 rows, 2 up to
        250, beyond that a fifth of the rows.
    ensemble : bool
        Whether to predict with the best mixture of the fold models, which are trained already.
        False trains one network on all rows with the best setting.
    max_iter : int
        The first budget, in iterations: the longest training to choose from.
    max_doublings : int
        How often the budget may double. It does for every setting whose best step lies in its last
        fifth, while that setting may still come to the best.
    max_steps : int or None
        The most optimiser steps, in place of max_iter and max_doublings.

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
    late_ : whether the best step lies in the last fifth of the most steps: more might help.
    """

    cv: Any = 5
    ensemble: bool = True
    max_iter: int = 60
    max_doublings: int = 3
    max_steps: int | None = None

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None, folds: Any = None
    ) -> Self:
        """Cross-validate on rows X (n, d) and targets y, weighted if asked, and keep the best.

        `groups` (n,) go to the splitter that is given as `cv`. `folds`, pairs of training and
        validation rows, replace `cv` for this call.
        """
        count("max_iter", self.max_iter)
        count("max_doublings", self.max_doublings, minimum=0)
        data, kept = self._read(X, y, sample_weight, first=True)
        seed = self._seed()
        n_rows = len(data.X)
        splits = self._splits(X, y, groups, folds, kept, data.target, seed)
        parts, tests = zip(*splits, strict=True)
        self.scaling_ = self._scaling(data)
        self._note_range(data.X)
        logs = log_choices(getattr(self, "log_target", False), data.target)
        views = Views(data, self.scaling_, logs)

        sizes = [len(rows) for rows in parts]
        settings = self._distinct(self._settings(min(sizes), logs), sizes)
        _, target, weight = views.data.part(np.concatenate(tests))
        candidates = Search(
            [self._replicas(setting, views, parts, seed) for setting in settings],
            [views.data.X[rows] for rows in tests],
            self._numbers(target),
            np.ones(len(target)) if weight is None else weight,
        )
        plan = self._heats(min(sizes), candidates)
        candidates.race(plan, progress=bool(self.verbose))
        choice = candidates.choice()
        if not np.isfinite(choice.curves[:, 1:]).any():
            raise ValueError(
                f"every network diverged with learning_rates={self.learning_rates}; lower them"
            )
        self._note(settings, candidates, choice, min(sizes), n_rows)
        n_steps = self.best_params_["n_steps"]
        self.late_ = bool(n_steps > search.LAST_PART * plan[-1][-1])
        if self.ensemble:
            # networks of a fold count by the rows they have seen: alike in K folds, more and more
            # along time
            seen = np.array(sizes, dtype=np.float64)
            self.network_: nn.Module = candidates.network(self._shares, seen / seen.sum())
        else:
            everything = Views(data, self.scaling_, logs)
            setting = settings[choice.setting]
            (one,) = self._replicas(setting, everything, [np.arange(n_rows)], seed)
            if n_steps:
                search.train_further([one], n_steps, n_steps, progress=bool(self.verbose))
                if one.diverged:
                    raise ValueError("the network diverged on all rows; lower learning_rates")
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

    def curve(self) -> dict[str, list[float]]:
        """Return the cross-validated error of the best setting, in units of the target's variance,
        at every evaluation but the first: "step" and "validation".
        """
        unit = float(np.mean(self.scaling_.y_scale**2))
        errors = self._curves[self.best_index_, 1:] / unit
        return {"step": self._steps[1:].tolist(), "validation": errors.tolist()}

    def dial(self) -> dict[str, Array]:
        """Return "sizes", the subset size of every place on the dial in a fold (0 is its pointwise
        end), and "errors", the best cross-validated error there in units of the target's variance.
        """
        unit = float(np.mean(self.scaling_.y_scale**2))
        sizes, errors = self._dial
        return {"sizes": np.where(sizes == self._p, 0, sizes), "errors": errors / unit}

    def _splits(
        self,
        X: Any,
        y: Any,
        groups: Any,
        folds: Any,
        kept: NDArray[np.bool_],
        target: NDArray[Any],
        seed: int,
    ) -> list[Split]:
        """Return folds as places among the rows that are kept, which `target` has; the caller's own
        count all rows.
        """
        cv = self.cv if folds is None else list(folds)
        if isinstance(cv, int | np.integer | str):
            if groups is not None:
                wrong = f"groups need a splitter that uses them, got cv={cv}"
                raise ValueError(f"{wrong}; pass cv=GroupKFold({cv})")
            splits = inner_folds(cv if isinstance(cv, str) else int(cv), target, seed)
        else:
            place, given = np.cumsum(kept) - 1, check_cv(cv).split(X, y, groups)
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

    # Networks

    def _replicas(
        self, setting: Candidate, views: Views, folds: Sequence[Index], seed: int
    ) -> list[Replica]:
        """Return untrained networks of one setting for the rows of every fold."""
        replicas = []
        for fold, rows in enumerate(folds):
            own = (seed + fold) % 2**31
            x, y, weight = views.part(rows, log=setting.log)
            plane = views.plane(fold, rows, log=setting.log) if setting.linear else None
            objective = self._objective(setting, len(x))
            softmax = y.ndim == 1 and not isinstance(objective, CrossEntropy)
            network = self._build(own, setting.activation, softmax=softmax)
            head = [layer for layer in network if isinstance(layer, nn.Linear)][-1]
            for parameter in head.parameters():  # before the first step it is the plane, or nothing
                nn.init.zeros_(parameter)
            problem = Problem(
                x,
                y if plane is None else y - search.on_plane(plane, x),
                seed=own,
                sample_weight=weight,
                objective=objective,
                optimizer=Adam(setting.learning_rate, setting.alpha),
            )
            with one_torch_thread():
                job = make_job(network, problem, device=self.device)
            replicas.append(Replica(job, plane, views.back if setting.log else None))
            replicas[-1].keep()
        return replicas

    def _heats(self, n_fold: int, candidates: Search) -> list[Index]:
        """Return when networks are evaluated, as often as their weights and predictions fit into
        memory.
        """
        if self.max_steps is None:
            first = self.max_iter * self._steps_per_iteration(n_fold)
            total, evaluations = first * 2**self.max_doublings, EVALUATIONS
        else:
            total = count("max_steps", self.max_steps)
            first, evaluations = min(total, FIRST_HEAT), FIRST_EVALUATIONS
        replicas = [one for folds in candidates.replicas for one in folds]
        numbers = sum(one.kept[0].size / 2 for one in replicas) + candidates.residuals[:, 0].size
        doublings = np.ceil(np.log2(total / first))
        affordable = int(KEPT_BYTES / (8 * numbers * (1 + doublings / 2)))
        return search.heats(first, total, max(4, min(evaluations, affordable)))

    def _steps_per_iteration(self, n_rows: int) -> int:
        batch = max(base.batch_of(size, n_rows) for size in several(self.batch_size))
        return dial.steps_per_iteration(n_rows, batch)

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
        self.n_iter_ = max(1, round(int(n_steps[best]) / self._steps_per_iteration(n_fold)))
        places = [self._subset_size(place, n_fold) for place in self._places()]
        tried = self.cv_results_["param_subset_size"]
        best_of = {size: unit * choice.errors[tried == size].min() for size in set(tried.tolist())}
        self._dial = np.array(places), np.array([best_of[size] for size in places])
        self._steps, self._curves, self._shares = candidates.steps, unit * choice.curves, shares


class Views:
    """The rows that networks are trained on: scaled, the target as it is or as its logarithm."""

    def __init__(self, data: base.Data, scaling: Scaling, logs: Sequence[bool]) -> None:
        self.data = data.scaled(scaling)
        self.targets = {False: self.data.target}
        self.back: FromLogarithms | None = None
        if True in logs:
            scale = TargetScale.of(data.target[:, 0], log=True)
            self.targets[True] = scale.scaled(data.target)
            plain = float(scaling.y_mean[0]), float(scaling.y_scale[0])
            self.back = FromLogarithms(scale.mean, scale.scale, scale.low, scale.high, *plain)
        self._planes: dict[tuple[int, bool], nn.Linear] = {}

    def part(self, rows: Index, *, log: bool) -> base.Data:
        """Return some of the rows."""
        return self.data._replace(target=self.targets[log]).part(rows)

    def plane(self, fold: int, rows: Index, *, log: bool) -> nn.Linear:
        """Return the plane of a ridge regression on the rows of a fold."""
        if (fold, log) not in self._planes:
            self._planes[fold, log] = search.fit_plane(*self.part(rows, log=log))
        return self._planes[fold, log]
