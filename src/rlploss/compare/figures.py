"""The figures of a comparison: every arm, the dial, the curves, predictions against truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure
from matplotlib.ticker import EngFormatter, MaxNLocator

from rlploss.compare.arms import Arm
from rlploss.compare.train import Array
from rlploss.compare.words import WORDS
from rlploss.lab import figures, stats
from rlploss.lab.figures import STYLES, Drawing, Figure, Line, Panel, number

if TYPE_CHECKING:
    from rlploss.compare.answer import Comparison


def arms_drawing(found: Comparison) -> Drawing:
    """Every arm's mean and interval on one axis."""
    first = found.measures[0]
    means = {arm.name: stats.summary(found.values(arm.name)) for arm in found.arms}
    order = sorted(found.arms, key=lambda arm: means[arm.name].mean, reverse=found.lower_is_better)

    def draw(axes: Axes) -> None:
        for height, arm in enumerate(order):
            s = means[arm.name]
            colour = STYLES[arm.style][0]
            axes.plot([s.low, s.high], [height, height], color=colour, linewidth=2.2, solid_capstyle="round")
            axes.plot([s.mean], [height], "o", color=colour, markersize=5)
            axes.annotate(arm.label, (s.mean, height), (0, 5), textcoords="offset points", ha="center", fontsize=7.5)
        axes.set_yticks([])
        axes.set_ylim(-0.6, len(order))
        axes.margins(x=0.16)  # room for the names
        axes.set_xlabel(f"{WORDS[first]} on test rows")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))

    said = "; ".join(f"{arm.label} {number(means[arm.name].mean)}" for arm in reversed(order))
    return Drawing("Every arm, best on top", draw, f"{WORDS[first]}: {said}.", (3.6, 0.55 + 0.36 * len(order)))


def dial_panel(found: Comparison, condition: str = "plain") -> Panel | None:
    """RLP's validation error against its subset size, from the MSE end to all rows."""
    if "rlp" not in {arm.name for arm in found.arms}:
        return None
    runs = found.cells[condition, "rlp"].of_variant()
    sizes = np.array([run.curve["sizes"] for run in runs])  # [splits, settings]; 0 is MSE
    errors = np.array([run.curve["errors"] for run in runs])
    n_columns = found.design.X.shape[1] + 1
    best: dict[float, list[Array]] = {}
    for setting in range(errors.shape[1]):
        best.setdefault(float(np.median(sizes[:, setting])), []).append(errors[:, setting])
    places = sorted(best)
    lowest = np.column_stack([np.min(best[place], axis=0) for place in places])  # the better rate of each
    relative = lowest / lowest[:, :1]  # to the MSE end of the same split
    mean, low, high = stats.band(relative)
    x = np.array([place or n_columns for place in places], dtype=np.float64)
    named = ", ".join(f"{size:,.0f}" + (" (MSE)" if size == n_columns else "") for size in x)
    return Panel(
        "The dial: RLP's subset size",
        f"rows in a subset: {named}",
        "validation error, MSE end = 1",
        (Line("RLP", "vermillion", x, mean, low, high),),
        x_log=True,
        levels=(("the MSE end", 1.0, "blue"),),
    )


GROUPS = (
    ("plain, and with L2", ("mse", "cross_entropy", "mse+l2", "cross_entropy+l2", "rlp", "rlp+l2")),
    ("robust losses and mixup", ("mae", "huber", "mse+mixup", "cross_entropy+mixup", "rlp+mixup")),
)
SECOND = {"mae": "grey", "huber": "blue", "mse+mixup": "ochre", "cross_entropy+mixup": "ochre", "rlp+mixup": "purple"}


def curve_panels(found: Comparison, condition: str = "plain") -> list[Panel]:
    """Validation error of the chosen settings against the steps; colours mean one arm within a panel only."""
    panels = []
    for title, names in GROUPS:
        lines = []
        for arm in found.arms:
            if arm.name not in names:
                continue
            cell = found.cells[condition, arm.name]
            mean, low, high = stats.band(cell.matrix("validation"))
            steps = cell.axis("step")
            style = SECOND.get(arm.name, arm.style)
            lines.append(Line(arm.label, style, steps[1:], mean[1:], low[1:], high[1:]))
        if lines:
            panels.append(Panel(title, "optimiser steps", "validation error", tuple(lines), y_log=True))
    return panels


def scatter_drawing(found: Comparison, arm: Arm) -> Drawing:
    """Predictions against truth on the first split; for classes, how often each is taken for each."""
    kept = found.cells["plain", arm.name].of_variant()[0].artifacts
    truth, predicted = kept["truth"], kept["predicted"]
    colour = STYLES[arm.style][0]
    if found.task == "regression":
        low, high = float(min(truth.min(), predicted.min())), float(max(truth.max(), predicted.max()))

        def draw(axes: Axes) -> None:
            axes.plot([low, high], [low, high], color=STYLES["grey"][0], linewidth=1)
            axes.plot(truth, predicted[:, 0], "o", color=colour, markersize=2.5, alpha=0.5, markeredgewidth=0)
            axes.set_xlabel("truth")
            axes.set_ylabel("predicted")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(5))
                axis.set_major_formatter(EngFormatter(sep=""))

        with np.errstate(invalid="ignore"):  # the mean is the same for all rows
            r = float(np.corrcoef(truth, predicted[:, 0])[0, 1])
        return Drawing(arm.label, draw, f"Predictions of {arm.label} against truth, correlation {number(r)}.")
    classes = found.design.target.classes
    counts = np.zeros((len(classes), len(classes)))
    np.add.at(counts, (truth.astype(int), predicted.argmax(1)), 1)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)

    def draw_classes(axes: Axes) -> None:
        axes.imshow(shares, cmap="Greys", vmin=0, vmax=1, aspect="auto")
        axes.grid(visible=False)
        axes.set_xlabel("predicted")
        axes.set_ylabel("truth")
        ticks = [label[:8] for label in classes]
        axes.set_xticks(range(len(classes)), ticks, fontsize=6)
        axes.set_yticks(range(len(classes)), ticks, fontsize=6)

    right = ", ".join(f"{label} {shares[i, i]:.0%}" for i, label in enumerate(classes))
    return Drawing(arm.label, draw_classes, f"Share of each class recognised by {arm.label}: {right}.")


def overview(found: Comparison) -> MplFigure:
    """Arms and dial side by side, for a notebook."""
    panels: list[Panel | Drawing] = [arms_drawing(found)]
    dial = dial_panel(found)
    if dial is not None:
        panels.append(dial)
    return figures.drawn(Figure("overview", "", "", tuple(panels), columns=2))
