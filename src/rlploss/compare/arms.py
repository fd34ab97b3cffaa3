"""What is compared: contenders with the settings that each of them tries, and conditions of the table.

Every contender that can be tuned tries eight settings. A network tries two learning rates times four values of what is
its own: the batch size of a plain loss, the weight decay of L2, the shape of mixup, the subset size of RLP (both ends
of the dial among them). RLP+L2 tries four subset sizes times two weight decays.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlploss import _checks
from rlploss.estimators.dial import BATCH, DIALS, POINTWISE, Dial, Pointwise, objective_at
from rlploss.lab.study import Part
from rlploss.training.job import Adam
from rlploss.training.objectives import MAE, MSE, RLP, CrossEntropy, Huber

HIDDEN = (100,)
N_SETTINGS = 8
MOST_ROWS_IN_A_SUBSET = 2000  # beyond, a step would cost more than the comparison is worth
LARGE = 1000  # training rows beyond which boosting works on histograms
FEWEST_TRAINING_ROWS = 15
BASELINES = ("mean", "prior")
Levels = float | Sequence[float] | None  # of an ablation: one or several

RATES = (Adam(1e-3), Adam(3e-3))
DECAYS = tuple(Adam(rate.lr, decay) for decay in (1e-3, 1e-2, 3e-2, 1e-1) for rate in RATES)
BATCHES = (20, 50, 100, BATCH)
SHAPES = (0.1, 0.25, 0.5, 1.0)


class Labelled(Part):
    """A part of a cell that has a label for people beside its name."""

    label: str

    def to_json(self) -> dict[str, Any]:
        """Return all fields that decide a result as plain data."""
        return {name: value for name, value in super().to_json().items() if name not in ("label", "style")}

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True)
class Contender(Labelled):
    """One way to predict: a network with the objectives and optimisers it tries, or a model of scikit-learn."""

    name: str
    label: str = ""
    style: str = "grey"  # in figures
    objectives: tuple[RLP | Pointwise, ...] = ()
    optimizers: tuple[Adam, ...] = ()
    model: str = ""  # what is no network

    @property
    def family(self) -> str:
        """The model or the objective: predicted times of one family are wrong by the same factor."""
        return self.model or type(self.objectives[0]).__name__

    @property
    def is_rlp(self) -> bool:
        """Whether the subset size is its dial."""
        return any(isinstance(objective, RLP) for objective in self.objectives)

    @property
    def gives_logits(self) -> bool:
        """Whether the outputs of its network are logits."""
        return any(isinstance(objective, CrossEntropy) for objective in self.objectives)

    @property
    def settings(self) -> list[Setting]:
        """What a network tries: its objectives, with RLP at every place of the dial, times its optimisers."""
        dials: tuple[Dial | None, ...] = DIALS if self.is_rlp else (None,)
        return [Setting(*one) for one in itertools.product(self.objectives, dials, self.optimizers)]


@dataclass(frozen=True)
class Setting:
    """One setting of a network; the dial gives RLP its subset size."""

    objective: RLP | Pointwise
    dial: Dial | None
    optimizer: Adam

    def objective_for(self, n_rows: int, n_features: int) -> RLP | Pointwise:
        """Return the objective for so many rows. A subset size up to the number of columns is MSE."""
        if self.dial is None or not isinstance(self.objective, RLP):
            return self.objective
        size = min(self.dial.subset_size(n_rows, n_features + 1), MOST_ROWS_IN_A_SUBSET)
        most = max(20, min(200, 100_000 // size))
        return objective_at(size, n_rows, n_features, self.objective, most_subsets=most)

    def subset_size(self, n_rows: int, n_features: int) -> int | None:
        """Return M for so many rows; None without subsets, and where RLP is MSE."""
        made = self.objective_for(n_rows, n_features)
        return made.subset_size if isinstance(made, RLP) else None

    def estimator(self, n_rows: int, n_features: int) -> dict[str, Any]:
        """Return the same setting as parameters of `RLPRegressor` or `RLPClassifier`."""
        made = self.objective_for(n_rows, n_features)
        loss = next((name for name, kind in POINTWISE.items() if isinstance(made, kind)), "rlp")
        chosen: dict[str, Any] = {"loss": loss}
        if isinstance(made, RLP):
            chosen["subset_size"] = made.subset_size
        elif self.dial is None and made.batch_size != BATCH:
            chosen["batch_size"] = made.batch_size
        if made.mixup is not None:
            chosen["mixup"] = made.mixup
        return {**chosen, "alpha": self.optimizer.weight_decay, "learning_rate_init": self.optimizer.lr}


_RLP = (
    Contender("rlp", "RLP", "vermillion", (RLP(),), RATES),
    Contender("rlp+l2", "RLP+L2", "purple", (RLP(),), (Adam(1e-3, 1e-2), Adam(1e-3, 1e-1))),
    Contender("rlp+mixup", "RLP+mixup", "purple", (RLP(mixup=0.25),), RATES),
)
REGRESSION = (
    Contender("mse", "MSE", "blue", tuple(MSE(n) for n in BATCHES), RATES),
    Contender("mae", "MAE", "grey", tuple(MAE(n) for n in BATCHES), RATES),
    Contender("huber", "Huber", "blue", tuple(Huber(n) for n in BATCHES), RATES),
    Contender("mse+l2", "MSE+L2", "green", (MSE(BATCH),), DECAYS),
    Contender("mse+mixup", "MSE+mixup", "ochre", tuple(MSE(BATCH, mixup=psi) for psi in SHAPES), RATES),
    *_RLP,
    Contender("mean", "the mean", model="mean"),
    Contender("ridge", "ridge regression", model="ridge"),
    Contender("boosting", "gradient boosting", model="boosting"),
)
CLASSIFICATION = (
    Contender("cross_entropy", "cross entropy", "blue", tuple(CrossEntropy(n) for n in BATCHES), RATES),
    Contender("cross_entropy+l2", "cross entropy+L2", "green", (CrossEntropy(BATCH),), DECAYS),
    Contender(
        "cross_entropy+mixup",
        "cross entropy+mixup",
        "ochre",
        tuple(CrossEntropy(BATCH, mixup=psi) for psi in SHAPES),
        RATES,
    ),
    *_RLP,
    Contender("prior", "the class frequencies", model="prior"),
    Contender("logistic", "logistic regression", model="logistic"),
    Contender("boosting", "gradient boosting", model="boosting"),
)


def contenders_for(task: str, names: Sequence[str] | None = None) -> tuple[Contender, ...]:
    """Return the contenders of a task, all or the ones named; refuse fewer than two."""
    known = REGRESSION if task == "regression" else CLASSIFICATION
    if names is None:
        return known
    for name in names:
        _checks.one_of("arms", name, [contender.name for contender in known])
    chosen = tuple(contender for contender in known if contender.name in names)
    if len(chosen) < 2:
        raise ValueError(f"arms must name at least two different arms to compare, got {', '.join(names) or 'none'}")
    return chosen


def models(name: str, task: str, n_rows: int, seed: int = 0) -> list[Any]:
    """Return the models of scikit-learn that a contender tries if it is no network; the mean has one only."""
    from sklearn import dummy, ensemble, linear_model
    from sklearn.model_selection import ParameterGrid

    strengths = [float(strength) for strength in np.logspace(-3, 4, N_SETTINGS)]
    if name == "mean":
        return [dummy.DummyRegressor()]
    if name == "prior":
        return [dummy.DummyClassifier(strategy="prior")]
    if name == "ridge":
        return [linear_model.Ridge(alpha=strength) for strength in strengths]
    if name == "logistic":
        return [linear_model.LogisticRegression(max_iter=2000, C=1 / strength) for strength in strengths]
    family, grid = "GradientBoosting", {"learning_rate": [0.03, 0.1], "max_depth": [2, 4], "n_estimators": [100, 300]}
    if n_rows > LARGE:
        family = "HistGradientBoosting"
        grid = {"learning_rate": [0.05, 0.15], "max_leaf_nodes": [8, 31], "max_iter": [100, 300]}
    kind = getattr(ensemble, family + ("Regressor" if task == "regression" else "Classifier"))
    return [kind(random_state=seed, **setting) for setting in ParameterGrid(grid)]


@dataclass(frozen=True)
class Condition(Labelled):
    """The table as it is, or one of the paper's ablations of it."""

    name: str
    label: str = ""
    train_size: int | None = None
    noise: float | None = None
    shift: float | None = None
    table: str = ""  # the digest of the rows


PLAIN = Condition("plain", "the table as it is")


def ablations(train_size: Levels, noise: Levels, shift: Levels) -> list[Condition]:
    """Return the conditions asked for beside the plain one."""
    made = []
    for level in _listed(train_size):
        n = _checks.count("train_size", level, minimum=FEWEST_TRAINING_ROWS)
        made.append(Condition(f"train-size-{n}", f"{n} training rows", train_size=n))
    for level in _listed(noise):
        beta = _checks.number("noise", level, 0.0, 1e6)
        made.append(Condition(f"noise-{beta:g}", f"noise of {beta:g} standard deviations", noise=beta))
    for level in _listed(shift):
        gamma = _checks.number("shift", level, 0.0, 1.0)
        made.append(Condition(f"shift-{gamma:g}", f"a shift of γ = {gamma:g}", shift=gamma))
    return list(dict.fromkeys(made))


def _listed(levels: Any) -> Sequence[Any]:
    if isinstance(levels, Sequence) and not isinstance(levels, str):
        return levels
    return () if levels is None else (levels,)
