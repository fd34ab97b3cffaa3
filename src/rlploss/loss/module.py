"""`RLPLoss`: the loss as a module, for a batch whose subsets are drawn on the spot."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from rlploss import _checks
from rlploss.loss.functional import quick_value, subset_values
from rlploss.loss.planes import PlaneForm
from rlploss.loss.quadratic import reduce
from rlploss.loss.subsets import balanced_subsets


class RLPLoss(nn.Module):
    """Random Linear Projections loss of a batch: `loss(pred, target, features)`.

    Planes are fitted to the predictions and to the targets of a subset of rows; the loss is how far
    apart they are. For a fixed table with the same subsets in every epoch, `ProjectionBank` keeps
    the factors and is faster.

    Args:
        subset_size: M, rows per subset; None makes the whole batch one subset.
        n_subsets: K, subsets drawn from each batch; None takes as many disjoint ones as the batch
            holds.
        probe: where the two planes are compared. "subset": on the subset's own rows; "draw": at one
            random row z per subset; "expected": the mean over those draws, taken exactly; "sum":
            summed over the rows, then squared.
        intercept: fit planes with an offset; None is True, except for probe="sum", where the offset
            would leave nothing but the mean residual. False is the paper's formula.
        ridge: λ ≥ 0, added to the diagonal of xᵀx; the offset is not penalised.
        draw_from: rows that z may come from, "train" (all of the batch) or "outside" (those not in
            the subset).
        features_grad: let the gradient reach `features`; every subset must then have full rank.
        reduction: over subsets, "mean", "sum" or "none" (one value per subset).
        generator: source of subsets and draws; None is torch's default generator.
        check_finite: raise on NaN or inf, naming the place. Costs a synchronisation on a GPU.

    >>> loss = RLPLoss()
    >>> x, y = torch.randn(32, 3), torch.randn(32)
    >>> float(loss(y, y, x))
    0.0
    """

    def __init__(
        self,
        subset_size: int | None = None,
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
        self.subset_size = (
            None if subset_size is None else _checks.count("subset_size", subset_size)
        )
        self.n_subsets = None if n_subsets is None else _checks.count("n_subsets", n_subsets)
        if n_subsets is not None and subset_size is None:
            raise ValueError(
                f"n_subsets={n_subsets} needs a subset_size; without one the batch is one subset"
            )
        self.plane_form = PlaneForm(probe, intercept, ridge, draw_from)
        self.reduction = _checks.one_of("reduction", reduction, _checks.REDUCTIONS)
        self.features_grad, self.generator, self.check_finite = (
            features_grad,
            generator,
            check_finite,
        )
        self._warned: set[type[Warning]] = set()
        self._register()
        self.plane_form.warn_of_form(self._warn)

    def forward(
        self, pred: Tensor, target: Tensor, features: Tensor, probe_points: Tensor | None = None
    ) -> Tensor:
        """The loss of one batch: predictions and targets (N,), (N, 1) or (N, C), features (N, d) or
        images.

        `probe_points` are for "draw" the points z themselves, (K, d), for "expected" the rows to
        average over, (n, d); by default both come from `features`.
        """
        if self.subset_size is None and probe_points is None and not self.features_grad:
            value = quick_value(pred, target, features, self.plane_form, self.check_finite)
            if value is not None:
                return reduce(value, self.reduction)
        subsets = (
            None if self.subset_size is None else self._subsets(pred, target, self.subset_size)
        )
        how = (self.plane_form, self.generator, self.features_grad, self.check_finite, self._warn)
        return reduce(
            subset_values(pred, target, features, subsets, probe_points, *how), self.reduction
        )

    def _subsets(self, pred: Tensor, target: Tensor, size: int) -> Tensor:
        """New subsets [K, M] of the batch."""
        _checks.pair(pred, target)
        n_rows = pred.shape[0]
        if size > n_rows:
            wrong = f"subset_size must be at most the batch's {n_rows} rows, got {size}"
            raise ValueError(f"{wrong}; use larger batches (drop_last=True), or smaller subsets")
        wanted = n_rows // size if self.n_subsets is None else self.n_subsets
        if torch.compiler.is_compiling():
            drawn: Tensor = torch.ops.rlploss.balanced_subsets(
                pred.detach(), n_rows, size, wanted, self._handle
            )
            return drawn
        return balanced_subsets(n_rows, size, wanted, generator=self.generator).to(pred.device)

    def extra_repr(self) -> str:
        size = "the batch" if self.subset_size is None else self.subset_size
        many = "as many as fit" if self.n_subsets is None else self.n_subsets
        sizes = f"subset_size={size}, n_subsets={1 if self.subset_size is None else many}"
        return f"{sizes}, {self.plane_form}, reduction={self.reduction!r}"

    def _warn(self, kind: type[Warning], text: str) -> None:
        """Once per module."""
        if not torch.compiler.is_compiling() and kind not in self._warned:
            self._warned.add(kind)
            _checks.warn(kind, text)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy gets a handle of its own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's own has no types
        self._register()

    def _register(self) -> None:
        self._handle = id(self)
        _modules[self._handle] = self


# Compiled code cannot trace the making of a plan, nor take a generator: it calls this operation,
# which finds its module, and so the module's generator, by a number.
_modules: weakref.WeakValueDictionary[int, RLPLoss] = weakref.WeakValueDictionary()


@torch.library.custom_op("rlploss::balanced_subsets", mutates_args=())
def _balanced_subsets(
    like: Tensor, n_rows: int, subset_size: int, n_subsets: int, handle: int
) -> Tensor:
    generator = _modules[handle].generator
    return balanced_subsets(n_rows, subset_size, n_subsets, generator=generator).to(like.device)


@_balanced_subsets.register_fake
def _(like: Tensor, n_rows: int, subset_size: int, n_subsets: int, handle: int) -> Tensor:
    return like.new_empty((n_subsets, subset_size), dtype=torch.int64)
