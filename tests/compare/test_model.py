"""The model to keep: the same numbers through the file, on strange new rows, without pickle."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.inspection import permutation_importance
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline
from tests.seeds import SEED

from rlploss.cli import run
from rlploss.compare import TableError, arms, compare, load
from rlploss.compare.model import save


def frame(n=80):
    rng = np.random.default_rng(SEED)
    size, day = rng.uniform(1, 5, n), rng.integers(0, 900, n)
    city = rng.choice(["Rome", "Oslo", "Bern"], n)
    price = 10 * size + 0.02 * day + 5 * (city == "Oslo") + 0.1 * rng.normal(size=n)
    sold = pd.to_datetime("2019-01-05") + pd.to_timedelta(day, unit="D")
    columns = {
        "sold": sold.strftime("%d.%m.%Y"),
        "size": [f"{v:.2f}".replace(".", ",") for v in size],
        "city": city,
    }
    return pd.DataFrame({**columns, "price": price})


def target(task):
    table = frame()
    return (
        table["price"]
        if task == "regression"
        else (table["price"] > table["price"].median()).map({True: "dear", False: "cheap"})
    )


CASES = [("regression", arm.name) for arm in arms.arms_for("regression")] + [
    ("classification", name)
    for name in ("prior", "logistic", "boosting", "trees", "cross_entropy", "mse", "rlp")
]


@pytest.mark.parametrize(("task", "name"), CASES)
def test_every_arm_is_kept_to_the_bit(task, name, tmp_path, monkeypatch):
    X, y = frame().drop(columns="price"), target(task)
    other = "mean" if task == "regression" else "prior"
    chosen = [name, other if name != other else "ridge" if task == "regression" else "logistic"]
    monkeypatch.setattr("rlploss.compare.arms.RATES", (3e-3,))
    found = compare(X, y, arms=chosen, n_splits=2, steps=20, random_state=SEED)
    model = _trained(found, name)
    assert isinstance(model, Pipeline)
    save(model, tmp_path / "model", {})
    again = load(tmp_path)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    part = X.iloc[40:50]  # dates do not restart, numbers are read in the table's way
    if task == "regression":
        np.testing.assert_allclose(again.predict(part), model.predict(X)[40:50], rtol=1e-9)
    if task == "classification":
        np.testing.assert_allclose(again.predict_proba(X).sum(1), 1.0, rtol=1e-6)
        assert set(again.predict(X)) <= {"cheap", "dear"}


def _trained(found, name):
    """The model of an arm as if it were the best."""
    with pytest.MonkeyPatch.context() as patch:
        best = next(arm for arm in found.arms if arm.name == name)
        patch.setattr(type(found), "answer", lambda self: SimpleNamespace(best=best))
        return found.best_model()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A directory of the command, and its table."""
    place = tmp_path_factory.mktemp("kept")
    frame().to_csv(place / "t.csv", index=False, sep=";")
    words = ["--splits", "2", "--arms", "ridge,mean", "--workers", "inline", "--quiet"]
    assert (
        run(
            [
                "compare",
                str(place / "t.csv"),
                "--target",
                "price",
                "--out",
                str(place / "out"),
                *words,
            ]
        )
        == 0
    )
    return place


def test_the_same_rows_have_the_same_predictions_through_the_file(kept):
    table = frame()
    whole = load(kept / "out").predict(table)
    assert np.corrcoef(whole, table["price"])[0, 1] > 0.98
    rows = table.sort_values("price").iloc[5:30]
    rows.drop(columns="price").to_csv(kept / "part.csv", index=False)
    assert (
        run(["predict", str(kept / "out"), str(kept / "part.csv"), "--out", str(kept / "p.csv")])
        == 0
    )
    through = pd.read_csv(kept / "p.csv")["prediction"]
    np.testing.assert_allclose(through, whole[rows.index], rtol=1e-12)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_predictions_are_not_written_to_a_device(kept, capsys):
    frame().to_csv(kept / "new.csv", index=False)
    capsys.readouterr()
    assert run(["predict", str(kept / "out"), str(kept / "new.csv"), "--out", "/dev/full"]) == 2
    assert capsys.readouterr().err == ("rlploss: /dev/full is no plain file; choose another name\n")


@pytest.mark.filterwarnings("ignore::rlploss.estimators.table.TableWarning")
def test_strange_new_rows(kept, capsys):
    model = load(kept / "out")
    new = frame().drop(columns="price").iloc[:4, ::-1].reset_index(drop=True)
    plain = model.predict(new)
    new.loc[0, "city"] = "Paris"
    new.loc[1, "size"] = None
    new.loc[2, "sold"] = "soon"
    changed = model.predict(new)
    assert np.isfinite(changed).all()
    assert changed[3] == plain[3]
    assert (changed[:3] != plain[:3]).all()
    new.drop(columns=["size"]).to_csv(kept / "new.csv", index=False)
    assert run(["predict", str(kept / "out"), str(kept / "new.csv")]) == 0
    said = capsys.readouterr()
    assert "in new.csv column size is not there" in said.err
    assert said.out.splitlines()[0] == "prediction,lower,upper"
    assert len(said.out.splitlines()) == 5


def test_what_is_no_model_is_refused(kept, tmp_path):
    with pytest.raises(TableError, match="holds no model; give the directory"):
        load(tmp_path)
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(TableError, match="cannot be read"):
        load(tmp_path)
    files = sorted(p.name for p in (kept / "out" / "model").iterdir())
    assert files == ["expected.json", "model.json", "model.skops"]
    assert json.loads((kept / "out" / "model" / "model.json").read_text())["target_name"] == "price"


class Foreign(RegressorMixin, BaseEstimator):
    """An estimator of no package that is trusted."""

    def fit(self, X, y):
        self.mean_, self.n_features_in_ = float(np.mean(y)), X.shape[1]
        return self

    def predict(self, X):
        return np.full(len(X), self.mean_)


def test_a_foreign_winner_is_loaded_with_trust(tmp_path):
    X, y = frame().drop(columns="price"), frame()["price"]
    found = compare(X, y, arms=["mean"], models={"own": Foreign()}, n_splits=2)
    save(_trained(found, "own"), tmp_path / "model", {})
    package = Foreign.__module__.partition(".")[0]
    with pytest.raises(
        TableError, match=r"must hold only what rlploss saves, got .*Foreign.* with --trust"
    ):
        load(tmp_path)
    assert np.array_equal(load(tmp_path, trust=[package]).predict(X), np.full(len(X), y.mean()))


def test_what_cannot_be_kept_is_told(tmp_path):
    X, y = frame().drop(columns="price"), frame()["price"]
    model = _trained(compare(X, y, arms=["mean", "ridge"], n_splits=2), "ridge")
    model[-1].model_.secret = (value for value in ())  # a generator
    assert "The model is not kept: skops cannot write it" in save(model, tmp_path / "model", {})
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["ridge", "rlp", "trees", "rlp-cv"])
def test_the_model_is_a_plain_pipeline(name):
    """Raw frames in; it is scored, cloned, cross-validated, permuted, and fitted anew."""
    X, y = frame().drop(columns="price"), frame()["price"]
    found = compare(X, y, arms=["mean", name], n_splits=2, steps=200, random_state=SEED)
    model = _trained(found, name)
    assert isinstance(model, Pipeline)
    assert model.score(X, y) > 0.8
    again = clone(model).fit(X[:60], y[:60])
    assert again.score(X[60:], y[60:]) > 0.5
    assert cross_val_score(model, X, y, cv=2).min() > 0.3
    importance = permutation_importance(model, X, y, n_repeats=2, random_state=0)
    assert X.columns[importance.importances_mean.argmax()] == "size"


def test_models_of_older_versions_are_refused(tmp_path):
    (tmp_path / "model.json").write_text('{"rlploss": "0.2.0", "columns": []}')
    with pytest.raises(TableError, match="was kept by an older rlploss"):
        load(tmp_path)


@pytest.mark.filterwarnings("ignore::rlploss.estimators.table.TableWarning")
def test_what_is_missing_only_in_new_rows_is_the_median():
    X, y = frame().drop(columns="price"), frame()["price"]
    model = compare(X, y, arms=["mean", "ridge"], n_splits=2).best_model()
    size = X["size"].str.replace(",", ".").astype(float)
    middle = X.assign(size=f"{size.median():.6f}".replace(".", ","))
    np.testing.assert_allclose(
        model.predict(X.drop(columns="size")), model.predict(middle), rtol=1e-4
    )


def test_boosting_works_on_histograms_where_windows_have_many_rows():
    """The largest window decides for all, so that they are compared alike."""
    rng = np.random.default_rng(SEED)
    X = pd.DataFrame(rng.normal(size=(900, 2)), columns=["a", "b"]).assign(day=np.arange(900))
    found = compare(X, X["a"] * X["b"], time="day", arms=["mean", "boosting"])
    assert found.results.n_train[0] < arms.LARGE < found.results.n_train[-1]
    assert type(found.best_model()[-1].model_).__name__ == "HistGradientBoostingRegressor"


@pytest.mark.parametrize(
    ("low", "high"), [(False, True), (1.0, 2.0), (0.5, 1.5), (3, 10), ("1", "2"), ("cheap", "dear")]
)
def test_classes_come_back_as_they_were_given(low, high, tmp_path):
    X = frame().drop(columns="price")
    y = np.where(target("classification") == "dear", high, low)
    found = compare(X, y, task="classification", arms=["prior", "logistic"], n_splits=2)
    save(found.best_model(), tmp_path / "model", {})
    for model in (found.best_model(), load(tmp_path)):
        predicted = model.predict(X)
        assert predicted.dtype.kind == y.dtype.kind
        assert set(predicted.tolist()) == {low, high}


@pytest.mark.filterwarnings("ignore::rlploss.estimators.table.TableWarning")
def test_two_categories_and_a_third_in_new_rows():
    """What is neither of two counts as the more frequent, wherever it stands in the alphabet."""
    rng = np.random.default_rng(SEED)
    for often, seldom in (("a", "b"), ("b", "a")):
        city = np.where(np.arange(80) % 4 == 0, seldom, often)
        X = pd.DataFrame({"city": city, "size": rng.normal(size=80)})
        model = compare(
            X, (city == seldom) * 9 + X["size"], arms=["mean", "ridge"], n_splits=2
        ).best_model()
        told = {
            name: model.predict(pd.DataFrame({"city": [name], "size": [0.0]}))[0]
            for name in (often, "c", None)
        }
        assert told["c"] == told[None] == told[often]


def test_what_predict_cannot_read_is_told(kept, capsys):
    new = frame().drop(columns="price")
    new["size"] = "12 m"
    new.to_csv(kept / "comma.csv", index=False, sep=";")
    assert run(["predict", str(kept / "out"), str(kept / "comma.csv")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert (
        f"column size: {len(new)} of {len(new)} values are unlike the table's, not read as a number"
        " there" in said
    )


@pytest.mark.parametrize("damage", ["half", "flipped", "columns"])
def test_damaged_models_are_refused_in_a_sentence(kept, tmp_path, damage):
    for file in (kept / "out" / "model").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    estimator = tmp_path / "model.skops"
    data = estimator.read_bytes()
    if damage == "half":
        estimator.write_bytes(data[:500])
    elif damage == "flipped":
        estimator.write_bytes(data[:200] + bytes(255 - b for b in data[200:260]) + data[260:])
    else:
        model = load(tmp_path)
        model[0].columns_ = model[0].columns_[1:]
        estimator.write_bytes(skops.io.dumps(model))
    with pytest.raises(
        TableError, match=r"the model in .* cannot be read \(\w+: .*\); make it anew"
    ):
        load(tmp_path)
