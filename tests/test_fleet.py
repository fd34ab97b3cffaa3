"""A fleet gives what `fit` gives, replica by replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlploss import Epochs, MoonsNet, Problem, RegressionNet, Steps, fit, fit_fleet, seeded

D = 4


def data(seed: int, n: int = 60, outputs: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, D, generator=generator, dtype=torch.float64)
    y = torch.sin(X @ torch.randn(D, outputs, generator=generator, dtype=torch.float64))
    return X, y + 0.1 * torch.randn(n, outputs, generator=generator, dtype=torch.float64)


def build(outputs: int = 1) -> Any:
    return lambda seed: seeded(lambda: RegressionNet(D, outputs, hidden=8), seed).double()


def check_against_fit(
    make: Any, problems: list[Problem], objective: str, tolerance: float = 1e-10, **settings: Any
) -> None:
    """Run the fleet and each replica alone, and compare curves and weights."""
    own = ("stack", "compile")
    fleet = fit_fleet(make, problems, objective, **settings)
    alone = {k: v for k, v in settings.items() if k not in own}
    names = ("budget", "lr", "weight_decay", "subset_size", "n_subsets", "batch_size", "mixup_alpha", "ridge", "momentum")
    for number, (problem, ours) in enumerate(zip(problems, fleet, strict=True)):
        model = make(problem.seed)
        mine = {**alone, **{n: getattr(problem, n) for n in names if getattr(problem, n) is not None}}
        theirs = fit(
            model,
            problem.X,
            problem.y,
            objective,
            seed=problem.seed,
            validation=problem.validation,
            sample_weight=problem.sample_weight,
            **mine,
        )
        assert list(ours.columns) == list(theirs.columns), number
        for name in ours.columns:
            if name != "seconds":
                np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-8, atol=tolerance, err_msg=f"{number} {name}")
        assert ours.model is not None
        assert (ours.stopped, ours.best_step) == (theirs.stopped, theirs.best_step)
        for a, b in zip(ours.model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def replicas(n: int = 3, **settings: Any) -> list[Problem]:
    return [Problem(*data(i), validation=data(100 + i), seed=i, **settings) for i in range(n)]


RLP = {"subset_size": 13, "n_subsets": 11}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mse": ("mse", {"batch_size": 17}),
    "mse full batch": ("mse", {"batch_size": 60}),
    "mae": ("mae", {"batch_size": 17}),
    "huber": ("huber", {"batch_size": 17, "optimizer": "adamw", "weight_decay": 0.1}),
    "mse+mixup": ("mse+mixup", {"batch_size": 17}),
    "default": ("rlp", RLP),
    "released": ("rlp", {"preset": "released", **RLP}),
    "paper": ("rlp", {"preset": "paper", **RLP}),
    "draw each epoch": ("rlp", {"probe": "draw", "plan": "each-epoch", "draw_from": "outside", **RLP}),
    "expected": ("rlp", {"probe": "expected", "ridge": 0.1, **RLP}),
    "sum": ("rlp", {"probe": "sum", **RLP}),
    "3 subsets per step": ("rlp", {"subsets_per_step": 3, **RLP}),
    "quadratic form": ("rlp", {"subsets_per_step": "all", "subset_size": 50, "n_subsets": 90}),
    "complement": ("rlp", {"subset_size": 8, "n_subsets": 11}),
    "rlp+mixup": ("rlp+mixup", RLP),
    "rlp+mixup each epoch": ("rlp+mixup", {"plan": "each-epoch", **RLP}),
}


@pytest.mark.parametrize("case", CASES)
def test_fleet_equals_fit(case: str) -> None:
    objective, settings = CASES[case]
    check_against_fit(build(), replicas(), objective, budget=Steps(60), evaluate_every=Steps(25), lr=0.01, **settings)
