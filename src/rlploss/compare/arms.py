"""What is compared: names and estimators of scikit-learn, in two literal tables.

Every network tries twelve settings: three learning rates times four values of what is its own: the
batch size of a plain loss, the weight decay of L2, the shape of mixup, the subset size of RLP (both
ends of the dial among them). Where an arm has a third thing to choose, its four values are spread
over the twelve as in a Latin square.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn import ensemble
from sklearn.base import clone
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from sklearn.model_selection import ParameterGrid

from rlploss import _checks
from rlploss._values import Value, plain
from rlploss.estimators import NetworkClassifierCV, NetworkRegressorCV, RLPRegressorCV
from rlploss.estimators.tuned import FewRowsGP, TunedClassifier, TunedRegressor
from rlploss.lab.study import Part, as_loss, canonical_json

RATES = (1e-3, 3e-3, 1e-2)
DECAYS = (1e-3, 1e-2, 3e-2, 1e-1)
BATCHES = (20, 50, 100, "auto")
SHAPES = (0.1, 0.25, 0.5, 1.0)
DIAL = ("auto", 0.85, 1.0)  # beside the MSE end: its middle, and up to all rows
N_SETTINGS = len(RATES) * len(BATCHES)
STRENGTHS = [float(strength) for strength in np.logspace(-3, 4, 8)]
ELASTIC = list(ParameterGrid({"alpha": np.logspace(-3, 0, 4).tolist(), "l1_ratio": [0.5, 1.0]}))
LEAVES = [{"min_samples_leaf": n, "max_features": 1.0} for n in (1, 3, 8)]
FEWER_TREES = {"n_estimators": 12}  # while settings are chosen, which ranks them as well
STAGES = (10, 20, 40, 80)  # trees of boosting to choose from
SMALL_BOOSTING = (
    list(ParameterGrid({"learning_rate": [0.15], "max_depth": [2, 4]})),
    ("n_estimators", STAGES),
)
LARGE_BOOSTING = (
    list(ParameterGrid({"learning_rate": [0.15, 0.4], "max_leaf_nodes": [6, 20]})),
    ("max_iter", STAGES),
)
LARGE = 500  # training rows beyond which boosting works on histograms
BASELINES = ("mean", "prior")
QUICK = {
    "regression": ("mean", "ridge", "boosting", "trees", "mse", "mse+l2", "rlp"),
    "classification": ("prior", "logistic", "boosting", "trees", "cross_entropy", "mse", "rlp"),
}


@dataclass(frozen=True)
class Raw:
    """An estimator of `models=` that is fitted on the raw frame, not on encoded numbers.

    >>> from sklearn.linear_model import Ridge
    >>> models = {"ridge on the frame": Raw(Ridge())}  # for compare(X, y, models=models)
    """

    estimator: Any


@dataclass(frozen=True, eq=False)
class EstimatorArm(Part):
    """One way to predict: an estimator of scikit-learn under the name that `--arms` takes.

    `role` is "baseline", "model", "network" (without RLP), "rlp" or "mixture" (of both).
    """

    name: str
    label: str = ""  # what every line, table and figure calls it
    role: str = ""
    estimator: Any = None
    style: str = "grey"  # in figures
    raw: bool = False  # whether it is fitted on the raw frame
    session: bool = False  # whether nobody could make it again in another session

    @property
    def family(self) -> str:
        """What makes it: its cells take about the same time."""
        return canonical_json(_described(self.estimator))

    @property
    def takes_steps(self) -> bool:
        """Whether it is trained for the budget of its cell."""
        return self.role in ("network", "rlp")

    @property
    def mixes_rows(self) -> bool:
        """Whether it is trained with mixup."""
        return getattr(self.estimator, "mixup", None) is not None

    def to_json(self) -> dict[str, Any]:
        """Return what decides a result as plain data."""
        described = self.name if self.session else _described(self.estimator)
        role = "mixup" if self.mixes_rows else self.role  # which says what it costs
        return {"kind": "EstimatorArm", "raw": self.raw, "role": role, "estimator": described}


def _described(value: Any) -> Any:
    """Return what makes an estimator as plain data; of a class of no package, a digest of its
    code.
    """
    if isinstance(value, list | tuple):
        return [_described(part) for part in value]
    if isinstance(value, dict):
        return [[name, _described(part)] for name, part in value.items()]
    if not hasattr(value, "get_params"):
        known = value is None or isinstance(value, bool | int | float | str | Value)
        return plain(value) if known else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    kind, digest = type(value), ""
    if kind.__module__.partition(".")[0] not in ("sklearn", "rlploss"):
        digest = hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
    parameters = sorted(value.get_params(deep=False).items())
    return [kind.__qualname__, digest, *([name, _described(part)] for name, part in parameters)]


def regression_arms(n_train: int, *, steps: int, log: bool | str) -> tuple[EstimatorArm, ...]:
    """Return the arms for numbers, made for so many training rows and steps."""

    def network(loss: Any, **own: Any) -> NetworkRegressorCV:
        return NetworkRegressorCV(loss=loss, log_target=log, **_searched(steps, own))

    def tuned(model: Any, grid: Sequence[Mapping[str, Any]] = ({},), **how: Any) -> TunedRegressor:
        return TunedRegressor(model, grid, log_target=log, **how)

    boosting: Any = ensemble.GradientBoostingRegressor(subsample=0.7)
    if n_train > LARGE:
        boosting = ensemble.HistGradientBoostingRegressor(early_stopping=False)
    grid, trees = LARGE_BOOSTING if n_train > LARGE else SMALL_BOOSTING
    mixture = RLPRegressorCV(
        cv=3, activations=("relu",), max_iter=40, max_doublings=1, log_target=log
    )
    extra, net = ensemble.ExtraTreesRegressor(), ElasticNet(max_iter=3000, tol=1e-3)
    ridge = [{"alpha": strength} for strength in STRENGTHS]
    arm = EstimatorArm
    return (
        arm("mean", "the mean", "baseline", DummyRegressor()),
        arm("ridge", "ridge regression", "model", tuned(Ridge(), ridge)),
        arm("lasso", "elastic net", "model", tuned(net, ELASTIC)),
        arm("boosting", "gradient boosting", "model", tuned(boosting, grid, stages=trees)),
        arm("trees", "extra trees", "model", tuned(extra, LEAVES, quick=FEWER_TREES)),
        arm("gp", "Gaussian process", "model", tuned(FewRowsGP())),
        arm("mse", "MSE", "network", network("mse", batch_size=BATCHES), "blue"),
        arm("mae", "MAE", "network", network("mae", batch_size=BATCHES), "grey"),
        arm("huber", "Huber", "network", network("huber", batch_size=BATCHES), "blue"),
        arm("mse+l2", "MSE+L2", "network", network("mse", alphas=DECAYS), "green"),
        arm("mse+mixup", "MSE+mixup", "network", network("mse", mixup=SHAPES), "ochre"),
        arm("rlp", "RLP", "rlp", network("rlp"), "vermillion"),
        arm("rlp+l2", "RLP+L2", "rlp", network("rlp", alphas=DECAYS), "purple"),
        arm("rlp+mixup", "RLP+mixup", "rlp", network("rlp", mixup=SHAPES), "purple"),
        arm("rlp-cv", "RLPRegressorCV", "mixture", mixture, "vermillion"),
    )


def classification_arms(n_train: int, *, steps: int) -> tuple[EstimatorArm, ...]:
    """Return the arms for classes, made for so many training rows and steps."""

    def network(loss: Any, **own: Any) -> NetworkClassifierCV:
        return NetworkClassifierCV(loss=loss, **_searched(steps, own))

    tuned = TunedClassifier
    boosting: Any = ensemble.GradientBoostingClassifier(subsample=0.7)
    if n_train > LARGE:
        boosting = ensemble.HistGradientBoostingClassifier(early_stopping=False)
    grid, trees = LARGE_BOOSTING if n_train > LARGE else SMALL_BOOSTING
    extra, logistic = ensemble.ExtraTreesClassifier(), LogisticRegression(max_iter=2000)
    inverse = [{"C": 1 / strength} for strength in STRENGTHS]
    entropy, arm = "cross_entropy", EstimatorArm
    mixed = network(entropy, mixup=SHAPES)
    return (
        arm("prior", "the class frequencies", "baseline", DummyClassifier(strategy="prior")),
        arm("logistic", "logistic regression", "model", tuned(logistic, inverse)),
        arm("boosting", "gradient boosting", "model", tuned(boosting, grid, stages=trees)),
        arm("trees", "extra trees", "model", tuned(extra, LEAVES, quick=FEWER_TREES)),
        arm(entropy, "cross entropy", "network", network(entropy, batch_size=BATCHES), "blue"),
        arm(
            f"{entropy}+l2", "cross entropy+L2", "network", network(entropy, alphas=DECAYS), "green"
        ),
        arm(f"{entropy}+mixup", "cross entropy+mixup", "network", mixed, "ochre"),
        arm("mse", "MSE", "network", network("mse", batch_size=BATCHES), "grey"),
        arm("mse+l2", "MSE+L2", "network", network("mse", alphas=DECAYS), "ochre"),
        arm("rlp", "RLP", "rlp", network("rlp"), "vermillion"),
        arm("rlp+l2", "RLP+L2", "rlp", network("rlp", alphas=DECAYS), "purple"),
        arm("rlp+mixup", "RLP+mixup", "rlp", network("rlp", mixup=SHAPES), "purple"),
    )


def _searched(steps: int, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a network: its own, and what all arms have in common."""
    return {
        "subset_sizes": DIAL,
        "alphas": (0.0,),
        "learning_rates": RATES,
        "activations": ("relu",),
        "latin": True,
        "cv": "auto",
        "max_steps": steps,
        **own,
    }


def arms_for(
    task: str,
    n_train: int = LARGE,
    *,
    names: Sequence[str] | None = None,
    losses: Mapping[str, Any] | None = None,
    models: Mapping[str, Any] | None = None,
    steps: int = 4000,
    log: bool | str = "auto",
    session: bool = True,
) -> tuple[EstimatorArm, ...]:
    """Return the arms of a task, all or the ones named, and those of a reader's own losses and
    models; refuse fewer than two.

    `session`: nothing is kept beyond this session, so that a loss may be a function which only this
    session has.
    """
    if task == "regression":
        known = regression_arms(n_train, steps=steps, log=log)
    else:
        known = classification_arms(n_train, steps=steps)
    template = next(arm for arm in known if arm.name == "mse")
    taken = {arm.name for arm in known}
    own = []
    for name, loss in (losses or {}).items():
        objective = as_loss(name, loss, taken)
        network = clone(template.estimator).set_params(loss=objective)
        own.append(EstimatorArm(name, name, "network", network, "ochre", session=session))
    taken |= {arm.name for arm in own}
    for name, model in (models or {}).items():
        own.append(replace(model_arm(name, model, taken), session=session))
    if names is None:
        return (*known, *own)
    for name in names:
        _checks.one_of("arms", name, [arm.name for arm in (*known, *own)])
    chosen = (*(arm for arm in known if arm.name in names), *own)
    if len(chosen) < 2:
        raise ValueError(
            "arms must name at least two different arms to compare, got"
            f" {', '.join(names) or 'none'}"
        )
    return chosen


def model_arm(name: str, model: Any, taken: Container[str]) -> EstimatorArm:
    """Return the arm of anyone's estimator, or of one marked `Raw`."""
    if not name or name in taken:
        raise ValueError(
            f"a model of your own needs a name that no arm has, got {name!r}; rename it"
        )
    raw = isinstance(model, Raw)
    estimator = model.estimator if raw else model
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        raise TypeError(
            f"the model {name!r} must be an estimator with fit and predict, got {estimator!r}; make"
            " one"
        )
    return EstimatorArm(name, name, "model", estimator, raw=raw)
