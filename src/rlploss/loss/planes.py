"""Probes: from the factors of a subset to rows W with value = ‖W R‖² / C.

One subset has features x (M×d) and residual R = pred − target (M×C). Fitting a plane to (x, pred) and one to
(x, target) gives coefficients that differ by Δ = x⁺R, so everything here depends on the features alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlploss.loss.factors import Factors, chunks, factor, need, traced

PROBES = ("subset", "draw", "expected", "sum")


@dataclass(frozen=True)
class Moment:
    """Σ = mean of zzᵀ as LLᵀ, with Lᵀ = `rows` in coordinates [z − centre, 1]; shared or per subset."""

    rows: Tensor  # [p, p] or [K, p, p]
    centre: Tensor | None  # [d] or [K, d]


def second_moment(rows: Tensor, *, intercept: bool = False) -> Moment:
    """Factor Σ = mean of zzᵀ over rows z [..., n, d], by a QR of the rows."""
    rows = rows.to(torch.float64)
    n = rows.shape[-2]
    if not intercept:
        return Moment(torch.linalg.qr(rows, mode="r")[1] / math.sqrt(n), None)
    centre = rows.mean(-2, keepdim=True)
    lifted = torch.cat([rows - centre, torch.ones_like(rows[..., :1])], dim=-1)
    return Moment(torch.linalg.qr(lifted, mode="r")[1] / math.sqrt(n), centre.squeeze(-2))


def probe_rows(
    x: Tensor,
    *,
    probe: str = "subset",
    intercept: bool = False,
    ridge: float = 0.0,
    points: Tensor | None = None,
    moment: Moment | None = None,
) -> Tensor:
    """Rows W [K, q, M] in float64 such that the value of subset j is ‖W_j R_j‖² / C.

    x [K, M, d]; points [K, d] for "draw"; `moment` from `second_moment` for "expected". A chunk at a time.
    """
    parts = [slice(None)] if traced() else chunks(*x.shape, intercept=intercept)
    rows = []
    for part in parts:
        factors = factor(x[part], intercept=intercept, ridge=ridge, solve=probe in ("draw", "expected"))
        here = None if points is None else points[part]
        around = moment
        if moment is not None and moment.rows.ndim == 3:
            around = Moment(moment.rows[part], None if moment.centre is None else moment.centre[part])
        rows.append(rows_of(factors, probe=probe, intercept=intercept, ridge=ridge, points=here, moment=around))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def rows_of(
    factors: Factors,
    *,
    probe: str,
    intercept: bool,
    ridge: float,
    points: Tensor | None = None,
    moment: Moment | None = None,
) -> Tensor:
    """`probe_rows` from factors that are there already."""
    basis = factors.basis
    K, M, _ = basis.shape
    if probe == "subset":
        # With ridge the basis is not orthonormal: ‖BBᵀr‖ = ‖T Bᵀr‖ with T the triangle of a QR of B.
        rows = torch.linalg.qr(basis, mode="r")[1] @ basis.mT if ridge > 0 else basis.mT
        return rows / math.sqrt(M)
    if probe == "sum":
        if intercept:  # ones lie in the column space: the sum of the fitted residual is the sum of the residual
            return torch.ones(K, 1, M, dtype=basis.dtype, device=basis.device)
        return basis.sum(1, keepdim=True) @ basis.mT
    reader = reader_of(factors)
    if probe == "draw":
        return read_at(reader, factors.centre, need(points))
    if moment is None:
        raise ValueError('probe="expected" needs the second moment of the rows that z may come from')
    if factors.centre is not None:
        # [z − centre, 1] = [z − m, 1] · [[I, 0], [m − centre, 1]]; m, the mean of all, is near.
        shift = (need(moment.centre) - factors.centre).unsqueeze(1)
        reader = torch.cat([reader[:, :-1], reader[:, -1:] + shift @ reader[:, :-1]], dim=1)
    rows = moment.rows @ reader
    if rows.shape[1] > M:  # at most M rows are needed
        rows = torch.linalg.qr(rows, mode="r")[1]
    return rows


def reader_of(factors: Factors) -> Tensor:
    """What turns a point into a row [K, p, M]: the plane of r at z is [z − centre, 1]ᵀ · reader · r."""
    return need(factors.solve) @ factors.basis.mT


def read_at(reader: Tensor, centre: Tensor | None, points: Tensor) -> Tensor:
    """Rows [K, 1, M] of the "draw" probe at points [K, d]."""
    at = points.to(reader.dtype)
    if centre is not None:
        at = torch.cat([at - centre, torch.ones_like(at[:, :1])], dim=-1)
    return at.unsqueeze(1) @ reader


def complement_of(factors: Factors, height: int) -> Tensor:
    """Rows [K, height, M] of an orthonormal basis of what the planes do not see, over √M; zeros past M − rank."""
    k, M, _ = factors.basis.shape
    rows = factors.basis.new_zeros(k, height, M)
    for rank in sorted(set(factors.rank.tolist())):
        mine = (factors.rank == rank).nonzero().flatten()
        basis = largest_rows(factors.basis[mine].mT, rank).mT
        rows[mine, : M - rank] = torch.linalg.qr(basis, mode="complete")[0][:, :, rank:].mT / math.sqrt(M)
    return rows


def largest_rows(rows: Tensor, height: int) -> Tensor:
    """The `height` rows of [K, q, M] that are not zero, where no more than that many are not."""
    if rows.shape[1] <= height:
        return rows
    order = rows.abs().amax(2).argsort(dim=1, descending=True, stable=True)[:, :height]
    return rows.gather(1, order.unsqueeze(-1).expand(-1, -1, rows.shape[2]))
