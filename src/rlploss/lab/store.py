"""The store: one SQLite file per output directory, rows written once, one writer at a time.

A cell and all its networks are committed in one transaction. Rows are keyed by the cell's spec and by the *code
version* (the code that matters and the version of torch), so rows of other code or another spec stay where they are and
never mix in.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import platform
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from rlploss import _files
from rlploss.lab.study import AnyCell, Cell, CellResult, StoredCell, TrainedNetwork, canonical_json
from rlploss.lab.text import LabError

FILE, LOCK = "runs.sqlite", ".lock"
SCHEMA = 2
APPLICATION_ID = 0x524C504C  # "RLPL", in the file's header: tells our files from other SQLite files
THIS = "spec_hash = ? AND code_version = ?"  # the key of a cell
TABLES = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA};\n"
TABLES += Path(__file__).with_name("store.sql").read_text("utf-8")
STRANGE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)  # what odd rows lead to
IGNORED = {"rlploss", "rlploss._checks", "rlploss._version"}  # messages and re-exports: they never change a number


class StoreError(LabError):
    """The store cannot be used; the message is one sentence for the user."""


class Store(AbstractContextManager["Store"]):
    """The results of one output directory. `with Store(directory, code_version=...) as store:`."""

    def __init__(self, directory: str | Path, *, code_version: str, create: bool = True) -> None:
        self.directory = Path(directory)
        self.path = self.directory / FILE
        self.code_version = code_version
        self._prepare_directory(create)
        with ExitStack() as held:
            held.callback(self._take_lock().release)
            with self._told(f"use {self.path}"):
                self._check_header()
                opened = sqlite3.connect(self.path, isolation_level=None, timeout=10.0)
                self._connection = held.enter_context(closing(opened))
                self._check_content()
            self._held = held.pop_all()

    def close(self, *_: object) -> None:
        """Close the file and give the directory free."""
        self._held.close()

    __exit__ = close

    def _prepare_directory(self, create: bool) -> None:
        """Make the directory, or refuse one that cannot be ours."""
        if self.path.exists():
            return
        wrong = ""
        if self.directory.exists() and not self.directory.is_dir():
            wrong = "is a file, not a directory; choose another output directory"
        elif not create:
            wrong = f"holds no {FILE}; give the directory that `rlploss reproduce` wrote"
        elif self.directory.exists() and any(path.name != LOCK for path in self.directory.iterdir()):
            wrong = "is not empty and was not made by rlploss; choose a new or empty directory"
        if wrong:
            raise StoreError(f"{self.directory} {wrong}")
        with self._told(f"create {self.directory}"):
            self.directory.mkdir(parents=True, exist_ok=True)

    def _take_lock(self) -> FileLock:
        """Be the only one in the directory; the file then holds the number of this process, for the message."""
        path = self.directory / LOCK
        with self._told(f"lock {self.directory}"):
            lock = _files.lock(path)
        if lock is None:
            number = path.read_text(errors="replace").strip()  # older versions of filelock have just emptied it
            holder = f"another rlploss (process {number})" if number else "another rlploss"
            raise StoreError(f"{holder} is working in {self.directory}; wait for it or choose another directory")
        with suppress(OSError):  # a full disk may refuse the number, the lock holds all the same
            path.write_text(f"{os.getpid()}\n")
        return lock

    def _check_content(self) -> None:
        """Refuse a damaged file, and make the tables of a new one."""
        self._connection.execute("PRAGMA trusted_schema = OFF")  # a file that others made may carry code
        # Whether it is empty is asked after SQLite has undone what a killed process left half done.
        if self._connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("malformed")
        if self._connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone() == (0,):
            # One transaction in rollback mode: a kill leaves nothing, never half a schema.
            self._connection.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")
        settings = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"
        self._connection.executescript(settings)

    def _check_header(self) -> None:
        """Tell foreign, damaged and older files apart by the header, before SQLite touches the file."""
        if not self.path.exists() or not self.path.stat().st_size:  # a new store
            return
        with self.path.open("rb") as file:
            header = file.read(100)
        owner, version = (int.from_bytes(header[at : at + 4], "big") for at in (68, 60))
        wrong = ""
        if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
            wrong = "is not an rlploss store (no SQLite header); move it away"
        elif owner != APPLICATION_ID:
            wrong = "is a SQLite file of another program; move it away"
        elif version != SCHEMA:
            age = "an older" if version < SCHEMA else "a newer"
            wrong = f"has schema version {version}, {age} one than this rlploss reads ({SCHEMA}); move it away"
        if wrong:
            raise StoreError(f"{self.path} {wrong} or choose another directory, the file is left as it is")

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn SQLite's and the system's errors into one sentence; `what` cannot be done."""
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            why = getattr(error, "strerror", error)
            remedy = "check that the disk has room, or choose a directory you may write to"
            raise StoreError(f"cannot {what} ({why}); {remedy}") from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error

    @contextmanager
    def _understood(self, what: str) -> Iterator[None]:
        """Turn whatever a row with strange content leads to into one sentence."""
        try:
            yield
        except STRANGE as error:
            raise self._damaged(f"{what} cannot be read, {type(error).__name__}") from error

    def _damaged(self, why: object) -> StoreError:
        remedy = "restore a copy or choose another directory, the file is left as it is"
        return StoreError(f"{self.path} is damaged or truncated ({why}); {remedy}")

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What one statement gives; it is a transaction of its own."""
        with self._told(f"use {self.path}"):
            return self._connection.execute(query, values).fetchall()

    def _insert(self, table: str, **row: object) -> int | None:
        """Add a row to a table and return its number."""
        names = ", ".join(f'"{name}"' for name in row)  # "values" is a word of SQL
        marks = ", ".join("?" * len(row))
        return self._connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", [*row.values()]).lastrowid

    def _key(self, cell: AnyCell) -> tuple[str, str]:
        """What a cell is stored under; one whose functions nobody could find again is refused."""
        if '"where":null' in canonical_json(cell.spec()):
            wrong = f"a store keeps functions by name, got one in {cell} that is not at the top of a module or file"
            raise ValueError(f"{wrong}; define it there with def")
        return cell.hash, self.code_version

    def has(self, cell: AnyCell) -> bool:
        """Whether this very cell, by this very code, is stored."""
        return bool(self._rows(f"SELECT 1 FROM cell WHERE {THIS}", *self._key(cell)))

    def write(self, cell: AnyCell, result: CellResult) -> None:
        """Commit a cell and all its networks, or nothing."""
        if sorted((n.variant, n.seed) for n in result.networks) != sorted(cell.keys):
            expected = f"expected {cell.n_replicas} networks, one per variant and seed"
            raise ValueError(f"a cell is stored whole: {expected}, got {len(result.networks)} for {cell}")
        key = self._key(cell)
        origin = {name: getattr(result, name) for name in ("engine", "threads", "notes", "objectives")}
        origin |= {"code_version": self.code_version, "versions": versions(), "machine": machine()}
        with self._told(f"use {self.path}"), self._connection as connection:  # which commits, or rolls back
            connection.execute("BEGIN IMMEDIATE")
            texts = {"spec": canonical_json(cell.spec()), "provenance": canonical_json(origin), "created": _now()}
            number = self._insert("cell", spec_hash=key[0], code_version=key[1], seconds=result.seconds, **texts)
            for network in result.networks:
                curve = {name: [_plain(v) for v in values] for name, values in network.curve.items()}
                numbers = {name: _plain(v) for name, v in network.values.items()}
                row = {name: getattr(network, name) for name in ("variant", "seed", "seconds")}
                row |= {"curve": canonical_json(curve), "values": canonical_json(numbers)}
                inserted = self._insert("network", cell=number, **row)
                for name, array in network.artifacts.items():
                    data = np.asarray(array, "<f4", "C").tobytes()
                    self._insert("artifact", network=inserted, name=name, shape=json.dumps(array.shape), data=data)
            connection.execute(f"DELETE FROM failure WHERE {THIS}", key)

    def read(self, cell: AnyCell) -> StoredCell | None:
        """The stored cell of this code, or None."""
        found = self._rows(f"SELECT id, provenance, seconds FROM cell WHERE {THIS}", *self._key(cell))
        if not found:
            return None
        ((number, origin_text, seconds),) = found
        columns = 'id, seed, variant, curve, seconds, "values"'
        rows = self._rows(f"SELECT {columns} FROM network WHERE cell = ? ORDER BY variant, seed", number)
        with self._understood(f"cell {cell.hash[:16]}"):
            networks = []
            for id_, seed, variant, curve_text, took, values_text in rows:
                curve = {name: _floats(values) for name, values in json.loads(curve_text).items()}
                values = json.loads(values_text)
                numbers = dict(zip(values, _floats(values.values()), strict=True))
                arrays = self._rows("SELECT name, shape, data FROM artifact WHERE network = ?", id_)
                artifacts = {n: np.frombuffer(data, "<f4").reshape(json.loads(shape)) for n, shape, data in arrays}
                networks.append(TrainedNetwork(seed, variant, curve, took, numbers, artifacts))
            origin = json.loads(origin_text)
            whole = [(n.variant, n.seed) for n in networks] == sorted(cell.keys)
            if not whole or not {"engine", "threads", "versions", "machine"} <= set(origin):
                raise ValueError("it is not whole")
        return StoredCell(tuple(networks), origin, seconds)

    def costs(self, known: Iterable[AnyCell] = ()) -> list[tuple[AnyCell, float]]:
        """(cell, seconds) of every stored cell, by whatever code: what estimates are learned from."""
        cells, found = {cell.hash: cell for cell in known}, []
        for key, spec, seconds in self._rows("SELECT spec_hash, spec, seconds FROM cell"):
            # Another version may have other specs; an estimate can do without them.
            with suppress(*STRANGE):
                found.append((cells.get(key) or Cell.from_spec(json.loads(spec)), seconds))
        return found

    def show_what_there_is(self) -> bool:
        """Read the rows of the latest other code if this code has none, never both; returns whether it does."""
        known = self._rows("SELECT code_version FROM cell GROUP BY code_version ORDER BY MAX(id) DESC")
        if not known or (self.code_version,) in known:
            return False
        (self.code_version,) = known[0]
        return True

    def foreign_cells(self) -> int:
        """Cells made by other code or another torch: kept, and never shown with ours."""
        return int(self._rows("SELECT COUNT(*) FROM cell WHERE code_version <> ?", self.code_version)[0][0])

    def write_failure(self, cell: AnyCell, reason: str) -> None:
        """Remember why a cell has no result; it is tried again the next time."""
        self._rows("INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?)", *self._key(cell), reason, _now())

    def failure(self, cell: AnyCell) -> str | None:
        """The reason of the last failure of this cell, if it failed."""
        rows = self._rows(f"SELECT reason FROM failure WHERE {THIS}", *self._key(cell))
        return str(rows[0][0]) if rows else None

    def write_request(self, name: str, options: dict[str, Any]) -> None:
        """Remember what was asked for, so that the report can be rendered again."""
        self._rows("INSERT OR REPLACE INTO request VALUES (?, ?, ?)", name, canonical_json(options), _now())

    def refuse_others(self, command: str) -> None:
        """Refuse a directory that another command than `reproduce`, `survey` or `compare`, the one given, has made."""
        asked, trained = self.requests(), self._rows("SELECT 1 FROM cell LIMIT 1")
        maker = "survey" if "survey" in asked else "reproduce" if asked else "compare" if trained else command
        if maker != command:
            raise StoreError(f"{self.directory} holds what `rlploss {maker}` made; choose another directory")

    def requests(self) -> dict[str, dict[str, Any]]:
        """Everything asked for in this directory, by name."""
        found: dict[str, dict[str, Any]] = {}
        for name, options in self._rows("SELECT name, options FROM request ORDER BY rowid"):
            with self._understood(f"request {name[:40]!r}"):
                found[name] = dict(json.loads(options))
        return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _plain(value: float) -> float | None:
    """JSON has no NaN and no infinities: they become null. Other floats read back bit for bit."""
    return float(value) if math.isfinite(value) else None


def _floats(values: Iterable[float | None]) -> list[float]:
    """The way back: null is NaN."""
    return np.array(list(values), np.float64).tolist()  # type: ignore[no-any-return]  # a list of one dimension


# Where a number comes from: the code that made it, the versions, the machine


def _source(module: str) -> Path | None:
    """The source file of a module of this package, without importing it; None for a name inside one."""
    path = Path(__file__).parents[1].joinpath(*module.split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _read(path: Path) -> tuple[str, set[str]]:
    """A module's syntax tree as text without docstrings, and the names under `rlploss` that it imports."""
    tree, names = ast.parse(path.read_bytes()), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return ast.dump(tree), {name for name in names if name.split(".")[0] == "rlploss"}


@cache
def code_hash(root: str) -> str:
    """SHA-256 over the syntax trees of a module and of all that it imports from this package.

    Comments, docstrings and layout do not count, nor do reports, figures and the command line:
    no trainer imports them.
    """
    if _source(root) is None:
        raise ValueError(f"root must name a module of rlploss, got {root!r}; check its spelling")
    found: dict[str, str] = {}
    waiting = {root}
    while waiting:
        module = waiting.pop()
        path = _source(module)
        if path is not None and module not in IGNORED and module not in found:
            found[module], imported = _read(path)
            waiting |= imported
    text = "".join(f"{module}\0{found[module]}\0" for module in sorted(found))
    return hashlib.sha256(text.encode()).hexdigest()


def code_version(root: str) -> str:
    """What two rows of one table must share: the code behind `root` and the version of torch."""
    identity = f"{code_hash(root)} torch {_version('torch')}"
    return hashlib.sha256(identity.encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def versions() -> dict[str, str]:
    """Versions of everything that touches the numbers."""
    packages = {name: _version(name) for name in ("rlploss", "torch", "numpy", "scikit-learn")}
    return {"python": platform.python_version(), **packages}


@cache
def machine() -> dict[str, str | int]:
    """The machine, without names of people or hosts."""
    processor = platform.processor() or platform.machine()
    with suppress(OSError):
        named = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
        processor = next(named, f":{processor}").split(":", 1)[1].strip()
    return {
        "system": platform.system(),
        "release": platform.release(),
        "processor": processor,
        "cores": os.cpu_count() or 1,
        "byteorder": sys.byteorder,
    }
