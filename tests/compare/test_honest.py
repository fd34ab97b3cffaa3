"""compare is never wrong in silence: numbers, statistics, attribution, time and groups, more
columns than rows."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats as scipy_stats
from tests.seeds import SEED

from rlploss.compare import TableError, arms, compare
from rlploss.compare.comparison import dial_said, of_use
from rlploss.compare.design import make_design
from rlploss.compare.result import answer
from rlploss.compare.rows import check_rows
from rlploss.compare.train import Trainer
from rlploss.estimators.selection import TargetScale
from rlploss.estimators.settings import MOST_ROWS_IN_A_SUBSET

# One convention for a file


def table(n=30, **columns):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"y": rng.normal(size=n), **columns}, index=range(n))


def german(n=30):
    litres = [f"{v:.1f}".replace(".", ",") for v in np.linspace(5.2, 9.9, n)]
    km = ["95.418" if i % 2 else "900" for i in range(n - 1)] + ["12.000"]
    return table(n, litres=litres, km=km)


def test_one_convention_for_all_columns():
    design = make_design(german(), "y")
    km = design.frame["km"]
    assert sorted(set(km)) == [900, 12_000, 95_418]
    assert design.said == "Numbers are read with decimal commas (7,8 is 7.8)."
    (told,) = design.warnings
    assert (
        "column 'km' can be read in two ways: 12.000 is taken as 12,000, as in other columns"
        in told
    )
    assert "--decimal . takes it as 12" in told


def test_the_decimal_sign_can_be_given():
    design = make_design(german(), "y", decimal=".", drop=["litres"])
    assert sorted(set(design.frame["km"])) == [12, 95.418, 900]
    assert design.warnings == ()
    design = make_design(german(), "y", thousands=".")
    assert design.frame["km"].max() == 95_418


def test_plain_tables_are_read_without_a_word():
    design = make_design(
        table(a=[f"{i}.5" for i in range(30)], b=["1.250", "2.375", "10.125"] * 10), "y"
    )
    assert (design.warnings, design.said) == ((), "")
    assert design.frame.iloc[0].tolist() == [0.5, 1.25]


def test_what_nothing_in_the_table_decides_is_warned_about():
    design = make_design(table(b=["1,250", "2,375", "10,125"] * 10), "y")
    assert design.frame["b"][0] == 1250
    assert (
        "column 'b' can be read in two ways: 1,250 is taken as 1,250, though nothing in the table"
        in design.warnings[0]
    )


def test_a_column_that_is_certainly_otherwise_keeps_its_own_style():
    columns = {"a": ["0,5", "1,25"] * 15, "b": ["7,1", "2,2"] * 15, "c": ["0.5", "1.25"] * 15}
    design = make_design(table(**columns), "y")
    assert design.frame.iloc[1].tolist() == [1.25, 2.2, 1.25]
    assert design.warnings == ("column 'c' is written with decimal points, unlike 2 other columns",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decimal": ";"}, "--decimal must be . or , got ';'"),
        (
            {"thousands": "x"},
            "--thousands must be a comma, a point, a quote, space or none, got 'x'",
        ),
        ({"decimal": ",", "thousands": ","}, "must be different signs, got ',' twice"),
        ({"time": "when"}, "there is no column 'when' for --time"),
        ({"time": "a", "group": "a"}, "--time and --group ask for different splits"),
        ({"group": "a"}, "--group needs at least 8 groups, got 2 in 'a'; name another column"),
        (
            {"time": "b"},
            (
                "--time needs dates or numbers without gaps, but in 'b' 'x' is none; correct it or"
                " leave"
            ),
        ),
        ({"time": "y"}, "the target 'y' cannot be the column of --time too; name another column"),
        ({"drop": ["y"]}, "the target 'y' cannot be dropped too; leave it out of --drop"),
    ],
)
def test_bad_options(options, message):
    frame = table(a=[0.5, 1.5] * 15, b=["x", "y"] * 15)
    with pytest.raises(TableError) as told:
        make_design(frame, "y", **options)
    assert message in str(told.value)


# Attribution


@pytest.fixture(scope="module")
def bent():
    """Strongly nonlinear and noiseless: the dial stays at MSE."""
    rng = np.random.default_rng(SEED)
    X = rng.uniform(-2, 2, size=(300, 2))
    return compare(
        X,
        np.sin(3 * X[:, 0]) * X[:, 1],
        arms=["rlp+l2", "mean"],
        n_splits=4,
        steps=400,
        random_state=SEED,
    )


def test_at_the_mse_end_the_first_line_says_that_it_is_mse(bent):
    assert bent.results.arm("rlp+l2").at_mse == 4
    assert bent.answer().best.name == "rlp+l2"
    assert bent.lines()[0].startswith(
        "Use RLP+L2 (which is MSE+L2 here: its dial stood at the MSE end in 4 of 4 splits)"
    )


def test_squared_error_on_probabilities_is_an_arm_of_its_own():
    assert {"mse", "mse+l2"} <= {a.name for a in arms.arms_for("classification", 100)}
    mse = next(a for a in arms.arms_for("classification") if a.name == "mse")
    assert mse.estimator.loss == "mse"


# Time and groups


def days(n=120):
    rng = np.random.default_rng(SEED)
    walk = rng.normal(size=n).cumsum()
    when = pd.date_range("2020-01-01", periods=n).strftime("%Y-%m-%d")
    return pd.DataFrame(
        {
            "when": when,
            "patient_id": np.repeat(np.arange(n // 4), 4),
            "a": rng.normal(size=n),
            "y": walk,
        }
    )


def test_sorted_dates_and_repeated_keys_are_warned_about():
    sorted_by, repeated = make_design(days(), "y").warnings
    assert "the rows are sorted by 'when'" in sorted_by
    assert "--time when tests on the future" in sorted_by
    assert "'patient_id' looks like a key that repeats (30 values in 120 rows)" in repeated
    assert "--group patient_id keeps them together" in repeated
    assert make_design(days(), "y", time="when").warnings == ()
    shuffled = days().sample(frac=1, random_state=0).drop(columns="patient_id")
    (orders,) = make_design(shuffled, "y").warnings
    assert "'when' orders the rows in time: random splits let an arm see days after" in orders
    seconds = shuffled.assign(when=1_600_000_000 + 86_400 * np.arange(len(shuffled))[::-1])
    (orders,) = make_design(seconds, "y").warnings
    assert "the rows are sorted by 'when'" in orders


def leaky(n=120):
    rng = np.random.default_rng(SEED)
    y = np.exp(rng.normal(size=n))
    return pd.DataFrame({"x": rng.normal(size=n), "y": y})


LEAKS = {
    "a copy": lambda y: 3 * y + 1,
    "a logarithm": np.log,
    "rounded": lambda y: np.round(y, 1),
    "a code": lambda y: pd.qcut(y, 20, labels=[f"{i * 7 % 20}x" for i in range(20)]).astype(str),
    "with gaps": lambda y: np.where(np.arange(len(y)) % 3, y, np.nan),
    "turned": lambda y: -np.sqrt(y),
}


@pytest.mark.parametrize("how", LEAKS)
def test_a_column_that_tells_the_target_alone_is_told(how):
    rows = leaky(400)
    rows = rows.assign(leak=LEAKS[how](rows["y"]), other=rows["y"] + 0.5 * rows["x"])
    if how == "a code":  # the target is all that the code can tell
        rows["y"] = rows.groupby("leak")["y"].transform("mean") + 1e-3 * rows["x"]
        rows = rows.drop(columns="other")
    (warning,) = make_design(rows.sort_values("y"), "y", task="regression").warnings
    told = r"column 'leak' (tells the target exactly|alone tells 99\.\d% of the target)"
    assert re.match(told, warning)
    assert warning.endswith(": is it known beforehand? --drop leak leaves it out")


def test_a_column_that_tells_classes_alone_is_told():
    rows = leaky(400)
    classes = np.where(rows["y"] > 1, "yes", "no")
    (warning,) = make_design(rows.assign(size=rows["y"], y=classes), "y").warnings
    assert "column 'size' alone tells 99." in warning
    rare = np.where(rows["x"] > 1.5, "yes", "no")
    assert make_design(rows.assign(x=rows["y"], y=rare), "y").warnings == ()


@pytest.mark.parametrize("word", ["has values", "is missing"])
def test_a_column_that_one_outcome_alone_has_is_told(word):
    rows, rng = leaky(), np.random.default_rng(0)
    lost = rng.random(len(rows)) < 0.3
    some = lost & (rng.random(len(rows)) < 0.8)
    some = some if word == "has values" else ~some
    rows = rows.assign(
        y=np.where(lost, "lost", "won"),
        paid=np.where(some, rng.choice(["a", "b"], len(rows)), None),
    )
    (warning,) = make_design(rows, "y").warnings
    assert warning == (
        f"column 'paid' {word} only where the target is 'lost': is it known beforehand? --drop paid"
        " leaves it out"
    )
    few = rows.assign(paid=np.where(np.arange(len(rows)) == np.argmax(lost), "a", None))
    assert make_design(few, "y").warnings == ()


def test_copies_of_rows_are_told():
    rows = leaky().assign(z=np.arange(120) % 7 / 2)
    twice = pd.concat([rows, rows[:12]])
    (warning,) = make_design(twice, "y").warnings
    assert warning.startswith("12 of 132 rows are copies of others: some fall into training and")
    assert make_design(rows, "y").warnings == ()
    few = pd.DataFrame({"a": ["x", "y"] * 30, "y": [1, 2, 3] * 20})  # copies by few values
    assert not any("copies" in text for text in make_design(few, "y").warnings)


def test_what_is_done_with_a_skewed_target_is_told():
    rng = np.random.default_rng(0)
    y = np.exp(2 * rng.normal(size=60))
    said = make_design(table(60, x=rng.normal(size=60)).assign(y=y), "y").target.said
    assert "positive and skewed, so its logarithm is tried too" in said
    said = make_design(table(60, x=rng.normal(size=60)).assign(y=np.floor(2 * y)), "y").target.said
    assert "skewed counts with zeros, whose logarithm is not tried" in said
    said = make_design(table(60, x=rng.normal(size=60)), "y").target.said
    assert "skewed" not in said


def test_windows_train_on_the_past_and_test_on_the_future():
    design = make_design(days().sample(frac=1, random_state=SEED), "y", time="when")
    one, tested = Trainer.of(design), []
    for window in range(5):
        train, test = one.split(window)
        assert design.time[train].max() < design.time[test].min()
        for inside, validation in one.folds(train, 0):
            assert design.time[train][inside].max() < design.time[train][validation].min()
        tested += list(test)
    assert len(tested) == len(set(tested)) == 60
    assert len(train) > 100


def test_a_moment_is_never_cut():
    frame = days().assign(when=np.repeat(np.arange(12), 10))
    one = Trainer.of(make_design(frame, "y", time="when"))
    for window in range(5):
        train, test = one.split(window)
        assert not set(one.time[train]) & set(one.time[test])


def test_groups_stay_together():
    design = make_design(days(), "y", group="patient_id")
    assert "patient_id" not in design.frame
    one = Trainer.of(design)
    for seed in range(5):
        train, test = one.split(seed)
        assert not set(design.group[train]) & set(design.group[test])
        assert 20 <= len(test) <= 40
        for inside, validation in one.folds(train, 0):
            assert not set(design.group[train][inside]) & set(design.group[train][validation])


def test_windows_of_time_have_block_intervals(monkeypatch):
    frame, overlaps = days(), []

    def spied(*arguments, overlap, **others):
        overlaps.append(overlap)
        return answer(*arguments, overlap=overlap, **others)

    monkeypatch.setattr("rlploss.compare.result.answer", spied)
    X, y = frame.drop(columns="y"), frame["y"]
    found = compare(X, y, time="when", arms=["ridge", "mean"])
    c, differences = (
        found.answer().lead,
        np.log(found.values("ridge")) - np.log(found.values("mean")),
    )
    assert len(found.values("ridge")) == c.n == 5
    assert set(overlaps) == {0.0}  # windows do not overlap
    half = np.log(c.high / c.effect) / scipy_stats.t.ppf(0.975, c.n - 1)
    assert half >= differences.std(ddof=1) / np.sqrt(5) * (1 - 1e-9)
    assert "in 5 windows of time" in found.summary()
    compare(X, y, arms=["ridge", "mean"], n_splits=2).answer()
    assert overlaps[-1] == pytest.approx(1 / 3)  # Nadeau and Bengio's, for random splits
    forty = frame[:40]
    with pytest.raises(
        TableError, match="--time needs at least 50 rows, got 40; add rows or leave --time out"
    ):
        compare(forty.drop(columns="y"), forty["y"], time="when", arms=["ridge", "mean"])
    with pytest.raises(
        TableError,
        match="--time must leave two classes to train on in every split, got one class only; name",
    ):
        compare(X, ["early"] * 80 + ["late"] * 40, time="when", arms=["logistic", "prior"])
    few = frame.assign(when=np.repeat([0, 1, 2], 40))
    with pytest.raises(
        TableError, match="--time must leave 15 training rows and 5 test rows in every split"
    ):
        compare(few.drop(columns="y"), y, time="when", arms=["ridge", "mean"])


def test_rows_without_a_group_are_refused():
    frame = days().assign(patient_id=[None, *[f"p{i // 4}" for i in range(119)]])
    with pytest.raises(
        TableError, match="--group needs a value in every row, but 1 row has none in 'patient_id';"
    ):
        make_design(frame, "y", group="patient_id")


def test_one_group_with_most_of_the_rows_is_refused():
    frame = days().assign(
        patient_id=np.minimum(np.arange(120) // 4, 8)
    )  # eight of 4 rows, one of 88
    one = Trainer.of(make_design(frame, "y", group="patient_id"))
    seed = next(seed for seed in range(99) if len(one.split(seed)[0]) == 88)
    with pytest.raises(
        TableError,
        match="--group must leave two groups to train on in every split, got one that has most",
    ):
        check_rows(one, [seed])
    assert dial_said(one)  # which `inspect` tells, whatever the groups are


# More columns than rows


def test_where_rlp_is_mse_it_is_not_trained():
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(60, 50))
    one = Trainer.of_numbers(X, X[:, 0], "regression")
    every = arms.arms_for("regression")
    left, why, _ = of_use(every, one, asked=True)
    assert not any(arm.role in ("rlp", "mixture") for arm in left)
    assert why.startswith(
        "RLP is MSE here: 51 columns with the intercept leave no subset of 30 training rows"
    )
    # 30 rows in a fold: 29 columns with the intercept leave one subset, of all rows, 30 columns
    # none
    for d, kept in ((28, True), (29, False)):
        narrow = Trainer.of_numbers(X[:, :d], X[:, 0], "regression")
        left, _, _ = of_use(every, narrow, asked=True)
        assert any(arm.role == "rlp" for arm in left) is kept
        assert ("tried are MSE and" in dial_said(narrow)) is kept
    narrow = Trainer.of_numbers(X[:, :5], X[:, 0], "regression")
    assert of_use(every, narrow, asked=True) == (every, "", [])
    found = compare(X, X[:, 0], arms=["mse", "rlp"], n_splits=2, steps=20)
    assert found.lines()[1].startswith("RLP is MSE here")
    assert [a.name for a in found.arms] == ["mse", "mean"]


# Steps


def test_the_dial_that_is_told_is_the_dial_that_is_tried():
    """No subset has more than 2,000 rows, and places that this would make the same are spread."""
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(10_000, 5))
    one = Trainer.of_numbers(X, X.sum(1), "regression")
    rlp = next(arm for arm in arms.arms_for("regression") if arm.name == "rlp").estimator
    rlp.n_features_in_ = 5
    settings = rlp._settings(one.fewest(), (False,))
    tried = sorted({setting.subset_size for setting in settings})
    assert len(tried) == 4
    assert tried[-1] == MOST_ROWS_IN_A_SUBSET
    told = f"tried are MSE and {', '.join(f'{size:,}' for size in tried[1:])} rows"
    assert told in dial_said(one)


def test_networks_that_have_not_converged_are_named(bent):
    from rlploss.compare.report import late_said

    late = bent.results.arm("rlp+l2").details["late"]
    steps = bent.cells["rlp+l2"].final("n_steps")
    assert late.tolist() == [float(step > 320) for step in steps]
    told = late_said(bent)
    assert bool(told) == bool(late.any())
    if told:
        assert told[0].startswith("Not converged within 400 steps: RLP+L2 in")


# The target's logarithm


def test_a_skewed_positive_target_is_tried_as_a_logarithm():
    rng = np.random.default_rng(SEED)
    X = rng.normal(size=(200, 3))
    y = np.exp(X.sum(1) + 0.1 * rng.normal(size=200))
    found = compare(X, y, arms=["ridge", "mse", "rlp-cv"], n_splits=2, steps=100)
    assert [found.cells[arm.name].final("log").tolist() for arm in found.arms] == [[1.0, 1.0]] * 3
    assert found.values("ridge").max() < 0.2 * y.std()
    plain = compare(X, y - y.mean(), arms=["ridge", "mean"], n_splits=2)
    assert not plain.cells["ridge"].final("log").any()
    scale = TargetScale.of(y, log=True)
    np.testing.assert_allclose(scale.original(scale.scaled(y)), y)
    assert np.isfinite(scale.original(np.array([1e9]))).all()


def global_state():
    numpys = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 - that nobody here uses it is the point
    return [*numpys["key"].tolist(), numpys["pos"], *torch.get_rng_state().tolist()]


def test_the_global_random_states_stay_as_they_were():
    before = global_state()
    X = np.random.default_rng(0).normal(size=(60, 3))
    compare(X, X[:, 0] + 0.1, n_splits=2, steps=10)
    assert global_state() == before


def test_windows_of_time_are_five():
    X = np.random.default_rng(0).normal(size=(120, 3))
    with pytest.raises(
        ValueError, match="n_splits is for random splits, got 3; with time there are 5 windows"
    ):
        compare(pd.DataFrame(X, columns=list("abt")), X[:, 0], time="t", n_splits=3)


def test_a_column_that_is_the_target_in_other_units_is_told():
    y = np.random.default_rng(0).normal(size=40)
    given = table(40, y=y, cents=-100 * y + 3, close=y + 0.01 * np.arange(40))
    told = [w for w in make_design(given, "y").warnings if "tells the target exactly" in w]
    assert len(told) == 1
    assert told[0].startswith("column 'cents'")
