"""From the columns of a frame to numbers: what each column is, what becomes of it, and the target."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlploss._checks import one_of
from rlploss.compare.read import TableError, refuse_lists
from rlploss.compare.values import Dates, Numbers, as_dates, as_numbers

Array = NDArray[np.float64]

MOST_LEVELS = 20  # of a category; the rest share one column
MOST_CLASSES = 20
FEW_INTEGERS = 10  # whole numbers with at most so many different values are classes
TASKS = ("auto", "regression", "classification")

_IDENTIFIER = re.compile(
    r"(^|[_\W])(?i:id|ids|uuid|guid|key|idx|rowid)($|[_\W])|(^|[_\W])(index|row|[Nn]r|[Nn]o)\.?$|[a-z](Id|ID)$"
)
YEARS = (1500, 2200)  # whole numbers between them may count the rows and yet be years
LARGEST = 1e100  # beyond, squares overflow
_YES_NO = ({"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"})


@dataclass(frozen=True)
class Column:
    """What a column is and what becomes of it: `names` are the columns of numbers it gives."""

    name: str
    kind: str  # number, category, yes/no, date, constant, identifier, text, empty
    does: str  # in words
    n_missing: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """The target: real numbers, or class numbers with the classes they stand for."""

    name: str
    task: str
    y: NDArray[Any]
    classes: tuple[str, ...] = ()
    said: str = ""


@dataclass(frozen=True)
class Design:
    """A table as numbers. X may hold NaN; `n_dropped` rows had no target."""

    X: Array
    target: Target
    columns: tuple[Column, ...]
    n_rows: int  # in the file
    n_dropped: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        return tuple(name for column in self.columns for name in column.names)


def make_design(frame: pd.DataFrame, target: str, *, task: str = "auto", drop: Sequence[str] = ()) -> Design:
    """Decide what every column is; the target by name, some columns left out by name."""
    one_of("task", task, TASKS)
    for name in (target, *drop):
        if name not in frame.columns:
            raise TableError(_no_such_column(name, list(frame.columns), "target" if name == target else "drop"))
    if target in drop:
        raise TableError(f"the target {target!r} cannot be dropped too; leave it out of --drop")
    raw = _plain(frame[target])
    if raw.isna().all():
        raise TableError(f"the target {target!r} has no values; choose another column")
    refuse_lists(raw)
    raw = _without_words(raw)
    known = raw.notna().to_numpy()
    read = read_target(raw[known], task)
    rest = [name for name in frame.columns if name != target and name not in drop]
    columns, parts = [], []
    for name in rest:
        refuse_lists(frame[name])
        column, numbers = read_column(_plain(frame[name]))
        numbers = numbers[known]
        if numbers.shape[1] and np.isnan(numbers[:, 0]).all():
            column = Column(name, "empty", "left out: no values in the rows with a target", column.n_missing)
            numbers = numbers[:, :0]
        columns.append(column)
        parts.append(numbers)
    columns += [Column(name, "dropped", "left out, as asked", int(frame[name].isna().sum())) for name in drop]
    X = np.concatenate(parts, axis=1) if parts else np.empty((int(known.sum()), 0))
    if X.shape[1] == 0:
        raise TableError(
            f"no column but the target {target!r} can be used; add columns with numbers, categories or dates"
        )
    return Design(X, read, tuple(columns), len(frame), int((~known).sum()))


def _plain(values: pd.Series) -> pd.Series:
    """Arrow's types other than numbers as Python's; rows numbered from 0."""
    values = values.reset_index(drop=True)
    arrow = isinstance(values.dtype, pd.ArrowDtype) and not pd.api.types.is_numeric_dtype(values.dtype)
    return values.astype(object) if arrow else values


def _without_words(target: pd.Series) -> pd.Series:
    """A target of numbers without the words that say "no value"; among classes such a word is a class."""
    found = as_numbers(target)
    if found is None or not found.words:
        return target
    return target.where(~np.isnan(found.values))


def _no_such_column(name: str, names: list[str], option: str) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    lower = [other for other in names if other.lower() == name.lower()]
    hint = f"did you mean {(lower or near)[0]!r}?" if lower or near else f"the columns are {', '.join(names[:12])}"
    return f"there is no column {name!r} for --{option}; {hint}"


# One column


def read_column(values: pd.Series) -> tuple[Column, Array]:
    """What one column is, and its numbers [n, k] (NaN where they are missing)."""
    name, n = str(values.name), len(values)
    missing = int(values.isna().sum())
    nothing = np.empty((n, 0))
    if missing == n:
        return Column(name, "empty", "left out: no values", missing), nothing
    found = as_numbers(values, mostly=True)
    if found is not None:
        return _number_column(name, found)
    dates = as_dates(values)
    if dates is not None:
        return _date_column(name, dates)
    texts = values.astype(object).map(lambda v: None if pd.isna(v) else str(v).strip())
    return _text_column(name, texts, missing)


def _number_column(name: str, found: Numbers) -> tuple[Column, Array]:
    numbers = found.values
    n_missing = int(np.isnan(numbers).sum())
    some = numbers[~np.isnan(numbers)]
    n = len(numbers)
    if len(some) == 0:
        return Column(name, "empty", "left out: no values", n_missing), np.empty((n, 0))
    different = np.unique(some)
    if len(different) == 1 and n_missing == 0:
        return Column(name, "constant", f"left out: always {different[0]:g}", 0), np.empty((n, 0))
    if max(abs(different[0]), abs(different[-1])) > LARGEST:
        raise TableError(
            f"column {name!r} must be within ±{LARGEST:g}, got {different[np.abs(different).argmax()]:g}; rescale it, "
            "or leave it out with --drop"
        )
    if np.equal(some, np.round(some)).all() and len(different) > 10:
        low, high = different[0], different[-1]
        counts = len(different) == n == high - low + 1 and not (YEARS[0] <= low and high <= YEARS[1])
        if counts or (_IDENTIFIER.search(name) and len(different) >= 0.9 * n):
            often = "every" if len(different) == n else "almost every"
            why = "counts the rows" if counts else f"a different whole number in {often} row"
            return Column(name, "identifier", f"left out: {why}", n_missing), np.empty((n, 0))
    does = "a number" + (f", written {found.said}" if found.said else "") + _taken_as_missing(found.words)
    return _with_missing(name, "number", does, numbers[:, None], (name,))


def _taken_as_missing(words: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, words[:5])) + (", ..." if len(words) > 5 else "")
    return f"; {shown} taken as missing" if words else ""


def _with_missing(name: str, kind: str, does: str, numbers: Array, names: tuple[str, ...]) -> tuple[Column, Array]:
    """Missing values are filled in from the training rows; a column says where they were."""
    gone = np.atleast_1d(np.isnan(numbers).any(axis=1))
    n_missing = int(gone.sum())
    if n_missing:
        does += f"; {n_missing} missing filled with the median, and a column that says where"
        numbers = np.concatenate([numbers, gone[:, None].astype(np.float64)], axis=1)
        names = (*names, f"{name} is missing")
    return Column(name, kind, does, n_missing, names), numbers


def _date_column(name: str, found: Dates) -> tuple[Column, Array]:
    dates = found.values
    if dates.isna().all():
        return Column(name, "empty", "left out: no values", len(dates)), np.empty((len(dates), 0))
    days = (dates - dates.min()).dt.total_seconds().to_numpy(dtype=np.float64) / 86_400
    if np.nanmax(days) == 0 and not np.isnan(days).any():
        return Column(name, "constant", f"left out: always {dates.min():%Y-%m-%d}", 0), np.empty((len(days), 0))
    does, parts = "days since the first date", [days]
    names: tuple[str, ...] = (f"{name} days",)
    if np.nanmax(days) > 366:
        turn = 2 * np.pi * dates.dt.day_of_year.to_numpy(dtype=np.float64, na_value=np.nan) / 365.25
        parts += [np.sin(turn), np.cos(turn)]
        names += (f"{name} season sin", f"{name} season cos")
        does += ", and the season as a sine and a cosine"
    does += _taken_as_missing(found.words)
    return _with_missing(name, "date", does, np.column_stack(parts), names)


def _text_column(name: str, texts: pd.Series, n_missing: int) -> tuple[Column, Array]:
    n = len(texts)
    counts = texts.value_counts()
    levels = sorted(counts.index)
    none = np.empty((n, 0))
    if len(levels) == 1 and n_missing == 0:
        return Column(name, "constant", f"left out: always {levels[0]!r}", 0), none
    if len(levels) == len(texts) - n_missing > 10:
        return Column(name, "identifier", "left out: a different text in every row", n_missing), none
    if len(levels) > max(MOST_LEVELS, 0.5 * (n - n_missing)):
        return Column(name, "text", f"left out: free text, {len(levels)} different values", n_missing), none
    if {level.lower() for level in levels} in _YES_NO and n_missing == 0 and len(levels) == 2:
        high = levels[1]
        return (
            Column(name, "yes/no", f"1 for {high!r}", 0, (f"{name} = {high}",)),
            (texts == high).to_numpy(dtype=np.float64)[:, None],
        )
    kept = list(counts.sort_index().sort_values(ascending=False, kind="stable").index[:MOST_LEVELS])
    kept = sorted(kept)
    parts = [(texts == level).to_numpy(dtype=np.float64) for level in kept]
    names = [f"{name} = {level}" for level in kept]
    does = f"one column for each of {len(kept)} categories"
    if len(levels) > len(kept):
        parts.append((texts.notna() & ~texts.isin(kept)).to_numpy(dtype=np.float64))
        names.append(f"{name} = other")
        does = f"one column for each of the {len(kept)} most frequent of {len(levels)} categories, one for the rest"
    if n_missing:
        parts.append(texts.isna().to_numpy(dtype=np.float64))
        names.append(f"{name} is missing")
        does += f"; {n_missing} missing are a category of their own"
    elif len(levels) == len(kept) == 2:  # the second says the same as the first
        parts, names = parts[1:], names[1:]
        does = f"1 for {kept[1]!r}, 0 for {kept[0]!r}"
    return Column(name, "category", does, n_missing, tuple(names)), np.column_stack(parts)


# The target


def read_target(values: pd.Series, task: str) -> Target:
    """Numbers to predict, or classes; `values` has no missing ones."""
    name = str(values.name)
    found = as_numbers(values)
    numbers = None if found is None else found.values
    if numbers is not None and np.isnan(numbers).any():
        raise TableError(f"the target {name!r} must be finite, got {int(np.isnan(numbers).sum())} infinite values")
    if numbers is None and task != "classification":
        almost = as_numbers(values, mostly=True)
        if almost is not None:
            shown = ", ".join(map(repr, almost.words))
            raise TableError(
                f"the target {name!r} is numbers but for {shown}; correct these or leave them empty, or pass --task "
                "classification"
            )
    if numbers is not None and np.abs(numbers).max() > LARGEST:
        raise TableError(
            f"the target {name!r} must be within ±{LARGEST:g}, got {numbers[np.abs(numbers).argmax()]:g}; rescale it"
        )
    n_different = values.map(lambda v: str(v).strip()).nunique() if numbers is None else len(np.unique(numbers))
    if n_different == 1:
        word = "one class only" if task == "classification" or numbers is None else "constant"
        raise TableError(f"the target {name!r} is {word}, always {values.iloc[0]!s}; choose another column")
    whole = numbers is not None and bool(np.equal(numbers, np.round(numbers)).all())
    if task == "auto":
        few = numbers is None or (whole and n_different <= FEW_INTEGERS)
        task, why = ("classification", "few different values") if few else ("regression", "numbers")
        if numbers is None:
            why = "text"
        said = f"recognised as {task} ({why}); --task overrides"
    else:
        said = f"{task}, as asked"
    if task == "regression":
        if numbers is None:
            raise TableError(
                f"the target {name!r} must be numbers for regression, got {_no_number(values)!r}; pass --task "
                "classification or choose another column"
            )
        return Target(name, task, numbers, said=said)
    labels = values.map(lambda v: str(v).strip()) if not whole else pd.Series(numbers).map(lambda v: str(int(v)))
    classes = sorted(set(labels), key=_natural)
    if len(classes) > MOST_CLASSES:
        raise TableError(
            f"the target {name!r} has {len(classes)} classes, more than {MOST_CLASSES}; choose another column, or "
            "--task regression if it is numbers"
        )
    place = {label: i for i, label in enumerate(classes)}
    return Target(name, task, np.array([place[label] for label in labels], dtype=np.int64), tuple(classes), said)


def _no_number(values: pd.Series) -> object:
    """The first value that is no number."""
    return next((v for v in values if as_numbers(pd.Series([v])) is None), values.iloc[0])


def _natural(label: str) -> tuple[int, float, str]:
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label
