"""What a shell completes, and how flags look in the help. No torch and no pandas: a shell waits for
the answer.
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
    """Complete one of these names, or the last of several between commas; a function makes them on
    demand.
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
    """An option whose values a shell completes."""
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
        """All parameters; a flag takes no value, and is shown without one."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class beside this one
        for flag in found:
            flag.metavar = "" if getattr(flag, "is_flag", False) else flag.metavar
        return found


class Command(_PlainFlags, TyperCommand):
    """A command."""


class Group(_PlainFlags, TyperGroup):
    """A group of commands."""
