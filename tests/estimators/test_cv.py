"""RLPRegressorCV: the dial, the folds, the ensemble."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, cross_val_score
from tests.close import assert_close
from tests.seeds import SEED, paired_readings

from rlploss import MSE, RLP, Adam, Steps, fit
from rlploss.estimators import RLPRegressor, RLPRegressorCV

SMALL = {"hidden_layer_sizes": (12,), "learning_rate_init": 0.01, "max_iter": 8, "random_state": SEED}


def table(n=90, d=3, seed=0):
    rng = np.random.default_rng([SEED, seed])
    X = rng.normal(size=(n, d)) * 3 + 5
    return X, X.sum(1) + rng.normal(size=n)


def test_both_ends_are_always_candidates():
    X, y = table()
    for sizes in ("auto", (), (20,), (0.3, 0.9), (2, 3, 500)):
        model = RLPRegressorCV(subset_sizes=sizes, alphas=(0.0, 0.1), cv=3, **SMALL).fit(X, y)
        tried = set(model.cv_results_["param_subset_size"].tolist())
        assert {4, 60} <= tried  # p = 4 columns stand for MSE; folds have 60 rows
        wanted = {"auto": 4, (): 2, (20,): 3, (0.3, 0.9): 4, (2, 3, 500): 2}[sizes]
        assert len(tried) == wanted
        assert len(model.cv_results_["rank_test_score"]) == 2 * wanted


def test_fewer_rows_than_columns_is_mse_alone():
    X, y = table(n=12, d=30)
    model = RLPRegressorCV(cv=3, **SMALL).fit(X, y)
    assert set(model.cv_results_["param_subset_size"]) == {31}
    assert model.best_params_["subset_size"] is None


def test_results_fit_together():
    X, y = table()
    model = RLPRegressorCV(cv=3, **SMALL).fit(X, y)
    results = model.cv_results_
    splits = np.array([results[f"split{i}_test_score"] for i in range(3)])
    assert_close(splits.mean(0), results["mean_test_score"])  # folds of the same size
    assert_close(splits.std(0), results["std_test_score"])
    assert sorted(results["rank_test_score"]) == list(range(1, 13))
    best = model.best_index_
    assert results["mean_test_score"][best] == max(results["mean_test_score"]) == model.best_score_
    assert model.best_params_["alpha"] == results["param_alpha"][best]
    assert model.best_params_["n_steps"] == results["n_steps"][best] <= 80
    assert results["params"][best] == {
        "subset_size": results["param_subset_size"][best],
        "alpha": results["param_alpha"][best],
    }
    assert len(pd.DataFrame(results)) == 12


def test_a_score_is_that_of_fit_on_the_fold():
    X, y = table()
    model = RLPRegressorCV(subset_sizes=(), alphas=(0.01,), cv=KFold(3), **SMALL).fit(X, y)
    Z, t = model.scaling_.inputs(X), model.scaling_.targets(y[:, None])
    fold = 1
    train, test = list(KFold(3).split(X))[fold]
    seed = (model._seed() + fold) % 2**31
    for setting, objective in enumerate((MSE(60), RLP(60, 1))):
        history = fit(
            model._build(seed),
            Z[train],
            t[train],
            objective,
            budget=Steps(int(model.cv_results_["n_steps"][setting])),
            validation=(Z[test], t[test]),
            optimizer=Adam(0.01, 0.01),
            seed=seed,
        )
        ours = -model.cv_results_[f"split{fold}_test_score"][setting] / model.scaling_.y_scale[0] ** 2
        assert_close(ours, history.last("mse"), rtol=1e-3)


def test_the_ensemble_is_the_mean_of_fold_models():
    X, y = table()
    model = RLPRegressorCV(cv=3, n_best=2, **SMALL).fit(X, y)
    assert len(model.network_.networks) == 6
    Z = torch.tensor(model.scaling_.inputs(X))
    with torch.no_grad():
        each = np.array([network(Z).squeeze(1).numpy() for network in model.network_.networks])
    assert_close(model.predict(X), each.mean(0) * model.scaling_.y_scale + model.scaling_.y_mean)
    assert each.std(0).max() > 0
    assert np.array_equal(model.to_torch()(torch.tensor(X)).detach().numpy(), model.predict(X))


def test_members_are_the_networks_of_the_chosen_step():
    """Each member scores on its own fold what cv_results_ says."""
    X, y = table()
    model = RLPRegressorCV(cv=KFold(3), n_best=1, **SMALL).fit(X, y)
    Z, t = torch.tensor(model.scaling_.inputs(X)), model.scaling_.targets(y[:, None])
    unit = model.scaling_.y_scale[0] ** 2
    for fold, (_, test) in enumerate(KFold(3).split(X)):
        with torch.no_grad():
            gap = model.network_.networks[fold](Z[test]).numpy() - t[test]
        score = model.cv_results_[f"split{fold}_test_score"][model.best_index_]
        assert_close(-np.mean(gap**2) * unit, score, rtol=1e-4)


def test_without_ensemble_one_network_is_trained_on_all_rows():
    X, y = table()
    model = RLPRegressorCV(cv=3, ensemble=False, subset_sizes=(), alphas=(0.1,), **SMALL).fit(X, y)
    assert isinstance(model.network_, torch.nn.Sequential)
    twin = RLPRegressorCV(cv=3, subset_sizes=(), alphas=(0.1,), **SMALL).fit(X, y)
    assert twin.best_params_ == model.best_params_
    seed, size = model._seed(), model.best_params_["subset_size"]
    network = model._build(seed)
    fit(
        network,
        model.scaling_.inputs(X),
        model.scaling_.targets(y[:, None]),
        MSE(90) if size is None else RLP(90, 1),
        budget=Steps(model.best_params_["n_steps"]),
        optimizer=Adam(0.01, 0.1),
        seed=seed,
    )
    for a, b in zip(network.parameters(), model.network_.parameters(), strict=True):
        assert torch.equal(a.double(), b)


def test_label_noise_on_a_linear_truth_moves_the_dial_off_mse():
    """In most of three draws, and the error of the truth falls with it."""
    left, ours, plain = 0, [], []
    for draw in range(3):
        X, y, _ = paired_readings(draw)
        settings = {"learning_rate_init": 0.01, "max_iter": 30, "random_state": SEED + draw}
        model = RLPRegressorCV(alphas=(1e-4,), cv=3, **settings).fit(X, y)
        left += model.best_params_["subset_size"] is not None
        X_new, _, truth = paired_readings(100 + draw, 2000)
        mse = RLPRegressor(loss="mse", tol=0.0, **settings).fit(X, y)
        for found, one in ((ours, model), (plain, mse)):
            found.append(np.mean((one.predict(X_new) - truth) ** 2))
    assert left >= 2
    assert np.mean(ours) < 0.5 * np.mean(plain)


def test_a_noiseless_nonlinear_truth_leaves_the_linear_end():
    rng = np.random.default_rng(SEED)
    X = rng.uniform(-2, 2, size=(300, 2))
    y = np.sin(3 * X[:, 0]) * np.cos(2 * X[:, 1])
    model = RLPRegressorCV(alphas=(1e-4,), cv=3, max_iter=80, learning_rate_init=0.01, random_state=SEED).fit(X, y)
    errors = dict(zip(model.cv_results_["param_subset_size"], -model.cv_results_["mean_test_score"], strict=True))
    assert errors[200] > 3 * errors[3]  # M = all rows against MSE
    assert model.score(X, y) > LinearRegression().fit(X, y).score(X, y) + 0.3


def test_weights():
    X, y = table(seed=4)
    kept = np.arange(90) % 3 != 0
    model = RLPRegressorCV(cv=3, alphas=(0.1,), **SMALL)
    zeros = clone(model).fit(X, y, sample_weight=np.where(kept, 2.0, 0.0))
    absent = clone(model).fit(X[kept], y[kept])
    assert_close(zeros.predict(X), absent.predict(X), rtol=1e-9)
    weight = np.where(y > np.median(y), 1.0, 0.1)
    tilted = clone(model).fit(X, y, sample_weight=weight)
    first = tilted.cv_results_["split0_test_score"]
    _, test = tilted._splits(X, y, weight, tilted._seed())[0]
    member = tilted.network_.networks[0]
    with torch.no_grad():
        gap = member(torch.tensor(tilted.scaling_.inputs(X[test]))).squeeze(1).numpy()
    error = np.average((gap - tilted.scaling_.targets(y[test, None])[:, 0]) ** 2, weights=weight[test])
    best = int(np.argmin(tilted.cv_results_["rank_test_score"]))
    assert_close(-error * tilted.scaling_.y_scale[0] ** 2, first[best], rtol=1e-4)


def test_shapes_and_company():
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:120], y[:120]
    quick = RLPRegressorCV(cv=3, alphas=(0.01,), **SMALL)
    assert quick.fit(X, y).predict(X).shape == (120,)
    assert quick.fit(X, np.column_stack([y, -y])).predict(X).shape == (120, 2)
    assert pickle.loads(pickle.dumps(quick)).predict(X).shape == (120, 2)
    assert cross_val_score(quick, X, y, cv=2).mean() > 0.1
    same = [clone(quick).fit(X, y).predict(X) for _ in range(2)]
    assert np.array_equal(*same)


def test_splits_by_the_caller():
    X, y = table()
    groups = np.arange(90) % 3
    splits = list(GroupKFold(3).split(X, y, groups))
    model = RLPRegressorCV(cv=splits, alphas=(0.1,), **SMALL).fit(X, y)
    assert model.n_splits_ == 3


def test_splits_by_the_caller_count_rows_of_weight_zero():
    """They name rows of X as given; without the rows of weight 0 the same splits have other numbers."""
    X, y = table()
    kept = np.arange(90) % 3 != 0
    groups = np.arange(90) // 10 % 3
    model = RLPRegressorCV(alphas=(0.1,), **SMALL)
    zeros = clone(model).set_params(cv=list(GroupKFold(3).split(X, y, groups)))
    zeros.fit(X, y, sample_weight=kept.astype(float))
    absent = clone(model).set_params(cv=list(GroupKFold(3).split(X[kept], y[kept], groups[kept])))
    absent.fit(X[kept], y[kept])
    assert_close(zeros.predict(X), absent.predict(X), rtol=1e-9)
    assert zeros.best_params_ == absent.best_params_


def test_the_best_subset_size_is_for_all_rows_of_any_splits():
    X, y = table()
    some = ShuffleSplit(2, train_size=20, test_size=20, random_state=SEED)
    model = RLPRegressorCV(cv=some, subset_sizes=(0.5,), alphas=(0.1,), **SMALL).fit(X, y)
    in_a_fold = model.cv_results_["param_subset_size"][model.best_index_]
    assert model.best_params_["subset_size"] == {4: None, 10: 45, 20: 90}[in_a_fold]


def test_a_split_without_rows():
    X, y = table()
    with pytest.raises(ValueError, match=r"at least two training rows and one test row .* got 89 and 0; use fewer"):
        RLPRegressorCV(cv=KFold(90), **SMALL).fit(X, y, sample_weight=np.arange(90).clip(0, 1))


def test_plot_of_the_dial():
    X, y = table()
    model = RLPRegressorCV(cv=2, alphas=(0.0, 0.1), **SMALL).fit(X, y)
    axes = model.plot_dial()
    assert "MSE" in axes.get_xlabel()
    assert len(axes.containers) == 2
    drawn = axes.containers[0].lines[0].get_xydata()
    assert drawn[:, 0].tolist() == sorted(set(model.cv_results_["param_subset_size"]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"subset_sizes": "all"}, 'subset_sizes must be one of "auto"'),
        ({"subset_sizes": (1.5,)}, r"subset_sizes, a fraction of the rows, must be in \[0, 1\], got 1.5"),
        ({"alphas": (-1.0,)}, "alphas must be finite and at least 0"),
        ({"cv": 1}, "cv must be at least 2, got 1"),
        ({"n_best": 0}, "n_best must be at least 1"),
        ({"max_iter": 0}, "max_iter must be at least 1"),
        ({"learning_rate_init": 1e30}, "every network diverged with learning_rate_init=1e\\+30; lower it"),
    ],
)
def test_bad_settings(settings, message):
    X, y = table()
    with pytest.raises(ValueError, match=message):
        RLPRegressorCV(**{**SMALL, "cv": 3, **settings}).fit(X, y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alphas": []}, "alphas must name at least one weight decay"),
        ({"alphas": 0.1}, r"alphas must be a list of numbers, got 0.1; write \[0.1\]"),
        ({"subset_sizes": 5}, r"subset_sizes must be a list of numbers, got 5; write \[5\]"),
    ],
)
def test_lists_that_are_none(settings, message):
    X, y = table()
    with pytest.raises((TypeError, ValueError), match=message):
        RLPRegressorCV(**settings).fit(X, y)
