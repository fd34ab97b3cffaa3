"""Define `RLPLoss`, the loss as a torch module, which draws the subsets of each batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlploss import _checks
from rlploss.loss.factors import is_tracing
from rlploss.loss.functional import loss_value
from rlploss.loss.planes import PlaneForm
from rlploss.loss.subsets import balanced_subsets


class RLPLoss(nn.Module):
    """The Random Linear Projections loss of a batch: `loss(pred, target, features)`.

    In each subset of rows one plane is fitted to the predictions and one to the targets; the loss
    is their squared distance. For fixed data with the same subsets in every epoch, `ProjectionBank`
    stores the factors and is faster.

    Args:
        subset_size: M, rows per subset, or a fraction of the batch; "auto" is the default of `RLP`:
            min(100, N // 2), but at least p + 2. None makes the whole batch one subset.
        n_subsets: K, the number of subsets drawn from each batch; None takes as many as contain all
            rows, which are disjoint if M divides N.
        probe: where the two planes are compared. "subset": on the subset's own rows; "draw": at one
            random row z per subset; "expected": the mean over those draws, taken exactly; "sum":
            summed over the rows, then squared.
        intercept: fit planes with an offset; None is True, except for probe="sum", where the offset
            would leave nothing but the mean residual. False is the paper's formula.
        ridge: λ ≥ 0, added to the diagonal of xᵀx; the offset is not penalised.
        draw_from: rows that z may come from, "train" (all of the batch) or "outside" (those not in
            the subset).
        features_grad: let the gradient reach `features`; every subset must then have full column
            rank, or a ridge.
        reduction: over subsets, "mean", "sum" or "none" (one value per subset).
        generator: source of subsets and draws; None is torch's default generator, which compiled
            code and activation checkpointing need.
        check_finite: raise an error on NaN or inf, which names the place. On a GPU this costs a
            synchronisation.

    >>> loss = RLPLoss()
    >>> x, y = torch.randn(32, 3), torch.randn(32)
    >>> float(loss(y, y, x))
    0.0
    """

    def __init__(
        self,
        subset_size: int | float | str | None = None,
        n_subsets: int | None = None,
        *,
        probe: str = "subset",
        intercept: bool | None = None,
        ridge: float = 0.0,
        draw_from: str = "train",
        features_grad: bool = False,
        reduction: str = "mean",
        generator: torch.Generator | None = None,
        check_finite: bool = True,
    ) -> None:
        super().__init__()
        if isinstance(subset_size, str):
            _checks.one_of("subset_size", subset_size, ("auto",))
        elif isinstance(subset_size, float):
            _checks.number("subset_size, a fraction of the batch,", subset_size, 0.0, 1.0)
        elif subset_size is not None:
            subset_size = _checks.count("subset_size", subset_size)
        self.subset_size = subset_size
        self.n_subsets = None if n_subsets is None else _checks.count("n_subsets", n_subsets)
        if n_subsets is not None and subset_size is None:
            raise ValueError(
                f"n_subsets={n_subsets} needs a subset_size; without one the batch is one subset"
            )
        self.plane_form = PlaneForm(probe, intercept, ridge=ridge, draw_from=draw_from)
        self.reduction = _checks.one_of("reduction", reduction, _checks.REDUCTIONS)
        self.features_grad, self.generator, self.check_finite = (
            features_grad,
            generator,
            check_finite,
        )
        self._warned: set[type[Warning]] = set()
        self.plane_form.warn_of_form(self._warn)

    def forward(
        self,
        pred: Tensor,
        target: Tensor,
        features: Tensor,
        *,
        weight: Tensor | None = None,
        probe_points: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of one batch: predictions and targets (N,), (N, 1) or (N, C), features
        (N, d) or images, weights of the rows (N,).

        `probe_points` are the points z (K, d) for "draw", and the rows (n, d) to average over for
        "expected". By default they come from `features`.
        """
        return loss_value(
            pred,
            target,
            features,
            subsets=None if self.subset_size is None else self._subsets(pred, target, features),
            weight=weight,
            form=self.plane_form,
            probe_points=probe_points,
            generator=self.generator,
            features_grad=self.features_grad,
            reduction=self.reduction,
            check_finite=self.check_finite,
            warn=self._warn,
        )

    def _subsets(self, pred: Tensor, target: Tensor, features: Tensor) -> Tensor:
        """Draw new subsets [K, M] of the batch."""
        _checks.pair(pred, target)
        _checks.replayable(self.generator)
        n_rows, size = pred.shape[0], self._size(_checks.feature_matrix(features, pred.shape[0]))
        wanted = -(-n_rows // size) if self.n_subsets is None else self.n_subsets
        if is_tracing(pred):
            seed = torch.randint(2**62, (1,), generator=self.generator, device="cpu")
            plan: Tensor = torch.ops.rlploss.balanced_subsets(seed, n_rows, size, wanted)
        else:
            plan = balanced_subsets(n_rows, size, wanted, generator=self.generator)
        return plan.to(pred.device)

    def _size(self, x: Tensor) -> int:
        """Return M for a batch with these features [N, d]."""
        N, size = x.shape[0], self.subset_size
        if isinstance(size, float):
            return max(1, int(size * N))
        if not isinstance(size, int):
            return min(N, max(min(100, N // 2), self.plane_form.n_columns(x.shape[1]) + 2))
        if size > N:
            raise ValueError(
                f"subset_size must be at most the batch's {N} rows, got {size}; use larger"
                " batches (drop_last=True), or smaller subsets"
            )
        return size

    def extra_repr(self) -> str:
        return (
            f"subset_size={self.subset_size!r}, n_subsets={self.n_subsets}, {self.plane_form},"
            f" reduction={self.reduction!r}"
        )

    def _warn(self, kind: type[Warning], text: str) -> None:
        """Warn once per module and class of warning."""
        if not torch.compiler.is_compiling() and kind not in self._warned:
            self._warned.add(kind)
            _checks.warn(kind, text)


# Compiled code cannot trace how a plan is drawn, so it calls this operation. The seed is drawn in
# the compiled code, so that torch repeats it when activations are computed again.
@torch.library.custom_op("rlploss::balanced_subsets", mutates_args=())
def _balanced_subsets(seed: Tensor, n_rows: int, subset_size: int, n_subsets: int) -> Tensor:
    generator = torch.Generator().manual_seed(int(seed))
    return balanced_subsets(n_rows, subset_size, n_subsets, generator=generator)


@_balanced_subsets.register_fake
def _(seed: Tensor, n_rows: int, subset_size: int, n_subsets: int) -> Tensor:
    return seed.new_empty((n_subsets, subset_size), dtype=torch.int64)
