"""compare: fair by construction, honest in its answer, whole in its report."""

import itertools
import json
import math
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.datasets import load_diabetes, load_iris
from tests.seeds import SEED, paired_readings

from rlploss import RLP
from rlploss.compare import Comparison, TableError, arms, compare, report
from rlploss.compare.design import make_design
from rlploss.compare.rows import sample
from rlploss.compare.train import Trainer
from rlploss.estimators.table import TableEncoder
from rlploss.estimators.tuned import TunedRegressor
from rlploss.lab import stats
from rlploss.lab.text import LabError

QUICK = {"n_splits": 3, "steps": 60, "random_state": SEED}


def noisy_line(n=60, d=8, noise=0.5, seed=0):
    rng = np.random.default_rng([SEED, seed])
    X = rng.normal(size=(n, d))
    truth = X @ np.linspace(1, 2, d)
    return X, truth + noise * truth.std() * rng.normal(size=n)


# Honest


def test_where_rlp_cannot_help_it_says_so():
    """Noiseless, strongly nonlinear, many rows: the dial stays at MSE, and RLP is not called
    better."""
    rng = np.random.default_rng(SEED)
    X = rng.uniform(-2, 2, size=(800, 2))
    y = np.sin(3 * X[:, 0]) * np.cos(2 * X[:, 1])
    found = compare(X, y, arms=["mse", "rlp"], n_splits=3, steps=500, random_state=SEED)
    rlp = found.results.arm("rlp")
    stays, of = rlp.at_mse, len(rlp.predicted)
    assert (stays, of) == (3, 3)
    assert "RLP's dial stayed at MSE in 3 of 3 splits" in found.summary()
    assert "RLP adds nothing" in found.summary()
    assert "RLP is better than MSE" not in found.summary()


def test_label_noise_on_a_linear_truth_with_few_rows_moves_the_dial():
    X, y, _ = paired_readings()
    found = compare(X, y, arms=["mse", "rlp"], n_splits=5, steps=500, random_state=SEED)
    rlp = found.results.arm("rlp")
    stays, of = rlp.at_mse, len(rlp.predicted)
    assert of == 5
    assert stays < of / 2


def test_without_networks_the_first_model_is_compared_not_the_mean():
    X, y = noisy_line(60, noise=0.1)
    found = compare(X, y, arms=["mean", "ridge"], n_splits=4, random_state=SEED)
    assert found.answer().ours.name == "ridge"
    assert found.lines()[1].startswith("Ridge regression is better than the mean by")
    assert "class frequencies" not in found.summary()


def test_the_rows_of_windows_are_told_as_they_are():
    X, y = noisy_line(100)
    facts = dict(report.facts(compare(X, y, arms=["mean", "ridge"], n_splits=2)))
    assert facts["Splits"] == "2, the same for every arm: 75 training and 25 test rows"
    timed = compare(pd.DataFrame(X).assign(day=range(100)), y, time="day", arms=["mean", "ridge"])
    told = "5, the same for every arm: 50 to 90 training and 10 test rows, windows of time"
    assert dict(report.facts(timed))["Splits"] == told


# Fair


def contender(task, name):
    return next(one for one in arms.arms_for(task) if one.name == name)


def trainer(task="regression", n=80):
    X, y = noisy_line(n)
    if task == "regression":
        return Trainer.of_numbers(X, y, task)
    return Trainer.of_numbers(X, (y > np.quantile(y, 0.7)).astype(np.int64), task, 2)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_every_network_tries_the_same_number_of_settings(task):
    for arm in arms.arms_for(task, losses={"mine": lambda pred, target: (pred - target) ** 4}):
        if arm.takes_steps:
            assert len(set(settings(arm))) == arms.N_SETTINGS
    named = {arm.name: settings(arm) for arm in arms.arms_for(task) if arm.takes_steps}
    for pick in ("learning_rate", "alpha"):
        wide, narrow = ({getattr(s, pick) for s in named[name]} for name in ("rlp+l2", "mse+l2"))
        assert wide == narrow


def settings(arm, n=100, d=5):
    """What a network tries with so many rows in a fold."""
    arm.estimator.n_features_in_ = d
    return arm.estimator._settings(n, (False,))


def test_both_ends_of_the_dial_are_tried():
    for name in ("rlp", "rlp+l2", "rlp+mixup"):
        tried = [setting.subset_size for setting in settings(contender("regression", name))]
        assert 6 in tried  # MSE: five columns and the intercept
        assert 100 in tried  # all rows


def test_each_place_on_the_dial_meets_three_weight_decays():
    tried = settings(contender("regression", "rlp+l2"))
    for size in {setting.subset_size for setting in tried}:
        assert len({setting.alpha for setting in tried if setting.subset_size == size}) == 3


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_splits_are_the_same_for_every_arm_and_apart(task):
    one = trainer(task)
    for first, second in zip(one.split(3), one.split(3), strict=True):
        assert np.array_equal(first, second)
    train, test = one.split(3)
    assert sorted([*train, *test]) == list(range(len(one.X)))


class Logged(RegressorMixin, BaseEstimator):
    """A mean that knows which rows it has seen: the first column numbers them."""

    fitted, scored = [], []

    def fit(self, X, y):
        Logged.fitted.append(set(np.asarray(X)[:, 0].astype(int)))
        self.mean_ = np.mean(y)
        return self

    def predict(self, X):
        Logged.scored.append(np.asarray(X)[:, 0].astype(int).tolist())
        return np.full(len(X), self.mean_)


class LoggedEncoder(TableEncoder):
    """Leaves numbers as they are, and knows which rows it was fitted to."""

    def fit_transform(self, X, y=None):
        Logged.fitted.append(set(X["row"].astype(int)))
        return self.transform(X)

    def transform(self, X):
        return X[["row"]].to_numpy()


@pytest.mark.parametrize("split", [{}, {"time": "t"}, {"group": "g"}])
def test_every_test_row_is_scored_once_and_never_fitted(split, monkeypatch):
    """In every fit, every fold and every encoding."""
    n = 120
    frame = pd.DataFrame({"row": np.arange(n) + 0.5})
    frame["t"] = np.arange(n)[::-1] + 1000.5
    frame["g"] = [f"g{i % 30}" for i in range(n)]
    y = np.random.default_rng(SEED).normal(size=n)
    monkeypatch.setattr("rlploss.compare.design.TableEncoder", LoggedEncoder)
    tuned = TunedRegressor(Logged(), [{}, {}])
    splits = {} if "time" in split else {"n_splits": 3}
    found = compare(frame, y, arms=["mean"], models={"logged": tuned}, **split, **splits)
    for seed in found.seeds:
        Logged.fitted.clear()
        Logged.scored.clear()
        found.rows.train(found.arms[-1], seed)
        train, test = (rows.tolist() for rows in found.rows.split(seed))
        assert all(rows <= set(train) for rows in Logged.fitted)
        assert sum(rows == set(train) for rows in Logged.fitted) == 2  # encoding and model
        assert Logged.scored[-1] == test
        assert not {row for rows in Logged.scored[:-1] for row in rows} & set(test)
        assert len(Logged.fitted) == len(Logged.scored) + 1 > 2  # folds were fitted too


def test_the_test_rows_decide_nothing():
    """Other targets in the test rows: the same choices, the same curves, other errors."""
    one = trainer()
    arm = contender("regression", "rlp")
    cell = one.cell(arm, 0, 40)
    _, test = one.split(0)
    changed = one.y.copy()
    changed[test] += 100.0
    X = one.X.copy()
    X[test] *= 3
    first, second = (
        t(cell, lambda _: None).networks[0]
        for t in (one, Trainer.of_numbers(X, changed, "regression"))
    )
    for name in ("subset_size", "n_steps"):
        assert first.values[name] == second.values[name]
    assert first.curve == second.curve
    assert np.array_equal(first.artifacts["errors"], second.artifacts["errors"])
    assert first.values["rmse"] != second.values["rmse"]


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_an_arm_measures_what_its_predictions_say(task):
    one = trainer(task)
    for arm in arms.arms_for(task, steps=10):
        runs = one(one.cell(arm, 0, 10), lambda fraction: None).networks
        assert [run.seed for run in runs] == [0]
        _, test = one.split(0)
        truth, predicted = one.y[test], runs[0].artifacts["test"]
        if task == "regression":
            rmse = float(np.sqrt(np.mean(predicted[:, 0] ** 2)))  # its errors are kept
            assert runs[0].values["rmse"] == pytest.approx(rmse, rel=1e-4)
        else:
            np.testing.assert_allclose(predicted.sum(1), 1.0, rtol=1e-5)
            assert runs[0].values["accuracy"] == pytest.approx(
                np.mean(predicted.argmax(1) == truth)
            )


def test_classes_are_spread_over_all_parts():
    one = trainer("classification")
    share = one.y.mean()
    for part in one.split(0):
        assert abs(one.y[part].mean() - share) < 0.06


def test_missing_values_are_filled_from_the_training_rows():
    X, y = noisy_line(80)
    X[::7, 0] = np.nan
    one = Trainer.of_numbers(X, y, "regression")
    train, test = one.split(0)
    arm = contender("regression", "mean")
    scaled = one.fit(arm, train, 0)[0].transform(X[test])
    known = X[train, 0]
    filled = np.where(np.isnan(known), np.nanmedian(known), known)
    middle = (np.nanmedian(known) - filled.mean()) / filled.std()
    np.testing.assert_allclose(scaled[np.isnan(X[test, 0]), 0], middle, atol=1e-12)


# Whole


@pytest.fixture(scope="module")
def found():
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    X = X.iloc[:150].copy()
    X["sex"] = np.where(X["sex"] > 0, "female", "male")
    X.loc[X.index[::9], "bmi"] = np.nan
    arms = ["mse", "rlp", "mean", "ridge"]
    return compare(X, y[:150], arms=arms, **QUICK)


def test_the_table(found):
    assert isinstance(found.table, pd.DataFrame)
    assert len(found.table) == 4
    plain = found.table.set_index("arm")
    assert plain.loc["RLP", "rmse"] == pytest.approx(found.values("rlp").mean())
    assert (plain["rmse_low"] <= plain["rmse"]).all()
    assert plain.loc["MSE", "verdict"] in ("better", "worse", "level", "undecided")
    assert pd.isna(plain.loc["RLP", "p"])
    c = stats.compare(found.values("mse"), found.values("rlp"))
    assert plain.loc["MSE", "effect"] == pytest.approx(c.effect)
    assert (plain["p_holm"].dropna() >= plain["p"].dropna()).all()


def test_the_summary_is_three_lines(found):
    text = found.summary()
    assert "on this table" in text
    assert len(text.splitlines()) == 3
    assert repr(found).endswith(text)


def test_the_report(found, tmp_path):
    page = found.write(tmp_path / "out")
    text = page.read_text()
    assert text.index("on this table") < text.index("<table")  # the answer first
    for words in (
        "The dial",
        "Predictions against truth",
        "The columns",
        "rlploss predict DIR new.csv",
        "17 missing filled with the median, and a column that says where",
    ):
        assert words in text
    assert not re.search(r'\b(src|href)="(?!#|data:|tables/|figures/)', text)  # loads nothing
    for name in ("tables/results.csv", "tables/columns.md", "figures/dial.svg",
                 "figures/arms.svg", "figures/predictions.svg"):  # fmt: skip
        assert (tmp_path / "out" / name).stat().st_size > 0
    data = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert data["summary"] == found.summary()
    assert len(data["results"]) == 4
    assert data["dial"]["splits"] == 3
    assert {c["name"]: c["kind"] for c in data["columns"]}["sex"] == "category"


@pytest.mark.parametrize("name", ["rlp", "rlp+l2", "rlp+mixup"])
def test_every_setting_is_one_that_can_be_trained(name):
    """No more subsets than there are, whatever the number of rows and columns."""
    arm = contender("regression", name)
    for n, d in itertools.product(range(12, 60), range(1, 40, 2)):
        for setting in settings(arm, n, d):
            objective = arm.estimator._objective(setting, n)
            if isinstance(objective, RLP):
                assert objective.n_subsets <= math.comb(n, objective.subset_size)


def test_the_fewest_rows():
    X, y = noisy_line(24, d=3)
    found = compare(X, y, arms=["mse", "rlp"], n_splits=2, steps=20, random_state=SEED)
    assert len(found.table) == 2


def test_a_target_named_like_a_column_of_numbers_takes_no_place():
    X, y = noisy_line(40, d=3)
    found = compare(pd.DataFrame(X), pd.Series(y, name=1), arms=["mean", "ridge"], n_splits=2)
    assert found.design.frame.shape == (40, 3)
    assert found.design.target.name == "1 (target)"


def test_sparse_rows_are_refused_with_the_remedy():
    from scipy import sparse

    with pytest.raises(ValueError, match=r"X must be dense, got a sparse matrix; pass X\.toarray"):
        compare(sparse.eye(40).tocsr(), np.arange(40))


def test_classes():
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = y.map({0: "setosa", 1: "versicolor", 2: "virginica"}).rename("species")
    found = compare(
        X,
        names,
        arms=["cross_entropy", "rlp", "prior", "logistic"],
        n_splits=3,
        steps=200,
        random_state=SEED,
    )
    assert found.task == "classification"
    table = found.table.set_index("arm")
    assert table.loc["RLP", "accuracy"] > 0.85
    assert table.loc["the class frequencies", "accuracy"] < 0.5
    assert "points" in found.summary()


def test_polars_and_arrays():
    X, y = noisy_line(40)
    frame = pl.DataFrame(X, schema=[f"c{i}" for i in range(8)])
    ours = compare(frame, pl.Series("t", y), arms=["mean", "ridge"], **QUICK)
    plain = compare(X, y[:, None], arms=["mean", "ridge"], **QUICK)
    assert np.array_equal(ours.values("ridge"), plain.values("ridge"))
    assert ours.design.target.name == "t"


def test_what_is_stored_is_not_trained_again(tmp_path, monkeypatch):
    X, y = noisy_line(40)
    design = make_design(pd.DataFrame(X).rename(columns=str).assign(y=y), "y")
    first = compare(design, arms=["mse", "rlp"], out=tmp_path / "out", **QUICK)

    def nobody(self, cell, tell):
        raise AssertionError("nothing is left to train")

    monkeypatch.setattr(Trainer, "__call__", nobody)
    again = compare(design, arms=["mse", "rlp"], out=tmp_path / "out", **QUICK)
    assert np.array_equal(first.values("rlp"), again.values("rlp"))
    assert isinstance(again, Comparison)


def test_what_a_stopped_comparison_has_left_is_announced(tmp_path, monkeypatch, capsys):
    """Networks have their first three splits apart: they are not all of it, unless a network ended
    there."""
    X, y = noisy_line(40)
    asked = {
        "arms": ["mse", "mae", "rlp"],
        "steps": 20,
        "n_splits": 6,
        "out": tmp_path / "out",
        "progress": True,
    }
    train = Trainer.train

    def stops(self, arm, seed):
        if seed > 2:
            raise KeyboardInterrupt
        return train(self, arm, seed)

    monkeypatch.setattr(Trainer, "train", stops)
    with pytest.raises(KeyboardInterrupt):
        compare(X, y, **asked)
    assert "3 arms × 6 splits: about" in capsys.readouterr().err
    monkeypatch.setattr(Trainer, "train", train)
    compare(X, y, **asked)
    assert re.search(r"3 arms × 6 splits(, 1 trained already)?: about", capsys.readouterr().err)
    compare(X, y, **asked)
    assert "3 arms × 6 splits, 3 trained already." in capsys.readouterr().err


def test_large_tables_are_sampled_and_it_says_so():
    X, y = noisy_line(300)
    found = compare(X, y, arms=["mean", "ridge"], max_rows=100, **QUICK)
    assert len(found.rows.X) == 100
    from rlploss.compare.report import rows_said

    assert "100 of 300 rows are used, a random sample; --max-rows changes that." in rows_said(found)


def test_a_sample_keeps_every_class():
    y = np.repeat([0, 1, 2], [1900, 92, 8])
    design = make_design(
        pd.DataFrame({"a": np.random.default_rng(SEED).normal(size=2000), "y": y}), "y"
    )
    kept = y[sample(design, 100, SEED)]
    assert np.bincount(kept).tolist() == [95, 8, 8]


@pytest.mark.parametrize("n_train", [15, 400])
def test_classes_of_few_rows_can_be_trained_on(n_train):
    """Ten classes of 1 or 2 rows; a class of which one row of 400 is left."""
    X, y = np.random.default_rng(SEED).normal(size=(700, 3)), np.arange(700) % 10
    if n_train > 15:
        y[1:n_train] = np.arange(1, n_train) % 9 + 1

    class FirstRows(Trainer):
        def split(self, seed):
            return np.arange(n_train), np.arange(n_train, 700)

    one = FirstRows.of_numbers(X, y, "classification", 10)
    run = one(
        one.cell(contender("classification", "logistic"), SEED, 10), lambda fraction: None
    ).networks[0]
    assert 0 <= run.values["accuracy"] <= 1


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 20}, "a comparison needs at least 24 rows to split, got 20; add rows"),
        ({"arms": ["rlp"]}, "arms must name at least two different arms to compare, got rlp"),
        ({"arms": ["rpl", "mse"]}, "arms must be one of .*got 'rpl'; did you mean \"rlp\"?"),
        ({"n_splits": 1}, "n_splits must be at least 2"),
        ({"n_splits": 0}, "n_splits must be at least 2, got 0"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"workers": "many"}, 'workers must be "inline"'),
        ({"task": "ranking"}, 'task must be one of "auto"'),
    ],
)
def test_bad_requests(change, message):
    change = dict(change)
    X, y = noisy_line(change.pop("n", 60))
    with pytest.raises(ValueError, match=message):
        compare(X, y, **{"arms": ["mse", "rlp"], **QUICK, **change})


def test_bad_data():
    X, y = noisy_line(40)
    with pytest.raises(
        TableError, match="every class needs at least 8 rows to be split, but class '1' has 3"
    ):
        compare(X, [1] * 3 + [0] * 37)
    with pytest.raises(
        ValueError, match=r"X must have two dimensions \(rows, columns\), got shape \(40,\)"
    ):
        compare(X[:, 0], y)
    with pytest.raises(
        TableError, match=r"y must have one value per row of X, got shape \(39,\) for 40 rows"
    ):
        compare(X, y[:-1])


def test_an_arm_that_fails_is_left_out_with_its_reason(monkeypatch):
    X, y = noisy_line(40)

    train = Trainer.train

    def broken(self, arm, seed):
        if arm.name == "ridge":
            raise ValueError("no such luck")
        return train(self, arm, seed)

    monkeypatch.setattr(Trainer, "train", broken)
    found = compare(X, y, arms=["mse", "ridge", "mean"], **QUICK)
    assert [one.name for one in found.arms] == ["mean", "mse"]
    assert found.notes == (
        "Left out, because it could not be trained: ridge regression (ValueError: no such luck).",
    )
    with pytest.raises(
        LabError, match="1 of 2 arms could not be trained: ValueError: no such luck"
    ):
        compare(X, y, arms=["mse", "ridge"], **QUICK)


def test_an_arm_that_fails_after_its_first_splits_is_left_out_whole(monkeypatch):
    X, y = noisy_line(60)
    train = Trainer.train

    def later(self, arm, seed):
        if arm.name == "huber" and seed > SEED + 2:
            raise ValueError("no such luck")
        return train(self, arm, seed)

    monkeypatch.setattr(Trainer, "train", later)
    found = compare(
        X,
        y,
        arms=["mse", "huber"],
        losses={"mine": lambda p, t: (p - t) ** 2},
        **QUICK | {"n_splits": 6},
    )
    assert [one.name for one in found.arms] == ["mse", "mine"]
    assert "Huber (ValueError: no such luck)" in found.notes[-1]
