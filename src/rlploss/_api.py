"""List the public names that need torch; `rlploss` loads them on first use."""

from rlploss._checks import (
    DegenerateLossWarning,
    HeavyTailWarning,
    MeanOnlyWarning,
    MSEEquivalentWarning,
)
from rlploss._progress import Progress
from rlploss.loss.bank import ProjectionBank
from rlploss.loss.functional import rlp_loss
from rlploss.loss.mixup import mixup, mixup_lambdas, mixup_subsets
from rlploss.loss.module import RLPLoss
from rlploss.loss.sampler import BalancedBatchSampler
from rlploss.loss.subsets import balanced_subsets
from rlploss.loss.two_speed import kappa, two_speed_loss
from rlploss.models import Autoencoder, LeNet5, MoonsNet, RegressionNet, seeded
from rlploss.training.evaluation import EarlyStopping, Event, History
from rlploss.training.fit import fit, fit_fleet
from rlploss.training.job import SGD, Adam, AdamW, Epochs, Problem, Steps
from rlploss.training.loop import DivergenceError
from rlploss.training.objectives import (
    MAE,
    MSE,
    RLP,
    BatchLoss,
    CrossEntropy,
    Huber,
    Pointwise,
    TwoSpeed,
)

__all__ = [
    "MAE",
    "MSE",
    "RLP",
    "SGD",
    "Adam",
    "AdamW",
    "Autoencoder",
    "BalancedBatchSampler",
    "BatchLoss",
    "CrossEntropy",
    "DegenerateLossWarning",
    "DivergenceError",
    "EarlyStopping",
    "Epochs",
    "Event",
    "HeavyTailWarning",
    "History",
    "Huber",
    "LeNet5",
    "MSEEquivalentWarning",
    "MeanOnlyWarning",
    "MoonsNet",
    "Pointwise",
    "Problem",
    "Progress",
    "ProjectionBank",
    "RLPLoss",
    "RegressionNet",
    "Steps",
    "TwoSpeed",
    "balanced_subsets",
    "fit",
    "fit_fleet",
    "kappa",
    "mixup",
    "mixup_lambdas",
    "mixup_subsets",
    "rlp_loss",
    "seeded",
    "two_speed_loss",
]
