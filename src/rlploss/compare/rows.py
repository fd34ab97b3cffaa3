"""Which rows train and which test: at random, by time, by groups."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, GroupShuffleSplit

from rlploss._scaling import Array
from rlploss.compare.design import Design
from rlploss.compare.read import TableError
from rlploss.estimators.kinds import Column
from rlploss.estimators.search import Index, Split
from rlploss.estimators.selection import VALIDATION_SHARE, inner_folds, n_folds
from rlploss.estimators.table import TableEncoder, frame_of

TEST_SHARE, MOST_TEST_ROWS, WINDOWS = 0.25, 5000, 5
FEWEST_ROWS, FEWEST_OF_A_CLASS, FEWEST_TRAINING_ROWS, FEWEST_TEST_ROWS = 24, 8, 15, 5


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one table, and how they are split."""

    frame: pd.DataFrame  # as `read_frame` gives it
    encoder: TableEncoder
    y: NDArray[Any]
    task: str
    n_classes: int = 0
    time: Array | None = None
    group: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, design: Design, keep: Index | slice = slice(None)) -> Self:
        """Return the rows of a design, all or those to keep."""
        target = design.target
        time = None if design.time is None else design.time[keep]
        group = None if design.group is None else design.group[keep]
        frame, classes = design.frame.iloc[keep].reset_index(drop=True), len(target.classes)
        return cls(frame, design.encoder, target.y[keep], target.task, classes, time, group)

    @classmethod
    def of_numbers(cls, X: Array, y: NDArray[Any], task: str, n_classes: int = 0) -> Self:
        """Return rows whose columns are all numbers without gaps."""
        frame = frame_of(X)
        columns = tuple(Column(name, "number", "a number") for name in frame)
        return cls(frame, TableEncoder(columns, task=task), y, task, n_classes)

    @cached_property
    def X(self) -> Array:
        """All rows as numbers, for what is told of the table before anything is trained."""
        return np.asarray(clone(self.encoder).fit_transform(self.frame, self.y))

    @cached_property
    def digest(self) -> str:
        """A digest that tells this table, and its order or groups, from another."""
        digest = hashlib.sha256(
            f"{self.task} {self.encoder.columns} {self.time is None} {self.group is None}".encode()
        )
        frame = pd.util.hash_pandas_object(self.frame, index=False).to_numpy()
        for part in (frame, self.y, self.time, self.group):
            digest.update(b"" if part is None else np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()[:32]

    def split(self, seed: int) -> Split:
        """Return training and test rows: they depend on the seed, never on the arm.

        With times, `seed` is the number of the window: the past trains, the tenth of the rows that
        follows tests. With groups, a random quarter of the rows in whole groups tests.
        """
        n, rng = len(self.y), np.random.default_rng([seed, 0])
        if self.time is not None:
            order = np.argsort(self.time, kind="stable")
            last = order[np.linspace(n / 2, n, WINDOWS + 1).astype(int) - 1]
            ends = np.searchsorted(
                self.time[order], self.time[last], side="right"
            )  # one moment is never cut
            return order[: ends[seed]], order[ends[seed] : ends[seed + 1]][:MOST_TEST_ROWS]
        order, n_test = rng.permutation(n), min(round(TEST_SHARE * n), MOST_TEST_ROWS)
        if self.group is not None:
            turn = rng.permutation(int(self.group.max()) + 1)[self.group]  # of every row's group
            order = order[np.argsort(turn[order], kind="stable")]
            n_test = int((turn <= turn[order[n_test - 1]]).sum())
            return order[n_test:], order[:n_test][:MOST_TEST_ROWS]
        if (
            self.task == "classification"
        ):  # classes are spread evenly, so that every part has its share of each
            place = np.empty(n)
            for label in range(self.n_classes):
                mine = np.flatnonzero(self.y[order] == label)
                place[mine] = (np.arange(len(mine)) + rng.random()) / len(mine)
            order = order[np.argsort(place, kind="stable")]
        return order[n_test:], order[:n_test]

    def folds(self, train: NDArray[np.int64], seed: int) -> list[Split] | None:
        """Return where training rows are cut to choose settings, if times or groups decide it."""
        n = len(train)
        if self.time is not None:  # the latest rows validate
            last = n - max(3, round(VALIDATION_SHARE * n))
            return [(np.arange(last), np.arange(last, n))]
        if self.group is None:
            return None
        groups = self.group[train]
        k = min(n_folds(n), len(np.unique(groups)))
        cutter = GroupShuffleSplit(1, test_size=VALIDATION_SHARE, random_state=seed)
        if k > 1:
            cutter = GroupKFold(k)
        return list(cutter.split(groups, groups=groups))

    def fewest(self) -> int:
        """Return the fewest rows that a network trains on: of the first window of time, or of a
        fold.
        """
        train, _ = self.split(0)
        one_group = self.group is not None and len(np.unique(self.group[train])) == 1
        if len(train) < FEWEST_TRAINING_ROWS or one_group:
            return len(train)
        folds = self.folds(train, 0) or inner_folds("auto", self._targets(train), 0)
        return min(len(inside) for inside, _ in folds)

    def _targets(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self.y[rows] if self.n_classes else self.y[rows, None]


# Enough rows


def sample(design: Design, max_rows: int, seed: int) -> Index:
    """Return the rows that are used, all or a sample of them; refuse a table that has too few."""
    n = len(design.frame)
    if n < FEWEST_ROWS:
        gone = f" ({design.n_dropped} more have no target)" if design.n_dropped else ""
        raise TableError(
            f"a comparison needs at least {FEWEST_ROWS} rows to split, got {n}{gone}; add rows"
        )
    y, classes = design.target.y, design.target.classes
    for number, label in enumerate(classes):
        rows = int((y == number).sum())
        if rows < FEWEST_OF_A_CLASS:
            wrong = (
                f"every class needs at least {FEWEST_OF_A_CLASS} rows to be split, but class"
                f" {label!r} has {rows}"
            )
            raise TableError(f"{wrong}; merge rare classes or drop their rows")
    if n <= max_rows:
        return np.arange(n)
    order = np.random.default_rng([seed, 9]).permutation(n)
    if not classes:
        return np.sort(order[:max_rows])
    kept = []  # every class keeps its share, and the rows it needs
    for number in range(len(classes)):
        mine = order[y[order] == number]
        kept.append(mine[: max(FEWEST_OF_A_CLASS, round(max_rows * len(mine) / n))])
    return np.sort(np.concatenate(kept))


def check_rows(rows: Rows, seeds: Sequence[int]) -> None:
    """Refuse times and groups that leave too few rows, before anything is trained."""
    if rows.time is None and rows.group is None:
        return
    fewest = FEWEST_TEST_ROWS * 2 * WINDOWS
    if rows.time is not None and len(rows.y) < fewest:
        raise TableError(
            f"--time needs at least {fewest} rows, got {len(rows.y)}; add rows or leave --time out"
        )
    for seed in seeds:
        train, test = rows.split(seed)
        left = ""
        if len(train) < FEWEST_TRAINING_ROWS or len(test) < FEWEST_TEST_ROWS:
            wanted = f"{FEWEST_TRAINING_ROWS} training rows and {FEWEST_TEST_ROWS} test rows"
            left = (
                f"{wanted} in every split, got {len(train)} and {len(test)}: it has too few"
                " different values"
            )
        elif rows.group is not None and len(np.unique(rows.group[train])) == 1:
            left = "two groups to train on in every split, got one that has most of the rows"
        elif rows.n_classes and len(np.unique(rows.y[train])) == 1:
            left = "two classes to train on in every split, got one class only"
        if left:
            option = "--group" if rows.time is None else "--time"
            raise TableError(f"{option} must leave {left}; name another column")


def sampled_said(n_used: int, n: int) -> str:
    """Return what is told about a sample, on the terminal and in the report."""
    return f"{n_used:,} of {n:,} rows are used, a random sample; --max-rows changes that."
