"""`fit(sample_weight=...)`: weighted planes against a slow twin, and against repeated or absent
rows."""

import numpy as np
import pytest
import torch
from tests.close import assert_close
from torch import nn

from rlploss import (
    MAE,
    MSE,
    RLP,
    SGD,
    CrossEntropy,
    Epochs,
    Huber,
    MSEEquivalentWarning,
    Pointwise,
    Problem,
    Steps,
    balanced_subsets,
    fit,
    fit_fleet,
    seeded,
)
from rlploss.training.feed import stream

N, D = 24, 3


@pytest.fixture(params=["torch", "kernel"])
def engine(request):
    return request.param


def net():
    return seeded(lambda: nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 1)), 3).double()


def table(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(loc=[0.0, 5.0, -2.0], size=(N, D))
    y = X @ [1.0, -2.0, 0.5] + rng.normal(size=N)
    return X, y, rng.uniform(0.2, 3.0, size=N)


def value_of(residual, x, w, *, intercept, ridge):
    """Weighted ridge regression of the residual, by the normal equations; weighted mean square of
    the fit."""
    z = np.column_stack([x, np.ones(len(x))]) if intercept else x
    penalty = np.diag([ridge] * x.shape[1] + [0.0] * intercept)
    fitted = z @ np.linalg.solve(z.T @ (w[:, None] * z) + penalty, z.T @ (w * residual))
    return np.mean(w * fitted**2)


@pytest.mark.parametrize("ridge", [0.0, 0.7])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("per_step", [1, "all"])
def test_weighted_planes_equal_the_twin(intercept, ridge, per_step, engine):
    X, y, w = table()
    model = net()
    with torch.no_grad():
        residual = model(torch.from_numpy(X)).squeeze(1).numpy() - y
    objective = RLP(12, 2, subsets_per_step=per_step, intercept=intercept, ridge=ridge)
    history = fit(model, X, y, objective, budget=Steps(1), sample_weight=w, seed=5, engine=engine)
    plan = balanced_subsets(N, 12, 2, generator=stream(5, "plan")).numpy()
    scaled = w / w.mean()
    values = [
        value_of(residual[i], X[i], scaled[i], intercept=intercept, ridge=ridge)
        for i in (plan if per_step == "all" else plan[:1])
    ]
    assert_close(history.last("loss"), np.mean(values), rtol=1e-8)


@pytest.mark.parametrize(
    ("objective", "function"),
    [
        (MSE, lambda e: e**2),
        (MAE, np.abs),
        (Huber, lambda e: np.where(np.abs(e) < 1, e**2 / 2, np.abs(e) - 0.5)),
        (lambda size: Pointwise(lambda a, b: (a - b).abs() ** 3, size), lambda e: np.abs(e) ** 3),
    ],
)
@pytest.mark.parametrize("size", [N, "all", 8])
def test_pointwise_losses_are_weighted_means(objective, function, size, engine):
    X, y, w = table(1)
    model = net()
    with torch.no_grad():
        residual = model(torch.from_numpy(X)).squeeze(1).numpy() - y
    history = fit(
        model,
        X,
        y,
        objective(size),
        budget=Epochs(1),
        optimizer=SGD(1e-12),
        sample_weight=w,
        seed=1,
        engine=engine,
    )
    # the mean of the batches' means: weights are scaled once, for all rows
    assert_close(
        history.last("loss"),
        np.average(function(residual), weights=w),
        rtol=1e-7 if size == 8 else 1e-9,
    )


def trained(X, y, objective=None, engine="auto", **settings):
    objective = MSE() if objective is None else objective
    history = fit(
        net(),
        X,
        y,
        objective,
        budget=Steps(30),
        optimizer=SGD(0.05),
        seed=2,
        engine=engine,
        **settings,
    )
    return torch.cat([p.detach().flatten() for p in history.model.parameters()])


@pytest.mark.parametrize("probe", ["subset", "expected"])
def test_whole_weights_on_one_subset_are_repeated_rows(probe, engine):
    X, y, _ = table(2)
    w = np.arange(N) % 3 + 1
    ends = []
    for rows, target, weight in ((X, y, w), (X.repeat(w, axis=0), y.repeat(w), None)):
        model = net()
        fit(
            model, rows, target, RLP(len(rows), 1, probe=probe), budget=Steps(30), optimizer=SGD(0.05),
            sample_weight=weight, engine=engine,
        )  # fmt: skip
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert_close(ends[0], ends[1], rtol=1e-8)


@pytest.mark.parametrize(("size", "n"), [(N, 1), (12, 200)])
def test_the_sum_probe_sums_weighted_rows(size, n, engine):
    """Repeated rows are summed as often as they are there: Σ w·(fitted residual), by weighted least
    squares."""
    X, y, w = table(2)
    model = net()
    with torch.no_grad():
        residual = model(torch.from_numpy(X)).squeeze(1).numpy() - y
    objective = RLP(size, n, subsets_per_step="all", probe="sum")
    history = fit(model, X, y, objective, budget=Steps(1), sample_weight=w, engine=engine)
    values = []
    for i in balanced_subsets(N, size, n, generator=stream(0, "plan")).numpy():
        x, v = X[i], w[i] / w.mean()
        fitted = x @ np.linalg.solve(x.T @ (v[:, None] * x), x.T @ (v * residual[i]))
        values.append((v @ fitted) ** 2)
    assert_close(history.last("loss"), np.mean(values), rtol=1e-8)


def test_gradient_of_mini_batches_is_weighted(engine):
    X, y, w = table(3)
    same = trained(X, y, MSE(6), engine, sample_weight=np.full(N, 7.0))
    assert torch.equal(same, trained(X, y, MSE(6), engine))
    assert not torch.allclose(same, trained(X, y, MSE(6), engine, sample_weight=w))


@pytest.mark.parametrize("objective", [RLP(8, 5), MSE(4), Huber(4)])
def test_rows_of_weight_zero_are_absent(objective, engine):
    X, y, w = table(4)
    keep = np.arange(N) % 4 != 0
    with_zeros = trained(X, y, objective, engine, sample_weight=np.where(keep, w, 0.0))
    assert torch.equal(
        with_zeros, trained(X[keep], y[keep], objective, engine, sample_weight=w[keep])
    )


def test_only_ratios_count(engine):
    X, y, w = table(5)
    assert_close(
        trained(X, y, RLP(9), engine, sample_weight=w),
        trained(X, y, RLP(9), engine, sample_weight=1e3 * w),
        rtol=1e-7,
    )


def test_subsets_of_full_rank_are_weighted_mse(engine):
    X, y, w = table(6)
    settings = {"optimizer": SGD(1e-12), "sample_weight": w, "engine": engine}
    with pytest.warns(MSEEquivalentWarning):
        history = fit(net(), X, y, RLP(2, 12), budget=Epochs(1), **settings)
    plain = fit(net(), X, y, MSE(N), budget=Steps(1), **settings)
    assert_close(
        history.last("loss"), plain.last("loss"), rtol=1e-6
    )  # 12 subsets of 2 cover the rows once


def test_classes_can_be_weighted(engine):
    X, y, w = table(7)
    labels = (y > y.mean()).astype(np.int64)
    model = nn.Sequential(nn.Linear(D, 2)).double()
    with torch.no_grad():
        logs = model(torch.from_numpy(X)).log_softmax(1).numpy()
    history = fit(
        model, X, labels, CrossEntropy(N), budget=Steps(1), sample_weight=w, engine=engine
    )
    assert_close(history.last("loss"), np.average(-logs[np.arange(N), labels], weights=w))


def test_a_fleet_takes_weights_per_problem(engine):
    X, y, w = table(8)
    problems = [Problem(X, y, seed=2, sample_weight=v) for v in (w, None)]
    fleet = fit_fleet(
        lambda seed: net(), problems, RLP(9), budget=Steps(30), optimizer=SGD(0.05), engine=engine
    )
    for history, weight in zip(fleet, (w, None), strict=True):
        flat = torch.cat([p.detach().flatten() for p in history.model.parameters()])
        assert torch.equal(flat, trained(X, y, RLP(9), engine, sample_weight=weight))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"sample_weight must have shape \(24,\), one per row, got \(3,\)"),
        (
            -np.arange(N),
            (
                "sample_weight must hold numbers of at least 0, one of them above 0, got values"
                " from -23"
            ),
        ),
        (np.zeros(N), "one of them above 0, got values from 0 to 0"),
        (np.full(N, np.nan), "sample_weight must be finite, got nan"),
    ],
)
def test_bad_weights(weights, message):
    X, y, _ = table()
    with pytest.raises(ValueError, match=message):
        fit(net(), X, y, "mse", budget=Steps(1), sample_weight=weights)


def test_weights_have_no_meaning_for_mixup():
    X, y, w = table()
    with pytest.raises(ValueError, match="sample_weight has no meaning for mixup"):
        fit(net(), X, y, RLP(mixup=0.3), budget=Steps(1), sample_weight=w)
