"""`rlp_loss`: the loss as a function of predictions, targets and features."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlploss import _checks
from rlploss.loss.factors import is_tracing, quick_basis, ranks, wide_qr
from rlploss.loss.planes import PlaneForm, Warn, probe_rows
from rlploss.loss.quadratic import as_residual, projected_value, reduce, without_autocast
from rlploss.loss.subsets import draw_rows, rows_outside


def rlp_loss(
    pred: Tensor,
    target: Tensor,
    features: Tensor,
    *,
    subsets: Tensor | None = None,
    probe: str = "subset",
    intercept: bool | None = None,
    ridge: float = 0.0,
    probe_points: Tensor | None = None,
    draw_from: str = "train",
    generator: torch.Generator | None = None,
    features_grad: bool = False,
    reduction: str = "mean",
    check_finite: bool = True,
) -> Tensor:
    """Random Linear Projections loss: how far apart are the planes fitted to predictions and to
    targets?

    For a subset with features x (M×p) and residual R = pred − target (M×C) the two planes differ by
    Δ = x⁺R, and

    ===========  ==============================  ===================================================
    probe        value of one subset             where the planes are compared
    ===========  ==============================  ===================================================
    "subset"     ‖xΔ‖² / (M·C)                   on the subset itself
    "draw"       ‖zᵀΔ‖² / C                      at one random row z per subset
    "expected"   tr(ΔᵀΣΔ) / C, Σ = mean of zzᵀ   "draw" with its expectation taken exactly
    "sum"        ‖Σₖ x_kᵀΔ‖² / C                 summed over the subset's rows, then squared
    ===========  ==============================  ===================================================

    Args:
        pred: predictions, (N,), (N, 1) or (N, C).
        target: targets of exactly the same shape.
        features: (N, d); (N,) is one column, images are flattened. A constant for the gradient.
        subsets: row numbers (K, M), see `balanced_subsets`; None makes the whole batch one subset.
        probe: one of the four above.
        intercept: fit planes with an offset: a column of ones beside the features, and a 1 in z.
            None is True, except for probe="sum", where the ones would leave nothing but the mean
            residual. False is the paper's formula.
        ridge: λ ≥ 0, added to the diagonal of xᵀx; the column of ones is not penalised.
        probe_points: for "draw" the points z themselves, (K, d); for "expected" the rows that Σ
            averages, (n, d). By default both come from `features`.
        draw_from: "train" takes z from all rows, "outside" from the rows that are not in the
            subset.
        generator: source of the draws; None is torch's default generator.
        features_grad: let the gradient reach `features`; every subset must then have full rank.
        reduction: over subsets, "mean", "sum" or "none" (one value per subset).
        check_finite: raise on NaN or inf, naming the place. Costs a synchronisation on a GPU.

    Returns:
        A scalar, or K values with `reduction="none"`.

    >>> x = torch.tensor([[0.0], [1.0], [2.0]])
    >>> round(float(rlp_loss(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 1.0]), x)), 6)
    0.611111
    """
    _checks.one_of("reduction", reduction, _checks.REDUCTIONS)
    form = PlaneForm(probe, intercept, ridge, draw_from)
    if subsets is None and probe_points is None and not features_grad:
        value = quick_value(pred, target, features, form, check_finite)
        if value is not None:
            return reduce(value, reduction)
    how = (form, generator, features_grad, check_finite, _checks.warn)
    return reduce(subset_values(pred, target, features, subsets, probe_points, *how), reduction)


def subset_values(
    pred: Tensor,
    target: Tensor,
    features: Tensor,
    subsets: Tensor | None,
    probe_points: Tensor | None,
    form: PlaneForm,
    generator: torch.Generator | None,
    features_grad: bool,
    check_finite: bool,
    warn: Warn,
) -> Tensor:
    """The value of each subset [K]; `warn` tells of degenerate cases."""
    _checks.pair(pred, target)
    x = _checks.feature_matrix(features, pred.shape[0])
    tracing = is_tracing()
    given = None if probe_points is None else _checks.feature_matrix(probe_points)
    draw_from = form.draw_from if given is None else "train"
    if subsets is None:
        _checks.probe_points(given, form.probe, x.shape[1], None)
        _checks.outside(draw_from, x.shape[0], x.shape[0])
    else:
        _checks.subset_plan(subsets, x.shape[0], draw_from, values=check_finite and not tracing)
        _checks.probe_points(given, form.probe, x.shape[1], subsets.shape[0])
    if check_finite and not tracing:  # rows that are in no subset are checked too
        _checks.finite(pred=pred, target=target, features=x, probe_points=given)
    elif check_finite and torch.compiler.is_compiling():
        fine = torch.isfinite(pred).all() & torch.isfinite(target).all() & torch.isfinite(x).all()
        torch._assert_async(fine, "pred, target and features must be finite, got NaN or inf")
    with without_autocast(pred):
        residual = as_residual(pred, target)
        stack = residual.unsqueeze(0) if subsets is None else residual[subsets]
        x = x.to(torch.float64) if features_grad else x.detach()
        inputs = x.unsqueeze(0) if subsets is None else x[subsets]
        points = _points_for(x, subsets, form, given, generator)
        form.warn_of_shape(inputs.shape[1], form.n_columns(inputs.shape[2]), warn)
        if features_grad:
            return _values_through_features(stack, inputs, form, points)
        return _values(stack, inputs, form, points, warn)


def quick_value(
    pred: Tensor, target: Tensor, x: Tensor, form: PlaneForm, check_finite: bool
) -> Tensor | None:
    """The value of one small batch of plain tensors in few calls; None where it takes more checks,
    or more care.
    """
    if (
        not type(pred) is type(target) is type(x) is Tensor
        or is_tracing()
        or torch.is_autocast_enabled("cpu")
    ):
        return None
    shape, dtype = pred.shape, pred.dtype
    if (
        target.shape != shape
        or target.dtype is not dtype
        or dtype not in _IGNORED
        or x.dtype not in _IGNORED
    ):
        return None
    if (
        not 1 <= len(shape) <= 2
        or 0 in shape
        or x.ndim != 2
        or x.shape[0] != shape[0]
        or not form.is_projection
    ):
        return None
    if (basis := quick_basis(x, form.intercept)) is None:
        return None
    multiply = torch.addmm if len(shape) == 2 else torch.addmv
    along = multiply(
        _IGNORED[dtype],
        basis.mT.to(dtype),
        pred - target,
        beta=0,
        alpha=1 / math.sqrt(pred.numel()),
    )
    value = (along * along).sum()
    if check_finite and not math.isfinite(value.item()):
        _checks.finite(pred=pred, target=target)
    return value


# What a product is added to, times beta=0, for each type that has the quick way: so one call
# multiplies and scales.
_IGNORED = {
    dtype: torch.zeros((), dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)
}


def _values(
    residual: Tensor, x: Tensor, form: PlaneForm, points: Tensor | None, warn: Warn
) -> Tensor:
    """Values [K] of subsets with residuals [K, M, C] and features [K, M, d], which are
    constants.
    """
    _, M, d = x.shape
    C, p = residual.shape[2], form.n_columns(d)
    looked_at = M <= p and form.ridge == 0 and not form.has_points and not is_tracing()
    if looked_at and bool((ranks(x, intercept=form.intercept) == M).all()):
        form.warn_of_full_rank(M, p, warn)
        if form.probe == "subset":
            return projected_value(residual, None, 1 / M) / C
    rows = probe_rows(x, form, points)
    return projected_value(residual, rows.to(residual.dtype)) / C


def _points_for(
    x: Tensor,
    subsets: Tensor | None,
    form: PlaneForm,
    given: Tensor | None,
    generator: torch.Generator | None,
) -> Tensor | None:
    """Where the planes are compared: for "draw" one point per subset [K, d], for "expected" [n, d]
    or [K, n, d].
    """
    if not form.has_points or given is not None:
        return given
    if subsets is None:
        return x
    if form.probe == "draw":
        return x[draw_rows(subsets, x.shape[0], form.draw_from, generator)]
    return x if form.draw_from == "train" else x[rows_outside(subsets, x.shape[0])]


def _values_through_features(
    residual: Tensor, x: Tensor, form: PlaneForm, points: Tensor | None
) -> Tensor:
    """Values [K] by definition, differentiable in the features x [K, M, d] (float64) and in points
    made of them too.
    """
    _, M, d = x.shape
    p = form.n_columns(d)
    right = residual.to(torch.float64)
    if form.ridge == 0 and not is_tracing():
        rank = ranks(x, intercept=form.intercept)
        if bool((rank < min(M, p)).any()):
            worst = int(rank.argmin())
            got = f"full rank {min(M, p)}, got rank {int(rank[worst])} in subset {worst}"
            remedy = (
                "the pseudo-inverse has no derivative there: drop the column or row, or set a ridge"
            )
            raise ValueError(f"features_grad=True needs subsets of {got}; {remedy}")
    if points is not None:
        points = points.to(torch.float64)
        points = points.unsqueeze(1) if form.probe == "draw" else points
    if form.ridge == 0 and M < p:
        if points is None:  # the planes pass through every point, wherever the rows lie
            fitted = right + (x * 0).sum(2, keepdim=True)
        else:
            fitted = _lift(points, form) @ _minimum_norm_gap(_lift(x, form), right)
    else:
        # An invertible change of columns, taken as a constant, changes neither value nor derivative
        # of a plane that is unique; it keeps the pseudo-inverse accurate.
        constant = x.detach()
        centre = (
            constant.mean(1, keepdim=True) if form.intercept else torch.zeros_like(constant[:, :1])
        )
        spread = torch.linalg.vector_norm(constant - centre, dim=1, keepdim=True)
        scale = torch.where(spread > 0, spread, torch.ones_like(spread))
        design = _lift((x - centre) / scale, form)
        at = design if points is None else _lift((points - centre) / scale, form)
        if form.ridge > 0:
            penalty = torch.diag_embed(form.ridge**0.5 / scale.squeeze(1))
            penalty = torch.nn.functional.pad(penalty, (0, int(form.intercept)))
            design, right = (
                torch.cat([design, penalty], dim=1),
                torch.nn.functional.pad(right, (0, 0, 0, d)),
            )
        fitted = at @ (torch.linalg.pinv(design) @ right)  # [K, n, C]
    if form.probe == "sum":
        fitted = fitted.sum(1, keepdim=True)
    values: Tensor = fitted.square().mean((1, 2)).to(residual.dtype)
    return values


def _lift(z: Tensor, form: PlaneForm) -> Tensor:
    """Rows z [..., d] with their 1 where the planes have an intercept."""
    return torch.nn.functional.pad(z, (0, int(form.intercept)), value=1.0)


def _minimum_norm_gap(design: Tensor, right: Tensor) -> Tensor:
    """Δ = x⁺R [K, p, C] for designs x [K, M, p] of full rank M < p, in the caller's coordinates.

    x = T(qᵀ + H) with a square T and rows H orthogonal to the constant q, so x⁺ = (q + Hᵀ)(I +
    HHᵀ)⁻¹T⁻¹. At the design itself H is 0 and T the triangle of a QR: only changes go through, so
    that columns may differ in size.
    """
    constant = design.detach()
    q, r = wide_qr(constant)  # x = rᵀqᵀ

    def solve(b: Tensor) -> Tensor:
        solved: Tensor = torch.linalg.solve_triangular(r.mT, b, upper=False)
        return solved

    across = change = design - constant
    for _ in range(
        3
    ):  # gradients pass here the other way: 1e18 times as large along q as across it, say
        across = across - (across @ q) @ q.mT
    eye = torch.eye(r.shape[-1], dtype=r.dtype, device=r.device)
    along = eye + solve(change @ q)
    H = torch.linalg.solve(along, solve(across))
    gap: Tensor = (q + H.mT) @ torch.linalg.solve(
        eye + H @ H.mT, torch.linalg.solve(along, solve(right))
    )
    return gap
