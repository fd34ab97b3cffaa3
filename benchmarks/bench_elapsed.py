"""What the paper's elapsed-time figure timed: its MSE loop fetches batches through a DataLoader,
its RLP loop walks through a list of them. Both loops here are written from that description."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import Row, at_least, at_most, paired, timed
from rlploss import RegressionNet, balanced_subsets

Batch = tuple[Tensor, Tensor]


def mse(h: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return nn.functional.mse_loss(h, y)


def rlp(h: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Two least-squares problems in every step, as the released code solves them."""
    planes = (x @ torch.linalg.lstsq(x, values).solution for values in (h, y))
    return nn.functional.mse_loss(*planes)


def endless(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Go through the batches again and again; a DataLoader shuffles each time."""
    while True:
        yield from batches


def loop(loss: Callable[..., Tensor], batches: Iterable[Batch], d: int) -> Callable[[], None]:
    """One optimiser step per call."""
    model = RegressionNet(d)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    source = endless(batches)

    def step() -> None:
        x, y = next(source)
        optimizer.zero_grad()
        loss(model(x), y, x).backward()
        optimizer.step()

    return step


def measure(quick: bool = False) -> list[Row]:
    """Compare the two loops as the figure does, and with the same way to their batches."""
    g, rows, d = torch.Generator().manual_seed(0), 10_320, 8  # half of California
    X, y = torch.randn(rows, d, generator=g), torch.randn(rows, 1, generator=g)
    plan = balanced_subsets(rows, 100, 2000, generator=g)
    subsets = [*zip(X[plan], y[plan], strict=True)]
    order = torch.randperm(rows, generator=g).split(100)
    listed = [(X[part], y[part]) for part in itertools.chain(order)]
    loader = DataLoader(TensorDataset(X, y), batch_size=100, shuffle=True)
    ours, plain, loaded = loop(rlp, subsets, d), loop(mse, listed, d), loop(mse, loader, d)
    rounds = 5 if quick else 21
    made: list[Row] = []
    for name, other, claim, limit in (
        ("RLP from a list / MSE through a DataLoader", loaded, at_most, 1.0),
        ("RLP from a list / MSE from a list", plain, at_least, 1.0),
    ):
        ratio, a, b = paired(ours, other, rounds=rounds, repeat=40)
        made.append(claim(f"a step: {name}", ratio, limit, f"{timed(a)} / {timed(b)}"))
    return made
