"""From a frame to a design: every column as numbers, the target, and what orders or groups the rows."""

from __future__ import annotations

import difflib
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlploss._checks import one_of
from rlploss._scaling import Array
from rlploss.compare.read import OPEN, Convention, Reading, TableError, as_dates, as_numbers, dates_again, numbers_again

MOST_LEVELS = 20  # columns of one category; where it has more levels, the rare ones share another
IDENTIFIER = re.compile(
    r"(^|[_\W])(?i:id|ids|uuid|guid|key|idx|rowid)($|[_\W])|(^|[_\W])(index|row|[Nn]r|[Nn]o)\.?$|[a-z](Id|ID)$"
)
YEARS = (1500, 2200)  # whole numbers between them may count the rows and yet be years
LARGEST = 1e100  # beyond, squares overflow
_LIST = re.compile(r"\s*(\[.*\]|\{.*\})\s*", re.DOTALL)  # as text
_YES_NO = ({"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"})
MOST_CLASSES = 20
FEWEST_GROUPS = 8
FEW_INTEGERS = 10  # whole numbers with at most so many different values are classes

Class = bool | int | float | str


@dataclass(frozen=True)
class Column:
    """What a column is, what becomes of it, and how to read it again: `names` are the columns of numbers it gives."""

    name: str
    kind: str  # number, category, yes/no, date, constant, identifier, text, empty, dropped
    does: str  # in words
    n_missing: int = 0
    names: tuple[str, ...] = ()
    style: str = ""  # of numbers or dates
    levels: tuple[str, ...] = ()  # of a category that have a column; two of them may share one
    other: bool = False  # whether the other levels share one
    flag: bool = False  # whether the last column says where values are missing
    first: str = ""  # day from which days are counted
    season: bool = False
    remark: bool = False  # whether people should look at it

    def numbers(self, values: pd.Series) -> Array:
        """Return the numbers [n, k] of a column, of the table or of new rows; NaN where they are missing."""
        if not self.names:
            return np.empty((len(values), 0))
        parts: list[Any] = []
        if self.kind == "number":
            parts.append(numbers_again(values, self.style))
        elif self.kind == "date":
            dates = dates_again(values, self.style)
            parts.append((dates - pd.Timestamp(self.first)).dt.total_seconds().to_numpy(dtype=np.float64) / 86_400)
            if self.season:
                turn = 2 * np.pi * dates.dt.day_of_year.to_numpy(dtype=np.float64, na_value=np.nan) / 365.25
                parts += [np.sin(turn), np.cos(turn)]
        else:
            texts = texts_of(values)
            known = texts.isin(self.levels)
            if len(self.names) < len(self.levels):  # one column for two levels, NaN for what is neither
                parts.append(np.where(known, texts == self.levels[1], np.nan))
            else:
                parts += [texts == level for level in self.levels]
            if self.other:
                parts.append(texts.notna() & ~known)
        gaps = [texts.isna() if self.levels else np.isnan(parts[0])] if self.flag else []
        return np.column_stack([*parts, *gaps]).astype(np.float64)


@dataclass(frozen=True)
class Target:
    """The target: real numbers, or class numbers with the classes they stand for."""

    name: str
    task: str
    y: NDArray[Any]
    classes: tuple[str, ...] = ()  # in words
    values: tuple[Class, ...] = ()  # the same as their owner has them; what JSON does not have is a text
    said: str = ""


@dataclass(frozen=True)
class Design:
    """A table as numbers: its rows that have a target. X may hold NaN."""

    X: Array
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
        return self.n_rows - len(self.X)


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
    """Decide what every column is, and return the table as numbers; columns named in `drop` are left out.

    `time` and `group` name columns: rows of later times, or of other groups, are what the arms are tested on. In a
    table `from_file` text may stand for numbers: the classes "0" and "1" are 0 and 1.
    """
    one_of("task", task, ("auto", "regression", "classification"))
    asked = [("target", target), *(("drop", name) for name in drop), ("time", time), ("group", group)]
    for option, name in asked:
        if name is not None and name not in frame.columns:
            raise TableError(_no_such_column(name, list(frame.columns), option))
        if option == "drop" and name == target:
            raise TableError(f"the target {target!r} cannot be dropped too; leave it out of --drop")
        if option in ("time", "group") and name == target:
            raise TableError(f"the target {target!r} cannot be the column of --{option} too; name another column")
    if time and group:
        raise TableError("--time and --group ask for different splits; give one of them")
    frame = frame.assign(**{name: _checked(frame[name]) for name in frame.columns if name not in drop})
    convention = Convention.of(frame.drop(columns=list(drop)), decimal, thousands)
    raw = frame[target]
    if raw.isna().all():
        raise TableError(f"the target {target!r} has no values; choose another column")
    found = as_numbers(raw, convention)
    if found is not None and found.words:  # words that say "no value"; among classes such a word is a class
        raw = raw.where(~np.isnan(found.values))
    known = raw.notna().to_numpy()
    read = read_target(raw[known].reset_index(drop=True), task, convention, from_file=from_file)
    columns, parts, warned = [], [], list(convention.warnings)
    for name in [name for name in frame.columns if name != target and name not in drop]:
        values = frame[name].reset_index(drop=True)
        column = read_column(values, convention)
        numbers = column.numbers(values)[known]
        if name == group:
            column = replace(_left_out(name, "identifier", "its rows stay together"), n_missing=column.n_missing)
        elif numbers.shape[1] and np.isnan(numbers[:, 0]).all():
            column = Column(name, "empty", "left out: no values in the rows with a target", column.n_missing)
        elif not time and not group and (told := _order_or_key(column, values[known])):
            warned.append(told)
        columns.append(column)
        parts.append(numbers[:, : len(column.names)])
    columns += [Column(name, "dropped", "left out, as asked", int(frame[name].isna().sum())) for name in drop]
    X = np.concatenate(parts, axis=1) if parts else np.empty((int(known.sum()), 0))
    if X.shape[1] == 0:
        wanted = "add columns with numbers, categories or dates"
        raise TableError(f"no column but the target {target!r} can be used; {wanted}")
    when = None if time is None else _times(frame[time][known].reset_index(drop=True), convention)
    keys = None if group is None else _groups(frame[group][known])
    said = "Numbers are read with decimal commas (7,8 is 7.8)." if convention.decimal == "," else ""
    return Design(X, read, tuple(columns), len(frame), when, keys, tuple(warned), said)


def _times(values: pd.Series, convention: Convention) -> Array:
    """Return a column of dates or numbers as numbers that order the rows."""
    days: Array = np.full(len(values), np.nan)
    if (dates := as_dates(values)) is not None:
        days = (dates.values - dates.values.min()).dt.total_seconds().to_numpy(dtype=np.float64)
    elif (found := as_numbers(values, convention)) is not None:
        days = found.values
    if np.isnan(days).any():
        shown = values.iloc[int(np.isnan(days).argmax())]
        wanted = "--time needs dates or numbers without gaps"
        raise TableError(f"{wanted}, but in {values.name!r} {shown!r} is none; correct it or leave its row out")
    return days


def _groups(values: pd.Series) -> NDArray[np.int64]:
    """Return the group of every row as a number."""
    keys, found = pd.factorize(texts_of(values))
    if gaps := int((keys < 0).sum()):
        rows = "1 row has" if gaps == 1 else f"{gaps:,} rows have"
        raise TableError(f"--group needs a value in every row, but {rows} none in {values.name!r}; leave these out")
    if len(found) < FEWEST_GROUPS:
        wrong = f"--group needs at least {FEWEST_GROUPS} groups, got {len(found)} in {values.name!r}"
        raise TableError(f"{wrong}; name another column")
    return np.asarray(keys, dtype=np.int64)


def _order_or_key(column: Column, values: pd.Series) -> str:
    """Return a warning about rows that are not independent: sorted by a date, or with a key that repeats."""
    n, name = len(values), column.name
    if column.kind == "date":
        days: Array = column.numbers(values)[:, 0]
        if not np.isnan(days).any() and len(np.unique(days)) > n / 10 and (np.diff(days) >= 0).all():
            sees = "random splits let an arm see days after those it is tested on, so errors on days to come may be"
            remedy = f"--time {shlex.quote(name)} tests on the future"
            return f"the rows are sorted by {name!r}: {sees} much larger; {remedy}"
    elif IDENTIFIER.search(name) and column.kind in ("number", "category", "text"):
        different = values.nunique()
        if 1 < different < 0.9 * n and n / different >= 1.5:
            flatters = "rows of one may be in training and in test, which flatters every arm"
            key = f"{name!r} looks like a key that repeats ({different:,} values in {n:,} rows)"
            return f"{key}: {flatters}; --group {shlex.quote(name)} keeps them together"
    return ""


def _checked(values: pd.Series) -> pd.Series:
    """Return a column with Arrow's types other than numbers, and categories, as Python's.

    A column of lists is refused: it is several columns, and which ones only its owner knows.
    """
    arrow = isinstance(values.dtype, pd.ArrowDtype) and not pd.api.types.is_numeric_dtype(values.dtype)
    if arrow or isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(object)
    if values.dtype != object and not isinstance(values.dtype, pd.StringDtype):
        return values
    some = list(values.dropna().iloc[:1000])
    lists = [v for v in some if (_LIST.fullmatch(v) if isinstance(v, str) else pd.api.types.is_list_like(v))]
    if len(lists) > len(some) / 2 or not all(isinstance(value, str) for value in lists):
        wrong = f"column {values.name!r} holds lists such as {str(lists[0])[:40]}"
        raise TableError(f"{wrong}; spread them over columns of their own, or leave the column out with --drop")
    return values


def _no_such_column(name: str, names: list[str], option: str) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    lower = [other for other in names if other.lower() == name.lower()]
    hint = f"did you mean {(lower or near)[0]!r}?" if lower or near else f"the columns are {', '.join(names[:12])}"
    return f"there is no column {name!r} for --{option}; {hint}"


# One column


def read_column(values: pd.Series, convention: Convention = OPEN) -> Column:
    """Return what one column is, and how it becomes numbers; missing ones are filled in later, from training rows."""
    name = str(values.name)
    kind, found = "number", as_numbers(values, convention, mostly=True)
    if found is None:
        kind, found = "date", as_dates(values)
    read = texts_of(values) if found is None else pd.Series(found.values)
    different, n_missing = sorted(read.dropna().unique()), int(read.isna().sum())
    if not different:
        made = _left_out(name, "empty", "no values")
    elif len(different) == 1 and not n_missing:
        form = "{!r}" if found is None else {"number": "{:g}", "date": "{:%Y-%m-%d}"}[kind]
        made = _left_out(name, "constant", f"always {form.format(different[0])}")
    elif found is None:
        made = _text_column(name, Counter(read.dropna()), two=len(different) == 2 and not n_missing)
    else:
        made = (_number_column if kind == "number" else _date_column)(name, found, different)
    if not n_missing or not made.names:
        return replace(made, n_missing=n_missing)
    told = "are a category of their own" if made.levels else "filled with the median, and a column that says where"
    does, names = f"{made.does}; {n_missing} missing {told}", (*made.names, f"{name} is missing")
    return replace(made, n_missing=n_missing, does=does, names=names, flag=True, remark=True)


def texts_of(values: pd.Series) -> pd.Series:
    """Return values as texts without spaces around them, None where they are missing."""
    return values.astype(object).map(lambda v: None if pd.isna(v) else str(v).strip())


def _left_out(name: str, kind: str, why: str) -> Column:
    return Column(name, kind, f"left out: {why}", remark=True)


def _number_column(name: str, found: Reading, different: Sequence[float]) -> Column:
    if np.abs(different).max() > LARGEST:
        raise TableError(f"column {name!r} {too_large(different)}, or leave it out with --drop")
    if len(different) > 10 and np.equal(different, np.round(different)).all():
        n, low, high = len(found.values), different[0], different[-1]
        years = YEARS[0] <= low and high <= YEARS[1]
        counts = len(different) == n == high - low + 1 and not years
        if counts or (IDENTIFIER.search(name) and len(different) >= 0.9 * n):
            often = "every" if len(different) == n else "almost every"
            why = "counts the rows" if counts else f"a different whole number in {often} row"
            return _left_out(name, "identifier", why)
    does = "a number" + (f", written {found.said}" if found.said else "") + _taken_as_missing(found.words)
    return Column(name, "number", does, 0, (name,), found.style, remark=bool(found.said or found.words))


def too_large(numbers: Sequence[float] | Array) -> str:
    """Return what is told of numbers whose squares overflow."""
    return f"must be within ±{LARGEST:g}, got {max(numbers, key=abs):g}; rescale it"


def _taken_as_missing(words: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, words[:5])) + (", ..." if len(words) > 5 else "")
    return f"; {shown} taken as missing" if words else ""


def _date_column(name: str, found: Reading, different: Sequence[pd.Timestamp]) -> Column:
    first, season = different[0], (different[-1] - different[0]).days > 366
    names, does = [f"{name} days"], "days since the first date"
    if season:
        names += [f"{name} season sin", f"{name} season cos"]
        does += ", and the season as a sine and a cosine"
    does += _taken_as_missing(found.words)
    made = Column(name, "date", does, 0, tuple(names), found.style, first=first.isoformat(), season=season)
    return replace(made, remark=bool(found.words))


def _text_column(name: str, counts: Counter[str], *, two: bool) -> Column:
    """Return a category, or what has too many different texts for one; of `two` the second says the same."""
    n, levels = counts.total(), sorted(counts)
    if len(levels) == n > 10:
        return _left_out(name, "identifier", "a different text in every row")
    if len(levels) > max(MOST_LEVELS, 0.5 * n):
        return _left_out(name, "text", f"free text, {len(levels)} different values")
    kind, kept, named = "category", levels, levels
    does = f"one column for each of {len(levels)} categories"
    other = len(levels) > MOST_LEVELS + 1
    if two:
        named, does = levels[1:], f"1 for {levels[1]!r}"
        if {level.lower() for level in levels} in _YES_NO:
            kind = "yes/no"
        else:
            does += f", 0 for {levels[0]!r}"
    elif other:
        kept = sorted(sorted(levels, key=lambda level: -counts[level])[:MOST_LEVELS])
        named = [*kept, "other"]
        does = f"one column for each of the {len(kept)} most frequent of {len(levels)} categories, one for the rest"
    names = tuple(f"{name} = {level}" for level in named)
    return Column(name, kind, does, 0, names, levels=tuple(kept), other=other, remark=other)


# The target


def read_target(values: pd.Series, task: str, convention: Convention, *, from_file: bool = False) -> Target:
    """Return numbers to predict, or classes; `values` has no missing ones."""
    name = str(values.name)

    def refused(why: str) -> TableError:
        return TableError(f"the target {name!r} {why}")

    found = as_numbers(values, convention)
    numbers: Array | None = None if found is None else found.values
    if numbers is not None and np.isnan(numbers).any():
        raise refused(f"must be finite, got {int(np.isnan(numbers).sum())} infinite values")
    if numbers is not None and np.abs(numbers).max() > LARGEST:
        raise refused(too_large(numbers))
    almost = as_numbers(values, convention, mostly=True) if numbers is None and task != "classification" else None
    if almost is not None:
        remedy = "correct these or leave them empty, or pass --task classification"
        raise refused(f"is numbers but for {', '.join(map(repr, almost.words))}; {remedy}")
    whole = numbers is not None and bool(np.equal(numbers, np.round(numbers)).all())
    labels = values.map(lambda v: str(v).strip()) if not whole else pd.Series(numbers).map(lambda v: str(int(v)))
    n_different = labels.nunique() if numbers is None else len(np.unique(numbers))
    if n_different == 1:
        word = "one class only" if task == "classification" or numbers is None else "constant"
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
        return Target(name, task, numbers, said=said)
    classes = sorted(set(labels), key=_natural)
    if len(classes) > MOST_CLASSES:
        remedy = "choose another column, or --task regression if it is numbers"
        raise refused(f"has {len(classes)} classes, more than {MOST_CLASSES}; {remedy}")
    y = pd.Categorical(labels, categories=classes).codes.astype(np.int64)
    given = [values.iloc[int(np.argmax(y == code))] for code in range(len(classes))]
    plain = [value.item() if isinstance(value, np.generic) else value for value in given]
    owned = [value if isinstance(value, Class) else label for value, label in zip(plain, classes, strict=True)]
    if from_file and whole:
        owned = [int(label) for label in classes]
    return Target(name, task, y, tuple(classes), tuple(owned), said)


def _natural(label: str) -> tuple[int, float, str]:
    """Return what sorts numbers by size, before words."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label
