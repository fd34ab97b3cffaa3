"""Panels and figures from a grid of cells: a metric against epochs, steps, seconds, γ or β."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from rlploss.lab import stats
from rlploss.lab.figures import Figure, Line, Panel
from rlploss.lab.results import StoredCell
from rlploss.paper.protocols import ARMS
from rlploss.paper.published import data, value
from rlploss.paper.results import SCORES, Grid, title_of
from rlploss.paper.studies import AnyCell

METRICS = {"mse": "test MSE", "mae": "test MAE", "rlp": "test RLP", "accuracy": "test accuracy", "f1": "test F1"}
AXES = {"epoch": "epochs", "step": "optimiser steps", "seconds": "training seconds", "shift": "γ", "noise": "β"}
BAND = "Mean over seeds with its 95 % confidence band."
BESIDE = ("released", "steps")  # shown side by side, a pair of panels for each task
Panels = Callable[[str, str, Sequence[str]], Iterable[Panel]]  # of a protocol, an axis and some tasks


def figures(grid: Grid, title: str, on: str, panels: Panels, *, columns: int = 3) -> list[Figure]:
    """Equal epochs and equal steps side by side, then a folded figure for each other protocol that was asked for."""
    asked = [row for row in data("report.toml")["shown"][on] if row[1] in grid.protocols()]
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
    grid: Grid, arms: Sequence[str], title: str, *, on: str = "budget", metric: str = "mse", published: str = ""
) -> list[Figure]:
    """Figures with one panel for each task; values of a published table are marked at equal epochs."""

    def panels(protocol: str, axis: str, tasks: Sequence[str]) -> Iterable[Panel]:
        table = published if protocol == "released" else ""
        for task in tasks:
            yield panel(grid, task, protocol, arms, axis, metric=metric, published=table)

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
    published: str = "",
) -> Panel:
    """One panel with a line for each arm; where nothing was run, a panel with the reason."""
    lines = []
    for arm in arms:
        cell, stored = grid.cell(task, protocol, arm), grid.stored(task, protocol, arm)
        if cell is not None and stored is not None and stored.has(metric):
            lines.append(_line(arm, cell, stored, metric, axis))
    found = {arm: value(published, task, arm, metric) for arm in ("mse", "rlp")} if published and lines else {}
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
