"""Where torch takes over from the kernel: seconds of a step by both engines over sizes of networks
and batches.

The rule of engine="auto" (`MOST_PRODUCTS` and `MOST_PARAMETERS` in training/kernel_engine.py) is
read off this table. Torch has all threads for one network; the kernel has one, and a fleet gives
every thread a network of its own."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from benchmarks.common import Row, at_most
from rlploss import MSE, Adam, Steps, fit, seeded
from rlploss.training.kernel_engine import MOST_PARAMETERS, MOST_PRODUCTS

SIZES = (
    ((8, 32, 1), 100),
    ((8, 32, 1), 1000),
    ((11, 50, 50, 1), 100),
    ((10, 100, 1), 200),
    ((16, 128, 128, 1), 100),
    ((16, 256, 256, 1), 100),
    ((16, 256, 256, 1), 1000),
    ((16, 512, 512, 1), 100),
    ((16, 512, 512, 1), 1000),
    ((16, 1024, 1024, 1), 100),
    ((784, 32, 784), 10),
    ((784, 32, 784), 1000),
)


def network(widths: tuple[int, ...]) -> nn.Module:
    """A chain with ReLU between its layers."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return seeded(lambda: nn.Sequential(*layers[:-1]), 0)


def seconds(widths: tuple[int, ...], batch: int, engine: str, rounds: int) -> float:
    """Seconds of a step, the lowest of some rounds."""
    X = torch.randn(2000, widths[0], generator=torch.Generator().manual_seed(0))
    y = X[:, :1] if widths[-1] == 1 else X
    parameters = sum(p.numel() for p in network(widths).parameters())
    steps = int(min(2000, max(20, 1e9 / (3 * batch * parameters))))
    found = []
    for _ in range(rounds):
        settings = {
            "budget": Steps(steps),
            "evaluate_every": Steps(steps),
            "optimizer": Adam(1e-4),
            "engine": engine,
        }
        found.append(fit(network(widths), X, y, MSE(batch), **settings).last("seconds") / steps)
    return min(found)


def costs(quick: bool = False) -> list[Row]:
    """Both engines over the sizes, and what "auto" takes."""
    rows: list[Row] = []
    for widths, batch in SIZES[:4] if quick else SIZES:
        kernel, by_torch = (seconds(widths, batch, engine, 3) for engine in ("kernel", "torch"))
        parameters = sum(p.numel() for p in network(widths).parameters())
        products = 3 * batch * parameters
        chosen = (
            "kernel" if products <= MOST_PRODUCTS and parameters <= MOST_PARAMETERS else "torch"
        )
        rows.append(
            {
                "network": "-".join(map(str, widths)),
                "rows": batch,
                "products": f"{products:.1e}",
                "kernel µs": kernel * 1e6,
                "torch µs": by_torch * 1e6,
                "torch / kernel": by_torch / kernel,
                "auto": chosen,
            }
        )
    return rows


def measure(quick: bool = False) -> list[Row]:
    """Auto never takes an engine that is more than half again as slow as the other."""
    worst, where = 0.0, ""
    for widths, batch in SIZES[:4] if quick else SIZES:
        kernel, by_torch = (seconds(widths, batch, engine, 3) for engine in ("kernel", "torch"))
        auto = seconds(widths, batch, "auto", 3)
        lost = auto / min(kernel, by_torch)
        if lost > worst:
            worst, where = lost, f"{'-'.join(map(str, widths))}, {batch} rows"
    return [at_most('engine="auto" / the faster engine, the worst of all sizes', worst, 1.5, where)]
