"""`rlp_loss`: the loss as a function of predictions, targets and features."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import torch
from torch import Tensor

from rlploss import _checks
from rlploss._checks import HeavyTailWarning, MeanOnlyWarning, MSEEquivalentWarning
from rlploss.loss.factors import easy_rows, ranks, traced
from rlploss.loss.planes import PROBES, Moment, probe_rows, second_moment

Tell = Callable[[type[Warning], str], None]


def rlp_loss(
    pred: Tensor,
    target: Tensor,
    features: Tensor,
    *,
    subsets: Tensor | None = None,
    probe: str = "subset",
    intercept: bool = False,
    ridge: float = 0.0,
    probe_points: Tensor | None = None,
    draw_from: str = "train",
    generator: torch.Generator | None = None,
    features_grad: bool = False,
    reduction: str = "mean",
    check_finite: bool = True,
) -> Tensor:
    """Random Linear Projections loss: how far apart are the planes fitted to predictions and to targets?

    For a subset with features x (M×p) and residual R = pred − target (M×C) the two planes differ by Δ = x⁺R, and

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
        intercept: add a column of ones to the features (and a 1 to z).
        ridge: λ ≥ 0, added to the diagonal of xᵀx; the column of ones is not penalised.
        probe_points: for "draw" the points z themselves, (K, d); for "expected" the rows that Σ averages, (n, d).
            By default both come from `features`.
        draw_from: "train" takes z from all rows, "outside" from the rows that are not in the subset.
        generator: source of the draws; None is torch's default generator.
        features_grad: let the gradient reach `features`; every subset must then have full rank.
        reduction: over subsets, "mean", "sum" or "none" (one value per subset).
        check_finite: raise on NaN or inf, naming the place. Costs a synchronisation on a GPU.

    Returns:
        A scalar, or K values with `reduction="none"`.

    >>> x = torch.tensor([[0.0], [1.0], [2.0]])
    >>> round(float(rlp_loss(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 1.0]), x)), 6)
    0.6
    """
    return compute(
        pred,
        target,
        features,
        subsets=subsets,
        probe=probe,
        intercept=intercept,
        ridge=_checks.options(probe, ridge, reduction, draw_from, PROBES),
        probe_points=probe_points,
        draw_from=draw_from,
        generator=generator,
        features_grad=features_grad,
        reduction=reduction,
        check_finite=check_finite,
        tell=_checks.warn,
    )


def compute(
    pred: Tensor,
    target: Tensor,
    features: Tensor,
    *,
    subsets: Tensor | None,
    probe: str,
    intercept: bool,
    ridge: float,
    probe_points: Tensor | None,
    draw_from: str,
    generator: torch.Generator | None,
    features_grad: bool,
    reduction: str,
    check_finite: bool,
    tell: Tell,
) -> Tensor:
    """`rlp_loss` with checked options, and with the caller's way of telling about degenerate cases."""
    _checks.pair(pred, target)
    x = _checks.feature_matrix(features, pred.shape[0])
    blind = traced()
    if subsets is None and probe_points is None and probe == "subset" and ridge == 0 and not features_grad:
        value = fresh_value(pred, target, x, intercept, check_finite) if not blind else None
        if value is not None:
            return reduce(value, reduction)
    if subsets is not None:
        _checks.subset_plan(subsets, x.shape[0], values=check_finite and not blind)
    _check_points(x, subsets, probe, probe_points, draw_from)
    if check_finite:
        if not blind and subsets is not None:  # rows that are in no subset are checked too
            _checks.finite(pred=pred, target=target, features=x, probe_points=probe_points)
        elif blind and torch.compiler.is_compiling():
            fine = torch.isfinite(pred).all() & torch.isfinite(target).all() & torch.isfinite(x).all()
            torch._assert_async(fine, "pred, target and features must be finite, got NaN or inf")
    with without_autocast(pred):
        residual = as_residual(pred, target)
        stack = residual if subsets is None else residual[subsets]
        if features_grad:
            values = _values_through_features(
                stack, x, subsets, probe, intercept, ridge, probe_points, draw_from, generator, tell
            )
        else:
            x = x.detach() if x.requires_grad else x
            points, moment = probes_for(x, subsets, probe, intercept, probe_points, draw_from, generator)
            inputs = x.unsqueeze(0) if subsets is None else x[subsets]
            values = _subset_values(stack, inputs, probe, intercept, ridge, points, moment, tell)
    if check_finite and not blind and not math.isfinite(values.item() if values.ndim == 0 else values.detach().sum()):
        _checks.finite(pred=pred, target=target, features=x, probe_points=probe_points)
    return reduce(values, reduction)


def fresh_value(pred: Tensor, target: Tensor, x: Tensor, intercept: bool, check_finite: bool) -> Tensor | None:
    """The subset probe of one small batch in few calls, where it is as simple as that."""
    if torch.is_autocast_enabled(pred.device.type):
        return None
    residual = as_residual(pred, target)
    rows = easy_rows(x, intercept, residual.dtype)
    if rows is None:
        return None
    seen = rows @ residual
    value = (seen * seen).sum()
    if check_finite and not math.isfinite(value.item()):
        _checks.finite(pred=pred, target=target)
    return value if residual.shape[1] == 1 else value / residual.shape[1]


def as_residual(pred: Tensor, target: Tensor) -> Tensor:
    """R = pred − target as (N, C), in float32 or better."""
    residual = pred - target if pred.dtype.itemsize > 2 else pred.float() - target
    return residual.unsqueeze(1) if residual.ndim == 1 else residual


def reduce(values: Tensor, reduction: str) -> Tensor:
    """One value per subset (a scalar for the only one) -> what the caller asked for."""
    if values.ndim == 0:  # one subset: nothing to reduce
        return values.unsqueeze(0) if reduction == "none" else values
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


def without_autocast(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Autocast would turn products into bfloat16 and has no rule for solvers: leave it inside the loss."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()


def _subset_values(
    residual: Tensor,
    x: Tensor,
    probe: str,
    intercept: bool,
    ridge: float,
    points: Tensor | None,
    moment: Moment | None,
    tell: Tell,
) -> Tensor:
    """Values [K] of subsets with residuals [K, M, C] (or [M, C] of the only one) and features [K, M, d]."""
    K, M, d = x.shape
    C = residual.shape[-1]
    p = d + int(intercept)
    tell_from_shapes(M, p, probe, intercept, ridge, tell)
    if M <= p and ridge == 0 and probe in ("subset", "sum") and not traced():
        full = bool((ranks(x, intercept=intercept) == M).all())
        if full:
            tell_full_rank(M, p, probe, intercept, tell)
            if probe == "subset":
                return residual.square().mean((-2, -1))
    rows = probe_rows(x, probe=probe, intercept=intercept, ridge=ridge, points=points, moment=moment)
    values: Tensor = (rows.to(residual.dtype) @ residual).square().sum((1, 2)) / C
    return values


def tell_from_options(probe: str, intercept: bool, tell: Tell) -> None:
    """The degenerate case that the options alone show."""
    if probe == "sum" and intercept:
        tell(
            MeanOnlyWarning,
            'probe="sum" with intercept=True sees only the mean residual of each subset; use probe="subset", '
            "or intercept=False",
        )


def tell_from_shapes(M: int, p: int, probe: str, intercept: bool, ridge: float, tell: Tell) -> None:
    """The degenerate cases that shapes and options show."""
    tell_from_options(probe, intercept, tell)
    # For Gaussian features the mean of 1/(M − p − 1) needs M > p + 1, its variance M > p + 3.
    if probe in ("draw", "expected") and ridge == 0 and p - 1 <= M <= p + 3:
        tell(
            HeavyTailWarning,
            f'probe="{probe}" is heavy-tailed at subset_size {M} with {p} columns: the mean or the variance of '
            f"the loss is infinite for Gaussian features up to M = p + 3; use more rows per subset, or a ridge",
        )


def tell_full_rank(M: int, p: int, probe: str, intercept: bool, tell: Tell) -> None:
    """The degenerate cases of rank(x) = M, where the planes pass through every point."""
    if probe == "subset":
        tell(
            MSEEquivalentWarning,
            f'probe="subset" with subset_size {M} and {p} columns of rank {M} is exactly MSE, and is computed '
            "as MSE; use more rows per subset than columns, or a ridge",
        )
    elif not intercept:
        tell(
            MeanOnlyWarning,
            f'probe="sum" with subset_size {M} and {p} columns of rank {M} sees only the mean residual of each '
            'subset; use more rows per subset than columns, or probe="subset"',
        )


def probes_for(
    x: Tensor,
    subsets: Tensor | None,
    probe: str,
    intercept: bool,
    probe_points: Tensor | None,
    draw_from: str,
    generator: torch.Generator | None,
) -> tuple[Tensor | None, Moment | None]:
    """Where the planes are compared: points [K, d] for "draw", the second moment for "expected"."""
    if probe == "draw":
        if probe_points is not None:
            return _checks.feature_matrix(probe_points), None
        return x[draw_rows(_plan(subsets, x), x.shape[0], draw_from, generator)], None
    if probe == "expected":
        if probe_points is not None:
            return None, second_moment(_checks.feature_matrix(probe_points), intercept=intercept)
        if draw_from == "outside":
            return None, second_moment(x[rows_outside(_plan(subsets, x), x.shape[0])], intercept=intercept)
        return None, second_moment(x, intercept=intercept)
    return None, None


def _plan(subsets: Tensor | None, x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device).unsqueeze(0) if subsets is None else subsets


def draw_rows(subsets: Tensor, n_rows: int, draw_from: str, generator: torch.Generator | None) -> Tensor:
    """One row number per subset [K], from all rows or from those outside the subset."""
    K, M = subsets.shape
    device = generator.device if generator is not None else subsets.device
    if draw_from == "train":
        return torch.randint(n_rows, (K,), generator=generator, device=device).to(subsets.device)
    rank = torch.randint(n_rows - M, (K, 1), generator=generator, device=device).to(subsets.device)
    # The sorted subset s₀ < s₁ < … leaves sᵢ − i rows before sᵢ: step over those that lie at or below the rank.
    before = subsets.sort(dim=1).values - torch.arange(M, device=subsets.device)
    return (rank + torch.searchsorted(before.contiguous(), rank, right=True)).squeeze(1)


def rows_outside(subsets: Tensor, n_rows: int) -> Tensor:
    """The rows [K, N − M] that are not in each subset."""
    K, M = subsets.shape
    outside = torch.ones(K, n_rows, dtype=torch.int8, device=subsets.device).scatter(1, subsets, 0)
    # a stable sort puts the N − M ones first, in order; unlike nonzero its shape does not depend on values
    return outside.argsort(dim=1, descending=True, stable=True)[:, : n_rows - M]


def _check_points(x: Tensor, subsets: Tensor | None, probe: str, probe_points: Tensor | None, draw_from: str) -> None:
    N, d = x.shape
    K, M = (1, N) if subsets is None else subsets.shape
    if probe_points is not None:
        if probe in ("subset", "sum"):
            raise ValueError(f'probe_points has no meaning for probe="{probe}"; leave it out')
        points = _checks.feature_matrix(probe_points)
        if points.shape[1] != d or (probe == "draw" and points.shape[0] != K):
            rows = str(K) if probe == "draw" else "n"
            raise ValueError(
                f"probe_points must have shape ({rows}, {d}) to go with the features, got {tuple(points.shape)}"
            )
    elif probe == "draw" and subsets is None:
        raise ValueError(
            'probe="draw" with the whole batch as one subset needs probe_points, got None; pass them, or pass subsets'
        )
    elif probe in ("draw", "expected"):
        _checks.outside(draw_from, M, N)


def _values_through_features(
    residual: Tensor,
    features: Tensor,
    subsets: Tensor | None,
    probe: str,
    intercept: bool,
    ridge: float,
    probe_points: Tensor | None,
    draw_from: str,
    generator: torch.Generator | None,
    tell: Tell,
) -> Tensor:
    """The values by definition, differentiable in the features too: autograd goes through the pseudo-inverse."""
    N, d = features.shape
    features = features.to(torch.float64)
    x = features.unsqueeze(0) if subsets is None else features[subsets]
    K, M, _ = x.shape
    p = d + int(intercept)
    tell_from_shapes(M, p, probe, intercept, ridge, tell)
    constant = x.detach()
    if ridge == 0 and not traced():
        rank = ranks(constant, intercept=intercept)
        if bool((rank < min(M, p)).any()):
            worst = int(rank.argmin())
            raise ValueError(
                f"features_grad=True needs subsets of full rank {min(M, p)}, got rank {int(rank[worst])} in subset "
                f"{worst}; the pseudo-inverse has no derivative there: drop the column or row, or set a ridge"
            )
    # An invertible change of columns, taken as a constant, changes neither value nor derivative of a plane that is
    # unique; it keeps the pseudo-inverse accurate. With fewer rows than columns the caller's coordinates count.
    unique = ridge > 0 or M >= p
    centre = constant.mean(1, keepdim=True) if unique and intercept else torch.zeros_like(constant[:, :1])
    spread = torch.linalg.vector_norm(constant - centre, dim=1, keepdim=True)
    scale = torch.where(spread > 0, spread, torch.ones_like(spread)) if unique else torch.ones_like(spread)

    def lift(z: Tensor) -> Tensor:
        z = (z - centre) / scale
        return torch.cat([z, torch.ones_like(z[..., :1])], dim=-1) if intercept else z

    design, right = lift(x), residual.to(torch.float64)
    right = right.unsqueeze(0) if right.ndim == 2 else right
    if ridge > 0:
        penalty = torch.nn.functional.pad(torch.diag_embed(ridge**0.5 / scale.squeeze(1)), (0, int(intercept)))
        gap = torch.linalg.pinv(torch.cat([design, penalty], dim=1)) @ torch.nn.functional.pad(right, (0, 0, 0, d))
    else:
        gap = torch.linalg.pinv(design) @ right  # [K, p, C]
    C = residual.shape[-1]
    if probe == "subset":
        values = (design @ gap).square().mean((1, 2))
    elif probe == "sum":
        values = (design @ gap).sum(1).square().sum(1) / C
    elif probe == "draw":
        if probe_points is not None:
            points = _checks.feature_matrix(probe_points).to(torch.float64)
        else:
            points = features[draw_rows(_plan(subsets, features), N, draw_from, generator)]
        values = (lift(points.unsqueeze(1)) @ gap).square().sum((1, 2)) / C
    else:
        pool = features if probe_points is None else _checks.feature_matrix(probe_points).to(torch.float64)
        if probe_points is None and draw_from == "outside":
            pool = pool[rows_outside(_plan(subsets, features), N)]
        else:
            pool = pool.unsqueeze(0)
        values = (lift(pool) @ gap).square().mean((1, 2))
    result: Tensor = values.to(residual.dtype)
    return result
