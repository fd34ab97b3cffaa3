"""Claims that are measured without training: the propositions, Algorithm 1, convergence, shared planes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlploss.lab.figures import number
from rlploss.lab.results import StoredCell
from rlploss.lab.study import Cell
from rlploss.paper import studies
from rlploss.paper.verdicts import NOT_TESTED, Evidence, Verdict, judge

Rule = Callable[[Evidence], Verdict]
Judge = Callable[[Cell, StoredCell], tuple[bool, str, str]]  # holds, evidence, scope


def _measured(task: str, judge_cell: Judge) -> Rule:
    def rule(evidence: Evidence) -> Verdict:
        grid = evidence.grid("propositions", studies.propositions)
        cell = None if grid is None else grid.cell(task, "measured", "measured")
        if grid is None or cell is None:
            return Verdict(NOT_TESTED, "Needs `rlploss reproduce propositions`.")
        stored = grid.stored(task, "measured", "measured")
        if stored is None:
            return Verdict(NOT_TESTED, grid.why(task))
        holds, words, scope = judge_cell(cell, stored)
        return judge(holds, None, words, scope, judged=grid.view.request.at.judged)

    return rule


def _mean(stored: StoredCell, key: str, variant: int) -> float:
    return float(stored.final(key, variant).mean())


def _proposition_1(cell: Cell, stored: StoredCell) -> tuple[bool, str, str]:
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


def _proposition_2(cell: Cell, stored: StoredCell) -> tuple[bool, str, str]:
    """Where condition (iii) holds, does the conclusion for every convergent step?"""
    satisfied, concluded, every = [], [], []
    for index in range(len(cell.task.variants)):
        holds = _mean(stored, "holds", index) > 0.5
        satisfied.append(holds)
        if holds:
            concluded.append(_mean(stored, "nearer", index) > 0.5)
            every.append(_mean(stored, "good_step", index) >= _mean(stored, "convergent_step", index))
    n, m = len(satisfied), sum(satisfied)
    words = (
        f"Condition (iii) holds in {m} of {n} settings, all very skewed; for symmetric features its mean is 0 "
        f"where it must be 1/d². Where it holds, a small RLP step ends nearer in {sum(concluded)} of {m}, and every "
        f"convergent step does in {sum(every)} of {m}."
    )
    return bool(every) and all(every) and all(concluded), words, ""


def _algorithm_1(cell: Cell, stored: StoredCell) -> tuple[bool, str, str]:
    missing, equal, words = 0.0, 0.0, []
    for index, variant in enumerate(cell.task.variants):
        values = dict(variant)
        if values["method"] == "paper":
            missing = max(missing, float(stored.final("missing", index).max()))
            equal = max(equal, float(stored.final("equal", index).max()))
            words.append(
                f"N = {values['N']}, M = {values['M']}, K = {values['K']}: {number(_mean(stored, 'missing', index))} "
                "rows in no subset"
            )
    text = "As printed: " + "; ".join(words) + f"; equal subsets: {equal:g}. Our default keeps both promises."
    return missing == 0 and equal == 0, text, ""


def _empirical(cell: Cell, stored: StoredCell) -> tuple[bool, str, str]:
    errors = [_mean(stored, "error", k) for k in range(len(cell.task.variants))]
    sizes = [dict(v)["N"] for v in cell.task.variants]
    falling = bool((np.diff(errors) < 0).all()) and errors[-1] < 0.5 * errors[0]
    words = "Relative error by training size: " + ", ".join(
        f"N = {n}: {number(e)}" for n, e in zip(sizes, errors, strict=True)
    )
    return (falling, words + ". At M = d + 1 the definition is infinite and nothing converges.", "for M > d + 1")


def _planes(cell: Cell, stored: StoredCell) -> tuple[bool, str, str]:
    generic, origin, single = (_mean(stored, "nullity", k) for k in range(3))
    words = (
        f"Residuals that change no plane of any subset: a space of dimension {generic:g} on 8 generic points, "
        f"{origin:g} "
        f"with a row at the origin (planes without intercept are blind there), {single:g} if all rows are one subset."
    )
    return generic == 0, words, "on the sampled points, away from the origin, with N > M"


RULES: dict[str, Rule] = {
    "proposition-1": _measured("excess", _proposition_1),
    "proposition-2": _measured("condition", _proposition_2),
    "algorithm-1": _measured("coverage", _algorithm_1),
    "empirical-converges": _measured("empirical", _empirical),
    "same-planes-iff-equal": _measured("planes", _planes),
}
