"""A study as plain data: arms × tasks × seeds × budget.

The unit of work is a *cell*: one (arm, task, budget) with all its seeds. It trains as one fleet and is stored
in one transaction. A cell is identified by the SHA-256 of its canonical JSON; names and labels are not part
of it, so that two tables which need the same training share it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlploss import _checks

Scalar = str | int | float | bool | None
Settings = tuple[tuple[str, Scalar], ...]


def settings(values: Mapping[str, Scalar]) -> Settings:
    """Freeze a mapping: sorted by key, `None` (left at its default) dropped."""
    for key, value in values.items():
        if not isinstance(value, str | int | float | bool | None):
            raise TypeError(f"setting {key!r} must be text, a number or a bool, got {value!r} ({type(value).__name__})")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"setting {key!r} must be finite, got {value!r}")
    return tuple(sorted((k, v) for k, v in values.items() if v is not None))


def canonical_json(value: Any) -> str:
    """The one spelling of a piece of plain data: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


@dataclass(frozen=True)
class Budget:
    """How long an arm trains, and how often it is evaluated, both in the same unit."""

    unit: str  # "epochs" or "steps"
    n: int
    every: int = 1

    def __post_init__(self) -> None:
        _checks.one_of("budget unit", self.unit, ("epochs", "steps"))
        _checks.count("budget", self.n)
        _checks.count("evaluate every", self.every)

    def __str__(self) -> str:
        return f"{self.n:,} {self.unit}"


@dataclass(frozen=True)
class Arm:
    """What is trained: an objective and the settings that `fit` takes; `protocol` names its column."""

    name: str
    objective: str
    protocol: str = ""
    settings: Settings = ()

    def get(self, key: str, default: Scalar = None) -> Scalar:
        """One setting."""
        return dict(self.settings).get(key, default)


@dataclass(frozen=True)
class Task:
    """What it is trained on; `variants` (a sweep over γ, say) train in one fleet, each with every seed."""

    name: str
    settings: Settings = ()
    variants: tuple[Settings, ...] = ((),)

    def __post_init__(self) -> None:
        if not self.variants:
            raise ValueError(
                f"task {self.name!r} needs at least one variant, got none; leave it out for the plain task"
            )

    def get(self, key: str, default: Scalar = None) -> Scalar:
        """One setting."""
        return dict(self.settings).get(key, default)


@dataclass(frozen=True)
class Cell:
    """One arm on one task for one budget, with all its seeds."""

    arm: Arm
    task: Task
    budget: Budget
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"a cell needs distinct seeds, at least one, got {self.seeds!r}")

    def spec(self) -> dict[str, Any]:
        """Everything that decides the result, as plain data."""
        return {
            "objective": self.arm.objective,
            "arm": dict(self.arm.settings),
            "task": dict(self.task.settings),
            "variants": [dict(v) for v in self.task.variants],
            "budget": {"unit": self.budget.unit, "n": self.budget.n, "every": self.budget.every},
            "seeds": list(self.seeds),
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Cell:
        """The cell of a stored spec; names, which are not part of a spec, are empty."""
        return cls(
            Arm("", spec["objective"], settings=settings(spec["arm"])),
            Task("", settings(spec["task"]), tuple(settings(v) for v in spec["variants"])),
            Budget(spec["budget"]["unit"], spec["budget"]["n"], spec["budget"]["every"]),
            tuple(spec["seeds"]),
        )

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON of `spec()`."""
        return hashlib.sha256(canonical_json(self.spec()).encode()).hexdigest()

    @property
    def n_replicas(self) -> int:
        """Networks trained together: seeds × variants."""
        return len(self.seeds) * len(self.task.variants)

    def __str__(self) -> str:
        return " · ".join(p for p in (self.task.name, self.arm.protocol, self.arm.name, str(self.budget)) if p)


@dataclass(frozen=True)
class Study:
    """A named set of cells; the name is for people, the cells are what runs."""

    name: str
    cells: tuple[Cell, ...] = field(default=())

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def hash(self) -> str:
        """SHA-256 over the hashes of the cells."""
        return hashlib.sha256(canonical_json([c.hash for c in self.cells]).encode()).hexdigest()


def grid(
    name: str, arms: Iterable[Arm], tasks: Iterable[Task], budgets: Iterable[Budget], seeds: Iterable[int]
) -> Study:
    """The full product arms × tasks × budgets, every cell with the same seeds."""
    arms, budgets, frozen_seeds = tuple(arms), tuple(budgets), tuple(seeds)
    return Study(
        name, tuple(Cell(arm, task, budget, frozen_seeds) for task in tasks for arm in arms for budget in budgets)
    )


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """The cells that have to run: the first of each hash, in order."""
    return list({cell.hash: cell for cell in reversed(list(cells))}.values())[::-1]
