"""The command `rlploss`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rlploss._extras import MissingExtra, need


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` if None) and return its exit code."""
    need("lab", "the command", "typer", "rich")
    from rlploss.cli import app

    return app.run(arguments)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        need("lab", "the command", "typer", "rich")
    except MissingExtra as error:
        sys.exit(f"rlploss: {error}")
    from rlploss.cli import app

    app.main()
