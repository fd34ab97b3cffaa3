"""Reading a table that somebody else wrote: files to frames of text."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlploss.lab.text import sentence

SUFFIXES = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": "", ".parquet": "", ".pq": ""}
DELIMITERS = ",;\t|"
MISSING = frozenset({"", "na", "n/a", "nan", "null", "?", "#n/a", "<na>"})


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


def as_frame(X: Any, y: Any) -> tuple[pd.DataFrame, str]:
    """Return X and y in one pandas frame, and the name of the target in it."""
    frame = frame_of(X)
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
