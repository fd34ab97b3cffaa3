"""`rlploss reproduce` and `rlploss report`: run what is missing, then show everything that the
directory holds.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from rich.console import Console

from rlploss import __version__, _checks, datasets
from rlploss._progress import duration, say
from rlploss.lab import report
from rlploss.lab.executors import Workers
from rlploss.lab.report import Report, Table
from rlploss.lab.run import Study, check_there, run_study
from rlploss.lab.store import Store, StoreError, code_version
from rlploss.lab.study import AnyCell, distinct
from rlploss.paper import claims, measure, sections
from rlploss.paper.published import CLAIMS, DATASETS, WORDS
from rlploss.paper.request import SCALES, Request
from rlploss.paper.results import Grid, Results
from rlploss.paper.studies import ARMS, CATALOG, STUDIES, cells_of, expected_seconds


def choose(names: Sequence[str], request: Request) -> list[str]:
    """Return the names asked for, in the order of the catalogue; `all` is everything."""
    known = {"name": (*CATALOG, "all"), "dataset": (*DATASETS, "moons"), "arm": ARMS}
    for kind, given in (
        ("name", names),
        ("dataset", request.datasets or ()),
        ("arm", request.arms or ()),
    ):
        for name in given:
            _checks.one_of(kind, name, known[kind])
    if not names:
        raise ValueError(
            'name at least one table or figure, got none; "all" is everything, --list shows them'
        )
    return [name for name in CATALOG if name in names or "all" in names]


def reproduce(
    names: Sequence[str], request: Request, out: Path, *, workers: Workers, console: Console
) -> None:
    """Train what is missing for the names, then write and show the report of the whole
    directory.
    """
    chosen = choose(names, request)
    cells = distinct(cells_of(chosen, request))
    with Store(out, code_version=code_version(*measure.DECIDING)) as store:
        store.refuse_others("reproduce")
        missing = [cell for cell in cells if not store.has(cell)]
        unavailable = missing_data(missing, console)
        for cell in missing:
            if cell.task.dataset in unavailable:
                store.write_failure(cell, unavailable[cell.task.dataset])
        ready = [cell for cell in cells if cell.task.dataset not in unavailable]
        for name in chosen:
            store.write_request(name, asdict(request))
        run_study(
            f"{', '.join(names)} at {request.scale} scale",
            ready,
            store,
            cost=expected_seconds,
            train=measure.train,
            workers=workers,
            console=console,
        )
        render(store, out, console, show=chosen)
        check_there(out)


def list_names(request: Request, workers: Workers, console: Console) -> None:
    """Show every name, what it is, and what it costs at each scale on these workers, in 80
    columns.
    """

    def cost(name: str, scale: str) -> str:
        seconds = [
            expected_seconds(cell)
            for cell in distinct(STUDIES[name](replace(request, scale=scale)))
        ]
        return duration(sum(seconds) / workers.count) if seconds else "-"

    rows = {name: [cost(name, scale) for scale in SCALES] for name in CATALOG}
    for name, costs in {"NAME": list(map(str.upper, SCALES)), **rows}.items():
        about = f"\n    {CATALOG[name]['what']}" if name in CATALOG else ""
        say(console, f"{name:23}{''.join(f'{cost:>12}' for cost in costs)}{about}")
    say(
        console,
        f"\nTimes are for {workers.count} core{'s' * (workers.count > 1)}; - is nothing to train.",
    )


def missing_data(cells: Sequence[AnyCell], console: Console) -> dict[str, str]:
    """Datasets that cannot be had, with the reason; the others are in the cache when this
    returns.
    """
    reasons: dict[str, str] = {}
    for name in filter(None, dict.fromkeys(cell.task.dataset for cell in cells)):
        try:
            datasets.load(name)
        except (datasets.DatasetUnavailable, datasets.CacheError) as error:
            reasons[name] = f"dataset {name} cannot be had: {' '.join(str(error).split())}"
            say(console, f"{name}: not tested, {reasons[name]}")
    return reasons


def stored_results(store: Store) -> dict[str, Grid]:
    """Return what the store holds of everything that was asked for."""
    asked, read = store.requests(), cache(store.read)

    def missing(cell: AnyCell) -> str:
        return store.failure(cell) or "not run yet"

    with store.understood("a request"):
        return {
            name: Grid(name, Request.from_options(asked[name]), read, missing)
            for name in CATALOG
            if name in asked
        }


def stored_study(store: Store) -> Study:
    """Return what was asked for in this directory, to be trained again."""

    def cells() -> list[AnyCell]:
        parts = [part for grid in stored_results(store).values() for part in grid.parts.values()]
        return distinct(cell for part in parts for cell in part)

    return Study(code_version(*measure.DECIDING), cells, expected_seconds, lambda: measure.train)


def build(store: Store, out: Path, results: Results) -> Report:
    """Return the report of everything that was asked for in this directory."""
    judged = claims.all_claims(results)
    names = {claim.id for claim in CLAIMS if not results.keys().isdisjoint(claim.studies)}
    asked = tuple(claim for claim in judged if claim.name in names)
    n_others = len(judged) - len(asked)
    shown = []
    for name, grid in results.items():
        command = (
            f"rlploss reproduce {name} {grid.request.arguments()} --out {shlex.quote(str(out))}"
        )
        shown.append(replace(sections.section(grid), command=command))
    scales = {grid.request.scale for grid in results.values()}
    footer = (
        f"rlploss {__version__}. Every number comes from a row of runs.sqlite beside this file.",
        *(
            f"{count} cells made by other code are kept there and not shown here."
            for count in (store.foreign_cells(),)
            if count
        ),
    )
    return Report(
        "Random Linear Projections loss: what the paper claims and what we find",
        (
            sections.summary(
                results, judged, ", ".join(scale for scale in SCALES if scale in scales)
            ),
        ),
        tuple(shown),
        asked,
        claims_title=f"Claims of the paper: {len(asked)} of {len(judged)}",
        claims_lead=(WORDS["claims"], *[WORDS["other-claims"].format(n=n_others)] * (n_others > 0)),
        footer=footer,
        tables=(
            Table(
                "claims",
                "Claims and verdicts",
                ("claim", "text", "verdict", "scope", "evidence"),
                tuple((c.name, c.text, c.verdict, c.scope, c.evidence) for c in asked),
            ),
        ),
    )


def render(store: Store, out: Path, console: Console, *, show: Sequence[str] | None = None) -> None:
    """Write the report and show its tables, all or those of some names, and verdicts in the
    terminal.
    """
    if not any(name in CATALOG for name in store.requests()):
        wrong = (
            f"{out} holds nothing of the paper to render; if `rlploss compare` made it, run the"
            " same command again"
        )
        raise StoreError(f"{wrong}: what is stored is not trained again")
    results = stored_results(store)
    with store.understood("what a table or figure needs"):
        built = build(store, out, results)
        written = report.write(built, out)
    for section in built.sections:
        if section.name in (store.requests() if show is None else show):
            for table in section.tables:
                _show_table(table, console)
    tested = [c for c in built.claims if c.verdict != claims.NOT_TESTED]
    rows = tuple(
        (c.name, c.verdict + (f" ({c.scope})" if c.scope else ""), c.evidence) for c in tested
    )
    _show_table(Table("verdicts", "Verdicts", ("claim", "verdict", "evidence"), rows), console)
    for paragraph in built.summary:
        say(console, f"\n{paragraph}\n")
    say(console, f"Report: {written[0]}")
    say(
        console,
        f"Tables (CSV, Markdown) and figures (SVG, CSV) are beside it: {len(written) - 1} files.",
    )


def _show_table(table: Table, console: Console) -> None:
    if table.rows:
        say(console, f"\n{table.title}\n")
        report.show(console, table)
