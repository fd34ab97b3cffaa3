"""How long `compare` takes to read a table: linear in the size of the file, over three decades.

The cells are what has hung readers: numbers, dates, long texts, spaces between two signs."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.common import Row, at_most
from rlploss.compare.design import make_design
from rlploss.compare.read import read_table

LINE = "{0}.5,2020-01-{1:02d},{0} {2} x,{3}\n"
SIZES = (20_000, 200_000, 2_000_000, 20_000_000)  # bytes


def seconds(n_bytes: int) -> float:
    """Read a table of so many bytes, the columns included, and return the seconds."""
    width, rows, length = 400, ["a,b,c,y\n"], 0
    while length < n_bytes:
        k = len(rows)
        rows.append(LINE.format(k, 1 + k % 28, " " * width, "w" * (k % width) + str(k)))
        length += len(rows[-1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_text("".join(rows))
        started = time.perf_counter()
        make_design(read_table(path), "a")
        return time.perf_counter() - started


def measure(quick: bool = False) -> list[Row]:
    """The seconds of a byte in the largest file against those in a file of a tenth of its size."""
    sizes = SIZES[:-1] if quick else SIZES
    seconds(sizes[0])
    taken = [min(seconds(size) for _ in range(3 if size < 10**6 else 1)) for size in sizes]
    detail = ", ".join(f"{s / 1e6:g} MB {t:.2g} s" for s, t in zip(sizes, taken, strict=True))
    ratio = (taken[-1] / sizes[-1]) / (taken[0] / sizes[0])
    return [at_most("reading: seconds a byte, largest / smallest file", ratio, 1.5, detail)]


if __name__ == "__main__":
    print(measure())
