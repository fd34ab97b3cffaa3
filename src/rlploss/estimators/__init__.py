"""scikit-learn estimators: a multilayer perceptron trained with RLP, or with any loss that RLP is compared with."""

from rlploss.estimators.base import auto_subset_size

# isort: split  (the first import above says what to install where scikit-learn is missing)
from rlploss.estimators.cv import RLPRegressorCV
from rlploss.estimators.mlp import RLPClassifier, RLPRegressor

__all__ = ["RLPClassifier", "RLPRegressor", "RLPRegressorCV", "auto_subset_size"]
