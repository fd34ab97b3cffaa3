"""What the released code does, to the number: its cut-off, its rows, its weight decay."""

import numpy as np
import pytest
import torch

from rlploss.datasets import Dataset
from rlploss.lab import train
from rlploss.lab.study import Task, Variant
from rlploss.loss.planes import cut_off_planes
from rlploss.paper.request import Request
from rlploss.paper.studies import STUDIES
from rlploss.training.job import Adam, AdamW

EPS = 2.0**-23  # of float32


@pytest.mark.parametrize("d", [4, 12])
@pytest.mark.parametrize("tall", [True, False])
def test_the_autoencoder_drops_directions_below_d_eps(d, tall):
    rows = 20 if tall else d - 1
    draw = torch.Generator().manual_seed(0)
    n = min(rows, d)
    left = torch.linalg.qr(torch.randn(rows, n, generator=draw, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(d, n, generator=draw, dtype=torch.float64))[0]
    squares = torch.ones(n, dtype=torch.float64)
    squares[-2], squares[-1] = 1.2 * d * EPS, 0.8 * d * EPS  # of σ₁²: kept, dropped
    x = left * squares.sqrt() @ right.T
    planes, _ = cut_off_planes(x, x, torch.arange(rows).unsqueeze(0))
    assert int((planes[0].abs().sum(1) > 0).sum()) == n - 1
    # What is left is the projection on the directions that are kept.
    kept = left[:, :-1]
    torch.testing.assert_close(rows * planes[0].T @ planes[0], kept @ kept.T, rtol=0, atol=1e-6)


def images(n_train, n_test):
    """Images whose first pixel is their number."""
    X = np.zeros((n_train + n_test, 784))
    X[:, 0] = np.arange(len(X))
    return Dataset(
        **dict.fromkeys(("name", "source", "licence", "citation"), "mnist"),
        X=X,
        y=np.arange(len(X)) % 10,
        feature_names=(),
        task="classification",
        image_shape=(1, 28, 28),
        n_official_train=n_train,
    )


@pytest.mark.parametrize(
    ("name", "task"),
    [("table1", "mnist"), ("fig-small-100", "mnist"), ("fig-mnist-classes", "mnist_classes-small")],
)
def test_every_seed_has_the_first_images(monkeypatch, name, task):
    monkeypatch.setattr(train, "_load", lambda *_: images(6000, 2000))
    mine = [
        c
        for c in STUDIES[name](Request("paper"))
        if (c.task.name, c.arm.protocol) == (task, "released")
    ]
    assert mine
    for seed in (0, 3):
        found = train.split(mine[0].task, Variant(), seed)
        assert found.train_rows.tolist() == list(range(mine[0].task.n_train))
        assert found.test_rows.tolist() == list(range(6000, 7000))


def test_every_seed_of_released_moons_has_one_split():
    one, other = (
        train.split(Task("m", "moons", "moons", n_train=500, n_test=500, first=True), Variant(), s)
        for s in (0, 5)
    )
    assert one.train_rows.tolist() == other.train_rows.tolist()
    assert not set(one.train_rows) & set(one.test_rows)


def test_released_classifiers_leave_torchs_weight_decay_in_place_and_no_others_do():
    decay = {}
    for name in ("fig-mnist-classes", "fig-moons"):
        for cell in STUDIES[name](Request("paper")):
            optimizer = cell.arm.optimizer
            if isinstance(optimizer, AdamW):
                decay.setdefault((cell.task.name, cell.arm.protocol), set()).add(
                    optimizer.weight_decay
                )
            else:
                assert optimizer == Adam(1e-3)
    for (task, protocol), found in decay.items():
        assert found == ({0.01} if protocol in ("released", "steps") else {1e-4}), (task, protocol)
    assert {task for task, _ in decay} == {"mnist_classes", "mnist_classes-small", "moons-small"}
