"""Define `rlploss predict`: apply the model of a comparison to new rows."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from rlploss._progress import say
from rlploss.cli.compare import Encoding, _names


def predict(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory that `rlploss compare` wrote.")
    ],
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="New rows: a table, as for compare.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="A CSV file for the predictions.", show_default="print them")
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="The share of rows that shall lie between lower and upper.")
    ] = 0.9,
    keep: Annotated[
        str | None, typer.Option(help="Columns to pass through, separated by commas, e.g. an id.")
    ] = None,
    encoding: Encoding = "utf-8",
    trust: Annotated[
        list[str] | None,
        typer.Option(help="A package whose objects the model may hold; may be repeated."),
    ] = None,
) -> None:
    """Predict the target of new rows with the model that `rlploss compare` kept.

    One line per row: numbers with the ends of an interval, classes with the probability of each.
    If the target is there, say how far off the predictions are.
    """
    import numpy as np
    from rich.console import Console

    from rlploss import _checks
    from rlploss._files import write_text
    from rlploss.compare import load
    from rlploss.compare.expected import Expected
    from rlploss.compare.read import read_table
    from rlploss.lab.text import csv_text

    console = Console(stderr=True)
    model, frame = load(directory, trust=trust or ()), read_table(table, encoding=encoding)
    expected = Expected.load(directory)
    columns: dict[str, list[Any]] = {}
    for name in _names(keep) or ():
        columns[name] = frame[_checks.one_of("keep", name, frame.columns)].tolist()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        columns["prediction"] = model.predict(frame).tolist()
        if expected.classes:
            p = expected.calibrated(expected.ordered(model, frame))
            heads = [f"probability of {label}" for label in expected.classes]
            columns |= dict(zip(heads, p.T.tolist(), strict=True))
        else:
            p = np.array(columns["prediction"])[:, None]
            lower, upper = expected.interval(p[:, 0], coverage)
            columns |= {"lower": lower.tolist(), "upper": upper.tolist()}
    lacking = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    for text in dict.fromkeys([*frame.attrs.get("notes", ()), *lacking]):
        say(console, f"Warning: in {table.name} {text}.")
    text = csv_text(list(columns), list(zip(*columns.values(), strict=True)))
    if out is None:
        print(text, end="")
    else:
        write_text(out, text)
        say(console, f"{len(frame):,} predictions in {out}.")
    if expected.target in frame.columns:
        say(console, expected.sentence(p, frame[expected.target], coverage))
