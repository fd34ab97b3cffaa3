"""What a fetch tells its user: bars on a terminal, plain lines elsewhere, nothing if not wanted."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TextIO

Advance = Callable[[int], None]


class DataWarning(UserWarning):
    """A cached file does not hold the bytes it should."""


class Quiet:
    """Say nothing, except what the user must know."""

    def note(self, text: str) -> None:
        """Tell what happens next."""

    def warn(self, text: str) -> None:
        """Tell what is wrong with the user's own files."""
        warnings.warn(text, DataWarning, stacklevel=2)

    @contextlib.contextmanager
    def transfer(self, label: str, total: int | None, done: int = 0) -> Iterator[Advance]:
        """Show a transfer of `total` bytes, `done` of them there already; yields a function to advance it."""
        yield lambda n_bytes: None


class Lines(Quiet):
    """Plain lines, for pipes and logs: one when a transfer begins and one at each quarter."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def note(self, text: str) -> None:
        """Write one line."""
        print(text, file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """Write one line."""
        self.note(f"warning: {text}")

    @contextlib.contextmanager
    def transfer(self, label: str, total: int | None, done: int = 0) -> Iterator[Advance]:
        """Write a line at each quarter of the transfer."""
        size = f"{total / 1e6:.1f} MB" if total else "size unknown"
        self.note(f"{label}: {size}" + (f", resumed at {done / 1e6:.1f} MB" if done else ""))
        position = done

        def advance(n_bytes: int) -> None:
            nonlocal position
            before, position = position, position + n_bytes
            if total and 4 * position // total > 4 * before // total:
                self.note(f"{label}: {100 * position // total} %")

        yield advance


class Bars(Lines):
    """Bars with speed and time left, on a terminal."""

    @contextlib.contextmanager
    def transfer(self, label: str, total: int | None, done: int = 0) -> Iterator[Advance]:
        """Show a bar."""
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(file=self._stream)) as progress:
            task = progress.add_task(label, total=total, completed=done)
            yield lambda n_bytes: progress.advance(task, n_bytes)


def reporter(stream: TextIO | None = None) -> Quiet:
    """Return what suits the stream (standard error): bars on a terminal if rich is installed, else lines."""
    stream = sys.stderr if stream is None else stream
    if stream.isatty():
        with contextlib.suppress(ImportError):
            import rich.progress  # noqa: F401 - only whether it is there

            return Bars(stream)
    return Lines(stream)
