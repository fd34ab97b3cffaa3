"""RLP in a loop of Hugging Face Accelerate: the sampler deals out subsets, and the features of a
batch reach the loss.

python examples/with_accelerate.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from rlploss import BalancedBatchSampler, RegressionNet, RLPLoss, seeded


def train(epochs: int = 5) -> list[float]:
    """Mean loss of each epoch."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(600, 4, generator=g)
    y = X[:, :1].sin() + X[:, 1:2]
    accelerator = Accelerator()
    # one subset per batch; in several processes give the sampler rank= and world_size= and prepare
    # only the rest
    batches = BalancedBatchSampler(
        len(X), 50, 60, rank=accelerator.process_index, world_size=accelerator.num_processes
    )
    loader = DataLoader(TensorDataset(X, y), batch_sampler=batches)
    model = seeded(lambda: RegressionNet(4), 0)
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    loss = RLPLoss()
    means = []
    for _ in range(epochs):
        total = 0.0
        for x, target in loader:
            x, target = x.to(accelerator.device), target.to(accelerator.device)
            optimizer.zero_grad()
            value = loss(model(x), target, x)
            accelerator.backward(value)
            optimizer.step()
            total += value.item()
        means.append(total / len(loader))
    return means


if __name__ == "__main__":
    for epoch, mean in enumerate(train()):
        print(f"epoch {epoch}: RLP {mean:.5f}")
