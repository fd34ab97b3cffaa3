"""What a survey found: ratios of errors table by table and over tables, ranks, and what the effect depends on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

from rlploss._scaling import Array
from rlploss.compare.survey import FACTS, SEEN, TRAITS, Draw, Request, SurveyCell, SurveyTask, half_of
from rlploss.lab import stats
from rlploss.lab.stats import Comparison
from rlploss.lab.study import StoredCell

FEWEST_TABLES = 8  # for a regression over tables, and for a word on it
DRAWS = 2000  # of tables, with repetition
WORDS = ("better", "level", "worse", "undecided")
TRAIT_WORDS: dict[str, str] = FACTS["traits"]
LOGARITHMS = ("rows", "columns", "distance")  # of these traits


@dataclass(frozen=True)
class Ranks:
    """Average ranks of the arms over tables, Friedman's p, and the difference that Nemenyi's test asks for."""

    arms: tuple[str, ...]  # the best first
    means: tuple[float, ...]
    p: float
    critical: float
    n: int

    def groups(self) -> list[tuple[int, int]]:
        """First and last of arms that cannot be told apart; no group lies in another."""
        ends = [max(j for j, m in enumerate(self.means) if m - first <= self.critical) for first in self.means]
        return [(i, end) for i, end in enumerate(ends) if end > i and (i == 0 or ends[i - 1] < end)]


@dataclass(frozen=True)
class Effect:
    """By what factor the ratio changes with one standard deviation of a trait, and its interval over tables."""

    trait: str
    factor: float
    low: float
    high: float

    @property
    def word(self) -> str:
        """Whether more of it helps RLP, hurts it, or nobody knows."""
        return "helps" if self.high < 1 else "hurts" if self.low > 1 else "undecided"


class Survey:
    """The tables of which every arm is there."""

    def __init__(self, request: Request, read: Callable[[SurveyCell], StoredCell | None]) -> None:
        wanted = (SEEN, *request.arms)
        tasks = request.tasks
        self.request = request
        self.rival = FACTS["rival"][request.kind]
        self.labels = {arm.arm: arm.name for arm in request.arms}
        self.arms = tuple(self.labels)
        self.n_tasks = len(tasks)
        self.cells: dict[SurveyTask, dict[str, StoredCell]] = {}
        for task in tasks:
            found = {arm.arm: cell for arm in wanted if (cell := read(request.cell(arm, task))) is not None}
            if len(found) == len(wanted):
                self.cells[task] = found
        self.draws = tuple(dict.fromkeys(task.draw for task in self.cells))
        self.halves = tuple(half for half in ("held-out", "development") if self.tasks(half=half))
        every = {(half, draw): self.tasks(draw, half) for half in self.halves for draw in self.draws}
        self.groups = {key: tasks for key, tasks in every.items() if tasks}

    def tasks(self, draw: Draw | None = None, half: str = "") -> list[SurveyTask]:
        """The tasks of a draw and a half, or of all."""
        drawn = [task for task in self.cells if draw in (None, task.draw)]
        return [task for task in drawn if half in ("", half_of(task.table))]

    def errors(self, task: SurveyTask, arm: str) -> Array:
        """Squared errors on the test rows [splits]: of numbers, or of probabilities of classes."""
        cell = self.cells[task][arm]
        return np.maximum(cell.final("rmse") ** 2 if self.request.kind == "regression" else cell.final("brier"), 1e-12)

    def trait(self, task: SurveyTask, name: str) -> float:
        """What is seen of a task beforehand, mean over splits."""
        return self.cells[task][TRAITS].mean(name)

    def on(self, task: SurveyTask, ours: str, theirs: str) -> Comparison:
        """Compare two arms on one table, paired over splits.

        Splits share rows: the variance is s²·(1/n + overlap), the ratio of test rows to all others of the table.
        """
        n_test, n_rows = self.cells[task][ours].mean("n_test"), self.trait(task, "n_rows")
        return stats.compare(self.errors(task, ours), self.errors(task, theirs), overlap=n_test / (n_rows - n_test))

    def means(self, tasks: Sequence[SurveyTask], arm: str) -> Array:
        """Geometric means over splits [tables]."""
        return np.exp([np.log(self.errors(task, arm)).mean() for task in tasks])

    def over(self, tasks: Sequence[SurveyTask], ours: str, theirs: str) -> Comparison:
        """Compare two arms over tables: the geometric mean of the ratios, and its t-interval over tables."""
        return stats.compare(self.means(tasks, ours), self.means(tasks, theirs))

    def over_best(self, tasks: Sequence[SurveyTask], ours: str, others: Sequence[str]) -> tuple[str, Comparison]:
        """The one of the others with the lowest geometric mean over tables, and how ours compares with it."""
        best = min(others, key=lambda arm: float(np.log(self.means(tasks, arm)).mean()))
        return best, self.over(tasks, ours, best)

    def tally(self, tasks: Sequence[SurveyTask], ours: str, theirs: str) -> dict[str, int]:
        """On how many tables ours is better, level, worse, undecided."""
        found = [self.on(task, ours, theirs).word for task in tasks]
        return {name: found.count(name) for name in WORDS}

    def stays(self, tasks: Sequence[SurveyTask]) -> float:
        """The share of splits in which RLP's dial stood at its MSE end."""
        return float(np.mean([np.mean(self.cells[task]["rlp"].final("subset_size") == 0) for task in tasks]))

    def ranks(self, tasks: Sequence[SurveyTask]) -> Ranks:
        """Average ranks over tables, with the tests of Friedman and Nemenyi."""
        errors = np.column_stack([self.means(tasks, arm) for arm in self.arms])  # [tables, arms]
        n, k = errors.shape
        means = scipy_stats.rankdata(errors, axis=1).mean(axis=0)
        order = np.argsort(means, kind="stable")
        p = float(scipy_stats.friedmanchisquare(*errors.T).pvalue)
        q = float(scipy_stats.studentized_range.ppf(1 - stats.ALPHA, k, np.inf)) / math.sqrt(2)
        critical = q * math.sqrt(k * (k + 1) / (6 * n))
        return Ranks(tuple(self.arms[i] for i in order), tuple(means[order].tolist()), p, critical, n)

    # When does it help?

    def _regression(self, tasks: Sequence[SurveyTask]) -> tuple[Array, Array]:
        """Traits [tasks, traits], as logarithms where these are taken, and logarithms of RLP's ratio to the rival."""
        traits = {name: np.array([self.trait(task, name) for task in tasks]) for name in TRAIT_WORDS}
        traits |= {name: np.log(traits[name]) for name in LOGARITHMS}
        return np.column_stack([*traits.values()]), np.log(self.means(tasks, "rlp") / self.means(tasks, self.rival))

    def effects(self) -> list[Effect]:
        """How the ratio to the rival depends on what is seen beforehand: least squares over all tables and draws.

        Traits are standardised; intervals are percentiles over tables drawn anew with all their draws. Empty for
        fewer than eight tables; traits that do not vary are left out.
        """
        tasks = self.tasks()
        names = sorted({task.table for task in tasks})
        if len(names) < FEWEST_TABLES:
            return []
        X, y = self._regression(tasks)
        varies = X.std(axis=0) > 1e-9
        Z = (X[:, varies] - X[:, varies].mean(axis=0)) / X[:, varies].std(axis=0)
        members = [np.flatnonzero([task.table == name for task in tasks]) for name in names]
        rng = np.random.default_rng(stats.SEED)
        drawn = [np.concatenate([members[i] for i in rng.integers(len(names), size=len(names))]) for _ in range(DRAWS)]
        low, high = np.quantile([_slopes(Z[rows], y[rows]) for rows in drawn], [0.025, 0.975], axis=0)
        found = np.exp([_slopes(Z, y), low, high]).T.tolist()
        return [
            Effect(trait, *ends) for trait, ends in zip(np.array([*TRAIT_WORDS])[varies].tolist(), found, strict=True)
        ]

    def foretold(self) -> tuple[int, int, int] | None:
        """On how many held-out tasks the regression on development tables foretells who is ahead.

        Also how often the more frequent side would have been right, and the number of tasks; None without both halves.
        """
        known, new = self.tasks(half="development"), self.tasks(half="held-out")
        if not new or len({task.table for task in known}) < FEWEST_TABLES:
            return None
        (X, y), (Z, truth) = self._regression(known), self._regression(new)
        centre, scale = X.mean(axis=0), np.where(X.std(axis=0) > 1e-9, X.std(axis=0), np.inf)
        guess = y.mean() + ((Z - centre) / scale) @ _slopes((X - centre) / scale, y)
        ahead, usual = truth < 0, np.mean(y < 0) > 0.5
        return int(((guess < 0) == ahead).sum()), int((ahead == usual).sum()), len(new)


def _slopes(Z: Array, y: Array) -> Array:
    """Least squares of y on centred Z; the least-norm ones where columns do not vary."""
    found: Array = np.linalg.lstsq(Z - Z.mean(axis=0), y - y.mean(), rcond=None)[0]
    return found
