import dataclasses

import pytest

from rlploss.lab.results import StoredCell
from rlploss.lab.study import Task, settings
from rlploss.paper import measure
from rlploss.paper.claims_measured import RULES
from rlploss.paper.request import Request
from rlploss.paper.training import train
from rlploss.paper.verdicts import NOT_REPRODUCED, REPRODUCED, Evidence
from rlploss.paper.view import View


def quiet(fraction):
    assert 0.0 < fraction <= 1.0


@pytest.fixture(scope="module")
def measured():
    """Every measure for real, with few draws but judged."""
    request = Request("quick", seeds=2)
    stored = {}
    for cell in measure.cells(request):
        few = {**dict(cell.task.settings), "draws": 3000}
        variants = tuple(
            settings({**dict(v), **({"samples": 8} if "samples" in dict(v) else {})}) for v in cell.task.variants
        )
        light = dataclasses.replace(cell, task=Task(cell.task.name, settings(few), variants))
        result = train(light, quiet)
        origin = {"path": "plain", "threads": 1, "versions": {}, "machine": {"processor": "", "cores": 1}}
        stored[cell.hash] = StoredCell(result.runs, origin, result.seconds)
    return request, stored


def test_the_verdicts_on_the_statements_are_those_of_the_theory(measured):
    request, stored = measured
    evidence = Evidence({"propositions": View(request, lambda cell: stored.get(cell.hash), lambda cell: "not run")})
    found = {name: rule(evidence) for name, rule in RULES.items()}
    assert {name: v.word for name, v in found.items()} == {
        "proposition-1": REPRODUCED,
        "proposition-2": NOT_REPRODUCED,
        "algorithm-1": NOT_REPRODUCED,
        "empirical-converges": REPRODUCED,
        "same-planes-iff-equal": REPRODUCED,
    }
    assert "infinite at the smallest M" in found["proposition-1"].evidence


def test_a_measure_is_the_same_every_time():
    cell = next(c for c in measure.cells(Request("smoke")) if c.task.name == "floor")
    first, second = (train(cell, quiet) for _ in range(2))
    assert [dict(r.curve) for r in first.runs] == [dict(r.curve) for r in second.runs]
    assert len(first.runs) == len(cell.task.variants) * len(cell.seeds)


def test_unknown_measures_are_named():
    cell = measure.cells(Request("smoke"))[0]
    bad = dataclasses.replace(cell, task=Task("x", settings({"measure": "flor", "draws": 10})))
    with pytest.raises(ValueError, match=r'measure must be one of .* did you mean "floor"'):
        train(bad, quiet)
