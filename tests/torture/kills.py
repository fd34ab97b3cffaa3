"""SIGKILL at random moments: of a real study through the command line, and of `fit` with
checkpoints."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import tempfile
from pathlib import Path

from tests.torture.forks import Call, Done, Forker
from tests.torture.summary import Line, Progress, demand

STUDY = ("reproduce", "table1", "--datasets", "linear", "--scale", "smoke", "--seeds", "2")
FIT = {"every": 3, "steps": 600}


def study(out: Path, workers: str = "inline") -> list[str]:
    """The command line of a small real study: 8 cells, 16 networks, three tables."""
    return [*STUDY, "--workers", workers, "--out", str(out)]


def tables(out: Path) -> dict[str, bytes]:
    """The CSV files of a report, without their columns of seconds, and without the table of
    seconds."""
    files = [path for path in sorted((out / "tables").glob("*.csv")) if path.stem != "time"]
    return {path.name: without_seconds(path.read_bytes()) for path in files}


def without_seconds(data: bytes) -> bytes:
    """A CSV file without the columns that time decides."""
    rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
    keep = [k for k, name in enumerate(rows[0]) if "seconds" not in name]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([[row[k] for k in keep] for row in rows])
    return buffer.getvalue().encode()


def stored(out: Path) -> dict[str, str]:
    """Every cell of a store with its rows as text; raises Broken if one is not whole. Reads a copy
    of the file."""
    if not (out / "runs.sqlite").exists() or (out / "runs.sqlite").stat().st_size == 0:
        return {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("runs.sqlite", "runs.sqlite-wal", "runs.sqlite-journal"):
            if (out / name).exists():
                shutil.copy(out / name, scratch)
        connection = sqlite3.connect(Path(scratch) / "runs.sqlite")
        try:
            return _cells(connection)
        finally:
            connection.close()


def _cells(connection: sqlite3.Connection) -> dict[str, str]:
    (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
    demand(verdict == "ok", f"the store is damaged: {verdict}")
    if connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone() == (0,):
        return {}  # killed before the first transaction
    found: dict[str, str] = {}
    for hash_, *texts in connection.execute("SELECT spec_hash, spec, networks FROM cell"):
        spec, networks = map(json.loads, texts)
        rows = [(n["variant"], n["seed"], n["curve"]) for n in networks]
        variants = spec["task"].get("variants", [None])
        wanted = sorted((v, s) for v in range(len(variants)) for s in spec["seeds"])
        demand(sorted(row[:2] for row in rows) == wanted, f"cell {hash_} is not whole: {rows}")
        demand(hash_ not in found, f"cell {hash_} is there twice")
        curves = [
            (v, s, {k: c for k, c in curve.items() if k != "seconds"}) for v, s, curve in rows
        ]
        found[hash_] = repr(sorted(curves, key=lambda row: row[:2]))
    return found


def told(done: Done) -> int:
    """How many cells the process said it had stored before it died."""
    return len(re.findall(r"^ *\d+% \[\d+/\d+\] ", done.out, re.M))


def kill_study(forker: Forker, n_kills: int, seed: int, workers: str = "inline") -> Line:
    """Kill studies until `n_kills` have died of it, resuming each until it ends; compare with one
    left alone."""
    lottery = random.Random(seed)
    progress = Progress(f"store, {workers}", n_kills)
    kills = studies = finished_early = most = 0
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        done = forker.cli(study(whole, workers))
        demand(done.code == 0, f"the study itself fails: {done.err}")
        reference, cells, span = tables(whole), stored(whole), done.seconds
        demand(len(cells) == 8 and len(reference) == 4, "the study is not the one this test knows")
        while kills < n_kills:
            out = Path(name) / f"study-{studies}"
            deaths = 0
            before: dict[str, str] = {}
            while True:
                # A study that has died eight times is left to end, so that the end is checked often
                # enough.
                kill = {
                    "signal_number": signal.SIGKILL,
                    "after_seconds": lottery.uniform(0, 0.8 * span),
                }
                may_die = kills < n_kills and deaths < 8
                done = forker.cli(study(out, workers), **(kill if may_die else {}))
                after = stored(out)
                _check_step(before, after, cells, done, out, reference)
                if done.code == -signal.SIGKILL:
                    kills, deaths, before = kills + 1, deaths + 1, after
                    progress.tell(kills, f" kills, {studies} studies ended")
                    continue
                demand(
                    done.code == 0,
                    f"exit code {done.code} after {deaths} kills: {done.err[-2000:]}",
                )
                break
            demand(after == cells, "the cells differ from those of the study that was left alone")
            demand(
                tables(out) == reference,
                "the tables differ from those of the study that was left alone",
            )
            left = [path.name for path in out.rglob(".*") if path.name != ".lock"]
            demand(not left, f"files of killed processes are left: {left}")
            finished_early += deaths == 0
            most = max(most, deaths)
            studies += 1
            shutil.rmtree(out)
    seen = f"{studies} studies, each ended with the same tables; up to {most} deaths of one"
    return Line("store", f"SIGKILL of a study ({workers})", kills, seen, progress.seconds)


def kill_workers(forker: Forker, n_kills: int, seed: int) -> Line:
    """Kill worker processes of studies at random moments, two in each, so that no cell can lose
    three; compare with one left alone."""
    lottery = random.Random(seed)
    progress = Progress("workers", n_kills)
    kills = studies = 0
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        done = forker.cli(study(whole))
        demand(done.code == 0, f"the study itself fails: {done.err}")
        reference, cells = tables(whole), stored(whole)
        while kills < n_kills:
            out = Path(name) / f"study-{studies}"
            moments = [lottery.uniform(0, 4.0) for _ in range(2)]
            call = {"words": study(out, "local:2"), "moments": moments}
            (done,) = forker.run(Call("tests.torture.work:loses_workers", call))
            demand(done.code == 0, f"exit code {done.code}: {done.err[-2000:]}")
            demand("failed" not in done.out, f"a cell has failed: {done.out[-2000:]}")
            demand(stored(out) == cells, "the cells differ from those of a study left alone")
            demand(tables(out) == reference, "the tables differ from those of a study left alone")
            kills, studies = kills + done.err.count("killed a worker"), studies + 1
            progress.tell(kills, f" kills, {studies} studies ended")
    seen = f"{studies} studies, each ended with the same tables"
    return Line("store", "SIGKILL of worker processes (local:2)", kills, seen, progress.seconds)


def _check_step(
    before: dict[str, str],
    after: dict[str, str],
    cells: dict[str, str],
    done: Done,
    out: Path,
    reference: dict[str, bytes],
) -> None:
    lost = before.keys() - after.keys()
    demand(not lost, f"finished cells are lost: {lost}")
    demand(
        len(after) - len(before) >= told(done),
        f"{told(done)} cells were announced, {len(after)} are stored",
    )
    demand(
        after.items() <= cells.items(), "a stored cell differs from that of the study left alone"
    )
    if (out / "tables").exists():
        for path, data in tables(out).items():
            demand(data == reference[path], f"{path} is half-written")


def kill_fit(forker: Forker, n_kills: int, seed: int) -> Line:
    """The same for the checkpoints of `fit`: killed and resumed, the bits are those of a run left
    alone."""
    lottery = random.Random(seed)
    progress = Progress("checkpoints", n_kills)
    kills = runs = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def call(path: str, out: Path, **more: float) -> Done:
            arguments = {"path": path, "out": str(out), **FIT}
            return forker.run(Call("tests.torture.work:train_with_checkpoints", arguments, **more))[
                0
            ]

        done = call(str(folder / "first.pt"), folder / "first")
        demand(done.code == 0, f"the run itself fails: {done.err}")
        demand(call("", folder / "whole").code == 0, "the run without checkpoints fails")
        whole, span = (folder / "whole").read_text(), done.seconds
        demand((folder / "first").read_text() == whole, "checkpoints change the run")
        while kills < n_kills:
            path, out = folder / f"{runs}.pt", folder / f"{runs}.txt"
            deaths = 0
            while True:
                when = lottery.uniform(0, 0.6 * span)
                may_die = kills < n_kills and deaths < 8
                kill = {"signal_number": signal.SIGKILL, "after_seconds": when} if may_die else {}
                done = call(str(path), out, **kill)
                if done.code != -signal.SIGKILL:
                    break
                demand(
                    not out.exists() or out.read_text() == whole,
                    "a killed run has written other bits",
                )
                kills, deaths = kills + 1, deaths + 1
                progress.tell(kills, f" kills, {runs} runs ended")
            demand(
                done.code == 0, f"exit code {done.code} after {deaths} kills: {done.err[-2000:]}"
            )
            demand(out.read_text() == whole, "the bits differ from those of the run left alone")
            demand(
                sorted(os.listdir(folder)).count(path.name + ".tmp") == 0,
                "a temporary file is left",
            )
            runs += 1
    seen = f"{runs} runs, each ended with the same bits"
    return Line("checkpoints", "SIGKILL of fit", kills, seen, progress.seconds)
