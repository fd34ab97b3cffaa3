"""Files that are there whole or not at all, and tables as CSV and Markdown."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlploss.lab.errors import shown

Value = str | int | float | bool | None
PART = ".part"  # ends the names of files that are being written


def write_text_atomic(path: Path, text: str) -> None:
    """Write beside the target, then rename: a reader sees the old file or the new one."""
    write_bytes_atomic(path, text.encode())


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """As `write_text_atomic`, for bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{os.getpid()}-", suffix=PART)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _sweep(path: Path) -> None:
    """Remove what processes that were killed while they wrote this file have left."""
    if os.name != "posix":  # elsewhere a process cannot be asked whether it lives
        return
    start = f".{path.name}."
    for name in os.listdir(path.parent):
        if name.startswith(start) and name.endswith(PART):
            writer = name[len(start) :].partition("-")[0]
            if writer.isdecimal() and not _alive(int(writer)):
                (path.parent / name).unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Value]]) -> str:
    """CSV with exact floats; a text cell that a spreadsheet would run as a formula gets a quote in front."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_safe(h) for h in header])
    writer.writerows([[_safe(v) for v in row] for row in rows])
    return buffer.getvalue()


def _safe(value: Value) -> Value:
    if isinstance(value, str):
        # A lone carriage return would end the line for a reader, and the writer does not quote it.
        quoted = f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
        return quoted.replace("\r", " ")
    return repr(value) if isinstance(value, float) else value


def markdown_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars, line ends, HTML, links and control characters in cells are made harmless."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(_cell(c) for c in line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    clean = shown(" ".join(str(text).split())).replace("\\", "\\\\").replace("|", "\\|")
    return clean.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")
