"""Define `two_speed_loss`, the average of RLP over all subsets without a draw, and its parameter
`kappa`.
"""

from __future__ import annotations

from torch import Tensor

from rlploss import _checks
from rlploss.loss.functional import rlp_loss
from rlploss.loss.planes import mean_one
from rlploss.loss.quadratic import as_residual


def two_speed_loss(
    pred: Tensor,
    target: Tensor,
    features: Tensor,
    kappa: float,
    *,
    weight: Tensor | None = None,
    intercept: bool = True,
) -> Tensor:
    """Return MSE at two speeds: in full for the part linear in the features, and κ times for the
    rest.

    For N rows with features X (N×p, a column of ones included), the residual R = pred − target
    (N×C) and the projection P on the columns of X the value is

        (‖P R‖² + κ·‖(I − P) R‖²) / (N·C) = κ·MSE + (1 − κ)·RLP of all rows as one subset.

    κ = 1 is MSE, κ = 0 is least squares. With `kappa(M, N, p)` it is the mean of RLP over all
    subsets of M rows: exactly on the linear part, and on average over the directions of the rest.
    With batches of B of N rows, the mean over batches has κ + (1 − κ)·kappa(B, N, p) in place of κ.

    Args:
        pred: predictions, (N,), (N, 1) or (N, C).
        target: targets of exactly the same shape.
        features: (N, d); (N,) is one column, images are flattened. A constant for the gradient.
        kappa: κ in [0, 1].
        weight: (N,), at least 0; only ratios matter. P is then that of weighted least squares. A
            row of weight 0 has no effect, and its target may be NaN.
        intercept: fit planes with an offset: a column of ones beside the features.

    >>> import torch
    >>> x = torch.tensor([0.0, 1.0, 2.0])
    >>> pred, target = torch.tensor([1.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 1.0])
    >>> [round(float(two_speed_loss(pred, target, x, k)), 4) for k in (0.0, 0.5, 1.0)]
    [0.6111, 0.6389, 0.6667]
    """
    kappa = _checks.number("kappa", kappa, 0.0, 1.0)
    _checks.pair(pred, target)
    linear = rlp_loss(pred, target, features, weight=weight, intercept=intercept)
    if weight is not None:
        weight = mean_one(weight, len(pred), values=False)  # `rlp_loss` has checked them
    squares = as_residual(pred, target, weight).square()
    return kappa * squares.mean() + (1 - kappa) * linear


def kappa(subset_size: int, n_rows: int, n_columns: int) -> float:
    """Return κ = p(N − M)/(M(N − p)): the speed of RLP on the nonlinear part, relative to the
    linear part.

    M is `subset_size`, N `n_rows`, and p the columns of the planes, features and intercept
    together. κ is 1 up to M = p, where RLP is MSE, and 0 at M = N > p, where it is least squares.
    This assumes that every subset has full rank.

    >>> round(kappa(subset_size=20, n_rows=100, n_columns=6), 4)  # five features and an intercept
    0.2553
    """
    N, M, _ = _checks.plan_sizes(n_rows, subset_size, 1)
    p = _checks.count("n_columns", n_columns)
    return min(1.0, p * (N - M) / (M * (N - p))) if N > p else 1.0
