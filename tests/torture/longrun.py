"""A long study: memory, open files and processes at its end are those of its beginning.

Training is stubbed (closed-form curves in microseconds, tests/lab/stub.py); the plan, the worker
processes, the pipes, the store and the progress are the real ones."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.torture.summary import Line, Progress, demand

# MiB that the driver may grow between the first quarter and the end; 2,000 cells hold some, once
GROWTH = 24


def rss(process: int | str = "self") -> float:
    """MiB of memory that a process holds."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


def open_files() -> int:
    """File handles of this process."""
    return len(os.listdir("/proc/self/fd"))


def children() -> set[int]:
    """Processes that this one has started and that live."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, rest = path.read_text().partition(" (")
            if int(rest.rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(number))
        except (OSError, IndexError):
            continue
    return found


def run(n_runs: int, workers: str = "local:2") -> list[Line]:
    """`n_runs` cells of one run each, in two processes, then once more: nothing is trained the
    second time."""
    from tests.lab import stub

    from rlploss.lab.executors import parse_workers
    from rlploss.lab.run import execute, plan
    from rlploss.lab.store import Store

    if not Path("/proc/self/fd").exists():
        return [Line("long", "a study (needs /proc: not looked at here)", 0, "", 0.0)]
    progress = Progress("long", n_runs)
    cells = [stub.cell(seeds=(number,)) for number in range(n_runs)]
    team = parse_workers(workers)
    marks: list[tuple[float, int, float]] = []  # memory, handles, memory of the workers
    with tempfile.TemporaryDirectory() as folder:
        handles, before = open_files(), children()
        with Store(folder, code_version="e") as store:
            real = store.write

            def write(cell: Any, result: Any) -> None:
                real(cell, result)
                done = len(marks) + 1
                team_memory = (
                    sum(rss(number) for number in children() - before) if done % 100 == 0 else 0.0
                )
                marks.append((rss(), open_files(), team_memory))
                progress.tell(done)

            store.write = write
            todo = plan(cells, store, cost=lambda cell: 0.01, workers=team)
            finished = execute(
                todo, store, train=stub.train, workers=team, console=Console(file=io.StringIO())
            )
            demand(finished.trained == n_runs and not finished.failed, f"{finished}")
        with Store(folder, code_version="e") as store:
            again = plan(cells, store, cost=lambda cell: 0.01, workers=team)
            demand(not again.todo and again.stored == n_runs, "not all runs are stored")
        quarter = marks[n_runs // 4]
        grown, worker_memory = marks[-1][0] - quarter[0], [m[2] for m in marks if m[2]]
        demand(grown < GROWTH, f"memory grew by {grown:.0f} MiB after the first quarter")
        demand(
            max(m[1] for m in marks) <= quarter[1] + 2,
            f"open files grew from {quarter[1]} to {marks[-1][1]}",
        )
        if len(worker_memory) > 3:
            demand(worker_memory[-1] < worker_memory[1] + GROWTH, f"workers grew: {worker_memory}")
        # What multiprocessing itself keeps for the rest of the process: its tracker and the pipe to
        # it.
        demand(len(children() - before) <= 1, f"processes are left: {children() - before}")
        demand(
            open_files() <= handles + 1, f"file handles are left: {open_files()} after {handles}"
        )
    words = f"driver {grown:+.1f} MiB after the first quarter, {open_files() - handles:+d} handles"
    if worker_memory:
        words += f", workers {worker_memory[-1] - worker_memory[0]:+.1f} MiB"
    return [
        Line(
            "long",
            f"a study of {n_runs:,} runs ({workers}), training stubbed",
            n_runs,
            words,
            progress.seconds,
        )
    ]
