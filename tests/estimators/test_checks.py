"""scikit-learn's own checks of the three estimators."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.seeds import SEED

from rlploss.estimators import RLPClassifier, RLPRegressor, RLPRegressorCV

REASON = "subsets of rows are drawn at random: a row that occurs twice is not one row of twice the weight"
EXPECTED = {"check_sample_weight_equivalence_on_dense_data": REASON}
ESTIMATORS = [
    RLPRegressor(random_state=SEED),
    RLPClassifier(random_state=SEED),
    RLPRegressorCV(
        hidden_layer_sizes=(12,), alphas=(1e-3,), cv=2, max_iter=10, learning_rate_init=0.02, random_state=SEED
    ),
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_checks(estimator, check):
    try:
        check(estimator)
    except AssertionError:
        # Not `expected_failed_checks`: its table is so small that RLP is MSE there, and rounding decides.
        name = check.func.__name__
        if name not in EXPECTED:
            raise
        pytest.xfail(EXPECTED[name])
