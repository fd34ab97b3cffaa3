"""The examples run and learn, each in a process of its own: frameworks warn, and set seeds."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from tests.paper import world

from rlploss.lab.executors import parse_workers
from rlploss.lab.study import CellResult
from rlploss.paper.request import Request

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["accelerate", "skorch", "lightning"])
@pytest.mark.slow
def test_rlp_learns_in(name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install {name}")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"with_{name}.py")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    losses = [
        float(line.rpartition(" ")[2])
        for line in done.stdout.splitlines()
        if line.startswith("epoch")
    ]
    assert len(losses) >= 5
    assert losses[-1] < losses[0] / 3


@pytest.mark.parametrize(
    "asked", [("linear", "nonlinear"), ("linear", "nonlinear", "wine", "california")]
)
def test_the_demo_fits_one_screen_and_tells_both_halves(monkeypatch, asked):
    monkeypatch.syspath_prepend(EXAMPLES)
    import demo

    grid = world.results(Request("paper", seeds=8, datasets=asked), "gone", names=("table1",))[
        "table1"
    ]
    lines = demo.screen(grid, asked, 171.0).splitlines()
    assert len(lines) + 1 <= 24
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "Linear     MSE     0.227 ± 0.104       0.227 ±" in text
    assert f"Equal epochs: RLP's error is lower on {len(asked)} of {len(asked)}." in text
    assert (
        f"Equal steps: lower on 0 of {len(asked)}, higher on {len(asked)} of {len(asked)}." in text
    )
    assert ("no time for wine and california" in text.lower()) == (len(asked) == 2)


def test_the_demo_trains_its_first_group_whatever_the_time_and_writes_the_report(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.syspath_prepend(EXAMPLES)
    import demo

    monkeypatch.setattr(demo, "SECONDS", 0.0)
    monkeypatch.setattr(demo, "parse_workers", lambda _: parse_workers("inline"))
    monkeypatch.setattr(
        demo.measure,
        "train",
        lambda cell, tell: CellResult(world.read(cell, "gone").networks, "x", 1, 1.0),
    )
    demo.main(tmp_path / "out", Request("paper", seeds=3))
    told = capsys.readouterr().out
    assert "Nonlinear" in told
    assert "no time for Wine and California" in told
    page = (tmp_path / "out" / "report.html").read_text()
    assert "not tested (not run yet)" not in page
    assert "as printed</th>" not in page  # what was not run has no column


def test_the_comparison_of_both_losses_runs():
    few = (
        "import mse_and_rlp as example; example.STEPS, example.EVERY, example.SEEDS = 400, 200, 2;"
        " example.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", few], cwd=EXAMPLES, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert [int(row[0]) for row in rows] == [0, 200, 400]
    for column in (1, 4):  # mean ± standard deviation, of MSE and of RLP
        assert float(rows[-1][column]) < float(rows[0][column])
