import pytest
from tests.paper import world

from rlploss.paper import claims, published
from rlploss.paper.claims import GONE, NOT_JUDGED, NOT_REPRODUCED, NOT_TESTED, REPRODUCED, TONES, UNDECIDED
from rlploss.paper.request import Request
from rlploss.paper.sections import summary
from rlploss.paper.studies import CATALOG, STUDIES

# Few seeds, full epochs: what counts here is the rule.
PAPER = Request("paper", "both", seeds=8)
MEASURED = {"proposition-1", "proposition-2", "algorithm-1", "empirical-converges", "same-planes-iff-equal"}


def verdicts(request, name, names=tuple(CATALOG), without=()):
    return {c.name: c for c in claims.all_claims(world.results(request, name, without, names))}


@pytest.fixture(scope="module")
def worlds():
    return {name: verdicts(PAPER, name) for name in ("right", "gone", "wrong")}


def test_every_claim_has_a_rule_and_every_rule_a_claim():
    assert {*claims.RULES, "measured"} == {claim.rule for claim in published.CLAIMS}
    assert set(claims.MEASURED) == {
        task for claim in published.CLAIMS if claim.rule == "measured" for task in claim.tasks
    }
    for claim in published.CLAIMS:
        assert set(claim.studies) <= set(STUDIES)


def test_claims_speak_of_tasks_and_arms_of_their_studies():
    for claim in published.CLAIMS:
        cells = STUDIES[claim.studies[0]](Request("paper"))
        assert set(claim.tasks) <= {cell.task.name for cell in cells}, claim.id
        if claim.rule != "measured":
            assert {arm for pair in claim.pairs for arm in pair} <= {cell.arm.name for cell in cells}, claim.id


def test_every_verdict_is_one_of_the_words_with_evidence(worlds):
    for found in worlds.values():
        assert len(found) == len(published.CLAIMS)
        for claim in found.values():
            assert claim.verdict in TONES
            assert len(claim.evidence) > 10


@pytest.mark.parametrize("name", [c.id for c in published.CLAIMS if c.id not in MEASURED])
def test_the_three_worlds_have_their_verdicts(worlds, name):
    assert worlds["right"][name].verdict == REPRODUCED, worlds["right"][name].evidence
    assert worlds["wrong"][name].verdict == NOT_REPRODUCED, worlds["wrong"][name].evidence
    # What says nothing about steps, or compares within one arm, is not moved by a stronger baseline at equal
    # steps.
    unmoved = {"mnist-sd", "cifar10-sd", "wine-sd", "california-sd", "noise-asymptote"}
    if name not in unmoved | {"elapsed-time"}:
        assert worlds["gone"][name].verdict == GONE, worlds["gone"][name].evidence


def test_measured_claims_do_not_depend_on_training(worlds):
    assert {n: worlds["wrong"][n].verdict for n in MEASURED} == {
        "proposition-1": REPRODUCED,
        "proposition-2": NOT_REPRODUCED,
        "algorithm-1": NOT_REPRODUCED,
        "empirical-converges": REPRODUCED,
        "same-planes-iff-equal": REPRODUCED,
    }


@pytest.mark.parametrize("scale", ["smoke", "quick"])
def test_below_the_papers_epochs_nothing_about_errors_is_judged(scale):
    found = verdicts(Request(scale, seeds=2), "right", names=("table1", "thresholds", "fig-mnist-classes"))
    assert {c.verdict for c in found.values()} == {NOT_JUDGED, NOT_TESTED}
    assert "median ratio" in found["table1-lower-mse"].evidence  # the numbers are there, the word is not


def test_what_was_not_asked_for_is_not_tested_and_says_which_command_would():
    found = verdicts(PAPER, "right", names=("table1",))
    assert found["table1-lower-mse"].verdict == REPRODUCED
    assert found["mae"].verdict == NOT_TESTED
    assert "rlploss reproduce fig-mae" in found["mae"].evidence


def test_missing_data_narrow_the_verdict_and_are_told():
    found = verdicts(PAPER, "right", names=("table1",), without=("mnist", "cifar10", "cifar10-released"))
    claim = found["table1-lower-mse"]
    assert claim.verdict == REPRODUCED
    assert "4 of 6 datasets" in claim.scope
    assert "MNIST not tested (dataset mnist cannot be had)" in claim.evidence
    assert found["mnist-autoencoder"].verdict == NOT_TESTED


def test_without_the_step_budget_the_verdict_says_that_steps_were_not_run():
    found = verdicts(Request("paper", "epochs", seeds=8), "gone", names=("table1",))
    assert found["table1-lower-mse"].verdict == REPRODUCED
    assert "Equal steps: not run" in found["table1-lower-mse"].evidence


def test_one_seed_proves_nothing():
    found = verdicts(Request("paper", "both", seeds=1), "right", names=("table1",))
    assert found["table1-lower-mse"].verdict == UNDECIDED


def test_the_summary_tells_a_newcomer_both_halves():
    results = world.results(PAPER, "gone", names=("table1",))
    text = summary(results, claims.all_claims(results), "paper")
    assert "comparing planes instead of points" in text
    assert "lower test error than MSE on 6 of 6 datasets" in text
    assert "times as many optimiser steps" in text
    assert "ahead on 0 of 6 and behind on 6 of 6" in text
