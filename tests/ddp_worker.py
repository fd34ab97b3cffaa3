"""What one of several processes does in the tests of distributed training; started by torchrun.

torchrun --nproc-per-node W ddp_worker.py OUT             every scenario; rank 0 writes OUT
torchrun --nproc-per-node W ddp_worker.py OUT --die STEP  rank 1 kills itself at this step
"""

import os
import signal
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rlploss import (
    MSE,
    RLP,
    SGD,
    Adam,
    BalancedBatchSampler,
    BatchLoss,
    CrossEntropy,
    Epochs,
    Huber,
    Pointwise,
    RegressionNet,
    RLPLoss,
    Steps,
    distributed,
    fit,
    rlp_loss,
    seeded,
)
from rlploss.training import loop

N, D = 90, 4


def cubed(pred, target):
    return (pred - target).abs() ** 3


# objectives of fit, given the number of processes; 50 steps each
FITS = {
    "rlp": lambda world: RLP(10, 24, subsets_per_step=world),  # what a distributed run takes by default
    "uneven": lambda world: RLP(10, 23, subsets_per_step=5),
    "one": lambda world: RLP(10, 24, subsets_per_step=1),
    "each epoch": lambda world: RLP(10, 24, subsets_per_step=5, plan="each-epoch"),
    "expected": lambda world: RLP(12, 24, probe="expected", subsets_per_step=4),
    "draw": lambda world: RLP(10, 24, probe="draw", ridge=0.1, subsets_per_step=3),
    "mixup": lambda world: RLP(10, 24, mixup=0.25, subsets_per_step=4),
    "paper": lambda world: RLP.paper(10, 24),
    "weighted": lambda world: RLP(10, 24, subsets_per_step=4),
    "mse": lambda world: MSE(7),
    "mse all": lambda world: MSE("all"),
    "mse mixup": lambda world: MSE(8, mixup=0.25),
    "mse weighted": lambda world: MSE(7),
    "huber": lambda world: Huber(1, delta=0.5),  # fewer rows than processes
    "pointwise": lambda world: Pointwise(cubed, 7),
    "pointwise weighted": lambda world: Pointwise(cubed, 7),
    "cross entropy": lambda world: CrossEntropy(7),
    "clipped": lambda world: RLP(10, 24, subsets_per_step=4),
}


def table(dtype):
    g = torch.Generator().manual_seed(1)
    X = torch.randn(N, D, generator=g, dtype=torch.float64) * torch.tensor([1.0, 3, 0.2, 1]) + 1
    return X.to(dtype), torch.sin(X).sum(1, keepdim=True).to(dtype)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double()


def fitted(name, dtype, world):
    """Weights and losses after 50 steps of `fit`."""
    settings = {"clip_grad": 0.01, "schedule": "cosine"} if name == "clipped" else {}
    if "weighted" in name:
        settings["sample_weight"] = torch.rand(N, generator=torch.Generator().manual_seed(2)) + 0.1
    X, y = table(dtype)
    classes = name == "cross entropy"
    model = seeded(lambda: RegressionNet(D, 3 if classes else 1), 0).to(dtype)
    y = (y.squeeze(1) > 1).long() + (y.squeeze(1) > 2).long() if classes else y
    history = fit(
        model, X, y, FITS[name](world), budget=Steps(50), optimizer=Adam(1e-2), seed=3, engine="torch", **settings
    )
    return {"weights": flat(model), "loss": torch.tensor(history.columns["loss"][1:])}


def sampled(dtype, reduction, share, probe="subset"):
    """Weights after a loop of one's own: sampler, DDP and RLPLoss; 50 steps, the last of each epoch short."""
    X, y = table(dtype)
    sampler = BalancedBatchSampler(N, 10, 7, rank=share.rank, world_size=share.world)
    model = seeded(lambda: RegressionNet(D), 0).to(dtype)
    wrapped = DistributedDataParallel(model) if share.world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = RLPLoss(probe=probe, reduction=reduction, intercept=True)
    steps = 0
    while steps < 50:
        for s, rows in enumerate(sampler):
            x = X[rows]
            points = distributed.moment_points(x[: len(x) if sampler.weights[s] else 0]).to(dtype)
            value = loss(wrapped(x), y[rows], x, points if probe == "expected" else None)
            factor = distributed.loss_scale(int(sampler.weights[s] > 0), reduction=reduction)
            optimizer.zero_grad()
            (value * factor).backward()
            optimizer.step()
            steps += 1
            if steps == 50:
                break
    return flat(model)


def sampled_alone(dtype, reduction, world, probe="subset"):
    """The same by one process that has the subsets of all."""
    X, y = table(dtype)
    plan = BalancedBatchSampler(N, 10, 7).subsets
    model = seeded(lambda: RegressionNet(D), 0).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    groups = [plan[i : i + world] for i in range(0, 7, world)]
    for step in range(50):
        subsets = groups[step % len(groups)]
        rows = subsets.flatten()
        local = torch.arange(rows.numel()).view(subsets.shape)
        optimizer.zero_grad()
        rlp_loss(
            model(X[rows]), y[rows], X[rows], subsets=local, probe=probe, reduction=reduction, intercept=True
        ).backward()
        optimizer.step()
    return flat(model)


def scenarios(share, world):
    found = {}
    for dtype in (torch.float32, torch.float64):
        for name in FITS:
            found[f"fit {name} {dtype}"] = fitted(name, dtype, world)
        for reduction in ("mean", "sum"):
            for probe in ("subset", "expected"):
                if share is None:
                    weights = sampled_alone(dtype, reduction, world, probe)
                else:
                    weights = sampled(dtype, reduction, share, probe)
                found[f"sampler {reduction} {probe} {dtype}"] = {"weights": weights}
    return found


def moments(share):
    """Standardisation of uneven shards: rank r has its own part of the rows."""
    X = table(torch.float64)[0]
    mine = X[: 7 if share.rank == 0 else 0] if share.rank < 1 else X[7 + 1000 * (share.rank - 1) :][:1000]
    mean, std = distributed.mean_and_std(mine)
    return {"mean": mean, "std": std, "points": distributed.moment_points(mine)}


def refusals(share):
    """Messages of what cannot work."""
    X, y = table(torch.float32)
    found = []

    def attempt(model, X, objective=RLP(10, 8), **settings):  # noqa: B008 - a frozen value
        try:
            fit(model, X, y, objective, budget=Steps(2), **settings)
        except ValueError as error:
            found.append(str(error))

    attempt(RegressionNet(D), X + share.rank)
    attempt(RegressionNet(D), X, seed=share.rank)
    attempt(nn.Sequential(nn.Linear(D, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)), X)
    attempt(DistributedDataParallel(RegressionNet(D)), X)
    attempt(RegressionNet(D), X, RLP.released(10, 8, float32_cutoff=True))
    attempt(RegressionNet(D), X, BatchLoss(RLPLoss()))
    attempt(RegressionNet(D), X, engine="kernel")
    attempt(RegressionNet(D), X, MSE(7 + share.rank))
    stopped = fit(
        RegressionNet(D),
        X,
        y,
        RLP(10, 8),
        budget=Epochs(9),
        callbacks=[lambda event: share.rank == share.world - 1 and event.step > 3],
    )
    return found, stopped.stopped, stopped.last("step"), stopped.settings["engine_reason"]


def overflow(path):
    """A run whose first update overflows while rank 0, whose clock of checkpoints has run out, ends its stretch."""
    X, y = table(torch.float32)
    seconds, loop.CHECKPOINT_SECONDS = loop.CHECKPOINT_SECONDS, 0.0
    settings = {"optimizer": SGD(1e30), "on_divergence": "record", "checkpoint": path}
    history = fit(seeded(lambda: nn.Linear(D, 1), 0), X, y * 1e10, MSE(4), budget=Steps(9), **settings)
    loop.CHECKPOINT_SECONDS = seconds
    return history.stopped, history.message


def main():
    out = sys.argv[1]
    with distributed.start() as share:
        if "--die" in sys.argv:
            at = int(sys.argv[sys.argv.index("--die") + 1])

            def die(event):
                if event.step >= at and share.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)

            X, y = table(torch.float64)
            model = seeded(lambda: RegressionNet(D), 0).double()
            fit(
                model,
                X,
                y,
                RLP(10, 24, subsets_per_step=4),
                budget=Epochs(20),
                checkpoint=out,
                checkpoint_every=Steps(10),
                callbacks=[die],
            )
            return
        found = scenarios(share, share.world)
        found["moments"] = moments(share)
        found["refusals"] = refusals(share)
        found["overflow"] = overflow(f"{out}.checkpoint")
        if share.rank == 0:
            torch.save(found, out)


if __name__ == "__main__":
    main()
