"""From the columns of a frame to numbers: what each column is, what becomes of it, and the target."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlploss._checks import one_of
from rlploss.compare.read import Array, Reading, TableError, as_dates, as_numbers

MOST_LEVELS = 20  # columns of one category; where it has more levels, the rare ones share another
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
    kind: str  # number, category, yes/no, date, constant, identifier, text, empty, dropped
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

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        return tuple(name for column in self.columns for name in column.names)


def make_design(frame: pd.DataFrame, target: str, *, task: str = "auto", drop: Sequence[str] = ()) -> Design:
    """Decide what every column is, and return the table as numbers; columns named in `drop` are left out."""
    one_of("task", task, TASKS)
    for name in (target, *drop):
        if name not in frame.columns:
            raise TableError(_no_such_column(name, list(frame.columns), "target" if name == target else "drop"))
    if target in drop:
        raise TableError(f"the target {target!r} cannot be dropped too; leave it out of --drop")
    raw = _checked(frame[target])
    if raw.isna().all():
        raise TableError(f"the target {target!r} has no values; choose another column")
    found = as_numbers(raw)
    if found is not None and found.words:  # words that say "no value"; among classes such a word is a class
        raw = raw.where(~np.isnan(found.values))
    known = raw.notna().to_numpy()
    read = read_target(raw[known], task)
    columns, parts = [], []
    for name in frame.columns:
        if name == target or name in drop:
            continue
        column, numbers = read_column(_checked(frame[name]))
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


def _checked(values: pd.Series) -> pd.Series:
    """Return a column with rows numbered from 0; Arrow's types other than numbers, and categories, as Python's.

    A column of lists is refused: it is several columns, and which ones only its owner knows.
    """
    values = values.reset_index(drop=True)
    arrow = isinstance(values.dtype, pd.ArrowDtype) and not pd.api.types.is_numeric_dtype(values.dtype)
    if arrow or isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(object)
    if values.dtype != object and not isinstance(values.dtype, pd.StringDtype):
        return values
    some = list(values.dropna().iloc[:1000])
    lists = [value for value in some if _is_list(value)]
    if len(lists) > len(some) / 2 or not all(isinstance(value, str) for value in lists):
        raise TableError(
            f"column {values.name!r} holds lists such as {str(lists[0])[:40]}; spread them over columns of their "
            "own, or leave the column out with --drop"
        )
    return values


def _is_list(value: object) -> bool:
    if isinstance(value, str):
        text = value.strip()
        return len(text) > 1 and (text[0], text[-1]) in (("[", "]"), ("{", "}"))
    return not isinstance(value, bytes) and hasattr(value, "__len__")


def _no_such_column(name: str, names: list[str], option: str) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    lower = [other for other in names if other.lower() == name.lower()]
    hint = f"did you mean {(lower or near)[0]!r}?" if lower or near else f"the columns are {', '.join(names[:12])}"
    return f"there is no column {name!r} for --{option}; {hint}"


# One column


def read_column(values: pd.Series) -> tuple[Column, Array]:
    """Return what one column is, and its numbers [n, k] (NaN where they are missing)."""
    name, missing = str(values.name), int(values.isna().sum())
    if missing == len(values):
        return _left_out(name, "empty", "no values", missing, len(values))
    found = as_numbers(values, mostly=True)
    if found is not None:
        return _number_column(name, found)
    dates = as_dates(values)
    if dates is not None:
        return _date_column(name, dates)
    texts = values.astype(object).map(lambda v: None if pd.isna(v) else str(v).strip())
    return _text_column(name, texts, missing)


def _left_out(name: str, kind: str, why: str, n_missing: int, n_rows: int) -> tuple[Column, Array]:
    return Column(name, kind, f"left out: {why}", n_missing), np.empty((n_rows, 0))


def _number_column(name: str, found: Reading) -> tuple[Column, Array]:
    numbers: Array = found.values
    n = len(numbers)
    different = np.unique(numbers[~np.isnan(numbers)])
    n_missing = int(np.isnan(numbers).sum())
    if len(different) == 0:
        return _left_out(name, "empty", "no values", n_missing, n)
    if len(different) == 1 and n_missing == 0:
        return _left_out(name, "constant", f"always {different[0]:g}", 0, n)
    if np.abs(different).max() > LARGEST:
        raise TableError(
            f"column {name!r} must be within ±{LARGEST:g}, got {different[np.abs(different).argmax()]:g}; rescale it, "
            "or leave it out with --drop"
        )
    if len(different) > 10 and np.equal(different, np.round(different)).all():
        low, high = different[0], different[-1]
        counts = len(different) == n == high - low + 1 and not (YEARS[0] <= low and high <= YEARS[1])
        if counts or (_IDENTIFIER.search(name) and len(different) >= 0.9 * n):
            often = "every" if len(different) == n else "almost every"
            why = "counts the rows" if counts else f"a different whole number in {often} row"
            return _left_out(name, "identifier", why, n_missing, n)
    does = "a number" + (f", written {found.said}" if found.said else "") + _taken_as_missing(found.words)
    return _with_missing(name, "number", does, numbers[:, None], (name,))


def _taken_as_missing(words: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, words[:5])) + (", ..." if len(words) > 5 else "")
    return f"; {shown} taken as missing" if words else ""


def _with_missing(name: str, kind: str, does: str, numbers: Array, names: tuple[str, ...]) -> tuple[Column, Array]:
    """Add a column that says where values are missing; they are filled in later, from the training rows."""
    gone = np.isnan(numbers).any(axis=1)
    if gone.any():
        does += f"; {gone.sum()} missing filled with the median, and a column that says where"
        numbers = np.column_stack([numbers, gone])
        names = (*names, f"{name} is missing")
    return Column(name, kind, does, int(gone.sum()), names), numbers


def _date_column(name: str, found: Reading) -> tuple[Column, Array]:
    dates: pd.Series = found.values
    if dates.isna().all():
        return _left_out(name, "empty", "no values", len(dates), len(dates))
    days = (dates - dates.min()).dt.total_seconds().to_numpy(dtype=np.float64) / 86_400
    if (days == 0).all():
        return _left_out(name, "constant", f"always {dates.min():%Y-%m-%d}", 0, len(days))
    does, parts = "days since the first date", [days]
    names: tuple[str, ...] = (f"{name} days",)
    if np.nanmax(days) > 366:
        turn = 2 * np.pi * dates.dt.day_of_year.to_numpy(dtype=np.float64, na_value=np.nan) / 365.25
        parts += [np.sin(turn), np.cos(turn)]
        names += (f"{name} season sin", f"{name} season cos")
        does += ", and the season as a sine and a cosine"
    return _with_missing(name, "date", does + _taken_as_missing(found.words), np.column_stack(parts), names)


def _text_column(name: str, texts: pd.Series, n_missing: int) -> tuple[Column, Array]:
    from sklearn.preprocessing import OneHotEncoder

    n, known = len(texts), texts.dropna()
    levels = sorted(set(known))
    if len(levels) == 1 and n_missing == 0:
        return _left_out(name, "constant", f"always {levels[0]!r}", 0, n)
    if len(levels) == len(known) > 10:
        return _left_out(name, "identifier", "a different text in every row", n_missing, n)
    if len(levels) > max(MOST_LEVELS, 0.5 * len(known)):
        return _left_out(name, "text", f"free text, {len(levels)} different values", n_missing, n)
    two = len(levels) == 2 and n_missing == 0  # the second says the same as the first
    # A missing value is a level that the encoder has not seen: nothing in every column.
    encoder = OneHotEncoder(
        sparse_output=False, handle_unknown="ignore", max_categories=MOST_LEVELS + 1, drop=[levels[0]] if two else None
    )
    numbers: Array = encoder.fit(known.to_frame()).transform(texts.to_frame())
    rare = encoder.infrequent_categories_[0]
    kept = [level for level in levels[two:] if rare is None or level not in rare]
    names = [f"{name} = {level}" for level in kept]
    kind, does = "category", f"one column for each of {len(kept)} categories"
    if two:
        kind = "yes/no" if {level.lower() for level in levels} in _YES_NO else kind
        does = f"1 for {levels[1]!r}" + (f", 0 for {levels[0]!r}" if kind == "category" else "")
    elif rare is not None:
        names.append(f"{name} = other")
        does = f"one column for each of the {len(kept)} most frequent of {len(levels)} categories, one for the rest"
    if n_missing:
        numbers = np.column_stack([numbers, texts.isna()])
        names.append(f"{name} is missing")
        does += f"; {n_missing} missing are a category of their own"
    return Column(name, kind, does, n_missing, tuple(names)), numbers


# The target


def read_target(values: pd.Series, task: str) -> Target:
    """Return numbers to predict, or classes; `values` has no missing ones."""
    name = str(values.name)
    found = as_numbers(values)
    numbers: Array | None = None if found is None else found.values
    if numbers is not None and np.isnan(numbers).any():
        raise TableError(f"the target {name!r} must be finite, got {int(np.isnan(numbers).sum())} infinite values")
    almost = as_numbers(values, mostly=True) if numbers is None and task != "classification" else None
    if almost is not None:
        raise TableError(
            f"the target {name!r} is numbers but for {', '.join(map(repr, almost.words))}; correct these or leave them "
            "empty, or pass --task classification"
        )
    if numbers is not None and np.abs(numbers).max() > LARGEST:
        raise TableError(
            f"the target {name!r} must be within ±{LARGEST:g}, got {numbers[np.abs(numbers).argmax()]:g}; rescale it"
        )
    whole = numbers is not None and bool(np.equal(numbers, np.round(numbers)).all())
    labels = values.map(lambda v: str(v).strip()) if not whole else pd.Series(numbers).map(lambda v: str(int(v)))
    n_different = labels.nunique() if numbers is None else len(np.unique(numbers))
    if n_different == 1:
        word = "one class only" if task == "classification" or numbers is None else "constant"
        raise TableError(f"the target {name!r} is {word}, always {values.iloc[0]!s}; choose another column")
    said = f"{task}, as asked"
    if task == "auto":
        few = numbers is None or (whole and n_different <= FEW_INTEGERS)
        task = "classification" if few else "regression"
        why = "text" if numbers is None else "few different values" if few else "numbers"
        said = f"recognised as {task} ({why}); --task overrides"
    if task == "regression":
        if numbers is None:
            wrong = next((v for v in values if as_numbers(pd.Series([v])) is None), values.iloc[0])
            raise TableError(
                f"the target {name!r} must be numbers for regression, got {wrong!r}; pass --task classification or "
                "choose another column"
            )
        return Target(name, task, numbers, said=said)
    classes = sorted(set(labels), key=_natural)
    if len(classes) > MOST_CLASSES:
        raise TableError(
            f"the target {name!r} has {len(classes)} classes, more than {MOST_CLASSES}; choose another column, or "
            "--task regression if it is numbers"
        )
    y = pd.Categorical(labels, categories=classes).codes.astype(np.int64)
    return Target(name, task, y, tuple(classes), said)


def _natural(label: str) -> tuple[int, float, str]:
    """Return what sorts numbers by size, before words."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label
