"""Build the report of a survey: the answer, a picture of all tables, and ranks."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rlploss import __version__
from rlploss._progress import duration
from rlploss.lab.figures import INK, MUTED, STYLES, Drawing, Figure
from rlploss.lab.report import WORD_TONES, Report, Section, Table, Text
from rlploss.lab.stats import MARGINS, Contrast
from rlploss.lab.study import loss_options
from rlploss.lab.text import Scalar, number
from rlploss.survey.results import WORDS, Ranks, Survey
from rlploss.survey.run import STEPS, Draw
from rlploss.survey.tables import FACTS

TONES = WORD_TONES
COLOURS = {"better": "blue", "worse": "vermillion", "level": "green", "undecided": "grey"}
ANSWERS = {
    "better": "yes",
    "worse": "no, it hurts",
    "level": "no, it makes no difference",
    "undecided": "undecided",
}
SAID: dict[str, str] = FACTS["words"]
TESTED = ("ratio", "low", "high", "p", "word")  # columns of a comparison
TICKS = (0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0)


def build(results: Survey, out: Path) -> Report:
    """Return the whole report, the answer first."""
    n = len({task.table for task in results.cells})
    ours, theirs = (results.labels[arm] for arm in results.pairs[0])
    ratios = tuple(_ratios_drawing(results, draw) for draw in results.draws)
    picture = Figure(
        "ratios",
        "",
        caption=SAID["ratios"].format(ours=ours, theirs=theirs),
        panels=ratios,
        columns=2,
    )
    ranked = [
        _ranks_drawing(results, *key, results.ranks(tasks))
        for key, tasks in results.groups.items()
        if len(tasks) > 1
    ]
    ranks = (
        (Figure("ranks", "", caption=SAID["ranks"], panels=tuple(ranked), columns=2),)
        if ranked
        else ()
    )
    sections = (
        Section(
            "tables",
            "RLP table by table",
            lead=_tables_lead(results),
            figures=(picture,),
            tables=(_tables_table(results),),
            facts=_facts(results),
            command=_command(results, out),
        ),
        Section("arms", "All arms", figures=ranks, tables=(_pairs_table(results),)),
    )
    missing = results.n_tasks - len(results.cells)
    left = (SAID["missing"].format(missing=missing, n=results.n_tasks),) if missing else ()
    footer = (
        f"rlploss {__version__}. Every number comes from a row of runs.sqlite beside this file.",
    )
    title = f"Does RLP help? A survey of {n} tables"
    return Report(title, (*answers(results), *left), sections, footer=footer)


def answers(survey: Survey) -> tuple[str, ...]:
    """Answer for each pair of arms in one sentence, on tables that no rule was tuned on if they
    exist.
    """
    half = survey.halves[0]
    groups = {draw: tasks for (of, draw), tasks in survey.groups.items() if of == half}
    n_tables = len({task.table for task in survey.tasks(half=half)})
    sentences = []
    for ours, theirs in survey.pairs:
        comparisons = {d: survey.over(tasks, ours, theirs) for d, tasks in groups.items()}
        parts = (f"{_where(d)}: {_ratio(c)}, {_answer(c)}" for d, c in comparisons.items())
        pair = f"{survey.labels[ours]} / {survey.labels[theirs]}"
        sentences.append(f"{pair} on {n_tables} {half} tables, {'; '.join(parts)}.")
    sentences[0] = f"Does RLP help? Squared errors, every loss tuned alike: {sentences[0]}"
    if half == "development":
        sentences.append(SAID["tuned"])
    twin = {"ours": survey.labels["rlp-cv"], "twin": survey.labels["mse-cv"]}
    return (*sentences, SAID["rivals"].format(**twin))


def _answer(c: Contrast) -> str:
    return "" if _is_wide(c) else ANSWERS[c.word]


def _is_wide(c: Contrast) -> bool:
    """Return whether an interval is too wide to be useful."""
    return not c.high <= 10 * c.low


def _where(draw: Draw) -> str:
    rows, outside = draw
    return f"up to {rows:,} training rows" + (", test rows outside" if outside else "")


def _ratio(c: Contrast) -> str:
    if _is_wide(c):
        return SAID["wide"]
    return f"{number(c.effect)} [{number(c.low)}, {number(c.high)}]"


def _tables_lead(results: Survey) -> tuple[str, ...]:
    sentences = []
    for (half, draw), tasks in results.groups.items():
        counts = ", ".join(
            f"{word} on {n}" for word, n in results.tally(tasks, *results.pairs[0]).items()
        )
        n, stays = len(tasks), results.stays(tasks)
        sentences.append(
            SAID["dial"].format(
                half=half.capitalize(), where=_where(draw), counts=counts, n=n, stays=stays
            )
        )
    return tuple(sentences)


def _pairs_table(results: Survey) -> Table:
    """Return the table of ratios over tables: of the pairs, and of the cross-validated estimator
    and its twin to every other model.
    """
    paired = {arm for pair in results.pairs for arm in pair}
    others = [arm for arm in results.arms if arm not in paired]
    pairs = [*results.pairs, *itertools.product(("rlp-cv", "mse-cv"), others)]
    shown, exact = [], list[tuple[Scalar, ...]]()
    for half in results.halves:
        for ours, theirs in pairs:
            cells: list[str] = []
            for draw in results.draws:
                if (half, draw) not in results.groups:
                    cells.append("–")
                    continue
                tasks = results.groups[half, draw]
                c = results.over(tasks, ours, theirs)
                median, wins = results.spread(tasks, ours, theirs)
                counts = results.tally(tasks, ours, theirs).values()
                middle = f"median {number(median)}, lower on {wins} of {c.n}"
                summary = f"{_ratio(c)}; {middle}; {'/'.join(map(str, counts))}"
                cells.append(Text(summary, TONES[c.word]))
                tested = (c.effect, c.low, c.high, c.p, c.word)
                exact.append((half, ours, theirs, *draw, *tested, median, wins, c.n, *counts))
            shown.append((half, f"{results.labels[ours]} / {results.labels[theirs]}", *cells))
    note = SAID["pairs"].format(words="/".join(WORDS), margin=MARGINS["ratio"][1] - 1)
    return Table(
        "pairs",
        "Ratios of squared errors over tables",
        ("half", "ratio", *map(_where, results.draws)),
        tuple(shown),
        data_header=(
            *("half", "ours", "theirs", "rows", "outside", *TESTED),
            *("median", "lower", "tables", *WORDS),
        ),
        data_rows=tuple(exact),
        notes=(note,),
        text_columns=frozenset({1}),
        rules=frozenset({len(pairs)}),
    )


def _tables_table(results: Survey) -> Table:
    """Return the table of the first pair on every table, with the errors of all arms in its CSV."""
    by_table: dict[str, dict[Draw, str]] = {}
    exact: list[tuple[Scalar, ...]] = []
    for half in results.halves:
        for task in results.tasks(half=half):
            c = results.on(task, *results.pairs[0])
            by_table.setdefault(task.table, {})[task.draw] = Text(_ratio(c), TONES[c.word])
            errors = [float(results.means([task], arm)[0]) for arm in results.arms]
            exact.append(
                (task.table, half, *task.draw, c.effect, c.low, c.high, c.p, c.word, *errors)
            )
    shown = [
        (name, *(cells.get(draw, "–") for draw in results.draws))
        for name, cells in by_table.items()
    ]
    header = ("table", "half", "draw_rows", "outside", *TESTED, *results.arms)
    return Table(
        "tables",
        f"{' / '.join(results.labels[arm] for arm in results.pairs[0])} on every table",
        ("table", *map(_where, results.draws)),
        tuple(shown),
        data_header=header,
        data_rows=tuple(exact),
        notes=(SAID["tables"],),
    )


def _facts(results: Survey) -> tuple[tuple[str, str], ...]:
    request, cells = (
        results.request,
        [cell for arms in results.cells.values() for cell in arms.values()],
    )
    return (
        ("networks", SAID["networks"].format(steps=request.steps)),
        (results.labels["rlp-cv"], SAID["estimators"]),
        ("splits", SAID["splits"].format(splits=request.splits)),
        ("machine", str(cells[0].provenance["machine"].get("processor", ""))),
        ("computed in", duration(sum(cell.seconds for cell in cells)) + " of one core"),
    )


def _command(results: Survey, out: Path) -> str:
    r = results.request
    words = [
        "rlploss",
        "survey",
        "--tables",
        ",".join(r.tables),
        "--rows",
        ",".join(map(str, r.rows)),
        "--splits",
    ]
    words += [str(r.splits), *loss_options(r.losses)]
    words += ["--classification"] if r.kind == "classification" else []
    words += ["--quick"] if r.steps < STEPS else []
    return shlex.join([*words, "--out", str(out)])


# Pictures


def _ratios_drawing(results: Survey, draw: Draw) -> Drawing:
    """Draw every table as a row, sorted within each half."""
    rows: list[tuple[str, Contrast]] = []
    for (half, drawn), tasks in results.groups.items():
        if drawn == draw:
            rows.append((f"{half}, {len(tasks)} tables", results.over(tasks, *results.pairs[0])))
            by_table = [(task.table, results.on(task, *results.pairs[0])) for task in tasks]
            rows += sorted(by_table, key=lambda row: row[1].effect)
    return ratios_drawing(
        _where(draw), [(name, c.effect, c.low, c.high, c.word) for name, c in rows]
    )


def ratios_drawing(title: str, rows: Sequence[tuple[str, float, float, float, str]]) -> Drawing:
    """Draw rows of (name, ratio, low, high, word). A name with a comma is a summary of tables,
    drawn as a diamond.
    """
    effects = np.array([effect for _, effect, *_ in rows])
    low, high = max(0.1, min(0.7, effects.min() / 1.2)), min(10.0, max(1.4, effects.max() * 1.2))

    def paint(axes: Axes) -> None:
        _name_rows(axes, [name for name, *_ in rows])
        axes.axvline(1.0, color=MUTED, linewidth=0.8)
        for at, (name, effect, *ends, word) in enumerate(rows):
            style: dict[str, Any] = {"color": STYLES[COLOURS[word]][0], "clip_on": False}
            axes.plot(np.clip(ends, low, high), [at, at], linewidth=1.1, **style)
            for end, edge, arrow in ((-ends[0], -low, "<"), (ends[1], high, ">")):
                axes.plot(abs(edge), at, arrow if end > edge else "", markersize=3.5, **style)
            marker, size = ("D", 5) if ", " in name else ("o", 3)
            axes.plot(np.clip(effect, low, high), at, marker, markersize=size, **style)
        axes.set(xscale="log", xlim=(low, high))
        axes.minorticks_off()
        axes.set_xticks(
            ticks := [tick for tick in TICKS if low <= tick <= high],
            [f"{tick:g}" for tick in ticks],
        )

    said = "; ".join(f"{name} {number(effect)} ({word})" for name, effect, *_, word in rows)
    data = tuple((name, float(at), effect) for at, (name, effect, *_) in enumerate(rows))
    return Drawing(
        title,
        paint,
        alt=f"Ratio of squared errors: {said}.",
        size=(4.8, 0.9 + 0.17 * len(rows)),
        data=data,
    )


def _ranks_drawing(results: Survey, half: str, draw: Draw, ranks: Ranks) -> Drawing:
    """Draw a critical-difference diagram: arms by average rank, with bars beside arms whose ranks
    do not differ.
    """
    names, groups = [results.labels[arm] for arm in ranks.arms], ranks.groups()
    friedman = f"Friedman's p = {number(ranks.p)}, {ranks.n} tables"
    tests = f"critical difference {ranks.critical:.2f}; {friedman}"

    def paint(axes: Axes) -> None:
        _name_rows(axes, names)
        for at, (arm, mean) in enumerate(zip(ranks.arms, ranks.means, strict=True)):
            axes.plot(
                mean,
                at,
                "o",
                color=STYLES["vermillion"][0] if arm.startswith("rlp") else INK,
                markersize=4,
            )
            axes.annotate(
                f"{mean:.1f}",
                (mean, at),
                (5, 0),
                textcoords="offset points",
                va="center",
                fontsize=6.5,
            )
        right = ranks.means[-1] + 1
        for at, (first, last) in enumerate(groups):
            axes.plot([right + 0.3 * at] * 2, [first - 0.2, last + 0.2], color=INK, linewidth=2.4)
        axes.plot([1, 1 + ranks.critical], [len(names) - 0.2] * 2, color=MUTED, linewidth=1.4)
        axes.set_xlabel(tests, loc="right", fontsize=6.5)

    means = [*zip(names, ranks.means, strict=True)]
    alt = f"Average ranks: {', '.join(f'{name} {mean:.2f}' for name, mean in means)}; {tests}."
    data = tuple((name, float(at), mean) for at, (name, mean) in enumerate(means, 1))
    return Drawing(
        f"{half}, {_where(draw)}", paint, alt=alt, size=(4.8, 1.1 + 0.2 * len(names)), data=data
    )


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows from top to bottom, and make room for the names."""
    box = axes.get_position()
    axes.set_position((box.x0 + 0.3 * box.width, box.y0, 0.7 * box.width, box.height))
    axes.set_title(axes.get_title(loc="left"), x=-0.43)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.1, -0.6)
    axes.grid(visible=False)
    axes.tick_params(labelsize=7.5)
