"""A table that somebody else wrote: files to frames of text, and the text in them to numbers and
dates.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype

from rlploss._scaling import Array
from rlploss.lab.text import sentence

SUFFIXES = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": "", ".parquet": "", ".pq": ""}
DELIMITERS = ",;\t|"
MISSING = frozenset({"", "na", "n/a", "nan", "null", "?", "#n/a", "<na>"})
LONGEST = 100  # characters of a number or a date; expressions that go back never see more


class TableError(ValueError):
    """The table cannot be used; the message is one sentence for the user, however long the names in
    it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(sentence(message))


# Files


def read_table(path: str | Path, *, encoding: str = "utf-8") -> pd.DataFrame:
    """Read a file and return its frame. Columns of CSV and TSV are text or missing; Parquet keeps
    its types.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if path.is_dir():
        raise TableError(f"{path} is a directory, not a table; give a CSV, TSV or Parquet file")
    if not path.exists():
        raise TableError(f"there is no file {path}; check the path")
    if suffix not in SUFFIXES:
        raise TableError(
            f"a table must end in one of {', '.join(SUFFIXES)}, got {path.name!r}; convert or"
            " rename it"
        )
    if path.stat().st_size == 0:
        raise TableError(f"{path} is empty; give a table with a header and rows")
    if suffix in (".parquet", ".pq"):
        return check_frame(_read_parquet(path), str(path))
    text = _decoded(path, encoding)
    declared = re.match(r'sep=([^"\r\n])\r?\n', text)  # what spreadsheets write into the first line
    text = text[declared.end() :] if declared else text
    first = next((line for line in io.StringIO(text) if line.strip()), "").strip()
    if not first:
        raise TableError(f"{path} is empty; give a table with a header and rows")
    if re.match(r"[<{]|\[\s*([\[{]|$)", first):
        raise TableError(
            f"{path} is not a table but looks like HTML, XML or JSON; give CSV, TSV or Parquet"
        )
    bare = "".join(first.split('"')[::2])  # without what is quoted
    usual = (
        SUFFIXES[suffix]
        if SUFFIXES[suffix] == "\t" and "\t" in bare
        else max(DELIMITERS, key=bare.count)
    )
    return check_frame(_parse(text, declared[1] if declared else usual, path), str(path))


def check_frame(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the frame with its names as text; refuse one without rows or columns, and names that
    occur twice.
    """
    if frame.shape[1] == 0 or frame.shape[0] == 0:
        raise TableError(
            f"{name} is empty: it has {frame.shape[1]} columns and {frame.shape[0]} rows; add rows"
        )
    frame.columns = [str(column) for column in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise TableError(
            f"column names must be different, but {twice[0]!r} occurs twice in {name}; rename one"
        )
    return frame


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow  # noqa: F401 - only whether it is there
    except ImportError:
        remedy = "install it (pip install pyarrow) or save the table as CSV"
        raise TableError(f"reading {path.name} needs pyarrow; {remedy}") from None
    try:
        frame = pd.read_parquet(path, engine="pyarrow")
    except Exception as error:  # pyarrow has a class for each way of being broken
        raise TableError(
            f"{path} is not a Parquet table ({_first_line(error)}); check the file"
        ) from error
    return (
        frame if frame.index.names == [None] else frame.reset_index()
    )  # an index with a name is a column


def _decoded(path: Path, encoding: str) -> str:
    """Return the file as text; refuse encodings that do not exist, and bytes that are not in the
    encoding.
    """
    data = path.read_bytes()
    kind = encoding
    with suppress(LookupError, ValueError):  # an encoding that does not exist is refused below
        kind = codecs.lookup(encoding).name  # UTF8 is utf-8
    if kind == "utf-8" and (data[:2] in (b"\xff\xfe", b"\xfe\xff")):
        raise TableError(f"{path} is UTF-16, not UTF-8; pass --encoding utf-16")
    if b"\0" in data[:4096] and not kind.startswith(("utf-16", "utf-32")):
        raise TableError(f"{path} is not a table but binary data; give a CSV, TSV or Parquet file")
    try:
        text = data.decode("utf-8-sig" if kind == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{data[error.start]:02x} at position {error.start}"
        raise TableError(
            f"{path} is not {encoding} text ({wrong}); pass its encoding, for instance"
            " --encoding latin-1"
        ) from error
    except (LookupError, ValueError):  # codecs for other things than text raise what they like
        raise TableError(f"there is no encoding {encoding!r}; try latin-1 or cp1252") from None
    if re.search("[\ud800-\udfff]", text):  # halves of characters, which some codecs let through
        raise TableError(f"{path} is not {encoding} text (halves of characters); pass its encoding")
    return text


def _parse(text: str, delimiter: str, path: Path) -> pd.DataFrame:
    """Return the frame; spaces between delimiter and quote are skipped only where the file is no
    table otherwise.
    """
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    try:
        rows = _rows(text, delimiter, path, skip_spaces=False)
    except TableError as error:
        try:
            rows = _rows(text, delimiter, path, skip_spaces=True)
        except TableError:
            raise error from None
    names = [name or f"column {i + 1}" for header in rows[:1] for i, name in enumerate(header)]
    cells = [
        [None if len(cell) <= LONGEST and cell.lower() in MISSING else cell for cell in row]
        for row in rows[1:]
    ]
    return pd.DataFrame(cells, columns=pd.Index(names, dtype=object), dtype=object)


def _rows(text: str, delimiter: str, path: Path, *, skip_spaces: bool) -> list[list[str]]:
    """Return rows as long as the header. Blank lines are skipped, and a delimiter at the end of a
    row.

    pandas would fill short rows in silence; they mean that a quote or a delimiter is wrong.
    """
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        strict=True,
        skipinitialspace=skip_spaces,
    )
    rows: list[list[str]] = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if len(cells) <= 1 and not any(cells):
                continue
            rows.append(cells)
            n = len(rows[0])
            if len(cells) == n + 1 and not cells[-1]:
                cells.pop()
            if len(cells) != n:
                found = f"line {reader.line_num} has {len(cells)} fields and the header has {n}"
                raise TableError(
                    f"{path} is not a table: {found}; check quotes and delimiters there"
                )
    except csv.Error as error:
        found = f"line {reader.line_num}: {_first_line(error)}"
        raise TableError(f"{path} is not a table ({found}); check quotes there") from error
    return rows


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


# Numbers

NO_VALUE = MISSING | {
    "-",
    "--",
    "none",
    "missing",
    "unknown",
}  # among numbers or dates; elsewhere a category
MOSTLY = (
    0.9  # if so many values are numbers or dates, a few words among them stand for missing values
)
FEW_WORDS, MANY_VALUES = 5, 20

_MOST = sys.float_info.max
_PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?"
_COMMA = r"[+-]?\d+(,\d+)?(e[+-]?\d+)?"
_HEAD = r"[+-]?[1-9]\d{0,2}"  # groups of thousands do not begin with 0: 0,373 is a decimal
_CURRENCY = r"(?:(?:US|C|A)?\$|[€£¥]|USD|EUR|GBP|CHF|JPY)"
_SIGNS = re.compile(rf"^([+-]?)\s*{_CURRENCY}\s*|\s*(?:%|{_CURRENCY})$")
_IN_BRACKETS = re.compile(
    rf"^{_CURRENCY}?\s*\(\s*({_CURRENCY}?[\d.,\s'’]+)\)\s*%?$"
)  # minus, as accountants write it


@dataclass(frozen=True)
class Style:
    """One way to write numbers: the decimal sign, what stands between thousands, and what they look
    like.
    """

    decimal: str
    thousands: str
    pattern: str
    said: str = ""

    def fits(self, text: str) -> bool:
        """Return whether a text is a number in this style."""
        return len(text) <= LONGEST and bool(re.fullmatch(self.pattern, text, re.IGNORECASE))

    def number(self, text: str) -> float:
        """Return the number; NaN for a text that is none, and for one that is infinite."""
        if not self.fits(text):
            return math.nan
        bare = re.sub(r"[\s'’]" if self.thousands == " " else re.escape(self.thousands), "", text)
        found = float(bare.replace(self.decimal, "."))
        return found if math.isfinite(found) else math.nan


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
THOUSANDS = {"none": "", "": "", ",": ",", ".": ".", " ": " ", "space": " ", "'": " ", "’": " "}
_OTHER = {".": ",", ",": "."}


@dataclass(frozen=True)
class Convention:
    """How a file writes numbers. None leaves a sign open."""

    decimal: str | None = None
    thousands: str | None = None
    warnings: tuple[str, ...] = ()
    own: tuple[str, ...] = ()  # columns that are certainly written otherwise

    def styles(self, column: str = "") -> list[Style]:
        """Return the styles that a column may have."""
        decimal = None if column in self.own else self.decimal
        kept = [style for style in STYLES if decimal in (None, style.decimal)]
        return [
            style
            for style in kept
            if self.thousands is None or style.thousands in ("", self.thousands)
        ]

    @classmethod
    def of(
        cls, frame: pd.DataFrame, decimal: str | None = None, thousands: str | None = None
    ) -> Convention:
        """Return one convention for all columns, as the user says it. What can be read in one way
        only votes otherwise.

        A column that fits both is read as the others are, and told about wherever the others are
        not plain.
        """
        if decimal not in (None, ".", ","):
            raise TableError(
                f"--decimal must be . or , got {decimal!r}; leave it out to let the table decide"
            )
        if thousands is not None and thousands not in THOUSANDS:
            raise TableError(
                f"--thousands must be a comma, a point, a quote, space or none, got {thousands!r}"
            )
        mark = None if thousands is None else THOUSANDS[thousands]
        decimal = decimal or _OTHER.get(mark or "")
        if decimal is not None and decimal == mark:
            raise TableError(
                f"--decimal and --thousands must be different signs, got {mark!r} twice"
            )
        given = cls(decimal, mark)
        if decimal is not None:
            return given
        votes = {str(name): _readings(frame[name], given.styles()) for name in frame.columns}
        sure = {
            sign: [name for name, found in votes.items() if set(found) == {sign}] for sign in _OTHER
        }
        decimal = "," if len(sure[","]) > len(sure["."]) else "."
        other = _OTHER[decimal]
        unlike = (
            f"decimal {'commas' if decimal == '.' else 'points'}, unlike {len(sure[decimal])} other"
            " columns"
        )
        warned = [
            f"column {name!r} is written with {unlike}" for name in sure[other] if sure[decimal]
        ]
        plain = sure["."] and not sure[","]
        for name, found in votes.items() if not plain else ():
            if len(found) == 2:
                (text, taken), (_, instead) = found[decimal], found[other]
                why = (
                    "as in other columns" if sure[decimal] else "though nothing in the table tells"
                )
                told = (
                    f"column {name!r} can be read in two ways: {text} is taken as {taken:,.12g},"
                    f" {why}"
                )
                warned.append(f"{told}; --decimal {other} takes it as {instead:,.12g}")
        return cls(decimal, mark, tuple(warned), tuple(sure[other]))


OPEN = Convention()


def _readings(values: pd.Series, styles: Sequence[Style]) -> dict[str, tuple[str, float]]:
    """Return by which decimal signs a column of text can be read, with a text that shows it and its
    number.

    Nothing for a column without points and commas, and for one that is mostly no numbers.
    """
    if infer_dtype(values, skipna=True) != "string":
        return {}
    texts = [
        text for text in {_bare(text) for text in values.dropna()} if "." in text or "," in text
    ]
    fits = {style: sum(map(style.fits, texts)) for style in styles}
    most = max(fits.values())
    if most < MOSTLY * len(texts) or not most:
        return {}
    kept = {
        style.decimal: style for style in reversed(styles) if fits[style] == most
    }  # the first of each sign
    different = [t for t in texts if len({style.number(t) for style in kept.values()}) == len(kept)]
    text = min(different, default="", key=lambda t: (len(t), t))
    return (
        {sign: (text, style.number(text)) for sign, style in kept.items()}
        if text or len(kept) == 1
        else {}
    )


@dataclass(frozen=True)
class Reading:
    """A column as floats or timestamps, NaN or NaT where a value is missing or infinite, and how it
    was written.
    """

    values: Any
    said: str = ""
    words: tuple[str, ...] = ()  # that were no numbers or dates and are taken as missing
    # by which the same can be read again: the decimal sign and that of thousands, or a form of
    # dates
    style: str = ""
    doubt: str = ""  # what else the same texts may mean


def as_numbers(
    values: pd.Series, convention: Convention = OPEN, *, mostly: bool = False
) -> Reading | None:
    """Return a column as numbers, None if it is not. `mostly` allows a few words among many
    different numbers.
    """
    plain = _plain_numbers(values)
    if plain is not None or infer_dtype(values, skipna=True) != "string":
        return plain
    stripped = values.dropna().astype(object).map(_stripped)
    bare = stripped.map(_bare)
    tried: list[tuple[Style, pd.Series]] = []
    for style in convention.styles(str(values.name)):
        tried.append((style, bare.map(style.fits).astype(bool)))
        if tried[-1][1].all():
            break
    style, fits = max(tried, key=lambda one: int(one[1].sum()))  # the first of the best
    words = Counter(stripped[~fits])
    if words and not _mean_missing(words, stripped, mostly=mostly):
        return None
    bracketed = fits & stripped.map(lambda text: "(" in text)
    signs = (
        "with signs of currency or percent"
        if (fits & ~bracketed & (bare != stripped)).any()
        else ""
    )
    told = " and ".join(
        filter(None, (style.said, signs, "in brackets for minus" if bracketed.any() else ""))
    )
    key = style.decimal + style.thousands
    return Reading(numbers_again(values, key), told, tuple(dict(words.most_common())), key)


def numbers_again(values: pd.Series, style: str) -> Array:
    """Return a column as numbers in a style that is known; NaN for what is no number in it."""
    plain = _plain_numbers(values)
    if plain is not None:
        return np.asarray(plain.values)
    known = next(one for one in STYLES if one.decimal + one.thousands == (style or "."))
    found = values.astype(object).map(
        lambda v: known.number(_bare(v)) if isinstance(v, str) else np.nan
    )
    return np.asarray(found.to_numpy(dtype=np.float64, na_value=np.nan))


def _plain_numbers(values: pd.Series) -> Reading | None:
    """Return a column that holds numbers or durations, not text."""
    kind = infer_dtype(values, skipna=True)
    if kind in ("integer", "floating", "mixed-integer-float", "decimal"):
        finite = values.astype(object).map(
            lambda v: float(v) if abs(v) <= _MOST else None, na_action="ignore"
        )
        return Reading(finite.to_numpy(dtype=np.float64, na_value=np.nan))
    if kind in ("timedelta", "timedelta64"):
        return Reading(
            pd.to_timedelta(values).dt.total_seconds().to_numpy() / 86_400, "as durations, in days"
        )
    return None


def _stripped(text: str) -> str:
    return text.strip().replace("\N{MINUS SIGN}", "-")


def _bare(text: str) -> str:
    """Return a text without signs of currency and percent; brackets become a minus."""
    text = _stripped(text)
    short = len(text) <= LONGEST
    return _SIGNS.sub(r"\1", _IN_BRACKETS.sub(r"-\1", text)) if short else text


def _mean_missing(words: Counter[str], values: pd.Series, *, mostly: bool = True) -> bool:
    """Return whether words among numbers or dates mean "missing": they say so, or they are few
    among many values.
    """
    different = values.nunique() - len(words)
    if different and all(word.lower() in NO_VALUE for word in words):
        return True
    few = words.total() <= (1 - MOSTLY) * len(values) and len(words) <= FEW_WORDS
    return mostly and few and different >= MANY_VALUES


# Dates

_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m/%d/%y", "%d/%m/%y")
_NAMED = (
    "%d %b %Y",
    "%b %d, %Y",
    "%d %B %Y",
    "%B %d, %Y",
    "%d-%b-%Y",
    "%d-%b-%y",
    "%b-%Y",
    "%b %Y",
    "%B %Y",
)
_TIMES = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
DATES = ("ISO8601", *_DAYS, *_NAMED, *(f"{day} {time}" for day in _DAYS for time in _TIMES))
_LIKE_A_DATE = re.compile(
    r"\d[-/. ]\d.*[-/. ]\d|[A-Za-z]{3}.*\d{4}|\d.*[A-Za-z]{3}.*\d{2}|\d{4}-?\d\d"
)
_NO_DATE = re.compile(r"9999\D|0000\D?00")  # what stands for "never" and for "unknown"


def as_dates(values: pd.Series) -> Reading | None:
    """Return a column as timestamps, None if it is not: plain numbers are not dates. Some words may
    be among them.
    """
    kind = infer_dtype(values, skipna=True)
    if kind in ("period", "date", "datetime", "datetime64"):
        return Reading(dates_again(values, ""))
    if kind != "string":
        return None
    text = values.dropna().astype(object).str.strip()
    # The start of a long text decides that it is no date, and which word it is.
    text = text.where(text.str.len() <= LONGEST, text.str[:LONGEST] + " …")
    said = text[~(text.str.lower().isin(NO_VALUE) | text.str.match(_NO_DATE))]
    different = said.drop_duplicates()
    sample = different.iloc[
        :: len(different) // 200 + 1
    ]  # days beyond the 12th tell days from months
    # Most columns end here, before forty formats are tried.
    if said.empty or sample.str.contains(_LIKE_A_DATE).mean() < MOSTLY:
        return None
    fits = {style: _parsed(sample, style).notna().mean() for style in DATES}
    if max(fits.values()) < 0.5:
        return None
    best = {style: _parsed(said, style) for style in DATES if fits[style] == max(fits.values())}
    style, *others = sorted(
        best, key=lambda one: int(best[one].isna().sum())
    )  # the first of the best
    found, doubt = best[style], ""
    for other in others:
        apart = (best[other] != found) & found.notna()
        if best[other].isna().sum() == found.isna().sum() and apart.any():
            row = apart.idxmax()
            doubt = (
                f"{said[row]} is taken as {found[row]:%Y-%m-%d}, and may be"
                f" {best[other][row]:%Y-%m-%d}"
            )
    words = Counter(said[found.isna()])
    if words and not _mean_missing(words, said):
        return None
    words += Counter(text[~text.index.isin(said.index)])
    return Reading(
        found.reindex(values.index),
        words=tuple(dict(words.most_common())),
        style=style,
        doubt=doubt,
    )


def dates_again(values: pd.Series, style: str) -> pd.Series:
    """Return a column as timestamps in a form that is known; NaT for what is no date in it, and for
    "never".
    """
    kind = infer_dtype(values, skipna=True)
    text = kind == "string" or not len(values.dropna())
    dates = _parsed(
        values.dt.to_timestamp() if kind == "period" else values,
        (style or "ISO8601") if text else "",
    )
    return dates.mask(values.astype(str).str.match(_NO_DATE) | (dates.dt.year == 9999))


def _parsed(values: pd.Series, style: str) -> pd.Series:
    return pd.to_datetime(values, format=style or None, errors="coerce", utc=True).dt.tz_localize(
        None
    )
