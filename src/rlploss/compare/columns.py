"""From the columns of a frame to numbers: what each column is, and what becomes of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from rlploss._scaling import Array
from rlploss.compare.read import OPEN, Convention, Reading, TableError, as_dates, as_numbers, dates_again, numbers_again

MOST_LEVELS = 20  # columns of one category; where it has more levels, the rare ones share another

IDENTIFIER = re.compile(
    r"(^|[_\W])(?i:id|ids|uuid|guid|key|idx|rowid)($|[_\W])|(^|[_\W])(index|row|[Nn]r|[Nn]o)\.?$|[a-z](Id|ID)$"
)
YEARS = (1500, 2200)  # whole numbers between them may count the rows and yet be years
LARGEST = 1e100  # beyond, squares overflow
_YES_NO = ({"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"})


@dataclass(frozen=True)
class Column:
    """What a column is, what becomes of it, and how to read it again: `names` are the columns of numbers it gives."""

    name: str
    kind: str  # number, category, yes/no, date, constant, identifier, text, empty, dropped
    does: str  # in words
    n_missing: int
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


def frame_of(X: Any, names: Sequence[str] = ()) -> pd.DataFrame:
    """Return a frame or array as a pandas frame; columns of an array are called `names`, or x0, x1 and so on."""
    if isinstance(X, pd.DataFrame):
        return X.rename(columns=str)
    if hasattr(X, "to_dict") and hasattr(X, "columns"):  # polars, without needing pyarrow
        return pd.DataFrame({str(name): X[name].to_list() for name in X.columns})
    if hasattr(X, "toarray"):
        raise TableError("X must be dense, got a sparse matrix; pass X.toarray()")
    array = np.asarray(X)
    if array.ndim != 2:
        raise TableError(f"X must have two dimensions (rows, columns), got shape {array.shape}")
    given = list(names) if len(names) == array.shape[1] else [f"x{i}" for i in range(array.shape[1])]
    return pd.DataFrame(array, columns=given)


# One column


def read_column(values: pd.Series, convention: Convention = OPEN) -> Column:
    """Return what one column is, and how it becomes numbers."""
    name, missing = str(values.name), int(values.isna().sum())
    if missing == len(values):
        return _left_out(name, "empty", "no values", missing)
    if (found := as_numbers(values, convention, mostly=True)) is not None:
        return _number_column(name, found)
    if (dates := as_dates(values)) is not None:
        return _date_column(name, dates)
    return _text_column(name, texts_of(values), missing)


def texts_of(values: pd.Series) -> pd.Series:
    """Return values as texts without spaces around them, None where they are missing."""
    return values.astype(object).map(lambda v: None if pd.isna(v) else str(v).strip())


def _left_out(name: str, kind: str, why: str, n_missing: int) -> Column:
    return Column(name, kind, f"left out: {why}", n_missing, remark=True)


def _number_column(name: str, found: Reading) -> Column:
    numbers: Array = found.values
    n = len(numbers)
    different = np.unique(numbers[~np.isnan(numbers)])
    n_missing = int(np.isnan(numbers).sum())
    if len(different) == 0:
        return _left_out(name, "empty", "no values", n_missing)
    if len(different) == 1 and n_missing == 0:
        return _left_out(name, "constant", f"always {different[0]:g}", 0)
    if np.abs(different).max() > LARGEST:
        raise TableError(f"column {name!r} {too_large(different)}, or leave it out with --drop")
    if len(different) > 10 and np.equal(different, np.round(different)).all():
        years = YEARS[0] <= different[0] and different[-1] <= YEARS[1]
        counts = len(different) == n == different[-1] - different[0] + 1 and not years
        if counts or (IDENTIFIER.search(name) and len(different) >= 0.9 * n):
            often = "every" if len(different) == n else "almost every"
            why = "counts the rows" if counts else f"a different whole number in {often} row"
            return _left_out(name, "identifier", why, n_missing)
    does = "a number" + (f", written {found.said}" if found.said else "") + _taken_as_missing(found.words)
    made = Column(name, "number", does, n_missing, (name,), found.style, remark=bool(found.said or found.words))
    return _with_missing(made)


def too_large(numbers: Array) -> str:
    """Return what is told of numbers whose squares overflow."""
    return f"must be within ±{LARGEST:g}, got {numbers[np.abs(numbers).argmax()]:g}; rescale it"


def _taken_as_missing(words: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, words[:5])) + (", ..." if len(words) > 5 else "")
    return f"; {shown} taken as missing" if words else ""


def _with_missing(made: Column, does: str = "filled with the median, and a column that says where") -> Column:
    """Add a column that says where values are missing; numbers are filled in later, from the training rows."""
    if not made.n_missing:
        return made
    names = (*made.names, f"{made.name} is missing")
    return replace(made, does=f"{made.does}; {made.n_missing} missing {does}", names=names, flag=True, remark=True)


def _date_column(name: str, found: Reading) -> Column:
    dates: pd.Series = found.values
    n_missing = int(dates.isna().sum())
    if n_missing == len(dates):
        return _left_out(name, "empty", "no values", n_missing)
    first, last = dates.min(), dates.max()
    if first == last and not n_missing:
        return _left_out(name, "constant", f"always {first:%Y-%m-%d}", 0)
    names, does = [f"{name} days"], "days since the first date"
    if season := (last - first).days > 366:
        names += [f"{name} season sin", f"{name} season cos"]
        does += ", and the season as a sine and a cosine"
    does += _taken_as_missing(found.words)
    made = Column(name, "date", does, n_missing, tuple(names), found.style, first=first.isoformat(), season=season)
    return _with_missing(replace(made, remark=bool(found.words)))


def _text_column(name: str, texts: pd.Series, n_missing: int) -> Column:
    known = texts.dropna()
    levels = sorted(counts := Counter(known))
    if len(levels) == 1 and n_missing == 0:
        return _left_out(name, "constant", f"always {levels[0]!r}", 0)
    if len(levels) == len(known) > 10:
        return _left_out(name, "identifier", "a different text in every row", n_missing)
    if len(levels) > max(MOST_LEVELS, 0.5 * len(known)):
        return _left_out(name, "text", f"free text, {len(levels)} different values", n_missing)
    kind, kept, named = "category", levels, levels
    does = f"one column for each of {len(levels)} categories"
    other = len(levels) > MOST_LEVELS + 1
    if len(levels) == 2 and n_missing == 0:  # the second says the same as the first
        named = levels[1:]
        does = f"1 for {levels[1]!r}"
        if {level.lower() for level in levels} in _YES_NO:
            kind = "yes/no"
        else:
            does += f", 0 for {levels[0]!r}"
    elif other:
        kept = sorted(sorted(levels, key=lambda level: -counts[level])[:MOST_LEVELS])
        named = [*kept, "other"]
        does = f"one column for each of the {len(kept)} most frequent of {len(levels)} categories, one for the rest"
    names = tuple(f"{name} = {level}" for level in named)
    made = Column(name, kind, does, n_missing, names, levels=tuple(kept), other=other, remark=other)
    return _with_missing(made, "are a category of their own")
