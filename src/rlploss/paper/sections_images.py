"""Sections of the report: classifiers and reconstructed digits."""

from __future__ import annotations

from rlploss.lab import problems
from rlploss.lab.figures import Drawing, Figure
from rlploss.lab.report import Section
from rlploss.lab.study import Cell
from rlploss.paper import studies
from rlploss.paper.drawings import boundary_drawing, reconstruction_drawing
from rlploss.paper.panels import BAND, TASKS, curve_figures, curve_panel
from rlploss.paper.protocols import PROTOCOLS
from rlploss.paper.sections import build
from rlploss.paper.tables import ratio_table
from rlploss.paper.view import View


def _classifiers(view: View, cells: list[Cell], name: str, title: str, tasks: tuple[str, str]) -> Section:
    grid = view.grid(cells)
    figures = []
    plain, mixed = ("ce", "rlp"), ("ce_mixup", "rlp_mixup")
    for protocol, axis in (("released", "epoch"), ("steps", "step"), ("paper", "epoch"), ("corrected-steps", "step")):
        if protocol not in grid.protocols():
            continue
        panels = tuple(
            curve_panel(
                grid, task, protocol, arms, metric=metric, axis=axis,
                title=f"{TASKS[task]}{', mixup' if arms is mixed else ''}",
            )
            for task in tasks
            for arms in (plain, mixed)
            for metric in ("accuracy", "f1")
        )  # fmt: skip
        figures.append(Figure(f"{name}-{protocol}", f"{title}, {PROTOCOLS[protocol]}", BAND, panels, columns=2))
    tables = tuple(
        ratio_table(
            grid, f"{name}-{metric}-{kind}", f"{metric} of RLP minus cross entropy{words}", arms,
            metric=metric, ours=arms[1],
        )
        for kind, words, arms in (("plain", "", plain), ("mixup", ", both with mixup", mixed))
        for metric in ("accuracy", "f1")
    )  # fmt: skip
    lead = (
        "Both released networks end in a soft-max, so cross entropy there takes a soft-max twice. “Corrected” is cross "
        "entropy on logits, as the paper describes it, and RLP after the paper's sigmoid.",
    )
    return build(grid, name, title, title.split(" ")[0], lead, tables, tuple(figures))


def mnist_classes(view: View) -> Section:
    """LeNet-5."""
    tasks = ("mnist_classes", "mnist_classes-small")
    cells = studies.mnist_classes(view.request)
    return _classifiers(view, cells, "fig-mnist-classes", "MNIST classification with LeNet-5", tasks)


def moons(view: View) -> Section:
    """Moons, with decision boundaries beside the curves."""
    cells = studies.moons(view.request)
    section = _classifiers(view, cells, "fig-moons", "Moons classification", ("moons", "moons-small"))
    grid = view.grid(cells)
    drawings: list[Drawing] = []
    for task in ("moons", "moons-small"):
        for arms, words in ((("ce", "rlp"), ""), (("ce_mixup", "rlp_mixup"), ", mixup")):
            stored = {arm: s for arm in arms if (s := grid.stored(task, "released", arm)) is not None}
            cell = next((c for arm in arms if (c := grid.cell(task, "released", arm)) is not None), None)
            if stored and cell is not None:
                split = problems.split(cell.task, {}, cell.seeds[0])
                drawings.append(boundary_drawing(TASKS[task] + words, stored, split.X_test, split.y_test))
    if drawings:
        caption = "Test points of the first seed and each arm's decision boundary (solid RLP or cross entropy)."
        boundaries = Figure("fig-moons-boundaries", "Decision boundaries, released loop", caption, tuple(drawings), 2)
        section = Section(**{**section.__dict__, "figures": (*section.figures, boundaries)})
    return section


def reconstructions(view: View) -> Section:
    """Digits after 5, 10 and 50 epochs."""
    grid = view.grid(studies.reconstructions(view.request))
    drawings = []
    for protocol in ("released", "steps"):
        stored = {arm: s for arm in ("mse", "rlp") if (s := grid.stored("mnist", protocol, arm)) is not None}
        for epoch in (5, 10, 50):
            drawing = reconstruction_drawing(stored, epoch, PROTOCOLS[protocol]) if len(stored) == 2 else None
            if drawing is not None:
                drawings.append(drawing)
    caption = "Test digits of the first seed. At equal steps MSE's “epochs” are RLP's: the same number of steps."
    figures = curve_figures(grid, "fig-reconstructions", "Test MSE, MNIST, 50 examples", ("mse", "rlp"))
    if drawings:
        digits = Figure("fig-reconstructions", "Reconstructed digits, 50 training examples", caption, tuple(drawings))
        figures = (digits, *figures)
    return build(grid, "fig-reconstructions", "Reconstructed digits", "Digits", (), (), figures)
