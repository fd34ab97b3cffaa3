"""Draw figures in one colour-blind-safe style, as SVG files and as SVG inside a page.

A figure is data: a `Figure` holds `Panel`s, and these hold `Line`s. In a report every panel is an
SVG of its own, so that panels stack on a narrow screen. In a file they stand side by side with one
legend. The same data give the same bytes.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as MplFigure

from rlploss._scaling import Array
from rlploss.lab.text import number

INK, MUTED, GRID = "#1c1d21", "#5d6068", "#d9dbe0"
# name: (colour on white, colour on black, dash). Okabe and Ito's hues, darkened for contrast with
# white.
STYLES: dict[str, tuple[str, str, str]] = {
    "blue": ("#0067a5", "#6db8f2", "solid"),
    "green": ("#00805e", "#3fc79a", "dashed"),
    "vermillion": ("#c44e00", "#ff9a52", "solid"),
    "purple": ("#8f3f7f", "#e29ad2", "dashdot"),
    "ochre": ("#8a6a00", "#e3c04b", "dotted"),
    "grey": ("#5f6368", "#b3b8c0", "dashed"),
}
DASHES = {"solid": "", "dashed": "5,3", "dashdot": "6,2,1.5,2", "dotted": "1.5,2"}
PANEL_SIZE = (3.5, 2.55)  # inches
STYLE_SHEET = Path(__file__).with_name("templates") / "figure.mplstyle"


@dataclass(frozen=True)
class Line:
    """One curve with its confidence band; `style` is a key of STYLES."""

    label: str
    style: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `levels` are horizontal reference lines: (label, value, style)."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...] = ()
    x_log: bool = False
    y_log: bool = False
    levels: tuple[tuple[str, float, str], ...] = ()
    note: str = ""
    size = PANEL_SIZE  # of every panel

    def describe(self) -> str:
        """Return the text alternative: what the axes show, and where each curve begins and ends."""
        if not self.lines:
            return f"{self.title}: no data. {self.note}".strip()
        said = [
            f"{line.label} goes from {number(line.y[0])} to {number(line.y[-1])}, lowest"
            f" {number(np.nanmin(line.y))}"
            for line in self.lines
        ]
        said += [f"{label} is marked at {number(value)}" for label, value, _ in self.levels]
        return f"{self.y_label} against {self.x_label}. {'; '.join(said)}."


@dataclass(frozen=True)
class Drawing:
    """Axes that a function draws on (images, boundaries, networks); `alt` describes them in words.

    `data` holds the numbers that are drawn, as rows of (label, x, y).
    """

    title: str
    draw: Callable[[Axes], None]
    alt: str
    size: tuple[float, float] = PANEL_SIZE
    data: tuple[tuple[str, float, float], ...] = ()

    def describe(self) -> str:
        return self.alt


@dataclass(frozen=True)
class Figure:
    """Panels under one heading; `name` is the name of its files."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel | Drawing, ...]
    columns: int = 3
    folded: bool = False  # whether a report shows it folded

    def legend(self) -> list[tuple[str, str, bool]]:
        """List (label, style, whether it is a level) of every line once, curves first."""
        panels = [panel for panel in self.panels if isinstance(panel, Panel)]
        curves = {line.label: (line.style, False) for panel in panels for line in panel.lines}
        levels = {label: (style, True) for panel in panels for label, _, style in panel.levels}
        return [(label, *rest) for label, rest in (curves | levels).items()]


@contextmanager
def _style() -> Iterator[None]:
    with warnings.catch_warnings(), mpl.rc_context(fname=STYLE_SHEET):
        # Names may be in any script.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


# Margins of a panel in inches. They are fixed, because matplotlib's layout engines take most of the
# time of a small figure.
LEFT, RIGHT, TOP, BOTTOM = 0.62, 0.06, 0.28, 0.44


def _draw(
    figure: MplFigure, panel: Panel | Drawing, left: float = 0.0, bottom: float = 0.0
) -> Axes:
    """Draw one panel whose lower left corner is at (left, bottom) inches."""
    (width, height), (across, up) = panel.size, figure.get_size_inches()
    axes = figure.add_axes(
        (
            *((left + LEFT) / across, (bottom + BOTTOM) / up),
            *((width - LEFT - RIGHT) / across, (height - TOP - BOTTOM) / up),
        )
    )
    # In points; a letter is about 0.6 em wide.
    room = (width - LEFT) * 72 / max(1.0, 0.6 * len(panel.title))
    axes.set_title(panel.title, fontsize=min(mpl.rcParams["axes.titlesize"], room))
    if isinstance(panel, Drawing):
        panel.draw(axes)
        return axes
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    if not panel.lines:
        axes.set_axis_off()
        words = textwrap.fill(panel.note or "no data", 42)
        axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes)
        return axes
    for label, value, style in panel.levels:
        axes.axhline(
            value, color=STYLES[style][0], linestyle=(0, (1, 2)), linewidth=1.1, label=label
        )
    for line in panel.lines:
        colour, _, dash = STYLES[line.style]
        if line.low is not None and line.high is not None:
            low = np.where(line.low > 0, line.low, line.y * 0.1) if panel.y_log else line.low
            axes.fill_between(line.x, low, line.high, color=colour, alpha=0.16, linewidth=0)
        axes.plot(
            line.x,
            line.y,
            color=colour,
            linestyle=dash,
            label=line.label,
            marker="o" if len(line.x) <= 12 else "",
            markersize=3,
        )
    axes.set(xscale="log" if panel.x_log else "linear", yscale="log" if panel.y_log else "linear")
    for axis in (axes.xaxis, axes.yaxis):
        _set_ticks(axis)
    return axes


def _set_ticks(axis: Axis) -> None:
    """Set few ticks with short labels. A logarithmic axis gets powers of ten, or 1, 2, 5 if its
    range is short.
    """
    axis.set_major_locator(ticker.MaxNLocator(5))
    if axis.get_scale() == "log":
        low, high = axis.get_view_interval()
        subs = (1.0,) if high > 30 * low else (1.0, 2.0, 5.0) if high > 3 * low else range(1, 10)
        axis.set_major_locator(ticker.LogLocator(subs=subs, numticks=6))
        axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(
        lambda value, _: f"{value:,g}" if 1e-3 <= abs(value) < 1e6 else number(value, 1)
    )


def inline_svg(panel: Panel | Drawing, prefix: str) -> str:
    """Return one panel as SVG to paste into a page. Its ids begin with `prefix`, its colours are
    CSS variables, and a description in words goes with it.
    """
    with _style():
        figure = MplFigure(figsize=panel.size)
        _draw(figure, panel)
        text = _svg(figure, transparent=True)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text[text.index("<svg") :])
    for css, colour in [
        ("ink", INK),
        ("muted", MUTED),
        ("grid", GRID),
        *((k, v[0]) for k, v in STYLES.items()),
    ]:
        text = text.replace(f": {colour}", f": var(--{css}, {colour})")
    head, rest = text.split(">", 1)
    title, words = escape(panel.title), escape(panel.describe())
    return (
        re.sub(r'\s(?:width|height)="[^"]*"', "", head)
        + f' role="img" aria-label="{title}. {words}"><title>{title}</title><desc>{words}</desc>'
        + rest.strip()
    )


def _svg(figure: MplFigure, *, transparent: bool = False) -> str:
    buffer, nothing = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing, transparent=transparent)
    return re.sub(r'(?<= d=")[^"]*(?=")', _shorter, buffer.getvalue())


def _shorter(path: re.Match[str]) -> str:
    """Round a path to tenths of a point, which halves its bytes and cannot be seen."""
    return re.sub(r"-?\d+\.\d+", lambda n: f"{float(n[0]):.1f}", " ".join(path[0].split()))


def svg(figure: Figure) -> str:
    """Return a figure as the text of an SVG file: all panels side by side above one legend."""
    columns = min(figure.columns, len(figure.panels))
    width, starts = (
        max(panel.size[0] for panel in figure.panels),
        range(0, len(figure.panels), columns),
    )
    heights = [max(panel.size[1] for panel in figure.panels[at : at + columns]) for at in starts]
    foot = 0.35 if figure.legend() else 0.0
    with _style():
        drawn = MplFigure(figsize=(columns * width, sum(heights) + foot))
        handles: dict[str, Any] = {}
        for index, panel in enumerate(figure.panels):
            row, column = divmod(index, columns)
            axes = _draw(
                drawn, panel, left=column * width, bottom=sum(heights[row:]) + foot - panel.size[1]
            )
            handles |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
        if shown := [label for label, _, _ in figure.legend() if label in handles]:
            lines = [handles[label] for label in shown]
            drawn.legend(lines, shown, loc="lower center", ncols=len(shown))
        return _svg(drawn)


def data_rows(figure: Figure) -> list[tuple[str, str, float, float, float, float]]:
    """Return the data of a figure to seven digits, as rows of panel, line, x, mean, low, high."""
    rows = []
    for panel in figure.panels:
        if isinstance(panel, Drawing):
            rows += [(panel.title, what, x, y, y, y) for what, x, y in panel.data]
            continue
        for line in panel.lines:
            ends = [line.y if end is None else end for end in (line.low, line.high)]
            for point in np.stack([line.x, line.y, *ends], axis=1):
                x, y, low, high = (float(f"{value:.7g}") for value in point)
                rows.append((panel.title, line.label, x, y, low, high))
    return rows
