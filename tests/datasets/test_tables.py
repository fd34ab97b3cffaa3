"""The survey's tables: which are for development, and how their files are read."""

import hashlib
import io
from pathlib import PurePosixPath

import numpy as np
import pandas
import pytest

from rlploss.datasets import tables
from rlploss.datasets.tables import SurveyTable, load_table, numbers, read_cells, survey_tables


def collection(name):
    return {k: table for k, table in survey_tables().items() if table.collection == name}


def test_halves_are_by_the_hash_of_names():
    tables = {**collection("survey"), **collection("survey-classes")}
    even = {name for name in tables if hashlib.sha256(name.encode()).hexdigest()[-1] in "02468ace"}
    development = {name for name, table in tables.items() if table.development}
    assert development == even | {"wizmir", "slump_test", "qsar_aquatic_toxicity"}
    assert len(even) > 15 < len(tables) - 10
    assert {name for name, table in tables.items() if table.like} == {
        "wizmir",  # like wankara
        "slump_test",  # like concrete
        "qsar_aquatic_toxicity",  # like qsar-fish-toxicity
    }


def test_every_table_has_a_file_of_its_own():
    tables = survey_tables().values()
    assert len({table.sha256 for table in tables}) == len(tables)
    places = {(table.collection, PurePosixPath(table.file).name) for table in tables}
    assert len(places) == len(tables)


def test_the_second_collection_is_no_half_of_the_first():
    """No rule may be tuned on it, and the documentation names each target."""
    tables = collection("survey-second")
    assert len(tables) >= 30
    assert not any(table.development or table.classes for table in tables.values())
    assert all(table.named and table.target for table in tables.values())
    assert all(table.drop[0] == 0 for table in tables.values())  # the row names


@pytest.mark.parametrize(
    ("separator", "header", "text"),
    [
        (",", 0, "@relation x\n@inputs a, b\n1, x, 2.5\n3, y, 4.5\n"),
        (",", 1, 'a,"b, c",d\n1,"x",2.5\n3,y,"4.5"\n'),
        (";", 1, '"a";"b";"c"\n1;"x";2,5\n3;"y";4,5\n'),
        (" ", 0, "1   x  2.5\n\n3 y 4.5\n"),
        ("\t", 0, "1\tx\t2.5\n3\ty\t4.5\n"),
    ],
)
def test_text_files(separator, header, text):
    table = SurveyTable("t", "t.txt", "", 0, separator, header)
    names, cells = read_cells(text.encode("utf-8-sig"), table)
    assert cells.tolist() == [["1", "x", "2.5"], ["3", "y", "4.5"]]
    assert len(names) == 3
    assert names[0] == ("a" if header else "")


def test_workbooks():
    sheet = pandas.DataFrame([["name", "value", None], ["two", 2.5, 7], ["x", None, 0.1]])
    book = io.BytesIO()
    sheet.to_excel(book, header=False, index=False)
    names, cells = read_cells(book.getvalue(), SurveyTable("t", "t.xlsx", "", 0, "xlsx", 1))
    assert names[:2] == ["name", "value"]
    assert cells.tolist() == [["two", "2.5", "7"], ["x", "?", "0.1"]]


def test_columns_by_name_and_by_number(cache, monkeypatch):
    text = b'"","price","size","city"\n"1",10,2.5,"x"\n"2",20,3.5,"y"\n"3",40,0,"x"\n'
    (cache / "survey-second").mkdir(parents=True)
    (cache / "survey-second" / "t.csv").write_bytes(text)
    facts = {"bytes": len(text), "collection": "survey-second"}
    for target, drop in (("price", (0, "city")), (1, (0, -1))):
        table = SurveyTable(
            "t", "P/t.csv", hashlib.sha256(text).hexdigest(), target=target, drop=drop, **facts
        )
        monkeypatch.setattr(tables, "survey_tables", lambda table=table: {"t": table})
        tables._fetch.cache_clear()
        X, y = load_table("t", download=False)
        assert y.tolist() == [10.0, 20.0, 40.0]
        assert X.tolist() == [[2.5], [3.5], [0.0]]
    tables._fetch.cache_clear()


def test_columns_of_texts():
    assert numbers(np.array(["1", "2.5"])).tolist() == [[1.0], [2.5]]
    assert numbers(np.array(["b", "a", "c"])).tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    for missing in ("?", "", "NA"):
        for column in (["1", missing], [missing, "b", "a"]):
            assert numbers(np.array(column)) is None
