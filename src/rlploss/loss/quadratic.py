"""Quadratic forms of the residual: tr(RᵀQR) with the N×N matrix Q of many subsets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlploss.loss.factors import traced


def add_form(form: Tensor, rows: Tensor, subsets: Tensor) -> None:
    """Add Σ_j S_jᵀW_jᵀW_jS_j to `form` [N, N] in place; rows W [k, q, M] belong to the rows `subsets` [k, M]."""
    k, q, M = rows.shape
    N = form.shape[0]
    # rows spread over all N columns: one large product instead of k small ones with scattered sums
    spread = torch.zeros(k, q, N, dtype=form.dtype, device=form.device)
    spread.scatter_(2, subsets.unsqueeze(1).expand(k, q, M), rows.to(form.dtype))
    flat = spread.view(k * q, N)
    form.addmm_(flat.mT, flat)


def quadratic_form(residual: Tensor, form: Tensor) -> Tensor:
    """tr(RᵀQR) for symmetric Q [N, N] and R [N, C]."""
    if traced():
        return (residual * (form @ residual)).sum()
    value: Tensor = _Form.apply(residual, form)[0]  # type: ignore[no-untyped-call]  # torch's own has no types
    return value


def complement_form(residual: Tensor, rows: Tensor) -> Tensor:
    """‖R‖²/M − ‖W R‖² for R [M, C] and rows W [q, M] that are orthonormal over √M: what W does not see."""
    M = residual.shape[0]
    if traced():
        return (residual.square().sum() / M - (rows @ residual).square().sum()).clamp_min(0)
    value: Tensor = _Complement.apply(residual, rows)[0]  # type: ignore[no-untyped-call]  # as above
    return value


class _Symmetric(torch.autograd.Function):
    """tr(Rᵀ·AR) for a symmetric A, and AR: the product is kept for the gradient 2AR instead of made again.

    AR is an output, so that a second derivative goes through it.
    """

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[1], output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def _gradient(grad: Tensor | None, product: Tensor, through: Tensor | None) -> Tensor | None:
        if grad is None:
            return through
        own = 2 * grad * product
        return own if through is None else own + through


class _Form(_Symmetric):
    @staticmethod
    def forward(residual: Tensor, form: Tensor) -> tuple[Tensor, Tensor]:
        product = form @ residual
        return (residual * product).sum().clamp_min(0), product

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_product: Tensor | None) -> tuple[Tensor | None, None]:
        form, product = ctx.saved_tensors
        through = None if grad_product is None else form @ grad_product
        return _Symmetric._gradient(grad, product, through), None


class _Complement(_Symmetric):
    @staticmethod
    def forward(residual: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        product = _unseen(residual, rows)
        # A is a projection over M, so that tr(RᵀAR) = M‖AR‖²: no difference of two large numbers
        return product.square().sum() * residual.shape[0], product

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_product: Tensor | None) -> tuple[Tensor | None, None]:
        rows, product = ctx.saved_tensors
        through = None if grad_product is None else _unseen(grad_product, rows)
        return _Symmetric._gradient(grad, product, through), None


def _unseen(residual: Tensor, rows: Tensor) -> Tensor:
    return torch.addmm(residual, rows.mT, rows @ residual, beta=1 / residual.shape[0], alpha=-1)
