"""Tables from a grid of cells: our numbers beside the published ones, and RLP against each baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlploss.lab import stats
from rlploss.lab.files import Value
from rlploss.lab.report import Table, Text
from rlploss.lab.study import Cell
from rlploss.paper import published
from rlploss.paper.panels import METRICS, TASKS
from rlploss.paper.protocols import ARMS, PROTOCOLS, is_rlp
from rlploss.paper.view import TONES, Grid, effect, mean_sd, plus_minus

Lookup = Callable[[str, str, str], published.Value | None]  # task, arm, metric
DATA = (
    "dataset", "trained_with", "measured_with", "protocol", "budget", "seeds", "mean", "sd", "low", "high",
    "published_mean", "published_sd", "same_as_published", "cell", "training_seconds",
)  # fmt: skip
RATIO_DATA = (
    "dataset", "baseline", "metric", "protocol", "scale", "effect", "low", "high", "p", "p_holm", "seeds", "word",
)  # fmt: skip
NOT_JUDGED = "not judged at this scale"


def columns(grid: Grid) -> list[str]:
    """The protocols of a grid in the order of PROTOCOLS."""
    return [p for p in PROTOCOLS if p in grid.protocols()]


def error_table(
    grid: Grid,
    name: str,
    title: str,
    arms: Sequence[str],
    metric: str,
    *,
    lookup: Lookup,
    full: Callable[[str], int],
    notes: tuple[str, ...] = (),
) -> Table:
    """Test error of every arm under every protocol, with the published number beside it."""
    protocols = columns(grid)
    header = ("dataset", "trained with", "published", *(PROTOCOLS[p] for p in protocols), "against published")
    rows: list[tuple[str, ...]] = []
    data: list[tuple[Value, ...] | None] = []
    rules: set[int] = set()
    for task in grid.tasks():
        rules.add(len(rows))
        for arm in arms:
            if not any(key[0] == task and key[2] == arm for key in grid.entries):
                continue
            value = lookup(task, arm, metric)
            verdict = against_published(grid, task, arm, metric, value, full)
            rows.append(
                (
                    TASKS.get(task, task),
                    ARMS[arm],
                    "–" if value is None else plus_minus(value.mean, value.sd),
                    *(mean_sd(grid.final(task, p, arm, metric)) for p in protocols),
                    verdict,
                )
            )
            data += [_data_row(grid, task, p, arm, metric, value, verdict) for p in protocols]
    return Table(
        name,
        title,
        header,
        tuple(rows),
        data_header=DATA,
        data_rows=tuple(row for row in data if row is not None),
        notes=notes,
        text_columns=frozenset({1, len(header) - 1}),
        rules=frozenset(rules - {0}),
    )


def against_published(
    grid: Grid, task: str, arm: str, metric: str, value: published.Value | None, full: Callable[[str], int]
) -> Text:
    """Same as published (within its standard deviation), different, or why that cannot be said."""
    ours = grid.final(task, "released", arm, metric)
    cell = grid.cell(task, "released", arm)
    if value is None:
        return Text("nothing published", "calm")
    if ours is None or cell is None:
        return Text("not tested", "calm")
    if not grid.view.request.at.judged or cell.budget.n < full(task):
        return Text(NOT_JUDGED, "calm")
    if stats.same_as_published(ours, value.mean, value.sd):
        return Text("same as published", "good")
    return Text("lower" if ours.mean() < value.mean else "higher", "warn")


def _data_row(
    grid: Grid, task: str, protocol: str, arm: str, metric: str, value: published.Value | None, verdict: str
) -> tuple[Value, ...] | None:
    ours, cell = grid.final(task, protocol, arm, metric), grid.cell(task, protocol, arm)
    stored = grid.stored(task, protocol, arm)
    if ours is None or cell is None or stored is None:
        return None
    s = stats.summary(ours)
    return (
        task, arm, metric, protocol, str(cell.budget).replace(",", ""), s.n, s.mean, s.sd, s.low, s.high,
        None if value is None else value.mean, None if value is None else value.sd,
        verdict if protocol == "released" else None, cell.hash[:16], round(stored.seconds, 3),
    )  # fmt: skip


def ratio_table(
    grid: Grid, name: str, title: str, arms: Sequence[str], *, metric: str = "mse", ours: str = "rlp"
) -> Table:
    """RLP against each baseline: ratio of errors (difference of scores) with its interval, and the word for it."""
    protocols = columns(grid)
    baselines = [arm for arm in arms if arm != ours and not is_rlp(arm)]
    pairs = [(task, base) for task in grid.tasks() for base in baselines]
    rows: list[list[str]] = [[TASKS.get(t, t), ARMS[b]] for t, b in pairs]
    data: list[tuple[Value, ...]] = []
    for protocol in protocols:
        found = {pair: grid.compare(pair[0], protocol, ours, pair[1], metric) for pair in pairs}
        family = [c for c in found.values() if c is not None]
        corrected = iter(stats.holm(family))
        for row, pair in zip(rows, pairs, strict=True):
            c = next(corrected) if found[pair] is not None else None
            row.append(Text(effect(c), "" if c is None else TONES[c.word]))
            if c is not None:
                data.append((*pair, metric, protocol, c.scale, c.effect, c.low, c.high, c.p, c.p_holm, c.n, c.word))
    scale = "difference" if metric in ("accuracy", "f1") else "ratio"
    words = "RLP − baseline" if scale == "difference" else "RLP / baseline; below 1 RLP is ahead"
    return Table(
        name,
        title,
        ("dataset", "baseline", *(PROTOCOLS[p] for p in protocols)),
        tuple(tuple(row) for row in rows if any(c != "–" for c in row[2:])),
        data_header=RATIO_DATA,
        data_rows=tuple(data),
        notes=(
            f"{METRICS[metric][0].upper()}{METRICS[metric][1:]}: {words}. 95 % bootstrap interval; better, worse or "
            "level by a paired t-test over seeds (on logarithms for errors), Holm-corrected down each column.",
        ),
        text_columns=frozenset({1}),
    )


def hyperparameter_tables(used: dict[tuple[str, str], list[Cell]]) -> tuple[Table, Table]:
    """The two hyperparameter tables of the paper, read off the cells that the studies train.

    `used` has the `released` cells by dataset and experiment; a value that differs from the published one is
    marked.
    """
    names = {
        "full": "no ablations", "small": "small training set", "shift": "distribution shift",
        "noise": "additive noise", "mae": "RLP against MAE", "time": "training time",
    }  # fmt: skip
    classes = ("moons", "mnist_classes")
    made = []
    for title, name, wanted in (
        ("Regression and reconstruction", "hyperparameters-regression", False),
        ("Classification", "hyperparameters-classification", True),
    ):
        rows = [
            (TASKS.get(dataset, dataset), names[experiment], *_used(used[dataset, experiment], hyper))
            for dataset, experiment, hyper in published.hyper_rows()
            if (dataset in classes) == wanted and (dataset, experiment) in used
        ]
        made.append(
            Table(
                name,
                title,
                ("dataset", "experiment", "optimiser", "learning rate", "weight decay (+L2)", "ψ (mixup)", "M", "K",
                 "batch", "epochs"),
                tuple(rows),
                text_columns=frozenset({1, 2}),
                notes=("Where the released code differs from the paper, the paper's value stands in brackets.",),
            )
        )  # fmt: skip
    return made[0], made[1]


def _used(cells: list[Cell], paper: published.Hyper) -> tuple[str, ...]:
    """Optimiser, rates and sizes of one experiment, from its cells."""

    def values(key: str, arms: Callable[[str], bool]) -> str:
        found = dict.fromkeys(cell.arm.get(key) for cell in cells if arms(cell.arm.name))
        return ", ".join(f"{v:g}" if isinstance(v, int | float) else str(v) for v in found if v is not None) or "–"

    optimizer = values("optimizer", lambda arm: True)
    if optimizer != paper.optimizer:
        optimizer = f"{optimizer} (paper: {paper.optimizer})"
    rlp_cells = [cell for cell in cells if is_rlp(cell.arm.name)]
    return (
        optimizer,
        values("lr", lambda arm: True),
        values("weight_decay", lambda arm: arm.endswith("_l2")),
        values("mixup_alpha", lambda arm: arm.endswith("_mixup")),
        values("subset_size", is_rlp),
        values("n_subsets", is_rlp),
        values("batch_size", lambda arm: not is_rlp(arm)),
        ", ".join(dict.fromkeys(str(cell.budget.n) for cell in rlp_cells)) or "–",
    )
