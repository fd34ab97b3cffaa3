"""The survey as a study: every arm on 34 public tables, with few training rows and with many.

A split is random, or it trains inside (rows of the half nearest to the mean) and tests outside. Arms are those of the
comparison, tuned as there; `RLPRegressorCV` and its MSE-only twin choose among as many settings as each other. What
can be seen of a table beforehand is measured as one more arm, the traits.
"""

from __future__ import annotations

import itertools
import json
import math
import time
import tomllib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_predict
from threadpoolctl import threadpool_limits

from rlploss import _checks, datasets
from rlploss._values import from_json
from rlploss.compare.arms import Contender, contenders_for
from rlploss.compare.rows import SplitData
from rlploss.compare.train import Table, Trainer
from rlploss.datasets.splits import mahalanobis_region
from rlploss.datasets.tables import load_table, survey_tables
from rlploss.estimators import RLPClassifierCV, RLPRegressorCV
from rlploss.estimators.search import Split
from rlploss.lab.study import Cell, CellResult, Part, Tell, TrainedNetwork
from rlploss.training.job import Steps

STEPS, EVERY = 4000, 25  # the most of a network, and between its evaluations
MOST_TEST_ROWS = 1000
DRAWN = 0.75  # of the rows inside, and of those outside, so that splits differ
HALVES = ("development", "held-out", "all")
WINE = "wine"  # of the paper's datasets, and twice in the package; rules were tuned on it
TRAITS = "(traits)"  # no name that a reader's loss could have
FACTS = tomllib.loads(Path(__file__).with_name("survey.toml").read_text("utf-8"))
ARMS: dict[str, list[str]] = FACTS["arms"]
NETWORKS = {one.name for kind in ARMS for one in contenders_for(kind) if not one.model}
# The twin has no dial: it has twice the weight decays instead, so that both try 24 settings.
TWIN: dict[str, Any] = {"subset_sizes": (), "alphas": (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1)}
Draw = tuple[int, bool]  # training rows, and whether test rows lie outside


@dataclass(frozen=True)
class SurveyArm(Part):
    """An arm by its name in the comparison; `loss` is a reader's own, as JSON, so that any process can load it."""

    takes_steps = property(lambda self: bool(self.loss) or self.arm in NETWORKS)

    name: str
    arm: str
    loss: str = ""

    @property
    def family(self) -> str:
        """What a stored cell took corrects the time expected of its arm."""
        return self.arm


@dataclass(frozen=True)
class SurveyTask(Part):
    """A table, drawn with so many training rows, at random or inside and outside."""

    name: str
    table: str
    digest: str  # tells its file from another version of it
    rows: int
    outside: bool = False
    kind: str = "regression"

    @property
    def draw(self) -> Draw:
        """How rows of the table are drawn."""
        return self.rows, self.outside

    @property
    def family(self) -> str:
        """The number of training rows."""
        return str(self.rows)


SurveyCell = Cell[SurveyArm, SurveyTask]
SEEN = SurveyArm(TRAITS, TRAITS)


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    tables: tuple[str, ...]
    rows: tuple[int, ...] = (100, 1000)
    splits: int = 10
    steps: int = STEPS
    losses: tuple[tuple[str, str], ...] = ()  # name and JSON
    kind: str = "regression"

    def __post_init__(self) -> None:
        if not self.tables:
            raise ValueError("a survey needs at least one table, got none; rlploss survey --list shows them")
        for table in self.tables:
            _checks.one_of("table", table, table_names(self.kind))
        for rows in self.rows:
            _checks.count("rows", rows, minimum=20)
        _checks.count("splits", self.splits, minimum=2, maximum=1000)
        _checks.count("steps", self.steps)

    @property
    def arms(self) -> list[SurveyArm]:
        """The arms that are compared."""
        known = [SurveyArm(contender(name, self.kind).label, name) for name in ARMS[self.kind]]
        return known + [SurveyArm(name, name, loss) for name, loss in self.losses]

    @property
    def tasks(self) -> list[SurveyTask]:
        """Tables with few rows first, at random before outside; one that has no more rows is not drawn again."""
        made: dict[tuple[str, bool, int], SurveyTask] = {}
        for rows, outside, table in itertools.product(sorted(self.rows), (False, True), self.tables):
            name = f"{table}, {rows:,} rows" + (", outside" if outside else "")
            digest = "uci" if table == WINE else survey_tables()[table].sha256[:16]
            train, _ = drawn_rows(table, rows, outside).split(0)
            task = SurveyTask(name, table, digest, rows, outside, self.kind)
            made.setdefault((table, outside, len(train)), task)
        return list(made.values())

    def cells(self) -> list[SurveyCell]:
        """All cells, in the order in which they are trained: a stopped survey has whole tables with few rows."""
        return [self.cell(arm, task) for task in self.tasks for arm in (SEEN, *self.arms)]

    def cell(self, arm: SurveyArm, task: SurveyTask) -> SurveyCell:
        """One arm on one task: all its splits, half as many outside."""
        seeds = range(-(-self.splits // 2) if task.outside else self.splits)
        return Cell(arm, task, Steps(self.steps), tuple(seeds), evaluate_every=min(EVERY, max(1, self.steps // 8)))


def contender(name: str, kind: str, loss: str = "") -> Contender:
    """An arm as the comparison knows it."""
    if loss:
        return contenders_for(kind, None, {name: from_json(json.loads(loss))}, session=False)[-1]
    if name in FACTS["labels"][kind]:
        return Contender(name, FACTS["labels"][kind][name], model=name)
    return next(one for one in contenders_for(kind) if one.name == name)


# Tables


def table_names(kind: str = "regression", half: str = "all") -> list[str]:
    """The tables of a half by name; Wine, which the package has twice, is there once."""
    _checks.one_of("half", half, HALVES)
    names = [name for name, table in survey_tables().items() if table.classes == (kind == "classification")]
    names += [WINE] if kind == "regression" else []
    return [name for name in names if half in ("all", half_of(name))]


def half_of(table: str) -> str:
    """The half that a table is in; rules may have been tuned on development tables."""
    return "development" if table == WINE or survey_tables()[table].development else "held-out"


@lru_cache(maxsize=64)
def load_rows(table: str) -> SurveyRows:
    """The rows of a table."""
    if table == WINE:
        wine = datasets.load(WINE, progress=False)
        return SurveyRows(wine.X, wine.y.astype(np.float64), "regression")
    X, y = load_table(table, progress=False)
    if survey_tables()[table].classes:
        return SurveyRows(X, y.astype(np.int64), "classification", len(np.unique(y)))
    return SurveyRows(X, y, "regression")


@lru_cache(maxsize=256)
def drawn_rows(table: str, n_train: int, outside: bool) -> SurveyRows:
    """The rows of a table, of which at most so many train: at random, or inside with test rows outside."""
    return replace(load_rows(table), n_train=n_train, outside=outside)


@dataclass(frozen=True, eq=False)
class SurveyRows(Trainer):
    """Trains the arms of the comparison on one table, with splits and cross-validated arms of the survey."""

    n_train: int | None = None
    outside: bool = False
    logs = (False,)  # targets are taken as they are

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """The half of the rows that is nearest to the mean."""
        return mahalanobis_region(self.X)

    def split(self, seed: int) -> Split:
        """Return training and test rows: random ones, or inside and outside."""
        if not self.outside:
            train, test = super().split(seed)
            return train[: self.n_train], test[:MOST_TEST_ROWS]
        order = np.random.default_rng([seed, 0]).permutation(len(self.X))
        near, far = order[self.inside[order]], order[~self.inside[order]]
        return (
            near[: min(self.n_train or len(near), round(DRAWN * len(near)))],
            far[: min(MOST_TEST_ROWS, round(DRAWN * len(far)))],
        )

    def tries(self, arm: Contender, n_rows: int, seed: int) -> list[tuple[Any, bool]]:
        """Return the models that an arm tries."""
        if arm.model not in FACTS["labels"][self.task]:
            return super().tries(arm, n_rows, seed)
        made = RLPRegressorCV if self.task == "regression" else RLPClassifierCV
        return [(made(random_state=seed, **(TWIN if arm.model == "mse-cv" else {})), False)]


# Training


@dataclass(frozen=True, eq=False)
class SurveyTrainer:
    """Trains the cells of a survey. The tables come with it, so that workers need no data of their own."""

    tables: dict[str, SurveyRows]

    @classmethod
    def of(cls, names: Sequence[str]) -> SurveyTrainer:
        """A trainer with these tables."""
        return cls({name: load_rows(name) for name in names})

    def __call__(self, cell: SurveyCell, tell: Tell) -> CellResult:
        """Train one arm on one table with all its splits, or measure the table's traits."""
        rows = replace(self.tables[cell.task.table], n_train=cell.task.rows, outside=cell.task.outside)
        if cell.arm.arm == TRAITS:
            return _measure(rows, cell, tell)
        arm = contender(cell.arm.arm, cell.task.kind, cell.arm.loss)
        table = Table(cell.task.name, cell.task.digest)
        result = rows(Cell(arm, table, cell.budget, cell.seeds, evaluate_every=cell.evaluate_every), tell)
        return replace(result, networks=tuple(replace(one, artifacts={}) for one in result.networks))


def _measure(rows: SurveyRows, cell: SurveyCell, tell: Tell) -> CellResult:
    networks, began = [], time.perf_counter()
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optimisers that stop at a bound
        for done, seed in enumerate(cell.seeds, 1):
            started = time.perf_counter()
            found = traits(rows.data(seed)) | {"n_rows": float(len(rows.X))}
            networks.append(TrainedNetwork(seed, 0, {}, time.perf_counter() - started, found))
            tell(done / len(cell.seeds))
    return CellResult(tuple(networks), "none", 1, time.perf_counter() - began)


def traits(one: SplitData) -> dict[str, float]:
    """What a user can see of a split before training, all from training rows and from where the test rows lie.

    "linear": the share of a plane in what the best of plane, trees and kernel regression explains of held-out rows.
    "noise": the standard deviation of what none of them explains, in units of the target's. "distance": how far the
    median test row lies from the mean, over the median training row, in Mahalanobis distance.
    """
    trees = ExtraTreesRegressor(50, min_samples_leaf=2, random_state=0)
    models = RidgeCV(np.logspace(-3, 4, 8)), trees, KernelRidge(alpha=0.1, kernel="rbf")
    Y = one.scale().matrix(one.y).squeeze()
    left = [np.sum((Y - cross_val_predict(model, one.X, Y, cv=3)) ** 2) for model in models]
    plane, *curved = 1 - np.array(left) / np.sum((Y - Y.mean(axis=0)) ** 2)
    best = float(np.clip(max(plane, *curved), 0.01, 1.0))
    centre = one.X.mean(axis=0)
    _, s, V = np.linalg.svd(one.X - centre, full_matrices=False)
    varies = s > 1e-6 * s[0]
    apart = [(part - centre) @ V[varies].T / s[varies] for part in (one.X, one.X_test)]
    near, far = (np.median(np.linalg.norm(part, axis=1)) for part in apart)
    return {
        "rows": float(len(one.X)),
        "columns": float(one.X.shape[1]),
        "linear": float(np.clip(plane / best, 0.0, 1.0)),
        "noise": math.sqrt(1 - best),
        "distance": float(far / near),
    }


def expected_seconds(cell: SurveyCell) -> float:
    """Seconds on one core; stored cells correct it."""
    rows = load_rows(cell.task.table)
    n, d = min(cell.task.rows, len(rows.X)), rows.X.shape[1]
    costs = FACTS["cost"]
    start, more = costs["own"] if cell.arm.loss else costs.get(cell.arm.arm, costs["network"])
    each = start + more * n / 1000 * (1 + d / 50)
    return len(cell.seeds) * float(each) * min(1.0, 0.2 + cell.budget.n / STEPS)
