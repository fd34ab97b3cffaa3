"""What a directory holds for each table and figure: cells by task, protocol and arm, and words for their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlploss._progress import duration
from rlploss._scaling import Array
from rlploss.lab import stats
from rlploss.lab.study import AnyCell, StoredCell
from rlploss.lab.text import number
from rlploss.paper import published
from rlploss.paper.protocols import PROTOCOLS
from rlploss.paper.request import Request
from rlploss.paper.studies import STUDIES
from rlploss.training.job import Epochs, Steps

Key = tuple[str, str, str]  # task, protocol, arm
METRICS = {"mse": "test MSE", "mae": "test MAE", "rlp": "test RLP", "accuracy": "test accuracy", "f1": "test F1"}
SCORES = ("accuracy", "f1")  # higher is better
TITLES: dict[str, str] = published.data("report.toml")["titles"]


def title_of(task: str) -> str:
    """A task as people read it.

    >>> title_of("wine"), title_of("wine-50"), title_of("wine (half-and-half)")
    ('Wine', 'Wine (50 examples)', 'Wine (half-and-half)')
    """
    dataset, _, n_train = task.rpartition("-")
    if task not in TITLES and n_train.isdigit():
        return f"{title_of(dataset)} ({n_train} examples)"
    dataset, space, rest = task.partition(" ")
    return TITLES.get(task, TITLES.get(dataset, dataset) + space + rest)


def _by_key(cells: Iterable[AnyCell]) -> dict[Key, list[AnyCell]]:
    """The cells of each key; several are the same with other seeds."""
    found: dict[Key, list[AnyCell]] = {}
    for cell in cells:
        found.setdefault((cell.task.name, cell.arm.protocol, cell.arm.name), []).append(cell)
    return found


def _whole(parts: Sequence[AnyCell]) -> AnyCell:
    """One cell with the seeds of all."""
    return replace(parts[0], seeds=tuple(seed for part in parts for seed in part.seeds))


@dataclass(frozen=True)
class StoredResults:
    """Reads cells of the tables and figures that were asked for; `missing` says why a cell is not there."""

    requests: Mapping[str, Request]
    read: Callable[[AnyCell], StoredCell | None]
    missing: Callable[[AnyCell], str]
    _grids: dict[str, Grid] = field(default_factory=dict)

    def grid(self, name: str) -> Grid | None:
        """The cells of a table or figure, or None if it was not asked for."""
        if name in self.requests and name not in self._grids:
            request = self.requests[name]
            whole = replace(request, scale="paper", budget="both", datasets=None, arms=None)
            parts = _by_key(STUDIES[name](request))
            entries = {key: (_whole(cells), self._joined(cells)) for key, cells in parts.items()}
            full = {key: _whole(cells) for key, cells in _by_key(STUDIES[name](whole)).items()}
            self._grids[name] = Grid(name, request, entries, full, parts, self.missing)
        return self._grids.get(name)

    def _joined(self, parts: Sequence[AnyCell]) -> StoredCell | None:
        """What is stored of cells that differ in their seeds, as one; None if one is missing."""
        found = [stored for part in parts if (stored := self.read(part)) is not None]
        if len(found) < len(parts):
            return None
        networks = tuple(network for stored in found for network in stored.networks)
        return replace(found[0], networks=networks, seconds=sum(stored.seconds for stored in found))


@dataclass(frozen=True)
class Grid:
    """The cells of one table or figure by task, protocol and arm, each with its stored networks or None.

    `whole` are the cells at the paper's scale, however the request was narrowed; `parts` the stored cells of an entry,
    which differ in their seeds.
    """

    name: str
    request: Request
    entries: Mapping[Key, tuple[AnyCell, StoredCell | None]]
    whole: Mapping[Key, AnyCell]
    parts: Mapping[Key, Sequence[AnyCell]]
    missing: Callable[[AnyCell], str]

    def cell(self, task: str, protocol: str, arm: str) -> AnyCell | None:
        """The cell, stored or not."""
        return self.entries.get((task, protocol, arm), (None, None))[0]

    def stored(self, task: str, protocol: str, arm: str) -> StoredCell | None:
        """The stored networks, or None."""
        return self.entries.get((task, protocol, arm), (None, None))[1]

    def found(self, task: str, protocol: str, arms: Iterable[str]) -> dict[str, StoredCell]:
        """The stored networks of those of some arms that were run."""
        return {arm: stored for arm in arms if (stored := self.stored(task, protocol, arm)) is not None}

    def final(self, task: str, protocol: str, arm: str, metric: str = "mse", variant: int = 0) -> Array | None:
        """[seeds]: the last value of a metric."""
        stored = self.stored(task, protocol, arm)
        return None if stored is None or not stored.has(metric) else stored.final(metric, variant)

    def tasks(self, protocol: str | None = None) -> list[str]:
        """Task names, of all protocols or of one, in order."""
        return list(dict.fromkeys(task for task, mine, _ in self.entries if protocol in (None, mine)))

    def whole_tasks(self) -> tuple[str, ...]:
        """Task names of the whole study, whatever was asked for."""
        return tuple(dict.fromkeys(task for task, _, _ in self.whole))

    def protocols(self) -> list[str]:
        """The protocols that were run, or if none was those that were asked for, in the order of PROTOCOLS."""
        run = {protocol for (_, protocol, _), (_, stored) in self.entries.items() if stored is not None}
        return [name for name in PROTOCOLS if name in (run or {protocol for _, protocol, _ in self.entries})]

    def why(self, task: str) -> str:
        """Why a task has no networks, from the first missing cell of what is shown; empty if all are there."""
        shown = {*self.protocols(), "measured"}
        lost = (k for k, (_, stored) in self.entries.items() if k[0] == task and k[1] in shown and stored is None)
        return next((self.missing(self.parts[key][-1]) for key in lost), "")

    def compare(
        self, task: str, protocol: str, ours: str, theirs: str, metric: str = "mse", variant: int = 0
    ) -> stats.Comparison | None:
        """Paired comparison of two arms; None if either is missing."""
        a, b = (self.final(task, protocol, arm, metric, variant) for arm in (ours, theirs))
        if a is None or b is None or len(a) != len(b):
            return None
        return stats.compare(a, b, lower_is_better=metric not in SCORES)

    def facts(self) -> tuple[tuple[str, str], ...]:
        """How the numbers were obtained: budgets, seeds, versions, machine, seconds, remarks."""
        found = [(cell, stored) for cell, stored in self.entries.values() if stored is not None]
        if not found:
            return (("Runs", "none"),)
        unique = {cell.hash: (cell, stored) for cell, stored in found}
        budgets = {
            protocol: _joined((budget_words(c.budget) for c, _ in found if c.arm.protocol == protocol), ", ")
            for protocol in dict.fromkeys(cell.arm.protocol for cell, _ in found)
        }
        origins = [stored.provenance for _, stored in unique.values()]
        seconds = sum(stored.seconds for _, stored in unique.values())
        notes = _joined((note for origin in origins for note in origin.get("notes", ())), " · ")
        facts = [
            ("Scale", self.request.scale),
            ("Budgets", "; ".join(f"{name}: {values}" for name, values in budgets.items())),
            ("Seeds", _joined(f"{len(c.seeds)} ({c.seeds[0]} to {c.seeds[-1]})" for c, _ in found)),
            ("Networks", f"{sum(cell.n_replicas for cell, _ in unique.values()):,} in {len(unique)} cells"),
            ("Training time", f"{duration(seconds)} of one core"),
            ("Engine", _joined(f"{o['engine']}, {o['threads']} thread{'s' * (o['threads'] > 1)}" for o in origins)),
            ("Versions", _joined(", ".join(f"{k} {v}" for k, v in o["versions"].items()) for o in origins)),
            ("Machine", _joined(f"{o['machine']['processor']}, {o['machine']['cores']} cores" for o in origins)),
        ]
        return (*facts, ("Remarks", notes)) if notes else tuple(facts)


def _joined(texts: Iterable[str], between: str = "; ") -> str:
    return between.join(dict.fromkeys(texts))


def budget_words(budget: Epochs | Steps) -> str:
    """`200 epochs`."""
    return f"{budget.n:,} {type(budget).__name__.lower()}"


def mean_sd(values: Array | None) -> str:
    """`0.197 ± 0.110`, or a dash."""
    if values is None or not len(values):
        return "–"
    s = stats.summary(np.asarray(values))
    return number(s.mean) if s.n == 1 else plus_minus(s.mean, s.sd)


def plus_minus(mean: float, sd: float) -> str:
    """`0.197 ± 0.110`."""
    return f"{number(mean)} ±\u00a0{number(sd)}"


def effect(c: stats.Comparison) -> str:
    """`0.12 [0.10, 0.15]`, or of a share `28 of 30 seeds`."""
    if c.scale == "share":
        return f"in {round(c.effect * c.n)} of {c.n} seeds" if c.n else "in no seed"
    return f"{number(c.effect)} [{number(c.low)},\u00a0{number(c.high)}]"
