"""The paper's networks: layer by layer what section D.1 says, and reproducible initial weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlploss.models import Autoencoder, LeNet5, MoonsNet, RegressionNet, seeded


def described(model: nn.Sequential) -> list[str]:
    """A layer list in the words of section D.1."""
    words = []
    for layer in model:
        if isinstance(layer, nn.Linear):
            words.append(f"linear {layer.in_features}-{layer.out_features}")
        elif isinstance(layer, nn.Conv2d):
            words.append(f"conv {layer.in_channels}-{layer.out_channels} {layer.kernel_size}")
        elif isinstance(layer, nn.AvgPool2d):
            words.append(f"average pool {layer.kernel_size}")
        else:
            words.append(type(layer).__name__.lower())
    return words


def test_regression_net_is_the_papers() -> None:
    assert described(RegressionNet(7)) == ["linear 7-32", "relu", "linear 32-1"]


def test_autoencoder_is_the_papers() -> None:
    assert described(Autoencoder(784)) == ["linear 784-32", "relu", "linear 32-784", "sigmoid"]


def test_lenet_is_the_papers() -> None:
    expected = [
        "conv 1-6 (5, 5)",
        "tanh",
        "average pool 2",
        "conv 6-16 (5, 5)",
        "tanh",
        "average pool 2",
        "flatten",
    ]
    expected += ["linear 400-120", "tanh", "linear 120-84", "tanh", "linear 84-10"]
    assert described(LeNet5()) == expected
    assert described(LeNet5(output="sigmoid")) == [*expected, "sigmoid"]
    assert LeNet5()(torch.zeros(3, 1, 32, 32)).shape == (3, 10)


def test_moons_net_is_the_papers() -> None:
    expected = ["linear 2-50", "relu", "linear 50-50", "relu", "linear 50-2"]
    assert described(MoonsNet()) == expected
    assert described(MoonsNet(output="sigmoid")) == [*expected, "sigmoid"]
    assert described(MoonsNet(output="softmax")) == [*expected, "softmax"]


def test_softmax_output_is_a_distribution_over_classes() -> None:
    probabilities = MoonsNet(output="softmax")(torch.randn(6, 2))
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(6))


def test_seeded_depends_on_the_seed_and_not_on_global_state() -> None:
    torch.manual_seed(1)
    first = seeded(lambda: RegressionNet(4), 3)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second, other = seeded(lambda: RegressionNet(4), 3), seeded(lambda: RegressionNet(4), 4)
    assert torch.equal(torch.get_rng_state(), before)
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.fc1.weight, other.fc1.weight)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RegressionNet(0), "n_features must be at least 1, got 0"),
        (
            lambda: LeNet5(output="sigmod"),
            "output must be one of .* got 'sigmod'; did you mean \"sigmoid\"",
        ),
        (lambda: seeded(lambda: RegressionNet(2), -1), "seed must be at least 0, got -1"),
    ],
)
def test_bad_sizes_are_named(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
