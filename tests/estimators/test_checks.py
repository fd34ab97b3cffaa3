"""scikit-learn's own checks of the estimators."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.seeds import SEED

from rlploss.estimators import (
    NetworkClassifierCV,
    NetworkRegressorCV,
    RLPClassifier,
    RLPClassifierCV,
    RLPRegressor,
    RLPRegressorCV,
)

REASON = (
    "subsets of rows are drawn at random: a row that occurs twice is not one row of twice the"
    " weight"
)
EXPECTED = {"check_sample_weight_equivalence_on_dense_data": REASON}
SMALL = {
    "hidden_layer_sizes": (12,),
    "alphas": (1e-3,),
    "cv": 2,
    "max_iter": 10,
    "random_state": SEED,
}
ESTIMATORS = [
    RLPRegressor(random_state=SEED),
    RLPClassifier(random_state=SEED),
    RLPRegressorCV(**SMALL),
    RLPClassifierCV(**SMALL),
    NetworkRegressorCV(loss="huber", log_target="auto", **SMALL | {"cv": "auto"}),
    NetworkClassifierCV(max_steps=100, **SMALL | {"cv": "auto"}),
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_checks(estimator, check):
    try:
        check(estimator)
    except AssertionError:
        # Not `expected_failed_checks`: its table is so small that RLP is MSE there, and rounding
        # decides.
        name = check.func.__name__
        if name not in EXPECTED:
            raise
        pytest.xfail(EXPECTED[name])
