"""Training: Algorithms 2 and 3 of the paper, the released loop, every baseline."""

from rlploss._progress import Progress
from rlploss._values import Value, from_json
from rlploss.training.budget import Epochs, Steps
from rlploss.training.evaluation import EarlyStopping
from rlploss.training.fit import fit, fit_fleet
from rlploss.training.history import Event, History
from rlploss.training.job import Problem
from rlploss.training.loop import DivergenceError
from rlploss.training.objectives import (
    MAE,
    MSE,
    RLP,
    BatchLoss,
    CrossEntropy,
    Huber,
    Objective,
    Pointwise,
    as_objective,
)
from rlploss.training.optimizers import SGD, Adam, AdamW, OptimizerValue, as_optimizer

__all__ = [
    "MAE",
    "MSE",
    "RLP",
    "SGD",
    "Adam",
    "AdamW",
    "BatchLoss",
    "CrossEntropy",
    "DivergenceError",
    "EarlyStopping",
    "Epochs",
    "Event",
    "History",
    "Huber",
    "Objective",
    "OptimizerValue",
    "Pointwise",
    "Problem",
    "Progress",
    "Steps",
    "Value",
    "as_objective",
    "as_optimizer",
    "fit",
    "fit_fleet",
    "from_json",
]
