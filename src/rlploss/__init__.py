"""Random Linear Projections (RLP) loss for PyTorch."""

from rlploss._checks import DegenerateLossWarning, HeavyTailWarning, MeanOnlyWarning, MSEEquivalentWarning
from rlploss._version import __version__
from rlploss.bank import ProjectionBank
from rlploss.fleet import Problem, fit_fleet
from rlploss.functional import rlp_loss
from rlploss.history import Epochs, Event, History, Steps
from rlploss.loss import RLPLoss
from rlploss.mixup import mixup, mixup_lambdas, mixup_subsets
from rlploss.models import Autoencoder, LeNet5, MoonsNet, RegressionNet, seeded
from rlploss.monitors import DivergenceError, EarlyStopping, Progress
from rlploss.sampler import BalancedBatchSampler
from rlploss.subsets import balanced_subsets
from rlploss.training import fit

__all__ = [
    "Autoencoder",
    "BalancedBatchSampler",
    "DegenerateLossWarning",
    "DivergenceError",
    "EarlyStopping",
    "Epochs",
    "Event",
    "HeavyTailWarning",
    "History",
    "LeNet5",
    "MSEEquivalentWarning",
    "MeanOnlyWarning",
    "MoonsNet",
    "Problem",
    "Progress",
    "ProjectionBank",
    "RLPLoss",
    "RegressionNet",
    "Steps",
    "__version__",
    "balanced_subsets",
    "fit",
    "fit_fleet",
    "mixup",
    "mixup_lambdas",
    "mixup_subsets",
    "rlp_loss",
    "seeded",
]
