"""scikit-learn estimators: a multilayer perceptron trained with RLP, or with any loss that RLP is
compared with.
"""

from rlploss._extras import need

need("sklearn", "rlploss.estimators", "sklearn")

# The guard above comes before every import that needs scikit-learn.
from rlploss.estimators.base import FarRowsWarning  # noqa: E402 - after the guard
from rlploss.estimators.dial import auto_subset_size  # noqa: E402 - after the guard
from rlploss.estimators.mlp import RLPClassifier, RLPRegressor  # noqa: E402 - after the guard
from rlploss.estimators.rlp_cv import (  # noqa: E402 - after the guard
    NetworkClassifierCV,
    NetworkRegressorCV,
    RLPClassifierCV,
    RLPRegressorCV,
)

__all__ = [
    "FarRowsWarning",
    "NetworkClassifierCV",
    "NetworkRegressorCV",
    "RLPClassifier",
    "RLPClassifierCV",
    "RLPRegressor",
    "RLPRegressorCV",
    "auto_subset_size",
]
