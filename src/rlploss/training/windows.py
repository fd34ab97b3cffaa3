"""The steps of one network whose rows are read as they are needed, or of one process among several.

Where `Feed` holds the factors of all K subsets, this reads and factors a window of steps at a time: memory is bounded
whatever N and K are, and a process of a distributed run reads only what is its own. Same draws, same results.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rlploss.distributed import Share
from rlploss.loss.bank import ProjectionBank
from rlploss.loss.mixup import mixup
from rlploss.loss.moments import same_moments
from rlploss.training.draws import Draws
from rlploss.training.feeds import weighted_centre, weighted_columns
from rlploss.training.recipes import Recipe
from rlploss.training.rows import AnyRows, Rows
from rlploss.training.scores import pointwise, projected, row_weight

WINDOW_BYTES = 2**26
HELD_BYTES = 2**28  # what `Feed` may hold beyond the rows themselves before windows take over


def needs_windows(recipe: Recipe, rows: AnyRows) -> bool:
    """Whether the rows, or what would be kept of them, are better read a window at a time."""
    if not isinstance(rows, Rows):
        return True
    r = recipe
    if r.loss != "rlp" or r.subset_size is None or r.n_subsets is None or _fixed(r) is not None:
        return False
    if r.subsets_per_step not in (None, 1) and not r.mixup and r.rows_per_step >= r.n_rows:
        return False  # one quadratic form
    columns, size = rows.n_columns, rows.dtype.itemsize
    kept = ProjectionBank.bytes_for(
        r.n_subsets, r.subset_size, columns, probe=str(r.probe), intercept=r.intercept, dtype=rows.dtype
    )
    if r.mixup:
        kept += r.rows_per_epoch * columns * size
    if r.probe == "expected":
        kept += 8 * r.n_rows * columns
    return kept > HELD_BYTES


def _fixed(recipe: Recipe) -> str | None:
    """Why a recipe needs all its factors at once, or None."""
    if recipe.cutoff:
        return "float32_cutoff=True"
    if recipe.probe == "expected" and recipe.draw_from == "outside":
        return 'probe="expected" with draw_from="outside"'
    return None


@dataclass
class _Window:
    first: int  # step
    last: int
    starts: list[int]  # of each step, the number of its first unit in the window; one more at the end
    x: Tensor
    y: Tensor
    root: Tensor | None
    sight: Tensor | None = None
    whole: float = 0.0


class WindowFeed(Draws):
    """The rows of this process in every step, and the value and gradient of its part of the objective.

    A unit is a subset, or a row for pointwise objectives. A step's value is Σ over processes of what `score` returns.
    """

    def __init__(self, recipe: Recipe, rows: AnyRows, share: Share | None = None) -> None:
        super().__init__(recipe)
        reason = _fixed(recipe)
        if reason is not None:
            raise ValueError(f"{reason} needs all rows in one process and in memory, got a part of them")
        self.rows, self.share = rows, Share() if share is None else share
        self._unit = recipe.subset_size if recipe.loss == "rlp" and recipe.subset_size is not None else 1
        self._n_units = recipe.rows_per_epoch // self._unit
        self._per_step = recipe.rows_per_step // self._unit
        self._window: _Window | None = None
        self._told = False
        n_factors = rows.n_columns + int(recipe.intercept) if recipe.loss == "rlp" else 0
        per_row = (rows.n_columns + rows.n_outputs + n_factors) * rows.dtype.itemsize
        mine = -(-self._per_step // self.share.world) * self._unit
        self._window_steps = max(1, WINDOW_BYTES // (per_row * mine))
        # where a step reads at least N rows, the network is run on all rows once: subsets share them
        self._all_rows = self._unit > 1 and not recipe.mixup and isinstance(rows, Rows) and mine >= recipe.n_rows
        self._root: Tensor | None = None
        self._centre: Tensor | None = None
        if isinstance(rows, Rows) and rows.weight is not None:
            self._root = rows.weight.sqrt()
            self._centre = weighted_centre(rows) if recipe.loss == "rlp" else None
        # points with the moments of all rows
        self._pool = same_moments(self._column_parts) if recipe.probe == "expected" else None

    def _column_parts(self) -> Iterator[Tensor]:
        """All rows as the planes see them, a part at a time."""
        n = self.recipe.n_rows
        for first in range(0, n, 2**16):
            index = torch.arange(first, min(n, first + 2**16))
            x, _ = self.rows.read(index)
            yield self._columns(x, None if self._root is None else self._root[index])

    def _columns(self, x: Tensor, root: Tensor | None) -> Tensor:
        flat = x.unsqueeze(1) if x.ndim == 1 else x.flatten(1)
        if root is None:
            return flat
        return weighted_columns(flat, root, self._centre, self.recipe.intercept, self.recipe.ridge)

    # From draws to tensors

    def release(self) -> None:
        """Let go of the window."""
        self._window = None

    forget_rows = release

    def _prepare(self) -> None:
        if self.recipe.probe == "draw":
            self.release()  # the points are new

    def _mine(self, step: int) -> tuple[int, int, int]:
        """Units low..high of the epoch that are this process's in a step, and how many all processes have in it."""
        first = step * self._per_step
        n = min(self._per_step, self._n_units - first)
        part = self.share.of(n)
        return first + part.start, first + part.stop, n

    def _at(self, step: int) -> _Window:
        window = self._window
        if window is None or not window.first <= step < window.last:
            last = min(step + self._window_steps, self.recipe.steps_per_epoch)
            self._window = None  # its memory is free before the next one is read
            window = self._window = self._read(step, last)
        return window

    def _read(self, first: int, last: int) -> _Window:
        r, draws = self.recipe, self.draws
        spans = [self._mine(step)[:2] for step in range(first, last)]
        starts = [0]
        for low, high in spans:
            starts.append(starts[-1] + high - low)
        units = torch.cat([torch.arange(low, high) for low, high in spans])
        rlp = r.loss == "rlp"
        table, partner = ("plan", "plan_b") if rlp else ("order", "partner")
        index = units if table not in draws else draws[table][units].flatten()
        x, y = self.rows.read(index)
        if r.mixup:
            steps = torch.cat([torch.full((high - low,), first + i) for i, (low, high) in enumerate(spans)])
            lam = draws["lam"][units if rlp else steps].to(x).repeat_interleave(self._unit)
            other_x, other_y = self.rows.read(draws[partner][units].flatten())
            x, y = mixup(x, other_x, lam), mixup(y, other_y, lam)
        root = None if self._root is None else self._root[index.to(self._root.device)]
        window = _Window(first, last, starts, x, y, root)
        if rlp and units.numel():
            self._factor(window, units)
        return window

    def _factor(self, window: _Window, units: Tensor) -> None:
        r = self.recipe
        features = self._columns(window.x, window.root)
        plan = torch.arange(features.shape[0], device=features.device).view(-1, self._unit)
        with warnings.catch_warnings():
            if self._told:  # about subsets like these
                warnings.simplefilter("ignore")
            bank = ProjectionBank(
                features,
                plan,
                probe=str(r.probe),
                intercept=r.intercept and self._root is None,
                ridge=r.ridge,
                probe_points=self._pool,
                max_bytes=2**62,
                generator=torch.Generator(),  # its own first points are replaced at once
                check_finite=False,
            )
        self._told = True
        if r.probe == "draw":
            index = self.draws["points"][units]
            points, _ = self.rows.read(index)
            bank.redraw(self._columns(points, None if self._root is None else self._root[index]))
        window.sight = bank.rows if bank.kind in ("rows", "complement") else None
        window.whole = 1 / self._unit if bank.kind == "complement" else 0.0

    # One step

    def inputs(self, step: int) -> Tensor:
        """The rows that the network is run on in this step; none where others have them all."""
        window = self._at(step)
        if self._all_rows:
            assert isinstance(self.rows, Rows)
            return self.rows.x
        low, high = (self._unit * window.starts[step - window.first + i] for i in range(2))
        return window.x[low:high]

    def score(self, step: int, pred: Tensor) -> tuple[Tensor, Tensor]:
        """The part of the value that is this process's, and its gradient for predictions [b, C] on `inputs(step)`."""
        window, n_all = self._at(step), self._mine(step)[2]
        first, last = (window.starts[step - window.first + i] for i in range(2))
        low, high = first * self._unit, last * self._unit
        if not self._all_rows:
            return self._score(window, slice(first, last), slice(low, high), n_all, pred)
        low_unit, high_unit, _ = self._mine(step)
        index = self.draws["plan"][low_unit:high_unit].flatten().to(pred.device)
        value, back = self._score(window, slice(first, last), slice(low, high), n_all, pred[index])
        return value, torch.zeros_like(pred).index_add_(0, index, back)

    def _score(self, window: _Window, units: slice, rows: slice, n_all: int, pred: Tensor) -> tuple[Tensor, Tensor]:
        loss, C = self.recipe.loss, self.rows.n_outputs
        target, root = window.y[rows], None if window.root is None else window.root[rows]
        if loss != "rlp" or window.sight is None:  # without rows of its own a subset is seen whole: MSE
            kind = "mse" if loss == "rlp" else loss
            each = row_weight(kind, n_all * self._unit, C)
            return pointwise(kind, pred, target, each if root is None else each * root.square())
        residual = pred - target if root is None else (pred - target) * root
        stack = residual.view(-1, self._unit, C)
        values, back = projected(stack, window.sight[units], 1 / (n_all * C), window.whole)
        back = back.view(residual.shape)
        return values.sum(), back if root is None else back * root
