"""`rlploss bench` finds the benchmarks of a checkout, and says where they are otherwise."""

import json
from types import SimpleNamespace

from benchmarks import run as benchmarks_run
from benchmarks.common import at_least, at_most, paired

from rlploss import cli
from rlploss.cli import bench


def test_json_and_exit_code(monkeypatch, capsys):
    rows = [at_most("fast enough", 1.0, 1.1, "")]
    suite = SimpleNamespace(measure=lambda quick: rows)
    monkeypatch.setattr(benchmarks_run, "load", lambda name: suite)
    assert cli.run(["bench", "--json", "--only", "core"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["core"][0]["ok"] is True
    rows.append(at_least("too slow", 2.0, 3.0, ""))
    assert cli.run(["bench", "--only", "core"]) == 1
    captured = capsys.readouterr()
    assert "not met: too slow" in captured.err
    assert "| too slow | 2 | ≥ 3 | NO |" in captured.out


def test_without_a_checkout(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "a" / "b" / "c" / "d.py"))
    assert cli.run(["bench"]) == 2
    assert "the benchmarks are part of the source checkout" in capsys.readouterr().err


def test_paired_takes_turns():
    order = []
    ratio, a, b = paired(lambda: order.append("a"), lambda: order.append("b"), rounds=4, warm_up=0)
    assert "".join(order) == "baabbaab"
    assert ratio > 0
    assert min(a, b) > 0


def test_tables_replace_themselves():
    text = benchmarks_run.put("# Benchmarks\n", "core", "one")
    assert benchmarks_run.put(text, "core", "two") == text.replace("one", "two")
