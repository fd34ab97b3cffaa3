"""`rlploss predict`: the model that a comparison kept, on new rows."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from rlploss._progress import say
from rlploss.cli.compare import Encoding


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
    encoding: Encoding = "utf-8",
    trust: Annotated[
        list[str] | None,
        typer.Option(help="A package whose objects the model may hold; may be repeated."),
    ] = None,
) -> None:
    """Predict the target of new rows with the model that `rlploss compare` kept.

    One line per row; for classes with the probability of every class.
    """
    from rich.console import Console

    from rlploss._files import write_text
    from rlploss.compare import load
    from rlploss.compare.read import read_table
    from rlploss.lab.text import csv_text

    told = Console(stderr=True)
    model, frame = load(directory, trust=trust or ()), read_table(table, encoding=encoding)
    header = ["prediction"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        columns = [model.predict(frame).tolist()]
        if hasattr(model, "predict_proba"):
            header += [f"probability of {label}" for label in model.classes_]
            columns += model.predict_proba(frame).T.tolist()
    lacking = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    for text in dict.fromkeys([*frame.attrs.get("notes", ()), *lacking]):
        say(told, f"Warning: in {table.name} {text}.")
    text = csv_text(header, list(zip(*columns, strict=True)))
    if out is None:
        print(text, end="")
    else:
        write_text(out, text)
        say(told, f"{len(frame):,} predictions in {out}.")
