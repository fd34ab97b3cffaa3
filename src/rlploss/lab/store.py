"""The store: one SQLite file per output directory, rows written once, one writer at a time.

A cell and all its networks are committed in one transaction. Rows are keyed by the cell's spec and by the *code
version* (the code that matters and the version of torch), so rows of other code or another spec stay where they are and
never mix in.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from rlploss import _files
from rlploss.lab import provenance
from rlploss.lab.errors import LabError
from rlploss.lab.results import CellResult, StoredCell, TrainedNetwork
from rlploss.lab.study import Cell, canonical_json

FILE, LOCK = "runs.sqlite", ".lock"
SCHEMA = 2
APPLICATION_ID = 0x524C504C  # "RLPL", in the file's header: tells our files from other SQLite files

_TABLES = """
CREATE TABLE cell (
    id INTEGER PRIMARY KEY, spec_hash TEXT NOT NULL, code_version TEXT NOT NULL, spec TEXT NOT NULL,
    provenance TEXT NOT NULL, created TEXT NOT NULL, seconds REAL NOT NULL,
    UNIQUE (spec_hash, code_version)
) STRICT;
CREATE TABLE network (
    id INTEGER PRIMARY KEY, cell INTEGER NOT NULL REFERENCES cell (id), variant INTEGER NOT NULL,
    seed INTEGER NOT NULL, seconds REAL NOT NULL, curve TEXT NOT NULL, "values" TEXT NOT NULL,
    UNIQUE (cell, variant, seed)
) STRICT;
CREATE TABLE artifact (
    network INTEGER NOT NULL REFERENCES network (id), name TEXT NOT NULL, shape TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (network, name)
) STRICT;
CREATE TABLE failure (
    spec_hash TEXT NOT NULL, code_version TEXT NOT NULL, reason TEXT NOT NULL, created TEXT NOT NULL,
    PRIMARY KEY (spec_hash, code_version)
) STRICT;
CREATE TABLE request (name TEXT PRIMARY KEY, options TEXT NOT NULL, created TEXT NOT NULL) STRICT;
CREATE TRIGGER cell_once BEFORE UPDATE ON cell BEGIN SELECT RAISE(ABORT, 'cells are written once'); END;
CREATE TRIGGER network_once BEFORE UPDATE ON network BEGIN SELECT RAISE(ABORT, 'networks are written once'); END;
CREATE TRIGGER cell_kept BEFORE DELETE ON cell BEGIN SELECT RAISE(ABORT, 'cells are kept'); END;
CREATE TRIGGER network_kept BEFORE DELETE ON network BEGIN SELECT RAISE(ABORT, 'networks are kept'); END;
"""


class StoreError(LabError):
    """The store cannot be used; the message is one sentence for the user."""


class DirectoryBusy(StoreError):
    """Another process works in the directory."""


class Store:
    """The results of one output directory. `with Store(directory, code_version=...) as store:`."""

    def __init__(self, directory: str | Path, *, code_version: str, create: bool = True) -> None:
        self.directory = Path(directory)
        self.path = self.directory / FILE
        self.code_version = code_version
        self._prepare_directory(create)
        self._take_lock()
        try:
            with self._told():
                self._connection = self._open()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
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
        if self.directory.exists() and any(p.name != LOCK for p in self.directory.iterdir()):
            raise StoreError(
                f"{self.directory} is not empty and was not made by rlploss; choose a new or empty directory"
            )
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot create {self.directory} ({error.strerror}); choose a directory you may write to"
            ) from error

    def _take_lock(self) -> None:
        """Be the only one in the directory; the file then holds the number of this process, for the message."""
        path = self.directory / LOCK
        try:
            lock = _files.lock(path)
        except OSError as error:
            raise DirectoryBusy(
                f"cannot lock {self.directory} ({error.strerror}); choose a directory you may write to"
            ) from error
        if lock is None:
            holder = path.read_text(errors="replace").strip() or "unknown"
            raise DirectoryBusy(
                f"another rlploss (process {holder}) is working in {self.directory}; wait for it or choose another "
                "directory"
            )
        self._lock = lock
        with suppress(OSError):  # a full disk may refuse the number, the lock holds all the same
            path.write_text(f"{os.getpid()}\n")

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
            for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                connection.execute(f"PRAGMA {setting}")
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

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._told():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk may have rolled back already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _key(self, cell: Cell[Any, Any]) -> tuple[str, str]:
        """What a cell is stored under; one whose functions nobody could find again is refused."""
        _refuse_unloadable(cell.spec())
        return cell.hash, self.code_version

    def has(self, cell: Cell[Any, Any]) -> bool:
        """Whether this very cell, by this very code, is stored."""
        return bool(self._rows("SELECT 1 FROM cell WHERE spec_hash = ? AND code_version = ?", *self._key(cell)))

    def write(self, cell: Cell[Any, Any], result: CellResult) -> None:
        """Commit a cell and all its networks, or nothing."""
        if sorted((n.variant, n.seed) for n in result.networks) != sorted(cell.keys):
            raise ValueError(
                f"a cell is stored whole: expected {cell.n_replicas} networks, one per variant and seed, "
                f"got {len(result.networks)} for {cell}"
            )
        key = self._key(cell)
        origin = {
            "code_version": self.code_version,
            "versions": provenance.versions(),
            "machine": provenance.machine(),
            "threads": result.threads,
            "engine": result.engine,
            "notes": list(result.notes),
            "objectives": list(result.objectives),
        }
        with self._transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO cell (spec_hash, code_version, spec, provenance, created, seconds) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (*key, canonical_json(cell.spec()), canonical_json(origin), _now(), result.seconds),
            )
            for network in result.networks:
                curve = {name: [_plain(v) for v in values] for name, values in network.curve.items()}
                numbers = {name: _plain(v) for name, v in network.values.items()}
                texts = canonical_json(curve), canonical_json(numbers)
                inserted = connection.execute(
                    'INSERT INTO network (cell, variant, seed, seconds, curve, "values") VALUES (?, ?, ?, ?, ?, ?)',
                    (cursor.lastrowid, network.variant, network.seed, network.seconds, *texts),
                )
                connection.executemany(
                    "INSERT INTO artifact (network, name, shape, data) VALUES (?, ?, ?, ?)",
                    [
                        (inserted.lastrowid, name, json.dumps(array.shape), np.asarray(array, "<f4", "C").tobytes())
                        for name, array in network.artifacts.items()
                    ],
                )
            connection.execute("DELETE FROM failure WHERE spec_hash = ? AND code_version = ?", key)

    def read(self, cell: Cell[Any, Any]) -> StoredCell | None:
        """The stored cell of this code, or None."""
        found = self._rows(
            "SELECT id, provenance, seconds FROM cell WHERE spec_hash = ? AND code_version = ?", *self._key(cell)
        )
        if not found:
            return None
        ((number, origin_text, seconds),) = found
        networks = self._rows(
            'SELECT id, variant, seed, seconds, curve, "values" FROM network WHERE cell = ? ORDER BY variant, seed',
            number,
        )
        arrays = self._rows(
            "SELECT network, name, shape, data FROM artifact WHERE network IN (SELECT id FROM network WHERE cell = ?)",
            number,
        )
        with self._understood(f"cell {cell.hash[:16]}"):
            artifacts: dict[int, dict[str, Any]] = {}
            for network, name, shape, data in arrays:
                artifacts.setdefault(network, {})[name] = np.frombuffer(data, "<f4").reshape(json.loads(shape))
            read = tuple(
                TrainedNetwork(
                    seed,
                    variant,
                    {name: [_back(v) for v in values] for name, values in json.loads(curve).items()},
                    took,
                    {name: float(_back(v)) for name, v in json.loads(values).items()},
                    artifacts.get(key, {}),
                )
                for key, variant, seed, took, curve, values in networks
            )
            origin = json.loads(origin_text)
            whole = [(n.variant, n.seed) for n in read] == sorted(cell.keys)
            if not whole or not {"engine", "threads", "versions", "machine"} <= set(origin):
                raise ValueError("it is not whole")
        return StoredCell(read, origin, seconds)

    def costs(self) -> list[tuple[Cell[Any, Any], float]]:
        """(cell, seconds) of every stored cell, by whatever code: what estimates are learned from."""
        found = []
        for spec, seconds in self._rows("SELECT spec, seconds FROM cell"):
            # Another version may have other specs; an estimate can do without them.
            with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                found.append((Cell.from_spec(json.loads(spec)), seconds))
        return found

    def code_versions(self) -> list[str]:
        """Every code version that has rows here, the latest first."""
        rows = self._rows("SELECT code_version FROM cell GROUP BY code_version ORDER BY MAX(id) DESC")
        return [str(row[0]) for row in rows]

    def foreign_cells(self) -> int:
        """Cells made by other code or another torch: kept, and never shown with ours."""
        return int(self._rows("SELECT COUNT(*) FROM cell WHERE code_version <> ?", self.code_version)[0][0])

    def write_failure(self, cell: Cell[Any, Any], reason: str) -> None:
        """Remember why a cell has no result; it is tried again the next time."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?)", (*self._key(cell), reason, _now()))

    def failure(self, cell: Cell[Any, Any]) -> str | None:
        """The reason of the last failure of this cell, if it failed."""
        rows = self._rows("SELECT reason FROM failure WHERE spec_hash = ? AND code_version = ?", *self._key(cell))
        return str(rows[0][0]) if rows else None

    def write_request(self, name: str, options: dict[str, Any]) -> None:
        """Remember what was asked for, so that the report can be rendered again."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO request VALUES (?, ?, ?)", (name, canonical_json(options), _now())
            )

    def requests(self) -> dict[str, dict[str, Any]]:
        """Everything asked for in this directory, by name."""
        found: dict[str, dict[str, Any]] = {}
        for name, options in self._rows("SELECT name, options FROM request ORDER BY rowid"):
            with self._understood(f"request {name[:40]!r}"):
                found[name] = dict(json.loads(options))
        return found


def _refuse_unloadable(data: Any) -> None:
    """Refuse a function that cannot be found again: nobody could say later what was trained."""
    if isinstance(data, dict):
        if "where" in data and data["where"] is None:
            raise ValueError(
                f"a store keeps functions by name, got {data['function']}, which is not at the top of a module or "
                "file; define it there with def"
            )
        for value in data.values():
            _refuse_unloadable(value)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _plain(value: float) -> float | None:
    """JSON has no NaN and no infinities: they become null. Other floats read back bit for bit."""
    return float(value) if math.isfinite(value) else None


def _back(value: float | None) -> float:
    return math.nan if value is None else value
