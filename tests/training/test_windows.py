"""Rows that are read in windows: the same results as with everything in memory."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import rlploss
from rlploss import Epochs, RegressionNet, Steps, fit, seeded
from rlploss.loss.moments import same_moments
from rlploss.training import windows

N, D = 60, 3


@pytest.fixture
def data():
    g = torch.Generator().manual_seed(1)
    X = torch.randn(N, D, generator=g, dtype=torch.float64)
    return X, torch.sin(X).sum(1, keepdim=True)


def trained(X, y, objective="rlp", **settings):
    model = seeded(lambda: RegressionNet(D), 0).double()
    history = fit(model, X, y, objective, seed=3, compile=False, **{"budget": Epochs(3), "lr": 1e-2, **settings})
    return torch.cat([p.detach().flatten() for p in model.parameters()]), history


class Items(Dataset):
    """A dataset of (input, target), one by one; counts what is read."""

    def __init__(self, X, y):
        self.X, self.y, self.reads = X, y, 0

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        self.reads += 1
        return (self.X[i], self.y[i]) if self.y is not None else self.X[i]


class Batches(Items):
    def __getitems__(self, index):
        return [self[i] for i in index]


RLP = {
    "plain": {},
    "released": {"preset": "released"},
    "paper": {"preset": "paper"},
    "several": {"subsets_per_step": 3},
    "each-epoch": {"plan": "each-epoch"},
    "draw": {"probe": "draw", "ridge": 0.1},
    "outside": {"probe": "draw", "draw_from": "outside"},
    "expected": {"probe": "expected", "subset_size": 12},
    "expected-plain": {"probe": "expected", "subset_size": 12, "intercept": False},
    "sum": {"probe": "sum"},
    "complement": {"subset_size": 5},
    "mse": {"subset_size": 4},
    "all-rows": {"subsets_per_step": 20},
}


@pytest.mark.parametrize("name", RLP)
@pytest.mark.parametrize("window", [1, 4000, 10**6])
def test_windows_give_what_feeds_give(data, monkeypatch, name, window):
    settings = {"subset_size": 10, "n_subsets": 20, **RLP[name]}
    with pytest.warns() if name == "mse" else nullcontext():
        one, first = trained(*data, **settings)
    monkeypatch.setattr(windows, "HELD_BYTES", 0)
    monkeypatch.setattr(windows, "WINDOW_BYTES", window)
    with pytest.warns() if name == "mse" else nullcontext():
        other, second = trained(*data, **settings)
    torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(second.columns["loss"][1:], first.columns["loss"][1:], rtol=1e-10)


@pytest.mark.parametrize("settings", [{"probe": "subset"}, {"probe": "draw"}, {"probe": "expected"}, {"ridge": 0.3}])
@pytest.mark.parametrize("mixed", [False, True])
def test_weights_and_mixup_in_windows(data, monkeypatch, settings, mixed):
    settings = {"subset_size": 12, "n_subsets": 20, **settings}
    if mixed:
        settings |= {"objective": "rlp+mixup"}
    else:
        settings |= {"sample_weight": torch.rand(N, generator=torch.Generator().manual_seed(2)) + 0.1}
    one, _ = trained(*data, **settings)
    monkeypatch.setattr(windows, "HELD_BYTES", 0)
    monkeypatch.setattr(windows, "WINDOW_BYTES", 3000)
    other, _ = trained(*data, **settings)
    torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [Items, Batches])
@pytest.mark.parametrize("objective", ["rlp", "mse", "huber", "mse+mixup", "rlp+mixup"])
def test_a_dataset_trains_as_its_tensors_do(data, kind, objective):
    settings = {"subset_size": 10, "n_subsets": 20} if objective.startswith("rlp") else {"batch_size": 7}
    one, _ = trained(*data, objective, **settings)
    other, _ = trained(kind(*data), None, objective, **settings)
    torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)


def test_a_dataset_of_classes_and_one_for_reconstruction(data):
    X, _ = data
    labels = (X[:, 0] > 0).long()
    ends = []
    for rows in ((X, labels), (Items(X, labels), None), (TensorDataset(X, labels), None)):
        model = seeded(lambda: nn.Linear(D, 2), 0).double()
        fit(model, *rows, "cross_entropy", budget=Epochs(2), compile=False)
        ends.append(model.weight.detach())
    torch.testing.assert_close(ends[1], ends[0])
    torch.testing.assert_close(ends[2], ends[0])
    ends = []
    for rows in ((X, None), (Items(X, None), None)):
        model = seeded(lambda: nn.Linear(D, D), 0).double()
        fit(model, *rows, "mse", budget=Epochs(2), compile=False)
        ends.append(model.weight.detach())
    torch.testing.assert_close(ends[1], ends[0])


def test_only_rows_of_the_plan_are_read(data):
    rows = Items(*data)
    trained(rows, None, budget=Epochs(1), subset_size=5, n_subsets=2, intercept=False)
    assert rows.reads == 2 + 10  # two to see what they are like


def test_a_validation_dataset_is_measured(data):
    _, one = trained(*data, budget=Steps(5), validation=data)
    _, other = trained(*data, budget=Steps(5), validation=(Items(*data), None))
    assert one.columns["mse"] == other.columns["mse"]


def test_a_memory_map_is_neither_copied_nor_changed(data, tmp_path):
    X, y = (part.float().numpy() for part in data)
    path = tmp_path / "x.npy"
    np.save(path, X)
    mapped = np.load(path, mmap_mode="r")
    model = seeded(lambda: RegressionNet(D), 0)
    from rlploss.training.rows import read_rows

    rows = read_rows(model, mapped, y, loss="mse", device=torch.device("cpu"))
    assert rows.x.data_ptr() == mapped.ctypes.data
    history = fit(model, mapped, y, budget=Steps(5), subset_size=10, n_subsets=5)
    assert history.stopped == "budget"
    assert np.array_equal(np.load(path), X)


def test_points_with_the_moments_of_many_rows():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(500, 4, generator=g, dtype=torch.float64) * torch.tensor([1.0, 10, 1e-3, 5]) + 7
    points = same_moments(lambda: x.split(64))
    assert points.shape == (8, 4)
    torch.testing.assert_close(points.mean(0), x.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(points.mT @ points / 8, x.mT @ x / 500, rtol=1e-12, atol=1e-14)


def test_refusals(data, monkeypatch):
    X, y = data

    class Endless(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(ValueError, match="y must be None beside a Dataset"):
        trained(Items(X, y), y)
    with pytest.raises(TypeError, match="needs a length"):
        trained(Endless(), None)
    with pytest.raises(ValueError, match="got an empty Items"):
        trained(Items(X[:0], y[:0]), None)
    with pytest.raises(ValueError, match="sample_weight needs rows in memory"):
        trained(Items(X, y), None, sample_weight=torch.ones(N))
    with pytest.raises(TypeError, match=r"items must be \(input, target\), got 3 parts"):
        trained(_Threes(X, y), None)
    with pytest.raises(ValueError, match="needs all rows in one process and in memory"):
        trained(Items(X, y), None, probe="expected", draw_from="outside", subset_size=10, n_subsets=5)
    broken = X.clone()
    broken[7, 1] = float("nan")
    with pytest.raises(ValueError, match="the dataset's X must be finite"):
        trained(Items(broken, y), None, "mse")
    monkeypatch.setattr(windows, "HELD_BYTES", 0)
    with pytest.raises(ValueError, match="compile=True is not possible here: rows that are spread"):
        rlploss.fit(RegressionNet(D).double(), X, y, budget=Steps(1), compile=True)


class _Threes(Items):
    def __getitem__(self, i):
        return self.X[i], self.y[i], 0
