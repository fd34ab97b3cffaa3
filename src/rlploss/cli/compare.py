"""Define `rlploss compare` and `rlploss inspect`: read the arguments, run a comparison, print the
answer.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlploss._progress import say
from rlploss.cli.shell import choice

if TYPE_CHECKING:
    from rich.console import Console

    from rlploss.compare.design import Design
    from rlploss.estimators.kinds import Column

ARMS = (
    "regression: mean, ridge, lasso, boosting, trees, gp, mse, mae, huber, mse+l2, mse+mixup, rlp,"
    " rlp+l2, rlp+mixup, rlp-cv; classification: prior, logistic, boosting, trees, cross_entropy,"
    " cross_entropy+l2, cross_entropy+mixup, mse, mse+l2, rlp, rlp+l2, rlp+mixup"
)
ARM_NAMES = dict.fromkeys(re.findall(r"[\w+-]+(?=[,;]|$)", ARMS))  # each once

TableArgument = Annotated[
    Path, typer.Argument(metavar="TABLE", help="A CSV, TSV, Excel, Parquet, Feather or JSON file.")
]
Target = Annotated[str, typer.Option(help="The column to predict.", show_default=False)]
TaskOption = Annotated[
    str, choice("auto, regression or classification.", ("auto", "regression", "classification"))
]
Drop = Annotated[str | None, typer.Option(help="Columns to leave out, separated by commas.")]
Time = Annotated[str | None, typer.Option(help="A column: train on the past, test on the future.")]
Group = Annotated[
    str | None, typer.Option(help="A column: rows that share its value stay together.")
]
TELLS = "the table tells"
Decimal = Annotated[
    str | None, typer.Option(help="The decimal sign of numbers, . or ,", show_default=TELLS)
]
Thousands = Annotated[
    str | None,
    typer.Option(help="What stands between thousands: , . ' space or none", show_default=TELLS),
]
ENCODINGS = ("utf-8", "utf-16", "latin-1", "cp1252")
Encoding = Annotated[str, choice("The encoding of a text file, e.g. latin-1.", ENCODINGS)]


OwnLosses = Annotated[
    list[str] | None, typer.Option(help="A loss of your own, FILE.py:NAME; may be repeated.")
]
OwnModels = Annotated[
    list[str] | None,
    typer.Option(help="An estimator of scikit-learn, FILE.py:NAME; may be repeated."),
]
WHO = (
    "Who trains: inline (this process), local (one process per core), local:N, or a cluster,"
    " dask:tcp://HOST:PORT"
)
TEAMS = ("inline", "local", "dask:tcp://")
Team = Annotated[str, choice(f"{WHO}.", TEAMS)]
TeamOrAuto = Annotated[
    str, choice(f"{WHO}; auto decides by how much there is to do.", ("auto", *TEAMS))
]


def compare(
    table: TableArgument,
    target: Target,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output directory; the same one resumes.",
            show_default="named after table and target",
        ),
    ] = None,
    task: TaskOption = "auto",
    metric: Annotated[
        str | None,
        choice(
            "What decides: rmse, mae, r2; for classes accuracy, balanced, auc, log_loss, brier.",
            ("rmse", "mae", "r2", "accuracy", "balanced", "auc", "log_loss", "brier"),
        ),
    ] = None,
    arms: Annotated[
        str | None, choice(f"Only these arms, separated by commas. For {ARMS}.", ARM_NAMES)
    ] = None,
    loss: OwnLosses = None,
    model: OwnModels = None,
    drop: Drop = None,
    time: Time = None,
    group: Group = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The arms that matter most, on 5 splits.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(help="End within so many seconds, with what there is.")
    ] = None,
    splits: Annotated[
        int | None,
        typer.Option(help="Splits into training and test rows.", show_default="10; 5 with --quick"),
    ] = None,
    steps: Annotated[int, typer.Option(help="The most optimiser steps of a network.")] = 4000,
    max_rows: Annotated[
        int, typer.Option(help="The most rows; larger tables are sampled.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="The seed of the first split.")] = 0,
    workers: TeamOrAuto = "auto",
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = "utf-8",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print the three lines of the answer, and nothing else.")
    ] = False,
) -> None:
    """Find the best of fifteen models for your table, with an honest error, and keep it.

    Linear models, trees, a Gaussian process and neural networks are tuned and tested on the same
    splits of your rows. You get three lines (what to use and how far off it is, whether another
    loss helps a network, how sure that is), a report with the columns that matter, and a model file
    for `rlploss predict`. A loss (--loss) or a model (--model) of your own may compete.
    """
    from rich.console import Console

    from rlploss.compare import comparison, report
    from rlploss.lab.report import show
    from rlploss.lab.run import check_there

    shown, progress = Console(), Console(stderr=True, quiet=quiet or as_json)
    design = _read(
        table,
        target,
        task=task,
        drop=drop,
        encoding=encoding,
        time=time,
        group=group,
        decimal=decimal,
        thousands=thousands,
    )
    place = Path(re.sub(r"[^\w.+-]+", "_", f"{table.stem}-{target}")[:100]) if out is None else out
    asked = {
        "task": task,
        "metric": metric,
        "arms": arms,
        "loss": loss,
        "model": model,
        "drop": drop,
        "time": time,
        "group": group,
        "quick": quick,
        "splits": splits,
        "steps": steps,
        "max-rows": max_rows,
        "seed": seed,
    }
    replaced = _check_place(place, design, source=table.name, asked=asked)

    def tell() -> None:
        if replaced:
            say(progress, replaced)
        _tell_table(progress, table, design, columns=[c for c in design.columns if c.remark])

    answer = comparison.compare(
        design,
        metric=metric,
        arms=_names(arms),
        losses=_own_values(loss),
        models=_own_values(model, "model"),
        n_splits=splits,
        steps=steps,
        max_rows=max_rows,
        quick=quick,
        time_limit=time_limit,
        random_state=seed,
        workers=workers,
        out=place,
        progress=progress,
        on_start=tell,
    )
    answer = replace(
        answer,
        source=table.name,
        settings=asked,
        command=shlex.join(["rlploss", *sys.argv[1:]]) if sys.argv[1:2] == ["compare"] else "",
    )
    page = answer.write(place)  # before printing, which fails if the reader closes the pipe
    check_there(place)
    say(
        shown,
        json.dumps(report.as_json(answer), ensure_ascii=False) if as_json else answer.summary(),
    )
    if as_json or quiet:
        return
    for text in (*answer.notes, *report.late_said(answer)):
        say(shown, text)
    fewer = any(len(arm.predicted) < len(answer.seeds) for arm in answer.results.arms)
    say(shown, f"\nTest rows, {len(answer.seeds)} splits{', or as many as in brackets' * fewer}\n")
    show(shown, report.result_table(answer.results, short=True))
    say(
        shown,
        f"\nReport: {page}\nModel: {place / 'model'}; rlploss predict {shlex.quote(str(place))}"
        " NEW.csv uses it",
    )


def inspect(
    table: TableArgument,
    target: Target,
    task: TaskOption = "auto",
    drop: Drop = None,
    time: Time = None,
    group: Group = None,
    decimal: Decimal = None,
    thousands: Thousands = None,
    encoding: Encoding = "utf-8",
) -> None:
    """Say what each column would become, and which subset sizes RLP would try. Nothing is
    trained.
    """
    from rich.console import Console

    from rlploss.compare.comparison import dial_said
    from rlploss.compare.train import Trainer

    console = Console()
    design = _read(
        table,
        target,
        task=task,
        drop=drop,
        encoding=encoding,
        time=time,
        group=group,
        decimal=decimal,
        thousands=thousands,
    )
    _tell_table(console, table, design, columns=design.columns)
    if design.target.classes:
        counted = ", ".join(
            f"{label} ({int((design.target.y == i).sum()):,})"
            for i, label in enumerate(design.target.classes)
        )
        say(console, f"Classes: {counted}.")
    say(console, dial_said(Trainer.of(design)))


def _read(
    table: Path, target: str, task: str, drop: str | None, encoding: str, **options: str | None
) -> Design:
    from rlploss.compare.design import make_design
    from rlploss.compare.read import read_table

    return make_design(
        read_table(table, encoding=encoding),
        target,
        task=task,
        drop=_names(drop) or (),
        from_file=True,
        **options,
    )


def _tell_table(console: Console, table: Path, design: Design, columns: Sequence[Column]) -> None:
    """Say what a table is and what becomes of these columns of it."""
    from rlploss.compare.report import columns_table
    from rlploss.lab.report import show

    say(
        console,
        f"{table.name}: {design.n_rows:,} rows"
        + f", {design.n_dropped:,} of them without a target and left out" * bool(design.n_dropped)
        + f"; target {design.target.name!r}: {design.target.said}. {design.said}".rstrip(),
    )
    if columns:
        show(console, columns_table(columns))
    shown = {column.name for column in columns}
    if plain := len({column.name for column in design.columns if column.used} - shown):
        say(
            console,
            (
                "1 column taken as it stands."
                if plain == 1
                else f"{plain} columns taken as they stand."
            ),
        )
    for text in design.warnings:
        say(console, f"Warning: {text}.")


def _check_place(place: Path, design: Design, source: str, asked: dict[str, Any]) -> str:
    """Refuse a directory that has the report of another table; return which settings of a report
    that will be replaced were others.
    """
    from rlploss._files import read_bytes

    try:
        before = json.loads(read_bytes(place / "comparison.json", 2**28))
        other = [
            *(before.get("source", source), before.get("target")),
            {column["name"] for column in before.get("columns", ())},
        ]
        others = [
            f"--{name} was {value}"
            for name, value in before.get("settings", {}).items()
            if asked.get(name) != value
        ]
    except Exception:  # it is not there, or somebody else has written it
        return ""
    if other != [source, design.target.name, {column.name for column in design.columns}]:
        raise ValueError(
            f"{place} holds the report of another table, {other[0]} with the target {other[1]!r};"
            " choose another directory with --out"
        )
    if not others:
        return ""
    return (
        f"{place} has a report with other settings ({', '.join(others)}): it and its model are"
        " replaced at the end, what was trained stays; --out names another directory."
    )


def _own_values(texts: list[str] | None, option: str = "loss") -> dict[str, Any]:
    """Return what FILE.py:NAME names, losses or models, by their names; a class is called without
    arguments.
    """
    from rlploss._values import load_file
    from rlploss.compare.arms import model_arm
    from rlploss.lab.executors import reason
    from rlploss.lab.study import as_loss

    own: dict[str, Any] = {}
    for text in texts or ():
        path, _, name = text.rpartition(":")
        if not path.endswith(".py") or not Path(path).exists():
            raise ValueError(f"--{option} takes FILE.py:NAME of a file that is there, got {text!r}")
        try:
            value = vars(load_file(Path(path))).get(name)
            if value is None:
                raise LookupError(f"there is no {name!r} in it")
            value = value() if isinstance(value, type) else value
            if option == "model":
                model_arm(name, value, own)
            own[name] = value if option == "model" else as_loss(name, value, own)
        except (Exception, SystemExit) as error:  # the user's file may raise anything
            raise ValueError(
                f"--{option} {text} cannot be used ({reason(error)}); correct the file or name"
                " another"
            ) from error
    return own


def _own_losses(texts: list[str] | None, taken: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the name and the JSON of each, for processes that load it again; no name may be
    taken.
    """
    from rlploss.lab.study import loss_json

    return tuple((name, loss_json(name, loss, taken)) for name, loss in _own_values(texts).items())


def _names(text: str | None) -> tuple[str, ...] | None:
    names = (
        None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
    )
    if names == ():
        raise ValueError(f"give names separated by commas, got {text!r}")
    return names
