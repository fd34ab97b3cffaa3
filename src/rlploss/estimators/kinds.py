"""What every column of a table is: a number, a date, a category, or nothing that helps.

The kinds are decided once for a whole table, and without its target.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from rlploss._scaling import Array
from rlploss.estimators.cells import (
    MOSTLY,
    NO_VALUE,
    STYLES,
    Reading,
    Style,
    as_dates,
    as_numbers,
    as_numeric_dates,
    dates_in,
    is_text,
    numbers_in,
    units,
)

FEW_LEVELS = 20  # of a category: a column for each says it all; with more their mean target is told
MOST_LEVELS, ROWS_PER_LEVEL = 200, 3  # for a column each
IDENTIFIER = re.compile(
    r"(^|[_\W])(?i:id|ids|uuid|guid|key|idx|rowid)($|[_\W])|(^|[_\W])(index|row|[Nn]r|[Nn]o)\.?$|[a-z](Id|ID)$"
)
YEARS = (1500, 2200)  # whole numbers between them may count the rows and yet be years
_YES_NO = ({"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"})
_NINES = re.compile(r"-?9{2,}")


@dataclass(frozen=True)
class Column:
    """What a column is, what becomes of it, and how to read it again."""

    name: str
    kind: str  # number, date, category, yes/no; or constant, identifier, text, empty, dropped
    does: str  # in words
    n_missing: int = 0
    style: str = ""  # of numbers or dates
    unit: str = ""  # behind its numbers
    no_values: tuple[float, ...] = ()  # numbers such as -999 that stand for "missing"
    first: str = ""  # day from which days are counted
    season: bool = False  # whether the day of the year is two columns of its own
    one_hot: bool = False  # whether each category has a column
    mean_target: bool = False  # whether one column is the mean target of the row's category
    remark: bool = False  # whether people should look at it
    doubt: str = ""  # what its values may mean instead, or what is wrong with them

    @property
    def used(self) -> bool:
        """Whether models see the column."""
        return self.kind in ("number", "date", "category", "yes/no")

    def read(self, values: pd.Series) -> pd.Series:
        """Return values as this column has them: floats, timestamps, or texts; what is missing or
        cannot be read is NaN, NaT or None. To read what has been read changes nothing.
        """
        if self.kind == "number":
            numbers = numbers_in(values, self.style, self.unit)
            return numbers.mask(numbers.isin(self.no_values)) if self.no_values else numbers
        return dates_in(values, self.style) if self.kind == "date" else texts_of(values)

    def parts(self, values: pd.Series, levels: Sequence[str] = ()) -> dict[str, Array]:
        """Return the columns of numbers that values, as `read` gives them, become, by name.

        `levels` are the categories of the training rows that have a column. Values are NaN where
        they are missing. Mean targets are not among them.
        """
        parts: dict[str, Array] = {}
        if self.kind == "number":
            parts[self.name] = values.to_numpy()
        elif self.kind == "date":
            since = (values - pd.Timestamp(self.first)).dt.total_seconds()
            parts[f"{self.name} days"] = since.to_numpy(dtype=np.float64) / 86_400
            if self.season:
                day = values.dt.day_of_year.to_numpy(dtype=np.float64, na_value=np.nan)
                turn = 2 * np.pi * day / 365.25
                parts[f"{self.name} season sin"] = np.sin(turn)
                parts[f"{self.name} season cos"] = np.cos(turn)
        elif len(levels) <= 2 and not self.n_missing:  # one for two levels, NaN for what is neither
            for level in levels[1:]:
                known = values.isin(levels)
                parts[f"{self.name} = {level}"] = np.where(known, values == level, np.nan)
        else:
            for level in levels:
                parts[f"{self.name} = {level}"] = (values == level).to_numpy(dtype=np.float64)
        if self.n_missing:
            parts[f"{self.name} is missing"] = values.isna().to_numpy(dtype=np.float64)
        return parts

    def given(self, values: pd.Series) -> pd.Series:
        """Return which values, as they were written, are meant as values of this column."""
        if self.kind in ("category", "yes/no"):
            return texts_of(values).notna()
        texts = texts_of(values)
        given = texts.notna() & ~texts.str.lower().isin(NO_VALUE).astype(bool)
        if self.no_values:
            given &= ~numbers_in(values, self.style, self.unit).isin(self.no_values)
        return given


def read_column(values: pd.Series, styles: Sequence[Style] = STYLES) -> Column:
    """Return what a column is; its numbers may be written in one of these styles."""
    name, kind = str(values.name), "number"
    codes = _are_codes(values)
    reading = None if codes else as_numbers(values, styles, mostly=True)
    if reading is not None and (dates := as_numeric_dates(reading.values)) is not None:
        kind, reading = "date", dates
    if reading is None and not codes:
        kind, reading = "date", as_dates(values)
    read = texts_of(values) if reading is None else reading.values
    no_values = () if kind != "number" or reading is None else _no_values(read.to_numpy())
    read = read.mask(read.isin(no_values)) if no_values else read
    different, n_missing = sorted(read.dropna().unique()), int(read.isna().sum())
    if not different:
        return Column(name, "empty", "left out: no values", n_missing, remark=True)
    if len(different) == 1 and not n_missing:
        form = "{!r}" if reading is None else {"number": "{:g}", "date": "{:%Y-%m-%d}"}[kind]
        return left_out(name, "constant", f"always {form.format(different[0])}")
    if reading is None:
        column = _text_column(name, Counter(read.dropna()), n_missing, codes=codes)
    elif kind == "number":
        column = _number_column(name, reading, different, no_values)
    else:
        column = _date_column(name, reading, different)
    if not n_missing or not column.used:
        return replace(column, n_missing=n_missing)
    how = "are a category of their own"
    if reading is not None:
        how = "filled with the median, and a column that says where"
    does = f"{column.does}; {n_missing} missing {how}"
    return replace(column, n_missing=n_missing, does=does, remark=True)


def texts_of(values: pd.Series) -> pd.Series:
    """Return values as texts without spaces around them, None where they are missing."""
    return values.astype(object).map(lambda v: None if pd.isna(v) else str(v).strip())


def left_out(name: str, kind: str, why: str) -> Column:
    """Return a column that is not used, with the reason."""
    return Column(name, kind, f"left out: {why}", remark=True)


def _are_codes(values: pd.Series) -> bool:
    """Return whether a column holds codes of one length with leading zeros, as postcodes do."""
    if not is_text(values):
        return False
    texts = pd.Series(values.dropna().unique()).str.strip()
    digits = len(texts[0])
    return bool(
        3 <= digits <= 20
        and len(texts) > 2
        and (texts.str.len() == digits).all()
        and texts.str.fullmatch(r"\d+").all()
        and texts.str.startswith("0").any()
    )


def _no_values(numbers: Array) -> tuple[float, ...]:
    """Return numbers that stand for "missing": -999, 99999 and the like, far outside all others."""
    values, counts = np.unique(numbers[np.isfinite(numbers)], return_counts=True)
    taken: list[float] = []
    while len(values) > 3:
        low_gap, high_gap = values[1] - values[0], values[-1] - values[-2]
        end = 0 if low_gap > high_gap else len(values) - 1
        rest = np.delete(values, end)
        often = counts[end] > 1 or (values[end] < 0 <= rest[0])
        far = max(low_gap, high_gap) > np.ptp(rest)
        if not (far and often and _NINES.fullmatch(f"{values[end]:g}")):
            break
        taken.append(float(values[end]))
        values, counts = rest, np.delete(counts, end)
    return tuple(taken)


def _number_column(
    name: str, reading: Reading, different: Sequence[float], no_values: tuple[float, ...]
) -> Column:
    whole = bool(np.equal(different, np.round(different)).all())
    if len(different) > 10 and whole and not reading.unit:
        n, low, high = len(reading.values), different[0], different[-1]
        years = YEARS[0] <= low and high <= YEARS[1]
        counts = len(different) == n == high - low + 1 and not years
        if counts or (IDENTIFIER.search(name) and len(different) >= 0.9 * n):
            often = "every" if len(different) == n else "almost every"
            why = "counts the rows" if counts else f"a different whole number in {often} row"
            return left_out(name, "identifier", why)
    written = f", written {reading.said}" if reading.said else ""
    words = (*reading.words, *(f"{value:g}" for value in no_values))
    return Column(
        name,
        "number",
        f"a number{written}{_taken_as_missing(words)}",
        style=reading.style,
        unit=reading.unit,
        no_values=no_values,
        remark=bool(written or words),
    )


def _taken_as_missing(words: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, words[:5])) + (", ..." if len(words) > 5 else "")
    return f"; {shown} taken as missing" if words else ""


def _date_column(name: str, reading: Reading, different: Sequence[pd.Timestamp]) -> Column:
    season = (different[-1] - different[0]).days > 366
    turns = ", and the season as a sine and a cosine" if season else ""
    written = f", written {reading.said}" if reading.said else ""
    return Column(
        name,
        "date",
        f"days since the first date{written}{turns}{_taken_as_missing(reading.words)}",
        style=reading.style,
        first=different[0].isoformat(),
        season=season,
        remark=bool(written or reading.words or reading.doubt),
        doubt=reading.doubt,
    )


def _text_column(name: str, counts: Counter[str], n_missing: int, *, codes: bool) -> Column:
    """Return a category, or what has too many different texts for one."""
    n, levels = counts.total(), sorted(counts)
    doubt = _mixed_units(counts)
    if len(levels) > max(FEW_LEVELS, 0.5 * n):
        if codes:
            does = "codes with leading zeros, too many for categories: taken as numbers"
            return Column(name, "number", does, style=".", remark=True)
        why = f"free text, {len(levels)} different values"
        kind = "text"
        if len(levels) == n:
            kind, why = "identifier", "a different text in every row"
        return replace(left_out(name, kind, why), doubt=doubt)
    if len(levels) == n > 10:
        return replace(left_out(name, "identifier", "a different text in every row"), doubt=doubt)
    kind, mean_target = "category", len(levels) > FEW_LEVELS
    one_hot = not mean_target or len(levels) <= min(MOST_LEVELS, n / ROWS_PER_LEVEL)
    ways = f"one column for each of {len(levels)} categories" if one_hot else ""
    if mean_target:
        ways += " and one" if one_hot else f"one column for {len(levels)} categories"
        ways += " with the mean target of the row's category"
    elif len(levels) == 2 and not n_missing:
        ways = f"1 for {levels[1]!r}, 0 for {levels[0]!r}"
        kind = "yes/no" if {level.lower() for level in levels} in _YES_NO else kind
    return Column(
        name,
        kind,
        ways + (", codes with leading zeros" if codes else ""),
        one_hot=one_hot,
        mean_target=mean_target,
        remark=mean_target or codes or bool(doubt),
        doubt=doubt,
    )


def _mixed_units(counts: Counter[str]) -> str:
    """Return what is wrong with numbers in different units."""
    units_there = units(counts)
    some = [unit for unit, _ in units_there.most_common(4)]
    if 2 <= len(units_there) <= 4 and units_there.total() >= MOSTLY * counts.total():
        return f"has numbers in different units ({', '.join(some)}); write all of them in one"
    return ""
