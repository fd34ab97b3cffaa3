"""Figures from a grid of cells: curves against epochs, steps or seconds, and sweeps over γ or β."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlploss.lab import stats
from rlploss.lab.figures import Figure, Line, Panel
from rlploss.lab.results import StoredCell
from rlploss.paper import published
from rlploss.paper.protocols import ARMS
from rlploss.paper.view import Grid

STYLES = {
    "mse": "blue", "mae": "blue", "ce": "blue", "mse_l2": "green", "rlp": "vermillion",
    "mse_mixup": "purple", "ce_mixup": "purple", "rlp_mixup": "ochre",
}  # fmt: skip
METRICS = {"mse": "test MSE", "mae": "test MAE", "rlp": "test RLP", "accuracy": "test accuracy", "f1": "test F1"}
TASKS = {
    **published.DATASETS,
    "wine-500": "Wine, 500 epochs",
    "mnist_classes": "MNIST, 5000 examples",
    "mnist_classes-small": "MNIST, 100 examples",
    "moons": "Moons",
    "moons-small": "Moons, 25 examples",
}
AXES = {"epoch": "epochs", "step": "optimiser steps", "seconds": "training seconds"}
BAND = "Mean over seeds with its 95 % confidence band."


def curve(stored: StoredCell, label: str, style: str, metric: str, axis: str) -> Line:
    """One arm: mean over seeds and confidence band; the start (step 0) is left out."""
    mean, low, high = stats.band(stored.matrix(metric))
    x = stored.axis(axis)
    shown = x > 0
    return Line(label, style, x[shown], mean[shown], low[shown], high[shown])


def curve_panel(
    grid: Grid,
    task: str,
    protocol: str,
    arms: Sequence[str],
    *,
    metric: str = "mse",
    axis: str = "epoch",
    title: str = "",
    levels: tuple[tuple[str, float, str], ...] = (),
    log: bool | None = None,
) -> Panel:
    """One panel of curves; a panel with its reason where nothing was run."""
    lines = []
    for arm in arms:
        stored = grid.stored(task, protocol, arm)
        if stored is not None and stored.has(metric):
            lines.append(curve(stored, ARMS[arm], STYLES[arm], metric, axis))
    y_log = metric in ("mse", "mae", "rlp") if log is None else log
    return Panel(
        title or TASKS.get(task, task),
        AXES[axis],
        METRICS[metric],
        tuple(lines),
        x_log=axis == "step",
        y_log=y_log,
        levels=levels if lines else (),
        note="" if lines else f"not tested: {grid.why(task) or 'not asked for'}",
    )


def curve_figures(
    grid: Grid,
    name: str,
    title: str,
    arms: Sequence[str],
    *,
    metric: str = "mse",
    tasks: Sequence[str] | None = None,
    levels: dict[str, tuple[tuple[str, float, str], ...]] | None = None,
) -> tuple[Figure, ...]:
    """The same comparison on every axis: epochs (released), steps (equal steps), and as printed."""
    shown = [
        ("epochs", "released", "epoch", "by epoch, released loop: an RLP epoch has K steps, an MSE epoch N/100"),
        ("steps", "steps", "step", "by optimiser step, every arm with the same number of steps"),
        ("paper", "paper", "epoch", "as printed: one step per epoch for every arm"),
        ("corrected", "corrected-steps", "step", "corrected baseline, by optimiser step"),
    ]
    figures = []
    for suffix, protocol, axis, words in shown:
        if protocol not in grid.protocols():
            continue
        planned = {task for task, p, _ in grid.entries if p == protocol}
        names = [t for t in tasks or grid.tasks() if t in planned]
        marks = levels if protocol == "released" and levels else {}
        panels = tuple(
            curve_panel(grid, t, protocol, arms, metric=metric, axis=axis, levels=marks.get(t, ())) for t in names
        )
        figures.append(Figure(f"{name}-{suffix}", f"{title}, {words}", BAND, panels))
    return tuple(figures)


def sweep_panel(
    grid: Grid, task: str, protocol: str, arms: Sequence[str], x_label: str, key: str, *, title: str = ""
) -> Panel:
    """Final test error against γ or β, one line per arm."""
    lines = []
    for arm in arms:
        cell, stored = grid.cell(task, protocol, arm), grid.stored(task, protocol, arm)
        if cell is None or stored is None:
            continue
        values = [dict(v)[key] for v in cell.task.variants]
        ends = np.stack([stored.final("mse", v) for v in range(len(values))], axis=1)
        mean, low, high = stats.band(ends)
        lines.append(Line(ARMS[arm], STYLES[arm], np.array(values, dtype=np.float64), mean, low, high))
    note = "" if lines else f"not tested: {grid.why(task) or 'not asked for'}"
    return Panel(title or TASKS.get(task, task), x_label, "test MSE", tuple(lines), y_log=True, note=note)
