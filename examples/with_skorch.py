"""RLP in skorch: its loss sees the batch's inputs in `get_loss`, which is what RLP needs.

python examples/with_skorch.py
"""

from __future__ import annotations

from typing import Any

import torch
from skorch import NeuralNetRegressor
from torch import Tensor, nn

from rlploss import RegressionNet, RLPLoss


class RLPNet(NeuralNetRegressor):
    """A skorch regressor whose criterion takes (pred, target, features)."""

    def get_loss(
        self, y_pred: Tensor, y_true: Tensor, X: Any = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Each batch is one subset; a last one with too few rows for a plane is scored by MSE."""
        if len(y_pred) <= X.shape[1] + 1:
            return nn.functional.mse_loss(y_pred, y_true)
        loss: Tensor = self.criterion_(y_pred, y_true, X.to(y_pred))
        return loss


def train(epochs: int = 10) -> list[float]:
    """Training loss of each epoch."""
    torch.manual_seed(0)
    X = torch.randn(600, 4)
    y = X[:, :1].sin() + X[:, 1:2]
    net = RLPNet(
        RegressionNet,
        module__n_features=4,
        criterion=RLPLoss,
        optimizer=torch.optim.Adam,
        lr=1e-2,
        batch_size=50,
        max_epochs=epochs,
        train_split=None,
        verbose=0,
    )
    net.fit(X.numpy(), y.numpy())
    losses: list[float] = net.history[:, "train_loss"]
    return losses


if __name__ == "__main__":
    for epoch, mean in enumerate(train()):
        print(f"epoch {epoch}: RLP {mean:.5f}")
