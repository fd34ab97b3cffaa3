"""Panels and figures from a grid of cells: a metric against epochs, steps, seconds, γ or β."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from rlploss.lab import stats
from rlploss.lab.figures import Figure, Line, Panel
from rlploss.lab.results import StoredCell
from rlploss.paper.protocols import ARMS, PROTOCOLS, axis_of
from rlploss.paper.results import SCORES, Grid, title_of
from rlploss.paper.studies import AnyCell

METRICS = {"mse": "test MSE", "mae": "test MAE", "rlp": "test RLP", "accuracy": "test accuracy", "f1": "test F1"}
AXES = {"epoch": "epochs", "step": "optimiser steps", "seconds": "training seconds", "shift": "γ", "noise": "β"}
BAND = "Mean over seeds with its 95 % confidence band."
Levels = tuple[tuple[str, float, str], ...]  # label, value, style of horizontal lines
Shown = tuple[str, str, str, str]  # end of the name, protocol, axis, end of the title
BY_BUDGET: tuple[Shown, ...] = (
    ("epochs", "released", "epoch", "by epoch, released loop: an RLP epoch has K steps, an MSE epoch N/100"),
    ("steps", "steps", "step", "by optimiser step, every arm with the same number of steps"),
    ("paper", "paper", "epoch", "as printed: one step per epoch for every arm"),
    ("corrected", "corrected-steps", "step", "corrected baseline, by optimiser step"),
)


def by_protocol(protocols: Iterable[str], axis: str | None = None) -> tuple[Shown, ...]:
    """One figure per protocol, on the axis on which it is fair if none is given."""
    return tuple((p, p, axis or axis_of(p), PROTOCOLS[p]) for p in protocols)


def figures(
    grid: Grid,
    name: str,
    title: str,
    shown: Iterable[Shown],
    panels: Callable[[str, str], Iterable[Panel]],
    *,
    columns: int = 3,
) -> list[Figure]:
    """One figure for each protocol and axis that was asked for, with the panels that the function makes of them."""
    return [
        Figure(f"{name}-{suffix}", f"{title}, {words}", BAND, tuple(panels(protocol, axis)), columns)
        for suffix, protocol, axis, words in shown
        if protocol in grid.protocols()
    ]


def task_figures(
    grid: Grid,
    name: str,
    title: str,
    arms: Sequence[str],
    *,
    shown: Iterable[Shown] = BY_BUDGET,
    metric: str = "mse",
    levels: Callable[[str], Levels] = lambda task: (),
) -> list[Figure]:
    """Figures with one panel for each task; `levels` are marked at equal epochs."""

    def panels(protocol: str, axis: str) -> Iterable[Panel]:
        for task in grid.tasks(protocol):
            marks = levels(task) if protocol == "released" else ()
            yield panel(grid, task, protocol, arms, axis, metric=metric, levels=marks)

    return figures(grid, name, title, shown, panels)


def panel(
    grid: Grid,
    task: str,
    protocol: str,
    arms: Sequence[str],
    axis: str,
    *,
    metric: str = "mse",
    title: str = "",
    levels: Levels = (),
) -> Panel:
    """One panel with a line for each arm; where nothing was run, a panel with the reason."""
    lines = []
    for arm in arms:
        cell, stored = grid.cell(task, protocol, arm), grid.stored(task, protocol, arm)
        if cell is not None and stored is not None and stored.has(metric):
            lines.append(_line(arm, cell, stored, metric, axis))
    return Panel(
        title or title_of(task),
        AXES[axis],
        METRICS[metric],
        tuple(lines),
        x_log=axis == "step",
        y_log=metric not in SCORES,
        levels=levels if lines else (),
        note="" if lines else f"not tested: {grid.why(task) or 'not asked for'}",
    )


def _line(arm: str, cell: AnyCell, stored: StoredCell, metric: str, axis: str) -> Line:
    """Mean over seeds and confidence band: final values over the variants of a sweep, else the curve after its start."""
    if axis in ("shift", "noise"):
        x = np.array([getattr(variant, axis) for variant in cell.task.variants], dtype=np.float64)
        values = np.stack([stored.final(metric, variant) for variant in range(len(x))], axis=1)
    else:
        x, values = stored.axis(axis), stored.matrix(metric)
    mean, low, high = stats.band(values)
    shown = x > 0
    return Line(ARMS[arm].label, ARMS[arm].style, x[shown], mean[shown], low[shown], high[shown])
