"""The sections of the report: every name of `report.toml` with its tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlploss.lab import problems
from rlploss.lab.figures import Drawing, Figure, Panel
from rlploss.lab.report import Section, Table
from rlploss.lab.study import Variant
from rlploss.paper import published, studies
from rlploss.paper.drawings import boundary_drawing, network_drawings, plane_drawings, reconstruction_drawing
from rlploss.paper.error_tables import error_table, hyperparameter_tables, ratio_table
from rlploss.paper.panels import figures, panel, task_figures
from rlploss.paper.propositions import measured_table
from rlploss.paper.protocols import PROTOCOLS
from rlploss.paper.results import Grid, title_of

Content = list[Table | Figure]
CLASSES = {"": ("ce", "rlp"), ", mixup": ("ce_mixup", "rlp_mixup")}
TABLES: dict[str, Callable[..., Table]] = {"errors": error_table, "ratios": ratio_table}


def _regions(grid: Grid) -> Content:
    """How many rows the regions of interest hold."""
    from rlploss.datasets import load, mahalanobis_region, paper_region

    rows: list[tuple[str, ...]] = []
    for dataset in grid.request.pick_datasets(studies.THREE):
        try:
            X = load(dataset, progress=False).X
        except Exception as error:
            rows.append((title_of(dataset), "–", "–", f"not available: {' '.join(str(error).split())}"))
            continue
        inside = [int(region(X).sum()) for region in (paper_region, mahalanobis_region)]
        rows.append((title_of(dataset), *(f"{count:,}" for count in (len(X), *inside))))
    header = ("dataset", "rows", "paper's region", "half-and-half region")
    return [Table("shift-regions", "Rows in the region of interest", header, tuple(rows))]


def _digits(grid: Grid) -> Content:
    """Digits after 5, 10 and 50 epochs."""
    drawings = []
    for protocol in ("released", "steps"):
        stored = {arm: s for arm in ("mse", "rlp") if (s := grid.stored("mnist", protocol, arm)) is not None}
        if len(stored) == 2:
            made = (reconstruction_drawing(stored, epoch, PROTOCOLS[protocol]) for epoch in (5, 10, 50))
            drawings += [drawing for drawing in made if drawing is not None]
    caption = "Test digits of the first seed. At equal steps MSE's “epochs” are RLP's: the same number of steps."
    title = "Reconstructed digits, 50 training examples"
    return [Figure(grid.name, title, caption, tuple(drawings))] if drawings else []


def _classes(grid: Grid) -> Content:
    """Accuracy and F1 of both sizes, with and without mixup."""

    def panels(protocol: str, axis: str) -> Iterable[Panel]:
        for task in grid.tasks():
            for words, arms in CLASSES.items():
                for metric in ("accuracy", "f1"):
                    yield panel(grid, task, protocol, arms, axis, metric=metric, title=title_of(task) + words)

    return [*figures(grid, CATALOG[grid.name].title, "classes", panels, columns=2)]


def _boundaries(grid: Grid) -> Content:
    """Test points and decision boundaries."""
    drawings: list[Drawing] = []
    for task in grid.tasks():
        for words, arms in CLASSES.items():
            cell = grid.cell(task, "released", arms[0]) or grid.cell(task, "released", arms[1])
            stored = {arm: s for arm in arms if (s := grid.stored(task, "released", arm)) is not None}
            if cell is not None and stored:
                split = problems.split(cell.task, Variant(), cell.seeds[0])
                drawings.append(boundary_drawing(title_of(task) + words, stored, split.X_test, split.y_test))
    caption = "Test points of the first seed and each arm's decision boundary (solid RLP or cross entropy)."
    title = "Decision boundaries, released loop"
    return [Figure("fig-moons-boundaries", title, caption, tuple(drawings), 2)] if drawings else []


def _planes(grid: Grid) -> Content:
    """The explanatory figures."""
    caption = "Lines through every pair of four points, of the true function (thick blue) and of a prediction (red)."
    return [Figure("fig-planes", "A function and its planes", caption, plane_drawings(), 2)]


def _networks(grid: Grid) -> Content:
    """The four architectures."""
    caption = "Drawn from the modules that are trained."
    return [Figure("fig-networks", "The four networks", caption, network_drawings(), 2)]


MORE: dict[str, Callable[[Grid], Content]] = {
    "fig-shift": _regions,
    "fig-reconstructions": _digits,
    "fig-mnist-classes": _classes,
    "fig-moons": lambda grid: [*_classes(grid), *_boundaries(grid)],
    "fig-planes": _planes,
    "fig-networks": _networks,
    "tables-hyperparameters": lambda grid: [*hyperparameter_tables()],
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

    def section(self, grid: Grid) -> Section:
        """The section of the report, with what is missing and how the numbers were obtained."""
        made = MORE[self.name](grid) if self.name in MORE else []
        made += [self._table(grid, **row) for row in self.tables]
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
        return TABLES[kind](grid, whole, title, **{"arms": self.arms} | row, notes=published.words_of(notes))


CATALOG = {row["name"]: Artefact(**published.frozen(row)) for row in published.data("report.toml")["section"]}
