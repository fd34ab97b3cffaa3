"""`rlploss data`: list the datasets, fetch them, check the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from rlploss.datasets import DatasetUnavailable, cache_dir
from rlploss.datasets._progress import reporter
from rlploss.datasets.dataset import Entry
from rlploss.datasets.registry import cache_path, cached_files, entry, fetch, is_cached, names
from rlploss.datasets.sources import ABSENT

app = typer.Typer(help="Datasets: list, get, verify.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """Show every dataset: rows, features, task, size, whether it is in the cache, where it comes from."""
    header = ("NAME", "ROWS", "FEATURES", "TASK", "SIZE", "CACHED", "FROM")
    rows = [header, *(_row(entry(name)) for name in names())]
    widths = [max(len(row[k]) for row in rows) for k in range(len(header))]
    right = {1, 2, 4}  # columns of numbers
    for row in rows:
        cells = [cell.rjust(widths[k]) if k in right else cell.ljust(widths[k]) for k, cell in enumerate(row)]
        print("  ".join(cells).rstrip())
    print(f"\nCache: {cache_dir()}")


@app.command()
def get(wanted: Annotated[list[str], typer.Argument(metavar="NAME...", help='Names, or "all".')]) -> None:
    """Fetch datasets into the cache, verified; what is there already is only verified."""
    items = _chosen(wanted)
    progress = reporter()
    failed: list[str] = []
    for item in items:
        if not item.files:
            print(f"{item.name}: needs no files")
            continue
        try:
            fetch(item.name, progress=progress)
        except DatasetUnavailable as error:
            failed.append(str(error))
            continue
        print(f"{item.name}: verified, {_megabytes(item)}, in {cache_path(item)}", flush=True)
    if failed:
        raise DatasetUnavailable("\n".join(failed))


@app.command()
def verify(
    wanted: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Names; all if none is given.")
    ] = None,
) -> None:
    """Hash every file in the cache.

    The exit code is 1 if a file is wrong, or if a dataset asked for by name is not complete.
    """
    # A dict: datasets that share files are hashed once.
    items = {item.directory: item for item in _chosen(wanted or ["all"])}
    wrong = False
    for item in items.values():
        for path, state in cached_files(item):
            print(f"{path}: {state}")
            wrong |= state != "ok" and (state != ABSENT or bool(wanted))
    if wrong:
        raise typer.Exit(1)


def _chosen(wanted: Sequence[str]) -> list[Entry]:
    """The entries named, each once, all names checked before anything is done."""
    expanded = [name for given in wanted for name in (names() if given == "all" else (given,))]
    return [entry(name) for name in dict.fromkeys(expanded)]


def _row(item: Entry) -> tuple[str, ...]:
    cached = "not needed" if not item.files else "yes" if is_cached(item.name) else "no"
    size = _megabytes(item) if item.files else "-"
    return (item.name, f"{item.n_rows}", f"{item.n_features}", " or ".join(item.tasks), size, cached, item.source)


def _megabytes(item: Entry) -> str:
    return f"{item.n_bytes / 1e6:.1f} MB"
