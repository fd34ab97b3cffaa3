"""The store: one SQLite file per output directory, rows written once, one writer at a time.

A cell and all its runs are committed in one transaction. Rows are keyed by the cell's spec and by the
*code_version* (the code that matters and the version of torch), so rows of other code or another spec stay where
they are and never mix in.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rlploss.lab import provenance
from rlploss.lab._lock import DirectoryLock
from rlploss.lab.errors import LabError
from rlploss.lab.results import CellResult, Run, StoredCell
from rlploss.lab.study import Cell, canonical_json

FILE = "runs.sqlite"
SCHEMA = 1
APPLICATION_ID = 0x524C504C  # "RLPL", in the file's header: tells our files from other SQLite files

_TABLES = """
CREATE TABLE cell (
    id INTEGER PRIMARY KEY,
    spec_hash TEXT NOT NULL,
    code_version TEXT NOT NULL,
    spec TEXT NOT NULL,
    provenance TEXT NOT NULL,
    created TEXT NOT NULL,
    seconds REAL NOT NULL,
    UNIQUE (spec_hash, code_version)
) STRICT;
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    cell INTEGER NOT NULL REFERENCES cell (id),
    variant INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    seconds REAL NOT NULL,
    curve TEXT NOT NULL,
    UNIQUE (cell, variant, seed)
) STRICT;
CREATE TABLE artifact (
    run INTEGER NOT NULL REFERENCES run (id),
    name TEXT NOT NULL,
    shape TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, name)
) STRICT;
CREATE TABLE failure (
    spec_hash TEXT NOT NULL,
    code_version TEXT NOT NULL,
    reason TEXT NOT NULL,
    created TEXT NOT NULL,
    PRIMARY KEY (spec_hash, code_version)
) STRICT;
CREATE TABLE request (
    name TEXT PRIMARY KEY,
    options TEXT NOT NULL,
    created TEXT NOT NULL
) STRICT;
CREATE TRIGGER cell_once BEFORE UPDATE ON cell BEGIN SELECT RAISE(ABORT, 'cells are written once'); END;
CREATE TRIGGER run_once BEFORE UPDATE ON run BEGIN SELECT RAISE(ABORT, 'runs are written once'); END;
CREATE TRIGGER cell_kept BEFORE DELETE ON cell BEGIN SELECT RAISE(ABORT, 'cells are kept'); END;
CREATE TRIGGER run_kept BEFORE DELETE ON run BEGIN SELECT RAISE(ABORT, 'runs are kept'); END;
"""


class StoreError(LabError):
    """The store cannot be used; the message is one sentence for the user."""


class Store:
    """Runs of one output directory. `with Store(directory, code_version=...) as store:`."""

    def __init__(self, directory: str | Path, *, code_version: str, create: bool = True) -> None:
        self.directory = Path(directory)
        self.path = self.directory / FILE
        self.code_version = code_version
        self._prepare_directory(create)
        self._lock = DirectoryLock(self.directory)
        try:
            with self._told():
                self._connection = self._open()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and give the directory free."""
        self._connection.close()
        self._lock.release()

    def _prepare_directory(self, create: bool) -> None:
        if self.directory.exists() and not self.directory.is_dir():
            raise StoreError(f"{self.directory} is a file, not a directory; choose another output directory")
        if self.path.exists():
            return
        if not create:
            raise StoreError(f"{self.directory} holds no {FILE}; give the directory that `rlploss reproduce` wrote")
        if self.directory.exists() and any(p.name != DirectoryLock.NAME for p in self.directory.iterdir()):
            raise StoreError(
                f"{self.directory} is not empty and was not made by rlploss; choose a new or empty directory"
            )
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot create {self.directory} ({error.strerror}); choose a directory you may write to"
            ) from error

    def _open(self) -> sqlite3.Connection:
        if self.path.exists() and self.path.stat().st_size > 0:
            self._check_header()
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=10.0)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")  # a file that others made may carry code
            # Whether it is empty is asked after SQLite has undone what a killed process left half done.
            if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise sqlite3.DatabaseError("malformed")
            if connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone() == (0,):
                # One transaction in rollback mode: a kill leaves nothing, never half a schema.
                header = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA};"
                connection.executescript(f"BEGIN IMMEDIATE; {header} {_TABLES} COMMIT;")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_header(self) -> None:
        """Tell foreign, damaged and older files apart by the header, before SQLite touches the file."""
        with self.path.open("rb") as file:
            header = file.read(100)
        if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
            raise StoreError(
                f"{self.path} is not an rlploss store (no SQLite header); move it away or choose another directory"
            )
        if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
            raise StoreError(
                f"{self.path} is a SQLite file of another program; move it away or choose another directory"
            )
        version = int.from_bytes(header[60:64], "big")
        if version != SCHEMA:
            age = "an older" if version < SCHEMA else "a newer"
            raise StoreError(
                f"{self.path} has schema version {version}, {age} one than this rlploss reads ({SCHEMA}); "
                "choose another directory, the file is left as it is"
            )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn SQLite's and the system's errors into one sentence."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreError(
                f"cannot use {self.path} ({error}); check that the disk has room and the directory is writable"
            ) from error
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"{self.path} is damaged or truncated ({error}); restore a copy or choose another directory, "
                "the file is left as it is"
            ) from error
        except OSError as error:
            raise StoreError(f"cannot use {self.path} ({error.strerror}); check the directory") from error

    @contextmanager
    def _understood(self, what: str) -> Iterator[None]:
        """Turn whatever a row with strange content leads to into one sentence."""
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StoreError(
                f"{self.path} is damaged: {what} cannot be read ({type(error).__name__}); restore a copy or choose "
                "another directory, the file is left as it is"
            ) from error

    def has(self, cell: Cell) -> bool:
        """Whether this very cell, by this very code_version, is stored."""
        with self._told():
            row = self._connection.execute(
                "SELECT 1 FROM cell WHERE spec_hash = ? AND code_version = ?", (cell.hash, self.code_version)
            ).fetchone()
        return row is not None

    def write(self, cell: Cell, result: CellResult) -> None:
        """Commit a cell and all its runs, or nothing."""
        expected = _runs_of(cell)
        if {(r.variant, r.seed) for r in result.runs} != expected or len(result.runs) != len(expected):
            raise ValueError(
                f"a cell is stored whole: expected {len(expected)} runs, one per variant and seed, "
                f"got {len(result.runs)} for {cell}"
            )
        origin = {
            "code_version": self.code_version,
            "versions": provenance.versions(),
            "machine": provenance.machine(),
            "threads": result.threads,
            "path": result.path,
            "notes": list(result.notes),
        }
        with self._told(), self._transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO cell (spec_hash, code_version, spec, provenance, created, seconds) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    cell.hash,
                    self.code_version,
                    canonical_json(cell.spec()),
                    canonical_json(origin),
                    _now(),
                    result.seconds,
                ),
            )
            for run in result.runs:
                inserted = connection.execute(
                    "INSERT INTO run (cell, variant, seed, seconds, curve) VALUES (?, ?, ?, ?, ?)",
                    (cursor.lastrowid, run.variant, run.seed, run.seconds, _encode_curve(run)),
                )
                connection.executemany(
                    "INSERT INTO artifact (run, name, shape, data) VALUES (?, ?, ?, ?)",
                    [
                        (
                            inserted.lastrowid,
                            name,
                            json.dumps(array.shape),
                            np.asarray(array, "<f4", order="C").tobytes(),
                        )
                        for name, array in run.artifacts.items()
                    ],
                )
            connection.execute(
                "DELETE FROM failure WHERE spec_hash = ? AND code_version = ?", (cell.hash, self.code_version)
            )

    def read(self, cell: Cell) -> StoredCell | None:
        """The stored cell of this code_version, or None."""
        with self._told():
            row = self._connection.execute(
                "SELECT id, provenance, seconds FROM cell WHERE spec_hash = ? AND code_version = ?",
                (cell.hash, self.code_version),
            ).fetchone()
            if row is None:
                return None
            runs = self._connection.execute(
                "SELECT id, variant, seed, seconds, curve FROM run WHERE cell = ? ORDER BY variant, seed", (row[0],)
            ).fetchall()
            arrays = self._connection.execute(
                "SELECT a.run, a.name, a.shape, a.data FROM artifact a JOIN run r ON r.id = a.run WHERE r.cell = ?",
                (row[0],),
            ).fetchall()
        with self._understood(f"cell {cell.hash[:16]}"):
            artifacts: dict[int, dict[str, Any]] = {}
            for run, name, shape, data in arrays:
                artifacts.setdefault(run, {})[name] = np.frombuffer(data, "<f4").reshape(json.loads(shape))
            read = tuple(
                Run(seed, variant, _decode_curve(curve), seconds, artifacts.get(key, {}))
                for key, variant, seed, seconds, curve in runs
            )
            origin = json.loads(row[1])
            whole = {(r.variant, r.seed) for r in read} == _runs_of(cell)
            if not whole or not {"path", "threads", "versions", "machine"} <= set(origin):
                raise ValueError("it is not whole")
        return StoredCell(read, origin, row[2])

    def costs(self) -> list[tuple[Cell, float]]:
        """(cell, seconds) of every stored cell, whatever the code_version: what estimates are learned from."""
        with self._told():
            rows = self._connection.execute("SELECT spec, seconds FROM cell").fetchall()
        found = []
        for spec, seconds in rows:
            # Another version may have other specs; an estimate can do without them.
            with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                found.append((Cell.from_spec(json.loads(spec)), seconds))
        return found

    def code_versions(self) -> list[str]:
        """Every code_version that has rows here, the latest first."""
        with self._told():
            rows = self._connection.execute(
                "SELECT code_version FROM cell GROUP BY code_version ORDER BY MAX(id) DESC"
            ).fetchall()
        return [str(row[0]) for row in rows]

    def foreign_cells(self) -> int:
        """Cells made by other code or another torch: kept, and never shown with ours."""
        with self._told():
            row = self._connection.execute(
                "SELECT COUNT(*) FROM cell WHERE code_version <> ?", (self.code_version,)
            ).fetchone()
        return int(row[0])

    def write_failure(self, cell: Cell, reason: str) -> None:
        """Remember why a cell has no result; it is tried again the next time."""
        with self._told(), self._transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO failure (spec_hash, code_version, reason, created) VALUES (?, ?, ?, ?)",
                (cell.hash, self.code_version, reason, _now()),
            )

    def failure(self, cell: Cell) -> str | None:
        """The reason of the last failure of this cell, if it failed."""
        with self._told():
            row = self._connection.execute(
                "SELECT reason FROM failure WHERE spec_hash = ? AND code_version = ?", (cell.hash, self.code_version)
            ).fetchone()
        return None if row is None else str(row[0])

    def write_request(self, name: str, options: dict[str, Any]) -> None:
        """Remember what was asked for, so that the report can be rendered again."""
        with self._told(), self._transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO request (name, options, created) VALUES (?, ?, ?)",
                (name, canonical_json(options), _now()),
            )

    def requests(self) -> dict[str, dict[str, Any]]:
        """Everything asked for in this directory, by name."""
        with self._told():
            rows = self._connection.execute("SELECT name, options FROM request ORDER BY rowid").fetchall()
        found: dict[str, dict[str, Any]] = {}
        for name, options in rows:
            with self._understood(f"request {name[:40]!r}"):
                found[name] = dict(json.loads(options))
        return found

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            # A full disk may have rolled back already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def _runs_of(cell: Cell) -> set[tuple[int, int]]:
    """(variant, seed) of every run of a cell."""
    return {(v, s) for v in range(len(cell.task.variants)) for s in cell.seeds}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _encode_curve(run: Run) -> str:
    """JSON, floats as Python writes them (they read back bit for bit); NaN and infinities become null."""
    return canonical_json(
        {key: [float(v) if math.isfinite(v) else None for v in values] for key, values in run.curve.items()}
    )


def _decode_curve(text: str) -> dict[str, list[float]]:
    return {key: [math.nan if v is None else v for v in values] for key, values in json.loads(text).items()}
