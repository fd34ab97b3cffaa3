"""Compute the loss as a quadratic form of the residual, with its gradient; only the kernel has code
of its own.

For one subset it is a·‖R‖² ± ‖W R‖², with rows W [q, M] that depend on the features only:

- W spans what the planes see: a = 0 and plus;
- W spans what they do not see, where that takes fewer rows: a = 1/M and minus (W orthonormal, over
  √M);
- they see everything, which is MSE: a = 1/M and no W.

Of all subsets together it is tr(RᵀQR) with one matrix Q [N, N].
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from rlploss.loss.factors import is_tracing


def as_residual(pred: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return R = pred − target as (N, C), in float32 or better, or √w·R for weights [N]."""
    if weight is not None:
        target = counted(target, weight)
    if target.dtype is torch.bool:
        target = target.to(pred.dtype)
    residual = pred - target if pred.dtype.itemsize > 2 else pred.float() - target
    residual = residual.unsqueeze(1) if residual.ndim == 1 else residual
    return residual if weight is None else residual * weight.sqrt().to(residual).unsqueeze(1)


def counted(target: Tensor, weight: Tensor) -> Tensor:
    """Return the targets with 0 in rows of weight 0, whose targets may be NaN."""
    weight = weight.reshape(-1, *[1] * (target.ndim - 1))
    return torch.where(weight > 0, target, torch.zeros_like(target))


def reduce(values: Tensor, reduction: str) -> Tensor:
    """Reduce one value per subset (a scalar for a single one) as the caller asked."""
    if reduction == "none":
        return values.reshape(-1)
    if values.ndim == 0:  # one subset: nothing to reduce
        return values
    return values.mean() if reduction == "mean" else values.sum()


def without_autocast(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Disable autocast inside the loss: it would compute products in bfloat16, and it has no rule
    for solvers.
    """
    kind = tensor.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()


def projected_value(residual: Tensor, rows: Tensor | None, residual_weight: float = 0.0) -> Tensor:
    """Return a·‖R‖² ± ‖W R‖² of each subset: residual R [..., M, C], rows W [..., q, M], a =
    `residual_weight`.
    """
    if rows is None:
        return residual.square().sum((-2, -1)) * residual_weight
    if residual_weight:
        return _differentiable(residual, rows, residual_weight)
    along = rows @ residual
    # A shorter path for one subset: there the number of operations decides the time.
    return (along * along).sum() if along.ndim == 2 else (along * along).sum((-2, -1))


def quadratic_value(residual: Tensor, form: Tensor) -> Tensor:
    """Return tr(RᵀQR): residual R [..., N, C], symmetric form Q [..., N, N]."""
    return _differentiable(residual, form, 0.0)


def add_form(form: Tensor, rows: Tensor, subsets: Tensor) -> None:
    """Add Σ_j S_jᵀW_jᵀW_jS_j to `form` [N, N] in place; rows W [k, q, M] belong to the rows
    `subsets` [k, M].
    """
    k, q, M = rows.shape
    N = form.shape[0]
    # Spread the rows over all N columns: one large product replaces k small ones with scattered
    # sums.
    spread = torch.zeros(k, q, N, dtype=form.dtype, device=form.device)
    spread.scatter_(2, subsets.unsqueeze(1).expand(k, q, M), rows.to(form.dtype))
    flat = spread.view(k * q, N)
    form.addmm_(flat.mT, flat)


# A form Q, and the complement a·I − WᵀW of rows W, are symmetric matrices A. The value is tr(RᵀAR),
# and its gradient 2AR.


def _product(residual: Tensor, matrix: Tensor, residual_weight: float) -> Tensor:
    """Return A·R for A = `matrix`, or for A = residual_weight·I − WᵀW with rows W = `matrix`."""
    if residual_weight == 0:
        return matrix @ residual
    along = matrix @ residual
    if residual.ndim == 2:  # saves one pass over the residual
        return torch.addmm(residual, matrix.mT, along, beta=residual_weight, alpha=-1)
    return residual * residual_weight - matrix.mT @ along


def _value(residual: Tensor, product: Tensor, residual_weight: float) -> Tensor:
    """Return tr(RᵀAR) from AR. The complement of rows is a times a projection, so the value is
    ‖AR‖²/a, without a difference of large numbers.
    """
    if residual_weight == 0:
        return (residual * product).sum((-2, -1))
    return product.square().sum((-2, -1)) / residual_weight


def _differentiable(residual: Tensor, matrix: Tensor, residual_weight: float) -> Tensor:
    if is_tracing():
        return _value(residual, _product(residual, matrix, residual_weight), residual_weight)
    value: Tensor = _Symmetric.apply(residual, matrix, residual_weight)[0]  # type: ignore[no-untyped-call]  # torch's own has no types
    return value


class _Symmetric(torch.autograd.Function):
    """tr(RᵀAR), and AR, which is stored for the gradient 2AR instead of computed again.

    AR is an output, so that second derivatives pass through it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(residual: Tensor, matrix: Tensor, residual_weight: float) -> tuple[Tensor, Tensor]:
        product = _product(residual, matrix, residual_weight)
        return _value(residual, product, residual_weight).clamp_min(0), product

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]
    ) -> None:
        ctx.save_for_backward(inputs[1], output[1])
        ctx.save_for_forward(inputs[1], output[1])
        ctx.residual_weight = inputs[2]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, grad_product: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        matrix, product = ctx.saved_tensors
        through = (
            None if grad_product is None else _product(grad_product, matrix, ctx.residual_weight)
        )
        if grad is None:
            return through, None, None
        own = 2 * grad[..., None, None] * product
        return own if through is None else own + through, None, None

    @staticmethod
    def jvp(
        ctx: Any, change: Tensor, matrix: Tensor | None, residual_weight: None
    ) -> tuple[Tensor, Tensor]:
        matrix, product = ctx.saved_tensors
        value = 2 * (change * product).sum((-2, -1))
        return value, _product(change, matrix, ctx.residual_weight)
