"""`ProjectionBank`: the factors of many subsets, computed once and kept."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from rlploss import _checks
from rlploss.factors import Factors, chunks, factor, traced
from rlploss.functional import (
    as_residual,
    draw_rows,
    reduce,
    rows_outside,
    tell_from_shapes,
    tell_full_rank,
    without_autocast,
)
from rlploss.planes import (
    PROBES,
    Moment,
    complement_of,
    largest_rows,
    read_at,
    reader_of,
    rows_of,
    second_moment,
)
from rlploss.quadratic import add_form, complement_form, quadratic_form


class ProjectionBank(nn.Module):
    """Kept factors: a training step costs one small product, whatever the features.

    Args:
        features: the training rows (N, d), constants; factored in float64, kept in float32 or their own type.
        subsets: row numbers (K, M), see `balanced_subsets`.
        probe, intercept, ridge, draw_from, reduction: as in `rlp_loss`.
        probe_points: rows (n, d) that z may come from, instead of `features`.
        max_bytes: what may be kept. Past it nothing is kept and every call factors anew, a chunk of subsets at
            a time, with the same results. `bytes_for` tells the need beforehand, `nbytes` what is held.
        dense_rows: the largest N for which the N×N matrix of `form` is used.
        generator: source of the draws of probe="draw"; None is torch's default generator.
        check_finite: raise on NaN or inf, naming the place.

    Attributes:
        kind: how a value is computed. "rows": ‖W R‖²/C; "complement": (‖R‖²/M − ‖W R‖²)/C, where that takes fewer
            rows; "mse": rank(x) = M in every subset, nothing is kept; "chunks": what is needed exceeds `max_bytes`.
        rows: W (K, q, M), scale included; None where nothing is kept.
        subsets: the plan (K, M).

    >>> X, plan = torch.randn(50, 3), torch.arange(40).view(4, 10)
    >>> bank = ProjectionBank(X, plan)
    >>> float(bank.loss(X[:, 0], X[:, 0]))
    0.0
    """

    features: Tensor
    subsets: Tensor
    counts: Tensor
    rows: Tensor | None
    points: Tensor | None
    _pool: Tensor | None
    _reader: Tensor | None
    _centre: Tensor | None
    _moment_rows: Tensor | None
    _moment_centre: Tensor | None
    _form: Tensor | None

    def __init__(
        self,
        features: Tensor,
        subsets: Tensor,
        *,
        probe: str = "subset",
        intercept: bool = False,
        ridge: float = 0.0,
        draw_from: str = "train",
        probe_points: Tensor | None = None,
        reduction: str = "mean",
        max_bytes: int = 2**30,
        dense_rows: int = 4096,
        generator: torch.Generator | None = None,
        check_finite: bool = True,
    ) -> None:
        super().__init__()
        self.ridge = _checks.options(probe, ridge, reduction, draw_from, PROBES)
        features = _checks.feature_matrix(features).detach()
        _checks.subset_plan(subsets, features.shape[0])
        pool = None if probe_points is None else _checks.feature_matrix(probe_points).detach()
        N, d = features.shape
        K, M = subsets.shape
        if pool is not None and pool.shape[1] != d:
            raise ValueError(f"probe_points must have {d} columns like the features, got {tuple(pool.shape)}")
        if probe in ("draw", "expected") and pool is None:
            _checks.outside(draw_from, M, N)
        if check_finite:
            _checks.finite(features=features, probe_points=pool)
        self.probe, self.intercept, self.reduction, self.draw_from = probe, intercept, reduction, draw_from
        self.max_bytes = _checks.count("max_bytes", max_bytes, 0)
        self.dense_rows = _checks.count("dense_rows", dense_rows, 0)
        self.generator, self.check_finite = generator, check_finite
        self.n_columns = d + int(intercept)
        self.dtype = features.dtype if features.dtype == torch.float64 else torch.float32
        tell_from_shapes(M, self.n_columns, probe, intercept, self.ridge, _checks.warn)

        moment = None
        if probe == "expected" and (pool is not None or draw_from == "train"):
            moment = second_moment(features if pool is None else pool, intercept=intercept)
        kept: dict[str, Tensor | None] = {
            "features": features,
            "counts": torch.bincount(subsets.flatten(), minlength=N).unsqueeze(1),
            "_pool": pool,
            "_reader": None,
            "_centre": None,
            "_moment_rows": None if moment is None else moment.rows,
            "_moment_centre": None if moment is None else moment.centre,
            "_form": None,
        }
        for name, value in kept.items():
            self.register_buffer(name, value, persistent=False)
        self.register_buffer("subsets", subsets.clone())
        self.register_buffer("points", None)
        self.register_buffer("rows", None)
        self.kind, self._height = self._choose()
        if probe == "draw":
            self._keep_reader()
            self.redraw()
        elif self.kind in ("rows", "complement"):
            self.rows = self._allocate()
            for part in self._parts():
                made = self._make_rows(part)
                self.rows[part, : made.shape[1]] = made

    # What is kept

    @staticmethod
    def bytes_for(
        n_subsets: int,
        subset_size: int,
        n_features: int,
        *,
        probe: str = "subset",
        intercept: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> int:
        """Bytes that a bank of this shape keeps at the most; less where ranks turn out lower."""
        columns = n_features + int(intercept)
        single = _checks.one_of("probe", probe, PROBES) in ("sum", "draw")
        per_row = dtype.itemsize * (1 if single else min(columns, subset_size))
        if probe == "draw":  # new points are read in float64
            per_row += 8 * columns
        return n_subsets * subset_size * per_row

    @property
    def nbytes(self) -> int:
        """Bytes of factors held now (the plan and the features themselves not counted)."""
        return sum(
            t.numel() * t.element_size() for t in (self.rows, self._reader, self._form) if t is not None
        )

    @property
    def n_subsets(self) -> int:
        """K."""
        return self.subsets.shape[0]

    @property
    def subset_size(self) -> int:
        """M."""
        return self.subsets.shape[1]

    def extra_repr(self) -> str:
        """For print(bank)."""
        return (
            f"n_subsets={self.n_subsets}, subset_size={self.subset_size}, probe={self.probe!r}, "
            f"intercept={self.intercept}, ridge={self.ridge}, kind={self.kind!r}, nbytes={self.nbytes}"
        )

    def _choose(self) -> tuple[str, int]:
        """The cheapest kind that fits, and how many rows per subset it keeps."""
        K, M = self.subsets.shape
        p = self.n_columns
        height = 1 if self.probe in ("sum", "draw") else min(p, M)
        kind, kept = "rows", height
        if self.probe in ("subset", "sum") and self.ridge == 0 and 2 * p > M:
            rank = torch.cat([self._factors(part, solve=False).rank for part in self._parts()])
            low, high = int(rank.min()), int(rank.max())
            if low == M:
                tell_full_rank(M, p, self.probe, self.intercept, _checks.warn)
            if self.probe == "subset":
                if low == M:
                    return "mse", 0
                height = max(high, 1)
                kind, kept = ("complement", M - low) if M - low < height else ("rows", height)
        need = K * M * (kept * self.dtype.itemsize + (8 * p if self.probe == "draw" else 0))
        return (kind, kept) if need <= self.max_bytes else ("chunks", height)

    def _allocate(self) -> Tensor:
        K, M = self.subsets.shape
        return torch.zeros(K, self._height, M, dtype=self.dtype, device=self.features.device)

    def _parts(self, n_subsets: int | None = None) -> list[slice]:
        n = self.n_subsets if n_subsets is None else n_subsets
        return chunks(n, self.subset_size, self.features.shape[1], intercept=self.intercept)

    def _factors(self, part: slice | Tensor, *, solve: bool) -> Factors:
        x = self.features[self.subsets[part]]
        return factor(x, intercept=self.intercept, ridge=self.ridge, solve=solve)

    def _make_rows(self, part: slice | Tensor) -> Tensor:
        """W of these subsets in the kept type, at most `_height` rows each."""
        factors = self._factors(part, solve=self.probe in ("draw", "expected"))
        if self.kind == "complement":
            return complement_of(factors, self._height).to(self.dtype)
        moment = None
        if self._moment_rows is not None:
            moment = Moment(self._moment_rows, self._moment_centre)
        elif self.probe == "expected":
            outside = self.features[rows_outside(self.subsets[part], self.features.shape[0])]
            moment = second_moment(outside, intercept=self.intercept)
        rows = rows_of(
            factors,
            probe=self.probe,
            intercept=self.intercept,
            ridge=self.ridge,
            points=None if self.points is None else self.points[part],
            moment=moment,
        )
        return largest_rows(rows, self._height).to(self.dtype)  # drops directions that no subset has

    # The points of probe="draw"

    def _keep_reader(self) -> None:
        if self.kind != "rows":
            return
        K, M = self.subsets.shape
        device = self.features.device
        self._reader = torch.empty(K, self.n_columns, M, dtype=torch.float64, device=device)
        if self.intercept:
            self._centre = torch.empty(K, self.n_columns - 1, dtype=torch.float64, device=device)
        for part in self._parts():
            factors = self._factors(part, solve=True)
            self._reader[part] = reader_of(factors)
            if self._centre is not None and factors.centre is not None:
                self._centre[part] = factors.centre

    @torch.no_grad()
    def redraw(self, points: Tensor | None = None) -> Tensor:
        """Take new probe points (K, d) for probe="draw": the ones given, or one random row per subset."""
        if self.probe != "draw":
            raise ValueError(f'redraw is for probe="draw", got probe="{self.probe}"')
        if points is None:
            if self._pool is None:
                N = self.features.shape[0]
                points = self.features[draw_rows(self.subsets, N, self.draw_from, self.generator)]
            else:
                n = self._pool.shape[0]
                points = self._pool[draw_rows(self.subsets, n, "train", self.generator)]
        elif points.shape != (self.n_subsets, self.features.shape[1]):
            wanted = (self.n_subsets, self.features.shape[1])
            raise ValueError(f"points must have shape {wanted}, one per subset, got {tuple(points.shape)}")
        self.points = points
        if self._reader is not None:
            rows = read_at(self._reader, self._centre, points).to(self.dtype)
            # in place where possible: compiled code and views keep seeing the current points
            self.rows = rows if self.rows is None else self.rows.copy_(rows)
        return points

    # The value

    def loss(self, pred: Tensor, target: Tensor, which: int | slice | Tensor | None = None) -> Tensor:
        """The loss of all rows, or of some subsets.

        which=None: pred and target hold all N rows; the value is the mean over all K subsets (Algorithm 2's epoch
        loss), by `reduction`. An int j: they hold the M rows `features[subsets[j]]`. A slice or int64 tensor of
        k subsets: the k·M rows of those subsets in plan order, `features[subsets[which].flatten()]`.
        """
        blind = traced()
        if isinstance(which, int) and not blind:
            at_once = self._at_once(pred, target, which)
            if at_once is not None:
                if self.check_finite and not math.isfinite(at_once.item()):
                    _checks.finite(pred=pred, target=target)
                return at_once
        _checks.pair(pred, target)
        with without_autocast(pred):
            value = self._of_all(pred, target) if which is None else self._of_some(pred, target, which)
        if self.check_finite:
            if torch.compiler.is_compiling():
                torch._assert_async(
                    torch.isfinite(value).all(), "pred and target must be finite, got NaN or inf"
                )
            elif not blind and not math.isfinite(value.detach().sum()):
                _checks.finite(pred=pred, target=target)
        return value

    forward = loss

    def _at_once(self, pred: Tensor, target: Tensor, which: int) -> Tensor | None:
        """One subset in as few operations as can be, the training loop's case; None where it is not that simple."""
        rows = self._buffers["rows"]  # an attribute of a module takes longer than the product below
        if (
            rows is None
            or self.reduction == "none"
            or pred.ndim != 2
            or pred.shape != target.shape
            or pred.dtype is not rows.dtype
            or target.dtype is not rows.dtype
            or torch.is_autocast_enabled(pred.device.type)
        ):
            return None
        K, _, M = rows.shape
        n, C = pred.shape
        if n != M or not -K <= which < K:
            return None
        if self.kind == "complement":
            value = complement_form(pred - target, rows[which])
        else:
            seen = rows[which] @ (pred - target)
            value = (seen * seen).sum()
        return value if C == 1 else value / C

    def _of_some(self, pred: Tensor, target: Tensor, which: int | slice | Tensor) -> Tensor:
        K, M = self.n_subsets, self.subset_size
        if isinstance(which, int):
            if not -K <= which < K:
                raise ValueError(f"which must be a subset from 0 to {K - 1}, got {which}")
            which = slice(which % K, which % K + 1)
        k = len(range(*which.indices(K))) if isinstance(which, slice) else which.numel()
        if pred.shape[0] != k * M or k == 0:
            raise ValueError(
                f"pred must hold the {k * M} rows of the {k} subsets asked for, in plan order, got "
                f"{pred.shape[0]}; leave `which` out to pass all rows"
            )
        if self.kind == "mse" and self.reduction != "none" and pred.dtype.itemsize > 2:
            value = mse_loss(pred, target)  # subsets are of one size
            return value if self.reduction == "mean" else value * k
        residual = as_residual(pred, target)
        return reduce(self._values(residual.reshape(k, M, -1), which), self.reduction)

    def _of_all(self, pred: Tensor, target: Tensor) -> Tensor:
        N, K, M = self.features.shape[0], self.n_subsets, self.subset_size
        if pred.shape[0] != N:
            raise ValueError(
                f"pred must hold all {N} rows, got {pred.shape[0]}; pass `which` for the rows of some subsets"
            )
        residual = as_residual(pred, target)
        C = residual.shape[1]
        if self.reduction == "none":
            return self._values(residual[self.subsets], slice(None))
        if self.kind == "mse":
            total = (residual.square() * self.counts.to(residual.dtype)).sum() / (M * C)
        elif self._dense():
            form = self.form().to(residual.dtype)
            mean = quadratic_form(residual, form)
            mean = mean if C == 1 else mean / C
            return mean if self.reduction == "mean" else mean * K
        else:
            total = self._values(residual[self.subsets], slice(None)).sum()
        return total / K if self.reduction == "mean" else total

    def _values(self, stack: Tensor, which: slice | Tensor) -> Tensor:
        """Values [k] of residuals [k, M, C]."""
        C = stack.shape[2]
        if self.kind == "mse":
            return stack.square().mean((1, 2))
        if self.kind == "chunks":
            return self._values_in_chunks(stack, which)
        if self.rows is None:
            raise RuntimeError("the bank holds no rows")
        seen = (self.rows[which].to(stack.dtype) @ stack).square().sum((1, 2))
        if self.kind == "complement":
            seen = (stack.square().sum((1, 2)) / self.subset_size - seen).clamp_min(0)
        return seen / C

    def _values_in_chunks(self, stack: Tensor, which: slice | Tensor) -> Tensor:
        order = torch.arange(self.n_subsets, device=stack.device)[which]
        values = []
        for piece in self._parts(len(order)):
            part = order[piece]

            def value(residual: Tensor, part: Tensor = part) -> Tensor:
                seen = self._make_rows(part).to(residual.dtype) @ residual
                return seen.square().sum((1, 2)) / residual.shape[2]

            # the rows are made again in the backward pass, so that no more than one chunk of them is ever held;
            # torch.func's transforms do not go with that
            again = not traced()
            values.append(
                checkpoint(value, stack[piece], use_reentrant=False) if again else value(stack[piece])
            )
        return torch.cat(values)

    def _dense(self) -> bool:
        """Whether the N×N form is cheaper than going through the subsets."""
        N, K, M = self.features.shape[0], self.n_subsets, self.subset_size
        if self.probe == "draw" or N > self.dense_rows or (self._form is None and traced()):
            return False
        if self._form is None and self.nbytes + N * N * self.dtype.itemsize > self.max_bytes:
            return False
        return N * N <= K * M * (self._height + 4)  # gathering a row costs about as much as four products

    @torch.no_grad()
    def form(self) -> Tensor:
        """The N×N matrix Q with tr(RᵀQR)/C = mean over the subsets: RLP as one quadratic form. Kept once made."""
        N, K, M = self.features.shape[0], self.n_subsets, self.subset_size
        if self.probe == "draw":
            raise ValueError('form is refused for probe="draw", whose points change; use probe="expected"')
        if N > self.dense_rows:
            raise ValueError(
                f"form makes an N×N matrix and is meant for at most dense_rows={self.dense_rows} rows, got N = {N}; "
                "raise dense_rows if memory allows"
            )
        if self._form is None:
            form = torch.zeros(N, N, dtype=torch.float64, device=self.features.device)
            if self.kind != "mse":
                size = max(1, 2**24 // (self._height * N))
                for start in range(0, K, size):
                    part = slice(start, min(start + size, K))
                    rows = self._make_rows(part) if self.rows is None else self.rows[part]
                    add_form(form, rows, self.subsets[part])
            if self.kind in ("mse", "complement"):
                form = torch.diag(self.counts.squeeze(1).double() / M) - form
            self._form = (form / K).to(self.dtype)
        return self._form

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._form = None  # it was made of the rows that have just been replaced
