"""The propositions and the other statements that are measured without training: their tables and their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rlploss.lab.report import Table, Text
from rlploss.lab.results import StoredCell
from rlploss.lab.text import number
from rlploss.paper.measure import Measurement
from rlploss.paper.published import PublishedClaim
from rlploss.paper.results import Grid, StoredResults
from rlploss.paper.verdicts import NOT_TESTED, Verdict, judge


def _mean(stored: StoredCell, key: str, variant: int) -> float:
    return float(stored.final(key, variant).mean())


def measured_table(grid: Grid, task: str, title: str, columns: Mapping[str, str], note: str) -> Table:
    """What a statement comes to when it is measured: a row for each setting, means over seeds."""
    cell, stored = grid.entries[task, "measured", "measured"]
    numbers = {
        str(setting): [float("nan") if stored is None else _mean(stored, key, index) for key in columns]
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
        if setting.method == "paper":
            missing = max(missing, float(stored.final("missing", index).max()))
            equal = max(equal, float(stored.final("equal", index).max()))
            rows = number(_mean(stored, "missing", index))
            words.append(f"N = {setting.N}, M = {setting.M}, K = {setting.K}: {rows} rows in no subset")
    text = "As printed: " + "; ".join(words) + f"; equal subsets: {equal:g}. Our default keeps both promises."
    return missing == 0 and equal == 0, text, ""


def _empirical(task: Measurement, stored: StoredCell) -> tuple[bool, str, str]:
    errors = [_mean(stored, "error", k) for k in range(len(task.variants))]
    falling = bool((np.diff(errors) < 0).all()) and errors[-1] < 0.5 * errors[0]
    told = ", ".join(f"N = {s.N}: {number(e)}" for s, e in zip(task.variants, errors, strict=True))
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
