"""The paper's datasets from real bytes, verified, and its splits and perturbations."""

from rlploss.datasets._progress import DataWarning
from rlploss.datasets.cache import CacheError, cache_dir
from rlploss.datasets.dataset import Dataset
from rlploss.datasets.registry import is_cached, load, names
from rlploss.datasets.sources import DatasetUnavailable
from rlploss.datasets.synthetic import linear, moons, nonlinear

__all__ = [
    "CacheError",
    "DataWarning",
    "Dataset",
    "DatasetUnavailable",
    "cache_dir",
    "is_cached",
    "linear",
    "load",
    "moons",
    "names",
    "nonlinear",
]
