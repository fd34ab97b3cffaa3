"""Cells of a table that somebody else wrote, to numbers and dates: in how many ways people write
them, and how a column that was read once is read again.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype

MISSING = frozenset({"", "na", "n/a", "nan", "null", "?", "#n/a", "<na>"})
NO_VALUE = MISSING | {
    "-",
    "--",
    "none",
    "missing",
    "unknown",
}  # among numbers or dates; elsewhere a category
LONGEST = 100  # characters of a number or a date; expressions that go back never see more
MOSTLY = 0.9  # the share of numbers or dates beyond which a few words among them mean "missing"
FEW_WORDS, MANY_VALUES = 5, 20

# Numbers

_MOST = sys.float_info.max
_PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?"
_COMMA = r"[+-]?\d+(,\d+)?(e[+-]?\d+)?"
_HEAD = r"[+-]?[1-9]\d{0,2}"  # groups of thousands do not begin with 0: 0,373 is a decimal
_CURRENCY = r"(?:(?:US|C|A)?\$|[€£¥]|USD|EUR|GBP|CHF|JPY)"
_SIGNS = re.compile(rf"^([+-]?)\s*{_CURRENCY}\s*|\s*(?:%|{_CURRENCY})$")
_IN_BRACKETS = re.compile(
    rf"^{_CURRENCY}?\s*\(\s*({_CURRENCY}?[\d.,\s'’]+)\)\s*%?$"
)  # minus, as accountants write it
_WITH_UNIT = re.compile(r"([+-]?[\d.,\s'’]*\d)\s*([^\W\d_°µ]{1,12}(?:/[^\W\d]{1,6})?[²³23]?|°\w?)")


@dataclass(frozen=True)
class Style:
    """One way to write numbers: the decimal sign, what stands between thousands, and what they look
    like.
    """

    decimal: str
    thousands: str
    pattern: str
    said: str = ""

    @property
    def key(self) -> str:
        """The signs by which `numbers_in` finds the style again."""
        return self.decimal + self.thousands

    def fits(self, text: str) -> bool:
        """Return whether a text is a number in this style."""
        return len(text) <= LONGEST and bool(re.fullmatch(self.pattern, text, re.IGNORECASE))

    def number(self, text: str) -> float:
        """Return the number; NaN for a text that is none, and for one that is infinite."""
        if not self.fits(text):
            return math.nan
        bare = re.sub(r"[\s'’]" if self.thousands == " " else re.escape(self.thousands), "", text)
        value = float(bare.replace(self.decimal, "."))
        return value if math.isfinite(value) else math.nan


STYLES = (
    Style(".", "", _PLAIN),
    Style(
        ".", ",", rf"{_HEAD}(,\d{{2,3}})*,\d{{3}}(\.\d*)?|{_PLAIN}", "with commas between thousands"
    ),  # or lakhs
    Style(".", " ", rf"{_HEAD}([\s'’]\d{{3}})+(\.\d+)?|{_PLAIN}", "with spaces between thousands"),
    Style(",", "", _COMMA, "with decimal commas"),
    Style(
        ",",
        ".",
        rf"{_HEAD}(\.\d{{3}})+(,\d+)?|{_COMMA}",
        "with decimal commas, points between thousands",
    ),
    Style(
        ",",
        " ",
        rf"{_HEAD}([\s'’]\d{{3}})+(,\d+)?|{_COMMA}",
        "with decimal commas, spaces between thousands",
    ),
)


@dataclass(frozen=True)
class Reading:
    """A column as floats or timestamps, NaN or NaT where a value is missing or infinite, and how it
    was written.
    """

    values: pd.Series
    said: str = ""
    words: tuple[str, ...] = ()  # that were no numbers or dates and are taken as missing
    style: str = ""  # by which the same is read again: signs of numbers, or forms of dates
    unit: str = ""  # behind every number
    doubt: str = ""  # what else the same texts may mean


def as_numbers(
    values: pd.Series, styles: Sequence[Style] = STYLES, *, mostly: bool = False
) -> Reading | None:
    """Return a column as numbers, None if it is not. `mostly` allows a few words among many
    different numbers.
    """
    plain = _plain_numbers(values)
    if plain is not None or not is_text(values):
        return plain
    texts = Counter(values.dropna().astype(object).map(_stripped))
    unit, bare = "", {text: without_signs(text) for text in texts}
    style, n_fit = _best_style(styles, texts, bare)
    if n_fit < MOSTLY * texts.total():
        unit = next((unit for unit, n in units(texts).items() if n >= MOSTLY * texts.total()), "")
        bare = {text: without_signs(text, unit) for text in texts}
        style, _ = _best_style(styles, texts, bare)
    words = Counter({text: n for text, n in texts.items() if not style.fits(bare[text])})
    if words and not _mean_missing(words, texts, mostly=mostly):
        return None
    numbers = [text for text in texts if text not in words]
    bracketed = any("(" in text for text in numbers)
    signs = not unit and any(bare[text] != text and "(" not in text for text in numbers)
    said = (
        style.said,
        "with signs of currency or percent" if signs else "",
        "in brackets for minus" if bracketed else "",
        f"with the unit {unit}" if unit else "",
    )
    return Reading(
        numbers_in(values, style.key, unit),
        said=" and ".join(filter(None, said)),
        words=tuple(dict(words.most_common())),
        style=style.key,
        unit=unit,
    )


def _best_style(
    styles: Sequence[Style], texts: Counter[str], bare: dict[str, str]
) -> tuple[Style, int]:
    """Return the first style that fits most texts, and how many."""
    best, most = styles[0], -1
    for style in styles:
        n = sum(n for text, n in texts.items() if style.fits(bare[text]))
        if n > most:
            best, most = style, n
        if n == texts.total():
            break
    return best, most


def numbers_in(values: pd.Series, style: str = "", unit: str = "") -> pd.Series:
    """Return a column as numbers in a style that is known; NaN for what is no number in it."""
    plain = _plain_numbers(values)
    if plain is not None:
        return plain.values
    known = next(each for each in STYLES if each.key == (style or "."))
    numbers = values.astype(object).map(
        lambda v: known.number(without_signs(v, unit)) if isinstance(v, str) else math.nan
    )
    return numbers.astype(np.float64)


def _plain_numbers(values: pd.Series) -> Reading | None:
    """Return a column that holds numbers or durations, not text."""
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "iuf":
        numbers = values.astype(np.float64)
        return Reading(numbers.where(np.isfinite(numbers)))
    kind = infer_dtype(values, skipna=True)
    if kind in ("integer", "floating", "mixed-integer-float", "decimal"):
        finite = values.astype(object).map(
            lambda v: float(v) if abs(v) <= _MOST else None, na_action="ignore"
        )
        numbers = finite.to_numpy(dtype=np.float64, na_value=np.nan)
        return Reading(pd.Series(numbers, values.index, name=values.name))
    if kind in ("timedelta", "timedelta64"):
        days = pd.to_timedelta(values).dt.total_seconds() / 86_400
        return Reading(days, "as durations, in days")
    return None


def is_text(values: pd.Series) -> bool:
    """Return whether a column holds texts, beside missing values."""
    return bool(infer_dtype(values, skipna=True) == "string")


def units(texts: Counter[str]) -> Counter[str]:
    """Return how many texts are a number before each unit, in small letters; "72 kg" counts for kg.

    The signs of currency and percent are no units.
    """
    count: Counter[str] = Counter()
    for text, n in texts.items():
        if len(text) <= LONGEST and (match := _WITH_UNIT.fullmatch(without_signs(text))):
            count[match[2].lower()] += n
    return count


def without_signs(text: str, unit: str = "") -> str:
    """Return a text without signs of currency and percent and without this unit; brackets become a
    minus.
    """
    text = _stripped(text)
    if len(text) > LONGEST:
        return text
    if unit and text.lower().endswith(unit):
        text = text[: -len(unit)].rstrip()
    return _SIGNS.sub(r"\1", _IN_BRACKETS.sub(r"-\1", text))


def _stripped(text: str) -> str:
    return text.strip().replace("\N{MINUS SIGN}", "-")


def _mean_missing(words: Counter[str], texts: Counter[str], *, mostly: bool = True) -> bool:
    """Return whether words among numbers or dates mean "missing": they say so, or they are few
    among many values.
    """
    n_others = len(texts) - len(words)
    if n_others and all(word.lower() in NO_VALUE for word in words):
        return True
    few = words.total() <= (1 - MOSTLY) * texts.total() and len(words) <= FEW_WORDS
    return mostly and few and n_others >= MANY_VALUES


# Dates

_DAYS = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y"),
    *("%m/%d/%y", "%d/%m/%y", "%d.%m.%y"),
)
_NAMED = (
    *("%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y"),
    *("%b-%Y", "%b %Y", "%B %Y"),
)
_TIMES = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
FORMS = ("ISO8601", *_DAYS, *_NAMED, *(f"{day} {time}" for day in _DAYS for time in _TIMES))
MOST_FORMS = 3  # of dates in one column
_LIKE_A_DATE = re.compile(
    r"\d[-/. ]\d.*[-/. ]\d|[A-Za-z]{3}.*\d{4}|\d.*[A-Za-z]{3}.*\d{2}|\d{4}-?\d\d"
)
_NO_DATE = re.compile(r"9999\D|0000\D?00")  # what stands for "never" and for "unknown"
_COMPACT = "%Y%m%d"
# Whole numbers in these ranges, all of a column, are days or seconds: from 1900 to 2100, and from
# 2000 to 2035.
_NUMERIC_DATES = {
    _COMPACT: (19_000_101, 21_001_231),
    "s": (946_684_800, 2_051_222_400),
    "ms": (946_684_800_000, 2_051_222_400_000),
}


def as_dates(values: pd.Series) -> Reading | None:
    """Return a column as timestamps, None if it is not; plain numbers are dates only where
    `as_numeric_dates` says so. Some words may be among them.
    """
    kind = infer_dtype(values, skipna=True)
    if kind in ("period", "date", "datetime", "datetime64"):
        return Reading(dates_in(values))
    if kind != "string":
        return None
    text = values.dropna().astype(object).str.strip()
    # The start of a long text decides that it is no date, and which word it is.
    text = text.where(text.str.len() <= LONGEST, text.str[:LONGEST] + " …")
    said = text[~(text.str.lower().isin(NO_VALUE) | text.str.match(_NO_DATE))]
    different = said.drop_duplicates()
    # Days beyond the 12th tell days from months, so the sample is spread over the column.
    sample = different.iloc[:: len(different) // 200 + 1]
    # Most columns end here, before forty forms are tried.
    if said.empty or sample.str.contains(_LIKE_A_DATE).mean() < MOSTLY:
        return None
    dates = pd.Series(pd.NaT, said.index, dtype="datetime64[us]")
    forms: list[str] = []
    doubt = ""
    for _ in range(MOST_FORMS):
        rest, some = said[dates.isna()], sample[~sample.index.isin(dates.dropna().index)]
        fits = {form: _parsed(some, form).notna().mean() for form in FORMS} if len(some) else {}
        if not fits or max(fits.values()) < (0.1 if forms else 0.2):
            break
        best = {form: _parsed(rest, form) for form in FORMS if fits[form] == max(fits.values())}
        form = min(best, key=lambda each: int(best[each].isna().sum()))  # the first of the best
        doubt = doubt or _doubt(best.pop(form), best, rest)
        forms.append(form)
        dates = dates.fillna(_parsed(rest, form))
    words = Counter(said[dates.isna()])
    if not forms or (words and not _mean_missing(words, Counter(said))):
        return None
    words += Counter(text[~text.index.isin(said.index)])
    return Reading(
        dates.reindex(values.index),
        said=f"in {len(forms)} forms" if len(forms) > 1 else "",
        words=tuple(dict(words.most_common())),
        style="|".join(forms),
        doubt=doubt,
    )


def _doubt(dates: pd.Series, others: dict[str, pd.Series], texts: pd.Series) -> str:
    """Return what a text may mean in other forms that read the column as well."""
    for other in others.values():
        apart = (other != dates) & dates.notna() & other.notna()
        if other.isna().sum() == dates.isna().sum() and apart.any():
            row = apart.to_numpy().argmax()
            return (
                f"can be read in two ways: {texts.iloc[row]} is taken as"
                f" {dates.iloc[row]:%Y-%m-%d}, and may be {other.iloc[row]:%Y-%m-%d}; write dates"
                " as 2019-12-31"
            )
    return ""


def as_numeric_dates(numbers: pd.Series) -> Reading | None:
    """Return numbers that are all days such as 20210131, or all seconds or milliseconds since 1970,
    as timestamps; None for others.
    """
    known = numbers.dropna()
    if known.nunique() < MANY_VALUES // 2 or (known % 1 != 0).any():
        return None
    for style, (low, high) in _NUMERIC_DATES.items():
        if known.between(low, high).all():
            dates = dates_in(numbers, style)
            words = {_COMPACT: "as in 20210131", "s": "in seconds", "ms": "in milliseconds"}
            if dates.notna().sum() == len(known):
                since = "" if style == _COMPACT else " since 1970"
                return Reading(dates, said=f"{words[style]}{since}", style=style)
    return None


def dates_in(values: pd.Series, style: str = "") -> pd.Series:
    """Return a column as timestamps in forms that are known; NaT for what is no date in them, and
    for "never".
    """
    kind = infer_dtype(values, skipna=True)
    if kind == "period":
        values = values.dt.to_timestamp()
    if style in _NUMERIC_DATES and kind not in ("datetime", "datetime64", "date"):
        numbers = numbers_in(values)
        if style != _COMPACT:
            return pd.to_datetime(numbers, unit=style, errors="coerce")
        return _parsed(numbers.map(lambda v: f"{v:.0f}", na_action="ignore"), _COMPACT)
    text = kind == "string" or not len(values.dropna())
    forms = (style or "ISO8601").split("|") if text else [""]
    dates = _parsed(values, forms[0])
    for form in forms[1:]:
        dates = dates.fillna(_parsed(values, form))
    return dates.mask(values.astype(str).str.match(_NO_DATE) | (dates.dt.year == 9999))


def _parsed(values: pd.Series, form: str) -> Any:
    if form == "%d.%m.%y":  # 3.10.13 is a version
        values = values.where(values.astype(str).str.fullmatch(r"\d\d\.\d\d\.\d\d"))
    return (
        pd.to_datetime(values, format=form or None, errors="coerce", utc=True)
        .dt.tz_localize(None)
        .dt.as_unit("us")  # nanoseconds end in 2262
    )
