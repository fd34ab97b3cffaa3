"""A table somebody else wrote: CSV, TSV or Parquet to a frame, or one sentence on why not."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pandas as pd

from rlploss.lab.errors import sentence

SUFFIXES = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": "", ".parquet": "", ".pq": ""}
DELIMITERS = ",;\t|"
MISSING = frozenset({"", "na", "n/a", "nan", "null", "?", "#n/a", "<na>"})


class TableError(ValueError):
    """The table cannot be used; the message is one sentence for the user, however long the names in it."""

    def __init__(self, message: str) -> None:
        super().__init__(sentence(message))


def read_table(path: str | Path, *, encoding: str = "utf-8") -> pd.DataFrame:
    """Read a file. Columns of CSV and TSV are text or missing; Parquet keeps its types."""
    path = Path(path)
    if path.is_dir():
        raise TableError(f"{path} is a directory, not a table; give a CSV, TSV or Parquet file")
    if not path.exists():
        raise TableError(f"there is no file {path}; check the path")
    if path.suffix.lower() not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise TableError(f"a table must end in one of {known}, got {path.name!r}; convert or rename it")
    if path.stat().st_size == 0:
        raise TableError(f"{path} is empty; give a table with a header and rows")
    if path.suffix.lower() in (".parquet", ".pq"):
        return check_frame(_read_parquet(path), str(path))
    return check_frame(_read_text(path, encoding), str(path))


def check_frame(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Refuse what is no table: no rows, no columns, names that occur twice."""
    if frame.shape[1] == 0 or frame.shape[0] == 0:
        raise TableError(f"{name} is empty: it has {frame.shape[1]} columns and {frame.shape[0]} rows; add rows")
    frame.columns = [str(column) for column in frame.columns]
    twice = [column for column, times in Counter(frame.columns).items() if times > 1]
    if twice:
        raise TableError(f"column names must be different, but {twice[0]!r} occurs twice in {name}; rename one")
    return frame


def refuse_lists(values: pd.Series) -> None:
    """A column of lists is several columns, and which ones only its owner knows."""
    if values.dtype != object and not isinstance(values.dtype, pd.ArrowDtype | pd.StringDtype):
        return
    some = list(values[values.notna()].iloc[:1000])
    lists = [value for value in some if _is_list(value)]
    if len(lists) > len(some) / 2 or not all(isinstance(value, str) for value in lists):
        raise TableError(
            f"column {values.name!r} holds lists such as {str(lists[0])[:40]}; spread them over columns of their "
            "own, or leave the column out with --drop"
        )


def _is_list(value: object) -> bool:
    if isinstance(value, str):
        text = value.strip()
        return len(text) > 1 and (text[0], text[-1]) in (("[", "]"), ("{", "}"))
    return not isinstance(value, bytes) and hasattr(value, "__len__")


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow  # noqa: F401 - only whether it is there
    except ImportError:
        raise TableError(
            f"reading {path.name} needs pyarrow; install it (pip install pyarrow) or save the table as CSV"
        ) from None
    try:
        frame = pd.read_parquet(path, engine="pyarrow")
        return frame if frame.index.names == [None] else frame.reset_index()  # an index with a name is a column
    except Exception as error:  # pyarrow has a class for each way of being broken
        raise TableError(f"{path} is not a Parquet table ({_first_line(error)}); check the file") from error


def _read_text(path: Path, encoding: str) -> pd.DataFrame:
    data = path.read_bytes()
    kind = encoding
    with suppress(LookupError, ValueError):  # of names that are none
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
    except (LookupError, ValueError):  # codecs that are not of text raise what they like
        raise TableError(f"there is no encoding {encoding!r}; try latin-1 or cp1252") from None
    if re.search("[\ud800-\udfff]", text):  # halves of characters, which some codecs let through
        raise TableError(f"{path} is not {encoding} text (halves of characters); pass its encoding")
    declared = re.match(r'sep=([^"\r\n])\r?\n', text)  # what spreadsheets write into the first line
    text = text[declared.end() :] if declared else text
    first = next((line for line in text.splitlines() if line.strip()), "")
    if not first:
        raise TableError(f"{path} is empty; give a table with a header and rows")
    if re.match(r"\s*([<{]|\[\s*([\[{]|$))", first):
        raise TableError(f"{path} is not a table but looks like HTML, XML or JSON; give CSV, TSV or Parquet")
    return _parse(text, declared[1] if declared else _delimiter(first, SUFFIXES[path.suffix.lower()]), path)


def _delimiter(header: str, usual: str) -> str:
    """What separates the columns: a tab where the file's name promises one and it is there, or what occurs most."""
    bare = re.sub(r'"[^"]*"', "", header)
    if usual == "\t" and usual in bare:
        return usual
    return max(DELIMITERS, key=lambda d: (bare.count(d), -DELIMITERS.index(d)))


def _parse(text: str, delimiter: str, path: Path) -> pd.DataFrame:
    """The frame; spaces between delimiter and quote are skipped only where the file is no table otherwise."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    try:
        return _rows(text, delimiter, path, spaces=False)
    except TableError:
        with suppress(TableError):
            return _rows(text, delimiter, path, spaces=True)
        raise


def _rows(text: str, delimiter: str, path: Path, *, spaces: bool) -> pd.DataFrame:
    """Rows of the same length as the header; blank lines are skipped, and so is a delimiter at the end of a row."""
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=spaces)
    rows: list[list[str | None]] = []
    header: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells) and len(cells) <= 1:
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                continue
            if len(cells) == len(header) + 1 and not cells[-1].strip():
                cells.pop()
            if len(cells) != len(header):
                raise TableError(
                    f"{path} is not a table: line {reader.line_num} has {len(cells)} fields and the header has "
                    f"{len(header)}; check quotes and delimiters there"
                )
            rows.append([None if cell.strip().lower() in MISSING else cell.strip() for cell in cells])
    except csv.Error as error:
        raise TableError(
            f"{path} is not a table (line {reader.line_num}: {_first_line(error)}); check quotes there"
        ) from error
    header = [name or f"column {i + 1}" for i, name in enumerate(header or [])]
    return pd.DataFrame(rows, columns=pd.Index(header, dtype=object), dtype=object)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
