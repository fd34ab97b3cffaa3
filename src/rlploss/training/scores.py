"""Value and gradient of an objective with respect to the predictions of one step, in torch.

Every built-in objective is a short formula in the predictions, so its gradient is written down and handed to the
network's backward pass. Anyone's own function goes through autograd, up to the predictions and no further.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlploss.training.feed import Window
from rlploss.training.objectives import RLP, BatchLoss, Huber, Objective, Pointwise


def score(objective: Objective, window: Window, i: int, pred: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The value of the i-th step, this process's part of it, and its gradient, for predictions and targets [b, C]."""
    block, total = window.block, int(window.totals[i])
    low, high = (int(end) for end in window.spans[i])
    index = block.rows[low:high].to(pred.device)
    weight = None
    if block.weight is not None:
        weight = (block.weight if block.every_row else block.weight[index]).unsqueeze(1)
    if isinstance(objective, BatchLoss):
        x = window.inputs(i)[0]
        features = x.unsqueeze(1) if x.ndim == 1 else x.flatten(1)
        return _by_autograd(lambda leaf: _one_number(objective.function(leaf, target, features)), pred)
    if not isinstance(objective, RLP):
        return of_rows(objective, pred, target, total, weight)
    residual = pred - target if weight is None else (pred - target) * weight
    M, bank = objective.shape()[0], block.bank
    if block.form is not None:
        back = block.form.to(residual.dtype) @ residual * (2 / residual.shape[1])
        value = (residual * back).sum() / 2
    elif bank is not None:
        value, back = _by_autograd(lambda leaf: bank.loss(leaf, torch.zeros_like(leaf)), residual)
    elif block.every_row:
        value, part = of_subsets(window, low // M, residual[index].view(-1, M, residual.shape[1]), total)
        back = torch.zeros_like(residual).index_add_(0, index, part.view(-1, residual.shape[1]))
    else:
        value, part = of_subsets(window, low // M, residual.view(-1, M, residual.shape[1]), total)
        back = part.view(residual.shape)
    return value, back if weight is None else back * weight


def of_subsets(window: Window, first: int, residual: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Σ (a·‖R‖² + b·‖W R‖²) / (total·C) over the subsets from `first` on, residuals [k, M, C], and its gradient."""
    block = window.block
    k, _, C = residual.shape
    scale, a = 1 / (total * C), block.residual_weight
    if block.projector is None:
        back = residual * (2 * scale * a)
        return (residual * back).sum() / 2, back
    W = block.projector[first : first + k]
    seen = W @ residual
    if a == 0:
        value, back = seen.square().sum() * scale, W.mT @ (seen * (2 * scale))
    else:  # aR − WᵀWR is a·(projection of R), so its square gives the value: no difference of squares
        left = residual * a - W.mT @ seen
        value, back = left.square().sum() * (scale / a), left * (2 * scale)
    if block.offset is not None:
        value = value + block.offset[first : first + k].sum() / total
    return value, back


def of_rows(
    objective: Objective, pred: Tensor, target: Tensor, total: int, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The value of a loss of rows, as a mean over `total` rows and over outputs, and its gradient; weight [b, 1]."""
    if isinstance(objective, Pointwise):

        def mean(leaf: Tensor) -> Tensor:
            values = objective.function(leaf, target)
            if not isinstance(values, Tensor) or values.shape not in (pred.shape[:1], pred.shape):
                got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
                raise ValueError(
                    f"a Pointwise function must return one value per row ({pred.shape[0]},) or per output "
                    f"{tuple(pred.shape)}, got {got}; leave out the mean"
                )
            values = values.unsqueeze(1) if values.ndim == 1 else values
            return (values if weight is None else values * weight).sum() / (total * values.shape[1])

        return _by_autograd(mean, pred)
    if objective.loss == "cross_entropy":
        each = 1 / total if weight is None else weight / total
        logs = pred.log_softmax(-1)
        return -(each * target * logs).sum(), each * (logs.exp() - target)
    C = pred.shape[1]
    each = 1 / (total * C) if weight is None else weight / (total * C)
    gap = pred - target
    if objective.loss == "mse":
        back = gap * (2 * each)
        return (back * gap).sum() / 2, back
    if objective.loss == "mae":
        return (gap.abs() * each).sum(), gap.sign() * each
    assert isinstance(objective, Huber)
    clipped = gap.clamp(-objective.delta, objective.delta)
    return (clipped * (gap - clipped / 2) * each).sum(), clipped * each


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
