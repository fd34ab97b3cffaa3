"""Value and gradient of an objective with respect to the predictions of one step, in torch.

RLP has its gradient in closed form. A loss of single rows, built in or anyone's own, goes through autograd up to the
predictions; the network's backward pass takes over from there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlploss.loss.quadratic import projected, quadratic
from rlploss.training.feed import Window
from rlploss.training.objectives import RLP, BatchLoss, Objective, OnBatches
from rlploss.training.rows import flat


def score(objective: Objective, window: Window, i: int, pred: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The value of the i-th step, this process's part of it, and its gradient, for predictions and targets [b, C]."""
    block, total = window.block, int(window.totals[i])
    low, high = (int(end) for end in window.spans[i])
    index = block.rows[low:high].to(pred.device)
    weight = None
    if block.weight is not None:
        weight = (block.weight if block.every_row else block.weight[index]).unsqueeze(1)
    if isinstance(objective, BatchLoss):
        features = flat(window.inputs(i)[0])
        return _by_autograd(lambda leaf: _one_number(objective.function(leaf, target, features)), pred)
    if isinstance(objective, OnBatches):
        return _by_autograd(lambda leaf: _mean(objective.values(leaf, target), leaf, weight, total), pred)
    assert isinstance(objective, RLP)
    residual = pred - target if weight is None else (pred - target) * weight
    (M, _, _), C, bank = objective.shape(), residual.shape[1], block.bank
    if block.form is not None:
        value, back = quadratic(residual, block.form.to(residual.dtype), 1 / C)
    elif bank is not None:
        value, back = _by_autograd(lambda leaf: bank.loss(leaf, torch.zeros_like(leaf)), residual)
    else:
        some = slice(low // M, high // M)
        stack = (residual[index] if block.every_row else residual).view(-1, M, C)
        rows = None if block.projector is None else block.projector[some]
        values, back = projected(stack, rows, 1 / (total * C), block.residual_weight)
        value, back = values.sum(), back.view(-1, C)
        if block.offset is not None:
            value = value + block.offset[some].sum() / total
        if block.every_row:
            back = torch.zeros_like(residual).index_add_(0, index, back)
    return value, back if weight is None else back * weight


def _mean(values: object, pred: Tensor, weight: Tensor | None, total: int) -> Tensor:
    """The mean of values [b] or [b, C] over `total` rows and over outputs, with row weights [b, 1]."""
    if not isinstance(values, Tensor) or values.shape not in (pred.shape[:1], pred.shape):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"a Pointwise function must return one value per row ({pred.shape[0]},) or per output "
            f"{tuple(pred.shape)}, got {got}; leave out the mean"
        )
    values = values.unsqueeze(1) if values.ndim == 1 else values
    return (values if weight is None else values * weight).sum() / (total * values.shape[1])


def _one_number(value: object) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"a BatchLoss function must return one number, got {got}; take the mean")
    return value.reshape(())


def _by_autograd(function: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaf = at.detach().requires_grad_()
        value = function(leaf)
        if not value.requires_grad:
            raise ValueError("a loss must depend on the predictions by torch operations, got one without a gradient")
        (back,) = torch.autograd.grad(value, leaf)
    return value.detach(), back
