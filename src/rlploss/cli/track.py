"""The option `--track`, for every command that trains."""

from __future__ import annotations

from typing import Annotated

import typer


def _begin(context: typer.Context, track: str | None) -> str | None:
    """Track until the command ends."""
    from rlploss.lab.run import tracking

    if track is not None:
        context.with_resource(tracking(track))
    return track


Track = Annotated[
    str | None,
    typer.Option(callback=_begin, help="Write curves to mlflow:URI or tensorboard:DIR too.", metavar="WHERE"),
]
