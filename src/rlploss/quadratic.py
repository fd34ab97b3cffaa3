"""Quadratic forms of the residual: tr(RᵀQR) with the N×N matrix Q of many subsets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlploss.factors import traced


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
    value: Tensor = _QuadraticForm.apply(residual, form)[0]  # type: ignore[no-untyped-call]
    return value


class _QuadraticForm(torch.autograd.Function):
    """tr(RᵀQR) for symmetric Q, and QR: the product is used again for the gradient 2QR."""

    generate_vmap_rule = True

    @staticmethod
    def forward(residual: Tensor, form: Tensor) -> tuple[Tensor, Tensor]:
        half = form @ residual
        return (residual * half).sum(), half

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        # half is saved as an output, so that a second derivative goes through it
        ctx.save_for_backward(inputs[1], output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_half: Tensor | None) -> tuple[Tensor | None, None]:
        form, half = ctx.saved_tensors
        result = None if grad is None else 2 * grad * half
        if grad_half is not None:
            through = form @ grad_half
            result = through if result is None else result + through
        return result, None
