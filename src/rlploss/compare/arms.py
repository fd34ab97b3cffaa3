"""The arms of a comparison, and the settings that each of them tries: the same number for all.

A network arm tries two learning rates times four values of what is its own: the batch size of a plain loss, the weight
decay of L2, the shape of mixup, the subset size of RLP (both ends of the dial among them); RLP+L2 tries four subset
sizes times two weight decays.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlploss import _checks
from rlploss.estimators.base import BATCH, batch_objective, subset_objective
from rlploss.estimators.folds import AUTO, Dial
from rlploss.training.job import Adam
from rlploss.training.objectives import Objective

HIDDEN = (100,)
RATES = (1e-3, 3e-3)
N_SETTINGS = 8
MOST_ROWS_IN_A_SUBSET = 2000  # beyond, a step would cost more than the comparison is worth
DIALS = AUTO


@dataclass(frozen=True)
class Arm:
    """One way to train: its label, its style in figures, its objective (empty for what is no network)."""

    name: str
    label: str
    style: str
    objective: str = ""

    @property
    def is_rlp(self) -> bool:
        """Whether the subset size is its dial."""
        return self.objective.startswith("rlp")


_SHARED = (
    Arm("rlp", "RLP", "vermillion", "rlp"),
    Arm("rlp+l2", "RLP+L2", "purple", "rlp"),
    Arm("rlp+mixup", "RLP+mixup", "ochre", "rlp+mixup"),
)
REGRESSION = (
    Arm("mse", "MSE", "blue", "mse"),
    Arm("mae", "MAE", "grey", "mae"),
    Arm("huber", "Huber", "grey", "huber"),
    Arm("mse+l2", "MSE+L2", "green", "mse"),
    Arm("mse+mixup", "MSE+mixup", "ochre", "mse+mixup"),
    *_SHARED,
    Arm("mean", "the mean", "grey"),
    Arm("ridge", "ridge regression", "grey"),
    Arm("boosting", "gradient boosting", "grey"),
)
CLASSIFICATION = (
    Arm("cross_entropy", "cross entropy", "blue", "cross_entropy"),
    Arm("cross_entropy+l2", "cross entropy+L2", "green", "cross_entropy"),
    Arm("cross_entropy+mixup", "cross entropy+mixup", "ochre", "cross_entropy+mixup"),
    *_SHARED,
    Arm("prior", "the class frequencies", "grey"),
    Arm("logistic", "logistic regression", "grey"),
    Arm("boosting", "gradient boosting", "grey"),
)


def arms_for(task: str, names: tuple[str, ...] | None = None) -> tuple[Arm, ...]:
    """The arms of a task, all or the ones named; RLP and one more are the least there is to compare."""
    known = REGRESSION if task == "regression" else CLASSIFICATION
    if names is None:
        return known
    by_name = {arm.name: arm for arm in known}
    for name in names:
        _checks.one_of("arms", name, by_name)
    chosen = tuple(arm for arm in known if arm.name in names)
    if len(chosen) < 2:
        raise ValueError(f"arms must name at least two different arms to compare, got {', '.join(names) or 'none'}")
    return chosen


def arm_named(task: str, name: str) -> Arm:
    """One arm by name."""
    return next(arm for arm in arms_for(task) if arm.name == name)


@dataclass(frozen=True)
class Setting:
    """One setting of a network arm."""

    rate: float
    batch: int = BATCH
    decay: float = 0.0
    shape: float | None = None  # of mixup
    dial: Dial | None = None

    def problem(self, arm: Arm, n_rows: int, n_features: int) -> dict[str, Any]:
        """The settings of `fit` for so many rows. A subset size up to the number of columns is MSE."""
        size = self.subset_size(n_rows, n_features)
        objective: Objective
        if size is None:
            loss = arm.objective.replace("rlp", "mse").partition("+")[0]
            objective = batch_objective(loss, min(self.batch, n_rows), self.shape)
        else:
            plan = min(max(20, min(200, 100_000 // size)), math.comb(n_rows, size))  # no more than there are
            objective = subset_objective(
                n_rows, n_features, size, n_subsets=plan, probe="subset", intercept=True, ridge=0.0, mixup=self.shape
            )
        return {"objective": objective, "optimizer": Adam(self.rate, self.decay)}

    def subset_size(self, n_rows: int, n_features: int) -> int | None:
        """M for so many rows; None for arms without subsets, and where RLP is MSE."""
        if self.dial is None:
            return None
        size = min(self.dial.subset_size(n_rows, n_features + 1), MOST_ROWS_IN_A_SUBSET)
        return size if size > n_features + 1 else None

    def estimator(self, arm: Arm, n_rows: int, n_features: int) -> dict[str, Any]:
        """The same setting as parameters of `RLPRegressor` or `RLPClassifier`."""
        size = self.subset_size(n_rows, n_features)
        chosen: dict[str, Any] = {"loss": arm.objective.replace("rlp", "mse") if size is None else arm.objective}
        if size is not None:
            chosen["subset_size"] = size
        elif not arm.is_rlp and self.batch != BATCH:
            chosen["batch_size"] = self.batch
        if self.shape is not None:
            chosen["mixup_alpha"] = self.shape
        return {**chosen, "alpha": self.decay, "learning_rate_init": self.rate}


def network_settings(arm: Arm) -> list[Setting]:
    """What a network arm tries."""
    own: list[dict[str, Any]]
    if arm.name == "rlp":
        own = [{"dial": dial} for dial in DIALS]
    elif arm.name == "rlp+mixup":
        own = [{"dial": dial, "shape": 0.25} for dial in DIALS]
    elif arm.name == "rlp+l2":  # two things of its own, so one rate
        return [Setting(RATES[0], dial=dial, decay=decay) for dial in DIALS for decay in (1e-2, 1e-1)]
    elif arm.name.endswith("+l2"):
        own = [{"decay": decay} for decay in (1e-3, 1e-2, 3e-2, 1e-1)]
    elif arm.name.endswith("+mixup"):
        own = [{"shape": shape} for shape in (0.1, 0.25, 0.5, 1.0)]
    else:
        own = [{"batch": batch} for batch in (20, 50, 100, BATCH)]
    return [Setting(rate, **one) for one, rate in itertools.product(own, RATES)]


def classical_settings(arm: Arm, n_rows: int) -> list[dict[str, Any]]:
    """What an arm that is no network tries; the mean has nothing to try."""
    if arm.name in ("mean", "prior"):
        return [{}]
    if arm.name in ("ridge", "logistic"):
        strengths = np.logspace(-3, 4, N_SETTINGS)
        return [{"alpha": float(s)} if arm.name == "ridge" else {"C": float(1 / s)} for s in strengths]
    if is_large(n_rows):
        grid = itertools.product((0.05, 0.15), (8, 31), (100, 300))
        return [{"learning_rate": r, "max_leaf_nodes": leaves, "max_iter": n} for r, leaves, n in grid]
    grid = itertools.product((0.03, 0.1), (2, 4), (100, 300))
    return [{"learning_rate": r, "max_depth": depth, "n_estimators": n} for r, depth, n in grid]


def is_large(n_rows: int) -> bool:
    """Whether boosting works on histograms."""
    return n_rows > 1000


def classical_model(arm: Arm, task: str, setting: dict[str, Any], n_rows: int, seed: int) -> Any:
    """scikit-learn's estimator."""
    from sklearn import dummy, ensemble, linear_model

    if arm.name == "mean":
        return dummy.DummyRegressor()
    if arm.name == "prior":
        return dummy.DummyClassifier(strategy="prior")
    if arm.name == "ridge":
        return linear_model.Ridge(**setting)
    if arm.name == "logistic":
        return linear_model.LogisticRegression(max_iter=2000, **setting)
    kind = "Regressor" if task == "regression" else "Classifier"
    family = "HistGradientBoosting" if is_large(n_rows) else "GradientBoosting"
    return getattr(ensemble, family + kind)(random_state=seed, **setting)
