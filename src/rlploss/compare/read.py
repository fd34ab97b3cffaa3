"""A table that somebody else wrote: files to frames, and by which convention their numbers are
written.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import infer_dtype

from rlploss.estimators.cells import LONGEST, MISSING, MOSTLY, STYLES, Style, is_text, without_signs
from rlploss.lab.text import sentence

TEXT = {
    ".csv": ",",
    ".tsv": "\t",
    ".tab": "\t",
    ".txt": ",",
}  # their delimiters, if the text agrees
DELIMITERS = ",;\t|"
KINDS = "CSV, TSV, Excel (.xlsx), Parquet, Feather or JSON"
LINES_TO_JUDGE, MOST_TITLE_ROWS = 50, 20
LARGER = 100  # times at most that a file is when it is unpacked


class TableError(ValueError):
    """The table cannot be used; the message is one sentence for the user, however long the names in
    it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(sentence(message))


# Files


def read_table(path: str | Path, *, encoding: str = "utf-8") -> pd.DataFrame:
    """Read a file and return its frame. Columns of CSV and TSV are text or missing; others keep
    their types. `attrs["notes"]` says what was left out.
    """
    path = Path(path)
    packed = path.suffix.lower() == ".gz"
    suffix = Path(path.stem if packed else path).suffix.lower()
    if not path.is_file():
        raise TableError(
            f"{path} is {'a directory' if path.is_dir() else 'a pipe or a device'}, not a table;"
            f" give a file: {KINDS}"
            if path.exists()
            else f"there is no file {path}; check the path"
        )
    if suffix not in TEXT and suffix not in _TYPED:
        raise TableError(
            f"a table must end in one of {', '.join((*TEXT, *_TYPED))}, or in .gz after that, got"
            f" {path.name!r}; convert or rename it"
        )
    most = LARGER * path.stat().st_size + 2**20
    try:
        with (gzip.open if packed else open)(path, "rb") as file:
            data = file.read(most + 1)
    except Exception as error:  # gzip has a class for each way of being broken
        raise TableError(f"{path} cannot be read ({_first_line(error)}); check the file") from error
    if len(data) > most:
        raise TableError(
            f"{path} is more than {LARGER} times as large when it is unpacked; give what is in it"
        )
    if not data:
        raise TableError(f"{path} is empty; give a table with a header and rows")
    if suffix in TEXT:
        return check_frame(_delimited(_decoded(data, path, encoding), TEXT[suffix], path), path)
    word, package, read = _TYPED[suffix]
    try:
        return check_frame(read(data), path)
    except TableError:
        raise
    except ImportError:
        raise TableError(
            f"reading {path.name} needs {package}; install it (pip install {package}) or save the"
            " table as CSV"
        ) from None
    except Exception as error:  # each reader has a class for each way of being broken
        raise TableError(
            f"{path} is not {word} ({_first_line(error)}); check the file, or save it as CSV"
        ) from error


def check_frame(frame: pd.DataFrame, name: str | Path) -> pd.DataFrame:
    """Return the frame with its names as text; refuse one without rows or columns, and names that
    occur twice.
    """
    if frame.shape[1] == 0 or frame.shape[0] == 0:
        raise TableError(
            f"{name} is empty: it has {frame.shape[1]} columns and {frame.shape[0]} rows; add rows"
        )
    if frame.shape[1] > 10_000:
        raise TableError(
            f"{name} has {frame.shape[1]:,} columns, more than 10,000; leave out what is not needed"
        )
    frame.columns = [str(column) for column in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise TableError(
            f"column names must be different, but {twice[0]!r} occurs twice in {name}; rename one"
        )
    return frame


def _arrow(read: Callable[[io.BytesIO], pd.DataFrame]) -> Callable[[bytes], pd.DataFrame]:
    def frame_of(data: bytes) -> pd.DataFrame:
        import pyarrow  # noqa: F401 - only whether it is there

        frame = read(io.BytesIO(data))
        # An index with a name is a column.
        return frame if frame.index.names == [None] else frame.reset_index()

    return frame_of


def _excel(data: bytes) -> pd.DataFrame:
    sheets = pd.read_excel(
        io.BytesIO(data), sheet_name=None, header=None, dtype=object, engine="openpyxl"
    )
    first, sheet = next(iter(sheets.items()))
    rows = [[None if pd.isna(cell) else cell for cell in row] for row in sheet.to_numpy().tolist()]
    frame = _framed([(i + 1, row) for i, row in enumerate(rows)], f"the sheet {first!r}")
    if len(sheets) > 1:
        frame.attrs["notes"] += [f"only the first of {len(sheets)} sheets is read, {first!r}"]
    return frame


def _json(data: bytes) -> pd.DataFrame:
    records = json.loads(data.decode("utf-8-sig"))
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise TableError(
            "a table in JSON must be a list of records, one object for each row; save it so (in"
            ' pandas: to_json(orient="records")) or as CSV'
        )
    return pd.DataFrame(records)


_TYPED = {
    ".xlsx": ("an Excel table", "openpyxl", _excel),
    ".json": ("JSON", "pandas", _json),
    ".parquet": ("a Parquet table", "pyarrow", _arrow(pd.read_parquet)),
    ".pq": ("a Parquet table", "pyarrow", _arrow(pd.read_parquet)),
    ".feather": ("a Feather table", "pyarrow", _arrow(pd.read_feather)),
}


def _decoded(data: bytes, path: Path, encoding: str) -> str:
    """Return the text of a file; refuse encodings that do not exist, and bytes that are not in the
    encoding.
    """
    kind = encoding
    with suppress(LookupError, ValueError):  # an encoding that does not exist is refused below
        kind = codecs.lookup(encoding).name  # UTF8 is utf-8
    if kind == "utf-8" and (data[:2] in (b"\xff\xfe", b"\xfe\xff")):
        raise TableError(f"{path} is UTF-16, not UTF-8; pass --encoding utf-16")
    if b"\0" in data[:4096] and not kind.startswith(("utf-16", "utf-32")):
        raise TableError(f"{path} is not a table but binary data; give {KINDS}")
    try:
        text = data.decode("utf-8-sig" if kind == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        raise TableError(
            f"{path} is not {encoding} text (byte 0x{data[error.start]:02x} at position"
            f" {error.start}); pass its encoding, for instance --encoding latin-1"
        ) from error
    except (LookupError, ValueError):  # codecs for other things than text raise what they like
        raise TableError(f"there is no encoding {encoding!r}; try latin-1 or cp1252") from None
    if re.search("[\ud800-\udfff]", text):  # halves of characters, which some codecs let through
        raise TableError(f"{path} is not {encoding} text (halves of characters); pass its encoding")
    return text


def _delimited(text: str, usual: str, path: Path) -> pd.DataFrame:
    """Return the frame of a text; spaces between delimiter and quote are skipped only where it is
    no table otherwise.
    """
    declared = re.match(r'sep=([^"\r\n])\r?\n', text)  # what spreadsheets write into the first line
    text = text[declared.end() :] if declared else text
    bare = "".join(text[:100_000].split('"')[::2])  # without what is quoted
    lines = [line.strip("\r") for line in bare.split("\n") if line.strip()][:LINES_TO_JUDGE]
    if not text.strip():
        raise TableError(f"{path} is empty; give a table with a header and rows")
    if re.match(r"[<{]|\[\s*([\[{]|$)", text.lstrip().splitlines()[0].rstrip()):
        raise TableError(f"{path} is not a table but looks like HTML, XML or JSON; give {KINDS}")

    def agreement(delimiter: str) -> tuple[int, bool, int]:
        """Return in how many lines, one after another, it stands equally often; whether it is the
        usual one; and how often.
        """
        runs = [(n, len([*run])) for n, run in groupby(line.count(delimiter) for line in lines)]
        n, n_lines = max(((n, k) for n, k in runs if n), key=lambda run: run[1], default=(0, 0))
        return n_lines, delimiter == usual, n

    delimiter = declared[1] if declared else max(DELIMITERS, key=agreement)
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    for skip_spaces in (False, True):
        with suppress(TableError):
            return _framed(_rows(text, delimiter, path, skip_spaces=skip_spaces), path)
    return _framed(_rows(text, delimiter, path, skip_spaces=False), path)  # says what is wrong


def _rows(
    text: str, delimiter: str, path: Path, *, skip_spaces: bool
) -> list[tuple[int, list[Any]]]:
    """Return the cells of each line, with the number of the line."""
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        strict=True,
        skipinitialspace=skip_spaces,
    )
    try:
        return [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        wrong = f"line {reader.line_num}: {_first_line(error)}"
        raise TableError(f"{path} is not a table ({wrong}); check quotes there") from error


def _framed(rows: list[tuple[int, list[Any]]], name: str | Path) -> pd.DataFrame:
    """Return the frame of rows as long as their header; titles above it and empty rows are left
    out, and a delimiter at the end of a row.

    pandas would fill short rows in silence; they mean that a quote or a delimiter is wrong.
    """
    rows = [(line, row) for line, row in rows if any(cell not in ("", None) for cell in row)]
    n_titles = _n_titles([row for _, row in rows[: LINES_TO_JUDGE + MOST_TITLE_ROWS]])
    titles = [" ".join(str(cell) for cell in row if cell) for _, row in rows[:n_titles]]
    header = rows[n_titles][1] if rows else []
    names = [str(cell) if cell else f"column {i + 1}" for i, cell in enumerate(header)]
    cells = []
    for line, row in rows[n_titles + 1 :]:
        row = row[:-1] if len(row) == len(names) + 1 and not row[-1] else row
        if len(row) != len(names):
            wrong = f"line {line} has {len(row)} fields and the header has {len(names)}"
            raise TableError(f"{name} is not a table: {wrong}; check quotes and delimiters there")
        cells.append([None if _is_missing(cell) else cell for cell in row])
    frame = pd.DataFrame(cells, columns=pd.Index(names, dtype=object), dtype=object)
    for at in range(frame.shape[1]):  # a column of numbers and texts, in a spreadsheet, is texts
        if infer_dtype(frame.iloc[:, at], skipna=True).startswith("mixed-integer"):
            frame.isetitem(at, frame.iloc[:, at].map(str, na_action="ignore"))
    above = [f"{title!r} stands above the header and is left out" for title in titles]
    frame.attrs["notes"] = above
    return frame


def _n_titles(rows: Sequence[Sequence[Any]]) -> int:
    """Return how many rows at the top are titles: one text alone, or rows shorter than the table,
    above a header of words.
    """
    usual = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    for n, row in enumerate(rows[: min(MOST_TITLE_ROWS, len(rows) - 1)]):
        alone = bool(row[0]) and not any(row[1:]) and usual > 1
        if not alone and len(row) >= usual - 1:
            words = [cell for cell in row if isinstance(cell, str) and re.search(r"[^\W\d]", cell)]
            return n if words else 0
    return 0


def _is_missing(cell: Any) -> bool:
    return cell is None or (
        isinstance(cell, str) and len(cell) <= LONGEST and cell.strip().lower() in MISSING
    )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


# Numbers

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


def _readings(values: pd.Series, styles: Sequence[Style]) -> dict[str, tuple[str, float]]:
    """Return by which decimal signs a column of text can be read, with a text that shows it and its
    number.

    Nothing for a column without points and commas, and for one that is mostly no numbers.
    """
    if not is_text(values):
        return {}
    texts = [
        text
        for text in {without_signs(text) for text in values.dropna()}
        if "." in text or "," in text
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
