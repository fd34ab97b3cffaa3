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

from rlploss import __version__
from rlploss._files import write_text
from rlploss._progress import duration
from rlploss._scaling import Array
from rlploss.compare import drawings, model
from rlploss.compare.answer import Comparison
from rlploss.compare.arms import N_SETTINGS
from rlploss.compare.evidence import (
    classes_table,
    expected_said,
    importance_figure,
    reliability_table,
)
from rlploss.compare.result import Results, reverse
from rlploss.compare.rows import sampled_said
from rlploss.estimators.kinds import Column
from rlploss.estimators.selection import VALIDATION_SHARE, n_folds
from rlploss.lab import report
from rlploss.lab.figures import Figure
from rlploss.lab.report import WORD_TONES, Report, Section, Table, Text
from rlploss.lab.text import number

IMPORTANCE = ("column", "mean", "low", "high")
UNTESTED = dict.fromkeys(("scale", "effect", "effect_low", "effect_high", "p", "p_holm", "verdict"))


def result_rows(results: Results) -> list[dict[str, Any]]:
    """Return one row per arm: every measure with its interval, the paired test against RLP,
    seconds.
    """
    a, rows = results.answer, []
    for arm in results.arms:
        row: dict[str, Any] = {"arm": arm.label}
        for m in results.metrics:
            mean, low, high = results.spread(arm.name, m.name)
            row |= {m.name: mean, f"{m.name}_low": low, f"{m.name}_high": high}
        row |= {"against": a.ours.label, **UNTESTED}
        if arm.name in a.against:
            c = reverse(a.against[arm.name])
            tested = (c.scale, c.effect, *c.corrected_interval, c.p, c.p_holm, c.word)
            row |= dict(zip(UNTESTED, tested, strict=True))
        rows.append(row | {"splits": len(arm.predicted), "seconds": sum(arm.seconds)})
    return rows


def result_table(results: Results, *, short: bool = False) -> Table:
    """Return the results as they are shown, the best first; `short` fits a terminal."""
    ours, metric = results.answer.ours.label, results.metric
    comma, to = (", ", "–") if short else (",\u00a0", " to ")
    place = {arm.label: i for i, arm in enumerate(results.best_first())}
    rows = sorted(result_rows(results), key=lambda row: place[row["arm"]])
    most = max(row["splits"] for row in rows)
    shown: list[dict[str, str]] = []  # by the heads of the columns
    for row in rows:
        effect, p, word = "–", "–", Text("–")
        if row["verdict"] is not None:
            effect = (
                f"{number(row['effect'])}"
                f" [{number(row['effect_low'])}{comma}{number(row['effect_high'])}]"
            )
            p, word = number(row["p_holm"]), Text(row["verdict"], WORD_TONES[row["verdict"]])
        few = f" ({row['splits']}{'' if short else ' splits'})" if row["splits"] < most else ""
        first = metric.name
        shown.append(
            {
                "arm": f"{row['arm']}{few}",
                ("error" if short and len(metric.words) > 12 else metric.words): number(row[first]),
                "95 % interval": f"{number(row[f'{first}_low'])}{to}{number(row[f'{first}_high'])}",
                f"against {ours}": effect,
                **({} if short else {"p (Holm)": p}),
                "verdict": word,
                **({} if short else {m.words: number(row[m.name]) for m in results.metrics[1:]}),
                "seconds": number(row["seconds"]),
            }
        )
    head, lines = tuple(shown[0]), tuple(tuple(row.values()) for row in shown)
    if short:
        return Table("results", "", head, lines)
    how = "ratio of errors, below 1 is better"
    if not metric.lower_is_better:
        how = f"difference of {metric.words}, above 0 is better"
    own = "the overlap of the splits is allowed for (variance times 1/n + test/training rows)"
    if results.windows:
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
        f"Test rows, mean over {most} splits",
        head,
        lines,
        data_header=tuple(rows[0]),
        data_rows=tuple(tuple(row.values()) for row in rows),
        notes=(note,),
        text_columns=frozenset({head.index("verdict")}),
    )


def columns_table(columns: Sequence[Column], *, marked: bool = False) -> Table:
    """Return a table of what became of each column of the file; with `marked` it shows those that
    people should look at, and has all of them as CSV.
    """
    head = ("column", "kind", "what became of it", "missing")
    rows = [(c.name, c.kind, c.does, f"{c.n_missing:,}") for c in columns]
    shown = [row for row, c in zip(rows, columns, strict=True) if c.remark or not marked]
    return Table(
        "columns",
        "What became of each column",
        head,
        tuple(shown),
        data_header=head,
        data_rows=tuple(rows),
        text_columns=frozenset({1, 2}),
    )


def build(found: Comparison) -> Report:
    """Return the whole report, what to use first."""
    design, results = found.design, found.results
    a, metric = results.answer, results.metric
    told = (
        f"Mean {metric.words} and its 95 % interval over {len(results.truth)} splits;"
        f" {'lower' if metric.lower_is_better else 'higher'} is better."
    )
    drawn = [Figure("arms", "", told, (drawings.arms_drawing(results),), 1)]
    if (dial := drawings.dial_panel(results, found.rows.X.shape[1] + 1)) is not None:
        rlp, p = results.arm("rlp"), found.rows.X.shape[1] + 1
        told = (
            "Mean and 95 % interval over splits of the error on validation rows; RLP chose the MSE"
            f" end in {rlp.at_mse} of {len(rlp.predicted)} splits. Subsets of {p} rows or fewer"
            " (columns and intercept) are MSE, all training rows of a split are linear regression."
        )
        drawn.append(Figure("dial", "", told, (dial,), 1))
    if found.task == "regression":
        arms = {arm.name: arm for arm in (a.leader, a.ours, *a.rivals)}
        figures = tuple(
            Figure(name, "", "Test rows of the first split.", (drawing,), 1)
            for name, drawing in zip(
                ("predictions", "predictions-1"),
                (drawings.predictions_drawing(results, arm) for arm in arms.values()),
                strict=False,
            )
        )
        truth = Section("predictions", "Predictions against truth", figures=figures)
    else:
        tables = (
            classes_table(results, design.target.classes),
            reliability_table(results, found.expected()),
        )
        truth = Section("predictions", "Classes recognised", tables=tables)
    rest = [column.name for column in design.columns if not column.remark and column.used]
    plain = f"Taken as they stand: {', '.join(rest[:40])}{' and more' * (len(rest) > 40)}."
    table = columns_table(design.columns, marked=True)
    kept = (
        f"{a.best.label}, trained on all rows, is kept in model/: new rows in, predictions out.",
        "rlploss predict DIR new.csv uses it (DIR is this directory), and so does"
        " rlploss.compare.load(DIR) in Python.",
        *expected_said(found.expected()),
    )
    sections = (
        Section(
            "results",
            "Results",
            lead=(*found.notes, *late_said(found)),
            tables=(result_table(results),),
            figures=tuple(drawn),
            facts=facts(found),
            command=found.command,
        ),
        truth,
        Section(
            "columns",
            "The columns",
            lead=(plain,) if rest else (),
            figures=(importance_figure(found),) if found.importance else (),
            tables=(table,) if table.rows else (),
        ),
        Section("model", "The model", lead=kept),
    )
    origin = (
        f"rlploss {__version__}. Every number comes from a row of runs.sqlite, or of the session"
        " that made it."
    )
    return Report(
        f"What to use on {found.source}",
        (*found.lines(), *(f"Warning: {text}." for text in design.warnings), rows_said(found)),
        sections,
        footer=(origin,),
        tables=() if table.rows else (table,),
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
    if len(found.rows.y) < len(design.frame):
        words.append(sampled_said(len(found.rows.y), len(design.frame)))
    return " ".join(word for word in words if word)


def late_said(found: Comparison) -> tuple[str, ...]:
    """Return which networks had not converged within their steps."""
    late = [
        (arm, int(arm.details["late"].sum())) for arm in found.results.arms if "late" in arm.details
    ]
    said = [f"{arm.label} in {n} of {len(arm.predicted)} splits" for arm, n in late if n]
    told = (
        f"Not converged within {found.steps:,} steps: {', '.join(said)}; --steps gives them more."
    )
    return (told,) if said else ()


def facts(found: Comparison) -> tuple[tuple[str, str], ...]:
    """Return how the comparison was made fair, and what it took."""
    results = found.results
    n_train = np.array(results.n_train)
    n_test = np.array([len(truth) for truth in results.truth])
    folds = n_folds(int(n_train.max()))
    inside = f"{folds} folds" if folds > 1 else f"{VALIDATION_SHARE:.0%} of them for validation"
    if found.design.time is not None:
        inside = f"the latest {VALIDATION_SHARE:.0%} of them for validation"
    kind = "" if found.design.group is None else ", whole groups"
    kind = kind if found.design.time is None else ", windows of time"
    seconds = sum(sum(arm.seconds) for arm in results.arms)
    origin = found.origin
    target = (
        "as it is, or its logarithm, chosen with the setting"
        if any(arm.details["log"].any() for arm in found.results.arms)
        else "as it is"
    )
    return (
        (
            "Splits",
            f"{len(results.truth)}, the same for every arm: {_range(n_train)} training and "
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
    if why := model.save(found.best_model(), directory / "model", about):
        found = replace(found, notes=(*found.notes, why))
    else:
        found.expected().save(directory / "model")
    page = report.write(build(found), directory)[0]
    write_text(
        directory / "comparison.json",
        json.dumps(as_json(found), indent=2, ensure_ascii=False) + "\n",
    )
    return page


def as_json(found: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data."""
    design = found.design
    encoder = design.encoder.fit(design.frame, design.target.y)
    given = list(zip(encoder.origins_, encoder.get_feature_names_out(), strict=True))
    dial = None
    results = found.results
    if (panel := drawings.dial_panel(results, found.rows.X.shape[1] + 1)) is not None:
        (line,), rlp = panel.lines, results.arm("rlp")
        dial = {
            "subset_size": line.x.tolist(),
            "relative_error": line.y.tolist(),
            "chose_mse": rlp.at_mse,
            "splits": len(rlp.predicted),
        }
    return {
        "summary": found.summary(),
        "warnings": list(design.warnings),
        "notes": [*found.notes, *late_said(found)],
        "source": found.source,
        "task": found.task,
        "metric": results.metric.name,
        "target": design.target.name,
        "classes": list(design.target.classes),
        "rows": {
            "file": design.n_rows,
            "without_target": design.n_dropped,
            "used": len(found.rows.y),
        },
        "columns": [
            {
                "name": c.name,
                "kind": c.kind,
                "does": c.does,
                "missing": c.n_missing,
                "gives": [name for origin, name in given if origin == c.name],
            }
            for c in design.columns
        ],
        "best": found.answer().best.name,
        "importance": [dict(zip(IMPORTANCE, row, strict=True)) for row in found.importance],
        "settings": dict(found.settings),
        "steps": found.steps,
        "seeds": list(found.seeds),
        "results": json.loads(found.table.to_json(orient="records", double_precision=15)),
        "dial": dial,
    }
