"""Define `rlploss data`: list the datasets, fetch them, check the cache."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rlploss.cli.shell import among, listed

if TYPE_CHECKING:
    from rlploss.datasets.registry import Entry

WIDTH = 80  # columns of a terminal
NAMES = among(listed(["catalog.toml"], "all"))
HELP = "The paper's datasets: list, fetch and verify them."


def list_() -> None:
    """Show every dataset: rows, features, task, size, whether it is cached, and its source."""
    from rlploss.datasets import cache_dir, is_cached
    from rlploss.datasets.registry import ENTRIES

    print(f"{'NAME':16}  {'ROWS':>5}  FEATURES  {'TASK':14}  {'SIZE':>8}  CACHED")
    for item in ENTRIES.values():
        size = _megabytes(item) if item.files else "-"
        cached = "not needed" if not item.files else "yes" if is_cached(item.name) else "no"
        print(
            f"{item.name:16}  {item.n_rows:5}  {item.n_features:8}  {item.task:14}  {size:>8} "
            f" {cached}",
            textwrap.indent(
                textwrap.fill("; also for ".join((item.source, *item.tasks[1:])), WIDTH - 4), "    "
            ),
            sep="\n",
        )
    print(f"\nCache: {cache_dir()}")


def get(
    wanted: Annotated[
        list[str], typer.Argument(metavar="NAME", help='Names, or "all".', autocompletion=NAMES)
    ],
) -> None:
    """Fetch datasets into the cache and verify them. What is there already is verified only."""
    from rlploss.datasets import DatasetUnavailable, cache_dir, registry

    failed = []
    for item in _chosen(wanted):
        said = f"verified, {_megabytes(item)}, in {cache_dir() / item.directory}"
        try:
            registry.fetch(item.name)
            print(f"{item.name}: {said if item.files else 'needs no files'}", flush=True)
        except DatasetUnavailable as error:
            failed.append(str(error))
    if failed:
        raise DatasetUnavailable("\n".join(failed))


def verify(
    wanted: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Names; all if none is given.", autocompletion=NAMES),
    ] = None,
) -> None:
    """Check the hash of every file in the cache.

    The exit code is 1 if a file is wrong, or if a dataset asked for by name is not complete.
    """
    from rlploss.datasets.sources import ABSENT, OK, cache_dir

    wrong = False
    # The dictionary keeps one of several datasets that share files, so each file is hashed once.
    for item in {item.directory: item for item in _chosen(wanted or ["all"])}.values():
        for file in item.files:
            _, state = file.read(cache_dir() / item.directory)
            print(f"{cache_dir() / item.directory / file.name}: {state}")
            wrong |= state != OK and (state != ABSENT or bool(wanted))
    if wrong:
        raise typer.Exit(1)


def _chosen(wanted: Sequence[str]) -> list[Entry]:
    """Return the entry of each name once; check all names first."""
    from rlploss.datasets.registry import entry, names

    expanded = [name for given in wanted for name in (names() if given == "all" else (given,))]
    return [entry(name) for name in dict.fromkeys(expanded)]


def _megabytes(item: Entry) -> str:
    return f"{sum(file.size for file in item.files) / 1e6:.1f} MB"
