"""Define `rlploss survey`: compare RLP with other models on public tables, and write the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlploss._progress import duration, say
from rlploss.cli.compare import OwnLosses, Team, _names, _own_losses
from rlploss.cli.shell import choice, listed

if TYPE_CHECKING:
    from rich.console import Console

    from rlploss.lab.store import Store
    from rlploss.survey.run import SurveyCell


def survey(
    out: Annotated[Path, typer.Option(help="Output directory; the same one resumes.")] = Path(
        "rlploss-survey"
    ),
    tables: Annotated[
        str | None,
        choice(
            "Only these tables, separated by commas; see --list.",
            listed(["tables.toml", "second.toml"], "wine"),
        ),
    ] = None,
    half: Annotated[
        str,
        choice(
            "Which tables: development, held-out, all of these, or the second collection.",
            ("development", "held-out", "all", "second"),
        ),
    ] = "all",
    rows: Annotated[
        str | None, typer.Option(help="Numbers of training rows.", show_default="100,1000")
    ] = None,
    splits: Annotated[
        int | None, typer.Option(help="Random splits; half as many outside.", show_default="10")
    ] = None,
    loss: OwnLosses = None,
    classification: Annotated[
        bool, typer.Option("--classification", help="The tables with classes instead.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="100 rows, 3 splits, 1,000 steps.")
    ] = False,
    workers: Team = "local",
    list_: Annotated[
        bool, typer.Option("--list", help="Show the tables and what they cost, and stop.")
    ] = False,
) -> None:
    """Compare RLP with everything else on 34 public tables: when, if ever, does it help?"""
    from rich.console import Console

    from rlploss.lab import executors, run
    from rlploss.lab.store import Store, code_version
    from rlploss.survey import run as study
    from rlploss.survey.tables import table_names

    console, team = Console(), executors.parse_workers(workers)
    kind = "classification" if classification else "regression"
    request = study.SurveyRequest(
        tables=_names(tables) or tuple(table_names(kind, half)),
        rows=_sizes(rows) or ((100,) if quick else (100, 1000)),
        splits=(3 if quick else 10) if splits is None else splits,
        steps=1000 if quick else study.STEPS,
        losses=_own_losses(loss, study.ARMS[kind]),
        kind=kind,
    )
    cells = request.cells()  # few rows first
    if list_:
        show_tables(cells, team.count, console)
        return
    with Store(out, code_version=code_version(*study.DECIDING)) as store:
        store.refuse_others("survey")
        store.write_request("survey", asdict(request))
        run.run_study(
            f"{len(request.tables)} tables",
            cells,
            store,
            cost=study.expected_seconds,
            train=study.SurveyTrainer.of(request.tables),
            workers=team,
            console=console,
            in_turn=True,
        )
        render(store, out, console)
        run.check_there(out)


def _sizes(rows: str | None) -> tuple[int, ...]:
    """Return numbers between commas."""
    try:
        return tuple(map(int, _names(rows) or ()))
    except ValueError:
        raise ValueError(
            f"rows must be whole numbers between commas, got {rows!r}; try --rows 100,1000"
        ) from None


def show_tables(cells: Sequence[SurveyCell], cores: int, console: Console) -> None:
    """List the tables with their sizes and expected times."""
    from rlploss.lab.report import Table, show
    from rlploss.survey.run import expected_seconds
    from rlploss.survey.tables import half_of, load_rows

    seconds: defaultdict[str, float] = defaultdict(float)
    for cell in cells:
        seconds[cell.task.table] += expected_seconds(cell) / cores
    rows = tuple(
        (table, half_of(table), *map("{:,}".format, load_rows(table).X.shape), duration(needed))
        for table, needed in seconds.items()
    )
    show(console, Table("tables", "", ("table", "half", "rows", "columns", "time"), rows))
    total = duration(sum(seconds.values()))
    say(console, f"{len(cells)} cells, about {total} on {cores} core{'s' * (cores > 1)}.")


def render(store: Store, out: Path, console: Console) -> None:
    """Write the report of the stored results, and print its first lines."""
    from rlploss.lab import report
    from rlploss.survey.report import build
    from rlploss.survey.results import Survey, stored_request

    with store.understood("what a table or figure needs"):
        results = Survey(stored_request(store), store.read)
        if not results.cells:
            say(console, "No table is complete yet, so there is nothing to show.")
            return
        content = build(results, out)
        page, *others = report.write(content, out)
    where = f"Report: {page}, with {len(others)} tables and figures beside it."
    say(console, "\n\n".join(["", *content.summary, where])[1:])
