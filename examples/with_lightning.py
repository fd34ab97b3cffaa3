"""RLP in Lightning: the sampler is ours, so Lightning must not replace it
(`use_distributed_sampler=False`).

python examples/with_lightning.py
"""

from __future__ import annotations

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from rlploss import BalancedBatchSampler, RegressionNet, RLPLoss


class Regression(lightning.LightningModule):
    """A network and the loss."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.network, self.loss = RegressionNet(n_features), RLPLoss()
        self.means: list[float] = []
        self._values: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """One subset."""
        x, target = batch
        value: Tensor = self.loss(self.network(x), target, x)
        self._values.append(value.item())
        return value

    def on_train_epoch_end(self) -> None:
        """Keep the mean of the epoch."""
        self.means.append(sum(self._values) / len(self._values))
        self._values.clear()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def train(epochs: int = 5) -> list[float]:
    """Mean loss of each epoch."""
    lightning.seed_everything(0, verbose=False)
    X = torch.randn(600, 4)
    y = X[:, :1].sin() + X[:, 1:2]
    loader = DataLoader(TensorDataset(X, y), batch_sampler=BalancedBatchSampler(len(X), 50, 60))
    module = Regression(4)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    return module.means


if __name__ == "__main__":
    for epoch, mean in enumerate(train()):
        print(f"epoch {epoch}: RLP {mean:.5f}")
