"""Which rows train and which test (at random, by time, by groups), the target as models see it, and
its errors.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from rlploss._scaling import Array, mean_and_scale
from rlploss.compare.design import Design
from rlploss.compare.metrics import measure
from rlploss.compare.read import TableError
from rlploss.estimators.search import Index, Split

TEST_SHARE, MOST_TEST_ROWS, WINDOWS = 0.25, 5000, 5
FOLDS = (
    (150, 3),
    (250, 2),
)  # three folds up to 150 training rows, two up to 250, one validation part beyond
VALIDATION_SHARE = 0.2
FEWEST_ROWS, FEWEST_OF_A_CLASS, FEWEST_TRAINING_ROWS, FEWEST_TEST_ROWS = 24, 8, 15, 5
SKEWED = 1.0  # skewness beyond which a positive target is tried as a logarithm too


@dataclass(frozen=True)
class TargetScale:
    """A target as models see it, and the way back: numbers are standardised, after their logarithm
    if asked.

    Classes are one-hot rows for networks, and come back as probabilities.
    """

    log: bool = False
    mean: float = 0.0
    scale: float = 1.0
    low: float = 0.0  # what comes back lies no further outside the training rows than they are wide
    high: float = 0.0
    n_classes: int = 0

    @classmethod
    def of(cls, y: NDArray[Any], *, log: bool = False, n_classes: int = 0) -> TargetScale:
        """Return the scale of training rows."""
        if n_classes:
            return cls(n_classes=n_classes)
        z = np.log(y) if log else np.asarray(y, dtype=np.float64)
        (mean,), (scale,) = mean_and_scale(z[:, None])
        low, high = float(z.min()), float(z.max())
        return cls(log, float(mean), float(scale), low - (high - low), high + (high - low))

    def scaled(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return targets (n,) as models see them: scaled numbers, or class numbers."""
        return y if self.n_classes else ((np.log(y) if self.log else y) - self.mean) / self.scale

    def matrix(self, y: NDArray[Any]) -> Array:
        """Return targets (n,) as networks see them [n, C]."""
        return np.eye(self.n_classes)[y] if self.n_classes else self.scaled(y)[:, None]

    def original(self, out: Array, *, logits: bool = False) -> Array:
        """Return outputs in the units of the table, or as probabilities."""
        if self.n_classes:
            return np.asarray(softmax(out, axis=1)) if logits else out
        found = out * self.scale + self.mean
        return np.exp(np.clip(found, self.low, self.high)) if self.log else found


@dataclass(frozen=True, eq=False)
class FillAndScale:
    """Missing numbers become the median of their column, and columns are standardised."""

    median: Array  # [d]; 0 for a column without values
    mean: Array
    scale: Array

    @classmethod
    def of(cls, X: Array) -> FillAndScale:
        """Return what rows [n, d] say."""
        empty = np.isnan(X).all(axis=0)
        median = np.asarray(np.nanmedian(np.where(empty, 0.0, X), axis=0))
        return cls(median, *mean_and_scale(np.where(np.isnan(X), median, X)))

    def filled(self, X: Array) -> Array:
        """Return rows without gaps."""
        return np.where(np.isnan(X), self.median, X)

    def __call__(self, X: Array) -> Array:
        """Return scaled rows without gaps."""
        return (self.filled(X) - self.mean) / self.scale


@dataclass(frozen=True)
class SplitData:
    """Training and test rows of one seed, columns scaled by the training rows, targets as in the
    table.
    """

    seed: int
    X: Array
    y: NDArray[Any]
    X_test: Array
    truth: NDArray[Any]
    folds: list[Split]
    n_classes: int

    @property
    def fold_sizes(self) -> list[int]:
        """How many validation rows each fold has."""
        return [len(validation) for _, validation in self.folds]

    def scale(self, log: bool = False) -> TargetScale:
        """Return how the target is scaled by the training rows."""
        return TargetScale.of(self.y, log=log, n_classes=self.n_classes)

    def error(
        self, rows: NDArray[Any], scale: TargetScale, *, logits: bool = False
    ) -> Callable[[Array], float]:
        """Return what measures predictions of training rows: the squared error, in units of the
        target's variance.
        """
        plain = self.scale()
        truth = plain.matrix(self.y[rows]) if self.n_classes else self.y[rows][:, None]
        return lambda out: float(
            np.mean(((scale.original(out, logits=logits) - truth) / plain.scale) ** 2)
        )

    def measures(self, predicted: Array) -> dict[str, float]:
        """Return errors of predictions of the test rows in the units of the table, and how many
        rows there are.
        """
        counts = {"n_train": float(len(self.X)), "n_test": float(len(self.X_test))}
        task = "classification" if self.n_classes else "regression"
        return measure(task, predicted, self.truth) | counts

    def kept(self, predicted: Array) -> dict[str, NDArray[np.float32]]:
        """Return what is kept of predictions of the test rows: probabilities, or errors, which have
        more digits so.
        """
        rows = predicted if self.n_classes else predicted - self.truth[:, None]
        return {"test": rows.astype(np.float32)}


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one table, and how they are split."""

    X: Array
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
        return cls(design.X[keep], target.y[keep], target.task, len(target.classes), time, group)

    @cached_property
    def digest(self) -> str:
        """A digest that tells this table, and its order or groups, from another."""
        digest = hashlib.sha256(
            f"{self.task} {self.X.shape} {self.time is None} {self.group is None}".encode()
        )
        for part in (self.X, self.y, self.time, self.group):
            digest.update(b"" if part is None else np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()[:32]

    @cached_property
    def logs(self) -> tuple[bool, ...]:
        """Whether targets are tried as they are only, or as logarithms too: positive and skewed
        ones are.
        """
        if self.n_classes or self.y.min() <= 0:
            return (False,)
        z = (self.y - self.y.mean()) / max(float(self.y.std()), 1e-300)
        return (False, True) if float(np.mean(z**3)) > SKEWED else (False,)

    def data(self, seed: int) -> SplitData:
        """Return the rows of a seed: they depend on the seed, never on the contender."""
        train, test = self.split(seed)
        scaled = FillAndScale.of(self.X[train])
        X, X_test = scaled(self.X[train]), scaled(self.X[test])
        folds = self.folds(train, np.random.default_rng([seed, 2]))
        return SplitData(seed, X, self.y[train], X_test, self.y[test], folds, self.n_classes)

    def split(self, seed: int) -> Split:
        """Return training and test rows.

        With times, `seed` is the number of the window: the past trains, the tenth of the rows that
        follows tests. With groups, a random quarter of the rows in whole groups tests.
        """
        n, rng = len(self.X), np.random.default_rng([seed, 0])
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

    def folds(self, train: NDArray[np.int64], rng: np.random.Generator) -> list[Split]:
        """Return where training rows are cut to choose settings: folds, or one validation part."""
        from sklearn import model_selection as cut

        n, y, state = len(train), self.y[train], int(rng.integers(2**31))
        folds = n_folds(n)
        if self.time is not None:  # the latest rows validate
            last = n - max(3, round(VALIDATION_SHARE * n))
            return [(np.arange(last), np.arange(last, n))]
        groups = None if self.group is None else self.group[train]
        # Classes in equal shares, unless they have too few rows for that.
        sizes = (
            np.unique(y, return_counts=True)[1] if self.task == "classification" else np.zeros(1)
        )
        shuffled: dict[str, Any] = {"test_size": VALIDATION_SHARE, "random_state": state}
        if groups is not None:
            folds = min(folds, len(np.unique(groups)))
            cutter = cut.GroupKFold(folds) if folds > 1 else cut.GroupShuffleSplit(1, **shuffled)
        elif folds > 1:
            kind = cut.StratifiedKFold if sizes.max() >= folds else cut.KFold
            cutter = kind(folds, shuffle=True, random_state=state)
        else:
            cutter = (cut.StratifiedShuffleSplit if sizes.min() >= 2 else cut.ShuffleSplit)(
                1, **shuffled
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a class with fewer rows than folds
            return list(cutter.split(np.empty((n, 1)), y, groups))

    def fewest(self) -> int:
        """Return the fewest rows that a network trains on: of the first window of time, or of a
        fold.
        """
        train, _ = self.split(0)
        one_group = self.group is not None and len(np.unique(self.group[train])) == 1
        if len(train) < FEWEST_TRAINING_ROWS or one_group:
            return len(train)
        return min(len(inside) for inside, _ in self.folds(train, np.random.default_rng(0)))


def n_folds(n_train: int) -> int:
    """Return in how many folds so many training rows choose settings; 1 is a validation part."""
    return next((k for most, k in FOLDS if n_train <= most), 1)


# Enough rows


def sample(design: Design, max_rows: int, seed: int) -> Index:
    """Return the rows that are used, all or a sample of them; refuse a table that has too few."""
    n = len(design.X)
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
    if rows.time is not None and len(rows.X) < fewest:
        raise TableError(
            f"--time needs at least {fewest} rows, got {len(rows.X)}; add rows or leave --time out"
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
