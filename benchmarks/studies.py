"""Where the studies put their tables: benchmarks/results/NAME.md as shown, NAME.csv with every
number."""

from __future__ import annotations

from pathlib import Path

from benchmarks.common import Row
from rlploss._files import write_text
from rlploss.lab.text import csv_text, markdown_text

RESULTS = Path(__file__).with_name("results")


def write_results(name: str, title: str, lead: str, shown: list[Row], exact: list[Row]) -> None:
    """Write both files; all rows of one list have the same keys."""
    body = markdown_text(list(shown[0]), [[str(v) for v in row.values()] for row in shown])
    write_text(RESULTS / f"{name}.md", f"# {title}\n\n{lead}\n\n{body}")
    write_text(
        RESULTS / f"{name}.csv", csv_text(list(exact[0]), [list(row.values()) for row in exact])
    )
