"""Stored studies with changes of every kind, and what `rlploss report` makes of them: bytes, rows,
types, sizes, a crafted schema, files beside the store and links."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from tests.torture.summary import demand

NAME = "runs.sqlite"
SECONDS = 5.0  # of a query: less than a child has in all
STRANGE = (
    None,
    -1,
    2**62,
    1e308,
    -1e308,
    "",
    "x",
    "x" * 100_000,
    b"\xff\xfe",
    "[" * 100_000,
    "NaN",
)
TABLES = ("cell", "request", "failure", "equal")
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
COLUMNS = "x AS id, 'h' AS spec_hash, 'e' AS code_version, '' AS spec, '' AS reason, '' AS name"
REQUESTS = "INSERT INTO request SELECT 'n' || n, '{}', '' FROM many"
CRAFTED = (  # {t} is one of the tables
    f"DROP TABLE {{t}}; CREATE VIEW {{t}} AS SELECT {COLUMNS} FROM ({ENDLESS})",
    "CREATE TRIGGER t AFTER INSERT ON {t} BEGIN SELECT 1; END",
    "CREATE INDEX i ON {t} (created) WHERE created > ''",
    "CREATE INDEX i ON {t} (hex(zeroblob(length(created))))",
    "ALTER TABLE {t} ADD COLUMN more TEXT DEFAULT 'x'",
    "ALTER TABLE {t} ADD COLUMN more TEXT AS (hex(zeroblob(100000000)))",
    "ALTER TABLE {t} RENAME TO other",
    "CREATE TABLE more (a); CREATE VIRTUAL TABLE text USING fts5(a)",
    "DROP TABLE {t}",
    "DROP TRIGGER cell_once; DROP TRIGGER cell_kept; DELETE FROM {t}",
    "PRAGMA user_version = 99",
    "PRAGMA application_id = 1",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA journal_mode = DELETE; PRAGMA page_size = 512; VACUUM",
    "PRAGMA auto_vacuum = FULL; VACUUM",
    "UPDATE request SET name = 'survey'",
    "UPDATE request SET name = 'table9'",
    "INSERT INTO request SELECT 'survey', options, created FROM request LIMIT 1",
    "INSERT INTO request SELECT 'all', options, created FROM request LIMIT 1",
    "WITH RECURSIVE many(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many LIMIT 200000) " + REQUESTS,
    "WITH RECURSIVE many(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many LIMIT 200000)"
    " INSERT INTO equal SELECT code_version, n, '' FROM many, (SELECT code_version FROM cell LIMIT 1)",
    "WITH RECURSIVE many(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many LIMIT 500)"
    " INSERT INTO cell SELECT NULL, spec_hash || n, 'other', spec, networks, provenance, '', 1"
    " FROM many, (SELECT * FROM cell LIMIT 1)",
    *(
        f"PRAGMA writable_schema = ON; UPDATE sqlite_schema SET {change} WHERE name = '{{t}}'"
        for change in (
            *("rootpage = 1", "rootpage = 99999", "rootpage = rootpage + 1", "sql = NULL"),
            *("type = 'view'", "name = 'other'", "tbl_name = 'cell'", "sql = sql || ' '"),
            *("sql = replace(sql, 'TEXT', 'BLOB')", "sql = 'CREATE TABLE {t} (a)'"),
        )
    ),
)  # fmt: skip


def rows_changed(folder: Path, lottery: random.Random) -> None:
    """A part of the JSON in one row, or a value of another type, which its column forbids."""
    from tests.torture.files import other

    table = lottery.choice(("cell", "cell", "cell", "request"))
    columns = {"cell": ("spec", "networks", "networks", "provenance", "seconds", "created"),
               "request": ("options", "options", "name")}[table]  # fmt: skip
    column = lottery.choice(columns)
    with _without_rules(folder) as connection:
        rows = connection.execute(f"SELECT rowid, {column} FROM {table} ORDER BY rowid").fetchall()
        number, value = lottery.choice(rows)
        if str(value)[:1] in "[{" and lottery.random() < 0.9:
            value = other(value, lottery)
        else:
            value = lottery.choice(STRANGE)
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, number))


def rows_longer(folder: Path, lottery: random.Random) -> None:
    """Curves, networks or texts of a row that are much longer than anything we store."""
    how = lottery.choice(("curves", "networks", "spec", "provenance", "points"))
    times = lottery.choice((10, 1000, 10_000))
    with _without_rules(folder) as connection:
        number, *texts = lottery.choice(
            connection.execute("SELECT id, spec, networks, provenance FROM cell").fetchall()
        )
        spec, networks, provenance = map(json.loads, texts)
        if how == "networks":
            networks *= times
        elif how == "spec":
            spec["seeds"] = [*range(times)]
        elif how == "provenance":
            provenance["notes"] = [f"<b>note {i}" for i in range(times)]
        for network in networks if how in ("curves", "points") else ():
            for metric, points in network["curve"].items():
                if how == "curves" or metric == "mse":
                    network["curve"][metric] = points * times
        connection.execute(
            "UPDATE cell SET spec = ?, networks = ?, provenance = ? WHERE id = ?",
            (*map(json.dumps, (spec, networks, provenance)), number),
        )


def schema_crafted(folder: Path, lottery: random.Random) -> None:
    """What somebody who knows SQL may put into the file."""
    script = lottery.choice(CRAFTED).replace("{t}", lottery.choice(TABLES))
    with (
        closing(sqlite3.connect(folder / NAME, isolation_level=None)) as connection,
        contextlib.suppress(sqlite3.Error),  # not every SQLite can do everything
    ):
        connection.executescript(script)


def beside(folder: Path, lottery: random.Random) -> None:
    """A log or a journal that belongs to another file, or to none."""
    name = NAME + lottery.choice(("-wal", "-journal", "-shm"))
    whole = (folder / NAME).read_bytes()
    magic = bytes.fromhex("d9d505f920a163d7" if "journal" in name else "377f0682002de218")
    body = lottery.choice((b"", whole[:32], whole, lottery.randbytes(5000)))
    (folder / name).write_bytes(lottery.choice((magic, b"")) + body)


def links(folder: Path, lottery: random.Random) -> None:
    """Something else in place of one of the files and directories."""
    from tests.torture.files import link

    path = lottery.choice(sorted(folder.rglob("*")))
    if path.is_dir():
        shutil.rmtree(path)
        path.touch()
    link(path, lottery)


@contextlib.contextmanager
def _without_rules(folder: Path) -> Iterator[sqlite3.Connection]:
    """The store while its columns take any type, and its rows may change; the rules come back."""
    path = folder / NAME
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        rules = connection.execute("SELECT sql, name FROM sqlite_schema WHERE sql <> ''").fetchall()
        connection.executescript(
            "PRAGMA journal_mode = DELETE; PRAGMA writable_schema = ON; DROP TRIGGER cell_once;"
            " UPDATE sqlite_schema SET sql = replace(replace(sql, ' NOT NULL', ''), 'STRICT', '')"
        )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection
        connection.execute("PRAGMA writable_schema = ON")
        connection.executemany("UPDATE sqlite_schema SET sql = ? WHERE name = ?", rules)
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
        contextlib.suppress(sqlite3.Error),  # of a file that is no longer whole
    ):
        connection.execute(next(sql for sql, name in rules if name == "cell_once"))


def make(folder: Path) -> None:
    """A small study of ours, with tables and figures."""
    from tests.torture.kills import STUDY

    words = [*STUDY, "fig-curves", "--workers", "inline", "--out", str(folder)]
    code, _, said = _command(words)
    demand(code == 0, f"the study itself fails: {said}")


def report(folder: Path) -> str:
    """What the command writes and says about a store, and all rows of it; the file stays."""
    from rlploss.lab import store

    store.LONGEST = SECONDS
    before, answer = _bytes(folder / NAME), ""
    for words in (["report", str(folder)], ["report", str(folder), "--csv"]):
        code, shown, said = _command(words)
        if code == 1 and "not enough memory" in said:
            raise MemoryError
        if code == 2:
            demand(_bytes(folder / NAME) == before, f"a refused file was changed: {said:.300}")
            raise ValueError(said.removeprefix("rlploss: ").removesuffix("\n"))
        demand(code == 0, f"exit code {code}: {said:.300}")
        demand(not said, f"said beside the answer: {said:.300}")
        answer += shown
    written = (path for path in sorted(folder.rglob("*.[cs]*[vg]")) if path.is_file())
    return answer + "".join(path.read_text() for path in written)


def _command(words: list[str]) -> tuple[object, str, str]:
    from rlploss import cli

    shown, said, code = io.StringIO(), io.StringIO(), None
    sys.argv = ["rlploss", *words]
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(said):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    return code, shown.getvalue(), said.getvalue()


def _bytes(path: Path) -> object:
    """The content; what the system says of it, where there is too much or nothing to be read."""
    if path.is_file() and path.stat().st_size < 10**8:
        return path.read_bytes()
    return os.stat_result(path.lstat())[:7] if os.path.lexists(path) else None


CHANGES: tuple[Callable[[Path, random.Random], None], ...] = (
    *(rows_changed, rows_changed, rows_changed, rows_longer),
    *(schema_crafted, schema_crafted, beside, links),
)
