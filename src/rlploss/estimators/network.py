"""The networks of the estimators, and from raw columns to predictions as one `nn.Module`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from rlploss._checks import count, one_of
from rlploss.estimators.scaling import Array, Scaling
from rlploss.models import seeded

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "logistic": nn.Sigmoid,
    "identity": nn.Identity,
}
HEADS = ("regression", "logits", "probabilities")


def build_network(
    n_features: int, hidden_layer_sizes: Sequence[int], n_outputs: int, *, activation: str, softmax: bool, seed: int
) -> nn.Sequential:
    """A multilayer perceptron whose weights depend on `seed` only; `softmax` makes its outputs probabilities."""
    kind = ACTIVATIONS[one_of("activation", activation, ACTIVATIONS)]
    sizes = [n_features, *(count("hidden_layer_sizes", size) for size in hidden_layer_sizes)]

    def factory() -> nn.Module:
        layers: list[nn.Module] = []
        for inside, outside in pairwise(sizes):
            layers += [nn.Linear(inside, outside), kind()]
        layers.append(nn.Linear(sizes[-1], n_outputs))
        return nn.Sequential(*layers, *([nn.Softmax(dim=-1)] if softmax else []))

    network = seeded(factory, seed)
    assert isinstance(network, nn.Sequential)
    return network


class Predictor(nn.Module):
    """Predictions [B], [B, C], or class probabilities [B, C], from raw columns [B, d].

    `head` says what the network gives: "regression", "logits" or "probabilities". The type of the module decides
    the precision; inputs are converted to it.
    """

    x_mean: Tensor
    x_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor

    def __init__(self, network: nn.Module, scaling: Scaling, *, head: str, flat: bool) -> None:
        super().__init__()
        self.network = network
        self.head, self.flat = one_of("head", head, HEADS), flat
        for name in ("x_mean", "x_scale", "y_mean", "y_scale"):
            self.register_buffer(name, torch.tensor(getattr(scaling, name), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Predict."""
        out: Tensor = self.network((x.to(self.x_mean.dtype) - self.x_mean) / self.x_scale)
        if self.head == "regression":
            out = out * self.y_scale + self.y_mean
        elif self.head == "logits":
            out = out.softmax(-1)
        return out.squeeze(-1) if self.flat else out


class MeanNetwork(nn.Module):
    """The mean of several networks."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """Predict."""
        return torch.stack([network(x) for network in self.networks]).mean(0)


@torch.no_grad()
def predict_rows(module: nn.Module, X: Array, *, rows_at_once: int = 65_536) -> Array:
    """Run a module on an array, some rows at a time."""
    parts = [
        module(torch.tensor(X[i : i + rows_at_once], dtype=torch.float64)).numpy()
        for i in range(0, len(X), rows_at_once)
    ]
    return np.concatenate(parts)
