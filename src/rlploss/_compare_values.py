"""How values are written: text as numbers (thousands separators, decimal commas, currency signs) and as dates."""

from __future__ import annotations

import decimal
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]

MOSTLY = 0.9  # of the values are numbers: the others, if they are few words, stand for missing ones
FEW_WORDS, MANY_NUMBERS = 5, 20

_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)
_COMMAS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
_SPACES = re.compile(r"[+-]?\d{1,3}([\s'’]\d{3})+(\.\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}([.\s'’]\d{3})+|\d+)(,\d+)?")
_SIGNS = re.compile(r"^([+-]?)\s*[$€£¥]\s*|\s*[%€$£¥]$")

Style = tuple[tuple[re.Pattern[str], ...], Callable[[str], str], str]
STYLES: tuple[Style, ...] = (
    ((_PLAIN,), lambda v: v, ""),
    ((_COMMAS, _PLAIN), lambda v: v.replace(",", ""), "with commas between thousands"),
    ((_SPACES, _PLAIN), lambda v: re.sub(r"[\s'’]", "", v), "with spaces between thousands"),
    ((_DECIMAL_COMMA,), lambda v: re.sub(r"[.\s'’]", "", v).replace(",", "."), "with decimal commas"),
)
DATES = (
    "ISO8601",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%Y/%m/%d",
    "%d-%m-%Y",
    "%d %b %Y",
    "%b %d, %Y",
    "%d %B %Y",
    "%B %d, %Y",
)


@dataclass(frozen=True)
class Numbers:
    """A column as floats, NaN where a value is missing or infinite, and how it was written."""

    values: Array
    said: str = ""
    words: tuple[str, ...] = ()  # that were no numbers and are taken as missing


def as_numbers(values: pd.Series, *, mostly: bool = False) -> Numbers | None:
    """A column as numbers; None if it is not. `mostly` allows a few words among many different numbers."""
    if pd.api.types.is_bool_dtype(values.dtype) or pd.api.types.is_datetime64_any_dtype(values.dtype):
        return None
    if pd.api.types.is_timedelta64_dtype(values.dtype):
        return Numbers(values.dt.total_seconds().to_numpy(dtype=np.float64) / 86_400, "as durations, in days")
    if pd.api.types.is_numeric_dtype(values.dtype):
        return Numbers(_finite(values.to_numpy(dtype=np.float64, na_value=np.nan)))
    some = values.dropna()
    if len(some) == 0:
        return None
    if not all(isinstance(v, str) for v in some):
        kinds = (int, float, np.number, decimal.Decimal)
        if all(isinstance(v, kinds) and not isinstance(v, bool) for v in some):
            return Numbers(_finite(np.array([np.nan if pd.isna(v) else float(v) for v in values])))
        return None
    bare = [_SIGNS.sub(r"\1", v.strip()) for v in some]
    for patterns, clean, said in STYLES:
        fits = [any(p.fullmatch(v) for p in patterns) for v in bare]
        words = Counter(v for v, fit in zip(bare, fits, strict=True) if not fit)
        if words and not (mostly and _are_few(words, bare)):
            continue
        numbers = np.full(len(values), np.nan)
        numbers[values.notna().to_numpy()] = [
            float(clean(v)) if fit else np.nan for v, fit in zip(bare, fits, strict=True)
        ]
        signs = "with signs of currency or percent" if bare != [v.strip() for v in some] else ""
        told = " and ".join(word for word in (said, signs) if word)
        return Numbers(_finite(numbers), told, tuple(word for word, _ in words.most_common()))
    return None


def _are_few(words: Counter[str], bare: list[str]) -> bool:
    """Whether words among numbers are few enough to mean "missing", and the numbers many enough to be numbers."""
    n_words = words.total()
    different = len(set(bare)) - len(words)
    return n_words <= (1 - MOSTLY) * len(bare) and len(words) <= FEW_WORDS and different >= MANY_NUMBERS


def _finite(floats: Array) -> Array:
    return np.where(np.isfinite(floats), floats, np.nan)


def as_dates(values: pd.Series) -> pd.Series | None:
    """A column as timestamps, or None; plain numbers are not dates."""
    if isinstance(values.dtype, pd.PeriodDtype):
        return values.dt.to_timestamp()
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        return values.dt.tz_localize(None) if getattr(values.dt, "tz", None) is not None else values
    some = values.dropna()
    if len(some) == 0:
        return None
    if not all(isinstance(v, str) for v in some):
        if all(hasattr(v, "isoformat") and hasattr(v, "year") for v in some):
            return pd.to_datetime(values, errors="coerce")
        return None
    if not all(re.search(r"\d", v) and re.search(r"[-/.: ]|[A-Za-z]", v) for v in some.iloc[:200]):
        return None
    for style in DATES:
        try:
            found = pd.to_datetime(some, format=style, errors="raise", utc=True)
        except (ValueError, TypeError, OverflowError):
            continue
        return found.dt.tz_localize(None).reindex(values.index)
    return None
