"""The propositions and the other statements that are measured without training: their tables and their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rlploss.lab.report import Table, Text
from rlploss.lab.results import StoredCell
from rlploss.lab.text import number
from rlploss.paper.measure import TS, Measurement
from rlploss.paper.published import PublishedClaim
from rlploss.paper.results import Grid, StoredResults
from rlploss.paper.verdicts import NOT_TESTED, State, Verdict, judge

Judged = tuple[State, dict[str, object]]  # what was shown, and the numbers that its words need


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
    shown, numbers = JUDGES[task](cell.task, stored)
    return judge(shown, None, claim.note.format(**numbers), claim.scope, judged=grid.request.scale != "smoke")


def _proposition_1(task: Measurement, stored: StoredCell) -> Judged:
    """RLP along E[Y|X] + tδ is lowest at t = 0, and every step away from it costs something; at an atom it is free."""
    generic, atom = 0, 1
    names = ["lowest", *(f"mean {t:g}" for t in TS)], ["lowest_error", *(f"error {t:g}" for t in TS)]
    lowest, *means = (_mean(stored, name, generic) for name in names[0])
    error, *errors = (_mean(stored, name, generic) / len(stored.of_variant()) ** 0.5 for name in names[1])
    rises = [mean > 4 * its for mean, its in zip(means, errors, strict=True)]
    free = max(abs(_mean(stored, f"mean {t:g}", atom)) for t in TS)
    words = {"lowest": number(lowest), "error": number(error), "cost": "nothing" if free < 1e-12 else number(free)}
    against = abs(lowest) > 4 * error or any(mean < -4 * its for mean, its in zip(means, errors, strict=True))
    shown: State = "fails" if against else "holds" if all(rises) else "open"
    return shown, words | {"rises": sum(rises), "n": len(rises)}


def _proposition_2(task: Measurement, stored: StoredCell) -> Judged:
    """Never for every convergent step (the note has the proof); counted is where condition (iii) holds."""
    n = len(task.variants)
    where = [index for index in range(n) if _mean(stored, "holds", index) > 0.5]
    nearer = [_mean(stored, "nearer", k) > 0.5 for k in where]
    return "fails", {"m": len(where), "n": n, "nearer": sum(nearer)}


def _algorithm_1(task: Measurement, stored: StoredCell) -> Judged:
    """No row is in no subset, and no two subsets are equal."""
    printed = {k: at for k, at in enumerate(task.variants) if at.method == "paper"}
    missing, equal = (max(float(stored.final(key, k).max()) for k in printed) for key in ("missing", "equal"))
    words = [
        f"N = {at.N}, M = {at.M}, K = {at.K}: {number(_mean(stored, 'missing', k))} rows in no subset"
        for k, at in printed.items()
    ]
    return "holds" if missing == equal == 0 else "fails", {"missing": "; ".join(words), "equal": f"{equal:g}"}


def _empirical(task: Measurement, stored: StoredCell) -> Judged:
    """The error falls with N, to less than half."""
    errors = [_mean(stored, "error", k) for k in range(len(task.variants))]
    falling = bool((np.diff(errors) < 0).all()) and errors[-1] < 0.5 * errors[0]
    words = [f"N = {at.N}: {number(error)}" for at, error in zip(task.variants, errors, strict=True)]
    return "holds" if falling else "fails", {"errors": ", ".join(words)}


def _planes(task: Measurement, stored: StoredCell) -> Judged:
    """No residual on generic points changes no plane."""
    generic, origin, single = (_mean(stored, "nullity", k) for k in range(3))
    return "fails" if generic else "holds", {
        "generic": f"{generic:g}",
        "origin": f"{origin:g}",
        "single": f"{single:g}",
    }


JUDGES: dict[str, Callable[[Measurement, StoredCell], Judged]] = {
    "valley": _proposition_1,
    "condition": _proposition_2,
    "coverage": _algorithm_1,
    "empirical": _empirical,
    "planes": _planes,
}
