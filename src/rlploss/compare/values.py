"""How values are written: text as numbers (thousands separators, decimal commas, currency signs) and as dates."""

from __future__ import annotations

import datetime
import decimal
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlploss.compare.read import MISSING

Array = NDArray[np.float64]
_types = pd.api.types

MOSTLY = 0.9  # of the values are numbers: the others, if they are few words, stand for missing ones
FEW_WORDS, MANY_NUMBERS = 5, 20

_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)
# Groups of thousands do not begin with 0: 0,373 is a decimal. Lakhs have groups of two.
_COMMAS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{2,3})*,\d{3}(\.\d*)?")
_SPACES = re.compile(r"[+-]?[1-9]\d{0,2}([\s'’]\d{3})+(\.\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?([1-9]\d{0,2}([.\s'’]\d{3})+|\d+)(,\d+)?")
_CURRENCY = r"(?:(?:US|C|A)?\$|[€£¥]|USD|EUR|GBP|CHF|JPY)"
_SIGNS = re.compile(rf"^([+-]?)\s*{_CURRENCY}\s*|\s*(?:%|{_CURRENCY})$")
# What accountants write for minus.
_IN_BRACKETS = re.compile(rf"{_CURRENCY}?\s*\(\s*({_CURRENCY}?[\d.,\s'’]+)\)\s*%?")
# Among numbers or dates; elsewhere a category.
NO_VALUE = MISSING | {"-", "--", "none", "missing", "unknown"}

Style = tuple[tuple[re.Pattern[str], ...], Callable[[str], str], str]
STYLES: tuple[Style, ...] = (
    ((_PLAIN,), lambda v: v, ""),
    ((_COMMAS, _PLAIN), lambda v: v.replace(",", ""), "with commas between thousands"),
    ((_SPACES, _PLAIN), lambda v: re.sub(r"[\s'’]", "", v), "with spaces between thousands"),
    ((_DECIMAL_COMMA,), lambda v: re.sub(r"[.\s'’]", "", v).replace(",", "."), "with decimal commas"),
)
_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m/%d/%y", "%d/%m/%y")
_NAMED = ("%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y", "%b-%Y", "%b %Y", "%B %Y")
_TIMES = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
DATES = ("ISO8601", *_DAYS, *_NAMED, *(f"{day} {time}" for day in _DAYS for time in _TIMES))
_LIKE_A_DATE = re.compile(r"\d[-/. ]\d.*[-/. ]\d|[A-Za-z]{3}.*\d{4}|\d.*[A-Za-z]{3}.*\d{2}|\d{4}-?\d\d")
_NO_DATE = re.compile(r"9999\D|0000\D?00")  # what stands for "never" and for "unknown"


@dataclass(frozen=True)
class Numbers:
    """A column as floats, NaN where a value is missing or infinite, and how it was written."""

    values: Array
    said: str = ""
    words: tuple[str, ...] = ()  # that were no numbers and are taken as missing


def as_numbers(values: pd.Series, *, mostly: bool = False) -> Numbers | None:
    """A column as numbers; None if it is not. `mostly` allows a few words among many different numbers."""
    no_numbers = (_types.is_bool_dtype, _types.is_datetime64_any_dtype, _types.is_complex_dtype)
    if any(test(values.dtype) for test in no_numbers):
        return None
    if _types.is_timedelta64_dtype(values.dtype):
        return Numbers(values.dt.total_seconds().to_numpy(dtype=np.float64) / 86_400, "as durations, in days")
    if _types.is_numeric_dtype(values.dtype):
        return Numbers(_finite(values.to_numpy(dtype=np.float64, na_value=np.nan)))
    some = values.dropna()
    if len(some) == 0:
        return None
    if not all(isinstance(v, str) for v in some):
        kinds = (int, float, np.number, decimal.Decimal)
        if all(isinstance(v, kinds) and not isinstance(v, bool) for v in some):
            return Numbers(_finite(np.array([np.nan if pd.isna(v) else _float(v) for v in values])))
        if all(isinstance(v, datetime.timedelta) for v in some):
            return as_numbers(pd.to_timedelta(values))
        return None
    plain = [v.strip().replace("\N{MINUS SIGN}", "-") for v in some]
    bracketed = [_IN_BRACKETS.fullmatch(v) for v in plain]
    bare = [_SIGNS.sub(r"\1", f"-{m[1]}" if m else v) for v, m in zip(plain, bracketed, strict=True)]
    tried = []
    for patterns, clean, said in STYLES:
        fits = [any(p.fullmatch(v) for p in patterns) for v in bare]
        words = Counter(v for v, fit in zip(plain, fits, strict=True) if not fit)
        tried.append((words.total(), words, fits, clean, said))
        if not words:
            break
    n_words, words, fits, clean, said = min(tried, key=lambda one: one[0])  # the first of the best
    if n_words and not _mean_missing(words, plain, mostly=mostly):
        return None
    numbers = np.full(len(values), np.nan)
    numbers[values.notna().to_numpy()] = [float(clean(v)) if fit else np.nan for v, fit in zip(bare, fits, strict=True)]
    signed = any(fit and not m and b != p for fit, m, b, p in zip(fits, bracketed, bare, plain, strict=True))
    signs = "with signs of currency or percent" if signed else ""
    brackets = "in brackets for minus" if any(bracketed) else ""
    told = " and ".join(word for word in (said, signs, brackets) if word)
    return Numbers(_finite(numbers), told, tuple(word for word, _ in words.most_common()))


def _mean_missing(words: Counter[str], values: list[str], *, mostly: bool = True) -> bool:
    """Whether words among numbers or dates stand for "missing": they say so, or they are few among many values."""
    if len(words) < len(set(values)) and all(word.lower() in NO_VALUE for word in words):
        return True
    different = len(set(values)) - len(words)
    few = words.total() <= (1 - MOSTLY) * len(values) and len(words) <= FEW_WORDS
    return mostly and few and different >= MANY_NUMBERS


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf


def _finite(floats: Array) -> Array:
    return np.where(np.isfinite(floats), floats, np.nan)


@dataclass(frozen=True)
class Dates:
    """A column as timestamps, NaT where a value is missing, and the words that were no dates."""

    values: pd.Series
    words: tuple[str, ...] = ()


def as_dates(values: pd.Series) -> Dates | None:
    """A column as timestamps; None if it is not: plain numbers are not dates. Some words may be among them."""
    if isinstance(values.dtype, pd.PeriodDtype):
        return Dates(_ended(values.dt.to_timestamp()))
    if _types.is_datetime64_any_dtype(values.dtype):
        zoned = getattr(values.dt, "tz", None) is not None
        return Dates(_ended(values.dt.tz_localize(None) if zoned else values))
    some = values.dropna()
    if len(some) == 0:
        return None
    if not all(isinstance(v, str) for v in some):
        if all(hasattr(v, "isoformat") and hasattr(v, "year") for v in some):
            return Dates(_ended(pd.to_datetime(values, errors="coerce", utc=True).dt.tz_localize(None)))
        return None
    some = some.str.strip()
    said = some[~(some.str.lower().isin(NO_VALUE) | some.str.match(_NO_DATE))]
    if said.empty:
        return None
    different = said.drop_duplicates()
    sample = different.iloc[:: len(different) // 200 + 1]  # days beyond the 12th tell days from months
    # most columns end here, before forty formats are tried
    if sample.str.contains(_LIKE_A_DATE).mean() < MOSTLY:
        return None
    fits = {style: _parsed(sample, style).notna().mean() for style in DATES}
    if max(fits.values()) < 0.5:
        return None
    best = [_parsed(said, style) for style in DATES if fits[style] == max(fits.values())]
    found = min(best, key=lambda parsed: int(parsed.isna().sum()))  # the first of the best
    words = Counter(said[found.isna()])
    if words and not _mean_missing(words, list(said)):
        return None
    words += Counter(some[~some.index.isin(said.index)])
    return Dates(found.reindex(values.index), tuple(word for word, _ in words.most_common()))


def _ended(dates: pd.Series) -> pd.Series:
    """The last year there is stands for "never"."""
    return dates.mask(dates.dt.year == 9999)


def _parsed(texts: pd.Series, style: str) -> pd.Series:
    return pd.to_datetime(texts, format=style, errors="coerce", utc=True).dt.tz_localize(None)
