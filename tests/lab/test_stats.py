import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from rlploss.lab import stats


def rng(seed=0):
    return np.random.default_rng(seed)


def test_summary_is_mean_sd_and_an_interval_around_the_mean():
    values = rng().normal(3.0, 2.0, 30)
    s = stats.summary(values)
    assert s.mean == pytest.approx(values.mean())
    assert s.sd == pytest.approx(np.sqrt(((values - values.mean()) ** 2).sum() / 29))
    assert s.low < s.mean < s.high
    assert s.high - s.low == pytest.approx(2 * 1.96 * s.sd / math.sqrt(30), rel=0.15)
    one = stats.summary(np.array([1.5]))
    assert one.mean == 1.5
    assert math.isnan(one.sd)
    with pytest.raises(ValueError, match="at least one seed, got none"):
        stats.summary(np.array([]))


@pytest.mark.parametrize("n", [3, 5, 30])
def test_intervals_cover_the_truth_as_often_as_they_say_at_every_n(n):
    truth = [stats.summary(rng([n, seed]).normal(0.0, 1.0, n)) for seed in range(300)]
    pairs = [stats.compare(*np.exp(rng([n, seed]).normal(0.0, 1.0, (2, n)))) for seed in range(300)]
    for covered in (
        sum(s.low <= 0.0 <= s.high for s in truth),
        sum(c.low <= 1.0 <= c.high for c in pairs),
    ):
        assert 0.91 <= covered / 300 <= 0.985


@given(st.integers(0, 10_000), st.integers(2, 12), st.floats(0.5, 2.0))
def test_interval_and_word_come_from_one_test(seed, n, factor):
    a, b = np.exp(rng(seed).normal(size=(2, n)))
    for c, nothing in (
        (stats.compare(factor * a, b), 1.0),
        (stats.compare(a, b, lower_is_better=False), 0.0),
        (stats.threshold(a, factor, below=True), factor),
        (stats.first(a, b), 0.5),
        (stats.spread(factor * a, b), 1.0),
    ):
        assert (c.low < nothing < c.high) == (c.word in ("level", "undecided")), c
        assert c.low <= c.high


def test_band_covers_and_degenerates():
    matrix = rng().normal(size=(12, 5))
    mean, low, high = stats.band(matrix)
    assert (low < mean).all()
    assert (mean < high).all()
    one, low, high = stats.band(matrix[:1])
    assert np.array_equal(one, low)
    assert np.array_equal(one, high)


def test_errors_are_compared_as_ratios_and_the_pairing_counts():
    difficulty = np.exp(rng().normal(size=10) * 3)  # seeds differ by decades, arms by 10 %
    theirs = difficulty * np.exp(rng(1).normal(size=10) * 0.01)
    c = stats.compare(0.9 * difficulty, theirs)
    assert c.scale == "ratio"
    assert c.effect == pytest.approx(0.9, rel=0.02)
    assert c.low < c.effect < c.high
    assert c.better
    assert c.significant
    assert c.word == "better"
    back = stats.compare(theirs, 0.9 * difficulty)
    assert back.p == pytest.approx(c.p)
    assert back.word == "worse"


def test_scores_are_compared_as_differences():
    accuracy = rng().uniform(0.8, 0.9, 8)
    c = stats.compare(
        accuracy + 0.02, accuracy + rng(1).normal(size=8) * 1e-4, lower_is_better=False
    )
    assert c.scale == "difference"
    assert c.effect == pytest.approx(0.02, abs=1e-3)
    assert c.word == "better"


def test_errors_with_a_zero_among_them_are_never_level_for_being_small():
    tiny = 1e-4 * rng().uniform(size=(2, 12))
    tiny[0, 3] = 0.0
    c = stats.compare(*tiny)
    assert (c.scale, c.word) == ("gap", "undecided")
    assert (
        stats.compare(*tiny, lower_is_better=False).word == "level"
    )  # of an accuracy that is no difference
    assert stats.compare(np.zeros(12), np.full(12, 1e-9)).word == "better"


@given(st.integers(0, 10_000), st.integers(3, 12), st.floats(0.001, stats.ALPHA))
def test_an_interval_at_another_level_holds_no_difference_exactly_if_p_is_at_least_that(
    seed, n, alpha
):
    a, b = np.exp(rng(seed).normal(size=(2, n)))
    for c, nothing in (
        (stats.compare(a, b), 1.0),
        (stats.compare(a, b, lower_is_better=False), 0.0),
        (stats.threshold(a, 1.0, below=True), 1.0),
        (stats.first(a, b), 0.5),
        (stats.spread(a, b), 1.0),
        (stats.compare(a, 2.0 * a), 1.0),  # equal differences: their signs are tested
    ):
        low, high = c.interval(alpha)
        assert (low < nothing < high) == (c.p >= alpha), c


def test_equal_arms_are_level_at_about_five_percent():
    wrong = 0
    for seed in range(300):
        a, b = np.exp(rng(seed).normal(size=(2, 10)))
        wrong += stats.compare(a, b).significant
    assert wrong / 300 < 0.09


@pytest.mark.parametrize(
    ("ours", "theirs", "p"),
    [
        ([1.0], [2.0], 1.0),
        ([1.0, 2.0], [1.0, 2.0], 1.0),
        ([1.0, math.nan], [2.0, 2.0], 1.0),
        ([1.0, 2.0], [2.0, 4.0], 0.5),  # two equal differences are not p = 0
        ([1.0, 2.0, 4.0], [2.0, 4.0, 8.0], 0.25),
        ([1.0] * 12, [2.0] * 12, 2 / 2**12),
    ],
)
def test_degenerate_comparisons(ours, theirs, p):
    assert stats.compare(np.array(ours), np.array(theirs)).p == pytest.approx(p, abs=1e-6)


def test_unpaired_arms_are_refused():
    with pytest.raises(
        ValueError, match=r"paired arms need the same seeds, got shapes \(2,\) and \(3,\)"
    ):
        stats.compare(np.ones(2), np.ones(3))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holm_against_its_definition(ps):
    comparisons = [stats.Contrast(1, 1, 1, p, 5, True, "ratio") for p in ps]
    got = [c.p_holm for c in stats.holm(comparisons)]
    m, ordered = len(ps), sorted(ps)
    for p, corrected in zip(ps, got, strict=True):
        rank = ordered.index(p)
        assert corrected == pytest.approx(
            max(min(1.0, (m - k) * ordered[k]) for k in range(rank + 1)), abs=1e-12
        )
        assert corrected >= p


def exact(mean, sd, n):
    """n values with exactly this mean and standard deviation."""
    x = rng(7).normal(size=n)
    return mean + sd * (x - x.mean()) / x.std(ddof=1)


@pytest.mark.parametrize(
    ("ours", "word", "difference"),
    [
        (exact(0.221, 0.089, 40), "same", -0.06),
        (exact(0.6, 0.02, 30), "different", 3.59),
        (exact(0.2, 0.2, 4), "undecided", -0.26),  # nearby, but four seeds do not show it
        (exact(0.24, 0.001, 30), "same", 0.13),
    ],
)
def test_same_as_published_is_a_test_of_both_samples(ours, word, difference):
    found = stats.against_published(ours, 0.227, 0.104)
    assert (found[0], round(found[1], 2)) == (word, difference)


def test_welch_is_that_of_scipy_and_same_wins_over_different():
    ours, theirs = exact(0.29, 0.01, 12), exact(0.227, 0.104, 30)
    p = scipy_stats.ttest_ind(ours, theirs, equal_var=False).pvalue
    low, high = scipy_stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.90)
    assert p < 0.05
    assert -0.104 < low < high < 0.104
    assert stats.against_published(ours, 0.227, 0.104)[0] == "same"
    # The edges, to a hundredth: rejected exactly where scipy rejects.
    for mean in np.linspace(0.1, 0.16, 13):
        ours = exact(mean, 0.15, 10)
        p = scipy_stats.ttest_ind(ours, theirs, equal_var=False).pvalue
        assert (stats.against_published(ours, 0.227, 0.104)[0] == "different") == (p < 0.05)
    assert stats.against_published(np.ones(1), 1.0, 1.0)[0] == "undecided"


@pytest.mark.parametrize(
    ("effect", "half", "scale", "word"),
    [(1.0, 1.04, "ratio", "level"), (1.0, 1.06, "ratio", "undecided"), (0.0, 0.009, "difference", "level"),
     (0.0, 0.011, "difference", "undecided"), (0.005, 0.008, "difference", "undecided")],
)  # fmt: skip
def test_a_lack_of_evidence_is_undecided_and_level_is_shown(effect, half, scale, word):
    low, high = (
        (effect / half, effect * half) if scale == "ratio" else (effect - half, effect + half)
    )
    c = stats.Contrast(effect, low, high, 0.5, 9, True, scale)
    assert c.word == word
    corrected = dataclasses.replace(
        c, p_holm=1.0
    )  # a wider interval: what was level may be so no longer
    assert corrected.corrected_interval[0] < low < high < corrected.corrected_interval[1]
    assert corrected.word in ("undecided", word)


def test_a_number_in_a_claim_is_judged_with_its_uncertainty():
    wide = exact(0.21, 0.09, 30)
    assert stats.threshold(wide, 0.2, below=False).word == "undecided"
    assert stats.threshold(exact(0.21, 0.02, 30), 0.2, below=False).word == "better"
    assert stats.threshold(exact(0.19, 0.02, 30), 0.2, below=False).word == "worse"
    assert stats.threshold(wide, 0.2, below=False).effect == pytest.approx(0.21)


def test_who_is_first_is_counted_over_seeds():
    never = np.full(8, np.inf)
    assert stats.first(np.arange(8.0), never).p == pytest.approx(2 / 2**8)
    assert stats.first(never, np.arange(8.0)).word == "worse"
    assert stats.first(never, never).p == 1.0  # neither arrives: nobody is first
    assert stats.first(np.arange(8.0), 4.0).n == 7  # a tie counts for nobody


def test_spread_is_compared_by_a_paired_test():
    wide, narrow = 1.0 + rng(0).normal(size=30), 1.0 + 0.1 * rng(1).normal(size=30)
    c = stats.spread(narrow, wide)
    assert c.low < c.effect < c.high < 1
    assert c.effect == pytest.approx(0.1, rel=0.6)
    assert c.word == "better"
    back = stats.spread(wide, narrow)
    assert back.word == "worse"
    assert back.p == c.p
    assert [back.low, back.high] == pytest.approx([1 / c.high, 1 / c.low])
    assert stats.spread(np.ones(4), np.ones(4)).p == 1.0
    same = rng(2).normal(size=10)
    assert stats.spread(same, same).word == "undecided"


def test_one_wild_seed_does_not_decide_a_spread():
    words = []
    for seed in range(40):
        a, b = rng([seed, 1]).normal(size=(2, 30))
        a[3] = 1e6
        words.append(stats.spread(a, b).word)
    assert words.count("undecided") >= 33


@pytest.mark.parametrize("law", ["normal", "t2", "lognormal"])
def test_equal_spreads_are_told_apart_in_five_percent_whatever_the_tails(law):
    draw = {
        "normal": lambda r: r.normal(size=(2, 30)),
        "t2": lambda r: r.standard_t(2, size=(2, 30)),
        "lognormal": lambda r: np.exp(1.5 * r.normal(size=(2, 30))),
    }[law]
    wrong = sum(stats.spread(*draw(rng([seed, 9]))).significant for seed in range(60))
    assert wrong <= 10  # binomial(60, 0.07) is above that in less than one of a hundred


def test_overlapping_splits_widen_the_interval_and_the_p_value():
    draw = rng(3)
    theirs = draw.uniform(1.0, 2.0, 12)
    ours = theirs * np.exp(draw.normal(-0.05, 0.05, 12))
    plain, corrected = (stats.compare(ours, theirs, overlap=overlap) for overlap in (0.0, 1 / 3))
    assert corrected.effect == plain.effect
    assert corrected.p > plain.p
    assert corrected.low < plain.low < plain.high < corrected.high
    # the interval is that of the test: 1 lies on its edge exactly when p is 5 %
    d = np.log(ours) - np.log(theirs)
    error = d.std(ddof=1) * np.sqrt(1 / 12 + 1 / 3)
    shifted = stats.compare(
        np.exp(d - d.mean() + scipy_stats.t.ppf(0.975, 11) * error), np.ones(12), overlap=1 / 3
    )
    np.testing.assert_allclose([shifted.low, shifted.p], [1.0, 0.05], rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lower_is_better", [True, False])
@pytest.mark.parametrize("times", [0.0, 0.5, 1.5, 20.0])
def test_no_standard_error_is_less_than_the_least(seed, lower_is_better, times):
    """Of logarithms for errors, of differences for scores; p and interval go by the larger one."""
    ours, theirs = rng([seed, 5]).uniform(1.0, 2.0, (2, 9))
    d = np.log(ours) - np.log(theirs) if lower_is_better else ours - theirs
    error = d.std(ddof=1) * np.sqrt(1 / 9 + 0.25)
    least, error = times * error, max(1.0, times) * error
    settings = {"lower_is_better": lower_is_better, "overlap": 0.25, "least": least}
    comparison = stats.compare(ours, theirs, **settings)
    half = scipy_stats.t.ppf(0.975, 8) * error
    ends = np.array([d.mean() - half, d.mean() + half])
    expected = np.exp(ends) if lower_is_better else ends
    np.testing.assert_allclose([comparison.low, comparison.high], expected, rtol=1e-9)
    assert comparison.p == pytest.approx(2 * scipy_stats.t.sf(abs(d.mean()) / error, 8))
