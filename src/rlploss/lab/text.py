"""Format what people read: one-sentence errors, numbers, and tables as CSV and Markdown."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TextIO

Scalar = str | int | float | bool | None  # the types that a table cell may hold
# Terminal control codes, and codes that change the writing direction.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """Replace control characters, which could rewrite other text on a terminal."""
    return _CONTROL.sub("\ufffd", text)


def sentence(text: str, most: int = 700) -> str:
    """Return the text as one line of bounded length. The middle is cut, because the remedy stands
    at the end.
    """
    line = shown(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most // 2]} … {line[-most // 3 :]}"


class LabError(Exception):
    """The command cannot continue; the message says why in one sentence (exit code 2)."""


class Stopped(Exception):
    """The user pressed Ctrl-C; the message says what is stored."""


def number(value: float, digits: int = 3) -> str:
    """Format a number briefly, with this many significant digits.

    >>> number(2.6e-6), number(0.2271), number(4100.0), number(0.5)
    ('2.60e-6', '0.227', '4,100', '0.500')
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    value = float(f"{mantissa}e{exponent}")  # otherwise 0.9999 would get one digit more than 1.00
    magnitude = abs(value)
    if magnitude < 1e-3 or magnitude >= 1e6:
        return f"{mantissa}e{int(exponent)}"
    if magnitude >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(magnitude)))}f}"


def write_rows(file: TextIO, header: Sequence[str], rows: Iterable[Sequence[Scalar]]) -> None:
    """Write CSV with exact floats. A quote is put before text that a spreadsheet would run as a
    formula.
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
        # Readers end a line at a lone carriage return, and the writer does not quote it.
        quoted = f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
        return quoted.replace("\r", " ")
    return repr(value) if isinstance(value, float) else value


def markdown_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, with bars, line ends, HTML, links and control characters in cells
    made harmless.
    """
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(_cell(c) for c in line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    clean = shown(" ".join(str(text).split())).replace("\\", "\\\\").replace("|", "\\|")
    return clean.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")
