from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from rlploss.datasets import registry

LINEAR_X = "105a79c81e6447275aa68b58c0fd2aa117349839091a7f435258afa4b900b204"
LINEAR = "30fabadbb6950413019197bd073bd1c3640d23bc142d435075369ec6c714f0eb"
NONLINEAR_X = "f17fd1d25409d3a81c80a6cd1f4e7c5a2c57b9d44011f2730ca6e640bcadf97b"


def digest(*arrays: np.ndarray) -> str:
    """A hash of the values to 12 digits: exp and sin may differ in the last bit between
    machines."""
    text = "\n".join(f"{value:.12e}" for array in arrays for value in array.ravel().tolist())
    return hashlib.sha256(text.encode()).hexdigest()


def test_linear_is_pinned() -> None:
    X, y = registry.linear()
    assert X.shape == (6000, 5)
    assert y.shape == (6000,)
    # Draws of RandomState(0), row by row.
    assert X[0].tolist() == [
        0.5488135039273248,
        0.7151893663724195,
        0.6027633760716439,
        0.5448831829968969,
        0.4236547993389047,
    ]
    assert hashlib.sha256(X.tobytes()).hexdigest() == LINEAR_X
    assert digest(X, y) == LINEAR


def test_linear_follows_the_formula() -> None:
    X, y = registry.linear()
    assert ((X >= 0) & (X < 1)).all()
    for row in range(len(X)):
        expected = math.fsum((k + 0.5) * X[row, k] for k in range(5))
        assert y[row] == pytest.approx(expected, rel=1e-14)


def test_nonlinear_is_pinned() -> None:
    X, y = registry.nonlinear()
    assert X.shape == (6000, 7)
    assert y.shape == (6000,)
    assert X[0, :3].tolist() == [0.417022004702574, 0.7203244934421581, 0.00011437481734488664]
    assert hashlib.sha256(X.tobytes()).hexdigest() == NONLINEAR_X


def test_nonlinear_follows_the_formula() -> None:
    X, y = registry.nonlinear()
    for row in (0, 17, 5999):
        a, b, c, d, e, f, g = X[row].tolist()
        expected = math.fsum([a, b**2, c**3, d**4, e**5, math.exp(f), math.sin(g)])
        assert y[row] == pytest.approx(expected, rel=1e-14)


def test_the_global_random_state_is_not_touched() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the global state
    registry.linear()
    registry.nonlinear()
    registry.moons()
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002 - the global state


def test_moons_is_make_moons() -> None:
    from sklearn.datasets import make_moons

    X, y = registry.moons(40, noise=0.2, seed=3)
    X_there, y_there = make_moons(40, noise=0.2, random_state=3)
    assert (X == X_there).all()
    assert (y == y_there).all()
    assert X.dtype == np.float64
    assert y.dtype == np.int64
