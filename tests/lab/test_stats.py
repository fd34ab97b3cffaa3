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


def test_the_bootstrap_interval_covers_the_truth_about_as_often_as_it_says():
    covered = 0
    for seed in range(200):
        s = stats.summary(rng(seed).normal(0.0, 1.0, 30))
        covered += s.low <= 0.0 <= s.high
    assert 0.87 <= covered / 200 <= 0.99


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
    c = stats.compare(accuracy + 0.02, accuracy + rng(1).normal(size=8) * 1e-4, lower_is_better=False)
    assert c.scale == "difference"
    assert c.effect == pytest.approx(0.02, abs=1e-3)
    assert c.word == "better"


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
        ([1.0, 2.0, 4.0], [2.0, 4.0, 8.0], 0.0),
    ],
)
def test_degenerate_comparisons(ours, theirs, p):
    assert stats.compare(np.array(ours), np.array(theirs)).p == pytest.approx(p, abs=1e-6)


def test_unpaired_arms_are_refused():
    with pytest.raises(ValueError, match=r"paired arms need the same seeds, got shapes \(2,\) and \(3,\)"):
        stats.compare(np.ones(2), np.ones(3))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holm_against_its_definition(ps):
    comparisons = [stats.Comparison(1, 1, 1, p, 5, True, "ratio") for p in ps]
    got = [c.p_holm for c in stats.holm(comparisons)]
    m, ordered = len(ps), sorted(ps)
    for p, corrected in zip(ps, got, strict=True):
        rank = ordered.index(p)
        assert corrected == pytest.approx(max(min(1.0, (m - k) * ordered[k]) for k in range(rank + 1)), abs=1e-12)
        assert corrected >= p


def test_same_as_published():
    assert stats.same_as_published(np.array([0.19, 0.21]), 0.227, 0.104)
    assert not stats.same_as_published(np.array([0.6, 0.6]), 0.542, 0.014)


def test_spread_is_compared_by_a_paired_test():
    wide = 1.0 + rng(0).normal(size=30)
    narrow = 1.0 + 0.1 * rng(1).normal(size=30)
    c = stats.variance_ratio(narrow, wide)
    assert c.effect == pytest.approx(np.std(narrow) / np.std(wide))
    assert c.low < c.effect < c.high
    assert c.word == "better"
    assert stats.variance_ratio(wide, narrow).word == "worse"
    assert stats.variance_ratio(np.ones(2), np.ones(2)).p == 1.0
    same = rng(2).normal(size=10)
    assert stats.variance_ratio(same, same).word == "level"


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
    shifted = stats.compare(np.exp(d - d.mean() + scipy_stats.t.ppf(0.975, 11) * error), np.ones(12), overlap=1 / 3)
    np.testing.assert_allclose([shifted.low, shifted.p], [1.0, 0.05], rtol=1e-9)
