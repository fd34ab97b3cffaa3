import csv
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.paper import world

from rlploss import cli, datasets
from rlploss.lab.executors import parse_workers
from rlploss.lab.study import CellResult
from rlploss.lab.text import Stopped
from rlploss.paper import measure
from rlploss.paper import reproduce as work
from rlploss.paper.request import Request
from rlploss.paper.studies import CATALOG, STUDIES

NARROW = Request("smoke", datasets=("linear",))


def fake(cell, tell):
    tell(0.5)
    stored = world.read(cell, "gone")
    return CellResult(stored.networks, "plain", 1, 0.01)


@pytest.fixture
def stubbed(monkeypatch):
    monkeypatch.setattr(measure, "train", fake)


def run(names, request, out):
    console = Console(file=io.StringIO(), width=200)
    work.reproduce(names, request, out, workers=parse_workers("inline"), console=console)
    return console.file.getvalue()


def tables(out):
    """Every table but that of seconds."""
    return {p.name: p.read_bytes() for p in sorted((out / "tables").iterdir()) if p.stem != "time"}


def test_the_terminal_shows_plan_table_verdicts_summary_and_paths(tmp_path, stubbed):
    text = run(["table1"], NARROW, tmp_path / "out")
    assert "8 cells: 8 to train (16 networks), about" in text
    assert "| Linear | RLP | 2.60e-6 ± 1.70e-6 |" in text
    assert "not judged at this scale" in text
    assert "comparing planes instead of points" in text
    assert f"Report: {tmp_path / 'out' / 'report.html'}" in text
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")


def test_a_second_run_trains_nothing_and_changes_nothing(tmp_path, monkeypatch):
    calls = []

    def counting(cell, tell):
        calls.append(cell)
        return fake(cell, tell)

    monkeypatch.setattr(measure, "train", counting)
    run(["table1", "fig-curves"], NARROW, tmp_path)
    first, n = tables(tmp_path), len(calls)
    text = run(["table1", "fig-curves"], NARROW, tmp_path)
    assert "nothing to train" in text
    assert len(calls) == n == 8
    assert tables(tmp_path) == first


def test_interrupted_it_resumes_to_the_same_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "train", fake)
    run(["table1"], NARROW, tmp_path / "whole")
    seen = []

    def interrupted(cell, tell):
        seen.append(cell)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return fake(cell, tell)

    monkeypatch.setattr(measure, "train", interrupted)
    with pytest.raises(Stopped, match=r"3 of 8 cells are stored, rlploss report .*cut shows them"):
        run(["table1"], NARROW, tmp_path / "cut")
    assert not (tmp_path / "cut" / "report.html").exists()
    monkeypatch.setattr(measure, "train", fake)
    text = run(["table1"], NARROW, tmp_path / "cut")
    assert "3 stored already, 5 to train" in text
    assert tables(tmp_path / "cut") == tables(tmp_path / "whole")


def test_names_add_up_in_one_directory_and_report_renders_them_again(tmp_path, stubbed):
    run(["table1"], NARROW, tmp_path)
    run(["fig-networks"], NARROW, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert 'id="table1"' in page
    assert 'id="fig-networks"' in page
    (tmp_path / "report.html").unlink()
    assert cli.run(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").read_text() == page


def test_report_shows_the_runs_of_other_code_as_they_are(tmp_path, stubbed, monkeypatch, capsys):
    run(["table1"], NARROW, tmp_path)
    before = tables(tmp_path)
    for place in ("lab.store", "paper.reproduce"):
        monkeypatch.setattr(f"rlploss.{place}.code_version", lambda *files: "other")
    assert cli.run(["report", str(tmp_path)]) == 0
    assert "another version of the code" in capsys.readouterr().out
    assert tables(tmp_path) == before
    text = run(["table1"], NARROW, tmp_path)
    assert "8 stored cells come from other code and are not used" in text
    assert "8 cells: 8 to train" in text


def test_data_that_cannot_be_had_are_reported_and_the_rest_runs(tmp_path, stubbed, monkeypatch):
    real = datasets.load

    def load(name, **options):
        if name == "wine":
            raise datasets.DatasetUnavailable("no source has\nwine")
        return real(name, **options)

    monkeypatch.setattr(datasets, "load", load)
    text = run(["table1"], Request("smoke", datasets=("linear", "wine")), tmp_path)
    assert "wine: not tested, dataset wine cannot be had: no source has wine" in text
    assert "8 cells: 8 to train" in text
    assert "Wine: not tested (dataset wine cannot be had" in (tmp_path / "report.html").read_text()


def test_a_failed_cell_leaves_a_hole_with_its_reason(tmp_path, monkeypatch):
    def failing(cell, tell):
        if cell.arm.protocol == "paper" and cell.arm.name == "rlp":
            raise RuntimeError("the loss became NaN")
        return fake(cell, tell)

    monkeypatch.setattr(measure, "train", failing)
    text = run(["table1"], NARROW, tmp_path)
    assert "failed: linear · paper · rlp · 2 epochs: RuntimeError: the loss became NaN" in text
    assert "RuntimeError: the loss became NaN" in (tmp_path / "report.html").read_text()


def test_every_number_can_be_traced_to_a_row(tmp_path, stubbed):
    run(["table1"], NARROW, tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables" / "table1.csv").read_text())))
    hashes = {c.hash[:16] for c in STUDIES["table1"](NARROW)}
    assert rows
    assert {row["cell"] for row in rows} <= hashes


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["table7"], 'name must be one of .*, got \'table7\'; did you mean "table2"|"table1"'),
        ([], "name at least one table or figure, got none"),
        (
            ["table1", "--scale", "big"],
            'scale must be one of "smoke", "quick", "paper", got \'big\'',
        ),
        (["table1", "--budget", "hours"], "budget must be one of"),
        (["table1", "--seeds", "0"], "seeds must be at least 1, got 0"),
        (["table1", "--datasets", "whine"], 'dataset must be one of .* did you mean "wine"'),
        (["table1", "--datasets", ","], "give names separated by commas, got ','"),
        (["table1", "--arms", "rpl"], 'arm must be one of .* did you mean "rlp"'),
        (["table1", "--workers", "many"], "workers must be"),
        (["table1", "--out", "FILE"], "is a file, not a directory"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(tmp_path, capsys, arguments, text):
    (tmp_path / "file").write_text("x")
    out = str(tmp_path / "file") if "FILE" in arguments else str(tmp_path / "out")
    given = [a for a in arguments if a not in ("--out", "FILE")]
    code = cli.run(["reproduce", *given, "--out", out])
    printed = capsys.readouterr().err
    assert code == 2
    assert printed.count("\n") == 1
    assert re.search(text, printed)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_report_of_a_directory_that_is_not_ours(tmp_path, capsys):
    assert cli.run(["report", str(tmp_path)]) == 2
    assert "holds no runs.sqlite" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_list_shows_every_name_with_its_cost(capsys):
    assert cli.run(["reproduce", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["NAME", "SMOKE", "QUICK", "PAPER"]
    for name, row in CATALOG.items():
        (at,) = (i for i, line in enumerate(lines) if line.split()[:1] == [name])
        assert re.search(r" (s|min|-)$", lines[at])
        assert lines[at + 1].strip() == row["what"]


@pytest.mark.slow
def test_the_real_thing_in_a_process_of_its_own(tmp_path):
    """Everything for real, with no stub: two arms of Linear at smoke scale, killed once, resumed,
    run again."""
    words = (
        "reproduce table1 --scale smoke --datasets linear --arms mse,rlp --workers local:1 --out"
    )
    main = "from rlploss.cli import main; main()"
    command = [sys.executable, "-c", main, *words.split(), str(tmp_path / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as cut:
        for line in cut.stdout:
            if line.startswith("[1/"):
                break
        cut.send_signal(signal.SIGINT)
        _, errors = cut.communicate(timeout=60)
    if cut.returncode != 0:  # it may have been too quick for us
        assert cut.returncode == 130
        assert "this goes on: rlploss reproduce table1" in errors
        assert "Traceback" not in errors
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=True, timeout=120
    )
    assert "Report:" in done.stdout
    first = tables(tmp_path / "out")
    again = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=True, timeout=120
    )
    assert "nothing to train" in again.stdout
    assert tables(tmp_path / "out") == first
    assert Path(tmp_path / "out" / "report.html").stat().st_size > 10_000
