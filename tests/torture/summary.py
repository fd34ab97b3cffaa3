"""What the parts of a torture run have in common: failures that are counted, and lines of a
table."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


class Broken(AssertionError):
    """A promise was broken; the message says which and how."""


def demand(holds: bool, what: str) -> None:
    """Raise Broken unless it holds; unlike assert, also under -O."""
    if not holds:
        raise Broken(what)


@dataclass
class Line:
    """One line of the summary: what was tried, how often, what was seen."""

    part: str
    what: str
    cases: int
    seen: str
    seconds: float
    broken: list[str] = field(default_factory=list)


def table(lines: list[Line]) -> str:
    """The summary, as Markdown."""
    head = ["part", "what", "cases", "seen", "seconds", "result"]
    rows = [
        [
            x.part,
            x.what,
            f"{x.cases:,}",
            x.seen,
            f"{x.seconds:.0f}",
            "broken" if x.broken else "held",
        ]
        for x in lines
    ]
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    shown = [
        " | ".join(cell.ljust(widths[k]) for k, cell in enumerate(row)) for row in [head, *rows]
    ]
    shown.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {row} |" for row in shown)


class Progress:
    """A line now and then, so that a long part is seen to be alive."""

    def __init__(self, part: str, total: int) -> None:
        self.part, self.total, self.started, self.last = (
            part,
            total,
            time.monotonic(),
            time.monotonic(),
        )

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.started

    def tell(self, done: int, words: str = "") -> None:
        """Print if the last line was ten seconds ago, or if this is the end."""
        now = time.monotonic()
        if now - self.last >= 10 or done == self.total:
            self.last = now
            print(
                f"{self.part}: {done:,} of {self.total:,}{words}, {self.seconds:.0f} s", flush=True
            )
