"""A comparison as a study of the laboratory: its conditions, its cells, what they cost, and whether rows suffice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlploss import _checks
from rlploss.compare.arms import MOST_ROWS_IN_A_SUBSET, N_SETTINGS, Arm, arms_for
from rlploss.compare.columns import Design
from rlploss.compare.read import TableError
from rlploss.compare.train import FOLD_ROWS, FOLDS, MOST_TEST_ROWS, TEST_SHARE, Index, Trainer, evaluation_steps
from rlploss.lab.study import Arm as CellArm
from rlploss.lab.study import Budget, Cell, Task, settings

FEWEST_ROWS, FEWEST_OF_A_CLASS, FEWEST_TRAINING_ROWS = 24, 8, 15


@dataclass(frozen=True)
class Condition:
    """The table as it is, or one of the paper's ablations of it."""

    name: str
    label: str
    train_size: int | None = None
    noise: float | None = None
    shift: float | None = None


PLAIN = Condition("plain", "the table as it is")


def sample(design: Design, max_rows: int, seed: int) -> Index:
    """All rows, or a sample of them; checks that there are enough."""
    n = len(design.X)
    if n < FEWEST_ROWS:
        gone = f" ({design.n_dropped} more have no target)" if design.n_dropped else ""
        raise TableError(f"a comparison needs at least {FEWEST_ROWS} rows to split, got {n}{gone}; add rows")
    for number, label in enumerate(design.target.classes):
        rows = int((design.target.y == number).sum())
        if rows < FEWEST_OF_A_CLASS:
            raise TableError(
                f"every class needs at least {FEWEST_OF_A_CLASS} rows to be split, but class {label!r} has {rows}; "
                "merge rare classes or drop their rows"
            )
    if n <= max_rows:
        return np.arange(n)
    order = np.random.default_rng([seed, 9]).permutation(n)
    kept = order[:max_rows]
    if design.target.classes:  # every class keeps its share, and the rows it needs
        y = design.target.y[order]
        places = [np.flatnonzero(y == label) for label in range(len(design.target.classes))]
        wanted = (max(FEWEST_OF_A_CLASS, round(max_rows * len(place) / n)) for place in places)
        kept = order[np.concatenate([place[:k] for place, k in zip(places, wanted, strict=True)])]
    return np.sort(kept)


def sampled_said(n_used: int, n: int) -> str:
    """What is told about a sample, on the terminal and in the report."""
    return f"{n_used:,} of {n:,} rows are used, a random sample; --max-rows changes that."


def ablations(
    train_size: int | Sequence[int] | None, noise: float | Sequence[float] | None, shift: float | Sequence[float] | None
) -> list[Condition]:
    """The conditions asked for beside the plain one."""
    made = []
    for size in _listed(train_size):
        n = _checks.count("train_size", size, minimum=FEWEST_TRAINING_ROWS)
        made.append(Condition(f"train-size-{n}", f"{n} training rows", train_size=n))
    for level in _listed(noise):
        beta = _checks.number("noise", level, 0.0, 1e6)
        made.append(Condition(f"noise-{beta:g}", f"noise of {beta:g} standard deviations", noise=beta))
    for level in _listed(shift):
        gamma = _checks.number("shift", level, 0.0, 1.0)
        made.append(Condition(f"shift-{gamma:g}", f"a shift of γ = {gamma:g}", shift=gamma))
    return list(dict.fromkeys(made))


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def check_rows(trainer: Trainer, design: Design, conditions: Sequence[Condition], seeds: Sequence[int]) -> None:
    """Refuse a condition that leaves too few rows, before anything is trained."""
    n = len(trainer.X)
    most = n - min(round(TEST_SHARE * n), MOST_TEST_ROWS)
    for condition in conditions:
        if condition.train_size is not None and condition.train_size > most:
            raise TableError(
                f"train_size must be at most {most}, what {n} rows leave beside the test rows, got "
                f"{condition.train_size}; lower it"
            )
        if condition.shift is None:
            continue
        for seed in seeds:
            cell = make_cell(trainer, arms_for(design.target.task)[0], condition, (seed,), 1)
            train, test = trainer.split(cell, seed)
            classes = design.target.task == "regression" or len(np.unique(trainer.y[train])) > 1
            if len(train) < FEWEST_TRAINING_ROWS or len(test) < 5 or not classes:
                raise TableError(
                    f"shift must leave {FEWEST_TRAINING_ROWS} training rows and 5 test rows, got {condition.shift:g} "
                    f"with {len(train)} and {len(test)}; choose a value nearer to 0.5"
                )


def make_cell(trainer: Trainer, arm: Arm, condition: Condition, seeds: tuple[int, ...], steps: int) -> Cell:
    """One arm under one condition, as the laboratory stores it."""
    return Cell(
        CellArm(arm.label, arm.objective or arm.name, settings=settings({"arm": arm.name})),
        Task(
            condition.label,
            settings(
                {
                    "table": trainer.digest,
                    "task": trainer.task,
                    "train_size": condition.train_size,
                    "noise": condition.noise,
                    "shift": condition.shift,
                }
            ),
        ),
        Budget("steps", steps, evaluation_steps(len(trainer.X), steps)),
        seeds,
    )


def expected_seconds(trainer: Trainer, cell: Cell) -> float:
    """A rough cost on one core, for the time left; stored cells correct it."""
    n, d = trainer.X.shape
    n_train = int(str(cell.task.get("train_size") or round((1 - TEST_SHARE) * n)))
    fits = len(cell.seeds) * (N_SETTINGS * (FOLDS if n_train <= FOLD_ROWS else 1) + 1)
    if cell.arm.objective in ("mean", "prior"):
        return 0.1
    if cell.arm.objective in ("ridge", "logistic"):
        return float(0.5 + fits * 2e-7 * n_train * d)
    if cell.arm.objective == "boosting":
        return float(1.0 + fits * (0.1 + 3e-5 * n_train * min(d, 30) ** 0.5))
    rows = min(n_train, 100.0)
    if cell.arm.objective.startswith("rlp"):
        rows = min(n_train, MOST_ROWS_IN_A_SUBSET) * 0.55
    return float(1.0 + fits * cell.budget.n * (5e-6 + 2.5e-9 * rows * (d + 10) * 10))
