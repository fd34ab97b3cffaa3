"""Complete words in the shell, and show flags in the help. This imports neither torch nor pandas,
because the shell waits for the answer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

Names = Iterable[str] | Callable[[], Iterable[str]]


def among(names: Names) -> Callable[[str], list[str]]:
    """Return a function that completes a name, or the last of several between commas; `names` may
    be a function that returns the names on demand.
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [
            before + comma + name
            for name in (names() if callable(names) else names)
            if name.startswith(last)
        ]

    return complete


def choice(help: str, names: Names) -> Any:
    """Return an option whose values the shell completes."""
    return typer.Option(help=help, autocompletion=among(names))


def listed(files: Iterable[str], *more: str) -> Callable[[], list[str]]:
    """Return a function that reads the names of datasets, or of tables, from files of `datasets`,
    without importing the modules beside them.
    """

    def names() -> list[str]:
        directory = Path(__file__).parents[1] / "datasets"
        contents = [tomllib.loads((directory / file).read_text("utf-8")) for file in files]
        return [*(name for content in contents for name in content.get("tables", content)), *more]

    return names


class _PlainFlags:
    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, with flags shown without a value."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class beside this one
        for flag in parameters:
            flag.metavar = "" if getattr(flag, "is_flag", False) else flag.metavar
        return parameters


class Command(_PlainFlags, TyperCommand):
    """A command."""


class Group(_PlainFlags, TyperGroup):
    """A group of commands."""
