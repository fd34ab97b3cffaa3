"""Figures: curves, functions and their planes, the networks, reconstructions, decision
boundaries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from numpy.typing import NDArray
from torch import nn

from rlploss import models
from rlploss._scaling import Array
from rlploss.lab import stats, train
from rlploss.lab.figures import GRID, INK, MUTED, STYLES, Drawing, Figure, Line, Panel
from rlploss.lab.study import StoredCell, Variant
from rlploss.paper import published
from rlploss.paper.results import METRICS, SCORES, Grid, title_of
from rlploss.paper.studies import ARMS, LEVELS, PROTOCOLS

AXES = {
    "epoch": "epochs",
    "step": "optimiser steps",
    "seconds": "training seconds",
    "shift": "γ",
    "noise": "β",
}
BAND = "Mean over seeds with its 95 % confidence band."
BESIDE = ("released", "steps")  # shown side by side, a pair of panels for each task
BLUE, RED = STYLES["blue"][0], STYLES["vermillion"][0]
Function = Callable[[Array], Array]
Rows = Sequence[Mapping[str, Any]]  # of `report.toml`
Images = NDArray[np.float32]


def figures(grid: Grid, *, draw: str = "", title: str, **row: Any) -> list[Figure]:
    """Return the figures of a row of `report.toml`: what a function draws, or
    curves.
    """
    if not draw:
        return curves(grid, title, **row)
    panels = tuple(DRAWINGS[draw](grid))
    return [Figure(**{"name": grid.name, "title": title, "panels": panels} | row)] if panels else []


def curves(
    grid: Grid,
    title: str,
    *,
    on: str = "budget",
    marked: str = "",
    columns: int = 3,
    panels: Rows = ({},),
) -> list[Figure]:
    """Equal epochs and equal steps side by side, then a folded figure for each other protocol that
    was asked for.

    Every task has its panels. Values of a published table are marked at equal epochs.
    """

    def drawn(protocol: str, axis: str, tasks: Sequence[str]) -> list[Panel]:
        table = marked if protocol == "released" else ""
        return [
            panel(grid, task, protocol, axis, marked=table, **row)
            for task in tasks
            for row in panels
        ]

    asked = [row for row in published.REPORT["shown"][on] if row[1] in grid.protocols()]
    beside = [
        [
            replace(p, title=f"{p.title}, {words}")
            for p in drawn(protocol, axis, grid.tasks("released"))
        ]
        for _, protocol, axis, words in asked
        if protocol in BESIDE
    ]
    mixed = tuple(panel for task in zip(*beside, strict=True) for panel in task)
    main = (
        [Figure(f"{grid.name}-main", title, BAND, mixed, 4 if len(beside) == 2 else 3)]
        if mixed
        else []
    )
    return main + [
        Figure(
            f"{grid.name}-{end}",
            f"{title}, {words}",
            BAND,
            tuple(drawn(p, axis, grid.tasks(p))),
            columns,
            True,
        )
        for end, p, axis, words in asked
        if p not in BESIDE
    ]


def panel(
    grid: Grid,
    task: str,
    protocol: str,
    axis: str,
    *,
    arms: Sequence[str] = (),
    metric: str = "mse",
    words: str = "",
    marked: str = "",
) -> Panel:
    """Return one panel with a line for each arm, by default those of the section; where nothing was
    run, with the reason.
    """
    arms = arms or grid.arms
    cells = grid.stored_arms(task, protocol, arms)
    lines = [_line(arm, stored, metric, axis) for arm, stored in cells.items()]
    values = {
        ARMS[arm]: published.value(marked, task, arm, metric)
        for arm in ("mse", "rlp")
        if marked and lines
    }
    levels = [
        (f"{arm.label}, published", value.mean, arm.style)
        for arm, value in values.items()
        if value is not None
    ]
    return Panel(
        title_of(task) + words,
        AXES[axis],
        METRICS[metric],
        tuple(lines),
        x_log=axis == "step",
        y_log=metric not in SCORES,
        levels=tuple(levels),
        note="" if lines else f"not tested: {grid.why(task, (protocol,), arms)}",
    )


def _line(arm: str, stored: StoredCell, metric: str, axis: str) -> Line:
    """Return the mean over seeds and its confidence band: final values of a sweep, else the curve
    after its start.
    """
    if axis in ("shift", "noise"):
        x, values = (
            np.array(LEVELS),
            np.stack([stored.final(metric, k) for k in range(len(LEVELS))], axis=1),
        )
    else:
        x, values = stored.axis(axis), stored.matrix(metric)
    mean, low, high = stats.band(values)
    shown = x > 0
    return Line(ARMS[arm].label, ARMS[arm].style, x[shown], mean[shown], low[shown], high[shown])


# What is not a curve: `report.toml` names these functions.


def planes(grid: Grid) -> Iterable[Drawing]:
    """Draw the paper's two explanatory figures: a function and its planes, for regression and for
    classification.
    """

    def smooth(x: Array) -> Array:
        return np.sin(2.2 * x) + 0.4 * x

    def step(x: Array) -> Array:
        return (x > 0.1).astype(np.float64)

    yield _lines(
        "Another function, other lines", smooth, lambda x: smooth(x) + 0.55 * np.cos(3.5 * x)
    )
    yield _lines("The same function, the same lines", smooth, smooth)
    yield _lines("Another border, other lines", step, lambda x: (x > 0.75).astype(np.float64))
    yield _lines("The same border, the same lines", step, step)


def _lines(title: str, true: Function, predicted: Function) -> Drawing:
    """Draw both functions and their lines through every pair of four points."""
    points = np.array([-1.4, -0.5, 0.5, 1.3])
    left, right = np.array([*itertools.combinations(points, 2)]).T
    fine = np.linspace(-1.7, 1.7, 300)

    def slopes(f: Function) -> Array:
        return np.asarray((f(right) - f(left)) / (right - left))

    same = (slopes(true) == slopes(predicted)) & (true(left) == predicted(left))
    named = {"true function": true, "predicted function": predicted}
    data = [
        (name, x, y)
        for name, f in named.items()
        for x, y in np.stack([points, f(points)], axis=1).tolist()
    ]

    def draw(axes: Axes) -> None:
        for f, colour, width in ((true, BLUE, 3.2), (predicted, RED, 1.4)):
            axes.plot(
                fine, f(fine), color=colour, linewidth=width, alpha=0.55 if width > 2 else 1.0
            )
            ends = np.stack([left - 0.3, right + 0.3])
            axes.plot(
                ends, f(left) + slopes(f) * (ends - left), color=colour, linewidth=0.7, alpha=0.7
            )
            axes.plot(points, f(points), "o", color=colour, markersize=5 if width > 2 else 3)
        axes.set_xlabel("feature")
        axes.set_ylabel("label (blue), prediction (red)")

    words = (
        "A true function and a predicted one with the lines through every pair of four points of"
        " each"
    )
    return Drawing(
        title, draw, f"{words}: {same.sum()} of {len(same)} lines coincide.", data=tuple(data)
    )


def networks(grid: Grid) -> Iterable[Drawing]:
    """Draw the four architectures from the modules themselves."""
    yield _network("Regression network", models.RegressionNet(8))
    yield _network("Autoencoder", models.Autoencoder(784))
    yield _network("LeNet-5", models.LeNet5(output="sigmoid"))
    yield _network("Moons classifier", models.MoonsNet(output="sigmoid"))


def _layer_words(name: str, layer: nn.Module) -> str:
    """Return `fc1: linear 8 → 32`."""
    if isinstance(layer, nn.Linear):
        return f"{name}: linear {layer.in_features} → {layer.out_features}"
    if isinstance(layer, nn.Conv2d):
        return (
            f"{name}: convolution {layer.kernel_size[0]}×{layer.kernel_size[1]},"
            f" {layer.out_channels} filters"
        )
    if isinstance(layer, nn.AvgPool2d):
        return f"{name}: average pooling by {layer.kernel_size}"
    return f"{name}: {type(layer).__name__.lower()}"


def _network(title: str, net: nn.Sequential) -> Drawing:
    parameters = {
        _layer_words(name, layer): sum(p.numel() for p in layer.parameters())
        for name, layer in net.named_children()
    }

    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        axes.set_xlim(0, 1)
        axes.set_ylim(len(parameters), 0)
        for k, (text, learned) in enumerate(parameters.items()):
            box = FancyBboxPatch(
                (0.06, k + 0.14), 0.88, 0.6, boxstyle="round,pad=0.02,rounding_size=0.04"
            )
            box.set(
                facecolor=BLUE if learned else GRID,
                alpha=0.2 if learned else 0.5,
                edgecolor=MUTED,
                linewidth=0.7,
            )
            axes.add_patch(box)
            axes.text(0.5, k + 0.45, text, ha="center", va="center", fontsize=8.5, color=INK)

    return Drawing(
        title,
        draw,
        f"{title}, {sum(parameters.values()):,} parameters: " + "; ".join(parameters) + ".",
        size=(3.5, 0.3 * len(parameters) + 0.5),
        data=tuple(
            (text, float(k), float(count)) for k, (text, count) in enumerate(parameters.items())
        ),
    )


def digits(grid: Grid) -> Iterable[Drawing]:
    """Draw digits of one seed after 5, 10 and 50 epochs, where they were kept: the originals,
    then a row for each arm.
    """
    for protocol in BESIDE:
        stored = grid.stored_arms("mnist", protocol, ("mse", "rlp"))
        pictures = {ARMS[arm].label: cell.of_variant()[0].artifacts for arm, cell in stored.items()}
        for epoch in ("epoch 5", "epoch 10", "epoch 50"):
            images = {
                label: artifacts[epoch]
                for label, artifacts in pictures.items()
                if epoch in artifacts
            }
            if len(images) == 2:
                title = f"After {epoch.split()[1]} epochs ({PROTOCOLS[protocol]})"
                yield _reconstructions(title, next(iter(pictures.values()))["original"], images)


def _reconstructions(title: str, original: Images, images: Mapping[str, Images]) -> Drawing:
    rows, count, side = ["original", *images], len(original), int(np.sqrt(original.shape[1]))
    sheet = np.concatenate([original, *images.values()]).reshape(len(rows), count, side, side)

    def draw(axes: Axes) -> None:
        picture = sheet.transpose(0, 2, 1, 3).reshape(len(rows) * side, count * side)
        axes.imshow(picture, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([side * (k + 0.5) for k in range(len(rows))], rows)
        axes.grid(False)

    squares = {name: np.square(image - original).mean(axis=1) for name, image in images.items()}
    errors = "; ".join(
        f"{name}: mean squared error {values.mean():.3f}" for name, values in squares.items()
    )
    data = [
        (f"squared error, {name}", float(k), float(v))
        for name, vs in squares.items()
        for k, v in enumerate(vs)
    ]
    words = f"{count} test digits and their reconstructions, {errors}."
    return Drawing(title, draw, words, size=(3.8, 0.45 + 0.47 * len(rows)), data=tuple(data))


def ratios(grid: Grid) -> Iterable[Panel]:
    """Draw RLP's test error over each baseline's, at equal epochs: geometric means over seeds."""
    for task in grid.tasks("released"):
        curves = grid.stored_arms(task, "released", grid.arms)
        if "rlp" not in curves:
            continue
        ours = np.log(curves.pop("rlp").matrix("mse"))
        lines = []
        for arm, stored in curves.items():
            ends = stats.band(ours - np.log(stored.matrix("mse")))
            x = stored.axis("epoch")
            mean, low, high = (np.exp(end)[x > 0] for end in ends)
            kind = ARMS[arm]
            lines.append(Line(f"RLP / {kind.label}", kind.style, x[x > 0], mean, low, high))
        scale: Any = {"x_log": True, "y_log": True, "levels": (("no difference", 1.0, "grey"),)}
        yield Panel(title_of(task), "epochs", "ratio", tuple(lines), **scale)


def boundaries(grid: Grid) -> Iterable[Drawing]:
    """Draw the test points of one seed and its decision boundaries, without and with mixup."""
    for task in grid.tasks():
        for words, arms in (("", ("ce", "rlp")), (", mixup", ("ce_mixup", "rlp_mixup"))):
            stored = grid.stored_arms(task, "released", arms)
            if stored:
                cell = grid.cells[task, "released", next(iter(stored))]
                split = train.split(cell.task, Variant(), cell.seeds[0])
                yield _boundary(title_of(task) + words, stored, split.X_test, split.y_test)


def _boundary(title: str, stored: Mapping[str, StoredCell], X: Array, y: Array) -> Drawing:
    """Draw points, and the line on which each arm's two classes have the same score."""
    scores = {arm: cell.of_variant()[0].artifacts.get("boundary") for arm, cell in stored.items()}

    def draw(axes: Axes) -> None:
        for label, marker in ((0, "o"), (1, "^")):
            mine = y == label
            axes.scatter(
                X[mine, 0], X[mine, 1], s=5, marker=marker, color=MUTED, alpha=0.5, linewidths=0
            )
        for arm, values in scores.items():
            if values is not None and values.min() < 0 < values.max():
                x_axis, y_axis = (
                    np.linspace(-1.8, 2.8, values.shape[1]),
                    np.linspace(-1.4, 1.9, values.shape[0]),
                )
                colour, _, dash = STYLES[ARMS[arm].style]
                axes.contour(
                    x_axis,
                    y_axis,
                    values,
                    levels=[0.0],
                    colors=[colour],
                    linewidths=1.6,
                    linestyles=[dash],
                )
        axes.set_xlabel("first feature")
        axes.set_ylabel("second feature")

    accuracies = [
        f"{ARMS[arm].label} {cell.matrix('accuracy')[0, -1]:.3f}" for arm, cell in stored.items()
    ]
    words = (
        "Two half-moons of points and each arm's decision boundary; accuracy of this seed:"
        f" {', '.join(accuracies)}."
    )
    data = tuple(
        (f"test point of class {label}", float(a), float(b))
        for (a, b), label in zip(X, y, strict=True)
    )
    return Drawing(title, draw, words, data=data)


DRAWINGS: dict[str, Callable[[Grid], Iterable[Drawing | Panel]]] = {
    "planes": planes,
    "networks": networks,
    "digits": digits,
    "ratios": ratios,
    "boundaries": boundaries,
}
