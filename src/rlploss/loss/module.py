"""`RLPLoss`: the loss as a module, for a batch whose subsets are drawn on the spot."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from rlploss import _checks
from rlploss.loss.factors import traced
from rlploss.loss.functional import compute, fresh_value, reduce, tell_from_options
from rlploss.loss.planes import PROBES
from rlploss.loss.subsets import balanced_subsets


class RLPLoss(nn.Module):
    """Random Linear Projections loss of a batch: `loss(pred, target, features)`.

    Args:
        subset_size: M, rows per subset; None makes the whole batch one subset.
        n_subsets: K, subsets drawn from each batch; None takes as many disjoint ones as the batch holds.
        probe, intercept, ridge, draw_from, features_grad, reduction, check_finite: as in `rlp_loss`.
        generator: source of subsets and draws; None is torch's default generator.

    For a fixed table with the same subsets in every epoch, `ProjectionBank` keeps the factors and is faster.

    >>> loss = RLPLoss(intercept=True)
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
        intercept: bool = False,
        ridge: float = 0.0,
        draw_from: str = "train",
        features_grad: bool = False,
        reduction: str = "mean",
        generator: torch.Generator | None = None,
        check_finite: bool = True,
    ) -> None:
        super().__init__()
        self.subset_size = None if subset_size is None else _checks.count("subset_size", subset_size)
        self.n_subsets = None if n_subsets is None else _checks.count("n_subsets", n_subsets)
        if n_subsets is not None and subset_size is None:
            raise ValueError(f"n_subsets={n_subsets} needs a subset_size; without one the batch is one subset")
        self.ridge = _checks.options(probe, ridge, reduction, draw_from, PROBES)
        self.probe, self.intercept, self.reduction, self.draw_from = probe, intercept, reduction, draw_from
        self.features_grad, self.generator, self.check_finite = features_grad, generator, check_finite
        self._whole = subset_size is None and probe == "subset" and self.ridge == 0 and not features_grad
        self._told: set[type[Warning]] = set()
        self._handle = _register(self)
        tell_from_options(probe, intercept, self._tell)

    def forward(self, pred: Tensor, target: Tensor, features: Tensor, probe_points: Tensor | None = None) -> Tensor:
        """The loss of one batch; `probe_points` as in `rlp_loss`."""
        if self._whole and probe_points is None and not traced():  # the short way of the training loop
            _checks.pair(pred, target)
            x = _checks.feature_matrix(features, pred.shape[0])
            value = fresh_value(pred, target, x, self.intercept, self.check_finite)
            if value is not None:
                return reduce(value, self.reduction)
        subsets = None
        if self.subset_size is not None:
            _checks.pair(pred, target)
            n_rows, size = pred.shape[0], self.subset_size
            if size > n_rows:
                raise ValueError(
                    f"subset_size must be at most the batch's {n_rows} rows, got {size}; "
                    "use larger batches (drop_last=True), or smaller subsets"
                )
            wanted = n_rows // size if self.n_subsets is None else self.n_subsets
            if torch.compiler.is_compiling():
                subsets = torch.ops.rlploss.balanced_subsets(pred.detach(), n_rows, size, wanted, self._handle)
            else:
                subsets = balanced_subsets(n_rows, size, wanted, generator=self.generator).to(pred.device)
        return compute(
            pred,
            target,
            features,
            subsets=subsets,
            probe=self.probe,
            intercept=self.intercept,
            ridge=self.ridge,
            probe_points=probe_points,
            draw_from=self.draw_from,
            generator=self.generator,
            features_grad=self.features_grad,
            reduction=self.reduction,
            check_finite=self.check_finite,
            tell=self._tell,
        )

    def extra_repr(self) -> str:
        """For print(loss)."""
        size = "the batch" if self.subset_size is None else self.subset_size
        many = "as many as fit" if self.n_subsets is None else self.n_subsets
        return (
            f"subset_size={size}, n_subsets={1 if self.subset_size is None else many}, probe={self.probe!r}, "
            f"intercept={self.intercept}, ridge={self.ridge}, reduction={self.reduction!r}"
        )

    def _tell(self, kind: type[Warning], text: str) -> None:
        """Once per module."""
        if not torch.compiler.is_compiling() and kind not in self._told:
            self._told.add(kind)
            _checks.warn(kind, text)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy gets a handle of its own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's own has no types
        self._handle = _register(self)


# Compiled code cannot trace the making of a plan, nor take a generator: it calls this operation, which finds its
# module, and so the module's generator, by a number.
_modules: weakref.WeakValueDictionary[int, RLPLoss] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def _register(module: RLPLoss) -> int:
    handle = next(_numbers)
    _modules[handle] = module
    return handle


@torch.library.custom_op("rlploss::balanced_subsets", mutates_args=())
def _balanced_subsets(like: Tensor, n_rows: int, subset_size: int, n_subsets: int, handle: int) -> Tensor:
    generator = _modules[handle].generator
    return balanced_subsets(n_rows, subset_size, n_subsets, generator=generator).to(like.device)


@_balanced_subsets.register_fake
def _(like: Tensor, n_rows: int, subset_size: int, n_subsets: int, handle: int) -> Tensor:
    return like.new_empty((n_subsets, subset_size), dtype=torch.int64)
