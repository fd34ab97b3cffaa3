"""What a kept model promises: intervals that hold, probabilities that come true, columns that
matter, and what `predict` says when the truth is there."""

import json

import numpy as np
import pandas as pd
import pytest
from tests.seeds import SEED

from rlploss.cli import run
from rlploss.compare import compare
from rlploss.compare.evidence import expected_said
from rlploss.compare.expected import Expected, reliability, temperature
from rlploss.compare.importance import importance
from rlploss.compare.metrics import metric_of
from rlploss.compare.read import TableError
from rlploss.compare.report import build
from rlploss.compare.result import ArmResult, Results

RMSE, AUC = metric_of("regression", "rmse"), metric_of("classification", "auc")


def results_of(errors, *, log=False, n_rows=None):
    """Results of an arm with these errors [splits, test rows] around truths above 0."""
    truth = [np.linspace(1, 9, len(e)) for e in errors]
    predicted = [t * np.exp(-e) if log else t - e for t, e in zip(truth, errors, strict=True)]
    details = {"log": np.full(len(errors), float(log))}
    arm = ArmResult("a", "an arm", "model", [p[:, None] for p in predicted], [0.1] * len(errors),
                    details)  # fmt: skip
    return Results("regression", RMSE, (arm,), truth, [30] * len(errors), n_rows or errors.size)


@pytest.mark.parametrize("log", [False, True])
def test_the_quantile_is_that_of_finitely_many_rows(log):
    """Of 19 errors the largest is the 95 % quantile, the 18th is the 90 %."""
    errors = np.random.default_rng(SEED).permutation(np.r_[-0.01:-0.195:-0.01])[None]
    expected = Expected.of(results_of(errors, log=log), "a", target="y")
    assert expected.distance(0.95) == pytest.approx(0.19)
    assert expected.distance(0.9) == pytest.approx(0.18)
    low, high = expected.interval(np.array([2.0]), 0.9)
    if log:  # as far below as above in logarithms
        assert (low[0], high[0]) == pytest.approx((2 * np.exp(-0.18), 2 * np.exp(0.18)))
    else:
        assert (low[0], high[0]) == pytest.approx((2 - 0.18, 2 + 0.18))
    with pytest.raises(ValueError, match=r"at most 0\.950, which is what 19 test rows can promise"):
        expected.distance(0.96)


def test_rows_that_are_tested_again_promise_no_more():
    errors = np.random.default_rng(SEED).normal(size=(10, 40))
    once = Expected.of(results_of(errors), "a", target="y")
    again = Expected.of(results_of(errors, n_rows=40), "a", target="y")
    assert (once.n_rows, again.n_rows) == (400, 40)
    assert again.distance(0.9) > once.distance(0.9)
    assert "With 40 rows, fewer than 100, it may be less." in expected_said(again)[0]
    assert "may be less" not in expected_said(once)[0]


def test_intervals_hold_on_fresh_rows():
    """Ridge on a line with noise: 90 % of 20,000 fresh rows lie within, give or take what 300 rows
    can know."""
    rng, shares = np.random.default_rng(SEED), []
    for seed in range(4):
        X = rng.normal(size=(20_300, 4))
        y = X.sum(1) + rng.standard_t(4, size=len(X))
        found = compare(X[:300], y[:300], arms=["mean", "ridge"], n_splits=5, random_state=seed)
        low, high = found.expected().interval(found.best_model().predict(X[300:]), 0.9)
        shares.append(np.mean((low <= y[300:]) & (y[300:] <= high)))
    assert 0.88 <= np.mean(shares) <= 0.93
    assert min(shares) >= 0.84


def test_the_temperature_makes_probabilities_true():
    rng = np.random.default_rng(SEED)
    p = rng.uniform(0.05, 0.95, size=20_000)
    truth = (rng.random(len(p)) < p).astype(int)
    odds = 3.0 * np.log(p / (1 - p))  # three times too sure
    sure = np.stack([1 / (1 + np.exp(odds)), 1 / (1 + np.exp(-odds))], axis=1)
    assert temperature(sure, truth) == pytest.approx(3.0, rel=0.1)
    expected = Expected("y", "classification", "accuracy", 0.9, 100, classes=("a", "b"),
                        temperature=3.0)  # fmt: skip
    np.testing.assert_allclose(expected.calibrated(sure)[:, 1], p, atol=0.01)
    rows = reliability(expected.calibrated(sure), truth)
    assert sum(n for *_, n in rows) == len(p)
    assert all(abs(told - came) < 0.04 for told, came, _ in rows)
    assert any(abs(told - came) > 0.1 for told, came, _ in reliability(sure, truth))


def test_what_is_shuffled_is_what_matters():
    """Of y = 3a + b the column a is worth more than b, c nothing, and d belongs to a."""
    rng = np.random.default_rng(SEED)
    X = pd.DataFrame(rng.normal(size=(300, 4)), columns=list("abcd"))
    y = (3 * X["a"] + X["b"]).to_numpy()

    def predict(X):
        return (3 * X["a"] + X["b"]).to_numpy()[:, None]

    columns = [[0, 3], [1], [2]]
    worse = importance(predict, X, y, metric=RMSE, columns=columns)
    assert worse[0] == pytest.approx(3 * np.sqrt(2), rel=0.15)
    assert worse[1] == pytest.approx(np.sqrt(2), rel=0.15)
    assert worse[2] == 0
    chances = lambda X: np.stack([-predict(X)[:, 0], predict(X)[:, 0]], axis=1)  # noqa: E731
    lost = importance(chances, X, (y > 0).astype(int), metric=AUC, columns=columns)
    assert lost[0] > lost[1] > lost[2] == 0


@pytest.fixture(scope="module")
def houses():
    """A comparison of houses: their size matters, and a category; the sky does not."""
    rng = np.random.default_rng(SEED)
    X = pd.DataFrame({
        "size": rng.uniform(50, 200, 120),
        "city": rng.choice(["Rome", "Oslo", "Bern"], 120),
        "sky": rng.normal(size=120),
    })  # fmt: skip
    y = 3 * X["size"] + 80 * (X["city"] == "Rome") + 10 * rng.normal(size=120)
    return compare(X, y.rename("price"), arms=["ridge", "mean"], n_splits=4)


def test_columns_are_told_as_they_are_in_the_table(houses):
    names = [name for name, *_ in houses.importance]
    assert names == ["size", "city", "sky"]
    (_, mean, low, high), *_ = houses.importance
    assert low < mean < high
    figure = next(f for section in build(houses).sections for f in section.figures
                  if f.name == "importance")  # fmt: skip
    assert "root mean squared error, worse by: size " in figure.panels[0].describe()


def test_a_notebook_shows_the_three_lines_and_the_table(houses):
    page = houses._repr_html_()
    assert page.count("<p>") == 3
    assert "<th>arm</th>" in page
    assert "ridge regression" in page


def test_the_report_tells_whether_probabilities_come_true(tmp_path):
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(160, 3))
    y = np.where(X[:, 0] + rng.normal(size=160) > 0, "yes", "no")
    found = compare(X, y, arms=["prior", "logistic"], n_splits=4)
    page = found.write(tmp_path).read_text()
    assert "Do probabilities come true?" in page
    assert "probability of yes, calibrated" in page
    assert "logistic regression: Brier score 0." in page
    assert "taken for yes" in page
    data = json.loads((tmp_path / "comparison.json").read_text())
    assert data["importance"][0]["column"] == "x0"


# --quick and --time-limit


def test_quick_says_what_it_leaves_out_and_keeps_elastic_net_of_wide_tables():
    from rlploss.compare.arms import arms_for
    from rlploss.compare.comparison import of_quick
    from rlploss.compare.train import Trainer

    rng = np.random.default_rng(SEED)
    for d, kept in ((5, False), (60, True)):
        X = rng.normal(size=(60, d))
        chosen, (note,) = of_quick(
            arms_for("regression"), Trainer.of_numbers(X, X[:, 0], "regression")
        )
        assert ("lasso" in [arm.name for arm in chosen]) is kept
        assert ("elastic net" in note) is not kept
        assert note.startswith("Left out by --quick: ")
        assert "Gaussian process" in note


def test_after_the_time_limit_no_column_is_shuffled(houses):
    from dataclasses import replace

    late = replace(houses, deadline=0.0)
    assert late.importance == []
    assert not [f for section in build(late).sections for f in section.figures
                if f.name == "importance"]  # fmt: skip


# predict


@pytest.fixture(scope="module")
def kept(tmp_path_factory, houses):
    place = tmp_path_factory.mktemp("kept")
    houses.write(place / "out")
    frame = pd.DataFrame({"size": [60.0, 150.0, 90.0], "city": ["Rome", "Oslo", "Bern"]})
    frame["id"], frame["price"] = ["H1", "H2", "H3"], [262.0, 448.0, 9000.0]
    frame.to_csv(place / "new.csv", index=False)
    return place


def predict(kept, capsys, *words):
    code = run(["predict", str(kept / "out"), str(kept / "new.csv"), *words])
    return code, *capsys.readouterr()


def test_predictions_have_intervals_and_keep_an_id(kept, capsys):
    code, said, told = predict(kept, capsys, "--keep", "id,size")
    header, *rows = said.splitlines()
    assert (code, header) == (0, "id,size,prediction,lower,upper")
    assert [row.split(",")[0] for row in rows] == ["H1", "H2", "H3"]
    _, _, middle, low, high = map(float, ["0", *rows[0].split(",")[1:]])
    assert low < middle < high
    narrow = predict(kept, capsys, "--coverage", "0.5")[1].splitlines()[1].split(",")
    assert float(narrow[1]) > low
    assert float(narrow[2]) < high
    assert told.count("Root mean squared error") == 1


def test_where_the_target_is_there_the_error_is_told(kept, capsys):
    _, _, told = predict(kept, capsys)
    assert "on the 3 rows with a price; the comparison had " in told
    assert "67 % of them lie within their intervals of 90 %." in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--keep", "ids"], 'rlploss: --keep must be one of "size", "city", "id", "price", got'),
        (["--coverage", "1"], "rlploss: --coverage must be above 0 and at most 0.992, which is"),
        (["--coverage", "0"], "rlploss: --coverage must be above 0 and at most 0.992, which is"),
    ],
)
def test_bad_requests_are_one_sentence(kept, capsys, words, message):
    code, said, told = predict(kept, capsys, *words)
    assert (code, said) == (2, "")
    assert message in told


def test_a_directory_without_errors_is_refused(kept, tmp_path):
    with pytest.raises(TableError, match=r"expected\.json cannot be read .*run compare again"):
        Expected.load(tmp_path)
    said = (kept / "out/model/expected.json").read_text()
    changes = (("rmse", "rmsle"), ('"n_rows": 120', '"n_rows": []'), ("[", '["one", '), ("{", "["))
    for before, after in (*changes, ('"temperature": 1.0', '"temperature": 0')):
        (tmp_path / "expected.json").write_text(said.replace(before, after, 1))
        with pytest.raises(TableError, match=r"expected\.json cannot be read"):
            Expected.load(tmp_path)
    assert Expected.load(kept / "out") == Expected.load(kept / "out" / "model")
