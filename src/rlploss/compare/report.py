"""The report of a comparison: the answer, the table, the curves, the dial, predictions against truth, the code."""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlploss import __version__
from rlploss.compare.arms import N_SETTINGS
from rlploss.compare.code import winner_code
from rlploss.compare.figures import arms_drawing, curve_panels, dial_panel, scatter_drawing
from rlploss.compare.study import sampled_said
from rlploss.compare.train import FOLD_ROWS, FOLDS, HELD_SHARE
from rlploss.compare.words import WORDS
from rlploss.lab import figures, report, stats
from rlploss.lab.figures import Figure, number
from rlploss.lab.files import Value, write_text_atomic
from rlploss.lab.report import Report, Section, Table, Text
from rlploss.lab.run import duration

if TYPE_CHECKING:
    from rlploss.compare.answer import Comparison

TONES = {"better": "bad", "worse": "good", "level": "calm"}  # of the other arm, seen from RLP
SEEN = {"better": "worse", "worse": "better", "level": "level"}


def result_rows(found: Comparison, condition: str) -> list[dict[str, Any]]:
    """One row per arm: every measure with its interval, the paired test against RLP, seconds."""
    verdict = found.answer(condition)
    label = next(c.label for c in found.conditions if c.name == condition)
    rows = []
    for arm in found.arms:
        row: dict[str, Any] = {"condition": label, "arm": arm.label}
        for measure in found.measures:
            s = stats.summary(found.values(arm.name, measure, condition))
            row |= {measure: s.mean, f"{measure}_low": s.low, f"{measure}_high": s.high}
        c = verdict.against.get(arm.name)
        row |= {
            "against": verdict.ours.label,
            "scale": None if c is None else c.scale,
            "effect": None if c is None else _other_way(c)[0],
            "effect_low": None if c is None else _other_way(c)[1],
            "effect_high": None if c is None else _other_way(c)[2],
            "p": None if c is None else c.p,
            "p_holm": None if c is None else c.p_holm,
            "verdict": None if c is None else SEEN[c.word],
            "seconds": sum(r.seconds for r in found.cells[condition, arm.name].runs),
        }
        rows.append(row)
    return rows


def _other_way(c: stats.Comparison) -> tuple[float, float, float]:
    """The effect of the other arm against ours: ratios are inverted, differences change sign."""
    if c.scale == "ratio":
        return 1 / c.effect, 1 / c.high, 1 / c.low
    return -c.effect, -c.high, -c.low


def result_table(found: Comparison, condition: str) -> Table:
    """The results as shown."""
    verdict = found.answer(condition)
    rows = result_rows(found, condition)
    first = found.measures[0]
    head = ("arm", WORDS[first], "95 % interval", f"against {verdict.ours.label}", "p (Holm)", "verdict",
            *(WORDS[m] for m in found.measures[1:]), "seconds")  # fmt: skip
    shown = []
    order = sorted(rows, key=lambda row: row[first] if found.lower_is_better else -row[first])
    for row in order:
        c = verdict.against.get(next(a.name for a in found.arms if a.label == row["arm"]))
        effect, low, high = (row["effect"], row["effect_low"], row["effect_high"]) if c else (math.nan,) * 3
        shown.append(
            (
                row["arm"],
                number(row[first]),
                f"{number(row[f'{first}_low'])} to {number(row[f'{first}_high'])}",
                "–" if c is None else f"{number(effect)} [{number(low)}, {number(high)}]",
                "–" if c is None else number(c.p_holm),
                Text("–") if c is None else Text(SEEN[c.word], TONES[c.word]),
                *(number(row[m]) for m in found.measures[1:]),
                number(row["seconds"]),
            )
        )
    data: list[tuple[Value, ...]] = [tuple(row.values()) for row in order]
    how = "ratio of errors, below 1 is better" if found.lower_is_better else "difference of accuracies"
    return Table(
        "results" if condition == "plain" else f"results-{condition}",
        f"Test rows, mean over {len(found.seeds)} splits",
        head,
        tuple(shown),
        data_header=tuple(rows[0]),
        data_rows=tuple(data),
        notes=(
            f"Against {verdict.ours.label}: {how}, paired over splits. Interval and p-value allow for the overlap of "
            "the splits (variance times 1/n + test/training rows) and are Holm-corrected over the arms. They speak of "
            "other splits of this table, not of other tables. Seconds are for all splits and settings.",
        ),
        text_columns=frozenset({5}),
    )


def build(found: Comparison) -> Report:
    """Everything, the answer first."""
    verdict = found.answer()
    dial = dial_panel(found)
    curves = curve_panels(found)
    shown = [verdict.ours, *(arm for arm in (verdict.best, *verdict.rivals) if arm is not verdict.ours)]
    shown = list({arm.name: arm for arm in shown}.values())[:3]
    sections = [
        Section(
            "results",
            "Results",
            tables=(result_table(found, "plain"),),
            figures=(
                Figure("arms", "Every arm", f"Mean and 95 % interval over {len(found.seeds)} splits.",
                       (arms_drawing(found),), columns=2),
            ),
            facts=facts(found),
            command=found.command,
        )
    ]  # fmt: skip
    for condition in found.conditions[1:]:
        title = f"With {condition.label}"
        text = found.answer(condition.name).sentence(f"with {condition.label}")
        sections.append(Section(condition.name, title, lead=(text,), tables=(result_table(found, condition.name),)))
    if curves:
        how = "Mean and 95 % interval over splits of the error on held-out training rows, at the chosen setting."
        drawn = tuple(
            Figure(name, f"Validation error: {panel.title}", how, (panel,), 2)  # a legend each: they share colours
            for name, panel in zip(("curves", "curves-more"), curves, strict=False)
        )
        sections.append(Section("curves", "Curves", figures=drawn))
    if dial is not None:
        stays, of = found.dial_stays()
        lead = (
            "The subset size M is a dial from plain MSE (M up to the number of columns) to linear regression (M = all "
            f"rows). RLP chose the MSE end in {stays} of {of} splits.",
        )
        told = "Mean and 95 % interval over splits of the error on held-out training rows; the MSE end is 1."
        sections.append(
            Section("dial", "The dial", lead=lead, figures=(Figure("dial", "Error along the dial", told, (dial,), 2),))
        )
    drawings = tuple(scatter_drawing(found, arm) for arm in shown)
    what = "Predictions against truth" if found.task == "regression" else "Classes recognised"
    sections.append(
        Section("predictions", what, figures=(Figure("predictions", what, "Test rows of the first split.", drawings),))
    )
    sections.append(columns_section(found))
    code = winner_code(found)
    lead = (f"{verdict.best.label} has the lowest mean error; this trains it on all rows of the table.",)
    sections.append(Section("code", "The code that trains the winner", short="Code", lead=lead, command=code))
    return Report(
        f"Does RLP help on {found.source}?",
        (found.summary(), *rows_said(found)),
        tuple(sections),
        footer=(
            f"rlploss {__version__}. Every number comes from a row of runs.sqlite, or of the session that made it.",
        ),
    )


def rows_said(found: Comparison) -> tuple[str, ...]:
    """What was done with the rows, in one paragraph."""
    design = found.design
    words = [f"{design.n_rows:,} rows; target {design.target.name!r}, {design.target.said or found.task}."]
    if design.n_dropped:
        words.append(f"{design.n_dropped:,} rows without a target were left out.")
    if found.n_used < len(design.X):
        words.append(sampled_said(found.n_used, len(design.X)))
    return (" ".join(words),)


def facts(found: Comparison) -> tuple[tuple[str, str], ...]:
    """How it was made fair, and what it took."""
    run = found.cells["plain", found.arms[0].name].of_variant()[0].curve
    n_train, n_test = int(run["n_train"][0]), int(run["n_test"][0])
    folds = f"{FOLDS} folds" if n_train <= FOLD_ROWS else f"{HELD_SHARE:.0%} held out"
    seconds = sum(cell.seconds for cell in found.cells.values())
    origin = found.cells["plain", found.arms[0].name].provenance
    return (
        ("Splits", f"{len(found.seeds)}, the same for every arm: {n_train:,} training and {n_test:,} test rows"),
        ("Selection", f"inside the training rows ({folds}), by squared error, {N_SETTINGS} settings per arm"),
        ("Optimiser steps", f"at most {found.steps:,} for every network; the best number is chosen with the setting"),
        ("Test rows", "used once per arm and split, after the choice"),
        ("Training time", f"{duration(seconds)} of one core"),
        ("Versions", ", ".join(f"{k} {v}" for k, v in origin["versions"].items())),
        ("Machine", f"{origin['machine']['processor']}, {origin['machine']['cores']} cores"),
    )


def columns_section(found: Comparison) -> Section:
    """What became of each column."""
    return Section("columns", "The columns", tables=(columns_table(found.design.columns),))


def columns_table(columns: Any) -> Table:
    """One row per column of the file."""
    rows = tuple((c.name, c.kind, c.does, f"{c.n_missing:,}", f"{len(c.names)}") for c in columns)
    head = ("column", "kind", "what became of it", "missing", "columns of numbers")
    return Table("columns", "What became of each column", head, rows, text_columns=frozenset({1, 2}))


def write(found: Comparison, directory: Path) -> Path:
    """The report with its files, and everything as JSON."""
    page = report.write(build(found), directory)[0]
    write_text_atomic(directory / "comparison.json", json.dumps(as_json(found), indent=2, ensure_ascii=False) + "\n")
    return page


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison as plain data."""
    verdict = found.answer()
    return {
        "summary": found.summary(),
        "task": found.task,
        "target": found.design.target.name,
        "classes": list(found.design.target.classes),
        "rows": {"file": found.design.n_rows, "without_target": found.design.n_dropped, "used": found.n_used},
        "columns": [
            {"name": c.name, "kind": c.kind, "does": c.does, "missing": c.n_missing, "gives": list(c.names)}
            for c in found.design.columns
        ],
        "best": verdict.best.name,
        "steps": found.steps,
        "seeds": list(found.seeds),
        "results": [
            {key: _plain(value) for key, value in row.items()}
            for condition in found.conditions
            for row in result_rows(found, condition.name)
        ],
        "dial": _dial_json(found),
        "code": winner_code(found),
    }


def _dial_json(found: Comparison) -> dict[str, Any] | None:
    panel = dial_panel(found)
    if panel is None:
        return None
    stays, of = found.dial_stays()
    line = panel.lines[0]
    return {"subset_size": line.x.tolist(), "relative_error": line.y.tolist(), "chose_mse": stays, "splits": of}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def notebook_html(found: Comparison) -> str:
    """The answer, the table and the overview, for a notebook."""
    table = result_table(found, "plain")
    head = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row) + "</tr>" for row in table.rows)
    drawn = figures.inline_svg(arms_drawing(found), "arms")
    return (
        f"<p><strong>{escape(found.summary())}</strong></p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><div style='max-width:32em'>{drawn}</div>"
    )
