"""Every NOTE[DIFF] of the source, as a table for the page that lists where we leave the paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARK = "NOTE[DIFF]"


def departures(home: str) -> str:
    """A row for each note: its place in the repository at `home`, and what it says."""
    rows = ["| where | what differs, and why |", "|---|---|"]
    for path in sorted((ROOT / "src").rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        for number, said in notes(path.read_text(encoding="utf-8").splitlines()):
            rows.append(
                f"| [{path.name}]({home}/blob/main/{place}#L{number}) |"
                f" {said.replace('|', '&#124;')} |"
            )
    return "\n".join(rows)


def notes(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The number of each line with a note, and the note up to the end of its sentence, comment or
    docstring.
    """
    for number, line in enumerate(lines, 1):
        before, found, after = line.partition(MARK)
        said = [after.lstrip(": ").removesuffix('"""')] if found else []
        for more in map(str.strip, lines[number:] if found else ()):
            if said[-1].endswith(".") or not more or ("#" in before and not more.startswith("#")):
                break
            said.append(more.removesuffix('"""').lstrip("# "))
            if more.endswith('"""'):
                break
        if said:
            yield number, " ".join(filter(None, said))
