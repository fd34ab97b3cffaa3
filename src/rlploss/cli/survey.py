"""`rlploss survey`: arguments in, a study of public tables and its report out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlploss._progress import duration, say
from rlploss.cli.compare import OwnLosses, Team, Track, _names, _own_losses
from rlploss.cli.shell import choice, listed

if TYPE_CHECKING:
    from rich.console import Console

    from rlploss.compare.survey import SurveyCell
    from rlploss.lab.store import Store

NAME = "survey"  # of the request in the store
TRAINER = "rlploss.compare.survey"  # whose code rows are keyed by


def survey(
    out: Annotated[Path, typer.Option(help="Output directory; the same one resumes.")] = Path("rlploss-survey"),
    tables: Annotated[
        str | None, choice("Only these tables, separated by commas; see --list.", listed("tables.toml", "wine"))
    ] = None,
    half: Annotated[
        str, choice("Which tables: development, held-out or all.", ("development", "held-out", "all"))
    ] = "all",
    rows: Annotated[str | None, typer.Option(help="Numbers of training rows.", show_default="100,1000")] = None,
    splits: Annotated[int | None, typer.Option(help="Random splits; half as many outside.", show_default="10")] = None,
    loss: OwnLosses = None,
    classification: Annotated[bool, typer.Option("--classification", help="The tables with classes instead.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="100 rows, 3 splits, 1,000 steps.")] = False,
    workers: Team = "local",
    track: Track = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the tables and what they cost, and stop.")] = False,
) -> None:
    """Compare RLP with everything else on 34 public tables: when, if ever, does it help?"""
    from rich.console import Console

    from rlploss.compare import survey as study
    from rlploss.lab.run import run_study
    from rlploss.lab.store import Store, code_version
    from rlploss.lab.workers import parse_workers

    console, team = Console(), parse_workers(workers)
    kind = "classification" if classification else "regression"
    request = study.Request(
        tables=_names(tables) or tuple(study.table_names(kind, half)),
        rows=_numbers(rows) or ((100,) if quick else (100, 1000)),
        splits=(3 if quick else 10) if splits is None else splits,
        steps=1000 if quick else study.STEPS,
        losses=_own_losses(loss, study.ARMS[kind]),
        kind=kind,
    )
    cells = request.cells()  # few rows first
    if list_:
        show_tables(cells, team.count, console)
        return
    with Store(out, code_version=code_version(TRAINER)) as store:
        store.refuse_others(NAME)
        store.write_request(NAME, asdict(request))
        cost, train = study.expected_seconds, study.SurveyTrainer.of(request.tables)
        what = f"{len(request.tables)} tables"
        run_study(what, cells, store, cost=cost, train=train, workers=team, console=console, in_turn=True)
        render(store, out, console)


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        raise ValueError(f"--rows takes whole numbers separated by commas, got {text!r}") from None


def show_tables(cells: Sequence[SurveyCell], cores: int, console: Console) -> None:
    """Say which tables there are, how large, and how long they take."""
    from rlploss.compare.survey import expected_seconds, half_of, load_rows
    from rlploss.lab.report import Table, show

    seconds: dict[str, float] = {}
    for cell in cells:
        seconds[cell.task.table] = seconds.get(cell.task.table, 0.0) + expected_seconds(cell) / cores
    sizes = {table: load_rows(table).X.shape for table in seconds}
    shown = [(table, half_of(table), f"{n:,}", f"{d}", duration(seconds[table])) for table, (n, d) in sizes.items()]
    show(console, Table("tables", "", ("table", "half", "rows", "columns", "time"), tuple(shown)))
    total = duration(sum(seconds.values()))
    say(console, f"{len(cells)} cells, about {total} on {cores} core{'s' * (cores > 1)}.")


def render(store: Store, out: Path, console: Console) -> None:
    """Write the report of what is stored, and show its first lines."""
    from rlploss.compare.survey import Request
    from rlploss.compare.survey_report import build
    from rlploss.compare.survey_results import Survey
    from rlploss.lab import report

    options = store.requests()[NAME]
    try:
        lists = {name: tuple(options[name]) for name in ("tables", "rows")}
        request = Request(**{**options, **lists, "losses": tuple(map(tuple, options["losses"]))})
    except (KeyError, TypeError) as error:
        raise ValueError(f"a stored survey must have tables, rows and splits, got {str(options)[:80]}") from error
    found = Survey(request, store.read)
    if not found.cells:
        say(console, "No table is whole yet: there is nothing to show.")
        return
    made = build(found, out)
    page, *others = report.write(made, out)
    for text in (*made.summary, f"Report: {page}, with {len(others)} tables and figures beside it."):
        say(console, f"\n{text}")
