"""Panels and figures from a grid of cells: a metric against epochs, steps, seconds, γ or β."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from rlploss.lab import stats
from rlploss.lab.figures import Figure, Line, Panel
from rlploss.lab.results import StoredCell
from rlploss.paper.protocols import ARMS, PROTOCOLS, axis_of
from rlploss.paper.published import value
from rlploss.paper.results import SCORES, Grid, title_of
from rlploss.paper.studies import AnyCell

METRICS = {"mse": "test MSE", "mae": "test MAE", "rlp": "test RLP", "accuracy": "test accuracy", "f1": "test F1"}
AXES = {"epoch": "epochs", "step": "optimiser steps", "seconds": "training seconds", "shift": "γ", "noise": "β"}
BAND = "Mean over seeds with its 95 % confidence band."
Shown = tuple[str, str, str, str]  # end of the name, protocol, axis, end of the title


def _by_protocol(protocols: Iterable[str], axis: str | None = None) -> list[Shown]:
    """One figure per protocol, on the axis on which it is fair if none is given."""
    return [(p, p, axis or axis_of(p), PROTOCOLS[p]) for p in protocols]


SHOWN: dict[str, list[Shown]] = {
    "budget": [
        ("epochs", "released", "epoch", "by epoch, released loop: an RLP epoch has K steps, an MSE epoch N/100"),
        ("steps", "steps", "step", "by optimiser step, every arm with the same number of steps"),
        ("paper", "paper", "epoch", "as printed: one step per epoch for every arm"),
        ("corrected", "corrected-steps", "step", "corrected baseline, by optimiser step"),
    ],
    "protocol": _by_protocol(("released", "steps", "paper")),
    "classes": _by_protocol(("released", "steps", "paper", "corrected-steps")),
    "shift": _by_protocol(PROTOCOLS, "shift"),
    "noise": _by_protocol(PROTOCOLS, "noise"),
    "time": [
        ("seconds", "released", "seconds", "against elapsed training seconds"),
        ("epochs", "released", "epoch", "against epochs"),
        ("steps", "released", "step", "against optimiser steps"),
    ],
}


def figures(
    grid: Grid, title: str, on: str, panels: Callable[[str, str], Iterable[Panel]], *, columns: int = 3
) -> list[Figure]:
    """One figure for each protocol and axis that was asked for, with the panels that the function makes of them."""
    return [
        Figure(f"{grid.name}-{suffix}", f"{title}, {words}", BAND, tuple(panels(protocol, axis)), columns)
        for suffix, protocol, axis, words in SHOWN[on]
        if protocol in grid.protocols()
    ]


def task_figures(
    grid: Grid, arms: Sequence[str], title: str, *, on: str = "budget", metric: str = "mse", published: str = ""
) -> list[Figure]:
    """Figures with one panel for each task; values of a published table are marked at equal epochs."""

    def panels(protocol: str, axis: str) -> Iterable[Panel]:
        table = published if protocol == "released" else ""
        for task in grid.tasks(protocol):
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
