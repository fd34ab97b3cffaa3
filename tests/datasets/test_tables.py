"""The survey's tables: which are for development, and how their files are read."""

import hashlib
import io
import zipfile

import numpy as np
import pytest

from rlploss.datasets.tables import SurveyTable, numbers, read_cells, survey_tables


def test_halves_are_by_the_hash_of_names():
    tables = survey_tables()
    even = {name for name in tables if hashlib.sha256(name.encode()).hexdigest()[-1] in "02468ace"}
    assert {name for name, one in tables.items() if one.development} == even | {"wizmir"}  # like wankara
    assert len(even) > 15 < len(tables) - 10
    assert {name for name, one in tables.items() if one.like} == {"wizmir"}
    assert len({one.file for one in tables.values()}) == len({one.sha256 for one in tables.values()}) == len(tables)


@pytest.mark.parametrize(
    ("separator", "header", "text"),
    [
        (",", 0, "@relation x\n@inputs a, b\n1, x, 2.5\n3, y, 4.5\n"),
        (";", 1, '"a";"b";"c"\n1;"x";2,5\n3;"y";4,5\n'),
        (" ", 0, "1   x  2.5\n\n3 y 4.5\n"),
        ("\t", 0, "1\tx\t2.5\n3\ty\t4.5\n"),
    ],
)
def test_text_files(separator, header, text):
    table = SurveyTable("t", "t.txt", "", 0, separator, header)
    assert read_cells(text.encode("utf-8-sig"), table).tolist() == [["1", "x", "2.5"], ["3", "y", "4.5"]]


def test_workbooks():
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    row = '<row r="{n}"><c r="A{n}" t="s"><v>{word}</v></c><c r="AB{n}"><v>{value}</v></c></row>'
    rows = [row.format(n=n, word=word, value=value) for n, word, value in ((1, 0, 7), (2, 1, 2.5))]
    book = io.BytesIO()
    with zipfile.ZipFile(book, "w") as file:
        file.writestr("xl/sharedStrings.xml", f'<sst xmlns="{space}"><si><t>one</t></si><si><t>two</t></si></sst>')
        file.writestr("xl/worksheets/sheet1.xml", f'<worksheet xmlns="{space}">{"".join(rows)}</worksheet>')
    cells = read_cells(book.getvalue(), SurveyTable("t", "t.xlsx", "", 0, "xlsx", 1))
    assert cells.shape == (1, 28)
    assert (cells[0, 0], cells[0, 1], cells[0, 27]) == ("two", "?", "2.5")


def test_columns_of_texts():
    assert numbers(np.array(["1", "2.5"])).tolist() == [[1.0], [2.5]]
    assert numbers(np.array(["b", "a", "c"])).tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    assert numbers(np.array(["1", "?"])) is None
