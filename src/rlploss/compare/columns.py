"""What every column of a table is, and how it becomes numbers: of the table itself, and of new rows
later.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from rlploss._scaling import Array
from rlploss.compare.read import OPEN, Convention, TableError
from rlploss.estimators.cells import NO_VALUE, Reading, as_dates, as_numbers, dates_in, numbers_in

MOST_LEVELS = 20  # columns of one category; where it has more levels, the rare ones share another
IDENTIFIER = re.compile(
    r"(^|[_\W])(?i:id|ids|uuid|guid|key|idx|rowid)($|[_\W])|(^|[_\W])(index|row|[Nn]r|[Nn]o)\.?$|[a-z](Id|ID)$"
)
YEARS = (1500, 2200)  # whole numbers between them may count the rows and yet be years
LARGEST = 1e100  # beyond, squares overflow
_YES_NO = ({"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"})


@dataclass(frozen=True)
class Column:
    """What a column is, what becomes of it, and how to read it again: `names` are the columns of
    numbers it gives.
    """

    name: str
    kind: str  # number, category, yes/no, date, constant, identifier, text, empty, dropped
    does: str  # in words
    n_missing: int = 0
    names: tuple[str, ...] = ()
    style: str = ""  # of numbers or dates
    unit: str = ""
    levels: tuple[str, ...] = ()  # of a category that have a column; two of them may share one
    other: bool = False  # whether the other levels share one
    flag: bool = False  # whether the last column says where values are missing
    first: str = ""  # day from which days are counted
    season: bool = False
    remark: bool = False  # whether people should look at it
    doubt: str = ""  # what else its values may mean

    def numbers(self, values: pd.Series) -> Array:
        """Return the numbers [n, k] of a column, of the table or of new rows; NaN where they are
        missing.
        """
        if not self.names:
            return np.empty((len(values), 0))
        parts: list[Any] = []
        if self.kind == "number":
            parts.append(numbers_in(values, self.style, self.unit).to_numpy())
        elif self.kind == "date":
            dates = dates_in(values, self.style)
            parts.append(
                (dates - pd.Timestamp(self.first)).dt.total_seconds().to_numpy(dtype=np.float64)
                / 86_400
            )
            if self.season:
                turn = (
                    2
                    * np.pi
                    * dates.dt.day_of_year.to_numpy(dtype=np.float64, na_value=np.nan)
                    / 365.25
                )
                parts += [np.sin(turn), np.cos(turn)]
        else:
            texts = texts_of(values)
            known = texts.isin(self.levels)
            if len(self.names) < len(
                self.levels
            ):  # one column for two levels, NaN for what is neither
                parts.append(np.where(known, texts == self.levels[1], np.nan))
            else:
                parts += [texts == level for level in self.levels]
            if self.other:
                parts.append(texts.notna() & ~known)
        gaps = [texts.isna() if self.levels else np.isnan(parts[0])] if self.flag else []
        return np.column_stack([*parts, *gaps]).astype(np.float64)

    def n_unread(self, values: pd.Series) -> int:
        """Return how many values are there that the column cannot read as it read those of the
        table.
        """
        if not self.names or self.other:
            return 0
        texts = texts_of(values)
        known = texts.isin(self.levels) if self.levels else ~np.isnan(self.numbers(values)[:, 0])
        meant = texts.notna() & (
            True if self.levels else ~texts.str.lower().isin(NO_VALUE).astype(bool)
        )
        return int((meant & ~known).sum())


def read_column(values: pd.Series, convention: Convention = OPEN) -> Column:
    """Return what one column is, and how it becomes numbers; missing ones are filled in later, from
    training rows.
    """
    name = str(values.name)
    kind, found = "number", as_numbers(values, convention.styles(name), mostly=True)
    if found is None:
        kind, found = "date", as_dates(values)
    read = texts_of(values) if found is None else found.values.reset_index(drop=True)
    different, n_missing = sorted(read.dropna().unique()), int(read.isna().sum())
    if not different:
        made = left_out(name, "empty", "no values")
    elif len(different) == 1 and not n_missing:
        form = "{!r}" if found is None else {"number": "{:g}", "date": "{:%Y-%m-%d}"}[kind]
        made = left_out(name, "constant", f"always {form.format(different[0])}")
    elif found is None:
        made = _text_column(name, Counter(read.dropna()), two=len(different) == 2 and not n_missing)
    else:
        made = (_number_column if kind == "number" else _date_column)(name, found, different)
    if not n_missing or not made.names:
        return replace(made, n_missing=n_missing)
    told = (
        "are a category of their own"
        if made.levels
        else "filled with the median, and a column that says where"
    )
    does, names = f"{made.does}; {n_missing} missing {told}", (*made.names, f"{name} is missing")
    return replace(made, n_missing=n_missing, does=does, names=names, flag=True, remark=True)


def texts_of(values: pd.Series) -> pd.Series:
    """Return values as texts without spaces around them, None where they are missing."""
    return values.astype(object).map(lambda v: None if pd.isna(v) else str(v).strip())


def left_out(name: str, kind: str, why: str) -> Column:
    """Return a column that is not used, with the reason."""
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
            return left_out(name, "identifier", why)
    does = (
        "a number"
        + (f", written {found.said}" if found.said else "")
        + _taken_as_missing(found.words)
    )
    return Column(
        name,
        "number",
        does,
        0,
        (name,),
        found.style,
        found.unit,
        remark=bool(found.said or found.words),
    )


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
    made = Column(
        name, "date", does, 0, tuple(names), found.style, first=first.isoformat(), season=season
    )
    return replace(made, remark=bool(found.words or found.doubt), doubt=found.doubt)


def _text_column(name: str, counts: Counter[str], *, two: bool) -> Column:
    """Return a category, or what has too many different texts for one; of `two` the second says the
    same.
    """
    n, levels = counts.total(), sorted(counts)
    if len(levels) == n > 10:
        return left_out(name, "identifier", "a different text in every row")
    if len(levels) > max(MOST_LEVELS, 0.5 * n):
        return left_out(name, "text", f"free text, {len(levels)} different values")
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
        does = (
            f"one column for each of the {len(kept)} most frequent of {len(levels)} categories, one"
            " for the rest"
        )
    names = tuple(f"{name} = {level}" for level in named)
    return Column(name, kind, does, 0, names, levels=tuple(kept), other=other, remark=other)
