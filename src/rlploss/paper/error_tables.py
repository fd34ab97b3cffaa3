"""Tables from a grid of cells: our numbers beside the published ones, RLP against each baseline, hyperparameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlploss.lab import stats
from rlploss.lab.report import Table, Text
from rlploss.lab.study import Cell
from rlploss.lab.text import Scalar
from rlploss.paper import published
from rlploss.paper.panels import METRICS
from rlploss.paper.protocols import ARMS, PROTOCOLS, is_rlp
from rlploss.paper.request import Request
from rlploss.paper.results import SCORES, Grid, budget_words, effect, mean_sd, plus_minus, title_of
from rlploss.paper.studies import STUDIES
from rlploss.paper.verdicts import NOT_JUDGED
from rlploss.training.optimizers import SGD, OptimizerValue

DATA = (
    *("dataset", "trained_with", "measured_with", "protocol", "budget", "seeds", "mean", "sd", "low", "high"),
    *("published_mean", "published_sd", "same_as_published", "cell", "training_seconds"),
)
RATIO_DATA = (
    *("dataset", "baseline", "metric", "protocol", "scale", "effect", "low", "high"),
    *("p", "p_holm", "seeds", "word"),
)
TONES = {"better": "good", "worse": "bad", "level": "calm"}


def columns(grid: Grid) -> list[str]:
    """The protocols of a grid in the order of PROTOCOLS."""
    return [p for p in PROTOCOLS if p in grid.protocols()]


def error_table(
    grid: Grid, name: str, title: str, *, arms: Sequence[str], metric: str = "mse", notes: tuple[str, ...] = ()
) -> Table:
    """Test error of every arm under every protocol, with the published number beside it."""
    protocols = columns(grid)
    rows: list[tuple[str, ...]] = []
    data: list[tuple[Scalar, ...]] = []
    first_of_task: set[int] = set()
    for task in grid.tasks():
        first_of_task.add(len(rows))
        for arm in arms:
            if not any(key[0] == task and key[2] == arm for key in grid.entries):
                continue
            value = published.value(grid.name, task.removesuffix("-500"), arm, metric)
            verdict = against_published(grid, task, arm, metric, value)
            shown = "–" if value is None else plus_minus(value.mean, value.sd)
            ours = (mean_sd(grid.final(task, p, arm, metric)) for p in protocols)
            rows.append((title_of(task), ARMS[arm].label, shown, *ours, verdict))
            data += [row for p in protocols if (row := _data_row(grid, task, p, arm, metric, value, verdict))]
    header = ("dataset", "trained with", "published", *(PROTOCOLS[p] for p in protocols), "against published")
    return Table(
        name,
        title,
        header,
        tuple(rows),
        data_header=DATA,
        data_rows=tuple(data),
        notes=notes,
        text_columns=frozenset({1, len(header) - 1}),
        rules=frozenset(first_of_task - {0}),
    )


def against_published(grid: Grid, task: str, arm: str, metric: str, value: published.Value | None) -> Text:
    """Same as published (within its standard deviation), different, or why that cannot be said."""
    ours = grid.final(task, "released", arm, metric)
    if value is None:
        return Text("nothing published", "calm")
    if ours is None:
        return Text("not tested", "calm")
    if not grid.request.at.judged or grid.epochs(task, arm) < grid.full_epochs(task, arm):
        return Text(NOT_JUDGED, "calm")
    if stats.same_as_published(ours, value.mean, value.sd):
        return Text("same as published", "good")
    return Text("lower" if ours.mean() < value.mean else "higher", "warn")


def _data_row(
    grid: Grid, task: str, protocol: str, arm: str, metric: str, value: published.Value | None, verdict: str
) -> tuple[Scalar, ...]:
    """The exact numbers of one arm under one protocol; empty if it was not run."""
    ours, cell = grid.final(task, protocol, arm, metric), grid.cell(task, protocol, arm)
    stored = grid.stored(task, protocol, arm)
    if ours is None or cell is None or stored is None:
        return ()
    s = stats.summary(ours)
    told = (None, None) if value is None else (value.mean, value.sd)
    mine = (task, arm, metric, protocol, budget_words(cell.budget).replace(",", ""), s.n, s.mean, s.sd, s.low, s.high)
    return (*mine, *told, verdict if protocol == "released" else None, cell.hash[:16], round(stored.seconds, 3))


def ratio_table(
    grid: Grid,
    name: str,
    title: str,
    *,
    arms: Sequence[str],
    ours: str = "rlp",
    metric: str = "mse",
    notes: tuple[str, ...] = (),
) -> Table:
    """RLP against each baseline: ratio of errors (difference of scores) with its interval, and the word for it."""
    protocols = columns(grid)
    pairs = [(task, base) for task in grid.tasks() for base in arms if not is_rlp(base)]
    rows: dict[tuple[str, str], list[str]] = {(t, b): [title_of(t), ARMS[b].label] for t, b in pairs}
    data: list[tuple[Scalar, ...]] = []
    for protocol in protocols:
        found = {(t, b): c for t, b in pairs if (c := grid.compare(t, protocol, ours, b, metric)) is not None}
        corrected = dict(zip(found, stats.holm(list(found.values())), strict=True))
        for pair, row in rows.items():
            c = corrected.get(pair)
            row.append("–" if c is None else Text(f"{effect(c)} {c.word}", TONES[c.word]))
            if c is not None:
                data.append((*pair, metric, protocol, c.scale, c.effect, c.low, c.high, c.p, c.p_holm, c.n, c.word))
    words = "RLP − baseline" if metric in SCORES else "RLP / baseline; below 1 RLP is ahead"
    return Table(
        name,
        title,
        ("dataset", "baseline", *(PROTOCOLS[p] for p in protocols)),
        tuple(tuple(row) for row in rows.values() if any(c != "–" for c in row[2:])),
        data_header=RATIO_DATA,
        data_rows=tuple(data),
        notes=(
            *notes,
            f"{METRICS[metric][0].upper()}{METRICS[metric][1:]}: {words}. 95 % bootstrap interval; better, worse or "
            "level by a paired t-test over seeds (on logarithms for errors), Holm-corrected down each column.",
        ),
        text_columns=frozenset({1}),
    )


# Hyperparameters

EXPERIMENTS = {  # title and the studies that train it
    "full": ("no ablations", ("table1", "fig-mixup-curves")),
    "small": ("small training set", ("table2", "fig-mixup-small")),
    "shift": ("distribution shift", ("fig-mixup-shift", "fig-shift")),
    "noise": ("additive noise", ("fig-mixup-noise", "fig-noise")),
    "mae": ("RLP against MAE", ("fig-mae",)),
    "time": ("training time", ("fig-time",)),
}
CLASSES = {"moons": "fig-moons", "mnist_classes": "fig-mnist-classes"}
HYPER_HEADER = (
    *("dataset", "experiment", "optimiser", "learning rate", "weight decay (+L2)", "ψ (mixup)"),
    *("M", "K", "batch", "epochs"),
)


def hyperparameter_tables() -> list[Table]:
    """The two hyperparameter tables of the paper, read off the released cells that the studies train."""
    rows: dict[bool, list[tuple[str, ...]]] = {False: [], True: []}
    for dataset, experiment, hyper in published.hyper_rows():
        title, studies = EXPERIMENTS[experiment]
        if dataset in CLASSES:
            studies = (CLASSES[dataset],)
        cells = _released_cells(studies, dataset, is_small=experiment == "small")
        rows[dataset in CLASSES].append((title_of(dataset), title, *_used(cells, hyper)))
    return [
        Table(
            name,
            title,
            HYPER_HEADER,
            tuple(rows[classes]),
            text_columns=frozenset({1, 2}),
            notes=("Where the released code differs from the paper, the paper's value stands in brackets.",),
        )
        for title, name, classes in (
            ("Regression and reconstruction", "hyperparameters-regression", False),
            ("Classification", "hyperparameters-classification", True),
        )
    ]


def _released_cells(studies: Iterable[str], dataset: str, *, is_small: bool) -> list[Cell]:
    """The released cells of a dataset at paper scale, whatever the names of its tasks end in."""
    cells = [cell for name in studies for cell in STUDIES[name](Request("paper", "epochs"))]
    mine = [c for c in cells if c.arm.protocol == "released" and c.task.name.split(" ")[0].split("-")[0] == dataset]
    return [cell for cell in mine if dataset not in CLASSES or cell.task.name.endswith("-small") == is_small]


def _used(cells: list[Cell], paper: published.Hyper) -> tuple[str, ...]:
    """Optimiser, rates and sizes of one experiment, from its cells; what differs from the published is marked."""

    def values(found: Iterable[object]) -> str:
        kept = [v for v in dict.fromkeys(found) if v is not None]
        return ", ".join(f"{v:g}" if isinstance(v, int | float) else str(v) for v in kept) or "–"

    ours = [cell for cell in cells if is_rlp(cell.arm.name)]
    optimizer = values(_name(cell.arm.optimizer) for cell in cells)
    return (
        optimizer if optimizer == paper.optimizer else f"{optimizer} (paper: {paper.optimizer})",
        values(cell.arm.optimizer.lr for cell in cells),
        values(cell.arm.optimizer.weight_decay for cell in cells if ARMS[cell.arm.name].penalised),
        values(cell.arm.objective.mixup for cell in cells if ARMS[cell.arm.name].mixed),
        values(getattr(cell.arm.objective, "subset_size", None) for cell in ours),
        values(getattr(cell.arm.objective, "n_subsets", None) for cell in ours),
        values(getattr(cell.arm.objective, "batch_size", None) for cell in cells),
        values(cell.budget.n for cell in ours),
    )


def _name(optimizer: OptimizerValue) -> str:
    name = type(optimizer).__name__.lower()
    return f"{name}_nesterov" if isinstance(optimizer, SGD) and optimizer.nesterov else name
