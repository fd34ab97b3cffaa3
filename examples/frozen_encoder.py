"""RLP on the features of a frozen encoder: planes in 24 dimensions instead of 784 pixels, where RLP
would be MSE.

    python examples/frozen_encoder.py                    # some seconds, once MNIST is fetched
    python examples/frozen_encoder.py --data digits      # small images that come with scikit-learn

The encoder is the first half of an autoencoder, trained on images without labels. On its 24
features a head learns to tell the digits from few labelled images: with MSE and with RLP, from the
same start, with the same number of steps.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn

from rlploss import MSE, RLP, Adam, Problem, Steps, fit, fit_fleet, seeded
from rlploss.datasets import load, size_split

N_FEATURES = 24


def encoder(images: Tensor, steps: int) -> nn.Module:
    """Train an autoencoder and return its first half, frozen."""
    n = images.shape[1]
    network = seeded(
        lambda: nn.Sequential(nn.Linear(n, N_FEATURES), nn.Tanh(), nn.Linear(N_FEATURES, n)), 0
    )
    fit(network, images, None, MSE(batch_size=250), budget=Steps(steps), optimizer=Adam(2e-3))
    return network[:2].requires_grad_(False)


def head(seed: int) -> nn.Module:
    """A small network from features to ten classes."""
    return seeded(
        lambda: nn.Sequential(nn.Linear(N_FEATURES, 64), nn.ReLU(), nn.Linear(64, 10)), seed
    )


def main() -> None:
    """Print the test accuracy of both losses."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist", choices=("mnist", "digits"))
    parser.add_argument("--labelled", type=int, default=300, help="labelled images")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000, help="of every head")
    options = parser.parse_args()

    data = load(options.data)
    images = torch.tensor(data.X[:5000], dtype=torch.float32)
    encode = encoder(images / images.max(), options.steps)
    problems = []
    for seed in range(options.seeds):
        split = size_split(data, options.labelled, generator=np.random.default_rng(seed))
        x, y, x_test, y_test = split.tensors(dtype=torch.float32)
        features, tested = (encode(each / images.max()) for each in (x, x_test[:5000]))
        problems.append(Problem(features, y, validation=(tested, y_test[:5000]), seed=seed))
    print(
        f"{options.data}: {options.labelled} labelled images, {N_FEATURES} features,"
        f" {options.steps} steps"
    )
    sizes = (options.labelled // 3, options.labelled * 4 // 5)
    for objective in (MSE(batch_size="all"), *(RLP(subset_size=size) for size in sizes)):
        done = fit_fleet(
            head, problems, objective, budget=Steps(options.steps), optimizer=Adam(3e-3)
        )
        found = [history.last("accuracy") for history in done]
        print(f"{objective!s:28} test accuracy {np.mean(found):.4f} ± {np.std(found, ddof=1):.4f}")


if __name__ == "__main__":
    main()
