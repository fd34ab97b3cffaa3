"""Everything that docs/results shows, from training to pages: `make results`.

    python docs/run_results.py [paper] [survey] [--check]

Each study is one results directory below build/results. It begins with the rows that are committed
(docs/results/rows/NAME.sqlite.xz), trains what is missing, and resumes where it was stopped, on
this machine or another. Then its rows are packed with five significant digits, its pages are
rendered from the packed rows, and ten random cells are trained again. `--check` trains nothing new:
it fails if a table of the pages is not what the committed rows give, or if a cell trained again has
other numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import math
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from rlploss.lab.executors import parse_workers
from rlploss.lab.run import Study, execute, plan
from rlploss.lab.store import FILE, TABLES, Store
from rlploss.lab.study import StoredCell
from rlploss.paper import reproduce
from rlploss.survey import results as survey_results

ROOT = Path(__file__).parents[1]
RESULTS, BUILD = ROOT / "docs" / "results", ROOT / "build" / "results"
STUDIES = {
    "paper": ("reproduce", "all", "--scale", "paper"),
    "survey": ("survey",),
    "survey-classes": ("survey", "--classification", "--rows", "100"),
    "survey-second": ("survey", "--half", "second", "--rows", "100,1000"),
}
READERS = {"reproduce": reproduce.stored_study, "survey": survey_results.stored_study}
DIGITS, CHECKED = 5, 10
PAGES = ("report.html", "tables", "figures")


def main() -> None:
    """Make or check the studies that are named, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", choices=[[], *STUDIES])
    parser.add_argument("--check", action="store_true", help="train nothing new")
    options = parser.parse_args()
    for name in options.studies or STUDIES:
        if options.check:
            check(name)
        else:
            make(name)
    if not options.check:
        for script in ("readme.py", "figures.py"):
            subprocess.run([sys.executable, ROOT / "docs" / script], check=True)


def make(name: str) -> None:
    """Train what a study misses, pack its rows, and render its pages from them."""
    out, packed = BUILD / name, RESULTS / "rows" / f"{name}.sqlite.xz"
    if not (out / FILE).exists() and packed.exists():
        unpack(packed, out)
    try:
        subprocess.run(["rlploss", *STUDIES[name], "--out", out], check=True)
    finally:  # also what a stopped study has
        if (out / FILE).exists():
            pack(out / FILE, packed)
            print(f"{packed}: {packed.stat().st_size / 2**20:.1f} MiB")
    pages = RESULTS / name
    with tempfile.TemporaryDirectory() as scratch:
        render(packed, Path(scratch))
        pages.mkdir(exist_ok=True)
        for part in PAGES:
            target, source = pages / part, Path(scratch, part)
            if target.is_dir():
                shutil.rmtree(target)
            if source.is_dir():  # a study without figures has none
                shutil.copytree(source, target)
            elif source.exists():
                shutil.copy(source, target)
    commit = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=9"]
    (pages / "commit.txt").write_text(subprocess.check_output(commit, text=True))
    check(name)


def check(name: str) -> None:
    """Fail if the tables are not those of the committed rows, or ten cells have other numbers."""
    packed = RESULTS / "rows" / f"{name}.sqlite.xz"
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        render(packed, out)
        for table in sorted((out / "tables").iterdir()):
            page = RESULTS / name / "tables" / table.name
            if not page.exists() or page.read_bytes() != table.read_bytes():
                raise SystemExit(f"{page} is not what the rows of {packed.name} give")
        with Store(out, code_version="", create=False) as store:
            study = READERS[STUDIES[name][0]](store)
            store.code_version = study.code_version
            store.show_what_there_is()
            retrain(store, study)
    print(f"{name}: the tables are those of the rows; cells trained again have the same numbers")


def render(packed: Path, out: Path) -> None:
    """Render the report of packed rows in a directory."""
    unpack(packed, out)
    subprocess.run(["rlploss", "report", out], check=True, stdout=subprocess.DEVNULL)


def retrain(store: Store, study: Study) -> None:
    """Train ten random cells again, and compare their numbers with the stored ones."""
    cells = [cell for cell in study.cells() if not cell.task.timed and store.has(cell)]
    chosen = random.SystemRandom().sample(cells, min(CHECKED, len(cells)))
    with (
        tempfile.TemporaryDirectory() as scratch,
        Store(scratch, code_version=store.code_version) as again,
    ):
        todo = plan(chosen, again, cost=study.cost, workers=parse_workers("local"))
        execute(
            todo,
            again,
            train=study.trainer(),
            workers=parse_workers("local"),
            console=Console(stderr=True),
        )
        for cell in chosen:
            before, now = store.read(cell), again.read(cell)
            if now is None or before is None or numbers(before) != numbers(now):
                raise SystemExit(f"{cell} has other numbers when it is trained again")


def numbers(cell: StoredCell) -> list[dict[str, Any]]:
    """Return what was measured of each network, with five digits."""
    return [
        {key: rounded(list(values)) for key, values in network.curve.items() if key != "seconds"}
        | {key: rounded(value) for key, value in network.values.items()}
        for network in cell.networks
    ]


def rounded(value: Any) -> Any:
    """Return plain data with five significant digits; whole numbers stay as they are."""
    if isinstance(value, dict):
        return {key: item if key == "arrays" else rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        return float(f"{value:.{DIGITS}g}")
    return None if isinstance(value, float) and math.isnan(value) else value


def pack(source: Path, packed: Path) -> None:
    """Write the rows of a store, rounded and compressed."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, FILE)
        with (
            contextlib.closing(sqlite3.connect(source)) as old,
            contextlib.closing(sqlite3.connect(path)) as new,
        ):
            new.executescript(TABLES)
            for table in ("cell", "failure", "request", "equal"):
                rows = old.execute(f"SELECT * FROM {table} ORDER BY rowid")
                names = [column[0] for column in rows.description]
                marks = ", ".join("?" * len(names))
                for row in rows:
                    fields = dict(zip(names, row, strict=True))
                    if table == "cell":
                        networks = rounded(json.loads(fields["networks"]))
                        fields["networks"] = json.dumps(networks, separators=(",", ":"))
                    new.execute(f"INSERT INTO {table} VALUES ({marks})", [*fields.values()])
            new.commit()
            new.execute("VACUUM")
        packed.parent.mkdir(parents=True, exist_ok=True)
        packed.write_bytes(lzma.compress(path.read_bytes(), preset=6))


def unpack(packed: Path, out: Path) -> None:
    """Put packed rows into a results directory."""
    out.mkdir(parents=True, exist_ok=True)
    (out / FILE).write_bytes(lzma.decompress(packed.read_bytes()))


if __name__ == "__main__":
    main()
