"""`rlploss compare` and `rlploss inspect`: arguments in, one comparison or one look at a table out."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from rlploss._progress import say
from rlploss.cli.track import Track

if TYPE_CHECKING:
    from rich.console import Console

    from rlploss.compare.columns import Design

N = TypeVar("N", int, float)

TableArgument = Annotated[Path, typer.Argument(metavar="TABLE", help="A CSV, TSV or Parquet file.")]
Target = Annotated[str, typer.Option(help="The column to predict.", show_default=False)]
TaskOption = Annotated[str, typer.Option(help="regression, classification, or auto.")]
Drop = Annotated[str | None, typer.Option(help="Columns to leave out, separated by commas.")]
Encoding = Annotated[str, typer.Option(help="Of a text file, e.g. latin-1.")]


def compare(
    table: TableArgument,
    target: Target,
    out: Annotated[Path, typer.Option(help="Output directory; the same one resumes.")] = Path("rlploss-compare"),
    task: TaskOption = "auto",
    arms: Annotated[str | None, typer.Option(help="Only these, e.g. mse,rlp,boosting.")] = None,
    drop: Drop = None,
    train_size: Annotated[str | None, typer.Option(help="Also with so many training rows, e.g. 50,100.")] = None,
    noise: Annotated[
        str | None, typer.Option(help="Also with noise on the training features, in standard deviations.")
    ] = None,
    shift: Annotated[
        str | None, typer.Option(help="Also with training rows near the mean and test rows far from it, e.g. 0.9.")
    ] = None,
    splits: Annotated[int, typer.Option(help="Splits into training and test rows.")] = 10,
    steps: Annotated[int, typer.Option(help="Optimiser steps of every network.")] = 1000,
    max_rows: Annotated[int, typer.Option(help="Larger tables are sampled.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Of the first split.")] = 0,
    workers: Annotated[
        str, typer.Option(help='"local:N" processes, "inline", or a Dask cluster: "dask:tcp://HOST:PORT".')
    ] = "local",
    track: Track = None,
    encoding: Encoding = "utf-8",
) -> None:
    """Compare RLP with other losses, and with what one would otherwise use, on a table of your own."""
    from rich.console import Console

    from rlploss.compare import answer
    from rlploss.compare.report import result_table

    console = Console()
    design = _read(console, table, target, task, drop, encoding, between=",")
    found = answer.compare(
        design,
        arms=_names(arms),
        train_size=_numbers("train-size", train_size, int),
        noise=_numbers("noise", noise, float),
        shift=_numbers("shift", shift, float),
        n_splits=splits,
        steps=steps,
        max_rows=max_rows,
        random_state=seed,
        workers=workers,
        out=out,
        progress=console,
    )
    command = shlex.join(["rlploss", *sys.argv[1:]]) if sys.argv[1:2] == ["compare"] else ""
    loads = _loads(table, target, task=task, drop=_names(drop) or (), encoding=encoding)
    found = replace(found, source=table.name, command=command, loads=loads)
    page = found.write(out)
    for condition in found.conditions:
        shown = result_table(found, condition)
        say(console, f"\n{condition.label[0].upper()}{condition.label[1:]}\n\n{shown.markdown()}")
    say(console, f"{found.summary()}\n\nReport: {page}")


def inspect(
    table: TableArgument, target: Target, task: TaskOption = "auto", drop: Drop = None, encoding: Encoding = "utf-8"
) -> None:
    """Say what each column would become, and what RLP's dial would be; trains nothing."""
    import numpy as np
    from rich.console import Console

    from rlploss.estimators.dial import auto_subset_size

    console = Console()
    design = _read(console, table, target, task, drop, encoding, between=";")
    if design.target.classes:
        counts = (f"{label} ({int((design.target.y == i).sum()):,})" for i, label in enumerate(design.target.classes))
        say(console, f"Classes: {', '.join(counts)}.")
    n, d = design.X.shape
    p = d + 1
    X, y, classes = (
        np.where(np.isnan(design.X), np.nanmean(design.X, axis=0), design.X),
        design.target.y,
        design.target.classes,
    )
    size = auto_subset_size(X, np.eye(len(classes))[y] if classes else y)
    chosen = "MSE" if size is None else f"{size} rows of {n:,}"
    dial = f'subset_size="auto" is {chosen}; up to {p} rows RLP is MSE, at {n:,} linear regression'
    if n < p + 3:
        dial = f"{n} rows are too few for subsets of more than p rows: RLP is MSE here"
    say(console, f"The dial: p = {p} ({d} columns of numbers and the intercept); {dial}.")


def _read(
    console: Console, table: Path, target: str, task: str, drop: str | None, encoding: str, *, between: str
) -> Design:
    """Read a table, and say what it is and what becomes of its columns."""
    from rlploss.compare.columns import make_design
    from rlploss.compare.read import read_table
    from rlploss.compare.report import columns_table

    design = make_design(read_table(table, encoding=encoding), target, task=task, drop=_names(drop) or ())
    gone = f", {design.n_dropped:,} of them without a target and left out" if design.n_dropped else ""
    say(console, f"{table.name}: {design.n_rows:,} rows{gone}{between} target {target!r}: {design.target.said}.")
    say(console, columns_table(design.columns).markdown())
    return design


def _loads(table: Path, target: str, **options: object) -> str:
    """The call that reads the same file in Python; options at their defaults are left out."""
    usual = {"task": "auto", "drop": (), "encoding": "utf-8"}
    told = [f"{name}={value!r}" for name, value in options.items() if value != usual[name]]
    return f"load_table({', '.join([repr(str(table)), repr(target), *told])})"


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(option: str, text: str | None, kind: type[N]) -> list[N] | None:
    if text is None:
        return None
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"--{option} takes {what} separated by commas, got {text!r}") from None
