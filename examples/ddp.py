"""One network trained by several processes, with the weights that one process would give.

    torchrun --nproc-per-node 2 examples/ddp.py
    torchrun --nproc-per-node 2 examples/ddp.py --checkpoint run.pt      # killed? the same command goes on
    python examples/ddp.py                                               # one process: the same numbers

`fit` deals the subsets of each step to the processes. `--subsets-per-step` counts those of all processes, so the result
does not depend on how many there are. One process uses the torch engine too, as several do: the numbers are then the
same up to the order of sums.
"""

from __future__ import annotations

import argparse

import torch

from rlploss import RLP, Epochs, RegressionNet, distributed, fit, seeded


def table(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Five features and a nonlinear target."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 5, generator=g)
    return X, (X[:, :2].sin().sum(1) + X[:, 2] * X[:, 3]).unsqueeze(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--subsets-per-step", type=int, default=4)
    parser.add_argument("--checkpoint")
    parser.add_argument("--save", help="file for the weights")
    options = parser.parse_args()

    with distributed.start() as share:
        model = seeded(lambda: RegressionNet(5), 0)
        history = fit(
            model,
            *table(2000, 0),
            RLP(subset_size=50, n_subsets=200, subsets_per_step=options.subsets_per_step),
            budget=Epochs(options.epochs),
            validation=table(500, 1),
            checkpoint=options.checkpoint,
            engine="torch",
        )
        if share.rank == 0:
            print(
                f"{share.world} process(es): test MSE {history.last('mse'):.6f} after {history.last('step'):.0f} steps"
            )
            if options.save:
                torch.save(model.state_dict(), options.save)


if __name__ == "__main__":
    main()
