"""Define `rlp_loss`, the loss as a function of predictions, targets and features."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from rlploss import _checks
from rlploss.loss.factors import is_tracing, quick_basis, ranks
from rlploss.loss.planes import PlaneForm, Warn, columns_about, mean_one, points_outside, probe_rows
from rlploss.loss.quadratic import as_residual, counted, projected_value, reduce, without_autocast
from rlploss.loss.subsets import draw_rows


def rlp_loss(
    pred: Tensor,
    target: Tensor,
    features: Tensor,
    *,
    subsets: Tensor | None = None,
    weight: Tensor | None = None,
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
    """Compute the Random Linear Projections loss: the distance of the planes fitted to predictions
    and targets.

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
        weight: row weights (N,), at least 0; only their ratios matter. Planes are fitted by
            weighted least squares: features and residual are multiplied by √w, for weights of mean
            1. A row of weight 0 stays in its subset but has no effect, and its target may be NaN. A
            point z is drawn with a probability proportional to its weight.
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
        features_grad: let the gradient reach `features`; every subset must then have full column
            rank, or a ridge.
        reduction: over subsets, "mean", "sum" or "none" (one value per subset).
        check_finite: raise an error on NaN or inf, which names the place. On a GPU this costs a
            synchronisation.

    Returns:
        A scalar, or K values with `reduction="none"`.

    >>> x = torch.tensor([[0.0], [1.0], [2.0]])
    >>> round(float(rlp_loss(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 1.0]), x)), 6)
    0.611111
    """
    return loss_value(
        pred,
        target,
        features,
        subsets=subsets,
        weight=weight,
        form=PlaneForm(probe, intercept, ridge=ridge, draw_from=draw_from),
        probe_points=probe_points,
        generator=generator,
        features_grad=features_grad,
        reduction=_checks.one_of("reduction", reduction, _checks.REDUCTIONS),
        check_finite=check_finite,
        warn=_checks.warn,
    )


def loss_value(
    pred: Tensor,
    target: Tensor,
    features: Tensor,
    *,
    subsets: Tensor | None,
    weight: Tensor | None,
    form: PlaneForm,
    probe_points: Tensor | None,
    generator: torch.Generator | None,
    features_grad: bool,
    reduction: str,
    check_finite: bool,
    warn: Warn,
) -> Tensor:
    """Return the loss for checked settings; `warn` reports degenerate cases."""
    if subsets is None and weight is None and probe_points is None and not features_grad:
        value = quick_value(pred, target, features, form=form, check_finite=check_finite)
        if value is not None:
            return reduce(value, reduction)
    _checks.pair(pred, target)
    x = _checks.feature_matrix(features, pred.shape[0])
    has_numbers = not is_tracing(pred, target, x)
    given = None if probe_points is None else _checks.feature_matrix(probe_points)
    if given is not None:
        form = replace(form, draw_from="train")
    if subsets is None:
        _checks.probe_points(given, probe=form.probe, n_features=x.shape[1], n_subsets=None)
        _checks.outside(form.draw_from, x.shape[0], x.shape[0])
    else:
        _checks.subset_plan(
            subsets, x.shape[0], form.draw_from, values=check_finite and has_numbers
        )
        _checks.probe_points(
            given, probe=form.probe, n_features=x.shape[1], n_subsets=subsets.shape[0]
        )
    if weight is not None:
        weight = mean_one(weight, x.shape[0], values=has_numbers)
        target = counted(target, weight)
    if check_finite and has_numbers:  # including rows that are in no subset
        _checks.finite(pred=pred, target=target, features=x, probe_points=given)
    elif check_finite and torch.compiler.is_compiling():
        fine = torch.isfinite(pred).all() & torch.isfinite(target).all() & torch.isfinite(x).all()
        torch._assert_async(fine, "pred, target and features must be finite, got NaN or inf")
    with without_autocast(pred):
        x = x.to(torch.float64) if features_grad else x.detach()
        values = _values(
            as_residual(pred, target, weight),
            x,
            subsets=subsets,
            weight=weight,
            given=given,
            form=form,
            generator=generator,
            features_grad=features_grad,
            warn=warn,
        )
    return reduce(values, reduction)


def quick_value(
    pred: Tensor, target: Tensor, x: Tensor, form: PlaneForm, check_finite: bool
) -> Tensor | None:
    """Return the value of one small batch of plain tensors in few calls, or None if it needs more
    checks or the careful path.
    """
    if (
        not type(pred) is type(target) is type(x) is Tensor
        or is_tracing()
        or torch.is_autocast_enabled("cpu")
        or not form.is_projection
    ):
        return None
    shape, dtype = pred.shape, pred.dtype
    if (
        target.shape != shape
        or target.dtype is not dtype
        or dtype not in _IGNORED
        or x.dtype not in _IGNORED
        or not 1 <= len(shape) <= 2
        or 0 in shape
        or x.ndim != 2
        or x.shape[0] != shape[0]
        or (basis := quick_basis(x, form.intercept)) is None
    ):
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


# `addmm` and `addmv` add this, times beta=0, to the product, so that one call multiplies and
# scales.
_IGNORED = {
    dtype: torch.zeros((), dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)
}


def _values(
    residual: Tensor,
    x: Tensor,
    *,
    subsets: Tensor | None,
    weight: Tensor | None,
    given: Tensor | None,
    form: PlaneForm,
    generator: torch.Generator | None,
    features_grad: bool,
    warn: Warn,
) -> Tensor:
    """Return the value of each subset [K] from residual [N, C], features [N, d], weights [N].

    Planes with weights are planes without weights in columns √w·[x, 1], for the residual
    √w·R.
    """

    def of_subsets(table: Tensor) -> Tensor:
        return table.unsqueeze(0) if subsets is None else table[subsets]

    at = x if given is None else given
    N, d = x.shape
    M, p = N if subsets is None else subsets.shape[1], form.n_columns(d)
    form.warn_of_shape(M, p, warn)
    rows = None  # row numbers of drawn points
    if form.probe == "draw" and given is None and subsets is not None:
        _checks.replayable(generator)
        rows = draw_rows(subsets, N, form.draw_from, generator=generator, weight=weight)
    planes, roots = form, None
    if weight is not None:
        planes, roots = replace(form, intercept=False), of_subsets(weight.sqrt())
        columns = columns_about(x, weight, form)
        x, at = columns(x, weight), columns(at, torch.ones_like(weight[:1]))
    points = None
    if form.has_points:
        points = at if rows is None else at[rows]
    if form.probe == "expected" and given is None:
        points = x
        if subsets is not None and form.draw_from == "outside":
            points = points_outside(x, subsets, weight)
    stack, inputs = of_subsets(residual), of_subsets(x)
    if features_grad:
        return _values_through_features(stack, inputs, form=planes, points=points, roots=roots)
    may_be_mse = M <= p and form.ridge == 0 and not form.has_points and not is_tracing(x)
    if may_be_mse and bool((ranks(inputs, intercept=planes.intercept) == M).all()):
        form.warn_of_full_rank(M, p, warn)
        if form.probe == "subset":
            return projected_value(stack, None, 1 / M) / stack.shape[2]
    rows = probe_rows(inputs, planes, points=points, roots=roots).to(stack.dtype)
    return projected_value(stack, rows) / stack.shape[2]


def _values_through_features(
    residual: Tensor, x: Tensor, form: PlaneForm, points: Tensor | None, roots: Tensor | None
) -> Tensor:
    """Return the values [K] by their definition, differentiable in the features x [K, M, d]
    (float64) and in points computed from them.
    """
    _, M, d = x.shape
    p = form.n_columns(d)
    right = residual.to(torch.float64)
    if form.ridge == 0 and not is_tracing(x):
        rank = ranks(x, intercept=form.intercept)
        if bool((rank < p).any()):
            worst = int(rank.argmin())
            raise ValueError(
                f"features_grad=True needs subsets of rank {p}, got rank {int(rank[worst])} in"
                f" subset {worst} of {M} rows; planes are not unique there: take more rows, drop"
                " the column, or set a ridge"
            )
    # A constant invertible change of columns changes neither value nor derivative of a unique
    # plane, and keeps the triangle well-conditioned.
    constant = x.detach()
    centre = constant.mean(1, keepdim=True) * int(form.intercept)
    spread = torch.linalg.vector_norm(constant - centre, dim=1, keepdim=True)
    scale = torch.where(spread > 0, spread, torch.ones_like(spread))
    design = at = _lift((x - centre) / scale, form)
    if points is not None:
        points = points.to(torch.float64)
        points = points.unsqueeze(1) if form.probe == "draw" else points
        at = _lift((points - centre) / scale, form)
    if form.ridge > 0:
        penalty = torch.diag_embed(form.ridge**0.5 / scale.squeeze(1))
        penalty = torch.nn.functional.pad(penalty, (0, int(form.intercept)))
        design = torch.cat([design, penalty], dim=1)
        right = torch.nn.functional.pad(right, (0, 0, 0, d))
    q, r = torch.linalg.qr(design)
    gap = torch.linalg.solve_triangular(r, q.mT @ right, upper=True)  # Δ
    fitted = at @ gap  # [K, n, C]
    if form.probe == "sum":
        fitted = (fitted if roots is None else fitted * roots.unsqueeze(2)).sum(1, keepdim=True)
    values: Tensor = fitted.square().mean((1, 2)).to(residual.dtype)
    return values


def _lift(z: Tensor, form: PlaneForm) -> Tensor:
    """Append a 1 to rows z [..., d] if the planes have an intercept."""
    return torch.nn.functional.pad(z, (0, int(form.intercept)), value=1.0)
