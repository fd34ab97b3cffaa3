"""The form of the loss, and the rows W of a subset with value = ‖W R‖² / C.

One subset has features x (M×d) and residual R = pred − target (M×C). Fitting a plane to (x, pred)
and one to (x, target) gives coefficients that differ by Δ = x⁺R, so everything here depends on the
features alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlploss import _checks
from rlploss._checks import HeavyTailWarning, MeanOnlyWarning, MSEEquivalentWarning
from rlploss.loss.factors import Factors, chunks, factor, is_tracing, root
from rlploss.loss.subsets import rows_outside

PROBES = ("subset", "draw", "expected", "sum")

Warn = Callable[[type[Warning], str], None]


@dataclass(frozen=True, init=False)
class PlaneForm:
    """Which planes are fitted to a subset, and where they are compared; `rlp_loss` explains each
    argument.

    >>> PlaneForm("sum")
    PlaneForm(probe='sum', intercept=False, ridge=0.0, draw_from='train')
    """

    probe: str
    intercept: bool
    ridge: float
    draw_from: str

    def __init__(
        self,
        probe: str = "subset",
        intercept: bool | None = None,
        ridge: float = 0.0,
        draw_from: str = "train",
    ) -> None:
        put = object.__setattr__  # the class is frozen
        put(self, "probe", _checks.one_of("probe", probe, PROBES))
        put(self, "intercept", probe != "sum" if intercept is None else bool(intercept))
        put(self, "ridge", _checks.number("ridge", ridge, minimum=0.0))
        chosen = _checks.one_of("draw_from", draw_from, _checks.DRAW_FROM)
        put(self, "draw_from", chosen if self.has_points else "train")  # the others draw nothing

    def __str__(self) -> str:
        """As a loss and a bank show it."""
        return f"probe={self.probe!r}, intercept={self.intercept}, ridge={self.ridge}"

    @property
    def is_projection(self) -> bool:
        """Whether the value is ‖P R‖² / (M·C) for the projection P on the columns of x."""
        return self.probe == "subset" and self.ridge == 0

    @property
    def has_points(self) -> bool:
        """Whether the planes are compared at points z, which may lie outside the subset."""
        return self.probe in ("draw", "expected")

    def n_columns(self, n_features: int) -> int:
        """p: the features, and the column of ones if there is one."""
        return n_features + int(self.intercept)

    def columns(self, p: int) -> str:
        """Return how many columns there are, in words."""
        return f"{p} columns ({p - 1} features + intercept)" if self.intercept else f"{p} columns"

    def warn_of_form(self, warn: Warn) -> None:
        """Tell of the degenerate case that the form alone shows."""
        if self.probe == "sum" and self.intercept:
            warn(
                MeanOnlyWarning,
                'probe="sum" with intercept=True sees only the mean residual of each subset; use'
                ' probe="subset", or intercept=False',
            )

    def warn_of_shape(self, M: int, p: int, warn: Warn) -> None:
        """Tell of the degenerate cases that the form and the shape of a subset show."""
        self.warn_of_form(warn)
        # For Gaussian features the mean of 1/(M − p − 1) needs M > p + 1, its variance M > p + 3.
        if self.has_points and self.ridge == 0 and p - 1 <= M <= p + 3:
            warn(
                HeavyTailWarning,
                f'probe="{self.probe}" is heavy-tailed at subset_size {M} with {self.columns(p)}:'
                " the mean or the variance of the loss is infinite for Gaussian features up to M ="
                " p + 3; use more rows per subset, or a ridge",
            )

    def warn_of_full_rank(self, M: int, p: int, warn: Warn) -> None:
        """Tell of the degenerate cases of rank(x) = M, where the planes pass through every
        point.
        """
        case = f'probe="{self.probe}" with subset_size {M} and {self.columns(p)} of rank {M}'
        if self.probe == "subset":
            warn(
                MSEEquivalentWarning,
                f"{case} is exactly MSE, and is computed as MSE; use more rows per subset than"
                " columns, or a ridge",
            )
        elif not self.intercept:
            warn(
                MeanOnlyWarning,
                f"{case} sees only the mean residual of each subset; use more rows per subset than"
                ' columns, or probe="subset"',
            )


@dataclass(frozen=True)
class Moment:
    """Σ = mean of zzᵀ as LLᵀ, with Lᵀ = `rows` in coordinates [z − centre, 1]; shared or per
    subset.
    """

    rows: Tensor  # [p, p] or [K, p, p]
    centre: Tensor | None  # [d] or [K, d]

    def __getitem__(self, part: slice) -> Moment:
        """The moments of some subsets."""
        if self.rows.ndim == 2:
            return self
        return Moment(self.rows[part], None if self.centre is None else self.centre[part])


def second_moment(rows: Tensor, *, intercept: bool = False) -> Moment:
    """Return Σ = mean of zzᵀ over rows z [..., n, d], factored by a QR of the rows."""
    rows = rows.to(torch.float64)
    length, centre = root(rows.shape[-2]), None
    if intercept:
        centre = rows.mean(-2)
        rows = torch.nn.functional.pad(rows - centre.unsqueeze(-2), (0, 1), value=1.0)
    return Moment(torch.linalg.qr(rows, mode="r")[1] / length, centre)


def same_moments(n_rows: int, parts: Callable[[], Iterable[Tensor]]) -> Tensor:
    """2d points [2d, d] in float64 that can stand for `n_rows` rows in the probe "expected", which
    sees Σ alone.

    `parts` gives the rows, each part [n_i, d], and is called twice. The points are their mean plus
    and minus √(d/n)·r_i, where r_i is a row of the triangle of a QR of the rows minus their mean.
    No Gram matrix is formed, which would square the condition.
    """
    mean = sum((part.sum(0, dtype=torch.float64) for part in parts()), torch.zeros(())) / n_rows
    triangle = mean.new_zeros(mean.shape[0], mean.shape[0])
    for part in parts():
        triangle = torch.linalg.qr(torch.cat([triangle, part.double() - mean]), mode="r")[1]
    away = triangle * math.sqrt(triangle.shape[0] / n_rows)
    return torch.cat([mean + away, mean - away])


PAPER = PlaneForm(intercept=False)


def probe_rows(
    x: Tensor, form: PlaneForm = PAPER, points: Tensor | None = None, roots: Tensor | None = None
) -> Tensor:
    """Rows W [K, q, M] in float64 such that the value of subset j is ‖W_j R_j‖² / C.

    The form by default is that of the paper's metric: planes without an intercept, compared on the
    subset itself. x [K, M, d]; `points` are one per subset [K, d] for "draw", for "expected" all
    that z may be, [n, d] or [K, n, d].
    """
    at: Tensor | Moment | None = points
    if form.probe == "expected" and points is not None:
        at = second_moment(points, intercept=form.intercept)
    parts = [slice(None)] if is_tracing() else chunks(*x.shape, intercept=form.intercept)
    rows = []
    for part in parts:
        factors = factor(x[part], intercept=form.intercept, ridge=form.ridge)
        own = None if roots is None else roots[part]
        rows.append(rows_of(factors, form, None if at is None else at[part], own))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def rows_of(
    factors: Factors,
    form: PlaneForm,
    at: Tensor | Moment | None = None,
    roots: Tensor | None = None,
) -> Tensor:
    """`probe_rows` from factors that are there already, at points [K, d] or with the moment of all
    that z may be.
    """
    basis = factors.basis
    K, M, _ = basis.shape
    if form.probe == "subset":
        # With ridge the basis is not orthonormal: ‖BBᵀr‖ = ‖T Bᵀr‖ with T the triangle of a QR of
        # B.
        rows = torch.linalg.qr(basis, mode="r")[1] @ basis.mT if form.ridge > 0 else basis.mT
        return rows / root(M)
    if form.probe == "sum":
        # ones lie in the column space: the sum of the fitted residual is the sum of the residual
        if form.intercept:
            return torch.ones(K, 1, M, dtype=basis.dtype, device=basis.device)
        # and a row of weight w counts as w rows would: its fitted value is summed w times, not √w
        sums = basis.sum(1, keepdim=True) if roots is None else roots.unsqueeze(1) @ basis
        return sums @ basis.mT
    inverse = pseudo_inverse_of(factors)
    if at is None:
        raise ValueError(f'probe="{form.probe}" needs its points, got None')
    if isinstance(at, Tensor):
        return rows_at(at, inverse, factors.centre)
    if factors.centre is not None and at.centre is not None:
        # [z − centre, 1] = [z − m, 1] · [[I, 0], [m − centre, 1]]; m, the mean of all, is near.
        shift = (at.centre - factors.centre).unsqueeze(1)
        inverse = torch.cat([inverse[:, :-1], inverse[:, -1:] + shift @ inverse[:, :-1]], dim=1)
    rows = at.rows @ inverse
    # at most M rows are needed
    return rows if rows.shape[1] <= M else torch.linalg.qr(rows, mode="r")[1]


def pseudo_inverse_of(factors: Factors) -> Tensor:
    """x⁺ [K, p, M] about the centre: the plane of r at z is [z − centre, 1]ᵀ · x⁺ · r."""
    return factors.solve() @ factors.basis.mT


def rows_at(points: Tensor, inverse: Tensor, centre: Tensor | None) -> Tensor:
    """Rows [K, 1, M] of the "draw" probe at points [K, d], from `pseudo_inverse_of` and its
    centre.
    """
    at = points.to(inverse.dtype)
    if centre is not None:
        at = torch.nn.functional.pad(at - centre, (0, 1), value=1.0)
    return at.unsqueeze(1) @ inverse


def complement_of(factors: Factors, n_kept: int) -> Tensor:
    """Rows [K, n_kept, M] of an orthonormal basis of what the planes do not see, over √M; zeros
    past M − rank.
    """
    k, M, _ = factors.basis.shape
    rows = factors.basis.new_zeros(k, n_kept, M)
    for rank in sorted(set(factors.rank.tolist())):
        mine = (factors.rank == rank).nonzero().flatten()
        basis = largest_rows(factors.basis[mine].mT, rank).mT
        rows[mine, : M - rank] = torch.linalg.qr(basis, mode="complete")[0][
            :, :, rank:
        ].mT / math.sqrt(M)
    return rows


def largest_rows(rows: Tensor, n_kept: int) -> Tensor:
    """The `n_kept` rows of [K, q, M] that are not zero, where no more than that many are not."""
    if rows.shape[1] <= n_kept:
        return rows
    order = rows.abs().amax(2).argsort(dim=1, descending=True, stable=True)[:, :n_kept]
    return rows.gather(1, order.unsqueeze(-1).expand(-1, -1, rows.shape[2]))


# Planes with row weights, and planes as the released autoencoder fits them


def weighted_columns(
    features: Tensor, weight: Tensor, centre: Tensor, *, intercept: bool, ridge: float
) -> Tensor:
    """√w·[x, 1] for features [n, d] and weights [n]: least squares on them and on √w·residual is
    weighted.

    With an intercept x is centred first at `centre` [d], which the planes do not see, for the sake
    of precision. A ridge must not reach the column of ones, so that column is made long: its
    coefficient, and λ with it, all but vanishes.
    """
    x = features.double()
    if intercept:
        x = torch.nn.functional.pad(x - centre, (0, 1), value=1.0 if ridge == 0 else 1e6)
    return (x * weight.double().sqrt().unsqueeze(1)).to(features.dtype)


def mean_one(weight: Tensor, n_rows: int, *, values: bool) -> Tensor:
    """Return weights of rows [N] in float64, scaled to mean 1; `values=False` skips a look at
    them.
    """
    weight = _checks.row_weights("weight", weight, n_rows, values=values)
    return weight / weight.mean()


def columns_about(x: Tensor, weight: Tensor, form: PlaneForm) -> Callable[[Tensor, Tensor], Tensor]:
    """Return `weighted_columns` of any features and weights in float64, about the mean of these."""
    centre = (weight.unsqueeze(1) * x.detach()).mean(0)
    return lambda z, w: weighted_columns(
        z.double(), w, centre, intercept=form.intercept, ridge=form.ridge
    )


def points_outside(columns: Tensor, subsets: Tensor, weight: Tensor | None) -> Tensor:
    """Return the rows outside each subset [K, N − M, p], which count as their weights do."""
    others = rows_outside(subsets, columns.shape[0])
    if weight is None:
        return columns[others]
    return columns[others] / weight[others].mean(1)[:, None, None].sqrt()


def weighted_sums(columns: Tensor, weight: Tensor, *, ridge: float) -> Tensor:
    """Rows W [K, 1, M] of the probe "sum" for weighted columns [K, M, p] and weights [K, M]."""
    return probe_rows(columns, PlaneForm("sum", False, ridge), roots=weight.double().sqrt())


def cut_off_planes(features: Tensor, target: Tensor, plan: Tensor) -> tuple[Tensor, Tensor]:
    """The released autoencoder's loss, mean of (P_cut·pred − target)², as rows W [K, q, M] and a
    constant [K].

    Its pseudo-inverse of xᵀx in float32 drops directions with σ²/σ₁² below max(d, d)·eps of
    float32. What is left of xx⁺ is still a projection P, so ‖P·pred − target‖² = ‖P(pred −
    target)‖² + ‖(I − P)target‖².

    NOTE[DIFF]: the eigenvalues are computed in float64 and cut at the same place, so that the rank
    does not depend on the rounding of the machine at hand.
    """
    K, M = plan.shape
    cut = features.shape[1] * torch.finfo(torch.float32).eps
    found, constant = [], []
    for subset in plan:
        x, y = features[subset].to(torch.float64), target[subset]
        tall = x.shape[1] <= M
        values, vectors = torch.linalg.eigh(x.mT @ x if tall else x @ x.mT)
        keep = values > cut * values[-1]
        basis = x @ vectors[:, keep] / values[keep].sqrt() if tall else vectors[:, keep]
        found.append((basis.mT / math.sqrt(M)).to(features.dtype))  # [r, M]
        constant.append(y.square().mean() - (found[-1] @ y).square().sum() / y.shape[1])
    height = max(part.shape[0] for part in found)
    padded = [torch.nn.functional.pad(part, (0, 0, 0, height - part.shape[0])) for part in found]
    return torch.stack(padded), torch.stack(constant)
