"""Mix examples (mixup), and pair two plans of subsets as Algorithm 3 does."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlploss import _checks


def mixup(a: Tensor, b: Tensor, lam: Tensor | float) -> Tensor:
    """Return λ·a + (1 − λ)·b; a λ of shape (K,) applies along the first dimension of a and b.

    >>> mixup(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.5]))
    tensor([1.0000, 1.5000])
    """
    if a.shape != b.shape:
        raise ValueError(
            f"a and b must have the same shape, got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if isinstance(lam, Tensor) and lam.ndim:
        if lam.ndim != 1 or a.ndim == 0 or lam.shape[0] != a.shape[0]:
            raise ValueError(
                f"lam must be a number or have shape ({a.shape[:1].numel()},), got"
                f" {tuple(lam.shape)}"
            )
        lam = lam.to(a.dtype).reshape(-1, *[1] * (a.ndim - 1))
    return lam * a + (1 - lam) * b


def mixup_lambdas(n: int, alpha: float, *, generator: torch.Generator | None = None) -> Tensor:
    """Draw n numbers λ ~ Beta(ψ, ψ) in float64, with ψ = `alpha` > 0.

    torch has no Beta sampler that takes a generator and is exact for small ψ, so one number from
    `generator` seeds numpy's sampler.

    >>> mixup_lambdas(3, 0.2, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([3])
    """
    n = _checks.count("n", n)
    if _checks.number("mixup_alpha", alpha, minimum=0.0) == 0.0:
        raise ValueError(f"mixup_alpha must be positive, got {alpha}; leave mixup out instead")
    device = None if generator is None else generator.device
    seed = int(torch.randint(2**62, (), generator=generator, device=device))
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, n))


def mixup_subsets(
    X: Tensor, y: Tensor, plan_a: Tensor, plan_b: Tensor, lam: Tensor
) -> tuple[Tensor, Tensor]:
    """Return Algorithm 3's virtual subsets: x_j = λ_j·X[a_j] + (1 − λ_j)·X[b_j], and likewise
    y.

    Args:
        X: features (N, ...). y: targets (N,) or (N, C).
        plan_a, plan_b: two plans (K, M) of one size, see `balanced_subsets`.
        lam: one λ per pair, (K,), see `mixup_lambdas`; drawn again in every epoch, so factors
            cannot be stored.

    Returns:
        Features (K, M, ...) and targets (K, M) or (K, M, C). Their loss, factored a chunk of
        subsets at a time, is `rlp_loss(model(x.flatten(0, 1)), y.flatten(0, 1), x.flatten(0, 1),
        subsets=arange(K·M).view(K, M))`.

    >>> plans = torch.tensor([[[0, 1]], [[2, 3]]])  # of one subset each
    >>> mixup_subsets(torch.eye(4), torch.arange(4.0), *plans, lam=torch.tensor([0.25]))[1]
    tensor([[1.5000, 2.5000]])
    """
    if plan_a.ndim != 2 or plan_a.shape != plan_b.shape:
        raise ValueError(
            "two plans must pair subset by subset and both have shape (K, M), got"
            f" {tuple(plan_a.shape)} and {tuple(plan_b.shape)}"
        )
    if X.shape[0] != y.shape[0]:
        raise ValueError(
            f"X and y must have the same number of rows, got {X.shape[0]} and {y.shape[0]}"
        )
    return mixup(X[plan_a], X[plan_b], lam), mixup(y[plan_a], y[plan_b], lam)
