"""Load the tables of the survey, and split their rows."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlploss import _checks, datasets
from rlploss.compare.train import Trainer
from rlploss.datasets.splits import mahalanobis_region
from rlploss.datasets.tables import load_table, survey_tables
from rlploss.estimators.search import Split

MOST_TEST_ROWS = 1000
DRAWN = 0.75  # the share drawn of the rows inside, and of those outside, so that splits differ
HALVES = ("development", "held-out", "all", "second")  # "all" is the first collection
WINE = "wine"  # one of the paper's datasets, and twice in the package; rules were tuned on it
FACTS = tomllib.loads(Path(__file__).with_name("survey.toml").read_text("utf-8"))
# The twin has no dial: it has twice the weight decays instead, so that both try 24 settings.
TWIN: dict[str, Any] = {"subset_sizes": (), "alphas": (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1)}


def table_names(kind: str = "regression", half: str = "all") -> list[str]:
    """Return the names of the tables of a half, with Wine once, which the package has twice."""
    _checks.one_of("half", half, HALVES)
    names = [
        name
        for name, table in survey_tables().items()
        if table.classes == (kind == "classification")
    ]
    names += [WINE] if kind == "regression" else []
    halves = ("development", "held-out") if half == "all" else (half,)
    return [name for name in names if half_of(name) in halves]


def half_of(table: str) -> str:
    """Return the half of a table; rules may have been tuned on development tables."""
    if table == WINE or survey_tables()[table].development:
        return "development"
    return "second" if survey_tables()[table].collection == "survey-second" else "held-out"


@lru_cache(maxsize=64)
def load_rows(table: str) -> SurveyRows:
    """Return the rows of a table."""
    if table == WINE:
        wine = datasets.load(WINE, progress=False)
        return SurveyRows.of_numbers(wine.X, wine.y.astype(np.float64), "regression")
    X, y = load_table(table, progress=False)
    if survey_tables()[table].classes:
        return SurveyRows.of_numbers(X, y.astype(np.int64), "classification", len(np.unique(y)))
    return SurveyRows.of_numbers(X, y, "regression")


@lru_cache(maxsize=256)
def drawn_rows(table: str, n_train: int, outside: bool) -> SurveyRows:
    """Return the rows of a table with at most `n_train` training rows: random ones, or inside with
    test rows outside.
    """
    return replace(load_rows(table), n_train=n_train, outside=outside)


@dataclass(frozen=True, eq=False)
class SurveyRows(Trainer):
    """The rows of one table, on which it trains arms with the survey's splits."""

    n_train: int | None = None
    outside: bool = False

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """Which half of the rows is nearest to the mean."""
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
