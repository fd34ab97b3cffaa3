"""Ten million rows in bounded memory: the measurement of benchmarks/large_table.py, with few
steps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.slow
def test_ten_million_rows_take_at_most_a_gibibyte_above_the_data():
    cases = ["rlp, one pass is 100,000 subsets", "mse"]
    chosen = [part for case in cases for part in ("--only", case)]
    command = [sys.executable, "-m", "benchmarks.large_table", "--json", "--steps", "200", *chosen]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert [row["case"] for row in found] == cases
    for row in found:
        assert row["steps"] == 200
        assert row["ok"], row
