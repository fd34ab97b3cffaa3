"""Define `rlploss reproduce` and `rlploss report`: check the arguments and call `rlploss.paper`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlploss._progress import say
from rlploss.cli.compare import Team, _names
from rlploss.cli.shell import among, choice
from rlploss.paper.published import DATASETS, REPORT

NAMED, NAMES = (
    'Tables and figures, or "all"; see --list.',
    among([*(row["name"] for row in REPORT["section"]), "all"]),
)


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help=NAMED, autocompletion=NAMES)
    ] = None,
    scale: Annotated[
        str, choice("smoke (seconds), quick (minutes) or paper (full epochs).", REPORT["scale"])
    ] = "quick",
    budget: Annotated[
        str,
        choice(
            "What is equal for all arms: epochs, steps, or both in turn.",
            ("epochs", "steps", "both"),
        ),
    ] = "both",
    out: Annotated[Path, typer.Option(help="Output directory; the same one resumes.")] = Path(
        "rlploss-results"
    ),
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds, instead of the scale's own.")
    ] = None,
    datasets: Annotated[
        str | None, choice("Only these datasets, e.g. wine,linear.", (*DATASETS, "moons"))
    ] = None,
    arms: Annotated[
        str | None, choice("Only these arms (losses), e.g. mse,rlp.", REPORT["arms"])
    ] = None,
    workers: Team = "local",
    list_: Annotated[
        bool, typer.Option("--list", help="Show every name with its cost, and stop.")
    ] = False,
) -> None:
    """Reproduce tables and figures of the paper. At scale paper, give a verdict on every claim."""
    from rich.console import Console

    from rlploss.lab.executors import parse_workers
    from rlploss.paper import reproduce as work
    from rlploss.paper.request import Request

    console, team = Console(), parse_workers(workers)
    request = Request(scale, budget, seeds=seeds, datasets=_names(datasets), arms=_names(arms))
    if list_:
        work.list_names(request, team, console)
    else:
        work.reproduce(names or [], request, out, workers=team, console=console)


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A directory of `reproduce` or `survey`.")
    ],
    csv: Annotated[
        bool, typer.Option("--csv", help="Write every row to DIR/rows.csv, and nothing else.")
    ] = False,
    declare_equal: Annotated[
        bool,
        typer.Option(
            "--declare-equal",
            help="Train ten random cells of older code again; use its rows if every bit is equal.",
        ),
    ] = False,
) -> None:
    """Render the report of a directory again; nothing is trained, unless asked for."""
    from rich.console import Console

    from rlploss.cli import survey
    from rlploss.lab import run
    from rlploss.lab.report import write_csv
    from rlploss.lab.store import Store
    from rlploss.paper import reproduce as paper
    from rlploss.survey import results

    console = Console()
    with Store(directory, code_version="", create=False) as store:
        if csv:
            write_csv(store, console)
            return
        is_survey = "survey" in store.requests()
        study = (results if is_survey else paper).stored_study(store)
        store.code_version = study.code_version
        if declare_equal:
            run.declare_equal(store, study, console)
        foreign = store.show_what_there_is()
        (survey if is_survey else paper).render(store, directory, console)
        if foreign:
            say(
                console,
                "The runs come from another version of the code; the report shows them unchanged.",
            )
