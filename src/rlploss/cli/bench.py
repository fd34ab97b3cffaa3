"""`rlploss bench`: the project's benchmarks, which live beside the package in a source checkout."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds, smaller sizes.")] = False,
    only: Annotated[str | None, typer.Option(help="Suites, separated by commas, e.g. core,subsets.")] = None,
) -> None:
    """Measure every performance claim as a ratio in one run."""
    root = Path(__file__).parents[3]
    if not (root / "benchmarks" / "run.py").exists():
        raise ValueError(
            f"the benchmarks are part of the source checkout, and there is none around {Path(__file__).parent}; "
            "run `make bench` in a clone of the project"
        )
    sys.path.insert(0, str(root))
    arguments = ["--keep-readme", *(["--json"] if json else []), *(["--quick"] if quick else [])]
    code = importlib.import_module("benchmarks.run").main(arguments + (["--only", only] if only else []))
    raise typer.Exit(code)
