"""The propositions and the other statements that are measured without training: their tables and their verdicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rlploss.lab.report import Table, Text
from rlploss.lab.results import StoredCell
from rlploss.lab.text import number
from rlploss.paper.measure import Measurement, SubsetCoverage
from rlploss.paper.published import PublishedClaim
from rlploss.paper.results import Grid, StoredResults
from rlploss.paper.verdicts import NOT_TESTED, Verdict, judge


def _mean(stored: StoredCell, key: str, variant: int) -> float:
    return float(stored.final(key, variant).mean())


# Tables


class Shown(NamedTuple):
    """One table: its title, the numbers of each setting with their headings, and a note."""

    title: str
    columns: dict[str, str]
    note: str


TABLES = {
    "floor": Shown(
        "Proposition 1: RLP at h = E[Y|X], label noise 1",
        {"value": "measured", "error": "standard error", "exact": "σ²d/(M − d − 1)"},
        "The paper's proof has 0 here. The value is a noise floor, and it is infinite at M = d + 1, the smallest M the "
        "paper allows: the measured mean there is a sample of a distribution without one.",
    ),
    "excess": Shown(
        "Proposition 1: what another function costs",
        {
            "bent": "bent function",
            "bent_error": "standard error",
            "at_zero": "a bump at x = 0",
            "at_zero_error": "standard error",
        },
        "Without an atom at the origin every deviation costs something: E[Y|X] is the only minimiser. With one (a share "
        "of 0.2 of the rows at 0), the value at the origin is free.",
    ),
    "condition": Shown(
        "Proposition 2: condition (iii) and its conclusion",
        {
            "different": "E[a_jk a_lk], j ≠ l",
            "threshold": "must be at least",
            "holds": "(iii) holds",
            "curvature_rlp": "curvature RLP",
            "curvature_mse": "curvature MSE",
            "nearer": "nearer, small steps",
            "good_step": "up to step",
            "convergent_step": "convergent up to",
        },
        "In the family h* + (θ* − θ), which satisfies condition (ii). Symmetric features have mean 0 where the condition "
        "asks for 1/d². Very skewed ones satisfy it; a small RLP step is then the nearer one, but not every convergent "
        "step is, which is what the proposition says.",
    ),
    "empirical": Shown(
        "The empirical loss and Definition 2.2",
        {"error": "relative error"},
        "Root mean square over samples of N rows; it falls where the definition is finite (M > d + 1).",
    ),
    "coverage": Shown(
        "Algorithm 1: rows in no subset, equal subsets, least and most appearances of a row",
        {"missing": "rows missing", "equal": "equal subsets", "least": "least", "most": "most"},
        "Algorithm 1 as printed drops the N mod M rows that are left after each shuffle.",
    ),
    "planes": Shown(
        "Functions that share all planes: free directions on N points",
        {"nullity": "free directions"},
        "0: equal on all N points. Rows at the origin are free, and one subset of all rows fixes its plane only.",
    ),
}


def tables(grid: Grid) -> list[Table]:
    """What the statements come to when they are measured: one table each, means over seeds."""
    return [_table(grid, task, shown) for task, shown in TABLES.items()]


def _table(grid: Grid, task: str, shown: Shown) -> Table:
    cell, stored = grid.entries[task, "measured", "measured"]
    keys = tuple(shown.columns)
    data = [
        (str(setting), *(float("nan") if stored is None else _mean(stored, key, index) for key in keys))
        for index, setting in enumerate(cell.task.variants)
    ]
    return Table(
        f"propositions-{task}",
        shown.title,
        ("setting", *shown.columns.values()),
        tuple((row[0], *map(_cell_text, keys, row[1:])) for row in data),
        data_header=("setting", *keys),
        data_rows=tuple(data),
        notes=(shown.note,),
    )


def _cell_text(key: str, value: float) -> Text:
    if key in ("holds", "nearer"):
        return Text("yes" if value > 0.5 else "no", "good" if value > 0.5 else "calm")
    return Text("infinite" if value != value and key == "exact" else number(value))


# Verdicts


def verdict(claim: PublishedClaim, results: StoredResults) -> Verdict:
    """The verdict on a statement that was measured."""
    grid = results.grid("propositions")
    if grid is None:
        return Verdict(NOT_TESTED, "Needs `rlploss reproduce propositions`.")
    (task,) = claim.tasks
    cell, stored = grid.entries[task, "measured", "measured"]
    if stored is None:
        return Verdict(NOT_TESTED, grid.why(task))
    holds, words, scope = JUDGES[task](cell.task, stored)
    return judge(holds, None, words, scope, judged=grid.request.at.judged)


def _proposition_1(task: Measurement, stored: StoredCell) -> tuple[bool, str, str]:
    """Non-negative, and every deviation costs something, except at an atom at the origin."""
    generic, atom = 0, 1
    bent = _mean(stored, "bent", generic)
    error = _mean(stored, "bent_error", generic)
    free = _mean(stored, "at_zero", atom)
    cost = "nothing" if free < 1e-12 else number(free)
    holds = bent > 4 * error and bool((stored.final("bent", generic) >= 0).all())
    words = (
        f"A deviation from E[Y|X] raises RLP by {number(bent)} (standard error {number(error)}): it is the minimiser. "
        f"But the minimum is not 0 with noisy labels: it is σ²d/(M − d − 1), infinite at the smallest M = d + 1; and "
        f"with rows at x = 0 a deviation there costs {cost}, so the minimiser is then not unique."
    )
    return holds, words, "if P(X = 0) = 0 and M > d + 1"


def _proposition_2(task: Measurement, stored: StoredCell) -> tuple[bool, str, str]:
    """Where condition (iii) holds, does the conclusion for every convergent step?"""
    n = len(task.variants)
    where = [index for index in range(n) if _mean(stored, "holds", index) > 0.5]
    nearer = [_mean(stored, "nearer", k) > 0.5 for k in where]
    every = [_mean(stored, "good_step", k) >= _mean(stored, "convergent_step", k) for k in where]
    words = (
        f"Condition (iii) holds in {len(where)} of {n} settings, all very skewed; for symmetric features its mean is 0 "
        f"where it must be 1/d². Where it holds, a small RLP step ends nearer in {sum(nearer)} of {len(where)}, and "
        f"every convergent step does in {sum(every)} of {len(where)}."
    )
    return bool(where) and all(every) and all(nearer), words, ""


def _algorithm_1(task: Measurement, stored: StoredCell) -> tuple[bool, str, str]:
    missing, equal, words = 0.0, 0.0, []
    for index, setting in enumerate(task.variants):
        if isinstance(setting, SubsetCoverage) and setting.method == "paper":
            missing = max(missing, float(stored.final("missing", index).max()))
            equal = max(equal, float(stored.final("equal", index).max()))
            rows = number(_mean(stored, "missing", index))
            words.append(f"N = {setting.N}, M = {setting.M}, K = {setting.K}: {rows} rows in no subset")
    text = "As printed: " + "; ".join(words) + f"; equal subsets: {equal:g}. Our default keeps both promises."
    return missing == 0 and equal == 0, text, ""


def _empirical(task: Measurement, stored: StoredCell) -> tuple[bool, str, str]:
    errors = [_mean(stored, "error", k) for k in range(len(task.variants))]
    falling = bool((np.diff(errors) < 0).all()) and errors[-1] < 0.5 * errors[0]
    told = ", ".join(f"N = {s.N}: {number(e)}" for s, e in zip(task.variants, errors, strict=True))  # type: ignore[attr-defined]  # settings of EmpiricalError
    words = f"Relative error by training size: {told}. At M = d + 1 the definition is infinite and nothing converges."
    return falling, words, "for M > d + 1"


def _planes(task: Measurement, stored: StoredCell) -> tuple[bool, str, str]:
    generic, origin, single = (_mean(stored, "nullity", k) for k in range(3))
    words = (
        f"Residuals that change no plane of any subset: a space of dimension {generic:g} on 8 generic points, "
        f"{origin:g} with a row at the origin (planes without intercept are blind there), {single:g} if all rows are "
        "one subset."
    )
    return generic == 0, words, "on the sampled points, away from the origin, with N > M"


JUDGES: dict[str, Callable[[Measurement, StoredCell], tuple[bool, str, str]]] = {
    "excess": _proposition_1,
    "condition": _proposition_2,
    "coverage": _algorithm_1,
    "empirical": _empirical,
    "planes": _planes,
}
