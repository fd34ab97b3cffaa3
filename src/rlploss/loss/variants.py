"""Planes with row weights, and planes as the released autoencoder fits them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlploss.loss.factors import factor


def weighted_columns(features: Tensor, weight: Tensor, centre: Tensor, *, intercept: bool, ridge: float) -> Tensor:
    """√w·[x, 1] for features [n, d] and weights [n]: least squares on them and on √w·residual is weighted.

    With an intercept x is centred first at `centre` [d], which the planes do not see, for the sake of precision. A
    ridge must not reach the column of ones, so that column is made long: its coefficient, and λ with it, all but
    vanishes.
    """
    x = features.double()
    if intercept:
        x = torch.nn.functional.pad(x - centre, (0, 1), value=1.0 if ridge == 0 else 1e6)
    return (x * weight.double().sqrt().unsqueeze(1)).to(features.dtype)


def weighted_sums(columns: Tensor, weight: Tensor, *, ridge: float) -> Tensor:
    """Rows W [K, 1, M] of the probe "sum" for weighted columns [K, M, p] and weights [K, M].

    A row of weight w counts as w rows would: its fitted value is summed w times, not √w times.
    """
    basis = factor(columns, ridge=ridge).basis
    return weight.double().sqrt().unsqueeze(1) @ basis @ basis.mT


def cut_off_planes(features: Tensor, target: Tensor, plan: Tensor) -> tuple[Tensor, Tensor]:
    """The released autoencoder's loss, mean of (P_cut·pred − target)², as rows W [K, q, M] and a constant [K].

    Its pseudo-inverse of xᵀx in float32 drops directions with σ²/σ₁² below max(d, d)·eps of float32. What is left of
    xx⁺ is still a projection P, so ‖P·pred − target‖² = ‖P(pred − target)‖² + ‖(I − P)target‖².

    NOTE[DIFF]: the eigenvalues are computed in float64 and cut at the same place, so that the rank does not depend on
    the rounding of the machine at hand.
    """
    K, M = plan.shape
    d = features.shape[1]
    cut = d * torch.finfo(torch.float32).eps
    found, constant = [], []
    for subset in plan:
        x, y = features[subset].to(torch.float64), target[subset]
        tall = d <= M
        values, vectors = torch.linalg.eigh(x.mT @ x if tall else x @ x.mT)
        keep = values > cut * values[-1]
        basis = x @ vectors[:, keep] / values[keep].sqrt() if tall else vectors[:, keep]
        found.append((basis.mT / math.sqrt(M)).to(features.dtype))  # [r, M]
        constant.append(y.square().mean() - (found[-1] @ y).square().sum() / y.shape[1])
    height = max(part.shape[0] for part in found)
    padded = [torch.nn.functional.pad(part, (0, 0, 0, height - part.shape[0])) for part in found]
    return torch.stack(padded), torch.stack(constant)
