"""The figures of a comparison: every contender, the dial, the curves, predictions against truth."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as MplFigure
from matplotlib.ticker import EngFormatter, MaxNLocator

from rlploss.compare.answer import Comparison
from rlploss.compare.arms import Contender
from rlploss.compare.read import Array
from rlploss.estimators.selection import Index
from rlploss.lab import figures, stats
from rlploss.lab.figures import STYLES, Drawing, Figure, Line, Panel
from rlploss.lab.text import number


def _short_ticks(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(EngFormatter(sep=""))


def contenders_drawing(found: Comparison) -> Drawing:
    """Every contender's mean and interval on one axis."""
    measure = next(iter(found.measures.values()))
    means = {one.name: stats.summary(found.values(one.name)) for one in found.contenders}
    order = sorted(found.contenders, key=lambda one: means[one.name].mean, reverse=found.lower_is_better)

    def draw(axes: Axes) -> None:
        for height, one in enumerate(order):
            s, colour = means[one.name], STYLES[one.style][0]
            axes.plot([s.low, s.high], [height, height], color=colour, linewidth=2.2, solid_capstyle="round")
            axes.plot([s.mean], [height], "o", color=colour, markersize=5)
            axes.annotate(one.label, (s.mean, height), (0, 5), textcoords="offset points", ha="center", fontsize=7.5)
        axes.set_yticks([])
        axes.set_ylim(-0.6, len(order))
        axes.margins(x=0.16)  # room for the names
        axes.set_xlabel(f"{measure} on test rows")
        _short_ticks(axes.xaxis)

    said = "; ".join(f"{one.label} {number(means[one.name].mean)}" for one in reversed(order))
    return Drawing("Every arm, best on top", draw, f"{measure}: {said}.", (3.6, 0.55 + 0.36 * len(order)))


def dial_panel(found: Comparison) -> Panel | None:
    """RLP's validation error against its subset size, from the MSE end to all rows."""
    if ("plain", "rlp") not in found.cells:
        return None
    kept = [network.artifacts for network in found.cells["plain", "rlp"].of_variant()]
    sizes, errors = (np.array([one[name] for one in kept], dtype=np.float64) for name in ("sizes", "errors"))
    places = np.median(sizes, axis=0)  # of the settings [splits, settings]; 0 is MSE
    best: list[Array] = [errors[:, places == place].min(axis=1) for place in np.unique(places)]  # the better rate
    mean, low, high = stats.band(np.column_stack(best) / best[0][:, None])  # to the MSE end of the same split
    n_columns = found.design.X.shape[1] + 1
    x = np.where(np.unique(places) == 0, n_columns, np.unique(places))
    named = ", ".join(f"{size:,.0f}" + (" (MSE)" if size == n_columns else "") for size in x)
    return Panel(
        "The dial: RLP's subset size",
        f"rows in a subset: {named}",
        "validation error, MSE end = 1",
        (Line("RLP", "vermillion", x, mean, low, high),),
        x_log=True,
        levels=(("the MSE end", 1.0, "blue"),),
    )


def curve_panels(found: Comparison) -> list[Panel]:
    """Validation error of the chosen settings against the steps; colours mean one contender within a panel only."""
    groups: dict[str, list[Line]] = {"plain, and with L2": [], "robust losses and mixup": []}
    for one in found.contenders:
        if one.objectives:
            cell = found.cells["plain", one.name]
            second = one.name in ("mae", "huber") or one.objectives[0].mixup is not None
            lines = groups["robust losses and mixup" if second else "plain, and with L2"]
            lines.append(Line(one.label, one.style, cell.axis("step"), *stats.band(cell.matrix("validation"))))
    return [
        Panel(title, "optimiser steps", "validation error", tuple(lines), y_log=True)
        for title, lines in groups.items()
        if lines
    ]


def scatter_drawing(found: Comparison, one: Contender) -> Drawing:
    """Predictions against truth on the first split; for classes, how often each is taken for each."""
    kept = found.cells["plain", one.name].of_variant()[0].artifacts
    truth, predicted = kept["truth"], kept["predicted"]
    if found.task == "classification":
        return _classes_drawing(found.design.target.classes, truth.astype(int), predicted.argmax(1), one.label)
    ends = [float(min(truth.min(), predicted.min())), float(max(truth.max(), predicted.max()))]

    def draw(axes: Axes) -> None:
        axes.plot(ends, ends, color=STYLES["grey"][0], linewidth=1)
        colour = STYLES[one.style][0]
        axes.plot(truth, predicted[:, 0], "o", color=colour, markersize=2.5, alpha=0.5, markeredgewidth=0)
        axes.set_xlabel("truth")
        axes.set_ylabel("predicted")
        _short_ticks(axes.xaxis)
        _short_ticks(axes.yaxis)

    with np.errstate(invalid="ignore"):  # the mean is the same for all rows
        r = float(np.corrcoef(truth, predicted[:, 0])[0, 1])
    return Drawing(one.label, draw, f"Predictions of {one.label} against truth, correlation {number(r)}.")


def _classes_drawing(classes: tuple[str, ...], truth: Index, predicted: Index, label: str) -> Drawing:
    counts = np.zeros((len(classes), len(classes)))
    np.add.at(counts, (truth, predicted), 1)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)

    def draw(axes: Axes) -> None:
        axes.imshow(shares, cmap="Greys", vmin=0, vmax=1, aspect="auto")
        axes.grid(visible=False)
        axes.set_xlabel("predicted")
        axes.set_ylabel("truth")
        ticks = [name[:8] for name in classes]
        axes.set_xticks(range(len(classes)), ticks, fontsize=6)
        axes.set_yticks(range(len(classes)), ticks, fontsize=6)

    right = ", ".join(f"{name} {shares[i, i]:.0%}" for i, name in enumerate(classes))
    return Drawing(label, draw, f"Share of each class recognised by {label}: {right}.")


def overview(found: Comparison) -> MplFigure:
    """Contenders and dial side by side, for a notebook."""
    panels = tuple(panel for panel in (contenders_drawing(found), dial_panel(found)) if panel is not None)
    return figures.drawn(Figure("overview", "", "", panels, columns=2))
