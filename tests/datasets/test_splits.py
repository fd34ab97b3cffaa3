from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from rlploss.datasets import (
    Dataset,
    Split,
    add_noise,
    as_images,
    first_split,
    load,
    shift_split,
    size_split,
    standardize,
)
from rlploss.datasets.splits import mahalanobis_region, paper_region


def table(n_rows: int, n_features: int = 3, *, seed: int = 0, name: str = "table") -> Dataset:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_features))
    return Dataset(
        name, X, X @ np.arange(1.0, n_features + 1), ("x",) * n_features, "regression", "", "", ""
    )


def image_set(
    n_train: int = 60_000, n_test: int = 10_000, *, task: str = "classification"
) -> Dataset:
    """An image set of MNIST's shape in rows; each row's one pixel is its row number."""
    X = np.arange(n_train + n_test, dtype=np.float32)[:, None]
    y = X if task == "reconstruction" else np.arange(n_train + n_test) % 10
    return Dataset("images", X, y, ("x",), task, "", "", "", (1, 1, 1), n_train)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def check(split: Split, dataset: Dataset) -> None:
    """What holds for every split: rows are the dataset's, none is drawn twice, none is in both
    sets."""
    for X, y, rows in (
        (split.X_train, split.y_train, split.train_rows),
        (split.X_test, split.y_test, split.test_rows),
    ):
        assert (X == dataset.X[rows]).all()
        assert (y == dataset.y[rows]).all()
        assert not any(array.flags.writeable for array in (X, y, rows))
    everything = np.concatenate([split.train_rows, split.test_rows])
    assert len(set(everything.tolist())) == len(everything)
    assert split.dataset == dataset.name
    assert split.task == dataset.task


@pytest.mark.parametrize(
    ("n_rows", "n_train", "sizes"),
    [
        (6497, None, (3248, 3249)),  # Wine
        (20_640, None, (10_320, 10_320)),  # California
        (6000, None, (3000, 3000)),  # Linear, Nonlinear
        (6497, 50, (50, 6447)),
        (6497, 100, (100, 6397)),
        (1000, 900, (900, 100)),  # Moons
        (500, 25, (25, 475)),  # Moons, small
        (2, None, (1, 1)),
    ],
)
def test_sizes_of_tables(n_rows: int, n_train: int | None, sizes: tuple[int, int]) -> None:
    dataset = table(n_rows)
    split = size_split(dataset, n_train, generator=rng())
    check(split, dataset)
    assert (len(split.X_train), len(split.X_test)) == sizes
    assert sum(sizes) == n_rows


@pytest.mark.parametrize("name", ["moons", "moons-small"])
def test_the_papers_moons(name: str) -> None:
    n_train, n_test = {"moons": (900, 100), "moons-small": (25, 475)}[name]
    split = size_split(load(name), n_train, generator=rng())
    check(split, load(name))
    assert len(split.X_test) == n_test


@pytest.mark.parametrize(
    ("n_train", "n_test", "sizes"),
    [
        (None, None, (5000, 5000)),
        (50, None, (50, 9950)),
        (100, None, (100, 9900)),
        (100, 1000, (100, 1000)),  # MNIST classes
        (60_000, 10_000, (60_000, 10_000)),
    ],
)
def test_images_come_from_their_original_sets(
    n_train: int | None, n_test: int | None, sizes: tuple[int, int]
) -> None:
    dataset = image_set()
    split = size_split(dataset, n_train, n_test, generator=rng())
    check(split, dataset)
    assert (len(split.X_train), len(split.X_test)) == sizes
    assert split.train_rows.max() < 60_000 <= split.test_rows.min()
    if n_train == 50:  # drawn from all of the set, not from its beginning
        assert split.train_rows.max() > 30_000


def test_the_generator_decides() -> None:
    dataset = table(200)
    once, again, other = (size_split(dataset, 30, generator=rng(seed)) for seed in (5, 5, 6))
    assert (once.train_rows == again.train_rows).all()
    assert (once.test_rows == again.test_rows).all()
    assert (once.train_rows != other.train_rows).any()
    generator = rng(5)
    size_split(dataset, 30, generator=generator)
    assert (size_split(dataset, 30, generator=generator).train_rows != once.train_rows).any()


def test_training_sets_of_one_seed_are_nested() -> None:
    for dataset in (table(300), image_set(300, 300)):
        n_test = None if dataset.n_official_train is None else 10
        small, large = (size_split(dataset, n, n_test, generator=rng(1)) for n in (50, 100))
        assert (large.train_rows[:50] == small.train_rows).all()


def test_every_row_is_as_likely_as_another() -> None:
    dataset = table(20)
    generator = rng(0)
    counts = sum(
        np.bincount(size_split(dataset, 5, generator=generator).train_rows, minlength=20)
        for _ in range(4000)
    )
    expected, deviation = 1000, math.sqrt(4000 * 0.25 * 0.75)
    assert (np.abs(counts - expected) < 4.5 * deviation).all()


@pytest.mark.parametrize(
    ("dataset", "n_train", "n_test", "message"),
    [
        (
            table(100),
            100,
            None,
            (
                r'n_train \(\|J\|\) must be smaller than \|X\| = 100 of "table", got 100: some rows'
                r" must"
            ),
        ),
        (table(100), 101, None, r"smaller than \|X\| = 100"),
        (table(100), 100, 5, r"smaller than \|X\| = 100"),
        (table(100), 0, None, r"n_train \(\|J\|\) must be at least 1, got 0"),
        (table(100), -3, None, "must be at least 1, got -3"),
        (
            table(100),
            50,
            51,
            'n_test must be at most 50, the test rows that "table" has left, got 51',
        ),
        (table(100), 50, 0, "n_test must be at least 1, got 0"),
        (table(1), None, None, r"n_train \(\|J\|\) must be at least 1, got 0"),
        (image_set(), 10_000, None, r"smaller than \|X\| = 10000"),
        (image_set(), 60_001, 5, 'at most 60000, the original training set of "images", got 60001'),
        (image_set(), 50, 10_001, "n_test must be at most 10000"),
    ],
)
def test_impossible_sizes(
    dataset: Dataset, n_train: int | None, n_test: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        size_split(dataset, n_train, n_test, generator=rng())


@pytest.mark.parametrize("generator", [None, 0, torch.Generator(), np.random.RandomState(0)])
def test_only_a_numpy_generator_will_do(generator: object) -> None:
    with pytest.raises(
        TypeError,
        match=r"generator must be a numpy.random.Generator, got .*: pass np.random.default_rng",
    ):
        size_split(table(10), 5, generator=generator)


def test_the_first_rows() -> None:
    dataset = image_set()
    split = first_split(dataset, 5000, 1000)
    check(split, dataset)
    assert (split.train_rows == np.arange(5000)).all()
    assert (split.test_rows == 60_000 + np.arange(1000)).all()
    split = first_split(table(10), 4, 3)
    assert split.train_rows.tolist() == [0, 1, 2, 3]
    assert split.test_rows.tolist() == [4, 5, 6]
    with pytest.raises(ValueError, match="n_test must be at most 6"):
        first_split(table(10), 4, 7)


def slow_paper_region(X: np.ndarray) -> list[bool]:
    """The paper's two conditions, feature by feature."""
    n = len(X)
    means = [math.fsum(column) / n for column in X.T.tolist()]
    deviations = [
        math.sqrt(math.fsum((v - m) ** 2 for v in column) / n)
        for column, m in zip(X.T.tolist(), means, strict=True)
    ]
    return [
        all(
            v - m < 0.5 * s and m - v < 0.5 * s
            for v, m, s in zip(row, means, deviations, strict=True)
        )
        for row in X.tolist()
    ]


@pytest.mark.parametrize("n_features", [1, 2, 5])
def test_the_papers_region(n_features: int) -> None:
    X = rng(n_features).normal(size=(400, n_features)) * 10.0 ** np.arange(n_features) + 3
    inside = paper_region(X)
    assert inside.tolist() == slow_paper_region(X)
    assert 0 < inside.sum() < 400


def test_the_region_is_open() -> None:
    X = np.array(
        [[-3.0], [-1.0], [0.0], [1.0], [3.0]]
    )  # mean 0, standard deviation 2: ±1 is on the edge
    assert paper_region(X).tolist() == [False, False, True, False, False]
    assert not paper_region(np.ones((4, 1))).any()  # strictly within half of 0


def test_the_papers_region_is_almost_empty_on_nonlinear() -> None:
    assert shift_split(load("nonlinear"), 0.3, generator=rng()).n_region == 0
    assert shift_split(load("linear"), 0.3, generator=rng()).n_region == 10


@pytest.mark.parametrize("n_rows", [10, 11, 501])
def test_the_mahalanobis_region_holds_half_of_the_rows(n_rows: int) -> None:
    X = rng(n_rows).normal(size=(n_rows, 4)) @ rng(1).normal(size=(4, 4)) + 7
    inside = mahalanobis_region(X)
    assert inside.sum() == n_rows // 2
    covariance = np.cov(X, rowvar=False, bias=True)
    distance = [row @ np.linalg.solve(covariance, row) for row in X - X.mean(axis=0)]
    assert max(np.array(distance)[inside]) < min(np.array(distance)[~inside])


def test_the_mahalanobis_region_does_not_see_the_units() -> None:
    X = rng(3).normal(size=(300, 4))
    mixed = X @ (rng(4).normal(size=(4, 4)) * [1e-6, 1.0, 1e3, 1e6]) + 50
    assert (mahalanobis_region(X) == mahalanobis_region(mixed)).all()


def test_the_mahalanobis_region_with_useless_columns() -> None:
    X = rng(5).normal(size=(200, 3))
    useless = np.column_stack([X, X[:, 0] - 2 * X[:, 1], np.full(200, 0.1), X[:, 2]])
    assert (mahalanobis_region(useless) == mahalanobis_region(X)).all()
    assert (
        mahalanobis_region(np.full((7, 2), 0.1)).tolist() == [True] * 3 + [False] * 4
    )  # ties: the earlier rows


@pytest.mark.parametrize("region", ["paper", "mahalanobis"])
@pytest.mark.parametrize("shift", [0.1, 0.3, 0.5, 0.9])
def test_shift_includes_with_its_probabilities(region: str, shift: float) -> None:
    dataset = table(4000, 1)
    split = shift_split(dataset, shift, region=region, generator=rng(7))
    check(split, dataset)
    assert len(split.X_train) + len(split.X_test) == 4000
    inside = paper_region(dataset.X) if region == "paper" else mahalanobis_region(dataset.X)
    n_inside = int(inside.sum())
    assert split.n_region == n_inside
    assert split.n_region_train == inside[split.train_rows].sum()
    n_outside_train = len(split.X_train) - split.n_region_train
    for count, n, probability in (
        (split.n_region_train, n_inside, shift),
        (n_outside_train, 4000 - n_inside, 1 - shift),
    ):
        assert abs(count - n * probability) < 4.5 * math.sqrt(n * probability * (1 - probability))


def test_the_mahalanobis_shift_shifts() -> None:
    dataset = table(4000, 8)
    distance = (dataset.X**2).sum(axis=1)

    def gap(region: str) -> float:
        split = shift_split(dataset, 0.9, region=region, generator=rng(1))
        return float(distance[split.test_rows].mean() - distance[split.train_rows].mean())

    assert gap("mahalanobis") > 3
    assert abs(gap("paper")) < 1


@pytest.mark.parametrize("shift", [-0.1, 1.1, math.nan, math.inf])
def test_a_shift_outside_its_range(shift: float) -> None:
    with pytest.raises(ValueError, match=r"shift \(γ\) must be in \[0, 1\], got"):
        shift_split(table(10), shift, generator=rng())


def test_what_cannot_be_shifted() -> None:
    with pytest.raises(TypeError, match=r"shift \(γ\) must be a number, got 'much'"):
        shift_split(table(10), "much", generator=rng())
    with pytest.raises(
        ValueError,
        match='region must be one of "paper", "mahalanobis", got \'papr\'; did you mean "paper"',
    ):
        shift_split(table(10), 0.5, region="papr", generator=rng())
    with pytest.raises(
        ValueError, match='ignores the original training and test sets of "images": use a table'
    ):
        shift_split(image_set(10, 10), 0.5, generator=rng())
    with pytest.raises(
        ValueError,
        match=r"shift \(γ\) = 1 leaves no training rows of .*holds 0 of 6000 rows: choose",
    ):
        shift_split(load("nonlinear"), 1.0, generator=rng())
    with pytest.raises(ValueError, match=r"shift \(γ\) = 0 leaves no test rows"):
        shift_split(load("nonlinear"), 0.0, generator=rng())


def test_noise_is_added_to_training_features_only() -> None:
    split = size_split(table(3000, 4), 2000, generator=rng())
    noisy = add_noise(split, 0.5, generator=rng(9))
    added = noisy.X_train - split.X_train
    assert added.std() == pytest.approx(0.5, rel=0.05)
    assert abs(added.mean()) < 0.03
    assert abs(np.corrcoef(added, rowvar=False) - np.eye(4)).max() < 0.1
    for name in ("y_train", "X_test", "y_test", "train_rows", "test_rows"):
        assert getattr(noisy, name) is getattr(split, name)
    assert not noisy.X_train.flags.writeable
    assert (add_noise(split, 0.5, generator=rng(9)).X_train == noisy.X_train).all()
    # One seed, another β: the same draw, scaled.
    assert np.allclose(
        add_noise(split, 1.0, generator=rng(9)).X_train - split.X_train, 2 * added, atol=1e-12
    )


def test_noise_on_images_keeps_the_clean_target() -> None:
    split = size_split(image_set(100, 100, task="reconstruction"), 50, 50, generator=rng())
    assert split.y_train is split.X_train
    noisy = add_noise(split, 0.1, generator=rng())
    assert noisy.X_train.dtype == np.float32
    assert noisy.y_train is split.X_train


@pytest.mark.parametrize("noise", [-0.1, math.nan, math.inf])
def test_noise_outside_its_range(noise: float) -> None:
    with pytest.raises(ValueError, match=r"noise \(β\) must be finite and at least 0, got"):
        add_noise(size_split(table(10), generator=rng()), noise, generator=rng())


def test_standardize_uses_training_rows_only() -> None:
    split = size_split(table(50, 3), 20, generator=rng())
    scaled = standardize(split, target=True)
    for k in range(3):
        column = split.X_train[:, k].tolist()
        mean = math.fsum(column) / 20
        deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in column) / 20)
        assert np.allclose(scaled.X_train[:, k], (split.X_train[:, k] - mean) / deviation)
        assert np.allclose(scaled.X_test[:, k], (split.X_test[:, k] - mean) / deviation)
    assert np.allclose(scaled.y_train.mean(), 0)
    assert np.allclose(scaled.y_train.std(), 1)
    # Other test rows change nothing.
    other = dataclasses.replace(split, X_test=split.X_test * 100, y_test=split.y_test + 5)
    assert (standardize(other, target=True).X_train == scaled.X_train).all()
    assert (standardize(other, target=True).y_train == scaled.y_train).all()
    # And it can be undone.
    scaling = scaled.scaling
    assert scaling is not None
    assert np.allclose(scaled.X_test * scaling.x_scale + scaling.x_mean, split.X_test)
    assert np.allclose(scaled.y_test * scaling.y_scale + scaling.y_mean, split.y_test)


def test_standardize_leaves_the_target_unless_asked() -> None:
    split = size_split(table(50), 20, generator=rng())
    scaled = standardize(split)
    assert (scaled.y_train == split.y_train).all()
    assert scaled.scaling is not None
    assert (scaled.scaling.y_mean, scaled.scaling.y_scale) == (0.0, 1.0)
    assert not any(
        getattr(scaled, name).flags.writeable for name in ("X_train", "X_test", "y_train", "y_test")
    )
    assert not any(array.flags.writeable for array in vars(scaled.scaling).values())


def test_standardize_with_a_constant_column() -> None:
    dataset = table(30)
    X = dataset.X.copy()
    X[:, 1] = 0.1
    split = size_split(dataclasses.replace(dataset, X=X, y=np.full(30, 0.3)), generator=rng())
    scaled = standardize(split, target=True)
    assert np.allclose(scaled.X_train[:, 1], 0, atol=1e-15)
    assert np.allclose(scaled.y_train, 0, atol=1e-15)


def test_standardize_refuses_to_scale_classes() -> None:
    with pytest.raises(
        ValueError, match="target=True needs a regression split, this one is for classification"
    ):
        standardize(size_split(load("moons"), generator=rng()), target=True)


def test_tensors_are_copies(recwarn: pytest.WarningsRecorder) -> None:
    split = size_split(load("moons"), 30, generator=rng())
    X_train, y_train, X_test, y_test = split.tensors()
    assert X_train.dtype == X_test.dtype == torch.get_default_dtype()
    assert y_train.dtype == y_test.dtype == torch.int64
    assert np.allclose(X_train.numpy(), split.X_train)
    X_train.zero_()
    assert (split.X_train != 0).any()
    assert (
        size_split(table(9), generator=rng()).tensors(dtype=torch.float64)[1].dtype == torch.float64
    )
    assert not recwarn.list


@pytest.mark.parametrize("side", [None, 8, 9, 12])
def test_padding_puts_zeros_around(side: int | None) -> None:
    dataset = load("digits")
    split = as_images(size_split(dataset, 10, 5, generator=rng()), side=side)
    size = 8 if side is None else side
    assert split.X_train.shape == (10, 1, size, size)
    assert split.X_test.shape == (5, 1, size, size)
    assert split.image_shape == (1, size, size)
    top = (size - 8) // 2
    inner = split.X_train[:, :, top : top + 8, top : top + 8]
    assert (inner == dataset.images[split.train_rows]).all()
    assert split.X_train.sum() == inner.sum()


def test_28_becomes_32_with_2_on_each_side() -> None:
    X = np.ones((4, 784), dtype=np.float32)
    dataset = Dataset(
        "ones", X, np.zeros(4, int), ("x",) * 784, "classification", "", "", "", (1, 28, 28)
    )
    images = as_images(size_split(dataset, generator=rng()), side=32).X_train
    assert images.shape == (2, 1, 32, 32)
    assert (images[0, 0].sum(axis=0) == [0] * 2 + [28] * 28 + [0] * 2).all()


def test_what_cannot_be_padded() -> None:
    with pytest.raises(ValueError, match='"moons" has no images: as_images needs an image set'):
        as_images(size_split(load("moons"), generator=rng()))
    with pytest.raises(ValueError, match="side must be at least the images' 8, got 7"):
        as_images(size_split(load("digits"), generator=rng()), side=7)


def test_the_global_random_state_is_not_touched() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the global state
    state = torch.get_rng_state()
    split = size_split(table(20), generator=rng())
    add_noise(split, 0.1, generator=rng())
    shift_split(table(20), 0.5, region="mahalanobis", generator=rng())
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002 - the global state
    assert (torch.get_rng_state() == state).all()
