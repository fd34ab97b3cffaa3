"""What a directory holds for each table and figure: cells by task, protocol and arm, and words for
their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product

import numpy as np

from rlploss._progress import duration
from rlploss._scaling import Array
from rlploss.lab import stats
from rlploss.lab.study import AnyCell, StoredCell
from rlploss.lab.text import number
from rlploss.paper import published
from rlploss.paper.request import Request
from rlploss.paper.studies import CATALOG, PROTOCOLS, STUDIES
from rlploss.training.job import Epochs, Steps

Key = tuple[str, str, str]  # task, protocol, arm
METRICS = {
    "mse": "test MSE",
    "mae": "test MAE",
    "rlp": "test RLP",
    "accuracy": "test accuracy",
    "f1": "test F1",
}
SCORES = ("accuracy", "f1")  # higher is better
TITLES: dict[str, str] = published.REPORT["titles"]


def title_of(task: str) -> str:
    """Return a task as people read it.

    >>> title_of("wine"), title_of("wine-50"), title_of("wine (half-and-half)")
    ('Wine', 'Wine (50 examples)', 'Wine (half-and-half)')
    """
    dataset, _, n_train = task.rpartition("-")
    if task not in TITLES and n_train.isdigit():
        return f"{title_of(dataset)} ({n_train} examples)"
    dataset, space, rest = task.partition(" ")
    return TITLES.get(task, TITLES.get(dataset, dataset) + space + rest)


@dataclass(frozen=True)
class Grid:
    """The cells of a table or figure that was asked for; `missing` says why one cannot be read."""

    name: str
    request: Request
    read: Callable[[AnyCell], StoredCell | None]
    missing: Callable[[AnyCell], str]

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that its tables and figures compare."""
        return tuple(CATALOG[self.name].get("arms", ()))

    @cached_property
    def parts(self) -> dict[Key, list[AnyCell]]:
        """The cells of each key; several are the same with other seeds."""
        cells: dict[Key, list[AnyCell]] = {}
        for cell in STUDIES[self.name](self.request):
            cells.setdefault((cell.task.name, cell.arm.protocol, cell.arm.name), []).append(cell)
        return cells

    @cached_property
    def cells(self) -> dict[Key, AnyCell]:
        """One cell for each key, with all its seeds."""
        seeds = {
            key: tuple(seed for part in parts for seed in part.seeds)
            for key, parts in self.parts.items()
        }
        return {key: replace(parts[0], seeds=seeds[key]) for key, parts in self.parts.items()}

    @cached_property
    def stored(self) -> dict[Key, StoredCell]:
        """What is stored of each key with all its seeds; a key that misses some is not in it."""
        cells = {}
        for key, parts in self.parts.items():
            read = [stored for part in parts if (stored := self.read(part)) is not None]
            if len(read) == len(parts):
                networks = tuple(network for stored in read for network in stored.networks)
                cells[key] = replace(
                    read[0], networks=networks, seconds=sum(stored.seconds for stored in read)
                )
        return cells

    def tasks(self, protocol: str | None = None) -> list[str]:
        """Return task names, of all protocols or of one, in order."""
        return list(dict.fromkeys(task for task, mine, _ in self.parts if protocol in (None, mine)))

    def protocols(self) -> list[str]:
        """Return the protocols that were run, or if none was those that were asked for, in the
        order of PROTOCOLS.
        """
        run = {protocol for _, protocol, _ in self.stored or self.parts}
        return [name for name in PROTOCOLS if name in run]

    def stored_arms(self, task: str, protocol: str, arms: Iterable[str]) -> dict[str, StoredCell]:
        """Return the stored networks of those of some arms that were run."""
        return {
            arm: self.stored[key] for arm in arms if (key := (task, protocol, arm)) in self.stored
        }

    def final(self, task: str, protocol: str, arm: str, metric: str = "mse") -> Array | None:
        """[seeds]: the last value of a metric, or None."""
        stored = self.stored.get((task, protocol, arm))
        return None if stored is None else stored.final(metric)

    def compare(
        self, task: str, protocol: str, ours: str, theirs: str, metric: str = "mse"
    ) -> stats.Contrast | None:
        """Compare two arms, paired over seeds; None if either is missing."""
        ends = [
            stored.final(metric)
            for stored in self.stored_arms(task, protocol, (ours, theirs)).values()
        ]
        return compare(metric, *ends) if len(ends) == 2 else None

    def why(self, task: str, protocols: Iterable[str], arms: Iterable[str] = ()) -> str:
        """Return why networks of a task are not there, from the first that is missing; empty if all
        are.

        `arms`: those that it takes; by default all that were asked for.
        """
        wanted = [*product((task,), protocols, arms)]
        if not wanted:
            wanted = [key for key in self.parts if key[0] == task and key[1] in protocols]
        lost = [key for key in wanted if key not in self.stored]
        if not lost:
            return ""
        return self.missing(self.parts[lost[0]][-1]) if lost[0] in self.parts else "not asked for"

    def facts(self) -> tuple[tuple[str, str], ...]:
        """Return how the numbers were obtained: budgets, seeds, versions, machine, seconds,
        remarks.
        """
        if not self.stored:
            return (("Runs", "none"),)
        cells = [self.cells[key] for key in self.stored]
        unique = {
            cell.hash: (cell, stored)
            for cell, stored in zip(cells, self.stored.values(), strict=True)
        }
        budgets = {
            protocol: _joined(
                (budget_words(c.budget) for c in cells if c.arm.protocol == protocol), ", "
            )
            for protocol in dict.fromkeys(cell.arm.protocol for cell in cells)
        }
        origins = [stored.provenance for _, stored in unique.values()]
        seconds = sum(stored.seconds for _, stored in unique.values())
        notes = _joined((note for origin in origins for note in origin.get("notes", ())), " · ")
        facts = [
            ("Scale", self.request.scale),
            ("Budgets", "; ".join(f"{name}: {values}" for name, values in budgets.items())),
            ("Seeds", _joined(f"{len(c.seeds)} ({c.seeds[0]} to {c.seeds[-1]})" for c in cells)),
            (
                "Networks",
                f"{sum(cell.n_replicas for cell, _ in unique.values()):,} in {len(unique)} cells",
            ),
            ("Training time", f"{duration(seconds)} of one core"),
            (
                "Engine",
                _joined(
                    f"{o['engine']}, {o['threads']} thread{'s' * (o['threads'] > 1)}"
                    for o in origins
                ),
            ),
            (
                "Versions",
                _joined(", ".join(f"{k} {v}" for k, v in o["versions"].items()) for o in origins),
            ),
            (
                "Machine",
                _joined(
                    f"{o['machine']['processor']}, {o['machine']['cores']} cores" for o in origins
                ),
            ),
        ]
        return (*facts, ("Remarks", notes)) if notes else tuple(facts)


Results = Mapping[str, Grid]  # of everything that was asked for, by name


@cache
def whole(study: str) -> dict[Key, AnyCell]:
    """Return the cells that the paper asks for, whatever a request does; those with other seeds
    once.
    """
    return {
        (cell.task.name, cell.arm.protocol, cell.arm.name): cell
        for cell in STUDIES[study](Request("paper"))
    }


def mean_error(stored: StoredCell, name: str, variant: int = 0) -> float:
    """Return the standard error of a mean over seeds, from that of each seed."""
    errors = stored.final(name, variant)
    return float(np.sqrt(np.sum(errors**2)) / len(errors))


def compare(metric: str, ours: Array, theirs: Array) -> stats.Contrast:
    """Compare two arms, paired over seeds, by what the metric says is better."""
    return stats.compare(ours, theirs, lower_is_better=metric not in SCORES)


def _joined(texts: Iterable[str], between: str = "; ") -> str:
    return between.join(dict.fromkeys(texts))


def budget_words(budget: Epochs | Steps) -> str:
    """Return `200 epochs`."""
    return f"{budget.n:,} {type(budget).__name__.lower()}"


def effect(c: stats.Contrast) -> str:
    """Return `0.12 [0.10, 0.15]`, or of a share `in 28 of 30 seeds`.

    It has as many digits, at least three, as tell the ends of the interval from each other and from
    no difference.
    """
    if c.scale == "share":
        return f"in {round(c.effect * c.n)} of {c.n} seeds" if c.n else "in no seed"
    none = 1.0 if c.scale in ("ratio", "spread") else 0.0
    middle = none if abs(c.effect - none) < 1e-5 * (c.high - c.low) else c.effect  # not 7.40e-18
    for digits in range(3, 8):
        shown, low, high = (number(value, digits) for value in (middle, c.low, c.high))
        if c.low == c.high or len({low, high, number(none, digits)}) == 3:
            break
    return f"{shown} [{low},\u00a0{high}]"
