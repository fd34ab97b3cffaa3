"""The report of a comparison: the answer, the table, the curves, the dial, predictions against truth, the code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as MplFigure
from matplotlib.ticker import EngFormatter, MaxNLocator

from rlploss import __version__
from rlploss._files import write_text
from rlploss._progress import duration
from rlploss.compare.answer import Comparison, reverse, sampled_said
from rlploss.compare.arms import HIDDEN, N_SETTINGS, PLAIN, Condition, Contender, models
from rlploss.compare.columns import Column
from rlploss.compare.read import Array
from rlploss.compare.train import FOLD_ROWS, FOLDS, VALIDATION_SHARE
from rlploss.estimators.dial import BATCH, steps_per_iteration
from rlploss.estimators.selection import Index
from rlploss.lab import figures, report, stats
from rlploss.lab.figures import STYLES, Drawing, Figure, Line, Panel
from rlploss.lab.report import Report, Section, Table, Text
from rlploss.lab.text import number

TONES = {"better": "good", "worse": "bad", "level": "calm"}
UNTESTED = dict.fromkeys(("scale", "effect", "effect_low", "effect_high", "p", "p_holm", "verdict"))


def result_rows(found: Comparison, condition: Condition) -> list[dict[str, Any]]:
    """Return one row per contender: every measure with its interval, the paired test against RLP, seconds."""
    verdict = found.answer(condition.name)
    rows = []
    for one in found.contenders:
        row: dict[str, Any] = {"condition": condition.label, "arm": one.label}
        for measure in found.measures:
            s = stats.summary(found.values(one.name, measure, condition.name))
            row |= {measure: s.mean, f"{measure}_low": s.low, f"{measure}_high": s.high}
        row |= {"against": verdict.ours.label, **UNTESTED}
        if one.name in verdict.against:
            c = reverse(verdict.against[one.name])
            row |= {"scale": c.scale, "effect": c.effect, "effect_low": c.low, "effect_high": c.high}
            row |= {"p": c.p, "p_holm": c.p_holm, "verdict": c.word}
        row["seconds"] = sum(n.seconds for n in found.cells[condition.name, one.name].networks)
        rows.append(row)
    return rows


def result_table(found: Comparison, condition: Condition) -> Table:
    """Return the results as they are shown, the best first."""
    ours = found.answer(condition.name).ours.label
    words = found.measures
    first, *others = words
    rows = sorted(result_rows(found, condition), key=lambda row: row[first], reverse=not found.lower_is_better)
    shown = []
    for row in rows:
        effect, p, word = "–", "–", Text("–")
        if row["verdict"] is not None:
            effect = f"{number(row['effect'])} [{number(row['effect_low'])}, {number(row['effect_high'])}]"
            p, word = number(row["p_holm"]), Text(row["verdict"], TONES[row["verdict"]])
        interval = f"{number(row[f'{first}_low'])} to {number(row[f'{first}_high'])}"
        rest = (number(row[name]) for name in (*others, "seconds"))
        shown.append((row["arm"], number(row[first]), interval, effect, p, word, *rest))
    how = "ratio of errors, below 1 is better" if found.lower_is_better else "difference of accuracies"
    return Table(
        "results" if condition == PLAIN else f"results-{condition.name}",
        f"Test rows, mean over {len(found.seeds)} splits",
        ("arm", words[first], "95 % interval", f"against {ours}", "p (Holm)", "verdict",
         *(words[name] for name in others), "seconds"),
        tuple(shown),
        data_header=tuple(rows[0]),
        data_rows=tuple(tuple(row.values()) for row in rows),
        notes=(
            f"Against {ours}: {how}, paired over splits. Interval and p-value allow for the overlap of the splits "
            "(variance times 1/n + test/training rows) and are Holm-corrected over the arms. They speak of other "
            "splits of this table, not of other tables. Seconds are for all splits and settings.",
        ),
        text_columns=frozenset({5}),
    )  # fmt: skip


def columns_table(columns: Sequence[Column]) -> Table:
    """Return a table of what became of each column of the file."""
    rows = tuple((c.name, c.kind, c.does, f"{c.n_missing:,}", f"{len(c.names)}") for c in columns)
    head = ("column", "kind", "what became of it", "missing", "columns of numbers")
    return Table("columns", "What became of each column", head, rows, text_columns=frozenset({1, 2}))


def build(found: Comparison) -> Report:
    """Return the whole report, the answer first."""
    verdict = found.answer()
    told = f"Mean and 95 % interval over {len(found.seeds)} splits."
    every = Figure("arms", "Every arm", told, (contenders_drawing(found),), columns=2)
    tables = (result_table(found, PLAIN),)
    sections = [
        Section("results", "Results", tables=tables, figures=(every,), facts=facts(found), command=found.command)
    ]
    for condition in found.conditions[1:]:
        lead = (found.answer(condition.name).sentence(f"with {condition.label}"),)
        tables = (result_table(found, condition),)
        sections.append(Section(condition.name, f"With {condition.label}", lead=lead, tables=tables))
    errors = "Mean and 95 % interval over splits of the error on validation rows"
    curves = tuple(  # a legend each: they share colours
        Figure(name, f"Validation error: {panel.title}", f"{errors}, at the chosen setting.", (panel,), 2)
        for name, panel in zip(("curves", "curves-more"), curve_panels(found), strict=False)
    )
    if curves:
        sections.append(Section("curves", "Curves", figures=curves))
    dial = dial_panel(found)
    if dial is not None:
        stays, of = found.dial_stays()
        lead = (
            "The subset size M is a dial from plain MSE (M up to the number of columns) to linear regression (M = all "
            f"rows). RLP chose the MSE end in {stays} of {of} splits.",
        )
        along = Figure("dial", "Error along the dial", f"{errors}; the MSE end is 1.", (dial,), 2)
        sections.append(Section("dial", "The dial", lead=lead, figures=(along,)))
    what = "Predictions against truth" if found.task == "regression" else "Classes recognised"
    shown = list(dict.fromkeys((verdict.ours, verdict.best, *verdict.rivals)))[:3]
    drawings = tuple(scatter_drawing(found, one) for one in shown)
    predictions = Figure("predictions", what, "Test rows of the first split.", drawings)
    lead = (f"{verdict.best.label} has the lowest mean error; this trains it on all rows of the table.",)
    code = winner_code(found)
    sections += [
        Section("predictions", what, figures=(predictions,)),
        Section("columns", "The columns", tables=(columns_table(found.design.columns),)),
        Section("code", "The code that trains the winner", short="Code", lead=lead, command=code),
    ]
    origin = f"rlploss {__version__}. Every number comes from a row of runs.sqlite, or of the session that made it."
    summary = (found.summary(), rows_said(found))
    return Report(f"Does RLP help on {found.source}?", summary, tuple(sections), footer=(origin,))


def rows_said(found: Comparison) -> str:
    """Return one paragraph on what was done with the rows."""
    design = found.design
    words = [f"{design.n_rows:,} rows; target {design.target.name!r}, {design.target.said or found.task}."]
    if design.n_dropped:
        words.append(f"{design.n_dropped:,} rows without a target were left out.")
    if found.n_used < len(design.X):
        words.append(sampled_said(found.n_used, len(design.X)))
    return " ".join(words)


def facts(found: Comparison) -> tuple[tuple[str, str], ...]:
    """Return how the comparison was made fair, and what it took."""
    first = found.contenders[0].name
    n_train, n_test = (int(found.values(first, name)[0]) for name in ("n_train", "n_test"))
    folds = f"{FOLDS} folds" if n_train <= FOLD_ROWS else f"{VALIDATION_SHARE:.0%} of them for validation"
    seconds = sum(cell.seconds for cell in found.cells.values())
    origin = found.cells["plain", first].provenance
    return (
        ("Splits", f"{len(found.seeds)}, the same for every arm: {n_train:,} training and {n_test:,} test rows"),
        ("Selection", f"inside the training rows ({folds}), by squared error, {N_SETTINGS} settings per arm"),
        ("Optimiser steps", f"at most {found.steps:,} for every network; the best number is chosen with the setting"),
        ("Test rows", "used once per arm and split, after the choice"),
        ("Training time", f"{duration(seconds)} of one core"),
        ("Versions", ", ".join(f"{k} {v}" for k, v in origin["versions"].items())),
        ("Machine", f"{origin['machine']['processor']}, {origin['machine']['cores']} cores"),
    )


def write(found: Comparison, directory: Path) -> Path:
    """Write the report with its files, and everything as JSON. Return the path of the page."""
    page = report.write(build(found), directory)[0]
    write_text(directory / "comparison.json", json.dumps(as_json(found), indent=2, ensure_ascii=False) + "\n")
    return page


def as_json(found: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data."""
    design, panel, dial = found.design, dial_panel(found), None
    if panel is not None:
        (line,), (stays, of) = panel.lines, found.dial_stays()
        dial = {"subset_size": line.x.tolist(), "relative_error": line.y.tolist(), "chose_mse": stays, "splits": of}
    return {
        "summary": found.summary(),
        "task": found.task,
        "target": design.target.name,
        "classes": list(design.target.classes),
        "rows": {"file": design.n_rows, "without_target": design.n_dropped, "used": found.n_used},
        "columns": [
            {"name": c.name, "kind": c.kind, "does": c.does, "missing": c.n_missing, "gives": list(c.names)}
            for c in design.columns
        ],
        "best": found.answer().best.name,
        "steps": found.steps,
        "seeds": list(found.seeds),
        "results": json.loads(found.table.to_json(orient="records", double_precision=15)),
        "dial": dial,
        "code": winner_code(found),
    }


def notebook_html(found: Comparison) -> str:
    """Return the answer, the table and a figure, for a notebook."""
    table = result_table(found, PLAIN)
    head = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row) + "</tr>" for row in table.rows)
    drawn = figures.inline_svg(contenders_drawing(found), "arms")
    return (
        f"<p><strong>{escape(found.summary())}</strong></p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><div style='max-width:32em'>{drawn}</div>"
    )


# Figures


def _short_ticks(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(EngFormatter(sep=""))


def contenders_drawing(found: Comparison) -> Drawing:
    """Draw every contender's mean and interval on one axis."""
    measure = next(iter(found.measures.values()))
    means = {one.name: stats.summary(found.values(one.name)) for one in found.contenders}
    order = sorted(found.contenders, key=lambda one: means[one.name].mean, reverse=found.lower_is_better)

    def draw(axes: Axes) -> None:
        for height, one in enumerate(order):
            s, colour = means[one.name], STYLES[one.style][0]
            axes.plot([s.low, s.high], [height, height], color=colour, linewidth=2.2, solid_capstyle="round")
            axes.plot([s.mean], [height], "o", color=colour, markersize=5)
            axes.annotate(one.label, (s.mean, height), (0, 5), textcoords="offset points", ha="center", fontsize=7.5)
        axes.set_yticks([])
        axes.set_ylim(-0.6, len(order))
        axes.margins(x=0.16)  # room for the names
        axes.set_xlabel(f"{measure} on test rows")
        _short_ticks(axes.xaxis)

    said = "; ".join(f"{one.label} {number(means[one.name].mean)}" for one in reversed(order))
    return Drawing("Every arm, best on top", draw, f"{measure}: {said}.", (3.6, 0.55 + 0.36 * len(order)))


def dial_panel(found: Comparison) -> Panel | None:
    """Return RLP's validation error against its subset size, from the MSE end to all rows; None without RLP."""
    if ("plain", "rlp") not in found.cells:
        return None
    kept = [network.artifacts for network in found.cells["plain", "rlp"].of_variant()]
    sizes, errors = (np.array([one[name] for one in kept], dtype=np.float64) for name in ("sizes", "errors"))
    places = np.median(sizes, axis=0)  # of the settings [splits, settings]; 0 is MSE
    best: list[Array] = [errors[:, places == place].min(axis=1) for place in np.unique(places)]  # the better rate
    mean, low, high = stats.band(np.column_stack(best) / best[0][:, None])  # to the MSE end of the same split
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


def curve_panels(found: Comparison) -> list[Panel]:
    """Return the validation error of the chosen settings against the steps; each panel has colours of its own."""
    groups: dict[str, list[Line]] = {"plain, and with L2": [], "robust losses and mixup": []}
    for one in found.contenders:
        if one.objectives:
            cell = found.cells["plain", one.name]
            second = one.name in ("mae", "huber") or one.objectives[0].mixup is not None
            lines = groups["robust losses and mixup" if second else "plain, and with L2"]
            lines.append(Line(one.label, one.style, cell.axis("step"), *stats.band(cell.matrix("validation"))))
    return [
        Panel(title, "optimiser steps", "validation error", tuple(lines), y_log=True)
        for title, lines in groups.items()
        if lines
    ]


def scatter_drawing(found: Comparison, one: Contender) -> Drawing:
    """Draw predictions against truth on the first split; for classes, how often each is taken for each."""
    kept = found.cells["plain", one.name].of_variant()[0].artifacts
    truth, predicted = kept["truth"], kept["predicted"]
    if found.task == "classification":
        return _classes_drawing(found.design.target.classes, truth.astype(int), predicted.argmax(1), one.label)
    ends = [float(min(truth.min(), predicted.min())), float(max(truth.max(), predicted.max()))]

    def draw(axes: Axes) -> None:
        axes.plot(ends, ends, color=STYLES["grey"][0], linewidth=1)
        colour = STYLES[one.style][0]
        axes.plot(truth, predicted[:, 0], "o", color=colour, markersize=2.5, alpha=0.5, markeredgewidth=0)
        axes.set_xlabel("truth")
        axes.set_ylabel("predicted")
        _short_ticks(axes.xaxis)
        _short_ticks(axes.yaxis)

    with np.errstate(invalid="ignore"):  # the mean is the same for all rows
        r = float(np.corrcoef(truth, predicted[:, 0])[0, 1])
    return Drawing(one.label, draw, f"Predictions of {one.label} against truth, correlation {number(r)}.")


def _classes_drawing(classes: tuple[str, ...], truth: Index, predicted: Index, label: str) -> Drawing:
    counts = np.zeros((len(classes), len(classes)))
    np.add.at(counts, (truth, predicted), 1)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)

    def draw(axes: Axes) -> None:
        axes.imshow(shares, cmap="Greys", vmin=0, vmax=1, aspect="auto")
        axes.grid(visible=False)
        axes.set_xlabel("predicted")
        axes.set_ylabel("truth")
        ticks = [name[:8] for name in classes]
        axes.set_xticks(range(len(classes)), ticks, fontsize=6)
        axes.set_yticks(range(len(classes)), ticks, fontsize=6)

    right = ", ".join(f"{name} {shares[i, i]:.0%}" for i, name in enumerate(classes))
    return Drawing(label, draw, f"Share of each class recognised by {label}: {right}.")


def overview(found: Comparison) -> MplFigure:
    """Return a figure with contenders and dial side by side, for a notebook."""
    panels = tuple(panel for panel in (contenders_drawing(found), dial_panel(found)) if panel is not None)
    return figures.drawn(Figure("overview", "", "", panels, columns=2))


# The code that trains the winner


def winner_code(found: Comparison) -> str:
    """Return Python that trains the best contender, with the setting it chose most often, on all rows of the table."""
    best, design = found.answer().best, found.design
    n, d = design.X.shape
    settings = found.values(best.name, "setting")
    setting = int(Counter(settings).most_common(1)[0][0])
    if best.objectives:
        steps = sorted(found.values(best.name, "best_step")[settings == setting])
        imports, model = network_code(best, found.task, setting, steps[len(steps) // 2], (found.n_used, n), d)
    else:
        imports, model = model_code(best, found.task, setting, int(found.values(best.name, "n_train")[0]))
    told = f'the {d} columns of numbers listed under "The columns"'
    rows = f"# X: {told}; y: {design.target.name!r}\n"
    if found.loads:
        imports += "\nfrom rlploss.compare import load_table"
        rows = f"X, y = {found.loads}  # {told}\n"
    return f"{imports}\n\n{rows}model = {model}\nmodel.fit(X, y)\n"


def network_code(
    one: Contender, task: str, setting: int, steps: float, sizes: tuple[int, int], n_features: int
) -> tuple[str, str]:
    """Return import and model. Subsets are those of the rows compared; all rows of the table take as many steps."""
    used, n = sizes
    chosen = one.settings[setting].estimator(used, n_features)
    iterations = max(1, round(steps / steps_per_iteration(n, chosen.get("batch_size", BATCH))))
    chosen |= {"hidden_layer_sizes": HIDDEN, "max_iter": iterations, "tol": 0.0, "n_iter_no_change": iterations}
    name = "RLPRegressor" if task == "regression" else "RLPClassifier"
    arguments = ", ".join(f"{key}={value!r}" for key, value in {**chosen, "random_state": 0}.items())
    return f"from rlploss.estimators import {name}", f"{name}({arguments})"


def model_code(one: Contender, task: str, setting: int, n_train: int) -> tuple[str, str]:
    """Return import and model of scikit-learn. What is tried depends on the number of training rows."""
    made = models(one.model, task, n_train)[setting]
    imports = f"from {'.'.join(type(made).__module__.split('.')[:2])} import {type(made).__name__}"  # its public module
    if one.model in ("ridge", "logistic"):
        imports += "\nfrom sklearn.pipeline import make_pipeline\nfrom sklearn.preprocessing import StandardScaler"
        return imports, f"make_pipeline(StandardScaler(), {made!r})"
    return imports, repr(made)
