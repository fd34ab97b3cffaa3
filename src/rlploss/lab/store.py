"""Store the results of a study in one SQLite file per output directory; rows are written once.

One process at a time may write. A cell and all its networks are one row, so they are committed
together. Rows are keyed by the cell's spec and by the *code version*, a hash of the files that
decide a number and of the version of torch. So rows of other code or of another spec stay in the
file, and no table mixes them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from rlploss import _files
from rlploss.lab.study import AnyCell, Cell, CellResult, StoredCell, TrainedNetwork, canonical_json
from rlploss.lab.text import LabError, sentence

FILE, LOCK = "runs.sqlite", ".lock"
SCHEMA = 3
APPLICATION_ID = 0x524C504C  # "RLPL" in the file's header marks a SQLite file as ours
TABLES = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA};\n"
TABLES += Path(__file__).with_name("store.sql").read_text("utf-8")
HEADER_OF = "SELECT * FROM pragma_application_id, pragma_user_version"
STATEMENTS_OF = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL"
LONGEST = 60.0  # seconds that a query may take
LARGEST = 2**28  # bytes that a value may have
# This code may use its own rows and those of versions that were declared equal. Timed rows are only
# valid for the code that was timed.
USED = (
    "(code_version = ?1 OR (code_version IN (SELECT older FROM equal WHERE equal.code_version = ?1)"
    " AND instr(spec, '\"timed\":true') = 0))"
)
OF_THE_SYSTEM = tuple(  # errors of SQLite for which the content of a file is not to blame
    f"SQLITE_{name}"
    for name in ("BUSY", "CANTOPEN", "FULL", "IOERR", "LOCKED", "NOMEM", "PERM", "READONLY")
)
# Errors that rows with strange content cause.
STRANGE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class StoreError(LabError):
    """The store cannot be used; the message is one sentence for the user."""


class Store(AbstractContextManager["Store"]):
    """The results of one output directory: `with Store(directory, code_version=...) as store:`."""

    def __init__(self, directory: str | Path, *, code_version: str, create: bool = True) -> None:
        self.directory, self.path = Path(directory), Path(directory, FILE)
        self.code_version, self._begun = code_version, 0.0
        self._prepare_directory(create)
        with ExitStack() as stack:
            with self._reporting(f"lock {self.directory}"):
                lock = _files.lock(self.directory / LOCK)
            signature = self.directory / LOCK
            if lock is None:
                number = signature.read_text(errors="replace").strip()  # filelock 3 leaves it empty
                raise StoreError(
                    f"another rlploss{f' (process {number})' * bool(number)} is working in"
                    f" {self.directory}; wait for it or choose another directory"
                )
            stack.callback(lock.release)
            with suppress(OSError):  # the lock holds, even if a full disk refuses the number
                signature.write_text(f"{os.getpid()}\n")
            with self._reporting(f"use {self.path}"):
                self._connection = stack.enter_context(
                    closing(sqlite3.connect(self.path, isolation_level=None, timeout=10.0))
                )
                self._check_content(create)
            self._held = stack.pop_all()

    def close(self, *_: object) -> None:
        """Close the file and release the directory."""
        self._held.close()

    __exit__ = close

    def _prepare_directory(self, create: bool) -> None:
        """Make the directory; refuse one with files that we did not write."""
        if not os.path.lexists(self.path):
            if not create:
                raise StoreError(
                    f"{self.directory} holds no {FILE}; give the directory that `rlploss reproduce`"
                    " wrote"
                )
            if self.directory.is_file():
                raise StoreError(
                    f"{self.directory} is a file, not a directory; choose another output directory"
                )
            if self.directory.is_dir() and {*os.listdir(self.directory)} - {LOCK}:
                raise StoreError(
                    f"{self.directory} is not empty and was not made by rlploss; choose a new or"
                    " empty directory"
                )
        with self._reporting(f"create {self.directory}"):
            self.directory.mkdir(parents=True, exist_ok=True)
        _files.refuse_links_out(self.directory)

    def _check_content(self, create: bool) -> None:
        """Make the tables of a new file; refuse a file that is foreign, older, newer or damaged,
        and leave it as it is.
        """
        self._connection.set_progress_handler(self._takes_too_long, 10_000)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST)
        self._rows("PRAGMA trusted_schema = OFF")  # a file that somebody else made may carry code
        # The size is read after SQLite has rolled back what a killed process left unfinished.
        ((application, schema),) = self._rows(HEADER_OF)
        if create and not self.path.stat().st_size:
            # One transaction in rollback mode: a kill leaves nothing, never half a schema.
            self._connection.executescript(
                f"BEGIN IMMEDIATE; {TABLES} COMMIT; PRAGMA journal_mode = WAL;"
            )
        elif application != APPLICATION_ID:
            raise self._refused("is empty or of another program")
        elif schema != SCHEMA:
            age = "an older" if schema < SCHEMA else "a newer"
            raise self._refused(
                f"has schema version {schema}, {age} one than this rlploss reads ({SCHEMA})"
            )
        elif any(sql not in TABLES for (sql,) in self._rows(STATEMENTS_OF)):
            raise self._refused("has tables that rlploss does not create")
        elif self._rows("PRAGMA quick_check(1)") != [("ok",)]:
            raise self._refused("is damaged or truncated (malformed)")
        self._rows("PRAGMA synchronous = FULL")

    def _refused(self, wrong: str) -> StoreError:
        return StoreError(
            f"{self.path} {wrong}; move it away or choose another directory, the file is left as it"
            " is"
        )

    @contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        """Turn SQLite's and the system's errors into one sentence: cannot do `what`, why, and the
        remedy.
        """
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeError) as error:
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            if isinstance(error, OSError) or name.startswith(OF_THE_SYSTEM):
                raise StoreError(
                    f"cannot {what} ({getattr(error, 'strerror', error)}); check that the disk has"
                    " room, or choose a directory you may write to"
                ) from error
            late = {"SQLITE_INTERRUPT": f"a query took longer than {LONGEST:g} s"}
            why = late.get(name, sentence(str(error), 100))
            raise self._refused(f"is damaged or truncated ({why})") from error

    @contextmanager
    def understood(self, what: str) -> Iterator[None]:
        """Turn the errors that a row with strange content causes into one sentence; `what` names
        the row.
        """
        try:
            yield
        except STRANGE as error:
            why = sentence(f"{type(error).__name__}: {error}", 100)
            raise self._refused(
                f"is damaged or truncated ({what} cannot be read, {why})"
            ) from error

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement as a transaction of its own, and return its rows."""
        with self._reporting(f"use {self.path}"):
            self._begun = time.monotonic()
            return self._connection.execute(query, values).fetchall()

    def _takes_too_long(self) -> bool:
        """Return whether SQLite should end the query; a crafted file could make it endless."""
        return time.monotonic() - self._begun > LONGEST

    def _key(self, cell: AnyCell, code_version: str = "") -> tuple[str, str]:
        """Return the key of a cell; refuse one with a function that no other process could find."""
        if '"where":null' in canonical_json(cell.spec()):
            raise ValueError(
                f"a store keeps functions by name, got one in {cell} that is not at the top of a"
                " module or file; define it there with def"
            )
        return code_version or self.code_version, cell.hash

    def has(self, cell: AnyCell) -> bool:
        """Return whether this cell is stored by this code, or by code that was declared equal."""
        return bool(
            self._rows(f"SELECT 1 FROM cell WHERE spec_hash = ?2 AND {USED}", *self._key(cell))
        )

    def write(self, cell: AnyCell, result: CellResult) -> None:
        """Commit a cell and all its networks, or nothing."""
        if sorted((n.variant, n.seed) for n in result.networks) != sorted(cell.keys):
            raise ValueError(
                f"a cell is stored whole: expected {cell.n_replicas} networks, one per variant and"
                f" seed, got {len(result.networks)} for {cell}"
            )
        origin = {
            "engine": result.engine,
            "threads": result.threads,
            "notes": result.notes,
            "objectives": result.objectives,
            "code_version": self.code_version,
            "task": str(cell.task),
            "arm": str(cell.arm),  # names are not part of a spec
            "versions": versions(),
            "machine": machine(),
        }
        texts = canonical_json(cell.spec()), networks_json(result), canonical_json(origin)
        self._rows(
            "INSERT INTO cell (code_version, spec_hash, spec, networks, provenance, created,"
            " seconds) VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(*self._key(cell), *texts, _now(), result.seconds),
        )

    def read(self, cell: AnyCell, code_version: str = "") -> StoredCell | None:
        """Return the stored cell if this code (or `code_version`) may use one, else None."""
        query = "SELECT networks, provenance, seconds FROM cell WHERE spec_hash = ?2 AND"
        rows = self._rows(
            f"{query} {USED} ORDER BY code_version <> ?1", *self._key(cell, code_version)
        )
        if not rows:
            return None
        with self.understood(f"cell {cell.hash[:16]}"):
            networks = tuple(_network(data) for data in json.loads(rows[0][0]))
            origin = json.loads(rows[0][1])
            # Without metrics that every curve must have, networks may stop at different steps.
            lengths = {
                len(values)
                for network in (networks if cell.task.metrics else ())
                for values in network.curve.values()
            }
            if (
                [(n.variant, n.seed) for n in networks] != sorted(cell.keys)
                or not {"engine", "threads", "versions", "machine"} <= set(origin)
                or not all(set(cell.task.metrics) <= set(n.curve) for n in networks)
                or len(lengths) > 1
                or 0 in lengths
            ):
                raise ValueError("it is not whole")
        return StoredCell(networks, origin, rows[0][2])

    def every_cell(self) -> Iterator[tuple[str, str, Any, Any, list[TrainedNetwork]]]:
        """Yield hash, code version, spec, provenance and networks of every cell, whatever code
        wrote it.
        """
        for (number,) in self._rows("SELECT id FROM cell ORDER BY id"):
            ((key, code, *texts),) = self._rows(
                "SELECT spec_hash, code_version, spec, provenance, networks FROM cell WHERE id = ?",
                number,
            )
            with self.understood(f"cell {key[:16]}"):
                spec, origin, networks = map(json.loads, texts)
                yield key, code, spec, origin, [_network(data) for data in networks]

    def costs(self, known: Iterable[AnyCell] = ()) -> Iterator[tuple[AnyCell, float]]:
        """Yield (cell, seconds) of every stored cell, whatever code wrote it; estimates are learned
        from them.
        """
        cells = {cell.hash: cell for cell in known}
        for key, spec, seconds in self._rows("SELECT spec_hash, spec, seconds FROM cell"):
            # Other versions may have written other specs; the estimate leaves them out.
            with suppress(*STRANGE):
                yield cells.get(key) or Cell.from_spec(json.loads(spec)), seconds

    def older_version(self) -> str:
        """Return the code version of the latest row that this code may not use; empty without such
        rows.
        """
        rows = self._rows(
            f"SELECT code_version FROM cell WHERE NOT {USED} ORDER BY id DESC LIMIT 1",
            self.code_version,
        )
        return rows[0][0] if rows else ""

    def declare_equal(self, older: str) -> None:
        """Let this code use the rows of an older version, and all rows that the older version may
        use.
        """
        self._rows(
            "INSERT OR IGNORE INTO equal SELECT ?1, ?2, ?3 UNION SELECT ?1, older, ?3 FROM equal"
            " WHERE code_version = ?2",
            *(self.code_version, older, _now()),
        )

    def show_what_there_is(self) -> bool:
        """Switch to the rows of the latest other code if this code has none, and return whether it
        did; rows of both are never read together.
        """
        if self._rows(f"SELECT 1 FROM cell WHERE {USED} LIMIT 1", self.code_version):
            return False
        mine, self.code_version = self.code_version, self.older_version() or self.code_version
        return self.code_version != mine

    def foreign_cells(self) -> int:
        """Count the cells of other code or another torch, which are kept and never shown with
        ours.
        """
        ((count,),) = self._rows(f"SELECT COUNT(*) FROM cell WHERE NOT {USED}", self.code_version)
        return int(count)

    def write_failure(self, cell: AnyCell, reason: str) -> None:
        """Record why a cell has no result; the next run tries it again."""
        self._rows(
            "INSERT OR REPLACE INTO failure VALUES (?, ?, ?, ?)", *self._key(cell), reason, _now()
        )

    def failure(self, cell: AnyCell) -> str | None:
        """Return the reason of this cell's last failure, or None."""
        rows = self._rows(
            "SELECT reason FROM failure WHERE code_version = ? AND spec_hash = ?", *self._key(cell)
        )
        return str(rows[0][0]) if rows else None

    def write_request(self, name: str, options: dict[str, Any]) -> None:
        """Record the request, so that the report can be rendered again."""
        self._rows(
            "INSERT OR REPLACE INTO request VALUES (?, ?, ?)", name, canonical_json(options), _now()
        )

    def refuse_others(self, command: str) -> None:
        """Refuse a directory that another command wrote; `command` is "reproduce", "survey" or
        "compare".
        """
        makers = {name if name == "survey" else "reproduce" for name in self.requests()}
        if not makers and self._rows("SELECT 1 FROM cell LIMIT 1"):
            makers = {"compare"}
        for maker in makers - {command}:
            raise StoreError(
                f"{self.directory} holds what `rlploss {maker}` made; choose another directory"
            )

    def requests(self) -> dict[str, dict[str, Any]]:
        """Return the options of every request in this directory, by its name."""
        rows = self._rows("SELECT name, options FROM request ORDER BY rowid")
        with self.understood("a request"):
            return {name: dict(json.loads(options)) for name, options in rows}


def networks_json(result: CellResult) -> str:
    """Return the networks of a cell as JSON, in the order in which they are read. NaN and
    infinities, which JSON does not have, become null; all other floats keep every bit.
    """

    def plain(value: float) -> float | None:
        return float(value) if math.isfinite(value) else None

    return canonical_json(
        [
            {
                "variant": n.variant,
                "seed": n.seed,
                "seconds": n.seconds,
                "curve": {name: [*map(plain, values)] for name, values in n.curve.items()},
                "values": {name: plain(value) for name, value in n.values.items()},
                "arrays": {
                    name: [array.shape, base64.b64encode(array.astype("<f4").tobytes()).decode()]
                    for name, array in n.artifacts.items()
                },
            }
            for n in sorted(result.networks, key=lambda n: (n.variant, n.seed))
        ]
    )


def _network(row: dict[str, Any]) -> TrainedNetwork:
    """Return the network that `networks_json` wrote; null becomes NaN."""

    def number(value: float | None) -> float:
        return math.nan if value is None else float(value)

    return TrainedNetwork(
        seed=row["seed"],
        variant=row["variant"],
        curve={name: [*map(number, points)] for name, points in row["curve"].items()},
        seconds=number(row["seconds"]),
        values={name: number(value) for name, value in row["values"].items()},
        artifacts={
            name: np.frombuffer(base64.b64decode(data), "<f4").reshape(shape)
            for name, (shape, data) in row["arrays"].items()
        },
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# Where a number comes from: the code, the versions, the machine

# The files that decide the numbers of every network; each trainer adds its own. No other file may
# change a number, which `tests/lab/test_provenance.py` checks.
TRAINING = ("loss/*.py", "training/*.py", "_scaling.py", "_torch.py", "models.py")


@cache
def code_version(*files: str) -> str:
    """Return a hash of the files that decide a number (patterns below the package) and of the
    version of torch. All rows of one table share it.
    """
    package, digest = Path(__file__).parents[1], hashlib.sha256(metadata.version("torch").encode())
    for pattern in files:
        for path in sorted(package.glob(pattern)) or [package / pattern]:
            text = path.read_text("utf-8")
            digest.update(f"\0{path.relative_to(package).as_posix()}\0{text}".encode())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute the numbers."""
    return {"python": platform.python_version()} | {
        name: metadata.version(name) for name in ("rlploss", "torch", "numpy", "scikit-learn")
    }


@cache
def machine() -> dict[str, str | int]:
    """Describe the machine without names of people or hosts."""
    named = ""
    with suppress(OSError):
        named = Path("/proc/cpuinfo").read_text().partition("model name")[2].partition("\n")[0]
    return {
        "system": platform.system(),
        "release": platform.release(),
        "processor": named.strip("\t :") or platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "byteorder": sys.byteorder,
    }
