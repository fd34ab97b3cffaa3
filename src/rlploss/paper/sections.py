"""Every name that `rlploss reproduce` knows: what it is, and its section of the report with tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from rlploss.lab import problems
from rlploss.lab.figures import Drawing, Figure, Panel
from rlploss.lab.report import Section, Table
from rlploss.lab.study import Variant
from rlploss.paper import propositions, published, studies
from rlploss.paper.drawings import boundary_drawing, network_drawings, plane_drawings, reconstruction_drawing
from rlploss.paper.error_tables import error_table, hyperparameter_tables, ratio_table
from rlploss.paper.panels import by_protocol, figures, panel, task_figures
from rlploss.paper.protocols import ARMS, PROTOCOLS
from rlploss.paper.results import Grid, title_of
from rlploss.paper.studies import MAIN, MIXUP

STEPS_WORDS = (
    "An epoch is not the same effort for every loss: in the released loop an RLP epoch takes one optimiser step per "
    "subset (K of them), an MSE epoch one per batch (N/100). So the comparison at equal steps stands beside it."
)
READING = (
    "Mean ± standard deviation over seeds. “Against published” compares the released column: same means within one "
    "published standard deviation, at the paper's number of epochs."
)
RLP_METRIC = (
    "RLP as a test metric is the residual projected on the test features; it can never exceed MSE, so some published "
    "cells (MNIST 0.047 under RLP beside 0.042 under MSE) cannot come from it."
)
SMALL_SIZES = (
    "Neither paper nor code states M, batch or epochs for 50 examples; M = batch = 10 and 200 epochs match the published "
    "Linear and Nonlinear cells. Wine has 11 features, and with M ≤ 11 RLP is MSE: M = 12 there."
)
SMALL_IMAGES = (
    "On images M = 10 is far below the number of pixels, so in exact arithmetic RLP is MSE; what differs is the number "
    "of steps, the momentum and the released float32 cut-off."
)
REGION = (
    "The paper's region asks every feature to lie within half a standard deviation of its mean. With 7 to 11 features it "
    "is almost empty, so γ hardly shifts the distribution: it sets the training size to about (1 − γ)·|X|. The "
    "half-and-half region, the half of the rows nearest to the mean in Mahalanobis distance, is a shift that shifts."
)
SOFTMAX = (
    "Both released networks end in a soft-max, so cross entropy there takes a soft-max twice. “Corrected” is cross "
    "entropy on logits, as the paper describes it, and RLP after the paper's sigmoid."
)
SECONDS = (
    "Each cell runs alone on the machine. Our RLP step keeps its factors and costs about what an MSE step costs, so "
    "equal seconds are nearly equal steps here; the released loop solves two least-squares problems per step."
)
HYPERPARAMETERS = "Read off the cells of the studies, released protocol at paper scale."
MEASURED = "Measured with the library's own loss on freshly drawn features; means over seeds."
PLAIN_CLASSES, MIXED_CLASSES = ("ce", "rlp"), ("ce_mixup", "rlp_mixup")
Content = Sequence[Table | Figure]


def _table1(grid: Grid, title: str) -> Content:
    """Table 1 with the published numbers, and RLP against each baseline."""

    def lookup(task: str, arm: str, metric: str) -> published.Value | None:
        return published.table1("wine" if task == studies.WINE_LONGER else task, arm, metric)

    words = "Test error measured with {}, |J| = 0.5 |X|"
    return (
        error_table(grid, "table1", words.format("MSE"), MAIN, "mse", lookup, (READING,)),
        ratio_table(grid, "table1-ratios", "RLP against the baselines, test MSE", MAIN),
        error_table(grid, "table1-rlp", words.format("RLP"), MAIN, "rlp", lookup, (RLP_METRIC,)),
    )


def _curves(grid: Grid, title: str) -> Content:
    """Test error against training, on every axis, with the published values marked."""

    def levels(task: str) -> tuple[tuple[str, float, str], ...]:
        found = {arm: published.table1(task, arm, "mse") for arm in ("mse", "rlp")}
        return tuple((f"{ARMS[a].label}, published", v.mean, ARMS[a].style) for a, v in found.items() if v is not None)

    return task_figures(grid, "fig-curves", "Test MSE", MAIN, levels=levels)


def _table2(grid: Grid, title: str) -> Content:
    """Table 2: 50 training examples."""

    def lookup(task: str, arm: str, metric: str) -> published.Value | None:
        return published.table2(task, arm)

    notes = (READING, SMALL_SIZES, SMALL_IMAGES)
    return (
        error_table(grid, "table2", "Test MSE, |J| = 50", MAIN, "mse", lookup, notes),
        ratio_table(grid, "table2-ratios", "RLP against the baselines, 50 examples", MAIN),
    )


def _small(grid: Grid, title: str, n_train: int) -> Content:
    """Curves with few training examples."""
    ratios = ratio_table(grid, f"{grid.name}-ratios", f"RLP against the baselines, {n_train} examples", MAIN)
    return [ratios, *task_figures(grid, grid.name, f"Test MSE, {title}", MAIN)]


def _sweep(grid: Grid, title: str, arms: Sequence[str], axis: str) -> Content:
    """Final test error against γ or β, one figure per protocol."""
    return task_figures(grid, grid.name, title, arms, shown=by_protocol(PROTOCOLS, axis))


def _shift(grid: Grid, title: str) -> Content:
    """γ by both regions, and how many rows the regions hold."""
    from rlploss.datasets import load, mahalanobis_region, paper_region

    rows = []
    for dataset in grid.request.pick_datasets(studies.THREE):
        try:
            X = load(dataset, progress=False).X
        except Exception as error:
            rows.append((title_of(dataset), "–", "–", f"not available: {' '.join(str(error).split())}"))
            continue
        inside = [int(region(X).sum()) for region in (paper_region, mahalanobis_region)]
        rows.append((title_of(dataset), *(f"{count:,}" for count in (len(X), *inside))))
    header = ("dataset", "rows", "paper's region", "half-and-half region")
    regions = Table("shift-regions", "Rows in the region of interest", header, tuple(rows))
    return [regions, *_sweep(grid, title, MAIN, "shift")]


def _mixup_ratios(grid: Grid) -> list[Table]:
    return [
        ratio_table(grid, f"{grid.name}-{ours}", f"{ARMS[ours].label} against MSE+mixup, test MSE", MIXUP, ours=ours)
        for ours in ("rlp", "rlp_mixup")
    ]


def _mixup_curves(grid: Grid, title: str) -> Content:
    """Mixup against training."""
    return [*_mixup_ratios(grid), *task_figures(grid, grid.name, "Test MSE with mixup", MIXUP)]


def _mixup_small(grid: Grid, title: str) -> Content:
    """Mixup with few examples."""
    shown = by_protocol(("released", "steps", "paper"))
    return [
        *_mixup_ratios(grid),
        *task_figures(grid, grid.name, "Test MSE with mixup, few examples", MIXUP, shown=shown),
    ]


def _mae(grid: Grid, title: str) -> Content:
    """RLP against MAE."""
    ratios = ratio_table(grid, "fig-mae-ratios", "RLP against MAE, test MAE", ("mae", "rlp"), metric="mae")
    return [ratios, *task_figures(grid, "fig-mae", "Test MAE", ("mae", "rlp"), metric="mae")]


def _elapsed(grid: Grid, title: str) -> Content:
    """Seconds on the axis, and beside them epochs and steps."""
    shown = (
        ("seconds", "released", "seconds", "against elapsed training seconds"),
        ("epochs", "released", "epoch", "against epochs"),
        ("steps", "released", "step", "against optimiser steps"),
    )
    return task_figures(grid, "fig-time", "Test MSE", ("mse", "rlp"), shown=shown)


def _classifiers(grid: Grid, title: str) -> list[Table | Figure]:
    """Accuracy and F1 of both sizes, with and without mixup."""
    kinds = (("plain", "", PLAIN_CLASSES), ("mixup", ", both with mixup", MIXED_CLASSES))

    def panels(protocol: str, axis: str) -> Iterable[Panel]:
        for task in grid.tasks():
            for arms in (PLAIN_CLASSES, MIXED_CLASSES):
                for metric in ("accuracy", "f1"):
                    words = title_of(task) + (", mixup" if arms is MIXED_CLASSES else "")
                    yield panel(grid, task, protocol, arms, axis, metric=metric, title=words)

    tables = [
        ratio_table(
            grid,
            f"{grid.name}-{metric}-{kind}",
            f"{metric} of RLP minus cross entropy{words}",
            arms,
            metric=metric,
            ours=arms[1],
        )
        for kind, words, arms in kinds
        for metric in ("accuracy", "f1")
    ]
    shown = by_protocol(("released", "steps", "paper", "corrected-steps"))
    return [*tables, *figures(grid, grid.name, title, shown, panels, columns=2)]


def _moons(grid: Grid, title: str) -> Content:
    """Moons, with decision boundaries beside the curves."""
    drawings: list[Drawing] = []
    for task in grid.tasks():
        for arms, words in ((PLAIN_CLASSES, ""), (MIXED_CLASSES, ", mixup")):
            stored = {arm: s for arm in arms if (s := grid.stored(task, "released", arm)) is not None}
            cell = next((c for arm in arms if (c := grid.cell(task, "released", arm)) is not None), None)
            if stored and cell is not None:
                split = problems.split(cell.task, Variant(), cell.seeds[0])
                drawings.append(boundary_drawing(title_of(task) + words, stored, split.X_test, split.y_test))
    content = _classifiers(grid, title)
    if drawings:
        caption = "Test points of the first seed and each arm's decision boundary (solid RLP or cross entropy)."
        boundaries = "Decision boundaries, released loop"
        content.append(Figure("fig-moons-boundaries", boundaries, caption, tuple(drawings), 2))
    return content


def _reconstructions(grid: Grid, title: str) -> Content:
    """Digits after 5, 10 and 50 epochs."""
    drawings = []
    for protocol in ("released", "steps"):
        stored = {arm: s for arm in ("mse", "rlp") if (s := grid.stored("mnist", protocol, arm)) is not None}
        if len(stored) == 2:
            made = (reconstruction_drawing(stored, epoch, PROTOCOLS[protocol]) for epoch in (5, 10, 50))
            drawings += [drawing for drawing in made if drawing is not None]
    curves = task_figures(grid, grid.name, "Test MSE, MNIST, 50 examples", ("mse", "rlp"))
    if not drawings:
        return curves
    caption = "Test digits of the first seed. At equal steps MSE's “epochs” are RLP's: the same number of steps."
    return [Figure(grid.name, f"{title}, 50 training examples", caption, tuple(drawings)), *curves]


def _planes(grid: Grid, title: str) -> Content:
    """The explanatory figures."""
    caption = "Lines through every pair of four points, of the true function (thick blue) and of a prediction (red)."
    return [Figure("fig-planes", "A function and its planes", caption, plane_drawings(), 2)]


def _networks(grid: Grid, title: str) -> Content:
    """The four architectures."""
    caption = "Drawn from the modules that are trained."
    return [Figure("fig-networks", "The four networks", caption, network_drawings(), 2)]


@dataclass(frozen=True)
class Artefact:
    """One table or figure: its name, what it is, the title and short title of its section, what is in it."""

    name: str
    what: str
    title: str
    short: str
    content: Callable[[Grid, str], Content]
    lead: tuple[str, ...] = ()

    def section(self, grid: Grid) -> Section:
        """The section of the report, with what is missing and how the numbers were obtained."""
        made = self.content(grid, self.title)
        missing = [f"{title_of(task)}: not tested ({why})." for task in grid.tasks() if (why := grid.why(task))]
        return Section(
            self.name,
            self.title,
            self.short,
            (*self.lead, *missing),
            tuple(item for item in made if isinstance(item, Table)),
            tuple(item for item in made if isinstance(item, Figure)),
            grid.facts() if grid.whole else (),
        )


_ALL = [
    Artefact(
        "table1",
        "Table 1: six datasets × MSE, MSE+L2, RLP",
        "Table 1: test error on six datasets",
        "Table 1",
        _table1,
        (STEPS_WORDS,),
    ),
    Artefact(
        "fig-curves",
        "test MSE against training, six panels",
        "Test error against training",
        "Curves",
        _curves,
        (STEPS_WORDS,),
    ),
    Artefact(
        "table2", "Table 2: 50 training examples", "Table 2: 50 training examples", "Table 2", _table2, (STEPS_WORDS,)
    ),
    Artefact(
        "fig-small-50", "curves with 50 examples", "50 training examples", "|J| = 50", partial(_small, n_train=50)
    ),
    Artefact(
        "fig-small-100", "curves with 100 examples", "100 training examples", "|J| = 100", partial(_small, n_train=100)
    ),
    Artefact("fig-shift", "distribution shift γ, two regions", "Distribution shift", "Shift", _shift, (REGION,)),
    Artefact("fig-noise", "additive noise β", "Additive noise", "Noise", partial(_sweep, arms=MAIN, axis="noise")),
    Artefact(
        "fig-reconstructions", "digits after 5, 10, 50 epochs", "Reconstructed digits", "Digits", _reconstructions
    ),
    Artefact(
        "fig-mnist-classes",
        "LeNet-5, 5000 and 100 examples",
        "MNIST classification with LeNet-5",
        "MNIST",
        _classifiers,
        (SOFTMAX,),
    ),
    Artefact("fig-moons", "Moons, with decision boundaries", "Moons classification", "Moons", _moons, (SOFTMAX,)),
    Artefact("fig-mixup-curves", "mixup, no ablations", "Mixup, no ablations", "Mixup", _mixup_curves),
    Artefact(
        "fig-mixup-small",
        "mixup, 50 and 100 examples",
        "Mixup, 50 and 100 training examples",
        "Mixup, small",
        _mixup_small,
    ),
    Artefact(
        "fig-mixup-shift",
        "mixup under shift",
        "Mixup under distribution shift",
        "Mixup, shift",
        partial(_sweep, arms=MIXUP, axis="shift"),
    ),
    Artefact(
        "fig-mixup-noise",
        "mixup under noise",
        "Mixup under additive noise",
        "Mixup, noise",
        partial(_sweep, arms=MIXUP, axis="noise"),
    ),
    Artefact("fig-time", "test MSE against seconds", "Test error against elapsed time", "Time", _elapsed, (SECONDS,)),
    Artefact("fig-mae", "RLP against MAE", "RLP against MAE", "MAE", _mae),
    Artefact(
        "fig-planes",
        "functions and their planes",
        "Why planes: two functions are equal if all their planes are",
        "Planes",
        _planes,
    ),
    Artefact("fig-networks", "the four networks", "The networks", "Networks", _networks),
    Artefact(
        "tables-hyperparameters",
        "hyperparameters",
        "Hyperparameters",
        "Hyperparameters",
        lambda grid, title: hyperparameter_tables(),
        (HYPERPARAMETERS,),
    ),
    Artefact(
        "propositions",
        "the propositions, measured",
        "The propositions, measured",
        "Propositions",
        lambda grid, title: propositions.tables(grid),
        (MEASURED,),
    ),
]
CATALOG = {artefact.name: artefact for artefact in _ALL}
