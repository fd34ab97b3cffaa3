"""From a frame to a design: kinds of columns, the target, and what orders or groups the rows."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlploss._checks import one_of
from rlploss._scaling import Array
from rlploss.compare.doubts import LARGEST, doubts_of, too_large
from rlploss.compare.read import Convention, TableError
from rlploss.estimators.cells import as_dates, as_numbers
from rlploss.estimators.kinds import Column, left_out, read_column, texts_of
from rlploss.estimators.selection import is_skewed
from rlploss.estimators.table import TableEncoder, read_frame

MOST_CLASSES = 20
FEWEST_GROUPS = 8
FEW_INTEGERS = 10  # whole numbers with at most so many different values are classes

Class = bool | int | float | str


@dataclass(frozen=True)
class Target:
    """The target: real numbers, or class numbers with the classes they stand for."""

    name: str
    task: str
    y: NDArray[Any]
    classes: tuple[str, ...] = ()  # in words
    values: tuple[
        Class, ...
    ] = ()  # the same as their owner has them; what JSON does not have is a text
    said: str = ""


@dataclass(frozen=True)
class Design:
    """A table that has been read: its rows that have a target, as `read_frame` gives them."""

    frame: pd.DataFrame
    target: Target
    columns: tuple[Column, ...]
    n_rows: int  # in the file
    time: Array | None = None  # by which rows are ordered: train on the past, test on the future
    group: NDArray[np.int64] | None = None  # rows of one stay together
    warnings: tuple[str, ...] = ()
    said: str = ""  # how numbers are written, where that is not plain

    @property
    def n_dropped(self) -> int:
        """How many rows of the file have no target."""
        return self.n_rows - len(self.frame)

    @property
    def encoder(self) -> TableEncoder:
        """The first step of every model, which turns raw rows into numbers."""
        return TableEncoder(self.columns, task=self.target.task)


def make_design(
    frame: pd.DataFrame,
    target: str,
    *,
    task: str = "auto",
    drop: Sequence[str] = (),
    time: str | None = None,
    group: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    from_file: bool = False,
) -> Design:
    """Decide what every column is, and return the table read; columns named in `drop` are left out.

    `time` and `group` name columns: rows of later times, or of other groups, are what the arms are
    tested on. In a table `from_file` text may stand for numbers: the classes "0" and "1" are 0 and
    1.
    """
    one_of("task", task, ("auto", "regression", "classification"))
    _check_names(frame, target, drop=drop, time=time, group=group)
    warned = list(frame.attrs.get("notes", ()))
    frame = pd.DataFrame(
        {name: values if name in drop else _checked(values) for name, values in frame.items()}
    )
    frame = frame.reset_index(drop=True)
    convention = Convention.of(frame.drop(columns=list(drop)), decimal, thousands)
    warned += convention.warnings
    raw = frame[target]
    if raw.isna().all():
        raise TableError(f"the target {target!r} has no values; choose another column")
    reading = as_numbers(raw, convention.styles(target))
    if reading is not None and reading.words:
        # Words that say "no value"; among classes such a word is a class.
        numbers = reading.values.dropna().unique()
        few = len(numbers) <= FEW_INTEGERS and bool(np.equal(numbers, np.round(numbers)).all())
        if task == "regression" or (task == "auto" and not few):
            raw = raw.where(reading.values.notna())
    known = raw.notna()
    outcome = read_target(raw[known].reset_index(drop=True), task, convention, from_file=from_file)
    columns = []
    for name in [name for name in frame.columns if name != target and name not in drop]:
        column = read_column(frame[name], convention.styles(name))
        read = column.read(frame[name][known]) if column.used else frame[name][:0]
        if name == group:
            why = left_out(name, "identifier", "its rows stay together")
            column = replace(why, n_missing=column.n_missing)
        elif column.used and read.isna().all():
            why = left_out(name, "empty", "no values in the rows with a target")
            column = replace(why, n_missing=column.n_missing)
        elif column.kind == "number" and read.abs().max() > LARGEST:
            raise TableError(
                f"column {name!r} {too_large(read.dropna())}, or leave it out with --drop"
            )
        columns.append(column)
    if not any(column.used for column in columns):
        raise TableError(
            f"no column but the target {target!r} can be used; add columns with numbers,"
            " categories or dates"
        )
    rows = read_frame(frame[known], columns).reset_index(drop=True)
    Y = np.eye(len(outcome.classes))[outcome.y] if outcome.classes else outcome.y[:, None]
    given = frame[known].reset_index(drop=True)
    warned += doubts_of(columns, rows, given, Y, outcome.classes, asked=bool(time or group))
    columns += [
        Column(name, "dropped", "left out, as asked", int(frame[name].isna().sum()))
        for name in drop
    ]
    when = None if time is None else _times(frame[time], convention, known)
    keys = None if group is None else _groups(frame[group][known])
    said = "Numbers are read with decimal commas (7,8 is 7.8)." if convention.decimal == "," else ""
    return Design(rows, outcome, tuple(columns), len(frame), when, keys, tuple(warned), said)


def _check_names(
    frame: pd.DataFrame, target: str, *, drop: Sequence[str], time: str | None, group: str | None
) -> None:
    """Refuse names of columns that are not there, or that contradict each other."""
    asked = {"target": [target], "drop": drop, "time": [time], "group": [group]}
    for option, names in asked.items():
        for name in names:
            if name is not None and name not in frame.columns:
                raise TableError(_no_such_column(name, list(frame.columns), option))
            if option == "drop" and name == target:
                raise TableError(
                    f"the target {target!r} cannot be dropped too; leave it out of --drop"
                )
            if option in ("time", "group") and name == target:
                raise TableError(
                    f"the target {target!r} cannot be the column of --{option} too; name another"
                    " column"
                )
    if time and group:
        raise TableError("--time and --group ask for different splits; give one of them")


def _times(values: pd.Series, convention: Convention, known: pd.Series) -> Array:
    """Return a column of dates or numbers as numbers that order the rows that are known; it is read
    as a whole.
    """
    reading = as_dates(values) or as_numbers(values, convention.styles(str(values.name)))
    moments = pd.Series(np.nan, values.index) if reading is None else reading.values
    if moments.dtype.kind == "M":
        moments = (moments - moments.min()).dt.total_seconds()
    gaps = moments[known].isna()
    if gaps.any():
        shown = values[known][gaps].iloc[0]
        wanted = "--time needs dates or numbers without gaps"
        raise TableError(
            f"{wanted}, but in {values.name!r} {shown!r} is none; correct it or leave its row out"
        )
    return np.asarray(moments[known], dtype=np.float64)


def _groups(values: pd.Series) -> NDArray[np.int64]:
    """Return the group of every row as a number."""
    keys, found = pd.factorize(texts_of(values))
    if gaps := int((keys < 0).sum()):
        rows = "1 row has" if gaps == 1 else f"{gaps:,} rows have"
        raise TableError(
            f"--group needs a value in every row, but {rows} none in {values.name!r}; leave"
            " these out"
        )
    if len(found) < FEWEST_GROUPS:
        wrong = (
            f"--group needs at least {FEWEST_GROUPS} groups, got {len(found)} in {values.name!r}"
        )
        raise TableError(f"{wrong}; name another column")
    return np.asarray(keys, dtype=np.int64)


def _checked(values: pd.Series) -> pd.Series:
    """Return a column with Arrow's types other than numbers, and categories, as Python's.

    A column of lists is refused: it is several columns, and which ones only its owner knows.
    """
    arrow = isinstance(values.dtype, pd.ArrowDtype) and not pd.api.types.is_numeric_dtype(
        values.dtype
    )
    if arrow or isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(object)
    if values.dtype != object and not isinstance(values.dtype, pd.StringDtype):
        return values
    some = list(values.dropna().iloc[:1000])
    lists = [
        v
        for v in some
        if (
            (v.strip()[:1] + v.strip()[-1:]) in ("[]", "{}")
            if isinstance(v, str)
            else pd.api.types.is_list_like(v)
        )
    ]
    if len(lists) > len(some) / 2 or not all(isinstance(value, str) for value in lists):
        wrong = f"column {values.name!r} holds lists such as {str(lists[0])[:40]}"
        raise TableError(
            f"{wrong}; spread them over columns of their own, or leave the column out with --drop"
        )
    return values


def _no_such_column(name: str, names: list[str], option: str) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    lower = [other for other in names if other.lower() == name.lower()]
    hint = (
        f"did you mean {(lower or near)[0]!r}?"
        if lower or near
        else f"the columns are {', '.join(names[:12])}"
    )
    return f"there is no column {name!r} for --{option}; {hint}"


# The target


def read_target(
    values: pd.Series, task: str, convention: Convention, *, from_file: bool = False
) -> Target:
    """Return numbers to predict, or classes; `values` has no missing ones."""
    name = str(values.name)

    def refused(why: str) -> TableError:
        return TableError(f"the target {name!r} {why}")

    found = as_numbers(values, convention.styles(str(values.name)))
    numbers: Array | None = None
    if found is not None and not found.words:
        numbers = found.values.to_numpy()
    if numbers is not None and np.isnan(numbers).any():
        raise refused(f"must be finite, got {int(np.isnan(numbers).sum())} infinite values")
    if numbers is not None and np.abs(numbers).max() > LARGEST:
        raise refused(too_large(numbers))
    almost = (
        as_numbers(values, convention.styles(name), mostly=True)
        if found is None and task != "classification"
        else None
    )
    if almost is not None:
        remedy = "correct these or leave them empty, or pass --task classification"
        raise refused(f"is numbers but for {', '.join(map(repr, almost.words))}; {remedy}")
    whole = numbers is not None and bool(np.equal(numbers, np.round(numbers)).all())
    labels = (
        values.map(lambda v: str(v).strip())
        if not whole
        else pd.Series(numbers).map(lambda v: str(int(v)))
    )
    n_different = labels.nunique() if numbers is None else len(np.unique(numbers))
    if n_different == 1:
        word = "one class only" if task == "classification" or numbers is None else "constant"
        word += " to 16 digits" if values.nunique() > 1 else ""
        raise refused(f"is {word}, always {values.iloc[0]!s}; choose another column")
    said = f"{task}, as asked"
    if task == "auto":
        few = numbers is None or (whole and n_different <= FEW_INTEGERS)
        task = "classification" if few else "regression"
        why = "text" if numbers is None else "few different values" if few else "numbers"
        said = f"recognised as {task} ({why}); --task overrides"
    if task == "regression":
        if numbers is None:
            wrong = next((v for v in values if as_numbers(pd.Series([v])) is None), values.iloc[0])
            remedy = "pass --task classification or choose another column"
            raise refused(f"must be numbers for regression, got {wrong!r}; {remedy}")
        if np.ptp(numbers) < 1 / LARGEST:
            raise refused(
                f"must differ by more than {1 / LARGEST:g}, got {np.ptp(numbers):g}; rescale it"
            )
        if numbers.min() > 0 and is_skewed(numbers):
            said += "; positive and skewed, so its logarithm is tried too"
        elif numbers.min() >= 0 and is_skewed(numbers):
            what = "counts" if whole else "numbers"
            said += f"; skewed {what} with zeros, whose logarithm is not tried"
        return Target(name, task, numbers, said=said)
    classes = sorted(set(labels), key=_natural)
    if len(classes) > MOST_CLASSES:
        remedy = "choose another column, or --task regression if it is numbers"
        raise refused(f"has {len(classes)} classes, more than {MOST_CLASSES}; {remedy}")
    y = pd.Categorical(labels, categories=classes).codes.astype(np.int64)
    given = [values.iloc[int(np.argmax(y == code))] for code in range(len(classes))]
    plain = [value.item() if isinstance(value, np.generic) else value for value in given]
    owned = [
        value if isinstance(value, Class) else label
        for value, label in zip(plain, classes, strict=True)
    ]
    if from_file and whole:
        owned = [int(label) for label in classes]
    return Target(name, task, y, tuple(classes), tuple(owned), said)


def _natural(label: str) -> tuple[int, float, str]:
    """Return what sorts numbers by size, before words."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label
