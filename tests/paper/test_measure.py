import dataclasses

import pytest
from tests.paper.world import PROVENANCE

from rlploss.lab.study import Cell, StoredCell
from rlploss.paper import claims, published
from rlploss.paper.claims import NOT_REPRODUCED, REPRODUCED
from rlploss.paper.measure import Measurement, Setting, train
from rlploss.paper.request import Request
from rlploss.paper.results import Grid
from rlploss.paper.studies import STUDIES


def cells(request):
    return STUDIES["propositions"](request)


def quiet(fraction):
    assert 0.0 < fraction <= 1.0


def lighter(setting):
    return dataclasses.replace(setting, samples=min(8, setting.samples))


@pytest.fixture(scope="module")
def measured():
    """Every measure for real, with few draws but judged."""
    request = Request("quick", seeds=2)
    stored = {}
    for cell in cells(request):
        variants = tuple(lighter(setting) for setting in cell.task.variants)
        light = dataclasses.replace(cell, task=dataclasses.replace(cell.task, draws=3000, variants=variants))
        result = train(light, quiet)
        stored[cell.hash] = StoredCell(result.networks, PROVENANCE, result.seconds)
    name = "propositions"
    return {name: Grid(name, request, lambda cell: stored.get(cell.hash), lambda cell: "not run")}


def test_the_verdicts_on_the_statements_are_those_of_the_theory(measured):
    wanted = [claim for claim in published.CLAIMS if claim.rule == "measured"]
    found = {claim.id: claims.verdict(claim, measured) for claim in wanted}
    assert {name: v.verdict for name, v in found.items()} == {
        "proposition-1": REPRODUCED,
        "proposition-2": NOT_REPRODUCED,
        "algorithm-1": NOT_REPRODUCED,
        "empirical-converges": REPRODUCED,
        "same-planes-iff-equal": REPRODUCED,
    }
    assert "infinite at the smallest M" in found["proposition-1"].evidence


def test_a_measure_is_the_same_every_time():
    cell = next(c for c in cells(Request("smoke")) if c.task.name == "floor")
    first, second = (train(cell, quiet) for _ in range(2))
    assert [dict(n.values) for n in first.networks] == [dict(n.values) for n in second.networks]
    assert len(first.networks) == len(cell.task.variants) * len(cell.seeds)


def test_measurements_go_to_the_store_and_back():
    for cell in cells(Request("quick")):
        again = Cell.from_spec(cell.spec())
        assert again.hash == cell.hash
        assert again.task.variants == cell.task.variants


def test_unknown_measures_are_named():
    with pytest.raises(ValueError, match=r'measure must be one of .* did you mean "floor"'):
        Measurement("x", "flor", 10, (Setting(d=5, M=6),))
