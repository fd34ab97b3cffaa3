"""`fit(sample_weight=...)`: weighted planes against a slow twin, and against repeated or absent rows."""

import numpy as np
import pytest
import torch
from tests.close import assert_close
from torch import nn

from rlploss import Epochs, MSEEquivalentWarning, Problem, Steps, balanced_subsets, fit, fit_fleet, seeded
from rlploss.training.draws import stream

N, D = 24, 3


def net():
    return seeded(lambda: nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 1)), 3).double()


def table(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(loc=[0.0, 5.0, -2.0], size=(N, D))
    y = X @ [1.0, -2.0, 0.5] + rng.normal(size=N)
    return X, y, rng.uniform(0.2, 3.0, size=N)


def value_of(residual, x, w, *, intercept, ridge):
    """Weighted ridge regression of the residual, by the normal equations; weighted mean square of the fit."""
    z = np.column_stack([x, np.ones(len(x))]) if intercept else x
    penalty = np.diag([ridge] * x.shape[1] + [0.0] * intercept)
    fitted = z @ np.linalg.solve(z.T @ (w[:, None] * z) + penalty, z.T @ (w * residual))
    return np.mean(w * fitted**2)


@pytest.mark.parametrize("ridge", [0.0, 0.7])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("per_step", [1, "all"])
def test_weighted_planes_equal_the_twin(intercept, ridge, per_step):
    X, y, w = table()
    model = net()
    with torch.no_grad():
        residual = model(torch.from_numpy(X)).squeeze(1).numpy() - y
    history = fit(
        model, X, y, budget=Steps(1), lr=1e-9, subset_size=12, n_subsets=2, subsets_per_step=per_step,
        intercept=intercept, ridge=ridge, sample_weight=w, seed=5,
    )  # fmt: skip
    plan = balanced_subsets(N, 12, 2, generator=stream(5, "plan")).numpy()
    scaled = w / w.mean()
    values = [
        value_of(residual[i], X[i], scaled[i], intercept=intercept, ridge=ridge)
        for i in (plan if per_step == "all" else plan[:1])
    ]
    assert_close(history.last("loss"), np.mean(values), rtol=1e-8)


@pytest.mark.parametrize(
    ("loss", "function"),
    [("mse", lambda e: e**2), ("mae", np.abs), ("huber", lambda e: np.where(np.abs(e) < 1, e**2 / 2, np.abs(e) - 0.5))],
)
def test_pointwise_losses_are_weighted_means(loss, function):
    X, y, w = table(1)
    model = net()
    with torch.no_grad():
        residual = model(torch.from_numpy(X)).squeeze(1).numpy() - y
    history = fit(model, X, y, loss, budget=Steps(1), lr=1e-9, batch_size=N, sample_weight=w)
    assert_close(history.last("loss"), np.average(function(residual), weights=w))


def trained(X, y, objective="mse", **settings):
    history = fit(net(), X, y, objective, budget=Steps(30), lr=0.05, optimizer="sgd", seed=2, **settings)
    return torch.cat([p.detach().flatten() for p in history.model.parameters()])


@pytest.mark.parametrize("probe", ["subset", "expected"])
def test_whole_weights_on_one_subset_are_repeated_rows(probe):
    X, y, _ = table(2)
    w = np.arange(N) % 3 + 1
    settings = {"objective": "rlp", "n_subsets": 1, "probe": probe}
    weighted = trained(X, y, subset_size=N, sample_weight=w, **settings)
    repeated = trained(X.repeat(w, axis=0), y.repeat(w), subset_size=int(w.sum()), **settings)
    assert_close(weighted, repeated, rtol=1e-8)


def test_gradient_of_mini_batches_is_weighted():
    X, y, w = table(3)
    same = trained(X, y, batch_size=6, sample_weight=np.full(N, 7.0))
    assert torch.equal(same, trained(X, y, batch_size=6))
    assert not torch.allclose(same, trained(X, y, batch_size=6, sample_weight=w))


@pytest.mark.parametrize("objective", ["rlp", "mse", "huber"])
def test_rows_of_weight_zero_are_absent(objective):
    X, y, w = table(4)
    keep = np.arange(N) % 4 != 0
    sizes = {"subset_size": 8, "n_subsets": 5} if objective == "rlp" else {"batch_size": 4}
    with_zeros = trained(X, y, objective, sample_weight=np.where(keep, w, 0.0), **sizes)
    assert torch.equal(with_zeros, trained(X[keep], y[keep], objective, sample_weight=w[keep], **sizes))


def test_only_ratios_count():
    X, y, w = table(5)
    assert_close(
        trained(X, y, "rlp", sample_weight=w, subset_size=9),
        trained(X, y, "rlp", sample_weight=1e3 * w, subset_size=9),
        rtol=1e-7,
    )


def test_subsets_of_full_rank_are_weighted_mse():
    X, y, w = table(6)
    with pytest.warns(MSEEquivalentWarning):
        history = fit(net(), X, y, budget=Epochs(1), subset_size=2, n_subsets=12, lr=1e-9, sample_weight=w)
    plain = fit(net(), X, y, "mse", budget=Steps(1), batch_size=N, lr=1e-9, sample_weight=w)
    assert_close(history.last("loss"), plain.last("loss"), rtol=1e-6)  # 12 subsets of 2 cover the rows once


def test_classes_can_be_weighted():
    X, y, w = table(7)
    labels = (y > y.mean()).astype(np.int64)
    model = nn.Sequential(nn.Linear(D, 2)).double()
    with torch.no_grad():
        logs = model(torch.from_numpy(X)).log_softmax(1).numpy()
    history = fit(model, X, labels, "cross_entropy", budget=Steps(1), lr=1e-9, batch_size=N, sample_weight=w)
    assert_close(history.last("loss"), np.average(-logs[np.arange(N), labels], weights=w))


def test_a_fleet_takes_weights_per_problem():
    X, y, w = table(8)
    problems = [Problem(X, y, seed=2, sample_weight=v) for v in (w, None)]
    fleet = fit_fleet(lambda seed: net(), problems, budget=Steps(30), lr=0.05, optimizer="sgd", subset_size=9)
    for history, weight in zip(fleet, (w, None), strict=True):
        flat = torch.cat([p.detach().flatten() for p in history.model.parameters()])
        assert_close(flat, trained(X, y, "rlp", sample_weight=weight, subset_size=9), rtol=1e-7)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"sample_weight must have shape \(24,\), one per row, got \(3,\)"),
        (-np.arange(N), "sample_weight must hold numbers of at least 0, one of them above 0, got values from -23"),
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
        fit(net(), X, y, "rlp+mixup", budget=Steps(1), sample_weight=w)
