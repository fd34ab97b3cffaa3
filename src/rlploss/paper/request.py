"""What the user asked for, and what each scale makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from rlploss import _checks
from rlploss.paper import published


@dataclass(frozen=True)
class Scale:
    """How much of the paper's effort is spent."""

    seeds: dict[str, int]  # by experiment
    most_epochs: dict[str, int]  # by experiment; one that is not in it has the paper's epochs
    most_subsets: int = 10_000
    most_rows: int = 10_000  # of images
    points: int = 50  # about how many a curve of regression has
    threshold_seeds: int = (
        0  # of claims with a threshold, where a cell costs seconds; 0: as many as the others
    )
    judged: bool = (
        False  # whether verdicts are given: below the paper's epochs a final error says nothing
    )

    def epochs(self, experiment: str, full: int) -> int:
        """Return the number of epochs at this scale, from that of the paper."""
        return min(full, self.most_epochs.get(experiment, full))


SCALES = {name: Scale(**row) for name, row in published.REPORT["scale"].items()}


@dataclass(frozen=True)
class Request:
    """One request: a scale, a budget, and what narrows it."""

    scale: str = "quick"
    budget: str = "both"
    seeds: int | None = None
    datasets: tuple[str, ...] | None = None
    arms: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _checks.one_of("scale", self.scale, SCALES)
        _checks.one_of("budget", self.budget, ("epochs", "steps", "both"))
        if self.seeds is not None:
            _checks.count("seeds", self.seeds, maximum=10_000)

    @property
    def at(self) -> Scale:
        """The scale itself."""
        return SCALES[self.scale]

    def seeds_for(self, experiment: str) -> tuple[int, ...]:
        """Return the seeds of an experiment."""
        return tuple(range(self.seeds if self.seeds is not None else self.at.seeds[experiment]))

    def threshold_seeds(self) -> tuple[int, ...]:
        """Return the seeds beyond a study's own that a claim with a threshold uses; none if their
        number was asked for.
        """
        return (
            tuple(range(self.at.seeds["full"], self.at.threshold_seeds))
            if self.seeds is None
            else ()
        )

    def picked(self, kind: Literal["datasets", "arms"], names: Iterable[str]) -> tuple[str, ...]:
        """Return those of some datasets or arms that were asked for."""
        wanted = getattr(self, kind)
        return tuple(name for name in names if wanted is None or name in wanted)

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Request:
        """Return the request whose fields, as plain data, the store has kept."""
        lists = {
            k: None if options[k] is None else tuple(map(str, options[k]))
            for k in ("datasets", "arms")
        }
        return cls(options["scale"], options["budget"], options["seeds"], **lists)

    def arguments(self) -> str:
        """Return the options as they are typed, without those left at their defaults."""
        datasets, arms = (
            None if names is None else ",".join(names) for names in (self.datasets, self.arms)
        )
        given = {
            "scale": self.scale,
            "budget": self.budget,
            "seeds": self.seeds,
            "datasets": datasets,
            "arms": arms,
        }
        return " ".join(f"--{name} {value}" for name, value in given.items() if value is not None)
