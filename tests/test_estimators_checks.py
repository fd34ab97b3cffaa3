"""scikit-learn's own checks of the two estimators."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from rlploss.estimators import RLPClassifier, RLPRegressor

REASON = "subsets of rows are drawn at random: a row that occurs twice is not one row of twice the weight"
EXPECTED = {"check_sample_weight_equivalence_on_dense_data": REASON}


@parametrize_with_checks([RLPRegressor(), RLPClassifier()])
def test_scikit_learn_checks(estimator, check):
    name = check.func.__name__
    if name in EXPECTED:  # it may pass by chance: where rows are fewer than columns RLP is MSE
        pytest.xfail(EXPECTED[name])
    check(estimator)
