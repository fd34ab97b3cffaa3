"""The rules in worlds where the truth is known; benchmarks/verdict_worlds.py has them at full
size."""

import numpy as np
import pytest
from benchmarks import verdict_worlds as worlds

from rlploss.lab import stats
from rlploss.lab.stats import Contrast
from rlploss.paper.claims import (
    GONE,
    NOT_JUDGED,
    NOT_REPRODUCED,
    NOT_TESTED,
    OPEN_AT_STEPS,
    REPRODUCED,
    UNDECIDED,
    Placed,
    findings,
    judge,
    state,
    tally,
)
from rlploss.paper.results import effect

LAWS = pytest.mark.parametrize("law", worlds.LAWS)


def finding(comparison):
    """The word for one comparison, of a claim and of a table alike."""
    ((word, _),) = findings([Placed("here", comparison)])
    assert comparison.word == word
    return word


@LAWS
@pytest.mark.parametrize("n", [3, 5, 30])
def test_what_is_ten_times_better_everywhere_is_never_refuted(law, n):
    found = worlds.words("10 times better everywhere", law, n, 54, 20)
    assert found[NOT_REPRODUCED] == 0
    if law == "normal" and n >= 5:
        assert found[REPRODUCED] == 20


@LAWS
@pytest.mark.parametrize("n", [3, 5, 30])
@pytest.mark.parametrize("world", ["better nowhere: equal", "20 % better in half, equal in half"])
def test_what_is_equal_somewhere_is_never_called_reproduced(law, n, world):
    assert worlds.words(world, law, n, 12, 40)[REPRODUCED] == 0


def test_equal_arms_are_refuted_with_enough_seeds_and_undecided_with_few():
    enough, few = (worlds.words("better nowhere: equal", "normal", n, 12, 40) for n in (60, 3))
    assert enough[NOT_REPRODUCED] >= 36
    assert few[UNDECIDED] >= 34


def test_worse_in_half_is_refuted():
    assert worlds.words("20 % better in half, worse in half", "normal", 30, 12, 20) == {
        NOT_REPRODUCED: 20
    }


def test_one_percent_is_reproduced_where_it_is_significant_and_says_by_how_much():
    placed = Placed("Wine", Contrast(0.98, 0.97, 0.99, 1e-4, 30, True, "ratio"))
    assert state([placed]) == "holds"
    many = [placed] * 4
    assert "in favour in 4 of 4, median ratio 0.980, the least by 2.0 %" in tally(many)
    # The same size without significance is no difference worth the name.
    level = Contrast(0.99, 0.97, 1.01, 0.3, 30, True, "ratio")
    assert finding(level) == "level"
    assert state([placed, Placed("Linear", level)]) == "fails"


def test_refutations_are_corrected_for_their_number_and_favour_is_not():
    against = Contrast(1.5, 1.01, 2.2, 0.04, 30, False, "ratio")
    favour = Contrast(0.5, 0.3, 0.99, 0.04, 30, True, "ratio")
    near = Contrast(1.0, 0.955, 1.047, 0.9, 30, True, "ratio")
    assert [finding(c) for c in (against, favour, near)] == ["worse", "better", "level"]
    for c, word in ((against, "undecided"), (favour, "better"), (near, "undecided")):
        assert [said for said, _ in findings([Placed("here", c)] * 12)] == [word] * 12
    assert state([Placed("here", favour)] * 12) == "holds"
    assert state([Placed("here", against)] * 12) == "open"
    assert state([]) is None


@LAWS
@pytest.mark.parametrize("world", worlds.WORLDS)
def test_the_interval_beside_a_word_never_contradicts_it(world, law):
    rng = np.random.default_rng(5)
    for n in (3, 10, 30):
        for word, c in findings(worlds.claim(world, law, n, 12, rng)):
            inside = c.low < 1.0 < c.high
            assert inside == (word in ("undecided", "level")) or (word == "level" and c.p < 0.05), (
                word,
                c,
            )
            assert c.is_none(c.low, c.high) == (word == "level") or word in ("better", "worse"), (
                word,
                c,
            )
    # Spreads and shares too: what the correction leaves undecided is told with the wider interval.
    wide, narrow = 1.0 + rng.normal(size=(2, 12)) * np.array([[1.0], [0.35]])
    pairs = [Placed("a", stats.spread(wide, narrow))] * 4
    for word, c in findings(pairs):
        assert (c.low < 1.0 < c.high) == (word == "undecided")


def test_what_the_correction_leaves_undecided_is_shown_with_the_corrected_interval():
    worse = Contrast(1.05, 1.01, 1.0916, 0.015, 30, False, "ratio")
    assert finding(worse) == "worse"
    (word, c), *_ = findings([Placed("here", worse)] * 4)
    assert word == "undecided"
    assert effect(c) == "1.05 [0.998,\u00a01.10]"
    assert effect(worse) == "1.05 [1.01,\u00a01.09]"  # of a row of a table, uncorrected


def test_no_difference_says_within_what():
    level = Contrast(1.01, 1.005, 1.015, 0.001, 30, False, "ratio")
    same = Contrast(1.0, 0.98, 1.02, 0.9, 30, True, "ratio")
    assert tally([Placed("Wine", same)]).endswith("no difference worth the name (within 5 %)")
    assert tally([Placed("Wine", level)]).endswith("the other way")
    points = Contrast(0.001, -0.004, 0.005, 0.8, 30, True, "difference")
    assert "no difference worth the name (within 1 point): Moons" in tally(
        [Placed("Moons", points)] * 4
    )


def test_lists_name_the_arms_where_they_differ():
    good, open_ = (
        Contrast(0.5, 0.4, 0.6, 1e-6, 30, True, "ratio"),
        Contrast(0.9, 0.6, 1.3, 0.4, 30, True, "ratio"),
    )
    wine = [Placed("Wine", c, f"against {arm}") for arm, c in (("MSE", good), ("MSE+L2", open_))]
    linear = [Placed("Linear", open_, f"against {arm}") for arm in ("MSE", "MSE+L2")]
    sweep = [Placed("Noise", c, "against MSE") for c in (good, open_, open_)]
    assert tally([*wine, *linear, *sweep]).endswith(
        "undecided: Wine against MSE+L2; Linear; Noise against MSE (2 of 3)"
    )


def test_a_point_of_accuracy_is_no_difference():
    assert finding(Contrast(0.001, -0.008, 0.009, 0.8, 30, True, "difference")) == "level"
    assert finding(Contrast(0.001, -0.012, 0.014, 0.8, 30, True, "difference")) == "undecided"


@pytest.mark.parametrize(
    ("held", "at_steps", "word"),
    [
        ("holds", "holds", REPRODUCED),
        ("holds", None, REPRODUCED),
        ("holds", "fails", GONE),
        ("holds", "open", OPEN_AT_STEPS),
        ("fails", "holds", NOT_REPRODUCED),
        ("open", "fails", UNDECIDED),
        (None, "holds", NOT_TESTED),
    ],
)
def test_the_words(held, at_steps, word):
    assert judge(held, at_steps) == word
    assert judge(held, at_steps, judged=False) == (NOT_TESTED if held is None else NOT_JUDGED)


def test_gone_at_equal_steps_needs_evidence():
    few, enough = (
        worlds.steps_words("better nowhere: equal", "normal", n, 12, 15) for n in (5, 60)
    )
    assert few[OPEN_AT_STEPS] > few[GONE]
    assert enough[GONE] > enough[OPEN_AT_STEPS]
    assert enough[REPRODUCED] == few[REPRODUCED] == 0
