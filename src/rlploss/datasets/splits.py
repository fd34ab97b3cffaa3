"""Split a dataset into training and test sets as the paper does: by size, by shift, with noise,
standardised.

All randomness comes from the `numpy.random.Generator` that the caller passes, so the same generator
state gives the same split. Sizes are nested: with one seed, the first 50 training rows of |J| = 100
are those of |J| = 50.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlploss import _checks
from rlploss._scaling import Scaling

if TYPE_CHECKING:
    import torch

IMAGE_ROWS = 10_000  # the paper's |X| for MNIST and CIFAR-10
TaskName = Literal["regression", "classification", "reconstruction"]
Array = NDArray[Any]
ImageShape = tuple[int, int, int]  # channels, height, width
RowNumbers = NDArray[np.int64]
Region = Literal["paper", "mahalanobis"]


def frozen(array: Array) -> Array:
    """Return the array, C-contiguous and read-only."""
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A dataset: features X [rows, d], targets y [rows], and where it comes from.

    Tables are float64. Images are float32 in [0, 1] and flat: a row holds the image's planes one
    after the other, and `images` restores their shape. Class labels are int64. For reconstruction y
    is X itself. Arrays are read-only.

    >>> datasets.load("linear")
    Dataset("linear", regression, 6000×5)
    """

    name: str
    X: Array
    y: Array
    feature_names: tuple[str, ...]
    task: TaskName
    source: str
    licence: str
    citation: str
    image_shape: ImageShape | None = None
    n_official_train: int | None = (
        None  # rows before this one are the original training set, the others its test set
    )

    def __repr__(self) -> str:
        return f'Dataset("{self.name}", {self.task}, {self.n_rows}×{self.n_features})'

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.X)

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return int(self.X.shape[1])

    @property
    def images(self) -> Array:
        """X as images [rows, channels, height, width], without a copy."""
        if self.image_shape is None:
            raise ValueError(f'dataset "{self.name}" has no images: use X')
        return self.X.reshape(self.n_rows, *self.image_shape)


@dataclass(frozen=True, eq=False)
class Split:
    """A training and a test set. Arrays are read-only; `tensors` makes copies for torch.

    >>> [tuple(part.shape) for part in first_split(datasets.load("linear"), 50, 10).tensors()]
    [(50, 5), (50,), (10, 5), (10,)]
    """

    X_train: Array = field(repr=False)
    y_train: Array = field(repr=False)
    X_test: Array = field(repr=False)
    y_test: Array = field(repr=False)
    train_rows: RowNumbers = field(repr=False)  # rows of the dataset, in the order of X_train
    test_rows: RowNumbers = field(repr=False)
    dataset: str
    task: TaskName
    image_shape: ImageShape | None = None  # of a row of X
    n_region: int | None = None  # shift: rows of the whole dataset in the region of interest
    n_region_train: int | None = None  # shift: how many of them are in the training set
    scaling: Scaling | None = field(default=None, repr=False)

    def tensors(
        self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return X_train, y_train, X_test, y_test as tensors, which are copies of the arrays.

        Features and real targets get `dtype` (torch's default if None); class labels stay int64.
        """
        import torch

        real = torch.get_default_dtype() if dtype is None else dtype
        label = torch.int64 if self.task == "classification" else real
        X_train, X_test = (
            torch.tensor(X, dtype=real, device=device) for X in (self.X_train, self.X_test)
        )
        y_train, y_test = (
            torch.tensor(y, dtype=label, device=device) for y in (self.y_train, self.y_test)
        )
        return X_train, y_train, X_test, y_test


def size_split(
    dataset: Dataset,
    n_train: int | None = None,
    n_test: int | None = None,
    *,
    generator: np.random.Generator,
) -> Split:
    """Draw |J| = `n_train` training rows and `n_test` test rows at random, without repetition.

    Tables: `n_train` is half of the rows if None (rounded down: Wine has 3248 and 3249), and the
    test set is all that remains unless `n_test` says less. MNIST and CIFAR-10: training rows come
    from the original training set and test rows from the original test set, |X| = 10,000 in all
    unless `n_test` is given, half of them training rows if `n_train` is None.

    >>> size_split(datasets.load("linear"), 50, generator=np.random.default_rng(0)).X_test.shape
    (5950, 5)
    """
    generator = _generator(generator)
    boundary = dataset.n_official_train
    n_train, n_test = _sizes(
        dataset, n_train, n_test, total=dataset.n_rows if boundary is None else IMAGE_ROWS
    )
    if boundary is None:
        order = generator.permutation(dataset.n_rows)
        return _take(dataset, order[:n_train], order[n_train : n_train + n_test])
    train = generator.permutation(boundary)[:n_train]
    test = boundary + generator.permutation(dataset.n_rows - boundary)[:n_test]
    return _take(dataset, train, test)


def first_split(dataset: Dataset, n_train: int, n_test: int) -> Split:
    """Take the first rows, as the released autoencoder code does; nothing is drawn.

    For images these are the first `n_train` of the original training set and the first `n_test` of
    the original test set; for tables the first `n_train` rows and the `n_test` rows after them.

    >>> first_split(datasets.load("linear"), 50, 10).test_rows[:3]
    array([50, 51, 52])
    """
    n_train, n_test = _sizes(dataset, n_train, n_test, total=dataset.n_rows)
    start = n_train if dataset.n_official_train is None else dataset.n_official_train
    return _take(dataset, np.arange(n_train), np.arange(start, start + n_test))


def hold_out(split: Split, share: float) -> Split:
    """Test on the last `share` of the training rows instead of on the test rows.

    A choice made on such a split does not depend on the test rows.

    >>> split = first_split(datasets.load("linear"), 50, 10)
    >>> hold_out(split, 0.2).test_rows[:3]
    array([40, 41, 42])
    """
    share = _checks.number("share", share, minimum=0.0, maximum=1.0)
    n = len(split.X_train) - round(share * len(split.X_train))
    if not 0 < n < len(split.X_train):
        raise ValueError(
            f"share = {share:g} of {len(split.X_train)} training rows must leave rows on either"
            " side: choose a value further from 0 and 1"
        )
    return replace(
        split,
        X_train=split.X_train[:n],
        y_train=split.y_train[:n],
        X_test=split.X_train[n:],
        y_test=split.y_train[n:],
        train_rows=split.train_rows[:n],
        test_rows=split.train_rows[n:],
    )


def shift_split(
    dataset: Dataset, shift: float, *, region: Region = "paper", generator: np.random.Generator
) -> Split:
    """Split with a distribution shift of bias γ = `shift`.

    Rows in the region of interest go into training with probability γ, all others with probability
    1 − γ, each drawn on its own; the rest is the test set.

    `region="paper"`: every feature strictly within half a standard deviation of its mean, both over
    all rows. That region is almost empty with 7 or more features (61 rows of California, 1 of Wine,
    0 of Nonlinear), so γ then sets little but the training size, about (1 − γ)·|X|.
    `region="mahalanobis"` shifts in earnest: the half of the rows nearest to the mean in
    Mahalanobis distance. `Split.n_region` tells how many rows the region has.

    >>> rng = np.random.default_rng(0)
    >>> split = shift_split(datasets.load("linear"), 0.1, region="mahalanobis", generator=rng)
    >>> split.n_region, split.n_region_train
    (3000, 330)
    """
    shift = _checks.number("shift (γ)", shift, minimum=0.0, maximum=1.0)
    _checks.one_of("region", region, ("paper", "mahalanobis"))
    generator = _generator(generator)
    if dataset.n_official_train is not None:
        raise ValueError(
            f'a shift split ignores the original training and test sets of "{dataset.name}": use a'
            " table"
        )
    inside = paper_region(dataset.X) if region == "paper" else mahalanobis_region(dataset.X)
    chosen = generator.random(dataset.n_rows) < np.where(inside, shift, 1.0 - shift)
    if chosen.all() or not chosen.any():
        side = "test" if chosen.all() else "training"
        holds = f"whose region of interest holds {int(inside.sum())} of {dataset.n_rows} rows"
        wrong = f'shift (γ) = {shift:g} leaves no {side} rows of "{dataset.name}", {holds}'
        raise ValueError(f"{wrong}: choose a value further from 0 and 1")
    split = _take(dataset, np.flatnonzero(chosen), np.flatnonzero(~chosen))
    return replace(split, n_region=int(inside.sum()), n_region_train=int((inside & chosen).sum()))


def paper_region(X: Array) -> NDArray[np.bool_]:
    """Return which rows have every feature strictly within half a standard deviation of its mean:
    [rows].
    """
    X = np.asarray(X, dtype=np.float64)
    return np.asarray((np.abs(X - X.mean(axis=0)) < 0.5 * X.std(axis=0)).all(axis=1))


def mahalanobis_region(X: Array) -> NDArray[np.bool_]:
    """Return which half of the rows (rounded down) is nearest to the mean in Mahalanobis distance:
    [rows].

    With C the centred features and C = U S Vᵀ the squared distance of row i is |X|·‖U_i‖², taken
    over the directions that C really has, so collinear and constant columns do no harm. Ties go to
    the earlier row.
    """
    X = np.asarray(X, dtype=np.float64)
    centred = X - X.mean(axis=0)
    scale = np.linalg.norm(centred, axis=0)
    # A column that does not vary is rounding error after centring, not a direction.
    varies = scale > len(X) * np.finfo(np.float64).eps * np.linalg.norm(X, axis=0)
    U, S, _ = np.linalg.svd(centred[:, varies] / scale[varies], full_matrices=False)
    if S.size:
        U = U[:, max(X.shape) * np.finfo(np.float64).eps * S[0] < S]
    distance = np.einsum("ij,ij->i", U, U)
    inside = np.zeros(len(X), dtype=np.bool_)
    inside[np.argsort(distance, kind="stable")[: len(X) // 2]] = True
    return inside


def add_noise(split: Split, noise: float, *, generator: np.random.Generator) -> Split:
    """Add β·N(0, 1) noise, β = `noise`, to every training feature; targets and test rows stay as
    they are.

    The paper adds it to raw features: call this before `standardize`.

    >>> split = first_split(datasets.load("linear"), 50, 10)
    >>> noisy = add_noise(split, 0.1, generator=np.random.default_rng(0))
    """
    noise = _checks.number("noise (β)", noise, minimum=0.0)
    drawn = _generator(generator).standard_normal(split.X_train.shape)
    noisy = (split.X_train + noise * drawn).astype(split.X_train.dtype)
    return replace(split, X_train=frozen(noisy))


def standardize(split: Split, *, target: bool = False) -> Split:
    """Centre features and scale them to unit standard deviation, with statistics of the training
    rows only.

    `target=True` does the same to y (regression only); `Split.scaling` has what is needed to go
    back. A column that does not vary in the training rows is centred and not scaled.

    >>> standardize(first_split(datasets.load("linear"), 50, 10)).X_train.std(axis=0).round(6)
    array([1., 1., 1., 1., 1.])
    """
    if target and split.task != "regression":
        raise ValueError(
            f"target=True needs a regression split, this one is for {split.task}: leave it out"
        )
    statistics = Scaling.of(split.X_train, split.y_train.reshape(-1, 1) if target else None)
    scaling = Scaling(*(frozen(array) for array in vars(statistics).values()))
    X_train, X_test = (
        frozen(scaling.inputs(part).astype(part.dtype)) for part in (split.X_train, split.X_test)
    )
    if target:
        y_train, y_test = (frozen(scaling.targets(part)) for part in (split.y_train, split.y_test))
        split = replace(split, y_train=y_train, y_test=y_test)
    return replace(split, X_train=X_train, X_test=X_test, scaling=scaling)


def as_images(split: Split, *, side: int | None = None) -> Split:
    """Give X its image shape [rows, channels, h, w], with zeros around it up to side×side (28 → 32
    for LeNet-5).

    >>> as_images(first_split(datasets.load("digits"), 50, 10), side=10).X_train.shape
    (50, 1, 10, 10)
    """
    if split.image_shape is None:
        raise ValueError(f'"{split.dataset}" has no images: as_images needs an image set')
    channels, height, width = split.image_shape
    side = height if side is None else _checks.count("side", side)
    if side < max(height, width):
        raise ValueError(f"side must be at least the images' {max(height, width)}, got {side}")
    top, left = (side - height) // 2, (side - width) // 2
    around = ((0, 0), (0, 0), (top, side - height - top), (left, side - width - left))
    images = (part.reshape(-1, channels, height, width) for part in (split.X_train, split.X_test))
    X_train, X_test = (frozen(np.pad(part, around)) for part in images)
    return replace(split, X_train=X_train, X_test=X_test, image_shape=(channels, side, side))


def _generator(generator: object) -> np.random.Generator:
    if not isinstance(generator, np.random.Generator):
        got = type(generator).__name__
        raise TypeError(
            f"generator must be a numpy.random.Generator, got {got}: pass"
            " np.random.default_rng(seed)"
        )
    return generator


def _sizes(
    dataset: Dataset, n_train: int | None, n_test: int | None, *, total: int
) -> tuple[int, int]:
    """Check |J| and |G| against the number of rows; None stands for half of `total`, and for the
    rest.
    """
    n_train = _checks.count("n_train (|J|)", total // 2 if n_train is None else n_train)
    boundary = dataset.n_official_train
    if boundary is not None and n_train > boundary:
        whole = f'{boundary}, the original training set of "{dataset.name}"'
        raise ValueError(f"n_train (|J|) must be at most {whole}, got {n_train}")
    if n_train >= total and (boundary is None or n_test is None):
        wrong = (
            f'n_train (|J|) must be smaller than |X| = {total} of "{dataset.name}", got {n_train}'
        )
        raise ValueError(f"{wrong}: some rows must be left for the test set")
    n_test = total - n_train if n_test is None else _checks.count("n_test", n_test)
    most = dataset.n_rows - (n_train if boundary is None else boundary)
    if n_test > most:
        raise ValueError(
            f'n_test must be at most {most}, the test rows that "{dataset.name}" has left, got'
            f" {n_test}"
        )
    return n_train, n_test


def _take(dataset: Dataset, train: RowNumbers, test: RowNumbers) -> Split:
    X_train, X_test = (frozen(dataset.X[rows]) for rows in (train, test))
    # For reconstruction the target is the image itself, not a second copy of it.
    y_train, y_test = X_train, X_test
    if dataset.y is not dataset.X:
        y_train, y_test = (frozen(dataset.y[rows]) for rows in (train, test))
    parts = X_train, y_train, X_test, y_test, frozen(train), frozen(test)
    return Split(*parts, dataset=dataset.name, task=dataset.task, image_shape=dataset.image_shape)
