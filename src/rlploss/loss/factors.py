"""Factor the features of a stack of subsets, once for all planes that are fitted to them.

The rank is decided on columns scaled to unit norm (centred first with an intercept), with the
tolerance max(M, p)·eps of float64. For most subsets a QR factorisation suffices: a triangle with a
certainly small condition number proves full rank. All others get a singular value decomposition. No
Gram matrix is formed, since it would square the condition number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Factors:
    """The fitted plane of residual r at a point z is [z − centre, 1]ᵀ · solve() · basisᵀ · r.

    basis [K, M, q]: the fitted values are basis·basisᵀ·r. Without a ridge its columns are
    orthonormal, and zero past the rank. solve() [K, p, q]: only the probes "draw" and "expected"
    call it. centre [K, d], or None for zero. rank [K].
    """

    basis: Tensor
    solve: Callable[[], Tensor]
    centre: Tensor | None
    rank: Tensor


def is_tracing(*tensors: Tensor) -> bool:
    """Return whether code must not branch on values and must stay in torch, because it is compiled,
    traced, transformed or watched, or because these tensors hold no numbers.
    """
    return bool(
        torch.compiler.is_compiling()
        or torch._C._is_tracing()  # torch.jit.trace
        or torch._C._functorch.peek_interpreter_stack() is not None
        # a mode that sees every call, as make_fx and FakeTensorMode do
        or torch._C._len_torch_dispatch_stack()
        or any(t.is_meta or hasattr(t, "fake_mode") for t in tensors)
    )


def root(count: int) -> float:
    """Return √count. In compiled code the count of rows stays a symbol, which `math.sqrt` would
    turn into a number.
    """
    length: float = count**0.5
    return length


def factor(x: Tensor, *, intercept: bool = False, ridge: float = 0.0) -> Factors:
    """Factor a stack of subsets x [K, M, d] (any floating type; computed in float64)."""
    x = x.detach().to(torch.float64)
    K, M, d = x.shape
    p, tracing = d + int(intercept), is_tracing(x)
    tolerance = max(M, p) * _EPS
    if (
        ridge == 0
        and p <= M
        and not tracing
        and (easy := _easy(x, intercept, tolerance)) is not None
    ):
        return easy
    if not tracing and not math.isfinite(x.sum()) and not bool(torch.isfinite(x).all()):
        # NaN gives NaN. Solvers may fail on NaN or never return; the check of the value names the
        # place.
        return Factors(
            basis=x.new_full((K, M, min(M, p)), math.nan),
            solve=lambda: x.new_full((K, p, min(M, p)), math.nan),
            centre=x.new_zeros(K, d) if intercept else None,
            rank=torch.zeros(K, dtype=torch.int64, device=x.device),
        )
    centred, centre = _centre(x, tolerance) if intercept else (x, None)
    scaled, norm = _unit_columns(centred)
    # With an intercept the direction of ones is split off exactly; what remains has M − 1 rows.
    y = _drop_ones(scaled) if intercept else scaled
    problem = _Problem(x=x, y=y, norm=norm, centre=centre, ridge=ridge, tolerance=tolerance)
    # A tracer needs one path for every rank. With a ridge, the QR path needs at least as many rows
    # as columns.
    if tracing or (y.shape[1] < d and (ridge > 0 or y.shape[1] == 0)):
        return _by_svd(problem)
    factors, certain = _by_qr(problem)
    doubtful = (~certain).nonzero().flatten()
    if doubtful.numel() == 0:
        return factors
    if doubtful.numel() == K:
        return _by_svd(problem)
    redone = _by_svd(problem.pick(doubtful))
    return Factors(
        basis=factors.basis.index_copy(0, doubtful, redone.basis),
        solve=lambda: factors.solve().index_copy(0, doubtful, redone.solve()),
        centre=centre,
        rank=factors.rank.index_copy(0, doubtful, redone.rank),
    )


def _easy(x: Tensor, intercept: bool, tolerance: float) -> Factors | None:
    """Return factors from one QR if its triangle proves full rank and accuracy, else None.

    Householder QR does not depend on the scale of a column, and with the column of ones first it
    centres the others. Only columns with an offset much larger than their spread need the careful
    path.
    """
    K, _, d = x.shape
    p = d + int(intercept)
    q, r = _qr(torch.nn.functional.pad(x, (1, 0), value=1.0) if intercept else x)
    if not _proves_full_rank(r.cpu().numpy(), intercept, tolerance):
        return None
    centre = x.new_zeros(K, d) if intercept else None
    rank = torch.full((K,), p, device=x.device)
    # The coefficient of ones goes last.
    return Factors(
        q, solve=lambda: _inverse(r).roll(-int(intercept), dims=1), centre=centre, rank=rank
    )


def _proves_full_rank(
    triangles: npt.NDArray[np.float64], intercept: bool, tolerance: float
) -> bool:
    """Return whether triangles [K, p, p] of a QR prove that every subset has full rank and that the
    QR was accurate.

    κ < 2·(‖A‖/√n)ⁿ/|det A| in the Frobenius norm (Guggenheimer, Edelman and Johnson 1995), which
    for unit columns is 2/∏|r_jj|/norm_j. This uses numpy, which takes a tenth of torch's time on
    small triangles and needs one transfer from a GPU.
    """
    body = triangles[:, 1:, 1:] if intercept else triangles
    with np.errstate(all="ignore"):
        norm = np.sqrt((body * body).sum(1))
        shares = np.abs(np.diagonal(body, axis1=1, axis2=2)) / norm
        # Squares of numbers below 1e-140 are not exact. A zero column, NaN or inf gives NaN here.
        if not (norm.min() > 1e-140 and shares.min() > 0):
            return False
        if intercept and not (np.abs(triangles[:, 0, 1:]) / norm).max() < 1e3:
            return False
        # First this bound for every subset, then the costly one.
        if shares.prod(1).min() > 4 * tolerance:
            return True
    return bool(_full_rank(torch.from_numpy(body / norm[:, None]), tolerance).all())


def quick_basis(x: Tensor, intercept: bool) -> Tensor | None:
    """Return an orthonormal basis [M, p] of the columns of one small batch x [M, d] (and ones), or
    None if the batch needs the careful path.

    On a new small batch the number of calls decides the time, not arithmetic; these are the fewest
    calls.
    """
    M, d = x.shape
    first = int(intercept)  # the first column that is not of ones
    p = d + first
    if M <= p or M * p > _SMALL or d == 0 or not x.is_cpu:
        return None
    columns = torch.nn.functional.pad(x.detach().double(), (first, 0), value=1.0)
    basis, r = torch.linalg.qr(columns)
    # The first bound of `_proves_full_rank`, column by column; numpy's code would evict the step's
    # code from the cache.
    share = 1.0
    for j, column in enumerate(r.mT.tolist()[first:], first):
        norm = math.hypot(*column[first:])
        if not (norm > 1e-140 and abs(column[0]) < 1e3 * norm):
            return None
        share *= column[j] / norm
    return basis if abs(share) > 4 * M * _EPS else None  # None for NaN too


# torch's LAPACK starts threads even for the smallest matrix and then waits for a free core. This
# takes milliseconds instead of microseconds if a DataLoader's workers keep the cores busy. numpy's
# starts threads from about 10,000 numbers on.
_SMALL = 4096


def _small(x: Tensor) -> bool:
    # Compiled code must not depend on the size, so the size is read last.
    return not is_tracing(x) and x.device.type == "cpu" and x.shape[1] * x.shape[2] <= _SMALL


def _qr(x: Tensor) -> tuple[Tensor, Tensor]:
    if _small(x):
        q, r = np.linalg.qr(x.numpy())
        return torch.from_numpy(q), torch.from_numpy(r)
    q, r = torch.linalg.qr(x)
    return q, r


def _svd(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if _small(x) and x.numel():
        u, s, vh = np.linalg.svd(x.numpy(), full_matrices=False)
        return torch.from_numpy(u), torch.from_numpy(s), torch.from_numpy(vh)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    return u, s, vh


@dataclass(frozen=True)
class _Problem:
    x: Tensor  # [K, M, d] as the caller gave it, float64
    y: Tensor  # [K, m, d] unit columns; m = M − 1 with an intercept
    norm: Tensor  # [K, d] the norm by which each column was divided
    centre: Tensor | None  # [K, d]
    ridge: float
    tolerance: float

    @property
    def intercept(self) -> bool:
        return self.centre is not None

    def pick(self, which: Tensor) -> _Problem:
        centre = None if self.centre is None else self.centre[which]
        return _Problem(
            x=self.x[which],
            y=self.y[which],
            norm=self.norm[which],
            centre=centre,
            ridge=self.ridge,
            tolerance=self.tolerance,
        )


def _by_qr(problem: _Problem) -> tuple[Factors, Tensor]:
    """Return factors that are valid for subsets of full rank, and which subsets certainly have full
    rank.
    """
    y, ridge = problem.y, problem.ridge
    K, m, d = y.shape
    extra = int(problem.intercept)
    if m < d:
        rank = torch.full((K,), m + extra, device=y.device)
        certain = _full_rank(torch.linalg.qr(y.mT, mode="r")[1], problem.tolerance)
        eye = torch.eye(m + extra, dtype=y.dtype, device=y.device).expand(K, -1, -1)
        x = torch.nn.functional.pad(problem.x, (0, extra), value=1.0)
        every = torch.ones_like(eye[:, 0], dtype=torch.bool)
        return (
            Factors(
                eye,
                solve=lambda: _minimum_norm(x, every, problem.centre),
                centre=problem.centre,
                rank=rank,
            ),
            certain,
        )
    norm = problem.norm
    if ridge > 0:
        # argmin ‖xβ − r‖² + λ‖β‖² is the least-squares solution of [x; √λ I], whose columns are
        # scaled again.
        penalty = torch.diag_embed(math.sqrt(ridge) / norm)
        stacked, again = _unit_columns(torch.cat([y, penalty], dim=1))
        q, r = _qr(stacked)
        q, norm = q[:, :m], norm * again
    else:
        q, r = _qr(y)
    certain = _full_rank(r, problem.tolerance)
    rank = torch.full((K,), d + extra, device=y.device)

    def solve() -> Tensor:
        return _with_mean(_inverse(r) / norm.unsqueeze(-1), problem)

    return Factors(_with_ones(q, problem), solve=solve, centre=problem.centre, rank=rank), certain


def _by_svd(problem: _Problem) -> Factors:
    """Return factors of subsets of any rank, without a branch on values."""
    y, ridge, norm = problem.y, problem.ridge, problem.norm
    u, s, vh = _svd(y)  # [K, m, q], [K, q], [K, q, d]
    top = s[:, :1] if s.shape[1] else s.new_zeros(s.shape[0], 1)
    keep = s > problem.tolerance * top  # [K, q]
    u = u * keep.unsqueeze(1)
    s = torch.where(keep, s, torch.ones_like(s))
    rank = keep.sum(1) + int(problem.intercept)
    # [K, q, d]: in the caller's coordinates y·norm = u·b.
    b = (s * keep).unsqueeze(-1) * vh * norm.unsqueeze(1)
    if ridge > 0:  # shrink along the singular directions of b
        ub, sb, vb = _svd(b)
        shrunk = (sb.square() + ridge).sqrt().unsqueeze(1)
        basis = _with_ones((u @ ub) * (sb.unsqueeze(1) / shrunk), problem)
        return Factors(
            basis,
            solve=lambda: _with_mean(vb.mT / shrunk, problem),
            centre=problem.centre,
            rank=rank,
        )

    def solve() -> Tensor:
        centre, rows, real = problem.centre, b, keep
        if centre is not None:
            # The row of ones comes first, because `_minimum_norm` needs the rows past the rank
            # last.
            mean = torch.nn.functional.pad(centre, (0, 1), value=1.0) * root(problem.x.shape[1])
            rows = torch.cat([mean.unsqueeze(1), torch.nn.functional.pad(b, (0, 1))], dim=1)
            real = torch.nn.functional.pad(keep, (1, 0), value=True)
        # The basis has its column of ones last.
        least = _minimum_norm(rows, real, centre).roll(-int(problem.intercept), dims=-1)
        if y.shape[1] < y.shape[2]:
            return least
        # With full column rank the solution is unique and needs no second factorisation.
        direct = _with_mean(vh.mT / s.unsqueeze(1) / norm.unsqueeze(-1), problem)
        return torch.where(keep.all(1)[:, None, None], direct, least)

    return Factors(_with_ones(u, problem), solve=solve, centre=problem.centre, rank=rank)


def _minimum_norm(b: Tensor, real: Tensor, centre: Tensor | None) -> Tensor:
    """Return b⁺ [K, p, q] about the centre, for rows b [K, q, p], of which those with `real` [K, q]
    are independent.

    With x = basis·b this is x⁺ = b⁺·basisᵀ, the plane of minimum norm in the caller's coordinates.
    """
    q, r = wide_qr(b)
    inverse = _inverse(r + torch.diag_embed((~real).to(r.dtype)))
    solution: Tensor = q @ inverse.mT * real.unsqueeze(1)
    if centre is None:
        return solution
    slope, offset = solution[:, :-1], solution[:, -1:]
    return torch.cat([slope, offset + centre.unsqueeze(1) @ slope], dim=1)


def wide_qr(b: Tensor) -> tuple[Tensor, Tensor]:
    """Factor bᵀ = q·r for b [K, m, p] with m ≤ p: q [K, p, m] is orthonormal, r [K, m, m] upper
    triangular.
    """
    # With rows of very different size, Householder QR is accurate if the large rows come first.
    # [K, p, m]
    order = (
        b.abs().amax(1).argsort(dim=-1, descending=True).unsqueeze(-1).expand(-1, -1, b.shape[1])
    )
    q, r = _qr(b.mT.gather(1, order))
    return torch.zeros_like(q).scatter(1, order, q), r


def _inverse(r: Tensor) -> Tensor:
    """Return the inverses of upper triangles [K, n, n]."""
    eye = torch.eye(r.shape[-1], dtype=r.dtype, device=r.device).expand_as(r)
    inverse: Tensor = torch.linalg.solve_triangular(r, eye, upper=True)
    return inverse


def _full_rank(r: Tensor, tolerance: float) -> Tensor:
    """Return which triangles [K, n, n] certainly have full rank, by a bound on the condition
    number.
    """
    # Frobenius norms are at least the spectral ones. NaN (a singular triangle) compares false.
    bound: Tensor = torch.linalg.matrix_norm(r) * torch.linalg.matrix_norm(_inverse(r))
    return bound * tolerance < 0.5


def _centre(x: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the columns minus their mean [K, M, d], and the mean [K, d]. A constant column becomes
    exactly zero.
    """
    mean = x.mean(1, keepdim=True)
    centred = x - mean
    correction = centred.mean(1, keepdim=True)  # a second pass removes the rounding of the first
    centred, mean = centred - correction, mean + correction
    noise = tolerance * x.abs().amax(1, keepdim=True)
    constant = centred.abs().amax(1, keepdim=True) <= noise
    return torch.where(constant, torch.zeros_like(centred), centred), mean.squeeze(1)


def _unit_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return columns of unit norm, and the norms [K, d] (1 for a zero column); 1e±200 does not
    overflow.
    """
    top = x.abs().amax(1, keepdim=True)
    top = torch.where(top > 0, top, torch.ones_like(top))
    x = x / top
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    norm = torch.where(norm > 0, norm, torch.ones_like(norm))
    return x / norm, (norm * top).squeeze(1)


def _drop_ones(x: Tensor) -> Tensor:
    """Reflect the direction of ones to the first row and drop that row: [K, M, d] -> [K, M − 1,
    d].
    """
    length = root(x.shape[1])
    # v = 1/√M + e₁ has ‖v‖² = 2 + 2/√M; the reflection is I − 2vvᵀ/‖v‖².
    along = x.sum(1, keepdim=True) / length + x[:, :1]
    return x[:, 1:] - along / (length + 1)


def _with_ones(q: Tensor, problem: _Problem) -> Tensor:
    """Undo `_drop_ones` on a basis and append the unit vector of ones: [K, M − 1, q] -> [K, M, q +
    1].
    """
    if not problem.intercept:
        return q
    length = root(q.shape[1] + 1)
    along = q.sum(1, keepdim=True) / length
    ones = torch.ones_like(problem.x[:, :, :1]) / length
    body = torch.cat([-along, q - along / (length + 1)], dim=1)
    return torch.cat([body, ones], dim=2)


def _with_mean(slope: Tensor, problem: _Problem) -> Tensor:
    """Extend coefficients [K, d, q] to [K, d + 1, q + 1]: at the centre the plane of r is the mean
    of r.
    """
    if not problem.intercept:
        return slope
    mean = torch.ones_like(problem.x[:, :1, :1]) / root(problem.x.shape[1])
    corner = torch.nn.functional.pad(mean, (slope.shape[2], 0, slope.shape[1], 0))
    return torch.nn.functional.pad(slope, (0, 1, 0, 1)) + corner


def ranks(x: Tensor, *, intercept: bool = False) -> Tensor:
    """Return rank(x) of each subset [K], by the rule of this module."""
    return torch.cat(
        [
            factor(x[part], intercept=intercept).rank
            for part in chunks(*x.shape, intercept=intercept)
        ]
    )


def chunks(
    n_subsets: int, subset_size: int, n_features: int, *, intercept: bool = False
) -> list[slice]:
    """Cut K subsets into chunks, so that each temporary of factoring one chunk has about 30 MiB."""
    columns = n_features + int(intercept)
    size = max(1, 2**22 // (subset_size * columns + min(subset_size, columns) ** 2))
    if size >= n_subsets:
        return [slice(None)]
    return [slice(i, min(i + size, n_subsets)) for i in range(0, n_subsets, size)]
