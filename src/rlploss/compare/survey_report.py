"""The report of a survey: the answer, the picture of all tables, ranks, and when RLP helps."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from rlploss import __version__
from rlploss._progress import duration
from rlploss.compare.surveyed import TRAIT_WORDS, WORDS, Effect, Ranks, Survey
from rlploss.lab.figures import INK, MUTED, STYLES, Drawing, Figure
from rlploss.lab.report import Report, Section, Table, Text
from rlploss.lab.stats import MARGINS, Comparison
from rlploss.lab.text import Scalar, number

TONES = {"better": "good", "helps": "good", "worse": "bad", "hurts": "bad", "level": "calm", "undecided": "warn"}
COLOURS = {"better": "blue", "worse": "vermillion", "level": "green", "undecided": "grey"}
ANSWERS = {"better": "yes", "worse": "no, it hurts", "level": "no, it makes no difference", "undecided": "undecided"}
TICKS = (0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0)
Draw = tuple[int, bool]


def build(found: Survey, out: Path) -> Report:
    """The whole report, the answer first."""
    n, effects = len({task.table for task in found.cells}), found.effects()
    picture = Figure(
        "ratios", "", f"Ratio of squared errors on test rows, RLP to {found.labels[found.rival]}, with 95 % intervals "
        "over splits; below 1 RLP is ahead. Blue: better, vermillion: worse, green: level (the interval lies within "
        "5 % of no difference), grey: undecided. Diamonds are geometric means over tables.",
        tuple(_ratios_drawing(found, draw) for draw in found.draws), 2,
    )  # fmt: skip
    ranked = [(half, draw, found.ranks(tasks)) for half in found.halves for draw in found.draws
              if len(tasks := found.tasks(draw, half)) > 1]  # fmt: skip
    ranks = Figure(
        "ranks", "", "Average ranks over tables, the best on the left. Arms under one bar cannot be told apart: their "
        "ranks differ by less than Nemenyi's critical difference at 5 %. Friedman's p is that of equal arms.",
        tuple(_ranks_drawing(found, half, draw, made) for half, draw, made in ranked), 2,
    )  # fmt: skip
    sections = [
        Section("tables", "RLP table by table", lead=_tables_lead(found), figures=(picture,),
                tables=(_tables_table(found),), facts=_facts(found), command=_command(found, out)),
        Section("arms", "All arms", figures=(ranks,) if ranked else (), tables=(_pairs_table(found),)),
        Section("when", "When, if ever, does RLP help?", lead=_when_lead(found, effects),
                tables=(_when_table(effects),) if effects else ()),
    ]  # fmt: skip
    missing = found.n_tasks - len(found.cells)
    left = (f"{missing} of {found.n_tasks} tables and draws are not whole yet and not shown.",) if missing else ()
    return Report(
        f"Does RLP help? A survey of {n} tables",
        (*answers(found), _when_lead(found, effects)[0], *left),
        tuple(sections),
        footer=(f"rlploss {__version__}. Every number comes from a row of runs.sqlite beside this file.",),
    )


# The answer


def answers(found: Survey) -> tuple[str, ...]:
    """The answer in one sentence, then the estimators; of held-out tables where there are any."""
    half = found.halves[0]
    tables = f"{len({task.table for task in found.tasks(half=half)})} {half} tables"
    rival = found.labels[found.rival]
    parts = [f"{_where(d)}: {_said(found.over(found.tasks(d, half), 'rlp', found.rival))}" for d in _draws(found, half)]
    told = [f"Does RLP help? Squared error against {rival} on {tables}, {'; '.join(parts)}."]
    if half == "development":
        told[0] += " Rules of the estimators were tuned on these tables: the held-out half decides."
    cv = found.labels["rlp-cv"]
    others = [arm for arm in ("ridge", "logistic", "boosting", "trees") if arm in found.arms]
    for draw in [draw for draw in _draws(found, half) if not draw[1]]:
        tasks = found.tasks(draw, half)
        best, against = found.over_best(tasks, "rlp-cv", others)
        told.append(
            f"{cv} with {_where(draw)}: {_ratio(found.over(tasks, 'rlp-cv', 'mse-cv'))} times the error of "
            f"{found.labels['mse-cv']}, and {_ratio(against)} times that of {found.labels[best]}, the best of "
            f"{len(others)} other models."
        )
    return tuple(told)


def _draws(found: Survey, half: str) -> list[Draw]:
    """The draws that have tables of a half."""
    return [draw for draw in found.draws if found.tasks(draw, half)]


def _where(draw: Draw) -> str:
    return f"{draw[0]:,} training rows{', test rows outside' * draw[1]}"


def _ratio(c: Comparison) -> str:
    ends = f" [{number(c.low)}, {number(c.high)}]" if np.isfinite([c.low, c.high]).all() else ""
    return f"{number(c.effect)}{ends}"


def _said(c: Comparison) -> str:
    return f"{ANSWERS[c.word]} ({_ratio(c)} times)"


def _when_lead(found: Survey, effects: Sequence[Effect]) -> tuple[str, ...]:
    if not effects:
        return ("When RLP helps is undecided: there are fewer than eight tables.",)
    sure = [f"{_change(e)} with more {TRAIT_WORDS[e.trait][0]}" for e in effects if e.word != "undecided"]
    open_ = ", ".join(TRAIT_WORDS[e.trait][0] for e in effects if e.word == "undecided")
    told = f"When? Per standard deviation of what is seen beforehand RLP's ratio {'; '.join(sure)}" if sure else "When?"
    lead = f"{told}{'; ' if sure else ' '}{'undecided for ' + open_ if open_ else ''}".rstrip("; ") + "."
    how = (
        f"Least squares of the logarithm of the ratio on {len(effects)} traits over all {len(found.cells)} tables and "
        "draws together; intervals are over tables drawn anew. Traits are seen in training rows alone, but for the "
        "distance of the test rows: share of linear signal is what a plane explains of what the best of plane, trees "
        "and kernel regression explains on rows held out, noise is the standard deviation of the rest."
    )
    said = found.foretold()
    if said is None:
        return lead, how
    right, usual, n = said
    return lead, how, (
        f"Fitted on development tables alone it foretells which of the two is ahead on {right} of {n} held-out tables "
        f"and draws; always naming the side that was ahead more often gives {usual}."
    )  # fmt: skip


def _change(e: Effect) -> str:
    way = "falls" if e.factor < 1 else "rises"
    return f"{way} to {number(e.factor)} [{number(e.low)}, {number(e.high)}]"


def _tables_lead(found: Survey) -> tuple[str, ...]:
    told = []
    for half in found.halves:
        for draw in _draws(found, half):
            tasks = found.tasks(draw, half)
            n = found.tally(tasks, "rlp", found.rival)
            told.append(
                f"{half.capitalize()}, {_where(draw)}: better on {n['better']}, level on {n['level']}, worse on "
                f"{n['worse']}, undecided on {n['undecided']} of {len(tasks)}; RLP's dial stood at its MSE end in "
                f"{found.stays(tasks):.0%} of the splits."
            )
    return tuple(told)


# Tables


def _pairs_table(found: Survey) -> Table:
    """Ratios over tables: every arm to the rival, and the cross-validated one to every other."""
    pairs = [(arm, found.rival) for arm in found.arms if arm != found.rival]
    pairs += [("rlp-cv", arm) for arm in found.arms if arm not in ("rlp-cv", found.rival)]
    shown, exact = [], list[tuple[Scalar, ...]]()
    for half in found.halves:
        for ours, theirs in pairs:
            cells: list[str] = []
            for draw in found.draws:
                tasks = found.tasks(draw, half)
                if not tasks:
                    cells.append("–")
                    continue
                c, n = found.over(tasks, ours, theirs), found.tally(tasks, ours, theirs)
                counts = [n[name] for name in WORDS]
                cells.append(Text(f"{_ratio(c)}; {'/'.join(map(str, counts))}", TONES[c.word]))
                exact.append((half, ours, theirs, *draw, c.effect, c.low, c.high, c.p, c.word, c.n, *counts))
            shown.append((half, f"{found.labels[ours]} / {found.labels[theirs]}", *cells))
    return Table(
        "pairs", "Ratios of squared errors over tables",
        ("half", "ratio", *map(_where, found.draws)), tuple(shown),
        ("half", "ours", "theirs", "rows", "outside", "ratio", "low", "high", "p", "word", "tables", *WORDS),
        tuple(exact),
        ("Geometric mean over tables with its 95 % t-interval over tables, each table's mean over splits counted once; "
         f"then tables on which it is {'/'.join(WORDS)}, at 5 % for each table alone, so that one in twenty level "
         "tables looks better or worse by chance. Level: the interval lies within "
         f"{MARGINS['ratio'][1] - 1:.0%} of no difference.",),
        frozenset({1}), frozenset({len(pairs)}),
    )  # fmt: skip


def _tables_table(found: Survey) -> Table:
    """RLP against its rival on every table, and the errors of all arms in the CSV."""
    by_table: dict[str, dict[Draw, str]] = {}
    exact: list[tuple[Scalar, ...]] = []
    for half in found.halves:
        for task in found.tasks(half=half):
            c, draw = found.on(task, "rlp", found.rival), (task.rows, task.outside)
            by_table.setdefault(task.table, {})[draw] = Text(_ratio(c), TONES[c.word])
            traits = [found.trait(task, name) for name in TRAIT_WORDS]
            errors = [float(found.means([task], arm)[0]) for arm in found.arms]
            exact.append((task.table, half, *draw, c.effect, c.low, c.high, c.p, c.word, *traits, *errors))
    shown = [(name, *(cells.get(draw, "–") for draw in found.draws)) for name, cells in by_table.items()]
    return Table(
        "tables", f"RLP / {found.labels[found.rival]} on every table", ("table", *map(_where, found.draws)),
        tuple(shown),
        ("table", "half", "draw_rows", "outside", "ratio", "low", "high", "p", "word", *TRAIT_WORDS, *found.arms),
        tuple(exact),
        ("Ratio of squared errors with its 95 % interval over splits, which share rows: the variance is s²·(1/n + test "
         "rows / other rows of the table). The CSV has the traits, and the error of every arm (geometric mean over "
         "splits).",),
    )  # fmt: skip


def _when_table(effects: Sequence[Effect]) -> Table:
    rows = [
        (TRAIT_WORDS[e.trait][0], number(e.factor), f"{number(e.low)} to {number(e.high)}", Text(e.word, TONES[e.word]))
        for e in effects
    ]
    title, head = "How RLP's ratio changes with one standard deviation more", ("trait", "factor", "95 % interval")
    exact = tuple((e.trait, e.factor, e.low, e.high, e.word) for e in effects)
    data = ("trait", "factor", "low", "high", "word")
    return Table("when", title, (*head, "more of it"), tuple(rows), data, exact, text_columns=frozenset({3}))


def _facts(found: Survey) -> tuple[tuple[str, str], ...]:
    request, cells = found.request, [cell for arms in found.cells.values() for cell in arms.values()]
    return (
        ("networks", f"one hidden layer; every loss tries 12 settings, up to {request.steps:,} steps, stopped by "
                     "validation rows as `rlploss compare` does"),
        (found.labels["rlp-cv"], "24 settings, and its twin 24: no dial, twice the weight decays"),
        ("splits", f"{request.splits} random ones with a quarter of the rows, at most 1,000, for testing; half as many "
                   "that train on rows of the half nearest to the mean and test on the other half"),
        ("machine", str(cells[0].provenance["machine"].get("processor", ""))),
        ("computed in", duration(sum(cell.seconds for cell in cells)) + " of one core"),
    )  # fmt: skip


def _command(found: Survey, out: Path) -> str:
    r = found.request
    words = ["rlploss", "survey", "--tables", ",".join(r.tables), "--rows", ",".join(map(str, r.rows)), "--splits"]
    words += [str(r.splits), *["--classification"] * (r.kind == "classification"), "--out", str(out)]
    return shlex.join(words)


# Pictures


def _ratios_drawing(found: Survey, draw: Draw) -> Drawing:
    """Every table as a row, sorted, the halves apart."""
    rows: list[tuple[str, Comparison, str]] = []  # label, ratio, marker
    for half in found.halves:
        tasks = found.tasks(draw, half)
        if not tasks:
            continue
        made = sorted(((t.table, found.on(t, "rlp", found.rival), "o") for t in tasks), key=lambda row: row[1].effect)
        rows += [(f"{half}, {len(tasks)} tables", found.over(tasks, "rlp", found.rival), "D"), *made]
    size = (4.8, 0.9 + 0.17 * len(rows))

    def paint(axes: Axes) -> None:
        axes.set_axis_off()
        plot = axes.inset_axes((0.36, 0.0, 0.64, 1.0))
        plot.set_xscale("log")
        effects = np.array([c.effect for _, c, _ in rows])
        low, high = max(0.1, min(0.7, effects.min() / 1.2)), min(10.0, max(1.4, effects.max() * 1.2))
        for at, (name, c, marker) in enumerate(rows):
            colour = STYLES[COLOURS[c.word]][0]
            ends = [min(max(end, low / 2), high * 2) for end in (c.low, c.high)]
            plot.plot(ends, [at, at], color=colour, linewidth=1.1)
            plot.plot([min(max(c.effect, low), high)], [at], marker, color=colour, markersize=5 if marker == "D" else 3)
            plot.text(-0.03, at, name, ha="right", va="center", fontsize=6.5, transform=plot.get_yaxis_transform(),
                      fontweight="bold" if marker == "D" else "normal", color=INK)  # fmt: skip
        plot.axvline(1.0, color=MUTED, linewidth=0.8)
        plot.set_xlim(low, high)
        plot.set_ylim(len(rows) - 0.4, -0.6)
        plot.set_yticks([])
        plot.xaxis.set_major_locator(FixedLocator(TICKS))
        plot.xaxis.set_minor_locator(NullLocator())
        plot.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        plot.tick_params(axis="x", labelsize=6.5)
        axes.set_title(_where(draw), x=0.0)

    said = "; ".join(f"{name} {number(c.effect)} ({c.word})" for name, c, _ in rows)
    data = tuple((name, float(at), c.effect) for at, (name, c, _) in enumerate(rows))
    return Drawing(_where(draw), paint, f"Ratio of squared errors: {said}.", size, data)


def _ranks_drawing(found: Survey, half: str, draw: Draw, made: Ranks) -> Drawing:
    """A critical-difference diagram: average ranks on a line, bars over what cannot be told apart."""
    k, groups = len(made.arms), made.groups()
    left = -(-k // 2)
    bars = 0.28 * len(groups)
    said_of = f"critical difference {made.critical:.2f}; Friedman's p = {number(made.p)}, {made.n} tables"

    def paint(axes: Axes) -> None:
        axes.set_axis_off()
        axes.set_xlim(-2.6, k + 4.6)
        axes.set_ylim(left + bars + 0.8, -1.9)
        axes.plot([1, k], [0, 0], color=INK, linewidth=0.9)
        for tick in range(1, k + 1):
            axes.plot([tick, tick], [0, -0.15], color=INK, linewidth=0.7)
            axes.text(tick, -0.25, str(tick), ha="center", va="bottom", fontsize=6.5, color=MUTED)
        axes.plot([1, 1 + made.critical], [-1.2, -1.2], color=INK, linewidth=1.4)
        axes.text(1, -1.3, said_of, va="bottom", fontsize=6.5, color=INK)
        for at, (first, last) in enumerate(groups):
            ends = made.means[first] - 0.06, made.means[last] + 0.06
            axes.plot(ends, [0.22 + 0.28 * at] * 2, color=INK, linewidth=2.4, solid_capstyle="butt")
        for at, (arm, mean) in enumerate(zip(made.arms, made.means, strict=True)):
            row = bars + 0.6 + (at if at < left else k - 1 - at)
            edge, align = (0.7, "right") if at < left else (k + 0.3, "left")
            ours = STYLES["vermillion"][0] if arm.startswith("rlp") else INK
            axes.plot([mean, mean, edge], [0, row, row], color=ours, linewidth=0.8)
            axes.text(edge + (-0.1 if at < left else 0.1), row, f"{found.labels[arm]} {mean:.1f}", ha=align,
                      va="center", fontsize=6.5, color=ours)  # fmt: skip
        axes.set_title(f"{half}, {_where(draw)}", x=0.0)

    names = [found.labels[arm] for arm in made.arms]
    said = ", ".join(f"{name} {mean:.2f}" for name, mean in zip(names, made.means, strict=True))
    data = tuple((name, float(at), mean) for at, (name, mean) in enumerate(zip(names, made.means, strict=True), 1))
    alt = f"Average ranks: {said}; {said_of}."
    return Drawing(f"{half}, {_where(draw)}", paint, alt, (4.8, 1.3 + 0.24 * left + 0.08 * len(groups)), data)
