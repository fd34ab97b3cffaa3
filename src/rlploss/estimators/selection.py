"""How settings are chosen inside training rows: the folds, and the target as it is or as its
logarithm.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import model_selection as cut

from rlploss._checks import count, one_of
from rlploss._scaling import Array, mean_and_scale
from rlploss.estimators.search import Split

# three folds up to 150 training rows, two up to 250, one validation part beyond
FOLDS, VALIDATION_SHARE = ((150, 3), (250, 2)), 0.2
SKEWED = 1.0  # skewness beyond which a positive target is tried as a logarithm too


def n_folds(n_rows: int) -> int:
    """Return in how many folds so many training rows choose settings; 1 is a validation part."""
    return next((k for most, k in FOLDS if n_rows <= most), 1)


def inner_folds(cv: int | str, target: NDArray[Any], seed: int) -> list[Split]:
    """Return random folds of rows with this target: numbers [n, C], or class numbers [n].

    `cv` is how many, or "auto", which is `n_folds`. Every class is in every fold, unless one has
    too few rows for that.
    """
    n = len(target)
    if isinstance(cv, str):
        one_of("cv", cv, ("auto",))
        k = n_folds(n)
    else:
        k = min(count("cv", cv, minimum=2), n)
    smallest = 0 if target.ndim > 1 else int(np.unique(target, return_counts=True)[1].min())
    labels = target if smallest > 1 else np.zeros(n)
    if k == 1:
        kind = cut.StratifiedShuffleSplit if smallest > 1 else cut.ShuffleSplit
        splitter: Any = kind(1, test_size=VALIDATION_SHARE, random_state=seed)
    elif smallest > 1:
        splitter = cut.StratifiedKFold(min(k, smallest), shuffle=True, random_state=seed)
    else:
        splitter = cut.KFold(k, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(splitter.split(labels, labels))


def is_skewed(y: Array) -> bool:
    """Return whether numbers have a long tail above."""
    z = (y - y.mean()) / max(float(y.std()), 1e-300)
    return float(np.mean(z**3)) > SKEWED


def log_choices(log_target: bool | str, target: NDArray[Any]) -> Sequence[bool]:
    """Return whether numbers [n, C] are to be tried as they are, as logarithms, or both.

    "auto" tries both for one positive target that is skewed.
    """
    if isinstance(log_target, str):
        one_of("log_target", log_target, ("auto",))
        if target.ndim == 1 or target.shape[1] > 1 or target.min() <= 0:
            return (False,)
        return (False, True) if is_skewed(target) else (False,)
    if log_target and (target.ndim == 1 or target.shape[1] > 1 or target.min() <= 0):
        raise ValueError(
            "log_target=True needs one target above 0, got another; pass log_target=False"
        )
    return (bool(log_target),)


@dataclass(frozen=True)
class TargetScale:
    """A target as models see it, and the way back: numbers are standardised, after their logarithm
    if asked.
    """

    log: bool
    mean: float
    scale: float
    low: float  # what comes back lies no further outside the training rows than they are wide
    high: float

    @classmethod
    def of(cls, y: Array, *, log: bool = False) -> TargetScale:
        """Return the scale of training rows [n]."""
        z = np.log(y) if log else np.asarray(y, dtype=np.float64)
        (mean,), (scale,) = mean_and_scale(z[:, None])
        low, high = float(z.min()), float(z.max())
        return cls(log, float(mean), float(scale), low - (high - low), high + (high - low))

    def scaled(self, y: Array) -> Array:
        """Return targets as models see them."""
        return ((np.log(y) if self.log else y) - self.mean) / self.scale

    def original(self, out: Array) -> Array:
        """Return outputs in the units of the target."""
        back = out * self.scale + self.mean
        return np.exp(np.clip(back, self.low, self.high)) if self.log else back
