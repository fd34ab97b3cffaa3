"""Evaluate a survey: ratios of errors on each table and over tables, and ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import stats as scipy_stats

from rlploss._scaling import Array
from rlploss.lab import stats
from rlploss.lab.run import Study
from rlploss.lab.stats import Contrast
from rlploss.lab.store import Store, code_version
from rlploss.lab.study import StoredCell
from rlploss.survey import run
from rlploss.survey.run import Draw, SurveyCell, SurveyRequest, SurveyTask
from rlploss.survey.tables import FACTS, half_of

WORDS = ("better", "level", "worse", "undecided")


@dataclass(frozen=True)
class Ranks:
    """Average ranks of the arms over tables, Friedman's p, and the critical difference of Nemenyi's
    test.
    """

    arms: tuple[str, ...]  # the best first
    means: tuple[float, ...]
    p: float
    critical: float
    n: int

    def groups(self) -> list[tuple[int, int]]:
        """Return (first, last) of each group of arms whose ranks do not differ; no group lies in
        another.
        """
        ends = [
            max(j for j, m in enumerate(self.means) if m - first <= self.critical)
            for first in self.means
        ]
        return [(i, end) for i, end in enumerate(ends) if end > i and (i == 0 or ends[i - 1] < end)]


class Survey:
    """The results on all tables for which every arm is stored."""

    def __init__(
        self, request: SurveyRequest, read: Callable[[SurveyCell], StoredCell | None]
    ) -> None:
        wanted, tasks = request.arms, request.tasks
        self.request = request
        known = [(ours, theirs) for ours, theirs in FACTS["pairs"][request.kind]]
        # A reader's loss is compared with what RLP is compared with, without weight decay.
        self.pairs = known + [(name, known[0][1]) for name, _ in request.losses]
        self.labels = {arm.arm: arm.name for arm in request.arms}
        self.arms = tuple(self.labels)
        self.n_tasks = len(tasks)
        self.cells: dict[SurveyTask, dict[str, StoredCell]] = {}
        for task in tasks:
            cells = {
                arm.arm: cell
                for arm in wanted
                if (cell := read(request.cell(arm, task))) is not None
            }
            if len(cells) == len(wanted):
                self.cells[task] = cells
        self.draws = tuple(dict.fromkeys(task.draw for task in self.cells))
        self.halves = tuple(half for half in ("held-out", "development") if self.tasks(half=half))
        every = {
            (half, draw): self.tasks(draw, half) for half in self.halves for draw in self.draws
        }
        self.groups = {key: tasks for key, tasks in every.items() if tasks}

    def tasks(self, draw: Draw | None = None, half: str = "") -> list[SurveyTask]:
        """Return the tasks of a draw and a half, or of all."""
        drawn = [task for task in self.cells if draw in (None, task.draw)]
        return [task for task in drawn if half in ("", half_of(task.table))]

    def errors(self, task: SurveyTask, arm: str) -> Array:
        """Return the squared errors on the test rows [splits]: of numbers, or of class
        probabilities.
        """
        cell = self.cells[task][arm]
        return np.maximum(
            cell.final("rmse") ** 2 if self.request.kind == "regression" else cell.final("brier"),
            1e-12,
        )

    def on(self, task: SurveyTask, ours: str, theirs: str) -> Contrast:
        """Compare two arms on one table, paired over splits.

        Splits share rows, so the variance is s²·(1/n + overlap). The overlap is the ratio of test
        rows to the other rows that could have been tested; these are half of the table if test rows
        lie outside.
        """
        n_test, n_rows = (self.cells[task][ours].mean(name) for name in ("n_test", "n_rows"))
        n_rows = n_rows / 2 if task.outside else n_rows
        return stats.compare(
            self.errors(task, ours), self.errors(task, theirs), overlap=n_test / (n_rows - n_test)
        )

    def means(self, tasks: Sequence[SurveyTask], arm: str) -> Array:
        """Return geometric means of the errors over splits [tables]."""
        return np.exp([np.log(self.errors(task, arm)).mean() for task in tasks])

    def over(self, tasks: Sequence[SurveyTask], ours: str, theirs: str) -> Contrast:
        """Compare two arms over tables: the geometric mean of the ratios, and its t-interval over
        tables.
        """
        return stats.compare(self.means(tasks, ours), self.means(tasks, theirs))

    def spread(self, tasks: Sequence[SurveyTask], ours: str, theirs: str) -> tuple[float, int]:
        """Return the median ratio over tables, and the number of tables on which ours has the lower
        mean.
        """
        ratios = self.means(tasks, ours) / self.means(tasks, theirs)
        return float(np.median(ratios)), int((ratios < 1).sum())

    def tally(self, tasks: Sequence[SurveyTask], ours: str, theirs: str) -> dict[str, int]:
        """Count the tables on which ours is better, level, worse, undecided."""
        words = [self.on(task, ours, theirs).word for task in tasks]
        return {name: words.count(name) for name in WORDS}

    def stays(self, tasks: Sequence[SurveyTask]) -> float:
        """Return the share of splits in which RLP chose MSE."""
        return float(
            np.mean([np.mean(self.cells[task]["rlp"].final("subset_size") == 0) for task in tasks])
        )

    def ranks(self, tasks: Sequence[SurveyTask]) -> Ranks:
        """Return average ranks over tables, with the tests of Friedman and Nemenyi."""
        errors = np.column_stack([self.means(tasks, arm) for arm in self.arms])  # [tables, arms]
        n, k = errors.shape
        means = scipy_stats.rankdata(errors, axis=1).mean(axis=0)
        order = np.argsort(means, kind="stable")
        p = float(scipy_stats.friedmanchisquare(*errors.T).pvalue)
        q = float(scipy_stats.studentized_range.ppf(1 - stats.ALPHA, k, np.inf)) / math.sqrt(2)
        critical = q * math.sqrt(k * (k + 1) / (6 * n))
        return Ranks(
            arms=tuple(self.arms[i] for i in order),
            means=tuple(means[order].tolist()),
            p=p,
            critical=critical,
            n=n,
        )


# The survey of an output directory


def stored_request(store: Store) -> SurveyRequest:
    """Return the request of a directory."""
    options = store.requests()["survey"]
    with store.understood("a request"):
        lists = {name: tuple(options[name]) for name in ("tables", "rows")}
        return SurveyRequest(**{**options, **lists, "losses": tuple(map(tuple, options["losses"]))})


def stored_study(store: Store) -> Study:
    """Return the study of a directory, whose cells can be trained again.

    The losses of users are left out: a store that somebody else wrote would say which file is run.
    """
    request = stored_request(store)
    trainer = partial(run.SurveyTrainer.of, request.tables)
    return Study(
        code_version(*run.DECIDING),
        lambda: [cell for cell in request.cells() if not cell.arm.loss],
        run.expected_seconds,
        trainer,
    )
