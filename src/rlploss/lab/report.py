"""A report: one HTML file that loads nothing, with its tables as CSV and Markdown and its figures as SVG and PNG.

A report is data (`Report` of `Section`s); who writes one needs no HTML, and everything shown is escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rlploss._files import write_text
from rlploss.lab import figures
from rlploss.lab.figures import Figure
from rlploss.lab.text import Scalar, csv_text, markdown_text


class Text(str):
    """A table cell with a tone: good, warn, bad or calm."""

    tone: str

    def __new__(cls, text: str, tone: str = "") -> Text:
        """The text itself, with the tone beside it."""
        made = super().__new__(cls, text)
        made.tone = tone
        return made


@dataclass(frozen=True)
class Table:
    """What is shown (`header`, `rows`), and the exact numbers behind it (`data_header`, `data_rows`) for the CSV."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    data_header: tuple[str, ...] = ()
    data_rows: tuple[tuple[Scalar, ...], ...] = ()
    notes: tuple[str, ...] = ()
    text_columns: frozenset[int] = frozenset()
    rules: frozenset[int] = frozenset()  # rows that begin a group

    def tone(self, row: int, column: int) -> str:
        """The tone of a shown cell, empty for plain text."""
        return getattr(self.rows[row][column], "tone", "")

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(
                    f"table {self.name!r} has {len(self.header)} columns, got a row of {len(row)}: {row!r}"
                )

    def csv(self) -> str:
        """The exact numbers."""
        return csv_text(self.data_header or self.header, self.data_rows or self.rows)

    def markdown(self) -> str:
        """The table as shown."""
        return markdown_text(self.header, self.rows)


@dataclass(frozen=True)
class Claim:
    """A statement, the verdict on it in words, how far the verdict reaches, and the evidence."""

    name: str
    text: str
    verdict: str
    tone: str
    scope: str
    evidence: str
    folded: bool = False  # listed below the others, closed


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
    tables: tuple[Table, ...] = field(default=())  # written as files only

    def all_tables(self) -> list[Table]:
        """Every table, shown or not."""
        return [*(t for s in self.sections for t in s.tables), *self.tables]


def html(report: Report) -> str:
    """The whole page."""
    environment = Environment(
        loader=PackageLoader("rlploss.lab"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    css = environment.get_template("report.css").render(
        light=figures.style_variables(dark=False), dark=figures.style_variables(dark=True)
    )
    counted = Counter((claim.verdict, claim.tone) for claim in report.claims)
    shown = [claim for claim in report.claims if not claim.folded]
    return environment.get_template("report.html.j2").render(
        report=report,
        shown=shown,
        folded=[claim for claim in report.claims if claim.folded],
        css=Markup(css),
        tally=[(word, tone, count) for (word, tone), count in counted.items()],
        # Both escape every text they are given.
        svg=lambda panel, figure, index: Markup(figures.inline_svg(panel, f"{figure}-{index}")),
        swatch=lambda style, level: Markup(figures.legend_swatch(style, level)),
        has_data=lambda figure: bool(figures.data_rows(figure)),
    )


def write(report: Report, directory: Path) -> list[Path]:
    """Write report.html, tables/ and figures/ into the directory; returns what was written, the page first."""
    written: list[Path] = []
    for table in report.all_tables():
        for suffix, text in ((".csv", table.csv()), (".md", table.markdown())):
            path = directory / "tables" / f"{table.name}{suffix}"
            write_text(path, text)
            written.append(path)
    for section in report.sections:
        for figure in section.figures:
            written += figures.save(figure, directory / "figures")
            rows: Sequence[Sequence[Scalar]] = figures.data_rows(figure)
            if rows:
                path = directory / "figures" / f"{figure.name}.csv"
                write_text(path, csv_text(("panel", "line", "x", "mean", "low", "high"), rows))
                written.append(path)
    page = directory / "report.html"
    write_text(page, html(report))
    return [page, *written]
