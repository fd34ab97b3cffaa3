"""`make bench` measures the project's claims."""

import json

import pytest
from benchmarks import run as benchmarks_run
from benchmarks.common import at_least, at_most, paired


@pytest.mark.parametrize("met", [True, False])
def test_the_projects_own_benchmarks(met, monkeypatch, capsys):
    class Suite:
        @staticmethod
        def measure(quick):
            return [
                at_most("fast enough", 1.0, 1.1, ""),
                *([] if met else [at_least("too slow", 2.0, 3.0, "")]),
            ]

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
