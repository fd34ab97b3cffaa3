"""Training of RLPRegressor and RLPClassifier: settings to `fit`, stopping, going on where the last call ended."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlploss._checks import count, number, one_of
from rlploss.estimators.base import RowReader, auto_subset_size, batch_objective, steps_per_iteration, subset_objective
from rlploss.estimators.predictor import Array, Scaling, build_network
from rlploss.training.budget import Steps
from rlploss.training.fit import fit
from rlploss.training.history import Event, History
from rlploss.training.monitors import EarlyStopping
from rlploss.training.objectives import RLP, Objective


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


def scaled(scaling: Scaling, X: Array, target: NDArray[Any]) -> tuple[Array, NDArray[Any]]:
    """Rows as the network sees them; class numbers stay as they are."""
    return scaling.inputs(X), target if target.ndim == 1 else scaling.targets(target)


class RLPBase(RowReader):
    """Settings, training and export; subclasses read the target and name the losses."""

    _losses: tuple[str, ...]
    network_: nn.Sequential
    loss_curve_: list[float]
    _optimizer_state: dict[int, dict[str, Tensor]]  # Adam's moments
    _trained: dict[str, Any]  # what the network was built for

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
        n_iter_no_change: int = 20,
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

    @abstractmethod
    def _stratify(self, target: NDArray[Any]) -> NDArray[Any] | None:
        """What the held-out rows of early stopping keep the shares of."""

    @abstractmethod
    def _validation_scores(self, history: History, target: NDArray[Any]) -> list[float]:
        """The score on the held-out rows before the first iteration and after each."""

    # Training

    def _fit(self, X: Any, y: Any, sample_weight: Any, *, restart: bool, partial: bool = False) -> None:
        """Train; `restart` begins anew, otherwise weights and scaling are kept; `partial` is one iteration."""
        self._check_settings()
        kind = {"layers": self._hidden(), "activation": self.activation, "head": self._head()}
        if not restart and kind != getattr(self, "_trained", kind):
            raise ValueError(
                "hidden_layer_sizes, activation and what the loss reads must stay as they were where training goes on, "
                f"got {tuple(kind.values())} after {tuple(self._trained.values())}; call fit with warm_start=False to "
                "begin anew"
            )
        X, target, weight = self._read(X, y, sample_weight, first=restart)
        seed = self._seed()
        classes = target.ndim == 1
        held = None
        iterations = 1 if partial else self.max_iter
        if self.early_stopping and not partial:
            X, target, weight, held = self._hold_out(X, target, weight, seed)
        if restart:
            scaling = Scaling.of(X, None if classes else target, weight, on=self.standardize)
            network = build_network(
                X.shape[1],
                self._hidden(),
                self._n_outputs(),
                activation=self.activation,
                softmax=self._head() == "probabilities",
                seed=seed,
            )
        else:  # a copy: training that fails leaves the estimator as it was
            scaling, network = self.scaling_, copy.deepcopy(self.network_).float()
        objective = self._objective(len(X), X.shape[1])
        steps = steps_per_iteration(len(X), self._batch(len(X)))
        watch = Watch(self.tol, self.n_iter_no_change, stops=held is None and not partial, verbose=bool(self.verbose))
        # accuracy on few rows stands still for long while the network still learns: what is smooth decides
        metric = "cross_entropy" if self._head() == "logits" else "mse"
        made: list[torch.optim.Optimizer] = []
        history = fit(
            network,
            *scaled(scaling, X, target),
            objective,
            budget=Steps(iterations * steps),
            evaluate_every=Steps(steps),
            optimizer=self._optimizer(made, None if restart else self._optimizer_state),
            seed=seed,
            sample_weight=weight,
            validation=None if held is None else scaled(scaling, *held),
            metrics=None if held is None else (metric, "accuracy") if classes else metric,
            early_stopping=None if held is None else EarlyStopping(metric, self.n_iter_no_change, self.tol),
            callbacks=[watch],
            device=self.device,
        )
        self.scaling_, self.network_, self._trained = scaling, network.to("cpu").double(), kind
        self._optimizer_state = {
            key: {name: value.cpu() for name, value in moments.items()}
            for key, moments in made[0].state_dict()["state"].items()
        }
        self._note(history, watch, objective, None if held is None else held[1], more=not restart)

    def _hold_out(
        self, X: Array, target: NDArray[Any], weight: Array | None, seed: int
    ) -> tuple[Array, NDArray[Any], Array | None, tuple[Array, NDArray[Any]]]:
        from sklearn.model_selection import train_test_split

        train, test = train_test_split(
            np.arange(len(X)), test_size=self.validation_fraction, random_state=seed, stratify=self._stratify(target)
        )
        if len(train) < 2:
            raise ValueError(
                f"early_stopping with validation_fraction={self.validation_fraction} must leave at least two "
                f"training rows, got {len(train)} of n_samples={len(X)}; lower validation_fraction"
            )
        return X[train], target[train], None if weight is None else weight[train], (X[test], target[test])

    def _optimizer(
        self, made: list[torch.optim.Optimizer], state: dict[int, dict[str, Tensor]] | None
    ) -> Callable[[Any], torch.optim.Optimizer]:
        """Adam, with the moments of the training before if there are any; the one made is put into `made`."""

        def factory(parameters: Any) -> torch.optim.Optimizer:
            adam = torch.optim.Adam(parameters, lr=self.learning_rate_init, weight_decay=self.alpha, fused=True)
            if state is not None:
                adam.load_state_dict({"state": state, "param_groups": adam.state_dict()["param_groups"]})
            made.append(adam)
            return adam

        return factory

    def _objective(self, n_rows: int, n_features: int) -> Objective:
        """What `fit` makes small. Too few rows for "auto" to give subsets are MSE."""
        loss, plus, _ = self.loss.partition("+")
        mixup = self.mixup_alpha if plus else None
        if loss != "rlp":
            return batch_objective(loss, self._batch(n_rows), mixup)
        columns = n_features + int(self.intercept)
        size = self._subset_size(n_rows, columns)
        if self.subset_size == "auto" and size < columns + 2 and self.ridge == 0:
            return batch_objective("mse", self._batch(n_rows), mixup)
        return subset_objective(
            n_rows,
            n_features,
            size,
            n_subsets=None if self.n_subsets == "auto" else count("n_subsets", self.n_subsets),
            probe=self.probe,
            intercept=self.intercept,
            ridge=self.ridge,
            mixup=mixup,
        )

    def _subset_size(self, n_rows: int, n_columns: int) -> int:
        size = self.subset_size
        if isinstance(size, str):
            one_of("subset_size", size, ("auto",))
            return auto_subset_size(n_rows, n_columns)
        if isinstance(size, float | np.floating):
            fraction = number("subset_size, a fraction of the rows,", float(size), 0.0, 1.0)
            if fraction == 0:
                raise ValueError("subset_size, a fraction of the rows, must be above 0, got 0.0")
            return max(1, round(fraction * n_rows))
        if count("subset_size", size) > n_rows:
            raise ValueError(
                f"subset_size must be at most the number of rows {n_rows}, got {size}; pass a fraction instead"
            )
        return int(size)

    def _note(
        self, history: History, watch: Watch, objective: Objective, held: NDArray[Any] | None, *, more: bool
    ) -> None:
        """Set what a fitted estimator tells about its training."""
        before = self.loss_curve_ if more else []
        self.loss_curve_ = [*before, *watch.losses]
        self.n_iter_ = len(self.loss_curve_)
        self.loss_ = self.loss_curve_[-1]
        self.best_loss_ = min(self.loss_curve_) if held is None else None
        self.subset_size_ = objective.subset_size if isinstance(objective, RLP) else None
        self.n_subsets_ = objective.n_subsets if isinstance(objective, RLP) else None
        self.validation_scores_: list[float] | None = None
        self.best_validation_score_: float | None = None
        if held is not None:
            scores = self._validation_scores(history, held)
            self.validation_scores_ = scores[1:]
            self.best_validation_score_ = scores[list(history["step"]).index(history.best_step)]

    def _check_settings(self) -> None:
        one_of("loss", self.loss, self._losses)
        count("max_iter", self.max_iter)
        count("n_iter_no_change", self.n_iter_no_change)
        number("tol", self.tol, minimum=0.0)
        number("alpha", self.alpha, minimum=0.0)
        number("validation_fraction", self.validation_fraction, 0.0, 1.0)
