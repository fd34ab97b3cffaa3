"""One arm on one split: clone, fit on the training rows, predict the test rows once, measure."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter
from threadpoolctl import threadpool_limits

from rlploss._scaling import Array
from rlploss._torch import one_torch_thread
from rlploss.compare.arms import EstimatorArm
from rlploss.compare.metrics import measure
from rlploss.compare.rows import Rows
from rlploss.estimators.network_cv import NetworkCV
from rlploss.estimators.table import TableWarning
from rlploss.estimators.tuned import Tuned
from rlploss.lab import cost
from rlploss.lab.store import TRAINING
from rlploss.lab.study import Cell, CellResult, Part, Tell, TrainedNetwork
from rlploss.training.job import Steps

DECIDING = (
    *(*TRAINING, "estimators/*.py"),
    *("compare/arms.py", "compare/metrics.py", "compare/rows.py", "compare/train.py"),
)  # files that decide a number


@dataclass(frozen=True)
class Table(Part):
    """The rows that a cell is trained on."""

    name: str
    digest: str


ComparisonCell = Cell[EstimatorArm, Table]


class Trainer(Rows):
    """Trains cells of a comparison on one table; small enough to be sent to another process."""

    def __call__(self, cell: ComparisonCell, tell: Tell) -> CellResult:
        """Train one arm on the splits of a cell with one thread, and return what it reached."""
        started = time.perf_counter()
        with warnings.catch_warnings(record=True) as told, threadpool_limits(1), one_torch_thread():
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", TableWarning)  # of test rows, which are the table's
            networks = tuple(self.train(cell.arm, seed) for seed in cell.seeds)
        notes = tuple(dict.fromkeys(" ".join(str(w.message).split())[:300] for w in told))
        return CellResult(networks, "none", 1, time.perf_counter() - started, notes)

    def cell(self, arm: EstimatorArm, seed: int, steps: int) -> ComparisonCell:
        """Return the cell of one arm on one split."""
        return Cell(arm, Table("the table", self.digest), Steps(steps), (seed,))

    def train(self, arm: EstimatorArm, seed: int) -> TrainedNetwork:
        """Return what an arm reaches on one split. Its test rows are used here only, once."""
        started = time.perf_counter()
        train, test = self.split(seed)
        model = self.fit(arm, train, seed)
        predicted = self.outputs(model, self.frame.iloc[test])
        fitted, truth = model[-1], self.y[test]
        values = {"n_train": float(len(train)), "n_test": float(len(test)), "log": 0.0}
        # errors have more digits than predictions would
        test_rows = predicted if self.n_classes else predicted - truth[:, None]
        curve, kept = {}, {"test": test_rows.astype(np.float32)}
        if isinstance(fitted, NetworkCV):
            best = fitted.best_params_
            values |= {name: float(best[name]) for name in ("log", "n_steps")}
            values |= {"subset_size": float(best["subset_size"] or 0), "late": float(fitted.late_)}
            curve = fitted.curve()
            kept |= {name: array.astype(np.float32) for name, array in fitted.dial().items()}
        elif isinstance(fitted, Tuned):
            values["log"] = float(fitted.best_params_["log"])
        values |= measure(self.task, predicted, truth)
        seconds = time.perf_counter() - started
        return TrainedNetwork(seed, 0, curve, seconds, values, kept)

    def fit(
        self, arm: EstimatorArm, train: NDArray[np.int64], seed: int, *, y: Any = None
    ) -> Pipeline:
        """Return the pipeline of an arm, fitted to training rows; `y` replaces the target.

        Folds are handed on where times or groups make them; whoever takes none makes its own.
        """
        first = clone(self.encoder).set_params(raw=arm.raw)
        model = Pipeline([("table", first), ("model", clone(arm.estimator))])
        random = {
            name: seed
            for name, value in model.get_params().items()
            if name.split("__")[-1] == "random_state" and value is None
        }
        folds, given = self.folds(train, seed), {}
        if folds is not None and has_fit_parameter(model[-1], "folds"):
            given = {"model__folds": folds}
        return model.set_params(**random).fit(
            self.frame.iloc[train], self.y[train] if y is None else y[train], **given
        )

    def outputs(self, model: Pipeline, X: Any) -> Array:
        """Return predictions [n, C]: numbers, or chances of all classes."""
        if not self.n_classes:
            return np.asarray(model.predict(X), dtype=np.float64).reshape(len(X), 1)
        wide = np.zeros((len(X), self.n_classes))
        if hasattr(model, "predict_proba"):
            wide[:, model.classes_.astype(int)] = model.predict_proba(X)
        else:
            wide[np.arange(len(X)), np.asarray(model.predict(X), dtype=int)] = 1.0
        return wide

    def expected_seconds(self, cell: ComparisonCell) -> float:
        """Return a rough cost on one core, for the time left; stored cells correct it."""
        kind = "mixup" if cell.arm.mixes_rows else cell.arm.role
        return cost.expected_seconds(f"split of {kind}", len(cell.seeds), rows=self.weight)

    @property
    def weight(self) -> float:
        """The training rows of a narrow table that would take as long as these."""
        n, d = self.X.shape
        return float(n * (1 + d / 50))
