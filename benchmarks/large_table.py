"""Memory of `fit` on 10 million rows × 20 float32 features: peak above data and torch, one process
per case.

    python -m benchmarks.large_table [--rows 10000000] [--json]

The table lies in a file that is mapped into memory. The peak is that of the whole process less the
bytes of the table, and less what the process had before: the interpreter and torch, 220 MiB, or
620 MiB where torch is built with CUDA. So the limit of 800 MiB is 1 GiB for a process without CUDA.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlploss import MSE, RLP, RegressionNet, Steps, fit, seeded

D = 20
LIMIT = 800 * 2**20

# 100,000 subsets of 100 rows are one pass over 10 million rows
CASES: dict[str, RLP | MSE] = {
    "rlp, defaults": RLP(),
    "rlp, one pass is 100,000 subsets": RLP(n_subsets=100_000),
    "rlp, new subsets in each epoch": RLP(n_subsets=1_000, plan="each-epoch"),
    "rlp, expected probe": RLP(probe="expected"),
    "rlp with mixup, 100,000 subsets": RLP(n_subsets=100_000, mixup=0.25),
    "mse": MSE(),
}


def write(folder: Path, rows: int) -> None:
    """A table of random numbers, a part at a time."""
    rng = np.random.default_rng(0)
    X = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float32, (rows, D))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (rows, 1))
    block = rng.standard_normal((200_000, D), dtype=np.float32)
    for first in range(0, rows, len(block)):
        part = block[: min(len(block), rows - first)] * np.float32(1 + 1e-7 * first)
        X[first : first + len(part)] = part
        y[first : first + len(part), 0] = np.sin(part[:, 0]) + part[:, 1]


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def run(folder: Path, name: str, steps: int) -> dict[str, Any]:
    """One case, in this process."""
    X, y = (np.load(folder / f"{part}.npy", mmap_mode="r") for part in "Xy")
    before = peak_bytes()
    started = time.perf_counter()
    history = fit(seeded(lambda: RegressionNet(D), 0), X, y, CASES[name], budget=Steps(steps))
    above = peak_bytes() - before - (X.nbytes + y.nbytes)
    return {
        "case": name,
        "steps": int(history.last("step")),
        "seconds": round(time.perf_counter() - started, 1),
        "peak above data and torch, MiB": round(above / 2**20),
        "ok": above <= LIMIT,
        "threads": torch.get_num_threads(),
    }


def measure(names: list[str], rows: int, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Each case in a process of its own."""
    write(folder, rows)
    found = []
    for name in names:
        command = [
            sys.executable,
            "-m",
            "benchmarks.large_table",
            "--case",
            name,
            "--folder",
            str(folder),
        ]
        done = subprocess.run(
            [*command, "--steps", str(steps)], capture_output=True, text=True, check=True
        )
        found.append(json.loads(done.stdout))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--only", action="append", choices=CASES, help="a case; may be given several times"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(run(options.folder, options.case, options.steps)))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.only or list(CASES), options.rows, options.steps, Path(folder))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{options.rows:,} rows × {D} float32 features\n")
    print(
        "| case | steps | seconds | peak above data and torch | at most 800 MiB"
        " |\n|---|---|---|---|---|"
    )
    for row in found:
        answer = "yes" if row["ok"] else "NO"
        peak = f"{row['peak above data and torch, MiB']} MiB"
        print(f"| {row['case']} | {row['steps']} | {row['seconds']} | {peak} | {answer} |")


if __name__ == "__main__":
    main()
