"""How a cell of the paper is worked: networks are trained, the propositions and other statements
are measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from rlploss import _checks, theory
from rlploss.lab import train as lab_train
from rlploss.lab.study import Cell, CellResult, Part, Tell, TrainedNetwork
from rlploss.loss.subsets import balanced_subsets

DECIDING = (*lab_train.DECIDING, "theory.py", "paper/measure.py")  # files that decide a number
TS = (-1.0, -0.5, -0.3, 0.3, 0.5, 1.0)  # where RLP is looked at along h* + tδ


@dataclass(frozen=True)
class Measured(Part):
    """The arm of cells in which nothing is trained."""

    name: str = "measured"
    protocol: str = "measured"


@dataclass(frozen=True)
class Setting(Part):
    """Sizes of a measurement in the paper's letters; those that play no part are left out.

    `atom` is the share of rows at the origin, `zeros` their number, `samples` the number of samples
    of N rows.
    """

    distribution: str = ""
    d: int = 0
    N: int = 0
    M: int = 0
    K: int = 0
    method: str = ""
    atom: float = 0.0
    zeros: int = 0
    samples: int = 0

    def __str__(self) -> str:
        """Return `d = 5, M = 6`."""
        return ", ".join(f"{f.name} = {v}" for f in fields(self) if (v := getattr(self, f.name)))


@dataclass(frozen=True)
class Measurement(Part):
    """A measure (a key of MEASURES) in several settings, each from so many draws."""

    name: str
    measure: str
    draws: int
    variants: tuple[Setting, ...]
    dataset, model = "", "measured"  # of no training

    def __post_init__(self) -> None:
        _checks.one_of("measure", self.measure, MEASURES)


def floor(at: Setting, draws: int, generator: torch.Generator) -> dict[str, float]:
    """Measure RLP at E[Y|X] with noisy labels, and the formula for it."""
    measured = theory.measure_noise_floor(at.d, at.M, n_subsets=draws, generator=generator)
    return {
        "value": measured.mean,
        "error": measured.error,
        "exact": theory.noise_floor(at.d, at.M),
    }


def valley(at: Setting, draws: int, generator: torch.Generator) -> dict[str, float]:
    """Measure RLP along h* + tδ above its value at t = 0, and where it is lowest, with noise whose
    variance depends on x.

    δ is a bent function, or, where rows lie at the origin, a bump there.
    """

    def deviation(x: Tensor) -> Tensor:
        return (x == 0).all(dim=1).to(x.dtype) if at.atom else 0.6 * x[:, 0] * (x[:, 0] + x[:, 1])

    measured = theory.measure_valley(
        deviation,
        at.d,
        at.M,
        at=TS,
        noise=lambda x: 0.5 + x[:, 0].abs(),
        zero_share=at.atom,
        n_subsets=draws,
        generator=generator,
    )
    rises = {
        f"{key} {t:g}": getattr(e, key)
        for t, e in measured.rises.items()
        for key in ("mean", "error")
    }
    return rises | {"lowest": measured.lowest.mean, "lowest_error": measured.lowest.error}


def condition(at: Setting, draws: int, generator: torch.Generator) -> dict[str, float]:
    """Measure both sides of condition (iii) of Proposition 2, the curvatures, and which steps end
    nearer.
    """
    measured = theory.measure_condition_three(
        at.distribution, at.d, at.M, n_subsets=draws, generator=generator
    )
    steps = theory.compare_steps(at.distribution, at.d, at.M, n_subsets=draws, generator=generator)
    return {
        "different": measured.different.mean,
        "threshold": measured.threshold,
        "holds": measured.holds,
        "curvature_rlp": steps.curvature.mean,
        "curvature_mse": 1.0,
        "nearer": steps.nearer_for_small_steps,
        "good_step": steps.largest_good_step,
        "convergent_step": steps.largest_convergent_step,
    }


def empirical(at: Setting, draws: int, generator: torch.Generator) -> dict[str, float]:
    """Measure how far the empirical loss of N rows is from Definition 2.2, relative to it."""
    return {
        "error": theory.empirical_error(at.N, at.d, at.M, n_samples=at.samples, generator=generator)
    }


def coverage(at: Setting, draws: int, generator: torch.Generator) -> dict[str, float]:
    """Count rows in no subset, equal subsets, and the least and most appearances of a row."""
    plan = balanced_subsets(at.N, at.M, at.K, method=at.method, generator=generator)
    return dict(theory.coverage(plan, at.N))


def planes(at: Setting, draws: int, generator: torch.Generator) -> dict[str, float]:
    """Count in how many directions functions on N points may differ and share all planes."""
    x = theory.draw_features("gaussian", at.N, at.d, generator=generator)
    x[: at.zeros] = 0.0
    return {"nullity": theory.plane_nullity(x, at.M)}


MEASURES: dict[str, Callable[[Setting, int, torch.Generator], dict[str, float]]] = {
    "floor": floor,
    "valley": valley,
    "condition": condition,
    "empirical": empirical,
    "coverage": coverage,
    "planes": planes,
}


def train(cell: Cell[Any, Any], tell: Tell) -> CellResult:
    """Train the networks of a cell, or take its measurements: every setting for every seed."""
    if not isinstance(cell.task, Measurement):
        return lab_train.train(cell, tell)
    started = time.perf_counter()
    networks: list[TrainedNetwork] = []
    for index, seed in cell.keys:
        began = time.perf_counter()
        generator = torch.Generator().manual_seed(1_000_003 * seed + index)
        numbers = MEASURES[cell.task.measure](cell.task.variants[index], cell.task.draws, generator)
        values = {key: float(value) for key, value in numbers.items()}
        networks.append(TrainedNetwork(seed, index, {}, time.perf_counter() - began, values))
        tell(len(networks) / len(cell.keys))
    return CellResult(
        tuple(networks), "none", torch.get_num_threads(), time.perf_counter() - started
    )
