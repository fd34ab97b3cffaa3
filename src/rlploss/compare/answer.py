"""What `compare` returns: the results, what they say, the table, the report and the model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rlploss._scaling import Array
from rlploss.compare import words
from rlploss.compare.arms import EstimatorArm
from rlploss.compare.design import Design
from rlploss.compare.expected import Expected
from rlploss.compare.importance import importance
from rlploss.compare.metrics import METRICS, Metric
from rlploss.compare.result import Answer, ArmResult, Results
from rlploss.compare.train import Trainer
from rlploss.lab import stats
from rlploss.lab.study import StoredCell

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

FITS = 5  # splits on which the winner is trained once more, to see which columns matter


@dataclass(frozen=True)
class Comparison:
    """What a comparison found. `.table`, `.summary()`, `.best_model()`, `.write(directory)`.

    >>> from rlploss.compare import compare
    >>> X = [[i % 7, i % 5] for i in range(70)]
    >>> found = compare(X, [a + 2 * b + 0.5 for a, b in X], arms=["ridge", "mean"], n_splits=2)
    >>> found.table["arm"].tolist(), found.best_model().predict([[3, 4]]).round(1).tolist()
    (['the mean', 'ridge regression'], [11.5])
    """

    design: Design
    arms: tuple[EstimatorArm, ...]
    cells: Mapping[str, StoredCell]  # by arm
    rows: Trainer  # after sampling
    steps: int
    seeds: tuple[int, ...]
    notes: tuple[str, ...] = ()  # what was not done, and why
    source: str = "the table"
    command: str = ""  # what made it
    metric: Metric | None = None  # which decides; None is the usual one
    why_metric: str = ""  # if it is not the usual one and nobody asked for it
    no_rlp: str = ""  # why RLP was not trained
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the command that made it
    deadline: float = math.inf  # a time of `time.monotonic` after which no column is shuffled

    @property
    def task(self) -> str:
        """The task, regression or classification."""
        return self.design.target.task

    @cached_property
    def results(self) -> Results:
        """What was measured."""
        metric = self.metric or METRICS[self.task][0]
        tests = [self.rows.split(seed)[1] for seed in self.seeds]
        n_train = [len(self.rows.split(seed)[0]) for seed in self.seeds]
        most = max((len(cell.networks) for cell in self.cells.values()), default=0)
        return Results(
            task=self.task,
            metric=metric,
            arms=tuple(map(self._arm_result, self.arms)),
            truth=[self.rows.y[test] for test in tests[:most]],
            n_train=n_train[:most],
            n_rows=len(self.rows.y),
            windows=self.design.time is not None,
        )

    def _arm_result(self, arm: EstimatorArm) -> ArmResult:
        cell = self.cells[arm.name]
        networks = cell.of_variant()
        tests = [network.artifacts["test"].astype(np.float64) for network in networks]
        if self.task == "regression":
            tests = [
                self.rows.y[self.rows.split(seed)[1]][:, None] + errors
                for seed, errors in zip(self.seeds, tests, strict=False)
            ]
        kept = ("subset_size", "log", "late")
        details = {name: cell.final(name) for name in kept if name == "log" or cell.has(name)}
        if arm.role == "rlp":
            details |= {
                name: np.array([network.artifacts[name] for network in networks])
                for name in ("sizes", "errors")
            }
        return ArmResult(
            arm.name,
            arm.label,
            arm.role,
            tests,
            [network.seconds for network in networks],
            details,
            arm.style,
        )

    @property
    def origin(self) -> Mapping[str, Any]:
        """The versions and the machine that made the results."""
        return self.cells[self.arms[0].name].provenance

    def values(self, arm: str, metric: str = "") -> Array:
        """Return a measure of one arm [splits]: that which decides, or another."""
        return self.results.values(arm, metric)

    def answer(self) -> Answer:
        """Return the tests, and who is best."""
        return self.results.answer

    def lines(self) -> list[str]:
        """Return what to use, whether RLP adds anything, how sure that is."""
        return words.lines(
            self.results, why=self.why_metric, no_rlp=self.no_rlp, warned=bool(self.design.warnings)
        )

    def summary(self) -> str:
        """Return what to use, whether RLP adds anything and how sure that is, a line each."""
        return "\n".join(self.lines())

    @property
    def table(self) -> pd.DataFrame:
        """One row per arm: means, intervals, the paired test against RLP, seconds."""
        from rlploss.compare.report import result_rows

        return pd.DataFrame(result_rows(self.results))

    @cached_property
    def importance(self) -> list[tuple[str, float, float, float]]:
        """How much worse the metric becomes on test rows when a column is shuffled: its name, the
        mean over splits and the ends of a 95 % interval, for the winner; the largest first.
        """
        frame = self.rows.frame
        arm = next(arm for arm in self.arms if arm.name == self.results.answer.best.name)
        lost = []
        for seed in self.seeds[:FITS]:
            if time.monotonic() > self.deadline:
                break
            train, test = self.rows.split(seed)
            lost.append(
                importance(
                    partial(self.rows.outputs, self.rows.fit(arm, train, seed)),
                    frame.iloc[test],
                    self.rows.y[test],
                    metric=self.results.metric,
                    columns=[[place] for place in range(frame.shape[1])],
                    seed=seed,
                )
            )
        if not lost:
            return []
        bands = zip(
            frame.columns, *(end.tolist() for end in stats.band(np.array(lost))), strict=True
        )
        return sorted(bands, key=lambda band: -band[1])

    def expected(self) -> Expected:
        """Return what to expect of the winner on new rows."""
        target = self.design.target
        name = self.results.answer.best.name
        return Expected.of(self.results, name, target=target.name, classes=target.classes)

    def best_model(self) -> Pipeline:
        """Return the winner, trained on all rows: a scikit-learn Pipeline that predicts from raw
        frames.
        """
        from rlploss.compare.model import train_model

        return train_model(self)

    def write(self, directory: str | Path) -> Path:
        """Write report.html, its tables and figures, comparison.json and the model; returns the
        path of the page.
        """
        from rlploss.compare.report import write

        return write(self, Path(directory))

    def _repr_html_(self) -> str:
        """Return the three lines and the table for a notebook."""
        from rlploss.compare.report import result_table

        table = result_table(self.results, short=True)
        shown = pd.DataFrame(table.rows, columns=table.header)
        said = "".join(f"<p>{escape(line)}</p>" for line in self.lines())
        return f"{said}{shown.to_html(index=False, border=0)}"

    def __repr__(self) -> str:
        return (
            f"Comparison of {len(self.arms)} arms on {self.source}, {len(self.seeds)}"
            f" splits\n{self.summary()}"
        )
