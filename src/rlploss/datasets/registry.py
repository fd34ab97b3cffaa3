"""Every dataset by name: `load`, and what is known of one before it is there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rlploss import _checks
from rlploss.datasets.cache import cache_dir, read_file
from rlploss.datasets.catalog import entries
from rlploss.datasets.dataset import Dataset, Entry, TaskName, frozen
from rlploss.datasets.sources import obtain
from rlploss.datasets.transfers import Reporter

ENTRIES = {item.name: item for item in entries()}
_lent: Mapping[str, bytes] = {}


def names() -> tuple[str, ...]:
    """Return the names that `load` knows."""
    return tuple(ENTRIES)


def entry(name: str) -> Entry:
    """Return what is known of the dataset `name`."""
    return ENTRIES[_checks.one_of("dataset name", name, ENTRIES)]


def is_cached(name: str) -> bool:
    """Say whether every file of the dataset is in the cache with its right size: `load` needs no network.

    Cheap: nothing is hashed (`load` and `rlploss data verify` do that). True for datasets that need no files.
    """
    item = entry(name)
    paths = {cache_path(item) / file.name: file.size for file in item.files}
    try:
        return all(path.stat().st_size == size for path, size in paths.items())
    except OSError:
        return False


def cache_path(item: Entry) -> Path:
    """Return the directory of the dataset's files."""
    return cache_dir() / item.directory


def cached_files(item: Entry) -> Iterator[tuple[Path, str]]:
    """Hash what the cache holds of a dataset: each file's path, and "ok", "not there" or what is wrong."""
    for file in item.files:
        yield cache_path(item) / file.name, read_file(cache_path(item), file)[1]


def load(name: str, *, task: TaskName | None = None, download: bool = True, progress: bool = True) -> Dataset:
    """Return a dataset by name, fetching and verifying its files if need be.

    Args:
        name: one of `names()`.
        task: None for the dataset's own task; "reconstruction" for image sets makes the target X itself.
        download: False to use the cache only.
        progress: False to fetch in silence. Nothing is printed when nothing is fetched.

    Example:
        >>> from rlploss.datasets import load
        >>> load("linear").X.shape
        (6000, 5)
    """
    item = entry(name)
    chosen = item.task if task is None else task
    _checks.one_of(f'task of "{name}"', chosen, item.tasks)
    X, y, feature_names = item.read(fetch(name, download=download, progress=progress))
    X = frozen(X)
    y = X if chosen == "reconstruction" else frozen(y)
    shared = ("name", "source", "licence", "citation", "image_shape", "n_official_train")
    return Dataset(X=X, y=y, feature_names=feature_names, task=chosen, **{key: getattr(item, key) for key in shared})


def fetch(name: str, *, download: bool = True, progress: bool = True) -> dict[str, bytes]:
    """Return the verified bytes of the dataset's files, by name; they are in the cache afterwards.

    `progress=False` fetches in silence, and tells of wrong files in the cache as a `DataWarning`.
    """
    item = entry(name)
    if all(file.sha256 in _lent for file in item.files):
        return {file.name: _lent[file.sha256] for file in item.files}
    reporter = Reporter(sys.stderr if progress else None)
    return obtain(item.directory, item.files, item.sources, download=download, progress=reporter)


@contextmanager
def lent(files: Mapping[str, bytes]) -> Iterator[None]:
    """Let `load` find verified files here, by SHA-256, before it looks for a cache: a worker may have none."""
    global _lent
    before, _lent = _lent, files
    try:
        yield
    finally:
        _lent = before
