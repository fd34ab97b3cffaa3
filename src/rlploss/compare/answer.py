"""`compare`: does RLP help on this table? A study of every arm on a user's own data, and the answer in one sentence."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console

from rlploss import _checks
from rlploss.compare import train
from rlploss.compare.arms import Arm, arms_for
from rlploss.compare.columns import Design, make_design
from rlploss.compare.read import TableError, check_frame, read_table
from rlploss.compare.study import (
    FEWEST_ROWS,
    PLAIN,
    Condition,
    ablations,
    check_rows,
    expected_seconds,
    make_cell,
    sample,
    sampled_said,
)
from rlploss.compare.train import Trainer
from rlploss.compare.words import Answer, answer
from rlploss.lab import provenance
from rlploss.lab.errors import LabError
from rlploss.lab.results import StoredCell
from rlploss.lab.run import Plan, duration, execute, plan
from rlploss.lab.store import Store
from rlploss.lab.workers import Workers, parse_workers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Comparison", "TableError", "compare", "load_table"]

ROOT = "rlploss.compare.train"  # the code whose changes make stored rows foreign
MOST_ROWS, STEPS, SPLITS = 10_000, 1000, 10  # defaults
MOST_SPLITS = 10_000
MOST_SEED = 2**62  # the store's numbers have 64 bits


@dataclass(frozen=True)
class Comparison:
    """What a comparison found. `.table`, `.summary()`, `.plot()`, `.write(directory)`."""

    design: Design
    arms: tuple[Arm, ...]
    conditions: tuple[Condition, ...]
    cells: dict[tuple[str, str], StoredCell]  # by condition and arm
    n_used: int  # rows after sampling
    steps: int
    seeds: tuple[int, ...]
    source: str = "the table"
    command: str = ""  # what made it
    loads: str = ""  # the call of `load_table` that reads the file again

    @property
    def task(self) -> str:
        """Regression or classification."""
        return self.design.target.task

    @property
    def measures(self) -> tuple[str, ...]:
        """What is measured on the test rows, the one that decides first."""
        return train.MEASURES[self.task]

    @property
    def lower_is_better(self) -> bool:
        """Of the measure that decides."""
        return self.task == "regression"

    def values(self, arm: str, measure: str | None = None, condition: str = "plain") -> train.Array:
        """[splits]: a measure of one arm."""
        return self.cells[condition, arm].final(measure or self.measures[0])

    def answer(self, condition: str = "plain") -> Answer:
        """The verdicts of one condition."""
        found = {arm.name: self.values(arm.name, condition=condition) for arm in self.arms}
        stays, of = self.dial_stays(condition)
        return answer(
            self.arms, found, lower_is_better=self.lower_is_better, overlap=self.overlap(condition), stays=stays, of=of
        )

    def overlap(self, condition: str = "plain") -> float:
        """Test rows over training rows."""
        cell = next(iter(self.cells[condition, arm.name] for arm in self.arms))
        sizes = cell.of_variant()[0].curve
        return float(sizes["n_test"][0]) / float(sizes["n_train"][0])

    def dial_stays(self, condition: str = "plain") -> tuple[int, int]:
        """In how many splits RLP chose the MSE end of its dial, and how many splits there are."""
        if "rlp" not in {arm.name for arm in self.arms}:
            return 0, 0
        chosen = [r.curve["sizes"][int(r.curve["setting"][0])] for r in self.cells[condition, "rlp"].runs]
        return sum(size == 0 for size in chosen), len(chosen)

    def summary(self) -> str:
        """The answer in one sentence with its uncertainty; one more for every ablation."""
        parts = [self.answer().sentence("on this table")]
        for condition in self.conditions[1:]:
            parts.append(self.answer(condition.name).sentence(f"with {condition.label}"))
        return " ".join(parts)

    @property
    def table(self) -> pd.DataFrame:
        """One row per arm and condition: means, intervals, the paired test against RLP, seconds."""
        from rlploss.compare.report import result_rows

        return pd.DataFrame([row for condition in self.conditions for row in result_rows(self, condition.name)])

    def plot(self) -> Figure:
        """The error of every arm, and the dial of RLP, as a matplotlib figure."""
        from rlploss.compare.figures import overview

        return overview(self)

    def write(self, directory: str | Path) -> Path:
        """Write report.html, its tables and figures as files, and comparison.json; returns the path of the page."""
        from rlploss.compare.report import write

        return write(self, Path(directory))

    def __repr__(self) -> str:
        return f"Comparison of {len(self.arms)} arms on {self.source}, {len(self.seeds)} splits\n{self.summary()}"

    def _repr_html_(self) -> str:
        from rlploss.compare.report import notebook_html

        return notebook_html(self)


def compare(
    X: Any,
    y: Any,
    *,
    task: str = "auto",
    arms: Sequence[str] | None = None,
    train_size: int | Sequence[int] | None = None,
    noise: float | Sequence[float] | None = None,
    shift: float | Sequence[float] | None = None,
    n_splits: int = SPLITS,
    steps: int = STEPS,
    max_rows: int = MOST_ROWS,
    random_state: int = 0,
    workers: str | Workers = "inline",
    out: str | Path | None = None,
    progress: bool = False,
) -> Comparison:
    """Compare RLP with other losses and with what one would otherwise use, on rows X (n, d) and targets y (n,).

    Every arm sees the same splits, tries the same number of settings, chooses among them on held-out training rows,
    and every network takes at most `steps` optimiser steps; the test rows are used once.

    Args:
        X: array or frame (pandas, polars); text, dates and missing values are fine.
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
        progress: whether to show progress on stderr.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
        >>> found = compare(X, y, arms=["mse", "rlp"], n_splits=2, steps=20)
        >>> found.summary().startswith("RLP")
        True
    """
    frame, name = as_frame(X, y)
    design = make_design(frame, name, task=task)
    return compare_design(
        design,
        arms=arms,
        train_size=train_size,
        noise=noise,
        shift=shift,
        n_splits=n_splits,
        steps=steps,
        max_rows=max_rows,
        random_state=random_state,
        workers=workers,
        out=out,
        console=Console(stderr=True, quiet=not progress),
    )


def load_table(
    path: str | Path, target: str, *, task: str = "auto", drop: Sequence[str] = (), encoding: str = "utf-8"
) -> tuple[pd.DataFrame, NDArray[Any]]:
    """Read a file as `rlploss compare` does: X as columns of numbers (n, d), and y, numbers or names of classes.

    Missing values are filled with the median of all rows, rows without a target left out.
    """
    design = make_design(read_table(path, encoding=encoding), target, task=task, drop=drop)
    X = pd.DataFrame(design.X, columns=list(design.names))
    y, classes = design.target.y, design.target.classes
    return X.fillna(X.median()), np.array(classes)[y] if classes else y


def as_frame(X: Any, y: Any) -> tuple[pd.DataFrame, str]:
    """X and y in one pandas frame, and the name of the target in it."""
    if isinstance(X, pd.DataFrame):
        frame = X.copy()
    elif hasattr(X, "to_dict") and hasattr(X, "columns"):  # polars, without needing pyarrow
        frame = pd.DataFrame({str(name): X[name].to_list() for name in X.columns})
    elif hasattr(X, "toarray"):
        raise TableError("X must be dense, got a sparse matrix; pass X.toarray()")
    else:
        array = np.asarray(X)
        if array.ndim != 2:
            raise TableError(f"X must have two dimensions (rows, columns), got shape {array.shape}")
        frame = pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])])
    target = np.asarray(y) if not hasattr(y, "to_list") else np.asarray(y.to_list(), dtype=object)
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.ndim != 1 or len(target) != len(frame):
        raise TableError(f"y must have one value per row of X, got shape {target.shape} for {len(frame)} rows")
    frame = check_frame(frame.reset_index(drop=True), "X")
    given = getattr(y, "name", None)
    name = "target" if given in (None, "") else str(given)
    while name in frame.columns:
        name += " (target)"
    frame[name] = pd.Series(list(target), dtype=object).infer_objects()
    return frame, name


def compare_design(
    design: Design,
    *,
    arms: Sequence[str] | None = None,
    train_size: int | Sequence[int] | None = None,
    noise: float | Sequence[float] | None = None,
    shift: float | Sequence[float] | None = None,
    n_splits: int = SPLITS,
    steps: int = STEPS,
    max_rows: int = MOST_ROWS,
    random_state: int = 0,
    workers: str | Workers = "inline",
    out: str | Path | None = None,
    console: Console | None = None,
    source: str = "the table",
    command: str = "",
    loads: str = "",
) -> Comparison:
    """`compare` on a table that has been read; `source`, `command` and `loads` are words for the report."""
    named = (arms,) if isinstance(arms, str) else arms
    chosen = arms_for(design.target.task, None if named is None else tuple(named))
    first = _checks.count("random_state", random_state, minimum=0, maximum=MOST_SEED)
    n_seeds = _checks.count("n_splits", n_splits, minimum=2, maximum=MOST_SPLITS)
    seeds = tuple(range(first, first + n_seeds))
    keep = sample(design, _checks.count("max_rows", max_rows, minimum=FEWEST_ROWS), first)
    conditions = (PLAIN, *ablations(train_size, noise, shift))
    team = parse_workers(workers) if isinstance(workers, str) else workers
    trainer = Trainer(design.X[keep], design.target.y[keep], design.target.task, len(design.target.classes))
    check_rows(trainer, design, conditions, seeds)
    cells = {
        (condition.name, arm.name): make_cell(trainer, arm, condition, seeds, _checks.count("steps", steps))
        for condition in conditions
        for arm in chosen
    }
    console = Console(quiet=True) if console is None else console
    if len(keep) < len(design.X):
        told = sampled_said(len(keep), len(design.X))
        console.print(told, markup=False, highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "store" if out is None else Path(out)
        with Store(place, engine=provenance.engine(ROOT)) as store:
            if store.requests():
                raise LabError(f"{place} holds what `rlploss reproduce` made; choose another directory")
            todo = plan(cells.values(), store, cost=lambda cell: expected_seconds(trainer, cell), workers=team)
            console.print(said(todo, chosen, conditions, seeds), markup=False, highlight=False, soft_wrap=True)
            done = execute(todo, store, train=trainer, workers=team, console=console)
            if done.failed:
                reason = next(iter(done.failed.values()))
                raise LabError(f"{len(done.failed)} of {len(cells)} arms could not be trained: {reason}")
            found = {key: store.read(cell) for key, cell in cells.items()}
    stored = {key: cell for key, cell in found.items() if cell is not None}
    return Comparison(design, chosen, conditions, stored, len(keep), steps, seeds, source, command, loads)


def said(todo: Plan, arms: Sequence[Arm], conditions: Sequence[Condition], seeds: Sequence[int]) -> str:
    """What is about to be trained."""
    times = f" × {len(conditions)} conditions" if len(conditions) > 1 else ""
    stored = f", {todo.stored} trained already" if todo.stored else ""
    left = f": about {duration(todo.expected_seconds)} on {todo.workers} cores" if todo.todo else ""
    return f"{len(arms)} arms × {len(seeds)} splits{times}{stored}{left}."
