"""Load the paper's datasets from verified files, and split and perturb them as the paper does."""

from rlploss.datasets.registry import is_cached, load, names
from rlploss.datasets.sources import CacheError, DatasetUnavailable, cache_dir
from rlploss.datasets.splits import (
    Dataset,
    Split,
    add_noise,
    as_images,
    first_split,
    hold_out,
    shift_split,
    size_split,
    standardize,
)

__all__ = [
    "CacheError",
    "Dataset",
    "DatasetUnavailable",
    "Split",
    "add_noise",
    "as_images",
    "cache_dir",
    "first_split",
    "hold_out",
    "is_cached",
    "load",
    "names",
    "shift_split",
    "size_split",
    "standardize",
]
