"""One network trained by several processes, with the weights that one process would give.

    torchrun --nproc-per-node 2 examples/ddp.py

Each process takes one subset per step, and DDP averages their gradients. One process that takes the
subsets of all in each step ends with the same weights, to rounding.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rlploss import BalancedBatchSampler, RegressionNet, RLPLoss, seeded


def table(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Five features and a nonlinear target."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 5, generator=g)
    return X, (X[:, :2].sin().sum(1) + X[:, 2] * X[:, 3]).unsqueeze(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--subsets", type=int, default=201, help="in an epoch, of all processes")
    parser.add_argument("--double", action="store_true", help="train in float64")
    parser.add_argument("--save", help="file for the weights")
    options = parser.parse_args()
    dtype = torch.float64 if options.double else torch.float32

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))

    X, y = (part.to(device, dtype) for part in table(2000, 0))
    net = seeded(lambda: RegressionNet(5), 0).to(device, dtype)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = RLPLoss()  # each batch is one subset
    sampler = BalancedBatchSampler(len(X), 50, options.subsets, rank=rank, world_size=world_size)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for step, rows in enumerate(sampler):
            optimizer.zero_grad()
            value = loss(model(X[rows]), y[rows], X[rows])
            # DDP averages over processes; in a short last step some of them have nothing to add
            (sampler.weights[step] * value).backward()
            optimizer.step()

    if rank == 0:
        X, y = (part.to(device, dtype) for part in table(500, 1))
        with torch.no_grad():
            error = (net(X) - y).square().mean()
        print(f"{world_size} processes, {options.epochs} epochs: test MSE {float(error):.6f}")
        if options.save:
            torch.save(net.state_dict(), options.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
