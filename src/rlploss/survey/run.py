"""Define the survey as a study: every arm on public tables, with few training rows and with
many.

A split is random, or it trains inside (on rows of the half nearest to the mean) and tests outside.
The arms are those of `rlploss compare`, tuned in the same way. `RLPRegressorCV` and its MSE-only
twin choose among equally many settings.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlploss import _checks
from rlploss._values import from_json
from rlploss.compare import train
from rlploss.compare.arms import EstimatorArm, arms_for
from rlploss.datasets.tables import survey_tables
from rlploss.estimators import RLPClassifierCV, RLPRegressorCV
from rlploss.lab import cost
from rlploss.lab.study import Cell, CellResult, Part, Tell
from rlploss.survey.tables import FACTS, TWIN, WINE, SurveyRows, drawn_rows, load_rows, table_names
from rlploss.training.job import Steps

# The files that decide a number.
DECIDING = (
    *(*train.DECIDING, "datasets/readers.py", "datasets/splits.py", "datasets/tables.py"),
    *("survey/run.py", "survey/tables.py"),
)
STEPS, EVERY = 4000, 25  # the most steps of a network, and the steps between its evaluations
ARMS: dict[str, list[str]] = FACTS["arms"]
NETWORKS = {arm.name for kind in ARMS for arm in arms_for(kind, 100) if arm.takes_steps}
Draw = tuple[int, bool]  # number of training rows, and whether test rows lie outside


@dataclass(frozen=True)
class SurveyArm(Part):
    """An arm by its name in `rlploss compare`; `loss` is a user's loss as JSON, so that any process
    can load it.
    """

    takes_steps = property(lambda self: bool(self.loss) or self.arm in NETWORKS)

    name: str
    arm: str
    loss: str = ""

    @property
    def family(self) -> str:
        """The arm: the seconds of its stored cells correct its expected time."""
        return self.arm


@dataclass(frozen=True)
class SurveyTask(Part):
    """A table with a number of training rows, drawn at random or inside."""

    name: str
    table: str
    digest: str  # identifies the version of its file
    rows: int
    outside: bool = False
    kind: str = "regression"

    @property
    def draw(self) -> Draw:
        """How rows of the table are drawn: their number, and whether test rows lie outside."""
        return self.rows, self.outside

    @property
    def family(self) -> str:
        """The number of training rows."""
        return str(self.rows)


SurveyCell = Cell[SurveyArm, SurveyTask]


@dataclass(frozen=True)
class SurveyRequest:
    """The settings of a survey: its tables, their rows and splits, and the arms."""

    tables: tuple[str, ...]
    rows: tuple[int, ...] = (100, 1000)
    splits: int = 10
    steps: int = STEPS
    losses: tuple[tuple[str, str], ...] = ()  # name and JSON
    kind: str = "regression"

    def __post_init__(self) -> None:
        if not self.tables:
            raise ValueError(
                "a survey needs at least one table, got none; rlploss survey --list shows them"
            )
        for table in self.tables:
            _checks.one_of("table", table, table_names(self.kind))
        for rows in self.rows:
            _checks.count("rows", rows, minimum=20)
        _checks.count("splits", self.splits, minimum=2, maximum=1000)
        _checks.count("steps", self.steps)

    @property
    def arms(self) -> list[SurveyArm]:
        """The arms to compare."""
        known = [SurveyArm(label_of(name, self.kind), name) for name in ARMS[self.kind]]
        return known + [SurveyArm(name, name, loss) for name, loss in self.losses]

    @property
    def tasks(self) -> list[SurveyTask]:
        """The tables with few rows first, and random splits before outside ones. A table with no
        more rows is not drawn again.
        """
        tasks: dict[tuple[str, bool, int], SurveyTask] = {}
        for rows, outside, table in itertools.product(
            sorted(self.rows), (False, True), self.tables
        ):
            name = f"{table}, {rows:,} rows" + (", outside" if outside else "")
            digest = "uci" if table == WINE else survey_tables()[table].sha256[:16]
            train, _ = drawn_rows(table, rows, outside).split(0)
            task = SurveyTask(
                name, table, digest=digest, rows=rows, outside=outside, kind=self.kind
            )
            tasks.setdefault((table, outside, len(train)), task)
        return list(tasks.values())

    def cells(self) -> list[SurveyCell]:
        """Return all cells in training order, so that a stopped survey has complete tables with few
        rows.
        """
        return [self.cell(arm, task) for task in self.tasks for arm in self.arms]

    def cell(self, arm: SurveyArm, task: SurveyTask) -> SurveyCell:
        """Return the cell of one arm on one task with all its splits; outside there are half as
        many.
        """
        return Cell(
            arm,
            task,
            Steps(self.steps),
            tuple(range(-(-self.splits // 2) if task.outside else self.splits)),
            evaluate_every=min(EVERY, max(1, self.steps // 8)),
        )


def label_of(name: str, kind: str) -> str:
    """Return the label of an arm."""
    return estimator_arm(SurveyArm("", name), kind=kind, n_train=100, steps=STEPS).label


def estimator_arm(arm: SurveyArm, kind: str, n_train: int, steps: int) -> EstimatorArm:
    """Return an arm as `rlploss compare` trains it on `n_train` rows, without logarithms of
    targets.
    """
    own = {arm.arm: from_json(json.loads(arm.loss))} if arm.loss else {}
    if not own and arm.arm in FACTS["labels"][kind]:
        cls = {"regression": RLPRegressorCV, "classification": RLPClassifierCV}[kind]
        estimator = cls(**(TWIN if arm.arm == "mse-cv" else {}))
        return EstimatorArm(arm.arm, FACTS["labels"][kind][arm.arm], "mixture", estimator)
    known = arms_for(kind, n_train, losses=own, steps=steps, log=False)
    return next(candidate for candidate in known if candidate.name == arm.arm)


# Training


@dataclass(frozen=True, eq=False)
class SurveyTrainer:
    """Trains the cells of a survey. It carries the tables, so workers need no data of their own."""

    tables: dict[str, SurveyRows]

    @classmethod
    def of(cls, names: Sequence[str]) -> SurveyTrainer:
        """Return a trainer that carries these tables."""
        return cls({name: load_rows(name) for name in names})

    def __call__(self, cell: SurveyCell, tell: Tell) -> CellResult:
        """Train one arm on one table with all its splits."""
        rows = replace(
            self.tables[cell.task.table], n_train=cell.task.rows, outside=cell.task.outside
        )
        n_train = len(rows.split(cell.seeds[0])[0])
        arm = estimator_arm(cell.arm, kind=cell.task.kind, n_train=n_train, steps=cell.budget.n)
        table = train.Table(cell.task.name, cell.task.digest)
        result = rows(Cell(arm, table, cell.budget, cell.seeds), tell)
        size = float(len(rows.X))  # of the whole table, for the tests over its splits
        networks = (
            replace(network, values={**network.values, "n_rows": size}, artifacts={})
            for network in result.networks
        )
        return replace(result, networks=tuple(networks))


def expected_seconds(cell: SurveyCell) -> float:
    """Return the expected seconds on one core; stored cells correct them."""
    rows = load_rows(cell.task.table)
    n, d = min(cell.task.rows, len(rows.X)), rows.X.shape[1]
    family = cell.arm.arm if cell.arm.arm in cost.PRICES else "network"
    splits = len(cell.seeds) * min(1.0, 0.2 + cell.budget.n / STEPS)
    return cost.expected_seconds(
        "own loss" if cell.arm.loss else family, splits, rows=n * (1 + d / 50)
    )
