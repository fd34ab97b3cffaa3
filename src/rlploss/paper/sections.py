"""The report: every name of `report.toml` with its tables and figures, and the summary in plain words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlploss.lab import stats, train
from rlploss.lab.figures import Drawing, Figure, Line, Panel
from rlploss.lab.report import Claim, Section, Table
from rlploss.lab.results import StoredCell
from rlploss.lab.study import AnyCell, Variant
from rlploss.lab.text import number
from rlploss.paper import published, studies, verdicts
from rlploss.paper.drawings import boundary_drawing, network_drawings, plane_drawings, reconstruction_drawing
from rlploss.paper.error_tables import error_table, hyperparameter_tables, measured_table, ratio_table
from rlploss.paper.protocols import ARMS, PROTOCOLS
from rlploss.paper.results import METRICS, SCORES, Grid, StoredResults, title_of

Content = list[Table | Figure]
CLASSES = {"": ("ce", "rlp"), ", mixup": ("ce_mixup", "rlp_mixup")}
NETWORKS = ("regression", "moons", "autoencoder", "lenet5", "measured")
TIMES = ("name", "networks", *NETWORKS, "all", "predicted")
AXES = {"epoch": "epochs", "step": "optimiser steps", "seconds": "training seconds", "shift": "γ", "noise": "β"}
BAND = "Mean over seeds with its 95 % confidence band."
BESIDE = ("released", "steps")  # shown side by side, a pair of panels for each task
Panels = Callable[[str, str, Sequence[str]], Iterable[Panel]]  # of a protocol, an axis and some tasks
TABLES: dict[str, Callable[..., Table]] = {"errors": error_table, "ratios": ratio_table}


def figures(grid: Grid, title: str, on: str, panels: Panels, *, columns: int = 3) -> list[Figure]:
    """Equal epochs and equal steps side by side, then a folded figure for each other protocol that was asked for."""
    asked = [row for row in published.data("report.toml")["shown"][on] if row[1] in grid.protocols()]
    pair = [row for row in asked if row[1] in BESIDE]
    beside = [
        [replace(p, title=f"{p.title}, {words}") for p in panels(protocol, axis, grid.tasks("released"))]
        for _, protocol, axis, words in pair
    ]
    mixed = tuple(panel for task in zip(*beside, strict=True) for panel in task)
    main = [Figure(f"{grid.name}-main", title, BAND, mixed, 4 if len(pair) == 2 else 3)] if mixed else []
    return main + [
        Figure(f"{grid.name}-{end}", f"{title}, {words}", BAND, tuple(panels(p, axis, grid.tasks(p))), columns, True)
        for end, p, axis, words in asked
        if p not in BESIDE
    ]


def task_figures(
    grid: Grid, arms: Sequence[str], title: str, *, on: str = "budget", metric: str = "mse", marked: str = ""
) -> list[Figure]:
    """Figures with one panel for each task; values of a published table are marked at equal epochs."""

    def panels(protocol: str, axis: str, tasks: Sequence[str]) -> Iterable[Panel]:
        table = marked if protocol == "released" else ""
        for task in tasks:
            yield panel(grid, task, protocol, arms, axis, metric=metric, marked=table)

    return figures(grid, title, on, panels)


def panel(
    grid: Grid,
    task: str,
    protocol: str,
    arms: Sequence[str],
    axis: str,
    *,
    metric: str = "mse",
    title: str = "",
    marked: str = "",
) -> Panel:
    """One panel with a line for each arm; where nothing was run, a panel with the reason."""
    lines = []
    for arm in arms:
        cell, stored = grid.cell(task, protocol, arm), grid.stored(task, protocol, arm)
        if cell is not None and stored is not None and stored.has(metric):
            lines.append(_line(arm, cell, stored, metric, axis))
    found = {arm: published.value(marked, task, arm, metric) for arm in ("mse", "rlp")} if marked and lines else {}
    levels = [(f"{ARMS[arm].label}, published", v.mean, ARMS[arm].style) for arm, v in found.items() if v is not None]
    return Panel(
        title or title_of(task),
        AXES[axis],
        METRICS[metric],
        tuple(lines),
        x_log=axis == "step",
        y_log=metric not in SCORES,
        levels=tuple(levels),
        note="" if lines else f"not tested: {grid.why(task) or 'not asked for'}",
    )


def _line(arm: str, cell: AnyCell, stored: StoredCell, metric: str, axis: str) -> Line:
    """Mean over seeds and confidence band: final values of a sweep, else the curve after its start."""
    if axis in ("shift", "noise"):
        x = np.array([getattr(variant, axis) for variant in cell.task.variants], dtype=np.float64)
        values = np.stack([stored.final(metric, variant) for variant in range(len(x))], axis=1)
    else:
        x, values = stored.axis(axis), stored.matrix(metric)
    mean, low, high = stats.band(values)
    shown = x > 0
    return Line(ARMS[arm].label, ARMS[arm].style, x[shown], mean[shown], low[shown], high[shown])


def _regions(grid: Grid) -> Content:
    """How many rows the regions of interest hold."""
    from rlploss.datasets import load, mahalanobis_region, paper_region

    rows: list[tuple[str, ...]] = []
    for dataset in grid.request.picked("datasets", dict.fromkeys(cell.task.dataset for cell in grid.whole.values())):
        try:
            X = load(dataset, progress=False).X
        except Exception as error:
            rows.append((title_of(dataset), "–", "–", f"not available: {' '.join(str(error).split())}"))
            continue
        inside = [int(region(X).sum()) for region in (paper_region, mahalanobis_region)]
        rows.append((title_of(dataset), *(f"{count:,}" for count in (len(X), *inside))))
    header = ("dataset", "rows", "paper's region", "half-and-half region")
    return [Table("shift-regions", "Rows in the region of interest", header, tuple(rows))]


def _classes(grid: Grid) -> Content:
    """Accuracy and F1 of both sizes, with and without mixup."""

    def panels(protocol: str, axis: str, tasks: Sequence[str]) -> Iterable[Panel]:
        for task in tasks:
            for words, arms in CLASSES.items():
                for metric in ("accuracy", "f1"):
                    title = f"{title_of(task)}{words}, {metric}"
                    yield panel(grid, task, protocol, arms, axis, metric=metric, title=title)

    return [*figures(grid, CATALOG[grid.name].title, "classes", panels, columns=2)]


def _digits(grid: Grid) -> Iterable[Drawing]:
    """Digits after 5, 10 and 50 epochs."""
    for protocol in ("released", "steps"):
        stored = grid.found("mnist", protocol, ("mse", "rlp"))
        if len(stored) == 2:
            made = (reconstruction_drawing(stored, epoch, PROTOCOLS[protocol]) for epoch in (5, 10, 50))
            yield from (drawing for drawing in made if drawing is not None)


def _boundaries(grid: Grid) -> Iterable[Drawing]:
    """Test points and decision boundaries."""
    for task in grid.tasks():
        for words, arms in CLASSES.items():
            cell = grid.cell(task, "released", arms[0]) or grid.cell(task, "released", arms[1])
            stored = grid.found(task, "released", arms)
            if cell is not None and stored:
                split = train.split(cell.task, Variant(), cell.seeds[0])
                yield boundary_drawing(title_of(task) + words, stored, split.X_test, split.y_test)


MORE: dict[str, Callable[[Grid], Content]] = {
    "fig-shift": _regions,
    "fig-mnist-classes": _classes,
    "fig-moons": _classes,
    "tables-hyperparameters": lambda grid: [*hyperparameter_tables()],
}
DRAWINGS: dict[str, Callable[[Grid], Iterable[Drawing]]] = {
    "fig-reconstructions": _digits,
    "fig-moons": _boundaries,
    "fig-planes": lambda grid: plane_drawings(),
    "fig-networks": lambda grid: network_drawings(),
}


@dataclass(frozen=True)
class Artefact:
    """One table or figure of the paper; `report.toml` explains the fields."""

    name: str
    what: str
    title: str
    short: str
    lead: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    tables: tuple[Mapping[str, Any], ...] = ()
    figures: tuple[Mapping[str, Any], ...] = ()
    measured: tuple[Mapping[str, Any], ...] = ()
    drawn: Mapping[str, Any] | None = None
    cells: str | tuple[Mapping[str, Any], ...] = ()

    def section(self, grid: Grid) -> Section:
        """The section of the report, with what is missing and how the numbers were obtained."""
        made = MORE[self.name](grid) if self.name in MORE else []
        drawings = tuple(DRAWINGS[self.name](grid)) if self.drawn else ()
        if self.drawn and drawings:
            made.append(Figure(**{"name": self.name} | dict(self.drawn), panels=drawings))
        own = dict(grid.request.losses)
        made += [self._table(grid, **{"arms": (*self.arms, *own), **row}) for row in self.tables]
        for loss in own:
            title = f"{loss} against the others, test MSE"
            made.append(ratio_table(grid, f"{self.name}-{loss}", title, arms=self.arms, ours=loss))
        made += [measured_table(grid, **row) for row in self.measured]
        made += [figure for row in self.figures for figure in task_figures(grid, self.arms, **row)]
        missing = [f"{title_of(task)}: not tested ({why})." for task in grid.tasks() if (why := grid.why(task))]
        return Section(
            self.name,
            self.title,
            self.short,
            (*published.words_of(self.lead), *missing),
            tuple(item for item in made if isinstance(item, Table)),
            tuple(item for item in made if isinstance(item, Figure)),
            grid.facts() if grid.whole else (),
        )

    def _table(self, grid: Grid, kind: str, title: str, name: str = "", notes: Iterable[str] = (), **row: Any) -> Table:
        whole = f"{self.name}-{name}" if name else self.name
        return TABLES[kind](grid, whole, title, **row, notes=published.words_of(notes))


def time_section(results: StoredResults) -> Section:
    """Where the time went: seconds of one core by name and network, cells that names share under the first of them."""
    seen: set[str] = set()
    data: list[tuple[Any, ...]] = []
    for name in results.requests:
        grid = results.grid(name)
        cells = {part.hash: part for parts in (grid.parts if grid else {}).values() for part in parts}
        found = [(c, s) for key, c in cells.items() if key not in seen and (s := results.read(c)) is not None]
        seen |= cells.keys()
        seconds = [sum(s.seconds for c, s in found if getattr(c.task, "model", "measured") == n) for n in NETWORKS]
        if found:
            networks = sum(cell.n_replicas for cell, _ in found)
            predicted = sum(studies.expected_seconds(cell) for cell, _ in found)
            data.append((CATALOG[name].short, networks, *seconds, sum(seconds), predicted))
    data.append(("all", *map(sum, zip(*(row[1:] for row in data), strict=True))))
    rows = tuple((name, *("–" if not n else number(n) for n in numbers)) for name, *numbers in data)
    table = Table("time", "Seconds of one core", TIMES, rows, data_header=TIMES, data_rows=tuple(data))
    return Section("time", "Where the time goes", "Time", published.words_of(("time",)), (table,))


CATALOG = {name: Artefact(**row) for name, row in studies.SECTIONS.items()}


# The summary: what RLP is, what reproduced, what happened at equal steps.


def summary(results: StoredResults, claims: Sequence[Claim], scale: str) -> tuple[str, ...]:
    """One paragraph for a newcomer."""
    grid, words = results.grid("table1"), [_told("what")]
    if grid is not None and not grid.request.at.judged:
        words.append(_told("unjudged"))
    elif grid is not None:
        released, steps = _found(grid, "released"), _found(grid, "steps")
        if released:
            words.append(_told("equal-epochs", ahead=_listed(released, "better", " datasets")))
            words.append(_told("more-steps", ratio=_steps_ratio(grid)))
        if steps:
            words.append(_told("equal-steps", ahead=_listed(steps, "better"), behind=_listed(steps, "worse")))
    counts = Counter(claim.verdict for claim in claims)
    told = ", ".join(f"{counts[word]} {word}" for word in verdicts.TONES if word in counts)
    judged = counts.keys() - {verdicts.NOT_JUDGED, verdicts.NOT_TESTED}
    words.append(_told("judged" if judged else "none-judged", n=len(claims), scale=scale, counts=told))
    return (" ".join(words),)


def _told(key: str, **numbers: object) -> str:
    return published.words_of((key,))[0].format(**numbers)


def _found(grid: Grid, protocol: str) -> dict[str, str]:
    """The word for RLP against MSE on each dataset that was run."""
    found = {title_of(t): grid.compare(t, protocol, "rlp", "mse") for t in published.DATASETS}
    return {title: verdicts.finding(c) for title, c in found.items() if c is not None}


def _listed(words: dict[str, str], wanted: str, what: str = "") -> str:
    """`2 of 6 datasets (Wine, Linear)`."""
    names = [title for title, word in words.items() if word == wanted]
    return f"{len(names)} of {len(words)}{what}" + (f" ({', '.join(names)})" if names else "")


def _steps_ratio(grid: Grid) -> str:
    """How many times as many steps an epoch gives to RLP."""
    pairs = [[*grid.found(task, "released", ("rlp", "mse")).values()] for task in published.DATASETS]
    ratios = [float(pair[0].axis("step")[-1] / pair[1].axis("step")[-1]) for pair in pairs if len(pair) == 2]
    low, high = min(ratios), max(ratios)
    return number(low) if high - low < 0.5 else f"{low:.0f} to {high:.0f}"
