"""Figures that are not curves: functions and their planes, the networks, reconstructions, decision boundaries."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from torch import nn

from rlploss import models
from rlploss._scaling import Array
from rlploss.lab.figures import GRID, INK, MUTED, STYLES, Drawing
from rlploss.lab.study import StoredCell
from rlploss.paper.protocols import ARMS

BLUE, RED = STYLES["blue"][0], STYLES["vermillion"][0]
Function = Callable[[Array], Array]


def plane_drawings() -> tuple[Drawing, ...]:
    """The paper's two explanatory figures: a function and its planes, for regression and for classification."""

    def smooth(x: Array) -> Array:
        return np.sin(2.2 * x) + 0.4 * x

    def step(x: Array) -> Array:
        return (x > 0.1).astype(np.float64)

    return (
        _planes("Another function, other lines", smooth, lambda x: smooth(x) + 0.55 * np.cos(3.5 * x)),
        _planes("The same function, the same lines", smooth, smooth),
        _planes("Another border, other lines", step, lambda x: (x > 0.75).astype(np.float64)),
        _planes("The same border, the same lines", step, step),
    )


def _planes(title: str, true: Function, predicted: Function) -> Drawing:
    points = np.array([-1.4, -0.5, 0.5, 1.3])
    left, right = (points[list(side)] for side in zip(*itertools.combinations(range(len(points)), 2), strict=True))
    fine = np.linspace(-1.7, 1.7, 300)

    def slopes(f: Function) -> Array:
        """[pairs]: of the lines through every pair of points."""
        return np.asarray((f(right) - f(left)) / (right - left))

    same = (slopes(true) == slopes(predicted)) & (true(left) == predicted(left))
    data = [
        (name, float(x), float(y))
        for name, f in (("true function", true), ("predicted function", predicted))
        for x, y in zip(points, f(points), strict=True)
    ]

    def draw(axes: Axes) -> None:
        for f, colour, width in ((true, BLUE, 3.2), (predicted, RED, 1.4)):
            axes.plot(fine, f(fine), color=colour, linewidth=width, alpha=0.55 if width > 2 else 1.0)
            ends = np.stack([left - 0.3, right + 0.3])
            axes.plot(ends, f(left) + slopes(f) * (ends - left), color=colour, linewidth=0.7, alpha=0.7)
            axes.plot(points, f(points), "o", color=colour, markersize=5 if width > 2 else 3)
        axes.set_xlabel("feature")
        axes.set_ylabel("label (blue), prediction (red)")

    words = "A true function and a predicted one with the lines through every pair of four points of each"
    return Drawing(title, draw, f"{words}: {same.sum()} of {len(same)} lines coincide.", data=tuple(data))


def network_drawings() -> tuple[Drawing, ...]:
    """The four architectures, drawn from the modules themselves."""
    return (
        _network("Regression network", models.RegressionNet(8)),
        _network("Autoencoder", models.Autoencoder(784)),
        _network("LeNet-5", models.LeNet5(output="sigmoid")),
        _network("Moons classifier", models.MoonsNet(output="sigmoid")),
    )


def layer_words(name: str, layer: nn.Module) -> str:
    """One layer in a few words.

    >>> layer_words("fc1", nn.Linear(8, 32))
    'fc1: linear 8 → 32'
    """
    if isinstance(layer, nn.Linear):
        return f"{name}: linear {layer.in_features} → {layer.out_features}"
    if isinstance(layer, nn.Conv2d):
        return f"{name}: convolution {layer.kernel_size[0]}×{layer.kernel_size[1]}, {layer.out_channels} filters"
    if isinstance(layer, nn.AvgPool2d):
        return f"{name}: average pooling by {layer.kernel_size}"
    return f"{name}: {type(layer).__name__.lower()}"


def _network(title: str, net: nn.Sequential) -> Drawing:
    words = [layer_words(name, layer) for name, layer in net.named_children()]
    n_parameters = sum(p.numel() for p in net.parameters())

    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        axes.set_xlim(0, 1)
        axes.set_ylim(len(words), 0)
        for k, text in enumerate(words):
            learned = "linear" in text or "convolution" in text
            box = FancyBboxPatch((0.06, k + 0.14), 0.88, 0.6, boxstyle="round,pad=0.02,rounding_size=0.04")
            box.set(facecolor=BLUE if learned else GRID, alpha=0.2 if learned else 0.5, edgecolor=MUTED, linewidth=0.7)
            axes.add_patch(box)
            axes.text(0.5, k + 0.45, text, ha="center", va="center", fontsize=8.5, color=INK)

    return Drawing(
        title,
        draw,
        f"{title}, {n_parameters:,} parameters: " + "; ".join(words) + ".",
        size=(3.5, 0.3 * len(words) + 0.5),
        data=tuple(
            (text, float(k), float(sum(p.numel() for p in layer.parameters())))
            for k, (text, layer) in enumerate(zip(words, net.children(), strict=True))
        ),
    )


def reconstruction_drawing(stored: dict[str, StoredCell], epoch: int, protocol: str) -> Drawing | None:
    """Digits of one seed after `epoch` epochs: the originals, then one row per arm; None if they were not kept."""
    kept = {ARMS[arm].label: cell.of_variant()[0].artifacts for arm, cell in stored.items()}
    if not all(f"epoch {epoch}" in artifacts for artifacts in kept.values()):
        return None
    images = {name: artifacts[f"epoch {epoch}"] for name, artifacts in kept.items()}
    original = next(iter(kept.values()))["original"]
    rows, count = ["original", *images], len(original)
    side = int(np.sqrt(original.shape[1]))
    sheet = np.concatenate([original, *images.values()]).reshape(len(rows), count, side, side)

    def draw(axes: Axes) -> None:
        picture = sheet.transpose(0, 2, 1, 3).reshape(len(rows) * side, count * side)
        axes.imshow(picture, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([side * (k + 0.5) for k in range(len(rows))], rows)
        axes.grid(False)

    squares = {name: np.square(image - original).mean(axis=1) for name, image in images.items()}
    errors = "; ".join(f"{name}: mean squared error {values.mean():.3f}" for name, values in squares.items())
    data = [(f"squared error, {name}", float(k), float(v)) for name, vs in squares.items() for k, v in enumerate(vs)]
    return Drawing(
        f"After {epoch} epochs ({protocol})",
        draw,
        f"{count} test digits and their reconstructions, {errors}.",
        size=(3.8, 0.45 + 0.47 * len(rows)),
        data=tuple(data),
    )


def boundary_drawing(title: str, stored: dict[str, StoredCell], X: Array, y: Array) -> Drawing:
    """Test points and the line on which each arm's two classes have the same score, for one seed."""
    grids = {arm: cell.of_variant()[0].artifacts.get("boundary") for arm, cell in stored.items()}

    def draw(axes: Axes) -> None:
        for label, marker in ((0, "o"), (1, "^")):
            mine = y == label
            axes.scatter(X[mine, 0], X[mine, 1], s=5, marker=marker, color=MUTED, alpha=0.5, linewidths=0)
        for arm, values in grids.items():
            if values is not None and values.min() < 0 < values.max():
                x_axis, y_axis = (np.linspace(-1.8, 2.8, values.shape[1]), np.linspace(-1.4, 1.9, values.shape[0]))
                colour, _, dash = STYLES[ARMS[arm].style]
                axes.contour(x_axis, y_axis, values, levels=[0.0], colors=[colour], linewidths=1.6, linestyles=[dash])
        axes.set_xlabel("first feature")
        axes.set_ylabel("second feature")

    scored = [(ARMS[arm].label, cell.matrix("accuracy")[0, -1]) for arm, cell in stored.items() if cell.has("accuracy")]
    accuracies = ", ".join(f"{label} {value:.3f}" for label, value in scored)
    words = f"Two half-moons of points and each arm's decision boundary; accuracy of this seed: {accuracies}."
    data = tuple((f"test point of class {label}", float(a), float(b)) for (a, b), label in zip(X, y, strict=True))
    return Drawing(title, draw, words, data=data)
