"""`rlploss compare` on files as they come: every kind that can be read, every kind that is
refused."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlploss.cli import run
from rlploss.compare import load

QUICK = [
    "--splits",
    "2",
    "--steps",
    "20",
    "--arms",
    "rlp,ridge",
    "--workers",
    "inline",
    "--out",
    "out",
]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def frame(n=40):
    """What people have: an identifier, a constant, dates, categories, gaps, prices with
    separators."""
    rng = np.random.default_rng(0)
    size = rng.uniform(50, 200, n).round(1)
    return pd.DataFrame(
        {
            "house id": rng.permutation(10 * n)[:n],
            "size": [f"{v:,.1f}" for v in 100 * size],
            "city": np.where(rng.random(n) < 0.2, None, rng.choice(["Rome", "Oslo", "Bern"], n)),
            "sold": pd.date_range("2021-03-01", periods=n, freq="13D").strftime("%d.%m.%Y"),
            "rooms": np.where(rng.random(n) < 0.3, np.nan, rng.integers(1, 6, n)),
            "country": "X",
            "price": [f"$ {v:,.0f}" for v in 2000 * size + 1e4 * rng.normal(size=n)],
        }
    )


SAID = (
    "recognised as regression (numbers); --task overrides.",
    "| house id | identifier | left out: a different whole number in every row |",
    "| size | number | a number, written with commas between thousands |",
    "missing are a category of their own",
    "| sold | date | days since the first date, and the season as a sine and a cosine |",
    "missing filled with the median, and a column that says where",
    "| country | constant | left out: always 'X' |",
)


@pytest.mark.parametrize(
    ("path", "delimiter"), [("t.csv", ","), ("t.csv", ";"), ("t.tsv", "\t"), ("t.txt", "|")]
)
def test_the_same_table_in_every_format(path, delimiter, capsys):
    frame().to_csv(path, index=False, sep=delimiter)
    assert run(["inspect", path, "--target", "price"]) == 0
    said = capsys.readouterr().out
    for words in (f"{path}: 40 rows; target 'price'", *SAID):
        assert words in said


def test_parquet_from_file_to_answer(capsys):
    table = frame()
    table.assign(sold=pd.to_datetime(table["sold"], format="%d.%m.%Y")).to_parquet("t.parquet")
    assert run(["compare", "t.parquet", "--target", "price", *QUICK]) == 0
    said = capsys.readouterr().err
    for words in ("t.parquet: 40 rows; target 'price'", *SAID[:2], *SAID[3:4], *SAID[5:]):
        assert words in said
    data = json.loads(Path("out/comparison.json").read_text())
    assert {c["name"]: len(c["gives"]) for c in data["columns"]} == {
        "house id": 0, "size": 1, "city": 4, "sold": 3, "rooms": 2, "country": 0,
    }  # fmt: skip
    ridge = next(row for row in data["results"] if row["arm"] == "ridge regression")
    assert ridge["r2"] > 0.9  # prices were read as the numbers they are
    truth = table["price"].str.replace(r"[$ ,]", "", regex=True).astype(float)
    assert np.corrcoef(load("out").predict(pd.read_parquet("t.parquet")), truth)[0, 1] > 0.95


def test_the_task_is_overridden(capsys):
    frame().assign(price=np.arange(40) % 4).to_csv("t.csv", index=False)
    assert run(["compare", "t.csv", "--target", "price", "--task", "regression", *QUICK]) == 0
    assert "regression, as asked" in capsys.readouterr().err


def test_many_rows_are_sampled_and_the_command_says_so(capsys):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100_000, 3))
    pd.DataFrame(X, columns=list("abc")).assign(y=X.sum(1)).to_parquet("t.parquet")
    assert run(["compare", "t.parquet", "--target", "y", *QUICK]) == 0
    told = "10,000 of 100,000 rows are used, a random sample; --max-rows changes that."
    assert told in capsys.readouterr().err
    assert told in Path("out/report.html").read_text()


HEAD = b"a,price\n"
BAD = {
    "nothing.csv": (None, "there is no file nothing.csv; check the path"),
    "empty.csv": (b"", "empty.csv is empty; give a table with a header and rows"),
    "header.csv": (HEAD, "header.csv is empty: it has 2 columns and 0 rows; add rows"),
    "page.csv": (b"<html></html>", "page.csv is not a table but looks like HTML, XML or JSON"),
    "picture.csv": (b"\x89PNG\x00\x00", "picture.csv is not a table but binary data"),
    "ragged.csv": (HEAD + b"1,2\n3\n", "line 3 has 1 fields and the header has 2"),
    "broken.parquet": (b"PAR1", "broken.parquet is not a Parquet table"),
    "sheet.xlsx": (b"PK", "is not an Excel table"),
    "twice.csv": (b"a,a,price\n1,2,3\n", "column names must be different, but 'a' occurs twice"),
    "latin.csv": ("città,price\n1,2\n".encode("latin-1"), "latin.csv is not utf-8 text (byte 0xe0"),
    "lists.csv": (HEAD + b'"[1, 2]",3\n"[0, 1]",5\n' * 20, "column 'a' holds lists such as [1, 2]"),
    "class.csv": (
        HEAD + b"1,cheap\n2,cheap\n" * 20,
        "the target 'price' is one class only, always cheap",
    ),
    "flat.csv": (HEAD + b"1,7\n2,7\n" * 20, "the target 'price' is constant, always 7"),
    "gone.csv": (HEAD + b"1,\n2,NA\n" * 20, "the target 'price' has no values"),
    "other.csv": (
        b"a,prise\n1,2\n3,4\n",
        "there is no column 'price' for --target; did you mean 'prise'?",
    ),
    "few.csv": (HEAD + b"".join(b"%d,%d.5\n" % (i, i * i) for i in range(9)), "at least 24 rows"),
    "rare.csv": (HEAD + b"1,x\n2,y\n" * 20 + b"3,z\n", "but class 'z' has 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_sentence_and_exit_code_2(name, capsys, tmp_path):
    data, message = BAD[name]
    if data is not None:
        (tmp_path / name).write_bytes(data)
    before = sorted(tmp_path.rglob("*"))
    assert run(["compare", name, "--target", "price"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("rlploss: ")
    assert said.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before  # nothing half-written
