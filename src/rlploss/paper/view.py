"""What the store has for a request: cells by task, protocol and arm, and the words around their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rlploss.lab import stats
from rlploss.lab.figures import number
from rlploss.lab.results import Array, StoredCell
from rlploss.lab.run import duration
from rlploss.lab.study import Cell
from rlploss.paper.request import Request

Key = tuple[str, str, str]  # task, protocol, arm


@dataclass(frozen=True)
class View:
    """Reads cells; `missing` says why one is not there."""

    request: Request
    read: Callable[[Cell], StoredCell | None]
    missing: Callable[[Cell], str]

    def grid(self, cells: Iterable[Cell]) -> Grid:
        """The cells of one table or figure, by task, protocol and arm."""
        return Grid({(c.task.name, c.arm.protocol, c.arm.name): (c, self.read(c)) for c in cells}, self)


@dataclass(frozen=True)
class Grid:
    """Cells by task, protocol and arm, with their stored runs."""

    entries: dict[Key, tuple[Cell, StoredCell | None]]
    view: View

    def cell(self, task: str, protocol: str, arm: str) -> Cell | None:
        """The cell, stored or not."""
        entry = self.entries.get((task, protocol, arm))
        return None if entry is None else entry[0]

    def stored(self, task: str, protocol: str, arm: str) -> StoredCell | None:
        """The stored runs, or None."""
        entry = self.entries.get((task, protocol, arm))
        return None if entry is None else entry[1]

    def has(self, task: str, protocol: str, arm: str) -> bool:
        """Whether the runs are there."""
        return self.stored(task, protocol, arm) is not None

    def final(self, task: str, protocol: str, arm: str, metric: str = "mse", variant: int = 0) -> Array | None:
        """[seeds]: the last value of a metric."""
        stored = self.stored(task, protocol, arm)
        return None if stored is None or not stored.has(metric) else stored.final(metric, variant)

    def tasks(self) -> list[str]:
        """Task names, in order."""
        return list(dict.fromkeys(key[0] for key in self.entries))

    def protocols(self) -> list[str]:
        """Protocols, in order."""
        return list(dict.fromkeys(key[1] for key in self.entries))

    def why(self, task: str) -> str:
        """Why a task has no runs, from the first missing cell; empty if all are there."""
        for (name, _, _), (cell, stored) in self.entries.items():
            if name == task and stored is None:
                return self.view.missing(cell)
        return ""

    def compare(
        self, task: str, protocol: str, ours: str, theirs: str, metric: str = "mse", variant: int = 0
    ) -> stats.Comparison | None:
        """Paired comparison of two arms; None if either is missing."""
        a, b = (self.final(task, protocol, arm, metric, variant) for arm in (ours, theirs))
        if a is None or b is None or len(a) != len(b):
            return None
        return stats.compare(a, b, lower_is_better=metric not in ("accuracy", "f1"))

    def facts(self) -> tuple[tuple[str, str], ...]:
        """How the numbers were obtained: budgets, seeds, versions, machine, seconds, remarks."""
        found = [(cell, stored) for cell, stored in self.entries.values() if stored is not None]
        if not found:
            return (("Runs", "none"),)
        unique = {cell.hash: (cell, stored) for cell, stored in found}
        budgets: dict[str, dict[str, None]] = {}
        for cell, _ in found:
            budgets.setdefault(cell.arm.protocol, {})[str(cell.budget)] = None
        origins = [stored.provenance for _, stored in unique.values()]
        seconds = sum(stored.seconds for _, stored in unique.values())
        notes = list(dict.fromkeys(note for origin in origins for note in origin.get("notes", ())))
        facts = [
            ("Scale", self.view.request.scale),
            ("Budgets", "; ".join(f"{name}: {', '.join(values)}" for name, values in budgets.items())),
            ("Seeds", _joined(_seeds(cell.seeds) for cell, _ in found)),
            ("Networks", f"{sum(cell.n_replicas for cell, _ in unique.values()):,} in {len(unique)} cells"),
            ("Training time", f"{duration(seconds)} of one core"),
            ("Path", _joined(f"{o['path']}, {o['threads']} thread{'s' * (o['threads'] > 1)}" for o in origins)),
            ("Versions", _joined(", ".join(f"{k} {v}" for k, v in o["versions"].items()) for o in origins)),
            ("Machine", _joined(f"{o['machine']['processor']}, {o['machine']['cores']} cores" for o in origins)),
        ]
        if notes:
            facts.append(("Remarks", " · ".join(notes)))
        return tuple(facts)


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} ({seeds[0]} to {seeds[-1]})" if len(seeds) > 1 else f"1 ({seeds[0]})"


def mean_sd(values: Array | None) -> str:
    """`0.197 ± 0.110`, or a dash."""
    if values is None or not len(values):
        return "–"
    s = stats.summary(np.asarray(values))
    return number(s.mean) if s.n == 1 else plus_minus(s.mean, s.sd)


def plus_minus(mean: float, sd: float) -> str:
    """`0.197 ± 0.11`."""
    return f"{number(mean)} ± {number(sd, 2)}"


def effect(comparison: stats.Comparison | None) -> str:
    """`0.12 [0.10, 0.15] better`, or a dash."""
    if comparison is None:
        return "–"
    c = comparison
    return f"{number(c.effect)} [{number(c.low)}, {number(c.high)}] {c.word}"


TONES = {"better": "good", "worse": "bad", "level": "calm"}
