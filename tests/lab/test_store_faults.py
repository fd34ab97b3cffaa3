"""The command line and its store under faults: one sentence, an exit code, and nothing of what was there damaged."""

from __future__ import annotations

import datetime
import hashlib
import io
import os
import re
import shlex
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
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
from rlploss.lab.run import execute, plan
from rlploss.lab.store import Store, StoreError
from rlploss.lab.workers import Inline

pytestmark = pytest.mark.skipif(os.name != "posix", reason="forks, signals and limits of POSIX")
NOBODY = 65534
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount, and become another user")


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
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], capture_output=True
    )
    if made.returncode:
        pytest.skip("no tmpfs can be mounted here")


@ROOT_ONLY
def test_a_full_disk_loses_nothing_and_the_study_goes_on_when_there_is_room(forker, finished, tmp_path):
    """From no room at all to almost enough: the lock, the store, its log, the tables and the page each fail once."""
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
    assert done.stderr.startswith("rlploss: cannot go on (No space left on device)")
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
    # A copy of the engine's rows is complete: `report` writes pages only, `reproduce` writes to the store first.
    words = {
        "new directory below": study(copy / "new"),
        "directory": study(copy),
        "file": study(copy),
        "tables": ["report", str(copy)],
    }[what]
    pattern = {
        "new directory below": r"cannot create .*new \(Permission denied\); .* or choose a directory you may write to",
        "directory": r"cannot lock .*\(Permission denied\); check that .*, or choose a directory you may write to",
        "file": r"cannot use .*runs\.sqlite \(attempt to write a readonly database\); check that",
        "tables": r"cannot use .*tables.* \(Permission denied\); check that it is there, that you may write",
    }[what]
    try:
        one_sentence(forker.cli(words, **as_somebody_else()), pattern)
        assert before.items() <= bytes_of(copy).items()  # SQLite may leave an empty log
    finally:
        for path in (copy, copy / "tables"):
            path.chmod(0o755)
    assert stored(copy) == stored(finished)


# Files that are not what they should be


def damage(path, kind):
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif kind == "foreign":
        path.unlink()
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE photographs (a)")
        connection.close()
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
            connection.executescript("DROP TABLE artifact; DROP TABLE request;")
        elif kind == "request":
            connection.execute("UPDATE request SET options = '[1, 2'")
        elif kind == "options":
            connection.execute("""UPDATE request SET options = '{"scale": "smoke"}'""")
        elif kind == "rows":
            connection.execute("DROP TRIGGER network_once")
            connection.execute("UPDATE network SET curve = '{\"mse\": 7}'")
        connection.close()


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("truncated", "is damaged or truncated .*the file is left as it is"),
        ("overwritten", "is damaged or truncated .*the file is left as it is"),
        ("foreign", "is a SQLite file of another program; move it away or choose another directory"),
        ("older", "has schema version 0, an older one .*the file is left as it is"),
        ("newer", "has schema version 3, a newer one .*the file is left as it is"),
        ("no tables", "cannot use .*no such table"),
        ("request", r"is damaged or truncated \(request 'table1' cannot be read, .*the file is left as it is"),
        ("options", "a stored request must have a scale, a budget, seeds, datasets and arms, got"),
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


def test_what_other_versions_have_stored_does_not_disturb(tmp_path):
    """Specs that this version cannot read are no reason to stop: only estimates ask for them."""
    with Store(tmp_path, code_version="e") as store:
        store.write(stub.cell(), stub.train(stub.cell(), lambda fraction: None))
        columns = "INSERT INTO cell (spec_hash, code_version, spec, provenance, created, seconds) VALUES"
        for number, spec in enumerate(("{", "[]", "7", '{"objective": "mse"}', "[" * 100_000)):
            store._connection.execute(f"{columns} (?, 'other', ?, '', '', 1)", (f"h{number}", spec))
        assert [cell.hash for cell, _ in store.costs()] == [stub.cell().hash]
        assert plan([stub.cell()], store, cost=lambda cell: 1.0, workers=Inline()).stored == 1


def test_a_process_killed_while_it_committed_the_tables_leaves_a_directory_that_can_be_used(tmp_path):
    """The tables are in the file, and beside it is the journal that says they were not there: SQLite undoes them."""
    path = tmp_path / "runs.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(f"BEGIN; {store_module.TABLES} COMMIT;")
    connection.close()
    magic, records, nonce, pages, sector, page = bytes.fromhex("d9d505f920a163d7"), 0, 7, 0, 512, 4096
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
    one_sentence(second, r"another rlploss( \(process \d+\))? is working in .*; wait for it or choose another")
    assert stored(out) == stored(finished)
    assert tables(out) == tables(finished)


# Clocks


@pytest.mark.parametrize("jump", [-40 * 365, -1, 1, 5000 * 365], ids=lambda days: f"{days} days")
def test_a_clock_that_jumps(tmp_path, monkeypatch, jump):
    """The date is a remark on a row and decides nothing; what is timed is timed by a clock that cannot be set."""
    cells = [stub.cell(rate=rate / 10) for rate in range(1, 7)]

    class Jumping(datetime.datetime):
        calls = 0

        @classmethod
        def now(cls, tz=None):
            Jumping.calls += 1
            return datetime.datetime(2030, 1, 1, tzinfo=tz) + datetime.timedelta(days=(Jumping.calls % 2) * jump)

    def run(out):
        text = io.StringIO()
        with Store(out, code_version="e") as store:
            store.write_request("b", {})
            todo = plan(cells, store, cost=lambda cell: 1.0, workers=Inline())
            done = execute(todo, store, train=stub.train, workers=Inline(), console=Console(file=text))
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
    words = ["compare", "my table.csv", "--target", "c d", "--splits", "4", "--steps", "30", "--out", "an out"]
    return [*words, "--arms", "mse,huber,rlp,mean"]


@pytest.mark.parametrize("workers", ["inline", "local:2"])
@pytest.mark.parametrize("which", ["reproduce", "compare"])
def test_ctrl_c_stops_soon_and_prints_the_command_that_resumes(forker, finished, tmp_path, which, workers):
    words = study(Path("an out")) if which == "reproduce" else table_file(tmp_path)
    words = [*words, "--workers", workers]
    # With processes: while they start and import, when Ctrl-C reaches them too; without: in the middle of a cell.
    when = r"(?m)^ *\d+% \[2/" if workers == "inline" else r"cells: 8 to train|arms × 4 splits: about"
    pause = 0.05 if workers == "inline" else 0.4
    done = forker.cli(
        words, cwd=str(tmp_path), signal_number=signal.SIGINT, after_text=when, after_seconds=pause, to_group=True
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


def test_a_mistake_of_ours_is_one_sentence_too(forker):
    calls = [Call("tests.torture.work:mistaken", {"words": ["data", "list"]}, environment=e)
             for e in ({}, {"RLPLOSS_TRACEBACK": "1"})]  # fmt: skip
    short, long = forker.run(*calls)
    one_sentence(short, r"a mistake in rlploss itself \(KeyError: 'oh'\); report it with what", code=1)
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
    with Store(tmp_path, code_version="e"), pytest.raises(StoreError, match="another rlploss is working in"):
        Store(tmp_path, code_version="e")


# Twenty kills


@pytest.mark.slow
def test_twenty_kills_of_a_study_and_of_fit(forker):
    from tests.torture.kills import kill_fit, kill_study

    assert kill_study(forker, 20, seed=1).cases == 20
    assert kill_fit(forker, 20, seed=1).cases == 20
