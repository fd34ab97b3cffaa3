"""Tables from a grid of cells: our numbers beside the published ones, RLP against each baseline, hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rlploss.lab import stats
from rlploss.lab.report import Table, Text
from rlploss.lab.study import Cell
from rlploss.lab.text import Scalar, number
from rlploss.paper import published
from rlploss.paper.protocols import ARMS, PROTOCOLS, is_rlp, label_of
from rlploss.paper.request import Request
from rlploss.paper.results import METRICS, SCORES, Grid, budget_words, effect, mean_sd, plus_minus, title_of
from rlploss.paper.studies import cells_of
from rlploss.paper.verdicts import finding
from rlploss.training.job import SGD, OptimizerValue

DATA = (
    *("dataset", "trained_with", "measured_with", "protocol", "budget", "seeds", "mean", "sd", "low", "high"),
    *("published_mean", "published_sd", "same_as_published", "cell", "training_seconds"),
)
RATIO_DATA = (*("dataset", "baseline", "metric", "protocol", "scale", "effect", "low", "high"), *("p", "seeds", "word"))
TONES = {"better": "good", "worse": "bad", "level": "calm", "undecided": "open"}
SAME = {"same": "good", "different": "warn", "undecided": "open"}


def error_table(
    grid: Grid,
    name: str,
    title: str,
    *,
    arms: Sequence[str],
    metric: str = "mse",
    values: str = "",
    notes: tuple[str, ...] = (),
) -> Table:
    """Test error of every arm under every protocol, with the published number beside it."""
    protocols = grid.protocols()
    rows: list[tuple[str, ...]] = []
    data: list[tuple[Scalar, ...]] = []
    first_of_task: set[int] = set()
    for task in grid.tasks():
        first_of_task.add(len(rows))
        for arm in [a for a in arms if any((task, p, a) in grid.entries for p in protocols)]:
            value = published.value(values or grid.name, task.removesuffix("-500"), arm, metric)
            verdict = against_published(grid, task, arm, metric, value)
            shown = "–" if value is None else plus_minus(value.mean, value.sd)
            ours = {p: grid.final(task, p, arm, metric) for p in protocols}
            n = max((len(found) for found in ours.values() if found is not None), default=0)
            first, *rest = map(mean_sd, ours.values())
            rows.append((title_of(task), label_of(arm), shown, first, verdict, *rest, str(n)))
            for protocol, found in ours.items():
                cell, stored = grid.entries.get((task, protocol, arm), (None, None))
                if found is None or cell is None or stored is None:
                    continue
                s, budget = stats.summary(found), budget_words(cell.budget).replace(",", "")
                told = (None, None) if value is None else (value.mean, value.sd)
                same = verdict if protocol == "released" else None
                hashes = " ".join(part.hash[:16] for part in grid.parts[task, protocol, arm])
                mine = (task, arm, metric, protocol, budget, s.n, s.mean, s.sd, s.low, s.high)
                data.append((*mine, *told, same, hashes, round(stored.seconds, 3)))
    first, *rest = (PROTOCOLS[p] for p in protocols)
    return Table(
        name,
        title,
        ("dataset", "trained with", "published", first, "against published", *rest, "n"),
        tuple(rows),
        data_header=DATA,
        data_rows=tuple(data),
        notes=notes,
        text_columns=frozenset({1, 4}),
        rules=frozenset(first_of_task - {0}),
    )


def against_published(grid: Grid, task: str, arm: str, metric: str, value: published.Value | None) -> Text:
    """`same, −0.3 sd`: agreement with the published number, and the difference in its standard deviations."""
    ours = grid.final(task, "released", arm, metric)
    if value is None or ours is None or not grid.request.at.judged:
        return Text("–", "calm")
    word, difference = stats.against_published(ours, value.mean, value.sd)
    return Text(f"{word}, {round(difference, 1) + 0.0:+.1f} sd".replace("-", "−"), SAME[word])


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
    """One arm against each other: ratio of errors (difference of scores) with its interval, and the word for it."""
    protocols, mine = grid.protocols(), "RLP" if is_rlp(ours) else label_of(ours)
    others = [arm for arm in arms if arm != ours and not (is_rlp(ours) and is_rlp(arm))]
    pairs = [(task, base) for task in grid.tasks() for base in others]
    rows: dict[tuple[str, str], list[str]] = {(t, b): [title_of(t), label_of(b)] for t, b in pairs}
    data: list[tuple[Scalar, ...]] = []
    counts: dict[tuple[str, str], int] = {}
    for protocol in protocols:
        for pair, row in rows.items():
            c = grid.compare(pair[0], protocol, ours, pair[1], metric)
            if c is None:
                row.append("–")
                continue
            counts[pair] = c.n
            word = finding(c) if grid.request.at.judged else ""
            row.append(Text(f"{effect(c)} {word}".rstrip(), TONES.get(word, "")))
            data.append((*pair, metric, protocol, c.scale, c.effect, c.low, c.high, c.p, c.n, word))
    words = f"{mine} − baseline" if metric in SCORES else f"{mine} / baseline; below 1 {mine} is ahead"
    return Table(
        name,
        title,
        ("dataset", "baseline", *(PROTOCOLS[p] for p in protocols), "n"),
        tuple((*row, str(counts[pair])) for pair, row in rows.items() if pair in counts),
        data_header=RATIO_DATA,
        data_rows=tuple(data),
        notes=(
            *notes,
            f"{METRICS[metric][0].upper()}{METRICS[metric][1:]}: {words}. 95 % t-interval, paired over seeds "
            "(on logarithms for errors), and its word: level is within ±5 % (±1 point), undecided is neither.",
        ),
        text_columns=frozenset({1}),
    )


def measured_table(grid: Grid, task: str, title: str, columns: Mapping[str, str], note: str) -> Table:
    """What a statement comes to when it is measured: a row for each setting, means over seeds."""
    cell, stored = grid.entries[task, "measured", "measured"]
    numbers = {
        str(setting): [float("nan") if stored is None else stored.mean(key, index) for key in columns]
        for index, setting in enumerate(cell.task.variants)
    }
    return Table(
        f"{grid.name}-{task}",
        title,
        ("setting", *columns.values()),
        tuple((setting, *map(_cell_text, columns, row)) for setting, row in numbers.items()),
        data_header=("setting", *columns),
        data_rows=tuple((setting, *row) for setting, row in numbers.items()),
        notes=(note,),
    )


def _cell_text(key: str, value: float) -> Text:
    if key in ("holds", "nearer"):
        return Text("yes" if value > 0.5 else "no", "good" if value > 0.5 else "calm")
    return Text("infinite" if value != value and key == "exact" else number(value))


CLASS = "classification"
CLASSES = ("moons", "mnist_classes")
USED: dict[str, Callable[[Cell], object]] = {  # what a cell tells about a column, None for nothing
    "optimiser": lambda cell: _name(cell.arm.optimizer),
    "learning rate": lambda cell: cell.arm.optimizer.lr,
    "weight decay (+L2)": lambda cell: cell.arm.optimizer.weight_decay if ARMS[cell.arm.name].penalised else None,
    "ψ (mixup)": lambda cell: cell.arm.objective.mixup,
    "M": lambda cell: getattr(cell.arm.objective, "subset_size", None),
    "K": lambda cell: getattr(cell.arm.objective, "n_subsets", None),
    "batch": lambda cell: getattr(cell.arm.objective, "batch_size", None),
    "epochs": lambda cell: cell.budget.n if is_rlp(cell.arm.name) else None,
}


def hyperparameter_tables() -> list[Table]:
    """The two hyperparameter tables of the paper, read off the released cells that the studies train."""
    rows: dict[bool, list[tuple[str, ...]]] = {False: [], True: []}
    for (dataset, experiment), hyper in published.HYPER.items():
        title, studies = published.data("report.toml")["experiments"][experiment]
        cells = [c for c in cells_of(studies, Request("paper", "epochs")) if c.arm.protocol == "released"]
        if dataset in CLASSES:
            mine = [c for c in cells if c.task.name == (f"{dataset}-small" if experiment == "small" else dataset)]
        else:
            mine = [c for c in cells if c.task.name.split(" ")[0].split("-")[0] == dataset]
        optimizer, *rest = (_distinct(used(cell) for cell in mine) for used in USED.values())
        if optimizer != hyper.optimizer:
            optimizer += f" (paper: {hyper.optimizer})"
        rows[dataset in CLASSES].append((title_of(dataset), title, optimizer, *rest))
    note = "Where the released code differs from the paper, the paper's value stands in brackets."
    header, text = ("dataset", "experiment", *USED), frozenset({1, 2})
    return [
        Table(f"hyperparameters-{name}", title, header, tuple(rows[name == CLASS]), text_columns=text, notes=(note,))
        for name, title in (("regression", "Regression and reconstruction"), (CLASS, "Classification"))
    ]


def _distinct(found: Iterable[object]) -> str:
    kept = [v for v in dict.fromkeys(found) if v is not None]
    return ", ".join(f"{v:g}" if isinstance(v, int | float) else str(v) for v in kept) or "–"


def _name(optimizer: OptimizerValue) -> str:
    name = type(optimizer).__name__.lower()
    return f"{name}_nesterov" if isinstance(optimizer, SGD) and optimizer.nesterov else name
