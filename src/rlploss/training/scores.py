"""Value and gradient of an objective with respect to the predictions, in closed form.

Every objective of `fit` is a short formula in the predictions, so its gradient is written down here and handed to
the network's backward pass. A step then has no graph of its own for the loss, and the same lines serve one network
([B, C]) and a stack of them ([S, B, C]).
"""

from __future__ import annotations

from torch import Tensor

POINTWISE = ("mse", "mae", "huber", "cross_entropy")
HUBER_DELTA = 1.0


def row_weight(loss: str, n_rows: int, n_outputs: int) -> float:
    """Weight of one row: values are means over rows and outputs, cross entropy over rows alone."""
    return 1.0 / n_rows if loss == "cross_entropy" else 1.0 / (n_rows * n_outputs)


def pointwise(loss: str, pred: Tensor, target: Tensor, weight: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return Σ weight·loss over rows and outputs, and its gradient.

    pred, target [..., B, C]; weight a number or [..., B, 1] (zero for rows that only fill up a stack). Value [...].
    Huber: e²/2 up to |e| = 1, |e| − 1/2 beyond. Cross entropy: −Σ target·log softmax(pred), target sums to 1.
    """
    if loss == "cross_entropy":
        logs = pred.log_softmax(-1)
        return -(weight * target * logs).sum((-2, -1)), weight * (logs.exp() - target)
    gap = pred - target
    if loss == "mse":
        back = gap * (2 * weight)
        return (back * gap).sum((-2, -1)) / 2, back
    if loss == "mae":
        return (gap.abs() * weight).sum((-2, -1)), gap.sign() * weight
    clipped = gap.clamp(-HUBER_DELTA, HUBER_DELTA)
    scaled = clipped * weight
    return (scaled * (gap - clipped / 2)).sum((-2, -1)), scaled


def projected(residual: Tensor, rows: Tensor, scale: float, whole: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return scale·‖rows·R‖² per subset, or scale·(whole·‖R‖² − ‖rows·R‖²) if `whole` is set, and its gradient.

    residual [..., M, C], rows [..., q, M]; value [...]. `whole` is 1/M where `rows` span what the planes do not
    see, which is the shorter way when the planes see most of the residual.
    """
    seen = rows @ residual
    value, back = (seen * seen).sum((-2, -1)), rows.mT @ (seen * (2 * scale))
    if scale != 1:  # every operation counts: a step of a small network is little else
        value = value * scale
    if whole:
        rest = residual * (2 * scale * whole)
        return (residual * rest).sum((-2, -1)) / 2 - value, rest - back
    return value, back


def quadratic(residual: Tensor, form: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return scale·tr(RᵀQR) for a symmetric Q, and its gradient: residual [..., N, C], form [..., N, N]."""
    back = form @ residual
    return (residual * back).sum((-2, -1)) * scale, back * (2 * scale)
