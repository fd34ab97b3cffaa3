"""The figures of the site and of the README: every one from numbers computed here, once light and once dark.

python docs/figures.py [DIRECTORY]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import readme
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from rlploss import MSE, RLP, Adam, Problem, ProjectionBank, RegressionNet, Steps, balanced_subsets, fit_fleet, seeded

HERE = Path(__file__).parent
INK = {"light": "#222222", "dark": "#dddddd"}
LABEL, PREDICTION, THIRD = "#1f77b4", "#e07b39", "#6a9f58"


@contextmanager
def figure(path: Path, columns: int = 1, size: tuple[float, float] = (6.4, 3.4)) -> Iterator[list[Axes]]:
    """Axes without a background, in the ink of the file's theme; the same numbers give the same bytes."""
    ink = INK[path.stem.rpartition("-")[2]]
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style = {**dict.fromkeys(names, ink), "svg.hashsalt": "rlploss", "svg.fonttype": "none", "font.size": 10,
             "axes.spines.top": False, "axes.spines.right": False, "font.family": "sans-serif"}  # fmt: skip
    with plt.rc_context(style):
        shown, axes = plt.subplots(1, columns, figsize=size, squeeze=False, layout="constrained")
        yield list(axes[0])
        shown.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(shown)


def planes(path: Path) -> None:
    """One subset with its two planes, and many subsets at once."""
    g = np.random.default_rng(3)
    x = np.sort(g.uniform(-2, 2, 60))
    label, prediction = np.sin(1.6 * x) + 0.15 * g.standard_normal(60), 0.45 * x + 0.1
    with figure(path, 2, (8.6, 3.3)) as (one, many):
        for axes in (one, many):
            axes.plot(x, label, "o", ms=3, color=LABEL, alpha=0.35)
            axes.plot(x, prediction, "o", ms=3, color=PREDICTION, alpha=0.35)
            axes.set(xticks=[], yticks=[], xlabel="feature")
        rows = g.choice(60, 8, replace=False)
        ends = np.array([-2.1, 2.1])
        lines = [np.polyval(np.polyfit(x[rows], v[rows], 1), ends) for v in (label, prediction)]
        one.fill_between(ends, *lines, color=THIRD, alpha=0.2, lw=0)
        for v, line, color, name in (
            (label, lines[0], LABEL, "labels"),
            (prediction, lines[1], PREDICTION, "predictions"),
        ):
            one.plot(x[rows], v[rows], "o", ms=6, color=color)
            one.plot(ends, line, color=color, lw=2, label=f"plane through its {name}")
        one.set_title("one random subset: the gap is the loss")
        one.legend(frameon=False, fontsize=8, loc="upper left")
        for _ in range(25):
            rows = g.choice(60, 8, replace=False)
            for v, color in ((label, LABEL), (prediction, PREDICTION)):
                many.plot(ends, np.polyval(np.polyfit(x[rows], v[rows], 1), ends), color=color, lw=0.6, alpha=0.6)
        many.set_title("many subsets: their mean is RLP")
        many.set_ylim(one.get_ylim())


def residual(path: Path) -> None:
    """A residual, what a plane can see of it, and what it cannot."""
    x = np.linspace(-1, 1, 41)
    r = 0.6 * x + 0.35 * np.cos(2.5 * np.pi * x)
    seen = np.polyval(np.polyfit(x, r, 1), x)
    with figure(path, 3, (8.6, 2.6)) as axes:
        for a, values, title in zip(axes, (r, seen, r - seen),
                                    ("the residual", "its projection: RLP sees this", "the rest: RLP is blind to it"),
                                    strict=True):  # fmt: skip
            a.axhline(0, lw=0.6, color=LABEL)
            a.vlines(x, 0, values, color=PREDICTION, lw=1.5)
            a.set(ylim=(-1.05, 1.05), xticks=[], yticks=[])
            a.set_title(f"{title}\nmean square {np.mean(values**2):.3f}", fontsize=9)


def spectrum(path: Path, n: int = 200, d: int = 5) -> None:
    """How many times faster than under MSE each direction of the residual is learned, and what theory says."""
    g = torch.Generator().manual_seed(0)
    X, p = torch.randn(n, d, generator=g, dtype=torch.float64), d + 1
    basis = torch.linalg.qr(torch.cat([X, torch.ones(n, 1, dtype=X.dtype)], 1))[0]
    hat = basis @ basis.T
    leverage = hat.diagonal() * n
    with figure(path) as (axes,):
        for size, color in ((12, THIRD), (30, LABEL), (100, PREDICTION)):
            subsets = balanced_subsets(n, size, 4000, generator=g)
            values = torch.linalg.eigvalsh(ProjectionBank(X, subsets).form()).flip(0).numpy() * n
            axes.plot(np.arange(1, n + 1), values, color=color, label=f"M = {size}")
            axes.plot([p, n], [p * (n - size) / (size * (n - p))] * 2, "--", lw=1, color=color)
            large = torch.diag(leverage) / size + (1 - 1 / size) * hat
            axes.plot(np.arange(1, n + 1), torch.linalg.eigvalsh(large).flip(0).numpy(), ":", lw=1.2, color=color)
        axes.axhline(1, lw=0.6, color=LABEL)
        axes.set(yscale="log", xlabel=f"direction of the residual (the first {p} are linear)", ylim=(0.003, 3),
                 ylabel="speed relative to MSE")  # fmt: skip
        axes.legend(frameon=False, fontsize=8, title="dashed: mean level, dotted: large M", title_fontsize=8)


SIZES = (7, 12, 20, 35, 50, 70, 85, 100)  # of 100 rows


@cache
def dial_ratios(seeds: int = 8) -> dict[str, list[float]]:
    """Test error of RLP divided by that of MSE, by subset size, at equal steps: with label noise and without."""
    n = SIZES[-1]
    truths: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
        "linear, noisy": (lambda x: x[:, :3].sum(1), 1.0),
        "half linear, noisy": (lambda x: x[:, 0] + x[:, 1] + torch.sin(2 * x[:, 2]), 1.0),
        "strongly nonlinear, no noise": (lambda x: torch.sin(2 * x[:, 0]) * x[:, 1], 0.0),
    }

    def errors(objective: MSE | RLP) -> np.ndarray:
        done = fit_fleet(lambda seed: seeded(lambda: RegressionNet(5), seed), problems, objective, budget=Steps(2000),
                         optimizer=Adam(3e-3))  # fmt: skip
        return np.array([history.last("mse") for history in done])

    found: dict[str, list[float]] = {}
    for name, (truth, noise) in truths.items():
        problems = []
        for seed in range(seeds):
            g = torch.Generator().manual_seed(seed)
            X = torch.randn(n + 1000, 5, generator=g)
            y = truth(X).unsqueeze(1)
            noisy = y[:n] + noise * torch.randn(n, 1, generator=g)
            problems.append(Problem(X[:n], noisy, validation=(X[n:], y[n:]), seed=seed))
        mse = errors(MSE(batch_size="all"))
        objectives = [RLP(subset_size=m, n_subsets=1 if m == n else 500, subsets_per_step="all") for m in SIZES]
        found[name] = [float(np.exp(np.mean(np.log(errors(objective) / mse)))) for objective in objectives]
    return found


def dial(path: Path) -> None:
    """Test error against the subset size."""
    with figure(path) as (axes,):
        for (name, ratio), color in zip(dial_ratios().items(), (LABEL, THIRD, PREDICTION), strict=True):
            axes.plot(SIZES, ratio, "o-", ms=4, color=color, label=name)
        axes.axhline(1, lw=0.6, color=LABEL)
        axes.set(
            yscale="log", xlabel=f"subset size M, of {SIZES[-1]} rows", ylabel="test error, divided by that of MSE"
        )
        axes.legend(frameon=False, fontsize=8)


TONES = {  # the colour of each word that is a verdict; the others are grey
    "reproduced": "#4c9a52",
    "reproduced, undecided at equal steps": "#a9b84e",
    "reproduced, but gone at equal steps": "#d9a441",
    "undecided": "#8fa3b8",
    "not reproduced": "#c8604f",
}


def verdict_map(path: Path) -> None:
    """A tile per claim of the paper, coloured by its verdict, from docs/results."""
    found, across = readme.verdicts(), 5
    down = math.ceil(len(found) / across)
    with figure(path, 1, (8.6, 0.5 * down + 0.8)) as (axes,):
        for i, (name, (_, verdict)) in enumerate(found.items()):
            x, y = i % across, -(i // across)
            axes.add_patch(Rectangle((x + 0.02, y + 0.06), 0.96, 0.88, color=TONES.get(verdict, "#b4b4b4"), lw=0))
            axes.text(x + 0.5, y + 0.5, name, ha="center", va="center", fontsize=7.5, color="#111111")
        used = dict.fromkeys(verdict for _, verdict in found.values())
        keys = [Rectangle((0, 0), 1, 1, color=TONES.get(word, "#b4b4b4")) for word in used]
        axes.legend(keys, used, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, frameon=False, fontsize=8)
        axes.set(xlim=(0, across), ylim=(1 - down, 1))
        axes.axis("off")


DRAWINGS: dict[str, Callable[[Path], None]] = {
    "planes": planes,
    "residual": residual,
    "spectrum": spectrum,
    "dial": dial,
    "verdicts": verdict_map,
}


def draw(directory: Path = HERE / "figures") -> list[Path]:
    """Draw every figure, light and dark."""
    directory.mkdir(exist_ok=True)
    paths = [directory / f"{name}-{theme}.svg" for name in DRAWINGS for theme in INK]
    for path in paths:
        DRAWINGS[path.stem.rpartition("-")[0]](path)
    return paths


if __name__ == "__main__":
    for drawn in draw(*map(Path, sys.argv[1:])):
        print(drawn)
