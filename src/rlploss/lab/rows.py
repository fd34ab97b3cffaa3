"""The rows of a store: as one long table, and whether this code gives those of older code again."""

from __future__ import annotations

import io
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from rlploss._files import replacing
from rlploss._progress import say
from rlploss.lab.executors import parse_workers
from rlploss.lab.run import execute, plan
from rlploss.lab.store import Store
from rlploss.lab.study import AnyCell, StoredCell, Train
from rlploss.lab.text import LabError, Scalar, write_rows

COLUMNS = (
    *("task", "draw", "seed", "arm", "metric", "step", "value", "seconds"),
    *("cell", "code_version"),
)
CHECKED = 10  # cells that are trained again


def long_rows(store: Store) -> Iterator[tuple[Scalar, ...]]:
    """Yield every number of every network, by whatever code: a metric at a step, or a single
    number.
    """
    for key, code, spec, origin, networks in store.every_cell():
        draws = spec["task"].get("variants") or [{}]
        for n in networks:
            draw = [
                f"{k}={v}"
                for k, v in draws[n.variant].items()
                if k != "kind" and v not in (None, "")
            ]
            labels = origin.get("task", ""), " ".join(draw), n.seed, origin.get("arm", "")
            steps = n.curve.get("step", [])
            seconds = n.curve.get("seconds", [n.seconds] * len(steps))
            for metric in sorted({*n.curve} - {"step", "seconds"}):
                for step, value, took in zip(steps, n.curve[metric], seconds, strict=True):
                    yield *labels, metric, int(step), value, took, key, code
            for metric, value in sorted(n.values.items()):
                yield *labels, metric, None, value, n.seconds, key, code


def write_csv(store: Store, console: Console) -> None:
    """Write all rows of a store as one long table beside it."""
    path = store.directory / "rows.csv"
    with replacing(path) as file, store.understood("a row"):
        text = io.TextIOWrapper(file, "utf-8", newline="")
        write_rows(text, COLUMNS, long_rows(store))
        text.detach()  # the file is closed by who opened it
    say(console, f"Every row: {path}")


@dataclass(frozen=True)
class Study:
    """What was asked for in a directory: its cells and their cost, and who trains them."""

    code_version: str
    cells: Callable[[], Sequence[AnyCell]]
    cost: Callable[[Any], float]
    trainer: Callable[[], Train]


def declare_equal(store: Store, study: Study, console: Console) -> None:
    """Train ten random cells of the latest older code again. If every bit is the same, let this
    code use the rows of that one; else say which cell differs.
    """
    older = store.older_version()
    stored = {
        cell: read
        for cell in study.cells()
        if older and not cell.task.timed and (read := store.read(cell, older)) is not None
    }
    if not stored:
        raise LabError(
            f"{store.directory} has no rows of other code that this one could use; the command that"
            " made it trains what is missing"
        )
    chosen = random.SystemRandom().sample([*stored], min(CHECKED, len(stored)))
    threads = {stored[cell].provenance["threads"] for cell in chosen}  # others round otherwise
    workers = parse_workers("local" if threads == {1} else "inline")
    with (
        tempfile.TemporaryDirectory() as scratch,
        Store(scratch, code_version=store.code_version) as again,
    ):
        todo = plan(chosen, again, cost=study.cost, workers=workers)
        say(console, f"Training {len(chosen)} of {len(stored)} cells of other code again.")
        execute(todo, again, train=study.trainer(), workers=workers, console=console)
        for cell in chosen:
            now = again.read(cell)
            if wrong := again.failure(cell) if now is None else difference(stored[cell], now):
                raise LabError(
                    f"{cell} is not what it was ({wrong}); the rows of the other code stay apart"
                )
    store.declare_equal(older)
    say(console, "Every bit is the same: this code uses the rows of that one, timed ones excepted.")


def difference(before: StoredCell, now: StoredCell) -> str:
    """Return the first number that differs between two trainings of a cell, if one does; seconds
    always do.
    """
    for old, new in zip(before.networks, now.networks, strict=True):
        first, second = (
            {name: list(points) for name, points in n.curve.items() if name != "seconds"}
            | {name: [value] for name, value in n.values.items()}
            | {name: array.ravel().tolist() for name, array in n.artifacts.items()}
            for n in (old, new)
        )
        for name in sorted({*first, *second}):
            pair = [repr(numbers.get(name)) for numbers in (first, second)]  # NaN is NaN
            if pair[0] != pair[1]:
                return f"{name} of seed {old.seed}: {pair[0][:60]} stored, {pair[1][:60]} now"
    return ""
