"""The report: every name of `report.toml` with its tables and figures, and the summary in plain
words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from rlploss._scaling import Array
from rlploss.lab import stats
from rlploss.lab.report import WORD_TONES, Claim, Section, Table, Text
from rlploss.lab.study import Cell, StoredCell
from rlploss.lab.text import Scalar, number
from rlploss.paper import claims, published
from rlploss.paper.figures import figures
from rlploss.paper.published import REPORT, WORDS, words_of
from rlploss.paper.request import Request
from rlploss.paper.results import (
    METRICS,
    SCORES,
    Grid,
    Results,
    budget_words,
    compare,
    effect,
    mean_error,
    title_of,
    whole,
)
from rlploss.paper.studies import ARMS, CATALOG, PROTOCOLS, cells_of, is_rlp
from rlploss.training.job import OptimizerValue

DATA = (
    *(
        "dataset",
        "trained_with",
        "measured_with",
        "protocol",
        "budget",
        "seeds",
        "mean",
        "sd",
        "low",
        "high",
    ),
    *("published_mean", "published_sd", "same_as_published", "cell", "training_seconds"),
)
RATIO_DATA = (
    *("dataset", "baseline", "metric", "protocol", "scale", "effect", "low", "high"),
    *("p", "seeds", "word"),
)
SAME = {"same": "good", "different": "warn", "undecided": "open"}
Texts = Sequence[str]


def section(grid: Grid) -> Section:
    """Return the section of a name, with what is missing and how the numbers were obtained."""
    row = CATALOG[grid.name]
    tables = []
    for table in row.get("tables", ()):
        options = {"name": grid.name, **table}
        tables.append(TABLES[options.pop("kind")](grid, **options))
    return Section(
        grid.name,
        row["title"],
        row["short"],
        (*words_of(row.get("lead", ())), *missing(grid)),
        tuple(tables),
        tuple(figure for drawn in row.get("figures", ()) for figure in figures(grid, **drawn)),
        grid.facts() if whole(grid.name) else (),
    )


def missing(grid: Grid) -> Iterator[str]:
    """Return what is shown of a task and was not run, with the reason: `CIFAR-10 (as printed): not
    complete (not run yet).`
    """
    protocols = (*grid.protocols(), "measured")
    for task in grid.tasks():
        lost = {protocol: why for protocol in protocols if (why := grid.why(task, (protocol,)))}
        if not any(task == name for name, _, _ in grid.stored):
            yield f"{title_of(task)}: not tested ({grid.why(task, protocols)})."
            continue
        for why in dict.fromkeys(lost.values()):
            columns = "; ".join(PROTOCOLS[protocol] for protocol in lost if lost[protocol] == why)
            yield f"{title_of(task)} ({columns}): not complete ({why})."


def error_table(
    grid: Grid, name: str, title: str, *, metric: str = "mse", values: str = "", notes: Texts = ()
) -> Table:
    """Return the test error of every arm under every protocol, with the published number (of
    the table `values`) beside it.
    """
    protocols = grid.protocols()
    titles = [PROTOCOLS[p] for p in protocols]
    rows: list[tuple[str, ...]] = []
    data: list[tuple[Scalar, ...]] = []
    for task in grid.tasks():
        for arm in [a for a in grid.arms if any((task, p, a) in grid.parts for p in protocols)]:
            value = published.value(values or grid.name, task, arm, metric)
            verdict = against_published(grid, task, arm, metric, value)
            shown = "–" if value is None else plus_minus(value.mean, value.sd)
            ours = [mean_sd(grid.final(task, p, arm, metric)) for p in protocols]
            keys = [key for p in protocols if (key := (task, p, arm)) in grid.stored]
            if not keys:
                continue
            n = max(len(grid.cells[key].seeds) for key in keys)
            rows.append(
                (title_of(task), ARMS[arm].label, shown, *ours[:1], verdict, *ours[1:], str(n))
            )
            for key in keys:
                s = stats.summary(grid.stored[key].final(metric))
                budget = budget_words(grid.cells[key].budget).replace(",", "")
                mine = (task, arm, metric, key[1], budget, s.n, s.mean, s.sd, s.low, s.high)
                same = verdict if key[1] == "released" else None
                hashes = " ".join(part.hash[:16] for part in grid.parts[key])
                data.append(
                    (
                        *mine,
                        *(value or (None, None)),
                        same,
                        hashes,
                        round(grid.stored[key].seconds, 3),
                    )
                )
    starts = [k for k, (row, above) in enumerate(pairwise(rows), start=1) if row[0] != above[0]]
    return Table(
        name,
        title,
        (
            "dataset",
            "trained with",
            "published",
            *titles[:1],
            "against published",
            *titles[1:],
            "n",
        ),
        tuple(rows),
        data_header=DATA,
        data_rows=tuple(data),
        notes=words_of(notes),
        text_columns=frozenset({1, 4}),
        rules=frozenset(starts),
    )


def mean_sd(values: Array | None) -> str:
    """Return `0.197 ± 0.110`, or a dash."""
    if values is None:
        return "–"
    s = stats.summary(values)
    return plus_minus(s.mean, s.sd)


def plus_minus(mean: float, sd: float) -> str:
    """Return `0.197 ± 0.110`; the mean alone where no deviation is known."""
    return number(mean) if math.isnan(sd) else f"{number(mean)} ±\u00a0{number(sd)}"


def against_published(
    grid: Grid, task: str, arm: str, metric: str, value: published.PublishedValue | None
) -> Text:
    """Return `same, −0.3 sd`: agreement with the published number, and the difference in its
    standard deviations.
    """
    ours = grid.final(task, "released", arm, metric)
    if value is None or math.isnan(value.sd) or ours is None or not grid.request.at.judged:
        return Text("–", "calm")
    word, difference = stats.against_published(ours, value.mean, value.sd)
    places = 1 if abs(difference) < 99.95 else 0
    shown = (  # three digits at most
        f"{round(float(f'{difference:.3g}'), places) + 0.0:+,.{places}f}"
    )
    return Text(f"{word}, {shown} sd".replace("-", "−"), SAME[word])


def ratio_table(
    grid: Grid,
    name: str,
    title: str,
    *,
    arms: Sequence[str] = (),
    ours: str = "rlp",
    metric: str = "mse",
) -> Table:
    """Compare one arm with each other: ratio of errors (difference of scores) with its interval,
    and the word for it.
    """
    mine = "RLP" if is_rlp(ours) else ARMS[ours].label
    judged = grid.request.at.judged
    others = [a for a in arms or grid.arms if a != ours and not (is_rlp(ours) and is_rlp(a))]
    pairs = [(task, base) for task in grid.tasks() for base in others]
    comparisons = {
        (protocol, *pair): c
        for protocol in grid.protocols()
        for pair in pairs
        if (c := grid.compare(pair[0], protocol, ours, pair[1], metric)) is not None
    }
    rows: list[tuple[str, ...]] = []
    for task, base in pairs:
        shown = [comparisons.get((protocol, task, base)) for protocol in grid.protocols()]
        if any(shown):
            n = max(c.n for c in shown if c is not None)
            rows.append(
                (title_of(task), ARMS[base].label, *(_effect(c, judged) for c in shown), str(n))
            )
    words = (
        f"{mine} − baseline" if metric in SCORES else f"{mine} / baseline; below 1 {mine} is ahead"
    )
    note = f"{METRICS[metric][0].upper()}{METRICS[metric][1:]}: {words}. {WORDS['intervals']}"
    return Table(
        name,
        title,
        ("dataset", "baseline", *(PROTOCOLS[p] for p in grid.protocols()), "n"),
        tuple(rows),
        data_header=RATIO_DATA,
        data_rows=tuple(
            (
                task,
                base,
                metric,
                protocol,
                c.scale,
                c.effect,
                c.low,
                c.high,
                c.p,
                c.n,
                c.word if judged else "",
            )
            for (protocol, task, base), c in comparisons.items()
        ),
        notes=(note,),
        text_columns=frozenset({1}),
    )


def _effect(c: stats.Contrast | None, judged: bool) -> Text:
    if c is None:
        return Text("–")
    return Text(f"{effect(c)} {c.word}", WORD_TONES[c.word]) if judged else Text(effect(c))


def rate_table(grid: Grid, name: str, title: str, *, notes: Texts = ()) -> Table:
    """Compare RLP with MSE, each trained on all rows at the rate that suits it best on a fifth of
    them; both had the same number of steps.
    """
    rows, data = [], []
    for dataset in dict.fromkeys(cell.task.dataset for cell in grid.cells.values()):
        tuned = [best_rates(grid, dataset, arm) for arm in ("rlp", "mse")]
        if not all(map(len, tuned)):
            continue
        (our_rates, ours), (base_rates, base) = tuned
        c = compare("mse", ours, base)
        judged = grid.request.at.judged
        rates = map(_most_common, (base_rates, our_rates))
        shown = (mean_sd(base), mean_sd(ours), *rates, _effect(c, judged))
        rows.append((title_of(dataset), *shown, str(c.n)))
        data.append((dataset, c.effect, c.low, c.high, c.p, c.n, c.word if judged else ""))
    return Table(
        name,
        title,
        ("dataset", "MSE", "RLP", "rate of MSE", "rate of RLP", "RLP / MSE", "n"),
        tuple(rows),
        data_header=("dataset", "effect", "low", "high", "p", "seeds", "word"),
        data_rows=tuple(data),
        notes=words_of(notes),
    )


def best_rates(grid: Grid, dataset: str, arm: str) -> tuple[Array, ...]:
    """Return for each seed the rate with the lowest error on the fifth that was held out, and the
    test error at that rate after training on all rows; nothing if a rate was not run.
    """
    mine = [key for key in grid.cells if grid.cells[key].task.dataset == dataset and key[2] == arm]
    if any(key not in grid.stored for key in mine):
        return ()
    errors = {
        (cell.task.held_out is None, cell.arm.optimizer.lr): grid.stored[key].final("mse")
        for key, cell in ((key, grid.cells[key]) for key in mine)
    }
    rates = np.array(sorted({rate for _, rate in errors}))
    held_out, tested = (
        np.stack([errors[whole, rate] for rate in rates]) for whole in (False, True)
    )
    chosen = held_out.argmin(axis=0)
    return rates[chosen], tested[chosen, np.arange(len(chosen))]


def _most_common(rates: Array) -> str:
    """Return `0.001 (28 of 30)`."""
    ((rate, count),) = Counter(rates.tolist()).most_common(1)
    return f"{rate:g} ({count} of {len(rates)})"


def measured_table(
    grid: Grid,
    name: str,
    title: str,
    *,
    task: str,
    columns: Mapping[str, str],
    errors: Texts = (),
    notes: Texts = (),
) -> Table:
    """Return what a statement comes to when it is measured: a row for each setting, means over
    seeds and standard `errors`.
    """
    key = (task, "measured", "measured")
    stored = grid.stored.get(key)
    average = {column: mean_error if column in errors else StoredCell.mean for column in columns}
    numbers = {
        str(setting): [
            float("nan") if stored is None else average[c](stored, c, index) for c in columns
        ]
        for index, setting in enumerate(grid.cells[key].task.variants)
    }
    return Table(
        f"{name}-{task}",
        title,
        ("setting", *columns.values()),
        tuple((setting, *map(_measured, columns, row)) for setting, row in numbers.items()),
        data_header=("setting", *columns),
        data_rows=tuple((setting, *row) for setting, row in numbers.items()),
        notes=words_of(notes),
    )


def _measured(column: str, value: float) -> Text:
    if column in ("holds", "nearer"):
        return Text("yes" if value > 0.5 else "no", "good" if value > 0.5 else "calm")
    return Text("infinite" if value != value and column == "exact" else number(value))


def region_table(grid: Grid, name: str, title: str) -> Table:
    """Return how many rows the regions of interest hold."""
    from rlploss.datasets import load
    from rlploss.datasets.splits import mahalanobis_region, paper_region

    rows: list[tuple[str, ...]] = []
    datasets = dict.fromkeys(cell.task.dataset for cell in whole(grid.name).values())
    for dataset in grid.request.picked("datasets", datasets):
        try:
            X = load(dataset, progress=False).X
        except Exception as error:
            rows.append(
                (title_of(dataset), "–", "–", f"not available: {' '.join(str(error).split())}")
            )
            continue
        inside = [int(region(X).sum()) for region in (paper_region, mahalanobis_region)]
        rows.append((title_of(dataset), *(f"{count:,}" for count in (len(X), *inside))))
    header = ("dataset", "rows", "paper's region", "half-and-half region")
    return Table(name, title, header, tuple(rows))


USED: dict[str, Callable[[Cell], object]] = {  # what a cell tells about a column, None for nothing
    "optimiser": lambda cell: _optimizer_name(cell.arm.optimizer),
    "learning rate": lambda cell: cell.arm.optimizer.lr,
    "weight decay (+L2)": lambda cell: (
        cell.arm.optimizer.weight_decay if ARMS[cell.arm.name].penalised else None
    ),
    "ψ (mixup)": lambda cell: cell.arm.objective.mixup,
    "M": lambda cell: getattr(cell.arm.objective, "subset_size", None),
    "K": lambda cell: getattr(cell.arm.objective, "n_subsets", None),
    "batch": lambda cell: getattr(cell.arm.objective, "batch_size", None),
    "epochs": lambda cell: cell.budget.n if is_rlp(cell.arm.name) else None,
}


def hyperparameter_table(
    grid: Grid, name: str, title: str, *, on: Sequence[str], notes: Texts = ()
) -> Table:
    """Return a hyperparameter table of the paper, read off the released cells that the studies
    train.
    """
    rows = []
    for (dataset, experiment), hyper in published.HYPER.items():
        if dataset in on:
            words, names = REPORT["experiments"][experiment]
            cells = [
                c
                for c in cells_of(names, Request("paper", "epochs"))
                if c.arm.protocol == "released"
            ]
            mine = _of_task(f"{dataset}-{experiment}", cells) or _of_task(dataset, cells)
            optimizer, *rest = (_distinct(used(cell) for cell in mine) for used in USED.values())
            if optimizer != hyper.optimizer:
                table = f", {hyper.table} in its Table 3" if hyper.table else ""
                optimizer += f" (paper: {hyper.optimizer}{table})"
            rows.append((title_of(dataset), words, optimizer, *rest))
    header = ("dataset", "experiment", *USED)
    return Table(
        name, title, header, tuple(rows), text_columns=frozenset({1, 2}), notes=words_of(notes)
    )


def _of_task(name: str, cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells on a task of this name, whatever its number of examples or region."""
    return [cell for cell in cells if re.fullmatch(rf"{name}(-\d+| .*)?", cell.task.name)]


def _distinct(values: Iterable[object]) -> str:
    distinct = [v for v in dict.fromkeys(values) if v is not None]
    return ", ".join(f"{v:g}" if isinstance(v, int | float) else str(v) for v in distinct) or "–"


def _optimizer_name(optimizer: OptimizerValue) -> str:
    return type(optimizer).__name__.lower() + (
        "_nesterov" if getattr(optimizer, "nesterov", False) else ""
    )


TABLES: dict[str, Callable[..., Table]] = {
    "errors": error_table,
    "ratios": ratio_table,
    "rates": rate_table,
    "measured": measured_table,
    "regions": region_table,
    "hyperparameters": hyperparameter_table,
}


# The summary: what RLP is, what reproduced, what happened at equal steps.


def summary(results: Results, judged: Sequence[Claim], scale: str) -> str:
    """Return one paragraph for a newcomer."""
    words = [WORDS["what"]]
    grid = results.get("table1")
    if grid is not None and not grid.request.at.judged:
        words.append(WORDS["unjudged"])
    elif grid is not None:
        released, steps = _found(grid, "released"), _found(grid, "steps")
        if released:
            words.append(
                WORDS["equal-epochs"].format(ahead=_listed(released, "better", " datasets"))
            )
            words.append(WORDS["more-steps"].format(ratio=_steps_ratio(grid)))
        if steps:
            ends = {"ahead": _listed(steps, "better"), "behind": _listed(steps, "worse")}
            words.append(WORDS["equal-steps"].format(**ends))
    counts = Counter(claim.verdict for claim in judged)
    listed = ", ".join(f"{counts[word]} {word}" for word in claims.VERDICTS if word in counts)
    some = counts.keys() - {claims.NOT_JUDGED, claims.NOT_TESTED}
    ending = WORDS["judged" if some else "none-judged"].format(
        n=len(judged), scale=scale, counts=listed
    )
    return " ".join([*words, ending])


def _found(grid: Grid, protocol: str) -> dict[str, str]:
    """Return the word for RLP against MSE on each dataset that was run."""
    comparisons = {title_of(t): grid.compare(t, protocol, "rlp", "mse") for t in published.DATASETS}
    return {title: c.word for title, c in comparisons.items() if c is not None}


def _listed(words: dict[str, str], wanted: str, what: str = "") -> str:
    """Return `2 of 6 datasets (Wine, Linear)`."""
    names = [title for title, word in words.items() if word == wanted]
    return f"{len(names)} of {len(words)}{what}" + (f" ({', '.join(names)})" if names else "")


def _steps_ratio(grid: Grid) -> str:
    """Return how many times as many steps an epoch gives to RLP."""
    pairs = [
        [*grid.stored_arms(task, "released", ("rlp", "mse")).values()]
        for task in published.DATASETS
    ]
    ratios = [
        float(pair[0].axis("step")[-1] / pair[1].axis("step")[-1])
        for pair in pairs
        if len(pair) == 2
    ]
    low, high = min(ratios), max(ratios)
    return number(low) if high - low < 0.5 else f"{low:.0f} to {high:.0f}"
