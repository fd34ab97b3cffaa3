"""The objective `TwoSpeed`: both engines against the loss, its ends, weights, batches and fleets."""

import json

import numpy as np
import pytest
import torch
from tests.close import assert_close
from torch import nn

from rlploss import (
    MSE,
    RLP,
    SGD,
    Epochs,
    Problem,
    Steps,
    TwoSpeed,
    fit,
    fit_fleet,
    kappa,
    seeded,
    two_speed_loss,
)
from rlploss._values import from_json
from rlploss.training.feed import make_feed
from rlploss.training.job import make_job

N, D, C = 40, 3, 2
pytestmark = pytest.mark.filterwarnings("ignore::rlploss.DegenerateLossWarning")


@pytest.fixture(params=["torch", "kernel"])
def engine(request):
    return request.param


def net(dtype=torch.float64):
    return seeded(lambda: nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, C)), 3).to(dtype)


def table(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(loc=[0.0, 5.0, -2.0], size=(N, D))
    return X, rng.normal(size=(N, C)) + X[:, :1] ** 2, rng.uniform(0.2, 3.0, size=N)


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained(objective, engine, *, dtype=torch.float64, budget=None, seed=0, **settings):
    X, y, _ = table(seed)
    model = net(dtype)
    budget = Steps(25) if budget is None else budget
    history = fit(model, X, y, objective, budget=budget, optimizer=SGD(0.02), seed=4,
                  engine=engine, **settings)  # fmt: skip
    assert history.settings["engine"] == engine
    return weights_of(model)


@pytest.mark.parametrize("spoil", [None, "collinear", "constant"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_steps_are_gradient_descent_on_the_loss(engine, spoil, weighted, seed):
    X, y, weight = table(seed)
    if spoil is not None:
        X[:, 2] = X[:, 0] if spoil == "collinear" else 1.0
    weight = weight if weighted else None
    model, twin = net(), net()
    fit(model, X, y, TwoSpeed(0.3), budget=Steps(10), optimizer=SGD(0.02), engine=engine,
        sample_weight=weight)  # fmt: skip
    x, target = torch.from_numpy(X), torch.from_numpy(y)
    w = None if weight is None else torch.from_numpy(weight)
    optimizer = torch.optim.SGD(twin.parameters(), 0.02)
    for _ in range(10):
        optimizer.zero_grad()
        two_speed_loss(twin(x), target, x, 0.3, weight=w).backward()
        optimizer.step()
    assert_close(weights_of(model), weights_of(twin), 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_one_is_mse_and_zero_is_rlp_of_all_rows_to_the_bit(engine, dtype, weighted):
    settings = {"sample_weight": table()[2]} if weighted else {}
    for ours, theirs in ((TwoSpeed(1), MSE("all")), (TwoSpeed(1, 8), MSE(8)),
                         (TwoSpeed(0), RLP(N, 1))):  # fmt: skip
        a, b = (trained(o, engine, dtype=dtype, **settings) for o in (ours, theirs))
        assert torch.equal(a, b), ours


def test_the_engines_agree_on_batches():
    for size in (8, 15, N):
        a, b = (trained(TwoSpeed(0.3, size), e, budget=Epochs(4)) for e in ("torch", "kernel"))
        assert_close(a, b, 1e-9)
    assert not torch.equal(a, trained(TwoSpeed(0.3, 8), "torch", budget=Epochs(4)))


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("k", [0.0, 0.4])
def test_on_batches_kappa_is_effectively_that_of_the_docs(engine, size, k):
    """The mean loss of many epochs at a rate of all but 0, against all rows at the other κ."""
    X, y, _ = table()
    model = net()
    with torch.no_grad():
        pred, target, x = model(torch.from_numpy(X)), torch.from_numpy(y), torch.from_numpy(X)
    history = fit(model, X, y, TwoSpeed(k, size), budget=Epochs(1500), optimizer=SGD(1e-14),
                  engine=engine, evaluate_every=Epochs(1500))  # fmt: skip
    effective = k + (1 - k) * kappa(size, N, D + 1)
    expected = float(two_speed_loss(pred, target, x, effective))
    plain = float(two_speed_loss(pred, target, x, k))
    # the rest is the spread by leverage, which the mean over directions does not have
    assert abs(history.last("loss") - expected) < 0.35 * abs(plain - expected)


def test_every_row_is_in_a_batch_of_each_epoch():
    objective = TwoSpeed(0.3, 16).resolve(N, D)
    assert (objective.shape(), objective.steps_per_epoch(N)) == ((16, 3, 1), 3)
    assert TwoSpeed(0.3).resolve(N, D) == TwoSpeed(0.3, N, n_batches=1)


def test_a_fleet_is_its_networks_one_by_one(engine):
    X, y, weight = table()
    problems = [
        Problem(X, y, seed=s, objective=TwoSpeed(k, size), sample_weight=w)
        for s, (k, size, w) in enumerate(
            [(0.1, "all", None), (0.5, 16, None), (1.0, "all", None), (0.3, "all", weight)]
        )
    ]
    fleet = fit_fleet(
        lambda *_: net(), problems, budget=Steps(12), optimizer=SGD(0.02), engine=engine
    )
    for history, problem in zip(fleet, problems, strict=True):
        alone = net()
        fit(alone, X, y, problem.objective, budget=Steps(12), optimizer=SGD(0.02), engine=engine,
            seed=problem.seed, sample_weight=problem.sample_weight)  # fmt: skip
        assert torch.equal(weights_of(alone), weights_of(history.model))


def test_it_is_a_value():
    value = TwoSpeed(0.25, 50)
    assert repr(value) == "TwoSpeed(0.25, batch_size=50)"
    assert from_json(json.loads(json.dumps(value.to_json()))) == value
    with pytest.raises(ValueError, match=r"kappa must be in \[0, 1\], got 1\.5"):
        TwoSpeed(1.5)
    with pytest.raises(TypeError, match=r"batch_size must be a whole number, got 0\.5"):
        TwoSpeed(0.5, 0.5)


@pytest.mark.parametrize("size", [8, 15])
@pytest.mark.parametrize("step", [0, 7, 26])
def test_epochs_of_batches_share_a_block_that_does_not_depend_on_its_first_step(size, step):
    job = make_job(net(), Problem(*table()[:2]), objective=TwoSpeed(0.3, size))
    steps = 12 * job.steps_per_epoch
    blocks = [
        make_feed(job, steps, fits_planes=True).window(first, steps)[0] for first in (0, step)
    ]
    assert [(block.first, len(block.spans)) for block in blocks] == [(0, steps)] * 2
    assert torch.equal(blocks[0].rows.index, blocks[1].rows.index)
    epochs = blocks[0].rows.index.view(12, -1)
    assert all(epoch.unique().numel() == N for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 12
