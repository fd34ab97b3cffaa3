"""From a place on the dial to the objective, and the choice among settings by validation."""

import math

import numpy as np
import pytest
from tests.close import assert_close
from tests.seeds import SEED

from rlploss import MSE, RLP, CrossEntropy
from rlploss.estimators.search import (
    DIALS,
    LINEAR_END,
    MSE_END,
    Dial,
    choose,
    objective_at,
    steps_per_iteration,
    with_subsets,
)


def test_places_on_the_dial():
    assert [dial.subset_size(400, 4) for dial in DIALS] == [4, 40, 340, 400]
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
