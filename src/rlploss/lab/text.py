"""What people read: errors of one sentence (exit code 2, no traceback), numbers, tables as CSV and
Markdown.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TextIO

Scalar = str | int | float | bool | None  # what a cell of a table may hold
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)  # of terminals, and of direction


def shown(text: str) -> str:
    """Text as it may go to a terminal: control characters, which could rewrite what stands there,
    are replaced.
    """
    return _CONTROL.sub("\ufffd", text)


def sentence(text: str, most: int = 700) -> str:
    """One line of bounded length; the middle gives way, because the remedy stands at the end."""
    line = shown(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most // 2]} … {line[-most // 3 :]}"


class LabError(Exception):
    """The laboratory cannot go on, and says why."""


class Stopped(Exception):
    """Ctrl-C: the message says what is stored."""


def number(value: float, digits: int = 3) -> str:
    """So many significant digits, short.

    >>> number(2.6e-6), number(0.2271), number(4100.0), number(0.5)
    ('2.60e-6', '0.227', '4,100', '0.500')
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    value = float(f"{mantissa}e{exponent}")  # or 0.9999 would have a digit more than 1.00
    magnitude = abs(value)
    if magnitude < 1e-3 or magnitude >= 1e6:
        return f"{mantissa}e{int(exponent)}"
    if magnitude >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(magnitude)))}f}"


def write_rows(file: TextIO, header: Sequence[str], rows: Iterable[Sequence[Scalar]]) -> None:
    """Write CSV with exact floats; a text cell that a spreadsheet would run as a formula gets a
    quote in front.
    """
    csv.writer(file, lineterminator="\n").writerows(
        map(_safe, row) for row in chain([header], rows)
    )
    file.flush()


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Scalar]]) -> str:
    """Return what `write_rows` writes."""
    buffer = io.StringIO()
    write_rows(buffer, header, rows)
    return buffer.getvalue()


def _safe(value: Scalar) -> Scalar:
    if isinstance(value, str):
        # A lone carriage return would end the line for a reader, and the writer does not quote it.
        quoted = f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
        return quoted.replace("\r", " ")
    return repr(value) if isinstance(value, float) else value


def markdown_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars, line ends, HTML, links and control characters in cells are made
    harmless.
    """
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(_cell(c) for c in line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    clean = shown(" ".join(str(text).split())).replace("\\", "\\\\").replace("|", "\\|")
    return clean.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")
