"""The paper's datasets from real bytes, verified, and its splits and perturbations."""

from rlploss._scaling import Scaling
from rlploss.datasets.registry import is_cached, linear, load, moons, names, nonlinear
from rlploss.datasets.sources import DatasetUnavailable, cache_dir
from rlploss.datasets.splits import (
    Dataset,
    Split,
    add_noise,
    as_images,
    first_split,
    mahalanobis_region,
    paper_region,
    shift_split,
    size_split,
    standardize,
)
from rlploss.datasets.transfers import CacheError, DataWarning

__all__ = [
    "CacheError",
    "DataWarning",
    "Dataset",
    "DatasetUnavailable",
    "Scaling",
    "Split",
    "add_noise",
    "as_images",
    "cache_dir",
    "first_split",
    "is_cached",
    "linear",
    "load",
    "mahalanobis_region",
    "moons",
    "names",
    "nonlinear",
    "paper_region",
    "shift_split",
    "size_split",
    "standardize",
]
