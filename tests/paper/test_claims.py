import pytest
from tests.paper import world

from rlploss.lab.study import StoredCell, TrainedNetwork
from rlploss.paper import claims, published
from rlploss.paper.claims import (
    GONE,
    NOT_JUDGED,
    NOT_REPRODUCED,
    NOT_TESTED,
    OPEN_AT_STEPS,
    REPRODUCED,
    UNDECIDED,
    VERDICTS,
)
from rlploss.paper.request import Request
from rlploss.paper.rules import RULES, arrival, sooner
from rlploss.paper.sections import summary
from rlploss.paper.studies import CATALOG, STUDIES

# Few seeds, full epochs: what counts here is the rule.
PAPER = Request("paper", "both", seeds=8)
PARTIAL = {"elapsed-time", "inversion-cost", "mnist-more-apparent"}  # tests of their own below
UNSTATED = {"small-data-50", "small-data-100", "small-data-faster", "mixup-regression"}
MEASURED = {
    "same-learning-rate",
    "proposition-1",
    "proposition-2",
    "algorithm-1",
    "empirical-converges",
    "same-planes-iff-equal",
}


def verdicts(request, name, names=tuple(CATALOG), without=(), later=lambda cell: False):
    return {
        c.name: c for c in claims.all_claims(world.results(request, name, without, names, later))
    }


@pytest.fixture(scope="module")
def worlds():
    return {name: verdicts(PAPER, name) for name in ("right", "gone", "wrong")}


def test_every_claim_has_a_rule_and_every_rule_a_claim():
    assert {*RULES, "measured", "printed"} == {claim.rule for claim in published.CLAIMS}
    assert set(claims.MEASURED) == {
        task for claim in published.CLAIMS if claim.rule == "measured" for task in claim.tasks
    }
    for claim in published.CLAIMS:
        assert set(claim.studies) <= set(STUDIES)


def test_claims_speak_of_tasks_and_arms_of_their_studies():
    for claim in published.CLAIMS:
        cells = STUDIES[claim.studies[0]](Request("paper"))
        assert set(claim.tasks) <= {cell.task.name for cell in cells}, claim.id
        if claim.rule not in ("measured", "printed"):
            assert {arm for pair in (*claim.pairs, *claim.faster) for arm in pair} <= {
                cell.arm.name for cell in cells
            }, claim.id


def test_every_verdict_is_one_of_the_words_with_evidence(worlds):
    for found in worlds.values():
        assert len(found) == len(published.CLAIMS)
        for claim in found.values():
            assert claim.verdict in VERDICTS
            assert len(claim.evidence) > 10


@pytest.mark.parametrize(
    "name", [c.id for c in published.CLAIMS if c.id not in {*MEASURED, *UNSTATED, *PARTIAL}]
)
def test_the_three_worlds_have_their_verdicts(worlds, name):
    assert worlds["right"][name].verdict == REPRODUCED, worlds["right"][name].evidence
    assert worlds["wrong"][name].verdict == NOT_REPRODUCED, worlds["wrong"][name].evidence
    # What says nothing about steps, or compares within one arm, is not moved by a stronger baseline
    # at equal steps.
    unmoved = {"mnist-sd", "cifar10-sd", "wine-sd", "california-sd", "noise-asymptote"}
    if name not in unmoved:
        assert worlds["gone"][name].verdict == GONE, worlds["gone"][name].evidence


def test_settings_that_the_paper_does_not_state_neither_support_nor_refute(worlds):
    for name in UNSTATED:
        assert worlds["right"][name].verdict == UNDECIDED
        assert "states neither M" in worlds["right"][name].evidence
        wrong = NOT_REPRODUCED if name == "mixup-regression" else UNDECIDED
        assert worlds["wrong"][name].verdict == wrong


def test_elapsed_time_is_about_the_authors_loops(worlds):
    for found in worlds.values():
        assert found["elapsed-time"].verdict == NOT_TESTED
        assert "DataLoader" in found["elapsed-time"].evidence
        assert "California" in found["elapsed-time"].evidence


def test_a_step_that_costs_as_much_as_that_of_mse_is_not_expensive(worlds):
    claim = worlds["right"]["inversion-cost"]
    assert claim.verdict == NOT_REPRODUCED
    assert "RLP step / MSE step above 2.00: 1.00 [1.00" in claim.evidence


def test_gains_that_are_the_same_by_both_metrics_are_not_even_more_apparent(worlds):
    assert worlds["right"]["mnist-more-apparent"].verdict == NOT_REPRODUCED


def test_above_a_fifth_is_read_with_the_papers_own_uncertainty():
    claim = next(c for c in published.CLAIMS if c.id == "linear-3e-6")
    values = [published.value("table1", "linear", arm, "mse") for arm in ("mse", "mse_l2")]
    t_quantile = 2.0452  # 29 degrees of freedom
    lowest = min(value.mean - t_quantile * value.sd / 30**0.5 for value in values)
    assert claim.above == pytest.approx(lowest, abs=5e-4)


def test_a_trend_is_pooled_where_the_paper_does_not_name_every_level(worlds):
    told = worlds["right"]["shift"].evidence
    # two pooled datasets and one with nine levels, against two baselines
    assert "Equal epochs: in favour in 22 of 22" in told
    assert "at every γ on every dataset, RLP is better in 54 of 54" in told


def test_measured_claims_do_not_depend_on_training(worlds):
    assert {n: worlds["wrong"][n].verdict for n in MEASURED} == {
        "proposition-1": REPRODUCED,
        "proposition-2": REPRODUCED,
        "algorithm-1": REPRODUCED,
        "same-learning-rate": NOT_REPRODUCED,
        "empirical-converges": REPRODUCED,
        "same-planes-iff-equal": REPRODUCED,
    }


@pytest.mark.parametrize("scale", ["smoke", "quick"])
def test_below_the_papers_epochs_nothing_about_errors_is_judged(scale):
    found = verdicts(
        Request(scale, seeds=2), "right", names=("table1", "thresholds", "fig-mnist-classes")
    )
    assert {c.verdict for c in found.values()} == {NOT_JUDGED, NOT_TESTED}
    assert (
        "median ratio" in found["table1-lower-mse"].evidence
    )  # the numbers are there, the word is not


def test_what_was_not_asked_for_is_not_tested_and_says_which_command_would():
    found = verdicts(PAPER, "right", names=("table1",))
    assert found["table1-lower-mse"].verdict == REPRODUCED
    assert found["mae"].verdict == NOT_TESTED
    assert "rlploss reproduce fig-mae" in found["mae"].evidence


def test_missing_data_narrow_the_verdict_and_are_told():
    found = verdicts(
        PAPER, "right", names=("table1",), without=("mnist", "cifar10", "cifar10-released")
    )
    claim = found["table1-lower-mse"]
    assert claim.verdict == REPRODUCED
    assert claim.scope == "8 of 12 comparisons, 8 of 12 comparisons at equal steps"
    assert claim.evidence.count("not tested (dataset mnist cannot be had): MNIST;") == 2
    assert found["mnist-autoencoder"].verdict == NOT_TESTED
    assert found["mnist-autoencoder"].evidence == "not tested (dataset mnist cannot be had): MNIST."


def test_a_baseline_that_was_not_asked_for_is_told():
    found = verdicts(
        Request("paper", seeds=8, arms=("mse", "rlp")), "right", names=("table1", "thresholds")
    )
    claim = found["nonlinear-lower"]
    assert claim.verdict == REPRODUCED
    assert claim.scope == "1 of 2 comparisons, 1 of 2 comparisons at equal steps"
    assert claim.evidence.count("not tested (not asked for): Nonlinear against MSE+L2.") == 2
    assert found["linear-3e-6"].verdict == NOT_TESTED  # which speaks of all three at once


def test_levels_of_a_sweep_and_studies_that_were_not_asked_for_count_as_comparisons():
    names = ("fig-mixup-curves", "fig-mixup-small", "fig-mixup-noise", "fig-mixup-shift")

    def later(cell):
        return cell.task.variants[0].shift is not None

    for found in (
        verdicts(PAPER, "right", names, later=later),
        verdicts(PAPER, "right", names[:3]),
    ):
        claim = found["mixup-regression"]
        assert claim.scope == "72 of 126 comparisons, 72 of 126 comparisons at equal steps"
        assert (
            "Mixup, shift: California; Mixup, shift: Wine; Mixup, shift: Nonlinear."
            in claim.evidence
        )
    assert "not tested (not asked for): Mixup, shift" in claim.evidence


def test_what_no_claim_compares_is_not_missed():
    found = verdicts(
        PAPER, "right", ("table1",), later=lambda cell: cell.arm.protocol in ("paper", "corrected")
    )
    whole = verdicts(PAPER, "right", ("table1",))
    assert {c.scope for c in found.values()} == {c.scope for c in whole.values()} == {""}
    assert not [c for c in found.values() if "not run yet" in c.evidence]
    part = verdicts(
        PAPER,
        "right",
        ("fig-moons",),
        later=lambda c: c.arm.name == "ce_mixup" and "small" in c.task.name,
    )
    # Accuracy and F1, and who is faster, with mixup and without, at two sizes.
    assert part["moons"].scope.startswith("9 of 12 comparisons")


def test_without_the_step_budget_nothing_is_known_of_equal_steps():
    found = verdicts(Request("paper", "epochs", seeds=8), "gone", names=("table1", "propositions"))
    assert found["table1-lower-mse"].verdict == OPEN_AT_STEPS
    assert found["table1-lower-mse"].scope == ""
    assert "Equal steps: not run" in found["table1-lower-mse"].evidence
    assert found["proposition-1"].verdict == REPRODUCED  # has no steps


def curve(every, crossing, n=400):
    """A network that is at 0 from some step on, looked at every so many steps."""
    steps = list(range(0, n + 1, every))
    return TrainedNetwork(
        0, 0, {"step": steps, "mse": [float(step < crossing) for step in steps]}, 1.0
    )


def first(*arms):
    """Who is first to be at 0, each arm looked at on its own grid: ours, theirs, or nobody."""
    cells = [StoredCell((curve(*arm),), {}, 1.0) for arm in arms]
    c = sooner(*(arrival(cell, "step", 0.0, "mse") for cell in cells))
    return {0: "nobody", 1: "ours" if c.better else "theirs"}[c.n]


@pytest.mark.parametrize("crossing", [*range(1, 401, 13), 500])
def test_who_is_first_does_not_depend_on_how_often_one_looks(crossing):
    for grids in ((100, 80), (80, 100), (50, 50)):
        assert first(*((every, crossing) for every in grids)) == "nobody"


def test_first_is_who_is_there_when_the_other_is_not():
    assert (
        first((100, 100), (80, 300))
        == first((100, 400), (80, 500))
        == first((100, 0), (80, 1))
        == "ours"
    )
    assert first((100, 300), (80, 100)) == first((100, 500), (80, 320)) == "theirs"
    assert (
        first((100, 100), (80, 120)) == "nobody"
    )  # ours is seen at 100, theirs at 160, and not at 80
    assert first((100, 100), (100, 120)) == "ours"


def test_evidence_can_be_followed(worlds):
    told = {name: claim.evidence for name, claim in worlds["right"].items()}
    assert "Nonlinear against MSE+L2 " in told["nonlinear-lower"]
    assert "MSE rises (final over epoch 100) 1." in told["california-overfit"]
    assert "RLP falls (final over step 100,000) 0." in told["california-overfit"]
    assert " of MSE+L2, ratio of typical deviations 0." in told["wine-sd"]
    for name in ("reconstructions", "mnist-autoencoder", "cifar10-autoencoder", "cifar10-sd"):
        assert "The released loop gives RLP momentum 0.99 and MSE none." in told[name]
    assert "untrained" in told["cifar10-autoencoder"]
    assert "“need 200” is read as" in told["wine-20-epochs"]
    assert "on average over 3 seeds: N = 103" in told["algorithm-1"]
    for name in ("moons", "mnist-classification-sizes", "mnist-classification"):
        assert ", at equal epochs, RLP is" in told[name]
    gone = worlds["gone"]["moons"].evidence
    assert (
        "the other way: Moons; faster on Moons; Moons (25 examples); faster on Moons (25 examples)."
        in gone
    )


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
