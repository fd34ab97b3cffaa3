"""The examples run and learn, each in a process of its own: frameworks warn, and set seeds."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.paper import world

from rlploss import rlp_loss
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


def names_of(heading, seed):
    """The names that the first block under a heading of docs/loops.md leaves behind."""
    page = (EXAMPLES.parent / "docs" / "loops.md").read_text()
    block = re.search(r"```python\n(.*?)```", page.split(f"## {heading}\n")[1], re.S)[1]
    torch.manual_seed(seed)
    names = {"__name__": heading}
    exec(compile(block, heading, "exec"), names)
    return names


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_missing_targets_are_filled_in(seed):
    names = names_of("Missing targets", seed)
    missing = names["weight"] == 0
    assert int(missing.sum()) == 23
    error = names["net"](names["X"]) - names["X"].sum(1, keepdim=True)
    assert error[missing].abs().max() < 0.1


@pytest.mark.parametrize("seed", [0, 1])
def test_a_network_of_sequences_learns_without_the_padding(seed):
    names = names_of("Sequences", seed)
    pred, target, inside = (names[name] for name in ("pred", "target", "inside"))
    share = ((pred - target).square().mean(2) * inside).sum() / inside.sum() / target.var()
    assert pred.shape == target.shape == (32, 12, 2)
    assert share < 0.1
    pred = pred.detach().requires_grad_()
    names["loss"](*(part.flatten(0, 1) for part in (pred, target, names["x"])),
                  weight=inside.flatten()).backward()  # fmt: skip
    assert (pred.grad[inside == 0] == 0).all()
    assert pred.grad[inside == 1].abs().min() > 0


@pytest.mark.parametrize("seed", [0, 1])
def test_classes_are_learned_from_one_hot_rows(seed):
    assert names_of("Classification", seed)["accuracy"] > 0.9


@pytest.mark.parametrize("sizes", [(100,), (33, 33, 34), (7, 90, 3), (20,) * 5, (1,) * 100])
def test_the_streaming_metric_does_not_depend_on_the_batches(sizes):
    names = names_of("A metric over a stream", 0)
    pred, target, x = torch.randn(100, 2), torch.randn(100, 2), torch.randn(100, 3)
    expected = rlp_loss(pred, target, x, subsets=torch.arange(100).view(5, 20))
    metric = names["metric"]
    assert metric.count == 16  # of the 330 rows of the page
    metric.reset()
    for batch in zip(*(torch.split(part, sizes) for part in (pred, target, x)), strict=True):
        metric.update(*batch)
    assert metric.count == 5
    assert metric.compute() == pytest.approx(float(expected), rel=1e-5)
