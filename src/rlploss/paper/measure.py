"""How a cell of the paper is worked: networks are trained, the propositions and other statements are measured.

Each measurement is a value with the paper's letters: d features, subsets of M rows, K subsets, N training rows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Any

import torch

from rlploss import theory
from rlploss.lab.results import CellResult, Tell, TrainedNetwork
from rlploss.lab.study import Cell, Part
from rlploss.lab.train import train as train_networks
from rlploss.loss.subsets import balanced_subsets

ROOT = __name__  # the code behind a number is what this module imports


@dataclass(frozen=True)
class Measured(Part):
    """The arm of cells in which nothing is trained."""

    name: str = "measured"
    protocol: str = "measured"


class Setting(Part):
    """What is measured, and for which sizes."""

    def measure(self, draws: int, generator: torch.Generator) -> dict[str, float]:
        """The measured numbers by name, from so many draws."""
        raise NotImplementedError

    def __str__(self) -> str:
        """`d = 5, M = 6`."""
        shown = fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        return ", ".join(f"{f.name} = {getattr(self, f.name)}" for f in shown)


@dataclass(frozen=True)
class Measurement(Part):
    """One measurement in several settings, each from so many draws."""

    name: str
    draws: int
    variants: tuple[Setting, ...]


@dataclass(frozen=True)
class NoiseFloor(Setting):
    """RLP at E[Y|X] with noisy labels."""

    d: int
    M: int

    def measure(self, draws: int, generator: torch.Generator) -> dict[str, float]:
        """The value, its standard error, and the formula."""
        floor = theory.measure_noise_floor(self.d, self.M, n_subsets=draws, generator=generator)
        return {"value": floor.mean, "error": floor.error, "exact": theory.noise_floor(self.d, self.M)}


@dataclass(frozen=True)
class ExcessLoss(Setting):
    """What another function than E[Y|X] costs; a share `atom` of the rows is at the origin."""

    d: int
    M: int
    atom: float

    def measure(self, draws: int, generator: torch.Generator) -> dict[str, float]:
        """The excess of a bent function and of a bump at the origin, with standard errors."""
        found: dict[str, float] = {}
        for key, deviation in (("bent", _bent), ("at_zero", _at_zero)):
            excess = theory.measure_excess(
                deviation, self.d, self.M, zero_share=self.atom, n_subsets=draws, generator=generator
            )
            found |= {key: excess.mean, f"{key}_error": excess.error}
        return found


def _bent(x: torch.Tensor) -> torch.Tensor:
    return 0.3 * x[:, 0] * x[:, 1] + 0.3 * x[:, 0].square()


def _at_zero(x: torch.Tensor) -> torch.Tensor:
    return (x == 0).all(dim=1).to(x.dtype)


@dataclass(frozen=True)
class ConditionThree(Setting):
    """Condition (iii) of Proposition 2, and its conclusion."""

    distribution: str
    d: int
    M: int

    def measure(self, draws: int, generator: torch.Generator) -> dict[str, float]:
        """Both sides of the condition, the curvatures, and which steps end nearer."""
        sizes = (self.distribution, self.d, self.M)
        condition = theory.measure_condition_three(*sizes, n_subsets=draws, generator=generator)
        steps = theory.compare_steps(*sizes, n_subsets=draws, generator=generator)
        return {
            "same": condition.same.mean,
            "different": condition.different.mean,
            "different_error": condition.different.error,
            "threshold": condition.threshold,
            "holds": condition.holds,
            "curvature_rlp": steps.curvature_rlp.mean,
            "curvature_mse": steps.curvature_mse.mean,
            "nearer": steps.nearer_for_small_steps,
            "good_step": steps.largest_good_step,
            "convergent_step": steps.largest_convergent_step,
        }


@dataclass(frozen=True)
class EmpiricalError(Setting):
    """How far the empirical loss of N rows is from Definition 2.2."""

    d: int
    N: int
    M: int
    samples: int

    def measure(self, draws: int, generator: torch.Generator) -> dict[str, float]:
        """The relative error over samples of N rows."""
        error = theory.empirical_error(self.N, self.d, self.M, n_samples=self.samples, generator=generator)
        return {"error": error}


@dataclass(frozen=True)
class SubsetCoverage(Setting):
    """Whether every row is in a subset, and no two subsets are equal."""

    N: int
    M: int
    K: int
    method: str

    def measure(self, draws: int, generator: torch.Generator) -> dict[str, float]:
        """Rows in no subset, equal subsets, and the least and most appearances of a row."""
        plan = balanced_subsets(self.N, self.M, self.K, method=self.method, generator=generator)
        seen = theory.coverage(plan, self.N)
        return {"missing": seen.missing_rows, "equal": seen.equal_pairs, "least": seen.least, "most": seen.most}


@dataclass(frozen=True)
class PlaneNullity(Setting):
    """In how many directions functions on N points may differ and share all planes; `zeros` rows are at the origin."""

    d: int
    N: int
    M: int
    zeros: int

    def measure(self, draws: int, generator: torch.Generator) -> dict[str, float]:
        """The number of directions."""
        x = theory.draw_features("gaussian", self.N, self.d, generator=generator)
        x[: self.zeros] = 0.0
        return {"nullity": theory.plane_nullity(x, self.M)}


def train(cell: Cell[Any, Any], tell: Tell) -> CellResult:
    """Train the networks of a cell, or take its measurements: every setting for every seed."""
    if not isinstance(cell.task, Measurement):
        return train_networks(cell, tell)
    started = time.perf_counter()
    found: list[TrainedNetwork] = []
    for index, seed in cell.keys:
        began = time.perf_counter()
        generator = torch.Generator().manual_seed(1_000_003 * seed + index)
        numbers = cell.task.variants[index].measure(cell.task.draws, generator)
        values = {key: float(value) for key, value in numbers.items()}
        found.append(TrainedNetwork(seed, index, {}, time.perf_counter() - began, values))
        tell(len(found) / len(cell.keys))
    return CellResult(tuple(found), "none", torch.get_num_threads(), time.perf_counter() - started)
