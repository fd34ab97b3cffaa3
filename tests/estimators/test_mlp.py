"""RLPRegressor and RLPClassifier: what scikit-learn's own checks do not look at."""

import copy
import math
import pickle
import random
import warnings

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import VotingRegressor
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.close import assert_close
from tests.seeds import SEED

from rlploss import DivergenceError, MSEEquivalentWarning
from rlploss.estimators import (
    FarRowsWarning,
    RLPClassifier,
    RLPRegressor,
    RLPRegressorCV,
    auto_subset_size,
)
from rlploss.estimators.base import Data

DIABETES = load_diabetes(return_X_y=True)
IRIS = load_iris(return_X_y=True)
QUICK = {
    "max_iter": 15,
    "hidden_layer_sizes": (16,),
    "learning_rate_init": 0.01,
    "random_state": SEED,
}


def linear(n=120, seed=0):
    rng = np.random.default_rng([SEED, seed])
    X = rng.normal(size=(n, 4)) * [1.0, 100.0, 1e-3, 1.0] + [0.0, 5e4, 0.0, 2.0]
    return X, X @ [2.0, 0.03, 4e3, -1.0] + 0.1 * rng.normal(size=n)


def test_the_defaults_are_not_worse_than_mlp_regressor():
    """On 1,000 rows of a table with offsets and scales, and on diabetes: out of the box, no
    pipeline."""
    X, y = linear(1400)
    cases = [(X[:1000], y[:1000], X[1000:], y[1000:])]
    X, y = DIABETES
    cases.append((X[:300], y[:300], X[300:], y[300:]))
    for X, y, X_test, y_test in cases:
        ours = RLPRegressor(random_state=SEED).fit(X, y).score(X_test, y_test)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says itself that it has not converged
            theirs = MLPRegressor(random_state=SEED).fit(X, y).score(X_test, y_test)
        assert ours >= theirs - 0.02
        assert ours > 0.4


@pytest.mark.parametrize("mixup", [None, 0.25])
@pytest.mark.parametrize("loss", ["rlp", "mse", "mae", "huber"])
def test_every_loss_learns(loss, mixup):
    X, y = linear()
    model = RLPRegressor(
        loss=loss, mixup=mixup, max_iter=40, learning_rate_init=0.01, random_state=SEED
    ).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert model.n_iter_ == len(model.loss_curve_) <= 40


@pytest.mark.parametrize("mixup", [None, 0.25])
@pytest.mark.parametrize("loss", ["rlp", "cross_entropy", "mse"])
def test_every_loss_learns_classes(loss, mixup):
    X, y = IRIS
    model = RLPClassifier(
        loss=loss, mixup=mixup, max_iter=40, learning_rate_init=0.01, random_state=SEED
    )
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model.fit(X, names)
    assert model.score(X, names) > 0.9
    probabilities = model.predict_proba(X)
    assert_close(probabilities.sum(1), np.ones(len(X)))
    assert (probabilities >= 0).all()
    assert (model.classes_[probabilities.argmax(1)] == model.predict(X)).all()


@pytest.mark.parametrize("loss", ["rlp", "cross_entropy"])
def test_the_network_of_a_classifier_gives_probabilities(loss):
    X, y = IRIS
    model = RLPClassifier(loss=loss, **QUICK).fit(X, y)
    with torch.no_grad():
        out = model.network_(torch.tensor(model.scaling_.inputs(X))).numpy()
    assert_close(out, model.predict_proba(X))
    assert model.n_outputs_ == out.shape[1] == 3


def test_verbose_tells_how_training_goes(capsys):
    X, y = linear()
    RLPRegressor(verbose=True, tol=0.0, n_iter_no_change=99, **QUICK).fit(X, y)
    told = capsys.readouterr()
    assert "step 150 of 150" in told.err
    assert not told.out


def test_losses_take_the_same_number_of_steps():
    """With no early end, whatever the loss: a comparison of losses is one at equal steps."""
    X, y = linear(50)
    kept = {
        loss: (
            RLPRegressor(
                loss=loss, tol=0.0, n_iter_no_change=99, max_iter=7, random_state=SEED
            ).fit(X, y)
        )
        for loss in ("rlp", "mse", "huber")
    }
    steps = {
        loss: round(math.log(float(m._engine_state["powers"][1])) / math.log(0.999))
        for loss, m in kept.items()
    }
    assert set(steps.values()) == {70.0}


def test_mae_is_robust_where_mse_is_not():
    X, y = linear(200, seed=3)
    y[::20] += 60.0
    clean = linear(400, seed=4)
    scores = {
        loss: (
            RLPRegressor(loss=loss, tol=0.0, max_iter=150, random_state=SEED)
            .fit(X, y)
            .score(*clean)
        )
        for loss in ("mse", "mae")
    }
    assert scores["mae"] > 0.9 > scores["mse"]


# The dial


@pytest.mark.parametrize("n", [2, 5, 11, 14, 60])
@pytest.mark.parametrize("d", [1, 10, 59])
def test_the_auto_rule_gives_a_size_that_is_possible(n, d):
    rng = np.random.default_rng([SEED, n, d])
    X = rng.normal(size=(n, d))
    for y in (X[:, 0], np.zeros(n), rng.normal(size=(n, 2))):
        size = auto_subset_size(X, y)
        assert (size is None) == (n < d + 4) or size is None
        assert size is None or d + 3 <= size <= n
    size = auto_subset_size(X, rng.normal(size=n), intercept=False)
    assert size is None or d + 2 <= size <= n


def test_the_auto_rule_tells_a_curve_from_noise():
    """Only a curve that the rows show clearly is MSE; a line, noise, and a curve under noise are
    the dial's middle."""
    rng = np.random.default_rng(SEED)
    X = rng.uniform(-2, 2, size=(150, 2))
    curve, noise = X[:, 0] ** 2 + np.abs(X[:, 1]), rng.normal(size=150)
    middle = round(math.sqrt(3 * 150))
    assert auto_subset_size(X, curve) is None
    assert auto_subset_size(1e6 * X + 5, 1e-9 * curve) is None  # scales mean nothing
    for y in (X @ [1.0, 2.0], noise, X[:, 0] + noise, curve + 20 * noise):
        assert auto_subset_size(X, y) == middle
    weight = np.where(np.arange(150) < 60, 1.0, 1e-9)  # rows that hardly count hardly matter
    mixed = np.where(np.arange(150) < 60, X[:, 0], 30 * noise)
    assert auto_subset_size(X, mixed, weight) == auto_subset_size(X, X[:, 0]) == middle
    many = rng.uniform(-2, 2, size=(5000, 2))
    assert auto_subset_size(many, many[:, 0] ** 2) is None


def test_subset_sizes_as_number_and_fraction():
    X, y = linear(60)
    assert (
        RLPRegressor(**QUICK).fit(X, y).subset_size_
        == auto_subset_size(X, y)
        == round(math.sqrt(5 * 60))
    )
    assert RLPRegressor(subset_size=0.5, **QUICK).fit(X, y).subset_size_ == 30
    assert RLPRegressor(subset_size=17, n_subsets=9, **QUICK).fit(X, y).subset_size_ == 17
    assert RLPRegressor(subset_size=17, n_subsets=9, **QUICK).fit(X, y).n_subsets_ == 9
    with pytest.warns(MSEEquivalentWarning):
        RLPRegressor(subset_size=3, **QUICK).fit(X, y)


def test_all_rows_as_one_subset_is_linear_regression():
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(200, 2))
    y = X @ [1.0, -1.0] + np.sin(4 * X[:, 0])
    model = RLPRegressor(subset_size=1.0, max_iter=200, random_state=SEED).fit(X, y)
    Z = np.column_stack([X, np.ones(200)])
    ours, plain = (np.linalg.lstsq(Z, target, rcond=None)[0] for target in (model.predict(X), y))
    assert_close(ours, plain, rtol=0.02)  # the same plane ...
    assert model.score(X, y) < 0.99  # ... and nothing asks for the rest


def test_rows_far_outside_are_counted():
    X, y = linear(60)
    model = RLPRegressor(**QUICK).fit(X, y)
    low, width = X.min(0), np.ptp(X, axis=0)
    near, far = X.copy(), X.copy()
    near[3] = low - 0.99 * width
    far[3, 1], far[5, 1], far[5, 0] = (
        low[1] - 1.01 * width[1],
        low[1] + 2.01 * width[1],
        low[0] + 9 * width[0],
    )
    model.predict(near)  # without a warning
    with pytest.warns(
        FarRowsWarning,
        match="2 of 60 rows lie outside .* most of them in column 1; .* extrapolations",
    ):
        model.predict(far)
    model.partial_fit(far, y).predict(far)  # these are training rows now
    model.partial_fit(near[3:4], y[3:4]).predict(far)  # and stay so
    named = RLPRegressorCV(max_iter=1, cv=2, max_doublings=0).fit(
        pd.DataFrame(X, columns=list("abcd")), y
    )
    with pytest.warns(FarRowsWarning, match="in column b;") as told:
        named.predict(pd.DataFrame(far, columns=list("abcd")), return_std=True)
    assert len(told) == 1
    assert told[0].filename == __file__


def test_few_rows_are_mse_without_a_warning():
    X, y = linear(6)
    model = RLPRegressor(**QUICK).fit(X, y)
    assert model.subset_size_ is None
    assert np.array_equal(model.predict(X), RLPRegressor(loss="mse", **QUICK).fit(X, y).predict(X))


def test_the_intercept_follows_the_library():
    """None is an offset, except for the sum probe, where it would leave nothing but the mean error
    (and a warning)."""
    X, y = linear(60)
    for probe, intercept in (("subset", True), ("expected", True), ("sum", False)):
        settings = {"probe": probe, "ridge": 0.1, **QUICK}
        found, same = (
            RLPRegressor(**settings, **extra).fit(X, y) for extra in ({}, {"intercept": intercept})
        )
        assert np.array_equal(found.predict(X), same.predict(X))
        assert (
            found.subset_size_
            == auto_subset_size(X, y, intercept=intercept)
            == round(math.sqrt((4 + intercept) * 60))
        )
        other = RLPRegressorCV(
            cv=2, probe=probe, alphas=(0.1,), max_iter=5, hidden_layer_sizes=(16,)
        ).fit(X, y)
        assert other.cv_results_["param_subset_size"].min() == 4 + intercept


# Shapes and kinds of input


def test_shapes_of_y():
    X, y = linear()
    two = np.column_stack([y, -y])
    assert RLPRegressor(**QUICK).fit(X, y).predict(X).shape == (120,)
    assert RLPRegressor(**QUICK).fit(X, y[:, None]).predict(X).shape == (120, 1)
    model = RLPRegressor(**QUICK | {"max_iter": 60}).fit(X, two)
    assert model.predict(X).shape == (120, 2)
    assert model.n_outputs_ == 2
    assert model.score(X, two) > 0.9
    with pytest.warns(DataConversionWarning):
        RLPClassifier(**QUICK).fit(*[IRIS[0], IRIS[1][:, None]])


def test_frames():
    X, y = linear()
    names = ["a", "b", "c", "d"]
    plain = RLPRegressor(**QUICK).fit(X, y)
    for frame, series in (
        (pd.DataFrame(X, columns=names), pd.Series(y)),
        (pl.DataFrame(X, schema=names), pl.Series(y)),
    ):
        model = RLPRegressor(**QUICK).fit(frame, series)
        assert list(model.feature_names_in_) == names
        assert np.array_equal(model.predict(frame), plain.predict(X))
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(frame[names[::-1]])
    labels = pl.Series((y > y.mean()).tolist())
    assert RLPClassifier(**QUICK).fit(pl.DataFrame(X), labels).classes_.tolist() == [False, True]


def test_float32_in():
    X, y = linear()
    model = RLPRegressor(**QUICK).fit(X.astype(np.float32), y)
    assert model.predict(X[:5]).dtype == np.float64


def test_predictions_do_not_depend_on_the_batch():
    X, y = linear(300)
    model = RLPRegressor(**QUICK).fit(X, y)
    one_by_one = np.concatenate([model.predict(X[i : i + 1]) for i in range(50)])
    assert_close(model.predict(X)[:50], one_by_one, rtol=1e-12)


def test_huge_and_constant_columns():
    X, y = linear()
    model = RLPRegressor(**QUICK | {"max_iter": 60})
    reference = model.fit(X, y).score(X, y)
    scaled = np.column_stack([X * [1e-150, 1e150, 1.0, -1e6], np.full(len(X), 7.7)])
    assert model.fit(scaled, 1e120 * y).score(scaled, 1e120 * y) > reference - 0.05


def test_without_standardising():
    X, y = linear()
    Z = StandardScaler().fit_transform(X)
    model = RLPRegressor(standardize=False, **QUICK | {"max_iter": 60}).fit(
        Z, (y - y.mean()) / y.std()
    )
    assert model.score(Z, (y - y.mean()) / y.std()) > 0.9
    with pytest.raises(DivergenceError, match="standardise"):
        RLPRegressor(standardize=False, **QUICK | {"learning_rate_init": 1e25}).fit(X, y)


# Weights


def test_weights_move_the_fit_and_zeros_are_absent():
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(200, 3))
    kind = np.arange(200) % 2
    y = np.where(kind, X[:, 0], -X[:, 0])
    model = RLPRegressor(**QUICK | {"max_iter": 60})
    heavy = model.fit(X, y, sample_weight=np.where(kind, 1.0, 0.01))
    assert heavy.score(X[kind == 1], y[kind == 1]) > 0.8
    some = clone(model).fit(X, y, sample_weight=kind.astype(float))
    alone = clone(model).fit(X[kind == 1], y[kind == 1])
    assert np.array_equal(some.predict(X), alone.predict(X))


@pytest.mark.parametrize("estimator", [RLPRegressor, RLPClassifier])
def test_the_scaling_counts_a_row_as_often_as_its_weight(estimator):
    for seed in range(5):
        rng = np.random.default_rng([SEED, seed])
        X, y = rng.lognormal(size=(40, 3)), np.arange(40) % 2
        weight = rng.integers(1, 5, size=40)
        X_often, y_often = np.repeat(X, weight, axis=0), np.repeat(y, weight)
        model = estimator(**QUICK | {"max_iter": 1}).fit(X, y, sample_weight=weight)
        scaling = model.scaling_
        assert_close(scaling.x_mean, X_often.mean(axis=0))
        assert_close(scaling.x_scale, X_often.std(axis=0))
        if estimator is RLPRegressor:
            assert_close(scaling.y_mean, y_often.mean(keepdims=True))
            assert_close(scaling.y_scale, y_often.std(keepdims=True))


def test_weights_of_classes():
    X, y = load_breast_cancer(return_X_y=True)
    base = RLPClassifier(**QUICK)
    shares = [
        (base.fit(X, y, sample_weight=np.where(y, w, 1.0)).predict(X) == 1).mean()
        for w in (0.02, 1.0, 50.0)
    ]
    assert shares[0] < shares[1] < shares[2]


def test_weights_and_mixup():
    X, y = linear()
    with pytest.raises(ValueError, match="sample_weight has no meaning for mixup"):
        RLPRegressor(mixup=0.25, **QUICK).fit(X, y, sample_weight=np.linspace(1, 2, len(X)))


def test_too_few_weighted_rows():
    X, y = linear()
    with pytest.raises(
        ValueError, match="sample_weight must be above 0 for at least two rows, got 1"
    ):
        RLPRegressor(**QUICK).fit(X, y, sample_weight=np.eye(len(X))[0])


# Going on


def test_warm_start_goes_on():
    X, y = linear()
    one = RLPRegressor(warm_start=True, **QUICK).fit(X, y)
    first, n = one.loss_, one.n_iter_
    one.fit(X, y)
    assert one.n_iter_ > n
    assert one.loss_ < first
    cold = RLPRegressor(**QUICK).fit(X, y)
    assert cold.fit(X, y).loss_ == first


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_parts_of_a_training_are_the_whole(seed):
    """All rows in one batch have no order: what goes on has weights, scaling and Adam's averages."""
    X, y = linear()
    settings = {"loss": "mse", "batch_size": len(X), "n_iter_no_change": 99, "random_state": seed}
    whole = RLPRegressor(max_iter=6, **settings).fit(X, y)
    parts = RLPRegressor(max_iter=2, warm_start=True, **settings)
    for _ in range(3):
        parts.fit(X, y)
    steps = RLPRegressor(**settings)
    for _ in range(6):
        steps.partial_fit(X, y)
    for model in (parts, steps):
        assert_close(model.loss_curve_, whole.loss_curve_, rtol=1e-9)
        assert_close(model.predict(X), whole.predict(X), rtol=1e-9)


def test_warm_start_takes_a_new_learning_rate():
    X, y = linear()
    model = RLPRegressor(warm_start=True, **QUICK).fit(X, y)
    before = model.predict(X)
    model.set_params(learning_rate_init=1e-12, alpha=0.0).fit(X, y)
    assert_close(model.predict(X), before, rtol=1e-6)


def test_training_that_fails_leaves_the_estimator_as_it_was():
    X, y = linear()
    model = RLPRegressor(**QUICK).fit(X, y)
    before, n = model.predict(X), model.n_iter_
    with pytest.raises(DivergenceError):
        model.set_params(learning_rate_init=1e30).fit(X, y)
    with pytest.raises(DivergenceError):
        model.set_params(warm_start=True).fit(X, y)
    assert np.array_equal(model.predict(X), before)
    assert model.n_iter_ == n


def test_partial_fit_adds_iterations():
    X, y = linear()
    model = RLPRegressor(**QUICK)
    for part in np.array_split(np.arange(120), 4) * 10:
        model.partial_fit(X[part], y[part])
    assert model.n_iter_ == 40
    assert model.score(X, y) > 0.8


def test_partial_fit_of_classes():
    X, y = IRIS
    model = RLPClassifier(loss="cross_entropy", **QUICK)
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        model.partial_fit(X, y)
    model.partial_fit(X[:60], y[:60], classes=[0, 1, 2])
    assert model.predict_proba(X).shape == (150, 3)
    for _ in range(30):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.9
    with pytest.raises(ValueError, match="classes must be the same in every call"):
        model.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="y must hold classes seen at first"):
        model.partial_fit(X, y + 1)


def test_early_stopping_keeps_the_best():
    X, y = DIABETES
    model = RLPRegressor(
        loss="mse", early_stopping=True, validation_fraction=0.2, random_state=SEED
    ).fit(X, y)
    assert model.n_iter_ < model.max_iter
    assert model.n_iter_ == len(model.validation_scores_)
    assert max(model.validation_scores_) - 2 * model.tol < model.best_validation_score_
    held = train_test_split(np.arange(len(X)), test_size=0.2, random_state=model._seed())[1]
    assert_close(model.score(X[held], y[held]), model.best_validation_score_, rtol=1e-4)


@pytest.mark.parametrize("patience", [1, 7])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_training_stops_after_n_iter_no_change_iterations_without_improvement(
    early_stopping, patience
):
    """The first iteration improves on nothing at all; with a step of zero none after it does."""
    X, y = DIABETES
    settings = {
        "early_stopping": early_stopping,
        "n_iter_no_change": patience,
        "random_state": SEED,
    }
    settings |= {"learning_rate_init": 1e-12, "batch_size": 500}  # all rows: the loss stands still
    for model in (
        RLPRegressor(loss="mse", **settings).fit(X, y),
        RLPClassifier(loss="cross_entropy", **settings).fit(*IRIS),
    ):
        assert model.n_iter_ == 1 + patience


@pytest.mark.parametrize("early_stopping", [False, True])
def test_the_stopping_rule_is_the_same_for_loss_and_validation_error(early_stopping):
    """Counted by hand from the curve that is watched: improvement is tol below the lowest value so
    far."""
    X, y = DIABETES
    model = RLPRegressor(
        loss="mse", tol=1e-3, n_iter_no_change=4, early_stopping=early_stopping, random_state=SEED
    )
    model.fit(X, y)
    watched = model.loss_curve_
    if early_stopping:
        held = train_test_split(np.arange(len(X)), test_size=0.1, random_state=model._seed())[1]
        variance = model.scaling_.targets(y[held, None]).var()
        watched = [(1 - score) * variance for score in model.validation_scores_]
    lowest, waited = np.inf, 0
    for value in watched:
        assert waited < 4
        waited = waited + 1 if value > lowest - model.tol else 0
        lowest = min(lowest, value)
    assert len(watched) == model.n_iter_ < model.max_iter
    assert waited == 4


@pytest.mark.parametrize("loss", ["rlp", "cross_entropy"])
def test_early_stopping_of_classes_watches_probabilities(loss):
    X, y = IRIS
    settings = {
        "loss": loss,
        "early_stopping": True,
        "validation_fraction": 0.3,
        "random_state": SEED,
    }
    model = RLPClassifier(**settings).fit(X, y)
    held = train_test_split(
        np.arange(len(X)), test_size=0.3, random_state=model._seed(), stratify=y
    )[1]
    assert model.score(X[held], y[held]) == model.best_validation_score_
    assert model.n_iter_ == len(model.validation_scores_)
    assert (
        model.score(X, y) > 0.8
    )  # stopped by accuracy, which stands still at first, it would stay at 0.7


def test_validation_rows_keep_the_shares_of_the_classes():
    y = np.repeat([0, 1, 2], [60, 24, 12])
    data = Data(np.arange(96.0).reshape(96, 1), y, None)
    for seed in range(20):
        train, held = RLPClassifier(validation_fraction=0.25)._hold_out(data, seed)
        assert np.bincount(held.target).tolist() == [15, 6, 3]
        assert sorted([*train.X[:, 0], *held.X[:, 0]]) == list(range(96))
        assert (y[held.X[:, 0].astype(int)] == held.target).all()


# Randomness


def test_random_state_decides_everything_and_nothing_global_moves():
    X, y = linear(60)
    np.random.seed(5)  # noqa: NPY002 - the global state
    torch.manual_seed(5)
    before = (np.random.get_state()[1].tolist(), torch.get_rng_state(), random.getstate())  # noqa: NPY002 - the global state
    threads = torch.get_num_threads()
    RLPRegressorCV(cv=2, max_iter=1, max_doublings=0, random_state=SEED).fit(X, y)
    a, b = (RLPRegressor(**QUICK).fit(X, y).predict(X) for _ in range(2))
    assert np.array_equal(a, b)
    one, two = (
        RLPRegressor(**QUICK | {"random_state": None}).fit(X, y).predict(X) for _ in range(2)
    )
    assert not np.array_equal(one, two)
    assert not np.array_equal(
        a, RLPRegressor(**QUICK | {"random_state": SEED + 1}).fit(X, y).predict(X)
    )
    assert np.random.get_state()[1].tolist() == before[0]  # noqa: NPY002 - the global state
    assert torch.equal(torch.get_rng_state(), before[1])
    assert random.getstate() == before[2]
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("seed", range(0, 100, 9))
def test_any_seed_learns(seed):
    X, y = linear(100, seed=seed)
    model = RLPRegressor(max_iter=60, learning_rate_init=0.01, random_state=seed).fit(X, y)
    assert model.score(X, y) > 0.9
    classes = RLPClassifier(max_iter=30, learning_rate_init=0.01, random_state=seed).fit(*IRIS)
    assert classes.score(*IRIS) > 0.9


# In company


def test_in_scikit_learn_company():
    X, y = linear()
    quick = RLPRegressor(**QUICK | {"max_iter": 40})
    pipe = make_pipeline(StandardScaler(), quick)
    assert cross_val_score(pipe, X, y, cv=3).mean() > 0.8
    search = GridSearchCV(quick, {"subset_size": ["auto", 0.5], "alpha": [0.0, 0.1]}, cv=2).fit(
        X, y
    )
    assert set(search.best_params_) == {"subset_size", "alpha"}
    target = TransformedTargetRegressor(quick, func=np.cbrt, inverse_func=lambda t: t**3).fit(X, y)
    assert target.score(X, y) > 0.8
    voting = VotingRegressor([("a", quick), ("b", RLPRegressor(loss="mse", **QUICK))]).fit(X, y)
    assert voting.predict(X).shape == (120,)


def test_copies_predict_the_same(tmp_path):
    X, y = linear()
    model = RLPRegressor(**QUICK).fit(X, y)
    wanted = model.predict(X)
    joblib.dump(model, tmp_path / "model.joblib")
    for other in (
        pickle.loads(pickle.dumps(model)),
        copy.deepcopy(model),
        joblib.load(tmp_path / "model.joblib"),
    ):
        assert np.array_equal(other.predict(X), wanted)
        other.partial_fit(X, y)
    assert np.array_equal(model.predict(X), wanted)
    with pytest.raises(NotFittedError):
        clone(model).predict(X)
    same = joblib.Parallel(n_jobs=2, backend="threading")(
        joblib.delayed(clone(model).fit)(X, y) for _ in range(2)
    )
    assert all(np.isfinite(one.predict(X)).all() for one in same)


# Export


@pytest.mark.parametrize("kind", ["one", "many", "classes", "logits"])
def test_to_torch_gives_the_same_numbers(kind):
    X, y = linear()
    if kind in ("classes", "logits"):
        loss = "rlp" if kind == "classes" else "cross_entropy"
        model = RLPClassifier(loss=loss, **QUICK).fit(X, y > np.median(y))
        wanted = model.predict_proba(X)
    else:
        model = RLPRegressor(**QUICK).fit(X, y if kind == "one" else np.column_stack([y, y**2]))
        wanted = model.predict(X)
    module = model.to_torch()
    assert isinstance(module, torch.nn.Module)
    assert np.array_equal(module(torch.tensor(X)).detach().numpy(), wanted)
    small = model.to_torch(torch.float32)
    assert_close(
        small(torch.tensor(X, dtype=torch.float32)), wanted, dtype=torch.float32, rtol=2e-3
    )
    for p in module.parameters():  # a copy
        p.data.zero_()
    assert np.array_equal(model.to_torch()(torch.tensor(X)).detach().numpy(), wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["one", "many", "classes", "logits", "ensemble"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_to_torch_exports_to_onnx(kind, dtype, tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    X, y = linear(60)
    if kind in ("classes", "logits"):
        loss = "rlp" if kind == "classes" else "cross_entropy"
        model = RLPClassifier(loss=loss, **QUICK).fit(X, y > np.median(y))
    elif kind == "ensemble":
        model = RLPRegressorCV(cv=2, max_iter=5, hidden_layer_sizes=(16,), random_state=SEED).fit(
            X, y
        )
    else:
        model = RLPRegressor(**QUICK).fit(X, y if kind == "one" else np.column_stack([y, -y]))
    wanted = model.predict_proba(X) if kind in ("classes", "logits") else model.predict(X)
    torch.onnx.export(
        model.to_torch(dtype),
        (torch.tensor(X[:2], dtype=dtype),),
        tmp_path / "model.onnx",
        input_names=["X"],
        output_names=["y"],
        dynamic_axes={"X": {0: "rows"}, "y": {0: "rows"}},
        dynamo=False,  # the newer exporter needs onnxscript
    )
    onnx.checker.check_model(onnx.load(tmp_path / "model.onnx"))
    rows = torch.tensor(X, dtype=dtype).numpy()
    (predicted,) = ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"X": rows})
    assert predicted.shape == wanted.shape
    assert_close(
        predicted, wanted, dtype=dtype, **({} if dtype == torch.float64 else {"rtol": 2e-3})
    )


# Bad settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "rpl"}, r'loss must be one of "rlp".*got \'rpl\'; did you mean "rlp"\?'),
        ({"subset_size": "most"}, 'subset_size must be one of "auto", got'),
        (
            {"subset_size": 1.5},
            r"subset_size, a fraction of the rows, must be in \[0, 1\], got 1.5",
        ),
        ({"subset_size": 0}, "subset_size must be at least 1, got 0"),
        ({"subset_size": 500}, "subset_size must be at most the number of rows 120, got 500"),
        (
            {"activation": "gelu"},
            'activation must be one of "relu", "tanh", "logistic", "identity", got',
        ),
        ({"hidden_layer_sizes": (5, 0)}, "hidden_layer_sizes must be at least 1, got 0"),
        ({"alpha": -1.0}, "alpha must be finite and at least 0, got -1.0"),
        ({"max_iter": 0}, "max_iter must be at least 1, got 0"),
        ({"tol": -1.0}, "tol must be finite and at least 0"),
        ({"n_iter_no_change": 0}, "n_iter_no_change must be at least 1"),
        ({"probe": "all"}, 'probe must be one of "subset"'),
        ({"batch_size": "all"}, 'batch_size must be one of "auto"'),
        (
            {"early_stopping": True, "validation_fraction": 0.99},
            "must leave at least two training rows, got 1 of n_samples=120",
        ),
    ],
)
def test_bad_settings(settings, message):
    X, y = linear()
    with pytest.raises(ValueError, match=message):
        RLPRegressor(**settings).fit(X, y)


def test_wrong_target():
    X, y = IRIS
    with pytest.raises(ValueError, match="at least two classes, got 1 class"):
        RLPClassifier().fit(X, np.zeros(len(X)))
    model = RLPRegressor(warm_start=True, **QUICK).fit(X, y)
    with pytest.raises(ValueError, match="y must have 1 outputs as before, got 2"):
        model.fit(X, np.column_stack([y, y]))


# What changes after fitting


def test_predictions_do_not_follow_a_loss_set_afterwards():
    X, y = IRIS
    model = RLPClassifier(**QUICK).fit(X, y)
    before = model.predict_proba(X)
    assert np.array_equal(model.set_params(loss="cross_entropy").predict_proba(X), before)
    with pytest.raises(ValueError, match="must stay as they were where training goes on"):
        model.set_params(warm_start=True).fit(X, y)


@pytest.mark.parametrize("change", [{"hidden_layer_sizes": (7,)}, {"activation": "tanh"}])
def test_a_warm_start_refuses_another_network(change):
    X, y = linear()
    model = RLPRegressor(warm_start=True, **QUICK).fit(X, y)
    with pytest.raises(ValueError, match="call fit with warm_start=False to begin anew"):
        model.set_params(**change).fit(X, y)
    assert model.predict(X).shape == y.shape


def test_partial_fit_goes_on_with_one_row():
    X, y = linear()
    model = RLPRegressor(**QUICK).partial_fit(X, y)
    assert model.partial_fit(X[:1], y[:1], sample_weight=[2.0]).n_iter_ == 2
    with pytest.raises(ValueError, match="at least one"):
        model.partial_fit(X[:1], y[:1], sample_weight=[0.0])


class StrangeFrame:
    """A frame whose names scikit-learn does not see, as polars' in older versions."""

    def __init__(self, values, columns):
        self.values, self.columns, self.shape = np.asarray(values), columns, np.shape(values)

    def to_numpy(self):
        return self.values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype=dtype)

    def __len__(self):
        return len(self.values)


def test_names_of_a_frame_that_scikit_learn_does_not_know():
    X = np.random.default_rng(0).normal(size=(30, 2))
    model = RLPRegressor(max_iter=2, random_state=0).fit(StrangeFrame(X, ["a", "b"]), X[:, 0])
    assert list(model.feature_names_in_) == ["a", "b"]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(StrangeFrame(X, ["b", "a"]))
