"""Feed training with data: the rows, and the factors of their subsets, that each step reads.

All random draws of a run happen here. They depend on the seed, the purpose and the epoch only, and
not on earlier draws. So a run that is resumed, or divided differently, reads the same data.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlploss._checks import warn
from rlploss.loss.bank import ProjectionBank
from rlploss.loss.factors import ranks
from rlploss.loss.mixup import mixup, mixup_lambdas
from rlploss.loss.planes import (
    PlaneForm,
    cut_off_planes,
    same_moments,
    weighted_columns,
    weighted_sums,
)
from rlploss.loss.quadratic import projected_value, quadratic_value
from rlploss.loss.subsets import balanced_subsets, draw_rows
from rlploss.training.job import Job
from rlploss.training.objectives import RLP, TwoSpeed

# The limit for the factors of a whole plan. Beyond it they are computed one block at a time.
HELD_BYTES = 2**28
BLOCK_BYTES = 2**26
BLOCK_ROWS = 2**19  # the most row numbers in a block of several epochs
MOST_STEPS = 2**16  # in a window
AHEAD = 2048  # the most steps whose rows are drawn at once, since a run may stop early


def stream(seed: int, purpose: str, epoch: int = 0) -> torch.Generator:
    """Return a CPU generator that depends on the seed, the purpose and the epoch."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{epoch}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


# What a block of steps reads: rows, and what the planes of their subsets see


@dataclass(frozen=True, eq=False)
class PlainRows:
    """Numbers of the rows [n] that a block reads."""

    index: Tensor

    def of(self, table: Tensor, low: int, high: int) -> Tensor:
        """Take the rows of entries low..high from a table [N, ...]."""
        return table[self.index[low:high].to(table.device)]


@dataclass(frozen=True, eq=False)
class MixedRows(PlainRows):
    """Rows that are mixed with others: λ times the row plus 1 − λ times its partner."""

    partner: Tensor  # [n]
    lam: Tensor  # [n]

    def of(self, table: Tensor, low: int, high: int) -> Tensor:
        partners = table[self.partner[low:high].to(table.device)]
        return mixup(super().of(table, low, high), partners, self.lam[low:high].to(table))


class Planes:
    """What the planes of a block's subsets see of the residual; a loss of single rows has no
    planes.
    """

    def value(self, residual: Tensor, subsets: slice, index: Tensor | None) -> Tensor:
        """Return the mean value of some subsets. The residual R [B, C] is that of their rows, one
        subset after another, or that of all rows, of which `index` selects theirs.
        """
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class KeptPlanes(Planes):
    """A projector W_j for each subset, with value (a·‖R‖² + b·‖W_j R‖²)/C."""

    projector: Tensor | None  # [K, q, M]; None: the planes see the whole residual
    residual_weight: float = 0.0  # a; b is 1 if a is 0, else -1
    offset: Tensor | None = None  # [K] added to the values

    def value(self, residual: Tensor, subsets: slice, index: Tensor | None) -> Tensor:
        own = residual if index is None else residual.index_select(0, index)
        k, C = subsets.stop - subsets.start, residual.shape[1]
        rows = None if self.projector is None else self.projector[subsets]
        value: Tensor = projected_value(own.view(k, -1, C), rows, self.residual_weight).sum()
        value = value / (k * C)
        return value if self.offset is None else value + self.offset[subsets].sum() / k


@dataclass(frozen=True, eq=False)
class OneForm(Planes):
    """All subsets of a step in one form: tr(RᵀQR)/C."""

    matrix: Tensor  # Q [N, N]

    def value(self, residual: Tensor, subsets: slice, index: Tensor | None) -> Tensor:
        return quadratic_value(residual, self.matrix.to(residual.dtype)) / residual.shape[1]


@dataclass(frozen=True, eq=False)
class PlanesInParts(Planes):
    """All subsets of a step, whose projectors are too large together; a bank computes some at a
    time.
    """

    bank: ProjectionBank

    def value(self, residual: Tensor, subsets: slice, index: Tensor | None) -> Tensor:
        return self.bank.loss(residual, torch.zeros_like(residual))


@dataclass(frozen=True, eq=False)
class FreshPlanes(Planes):
    """Planes of this form, which the engine itself fits to the rows."""

    form: PlaneForm


@dataclass(frozen=True, eq=False)
class Block:
    """Steps that are drawn together, from step `first` on. Step s of them reads entries spans[s,
    0]:spans[s, 1] of `rows`. Subset j has entries j·M to (j + 1)·M.
    """

    first: int
    spans: NDArray[np.int64]  # [S, 2]
    rows: PlainRows
    planes: Planes


class Feed:
    """Provides the steps of one job, a block at a time: whole epochs, or some steps of an epoch
    that does not fit into memory. If all epochs are the same, one block serves them all.

    A unit is a subset, or a row for losses of single rows.
    """

    def __init__(self, job: Job, total_steps: int) -> None:
        self.job, self.table = job, job.table
        self._n_epochs = -(-total_steps // job.steps_per_epoch)
        self.unit, in_epoch, in_step = job.objective.shape()
        self._n_units = in_epoch or self.table.n_rows
        self._in_step = min(in_step, self._n_units)
        rows = self._in_step * self.unit
        # If a step reads at least N rows, the network runs on all rows once, and subsets share the
        # outputs.
        self.every_row = job.objective.mixup is None and rows >= self.table.n_rows
        self.most_rows = self.table.n_rows if self.every_row else rows
        self.weight = self.table.weight  # [N]
        self._block: Block | None = None
        self._repeats = self.every_row  # one block serves all epochs
        self._block_steps = job.steps_per_epoch
        ahead = min(BLOCK_ROWS // (self._n_units * self.unit), AHEAD // job.steps_per_epoch)
        self._block_epochs = max(1, ahead)

    def window(self, step: int, stop: int) -> tuple[Block, NDArray[np.int64]]:
        """Return the block of this step, and the spans [S, 2] of the steps from it on, up to
        `stop`.
        """
        block = self._block
        if block is None or not (self._repeats or 0 <= step - block.first < len(block.spans)):
            self._block = None  # frees its memory before the next block is computed
            block = self._block = self._make_block(step)
        places = np.arange(step, min(stop, step + MOST_STEPS)) - block.first
        if not self._repeats:
            places = places[places < len(block.spans)]
        return block, block.spans[places % len(block.spans)]

    def inputs(self, block: Block, low: int, high: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of a step."""
        if self.every_row:
            return self.table.x, self.table.y
        return block.rows.of(self.table.x, low, high), block.rows.of(self.table.y, low, high)

    def _make_block(self, step: int) -> Block:
        per_epoch = self.job.steps_per_epoch
        epoch, position = divmod(0 if self._repeats else step, per_epoch)
        epoch -= epoch % self._block_epochs  # blocks are the same wherever a run was cut
        low = position // self._block_steps * self._block_steps
        high = min(low + self._block_steps, per_epoch)
        epochs = 1 if self._repeats else min(self._block_epochs, self._n_epochs - epoch)
        ends = np.minimum(np.arange(low, high + 1) * self._in_step, self._n_units)
        units = torch.arange(ends[0], ends[-1])
        drawn = [self._draw(e, units) for e in range(epoch, epoch + epochs)]
        index, *mixed = (torch.cat(part) for part in zip(*drawn, strict=True))
        rows = MixedRows(index, *mixed) if mixed else PlainRows(index)
        lengths = np.tile(np.diff(ends), epochs) * self.unit
        spans = np.stack([np.cumsum(lengths) - lengths, np.cumsum(lengths)], axis=1)
        return Block(
            epoch * per_epoch + low, spans=spans, rows=rows, planes=self._planes(rows, epoch, units)
        )

    def _draw(self, epoch: int, units: Tensor) -> list[Tensor]:
        """Draw the row numbers of some units of an epoch; with mixup also those of their partners,
        and λ.
        """
        job, n, alpha, index = self.job, self.table.n_rows, self.job.objective.mixup, units
        if self._in_step < n:  # with all rows in one step the order does not matter
            index = torch.randperm(n, generator=stream(job.seed, "shuffle", epoch))
        if alpha is None:
            return [index]
        mixed = stream(job.seed, "mixup", epoch)
        partner = torch.randperm(n, generator=mixed)
        lam = mixup_lambdas(job.steps_per_epoch, alpha, generator=mixed)
        return [index, partner, lam[units // self._in_step]]

    def _planes(self, rows: PlainRows, epoch: int, units: Tensor) -> Planes:
        """Return what planes see in a block of rows."""
        return Planes()


class SubsetFeed(Feed):
    """Provides the steps of RLP: subsets, and what their planes see.

    `fits_planes` means that the engine itself can fit planes to subsets that are used once.
    """

    def __init__(self, job: Job, total_steps: int, rlp: RLP, *, fits_planes: bool) -> None:
        super().__init__(job, total_steps)
        self._rlp = rlp
        self._columns = self.table.features  # as the planes use them
        if (weight := self.table.weight) is not None:
            self.weight = weight.sqrt()
            centre = (weight.unsqueeze(1) * self._columns).mean(0, dtype=torch.float64)
            self._columns = weighted_columns(
                self._columns, weight, centre, intercept=rlp.planes.intercept, ridge=rlp.ridge
            )
        self._as_form = self.every_row and job.steps_per_epoch == 1
        all_needed = rlp.float32_cutoff or (rlp.probe, rlp.draw_from) == ("expected", "outside")
        self._whole = all_needed or self._as_form or self._held_bytes() <= HELD_BYTES
        if not self._whole:
            row_bytes = 8 * (2 * self.table.n_columns + self.table.n_outputs + 1)
            self._block_steps = max(1, BLOCK_BYTES // (row_bytes * self._in_step * self.unit))
        # Whether every epoch has the same subsets.
        self._same_subsets = rlp.plan == "once" and rlp.mixup is None
        self._repeats = self._whole and self._same_subsets and rlp.probe != "draw"
        self._fresh = fits_planes and not all_needed and self.can_be_fresh()
        ahead = BLOCK_BYTES // self._held_bytes() if self._fresh and self._whole else 1
        self._block_epochs = max(1, min(ahead, self._block_epochs))
        self._bank: ProjectionBank | None = None
        self._plans: tuple[int, list[Tensor]] | None = None
        self._pool: Tensor | None = None
        self._warned = False

    def _held_bytes(self) -> int:
        """Return the bytes that the factors of a whole plan take."""
        r, columns, dtype = self._rlp, self.table.n_columns, self.table.x.dtype
        M, K, _ = r.shape()
        # The complement is stored if it is smaller.
        seen = min(columns, M // 2) if r.planes.is_projection else columns
        factors = ProjectionBank.bytes_for(
            K, M, seen, probe=r.probe, intercept=r.planes.intercept, dtype=dtype
        )
        mixed = 0 if r.mixup is None else K * M * columns * dtype.itemsize
        return factors + mixed + (8 * self.table.n_rows * columns if r.probe == "expected" else 0)

    def can_be_fresh(self) -> bool:
        """Return whether the engine should fit planes, because their factors could not be stored
        anyway.
        """
        form = self._rlp.planes
        p = form.n_columns(self.table.n_columns)
        plain = not form.has_points and form.ridge == 0 and self.weight is None and self.unit > p
        if not plain or self.every_row or self._repeats:
            return False
        some = self.table.features[: max(2**13, 2 * p)].unsqueeze(0)
        if some.shape[1] <= p or int(ranks(some, intercept=form.intercept)) < p:
            return False
        form.warn_of_form(warn)  # as a bank of factors would
        return True

    def _plan(self, epoch: int) -> list[Tensor]:
        """Return the subsets of an epoch [K, M], and with mixup their partners."""
        r, n = self._rlp, self.table.n_rows
        source = epoch if r.plan == "each-epoch" else 0
        if self._plans is None or self._plans[0] != source:
            (M, K, _), generator = r.shape(), stream(self.job.seed, "plan", source)
            plans = [
                balanced_subsets(n, M, K, method=r.method, generator=generator)
                for _ in range(1 if r.mixup is None else 2)
            ]
            if M == n and r.mixup is None:  # all rows in their own order, which saves the gathering
                plans = [torch.arange(n).view(1, n)]
            self._plans = source, plans
        return self._plans[1]

    def _draw(self, epoch: int, units: Tensor) -> list[Tensor]:
        drawn = [plan[units].flatten() for plan in self._plan(epoch)]
        if self._rlp.mixup is not None:
            lam = mixup_lambdas(
                self._n_units, self._rlp.mixup, generator=stream(self.job.seed, "mixup", epoch)
            )
            drawn.append(lam[units].repeat_interleave(self.unit))
        return drawn

    def _planes(self, rows: PlainRows, epoch: int, units: Tensor) -> Planes:
        r, table = self._rlp, self.table
        plan = rows.index.view(-1, self.unit).to(table.x.device)
        if self._fresh:
            return FreshPlanes(r.planes)
        if r.float32_cutoff:
            projector, offset = cut_off_planes(table.features, table.y, plan)
            return KeptPlanes(projector, offset=offset)
        bank = self._make_bank(rows) if self._bank is None else self._bank
        self._bank = bank if self._whole and self._same_subsets else None
        if r.probe == "draw":
            generator = stream(self.job.seed, "draw", epoch)
            index = draw_rows(self._plan(epoch)[0], table.n_rows, r.draw_from, generator=generator)[
                units
            ]
            bank.redraw(self._columns[index.to(self._columns.device)])
        if r.probe == "sum" and table.weight is not None:
            sums = weighted_sums(bank.features[bank.subsets], table.weight[plan], ridge=r.ridge)
            return KeptPlanes(sums.to(table.x.dtype))
        if self._as_form and bank.prefers_form():
            return OneForm(bank.form())
        if bank.kind == "chunks":
            return PlanesInParts(bank)
        return KeptPlanes(bank.rows, bank.residual_weight)

    def _make_bank(self, rows: PlainRows) -> ProjectionBank:
        r, features, plan = self._rlp, self._columns, rows.index
        own = self._whole and r.mixup is None  # whether the bank's rows are those of the table
        if not own:
            if r.probe == "expected" and self._pool is None:
                self._pool = same_moments(len(features), lambda: torch.split(self._columns, 2**16))
            features, plan = rows.of(features, 0, len(plan)), torch.arange(len(plan))
        with warnings.catch_warnings():
            if self._warned:  # the same subsets would give the same warnings
                warnings.simplefilter("ignore")
            self._warned = True
            return ProjectionBank(
                features,
                plan.view(-1, self.unit).to(features.device),
                probe=r.probe,
                intercept=r.planes.intercept and self.weight is None,
                ridge=r.ridge,
                draw_from=r.draw_from if own else "train",
                probe_points=self._pool,
                max_bytes=HELD_BYTES if self._as_form else 2**62,
                generator=torch.Generator(),  # its first points are replaced at once
                check_finite=False,
            )


def make_feed(job: Job, total_steps: int, *, fits_planes: bool = False) -> Feed:
    """Return the feed of a job; `fits_planes` means that its engine can fit planes."""
    objective = job.objective
    if isinstance(objective, TwoSpeed):
        objective = objective.batches
    if isinstance(objective, RLP):
        return SubsetFeed(job, total_steps, objective, fits_planes=fits_planes)
    return Feed(job, total_steps)
