"""The figures of the site and of the README, light and dark: from numbers computed here, or from
docs/results.

python docs/figures.py [DIRECTORY]
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import readme
import sklearn.datasets as sk
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullLocator

from rlploss import (
    MSE,
    RLP,
    Adam,
    Problem,
    ProjectionBank,
    RegressionNet,
    Steps,
    TwoSpeed,
    balanced_subsets,
    fit_fleet,
    kappa,
    seeded,
)
from rlploss.lab import figures as lab
from rlploss.paper.studies import ARMS
from rlploss.survey.report import ratios_drawing

HERE = Path(__file__).parent
INK = {"light": "#222222", "dark": "#dddddd"}
LABEL, PREDICTION, THIRD = "#1f77b4", "#e07b39", "#6a9f58"


@contextmanager
def figure(
    path: Path, columns: int = 1, size: tuple[float, float] = (6.4, 3.4)
) -> Iterator[list[Axes]]:
    """Axes without a background, in the ink of the file's theme; the same numbers give the same
    bytes.
    """
    ink = INK[path.stem.rpartition("-")[2]]
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style = {
        **dict.fromkeys(names, ink),
        "svg.hashsalt": "rlploss",
        "svg.fonttype": "none",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.family": "sans-serif",
    }
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
                many.plot(
                    ends,
                    np.polyval(np.polyfit(x[rows], v[rows], 1), ends),
                    color=color,
                    lw=0.6,
                    alpha=0.6,
                )
        many.set_title("many subsets: their mean is RLP")
        many.set_ylim(one.get_ylim())


def residual(path: Path) -> None:
    """A residual, what a plane can see of it, and what it cannot."""
    x = np.linspace(-1, 1, 41)
    r = 0.6 * x + 0.35 * np.cos(2.5 * np.pi * x)
    seen = np.polyval(np.polyfit(x, r, 1), x)
    with figure(path, 3, (8.6, 2.6)) as axes:
        for a, values, title in zip(
            axes,
            (r, seen, r - seen),
            ("the residual", "its projection: RLP sees this", "the rest: RLP is blind to it"),
            strict=True,
        ):
            a.axhline(0, lw=0.6, color=LABEL)
            a.vlines(x, 0, values, color=PREDICTION, lw=1.5)
            a.set(ylim=(-1.05, 1.05), xticks=[], yticks=[])
            a.set_title(f"{title}\nmean square {np.mean(values**2):.3f}", fontsize=9)


def spectrum(path: Path, n: int = 200, d: int = 5) -> None:
    """How many times faster than under MSE each direction of the residual is learned, and what
    theory says.
    """
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
            axes.plot(
                np.arange(1, n + 1),
                torch.linalg.eigvalsh(large).flip(0).numpy(),
                ":",
                lw=1.2,
                color=color,
            )
        axes.axhline(1, lw=0.6, color=LABEL)
        axes.set(
            yscale="log",
            xlabel=f"direction of the residual (the first {p} are linear)",
            ylim=(0.003, 3),
            ylabel="speed relative to MSE",
        )
        axes.legend(
            frameon=False, fontsize=8, title="dashed: mean level, dotted: large M", title_fontsize=8
        )


SIZES = (7, 12, 20, 35, 50, 70, 85, 100)  # of 100 rows
DECAY = 0.1  # of the weights, in the dial's figure


@cache
def dial_ratios(seeds: int = 8) -> dict[str, tuple[list[float], float]]:
    """Test error divided by that of MSE, at equal steps: of RLP by subset size, and of MSE with
    weight decay.
    """
    n = SIZES[-1]
    truths: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
        "linear, noisy": (lambda x: x[:, :3].sum(1), 1.0),
        "half linear, noisy": (lambda x: x[:, 0] + x[:, 1] + torch.sin(2 * x[:, 2]), 1.0),
        "strongly nonlinear, no noise": (lambda x: torch.sin(2 * x[:, 0]) * x[:, 1], 0.0),
    }

    def errors(objective: MSE | RLP, decay: float = 0.0) -> np.ndarray:
        done = fit_fleet(
            lambda seed: seeded(lambda: RegressionNet(5), seed),
            problems,
            objective,
            budget=Steps(2000),
            optimizer=Adam(3e-3, weight_decay=decay),
        )
        return np.array([history.last("mse") for history in done])

    found: dict[str, tuple[list[float], float]] = {}
    for name, (truth, noise) in truths.items():
        problems = []
        for seed in range(seeds):
            g = torch.Generator().manual_seed(seed)
            X = torch.randn(n + 1000, 5, generator=g)
            y = truth(X).unsqueeze(1)
            noisy = y[:n] + noise * torch.randn(n, 1, generator=g)
            problems.append(Problem(X[:n], noisy, validation=(X[n:], y[n:]), seed=seed))
        mse = errors(MSE(batch_size="all"))
        objectives = [
            RLP(subset_size=m, n_subsets=1 if m == n else 500, subsets_per_step="all")
            for m in SIZES
        ]
        *rlp, decayed = [
            float(np.exp(np.mean(np.log(found_errors / mse))))
            for found_errors in (*map(errors, objectives), errors(MSE(batch_size="all"), DECAY))
        ]
        found[name] = rlp, decayed
    return found


def dial(path: Path) -> None:
    """Test error against the subset size."""
    with figure(path) as (axes,):
        for (name, (ratio, decayed)), color in zip(
            dial_ratios().items(), (LABEL, THIRD, PREDICTION), strict=True
        ):
            axes.plot(SIZES, ratio, "o-", ms=4, color=color, label=name)
            axes.axhline(decayed, lw=1, ls="--", color=color)
        axes.axhline(1, lw=0.6, color=LABEL)
        axes.set(
            yscale="log",
            xlabel=f"subset size M, of {SIZES[-1]} rows",
            ylabel="test error, divided by that of MSE",
        )
        axes.legend(
            frameon=False,
            fontsize=8,
            title=f"dashed: MSE with weight decay {DECAY}",
            title_fontsize=8,
            loc="lower center",
            bbox_to_anchor=(0.5, 1),
            ncols=3,
        )


def two_speed_tables() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Rows and target of two generated and of two development tables."""
    X = np.random.default_rng(0).normal(size=(1100, 5))
    noise = np.random.default_rng(1).normal(size=1100)
    return {
        "half linear, noisy": (X, X[:, 0] + X[:, 1] + np.sin(2 * X[:, 2]) + noise),
        "strongly nonlinear": (X, np.sin(2 * X[:, 0]) * X[:, 1]),
        "diabetes": sk.load_diabetes(return_X_y=True, scaled=False),
        "Friedman 3": sk.make_friedman3(3000, noise=0.1, random_state=0),
    }


@cache
def two_speed_curves(n: int = 100, size: int = 35, seeds: int = 20) -> dict[str, dict[str, list]]:
    """Steps and test errors (over the variance of y) of MSE, RLP and the two-speed loss."""
    curves: dict[str, dict[str, list]] = {}
    for name, (X, y) in two_speed_tables().items():
        problems = []
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(X))[: n + 300]
            x, target = X[order], y[order, None]
            x = (x - x[:n].mean(0)) / x[:n].std(0)
            target = ((target - target[:n].mean()) / target[:n].std()).astype(np.float32)
            x = x.astype(np.float32)
            problems.append(Problem(x[:n], target[:n], validation=(x[n:], target[n:]), seed=seed))
        dial = kappa(size, n, X.shape[1] + 1)
        objectives = {
            "MSE": MSE("all"),
            f"RLP, M = {size}": RLP(size, 5000, subsets_per_step="all"),
            "two-speed": TwoSpeed(dial),
        }
        curves[name] = {}
        for label, objective in objectives.items():
            histories = fit_fleet(
                lambda seed, d=X.shape[1]: seeded(lambda: RegressionNet(d), seed),
                problems,
                objective,
                budget=Steps(3000),
                optimizer=Adam(3e-3),
                evaluate_every=Steps(50),
            )
            errors = np.array([history["mse"] for history in histories])
            steps = list(histories[0]["step"])
            curves[name][label] = [steps, np.exp(np.log(errors).mean(0))]
    return curves


def two_speed(path: Path) -> None:
    """Test error against steps: of RLP, its closed form and MSE."""
    styles = {"MSE": (LABEL, "-"), "two-speed": (PREDICTION, "--")}
    with figure(path, columns=4, size=(9.6, 3.0)) as panels:
        for axes, (name, lines) in zip(panels, two_speed_curves().items(), strict=True):
            for label, (steps, errors) in lines.items():
                color, dashes = styles.get(label, (THIRD, "-"))
                axes.plot(steps, errors, dashes, lw=1.4, color=color, label=label)
            axes.set(yscale="log", xlabel="steps", xticks=[0, 1500, 3000])
            # plain numbers instead of powers of ten: a panel spans less than one
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 4, 5, 6, 8)))
            axes.yaxis.set_major_formatter("{x:.1f}")
            axes.yaxis.set_minor_locator(NullLocator())
            axes.set_title(name, fontsize=9)
        panels[0].set_ylabel("test error")
        lines = panels[0].get_lines()
        panels[0].figure.legend(
            handles=lines, loc="outside lower center", ncols=3, frameon=False, fontsize=9
        )


TONES = {  # the colour of each word that is a verdict; the others are grey
    "reproduced": "#4c9a52",
    "reproduced, undecided at equal steps": "#a9b84e",
    "reproduced, but gone at equal steps": "#d9a441",
    "undecided": "#8fa3b8",
    "not reproduced": "#c8604f",
}
OTHER = "#b4b4b4"  # of words that are no verdict


def verdict_map(path: Path) -> None:
    """A tile per claim of the paper, with the number, the sign and the colour of its verdict, from
    docs/results.
    """
    found, across = readme.verdicts(), 5
    down = math.ceil(len(found) / across)
    with figure(path, 1, (8.6, 0.5 * down + 0.8)) as (axes,):
        for i, (name, (_, verdict)) in enumerate(found.items()):
            x, y, sign = i % across, -(i // across), readme.SIGNS.get(verdict, "–")
            axes.add_patch(
                Rectangle((x + 0.02, y + 0.06), 0.96, 0.88, color=TONES.get(verdict, OTHER), lw=0)
            )
            axes.text(x + 0.05, y + 0.5, f"{i + 1}", va="center", fontsize=7.5, color="#111111")
            axes.text(
                x + 0.52, y + 0.5, name, ha="center", va="center", fontsize=7, color="#111111"
            )
            axes.text(x + 0.95, y + 0.5, sign, ha="right", va="center", fontsize=8, color="#111111")
        used = dict.fromkeys(verdict for _, verdict in found.values())
        keys = [Rectangle((0, 0), 1, 1, color=TONES.get(word, OTHER)) for word in used]
        axes.legend(
            keys,
            [f"{readme.SIGNS.get(word, '–')}  {word}" for word in used],
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            ncols=2,
            frameon=False,
            fontsize=8,
        )
        axes.set(xlim=(0, across), ylim=(1 - down, 1))
        axes.axis("off")


# What the lab draws, from the tables of docs/results: its own figures are light only, and wider
# than a page.
PAPER = {"ink": lab.INK, "muted": lab.MUTED, "grid": lab.GRID} | {
    name: on for name, (on, _, _) in lab.STYLES.items()
}
NIGHT = {"ink": "#e8eaee", "muted": "#a7adb8", "grid": "#343943"} | {
    name: on for name, (_, on, _) in lab.STYLES.items()
}


def stored(path: Path, panels: list[lab.Panel | lab.Drawing]) -> None:
    """Two panels in a row, without a background, in the colours of the file's theme."""
    text = lab.svg(lab.Figure(path.stem, "", "", tuple(panels), columns=2))
    text = text.replace("fill: #ffffff", "fill: none")
    if path.stem.endswith("-dark"):
        for name, colour in PAPER.items():
            text = text.replace(colour, NIGHT[name])
    path.write_text(text, encoding="utf-8")


def survey(path: Path) -> None:
    """RLP beside MSE+L2 on every table of the survey: a panel for each draw."""
    tables, means = (
        readme.read(readme.RESULTS / "survey" / "tables" / f"{name}.csv")
        for name in ("tables", "pairs")
    )

    def shown(name: str, row: dict[str, str]) -> tuple[str, float, float, float, str]:
        return name, float(row["ratio"]), float(row["low"]), float(row["high"]), row["word"]

    drawn: dict[tuple[str, str], list[tuple[str, float, float, float, str]]] = {}
    for mean in means:
        if (mean["ours"], mean["theirs"]) == ("rlp", "mse+l2"):
            key = mean["rows"], mean["outside"]
            found = [
                row
                for row in tables
                if (row["draw_rows"], row["outside"], row["half"]) == (*key, mean["half"])
            ]
            rows = sorted((shown(row["table"], row) for row in found), key=lambda row: row[1])
            drawn.setdefault(key, []).extend(
                [shown(f"{mean['half']}, {len(found)} tables", mean), *rows]
            )
    panels = list[lab.Panel | lab.Drawing]()
    for (n, outside), rows in drawn.items():
        where = ", test rows outside" if outside == "True" else ""
        panels.append(ratios_drawing(f"{int(n):,} training rows{where}", rows))
    stored(path, panels)


def curves(path: Path) -> None:
    """A figure of the paper, a row for each dataset: equal epochs and equal steps. What was not run
    has no panel.
    """
    name, styles = path.stem.rpartition("-")[0], {arm.label: arm.style for arm in ARMS.values()}
    sweep = {"noise": "β", "shift": "γ"}.get(name, "")
    marks = [
        row
        for row in readme.read(readme.PAPER / "table1.csv")
        if row["protocol"] == "released" and row["trained_with"] in ("mse", "rlp")
    ]
    lines: dict[str, dict[str, list[list[float]]]] = {}
    for row in readme.read(readme.RESULTS / "paper" / "figures" / f"fig-{name}-main.csv"):
        numbers = [float(row[key]) for key in ("x", "mean", "low", "high")]
        lines.setdefault(row["panel"], {}).setdefault(row["line"], []).append(numbers)

    def panel(title: str) -> lab.Panel:
        task, _, budget = title.rpartition(", equal ")
        marked = task.partition(" (")[0] if budget == "epochs" and not sweep else ""
        values = [
            (ARMS[row["trained_with"]], row)
            for row in marks
            if readme.NAMES.get(row["dataset"]) == marked
        ]
        levels = [
            (f"{arm.label}, published", float(row["published_mean"]), arm.style)
            for arm, row in values
        ]
        return lab.Panel(
            title,
            sweep or {"steps": "optimiser steps"}.get(budget, budget),
            "test MSE",
            tuple(
                lab.Line(arm, styles[arm], *np.array(rows).T) for arm, rows in lines[title].items()
            ),
            x_log=budget == "steps" and not sweep,
            y_log=True,
            levels=tuple(levels),
        )

    pairs = Counter(title.rpartition(", ")[0] for title in lines)
    stored(
        path,
        [
            panel(title)
            for title in sorted(lines, key=lambda title: -pairs[title.rpartition(", ")[0]])
        ],
    )


DRAWINGS: dict[str, Callable[[Path], None]] = {
    "planes": planes,
    "residual": residual,
    "spectrum": spectrum,
    "dial": dial,
    "two-speed": two_speed,
    "verdicts": verdict_map,
    "survey": survey,
    "curves": curves,
    "noise": curves,
    "shift": curves,
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
