"""What RLPRegressor and RLPClassifier share: settings, training through `fit`, the network and its export."""

from __future__ import annotations

import copy
import math
import secrets
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError:  # pragma: no cover - the extra is installed where tests run
    raise ImportError("rlploss.estimators needs scikit-learn: pip install 'rlploss[sklearn]'") from None

from rlploss._checks import count, number, one_of
from rlploss._predictor import Array, Predictor, Scaling, build_network, predict_rows
from rlploss.history import Event, History, Steps
from rlploss.monitors import EarlyStopping
from rlploss.training import fit

BATCH = 200  # rows per step of pointwise losses, as in scikit-learn's MLP estimators
FEWEST_STEPS = 10  # in one iteration, so that small tables are trained too
_PLAN_WORK = 10**9  # of K·M·p², the cost of factoring a plan


def steps_per_iteration(n_rows: int, batch_size: int) -> int:
    """Optimiser steps in one iteration: a pass over the rows in batches, at least 10. The same for every loss."""
    return max(FEWEST_STEPS, -(-n_rows // batch_size))


def auto_subset_size(n_rows: int, n_columns: int) -> int:
    """The subset size M that `subset_size="auto"` takes, for N rows and p columns (the intercept included).

    M = 0.85·N up to 100 rows, 8500/N beyond, at least p + 2; N where there are fewer rows (MSE then).
    Few rows want the strong regulariser that large subsets are; many rows can afford to learn what is not linear.
    """
    size = 0.85 * min(n_rows, 10_000 / n_rows)
    return min(n_rows, max(n_columns + 2, round(size)))


def auto_n_subsets(n_rows: int, n_columns: int, subset_size: int) -> int:
    """Subsets in a plan: up to 1000, fewer where factoring them would take more than about a second."""
    enough = min(1000, _PLAN_WORK // (subset_size * n_columns**2))
    return min(max(enough, -(-n_rows // subset_size)), math.comb(n_rows, subset_size))


def auto_subsets_per_step(n_rows: int, subset_size: int) -> int:
    """Small subsets are taken several at a time: as many as fit into 200 rows and into a fifth of all."""
    return max(1, min(BATCH, n_rows // 5) // subset_size)


class Watch:
    """The stopping rule on the training loss, and what `verbose` prints; a callback of `fit`."""

    def __init__(self, tol: float, patience: int, *, stops: bool, verbose: bool) -> None:
        self.losses: list[float] = []
        self.tol, self.patience, self.stops, self.verbose = tol, patience, stops, verbose
        self.best, self.waited = math.inf, 0

    def __call__(self, event: Event) -> bool:
        """Take in one iteration; True stops the run."""
        loss = event.metrics["loss"]
        if event.step == 0:
            return False
        self.losses.append(loss)
        if self.verbose:
            print(f"Iteration {len(self.losses)}, loss = {loss:.8f}", flush=True)
        self.waited = self.waited + 1 if loss > self.best - self.tol else 0
        self.best = min(self.best, loss)
        return self.stops and self.waited > self.patience


class RLPBase(BaseEstimator):  # type: ignore[misc]
    """Settings, training and export; subclasses read the target and name the losses."""

    _losses: tuple[str, ...]
    network_: nn.Sequential
    scaling_: Scaling
    n_features_in_: int

    def __init__(
        self,
        hidden_layer_sizes: int | Iterable[int] = (100,),
        activation: str = "relu",
        *,
        loss: str = "rlp",
        subset_size: int | float | str = "auto",
        n_subsets: int | str = "auto",
        probe: str = "subset",
        intercept: bool = True,
        ridge: float = 0.0,
        mixup_alpha: float = 0.25,
        standardize: bool = True,
        alpha: float = 1e-4,
        batch_size: int | str = "auto",
        learning_rate_init: float = 1e-3,
        max_iter: int = 200,
        tol: float = 1e-4,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
        device: str | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.loss = loss
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.random_state = random_state
        self.tol = tol
        self.verbose = verbose
        self.warm_start = warm_start
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.subset_size = subset_size
        self.n_subsets = n_subsets
        self.probe = probe
        self.intercept = intercept
        self.ridge = ridge
        self.mixup_alpha = mixup_alpha
        self.standardize = standardize
        self.device = device

    # What subclasses say

    def _head(self) -> str:
        raise NotImplementedError

    def _read_target(self, y: Any, *, first: bool) -> NDArray[Any]:
        """Check y and return it as numbers [n, C], or class numbers [n]; `first` sets what is learned from it."""
        raise NotImplementedError

    def _stratify(self, target: NDArray[Any]) -> NDArray[Any] | None:
        raise NotImplementedError

    def _validation_scores(self, history: History, target: NDArray[Any]) -> list[float]:
        raise NotImplementedError

    # Training

    def _fit(self, X: Any, y: Any, sample_weight: Any, *, restart: bool, partial: bool = False) -> None:
        """Train; `restart` begins anew, otherwise weights and scaling are kept; `partial` is one iteration."""
        self._check_settings()
        X, target, weight = self._read(X, y, sample_weight, first=restart)
        seed = self._seed()
        classes = target.ndim == 1
        held = None
        iterations = 1 if partial else self.max_iter
        if self.early_stopping and not partial:
            X, target, weight, held = self._hold_out(X, target, weight, seed)
        if restart:
            Y = None if classes else target
            self.scaling_ = Scaling.of(X, Y, weight, on=self.standardize)
            self._optimizer_state: dict[str, Any] | None = None
            self.network_ = build_network(
                X.shape[1],
                self._hidden(),
                self._n_outputs(),
                activation=self.activation,
                softmax=self._head() == "probabilities",
                seed=seed,
            )
        settings = self._settings(len(X), X.shape[1])
        steps = steps_per_iteration(len(X), self._batch(len(X)))
        watch = Watch(
            self.tol,
            self.n_iter_no_change,
            stops=held is None and not partial,
            verbose=bool(self.verbose),
        )
        metric = "accuracy" if classes else "mse"
        made: list[torch.optim.Optimizer] = []
        history = fit(
            self.network_.float(),
            self.scaling_.inputs(X),
            target if classes else self.scaling_.targets(target),
            budget=Steps(iterations * steps),
            evaluate_every=Steps(steps),
            optimizer=self._optimizer(made),
            seed=seed,
            sample_weight=weight,
            validation=None if held is None else self._scaled(*held),
            metrics=None if held is None else metric,
            early_stopping=None if held is None else EarlyStopping(metric, self.n_iter_no_change, self.tol),
            callbacks=[watch],
            device=self.device,
            **settings,
        )
        self.network_ = self.network_.to("cpu").double()
        self._optimizer_state = made[0].state_dict()
        self._note(history, watch, settings, None if held is None else held[1], more=not restart)

    def _read(
        self, X: Any, y: Any, sample_weight: Any, *, first: bool
    ) -> tuple[Array, NDArray[Any], Array | None]:
        """Check the data; rows of weight 0 are left out."""
        if y is None:
            raise ValueError(
                f"requires y to be passed, but the target y is None; {type(self).__name__} is supervised"
            )
        X, y = validate_data(
            self,
            X,
            y,
            reset=first,
            dtype=np.float64,
            order="C",
            multi_output=True,
            y_numeric=self._head() == "regression",
            ensure_min_samples=2,
        )
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            keep = weight > 0
            if keep.sum() < 2:
                raise ValueError(
                    f"sample_weight must be above 0 for at least two rows, got {int(keep.sum())} of "
                    f"n_samples={len(X)}"
                )
            X, y, weight = X[keep], y[keep], weight[keep]
        return X, self._read_target(y, first=first), weight

    def _hold_out(
        self, X: Array, target: NDArray[Any], weight: Array | None, seed: int
    ) -> tuple[Array, NDArray[Any], Array | None, tuple[Array, NDArray[Any]]]:
        from sklearn.model_selection import train_test_split

        train, test = train_test_split(
            np.arange(len(X)),
            test_size=self.validation_fraction,
            random_state=seed,
            stratify=self._stratify(target),
        )
        if len(train) < 2:
            raise ValueError(
                f"early_stopping with validation_fraction={self.validation_fraction} must leave at least two "
                f"training rows, got {len(train)} of n_samples={len(X)}; lower validation_fraction"
            )
        return X[train], target[train], None if weight is None else weight[train], (X[test], target[test])

    def _scaled(self, X: Array, target: NDArray[Any]) -> tuple[Array, NDArray[Any]]:
        return self.scaling_.inputs(X), target if target.ndim == 1 else self.scaling_.targets(target)

    def _optimizer(self, made: list[torch.optim.Optimizer]) -> Callable[[Any], torch.optim.Optimizer]:
        """Adam that continues from the state of the training before; the one made is put into `made`."""

        def factory(parameters: Any) -> torch.optim.Optimizer:
            adam = torch.optim.Adam(
                parameters, lr=self.learning_rate_init, weight_decay=self.alpha, fused=True
            )
            if self._optimizer_state is not None:
                adam.load_state_dict(self._optimizer_state)
            made.append(adam)
            return adam

        return factory

    def _settings(self, n_rows: int, n_features: int) -> dict[str, Any]:
        """The settings of `fit` that the loss decides. Too few rows for "auto" to give subsets are MSE."""
        batch = {"batch_size": self._batch(n_rows)}
        loss, plus, mix = self.loss.partition("+")
        mixed = {"mixup_alpha": self.mixup_alpha} if plus else {}
        if loss != "rlp":
            return {"objective": self.loss, **batch, **mixed}
        columns = n_features + int(self.intercept)
        size = self._subset_size(n_rows, columns)
        if self.subset_size == "auto" and size < columns + 2 and self.ridge == 0:
            return {"objective": f"mse{plus}{mix}", **batch, **mixed}
        if self.n_subsets == "auto":
            n_subsets = auto_n_subsets(n_rows, columns, size)
        else:
            n_subsets = count("n_subsets", self.n_subsets)
        return {
            "objective": self.loss,
            "probe": self.probe,
            "intercept": bool(self.intercept),
            "ridge": self.ridge,
            "subset_size": size,
            "n_subsets": n_subsets,
            "subsets_per_step": min(n_subsets, auto_subsets_per_step(n_rows, size)),
            **mixed,
        }

    def _subset_size(self, n_rows: int, n_columns: int) -> int:
        size = self.subset_size
        if isinstance(size, str):
            one_of("subset_size", size, ("auto",))
            return auto_subset_size(n_rows, n_columns)
        if isinstance(size, float | np.floating):
            fraction = number("subset_size, a fraction of the rows,", float(size), 0.0, 1.0)
            return max(1, round(fraction * n_rows))
        if count("subset_size", size) > n_rows:
            raise ValueError(
                f"subset_size must be at most the number of rows {n_rows}, got {size}; pass a fraction instead"
            )
        return int(size)

    def _note(
        self,
        history: History,
        watch: Watch,
        settings: dict[str, Any],
        held: NDArray[Any] | None,
        *,
        more: bool,
    ) -> None:
        """Set what a fitted estimator tells about its training."""
        before = self.loss_curve_ if more else []
        self.loss_curve_ = [*before, *watch.losses]
        self.n_iter_ = len(self.loss_curve_)
        self.loss_ = self.loss_curve_[-1]
        self.best_loss_ = min(self.loss_curve_) if held is None else None
        self.subset_size_ = settings.get("subset_size")
        self.n_subsets_ = settings.get("n_subsets")
        self.validation_scores_ = None if held is None else self._validation_scores(history, held)
        self.best_validation_score_ = None if held is None else max(self.validation_scores_ or [])

    # Settings

    def _hidden(self) -> tuple[int, ...]:
        sizes = self.hidden_layer_sizes
        return tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)

    def _batch(self, n_rows: int) -> int:
        if isinstance(self.batch_size, str):
            one_of("batch_size", self.batch_size, ("auto",))
            return min(BATCH, n_rows)
        return min(count("batch_size", self.batch_size), n_rows)

    def _seed(self) -> int:
        """A seed from `random_state`; None takes fresh entropy and leaves numpy's global state alone."""
        if self.random_state is None:
            return secrets.randbelow(2**31)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _n_outputs(self) -> int:
        raise NotImplementedError

    def _check_settings(self) -> None:
        one_of("loss", self.loss, self._losses)
        count("max_iter", self.max_iter)
        count("n_iter_no_change", self.n_iter_no_change)
        number("tol", self.tol, minimum=0.0)
        number("alpha", self.alpha, minimum=0.0)
        number("validation_fraction", self.validation_fraction, 0.0, 1.0)

    # Prediction and export

    def _predictor(self) -> Predictor:
        """Raw columns to predictions, in float64; shares the network."""
        return Predictor(
            self.network_, self.scaling_, head=self._head(), flat=getattr(self, "_flat", False)
        ).double()

    def _predict_rows(self, X: Any) -> Array:
        check_is_fitted(self)
        checked = validate_data(self, X, reset=False, dtype=np.float64, order="C")
        return predict_rows(self._predictor(), checked)

    def to_torch(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """A copy of the fitted model as an `nn.Module`, from raw columns [B, d] to what `predict` gives.

        Scaling is part of it. In float64 the numbers are those of `predict` (`predict_proba` for classes); pass
        `torch.float32` for a smaller one, say for ONNX.
        """
        check_is_fitted(self)
        return copy.deepcopy(self._predictor()).to(dtype).eval()
