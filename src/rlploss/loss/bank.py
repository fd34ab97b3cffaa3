"""`ProjectionBank`: the factors of many subsets, computed once and kept."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from rlploss import _checks
from rlploss.loss.factors import traced
from rlploss.loss.functional import as_residual, reduce, without_autocast
from rlploss.loss.keeping import KeptRows
from rlploss.loss.quadratic import add_form, complement_form, quadratic_form


class ProjectionBank(KeptRows):
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
                torch._assert_async(torch.isfinite(value).all(), "pred and target must be finite, got NaN or inf")
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
            values.append(checkpoint(value, stack[piece], use_reentrant=False) if again else value(stack[piece]))
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
