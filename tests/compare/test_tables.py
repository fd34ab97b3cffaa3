"""Reading a table that nobody here wrote, and what becomes of its columns."""

import builtins
import datetime
import gzip
import os
import subprocess
import sys
import time
import warnings
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose as assert_close

from rlploss.compare.design import make_design
from rlploss.compare.read import TableError, read_table
from rlploss.estimators.cells import as_dates, as_numbers
from rlploss.estimators.kinds import read_column
from rlploss.estimators.table import TableEncoder, TableWarning


def column(values, name="c"):
    """What a column is, with its columns of numbers by name, and these [n, k]."""
    series = values if isinstance(values, pd.Series) else pd.Series(values, name=name, dtype=object)
    kind = read_column(series)
    columns = parts(kind, series)
    matrix = np.column_stack([*columns.values()]) if columns else np.empty((len(series), 0))
    return SimpleNamespace(**vars(kind), names=tuple(columns), column=kind), matrix


def parts(kind, series):
    """The columns of numbers of a column, by name."""
    if not kind.used:
        return {}
    read = kind.read(series)
    return kind.parts(read, sorted(read.dropna().unique()) if kind.one_hot else [])


def names(design):
    """Names of the columns of numbers."""
    return [name for kind in design.columns for name in parts(kind, design.frame.get(kind.name))]


def numbers(design):
    """The columns of numbers as they are before they are filled and scaled."""
    used = [kind for kind in design.columns if kind.used]
    return np.column_stack(
        [v for kind in used for v in parts(kind, design.frame[kind.name]).values()]
    )


def written(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def rows(n=30, **columns):
    base = {"a": np.arange(n) * 0.5 + 0.1, "y": np.sin(np.arange(n))}
    return pd.DataFrame({**base, **columns})


# Files


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "a,b\n1,x\n2,y\n"),
        ("t.csv", "a;b\n1;x\n2;y\n"),
        ("t.tsv", "a\tb\n1\tx\n2\ty\n"),
        ("t.csv", "a|b\r\n1|x\r\n2|y\r\n"),
        ("t.csv", "\ufeffa,b\n\n1,x\n\n2,y\n"),
        ("t.CSV", '"a","b"\n"1","x"\n"2","y"\n'),
        ("t.csv", "sep=;\r\na;b\r\n1;x\r\n2;y\r\n"),
    ],
)
def test_delimiters_line_ends_and_marks(tmp_path, name, text):
    frame = read_table(written(tmp_path / name, text))
    assert frame.columns.tolist() == ["a", "b"]
    assert frame.to_numpy().tolist() == [["1", "x"], ["2", "y"]]


def test_quoted_fields_may_hold_delimiters_and_line_ends(tmp_path):
    frame = read_table(written(tmp_path / "t.csv", 'a,b\n"1,5","two\nlines"\n2,y\n'))
    assert frame["b"].tolist() == ["two\nlines", "y"]


def test_missing_values_and_nameless_columns(tmp_path):
    frame = read_table(written(tmp_path / "t.csv", "a,,c\n1,NA,x\n?,,\n3,n/a,z\n"))
    assert frame.columns.tolist() == ["a", "column 2", "c"]
    assert frame.isna().to_numpy().tolist() == [
        [False, True, False],
        [True] * 3,
        [False, True, False],
    ]


def test_other_encodings_by_name(tmp_path):
    for encoding in ("latin-1", "utf-16"):
        path = written(tmp_path / "t.csv", "città,y\n1,2\n3,4\n", encoding)
        assert read_table(path, encoding=encoding).columns.tolist() == ["città", "y"]


def test_parquet_keeps_types(tmp_path):
    frame = rows(d=pd.date_range("2020-01-01", periods=30), t=["x", "y", None] * 10)
    frame.to_parquet(tmp_path / "t.parquet")
    back = read_table(tmp_path / "t.parquet")
    assert pd.api.types.is_datetime64_any_dtype(back["d"])
    assert back["t"].isna().sum() == 10


def test_types_of_parquet_become_numbers(tmp_path):
    frame = rows(
        price=[Decimal(i) / 4 for i in range(30)],
        kind=pd.Categorical(["x", "y"] * 15, categories=["x", "y", "never"]),
        count=pd.array([None, 1, 2] * 10, dtype="Int64"),
        took=pd.to_timedelta(np.arange(30) % 7, unit="h"),
        month=pd.period_range("2020-01", periods=30, freq="M"),
    ).set_index(pd.Index(np.arange(30)[::-1] * 2 + 1, name="patient id"))
    frame.to_parquet(tmp_path / "t.parquet")
    design = make_design(read_table(tmp_path / "t.parquet"), "y")
    assert {c.name: (c.kind, len(parts(c, design.frame.get(c.name)))) for c in design.columns} == {
        "patient id": ("identifier", 0), "a": ("number", 1), "price": ("number", 1), "kind": ("category", 1),
        "count": ("number", 2), "took": ("number", 1), "month": ("date", 3),
    }  # fmt: skip
    hours = numbers(design)[:, names(design).index("took")] * 24
    np.testing.assert_allclose(hours, np.arange(30) % 7)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.csv", b"", "is empty; give a table with a header and rows"),
        ("t.parquet", b"", "is empty; give a table with a header and rows"),
        ("t.csv", b"\n\n", "is empty; give a table with a header and rows"),
        ("t.csv", b"a,b\n", "is empty: it has 2 columns and 0 rows"),
        ("t.csv", b"a,b\n1,2\n3\n", "is not a table: line 3 has 1 fields and the header has 2"),
        ("t.csv", b'a,b\n1,"2\n3,4\n', "is not a table .*check quotes"),
        (
            "t.csv",
            b"a,b\n\xe9,2\n",
            r"is not utf-8 text \(byte 0xe9 at position 4\); pass its encoding",
        ),
        ("t.csv", b"PNG\x00\x01\x02", "is not a table but binary data"),
        ("t.csv", b"\xff\xfea\x00", "is UTF-16, not UTF-8; pass --encoding utf-16"),
        ("t.csv", b"<html><body>", "looks like HTML, XML or JSON"),
        ("t.csv", b"a,b,a\n1,2,3\n", "column names must be different, but 'a' occurs twice"),
        ("t.xls", b"PK", r"a table must end in one of .csv, .*got 't.xls'; convert or rename it"),
        ("t.xlsx", b"PK", r"is not an Excel table \(.*\); check the file, or save it as CSV"),
        ("t.feather", b"PK", r"is not a Feather table \(.*\); check the file, or save it as CSV"),
        (
            "t.json",
            b'{"a": 1}',
            "a table in JSON must be a list of records, one object for each row",
        ),
        ("t.json", b"[", r"is not JSON \(.*\); check the file, or save it as CSV"),
        (
            "t.csv.gz",
            gzip.compress(b"a,b\n1,2\n")[:10] + b"\xff" * 30,
            r"cannot be read \(.*\); check",
        ),
        (
            "t.csv.gz",
            gzip.compress(b"a,b\n1,2\n")[:-9],
            r"t.csv.gz cannot be read \(.*\); check the file",
        ),
        ("t.csv.gz", b"a,b", r"t.csv.gz cannot be read \(Not a gzipped file .*\); check the file"),
        ("t.parquet", b"not parquet", "is not a Parquet table"),
    ],
)
def test_what_is_no_table(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TableError, match=message) as told:
        read_table(tmp_path / name)
    assert "\n" not in str(told.value)


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(TableError, match=r"there is no file .*nothing.csv; check the path"):
        read_table(tmp_path / "nothing.csv")
    with pytest.raises(TableError, match="is a directory, not a table"):
        read_table(tmp_path)
    path = written(tmp_path / "t.csv", "a,b\n1,2\n")
    with pytest.raises(TableError, match="there is no encoding 'klingon'; try latin-1"):
        read_table(path, encoding="klingon")


def test_what_would_fill_the_memory_is_not_unpacked(tmp_path):
    """A gzip file may hold a thousand times as much as it is large."""
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"0,0\n" * 2_500_000) * 100)
    assert path.stat().st_size < 2e6
    began = time.monotonic()
    with pytest.raises(
        TableError, match="is more than 100 times as large when it is unpacked; giv"
    ):
        read_table(path)
    assert time.monotonic() - began < 20
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,x\n" * 1000))
    assert read_table(path).shape == (1000, 2)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    rows().to_parquet(tmp_path / "t.parquet")
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "pyarrow":
            raise ImportError
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TableError, match=r"needs pyarrow; install it \(pip install pyarrow\)"):
        read_table(tmp_path / "t.parquet")


def test_a_column_of_lists(tmp_path):
    frame = rows(tags=[[1, 2]] * 30)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    for table in (frame, read_table(tmp_path / "t.parquet"), read_table(tmp_path / "t.csv")):
        with pytest.raises(
            TableError, match=r"column 'tags' holds lists such as \[1,? 2\]; spread them"
        ):
            make_design(table, "y")
        with pytest.raises(TableError, match="column 'tags' holds lists"):
            make_design(table, "tags")
        assert numbers(make_design(table, "y", drop=["tags"])).shape == (30, 1)


TITLED = {
    "a line": "Sales of 2021\na;b\n1,5;x\n2,5;y\n3,5;z\n",
    "lines and gaps": "Sales, by shop\n\nmade, 3 May, by us\n\na;b\n1,5;x\n2,5;y\n3,5;z\n",
    "padded": "Sales,,\n,,\na,b,c\n1.5,x,1\n2.5,y,2\n3.5,z,3\n",
}


@pytest.mark.parametrize("text", TITLED.values(), ids=TITLED)
def test_titles_above_the_header_are_left_out_and_told(tmp_path, text):
    frame = read_table(written(tmp_path / "t.csv", text))
    assert frame.columns.tolist()[:2] == ["a", "b"]
    assert frame["b"].tolist() == ["x", "y", "z"]
    assert "stands above the header and is left out" in frame.attrs["notes"][0]
    assert frame.attrs["notes"][0].startswith("'Sales")


@pytest.mark.parametrize(
    "text",
    ["a,b\n1,2\n3,4\n", ",x\n1,2\n2,3\n", "a,,c\n1,2,3\n1,2,3\n", "1,2\n3,4\n5,6\n", "x\n1\n2\n"],
)
def test_headers_are_no_titles(tmp_path, text):
    frame = read_table(written(tmp_path / "t.csv", text))
    assert (len(frame), frame.attrs["notes"]) == (2, [])


@pytest.mark.parametrize("name", ["t.xlsx", "t.feather", "t.json", "t.csv.gz", "t.parquet.gz"])
def test_other_files_give_the_same_table(tmp_path, name):
    frame = rows(c=["x", "y", None] * 10)
    frame.to_csv(tmp_path / "t.csv", index=False)
    plain = make_design(read_table(tmp_path / "t.csv"), "y")
    {
        "t.xlsx": lambda path: frame.to_excel(path, index=False),
        "t.feather": frame.to_feather,
        "t.json": lambda path: frame.to_json(path, orient="records", double_precision=15),
        "t.csv.gz": lambda path: frame.to_csv(path, index=False),
        "t.parquet.gz": lambda path: path.write_bytes(gzip.compress(frame.to_parquet())),
    }[name](tmp_path / name)
    design = make_design(read_table(tmp_path / name), "y")
    assert_close(numbers(design), numbers(plain), rtol=1e-14)
    assert [c.kind for c in design.columns] == ["number", "category"]


def test_sheets_of_people(tmp_path):
    """A title, gaps, numbers and texts in one column, and a second sheet."""
    cells = [
        ["Sales", None],
        [None, None],
        ["price", "note"],
        *([i / 3, "n/a"] for i in range(20)),
        [None, "7"],
        ["5,5 m", 7],
    ]
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        pd.DataFrame(cells).to_excel(book, sheet_name="first", index=False, header=False)
        rows().to_excel(book, sheet_name="second")
    frame = read_table(tmp_path / "t.xlsx")
    assert frame.columns.tolist() == ["price", "note"]
    assert (len(frame), frame["price"].iloc[-1]) == (22, "5,5 m")
    assert frame.attrs["notes"] == [
        "'Sales' stands above the header and is left out",
        "only the first of 2 sheets is read, 'first'",
    ]


# Numbers


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["1", "-2.5", "+3e2", ".5"], [1, -2.5, 300, 0.5]),
        (["1,234", "12", "-1,234,567.5"], [1234, 12, -1234567.5]),
        (["1.234,5", "2,5", "7"], [1234.5, 2.5, 7]),
        (["1 234", "56"], [1234, 56]),
        (["$1,200", "-$30.5", "$7"], [1200, -30.5, 7]),
        (["12%", "3.5 %"], [12, 3.5]),
        (["1'234.5", "6"], [1234.5, 6]),
        (["1\u00a0234", "1\u202f000", "56"], [1234, 1000, 56]),
        (["1 234,56", "7,5", "12"], [1234.56, 7.5, 12]),
        (["1.234.567 €", "12,5 €"], [1234567, 12.5]),
        ([Decimal("1.50"), Decimal(2)], [1.5, 2]),
        (["1", "inf", "-Infinity", "2"], [1, np.nan, np.nan, 2]),
    ],
)
def test_ways_to_write_numbers(texts, numbers):
    found = as_numbers(pd.Series([*texts, None], dtype=object))
    assert found is not None
    np.testing.assert_array_equal(found.values, [*numbers, np.nan])


@pytest.mark.parametrize(
    "texts", [["1", "two"], ["1,23,4", "x"], ["2020-01-02"], ["1.2.3"], ["--", "1-2"]]
)
def test_what_is_no_number(texts):
    assert as_numbers(pd.Series(texts, dtype=object)) is None


def test_a_few_words_among_many_numbers_are_missing_values():
    texts = [str(i / 4) for i in range(60)] + ["unknown", "unknown", "n.a."]
    made, numbers = column(texts)
    assert made.kind == "number"
    assert "'unknown', 'n.a.' taken as missing" in made.does
    assert made.names == ("c", "c is missing")
    assert np.isnan(numbers[60:, 0]).all()
    assert column([*texts, *["unknown"] * 9])[0].kind != "number"  # more than a tenth
    assert (
        column(["1", "2", "3", "other"] * 30)[0].kind == "category"
    )  # numbers of a list, not measurements
    assert as_numbers(pd.Series(texts, dtype=object)) is None  # a target has no such words


def test_infinite_values_are_missing():
    made, numbers = column([1.0, np.inf, 2.0, -np.inf, 3.0])
    assert made.n_missing == 2
    assert np.isfinite(numbers[:, 1]).all()


# Columns


def test_numbers_with_missing_values_say_where():
    made, numbers = column(["1", None, "3", "4"] * 5)
    assert made.kind == "number"
    assert made.names == ("c", "c is missing")
    assert np.isnan(numbers[1, 0])
    assert numbers[:4, 1].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("values", "name", "kind"),
    [
        (["7"] * 30, "c", "constant"),
        (["x"] * 30, "c", "constant"),
        ([None] * 30, "c", "empty"),
        (list(range(30)), "row", "identifier"),
        (list(range(100, 130)), "anything", "identifier"),
        ([i * i + 7 for i in range(30)], "customer_id", "identifier"),
        ([i * i + 7 for i in range(30)], "population", "number"),
        ([f"AB{i}" for i in range(30)], "c", "identifier"),
        ([f"text {i % 25}" for i in range(30)], "c", "text"),
        (["2020-01-01"] * 30, "c", "constant"),
    ],
)
def test_columns_that_say_nothing(values, name, kind):
    made, numbers = column(values, name)
    assert made.kind == kind
    if kind != "number":
        assert numbers.shape == (30, 0)
        assert made.does.startswith("left out")
        assert made.names == ()


def test_categories():
    made, numbers = column(["red", "blue", "green"] * 10)
    assert made.kind == "category"
    assert made.names == ("c = blue", "c = green", "c = red")
    assert numbers[:3].tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    made, numbers = column(["m", "f"] * 10)
    assert made.names == ("c = m",)
    made, numbers = column(["m", "f", None] * 10)
    assert made.names == ("c = f", "c = m", "c is missing")
    assert (numbers.sum(1) == 1).all()


def test_many_categories_have_their_mean_target_too():
    made, _ = column([f"level {i % 40}" for i in range(200)])
    assert (made.one_hot, made.mean_target, len(made.names)) == (True, True, 40)
    assert "one column for each of 40 categories and one with the mean target" in made.does
    made, _ = column([f"level {i % 90}" for i in range(200)])
    assert (made.one_hot, made.mean_target, made.names) == (False, True, ())
    made, _ = column([f"level {i % 20}" for i in range(60)])
    assert (made.one_hot, made.mean_target) == (True, False)


def test_yes_no_and_bools():
    made, numbers = column(["yes", "no", "no"] * 5)
    assert (made.kind, made.names) == ("yes/no", ("c = yes",))
    assert numbers[:3, 0].tolist() == [1, 0, 0]
    _, numbers = column(pd.Series([True, False] * 5, name="c"))
    assert numbers[:2, 0].tolist() == [1, 0]


@pytest.mark.parametrize(
    "style",
    [
        "%Y-%m-%d",
        "%d.%m.%Y",
        "%Y/%m/%d",
        "%Y-%m-%dT%H:%M:%S",
        "%d %b %Y",
        "%Y-%m-%d %H:%M:%S+00:00",
    ],
)
def test_dates(style):
    days = [datetime.date(2020, 1, 31) + datetime.timedelta(days=i) for i in (0, 13, 500)]
    made, numbers = column([day.strftime(style) for day in days] * 5)
    assert made.kind == "date"
    assert numbers[:3, 0].tolist() == [0, 13, 500]
    assert len(made.names) == 3  # more than a year: the season too
    np.testing.assert_allclose(numbers[:, 1] ** 2 + numbers[:, 2] ** 2, 1.0)


def test_dates_with_gaps_and_objects():
    made, numbers = column([datetime.date(2020, 1, 1), None, datetime.date(2020, 1, 11)] * 4)
    assert made.kind == "date"
    assert made.names == ("c days", "c is missing")
    assert numbers[2, 0] == 10


# The whole table


def test_a_design_says_what_became_of_every_column():
    frame = rows(
        constant="k",
        number=range(30),
        city=["Rome", "Oslo", None] * 10,
        when=pd.date_range("2020-01-01", periods=30, freq="W"),
    )
    frame.loc[3, "y"] = np.nan
    design = make_design(frame, "y")
    assert numbers(design).shape == (29, len(names(design)))
    assert design.n_dropped == 1
    assert {c.name: c.kind for c in design.columns} == {
        "a": "number", "constant": "constant", "number": "identifier", "city": "category", "when": "date",
    }  # fmt: skip
    assert design.target.task == "regression"
    without = make_design(frame, "y", drop=["city"])
    assert {c.name: c.does for c in without.columns}["city"] == "left out, as asked"


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (np.linspace(0, 1, 30), "regression", 0),
        ([0, 1] * 15, "classification", 2),
        ([1.0, 2.0, 3.0] * 10, "classification", 3),
        (list(range(30)), "regression", 0),
        (["b", "a", "c"] * 10, "classification", 3),
        (["1,000.5", "2,000", "30"] * 10, "regression", 0),
        ([True, False] * 15, "classification", 2),
    ],
)
def test_the_task_is_recognised(values, task, classes):
    target = make_design(rows(y=values), "y").target
    assert (target.task, len(target.classes)) == (task, classes)
    assert "recognised" in target.said


def test_the_task_can_be_overridden():
    target = make_design(rows(y=[10, 2] * 15), "y", task="regression").target
    assert target.y.tolist()[:2] == [10.0, 2.0]
    target = make_design(rows(y=[10, 2] * 15), "y", task="classification").target
    assert target.classes == ("2", "10")
    assert target.y.tolist()[:2] == [1, 0]


@pytest.mark.parametrize(
    ("frame", "target", "options", "message"),
    [
        (
            rows(price=1.5),
            "prise",
            {},
            "there is no column 'prise' for --target; did you mean 'price'?",
        ),
        (rows(), "Y", {}, "did you mean 'y'?"),
        (rows(), "zzzz", {}, "there is no column 'zzzz' for --target; the columns are a, y"),
        (rows(), "y", {"drop": ["b"]}, "there is no column 'b' for --drop"),
        (rows(), "y", {"drop": ["y"]}, "the target 'y' cannot be dropped too"),
        (rows(y=3.0), "y", {}, "the target 'y' is constant, always 3.0; choose another"),
        (rows(y=None), "y", {}, "the target 'y' has no values"),
        (rows(y="cat"), "y", {}, "the target 'y' is one class only, always cat"),
        (rows(y=2), "y", {"task": "classification"}, "the target 'y' is one class only, always 2"),
        (
            rows(y=["a", "b"] * 15),
            "y",
            {"task": "regression"},
            "must be numbers for regression, got 'a'",
        ),
        (rows(y=np.arange(30)), "y", {"task": "classification"}, "has 30 classes, more than 20"),
        (rows(y=[np.inf, *range(29)]), "y", {}, "the target 'y' must be finite, got 1 infinite"),
        (rows(a=1.0), "y", {}, "no column but the target 'y' can be used"),
        (
            rows(),
            "y",
            {"task": "ranking"},
            'task must be one of "auto", "regression", "classification"',
        ),
    ],
)
def test_bad_targets(frame, target, options, message):
    with pytest.raises(ValueError) as told:  # noqa: PT011 - the message is compared below, without patterns
        make_design(frame, target, **options)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


def test_one_list_among_texts_is_enough():
    with pytest.raises(TableError, match=r"column 'c' holds lists such as \[1, 2\]; spread them"):
        make_design(rows(c=["a", "b", [1, 2]] * 10), "y")
    assert make_design(rows(c=["a", "b", "[sic]"] * 10), "y").columns[1].kind == "category"


# As people write them


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (
            [*map(str, range(1, 98)), "1,024", "12,000"],
            [*range(1, 98), 1024, 12000],
        ),  # a few are large
        ([*["471.12", "8.5"] * 30, "1,300.25"], [*[471.12, 8.5] * 30, 1300.25]),
        (["0,373", "0,291", "1,250"], [0.373, 0.291, 1.25]),  # no thousands begin with 0
        (["40,472", "12,5", "7"], [40.472, 12.5, 7]),
        (["1,23,456", "12,345"], [123456, 12345]),
        (["\N{MINUS SIGN}5", "7"], [-5, 7]),
        (["(1,200)", "(15)", "30"], [-1200, -15, 30]),
        (["EUR 12", "US$13.5", "14 USD"], [12, 13.5, 14]),
        (["3", "-", "none", "4"], [3, np.nan, np.nan, 4]),
    ],
)
def test_numbers_as_people_write_them(texts, numbers):
    assert np.array_equal(as_numbers(pd.Series(texts)).values, numbers, equal_nan=True)


@pytest.mark.parametrize(
    "texts",
    [
        ["01/31/20", "02/01/20", "03/15/21"],
        ["31/01/2020 13:45", "01/02/2020 08:00", "15/03/2021 00:01"],
        ["01/31/2020 01:45 PM", "02/01/2020 08:00 AM", "03/15/2021 12:01 AM"],
        ["31-Jan-2020", "01-Feb-2020", "15-Mar-2021"],
    ],
)
def test_more_dates(texts):
    made, numbers = column(texts * 10)
    assert made.kind == "date"
    assert [round(day) for day in numbers[:3, 0] - numbers[0, 0]] in ([0, 1, 409], [0, 1, 408])


def test_months_before_days_are_seen_in_late_rows_too():
    hours = pd.date_range("2000-01-01", periods=2000, freq="h")
    made, numbers = column(list(hours.strftime("%m/%d/%Y %I:%M %p")))
    assert made.kind == "date"
    assert_close(np.diff(numbers[:, 0]), 1 / 24, atol=1e-9)


def test_words_among_dates_are_missing():
    days = [f"{day:%Y-%m-%d}" for day in pd.date_range("2020-01-01", periods=60)]
    for words in (["unknown"], ["0000-00-00"], ["9999-12-31"] * 60, ["soon"]):
        made, numbers = column([*days, *words])
        assert made.kind == "date"
        assert f"{words[0]!r} taken as missing" in made.does
        assert np.isnan(numbers[-1, 0])
    assert column(["fine", "2020-01-01", "also fine", "12 rooms"] * 10)[0].kind == "category"


def test_dates_with_different_offsets_are_all_kept():
    zones = [datetime.timezone(datetime.timedelta(hours=h)) for h in (0, 1, 2)]
    made, numbers = column(
        [datetime.datetime(2020, 1, 1 + i, tzinfo=zones[i % 3]) for i in range(12)]
    )
    assert made.kind == "date"
    assert not np.isnan(numbers).any()


@pytest.mark.parametrize("name", ["BID", "AMOUNT PAID", "COVID", "valid"])
def test_names_that_only_end_in_id(name):
    assert (
        column([int(v) for v in np.random.default_rng(0).permutation(1000)[:100] * 7], name)[0].kind
        == "number"
    )


@pytest.mark.parametrize("name", ["Order No", "ID_client", "customerID", "customer_id"])
def test_identifiers_may_repeat_once(name):
    values = [int(v) for v in np.random.default_rng(0).permutation(1000)[:100] * 7]
    assert column([*values, values[0]], name)[0].kind == "identifier"


def test_years_do_not_count_the_rows():
    assert column(list(range(1920, 2020)), "year")[0].kind == "number"
    assert column(list(range(100, 200)), "n")[0].kind == "identifier"


def test_words_for_no_value_are_classes_among_classes():
    design = make_design(rows(y=["+", "-"] * 15), "y")
    assert design.target.classes == ("+", "-")
    design = make_design(rows(y=["none", "mild", "severe"] * 10), "y")
    assert (design.target.classes, design.n_dropped) == (("mild", "none", "severe"), 0)
    design = make_design(rows(y=[*map(str, np.arange(29) / 3), "-"]), "y")
    assert (design.target.task, design.n_dropped) == ("regression", 1)


def test_large_whole_classes_stay_apart():
    design = make_design(rows(y=[10000001, 10000002] * 15), "y")
    assert design.target.classes == ("10000001", "10000002")


def test_a_word_in_a_target_of_numbers_is_named():
    with pytest.raises(TableError, match="the target 'y' is numbers but for 'oops'; correct these"):
        make_design(rows(y=[*map(str, np.arange(29) / 3), "oops"]), "y")
    with pytest.raises(TableError, match="must be numbers for regression, got 'x'"):
        make_design(rows(y=["1", "x", "y"] * 10), "y", task="regression")


def test_numbers_whose_squares_overflow_are_refused():
    with pytest.raises(
        TableError, match=r"the target 'y' must be within ±1e\+100, got 2.9e\+201; rescale it"
    ):
        make_design(rows(y=np.arange(30) * 1e200), "y")
    with pytest.raises(
        TableError, match=r"column 'b' must be within .* or leave it out with --drop"
    ):
        make_design(rows(b=np.arange(30) * 1e200), "y")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", '"size, m2, gross";"price, EUR"\n1;2\n'),
        ("t.csv", '"size, m2, gross", "price, EUR"\n1, 2\n'),
        ("t.tsv", '"size, m2, gross","price, EUR"\n1,2\n'),
        ("t.csv", '"size, m2, gross";"price, EUR"\n1;2;\n'),
    ],
)
def test_quotes_and_delimiters_of_others(tmp_path, name, text):
    frame = read_table(written(tmp_path / name, text))
    assert frame.columns.tolist() == ["size, m2, gross", "price, EUR"]
    assert frame.to_numpy().tolist() == [["1", "2"]]


def test_long_fields_and_names_of_encodings(tmp_path):
    frame = read_table(
        written(tmp_path / "t.csv", f"\ufeffa,b\n{'x' * 200_000},2\n"), encoding="UTF-8"
    )
    assert frame.columns.tolist() == ["a", "b"]
    path = written(tmp_path / "u.csv", "a,b\n1,2\n", "utf-32")
    assert read_table(path, encoding="UTF-32").columns.tolist() == ["a", "b"]
    with pytest.raises(TableError, match="looks like HTML, XML or JSON"):
        read_table(written(tmp_path / "j.csv", '[{"a": 1}]'))


# Awkward


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["-"] * 30, "constant"),
        (["none", None] * 15, "category"),
        ([datetime.date(9999, 12, 31)] * 30, "empty"),
        (["0000-00-00"] * 30, "constant"),
        (["3.8.10", "3.9.12", "3.10.13"] * 10, "category"),
        (["unknown"] * 29 + ["2020-01-01"], "date"),
        ([datetime.timedelta(days=i * i) for i in range(30)], "number"),
        ([10**400, 1, 2] * 10, "number"),
        (
            [datetime.date(9999, 12, 31)] * 10 + [datetime.date(2020, 1, i + 1) for i in range(20)],
            "date",
        ),
    ],
)
def test_awkward_columns(values, kind):
    made, numbers = column(values)
    assert made.kind == kind
    if kind == "date":
        assert made.n_missing == (29 if values[0] == "unknown" else 10)
        assert np.nanmax(numbers[:, 0]) < 366


def test_types_of_arrow():
    import pyarrow as pa

    days = [datetime.date(2020, 1, i + 1) for i in range(30)]
    words = pd.Series(
        ["a", "b", "c"] * 10, dtype=pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string()))
    )
    spans = pd.Series(
        [datetime.timedelta(days=i**2) for i in range(30)], dtype=pd.ArrowDtype(pa.duration("us"))
    )
    frame = rows(d=pd.Series(days, dtype=pd.ArrowDtype(pa.date32())), w=words, s=spans)
    assert [c.kind for c in make_design(frame, "y").columns] == [
        "number",
        "date",
        "category",
        "number",
    ]


def test_an_index_that_repeats():
    frame = rows(d=[*pd.date_range("2020-01-01", periods=28).strftime("%Y-%m-%d"), None, "unknown"])
    frame.index = [0] * 30
    assert make_design(frame, "y").columns[1].kind == "date"


@pytest.mark.parametrize("word", ["\N{MINUS SIGN}", "-", "None", "", "NA"])
def test_words_in_a_target_are_left_out_however_they_are_written(word):
    design = make_design(rows(y=[*map(str, np.arange(29) / 3), word]), "y")
    assert (design.target.task, design.n_dropped) == ("regression", 1)


def test_brackets_are_said_and_words_shown_as_written():
    assert "written in brackets for minus" in column(["(15)", "30.5", "7"] * 10)[0].does
    made, _ = column([*(str(i / 3) for i in range(59)), "see (1)"])
    assert "'see (1)' taken as missing" in made.does
    assert "currency" not in made.does


def test_headers_in_brackets_and_quotes_within_fields(tmp_path):
    assert read_table(written(tmp_path / "t.csv", "[id],[price]\n1,2\n")).columns.tolist() == [
        "[id]",
        "[price]",
    ]
    assert read_table(written(tmp_path / "u.csv", 'a, b\n1, "Foo" bar\n'))["b"].tolist() == [
        '"Foo" bar'
    ]


@pytest.mark.parametrize("name", ["NO", "No of employees", "Price Index"])
def test_names_that_are_no_identifiers(name):
    assert (
        column([int(v) for v in np.random.default_rng(0).permutation(1000)[:100] * 7], name)[0].kind
        == "number"
    )


def test_without_pandas_the_import_says_what_to_install():
    code = "import sys; sys.modules['pandas'] = None; import rlploss.compare"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = "rlploss.compare needs pandas, which is not installed: pip install 'rlploss[lab]'"
    assert done.stderr.strip().endswith(said)


def test_dates_that_can_be_read_in_two_ways_are_told():
    """Of a month in the year 2019, or of January: both fit."""
    months = [f"{month}/1/{year}" for year in (2019, 2020, 2021) for month in range(1, 13)]
    design = make_design(rows(36, when=months), "y")
    assert any("'when' can be read in two ways: 2/1/2019 is taken as 2019-01-02, and may be 2019-02-01" in w
               for w in design.warnings)  # fmt: skip
    assert next(c for c in design.columns if c.name == "when").remark
    plain = make_design(rows(36, when=[f"{13 + i % 15}/1/2019" for i in range(36)]), "y")
    assert not any("two ways" in w for w in plain.warnings)


def test_dates_of_typed_tables_are_read_again_in_one_form_only():
    made, _ = column(list(pd.date_range("2019-01-01", periods=30)))
    assert made.column.parts(made.column.read(pd.Series(["2019-03-01"])))["c days"] == [59]
    assert made.column.read(pd.Series(["01.03.2019"])).isna().all()


def test_a_word_among_classes_is_a_class():
    words = ["none", "1", "2"] * 10
    for task in ("auto", "classification"):
        design = make_design(rows(y=words), "y", task=task)
        assert design.target.classes == ("1", "2", "none")
        assert design.n_dropped == 0
    assert make_design(rows(y=words), "y", task="regression").n_dropped == 10


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([2**60 + i for i in range(30)], "constant to 16 digits"),
        (
            [i * 1e-300 for i in range(30)],
            r"must differ by more than 1e-100, got 2\.9e-299; rescale it",
        ),
    ],
)
def test_targets_that_floats_cannot_tell_apart(target, message):
    with pytest.raises(TableError, match=message):
        make_design(rows(y=target), "y")


@pytest.mark.parametrize(
    ("values", "new", "unread"),
    [
        ([i + 0.5 for i in range(30)], ["1.5", "1,5", "abc", None, "unknown", ""], 2),
        (["yes", "no"] * 15, ["yes", "YES", "1", None], 2),
        (["a", "b", "c"] * 10, ["a", "d"], 1),
        ([f"2019-01-{1 + i % 28:02}" for i in range(30)], ["2019-02-01", "01.02.2019"], 1),
    ],
)
def test_values_that_are_unlike_the_tables_are_counted(values, new, unread):
    table, new = (pd.DataFrame({"c": pd.Series(some, dtype=object)}) for some in (values, new))
    encoder = TableEncoder().fit(table)
    encoder.transform(table)
    with pytest.warns(TableWarning, match=f"column c: {unread} of {len(new)} values are unlike"):
        encoder.transform(new)


def test_times_are_read_as_their_column_is():
    """Days of the second half of a month tell days from months, also where their rows have no
    target."""
    days = pd.date_range("2020-01-01", periods=300).strftime("%m/%d/%Y")
    table = rows(300, when=days)
    table.loc[pd.to_datetime(days).day > 12, "y"] = np.nan
    assert (np.diff(make_design(table, "y", time="when").time) > 0).all()


@pytest.mark.parametrize(
    "cells",
    [
        [f"1{' ' * 50_000}x"] * 3,
        ["x" * 300_000],
        [f"{'ab' * 150_000}{i % 3}" for i in range(30)],
        [f"word {i % 7} " * 700 for i in range(200)],
        [f"({'1 ' * 20_000}x"] * 30,
        [f"[{']  ' * 30_000}x"] * 30,
        ["1 2" * 7_000_000],
        ["9" * 101, "9" * 50_000],
    ],
    ids=lambda cells: f"{len(cells)} cells such as {cells[0][:9]!r}",
)
def test_long_cells_are_texts_and_take_no_time(tmp_path, cells):
    """Each of these took minutes: expressions went back over every pair of places."""
    lines = [f"{cell},{i * 0.5 + 0.25}" for i, cell in enumerate([*cells, *["a", "b", "c"] * 10])]
    path = written(tmp_path / "t.csv", "\n".join(["c,y", *lines]))
    began = time.monotonic()
    design = make_design(read_table(path), "y")
    assert time.monotonic() - began < 10
    assert design.columns[0].kind in ("category", "text")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)
        design.encoder.fit(design.frame, design.target.y).transform(read_table(path))
    assert time.monotonic() - began < 10


def test_a_pipe_is_refused_before_it_is_opened(tmp_path):
    """Nobody may ever write into it."""
    os.mkfifo(tmp_path / "t.csv")
    with pytest.raises(TableError, match="is a pipe or a device, not a table; give a file"):
        read_table(tmp_path / "t.csv")


def test_dates_far_away_are_dates(tmp_path):
    dates = pd.Series(["2263-01-01", "2270-05-06", "1600-02-03"] * 10)
    assert as_dates(dates).values.dt.year.tolist()[:3] == [2263, 2270, 1600]


def test_a_table_of_very_many_columns_is_refused_at_once(tmp_path):
    """Each column is looked at for some milliseconds."""
    lines = [",".join(f"c{i}" for i in range(10_001)), *[",".join(["1"] * 10_001)] * 3]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(TableError, match="has 10,001 columns, more than 10,000; leave out what"):
        read_table(tmp_path / "t.csv")
