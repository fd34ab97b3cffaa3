"""How long `rlploss compare` takes, on tables of several shapes, with every arm and 10 splits.

python -m benchmarks.bench_compare [NAME ...]

Each table is compared by the command in a process of its own; the kernel is compiled before.
Seconds are those of the wall clock, of two cores in use, and of what the command announced."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes

from benchmarks.common import Row, at_most
from benchmarks.run import table as markdown

UNITS = {"h": 3600.0, "min": 60.0, "s": 1.0}
FACTOR = 1.5  # by which an announced time may be wrong


def made_up(n: int, d: int) -> pd.DataFrame:
    """Rows with offsets and scales, a target that is half linear, half not, and noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    y = X[:, 0] - 2 * X[:, 1] + 2 * np.sin(2 * X[:, 2]) + X[:, 3] * X[:, 4] + rng.normal(size=n)
    shown = X * np.geomspace(0.1, 100.0, d) + np.linspace(-50, 50, d)
    return pd.DataFrame(shown, columns=[f"x{i}" for i in range(d)]).assign(y=1000 + 200 * y)


TABLES = {  # and the seconds within which the answer is promised
    "60 × 5": (lambda: made_up(60, 5), 15.0),
    "400 × 5": (lambda: made_up(400, 5), 20.0),
    "diabetes": (lambda: load_diabetes(as_frame=True).frame.rename(columns={"target": "y"}), 30.0),
    "1,000 × 10": (lambda: made_up(1000, 10), 30.0),
    "100 × 200": (lambda: made_up(100, 200), 120.0),
    "20,000 × 10": (lambda: made_up(20_000, 10), 120.0),
}


def one(name: str) -> dict[str, float]:
    """Compare one table and return the seconds it took, those of the cores, and those that were
    announced."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        TABLES[name][0]().to_csv(path, index=False)
        command = [sys.executable, "-c", "from rlploss.cli import main; main()"]
        words = [*command, "compare", str(path), "--target", "y", "--out", f"{folder}/out"]
        before, started = os.times(), time.perf_counter()
        done = subprocess.run(words, capture_output=True, text=True)
        seconds, after = time.perf_counter() - started, os.times()
    if done.returncode:
        sys.exit(f"the comparison of {name} failed:\n{done.stderr}")
    told = re.search(r": about (.*?) on \d+ core", done.stderr)
    assert told is not None
    parts = re.findall(r"(\d+) (h|min|s)", told[1])
    return {
        "seconds": seconds,
        "cores": after.children_user - before.children_user,
        "announced": sum(int(n) * UNITS[unit] for n, unit in parts),
    }


def measure(quick: bool = False, names: tuple[str, ...] = ()) -> list[Row]:
    """The time of every table against its limit, and against what was announced; with `quick` the
    smallest only."""
    rows = []
    for name in names or (["60 × 5"] if quick else TABLES):
        limit, took = TABLES[name][1], one(name)
        wrong = max(took["seconds"] / took["announced"], took["announced"] / took["seconds"])
        detail = (
            f"{took['seconds']:.1f} s, {took['cores']:.1f} s of the cores, {took['announced']:.0f}"
            " s announced"
        )
        rows.append(at_most(f"compare {name} / {limit:g} s", took["seconds"] / limit, 1, detail))
        rows.append(
            at_most(
                f"compare {name}: announced and actual time, the larger / the smaller",
                wrong,
                FACTOR,
                "",
            )
        )
    return rows


if __name__ == "__main__":
    print(markdown(measure(names=tuple(sys.argv[1:]))))
