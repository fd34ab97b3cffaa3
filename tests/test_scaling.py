"""The one rule for mean and scale of columns."""

import math

import numpy as np
import pytest
from tests.close import assert_close
from tests.seeds import SEED

from rlploss._scaling import mean_and_scale


def test_mean_and_scale_against_exact_sums():
    rng = np.random.default_rng(SEED)
    columns = rng.normal(size=(300, 4)) * [1.0, 1e-9, 1e9, 1e-3] + [0.0, 5.0, 1e12, 1e6]
    weight = rng.uniform(0.1, 2.0, size=300)
    for w in (None, weight):
        each = np.ones(300) if w is None else w
        mean, scale = mean_and_scale(columns, w)
        for k, column in enumerate(columns.T):
            exact = math.fsum(each * column) / math.fsum(each)
            spread = math.sqrt(math.fsum(each * (column - exact) ** 2) / math.fsum(each))
            assert_close(mean[k], exact, rtol=1e-14)
            assert_close(scale[k], spread, rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.7, 1e200, 1e-300, 1e6 / 3])
@pytest.mark.parametrize("n", [1, 2, 1000, 100_001])
def test_a_column_that_does_not_vary_has_scale_one(value, n):
    mean, scale = mean_and_scale(np.full((n, 2), value))
    assert_close(mean, np.full(2, value), rtol=1e-15)
    assert (scale == 1.0).all()


def test_rounding_is_no_variation_but_a_little_more_is():
    third = np.array([0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2])
    little = np.array([1e9, 1e9 + 1e-4, 1e9, 1e9 + 1e-4])
    _, scale = mean_and_scale(np.column_stack([third, little]))
    assert scale[0] == 1.0
    assert scale[1] < 1e-4


def test_numbers_whose_squares_overflow():
    columns = np.array([[1e200, 1e-200], [3e200, 3e-200]])
    mean, scale = mean_and_scale(columns)
    assert_close(mean / [1e200, 1e-200], [2.0, 2.0])
    assert_close(scale / [1e200, 1e-200], [1.0, 1.0])


def test_scaled_targets_lead_back():
    from rlploss._scaling import Scaling

    rng = np.random.default_rng(SEED)
    X, Y = (
        rng.normal(size=(40, 3)) * 7 + 2,
        np.column_stack([rng.normal(size=40) * 1e6, np.full(40, 0.1)]),
    )
    scaling = Scaling.of(X, Y)
    assert_close(scaling.targets(Y) * scaling.y_scale + scaling.y_mean, Y)
    assert_close(scaling.inputs(X).std(axis=0), np.ones(3))
    assert (Scaling.none(3).inputs(X) == X).all()
    assert (Scaling.of(X).targets(Y) == Y).all()
