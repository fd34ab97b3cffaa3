"""On a GPU everything gives what it gives on the CPU, to rounding. These tests run only where there
is a GPU."""

import pytest
import torch
from tests.close import assert_close

from rlploss import (
    MSE,
    RLP,
    Adam,
    ProjectionBank,
    RegressionNet,
    Steps,
    balanced_subsets,
    fit,
    rlp_loss,
    seeded,
)

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: torch.cuda.is_available() is False"
)

CUDA = "cuda"


def table():
    X = torch.randn(120, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return X, torch.sin(X).sum(1, keepdim=True)


@pytest.mark.parametrize(
    "objective",
    [
        MSE(30),
        RLP(20, 12),  # kept factors
        RLP(20, 12, plan="each-epoch"),
        RLP(20, 12, mixup=0.3),
        RLP(20, 12, probe="draw"),
        RLP.paper(20, 12),
    ],
    ids=repr,
)
def test_fit_gives_what_it_gives_on_the_cpu(objective):
    X, y = table()
    found = {}
    for device in ("cpu", CUDA):
        net = seeded(lambda: RegressionNet(4), 0).double()
        history = fit(
            net,
            X[:80],
            y[:80],
            objective,
            budget=Steps(50),
            optimizer=Adam(1e-2),
            validation=(X[80:], y[80:]),
            device=device,
            engine="torch",
        )
        assert next(net.parameters()).device.type == device
        found[device] = (
            torch.cat([p.detach().cpu().flatten() for p in net.parameters()]),
            history["mse"],
        )
    for on_cpu, on_gpu in zip(found["cpu"], found[CUDA], strict=True):
        assert_close(on_gpu, on_cpu, 1e-8)


def test_auto_takes_torch_there_and_says_why():
    X, y = table()
    history = fit(RegressionNet(4).to(CUDA), X.float(), y.float(), budget=Steps(3))
    assert history.settings["engine"] == "torch"
    assert "the network is on cuda" in history.settings["engine_reason"]


def value_and_gradient(loss, pred):
    leaf = pred.clone().requires_grad_()
    value = loss(leaf)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach().cpu(), gradient.cpu()


@pytest.mark.parametrize("probe", ["subset", "draw", "expected", "sum"])
def test_the_loss_and_the_bank(probe):
    X, y = table()
    pred, plan = (
        y + X[:, :1] ** 2,
        balanced_subsets(120, 20, 12, generator=torch.Generator().manual_seed(1)),
    )
    points = X[:12] if probe == "draw" else None
    found = []
    for device in ("cpu", CUDA):
        x, target, subsets = X.to(device), y.to(device), plan.to(device)
        z = None if points is None else points.to(device)

        def plain(leaf, x=x, target=target, subsets=subsets, z=z):
            return rlp_loss(leaf, target, x, subsets=subsets, probe=probe, probe_points=z)

        bank = ProjectionBank(x, subsets, probe=probe)
        if z is not None:
            bank.redraw(z)
        kept = value_and_gradient(
            lambda leaf, bank=bank, target=target: bank.loss(leaf, target), pred.to(device)
        )
        found.append([*value_and_gradient(plain, pred.to(device)), *kept])
    for on_cpu, on_gpu in zip(*found, strict=True):
        assert_close(on_gpu, on_cpu)


def test_autocast_is_left_inside_the_loss():
    X, y = (part.float().to(CUDA) for part in table())
    pred = y + X[:, :1] ** 2
    plan = balanced_subsets(120, 20, 12, generator=torch.Generator().manual_seed(1)).to(CUDA)
    bank = ProjectionBank(X, plan)
    expected = rlp_loss(pred, y, X, subsets=plan), bank.loss(pred, y)
    with torch.autocast(CUDA, torch.bfloat16):
        found = rlp_loss(pred, y, X, subsets=plan), bank.loss(pred, y)
    for here, there in zip(found, expected, strict=True):
        assert here.dtype == torch.float32
        assert_close(here.cpu(), there.cpu(), dtype=torch.float32)
