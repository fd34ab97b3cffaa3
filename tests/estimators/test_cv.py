"""RLPRegressorCV and RLPClassifierCV: candidates, folds, budgets, the mixture."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LinearRegression, RidgeCV
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    ShuffleSplit,
    TimeSeriesSplit,
    cross_val_score,
)
from tests.close import assert_close
from tests.seeds import SEED, paired_readings

from rlploss import MSE, RLP, Adam, Problem, Steps, fit
from rlploss.estimators import NetworkRegressorCV, RLPClassifierCV, RLPRegressor, RLPRegressorCV
from rlploss.estimators.search import PENALTIES, Replica, greedy, train_further
from rlploss.models import WeightedMean, build_network
from rlploss.training.job import make_job

SMALL = {"hidden_layer_sizes": (12,), "max_iter": 8, "max_doublings": 0, "random_state": SEED}
FEW = {
    "alphas": (0.1,),
    "activations": ("relu",),
    "linear_skip": False,
    **SMALL,
}  # one setting per subset size


FEW_NETWORK = {"alphas": (0.1,), "activations": ("relu",), "cv": 2, **SMALL}


def table(n=90, d=3, seed=0):
    rng = np.random.default_rng([SEED, seed])
    X = rng.normal(size=(n, d)) * 3 + 5
    return X, X.sum(1) + rng.normal(size=n)


def kinds():
    """Tables of all kinds: name, rows, target."""
    rng = np.random.default_rng([SEED, 9])
    X = rng.uniform(-2, 2, size=(60, 3))
    yield "linear", X, X @ [1.0, -2.0, 0.5]
    yield "noiseless nonlinear", X, np.sin(2 * X[:, 0]) * X[:, 1]
    yield "noisy", X, X[:, 0] + 5 * rng.normal(size=60)
    yield "heavy-tailed", X, X[:, 0] + rng.standard_t(1.2, size=60)
    yield "few rows", X[:8], X[:8, 0] + rng.normal(size=8)
    wide = rng.normal(size=(20, 40))
    yield "wide", wide, wide[:, 0] + 0.1 * rng.normal(size=20)


@pytest.mark.parametrize(("X", "y"), [pytest.param(X, y, id=name) for name, X, y in kinds()])
def test_the_mixture_is_never_worse_than_the_best_candidate(X, y):
    """Its score is that of its out-of-fold predictions, member by member; ridge regression is among
    the candidates."""
    folds = [KFold(3, shuffle=True, random_state=SEED)]
    model = RLPRegressorCV(cv=folds[0], **SMALL).fit(X, y)
    assert model.ensemble_score_ >= model.best_score_ == max(model.cv_results_["mean_test_score"])
    assert_close(sum(model.cv_results_["share"]), 1.0)
    each = {name: np.empty(len(y)) for name in ("mixture", "ridge")}
    Z, t = model.scaling_.inputs(X), model.scaling_.targets(y[:, None])[:, 0]
    members, weights = model.network_.networks, model.network_.weights.numpy()
    for fold, (train, test) in enumerate(folds[0].split(X)):
        share = weights[fold::3] / weights[fold::3].sum()
        with torch.no_grad():
            out = [one(torch.tensor(Z[test])).numpy()[:, 0] for one in members[fold::3]]
        each["mixture"][test] = share @ np.array(out)
        each["ridge"][test] = RidgeCV(PENALTIES).fit(Z[train], t[train]).predict(Z[test])
    errors = {
        name: np.mean((found - t) ** 2) * model.scaling_.y_scale[0] ** 2
        for name, found in each.items()
    }
    assert_close(errors["mixture"], -model.ensemble_score_, rtol=1e-3)
    assert -model.ensemble_score_ <= errors["ridge"] * (1 + 1e-6)


@pytest.mark.parametrize(
    ("activation", "softmax"), [("relu", False), ("tanh", False), ("logistic", True)]
)
def test_a_replica_gives_what_its_network_gave_at_every_evaluation(activation, softmax):
    X, y = table(n=20)
    target = np.eye(2)[(y > y.mean()).astype(int)]
    network = build_network(3, (5,), 2, activation=activation, softmax=softmax, seed=SEED)
    problem = Problem(X, target, seed=SEED, objective=MSE(), optimizer=Adam(0.05))
    job = make_job(network, problem)
    then = []

    class Watched(Replica):
        def keep(self):
            super().keep()
            with torch.no_grad():
                then.append(self.job.model(torch.tensor(X, dtype=torch.float32)).double().numpy())

    one = Watched(job)
    train_further([one], 6, 2)
    train_further([one], 4, 2)
    found = one.outputs(X.astype(np.float32), one.kept)
    assert_close(
        np.exp(found) / np.exp(found).sum(-1, keepdims=True) if softmax else found,
        np.stack(then),
        rtol=1e-4,
    )
    assert not np.array_equal(found[2], found[3])  # the second training went on
    kept = len(one.kept)
    one.diverged = True
    train_further([one], 4, 2)
    assert len(one.kept) == kept == 5
    assert np.isnan(one.predictions(X, 5, 7)).all()


def test_greedy_against_a_loop():
    rng = np.random.default_rng(SEED)
    residuals, weight = rng.normal(size=(9, 30, 2)) + 0.5, rng.uniform(size=30)
    residuals[2, 5] = np.nan

    def error(drawn):
        return np.average((residuals[drawn].mean(0) ** 2).sum(1), weights=weight)

    drawn, tried = [], []
    for _ in range(12):
        costs = [np.inf if k == 2 else error([*drawn, k]) for k in range(9)]
        drawn = [*drawn, int(np.argmin(costs))]
        tried.append((min(costs), list(drawn)))
    best = min(tried)[1]
    shares = greedy(residuals, weight, 12)
    assert_close(shares, np.bincount(best, minlength=9) / len(best))
    assert greedy(residuals, weight, 1).max() == 1


def test_the_pointwise_end_is_always_a_candidate():
    X, y = table()
    for sizes, wanted in {
        "auto": {4, 15},
        (): {4},
        (20,): {4, 20},
        (0.3, 1.0): {4, 18, 60},
        (2, 500): {4, 60},
    }.items():
        model = RLPRegressorCV(**{**FEW, "subset_sizes": sizes, "alphas": (0.0, 0.1), "cv": 3}).fit(
            X, y
        )
        assert (
            set(model.cv_results_["param_subset_size"].tolist()) == wanted
        )  # p = 4 stands for MSE; folds have 60 rows
        assert len(model.cv_results_["rank_test_score"]) == 2 * len(wanted)


def test_fewer_rows_than_columns_is_mse_alone():
    X, y = table(n=12, d=30)
    model = RLPRegressorCV(cv=3, **FEW).fit(X, y)
    assert set(model.cv_results_["param_subset_size"]) == {31}
    assert model.best_params_["subset_size"] is None


def test_results_fit_together():
    X, y = table()
    model = RLPRegressorCV(cv=3, **SMALL).fit(X, y)
    results = model.cv_results_
    splits = np.array([results[f"split{i}_test_score"] for i in range(3)])
    assert_close(splits.mean(0), results["mean_test_score"])  # folds of the same size
    assert_close(splits.std(0), results["std_test_score"])
    n = 2 * 3 * 2 * 2  # places, weight decays, activations, with and without a plane
    assert sorted(results["rank_test_score"]) == list(range(1, n + 1))
    best = model.best_index_
    assert results["mean_test_score"][best] == max(results["mean_test_score"]) == model.best_score_
    assert model.best_params_["alpha"] == results["param_alpha"][best]
    assert model.best_params_["n_steps"] == results["n_steps"][best] <= 80
    assert results["params"][best] == {
        name: results[f"param_{name}"][best]
        for name in (
            "subset_size",
            "alpha",
            "learning_rate",
            "activation",
            "linear",
            "batch_size",
            "mixup",
            "log",
        )
    }
    frame = model.to_frame()
    assert len(frame) == n
    assert frame.loc[0, "mean_test_score"] == model.best_score_


def test_a_score_is_that_of_fit_on_the_fold():
    X, y = table()
    model = RLPRegressorCV(cv=KFold(3), subset_sizes=(1.0,), **FEW).fit(X, y)
    Z, t = model.scaling_.inputs(X), model.scaling_.targets(y[:, None])
    fold = 1
    train, test = list(KFold(3).split(X))[fold]
    seed = (model._seed() + fold) % 2**31
    for setting, objective in enumerate((MSE(60), RLP(60, 1))):
        network = model._build(seed, "relu", softmax=False)
        torch.nn.init.zeros_(network[-1].weight), torch.nn.init.zeros_(network[-1].bias)
        history = fit(
            network,
            Z[train],
            t[train],
            objective,
            budget=Steps(int(model.cv_results_["n_steps"][setting])),
            validation=(Z[test], t[test]),
            optimizer=Adam(0.01, 0.1),
            seed=seed,
        )
        ours = (
            -model.cv_results_[f"split{fold}_test_score"][setting] / model.scaling_.y_scale[0] ** 2
        )
        assert_close(ours, history.last("mse"), rtol=1e-3)


def test_the_ensemble_and_its_spread():
    X, y = table()
    model = RLPRegressorCV(cv=3, **SMALL).fit(X, y)
    Z, weights = torch.tensor(model.scaling_.inputs(X)), model.network_.weights.numpy()
    with torch.no_grad():
        each = np.array([network(Z).squeeze(1).numpy() for network in model.network_.networks])
    mean = weights @ each
    found, spread = model.predict(X, return_std=True)
    assert np.array_equal(found, model.predict(X))
    assert_close(found, mean * model.scaling_.y_scale + model.scaling_.y_mean)
    assert_close(spread, np.sqrt(weights @ (each - mean) ** 2) * model.scaling_.y_scale)
    assert spread.shape == found.shape
    assert spread.min() > 0
    assert np.array_equal(model.to_torch()(torch.tensor(X)).detach().numpy(), found)


def test_without_ensemble_one_network_is_trained_on_all_rows():
    X, y = table()
    settings = {**FEW, "cv": 3, "subset_sizes": (1.0,)}
    model = RLPRegressorCV(ensemble=False, **settings).fit(X, y)
    assert not isinstance(model.network_, WeightedMean)
    twin = RLPRegressorCV(**settings).fit(X, y)
    assert twin.best_params_ == model.best_params_
    assert_close(model.ensemble_score_, model.best_score_)
    seed, size = model._seed(), model.best_params_["subset_size"]
    network = model._build(seed, "relu", softmax=False)
    torch.nn.init.zeros_(network[-1].weight), torch.nn.init.zeros_(network[-1].bias)
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
    with pytest.raises(ValueError, match="return_std needs an ensemble, got ensemble=False"):
        model.predict(X, return_std=True)


def test_the_budget_doubles_while_the_best_step_is_late():
    rng = np.random.default_rng(SEED)
    X = rng.uniform(-2, 2, size=(80, 2))
    curved = np.sin(3 * X[:, 0]) * X[:, 1]
    settings = {**FEW, "alphas": (1e-4,), "cv": 2, "max_iter": 2}
    budgets = {}
    for name, y, rate in (("curved", curved, 1e-3), ("noise", rng.normal(size=80), 0.1)):
        for doublings in (0, 2):
            model = RLPRegressorCV(
                **{**settings, "max_doublings": doublings}, learning_rates=(rate,)
            ).fit(X, y)
            budgets[name, doublings] = model._steps[-1]
    assert budgets == {("curved", 0): 20, ("curved", 2): 80, ("noise", 0): 20, ("noise", 2): 20}


def test_training_further_is_training_longer():
    """Full batches: two budgets after one another give the networks of one long one, at the same
    steps."""
    X, y = table()
    settings = {**FEW, "cv": 3, "subset_sizes": ()}
    doubled = RLPRegressorCV(
        **{**settings, "max_iter": 1, "max_doublings": 2, "alphas": (1e-4,)}
    ).fit(X, y)
    straight = RLPRegressorCV(**{**settings, "max_iter": 4, "alphas": (1e-4,)}).fit(X, y)
    assert doubled._steps[-1] == straight._steps[-1] == 40
    assert_close(doubled._curves[0, -1], straight._curves[0, -1], rtol=1e-4)


def test_label_noise_on_a_linear_truth_is_left_alone():
    """The error of the truth is far below that of MSE untuned, in the mean of three draws."""
    ours, plain = [], []
    for draw in range(3):
        X, y, _ = paired_readings(draw)
        model = RLPRegressorCV(cv=3, max_iter=30, max_doublings=0, random_state=SEED + draw).fit(
            X, y
        )
        X_new, _, truth = paired_readings(100 + draw, 2000)
        settings = {"learning_rate_init": 0.01, "max_iter": 30, "random_state": SEED + draw}
        mse = RLPRegressor(loss="mse", tol=0.0, **settings).fit(X, y)
        for found, one in ((ours, model), (plain, mse)):
            found.append(np.mean((one.predict(X_new) - truth) ** 2))
    assert np.mean(ours) < 0.5 * np.mean(plain)


def test_a_noiseless_nonlinear_truth_leaves_the_linear_end():
    rng = np.random.default_rng(SEED)
    X = rng.uniform(-2, 2, size=(300, 2))
    y = np.sin(3 * X[:, 0]) * np.cos(2 * X[:, 1])
    settings = {**FEW, "alphas": (1e-4,), "hidden_layer_sizes": (50,), "max_iter": 80}
    model = RLPRegressorCV(cv=3, subset_sizes=(1.0,), **settings).fit(X, y)
    errors = dict(
        zip(
            model.cv_results_["param_subset_size"],
            -model.cv_results_["mean_test_score"],
            strict=True,
        )
    )
    assert errors[200] > 3 * errors[3]  # M = all rows against MSE
    assert model.score(X, y) > LinearRegression().fit(X, y).score(X, y) + 0.3


def test_weights():
    X, y = table(seed=4)
    kept = np.arange(90) % 3 != 0
    model = RLPRegressorCV(cv=3, **{**FEW, "linear_skip": "auto"})
    zeros = clone(model).fit(X, y, sample_weight=np.where(kept, 2.0, 0.0))
    absent = clone(model).fit(X[kept], y[kept])
    assert_close(zeros.predict(X), absent.predict(X), rtol=1e-9)
    weight = np.where(y > np.median(y), 1.0, 0.1)
    tilted = (
        clone(model).set_params(subset_sizes=(), linear_skip=False).fit(X, y, sample_weight=weight)
    )
    splits, error = (
        tilted._splits(X, y, None, None, weight > 0, y[:, None], tilted._seed()),
        np.empty(90),
    )
    members, weights = tilted.network_.networks, tilted.network_.weights.numpy()
    for fold, (_, test) in enumerate(splits):
        share = weights[fold::3] / weights[fold::3].sum()
        with torch.no_grad():
            out = [
                one(torch.tensor(tilted.scaling_.inputs(X[test]))).numpy()[:, 0]
                for one in members[fold::3]
            ]
        error[test] = (share @ np.array(out) - tilted.scaling_.targets(y[test, None])[:, 0]) ** 2
    found = np.average(error, weights=weight) * tilted.scaling_.y_scale[0] ** 2
    assert_close(found, -tilted.ensemble_score_, rtol=1e-4)


def test_shapes_and_company():
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:120], y[:120]
    quick = RLPRegressorCV(cv=3, **{**FEW, "linear_skip": "auto"})
    assert quick.fit(X, y).predict(X).shape == (120,)
    assert quick.fit(X, np.column_stack([y, -y])).predict(X).shape == (120, 2)
    assert quick.predict(X, return_std=True)[1].shape == (120, 2)
    assert pickle.loads(pickle.dumps(quick)).predict(X).shape == (120, 2)
    assert cross_val_score(quick, X, y, cv=2).mean() > 0.1
    same = [clone(quick).fit(X, y).predict(X) for _ in range(2)]
    assert np.array_equal(*same)


# Any loss


def test_settings_that_come_to_the_same_are_trained_once():
    X, y = table(n=22, d=12)  # 0.85 of the rows of a fold are no more than the 13 columns
    model = NetworkRegressorCV(
        loss="rlp",
        subset_sizes=("auto", 0.85, 1.0),
        learning_rates=(1e-3, 1e-2),
        alphas=(0.0,),
        latin=True,
        **{**SMALL, "cv": 3, "activations": ("relu",)},
    ).fit(X, y)
    assert len(model._settings(14, (False,))) == 8
    assert len(model.cv_results_["params"]) < 8


def test_a_logarithm_is_an_estimators_own_affair():
    """Errors are those of the target itself, and predictions are in its units."""
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(150, 3))
    y = np.exp(X.sum(1) + 0.1 * rng.normal(size=150))
    settings = {"alphas": (1e-3,), "activations": ("relu",), "max_steps": 300, "random_state": SEED}
    plain, log = (
        NetworkRegressorCV(log_target=choice, **settings).fit(X[:100], y[:100])
        for choice in (False, "auto")
    )
    assert log.best_params_["log"]
    assert log.best_score_ > 2 * plain.best_score_  # scores are negative errors
    assert log.score(X[100:], y[100:]) > plain.score(X[100:], y[100:])
    again = pickle.loads(pickle.dumps(log))
    assert np.array_equal(again.predict(X), log.predict(X))
    with pytest.raises(ValueError, match="log_target=True needs one target above 0"):
        NetworkRegressorCV(log_target=True).fit(X, -y)


def test_batches_and_mixup_are_chosen_too():
    X, y = table()
    model = NetworkRegressorCV(
        batch_size=(20, "auto"), mixup=(None, 0.5), latin=True, **FEW_NETWORK
    )
    tried = model.fit(X, y)._settings(60, (False,))
    assert {(one.batch_size, one.mixup) for one in tried} == {(20, None), ("auto", 0.5)}


def test_folds_of_one_call():
    X, y = table()
    folds = list(KFold(3).split(X))
    given = NetworkRegressorCV(**FEW_NETWORK).fit(X, y, folds=folds)
    assert given.n_splits_ == 3
    assert np.array_equal(
        given.predict(X), NetworkRegressorCV(**{**FEW_NETWORK, "cv": folds}).fit(X, y).predict(X)
    )


@pytest.mark.parametrize(("n", "folds"), [(150, 3), (151, 2), (250, 2), (251, 1)])
def test_automatic_folds(n, folds):
    X, y = table(n)
    model = NetworkRegressorCV(**{**FEW_NETWORK, "cv": "auto", "max_steps": 4}).fit(X, y)
    assert model.n_splits_ == folds


# Classes


@pytest.mark.parametrize("sizes", ["auto", ()])
def test_classes(sizes):
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    settings = {"hidden_layer_sizes": (12,), "max_doublings": 0, "max_iter": 20, "alphas": (0.01,)}
    model = RLPClassifierCV(subset_sizes=sizes, cv=3, random_state=SEED, **settings).fit(
        X[::2], names[::2]
    )
    assert model.score(X[1::2], names[1::2]) > 0.9
    probabilities = model.predict_proba(X)
    assert_close(probabilities.sum(1), np.ones(150))
    assert (model.classes_[probabilities.argmax(1)] == model.predict(X)).all()
    assert log_loss(names[1::2], probabilities[1::2]) < 0.5
    assert model.ensemble_score_ >= model.best_score_ > -0.1
    assert_close(model.to_torch()(torch.tensor(X)).detach().numpy(), probabilities)
    one = clone(model).set_params(ensemble=False).fit(X[::2], names[::2])
    assert one.score(X[1::2], names[1::2]) > 0.9


def test_a_class_of_one_row():
    X, y = table(30)
    classes = np.where(np.arange(30) == 3, "rare", np.where(y > np.median(y), "high", "low"))
    model = RLPClassifierCV(cv=3, alphas=(0.1,), activations=("relu",), **SMALL).fit(X, classes)
    assert model.predict_proba(X).shape == (30, 3)


# Folds of the caller


def test_groups_and_time():
    X, y = table()
    groups = np.arange(90) % 3
    ours = RLPRegressorCV(cv=GroupKFold(3), **FEW).fit(X, y, groups=groups)
    given = RLPRegressorCV(cv=list(GroupKFold(3).split(X, y, groups)), **FEW).fit(X, y)
    assert ours.n_splits_ == 3
    assert np.array_equal(ours.predict(X), given.predict(X))
    along = RLPRegressorCV(cv=TimeSeriesSplit(3), **FEW).fit(X, y)
    weights = along.network_.weights.numpy()
    assert_close(
        weights[:3] / weights[0], np.array([24, 46, 68]) / 24
    )  # the rows that each has seen
    with pytest.raises(
        ValueError,
        match=r"groups need a splitter that uses them, got cv=5; pass cv=GroupKFold\(5\)",
    ):
        RLPRegressorCV(**FEW).fit(X, y, groups=groups)


def test_splits_by_the_caller_count_rows_of_weight_zero():
    """They name rows of X as given; without the rows of weight 0 the same splits have other
    numbers."""
    X, y = table()
    kept = np.arange(90) % 3 != 0
    groups = np.arange(90) // 10 % 3
    zeros = RLPRegressorCV(**FEW).set_params(cv=list(GroupKFold(3).split(X, y, groups)))
    zeros.fit(X, y, sample_weight=kept.astype(float))
    absent = RLPRegressorCV(**FEW).set_params(
        cv=list(GroupKFold(3).split(X[kept], y[kept], groups[kept]))
    )
    absent.fit(X[kept], y[kept])
    assert_close(zeros.predict(X), absent.predict(X), rtol=1e-9)
    assert zeros.best_params_ == absent.best_params_


def test_the_best_subset_size_is_for_all_rows_of_any_splits():
    X, y = table()
    some = ShuffleSplit(2, train_size=20, test_size=20, random_state=SEED)
    model = RLPRegressorCV(cv=some, subset_sizes=(0.5, 1.0), **FEW).fit(X, y)
    in_a_fold = model.cv_results_["param_subset_size"][model.best_index_]
    assert model.best_params_["subset_size"] == {4: None, 10: 45, 20: 90}[in_a_fold]


def test_a_split_without_rows():
    X, y = table()
    with pytest.raises(
        ValueError, match=r"at least two training rows and one test row .* got 89 and 0; use fewer"
    ):
        RLPRegressorCV(cv=KFold(90), **SMALL).fit(X, y, sample_weight=np.arange(90).clip(0, 1))


def test_plot():
    X, y = table()
    model = RLPRegressorCV(cv=2, **SMALL).fit(X, y)
    axes = model.plot()
    lines = axes.get_lines()
    assert [line.get_label() for line in lines] == [
        str(m) for m in dict.fromkeys(model.cv_results_["param_subset_size"])
    ]
    assert_close(min(line.get_ydata().min() for line in lines), -model.best_score_)
    assert "4: MSE" in axes.get_legend().get_title().get_text()
    assert sum(len(dots.get_offsets()) for dots in axes.collections) == (model._shares > 0).sum()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"subset_sizes": "all"}, 'subset_sizes must be one of "auto"'),
        (
            {"subset_sizes": (1.5,)},
            r"subset_sizes, a fraction of the rows, must be in \[0, 1\], got 1.5",
        ),
        ({"alphas": (-1.0,)}, "alphas must be finite and at least 0"),
        ({"alphas": []}, "alphas must name at least one value"),
        ({"alphas": 0.1}, r"alphas must be a list, got 0.1; write \[0.1\]"),
        ({"subset_sizes": 5}, r"subset_sizes must be a list, got 5; write \[5\]"),
        ({"activations": "relu"}, r"activations must be a list, got 'relu'; write \['relu'\]"),
        ({"activations": ["step"]}, "activations must be one of"),
        ({"learning_rates": [0.0]}, "learning_rates must be"),
        ({"linear_skip": "yes"}, 'linear_skip must be one of "auto"'),
        ({"cv": 1}, "cv must be at least 2, got 1"),
        ({"max_iter": 0}, "max_iter must be at least 1"),
        (
            {"learning_rates": [1e30]},
            r"every network diverged with learning_rates=\[1e\+30\]; lower them",
        ),
        ({"max_doublings": -1}, "max_doublings must be at least 0"),
    ],
)
def test_bad_settings(settings, message):
    X, y = table()
    with pytest.raises((TypeError, ValueError), match=message):
        RLPRegressorCV(**{**SMALL, "cv": 3, **settings}).fit(X, y)


def test_networks_that_diverge_are_no_candidates():
    X, y = table()
    model = RLPRegressorCV(cv=3, learning_rates=(1e-2, 1e30), **FEW).fit(X, y)
    assert model.best_params_["learning_rate"] == 1e-2
    assert np.isfinite(model.predict(X)).all()
