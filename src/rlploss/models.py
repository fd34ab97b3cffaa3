"""Build networks: the four of section D.1 of the paper, a multilayer perceptron, and combinations
of networks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlploss._checks import count, one_of
from rlploss._torch import borrow_generators

Network = TypeVar("Network", bound=nn.Module)
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "logistic": nn.Sigmoid, "identity": nn.Identity}


def _head(output: str) -> dict[str, nn.Module]:
    """Return the layer after the last linear one: none, the paper's sigmoid, or a soft-max."""
    one_of("output", output, ("logits", "sigmoid", "softmax"))
    if output == "sigmoid":
        return {"sig1": nn.Sigmoid()}
    return {"softmax1": nn.Softmax(dim=-1)} if output == "softmax" else {}


class RegressionNet(nn.Sequential):
    """The regression network: d → 32 → ReLU → 1.

    Input [B, n_features], output [B, n_outputs].

    >>> RegressionNet(7)(torch.zeros(5, 7)).shape
    torch.Size([5, 1])
    """

    def __init__(self, n_features: int, n_outputs: int = 1, *, hidden: int = 32) -> None:
        first = nn.Linear(count("n_features", n_features), count("hidden", hidden))
        super().__init__(
            OrderedDict(
                fc1=first, relu1=nn.ReLU(), fc2=nn.Linear(hidden, count("n_outputs", n_outputs))
            )
        )


class Autoencoder(nn.Sequential):
    """The autoencoder: d → 32 → ReLU → d → sigmoid, on flattened images with pixels in [0, 1].

    Input and output [B, n_features].

    >>> Autoencoder(784)(torch.zeros(5, 784)).shape
    torch.Size([5, 784])
    """

    def __init__(self, n_features: int, *, latent: int = 32) -> None:
        first = nn.Linear(count("n_features", n_features), count("latent", latent))
        super().__init__(
            OrderedDict(
                fc1=first, relu1=nn.ReLU(), fc2=nn.Linear(latent, n_features), sig1=nn.Sigmoid()
            )
        )


class LeNet5(nn.Sequential):
    """LeNet-5 for ten classes: two 5×5 convolutions and three linear layers, tanh throughout,
    average pooling by 2.

    Input [B, 1, 32, 32] (28×28 digits are zero-padded by 2 on each side), output [B, 10]. `output`
    is what follows the last layer: `"logits"` for cross entropy, `"sigmoid"` in the paper's network
    for RLP, `"softmax"` in the released code for both losses.

    >>> LeNet5()(torch.zeros(5, 1, 32, 32)).shape
    torch.Size([5, 10])
    """

    def __init__(self, *, output: str = "logits") -> None:
        layers = OrderedDict(
            conv1=nn.Conv2d(1, 6, 5),
            tanh1=nn.Tanh(),
            pool1=nn.AvgPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            tanh2=nn.Tanh(),
            pool2=nn.AvgPool2d(2),
            flatten1=nn.Flatten(),
            fc1=nn.Linear(400, 120),
            tanh3=nn.Tanh(),
            fc2=nn.Linear(120, 84),
            tanh4=nn.Tanh(),
            fc3=nn.Linear(84, 10),
            **_head(output),
        )
        super().__init__(layers)


class MoonsNet(nn.Sequential):
    """The Moons classifier: 2 → 50 → ReLU → 50 → ReLU → 2.

    Input and output [B, 2]. `output` is what follows the last layer: `"logits"` for cross entropy,
    `"sigmoid"` in the paper's network for RLP and in the released code for both losses, `"softmax"`
    for a distribution.

    >>> MoonsNet(output="softmax")(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    def __init__(self, *, hidden: int = 50, output: str = "logits") -> None:
        first, second, last = (
            nn.Linear(2, count("hidden", hidden)),
            nn.Linear(hidden, hidden),
            nn.Linear(hidden, 2),
        )
        layers = OrderedDict(
            fc1=first, relu1=nn.ReLU(), fc2=second, relu2=nn.ReLU(), fc3=last, **_head(output)
        )
        super().__init__(layers)


class Skip(nn.Module):
    """A linear skip connection: the sum of a linear layer and a network."""

    def __init__(self, plane: nn.Linear, network: nn.Module) -> None:
        super().__init__()
        self.plane, self.network = plane, network

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.plane(x) + self.network(x)
        return out


class FromLogarithms(nn.Module):
    """Turns predictions of a target's standardised logarithm into predictions of the standardised
    target.

    Logarithms are clipped to [low, high] first. `log_mean` and `log_scale` standardise them, `mean`
    and `scale` the target.
    """

    NUMBERS = ("log_mean", "log_scale", "low", "high", "mean", "scale")

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        for name, number in zip(self.NUMBERS, numbers, strict=True):
            self.register_buffer(name, torch.tensor(number, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        log_mean, log_scale, low, high, mean, scale = self.buffers()
        return (torch.exp((x * log_scale + log_mean).clamp(low, high)) - mean) / scale


class WeightedMean(nn.Module):
    """The mean of k networks, weighted by weights [k] that sum to 1, in float64."""

    weights: Tensor

    def __init__(self, networks: Sequence[nn.Module], weights: Sequence[float]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float64))

    def each(self, x: Tensor) -> Tensor:
        """Return the predictions of every network [k, B, C]."""
        return torch.stack([network(x) for network in self.networks])

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("k,kbc->bc", self.weights, self.each(x))


PARTS: dict[str, Callable[..., nn.Module]] = {  # the layers of networks, by class name
    "ReLU": nn.ReLU,
    "Tanh": nn.Tanh,
    "Sigmoid": nn.Sigmoid,
    "Identity": nn.Identity,
    "Softmax": lambda: nn.Softmax(dim=-1),
    "Sequential": nn.Sequential,
    "Skip": Skip,
}


def take_apart(network: nn.Module) -> list[Any]:
    """Return a network as plain data: its kind, sizes, and parts.

    The weights are not included; they are in its `state_dict`.

    >>> take_apart(nn.Sequential(nn.Linear(2, 1), nn.ReLU()))
    ['Sequential', [], [['Linear', [2, 1], []], ['ReLU', [], []]]]
    """
    if isinstance(network, WeightedMean):
        return ["WeightedMean", [], [take_apart(part) for part in network.networks]]
    sizes: list[int] = []
    if isinstance(network, nn.Linear):
        sizes = [network.in_features, network.out_features]
    parts = [take_apart(part) for part in network.children()]
    return [type(network).__name__, sizes, parts]


def put_together(plan: Sequence[Any], weights: Mapping[str, Any]) -> nn.Module:
    """Return the network that `take_apart` described, in float64, with these weights."""

    def build(kind: str, sizes: Sequence[int], parts: Sequence[Any]) -> nn.Module:
        inner = [build(*part) for part in parts]
        if kind == "Linear":
            n_inputs, n_outputs = sizes
            return nn.Linear(n_inputs, n_outputs, device="meta")  # draws no weights
        if kind == "WeightedMean":
            return WeightedMean(inner, [0.0] * len(inner))
        if kind == "FromLogarithms":
            return FromLogarithms(*[0.0] * len(FromLogarithms.NUMBERS))
        return PARTS[kind](*inner)

    network = build(*plan)
    state = {name: torch.tensor(array, dtype=torch.float64) for name, array in weights.items()}
    network.load_state_dict(state, assign=True)
    return network


def seeded(factory: Callable[[], Network], seed: int) -> Network:
    """Build a module whose initial weights depend on `seed` only; global generators do not change.

    >>> a, b = (seeded(lambda: RegressionNet(3), 7) for _ in range(2))
    >>> torch.equal(a.fc1.weight, b.fc1.weight)
    True
    """
    seed = count("seed", seed, minimum=0)
    with borrow_generators():  # torch initialises on the CPU by default
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed other devices
        return factory()


def build_network(
    n_features: int,
    hidden_layer_sizes: Sequence[int],
    n_outputs: int,
    *,
    activation: str,
    softmax: bool,
    seed: int,
) -> nn.Sequential:
    """Build a multilayer perceptron whose initial weights depend on `seed` only.

    `softmax` turns its outputs into probabilities.
    """
    kind = ACTIVATIONS[one_of("activation", activation, ACTIVATIONS)]
    sizes = [n_features, *(count("hidden_layer_sizes", size) for size in hidden_layer_sizes)]

    def factory() -> nn.Sequential:
        hidden = [layer for sides in pairwise(sizes) for layer in (nn.Linear(*sides), kind())]
        return nn.Sequential(
            *hidden, nn.Linear(sizes[-1], n_outputs), *([nn.Softmax(dim=-1)] if softmax else [])
        )

    return seeded(factory, seed)
