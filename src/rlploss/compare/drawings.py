"""The figures of a comparison: means with intervals (arms, columns), the dial, predictions against
truth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rlploss._scaling import Array
from rlploss.compare.result import ArmResult, Results
from rlploss.lab import stats
from rlploss.lab.figures import STYLES, Drawing, Line, Panel
from rlploss.lab.text import number

LETTER, WIDTH, EDGE = 0.068, 4.6, 0.2  # inches: a label's letter, a figure, half a tick's label
ROW = 0.24  # inches between two rows of a figure
Bar = tuple[str, str, tuple[float, float, float]]  # label, style; mean and the ends of an interval


def intervals(
    name: str, bars: Sequence[Bar], x_label: str, y_label: str, *, mark: float | None = None
) -> Drawing:
    """Draw means with their intervals, the first on top; `mark` is a dotted line, at the edge if it
    lies far away.
    """
    names = [label if len(label) <= 28 else f"{label[:27]}…" for label, *_ in bars]

    def draw(axes: Axes) -> None:
        move_in(axes, LETTER * max(map(len, names)) / WIDTH)
        for height, (_, style, (mean, low, high)) in enumerate(bars):
            colour = STYLES[style][0]
            axes.plot([low, high], [height] * 2, color=colour, linewidth=2.2)
            axes.plot([mean], [height], "o", color=colour, markersize=5)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.margins(x=0.06)
        if mark is not None:
            ends = axes.get_xlim()
            at, colour = float(np.clip(mark, *ends)), STYLES["grey"][0]
            axes.axvline(at, color=colour, linestyle=(0, (1, 2)), linewidth=1.1)
            axes.set_xlim(ends)
        axes.set_xlabel(x_label, fontsize=7.5)
        axes.set_ylabel(y_label)
        plain(axes.xaxis)

    said = "; ".join(f"{label} {number(mean)}" for label, _, (mean, *_) in bars)
    size = (WIDTH, 0.8 + ROW * max(4, len(bars)))
    return Drawing(name, draw, f"{x_label}: {said}.", size)


def move_in(axes: Axes, left: float = 0.0) -> None:
    """Leave room for names left of the axes, and for half of the last tick's label on the right."""
    box = axes.get_position()
    axes.set_position((box.x0 + left, box.y0, box.width - left - EDGE / WIDTH, box.height))


def plain(axis: Axis) -> None:
    """Set few ticks, as plain numbers."""
    axis.set_major_locator(MaxNLocator(4))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def arms_drawing(results: Results) -> Drawing:
    """Draw every arm on the test rows; the mean, or the class frequencies, as a line."""
    label, mark = results.metric.words, None
    bars: list[Bar] = []
    for arm in results.best_first():
        spread = results.spread(arm.name)
        if arm.role == "baseline":
            mark, label = spread[0], f"{label} ({number(spread[0])} for {arm.label}, dotted)"
        else:
            bars.append((arm.label, arm.style, spread))
    return intervals("Every arm on test rows", bars, label, "arm", mark=mark)


def dial_panel(results: Results, n_columns: int) -> Panel | None:
    """Return RLP's validation error against its subset size, from the MSE end to all rows; None
    without RLP. MSE is drawn at as many rows as columns, `n_columns` with the intercept.
    """
    arm = next((arm for arm in results.arms if arm.name == "rlp"), None)
    if arm is None:
        return None
    places = np.median(arm.details["sizes"], axis=0)  # of the settings [settings]; 0 is MSE
    errors = arm.details["errors"]  # [splits, settings]
    best: list[Array] = [
        errors[:, places == place].min(axis=1) for place in np.unique(places)
    ]  # the best rate
    mean, low, high = stats.band(
        np.column_stack(best) / best[0][:, None]
    )  # to the MSE end of the same split
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


def predictions_drawing(results: Results, arm: ArmResult) -> Drawing:
    """Draw predictions against truth on the first split."""
    truth, predicted = results.truth[0], arm.predicted[0][:, 0]
    ends = [float(min(truth.min(), predicted.min())), float(max(truth.max(), predicted.max()))]

    def draw(axes: Axes) -> None:
        move_in(axes)
        axes.plot(ends, ends, color=STYLES["grey"][0], linewidth=1)
        size = 2.5 if len(truth) > 100 else 4.5
        colour = STYLES[arm.style][0]
        axes.plot(
            truth, predicted, "o", color=colour, markersize=size, alpha=0.5, markeredgewidth=0
        )
        axes.set_xlabel("truth")
        axes.set_ylabel("predicted")
        plain(axes.xaxis)
        plain(axes.yaxis)

    with np.errstate(invalid="ignore"):  # the mean is the same for all rows
        r = float(np.corrcoef(truth, predicted)[0, 1])
    words = f"Predictions of {arm.label} against truth, correlation {number(r)}."
    return Drawing(arm.label, draw, words)
