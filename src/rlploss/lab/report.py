"""Write a report: one HTML file that loads nothing, its tables as CSV and Markdown, its figures as
SVG.

A report is data: a `Report` holds `Section`s. Its author writes no HTML, and all text is escaped.
The same module writes all rows of a store as one long table.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from rlploss._files import replacing, write_text
from rlploss._progress import say
from rlploss.lab import figures
from rlploss.lab.figures import Figure
from rlploss.lab.store import Store
from rlploss.lab.text import Scalar, csv_text, markdown_text, write_rows

# The tone of each word of `stats.Contrast`.
WORD_TONES = {"better": "good", "worse": "bad", "level": "calm", "undecided": "open"}

# Columns of the table of all rows.
COLUMNS = (
    *("task", "seed", "split", "arm", "metric", "step", "value", "seconds"),
    *("cell", "code_version"),
)
# The fields of a task and of a variant that decide, beside the seed, how rows are split.
SPLITS = (
    *("rows", "outside", "n_train", "n_test", "first", "region", "held_out"),
    *("shift", "noise"),
)


class Text(str):
    """A table cell with a tone: good, warn, open, bad or calm; an empty tone is plain."""

    tone: str

    def __new__(cls, text: str, tone: str = "") -> Text:
        cell = super().__new__(cls, text)
        cell.tone = tone
        return cell


@dataclass(frozen=True)
class Table:
    """A table as shown (`header`, `rows`), and its exact numbers for the CSV (`data_header`,
    `data_rows`).
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    data_header: tuple[str, ...] = ()
    data_rows: tuple[tuple[Scalar, ...], ...] = ()
    notes: tuple[str, ...] = ()
    text_columns: frozenset[int] = frozenset()
    rules: frozenset[int] = frozenset()  # rows that begin a group, under a line

    def __post_init__(self) -> None:
        n = len(self.header)
        for row in self.rows:
            if len(row) != n:
                raise ValueError(
                    f"table {self.name!r} has {n} columns, got a row of {len(row)}: {row!r}"
                )

    def csv(self) -> str:
        return csv_text(self.data_header or self.header, self.data_rows or self.rows)

    def markdown(self) -> str:
        return markdown_text(self.header, self.rows)


@dataclass(frozen=True)
class Claim:
    """A statement, the verdict on it in words, the scope of the verdict, and the evidence."""

    name: str
    text: str
    verdict: str
    tone: str
    scope: str
    evidence: str


@dataclass(frozen=True)
class Section:
    """One table or figure, or several that belong together."""

    name: str
    title: str
    short: str = ""
    lead: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    command: str = ""


@dataclass(frozen=True)
class Report:
    """Everything in the file, from top to bottom."""

    title: str
    summary: tuple[str, ...]
    sections: tuple[Section, ...]
    claims: tuple[Claim, ...] = ()
    claims_title: str = "Claims and verdicts"
    claims_lead: tuple[str, ...] = ()
    footer: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()  # written as files, and not shown


def html(report: Report) -> str:
    """Return the whole page."""
    environment = Environment(
        loader=PackageLoader("rlploss.lab"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.globals |= {"styles": figures.STYLES, "dashes": figures.DASHES}
    return environment.get_template("report.html.j2").render(
        report=report,
        css=Markup(environment.get_template("report.css").render()),
        tally=Counter((claim.verdict, claim.tone) for claim in report.claims),
        # `inline_svg` escapes every text.
        svg=lambda panel, figure, index: Markup(figures.inline_svg(panel, f"{figure}-{index}")),
        has_data=lambda figure: bool(figures.data_rows(figure)),
    )


def show(console: Console, table: Table) -> None:
    """Print a table, drawn to the width of a terminal, or as Markdown elsewhere."""
    if not console.is_terminal:
        say(console, table.markdown())
        return
    drawn = RichTable(box=box.SIMPLE, pad_edge=False, show_edge=False)
    for at, name in enumerate(table.header):
        drawn.add_column(
            name,
            justify="left" if at == 0 or at in table.text_columns else "right",
            overflow="fold",
        )
    colours = {"good": "green", "bad": "red", "calm": "dim"}
    for row in table.rows:
        drawn.add_row(
            *(RichText(str(cell), style=colours.get(getattr(cell, "tone", ""), "")) for cell in row)
        )
    console.print(drawn)


def write(report: Report, directory: Path) -> list[Path]:
    """Write report.html, tables/ and figures/ into the directory, and return their paths, the page
    first.
    """
    texts: dict[str, str] = {}
    tables = (table for section in report.sections for table in section.tables)
    for table in (*tables, *report.tables):
        texts[f"tables/{table.name}.csv"] = table.csv()
        texts[f"tables/{table.name}.md"] = table.markdown()
    for figure in (figure for section in report.sections for figure in section.figures):
        texts[f"figures/{figure.name}.svg"] = figures.svg(figure)
        if rows := figures.data_rows(figure):
            header = ("panel", "line", "x", "mean", "low", "high")
            texts[f"figures/{figure.name}.csv"] = csv_text(header, rows)
    for name, text in {**texts, "report.html": html(report)}.items():
        write_text(directory / name, text)
    return [directory / name for name in ("report.html", *texts)]


# All rows of a store


def long_rows(store: Store) -> Iterator[tuple[Scalar, ...]]:
    """Yield every number of every network, whatever code wrote it: a metric at a step, or a single
    number.
    """
    for key, code, spec, origin, networks in store.every_cell():
        levels = spec["task"].get("variants") or [{}]
        for n in networks:
            facts = {**spec["task"], **levels[n.variant]}
            split = [
                f"{k}={facts[k]}" for k in SPLITS if str(facts.get(k)) not in ("None", "False")
            ]
            labels = origin.get("task", ""), n.seed, " ".join(split), origin.get("arm", "")
            steps = n.curve.get("step", [])
            seconds = n.curve.get("seconds", [n.seconds] * len(steps))
            for metric in sorted({*n.curve} - {"step", "seconds"}):
                for step, value, took in zip(steps, n.curve[metric], seconds, strict=True):
                    yield *labels, metric, int(step), value, took, key, code
            for metric, value in sorted(n.values.items()):
                yield *labels, metric, None, value, n.seconds, key, code


def write_csv(store: Store, console: Console) -> None:
    """Write all rows of a store as one long table beside it."""
    path = store.directory / "rows.csv"
    with replacing(path) as file, store.understood("a row"):
        text = io.TextIOWrapper(file, "utf-8", newline="")
        write_rows(text, COLUMNS, long_rows(store))
        text.detach()  # `replacing` closes the file
    say(console, f"Every row: {path}")
