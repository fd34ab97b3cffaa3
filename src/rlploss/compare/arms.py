"""What is compared: contenders with the settings that each of them tries.

Every network arm tries twelve settings: three learning rates times four values of what is its own:
the batch size of a plain loss, the weight decay of L2, the shape of mixup, the subset size of RLP
(both ends of the dial among them). Where an arm has a third thing to choose, its four values are
spread over the twelve as in a Latin square.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from rlploss import _checks
from rlploss.estimators.search import BATCH, DIALS, Dial, objective_at
from rlploss.lab.study import Part, as_loss
from rlploss.training.job import Adam
from rlploss.training.objectives import MAE, MSE, RLP, CrossEntropy, Huber, Objective

HIDDEN = (100,)
MOST_ROWS_IN_A_SUBSET = 2000  # beyond, a step would cost more than the comparison is worth
LARGE = 500  # training rows beyond which boosting works on histograms
GP_ROWS = (150, 1000)  # from which a Gaussian process has its hyperparameters, and its predictions
BASELINES = ("mean", "prior")
STAGES = (10, 20, 40, 80)  # trees of boosting to choose from

RATES = (1e-3, 3e-3, 1e-2)
DECAYS = (1e-3, 1e-2, 3e-2, 1e-1)
BATCHES = (20, 50, 100, BATCH)
SHAPES = (0.1, 0.25, 0.5, 1.0)
N_SETTINGS = len(RATES) * len(DIALS)


@dataclass(frozen=True)
class Setting:
    """One setting of a network; the dial gives RLP its subset size."""

    objective: Objective
    dial: Dial | None
    optimizer: Adam
    log: bool = False  # whether it predicts the logarithm of the target

    def objective_for(self, n_rows: int, n_features: int) -> Objective:
        """Return the objective for so many rows: no batch is larger, and subsets no larger than the
        columns are MSE.
        """
        if self.dial is None or not isinstance(self.objective, RLP):
            return self.objective.resolve(n_rows, n_features)
        size = self.dial.subset_size(min(n_rows, MOST_ROWS_IN_A_SUBSET), n_features + 1)
        most = max(20, min(200, 100_000 // size))
        return objective_at(self.objective, size, n_rows, n_features, most_subsets=most)

    def subset_size(self, n_rows: int, n_features: int) -> int | None:
        """Return M for so many rows; None without subsets, and where RLP is MSE."""
        made = self.objective_for(n_rows, n_features)
        return made.subset_size if isinstance(made, RLP) else None


@dataclass(frozen=True)
class Contender(Part):
    """One way to predict: a network with a loss, or a model of scikit-learn.

    `own` is what a network varies beside the learning rate: "batch", "decay", "shape" or nothing.
    """

    labels = frozenset({"name", "label", "style"})
    takes_steps = property(lambda self: not self.model)  # networks do

    name: str
    label: str = ""
    style: str = "grey"  # in figures
    objective: Objective | None = None
    own: str = ""
    model: str = ""  # what is no network
    session: str = ""  # names a loss that nobody could find again in another session

    def __str__(self) -> str:
        return self.label

    def to_json(self) -> dict[str, Any]:
        """Return all fields that decide a result as plain data."""
        return super().to_json() | ({"objective": self.session} if self.session else {})

    @property
    def family(self) -> str:
        """The model or the objective: predicted times of one family are wrong by the same
        factor.
        """
        return self.model or type(self.objective).__name__

    @property
    def is_rlp(self) -> bool:
        """Whether the subset size is its dial."""
        return isinstance(self.objective, RLP)

    @property
    def gives_logits(self) -> bool:
        """Whether the outputs of its network are logits."""
        return isinstance(self.objective, CrossEntropy)

    @property
    def settings(self) -> list[Setting]:
        """What a network tries."""
        made, objective = [], cast(Any, self.objective)
        for i, dial in enumerate(DIALS):
            for j, rate in enumerate(RATES):
                k = (i + j) % len(DIALS) if self.is_rlp else i  # the third choice of RLP goes round
                changed: dict[str, Any] = {"mixup": SHAPES[k]} if self.own == "shape" else {}
                if not self.is_rlp:
                    changed["batch_size"] = BATCHES[i] if self.own == "batch" else BATCH
                optimizer = Adam(rate, DECAYS[k]) if self.own == "decay" else Adam(rate)
                made.append(
                    Setting(replace(objective, **changed), dial if self.is_rlp else None, optimizer)
                )
        return made


_RLP = (
    Contender("rlp", "RLP", "vermillion", RLP(), ""),
    Contender("rlp+l2", "RLP+L2", "purple", RLP(), "decay"),
    Contender("rlp+mixup", "RLP+mixup", "purple", RLP(), "shape"),
)
REGRESSION = (
    Contender("mean", "the mean", model="mean"),
    Contender("ridge", "ridge regression", model="ridge"),
    Contender("lasso", "elastic net", model="lasso"),
    Contender("boosting", "gradient boosting", model="boosting"),
    Contender("trees", "extra trees", model="trees"),
    Contender("gp", "Gaussian process", model="gp"),
    Contender("mse", "MSE", "blue", MSE(), "batch"),
    Contender("mae", "MAE", "grey", MAE(), "batch"),
    Contender("huber", "Huber", "blue", Huber(), "batch"),
    Contender("mse+l2", "MSE+L2", "green", MSE(), "decay"),
    Contender("mse+mixup", "MSE+mixup", "ochre", MSE(), "shape"),
    *_RLP,
    Contender("rlp-cv", "RLPRegressorCV", "vermillion", model="rlp-cv"),
)
CLASSIFICATION = (
    Contender("prior", "the class frequencies", model="prior"),
    Contender("logistic", "logistic regression", model="logistic"),
    Contender("boosting", "gradient boosting", model="boosting"),
    Contender("trees", "extra trees", model="trees"),
    Contender("cross_entropy", "cross entropy", "blue", CrossEntropy(), "batch"),
    Contender("cross_entropy+l2", "cross entropy+L2", "green", CrossEntropy(), "decay"),
    Contender("cross_entropy+mixup", "cross entropy+mixup", "ochre", CrossEntropy(), "shape"),
    Contender("mse", "MSE", "grey", MSE(), "batch"),
    Contender("mse+l2", "MSE+L2", "ochre", MSE(), "decay"),
    *_RLP,
)
QUICK = {
    "regression": ("mean", "ridge", "boosting", "trees", "mse", "mse+l2", "rlp"),
    "classification": ("prior", "logistic", "boosting", "trees", "cross_entropy", "mse", "rlp"),
}


def contenders_for(
    task: str,
    names: Sequence[str] | None = None,
    losses: Mapping[str, Any] | None = None,
    *,
    session: bool = True,
) -> tuple[Contender, ...]:
    """Return the contenders of a task, all or the ones named, and those of a reader's losses;
    refuse fewer than two.

    `session`: nothing is kept beyond this session, so that a loss may be a function which only this
    session has.
    """
    known = REGRESSION if task == "regression" else CLASSIFICATION
    taken = [one.name for one in known]
    made = {name: as_loss(name, loss, taken) for name, loss in (losses or {}).items()}
    own = tuple(
        Contender(
            name, name, "ochre", loss, "batch", session=f"{name} of this session" if session else ""
        )
        for name, loss in made.items()
    )
    if names is None:
        return known + own
    for name in names:
        _checks.one_of("arms", name, [contender.name for contender in (*known, *own)])
    chosen = tuple(contender for contender in known if contender.name in names) + own
    if len(chosen) < 2:
        raise ValueError(
            "arms must name at least two different arms to compare, got"
            f" {', '.join(names) or 'none'}"
        )
    return chosen


def tuned(model: str, task: str, n_rows: int, seed: int = 0) -> list[Any]:
    """Return the models of scikit-learn that a contender tries if it is no network; some choose for
    themselves.
    """
    from sklearn import dummy, ensemble, gaussian_process, linear_model
    from sklearn.gaussian_process import kernels
    from sklearn.model_selection import ParameterGrid

    strengths = [float(strength) for strength in np.logspace(-3, 4, 8)]
    if model == "mean":
        return [dummy.DummyRegressor()]
    if model == "prior":
        return [dummy.DummyClassifier(strategy="prior")]
    if model == "ridge":
        return [linear_model.Ridge(alpha=strength) for strength in strengths]
    if model == "logistic":
        return [
            linear_model.LogisticRegression(max_iter=2000, C=1 / strength) for strength in strengths
        ]
    if model == "lasso":
        penalties = ParameterGrid({"alpha": np.logspace(-3, 0, 4).tolist(), "l1_ratio": [0.5, 1.0]})
        return [
            linear_model.ElasticNet(**penalty, max_iter=3000, tol=1e-3, random_state=seed)
            for penalty in penalties
        ]
    if model == "gp":
        kernel = (
            kernels.ConstantKernel() * kernels.RBF() + kernels.DotProduct() + kernels.WhiteKernel()
        )
        return [gaussian_process.GaussianProcessRegressor(kernel, random_state=seed)]
    if model == "rlp-cv":
        from rlploss.estimators import RLPRegressorCV

        return [
            RLPRegressorCV(
                cv=3, activations=("relu",), max_iter=40, max_doublings=1, random_state=seed
            )
        ]
    kind = "Regressor" if task == "regression" else "Classifier"
    if model == "trees":
        grid = ParameterGrid({"min_samples_leaf": [1, 3, 8], "max_features": [1.0]})
        return [
            getattr(ensemble, f"ExtraTrees{kind}")(100, random_state=seed, **setting)
            for setting in grid
        ]
    if n_rows > LARGE:
        grid = ParameterGrid({"learning_rate": [0.15, 0.4], "max_leaf_nodes": [6, 20]})
        made = getattr(ensemble, f"HistGradientBoosting{kind}")
        return [
            made(max_iter=STAGES[-1], early_stopping=False, random_state=seed, **setting)
            for setting in grid
        ]
    grid = ParameterGrid({"learning_rate": [0.15], "max_depth": [2, 4]})
    made = getattr(ensemble, f"GradientBoosting{kind}")
    return [
        made(n_estimators=STAGES[-1], subsample=0.7, random_state=seed, **setting)
        for setting in grid
    ]
