"""Rows that are read in windows: the same results as with everything in memory."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from rlploss import MSE, RLP, Adam, Epochs, RegressionNet, Steps, fit, seeded
from rlploss.loss.planes import same_moments
from rlploss.training import feed

N, D = 60, 3


@pytest.fixture
def data():
    g = torch.Generator().manual_seed(1)
    X = torch.randn(N, D, generator=g, dtype=torch.float64)
    return X, torch.sin(X).sum(1, keepdim=True)


def trained(X, y, objective="rlp", **settings):
    model = seeded(lambda: RegressionNet(D), 0).double()
    history = fit(
        model, X, y, objective, seed=3, **{"budget": Epochs(3), "optimizer": Adam(1e-2), **settings}
    )
    return torch.cat([p.detach().flatten() for p in model.parameters()]), history


CASES = {
    "plain": RLP(10, 20),
    "released": RLP.released(10, 20),
    "paper": RLP.paper(10, 20),
    "several": RLP(10, 20, subsets_per_step=3),
    "each-epoch": RLP(10, 20, plan="each-epoch"),
    "each-epoch sum": RLP(10, 20, plan="each-epoch", probe="sum"),
    "draw": RLP(10, 20, probe="draw", ridge=0.1),
    "outside": RLP(10, 20, probe="draw", draw_from="outside"),
    "expected": RLP(12, 20, probe="expected"),
    "expected-plain": RLP(12, 20, probe="expected", intercept=False),
    "sum": RLP(10, 20, probe="sum"),
    "complement": RLP(5, 20),
    "mse": RLP(4, 20),
    "all-rows": RLP(10, 20, subsets_per_step=20),
    "mixup": RLP(10, 20, mixup=0.3, subsets_per_step=3),
}


@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("block", [1, 4000, 10**6])
def test_blocks_give_what_a_whole_plan_gives(data, monkeypatch, name, block, engine):
    with pytest.warns() if name == "mse" else nullcontext():
        one, first = trained(*data, CASES[name], engine=engine)
    monkeypatch.setattr(feed, "HELD_BYTES", 0)
    monkeypatch.setattr(feed, "BLOCK_BYTES", block)
    with pytest.warns() if name == "mse" else nullcontext():
        other, second = trained(*data, CASES[name], engine=engine)
    torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(second.columns["loss"][1:], first.columns["loss"][1:], rtol=1e-10)


@pytest.mark.parametrize("n_features", [25, 60], ids=["complement", "mse"])
def test_planes_of_wide_subsets_are_fitted_once(monkeypatch, n_features):
    """Images have more columns than half of a subset's rows: the smaller side of their planes fits,
    and is kept."""
    made = []

    class Counted(feed.ProjectionBank):
        def __init__(self, *arguments, **options):
            made.append(self)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(feed, "ProjectionBank", Counted)
    monkeypatch.setattr(
        feed, "HELD_BYTES", 40 * 30 * (15 + 1) * 4
    )  # 40 subsets of 30 rows, half of these and the ones
    X = torch.randn(80, n_features, generator=torch.Generator().manual_seed(1))
    with pytest.warns() if n_features > 30 else nullcontext():
        fit(RegressionNet(n_features), X, X[:, 0], RLP(30, 40), budget=Epochs(3), engine="torch")
    assert len(made) == 1


@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.parametrize(
    "objective", [MSE(7), MSE(7, mixup=0.3), MSE("all"), MSE("all", mixup=0.3)]
)
@pytest.mark.parametrize("rows", [1, 150, 10**6])
def test_batches_do_not_depend_on_how_many_epochs_are_drawn_at_once(
    data, monkeypatch, objective, rows, engine
):
    one, first = trained(*data, objective, engine=engine, budget=Steps(41))
    monkeypatch.setattr(feed, "BLOCK_ROWS", rows)
    other, second = trained(*data, objective, engine=engine, budget=Steps(41))
    assert torch.equal(one, other)
    assert repr(first["loss"]) == repr(second["loss"])


@pytest.mark.parametrize("engine", ["torch", "kernel"])
@pytest.mark.parametrize(
    "settings", [{"probe": "subset"}, {"probe": "draw"}, {"probe": "expected"}, {"ridge": 0.3}]
)
@pytest.mark.parametrize("mixed", [False, True])
def test_weights_and_mixup_in_blocks(data, monkeypatch, settings, mixed, engine):
    objective = RLP(12, 20, mixup=0.25 if mixed else None, **settings)
    weight = None if mixed else torch.rand(N, generator=torch.Generator().manual_seed(2)) + 0.1
    one, _ = trained(*data, objective, sample_weight=weight, engine=engine)
    monkeypatch.setattr(feed, "HELD_BYTES", 0)
    monkeypatch.setattr(feed, "BLOCK_BYTES", 3000)
    other, _ = trained(*data, objective, sample_weight=weight, engine=engine)
    torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", ["torch", "kernel"])
def test_a_memory_map_is_neither_copied_nor_changed(data, tmp_path, engine):
    X, y = (part.float().numpy() for part in data)
    path = tmp_path / "x.npy"
    np.save(path, X)
    mapped = np.load(path, mmap_mode="r")
    model = seeded(lambda: RegressionNet(D), 0)
    from rlploss.training.rows import read_rows

    rows = read_rows(model, mapped, y, loss="mse", device=torch.device("cpu"))
    assert rows.x.data_ptr() == mapped.ctypes.data
    history = fit(model, mapped, y, RLP(10, 5), budget=Steps(5), engine=engine)
    assert history.stopped == "budget"
    assert np.array_equal(np.load(path), X)


def test_points_with_the_moments_of_many_rows():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(500, 4, generator=g, dtype=torch.float64) * torch.tensor([1.0, 10, 1e-3, 5]) + 7
    points = same_moments(len(x), lambda: x.split(64))
    assert points.shape == (8, 4)
    torch.testing.assert_close(points.mean(0), x.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(points.mT @ points / 8, x.mT @ x / 500, rtol=1e-12, atol=1e-14)
