"""The transformer from raw frames to numbers: learned from training rows only, told where new rows
are unlike them.
"""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline

from rlploss._scaling import mean_and_scale
from rlploss.estimators.kinds import read_column
from rlploss.estimators.table import TableEncoder, TableWarning, read_columns, read_frame

N = 120


def frame(n=N):
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2019-01-05") + pd.to_timedelta(rng.integers(0, 900, n), unit="D")
    size = rng.uniform(20, 80, n)
    return pd.DataFrame(
        {
            "sold": days.strftime("%d.%m.%Y"),
            "size": [f"{value:.2f}".replace(".", ",") for value in size],
            "rooms": np.where(rng.random(n) < 0.1, np.nan, rng.integers(1, 6, n) + 0.5),
            "city": rng.choice(["Rome", "Oslo", "Bern"], n),
            "shop": [f"shop {i}" for i in rng.integers(0, 50, n)],
            "new": rng.choice(["yes", "no"], n),
            "row": np.arange(n),
        }
    )


def target(table):
    size = table["size"].str.replace(",", ".").astype(float)
    return (size + 3 * (table["city"] == "Oslo")).to_numpy()


def test_numbers_are_standardised_and_filled_by_the_training_rows_alone():
    table = frame()[["rooms"]]
    train, test = table.iloc[:80], table.iloc[80:] * 1.1
    encoder = TableEncoder(read_columns(table))
    numbers = encoder.fit_transform(train)
    median = train["rooms"].median()
    filled = np.column_stack([train["rooms"].fillna(median), train["rooms"].isna()])
    mean, scale = mean_and_scale(filled)
    assert_array_equal(numbers, (filled - mean) / scale)
    filled = np.column_stack([test["rooms"].fillna(median), test["rooms"].isna()])
    assert_array_equal(encoder.transform(test), (filled - mean) / scale)
    assert encoder.get_feature_names_out().tolist() == ["rooms", "rooms is missing"]
    assert encoder.origins_ == ["rooms", "rooms"]


def test_what_was_read_already_gives_the_same_numbers():
    table, y = frame(), target(frame())
    columns = read_columns(table)
    read = read_frame(table, columns)
    encoder, again = TableEncoder(columns), TableEncoder(columns)
    assert_array_equal(encoder.fit_transform(table, y), again.fit_transform(read, y))
    assert_array_equal(encoder.transform(table), again.transform(read))
    assert "row" not in encoder.origins_
    assert encoder.get_feature_names_out().shape == (encoder.transform(table).shape[1],)


def test_a_pipeline_from_raw_frames_to_predictions():
    table, y = frame(), target(frame())
    model = Pipeline([("table", TableEncoder(read_columns(table))), ("model", Ridge(1e-3))])
    assert cross_val_score(model, table, y, cv=4).min() > 0.99
    model = clone(model).fit(table, y)
    moved = permutation_importance(model, table, y, n_repeats=3, random_state=0)
    importance = dict(zip(table.columns, moved.importances_mean, strict=True))
    assert importance["size"] > 1 > importance["city"] > 0.001
    assert importance["row"] == 0
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(table), model.predict(table))


def test_skops_keeps_it():
    import skops.io

    table, y = frame(), target(frame())
    encoder = TableEncoder(read_columns(table)).fit(table, y)
    data = skops.io.dumps(encoder)
    own = ["rlploss.estimators.kinds.Column", "rlploss.estimators.table.TableEncoder"]
    assert skops.io.get_untrusted_types(data=data) == own
    again = skops.io.loads(data, trusted=own)
    assert_array_equal(again.transform(table), encoder.transform(table))


def test_many_categories_are_told_apart():
    """150 shops in 1,000 rows: each has its own level, and none shares a column with others."""
    rng = np.random.default_rng(1)
    shop, a = rng.integers(0, 150, 1000), rng.normal(size=1000)
    y = 2 * rng.normal(size=150)[shop] + a + 0.3 * rng.normal(size=1000)
    table = pd.DataFrame({"shop": [f"s{i}" for i in shop], "a": a})
    model = Pipeline([("table", TableEncoder(read_columns(table))), ("model", Ridge(1.0))])
    model.fit(table[:750], y[:750])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        error = np.sqrt(np.mean((model.predict(table[750:]) - y[750:]) ** 2))
    assert error < 0.6 < 2 < np.std(y)


def test_mean_targets_of_training_rows_come_from_other_rows():
    """With a target without a signal, categories of two rows each must not tell it."""
    y = np.random.default_rng(2).normal(size=200)
    table = pd.DataFrame({"shop": [f"s{i // 2}" for i in range(200)]})
    encoder = TableEncoder(read_columns(table))
    numbers = encoder.fit_transform(table, y)
    assert encoder.get_feature_names_out().tolist() == ["shop, mean target"]
    assert abs(np.corrcoef(numbers[:, 0], y)[0, 1]) < 0.3 < np.corrcoef(encoder.transform(table)[:, 0], y)[0, 1]  # fmt: skip


def test_mean_targets_of_several_classes():
    rng = np.random.default_rng(3)
    shop = rng.integers(0, 30, 200)
    y = np.array(["a", "b", "c"])[shop % 3]
    table = pd.DataFrame({"shop": [f"s{i}" for i in shop], "x": rng.normal(size=200)})
    encoder = TableEncoder(read_columns(table), task="classification").fit(table, y)
    assert [f"shop, mean target {label}" for label in "abc"] == encoder._names[:3]
    model = Pipeline([("table", clone(encoder)), ("model", LogisticRegression())])
    assert model.fit(table, y).score(table, y) > 0.95
    with pytest.raises(ValueError, match="y must be given to encode the categories of 'shop'"):
        clone(encoder).fit(table)


def test_categories_that_the_training_rows_do_not_have():
    table = pd.DataFrame({"c": ["a", "b", "c"] * 10, "x": np.arange(30) % 7 / 2})
    encoder = TableEncoder(read_columns(table)).fit(table[table["c"] != "c"])
    with pytest.warns(TableWarning, match="column c: 10 of 30 values are unlike the table's"):
        numbers = encoder.transform(table)
    assert np.isfinite(numbers).all()


def told(new, **changed):
    table = frame()
    encoder = TableEncoder(read_columns(table)).fit(table, target(table))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert np.isfinite(encoder.transform(new.assign(**changed))).all()
    return [str(warning.message) for warning in caught if warning.category is TableWarning]


def test_rows_of_the_table_are_not_warned_of():
    assert told(frame()) == []
    assert told(frame().iloc[::-1, ::-1].head(3)) == []


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("size", "12 m", "column size: 120 of 120 values are unlike the table's, not read as a number"),
        ("size", "5000", "column size: 120 of 120 values lie far outside 20.* to 79.*; are they in"
                         " other units?"),
        ("size", "0,5", "column size: all values are at most 0.5, where the table has 20.* to 79.*;"
                        " are they in other units?"),
        ("sold", "01.01.2035", "column sold: 120 of 120 values lie far outside 2019-01-.* to 2021-"),
        ("sold", "2020-01-01", "column sold: 120 of 120 values are unlike the table's, not read as a"
                               " date there"),
        ("city", "Paris", "column city: 120 of 120 values are unlike the table's, none of its"),
    ],
)  # fmt: skip
def test_values_unlike_those_of_the_table_are_told_with_its_range(column, values, message):
    (text,) = told(frame(), **{column: values})
    assert pd.Series([text]).str.match(message)[0], text


def test_columns_may_be_missing_but_not_all():
    assert told(frame().drop(columns="city")) == [
        "column city is not there; every row counts as missing in it"
    ]
    with pytest.raises(
        ValueError, match="no column of the table is there: the columns must be sold"
    ):
        told(pd.DataFrame({"a": [1.0], "b": [2.0]}))


def test_arrays_have_names_too():
    X = np.random.default_rng(0).normal(size=(30, 3))
    encoder = TableEncoder().fit(X)
    assert encoder.get_feature_names_out().tolist() == ["x0", "x1", "x2"]
    assert_array_equal(encoder.transform(X), encoder.fit_transform(X))
    with pytest.raises(ValueError, match="no column of X can be used"):
        TableEncoder().fit(np.ones((30, 2)))


# Kinds


@pytest.mark.parametrize(
    ("values", "kind", "does"),
    [
        ([f"{50 + i} kg" for i in range(30)], "number", "written with the unit kg"),
        ([*range(20210101, 20210129), 20210201, 20210203], "date", "written as in 20210131"),
        ([1_600_000_000 + 604_800 * i for i in range(30)], "date", "in seconds since 1970"),
        ([f"2020-01-{i + 1:02}" for i in range(15)] + [f"{i + 1:02}.02.20" for i in range(15)],
         "date", "written in 2 forms"),
        ([f"{i + 1:02}.02.20" for i in range(29)] + ["01.03.20"], "date", "days since"),
        ([*range(5, 32), -999, -999, -999], "number", "'-999' taken as missing; 3 missing filled"),
        ([*(np.arange(28) / 3), 99999, 99999], "number", "'99999' taken as missing"),
        (["01067", "80331", "10115"] * 10, "category", "codes with leading zeros"),
        ([f"{i * 317:05}" for i in range(30)], "number", "codes with leading zeros, too many"),
    ],
)  # fmt: skip
def test_values_as_people_write_them_are_recognised(values, kind, does):
    series = pd.Series(values, name="c", dtype=object)
    column = read_column(series)
    assert (column.kind, column.remark) == (kind, "days since" not in does)
    assert does in column.does
    read = column.read(series)
    pd.testing.assert_series_equal(column.read(read), read)  # what has been read stays as it is
    assert column.read(series.iloc[:3]).equals(read.iloc[:3])


def test_numbers_in_different_units_are_told():
    column = read_column(
        pd.Series([f"{50 + i} {('kg', 'lb')[i % 2]}" for i in range(30)], name="w")
    )
    assert column.doubt == "has numbers in different units (kg, lb); write all of them in one"


@pytest.mark.parametrize(
    "values", [[*range(28), 99, 99], [*range(30), 99], [1.0, 2.0, -999.0], [*range(900, 999), 9999]]
)
def test_numbers_that_may_be_meant_stay(values):
    read = read_column(pd.Series(values, name="c", dtype=object)).read(pd.Series(values))
    assert read.notna().all() or values.count(99) == 2
