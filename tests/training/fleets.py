"""What the tests of fleets share: small problems, and the comparison of a fleet with `fit`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlploss import Problem, RegressionNet, fit, fit_fleet, seeded

RLP = {"subset_size": 13, "n_subsets": 11}
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
    names = (
        "budget",
        "lr",
        "weight_decay",
        "subset_size",
        "n_subsets",
        "batch_size",
        "mixup_alpha",
        "ridge",
        "momentum",
    )
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
                np.testing.assert_allclose(
                    ours[name], theirs[name], rtol=1e-8, atol=tolerance, err_msg=f"{number} {name}"
                )
        assert ours.model is not None
        assert (ours.stopped, ours.best_step) == (theirs.stopped, theirs.best_step)
        for a, b in zip(ours.model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def replicas(n: int = 3, **settings: Any) -> list[Problem]:
    return [Problem(*data(i), validation=data(100 + i), seed=i, **settings) for i in range(n)]


class Gated(nn.Module):
    """Not a chain: goes the general way."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, 6), nn.Linear(D, 6)
        self.out = nn.Linear(6, 1)
        self.register_buffer("scale", torch.rand(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x) * torch.sigmoid(self.b(x))) * self.scale


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(3, 1))
