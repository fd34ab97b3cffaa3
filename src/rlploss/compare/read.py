"""Reading a table that somebody else wrote: files to frames, and the text in them to numbers and dates."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import infer_dtype

from rlploss.lab.errors import sentence

Array = NDArray[np.float64]

SUFFIXES = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": "", ".parquet": "", ".pq": ""}
DELIMITERS = ",;\t|"
MISSING = frozenset({"", "na", "n/a", "nan", "null", "?", "#n/a", "<na>"})
NO_VALUE = MISSING | {"-", "--", "none", "missing", "unknown"}  # among numbers or dates; elsewhere a category


class TableError(ValueError):
    """The table cannot be used; the message is one sentence for the user, however long the names in it."""

    def __init__(self, message: str) -> None:
        super().__init__(sentence(message))


# Files


def read_table(path: str | Path, *, encoding: str = "utf-8") -> pd.DataFrame:
    """Read a file and return its frame. Columns of CSV and TSV are text or missing; Parquet keeps its types."""
    path = Path(path)
    suffix = path.suffix.lower()
    if path.is_dir():
        raise TableError(f"{path} is a directory, not a table; give a CSV, TSV or Parquet file")
    if not path.exists():
        raise TableError(f"there is no file {path}; check the path")
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise TableError(f"a table must end in one of {known}, got {path.name!r}; convert or rename it")
    if path.stat().st_size == 0:
        raise TableError(f"{path} is empty; give a table with a header and rows")
    if suffix in (".parquet", ".pq"):
        return check_frame(_read_parquet(path), str(path))
    text = _decoded(path, encoding)
    declared = re.match(r'sep=([^"\r\n])\r?\n', text)  # what spreadsheets write into the first line
    text = text[declared.end() :] if declared else text
    first = next((line for line in text.splitlines() if line.strip()), "")
    if not first:
        raise TableError(f"{path} is empty; give a table with a header and rows")
    if re.match(r"\s*([<{]|\[\s*([\[{]|$))", first):
        raise TableError(f"{path} is not a table but looks like HTML, XML or JSON; give CSV, TSV or Parquet")
    return check_frame(_parse(text, declared[1] if declared else _delimiter(first, SUFFIXES[suffix]), path), str(path))


def check_frame(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the frame with its names as text; refuse one without rows or columns, and names that occur twice."""
    if frame.shape[1] == 0 or frame.shape[0] == 0:
        raise TableError(f"{name} is empty: it has {frame.shape[1]} columns and {frame.shape[0]} rows; add rows")
    frame.columns = [str(column) for column in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise TableError(f"column names must be different, but {twice[0]!r} occurs twice in {name}; rename one")
    return frame


def as_frame(X: Any, y: Any) -> tuple[pd.DataFrame, str]:
    """Return X and y in one pandas frame, and the name of the target in it."""
    if isinstance(X, pd.DataFrame):
        frame = X.copy()
    elif hasattr(X, "to_dict") and hasattr(X, "columns"):  # polars, without needing pyarrow
        frame = pd.DataFrame({str(name): X[name].to_list() for name in X.columns})
    elif hasattr(X, "toarray"):
        raise TableError("X must be dense, got a sparse matrix; pass X.toarray()")
    else:
        array = np.asarray(X)
        if array.ndim != 2:
            raise TableError(f"X must have two dimensions (rows, columns), got shape {array.shape}")
        frame = pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])])
    target = np.asarray(y) if not hasattr(y, "to_list") else np.asarray(y.to_list(), dtype=object)
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.ndim != 1 or len(target) != len(frame):
        raise TableError(f"y must have one value per row of X, got shape {target.shape} for {len(frame)} rows")
    frame = check_frame(frame.reset_index(drop=True), "X")
    given = getattr(y, "name", None)
    name = "target" if given in (None, "") else str(given)
    while name in frame.columns:
        name += " (target)"
    frame[name] = pd.Series(list(target), dtype=object).infer_objects()
    return frame, name


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow  # noqa: F401 - only whether it is there
    except ImportError:
        raise TableError(
            f"reading {path.name} needs pyarrow; install it (pip install pyarrow) or save the table as CSV"
        ) from None
    try:
        frame = pd.read_parquet(path, engine="pyarrow")
    except Exception as error:  # pyarrow has a class for each way of being broken
        raise TableError(f"{path} is not a Parquet table ({_first_line(error)}); check the file") from error
    return frame if frame.index.names == [None] else frame.reset_index()  # an index with a name is a column


def _decoded(path: Path, encoding: str) -> str:
    """Return the file as text; refuse encodings that do not exist, and bytes that are not in the encoding."""
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
        raise TableError(
            f"{path} is not {encoding} text (byte 0x{data[error.start]:02x} at position {error.start}); "
            "pass its encoding, for instance --encoding latin-1"
        ) from error
    except (LookupError, ValueError):  # codecs for other things than text raise what they like
        raise TableError(f"there is no encoding {encoding!r}; try latin-1 or cp1252") from None
    if re.search("[\ud800-\udfff]", text):  # halves of characters, which some codecs let through
        raise TableError(f"{path} is not {encoding} text (halves of characters); pass its encoding")
    return text


def _delimiter(header: str, usual: str) -> str:
    """Return what separates the columns: the tab that the file's name promises, if it is there, or what occurs most."""
    bare = re.sub(r'"[^"]*"', "", header)
    if usual == "\t" and usual in bare:
        return usual
    return max(DELIMITERS, key=bare.count)  # the first of the most frequent


def _parse(text: str, delimiter: str, path: Path) -> pd.DataFrame:
    """Return the frame; spaces between delimiter and quote are skipped only where the file is no table otherwise."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    try:
        return _rows(text, delimiter, path, skip_spaces=False)
    except TableError:
        with suppress(TableError):
            return _rows(text, delimiter, path, skip_spaces=True)
        raise


def _rows(text: str, delimiter: str, path: Path, *, skip_spaces: bool) -> pd.DataFrame:
    """Return rows as long as the header. Blank lines are skipped, and a delimiter at the end of a row.

    pandas would fill short rows in silence; they mean that a quote or a delimiter is wrong.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=skip_spaces)
    rows: list[list[str]] = []
    header: list[str] | None = None
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if len(cells) <= 1 and not any(cells):
                continue
            if header is None:
                header = cells
                continue
            if len(cells) == len(header) + 1 and not cells[-1]:
                cells.pop()
            if len(cells) != len(header):
                raise TableError(
                    f"{path} is not a table: line {reader.line_num} has {len(cells)} fields and the header has "
                    f"{len(header)}; check quotes and delimiters there"
                )
            rows.append(cells)
    except csv.Error as error:
        raise TableError(
            f"{path} is not a table (line {reader.line_num}: {_first_line(error)}); check quotes there"
        ) from error
    names = [name or f"column {i + 1}" for i, name in enumerate(header or [])]
    frame = pd.DataFrame(rows, columns=pd.Index(names, dtype=object), dtype=object)
    return frame.map(lambda cell: None if cell.lower() in MISSING else cell)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


# How values are written

MOSTLY = 0.9  # if so many values are numbers or dates, a few words among them stand for missing values
FEW_WORDS, MANY_VALUES = 5, 20

_PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?"
_CURRENCY = r"(?:(?:US|C|A)?\$|[€£¥]|USD|EUR|GBP|CHF|JPY)"
_SIGNS = re.compile(rf"^([+-]?)\s*{_CURRENCY}\s*|\s*(?:%|{_CURRENCY})$")
_IN_BRACKETS = re.compile(rf"^{_CURRENCY}?\s*\(\s*({_CURRENCY}?[\d.,\s'’]+)\)\s*%?$")  # minus, as accountants write it
# What a number looks like, what is removed from it, and what it is called; a comma that is left is a decimal comma.
# Groups of thousands do not begin with 0: 0,373 is a decimal. Lakhs have groups of two.
STYLES = (
    (_PLAIN, "", ""),
    (rf"[+-]?[1-9]\d{{0,2}}(,\d{{2,3}})*,\d{{3}}(\.\d*)?|{_PLAIN}", ",", "with commas between thousands"),
    (rf"[+-]?[1-9]\d{{0,2}}([\s'’]\d{{3}})+(\.\d+)?|{_PLAIN}", r"[\s'’]", "with spaces between thousands"),
    (r"[+-]?([1-9]\d{0,2}([.\s'’]\d{3})+|\d+)(,\d+)?", r"[.\s'’]", "with decimal commas"),
)
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


def as_numbers(values: pd.Series, *, mostly: bool = False) -> Reading | None:
    """Return a column as numbers, None if it is not. `mostly` allows a few words among many different numbers."""
    kind = infer_dtype(values, skipna=True)
    if kind in ("integer", "floating", "mixed-integer-float", "decimal"):
        floats = values.astype(object).map(_float, na_action="ignore")
        return Reading(_finite(floats.to_numpy(dtype=np.float64, na_value=np.nan)))
    if kind in ("timedelta", "timedelta64"):
        return Reading(pd.to_timedelta(values).dt.total_seconds().to_numpy() / 86_400, "as durations, in days")
    if kind != "string":
        return None
    text = values.dropna().astype(object).str.strip().str.replace("\N{MINUS SIGN}", "-")
    bracketed = text.str.match(_IN_BRACKETS)
    unbracketed = text.str.replace(_IN_BRACKETS, r"-\1", regex=True)
    bare = unbracketed.str.replace(_SIGNS, r"\1", regex=True)
    tried = []
    for pattern, removed, said in STYLES:
        tried.append((bare.str.fullmatch(pattern, flags=re.IGNORECASE), removed, said))
        if tried[-1][0].all():
            break
    fits, removed, said = max(tried, key=lambda one: int(one[0].sum()))  # the first of the best
    words = Counter(text[~fits])
    if words and not _mean_missing(words, text, mostly=mostly):
        return None
    cleaned = bare[fits].str.replace(removed, "", regex=True) if removed else bare[fits]
    numbers = cleaned.str.replace(",", ".").astype(np.float64).reindex(values.index)
    signs = "with signs of currency or percent" if (fits & ~bracketed & (bare != text)).any() else ""
    brackets = "in brackets for minus" if bracketed.any() else ""
    told = " and ".join(word for word in (said, signs, brackets) if word)
    return Reading(_finite(numbers.to_numpy()), told, tuple(word for word, _ in words.most_common()))


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
    best = [_parsed(said, style) for style in DATES if fits[style] == max(fits.values())]
    found = min(best, key=lambda parsed: int(parsed.isna().sum()))  # the first of the best
    words = Counter(said[found.isna()])
    if words and not _mean_missing(words, said):
        return None
    words += Counter(text[~text.index.isin(said.index)])
    return Reading(found.reindex(values.index), words=tuple(word for word, _ in words.most_common()))


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


def _finite(floats: Array) -> Array:
    return np.where(np.isfinite(floats), floats, np.nan)


def _parsed(values: pd.Series, style: str | None = None) -> pd.Series:
    return pd.to_datetime(values, format=style, errors="coerce", utc=True).dt.tz_localize(None)
