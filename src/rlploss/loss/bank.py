"""Define `ProjectionBank`, which computes the factors of many subsets once and stores them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlploss import _checks
from rlploss.loss import planes
from rlploss.loss.factors import Factors, chunks, factor, is_tracing
from rlploss.loss.planes import PlaneForm
from rlploss.loss.quadratic import (
    add_form,
    as_residual,
    projected_value,
    quadratic_value,
    reduce,
    without_autocast,
)
from rlploss.loss.subsets import draw_rows

Which = int | slice | Tensor | Sequence[int]


class ProjectionBank(nn.Module):
    """Stores the factors of subsets, so a training step costs one small product, whatever the
    features.

    Args:
        features: the training rows (N, d), which are constants. They are factored in float64; the
            factors are stored in float32, or in float64 for float64 features.
        subsets: row numbers (K, M), see `balanced_subsets`.
        probe: where the two planes of a subset are compared: "subset", on its own rows; "draw", at
            one random row per subset; "expected", the mean over those draws; "sum", summed over the
            subset's rows.
        intercept: fit planes with an offset; None is True, except for probe="sum". False is the
            paper's formula.
        ridge: λ ≥ 0, added to the diagonal of xᵀx; the offset is not penalised.
        draw_from: the rows at which "draw" and "expected" compare, "train" (all) or "outside"
            (those not in the subset).
        probe_points: rows (n, d) to compare at instead of `features`.
        weight: row weights (N,), at least 0; only their ratios matter. Planes are fitted by
            weighted least squares, and a row of weight 0 has no effect. Not with probe="draw".
        reduction: over subsets, "mean", "sum" or "none" (one value per subset).
        max_bytes: the limit of memory for factors. Beyond it no factors are stored: every call
            factors again, a chunk of subsets at a time, with the same results. `bytes_for` computes
            the need beforehand, and `nbytes` is what is stored.
        dense_rows: the largest N for which the N×N matrix of `form` is used.
        generator: source of the draws of probe="draw"; None is torch's default generator.
        check_finite: raise an error on NaN or inf, which names the place.

    Attributes:
        kind: how the value of a subset is computed. "rows": ‖W R‖²/C; "complement": (‖R‖²/M − ‖W
            R‖²)/C, if that takes fewer rows; "mse": ‖R‖²/(M·C), if rank(x) = M in every subset;
            "chunks": like "rows", but W is computed again in every call, because it exceeds
            `max_bytes`.
        rows: W (K, q, M), including the scale; None if no factors are stored.
        residual_weight, projector_sign: a and b. The value is (a·‖R‖² + b·‖W R‖²)/C for every kind.
        plane_form: probe, intercept, ridge and draw_from in one value.
        subsets, n_subsets, subset_size: the plan (K, M), K and M.

    >>> X, plan = torch.randn(50, 3), torch.arange(40).view(4, 10)
    >>> bank = ProjectionBank(X, plan)
    >>> float(bank.loss(X[:, 0], X[:, 0]))
    0.0
    """

    features: Tensor
    subsets: Tensor
    weight: Tensor | None
    rows: Tensor | None
    points: Tensor | None
    _pool: Tensor | None
    _inverse: Tensor | None
    _centre: Tensor | None
    _form: Tensor | None

    def __init__(
        self,
        features: Tensor,
        subsets: Tensor,
        *,
        probe: str = "subset",
        intercept: bool | None = None,
        ridge: float = 0.0,
        draw_from: str = "train",
        probe_points: Tensor | None = None,
        weight: Tensor | None = None,
        reduction: str = "mean",
        max_bytes: int = 2**30,
        dense_rows: int = 4096,
        generator: torch.Generator | None = None,
        check_finite: bool = True,
    ) -> None:
        super().__init__()
        form = PlaneForm(probe, intercept, ridge=ridge, draw_from=draw_from)
        self.reduction = _checks.one_of("reduction", reduction, _checks.REDUCTIONS)
        features = _checks.feature_matrix(features).detach()
        N, d = features.shape
        pool = None
        if probe_points is not None:
            form = replace(form, draw_from="train")  # from all these points
            pool = _checks.feature_matrix(probe_points).detach()
            if pool.shape[1] != d:
                raise ValueError(
                    f"probe_points must have {d} columns like the features, got {tuple(pool.shape)}"
                )
        self.plane_form = self._planes = form
        if is_tracing(features, subsets):
            raise RuntimeError(
                "a ProjectionBank factors the numbers of its features, got a tensor without"
                " them; build it outside of compiled code and of meta devices"
            )
        _checks.subset_plan(subsets, N, form.draw_from)
        self.n_subsets, self.subset_size = K, M = subsets.shape
        if check_finite:
            _checks.finite(features=features, probe_points=pool)
        self.max_bytes = _checks.count("max_bytes", max_bytes, 0)
        self.dense_rows = _checks.count("dense_rows", dense_rows, 0)
        self.generator, self.check_finite = generator, check_finite
        self.n_columns = form.n_columns(d)
        self.dtype = features.dtype if features.dtype == torch.float64 else torch.float32
        form.warn_of_shape(M, self.n_columns, _checks.warn)
        if weight is not None:
            if probe == "draw":
                raise ValueError(
                    'weight has no meaning for a bank with probe="draw"; use its mean,'
                    ' probe="expected", or rlp_loss'
                )
            weight = planes.mean_one(weight, N, values=True)
            columns = planes.columns_about(features, weight, form)
            pool = None if pool is None else columns(pool, torch.ones_like(weight[:1]))
            features, form = columns(features, weight), replace(form, intercept=False)
            self._planes = form

        inputs = {"features": features, "weight": weight, "subsets": subsets.clone(), "_pool": pool}
        factors = dict.fromkeys(("rows", "points", "_inverse", "_centre", "_form"))
        for name, value in (inputs | factors).items():
            self.register_buffer(name, value, persistent=name in ("subsets", "points"))
        self._made_from = {"form": repr(self.plane_form), "features": _digest(features, pool)}
        self._build()

    def _build(self) -> None:
        """Compute the factors for the current plan and points."""
        self.kind, self._n_kept = self._choose()
        self.residual_weight = 1 / self.subset_size if self.kind in ("complement", "mse") else 0.0
        self.projector_sign = {"complement": -1, "mse": 0}.get(self.kind, 1)
        self._form = self.rows = None
        if self.plane_form.probe == "draw":
            self._keep_inverse()
            self.redraw(self.points)
        elif self.kind in ("rows", "complement"):
            shape = self.n_subsets, self._n_kept, self.subset_size
            self.rows = torch.zeros(shape, dtype=self.dtype, device=self.features.device)
            for part in self._parts(self.n_subsets):
                rows = self._make_rows(part)
                self.rows[part, : rows.shape[1]] = rows

    # Values

    def loss(self, pred: Tensor, target: Tensor, which: Which | None = None) -> Tensor:
        """Return the loss of all rows, or of some subsets.

        which=None: pred and target hold all N rows, and the value is the mean over all K subsets
        (Algorithm 2's epoch loss), or another `reduction`. A number j: they hold the M rows
        `features[subsets[j]]`. A slice, or the numbers of k subsets: they hold the k·M rows of
        those subsets in plan order, `features[subsets[which].flatten()]`.
        """
        tracing = is_tracing()
        value = self._of_one(pred, target, which) if type(which) is int and not tracing else None
        if value is None:
            _checks.pair(pred, target)
            with without_autocast(pred):
                value = self._of_some(pred, target, which)
        if self.check_finite and torch.compiler.is_compiling():
            torch._assert_async(
                torch.isfinite(value).all(), "pred and target must be finite, got NaN or inf"
            )
        elif self.check_finite and not tracing:
            total = value.sum() if value.ndim else value  # saves one operation per step
            if not math.isfinite(total.item()):
                _checks.finite(pred=pred, target=target)
        return value

    forward = loss

    def _of_one(self, pred: Tensor, target: Tensor, which: int) -> Tensor | None:
        """Return the value of one subset in very few operations, for the training loop; None if the
        case is not that simple.
        """
        # Reading a module's attribute would take longer than the product below.
        rows = self._buffers["rows"]
        if (
            rows is None
            or self._buffers["weight"] is not None
            or self.reduction == "none"
            or torch.is_autocast_enabled(pred.device.type)
            or pred.ndim != 2
            or pred.shape != target.shape
            or not pred.dtype is target.dtype is rows.dtype
        ):
            return None
        K, _, M = rows.shape
        n, C = pred.shape
        if n != M or C == 0 or not -K <= which < K:
            return None
        value = projected_value(pred - target, rows[which], self.residual_weight)
        return value if C == 1 else value / C

    def _of_some(self, pred: Tensor, target: Tensor, which: Which | None) -> Tensor:
        if which is None:
            return self._of_all(pred, target)
        K, M = self.n_subsets, self.subset_size
        if not isinstance(which, slice):
            which = _checks.subset_numbers(which, K, values=not is_tracing()).to(
                self.subsets.device
            )
        k = len(range(K)[which]) if isinstance(which, slice) else which.numel()
        if pred.shape[0] != k * M or k == 0:
            raise ValueError(
                f"pred must hold the {k * M} rows of the {k} subsets asked for, in plan order,"
                f" got {pred.shape[0]}; leave `which` out to pass all rows"
            )
        weight = None if self.weight is None else self.weight[self.subsets[which].flatten()]
        residual = as_residual(pred, target, weight)
        return reduce(self._values(residual.reshape(k, M, -1), which), self.reduction)

    def _of_all(self, pred: Tensor, target: Tensor) -> Tensor:
        N, K = self.features.shape[0], self.n_subsets
        if pred.shape[0] != N:
            raise ValueError(
                f"pred must hold all {N} rows, got {pred.shape[0]}; pass `which` for some subsets"
            )
        residual = as_residual(pred, target, self.weight)
        if self.reduction == "none" or not self.prefers_form():
            return reduce(self._values(residual[self.subsets], slice(None)), self.reduction)
        mean = quadratic_value(residual, self.form().to(residual.dtype)) / residual.shape[1]
        return mean if self.reduction == "mean" else mean * K

    def _values(self, stack: Tensor, which: slice | Tensor) -> Tensor:
        """Return values [k] of residuals [k, M, C]."""
        if self.kind != "chunks":
            rows = None if self.rows is None else self.rows[which].to(stack.dtype)
            return projected_value(stack, rows, self.residual_weight) / stack.shape[2]
        order = torch.arange(self.n_subsets, device=stack.device)[which]
        values = []
        for piece in self._parts(len(order)):
            part = order[piece]

            def value(residual: Tensor, part: Tensor = part) -> Tensor:
                return (
                    projected_value(residual, self._make_rows(part).to(residual.dtype))
                    / residual.shape[2]
                )

            # The backward pass computes the rows again, so only one chunk of them is in memory at a
            # time. The transforms of torch.func do not support that.
            values.append(
                value(stack[piece])
                if is_tracing()
                else checkpoint(value, stack[piece], use_reentrant=False)
            )
        return torch.cat(values)

    def prefers_form(self) -> bool:
        """Return whether the N×N form is cheaper than a product for each subset."""
        N, K, M = self.features.shape[0], self.n_subsets, self.subset_size
        # A form that does not exist yet must be computed and stored beside the factors.
        bytes_then = self.nbytes + N * N * self.dtype.itemsize
        if (
            self.plane_form.probe == "draw"
            or N > self.dense_rows
            or (self._form is None and (is_tracing() or bytes_then > self.max_bytes))
        ):
            return False
        # Gathering a row costs about four products.
        return N * N <= K * M * (self._n_kept + 4)

    @torch.no_grad()
    def form(self) -> Tensor:
        """Return the N×N matrix Q with tr(RᵀQR)/C = mean over the subsets: RLP as one quadratic
        form. With weights it is a form of √w·R. It is computed once and stored.
        """
        N, K = self.features.shape[0], self.n_subsets
        if self.plane_form.probe == "draw":
            raise ValueError(
                'form is refused for probe="draw", whose points change; use probe="expected"'
            )
        if N > self.dense_rows:
            raise ValueError(
                f"form makes an N×N matrix and is meant for at most dense_rows={self.dense_rows}"
                f" rows, got N = {N}; raise dense_rows if memory allows"
            )
        if self._form is None:
            form = torch.zeros(N, N, dtype=torch.float64, device=self.features.device)
            if self.projector_sign:
                size = max(1, 2**24 // (self._n_kept * N))
                for start in range(0, K, size):
                    part = slice(start, min(start + size, K))
                    rows = self._make_rows(part) if self.rows is None else self.rows[part]
                    add_form(form, rows, self.subsets[part])
            counts = torch.bincount(self.subsets.flatten(), minlength=N).double()
            form = torch.diag(counts * self.residual_weight) + self.projector_sign * form
            self._form = (form / K).to(self.dtype)
        return self._form

    # Storage

    @staticmethod
    def bytes_for(
        n_subsets: int,
        subset_size: int,
        n_features: int,
        *,
        probe: str = "subset",
        intercept: bool | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> int:
        """Return the most bytes that a bank of this shape stores; lower ranks need fewer."""
        columns = PlaneForm(probe, intercept).n_columns(n_features)
        per_row = dtype.itemsize * (1 if probe in ("sum", "draw") else min(columns, subset_size))
        if probe == "draw":  # the inverse for new points is in float64
            per_row += 8 * columns
        return n_subsets * subset_size * per_row

    @property
    def nbytes(self) -> int:
        """Bytes of the stored factors, without the plan and the features."""
        return sum(
            t.numel() * t.element_size()
            for t in (self.rows, self._inverse, self._form)
            if t is not None
        )

    def extra_repr(self) -> str:
        return (
            f"n_subsets={self.n_subsets}, subset_size={self.subset_size}, {self.plane_form},"
            f" kind={self.kind!r}, nbytes={self.nbytes}"
        )

    def _choose(self) -> tuple[str, int]:
        """Choose the cheapest kind within `max_bytes`, and the number of rows per subset that it
        stores.
        """
        K, M = self.n_subsets, self.subset_size
        form, p = self.plane_form, self.n_columns
        n_rows = 1 if form.probe in ("sum", "draw") else min(p, M)
        kind, n_kept = "rows", n_rows
        if not form.has_points and form.ridge == 0 and 2 * p > M:
            rank = torch.cat([self._factors(part).rank for part in self._parts(self.n_subsets)])
            low, high = int(rank.min()), int(rank.max())
            if low == M:
                form.warn_of_full_rank(M, p, _checks.warn)
            if form.probe == "subset":
                if low == M:
                    return "mse", 0
                n_rows = max(high, 1)
                kind, n_kept = ("complement", M - low) if M - low < n_rows else ("rows", n_rows)
        need = K * M * (n_kept * self.dtype.itemsize + (8 * p if form.probe == "draw" else 0))
        return (kind, n_kept) if need <= self.max_bytes else ("chunks", n_rows)

    def _parts(self, n_subsets: int) -> list[slice]:
        return chunks(
            n_subsets, self.subset_size, self.features.shape[1], intercept=self._planes.intercept
        )

    def _factors(self, part: slice | Tensor) -> Factors:
        form = self._planes
        x = self.features[self.subsets[part]]
        return factor(x, intercept=form.intercept, ridge=form.ridge)

    def _make_rows(self, part: slice | Tensor) -> Tensor:
        """Compute W of these subsets in the stored type, at most `_n_kept` rows each."""
        form, subsets = self._planes, self.subsets[part]
        if self.kind == "complement":
            return planes.complement_of(self._factors(part), self._n_kept).to(self.dtype)
        points = self.features if self._pool is None else self._pool
        if form.probe == "draw" and self.points is not None:
            points = self.points[part]
        elif form.draw_from == "outside":
            points = planes.points_outside(self.features, subsets, self.weight)
        roots = None if self.weight is None else self.weight[subsets].sqrt()
        rows = planes.probe_rows(self.features[subsets], form, points, roots=roots)
        # This drops directions that no subset has.
        return planes.largest_rows(rows, self._n_kept).to(self.dtype)

    # The points of probe="draw"

    def _keep_inverse(self) -> None:
        if self.kind != "rows":
            return
        shape = self.n_subsets, self.n_columns, self.subset_size
        self._inverse = self.features.new_empty(shape, dtype=torch.float64)
        centres = []
        for part in self._parts(self.n_subsets):
            factors = self._factors(part)
            self._inverse[part] = planes.pseudo_inverse_of(factors)
            centres += [] if factors.centre is None else [factors.centre]
        self._centre = torch.cat(centres) if centres else None

    @torch.no_grad()
    def redraw(self, points: Tensor | None = None) -> Tensor:
        """Set and return new probe points (K, d) for probe="draw": the given ones, or one random
        row per subset.
        """
        if self.plane_form.probe != "draw":
            raise ValueError(f'redraw is for probe="draw", got probe="{self.plane_form.probe}"')
        if points is None:
            pool = self.features if self._pool is None else self._pool
            points = pool[
                draw_rows(
                    self.subsets, pool.shape[0], self.plane_form.draw_from, generator=self.generator
                )
            ]
        elif points.shape != (wanted := (self.n_subsets, self.features.shape[1])):
            raise ValueError(
                f"points must have shape {wanted}, one per subset, got {tuple(points.shape)}"
            )
        if self.check_finite:
            _checks.finite(points=points)
        self.points = points
        if self._inverse is not None:
            rows = planes.rows_at(points, self._inverse, self._centre).to(self.dtype)
            # Written in place if possible, so that compiled code and views see the current points.
            self.rows = rows if self.rows is None else self.rows.copy_(rows)
        return points

    # The state holds plan and points; the bank that loads it must have the same features and form

    def get_extra_state(self) -> dict[str, str]:
        """Return a description of the form and features that the bank was built from."""
        return self._made_from

    def set_extra_state(self, state: dict[str, str]) -> None:
        """Do nothing: `_load_from_state_dict` compares the description."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state = state_dict.get(f"{prefix}_extra_state", self._made_from)
        for name, own in self._made_from.items():
            if state[name] != own:
                raise ValueError(
                    f"state must come from a bank with the same {name}, got {state[name]} instead"
                    f" of {own}; build this bank as the other one was built"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._build()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move the buffers with the model, but keep them in float32 or better."""

        def move(buffer: Tensor) -> Tensor:
            moved = fn(buffer)
            coarse = moved.is_floating_point() and moved.dtype.itemsize < buffer.dtype.itemsize
            return buffer.to(moved.device) if coarse and moved.dtype.itemsize < 4 else moved

        return super()._apply(move, recurse)  # type: ignore[no-untyped-call]  # torch's own has no types


def _digest(*tensors: Tensor | None) -> str:
    """Return a hash of the numbers of these tensors."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in [t for t in tensors if t is not None]:
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
