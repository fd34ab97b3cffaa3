"""`rlploss bench` measures the user's machine, checkout or not; `make bench` measures the project's claims."""

import json

import pytest
from benchmarks import run as benchmarks_run
from benchmarks.common import at_least, at_most, paired

import rlploss
from rlploss import cli
from rlploss._extras import MissingExtra
from rlploss.cli import bench


def test_a_table(capsys):
    assert cli.run(["bench", "--steps", "20"]) == 0
    setting, problem, _, header, *rows = capsys.readouterr().out.splitlines()
    assert setting.startswith("rlploss ")
    assert "100 per step" in problem
    assert header.split() == ["LOSS", "TRAINED", "BY", "STEPS", "PER", "SECOND", "RATIO"]
    assert len(rows) == 2 * len(bench.WAYS)
    assert all(float(row.split()[-1]) > 0 for row in rows)
    assert all(row.endswith(" 1.0") for row in rows if bench.LOOP in row)


def test_json(capsys):
    assert cli.run(["bench", "--json", "--steps", "5"]) == 0
    found = json.loads(capsys.readouterr().out)["steps_per_second"]
    assert {*found} == {"rlp", "mse"}
    assert all({*speeds} == {*bench.WAYS} for speeds in found.values())
    assert all(speed > 0 for speeds in found.values() for speed in speeds.values())


def test_a_way_that_is_not_installed(monkeypatch, capsys):
    def missing(*_, engine, **options):
        if engine == "kernel":
            raise MissingExtra("numba is not installed")

    monkeypatch.setattr(rlploss, "fit", missing)
    assert cli.run(["bench", "--steps", "2"]) == 0
    assert capsys.readouterr().out.count("not installed") == 2


def test_bad_steps(capsys):
    assert cli.run(["bench", "--steps", "0"]) == 2
    assert "--steps must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("met", [True, False])
def test_the_projects_own_benchmarks(met, monkeypatch, capsys):
    class Suite:
        @staticmethod
        def measure(quick):
            return [at_most("fast enough", 1.0, 1.1, ""), *([] if met else [at_least("too slow", 2.0, 3.0, "")])]

    monkeypatch.setattr(benchmarks_run, "load", lambda name: Suite)
    assert benchmarks_run.main(["--json", "--only", "core", "--keep-readme"]) == (0 if met else 1)
    assert json.loads(capsys.readouterr().out)["results"]["core"][0]["ok"] is True
    assert benchmarks_run.main(["--only", "core", "--keep-readme"]) == (0 if met else 1)
    captured = capsys.readouterr()
    assert ("not met: too slow" in captured.err) is not met
    assert ("| too slow | 2 | ≥ 3 | NO |" in captured.out) is not met


def test_paired_takes_turns():
    order = []
    ratio, a, b = paired(lambda: order.append("a"), lambda: order.append("b"), rounds=4, warm_up=0)
    assert "".join(order) == "baabbaab"
    assert ratio > 0
    assert min(a, b) > 0


def test_tables_replace_themselves():
    text = benchmarks_run.put("# Benchmarks\n", "core", "one")
    assert benchmarks_run.put(text, "core", "two") == text.replace("one", "two")
