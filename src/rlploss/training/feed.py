"""`Feed`: which rows, and which factors of them, at which step. Everything random in a run is drawn here.

Draws depend on the seed, on what they are for and on the epoch, and on nothing that came before: a run that is resumed
or cut into other pieces reads the same. Every process of a distributed run draws the same and reads its own share.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlploss import distributed
from rlploss._checks import warn
from rlploss.loss.bank import ProjectionBank
from rlploss.loss.factors import ranks
from rlploss.loss.mixup import mixup, mixup_lambdas
from rlploss.loss.planes import cut_off_planes, same_moments, weighted_columns, weighted_sums
from rlploss.loss.subsets import balanced_subsets, draw_rows
from rlploss.training.job import Job
from rlploss.training.objectives import RLP
from rlploss.training.rows import flat

HELD_BYTES = 2**28  # what may be held of a plan beyond the rows themselves; past it a block is made at a time
BLOCK_BYTES = 2**26
BLOCK_ROWS = 2**19  # row numbers that a block of several epochs holds
AHEAD = 2048  # steps whose rows are drawn at once at most, since a run may stop early


def stream(seed: int, purpose: str, epoch: int = 0) -> torch.Generator:
    """A CPU generator that depends on the seed, on what it is for, and on the epoch."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{epoch}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


@dataclass(frozen=True, eq=False)
class Window:
    """What steps first..last of a run read: the i-th the rows numbered rows[spans[i, 0]:spans[i, 1]] of x and y.

    For RLP these are whole subsets. Subset j has entries j·M to (j + 1)·M of `rows` and the projector W_j, with value
    (a·‖R‖² + b·‖W_j R‖²)/C: a is `residual_weight`, b is 1 where a is 0, else -1.
    """

    first: int
    last: int
    x: Tensor
    y: Tensor
    rows: Tensor  # [n] of more steps than these perhaps: the same tensor in all windows that were made together
    spans: NDArray[np.int64]  # [S, 2]
    totals: NDArray[np.int64]  # [S] rows, or subsets, of the step in all processes
    every_row: bool = False  # the network runs on all rows of the table once; `rows` are positions among them
    weight: Tensor | None = None  # [N] of the rows, or √ of it for RLP
    partner: Tensor | None = None  # [n] the row that each row is mixed with
    lam: Tensor | None = None  # [n]
    fits_planes: bool = False  # the engine fits the planes to the rows by itself
    projector: Tensor | None = None  # [n / M, q, M]; None: the residual is seen whole
    residual_weight: float = 0.0
    offset: Tensor | None = None  # [n / M] added to the values
    form: Tensor | None = None  # [N, N]
    bank: ProjectionBank | None = None  # where no projector can be held

    def inputs(self, i: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the i-th step."""
        if self.every_row:
            return self.x, self.y
        low, high = self.spans[i].tolist()
        return self.mixed(self.x, low, high), self.mixed(self.y, low, high)

    def mixed(self, table: Tensor, low: int, high: int) -> Tensor:
        """Entries low..high of `rows`, taken from a table and mixed with their partners."""
        here = table[self.rows[low:high].to(table.device)]
        if self.partner is None or self.lam is None:
            return here
        return mixup(here, table[self.partner[low:high].to(table.device)], self.lam[low:high].to(table))


class Feed:
    """Gives the steps of one job, a window at a time.

    A unit is a subset, or a row for pointwise objectives. A block is what is drawn, and factored, together.
    `fits_planes` tells that the engine can fit planes to fresh subsets by itself.
    """

    def __init__(self, job: Job, *, fits_planes: bool = False) -> None:
        self.job, self.table, share = job, job.table, distributed.current()
        objective, n_rows, in_memory = job.objective, job.table.n_rows, job.table.dataset is None
        rlp = self._rlp = objective if isinstance(objective, RLP) else None
        self._unit, in_epoch, in_step = objective.shape()
        first = np.arange(job.steps_per_epoch) * in_step
        self._totals = np.minimum(in_step, (in_epoch or n_rows) - first)
        part = share.of(self._totals)
        self._begin, self._sizes = first + part.start, part.stop - part.start
        mine = int(self._sizes.max()) * self._unit  # rows in a step, at the most
        alone = in_memory and share.world == 1
        # where a step reads at least N rows, the network is run on all rows once: subsets share them
        self._every_row = in_memory and objective.mixup is None and mine >= n_rows and (rlp is not None or alone)
        self.most_rows = n_rows if self._every_row else mine
        self._as_form = self._every_row and alone and job.steps_per_epoch == 1
        self._weight = self.table.weight
        if self._weight is not None:
            self._centre = (self._weight.unsqueeze(1) * self.table.features).mean(0, dtype=torch.float64)
        # a block has whole epochs, or some steps of one; it is kept where every epoch is the same
        self._whole, self._kept, self._fresh = alone, alone and self._every_row, False
        if rlp is not None:
            all_needed = "float32_cutoff=True" if rlp.float32_cutoff else ""
            if rlp.probe == "expected" and rlp.draw_from == "outside":
                all_needed = 'probe="expected" with draw_from="outside"'
            if all_needed and not alone:
                raise ValueError(f"{all_needed} needs all rows in one process and in memory, got a part of them")
            fits = bool(all_needed) or self._as_form or self._held_bytes(rlp) <= HELD_BYTES
            self._whole = alone and fits
            self._same_subsets = rlp.plan == "once" and rlp.mixup is None  # in every epoch
            self._kept = self._whole and self._same_subsets and rlp.probe != "draw"
            self._fresh = fits_planes and alone and not all_needed and self._can_be_fresh(rlp)
        numbers = self.table.n_columns * (1 if rlp is None else 2) + self.table.n_outputs + 1
        self._block_steps = max(1, BLOCK_BYTES // (8 * numbers * max(mine, 1)))
        self._block: Window | None = None
        self._bank: ProjectionBank | None = None
        self._plans: tuple[int, list[Tensor]] | None = None
        self._pool: Tensor | None = None
        self._told = False

    def window(self, step: int, stop: int) -> Window:
        """The steps from `step` on, up to `stop` at most."""
        if self._block is None or not self._block.first <= step < self._block.last:
            self._block = None  # its memory is free before the next one is made
            self._block = self._make_block(step)
        block, last = self._block, min(stop, self._block.last)
        where = (np.arange(step, last) - block.first) % len(block.spans)  # a kept block begins again
        return replace(block, first=step, last=last, spans=block.spans[where], totals=block.totals[where])

    def release(self) -> None:
        """Let go of everything that can be made again."""
        self._block = self._bank = self._plans = self._pool = None

    def _held_bytes(self, r: RLP) -> int:
        """Bytes that factors of a whole plan take."""
        (M, K, _), columns, dtype = r.shape(), self.table.n_columns, self.table.x.dtype
        seen = min(columns, M // 2) if r.planes.is_projection else columns  # or what they do not see, if that is less
        kept = ProjectionBank.bytes_for(K, M, seen, probe=r.probe, intercept=r.planes.intercept, dtype=dtype)
        mixed = 0 if r.mixup is None else K * M * columns * dtype.itemsize
        return kept + mixed + (8 * self.table.n_rows * columns if r.probe == "expected" else 0)

    def _can_be_fresh(self, r: RLP) -> bool:
        """Whether the engine is to fit planes: for factors that could not be kept anyway."""
        p = r.planes.n_columns(self.table.n_columns)
        plain = not r.planes.has_points and r.ridge == 0 and self._weight is None and self._unit > p
        if not plain or self._every_row or self._kept:
            return False
        some = self.table.features[: max(2**13, 2 * p)].unsqueeze(0)
        if some.shape[1] <= p or int(ranks(some, intercept=r.planes.intercept)) < p:
            return False
        r.planes.warn_of_form(warn)  # as a bank of factors would
        return True

    # Draws

    def _plan(self, r: RLP, epoch: int) -> list[Tensor]:
        """The subsets of an epoch [K, M], and with mixup their partners."""
        source = epoch if r.plan == "each-epoch" else 0
        if self._plans is None or self._plans[0] != source:
            (M, K, _), n, generator = r.shape(), self.table.n_rows, stream(self.job.seed, "plan", source)
            n_plans = 1 if r.mixup is None else 2
            plans = [balanced_subsets(n, M, K, method=r.method, generator=generator) for _ in range(n_plans)]
            self._plans = source, plans
        return self._plans[1]

    def _draw(self, epoch: int, low: int, high: int, units: Tensor) -> list[Tensor]:
        """Row numbers of some units, and with mixup those of their partners, and λ, in steps low..high of an epoch."""
        job, n, alpha = self.job, self.table.n_rows, self.job.objective.mixup
        if self._rlp is not None:
            drawn = [plan[units].flatten() for plan in self._plan(self._rlp, epoch)]
            if alpha is None:
                return drawn
            lam = mixup_lambdas(self._rlp.shape()[1], alpha, generator=stream(job.seed, "mixup", epoch))[units]
            return [*drawn, lam.repeat_interleave(self._unit)]
        rows = units
        if self._totals[0] < n:  # with all rows in one step their order means nothing
            rows = torch.randperm(n, generator=stream(job.seed, "shuffle", epoch))
            rows = rows if len(units) == n else rows[units]  # all of them in their order: spares a copy
        if alpha is None:
            return [rows]
        mixed = stream(job.seed, "mixup", epoch)
        partner = torch.randperm(n, generator=mixed)[units]
        lam = mixup_lambdas(job.steps_per_epoch, alpha, generator=mixed)
        return [rows, partner, lam[torch.from_numpy(np.repeat(np.arange(low, high), self._sizes[low:high]))]]

    # Blocks

    def _make_block(self, step: int) -> Window:
        per_epoch = self.job.steps_per_epoch
        epoch, position = divmod(step, per_epoch)
        low, high, epochs = 0, per_epoch, 1
        if self._kept:
            epoch = 0
        elif not self._whole:
            low = position // self._block_steps * self._block_steps
            high = min(low + self._block_steps, per_epoch)
        elif self._rlp is None:
            left = -(-self.job.total_steps // per_epoch) - epoch
            epochs = max(1, min(left, BLOCK_ROWS // self.table.n_rows, AHEAD // per_epoch))
        sizes = self._sizes[low:high]
        units = torch.from_numpy(np.repeat(self._begin[low:high] - np.cumsum(sizes) + sizes, sizes))
        units += torch.arange(len(units))
        drawn = [self._draw(e, low, high, units) for e in range(epoch, epoch + epochs)]
        rows, *mixed = (torch.cat(part) for part in zip(*drawn, strict=True))
        partner, lam = mixed or (None, None)
        lengths = np.tile(sizes, epochs) * self._unit
        spans = np.stack([np.cumsum(lengths) - lengths, np.cumsum(lengths)], axis=1)
        x, y = self.table.x, self.table.y
        if self.table.dataset is not None:  # rows are read when they are needed, and no others
            x, y = self.table.read(torch.cat([rows, *mixed[:1]]))
            rows = torch.arange(len(rows))
            partner = None if partner is None else rows + len(rows)
        first = epoch * per_epoch + low
        last = self.job.total_steps if self._kept else first + len(spans)
        totals = np.tile(self._totals[low:high], epochs)
        weight = self._weight if self._rlp is None or self._weight is None else self._weight.sqrt()
        block = Window(first, last, x, y, rows, spans, totals, self._every_row, weight, partner, lam, self._fresh)
        if self._rlp is None or self._fresh or not len(rows):
            return block
        return self._with_factors(block, self._rlp, epoch, units)

    def _with_factors(self, block: Window, r: RLP, epoch: int, units: Tensor) -> Window:
        """The block with what the planes of its subsets see."""
        plan = block.rows.view(-1, self._unit).to(block.x.device)
        if r.float32_cutoff:
            projector, offset = cut_off_planes(self.table.features, self.table.y, plan)
            return replace(block, projector=projector, offset=offset)
        bank = self._bank
        if bank is None:
            bank = self._make_bank(block, r)
            self._bank = bank if self._whole and self._same_subsets else None
        if r.probe == "draw":
            generator = stream(self.job.seed, "draw", epoch)
            index = draw_rows(self._plan(r, epoch)[0], self.table.n_rows, r.draw_from, generator)[units]
            bank.redraw(self._columns(r, self.table.read(index)[0], index))
        if r.probe == "sum" and self._weight is not None:
            sums = weighted_sums(bank.features[bank.subsets], self._weight[plan], ridge=r.ridge)
            return replace(block, projector=sums.to(self.table.x.dtype))
        if self._as_form and bank.prefers_form():
            return replace(block, form=bank.form())
        if bank.kind == "chunks":
            return replace(block, bank=bank)
        return replace(block, projector=bank.rows, residual_weight=bank.residual_weight)

    def _make_bank(self, block: Window, r: RLP) -> ProjectionBank:
        own = self._whole and block.partner is None  # the planes' rows are those of the table
        if own:
            features, plan = self._columns(r, block.x, None), block.rows.to(block.x.device)
        else:
            features = self._columns(r, block.mixed(block.x, 0, len(block.rows)), block.rows)
            plan = torch.arange(len(block.rows), device=features.device)
        pool = None
        if r.probe == "expected" and not own:
            if self._pool is None:
                n, read = self.table.n_rows, self.table.read
                parts = torch.split(torch.arange(n), 2**16)
                self._pool = same_moments(n, lambda: (self._columns(r, read(part)[0], part) for part in parts))
            pool = self._pool
        with warnings.catch_warnings():
            if self._told:  # about subsets like these
                warnings.simplefilter("ignore")
            self._told = True
            return ProjectionBank(
                features,
                plan.view(-1, self._unit),
                probe=r.probe,
                intercept=r.planes.intercept and self._weight is None,
                ridge=r.ridge,
                draw_from=r.draw_from if own else "train",
                probe_points=pool,
                max_bytes=HELD_BYTES if self._as_form else 2**62,
                generator=torch.Generator(),  # its own first points are replaced at once
                check_finite=False,
            )

    def _columns(self, r: RLP, x: Tensor, rows: Tensor | None) -> Tensor:
        """Inputs as the planes see them; `rows` says which they are, None: all."""
        if self._weight is None:
            return flat(x)
        weight = self._weight if rows is None else self._weight[rows.to(self._weight.device)]
        return weighted_columns(flat(x), weight, self._centre, intercept=r.planes.intercept, ridge=r.ridge)
