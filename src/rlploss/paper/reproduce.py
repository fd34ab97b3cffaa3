"""`rlploss reproduce` and `rlploss report`: run what is missing, then show everything that the directory holds."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from rich.console import Console

from rlploss import __version__, _checks, datasets
from rlploss._progress import duration, say
from rlploss.lab import provenance, report
from rlploss.lab.report import Report, Table
from rlploss.lab.run import execute, plan
from rlploss.lab.store import Store, StoreError
from rlploss.lab.study import AnyCell, distinct
from rlploss.lab.text import Stopped
from rlploss.lab.workers import Workers
from rlploss.paper import claims, measure
from rlploss.paper.protocols import ARMS
from rlploss.paper.published import DATASETS, words_of
from rlploss.paper.request import SCALES, Request
from rlploss.paper.results import StoredResults
from rlploss.paper.sections import CATALOG, summary, time_section
from rlploss.paper.studies import OWN_LOSSES_IN, STUDIES, cells_of, expected_seconds
from rlploss.paper.verdicts import NOT_TESTED


def choose(names: Iterable[str]) -> list[str]:
    """The names asked for, in the order of the catalogue; `all` is everything."""
    wanted = [_checks.one_of("name", name, (*CATALOG, "all")) for name in names]
    if not wanted:
        raise ValueError('name at least one table or figure, got none; "all" is everything, --list shows them')
    return list(CATALOG) if "all" in wanted else [name for name in CATALOG if name in wanted]


def check_narrowing(request: Request, chosen: Sequence[str]) -> None:
    """Datasets and arms must be known by name; a reader's losses have one place."""
    for name in request.datasets or ():
        _checks.one_of("dataset", name, (*DATASETS, "moons"))
    for name in request.arms or ():
        _checks.one_of("arm", name, ARMS)
    if request.losses and chosen != [OWN_LOSSES_IN]:
        raise ValueError(f"--loss goes with {OWN_LOSSES_IN} alone, got {', '.join(chosen)}; name nothing else")


def open_store(out: Path, *, create: bool = True) -> Store:
    """The store of an output directory, for the code of the paper's studies."""
    return Store(out, code_version=provenance.code_version(measure.ROOT), create=create)


def reproduce(names: Sequence[str], request: Request, out: Path, *, workers: Workers, console: Console) -> None:
    """Train what is missing for the names, then write and show the report of the whole directory."""
    chosen = choose(names)
    check_narrowing(request, chosen)
    cells = distinct(cells_of(chosen, request))
    command = (
        f"rlploss reproduce {' '.join(names)} {request.arguments()} --workers {shlex.quote(str(workers))} "
        f"--out {shlex.quote(str(out))}"
    )
    with open_store(out) as store:
        missing = [cell for cell in cells if not store.has(cell)]
        if store.costs() and not store.requests():
            raise StoreError(f"{out} holds what `rlploss compare` made; choose another directory")
        unavailable = missing_data(missing, console)
        for cell in missing:
            if _data(cell) in unavailable:
                store.write_failure(cell, unavailable[_data(cell)])
        ready = [cell for cell in cells if _data(cell) not in unavailable]
        for name in chosen:
            store.write_request(name, asdict(request))
        todo = plan(ready, store, cost=expected_seconds, workers=workers)
        say(console, f"{', '.join(names)} at {request.scale} scale. {todo.sentence()}")
        if store.foreign_cells():
            say(console, f"{store.foreign_cells()} stored cells come from other code and are left aside.")
        try:
            done = execute(todo, store, train=measure.train, workers=workers, console=console)
        except KeyboardInterrupt:
            stored = sum(store.has(cell) for cell in ready)
            raise Stopped(f"stopped; {stored} of {len(ready)} cells are stored, this goes on: {command}") from None
        if done.trained:
            say(console, f"Trained {done.trained} cells in {duration(done.seconds)}.")
        render(store, out, console=console, show=chosen)


def list_names(request: Request, workers: Workers, console: Console) -> None:
    """Every name, what it is, and what it costs at each scale on these workers."""

    def cost(name: str, scale: str) -> str:
        seconds = [expected_seconds(cell) for cell in distinct(STUDIES[name](replace(request, scale=scale)))]
        return duration(sum(seconds) / workers.count) if seconds else "nothing to train"

    rows = [(name, artefact.what, *(cost(name, scale) for scale in SCALES)) for name, artefact in CATALOG.items()]
    _show_table(Table("names", "What can be reproduced", ("name", "what it is", *SCALES), tuple(rows)), console)


def render_again(out: Path, *, console: Console) -> None:
    """Render the report of a directory from what is stored; trains nothing."""
    with open_store(out, create=False) as store:
        if not any(name in CATALOG for name in store.requests()):
            raise StoreError(
                f"{out} holds nothing of the paper to render; if `rlploss compare` made it, run the same command "
                "again: what is stored is not trained again"
            )
        if store.show_what_there_is():
            say(console, "The runs were made by other code than this; the report shows them as they are.")
        render(store, out, console=console, show=list(store.requests()))


def _data(cell: AnyCell) -> str:
    """The dataset of a cell, empty for a measurement."""
    return getattr(cell.task, "dataset", "")


def missing_data(cells: Sequence[AnyCell], console: Console) -> dict[str, str]:
    """Datasets that cannot be had, with the reason; the others are in the cache when this returns."""
    found: dict[str, str] = {}
    for name in filter(None, dict.fromkeys(_data(cell) for cell in cells)):
        try:
            datasets.load(name)
        except (datasets.DatasetUnavailable, datasets.CacheError) as error:
            found[name] = f"dataset {name} cannot be had: {' '.join(str(error).split())}"
            say(console, f"{name}: not tested, {found[name]}")
    return found


def stored_results(store: Store) -> StoredResults:
    """What the store holds of everything that was asked for."""
    asked = store.requests()
    requests = {name: Request.from_options(asked[name]) for name in CATALOG if name in asked}
    return StoredResults(requests, cache(store.read), lambda cell: store.failure(cell) or "not run yet")


def build(store: Store, out: Path) -> Report:
    """The report of everything that was asked for in this directory."""
    results = stored_results(store)
    judged = tuple(claims.all_claims(results))
    shown = []
    for name, request in results.requests.items():
        grid = results.grid(name)
        assert grid is not None  # the name was asked for
        command = f"rlploss reproduce {name} {request.arguments()} --out {shlex.quote(str(out))}"
        shown.append(replace(CATALOG[name].section(grid), command=command))
    scales = sorted({request.scale for request in results.requests.values()}, key=list(SCALES).index)
    footer = [f"rlploss {__version__}. Every number comes from a row of runs.sqlite beside this file."]
    if store.foreign_cells():
        footer.append(f"{store.foreign_cells()} cells made by other code are kept there and not shown here.")
    rows = tuple((c.name, c.text, c.verdict, c.scope, c.evidence) for c in judged)
    return Report(
        "Random Linear Projections loss: what the paper claims and what we find",
        summary(results, judged, ", ".join(scales)),
        (*shown, time_section(results)),
        judged,
        claims_title=f"The paper's {len(judged)} claims",
        claims_lead=words_of(("claims",)),
        footer=tuple(footer),
        tables=(Table("claims", "Claims and verdicts", ("claim", "text", "verdict", "scope", "evidence"), rows),),
    )


def render(store: Store, out: Path, *, console: Console, show: Sequence[str]) -> None:
    """Write the report and show its tables and verdicts in the terminal."""
    made = build(store, out)
    written = report.write(made, out)
    for section in made.sections:
        if section.name in show:
            for table in section.tables:
                _show_table(table, console)
    tested = [c for c in made.claims if c.verdict != NOT_TESTED]
    if tested:
        rows = tuple((c.name, c.verdict + (f" ({c.scope})" if c.scope else ""), c.evidence) for c in tested)
        _show_table(Table("verdicts", "Verdicts", ("claim", "verdict", "evidence"), rows), console)
    for paragraph in made.summary:
        say(console, f"\n{paragraph}\n")
    say(console, f"Report: {written[0]}")
    say(console, f"Tables (CSV, Markdown) and figures (SVG, PNG, CSV) are beside it: {len(written) - 1} files.")


def _show_table(table: Table, console: Console) -> None:
    if table.rows:
        say(console, f"\n{table.title}\n")
        report.show(console, table)
