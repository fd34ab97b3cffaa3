"""The report of a comparison: what to use, the table, the dial, the curves, predictions against
truth, the columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from sklearn.metrics import confusion_matrix

from rlploss import __version__
from rlploss._files import write_text
from rlploss._progress import duration
from rlploss._scaling import Array
from rlploss.compare import model
from rlploss.compare.answer import Comparison, reverse
from rlploss.compare.arms import BASELINES, N_SETTINGS, Contender
from rlploss.compare.columns import Column
from rlploss.compare.comparison import dial_said
from rlploss.compare.rows import VALIDATION_SHARE, n_folds, sampled_said
from rlploss.estimators.search import Index
from rlploss.lab import report, stats
from rlploss.lab.figures import STYLES, Drawing, Figure, Line, Panel
from rlploss.lab.report import WORD_TONES, Report, Section, Table, Text
from rlploss.lab.text import number

ERRORS = "Mean and 95 % interval over splits of the error on validation rows"
NOT_PLAIN = ("MAE", "Huber", "Pointwise", "BatchLoss")
UNTESTED = dict.fromkeys(("scale", "effect", "effect_low", "effect_high", "p", "p_holm", "verdict"))


def result_rows(found: Comparison) -> list[dict[str, Any]]:
    """Return one row per contender: every measure with its interval, the paired test against RLP,
    seconds.
    """
    verdict = found.answer()
    rows = []
    for one in found.contenders:
        row: dict[str, Any] = {"arm": one.label}
        for measure in found.measures:
            mean, low, high = found.spread(one, measure)
            row |= {measure: mean, f"{measure}_low": low, f"{measure}_high": high}
        c = reverse(verdict.against[one.name]) if one.name in verdict.against else None
        tested = () if c is None else (c.scale, c.effect, *c.told, c.p, c.p_holm, c.word)
        row |= {
            "against": verdict.ours.label,
            **UNTESTED,
            **dict(zip(UNTESTED, tested, strict=False)),
        }
        networks = found.cells[one.name].networks
        rows.append(row | {"splits": len(networks), "seconds": sum(n.seconds for n in networks)})
    return rows


def result_table(found: Comparison, *, short: bool = False) -> Table:
    """Return the results as they are shown, the best first; `short` fits a terminal."""
    ours = found.answer().ours.label
    lower = found.lower_is_better
    words = found.measures
    first, *others = words
    comma, to = (", ", "–") if short else (",\u00a0", " to ")
    place = {one.label: i for i, one in enumerate(found.best_first())}
    rows = sorted(result_rows(found), key=lambda row: place[row["arm"]])
    shown: list[dict[str, str]] = []  # by the heads of the columns
    for row in rows:
        effect, p, word = "–", "–", Text("–")
        if row["verdict"] is not None:
            effect = (
                f"{number(row['effect'])}"
                f" [{number(row['effect_low'])}{comma}{number(row['effect_high'])}]"
            )
            p, word = number(row["p_holm"]), Text(row["verdict"], WORD_TONES[row["verdict"]])
        few = (
            f" ({row['splits']}{'' if short else ' splits'})"
            if row["splits"] < len(found.seeds)
            else ""
        )
        shown.append(
            {
                "arm": f"{row['arm']}{few}",
                ("error" if lower else "accuracy") if short else words[first]: number(row[first]),
                "95 % interval": f"{number(row[f'{first}_low'])}{to}{number(row[f'{first}_high'])}",
                f"against {ours}": effect,
                **({} if short else {"p (Holm)": p}),
                "verdict": word,
                **({} if short else {words[name]: number(row[name]) for name in others}),
                "seconds": number(row["seconds"]),
            }
        )
    head, lines = tuple(shown[0]), tuple(tuple(row.values()) for row in shown)
    if short:
        return Table("results", "", head, lines)
    how = "ratio of errors, below 1 is better" if lower else "difference of accuracies"
    own = "the overlap of the splits is allowed for (variance times 1/n + test/training rows)"
    if found.design.time is not None:
        own = "windows of time do not overlap"
    note = (
        f"Against {ours}: {how}, paired over splits; {own}, no interval is narrower than what the"
        " test rows can tell, and intervals and p-values are Holm-corrected over the arms. Level"
        " is within ±5 % of the error, or ±1 point, of no difference; undecided is neither better,"
        " worse nor level. All speak of other splits of this table, not of other tables. Seconds"
        " are for all splits and settings."
    )
    return Table(
        "results",
        f"Test rows, mean over {len(found.seeds)} splits",
        head,
        lines,
        data_header=tuple(rows[0]),
        data_rows=tuple(tuple(row.values()) for row in rows),
        notes=(note,),
        text_columns=frozenset({head.index("verdict")}),
    )


def columns_table(columns: Sequence[Column]) -> Table:
    """Return a table of what became of each column of the file."""
    rows = tuple((c.name, c.kind, c.does, f"{c.n_missing:,}", f"{len(c.names)}") for c in columns)
    head = ("column", "kind", "what became of it", "missing", "columns of numbers")
    return Table(
        "columns", "What became of each column", head, rows, text_columns=frozenset({1, 2})
    )


def build(found: Comparison) -> Report:
    """Return the whole report, what to use first."""
    verdict, design = found.answer(), found.design
    told = f"Mean and 95 % interval over {len(found.seeds)} splits."
    drawn = [Figure("arms", "", told, (contenders_drawing(found),), 1)]
    if (dial := dial_panel(found)) is not None:
        stays, of = found.dial_stays()
        told = f"{ERRORS}; RLP chose the MSE end in {stays} of {of} splits. {dial_said(found.rows)}"
        drawn.append(Figure("dial", "", told, (dial,), 1))
    notes = (*found.notes, *late_said(found))
    results = Section(
        "results",
        "Results",
        lead=notes,
        tables=(result_table(found),),
        figures=tuple(drawn),
        facts=facts(found),
        command=found.command,
    )
    curves = curve_figures(found)
    what = "Predictions against truth" if found.task == "regression" else "Classes recognised"
    shown = list(dict.fromkeys((verdict.best, verdict.ours, *verdict.rivals)))[:2]
    predictions = tuple(
        Figure(name, "", "Test rows of the first split.", (scatter_drawing(found, one),), 1)
        for name, one in zip(("predictions", "predictions-1"), shown, strict=False)
    )
    marked, whole = (
        [column for column in design.columns if column.remark],
        columns_table(design.columns),
    )
    rest = [column.name for column in design.columns if not column.remark and column.names]
    plain = (
        f"Taken as they stand: {', '.join(rest[:40])}{' and more' if len(rest) > 40 else ''}."
        if rest
        else ""
    )
    some = replace(
        whole, rows=columns_table(marked).rows, data_header=whole.header, data_rows=whole.rows
    )
    kept = (
        (
            f"{found.called(verdict.best)}, trained on all rows, is kept in model/: new rows in,"
            " predictions out."
        ),
        (
            "rlploss predict DIR new.csv uses it (DIR is this directory), and so does"
            " rlploss.compare.load(DIR) in Python."
        ),
    )
    sections = (
        results,
        *((Section("curves", "Curves", figures=curves),) if curves else ()),
        Section("predictions", what, figures=predictions),
        Section(
            "columns",
            "The columns",
            lead=(plain,) if plain else (),
            tables=(some,) if marked else (),
        ),
        Section("model", "The model", lead=kept),
    )
    origin = (
        f"rlploss {__version__}. Every number comes from a row of runs.sqlite, or of the session"
        " that made it."
    )
    summary = (*found.lines(), *(f"Warning: {text}." for text in design.warnings), rows_said(found))
    files = () if marked else (whole,)
    return Report(
        f"What to use on {found.source}", summary, sections, footer=(origin,), tables=files
    )


def rows_said(found: Comparison) -> str:
    """Return one paragraph on what was done with the rows."""
    design = found.design
    words = [
        (
            f"{design.n_rows:,} rows; target {design.target.name!r},"
            f" {design.target.said or found.task}."
        ),
        design.said,
    ]
    if design.n_dropped:
        words.append(f"{design.n_dropped:,} rows without a target were left out.")
    if len(found.rows.X) < len(design.X):
        words.append(sampled_said(len(found.rows.X), len(design.X)))
    return " ".join(word for word in words if word)


def late_said(found: Comparison) -> tuple[str, ...]:
    """Return which networks had not converged within their steps."""
    late = {
        one: int(found.values(one.name, "late").sum()) for one in found.contenders if not one.model
    }
    words = [
        f"{one.label} in {n} of {len(found.values(one.name))} splits"
        for one, n in late.items()
        if n
    ]
    told = (
        f"Not converged within {found.steps:,} steps: {', '.join(words)}; --steps gives them more."
    )
    return (told,) if words else ()


def facts(found: Comparison) -> tuple[tuple[str, str], ...]:
    """Return how the comparison was made fair, and what it took."""
    first = found.contenders[0].name
    n_train, n_test = (found.values(first, name) for name in ("n_train", "n_test"))
    folds = n_folds(int(n_train.max()))
    inside = f"{folds} folds" if folds > 1 else f"{VALIDATION_SHARE:.0%} of them for validation"
    if found.design.time is not None:
        inside = f"the latest {VALIDATION_SHARE:.0%} of them for validation"
    kind = "" if found.design.group is None else ", whole groups"
    kind = kind if found.design.time is None else ", windows of time"
    seconds = sum(cell.seconds for cell in found.cells.values())
    origin = found.cells[first].provenance
    target = (
        "as it is, or its logarithm, chosen with the setting"
        if len(found.rows.logs) > 1
        else "as it is"
    )
    return (
        (
            "Splits",
            f"{len(found.seeds)}, the same for every arm: {_range(n_train)} training and "
            f"{_range(n_test)} test "
            f"rows{kind}",
        ),
        (
            "Selection",
            f"inside the training rows ({inside}), by squared error, "
            f"{N_SETTINGS} settings per network",
        ),
        (
            "Optimiser steps",
            f"at most {found.steps:,}, twice as many while the best is in the last fifth",
        ),
        ("Target", target),
        ("Test rows", "used once per arm and split, after the choice"),
        ("Training time", f"{duration(seconds)} of one core"),
        ("Versions", ", ".join(f"{k} {v}" for k, v in origin["versions"].items())),
        ("Machine", f"{origin['machine']['processor']}, {origin['machine']['cores']} cores"),
    )


def _range(counts: Array) -> str:
    low, high = counts.min(), counts.max()
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


def write(found: Comparison, directory: Path) -> Path:
    """Write the report with its files, everything as JSON, and the model. Return the path of the
    page.
    """
    about = {
        "source": found.source,
        "target_name": found.design.target.name,
        "arm": found.answer().best.name,
    }
    model.save(found.best_model(), directory / "model", about)
    page = report.write(build(found), directory)[0]
    write_text(
        directory / "comparison.json",
        json.dumps(as_json(found), indent=2, ensure_ascii=False) + "\n",
    )
    return page


def as_json(found: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data."""
    design = found.design
    dial = None
    if (panel := dial_panel(found)) is not None:
        (line,) = panel.lines
        stays, of = found.dial_stays()
        dial = {
            "subset_size": line.x.tolist(),
            "relative_error": line.y.tolist(),
            "chose_mse": stays,
            "splits": of,
        }
    return {
        "summary": found.summary(),
        "warnings": list(design.warnings),
        "notes": [*found.notes, *late_said(found)],
        "source": found.source,
        "task": found.task,
        "target": design.target.name,
        "classes": list(design.target.classes),
        "rows": {
            "file": design.n_rows,
            "without_target": design.n_dropped,
            "used": len(found.rows.X),
        },
        "columns": [
            {
                "name": c.name,
                "kind": c.kind,
                "does": c.does,
                "missing": c.n_missing,
                "gives": list(c.names),
            }
            for c in design.columns
        ],
        "best": found.answer().best.name,
        "steps": found.steps,
        "seeds": list(found.seeds),
        "results": json.loads(found.table.to_json(orient="records", double_precision=15)),
        "dial": dial,
    }


# Figures


def _ticks(axis: Axis, *, share: bool = False) -> None:
    """Few ticks, as plain numbers or percent."""
    axis.set_major_locator(MaxNLocator(4))
    axis.set_major_formatter(
        PercentFormatter(1.0) if share else FuncFormatter(lambda value, _: f"{value:,.6g}")
    )


def contenders_drawing(found: Comparison) -> Drawing:
    """Draw every contender's mean and interval on one axis; the mean, or the class frequencies, as
    a line.
    """
    measure = next(iter(found.measures.values()))
    spread = {one.name: found.spread(one) for one in found.contenders}
    order = found.best_first()[::-1]
    arms = [one for one in order if one.name not in BASELINES]
    trivial = next((one for one in order if one.name in BASELINES), None)

    def draw(axes: Axes) -> None:
        box = axes.get_position()
        axes.set_position(
            (box.x0 + 0.27 * box.width, box.y0, 0.73 * box.width, box.height)
        )  # room for the names
        for height, one in enumerate(arms):
            (mean, low, high), colour = spread[one.name], STYLES[one.style][0]
            axes.plot(
                [low, high], [height, height], color=colour, linewidth=2.2, solid_capstyle="round"
            )
            axes.plot([mean], [height], "o", color=colour, markersize=5)
        axes.set_yticks(range(len(arms)), [found.called(one) for one in arms])
        axes.set_ylim(-0.7, len(arms) - 0.3)
        axes.margins(x=0.06)
        low, high = axes.get_xlim()
        told = measure
        if trivial is not None:
            at = spread[trivial.name][0]
            axes.axvline(
                min(max(at, low), high),
                color=STYLES["grey"][0],
                linestyle=(0, (1, 2)),
                linewidth=1.1,
            )
            axes.set_xlim(low, high)
            told += (
                f" ({number(at) if found.lower_is_better else f'{at:.1%}'} for {trivial.label},"
                " dotted)"
            )
        axes.set_xlabel(told, fontsize=7.5)
        _ticks(axes.xaxis, share=not found.lower_is_better)

    said = "; ".join(f"{one.label} {number(spread[one.name][0])}" for one in reversed(order))
    size = (4.6, 0.8 + 0.24 * max(4, len(arms)))
    return Drawing("Every arm on test rows, best on top", draw, f"{measure}: {said}.", size)


def dial_panel(found: Comparison) -> Panel | None:
    """Return RLP's validation error against its subset size, from the MSE end to all rows; None
    without RLP.
    """
    if "rlp" not in found.cells:
        return None
    kept = [network.artifacts for network in found.cells["rlp"].of_variant()]
    sizes, errors = (
        np.array([one[name] for one in kept], dtype=np.float64) for name in ("sizes", "errors")
    )
    places = np.median(sizes, axis=0)  # of the settings [splits, settings]; 0 is MSE
    best: list[Array] = [
        errors[:, places == place].min(axis=1) for place in np.unique(places)
    ]  # the best rate
    mean, low, high = stats.band(
        np.column_stack(best) / best[0][:, None]
    )  # to the MSE end of the same split
    n_columns = found.design.X.shape[1] + 1
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


def curve_figures(found: Comparison) -> tuple[Figure, ...]:
    """Return the validation error of the chosen settings against the steps; each figure has colours
    of its own.
    """
    plain: list[Line] = []
    others: list[Line] = []
    for one in found.contenders:
        if not one.model:
            cell = found.cells[one.name]
            x, (mean, low, high) = cell.axis("step"), stats.band(cell.matrix("validation"))
            last = max(8, int(np.searchsorted(x, 2 * np.median(cell.final("best_step")))))
            lines = others if one.own == "shape" or one.family in NOT_PLAIN else plain
            lines.append(Line(one.label, one.style, x[:last], mean[:last], low[:last], high[:last]))
    titled = (("Plain, and with L2", plain), ("Robust losses, mixup and your own", others))
    words = "optimiser steps", "validation error"
    panels = [Panel(title, *words, tuple(lines), y_log=True) for title, lines in titled if lines]
    told = f"{ERRORS}, at the chosen setting."
    named = zip(("curves", "curves-more"), panels, strict=False)
    return tuple(Figure(name, "", told, (panel,), 1) for name, panel in named)


def scatter_drawing(found: Comparison, one: Contender) -> Drawing:
    """Draw predictions against truth on the first split; for classes, how often each is taken for
    each.
    """
    kept = found.cells[one.name].of_variant()[0].artifacts
    truth, predicted = kept["truth"], kept["predicted"]
    label = found.called(one)
    if found.task == "classification":
        return _classes_drawing(
            found.design.target.classes, truth.astype(int), predicted.argmax(1), label
        )
    ends = [float(min(truth.min(), predicted.min())), float(max(truth.max(), predicted.max()))]

    def draw(axes: Axes) -> None:
        axes.plot(ends, ends, color=STYLES["grey"][0], linewidth=1)
        colour = STYLES[one.style][0]
        size = 2.5 if len(truth) > 100 else 4.5
        axes.plot(
            truth, predicted[:, 0], "o", color=colour, markersize=size, alpha=0.5, markeredgewidth=0
        )
        axes.set_xlabel("truth")
        axes.set_ylabel("predicted")
        _ticks(axes.xaxis)
        _ticks(axes.yaxis)

    with np.errstate(invalid="ignore"):  # the mean is the same for all rows
        r = float(np.corrcoef(truth, predicted[:, 0])[0, 1])
    return Drawing(label, draw, f"Predictions of {label} against truth, correlation {number(r)}.")


def _classes_drawing(
    classes: tuple[str, ...], truth: Index, predicted: Index, label: str
) -> Drawing:
    counts = confusion_matrix(truth, predicted, labels=range(len(classes)))
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)

    def draw(axes: Axes) -> None:
        axes.imshow(shares, cmap="Greys", vmin=0, vmax=1, aspect="auto")
        axes.grid(visible=False)
        axes.set_xlabel("predicted")
        axes.set_ylabel("truth")
        ticks = [name if len(name) <= 9 else f"{name[:8]}…" for name in classes]
        axes.set_xticks(range(len(classes)), ticks, fontsize=6)
        axes.set_yticks(
            range(len(classes)), ticks, fontsize=6, rotation=90, va="center"
        )  # beside them stands "truth"
        for (i, j), n in np.ndenumerate(counts) if len(classes) <= 12 else ():
            colour = "white" if shares[i, j] > 0.5 else "black"
            axes.text(j, i, f"{n}", ha="center", va="center", fontsize=7, color=colour)

    right = ", ".join(f"{name} {shares[i, i]:.0%}" for i, name in enumerate(classes))
    return Drawing(label, draw, f"Share of each class recognised by {label}: {right}.")
