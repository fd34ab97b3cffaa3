"""The examples run and learn, each in a process of its own: frameworks warn, and set seeds."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["accelerate", "skorch", "lightning"])
@pytest.mark.slow
def test_rlp_learns_in(name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install {name}")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"with_{name}.py")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    losses = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("epoch")]
    assert len(losses) >= 5
    assert losses[-1] < losses[0] / 3


def test_the_comparison_of_both_losses_runs():
    few = "import mse_and_rlp as example; example.STEPS, example.EVERY, example.SEEDS = 400, 200, 2; example.main()"
    done = subprocess.run([sys.executable, "-c", few], cwd=EXAMPLES, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert [int(row[0]) for row in rows] == [0, 200, 400]
    for column in (1, 4):  # mean ± standard deviation, of MSE and of RLP
        assert float(rows[-1][column]) < float(rows[0][column])
