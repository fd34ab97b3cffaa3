"""A table that somebody else wrote: files to frames of text, and the text in them to numbers and
dates.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from rlploss.estimators.cells import LONGEST, MISSING, MOSTLY, STYLES, Style, is_text, without_signs
from rlploss.lab.text import sentence

SUFFIXES = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": "", ".parquet": "", ".pq": ""}
DELIMITERS = ",;\t|"


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
