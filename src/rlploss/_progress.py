"""Show progress and the time left: one line that is rewritten on a terminal, or plain lines when
piped.
"""

from __future__ import annotations

import io
import math
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Progress:
    """The progress of a run. `remaining` is the time left in seconds, at the pace so far.

    >>> # for fit(..., progress=tell)
    >>> tell = lambda state: print(f"{state.step} of {state.total_steps}")
    """

    step: int
    total_steps: int
    elapsed: float
    remaining: float


ProgressFunction = Callable[[Progress], None]


class ProgressLine:
    """Shows which share of `total` is done, and the time left, with a label.

    On a terminal the line is rewritten a few times a second, elsewhere a line is written every
    `every` seconds.
    """

    def __init__(
        self, total: float, *, stream: IO[str] | None = None, every: float = 10.0, done: float = 0.0
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._every = 0.25 if self._terminal else every
        self._total, self.begun = total, done  # earlier work took no time in this run
        self.started = time.perf_counter()
        self.due = self.started + (0.0 if self._terminal else every)
        self._open = False  # whether the current line may still be rewritten

    def remaining(self, done: float, now: float) -> float:
        """Return the seconds left, at the pace so far."""
        fresh = done - self.begun
        return (now - self.started) / fresh * (self._total - done) if fresh > 0 else math.inf

    def tell(self, done: float, label: str, *, now: bool = False) -> None:
        """Show the state if an update is due, or always with `now`."""
        clock = time.perf_counter()
        if not now and clock < self.due:
            return
        self.due, left = clock + self._every, self.remaining(done, clock)
        share = f"{done / self._total:4.0%}" if self._total else "    "
        ending = (
            ", done"
            if done >= self._total
            else f", {duration(left)} left"
            if math.isfinite(left)
            else ""
        )
        text = f"{share} {label}{ending}"
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + text[:width].ljust(width), end="", file=self._stream, flush=True)
            self._open = True
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """Write a sentence on a line of its own."""
        self.close()
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """End the line, so that other output goes below it."""
        if self._open:
            print(file=self._stream, flush=True)
            self._open = False


class Reporter:
    """Reports how many steps are done: to a function, as a line on standard error, or (False) not
    at all.
    """

    def __init__(self, progress: bool | ProgressFunction, total: int) -> None:
        self._function = progress if callable(progress) else None
        self._line = ProgressLine(total, stream=sys.stderr if progress is True else io.StringIO())
        self._total, self._done = total, 0
        # The time of the next report.
        self.due = (
            self._line.due
            if progress is True
            else self._line.started
            if self._function
            else math.inf
        )

    def add(self, steps: int, *, resumed: bool = False) -> None:
        """Count steps as done; `resumed` steps are those of an earlier run."""
        self._done += steps
        self._line.begun += steps if resumed else 0
        if time.perf_counter() >= self.due:
            self._tell()

    def end(self) -> None:
        """Report the final state."""
        self._tell(last=True)
        self._line.close()

    def _tell(self, *, last: bool = False) -> None:
        if self._function is None:
            self._line.tell(self._done, f"step {self._done:,} of {self._total:,}", now=last)
            self.due = self._line.due
            return
        now = time.perf_counter()
        remaining = 0.0 if last else self._line.remaining(self._done, now)
        self.due = now + 0.25
        self._function(
            Progress(
                step=self._done,
                total_steps=self._total,
                elapsed=now - self._line.started,
                remaining=remaining,
            )
        )


def duration(seconds: float) -> str:
    """Return seconds in words: 8 s, 3 min, 1 h 20 min.

    >>> duration(75)
    '1 min 15 s'
    """
    if round(seconds) < 60:
        return f"{max(1, round(seconds))} s"
    if seconds < 600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def say(console: Console, text: str) -> None:
    """Print text unchanged: no markup in brackets, no colours, no line breaks."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
