"""`compare`: does RLP help on this table? Every contender on a user's own data, and the answer in one sentence."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from scipy import stats as scipy_stats

from rlploss import _checks
from rlploss._progress import duration
from rlploss.compare.arms import (
    BASELINES,
    FEWEST_TRAINING_ROWS,
    PLAIN,
    Condition,
    Contender,
    Levels,
    ablations,
    contenders_for,
)
from rlploss.compare.columns import Design, make_design
from rlploss.compare.read import TableError, as_frame, read_table
from rlploss.compare.train import MEASURES, Trainer, expected_seconds, make_cell, n_test_rows
from rlploss.estimators.scaling import Array
from rlploss.estimators.selection import Index
from rlploss.lab import provenance, stats
from rlploss.lab.errors import LabError
from rlploss.lab.results import StoredCell
from rlploss.lab.run import execute, plan
from rlploss.lab.store import Store
from rlploss.lab.workers import Workers, parse_workers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = "rlploss.compare.train"  # the code whose changes make stored rows foreign
MOST_SPLITS, MOST_SEED = 10_000, 2**62  # the store's numbers have 64 bits
FEWEST_ROWS, FEWEST_OF_A_CLASS = 24, 8
WIDE = 10.0  # an interval of a ratio up to this is no longer told in percent


@dataclass(frozen=True)
class Answer:
    """Paired comparisons of one contender (`ours`) with every other, Holm-corrected together."""

    ours: Contender
    against: Mapping[str, stats.Comparison]  # by the name of the other
    rivals: tuple[Contender, ...]  # the best network that is not RLP, then the best of the rest; those there are
    best: Contender  # lowest mean error of all
    stays: int  # splits in which the dial stayed at its MSE end
    of: int
    beats_nothing: bool  # not even the mean, or the class frequencies, are certainly beaten

    def sentence(self, where: str) -> str:
        """Return the answer in one sentence with its uncertainty; `where` says for which rows."""
        ours = self.ours.label
        tests = [(rival.label, self.against[rival.name]) for rival in self.rivals]
        levels = [f"{label} ({_gap(c)})" for label, c in tests if c.word == "level"]
        words = [f"{ours} is not distinguishable from {' or '.join(levels)}"] if levels else []
        for label, c in tests:
            if c.word == "better":
                words.append(f"{ours} is better than {label} by {_by(c)}")
            elif c.word == "worse":
                words.append(f"{label} is better{'' if words else f' than {ours}'} by {_by(reverse(c))}")
        words[0] += f" {where}"
        if self.beats_nothing:
            trivial = "the mean" if "mean" in self.against else "the class frequencies"
            words.append(f"it is not shown to be better than predicting {trivial}")
        elif self.stays and self.of:
            words.append(f"RLP's dial stayed at MSE in {self.stays} of {self.of} splits")
        text = "; ".join(words) + "."
        return text[0].upper() + text[1:]


def answer(
    contenders: Sequence[Contender],
    values: Mapping[str, Array],
    *,
    lower_is_better: bool,
    overlap: float,
    stays: int,
    of: int,
) -> Answer:
    """Compare RLP (or the first contender, if RLP is not there) with all others, and return the answer."""
    ours = min(contenders, key=lambda one: (one.name != "rlp", not one.is_rlp))
    others = [one for one in contenders if one is not ours]
    made = [
        stats.compare(values[ours.name], values[one.name], lower_is_better=lower_is_better, overlap=overlap)
        for one in others
    ]
    against = {one.name: corrected(c) for one, c in zip(others, stats.holm(made), strict=True)}

    def rank(one: Contender) -> float:
        return (1.0 if lower_is_better else -1.0) * float(np.mean(values[one.name]))

    networks = [one for one in others if one.objectives and not one.is_rlp]
    rest = [one for one in others if one.model and one.model not in BASELINES]
    rivals = tuple(min(group, key=rank) for group in (networks, rest) if group) or (min(others, key=rank),)
    trivial = [against[name] for name in BASELINES if name in against]
    beats_nothing = any(not c.better or c.p >= stats.ALPHA for c in trivial)
    return Answer(ours, against, rivals, min(contenders, key=rank), stays, of, beats_nothing)


def corrected(c: stats.Comparison) -> stats.Comparison:
    """Return a comparison with the interval of its corrected p-value: it holds 1 (or 0) exactly if p ≥ 5 %.

    Holm multiplied p by some m, so the interval is that of level 1 − 0.05/m, on the scale of the test.
    """
    if c.n < 2 or not 0 < c.p < c.p_holm:
        return c
    levels = stats.ALPHA * c.p / c.p_holm, stats.ALPHA
    wide, usual = (float(scipy_stats.t.ppf(1 - level / 2, c.n - 1)) for level in levels)
    if c.scale == "ratio":
        half = math.log(c.high / c.effect) * wide / usual
        return replace(c, low=c.effect * math.exp(-half), high=c.effect * math.exp(half))
    half = (c.high - c.effect) * wide / usual
    return replace(c, low=c.effect - half, high=c.effect + half)


def reverse(c: stats.Comparison) -> stats.Comparison:
    """Return a comparison seen from the other side: ratios are inverted, differences change sign."""
    if c.scale == "ratio":
        return replace(c, effect=1 / c.effect, low=1 / c.high, high=1 / c.low, better=not c.better)
    return replace(c, effect=-c.effect, low=-c.high, high=-c.low, better=not c.better)


def _by(c: stats.Comparison) -> str:
    """Return how much better ours is: `12 % [5, 19]` of the error, or `2.1 points [0.4, 3.8]` of accuracy."""
    if c.scale == "ratio":
        value, low, high = (_round(100 * (1 - end)) for end in (c.effect, c.high, c.low))
        return f"{value} % [{low}, {high}]"
    value, low, high = (_round(100 * end) for end in (c.effect, c.low, c.high))
    return f"{value} points [{low}, {high}]"


def _gap(c: stats.Comparison) -> str:
    """Return a difference that may as well be none, with its interval."""
    if c.scale == "ratio" and c.high > WIDE:
        return f"error {c.effect:.2g} times as large, in an interval too wide to be of use: more splits narrow it"
    word, unit, none = ("error ", "%", 1.0) if c.scale == "ratio" else ("", "points", 0.0)
    value, low, high = (100 * (end - none) for end in (c.effect, c.low, c.high))
    return f"{word}{value:+.2g} {unit} [{_round(low)}, {_round(high)}]"


def _round(value: float) -> str:
    if not np.isfinite(value):
        return "?"
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


@dataclass(frozen=True)
class Comparison:
    """What a comparison found. `.table`, `.summary()`, `.plot()`, `.write(directory)`."""

    design: Design
    contenders: tuple[Contender, ...]
    conditions: tuple[Condition, ...]
    cells: dict[tuple[str, str], StoredCell]  # by condition and contender
    n_used: int  # rows after sampling
    steps: int
    seeds: tuple[int, ...]
    source: str = "the table"
    command: str = ""  # what made it
    loads: str = ""  # the call of `load_table` that reads the file again

    @property
    def task(self) -> str:
        """The task, regression or classification."""
        return self.design.target.task

    @property
    def measures(self) -> dict[str, str]:
        """What is measured on the test rows, in words by name; the first decides."""
        return MEASURES[self.task]

    @property
    def lower_is_better(self) -> bool:
        """Whether lower values of the measure that decides are better."""
        return self.task == "regression"

    def values(self, contender: str, measure: str | None = None, condition: str = "plain") -> Array:
        """Return a measure of one contender [splits], or another number that is kept of every split."""
        return self.cells[condition, contender].final(measure or next(iter(self.measures)))

    def answer(self, condition: str = "plain") -> Answer:
        """Return the verdicts of one condition."""
        first = self.contenders[0].name
        n_test, n_train = (self.values(first, name, condition)[0] for name in ("n_test", "n_train"))
        found = {one.name: self.values(one.name, condition=condition) for one in self.contenders}
        stays, of = self.dial_stays(condition)
        overlap = float(n_test / n_train)
        lower = self.lower_is_better
        return answer(self.contenders, found, lower_is_better=lower, overlap=overlap, stays=stays, of=of)

    def dial_stays(self, condition: str = "plain") -> tuple[int, int]:
        """Return in how many splits RLP chose the MSE end of its dial, and how many splits there are."""
        if (condition, "rlp") not in self.cells:
            return 0, 0
        sizes = self.values("rlp", "subset_size", condition)
        return int((sizes == 0).sum()), len(sizes)

    def summary(self) -> str:
        """Return the answer in one sentence with its uncertainty, and one more for every ablation."""
        places = ["on this table", *(f"with {condition.label}" for condition in self.conditions[1:])]
        found = zip(self.conditions, places, strict=True)
        return " ".join(self.answer(condition.name).sentence(place) for condition, place in found)

    @property
    def table(self) -> pd.DataFrame:
        """One row per contender and condition: means, intervals, the paired test against RLP, seconds."""
        from rlploss.compare.report import result_rows

        return pd.DataFrame([row for condition in self.conditions for row in result_rows(self, condition)])

    def plot(self) -> Figure:
        """Return a matplotlib figure of the error of every contender and of RLP's dial."""
        from rlploss.compare.report import overview

        return overview(self)

    def write(self, directory: str | Path) -> Path:
        """Write report.html, its tables and figures as files, and comparison.json; returns the path of the page."""
        from rlploss.compare.report import write

        return write(self, Path(directory))

    def __repr__(self) -> str:
        return f"Comparison of {len(self.contenders)} arms on {self.source}, {len(self.seeds)} splits\n{self.summary()}"

    def _repr_html_(self) -> str:
        from rlploss.compare.report import notebook_html

        return notebook_html(self)


def compare(
    X: Any,
    y: Any = None,
    *,
    task: str = "auto",
    arms: Sequence[str] | None = None,
    train_size: Levels = None,
    noise: Levels = None,
    shift: Levels = None,
    n_splits: int = 10,
    steps: int = 1000,
    max_rows: int = 10_000,
    random_state: int = 0,
    workers: str | Workers = "inline",
    out: str | Path | None = None,
    progress: bool | Console = False,
) -> Comparison:
    """Compare RLP with other losses and with what one would otherwise use, on rows X (n, d) and targets y (n,).

    Every arm sees the same splits, tries the same number of settings, chooses among them on validation parts of the
    training rows, and every network takes at most `steps` optimiser steps; the test rows are used once.

    Args:
        X: array or frame (pandas, polars); text, dates and missing values are fine. Or the `Design` of a table that
            has been read, without y.
        y: numbers or classes.
        task: `"regression"`, `"classification"`, or `"auto"`.
        arms: names to narrow it to, e.g. `["mse", "rlp", "boosting"]`.
        train_size, noise, shift: repeat it with so many training rows, with noise on the training features (in units
            of their standard deviations), with training rows near the mean and test rows far from it (γ). Numbers or
            lists of numbers.
        n_splits: splits into training and test rows.
        steps: optimiser steps of every network.
        max_rows: larger tables are sampled down to this, and the answer says so.
        random_state: seed of the first split; the others follow.
        workers: `"inline"`, `"local:N"` processes, `"dask:tcp://HOST:PORT"`, or anything with a `run` method.
        out: a directory that keeps what is trained, and from which a stopped comparison goes on.
        progress: whether to show progress on stderr, or the console to show it on.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
        >>> found = compare(X, y, arms=["mse", "rlp"], n_splits=2, steps=20)
        >>> found.summary().startswith("RLP")
        True
    """
    design = X if isinstance(X, Design) else make_design(*as_frame(X, y), task=task)
    chosen = contenders_for(design.target.task, (arms,) if isinstance(arms, str) else arms)
    first = _checks.count("random_state", random_state, minimum=0, maximum=MOST_SEED)
    seeds = tuple(range(first, first + _checks.count("n_splits", n_splits, minimum=2, maximum=MOST_SPLITS)))
    keep = sample(design, _checks.count("max_rows", max_rows, minimum=FEWEST_ROWS), first)
    conditions = (PLAIN, *ablations(train_size, noise, shift))
    team = parse_workers(workers) if isinstance(workers, str) else workers
    trainer = Trainer(design.X[keep], design.target.y[keep], design.target.task, len(design.target.classes))
    check_rows(trainer, conditions, seeds)
    steps = _checks.count("steps", steps)
    cells = {(c.name, one.name): make_cell(trainer, one, c, seeds, steps) for c in conditions for one in chosen}
    console = progress if isinstance(progress, Console) else Console(stderr=True, quiet=not progress)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "store" if out is None else Path(out)
        with Store(place, code_version=provenance.code_version(ROOT)) as store:
            if store.requests():
                raise LabError(f"{place} holds what `rlploss reproduce` made; choose another directory")
            todo = plan(cells.values(), store, cost=lambda cell: expected_seconds(trainer, cell), workers=team)
            if len(keep) < len(design.X):
                _say(console, sampled_said(len(keep), len(design.X)))
            times = f" × {len(conditions)} conditions" if len(conditions) > 1 else ""
            stored = f", {todo.stored} trained already" if todo.stored else ""
            left = f": about {duration(todo.expected_seconds)} on {todo.workers} cores" if todo.todo else ""
            _say(console, f"{len(chosen)} arms × {len(seeds)} splits{times}{stored}{left}.")
            done = execute(todo, store, train=trainer, workers=team, console=console)
            if done.failed:
                reason = next(iter(done.failed.values()))
                raise LabError(f"{len(done.failed)} of {len(cells)} arms could not be trained: {reason}")
            found = {key: store.read(cell) for key, cell in cells.items()}
    kept = {key: cell for key, cell in found.items() if cell is not None}
    return Comparison(design, chosen, conditions, kept, len(keep), steps, seeds)


def sample(design: Design, max_rows: int, seed: int) -> Index:
    """Return the rows that are used, all or a sample of them; refuse a table that has too few."""
    n = len(design.X)
    if n < FEWEST_ROWS:
        gone = f" ({design.n_dropped} more have no target)" if design.n_dropped else ""
        raise TableError(f"a comparison needs at least {FEWEST_ROWS} rows to split, got {n}{gone}; add rows")
    y, classes = design.target.y, design.target.classes
    for number, label in enumerate(classes):
        rows = int((y == number).sum())
        if rows < FEWEST_OF_A_CLASS:
            raise TableError(
                f"every class needs at least {FEWEST_OF_A_CLASS} rows to be split, but class {label!r} has {rows}; "
                "merge rare classes or drop their rows"
            )
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


def check_rows(trainer: Trainer, conditions: Sequence[Condition], seeds: Sequence[int]) -> None:
    """Refuse a condition that leaves too few rows, before anything is trained."""
    n = len(trainer.X)
    most = n - n_test_rows(n)
    for condition in conditions:
        if condition.train_size is not None and condition.train_size > most:
            raise TableError(
                f"train_size must be at most {most}, what {n} rows leave beside the test rows, got "
                f"{condition.train_size}; lower it"
            )
        for seed in seeds if condition.shift is not None else ():
            train, test = trainer.split(condition, seed)
            classes = trainer.task == "regression" or len(np.unique(trainer.y[train])) > 1
            if len(train) < FEWEST_TRAINING_ROWS or len(test) < 5 or not classes:
                raise TableError(
                    f"shift must leave {FEWEST_TRAINING_ROWS} training rows and 5 test rows, got {condition.shift:g} "
                    f"with {len(train)} and {len(test)}; choose a value nearer to 0.5"
                )


def sampled_said(n_used: int, n: int) -> str:
    """Return what is told about a sample, on the terminal and in the report."""
    return f"{n_used:,} of {n:,} rows are used, a random sample; --max-rows changes that."


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def load_table(
    path: str | Path, target: str, *, task: str = "auto", drop: Sequence[str] = (), encoding: str = "utf-8"
) -> tuple[pd.DataFrame, NDArray[Any]]:
    """Read a file as `rlploss compare` does. Return X, columns of numbers (n, d), and y, numbers or names of classes.

    Missing values are filled with the median of all rows, rows without a target left out.
    """
    design = make_design(read_table(path, encoding=encoding), target, task=task, drop=drop)
    X = pd.DataFrame(design.X, columns=list(design.names))
    y, classes = design.target.y, design.target.classes
    return X.fillna(X.median()), np.array(classes)[y] if classes else y
