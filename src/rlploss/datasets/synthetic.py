"""The generated datasets: Linear and Nonlinear (section B of the paper) and Moons."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlploss import _checks, _extras
from rlploss.datasets.readers import Floats

N_ROWS = 6000


def linear() -> tuple[Floats, Floats]:
    """Linear: X ~ U[0, 1)^5, seed 0, y = 0.5 X₁ + 1.5 X₂ + 2.5 X₃ + 3.5 X₄ + 4.5 X₅; X [6000, 5], y [6000].

    The paper gives the seed and not the order of the draws; the released code draws row by row, and so do we.
    """
    X = np.random.RandomState(0).rand(N_ROWS, 5)
    return X, 0.5 * X[:, 0] + 1.5 * X[:, 1] + 2.5 * X[:, 2] + 3.5 * X[:, 3] + 4.5 * X[:, 4]


def nonlinear() -> tuple[Floats, Floats]:
    """Nonlinear: X ~ U[0, 1)^7, seed 1, y = X₁ + X₂² + X₃³ + X₄⁴ + X₅⁵ + exp X₆ + sin X₇; X [6000, 7].

    Drawn row by row, as Linear.
    """
    X = np.random.RandomState(1).rand(N_ROWS, 7)
    powers = sum(X[:, k - 1] ** k for k in range(1, 6))
    return X, powers + np.exp(X[:, 5]) + np.sin(X[:, 6])


def moons(n_rows: int = 1000, *, noise: float = 0.3, seed: int = 0) -> tuple[Floats, NDArray[np.int64]]:
    """Two interleaved half circles (scikit-learn's `make_moons`): X [n_rows, 2], y in {0, 1}.

    The defaults are the paper's larger set; its smaller one is `moons(500, noise=0.1)`. Noise and seed are those
    of the released code; the paper states neither.
    """
    n_rows = _checks.count("n_rows", n_rows, minimum=2)
    noise = _checks.number("noise", noise, minimum=0.0)
    seed = _checks.count("seed", seed, minimum=0)
    _extras.need("sklearn", "the moons", "sklearn")
    from sklearn.datasets import make_moons

    X, y = make_moons(n_samples=n_rows, noise=noise, random_state=seed)
    return np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.int64)
