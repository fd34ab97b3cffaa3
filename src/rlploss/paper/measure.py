"""The propositions and the other statements that need no training, as cells of their own."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from rlploss import _checks, theory
from rlploss.lab.results import CellResult, Run, Tell
from rlploss.lab.study import Arm, Budget, Cell, Scalar, Settings, Task, settings
from rlploss.loss.subsets import balanced_subsets
from rlploss.paper.request import Request

MEASURES = ("floor", "excess", "condition", "empirical", "coverage", "planes")


def cells(request: Request) -> list[Cell]:
    """One cell per measure; `smoke` draws less."""
    draws = 1_000 if request.scale == "smoke" else 20_000
    samples = 4 if request.scale == "smoke" else 30
    variants: dict[str, list[dict[str, Scalar]]] = {
        "floor": [{"d": 5, "M": m} for m in (6, 7, 8, 10, 15, 25, 50, 100)],
        "excess": [{"d": 2, "M": 12, "atom": share} for share in (0.0, 0.2)],
        "condition": [
            {"distribution": name, "d": d, "M": m}
            for name in theory.DISTRIBUTIONS
            for d, m in ((1, 2), (1, 8), (2, 4), (5, 20))
        ],
        "empirical": [{"d": 2, "M": 12, "N": n, "samples": samples} for n in (40, 160, 640, 2560)],
        "coverage": [
            {"N": n, "M": m, "K": k, "method": method}
            for n, m, k in ((103, 100, 2), (199, 100, 3), (3248, 100, 1000))
            for method in ("paper", "balanced")
        ],
        "planes": [
            {"N": 8, "d": 2, "M": 3, "zeros": 0},
            {"N": 8, "d": 2, "M": 3, "zeros": 1},
            {"N": 8, "d": 2, "M": 8, "zeros": 0},
        ],
    }
    arm = Arm("measured", "measure", "measured")
    return [
        Cell(
            arm,
            Task(name, settings({"measure": name, "draws": draws}), tuple(settings(v) for v in variants[name])),
            Budget("steps", 1),
            request.seeds_for("regression")[:3],
        )
        for name in MEASURES
    ]


def measure(cell: Cell, tell: Tell) -> CellResult:
    """Measure every variant for every seed; each value is a curve of one point."""
    started = time.perf_counter()
    name = _checks.one_of("measure", cell.task.get("measure"), MEASURES)
    draws = _checks.count("draws", cell.task.get("draws"))
    runs: list[Run] = []
    for index, variant in enumerate(cell.task.variants):
        for seed in cell.seeds:
            began = time.perf_counter()
            generator = torch.Generator().manual_seed(1_000_003 * seed + index)
            values = _one(name, dict(variant), draws, generator)
            curve = {"step": [0.0], **{key: [float(value)] for key, value in values.items()}}
            runs.append(Run(seed, index, curve, time.perf_counter() - began))
        tell((index + 1) / len(cell.task.variants))
    return CellResult(tuple(runs), "plain", torch.get_num_threads(), time.perf_counter() - started)


def _one(name: str, v: Mapping[str, Scalar], draws: int, generator: torch.Generator) -> dict[str, float]:
    def whole(key: str) -> int:
        return _checks.count(key, v[key], minimum=0)

    if name == "coverage":
        method = str(v["method"])
        plan = balanced_subsets(whole("N"), whole("M"), whole("K"), method=method, generator=generator)
        seen = theory.coverage(plan, whole("N"))
        return {"missing": seen.missing_rows, "equal": seen.equal_pairs, "least": seen.least, "most": seen.most}
    d, M = whole("d"), whole("M")
    if name == "floor":
        floor = theory.measure_noise_floor(d, M, n_subsets=draws, generator=generator)
        return {"value": floor.mean, "error": floor.error, "exact": theory.noise_floor(d, M)}
    if name == "excess":
        atom = _checks.number("atom", v["atom"], 0.0, 1.0)
        found: dict[str, float] = {}
        for key, deviation in (("bent", _bent), ("at_zero", _at_zero)):
            excess = theory.measure_excess(deviation, d, M, zero_share=atom, n_subsets=draws, generator=generator)
            found |= {key: excess.mean, f"{key}_error": excess.error}
        return found
    if name == "condition":
        kind = str(v["distribution"])
        condition = theory.measure_condition_three(kind, d, M, n_subsets=draws, generator=generator)
        steps = theory.compare_steps(kind, d, M, n_subsets=draws, generator=generator)
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
    if name == "empirical":
        error = theory.empirical_error(whole("N"), d, M, n_samples=whole("samples"), generator=generator)
        return {"error": error}
    x = theory.draw_features("gaussian", whole("N"), d, generator=generator)
    x[: whole("zeros")] = 0.0
    return {"nullity": theory.plane_nullity(x, M)}


def _bent(x: torch.Tensor) -> torch.Tensor:
    return 0.3 * x[:, 0] * x[:, 1] + 0.3 * x[:, 0].square()


def _at_zero(x: torch.Tensor) -> torch.Tensor:
    return (x == 0).all(dim=1).to(x.dtype)


def variant_words(variant: Settings) -> str:
    """`d = 5, M = 6`."""
    return ", ".join(f"{key} = {value}" for key, value in variant)
