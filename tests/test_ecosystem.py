"""RLP beside the tools of PyTorch, as docs/loops.md has it; tests/loss compiles it,
test_distributed has DDP."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rlploss import RLP, RegressionNet, RLPLoss, Steps, fit, seeded

EXAMPLES = Path(__file__).parents[1] / "examples"
G = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=G)
Y = X.sum(1, keepdim=True).sin()


def grads(net, loss):
    for parameter in net.parameters():
        parameter.grad = None
    loss.backward()
    return torch.cat([p.grad.flatten().float() for p in net.parameters()])


def test_autocast_leaves_the_loss_in_float32():
    net = seeded(lambda: RegressionNet(4), 0)
    exact = RLPLoss()(net(X), Y, X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pred = net(X)
        assert pred.dtype == torch.bfloat16
        loss = RLPLoss()(pred, Y.to(pred), X)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(
        loss, RLPLoss()(pred.float(), Y.to(pred).float(), X), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(loss, exact, rtol=0.05, atol=0)
    slope = grads(net, loss)
    assert slope.isfinite().all()
    assert slope.norm() > 0


def test_a_trained_network_exports():
    net = seeded(lambda: RegressionNet(4), 0)
    fit(net, X, Y, RLP(20), budget=Steps(20), engine="torch")
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(net, (X,), dynamic_shapes=({0: rows},))
    for n in (3, 60):
        torch.testing.assert_close(program.module()(X[:n]), net(X[:n]))


FSDP = """
import sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from rlploss import RLPLoss, RegressionNet, Steps, fit, seeded

rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
g = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=g)
Y = X.sum(1, keepdim=True).sin()
plain, sharded = (seeded(lambda: RegressionNet(4), 0) for _ in range(2))
fully_shard(sharded, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
assert sharded.fc1.weight.to_local().shape == (16, 4), "half of the 32 rows"
batches = [(X[:30], Y[:30]), (X[30:], Y[30:])]  # of the two processes
losses = []
for net, mine in ((plain, batches), (sharded, [batches[rank]])):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.stack([RLPLoss()(net(x), y, x) for x, y in mine]).mean()
        loss.backward()  # gradients of shards are means over the processes
        optimizer.step()
    losses.append(loss.detach())
dist.all_reduce(losses[1])
torch.testing.assert_close(losses[1] / 2, losses[0])
for whole, shard in zip(plain.parameters(), sharded.parameters()):
    torch.testing.assert_close(shard.full_tensor(), whole)
try:
    fit(sharded, X, Y, budget=Steps(3))
except ValueError as error:
    assert "got sharded ones; train the module in a loop with RLPLoss" in str(error), error
    print("same")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_sharded_module_trains_like_a_plain_one(tmp_path):
    """Two processes with half of the parameters and of the rows each, and one with all of them."""
    words = [sys.executable, "-c", FSDP, str(tmp_path / "meet")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen([*words, str(rank)], env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes)
        for rank in (0, 1)
    ]
    try:
        said = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for out, errors in said:
        assert out.endswith("same\n"), errors[-2000:]


@pytest.mark.slow
def test_planes_in_the_features_of_a_frozen_encoder():
    options = ["--data", "digits", "--labelled", "150", "--seeds", "2", "--steps", "300"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "frozen_encoder.py"), *options],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if "test accuracy" in line]
    assert [line[:3] for line in lines] == ["MSE", "RLP", "RLP"]
    found = [float(line.split("accuracy")[1].split()[0]) for line in lines]
    assert min(found) > 0.5, "a head that has learned nothing has 0.1"
    assert np.ptp(found) < 0.4


def test_in_pixels_rlp_would_be_mse():
    pixels = torch.rand(100, 784, generator=G)
    pred, target = torch.randn(100, 10, generator=G), torch.randn(100, 10, generator=G)
    with pytest.warns(UserWarning, match="MSE"):
        loss = RLPLoss()(pred, target, pixels)
    torch.testing.assert_close(loss, nn.functional.mse_loss(pred, target))
