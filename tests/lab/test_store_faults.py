"""The command line and its store under faults: one sentence, an exit code, and nothing of what was
there damaged."""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from tests.lab import stub
from tests.torture.forks import Call, Forker, command
from tests.torture.kills import stored, study, tables

from rlploss._files import write_text
from rlploss.lab import store as store_module
from rlploss.lab.executors import parse_workers
from rlploss.lab.run import execute, plan
from rlploss.lab.store import Store, StoreError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="forks, signals and limits of POSIX")
NOBODY = 65534
ROOT_ONLY = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may mount, and become another user"
)


@pytest.fixture(scope="module")
def forker():
    with Forker() as running:
        yield running


@pytest.fixture(scope="module")
def finished(forker, tmp_path_factory):
    """A study that nothing befell; copy it, do not write to it."""
    out = tmp_path_factory.mktemp("finished") / "out"
    done = forker.cli(study(out))
    assert done.code == 0, done.err
    return out


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "out"))


def bytes_of(folder):
    """Every file with the digest of its content; the lock file carries no data."""
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def one_sentence(done, pattern, code=2):
    assert done.code == code, (done.code, done.err, done.out[-500:])
    assert done.err.startswith("rlploss: ")
    assert done.err.count("\n") == 1, done.err
    assert re.search(pattern, done.err), done.err
    assert "Traceback" not in done.out


# Full disks


def small_disk(folder, kilobytes):
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)],
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("no tmpfs can be mounted here")


@ROOT_ONLY
def test_a_full_disk_loses_nothing_and_the_study_goes_on_when_there_is_room(
    forker, finished, tmp_path
):
    """From no room at all to almost enough: the lock, the store, its log, the tables and the page
    each fail once."""
    disk = tmp_path / "disk"
    small_disk(disk, 4)
    out = disk / "out"
    done, told = None, set()
    try:
        before = {}
        for kilobytes in (4, 24, 60, 100, 180, 260, 4096):
            subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(disk)], check=True)
            done = forker.cli(study(out))
            after = stored(out)
            assert before.items() <= after.items()
            before = after
            if done.code == 0:
                break
            one_sentence(done, "rlploss: cannot (use|create)")
            told.add(re.sub(r"\S*/", "", done.err))
        assert done.code == 0
        assert len(told) > 1, told
        assert after == stored(finished)
        assert tables(out) == tables(finished)
        assert not [path for path in out.rglob(".*") if path.name != ".lock"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("limit", [0, 20_000, 60_000])
def test_files_that_may_not_grow(forker, finished, copy, tmp_path, limit):
    """A quota stops a new study with one sentence, and leaves a finished one as it was."""
    one_sentence(forker.cli(study(tmp_path / "new"), file_limit=limit), "cannot use .*new")
    assert stored(tmp_path / "new").items() <= stored(finished).items()
    before = bytes_of(copy / "tables")
    done = forker.cli([*study(copy), "--arms", "mse"], file_limit=limit)
    if limit < 60_000:  # which is enough to render a report
        one_sentence(done, "cannot use")
    assert stored(copy) == stored(finished)
    assert bytes_of(copy / "tables").keys() == before.keys()
    assert forker.cli(study(copy)).code == 0
    assert tables(copy) == tables(finished)


def test_output_that_cannot_be_written(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from rlploss.cli import main; main()", "data", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("rlploss: cannot write what is shown (No space left on device)")
    assert done.stderr.count("\n") == 1


# Directories that may not be written to


def as_somebody_else(**more):
    """Root may write everywhere, so the command runs as another user."""
    return {"uid": NOBODY, **more} if os.geteuid() == 0 else more


def reachable(path):
    """Let another user reach the directory."""
    for folder in (path, *path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)


@pytest.mark.parametrize("what", ["new directory below", "directory", "file", "tables"])
def test_a_read_only_directory(forker, finished, copy, what):
    reachable(copy)
    writable = [copy, copy / "tables", *copy.rglob("*")]
    if what == "file":
        for path in writable:
            path.chmod(0o777)
        copy.joinpath("runs.sqlite").chmod(0o444)
    elif what == "tables":
        for path in writable:
            path.chmod(0o777)
        copy.joinpath("tables").chmod(0o555)
    else:
        copy.chmod(0o555)
    before = bytes_of(copy)
    # A copy of the engine's rows is complete: `report` writes pages only, `reproduce` writes to the
    # store first.
    words = {
        "new directory below": study(copy / "new"),
        "directory": study(copy),
        "file": study(copy),
        "tables": ["report", str(copy)],
    }[what]
    pattern = {
        "new directory below": (
            r"cannot create .*new \(Permission denied\); .* or choose a directory you may write to"
        ),
        "directory": (
            r"cannot lock .*\(Permission denied\); check that .*, or choose a directory you may"
            r" write to"
        ),
        "file": r"cannot use .*runs\.sqlite \(attempt to write a readonly database\); check that",
        "tables": (
            r"cannot use .*tables.* \(Permission denied\); check that it is there, that you may"
            r" write"
        ),
    }[what]
    try:
        one_sentence(forker.cli(words, **as_somebody_else()), pattern)
        assert before.items() <= bytes_of(copy).items()  # SQLite may leave an empty log
    finally:
        for path in (copy, copy / "tables"):
            path.chmod(0o755)
    assert stored(copy) == stored(finished)


# Files that are not what they should be


TRIGGER = next(line for line in store_module.TABLES.splitlines() if "cell_once" in line)


def change(connection, metric, how):
    """Change a curve of every network, as somebody might who knows SQL; None takes it away."""
    connection.execute("DROP TRIGGER cell_once")
    for number, text in connection.execute("SELECT id, networks FROM cell").fetchall():
        networks = json.loads(text)
        for curve in (network["curve"] for network in networks):
            points = curve.pop(metric, None)
            if how is not None and points is not None:
                curve[metric] = how(points)
        row = (json.dumps(networks), number)
        connection.execute("UPDATE cell SET networks = ? WHERE id = ?", row)
    connection.execute(TRIGGER)


def damage(path, kind):
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif kind == "foreign":
        path.unlink()
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE photographs (a)")
        connection.close()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "no text in the schema":
        path.write_bytes(
            path.read_bytes().replace(b"CREATE TABLE failure (", b"CREATE \xffABLE failure (")
        )
    elif kind == "overwritten":
        data = bytearray(path.read_bytes())
        data[4096:8192] = os.urandom(4096)
        path.write_bytes(data)
    else:
        number = {"older": 0, "newer": store_module.SCHEMA + 1}.get(kind)
        connection = sqlite3.connect(path, isolation_level=None)
        if number is not None:
            connection.execute(f"PRAGMA user_version = {number}")
        elif kind == "no tables":
            connection.executescript("DROP TABLE failure; DROP TABLE request;")
        elif kind == "request":
            connection.execute("UPDATE request SET options = '[1, 2'")
        elif kind == "options":
            connection.execute("""UPDATE request SET options = '{"scale": "smoke"}'""")
        elif kind == "scale":
            connection.execute("UPDATE request SET options = replace(options, 'smoke', 'large')")
        elif kind == "survey":
            connection.execute("UPDATE request SET name = 'survey'")
        elif kind == "no text":
            connection.execute("UPDATE request SET options = CAST(x'7bff7d' AS TEXT)")
        elif kind == "another journal":
            connection.executescript("PRAGMA journal_mode = DELETE; DELETE FROM request;")
        elif kind == "rows":
            change(connection, "mse", lambda points: 7)
        elif kind == "no curve":
            change(connection, "mse", None)
        elif kind == "short curve":
            change(connection, "mse", lambda points: points[:-1])
        elif kind == "no points":
            for metric in ("mse", "step", "epoch", "samples", "seconds", "loss", "rlp"):
                change(connection, metric, lambda points: [])
        elif kind == "words":
            change(connection, "mse", lambda points: ["much"] * len(points))
        elif kind == "huge":
            change(connection, "mse", lambda points: [10**400] * len(points))
        elif kind == "renamed":
            connection.execute("UPDATE request SET name = 'table9'")
        elif kind == "provenance":
            connection.execute("DROP TRIGGER cell_once")
            connection.execute("UPDATE cell SET provenance = replace(provenance, 'processor', 'p')")
            connection.execute(TRIGGER)
        connection.close()


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("truncated", "is damaged or truncated .*the file is left as it is"),
        ("overwritten", "is damaged or truncated .*the file is left as it is"),
        (
            "foreign",
            "is empty or of another program; move it away or choose another directory, the file is",
        ),
        ("empty", "is empty or of another program; .*the file is left as it is"),
        ("no text", r"is damaged or truncated \(Could not decode to UTF-8 column 'options'"),
        ("no text in the schema", r"is damaged or truncated \('utf-8' codec can't decode byte"),
        ("another journal", "holds nothing of the paper to render"),
        ("older", "has schema version 0, an older one .*the file is left as it is"),
        ("newer", "has schema version 4, a newer one .*the file is left as it is"),
        ("no tables", r"is damaged or truncated \(no such table: request\); .*left as it is"),
        *(
            (kind, r"is damaged or truncated \(cell .* cannot be read, .*left as it is")
            for kind in ("short curve", "no points", "words", "huge")
        ),
        ("renamed", "holds nothing of the paper to render"),
        ("provenance", r"is damaged or truncated \(what a table .* cannot be read, KeyError: 'p"),
        ("no curve", r"is damaged or truncated \(cell .* it is not whole\); .*left as it is"),
        (
            "request",
            (
                r"is damaged or truncated \(a request cannot be read, .*the file is left as"
                r" it is"
            ),
        ),
        ("options", r"is damaged .*\(a request cannot be read, KeyError: 'datasets'\); .*left as"),
        ("scale", r"is damaged .*\(a request cannot be read, ValueError: scale must be one of"),
        ("survey", r"is damaged .*\(a request cannot be read, KeyError: 'tables'\); .*left as it"),
        ("rows", r"is damaged or truncated \(cell .* cannot be read, .*the file is left as it is"),
    ],
)
def test_a_store_that_is_not_ours_or_not_whole(forker, copy, kind, pattern):
    damage(copy / "runs.sqlite", kind)
    before = bytes_of(copy)
    one_sentence(forker.cli(["report", str(copy)]), pattern)
    assert bytes_of(copy) == before
    if kind in ("truncated", "overwritten", "foreign", "older", "newer"):
        one_sentence(forker.cli(study(copy)), pattern)
        assert bytes_of(copy) == before


HANGING = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
COLUMNS = "x AS id, 'h' AS spec_hash, 'e' AS code_version, '' AS spec, '' AS reason, '' AS name"


@pytest.mark.parametrize("table", ["cell", "failure", "request", "equal"])
@pytest.mark.parametrize("how", ["view", "trigger", "index", "column", "more"])
def test_a_crafted_store_is_refused_before_it_is_asked_anything(forker, copy, table, how):
    """A view in place of a table never ends; no query reaches what others put into a schema."""
    connection = sqlite3.connect(copy / "runs.sqlite", isolation_level=None)
    connection.executescript(
        {
            "view": f"DROP TABLE {table}; CREATE VIEW {table} AS SELECT {COLUMNS} FROM ({HANGING})",
            "trigger": f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN SELECT 1; END",
            "index": f"CREATE INDEX i ON {table} (created) WHERE created > ''",
            "column": f"ALTER TABLE {table} ADD COLUMN more TEXT DEFAULT 'x'",
            "more": "CREATE TABLE more (a)",
        }[how]
    )
    connection.close()
    before = bytes_of(copy)
    for words in (["report", str(copy)], ["report", str(copy), "--csv"], study(copy)):
        done = forker.cli(words)
        one_sentence(done, "has tables that rlploss does not create; .*the file is left as it is")
        assert done.seconds < 10
    assert bytes_of(copy) == before


def test_a_query_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "LONGEST", 0.3)
    with Store(tmp_path, code_version="e") as store:
        with pytest.raises(StoreError, match=r"damaged .*\(a query took longer than 0.3 s\)"):
            store._rows(f"SELECT COUNT(*) FROM ({HANGING})")
        time.sleep(0.4)
        assert store.requests() == {}  # each query has its own time


def test_a_value_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "LARGEST", 50_000)
    with Store(tmp_path, code_version="e") as store:
        with pytest.raises(StoreError, match="too big"):
            store.write_request("table1", {"a": "x" * 60_000})
        assert store.requests() == {}


# Links that lead out of a results directory


@pytest.mark.parametrize(
    "name",
    [
        *("runs.sqlite", "runs.sqlite-wal", "runs.sqlite-shm", "runs.sqlite-journal", ".lock"),
        *("tables", "figures", "report.html", "tables/table1.csv", "rows.csv", "new"),
    ],
)
@pytest.mark.parametrize("there", [True, False], ids=["to something", "to nothing"])
def test_nothing_is_written_through_a_link(forker, copy, tmp_path, name, there):
    """Whatever in a results directory is a link out of it: nobody follows it, whoever writes."""
    outside = tmp_path / "outside"
    outside.mkdir()
    link, target = copy / name, outside / ("precious" if there else "nothing")
    if link.is_dir():
        shutil.rmtree(link)
        target.mkdir() if there else None
    else:
        link.unlink(missing_ok=True)
        target.write_text("precious") if there else None
    link.symlink_to(target)
    before = bytes_of(outside)
    for words in (["report", str(copy)], ["report", str(copy), "--csv"], study(copy)):
        one_sentence(forker.cli(words), "is a link out of the directory, to .*; remove it, since")
    assert bytes_of(outside) == before
    assert [path.name for path in outside.iterdir()] == ["precious"] * there


def test_links_inside_and_the_directory_itself_may_be_links(forker, copy, tmp_path):
    (tmp_path / "link").symlink_to(copy)
    (copy / "also").symlink_to(copy / "tables")
    (copy / "loop").symlink_to(copy / "loop")
    assert forker.cli(["report", str(tmp_path / "link")]).code == 0


@pytest.mark.parametrize("value", [math.nan, 1e308, 0.0, -1.0])
def test_rows_that_are_no_good_numbers_are_shown_without_a_word_of_numpy(forker, copy, value):
    connection = sqlite3.connect(copy / "runs.sqlite", isolation_level=None)
    value = None if math.isnan(value) else value
    change(connection, "mse", lambda points: [value] * len(points))
    connection.close()
    done = forker.cli(["report", str(copy)])
    assert (done.code, done.err) == (0, "")
    assert "Warning" not in done.out


WARNS = """
import sys, warnings
from rlploss import cli
cli.run = lambda: warnings.warn("one\\n\\x1b[2Jthing")
sys.argv = ["rlploss"]
cli.main()
"""


def test_a_warning_is_one_line_without_a_line_of_source():
    done = subprocess.run([sys.executable, "-c", WARNS], capture_output=True, text=True)
    assert done.stderr == "Warning: one \ufffd[2Jthing\n"


def test_what_takes_the_place_of_the_store_and_is_no_file(forker, copy):
    for make in (os.mkfifo, os.mkdir):
        path = copy / "runs.sqlite"
        path.unlink() if path.exists() else None
        make(path)
        done = forker.cli(["report", str(copy)])
        one_sentence(done, "cannot use .*runs.sqlite")
        assert done.seconds < 10
        path.unlink() if make is os.mkfifo else path.rmdir()


def test_what_takes_the_place_of_a_table_and_is_no_file(forker, copy):
    """The store is not to blame."""
    before = bytes_of(copy)
    (copy / "tables" / "table1.csv").unlink()
    os.mkfifo(copy / "tables" / "table1.csv")
    one_sentence(
        forker.cli(["report", str(copy)]), r"rlploss: \S+/table1.csv is no plain file; choose"
    )
    assert bytes_of(copy).items() <= before.items()


def test_a_store_keeps_its_log(tmp_path):
    """A new one has a write-ahead log; one that somebody wrote without stays as it is."""
    for mode in ("wal", "delete"):
        with Store(tmp_path, code_version="e") as store:
            assert store._rows("PRAGMA journal_mode") == [(mode,)]
            assert store._rows("PRAGMA synchronous") == [(2,)]  # FULL
            store._rows("PRAGMA journal_mode = DELETE")


def test_a_device_is_no_place_for_a_file(tmp_path):
    with pytest.raises(OSError, match="null is no plain file; choose another name"):
        write_text(Path(os.devnull), "x")
    assert not Path(os.devnull).is_file()


def test_what_other_versions_have_stored_does_not_disturb(tmp_path):
    """Specs that this version cannot read are no reason to stop: only estimates ask for them."""
    with Store(tmp_path, code_version="e") as store:
        store.write(stub.cell(), stub.train(stub.cell(), lambda fraction: None))
        columns = (
            "INSERT INTO cell (spec_hash, code_version, spec, networks, provenance, created,"
            " seconds) VALUES"
        )
        for number, spec in enumerate(("{", "[]", "7", '{"objective": "mse"}', "[" * 100_000)):
            store._connection.execute(
                f"{columns} (?, 'other', ?, '', '', '', 1)", (f"h{number}", spec)
            )
        assert [cell.hash for cell, _ in store.costs()] == [stub.cell().hash]
        assert (
            plan(
                [stub.cell()], store, cost=lambda cell: 1.0, workers=parse_workers("inline")
            ).stored
            == 1
        )


def test_a_process_killed_while_it_committed_the_tables_leaves_a_directory_that_can_be_used(
    tmp_path,
):
    """The tables are in the file, and beside it is the journal that says they were not there:
    SQLite undoes them."""
    path = tmp_path / "runs.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(f"BEGIN; {store_module.TABLES} COMMIT;")
    connection.close()
    magic, records, nonce, pages, sector, page = (
        bytes.fromhex("d9d505f920a163d7"),
        0,
        7,
        0,
        512,
        4096,
    )
    journal = magic + struct.pack(">5I", records, nonce, pages, sector, page)
    (tmp_path / "runs.sqlite-journal").write_bytes(journal.ljust(sector, b"\0"))
    with Store(tmp_path, code_version="e") as store:
        assert store.requests() == {}
        store.write(stub.cell(), stub.train(stub.cell(), lambda fraction: None))
    assert len(stored(tmp_path)) == 1


def test_compare_and_reproduce_do_not_share_a_directory(forker, copy, tmp_path):
    rng = np.random.default_rng(0)
    pd.DataFrame({"a": rng.normal(size=30), "y": rng.normal(size=30)}).to_csv(tmp_path / "t.csv")
    words = ["compare", str(tmp_path / "t.csv"), "--target", "y", "--splits", "2", "--steps", "5"]
    words += ["--arms", "mse,mean", "--workers", "inline", "--out"]
    before = bytes_of(copy)
    one_sentence(forker.cli([*words, str(copy)]), "holds what `rlploss reproduce` made")
    assert bytes_of(copy) == before
    theirs = tmp_path / "theirs"
    assert forker.cli([*words, str(theirs)]).code == 0
    before = bytes_of(theirs)
    one_sentence(forker.cli(study(theirs)), "holds what `rlploss compare` made")
    assert bytes_of(theirs) == before


# Two drivers at once


def test_two_drivers_at_once(forker, finished, tmp_path):
    out = tmp_path / "out"
    both = forker.run(command(study(out)), command(study(out)))
    first, second = sorted(both, key=lambda done: done.code)
    assert first.code == 0, first.err
    one_sentence(
        second,
        r"another rlploss( \(process \d+\))? is working in .*; wait for it or choose another",
    )
    assert stored(out) == stored(finished)
    assert tables(out) == tables(finished)


# Clocks


@pytest.mark.parametrize("jump", [-40 * 365, -1, 1, 5000 * 365], ids=lambda days: f"{days} days")
def test_a_clock_that_jumps(tmp_path, monkeypatch, jump):
    """The date is a remark on a row and decides nothing; what is timed is timed by a clock that
    cannot be set."""
    cells = [stub.cell(rate=rate / 10) for rate in range(1, 7)]

    class Jumping(datetime.datetime):
        calls = 0

        @classmethod
        def now(cls, tz=None):
            Jumping.calls += 1
            return datetime.datetime(2030, 1, 1, tzinfo=tz) + datetime.timedelta(
                days=(Jumping.calls % 2) * jump
            )

    def run(out):
        text = io.StringIO()
        with Store(out, code_version="e") as store:
            store.write_request("b", {})
            todo = plan(cells, store, cost=lambda cell: 1.0, workers=parse_workers("inline"))
            done = execute(
                todo,
                store,
                train=stub.train,
                workers=parse_workers("inline"),
                console=Console(file=text),
            )
            store.write_request("a", {})
            assert done.trained == 6
            assert 0 <= done.seconds < 60
            assert list(store.requests()) == ["b", "a"]
            assert not re.search(r"-\d+ s|nan", text.getvalue())
        return stored(out)

    straight = run(tmp_path / "straight")
    monkeypatch.setattr(store_module, "datetime", Jumping)
    monkeypatch.setattr("time.time", lambda: 0.0 if Jumping.calls % 2 else 2e9)
    assert run(tmp_path / "jumping") == straight
    assert Jumping.calls > 6


# Ctrl-C


def table_file(folder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c d"])
    frame.to_csv(folder / "my table.csv", index=False)
    words = [
        "compare",
        "my table.csv",
        "--target",
        "c d",
        "--splits",
        "4",
        "--steps",
        "30",
        "--out",
        "an out",
    ]
    return [*words, "--arms", "mse,huber,rlp,mean"]


@pytest.mark.parametrize("workers", ["inline", "local:2"])
@pytest.mark.parametrize("which", ["reproduce", "compare"])
def test_ctrl_c_stops_soon_and_prints_the_command_that_resumes(
    forker, finished, tmp_path, which, workers
):
    words = study(Path("an out")) if which == "reproduce" else table_file(tmp_path)
    words = [*words, "--workers", workers]
    # With processes: while they start and import, when Ctrl-C reaches them too; without: in the
    # middle of a cell.
    when = (
        r"(?m)^ *\d+% \[2/" if workers == "inline" else r"cells: 8 to train|arms × 4 splits: about"
    )
    pause = 0.05 if workers == "inline" else 0.4
    done = forker.cli(
        words,
        cwd=str(tmp_path),
        signal_number=signal.SIGINT,
        after_text=when,
        after_seconds=pause,
        to_group=True,
    )
    assert done.stopping < 10, "Ctrl-C must stop it within about two seconds"
    if which == "compare":  # whose progress goes to stderr
        done = replace(done, err=done.err.splitlines(keepends=True)[-1])
    one_sentence(done, r"stopped; .*this goes on: rlploss \w+ ", code=130)
    if workers == "local:2":
        return
    before = stored(tmp_path / "an out")
    assert len(before) >= 2
    resume = shlex.split(done.err.partition("this goes on: rlploss ")[2])
    done = forker.cli([*resume, "--workers", "inline"], cwd=str(tmp_path))
    assert done.code == 0, done.err
    assert before.items() <= stored(tmp_path / "an out").items()
    if which == "reproduce":
        assert tables(tmp_path / "an out") == tables(finished)


def test_ctrl_c_anywhere_else_is_one_word(forker):
    done = forker.run(
        Call("tests.torture.work:interrupted", {"words": ["data", "list"]}),
        Call("tests.torture.work:interrupted", {"words": ["data", "get", "wine"]}),
    )
    one_sentence(done[0], "^rlploss: stopped\n$", code=130)
    one_sentence(done[1], "^rlploss: stopped; this goes on: rlploss data get wine\n$", code=130)


ENDING = """
import atexit, sys, time
from rlploss import cli
atexit.register(lambda: (print("ending", flush=True), time.sleep(20)))
cli.main()
"""


def test_ctrl_c_at_the_very_end_of_a_study_is_no_success(copy):
    """While Python ends it swallows Ctrl-C, and the code would be 0."""
    done = subprocess.Popen(
        [sys.executable, "-c", ENDING, *study(copy)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while done.stdout.readline() != "ending\n":
        pass
    done.send_signal(signal.SIGINT)
    _, said = done.communicate(timeout=10)
    assert (done.returncode, said) == (130, "")


@pytest.mark.parametrize("which", ["reproduce", "compare"])
def test_a_directory_that_is_removed_while_a_command_works_in_it(forker, tmp_path, which):
    """Its rows are lost: that is told, and nothing takes the place of what was there."""
    words = study(Path("an out")) if which == "reproduce" else table_file(tmp_path)
    when = r"(?m)^ *\d+% \[1/"
    call = {"words": [*words, "--workers", "inline"], "folder": "an out", "pattern": when}
    (done,) = forker.run(Call("tests.torture.work:loses_its_directory", call, cwd=str(tmp_path)))
    done = replace(done, err=done.err.splitlines(keepends=True)[-1])
    one_sentence(done, "^rlploss: an out was removed while rlploss worked in it, .* command again$")
    assert not (tmp_path / "an out").exists()


def test_a_mistake_of_ours_is_one_sentence_too(forker):
    calls = [Call("tests.torture.work:mistaken", {"words": ["data", "list"]}, environment=e)
             for e in ({}, {"RLPLOSS_TRACEBACK": "1"})]  # fmt: skip
    short, long = forker.run(*calls)
    one_sentence(
        short, r"a mistake in rlploss itself \(KeyError: 'oh'\); report it with what", code=1
    )
    assert "Traceback" in long.err


# Files that are written beside the store


def test_what_killed_writers_left_is_swept_and_what_others_write_is_not(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = [tmp_path / f".page.html.{dead.pid}-ab.part", tmp_path / f".page.html.{os.getpid()}-cd.part",
            tmp_path / ".page.html.mine", tmp_path / f".other.html.{dead.pid}-ab.part"]  # fmt: skip
    for path in left:
        path.write_text("half")
    write_text(tmp_path / "page.html", "whole")
    assert [path.exists() for path in left] == [False, True, True, True]
    assert (tmp_path / "page.html").read_text() == "whole"


def test_a_lock_that_cannot_be_signed_still_locks(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with (
        Store(tmp_path, code_version="e"),
        pytest.raises(StoreError, match="another rlploss is working in"),
    ):
        Store(tmp_path, code_version="e")


# Twenty kills


@pytest.mark.slow
def test_twenty_kills_of_a_study_and_of_fit(forker):
    from tests.torture.kills import kill_fit, kill_study

    assert kill_study(forker, 20, seed=1).cases == 20
    assert kill_fit(forker, 20, seed=1).cases == 20


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_kills_of_a_study_with_processes_and_of_its_processes(forker):
    from tests.torture.kills import kill_study, kill_workers

    assert kill_study(forker, 20, seed=1, workers="local:2").cases == 20
    assert kill_workers(forker, 20, seed=1).cases >= 20
