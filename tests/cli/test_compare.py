"""The commands compare and inspect: what they print, what they write, how they refuse."""

import io
import json
import os
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from rlploss.cli import run
from rlploss.cli.compare import _tell_table
from rlploss.estimators.kinds import Column

QUICK = ["--splits", "2", "--steps", "20", "--arms", "mse,rlp,mean", "--workers", "inline"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def houses(path="houses.csv", n=40, **columns):
    rng = np.random.default_rng(0)
    size = rng.uniform(50, 200, n).round(1)
    frame = pd.DataFrame(
        {
            "house": [f"H{i:03}" for i in range(n)],
            "size": size,
            "city": rng.choice(["Rome", "Oslo"], n),
            "sold": pd.date_range("2021-03-01", periods=n, freq="11D").strftime("%Y-%m-%d"),
            "price": [f"{v:,.0f}" for v in 2000 * size + 1e4 * rng.normal(size=n)],
            **columns,
        }
    )
    frame.to_csv(path, index=False)
    return frame


def test_compare_from_file_to_report(capsys, tmp_path):
    houses()
    assert run(["compare", "houses.csv", "--target", "price", "--out", "out", *QUICK]) == 0
    said, progress = capsys.readouterr()
    for words in (
        "houses.csv: 40 rows; target 'price': recognised as regression",
        "| house | identifier | left out: a different text in every row",
        "3 columns taken as they stand.",
        "3 arms × 2 splits: about",
        "The dial: subsets of 6 rows or fewer",
        "the rows are sorted by 'sold'",
        "[2/2]",
    ):
        assert words in progress
    assert said.startswith("Use ")
    for words in ("Test rows, 2 splits", "Report: out/report.html", "rlploss predict out NEW.csv"):
        assert words in said
    data = json.loads((tmp_path / "out/comparison.json").read_text())
    assert data["summary"] in said
    assert data["target"] == "price"
    assert (tmp_path / "out/report.html").exists()


def test_the_same_directory_resumes(capsys):
    houses()
    command = ["compare", "houses.csv", "--target", "price", "--out", "out", *QUICK]
    assert run(command) == 0
    capsys.readouterr()
    assert run(command) == 0
    assert "3 arms × 2 splits, 3 trained already." in capsys.readouterr().err
    page = Path("out/report.html").read_bytes()
    assert (
        run(["report", "out"]) == 2
    )  # that is for directories of `reproduce`, and must not overwrite this one
    assert "if `rlploss compare` made it, run the same command again" in capsys.readouterr().err
    assert Path("out/report.html").read_bytes() == page


def test_other_settings_are_told_before_anything_is_replaced(capsys):
    houses()
    command = ["compare", "houses.csv", "--target", "price", "--out", "out", *QUICK]
    assert run(command) == 0
    assert "with other settings" not in capsys.readouterr().err
    assert run([*command, "--metric", "mae", "--seed", "4"]) == 0
    told = capsys.readouterr().err
    assert "out has a report with other settings (--metric was None, --seed was 0)" in told
    assert told.index("with other settings") < told.index("3 arms × 2 splits")


def test_a_model_of_ones_own_is_an_arm(capsys, tmp_path):
    houses()
    (tmp_path / "mine.py").write_text(
        "from sklearn.neighbors import KNeighborsRegressor\nnearest = KNeighborsRegressor(3)\n"
    )
    command = ["compare", "houses.csv", "--target", "price", "--out", "out", "--splits", "2"]
    assert run([*command, "--arms", "ridge", "--model", "mine.py:nearest"]) == 0
    assert "nearest" in capsys.readouterr().out
    assert run([*command, "--model", "mine.py:farthest"]) == 2
    told = capsys.readouterr().err
    assert "--model mine.py:farthest cannot be used" in told


@pytest.mark.parametrize("change", ["values", "arrays"])
def test_a_stored_arm_that_is_not_whole_is_no_mistake_of_ours(change, capsys):
    houses()
    command = ["compare", "houses.csv", "--target", "price", "--out", "out", *QUICK]
    assert run(command) == 0
    connection = sqlite3.connect("out/runs.sqlite", isolation_level=None)
    (rule,) = connection.execute(
        "SELECT sql FROM sqlite_schema WHERE name = 'cell_once'"
    ).fetchone()
    connection.execute("DROP TRIGGER cell_once")
    for number, text in connection.execute("SELECT id, networks FROM cell").fetchall():
        (network,) = json.loads(text)
        if change == "values":
            del network["values"]["log"]
        else:
            del network["arrays"]["test"]
        row = (json.dumps([network]), number)
        connection.execute("UPDATE cell SET networks = ? WHERE id = ?", row)
    connection.execute(rule)
    connection.close()
    capsys.readouterr()
    assert run(command) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "is damaged or truncated (what is stored of an arm cannot be read, " in said


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize(
    "text", ["[1]", '{"columns": 3}', '{"settings": [1]}', "[" * 100_000, None]
)
def test_what_somebody_else_put_in_place_of_a_report_is_not_followed(text, capsys):
    """It is read before the store, which then says what the directory is."""
    houses()
    Path("out").mkdir()
    if text is None:
        os.mkfifo("out/comparison.json")
    else:
        Path("out/comparison.json").write_text(text)
    assert run(["compare", "houses.csv", "--target", "price", "--out", "out", *QUICK]) == 2
    assert "out is not empty and was not made by rlploss; choose" in capsys.readouterr().err


def test_inspect(capsys):
    houses(when=[None, *["2020-01-01"] * 39])
    assert run(["inspect", "houses.csv", "--target", "price"]) == 0
    said = capsys.readouterr().out
    for words in (
        (
            "houses.csv: 40 rows; target 'price': recognised as regression (numbers); --task"
            " overrides."
        ),
        "| city | category | 1 for 'Rome', 0 for 'Oslo' |",
        (
            "The dial: subsets of 8 rows or fewer (columns and intercept) are MSE, all rows are"
            " linear regression"
        ),
        "tried are MSE and 13, 17, 20 rows, where settings are chosen on 20.",
    ):
        assert words in said
    assert run(["inspect", "houses.csv", "--target", "city"]) == 0
    assert "Classes: Oslo (" in capsys.readouterr().out


def test_columns_that_are_dropped_are_not_taken(capsys):
    houses()
    assert (
        run(
            [
                "compare",
                "houses.csv",
                "--target",
                "price",
                "--drop",
                "sold,house",
                *QUICK[:-2],
                "--quick",
            ]
        )
        == 0
    )
    assert "2 columns taken as they stand." in capsys.readouterr().err


def test_many_columns_are_told_in_linear_time():
    """Each was compared with every other."""
    column = Column("", "number", "as it stands")
    columns = [replace(column, name=f"c{i}") for i in range(20_000)]
    target = SimpleNamespace(name="y", said="numbers")
    design = SimpleNamespace(
        columns=columns, target=target, n_rows=20, n_dropped=0, said="", warnings=()
    )
    file, began = io.StringIO(), time.monotonic()
    _tell_table(Console(file=file), Path("wide.csv"), design, columns)
    _tell_table(Console(file=file), Path("wide.csv"), design, columns[:1])
    assert time.monotonic() - began < 20
    assert "19999 columns taken as they stand." in file.getvalue()


def test_inspect_of_a_wide_table(capsys):
    pd.DataFrame(
        np.random.default_rng(0).normal(size=(10, 30)), columns=[f"c{i}" for i in range(30)]
    ).to_csv("wide.csv", index=False)
    assert run(["inspect", "wide.csv", "--target", "c0"]) == 0
    told = (
        "The dial: 29 columns and 8 rows to choose settings on leave RLP no subset with more rows"
        " than columns"
    )
    assert told in capsys.readouterr().out


def test_inspect_knows_that_windows_of_time_begin_with_few_rows(capsys):
    table = pd.DataFrame(
        np.random.default_rng(0).normal(size=(60, 26)), columns=[f"c{i}" for i in range(26)]
    )
    table.assign(day=pd.date_range("2020-01-01", periods=60)).to_csv("days.csv", index=False)
    assert run(["inspect", "days.csv", "--target", "c0", "--drop", "day"]) == 0
    assert "tried are MSE and" in capsys.readouterr().out
    assert run(["inspect", "days.csv", "--target", "c0", "--time", "day"]) == 0
    assert "leave RLP no subset" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.csv", "--target", "price"], "there is no file nothing.csv"),
        (["houses.csv", "--target", "prices"], "did you mean 'price'?"),
        (["houses.csv", "--target", "price", "--task", "ranking"], "task must be one of"),
        (
            ["houses.csv", "--target", "price", "--drop", "garden"],
            "there is no column 'garden' for --drop",
        ),
        (["houses.csv", "--target", "constant"], "the target 'constant' is constant"),
        (["houses.csv", "--target", "nothing"], "the target 'nothing' has no values"),
        (["houses.csv", "--target", "price", "--encoding", "ascii"], "is not ascii text"),
        (["few.csv", "--target", "price"], "a comparison needs at least 24 rows to split, got 12"),
        (["houses.csv", "--target", "price", "--arms", "mse,rpl"], 'did you mean "rlp"?'),
        (
            ["houses.csv", "--target", "price", "--workers", "many"],
            'workers must be "inline", "local:N" or "dask:tcp://HOST:PORT"',
        ),
        (
            ["houses.csv", "--target", "price", "--out", "theirs"],
            "theirs is not empty and was not made by rlploss",
        ),
        (["houses.csv", "--target", "price", "--out", "houses.csv"], "is a file, not a directory"),
        (["houses.csv", "--target", "house"], "classes, more than 20"),
        (["houses.csv"], "--target"),
        (
            ["houses.csv", "--target", "price", "--splits", "0"],
            "rlploss: --splits must be at least 2, got 0",
        ),
        (
            ["houses.csv", "--target", "price", "--seed=-1"],
            "rlploss: --seed must be at least 0, got -1",
        ),
        (
            ["houses.csv", "--target", "price", "--time-limit", "0"],
            "rlploss: --time-limit must be finite and at least",
        ),
        (
            ["houses.csv", "--target", "price", "--max-rows", "3"],
            "rlploss: --max-rows must be at least 24, got 3",
        ),
        (
            ["houses.csv", "--target", "price", "--steps", "0"],
            "rlploss: --steps must be at least 1, got 0",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message, capsys, tmp_path):
    houses(constant=7, nothing=None, näme="ü")
    houses("few.csv", n=12)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("precious")
    before = sorted(tmp_path.rglob("*"))
    assert run(["compare", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("rlploss: ")
    assert said.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before  # nothing half-written
