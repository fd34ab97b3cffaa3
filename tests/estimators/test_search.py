"""From a place on the dial to the objective, and the choice among settings by validation."""

import itertools
import math

import numpy as np
import pytest
from tests.close import assert_close
from tests.seeds import SEED

from rlploss import MSE, RLP, CrossEntropy
from rlploss.estimators.dial import (
    LINEAR_END,
    MIDDLE,
    MSE_END,
    Dial,
    objective_at,
    steps_per_iteration,
    with_subsets,
)
from rlploss.estimators.search import Search, choose, heats, worth_more


def test_places_on_the_dial():
    dials = (MSE_END, MIDDLE, Dial(0.85), LINEAR_END)
    assert [dial.subset_size(400, 4) for dial in dials] == [4, 40, 340, 400]
    assert Dial.of("M", "auto") == MIDDLE
    assert Dial.of("M", 30).subset_size(20, 4) == 20
    assert Dial.of("M", np.float32(0.5)).subset_size(21, 4) == round(10.5)
    assert MSE_END.subset_size(3, 4) == LINEAR_END.subset_size(3, 4) == 3


@pytest.mark.parametrize("size", [0.0, 1.5, -0.1, math.nan])
def test_fractions_outside_their_range(size):
    with pytest.raises(ValueError, match="M, a fraction of the rows, must be"):
        Dial.of("M", size)
    with pytest.raises(TypeError, match="M must be a whole number"):
        Dial.of("M", "half")


def test_an_objective_is_mse_up_to_p_and_rlp_beyond():
    form = RLP(ridge=0.5, mixup=0.25)
    assert objective_at(form, 5, 100, 4, batch_size=30) == MSE(30, mixup=0.25)
    found = objective_at(form, 6, 100, 4)
    assert found == RLP(6, 1000, subsets_per_step=3, ridge=0.5, mixup=0.25)
    assert objective_at(RLP(probe="sum"), 5, 100, 4) == RLP(
        5, 1000, subsets_per_step=4, probe="sum"
    )  # p = 4: no ones
    assert objective_at(RLP(probe="sum"), 4, 100, 4) == MSE(100)
    assert objective_at(form, None, 100, 4, end=CrossEntropy) == CrossEntropy(100, mixup=0.25)


@pytest.mark.parametrize("n", [2, 30, 1000, 400_000])
@pytest.mark.parametrize("d", [1, 10, 300])
def test_subsets_are_possible_and_reach_every_row(n, d):
    for share in (0.01, 0.5, 1.0):
        size = max(1, round(share * n))
        found = with_subsets(RLP(), size, n, d, most_subsets=50)
        assert found.resolve(n, d).n_subsets == found.n_subsets
        assert found.n_subsets * size >= n
        assert found.n_subsets <= max(50, -(-n // size))
        assert 1 <= found.subsets_per_step <= found.n_subsets


def test_an_iteration_has_at_least_ten_steps():
    assert [steps_per_iteration(n) for n in (1, 200, 2000, 2001, 10_000)] == [10, 10, 10, 11, 50]
    assert steps_per_iteration(100, 5) == 20


def test_choose_against_a_loop():
    rng = np.random.default_rng(SEED)
    errors = rng.uniform(size=(5, 3, 7))
    errors[1, 2, 4:] = np.nan
    errors[3] = np.nan
    sizes = [10, 20, 5]
    found = choose(errors, sizes)
    for setting in range(5):
        means = [
            sum(s * e for s, e in zip(sizes, errors[setting, :, at], strict=True)) / 35
            for at in range(7)
        ]
        finite = [m for m in means if not math.isnan(m)]
        assert_close(min(finite, default=0.0), 0.0 if setting == 3 else found.errors[setting])
        if finite:
            assert found.evaluations[setting] == means.index(min(finite))
            assert_close(found.fold_errors[setting], errors[setting, :, found.evaluations[setting]])
    assert np.isinf(found.errors[3])
    assert found.order[-1] == 3
    assert found.setting == found.order[0] == found.errors.argmin()
    assert (choose(errors).curves == choose(errors, [1.0, 1.0, 1.0]).curves).all()


# Races


@pytest.mark.parametrize("total", [1, 7, 40, 250, 900, 4000])
def test_every_heat_doubles_the_steps_up_to_the_last(total):
    plan = heats(240, total, 8)
    steps = np.concatenate(plan)
    assert steps[-1] == total
    assert (np.diff(steps) > 0).all()
    assert all(after[-1] <= 2 * before[-1] for before, after in itertools.pairwise(plan))
    # even steps, which is what a fleet can be asked for
    assert len(set(np.diff([0, *plan[0]])[:-1])) <= 1


STEPS = np.arange(1, 11) * 100


def test_a_setting_goes_on_while_its_best_lies_in_the_last_fifth():
    early, late = [5, 4, 3, 2, 1, 2, 2, 2, 2, 2], [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    level = [5, 4, 3, 2, 1, 1, 1, 1, 1, 0.998]  # less than 0.3 % better than at half the steps
    diverged = [np.inf] * 10
    curves = np.array([early, late, level, diverged])
    assert worth_more(curves, STEPS, 4000).tolist() == [False, True, False, False]


def test_a_setting_that_cannot_come_to_the_best_ends():
    """At 1,000 of 4,000 steps: two doublings more, each worth what the latest was."""
    best = np.linspace(2, 1, 10)
    for latest, goes_on in ((0.9, False), (1.1, True)):
        # it needs 2 = 2 · 1 to come to the best
        errors = np.r_[[3.0 + latest] * 5, np.linspace(3 + latest, 3.0, 5)]
        assert worth_more(np.array([best, errors]), STEPS, 4000)[1] == goes_on


class Ended:
    """A network that is trained no further, with an error at every evaluation."""

    def __init__(self, errors):
        self.errors = errors

    def predictions(self, rows, first, last):
        return np.array(self.errors[first:last])[:, None, None]


def test_a_setting_that_has_ended_keeps_its_last_error(monkeypatch):
    monkeypatch.setattr("rlploss.estimators.search.train_further", lambda *_, **__: None)
    falling, level = [3.0, 2.5, 1.5, 1.0, 0.9], [3.0, 2.0, 2.0, 9.0, 9.0]
    race = Search(
        [[Ended(falling)], [Ended(level)]], [np.zeros((1, 1))], np.zeros((1, 1)), np.ones(1)
    )
    race.race([np.array([1, 2]), np.array([3, 4])], progress=False)
    assert race.residuals[1, :, 0, 0].tolist() == [3.0, 2.0, 2.0, 2.0, 2.0]
    assert race.residuals[0, :, 0, 0].tolist() == falling
