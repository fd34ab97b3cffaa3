"""Several processes in a loop of one's own train what one process would: real processes, started by
torchrun, that talk over gloo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlploss import (
    BalancedBatchSampler,
    Problem,
    RegressionNet,
    Steps,
    fit,
    fit_fleet,
    rlp_loss,
    seeded,
)

EXAMPLES = Path(__file__).parents[1] / "examples"
SUBSETS, EPOCHS = 7, 8  # the last step of an epoch is short for two processes, and for three


def torchrun(world, *command):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={world}",
            *map(str, command),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def alone(world):
    """The weights of one process that takes the subsets of all processes in each step."""
    import ddp

    X, y = (part.double() for part in ddp.table(2000, 0))
    net = seeded(lambda: RegressionNet(5), 0).double()
    start = {name: weight.clone() for name, weight in net.state_dict().items()}
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    plan = BalancedBatchSampler(len(X), 50, SUBSETS).subsets
    for _ in range(EPOCHS):
        for subsets in plan.split(world):
            optimizer.zero_grad()
            rlp_loss(net(X), y, X, subsets=subsets).backward()
            optimizer.step()
    return start, net.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_the_weights_of_the_example_are_those_of_one_process(world, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    path = tmp_path / "weights.pt"
    options = ["--double", "--epochs", EPOCHS, "--subsets", SUBSETS, "--save", path]
    assert f"{world} processes, {EPOCHS} epochs: test MSE" in torchrun(
        world, EXAMPLES / "ddp.py", *options
    )
    together = torch.load(path, weights_only=True)
    start, weights = alone(world)
    for name, weight in weights.items():
        assert (weight - start[name]).norm() > 1e-3, f"{name} has not moved"
        assert (together[name] - weight).norm() <= 1e-12 * weight.norm(), name


def test_fit_is_for_one_process(monkeypatch):
    """Under torchrun each process would train the whole network, with or without a process
    group."""
    X, y = torch.randn(9, 3), torch.randn(9)
    refused = pytest.raises(
        RuntimeError, match=r"fit trains in one process, got one of 2 .*examples/ddp\.py"
    )
    with monkeypatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        patch.setenv("TORCHELASTIC_RUN_ID", "none")
        with refused:
            fit(RegressionNet(3), X, y, budget=Steps(1))
        patch.setenv("WORLD_SIZE", "1")
        fit(RegressionNet(3), X, y, budget=Steps(1))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with refused:
        fit_fleet(lambda seed: RegressionNet(3), [Problem(X, y)], budget=Steps(1))
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    fit(RegressionNet(3), X, y, budget=Steps(1))
