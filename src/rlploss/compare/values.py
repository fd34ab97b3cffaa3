"""The text in a table to numbers and dates: one convention for a whole file, and the same reading again later."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype

from rlploss._scaling import Array
from rlploss.compare.read import MISSING, TableError

NO_VALUE = MISSING | {"-", "--", "none", "missing", "unknown"}  # among numbers or dates; elsewhere a category
MOSTLY = 0.9  # if so many values are numbers or dates, a few words among them stand for missing values
FEW_WORDS, MANY_VALUES = 5, 20

_PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?"
_CURRENCY = r"(?:(?:US|C|A)?\$|[€£¥]|USD|EUR|GBP|CHF|JPY)"
_SIGNS = re.compile(rf"^([+-]?)\s*{_CURRENCY}\s*|\s*(?:%|{_CURRENCY})$")
_IN_BRACKETS = re.compile(rf"^{_CURRENCY}?\s*\(\s*({_CURRENCY}?[\d.,\s'’]+)\)\s*%?$")  # minus, as accountants write it


@dataclass(frozen=True)
class Style:
    """One way to write numbers: the decimal sign, what stands between thousands, and what they look like."""

    decimal: str
    thousands: str
    pattern: str
    said: str = ""

    def fits(self, text: str) -> bool:
        """Return whether a text is a number in this style."""
        return re.fullmatch(self.pattern, text, re.IGNORECASE) is not None

    def number(self, text: str) -> float:
        """Return the number; NaN for a text that is none, and for one that is infinite."""
        if not self.fits(text):
            return math.nan
        bare = re.sub(r"[\s'’]" if self.thousands == " " else re.escape(self.thousands), "", text)
        found = float(bare.replace(self.decimal, "."))
        return found if math.isfinite(found) else math.nan


_COMMA = r"[+-]?\d+(,\d+)?(e[+-]?\d+)?"
# Groups of thousands do not begin with 0: 0,373 is a decimal. Lakhs have groups of two.
_HEAD = r"[+-]?[1-9]\d{0,2}"
STYLES = (
    Style(".", "", _PLAIN),
    Style(".", ",", rf"{_HEAD}(,\d{{2,3}})*,\d{{3}}(\.\d*)?|{_PLAIN}", "with commas between thousands"),
    Style(".", " ", rf"{_HEAD}([\s'’]\d{{3}})+(\.\d+)?|{_PLAIN}", "with spaces between thousands"),
    Style(",", "", _COMMA, "with decimal commas"),
    Style(",", ".", rf"{_HEAD}(\.\d{{3}})+(,\d+)?|{_COMMA}", "with decimal commas, points between thousands"),
    Style(",", " ", rf"{_HEAD}([\s'’]\d{{3}})+(,\d+)?|{_COMMA}", "with decimal commas, spaces between thousands"),
)
THOUSANDS = {"none": "", "": "", ",": ",", ".": ".", " ": " ", "space": " ", "'": " ", "’": " "}


@dataclass(frozen=True)
class Convention:
    """How a file writes numbers, decided from all its columns. None leaves a sign open."""

    decimal: str | None = None
    thousands: str | None = None
    warnings: tuple[str, ...] = ()
    own: tuple[str, ...] = ()  # columns that are certainly written otherwise

    @classmethod
    def given(cls, decimal: str | None, thousands: str | None) -> Convention:
        """Return what the user says; refuse signs that there are not, and one sign for both."""
        if decimal not in (None, ".", ","):
            raise TableError(f"--decimal must be . or , got {decimal!r}; leave it out to let the table decide")
        if thousands is not None and thousands not in THOUSANDS:
            raise TableError(f"--thousands must be a comma, a point, a quote, space or none, got {thousands!r}")
        mark = None if thousands is None else THOUSANDS[thousands]
        if mark in (",", "."):
            decimal = decimal or (". ,"[2 * (mark == ".")])
            if decimal == mark:
                raise TableError(f"--decimal and --thousands must be different signs, got {mark!r} twice")
        return cls(decimal, mark)

    def styles(self, column: str = "") -> tuple[Style, ...]:
        """Return the styles that a column may have."""
        decimal = None if column in self.own else self.decimal
        return tuple(
            style
            for style in STYLES
            if decimal in (None, style.decimal) and (self.thousands is None or style.thousands in ("", self.thousands))
        )

    @property
    def said(self) -> str:
        """What is told about it; nothing where numbers are plain."""
        return "Numbers are read with decimal commas (7,8 is 7.8)." if self.decimal == "," else ""

    def decided(self, frame: pd.DataFrame) -> Convention:
        """Return one convention for all columns. What a column can be read by one way only votes for it.

        A column that fits both is read as the others are, and told about wherever the others are not plain.
        """
        if self.decimal is not None:
            return self
        votes = {str(name): _readings(frame[name], self) for name in frame.columns}
        sure = {sign: [name for name, found in votes.items() if set(found) == {sign}] for sign in ".,"}
        decimal = "," if len(sure[","]) > len(sure["."]) else "."
        others = tuple(sure["." if decimal == "," else ","])
        warned = [f"column {name!r} is written with decimal {'commas' if decimal == '.' else 'points'}, "
                  f"unlike {len(sure[decimal])} other columns" for name in others if sure[decimal]]  # fmt: skip
        plain = decimal == "." and sure["."] and not others
        for name, found in votes.items() if not plain else ():
            if len(found) == 2:
                other = "." if decimal == "," else ","
                (text, taken), (_, instead) = found[decimal], found[other]
                why = "as in other columns" if sure[decimal] else "though nothing in the table tells"
                warned.append(
                    f"column {name!r} can be read in two ways: {text} is taken as {taken:,.12g}, {why}; "
                    f"--decimal {other} takes it as {instead:,.12g}"
                )
        return replace(self, decimal=decimal, warnings=tuple(warned), own=others)


def _readings(values: pd.Series, convention: Convention) -> dict[str, tuple[str, float]]:
    """Return by which decimal signs a column of text can be read, with a text that shows it and its number.

    Nothing for a column without points and commas, and for one that is mostly no numbers.
    """
    if infer_dtype(values, skipna=True) != "string":
        return {}
    texts = [text for text in {_bare(text) for text in values.dropna()} if "." in text or "," in text]
    best: dict[str, tuple[int, Style]] = {}
    for style in convention.styles():
        n = sum(map(style.fits, texts))
        if n > best.get(style.decimal, (0, style))[0]:
            best[style.decimal] = n, style
    most = max((n for n, _ in best.values()), default=0)
    if most < MOSTLY * len(texts) or not most:
        return {}
    kept = {sign: style for sign, (n, style) in best.items() if n == most}
    different = [t for t in texts if len({style.number(t) for style in kept.values()}) == len(kept)]
    text = min(different, default="", key=lambda t: (len(t), t))
    return {sign: (text, style.number(text)) for sign, style in kept.items()} if text or len(kept) == 1 else {}


_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m/%d/%y", "%d/%m/%y")
_NAMED = ("%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y", "%b-%Y", "%b %Y", "%B %Y")
_TIMES = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
DATES = ("ISO8601", *_DAYS, *_NAMED, *(f"{day} {time}" for day in _DAYS for time in _TIMES))
_LIKE_A_DATE = re.compile(r"\d[-/. ]\d.*[-/. ]\d|[A-Za-z]{3}.*\d{4}|\d.*[A-Za-z]{3}.*\d{2}|\d{4}-?\d\d")
_NO_DATE = re.compile(r"9999\D|0000\D?00")  # what stands for "never" and for "unknown"


@dataclass(frozen=True)
class Reading:
    """A column as floats or timestamps, NaN or NaT where a value is missing or infinite, and how it was written."""

    values: Any
    said: str = ""
    words: tuple[str, ...] = ()  # that were no numbers or dates and are taken as missing
    style: str = ""  # by which the same can be read again: the decimal sign and that of thousands, or a form of dates


def as_numbers(
    values: pd.Series,
    *,
    mostly: bool = False,
    convention: Convention = Convention(),  # noqa: B008 - a frozen value
) -> Reading | None:
    """Return a column as numbers, None if it is not. `mostly` allows a few words among many different numbers."""
    plain = _plain_numbers(values)
    if plain is not None or infer_dtype(values, skipna=True) != "string":
        return plain
    texts = values.dropna().astype(object)
    bare = texts.map(_bare)
    tried: list[tuple[Style, pd.Series]] = []
    for style in convention.styles(str(values.name)):
        tried.append((style, bare.map(style.fits).astype(bool)))
        if tried[-1][1].all():
            break
    style, fits = max(tried, key=lambda one: int(one[1].sum()))  # the first of the best
    stripped = texts.str.strip().str.replace("\N{MINUS SIGN}", "-")
    words = Counter(stripped[~fits])
    if words and not _mean_missing(words, stripped, mostly=mostly):
        return None
    bracketed = stripped.str.match(_IN_BRACKETS)
    signs = "with signs of currency or percent" if (fits & ~bracketed & (bare != stripped)).any() else ""
    brackets = "in brackets for minus" if bracketed.any() else ""
    told = " and ".join(word for word in (style.said, signs, brackets) if word)
    said = tuple(word for word, _ in words.most_common())
    return Reading(numbers_again(values, style.decimal + style.thousands), told, said, style.decimal + style.thousands)


def numbers_again(values: pd.Series, style: str) -> Array:
    """Return a column as numbers in a style that is known; NaN for what is no number in it."""
    plain = _plain_numbers(values)
    if plain is not None:
        return np.asarray(plain.values)
    known = next(one for one in STYLES if one.decimal + one.thousands == style) if style else STYLES[0]
    found = values.astype(object).map(lambda v: known.number(_bare(v)) if isinstance(v, str) else np.nan)
    return np.asarray(found.to_numpy(dtype=np.float64, na_value=np.nan))


def _plain_numbers(values: pd.Series) -> Reading | None:
    """Return a column that holds numbers or durations, not text."""
    kind = infer_dtype(values, skipna=True)
    if kind in ("integer", "floating", "mixed-integer-float", "decimal"):
        floats = values.astype(object).map(_float, na_action="ignore").to_numpy(dtype=np.float64, na_value=np.nan)
        return Reading(np.where(np.isfinite(floats), floats, np.nan))
    if kind in ("timedelta", "timedelta64"):
        return Reading(pd.to_timedelta(values).dt.total_seconds().to_numpy() / 86_400, "as durations, in days")
    return None


def _bare(text: str) -> str:
    """Return a text without signs of currency and percent; brackets become a minus."""
    stripped = text.strip().replace("\N{MINUS SIGN}", "-")
    return _SIGNS.sub(r"\1", _IN_BRACKETS.sub(r"-\1", stripped))


def as_dates(values: pd.Series) -> Reading | None:
    """Return a column as timestamps, None if it is not: plain numbers are not dates. Some words may be among them."""
    kind = infer_dtype(values, skipna=True)
    if kind in ("period", "date", "datetime", "datetime64"):
        dates = _parsed(values.dt.to_timestamp() if kind == "period" else values)
        return Reading(dates.mask(dates.dt.year == 9999))  # the last year there is stands for "never"
    if kind != "string":
        return None
    text = values.dropna().astype(object).str.strip()
    said = text[~(text.str.lower().isin(NO_VALUE) | text.str.match(_NO_DATE))]
    different = said.drop_duplicates()
    sample = different.iloc[:: len(different) // 200 + 1]  # days beyond the 12th tell days from months
    # Most columns end here, before forty formats are tried.
    if said.empty or sample.str.contains(_LIKE_A_DATE).mean() < MOSTLY:
        return None
    fits = {style: _parsed(sample, style).notna().mean() for style in DATES}
    if max(fits.values()) < 0.5:
        return None
    best = {style: _parsed(said, style) for style in DATES if fits[style] == max(fits.values())}
    style = min(best, key=lambda one: int(best[one].isna().sum()))  # the first of the best
    found = best[style]
    words = Counter(said[found.isna()])
    if words and not _mean_missing(words, said):
        return None
    words += Counter(text[~text.index.isin(said.index)])
    return Reading(found.reindex(values.index), words=tuple(word for word, _ in words.most_common()), style=style)


def dates_again(values: pd.Series, style: str) -> pd.Series:
    """Return a column as timestamps in a form that is known; NaT for what is no date in it, and for "never"."""
    kind = infer_dtype(values, skipna=True)
    text = kind == "string" or not len(values.dropna())
    dates = _parsed(values.dt.to_timestamp() if kind == "period" else values, style if text and style else None)
    gone = values.astype(str).str.match(_NO_DATE) | (dates.dt.year == 9999)
    return dates.mask(gone)


def _mean_missing(words: Counter[str], values: pd.Series, *, mostly: bool = True) -> bool:
    """Return whether words among numbers or dates mean "missing": they say so, or they are few among many values."""
    different = values.nunique() - len(words)
    if different and all(word.lower() in NO_VALUE for word in words):
        return True
    few = words.total() <= (1 - MOSTLY) * len(values) and len(words) <= FEW_WORDS
    return mostly and few and different >= MANY_VALUES


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf


def _parsed(values: pd.Series, style: str | None = None) -> pd.Series:
    return pd.to_datetime(values, format=style, errors="coerce", utc=True).dt.tz_localize(None)
