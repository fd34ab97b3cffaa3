"""Fit planes to subsets: compute the rows W with which the value of a subset is ‖W R‖² / C.

One subset has features x (M×d) and residual R = pred − target (M×C). The coefficients of the planes
fitted to (x, pred) and to (x, target) differ by Δ = x⁺R, so W depends on the features only.
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
        # The other probes have no points.
        put(self, "draw_from", chosen if self.has_points else "train")

    def __str__(self) -> str:
        """Return the form as a loss or a bank prints it."""
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
        """Return p: the number of features, plus one with an intercept."""
        return n_features + int(self.intercept)

    def columns(self, p: int) -> str:
        """Describe the number of columns in words."""
        return f"{p} columns ({p - 1} features + intercept)" if self.intercept else f"{p} columns"

    def warn_of_form(self, warn: Warn) -> None:
        """Warn of the degenerate case that the form alone shows."""
        if self.probe == "sum" and self.intercept:
            warn(
                MeanOnlyWarning,
                'probe="sum" with intercept=True sees only the mean residual of each subset; use'
                ' probe="subset", or intercept=False',
            )

    def warn_of_shape(self, M: int, p: int, warn: Warn) -> None:
        """Warn of the degenerate cases that the form and the shape of a subset show."""
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
        """Warn of the degenerate cases with rank(x) = M, where the planes pass through every
        point.
        """
        case = f"With {M} rows per subset and {self.columns(p)}"
        if self.probe == "subset":
            warn(
                MSEEquivalentWarning,
                f"{case} RLP equals MSE, so MSE is computed; use at least {p + 1} rows per subset,"
                " or a ridge",
            )
        elif not self.intercept:
            warn(
                MeanOnlyWarning,
                f'{case} probe="{self.probe}" sees only the mean residual of each subset;'
                f' use at least {p + 1} rows per subset, or probe="subset"',
            )


@dataclass(frozen=True)
class Moment:
    """Σ = mean of zzᵀ as LLᵀ, with Lᵀ = `rows` in coordinates [z − centre, 1], shared by all
    subsets or one for each.
    """

    rows: Tensor  # [p, p] or [K, p, p]
    centre: Tensor | None  # [d] or [K, d]

    def __getitem__(self, part: slice) -> Moment:
        """Return the moments of some subsets."""
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
    """Return 2d points [2d, d] in float64 that replace `n_rows` rows in the probe "expected", which
    depends on Σ only.

    `parts` yields the rows in parts [n_i, d], and is called twice. The points are the mean plus and
    minus √(d/n)·r_i, where r_i is a row of the triangle of a QR of the centred rows. No Gram matrix
    is formed, since it would square the condition number.
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
    """Return rows W [K, q, M] in float64 such that the value of subset j is ‖W_j R_j‖² / C.

    The default form is that of the paper's metric: planes without an intercept, compared on the
    subset itself. x is [K, M, d]. `points` has one point per subset [K, d] for "draw", and all
    possible points for "expected", [n, d] or [K, n, d].
    """
    at: Tensor | Moment | None = points
    if form.probe == "expected" and points is not None:
        at = second_moment(points, intercept=form.intercept)
    parts = [slice(None)] if is_tracing() else chunks(*x.shape, intercept=form.intercept)
    rows = []
    for part in parts:
        factors = factor(x[part], intercept=form.intercept, ridge=form.ridge)
        own = None if roots is None else roots[part]
        rows.append(rows_of(factors, form, at=None if at is None else at[part], roots=own))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def rows_of(
    factors: Factors,
    form: PlaneForm,
    at: Tensor | Moment | None = None,
    roots: Tensor | None = None,
) -> Tensor:
    """Compute `probe_rows` from existing factors, at points [K, d] or with the moment of all
    possible points.
    """
    basis = factors.basis
    K, M, _ = basis.shape
    if form.probe == "subset":
        # With a ridge the basis B is not orthonormal: ‖BBᵀr‖ = ‖T Bᵀr‖, where T is the triangle of
        # a QR of B.
        rows = torch.linalg.qr(basis, mode="r")[1] @ basis.mT if form.ridge > 0 else basis.mT
        return rows / root(M)
    if form.probe == "sum":
        # Ones are in the column space, so the fitted residual has the same sum as the residual.
        if form.intercept:
            return torch.ones(K, 1, M, dtype=basis.dtype, device=basis.device)
        # A row of weight w counts as w rows: its fitted value is summed w times, not √w times.
        sums = basis.sum(1, keepdim=True) if roots is None else roots.unsqueeze(1) @ basis
        return sums @ basis.mT
    inverse = pseudo_inverse_of(factors)
    if at is None:
        raise ValueError(f'probe="{form.probe}" needs its points, got None')
    if isinstance(at, Tensor):
        return rows_at(at, inverse, factors.centre)
    if factors.centre is not None and at.centre is not None:
        # [z − centre, 1] = [z − m, 1] · [[I, 0], [m − centre, 1]]; m, the mean of all points, is
        # close to the centre.
        shift = (at.centre - factors.centre).unsqueeze(1)
        inverse = torch.cat([inverse[:, :-1], inverse[:, -1:] + shift @ inverse[:, :-1]], dim=1)
    rows = at.rows @ inverse
    # at most M rows are needed
    return rows if rows.shape[1] <= M else torch.linalg.qr(rows, mode="r")[1]


def pseudo_inverse_of(factors: Factors) -> Tensor:
    """Return x⁺ [K, p, M] about the centre: the plane of r at z is [z − centre, 1]ᵀ · x⁺ · r."""
    return factors.solve() @ factors.basis.mT


def rows_at(points: Tensor, inverse: Tensor, centre: Tensor | None) -> Tensor:
    """Return rows [K, 1, M] of the "draw" probe at points [K, d], from `pseudo_inverse_of` and its
    centre.
    """
    at = points.to(inverse.dtype)
    if centre is not None:
        at = torch.nn.functional.pad(at - centre, (0, 1), value=1.0)
    return at.unsqueeze(1) @ inverse


def complement_of(factors: Factors, n_kept: int) -> Tensor:
    """Return rows [K, n_kept, M] of an orthonormal basis of what the planes do not see, divided by
    √M, with zeros past M − rank.
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
    """Return the `n_kept` largest of the rows [K, q, M]; all others must be zero."""
    if rows.shape[1] <= n_kept:
        return rows
    order = rows.abs().amax(2).argsort(dim=1, descending=True, stable=True)[:, :n_kept]
    return rows.gather(1, order.unsqueeze(-1).expand(-1, -1, rows.shape[2]))


# Planes with row weights, and planes as the released autoencoder fits them


def weighted_columns(
    features: Tensor, weight: Tensor, centre: Tensor, *, intercept: bool, ridge: float
) -> Tensor:
    """Return √w·[x, 1] for features [n, d] and weights [n]; least squares on them and on
    √w·residual is weighted.

    With an intercept x is first centred at `centre` [d], which is more precise and does not change
    the planes. A ridge must not penalise the column of ones. So this column is made very long,
    which makes its coefficient and the penalty negligible.
    """
    x = features.double()
    if intercept:
        x = torch.nn.functional.pad(x - centre, (0, 1), value=1.0 if ridge == 0 else 1e6)
    return (x * weight.double().sqrt().unsqueeze(1)).to(features.dtype)


def mean_one(weight: Tensor, n_rows: int, *, values: bool) -> Tensor:
    """Return row weights [N] in float64, scaled to mean 1; `values=False` does not check them."""
    weight = _checks.row_weights("weight", weight, n_rows, values=values)
    return weight / weight.mean()


def columns_about(x: Tensor, weight: Tensor, form: PlaneForm) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that computes `weighted_columns` in float64, about the weighted mean
    of x.
    """
    centre = (weight.unsqueeze(1) * x.detach()).mean(0)
    return lambda z, w: weighted_columns(
        z.double(), w, centre, intercept=form.intercept, ridge=form.ridge
    )


def points_outside(columns: Tensor, subsets: Tensor, weight: Tensor | None) -> Tensor:
    """Return the rows outside each subset [K, N − M, p], scaled to a mean weight of 1."""
    others = rows_outside(subsets, columns.shape[0])
    if weight is None:
        return columns[others]
    return columns[others] / weight[others].mean(1)[:, None, None].sqrt()


def weighted_sums(columns: Tensor, weight: Tensor, *, ridge: float) -> Tensor:
    """Return rows W [K, 1, M] of the probe "sum" for weighted columns [K, M, p] and weights
    [K, M].
    """
    return probe_rows(columns, PlaneForm("sum", False, ridge), roots=weight.double().sqrt())


def cut_off_planes(features: Tensor, target: Tensor, plan: Tensor) -> tuple[Tensor, Tensor]:
    """Return the released autoencoder's loss, the mean of (P_cut·pred − target)², as rows W [K, q,
    M] and a constant [K].

    Its pseudo-inverse of xᵀx in float32 drops directions with σ²/σ₁² below max(d, d)·eps of
    float32. The rest of xx⁺ is still a projection P, so ‖P·pred − target‖² = ‖P(pred − target)‖² +
    ‖(I − P)target‖².

    NOTE[DIFF]: the eigenvalues are computed in float64 and cut at the same place, so that the rank
    does not depend on the rounding of the machine at hand.
    """
    K, M = plan.shape
    cut = features.shape[1] * torch.finfo(torch.float32).eps
    rows, constant = [], []
    for subset in plan:
        x, y = features[subset].to(torch.float64), target[subset]
        tall = x.shape[1] <= M
        values, vectors = torch.linalg.eigh(x.mT @ x if tall else x @ x.mT)
        keep = values > cut * values[-1]
        basis = x @ vectors[:, keep] / values[keep].sqrt() if tall else vectors[:, keep]
        rows.append((basis.mT / math.sqrt(M)).to(features.dtype))  # [r, M]
        constant.append(y.square().mean() - (rows[-1] @ y).square().sum() / y.shape[1])
    height = max(part.shape[0] for part in rows)
    padded = [torch.nn.functional.pad(part, (0, 0, 0, height - part.shape[0])) for part in rows]
    return torch.stack(padded), torch.stack(constant)
