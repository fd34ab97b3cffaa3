"""Random Linear Projections (RLP) loss for PyTorch."""

from rlploss._checks import DegenerateLossWarning, HeavyTailWarning, MeanOnlyWarning, MSEEquivalentWarning
from rlploss._version import __version__
from rlploss.bank import ProjectionBank
from rlploss.functional import rlp_loss
from rlploss.loss import RLPLoss
from rlploss.mixup import mixup, mixup_lambdas, mixup_subsets
from rlploss.sampler import BalancedBatchSampler
from rlploss.subsets import balanced_subsets

__all__ = [
    "BalancedBatchSampler",
    "DegenerateLossWarning",
    "HeavyTailWarning",
    "MSEEquivalentWarning",
    "MeanOnlyWarning",
    "ProjectionBank",
    "RLPLoss",
    "__version__",
    "balanced_subsets",
    "mixup",
    "mixup_lambdas",
    "mixup_subsets",
    "rlp_loss",
]
