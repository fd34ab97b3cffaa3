"""What the tests of fleets share: small problems, and the comparison of a fleet with `fit`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlploss import History, Problem, RegressionNet, fit, fit_fleet, seeded

D = 4


def data(seed: int, n: int = 60, outputs: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, D, generator=generator, dtype=torch.float64)
    y = torch.sin(X @ torch.randn(D, outputs, generator=generator, dtype=torch.float64))
    return X, y + 0.1 * torch.randn(n, outputs, generator=generator, dtype=torch.float64)


def build(outputs: int = 1) -> Any:
    return lambda seed: seeded(lambda: RegressionNet(D, outputs, hidden=8), seed).double()


def bits(history: History) -> dict[str, Any]:
    """Everything that a run leaves behind but its seconds, so that equality is equality to the
    bit."""
    assert history.model is not None
    return {
        **{
            name: repr(column) for name, column in history.columns.items() if name != "seconds"
        },  # repr: nan is nan
        "stopped": history.stopped,
        "best_step": history.best_step,
        "engine": history.settings["engine"],
        "weights": [p.detach().numpy().tobytes() for p in history.model.parameters()],
    }


def check_against_fit(
    make: Any, problems: list[Problem], objective: Any, **settings: Any
) -> list[History]:
    """Run the fleet and each replica alone, and compare curves and weights to the bit."""
    fleet = fit_fleet(make, problems, objective, **settings)
    for number, (problem, ours) in enumerate(zip(problems, fleet, strict=True)):
        own = {name: getattr(problem, name) for name in ("objective", "optimizer", "budget")}
        mine = {
            "objective": objective,
            **settings,
            **{name: v for name, v in own.items() if v is not None},
        }
        model = make(problem.seed)
        theirs = fit(
            model,
            problem.X,
            problem.y,
            seed=problem.seed,
            validation=problem.validation,
            sample_weight=problem.sample_weight,
            **mine,
        )
        assert theirs.model is model
        assert bits(ours) == bits(theirs), number
    return fleet


def replicas(n: int = 3, **settings: Any) -> list[Problem]:
    return [Problem(*data(i), validation=data(100 + i), seed=i, **settings) for i in range(n)]


class Gated(nn.Module):
    """Not a chain: torch trains it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, 6), nn.Linear(D, 6)
        self.out = nn.Linear(6, 1)
        self.register_buffer("scale", torch.rand(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x) * torch.sigmoid(self.b(x))) * self.scale


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(3, 1)
    )
