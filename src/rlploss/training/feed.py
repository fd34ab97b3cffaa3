"""`Feed`: which rows, and which factors of them, at which step. Everything random in a run is drawn here.

Draws depend on the seed, on what they are for and on the epoch, and on nothing that came before: a run that is resumed
or cut into other pieces reads the same. Every process of a distributed run draws the same and reads its own share.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlploss.distributed import Share
from rlploss.loss.bank import ProjectionBank
from rlploss.loss.factors import factor, ranks
from rlploss.loss.functional import draw_rows
from rlploss.loss.mixup import mixup, mixup_lambdas
from rlploss.loss.moments import same_moments
from rlploss.loss.subsets import balanced_subsets
from rlploss.training.job import Job
from rlploss.training.objectives import RLP
from rlploss.training.rows import Table

HELD_BYTES = 2**28  # what may be held of a plan beyond the rows themselves; past it a block is made at a time
BLOCK_BYTES = 2**26
BLOCK_ROWS = 2**19  # row numbers that a block of several epochs holds


def stream(seed: int, purpose: str, epoch: int = 0) -> torch.Generator:
    """A CPU generator that depends on the seed, on what it is for, and on the epoch."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{epoch}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


@dataclass(frozen=True, eq=False)
class Block:
    """What a number of steps read. Step i has the rows numbered rows[spans[i, 0]:spans[i, 1]] of the table x, y.

    For RLP these are whole subsets, and subset j of the block has rows j·M to (j + 1)·M and the projector W_j, with
    value (a·‖R‖² + b·‖W_j R‖²)/C: a is `residual_weight`, b is 1 where a is 0, else -1.
    """

    first: int  # step of the run
    last: int
    x: Tensor
    y: Tensor
    rows: Tensor  # [n]
    spans: NDArray[np.int64]  # [S, 2]; taken again from the start where the block serves more than S steps
    totals: NDArray[np.int64]  # [S] rows, or subsets, of the step in all processes
    every_row: bool = False  # the network runs on all rows of the table once; `rows` are positions among them
    weight: Tensor | None = None  # [N] of the rows, or √ of it for RLP
    partner: Tensor | None = None  # [n] the row that each row is mixed with
    lam: Tensor | None = None  # [n]
    projector: Tensor | None = None  # [n / M, q, M]
    residual_weight: float = 0.0
    offset: Tensor | None = None  # [n / M] added to the values
    form: Tensor | None = None  # [N, N]
    bank: ProjectionBank | None = None  # where no projector can be held
    fits_planes: bool = False  # the engine fits the planes to the rows by itself


@dataclass(frozen=True, eq=False)
class Window:
    """Steps first..last of a run, all of them in one block."""

    block: Block
    first: int
    last: int
    spans: NDArray[np.int64] = field(init=False)
    totals: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        where = (np.arange(self.first, self.last) - self.block.first) % len(self.block.spans)
        object.__setattr__(self, "spans", self.block.spans[where])
        object.__setattr__(self, "totals", self.block.totals[where])

    def inputs(self, i: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the i-th step of the window."""
        block = self.block
        if block.every_row:
            return block.x, block.y
        low, high = (int(end) for end in self.spans[i])
        index = block.rows[low:high].to(block.x.device)
        x, y = block.x[index], block.y[index]
        if block.partner is None or block.lam is None:
            return x, y
        other, lam = block.partner[low:high].to(block.x.device), block.lam[low:high].to(x)
        return mixup(x, block.x[other], lam), mixup(y, block.y[other], lam)


class Feed:
    """Gives the steps of one job, block by block.

    A unit is a subset, or a row for pointwise objectives. `fits_planes` tells that the engine can fit planes to
    fresh subsets by itself.
    """

    def __init__(self, job: Job, share: Share | None = None, *, fits_planes: bool = False) -> None:
        self.job, self.table, self.share = job, job.table, Share() if share is None else share
        self._rlp = job.objective if isinstance(job.objective, RLP) else None
        n = self.table.n_rows
        self._unit = 1 if self._rlp is None else self._rlp.shape()[0]
        self._n_units = job.objective.rows_per_epoch(n) // self._unit
        self._per_step = job.objective.rows_per_step // self._unit
        mine = -(-self._per_step // self.share.world) * self._unit
        alone = isinstance(self.table, Table) and self.share.world == 1
        # where a step reads at least N rows, the network is run on all rows once: subsets share them
        self._every_row = isinstance(self.table, Table) and job.objective.mixup is None and mine >= n
        self._every_row &= self._rlp is not None or alone
        self._root: Tensor | None = None
        self._centre: Tensor | None = None
        if isinstance(self.table, Table) and self.table.weight is not None:
            self._root = self.table.weight.sqrt()
            self._centre = _weighted_centre(self.table)
        self._constant, self._at_once, self._fresh = self._every_row, alone, False
        if self._rlp is not None:
            self._constant = self._rlp.plan == "once" and self._rlp.mixup is None and self._rlp.probe != "draw"
            self._at_once = alone and (self._held_bytes() <= HELD_BYTES or self._form_wanted() or self._needs_all())
            if self._needs_all() and not alone:
                raise ValueError(f"{self._needs_all()} needs all rows in one process and in memory, got a part of them")
            self._fresh = fits_planes and alone and self._can_be_fresh(self._rlp)
        per_row = (self.table.n_columns * (1 + (self._rlp is not None)) + self.table.n_outputs + 1) * 8
        self._block_steps = max(1, BLOCK_BYTES // (per_row * mine))
        self._block: Block | None = None
        self._bank: ProjectionBank | None = None
        self._plans: tuple[int, Tensor, Tensor | None] | None = None
        self._pool: Tensor | None = None
        self._told = False

    def window(self, step: int, stop: int) -> Window:
        """The steps from `step` on, up to `stop` at most."""
        if self._block is None or not self._block.first <= step < self._block.last:
            self._block = None  # its memory is free before the next one is made
            self._block = self._make_block(step)
        return Window(self._block, step, min(stop, self._block.last))

    # What can be held, and for how long

    def _columns_of_planes(self) -> int:
        assert self._rlp is not None
        return self.table.n_columns + int(self._rlp.has_offset)

    def _held_bytes(self) -> int:
        r = self._rlp
        assert r is not None
        M, K, _ = r.shape()
        columns, dtype = self.table.n_columns, self.table.dtype
        kept = ProjectionBank.bytes_for(K, M, columns, probe=r.probe, intercept=r.has_offset, dtype=dtype)
        if r.mixup is not None:
            kept += K * M * columns * dtype.itemsize
        return kept + (8 * self.table.n_rows * columns if r.probe == "expected" else 0)

    def _form_wanted(self) -> bool:
        """Whether all subsets in one step may be one quadratic form of the N residuals."""
        return self._every_row and self.job.steps_per_epoch == 1

    def _needs_all(self) -> str:
        """Why all factors are needed at once; empty where they are not."""
        assert self._rlp is not None
        if self._rlp.float32_cutoff:
            return "float32_cutoff=True"
        if self._rlp.probe == "expected" and self._rlp.draw_from == "outside":
            return 'probe="expected" with draw_from="outside"'
        return ""

    def _can_be_fresh(self, r: RLP) -> bool:
        """Whether planes are to be fitted in the step itself: for factors that could not be kept anyway."""
        assert isinstance(self.table, Table)
        p = self._columns_of_planes()
        plain = r.probe in ("subset", "sum") and r.ridge == 0 and self._root is None and self._unit > p
        if not plain or self._every_row or self._needs_all() or (self._constant and self._at_once):
            return False
        some = self.table.features[: max(2**13, 2 * p)].unsqueeze(0)
        return some.shape[1] > p and int(ranks(some, intercept=r.has_offset)) == p

    # Draws

    def _plan(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        """The subsets of an epoch [K, M], and their partners with mixup."""
        r = self._rlp
        assert r is not None
        source = epoch if r.plan == "each-epoch" else 0
        if self._plans is None or self._plans[0] != source:
            M, K, _ = r.shape()
            generator = stream(self.job.seed, "plan", source)
            plans = [
                balanced_subsets(self.table.n_rows, M, K, method=r.method, generator=generator)
                for _ in range(1 if r.mixup is None else 2)
            ]
            self._plans = (source, plans[0], None if r.mixup is None else plans[1])
        return self._plans[1], self._plans[2]

    def _orders(self, epoch: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Row numbers of an epoch of a pointwise objective; with mixup their partners, and λ of each step."""
        n, seed, alpha = self.table.n_rows, self.job.seed, self.job.objective.mixup
        full = self._per_step == n  # the order of rows means nothing then
        order = torch.arange(n) if full else torch.randperm(n, generator=stream(seed, "shuffle", epoch))
        if alpha is None:
            return order, None, None
        mixed = stream(seed, "mixup", epoch)
        partner = torch.randperm(n, generator=mixed)
        return order, partner, mixup_lambdas(self.job.steps_per_epoch, alpha, generator=mixed)

    # Blocks

    def _make_block(self, step: int) -> Block:
        per_epoch = self.job.steps_per_epoch
        epoch, position = divmod(step, per_epoch)
        if self._constant and self._at_once:
            return replace(self._build(0, 0, per_epoch), last=self.job.total_steps)
        if self._at_once or self._fresh:
            if self._rlp is None:
                several = max(1, BLOCK_ROWS // self.table.n_rows)
                return self._join([self._build(e, 0, per_epoch) for e in range(epoch, epoch + several)])
            return self._build(epoch, 0, per_epoch)
        first = position // self._block_steps * self._block_steps
        return self._build(epoch, first, min(first + self._block_steps, per_epoch))

    @staticmethod
    def _join(blocks: list[Block]) -> Block:
        """Blocks of one table, one after another."""
        if len(blocks) == 1:
            return blocks[0]
        before = np.cumsum([0] + [len(block.rows) for block in blocks[:-1]])

        def together(name: str) -> Tensor | None:
            return None if getattr(blocks[0], name) is None else torch.cat([getattr(b, name) for b in blocks])

        return replace(
            blocks[0],
            last=blocks[-1].last,
            rows=torch.cat([block.rows for block in blocks]),
            spans=np.concatenate([block.spans + start for block, start in zip(blocks, before, strict=True)]),
            totals=np.concatenate([block.totals for block in blocks]),
            partner=together("partner"),
            lam=together("lam"),
        )

    def _build(self, epoch: int, low: int, high: int) -> Block:
        """Steps low..high of an epoch."""
        steps = np.arange(low, high)
        first = steps * self._per_step
        totals = np.minimum(self._per_step, self._n_units - first)
        rank, world = self.share.rank, self.share.world
        begin, end = first + rank * totals // world, first + (rank + 1) * totals // world
        sizes = end - begin
        units = torch.from_numpy(np.repeat(begin - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum()))
        ends = np.cumsum(sizes) * self._unit
        spans = np.stack([ends - sizes * self._unit, ends], axis=1)
        if self._rlp is None:
            rows, partner, lam = self._orders(epoch)
            rows, partner = rows[units], None if partner is None else partner[units]
            lam = None if lam is None else lam[torch.from_numpy(np.repeat(steps, sizes))]
        else:
            plan, other = self._plan(epoch)
            rows, partner, lam = plan[units].flatten(), None if other is None else other[units].flatten(), None
            if self._rlp.mixup is not None:
                drawn = mixup_lambdas(len(plan), self._rlp.mixup, generator=stream(self.job.seed, "mixup", epoch))
                lam = drawn[units].repeat_interleave(self._unit)
        base = epoch * self.job.steps_per_epoch
        if isinstance(self.table, Table):
            x, y = self.table.x, self.table.y
        else:
            x, y = self.table.read(rows)
            if partner is not None and lam is not None:
                other_x, other_y = self.table.read(partner)
                x, y = mixup(x, other_x, lam.to(x)), mixup(y, other_y, lam.to(y))
            rows, partner, lam = torch.arange(len(x)), None, None
        weight = None
        if isinstance(self.table, Table) and self.table.weight is not None:
            weight = (self.table.weight if self._rlp is None or self._root is None else self._root).squeeze(1)
        block = Block(
            base + low, base + high, x, y, rows, spans, totals, self._every_row, weight, partner, lam,
            fits_planes=self._fresh,
        )  # fmt: skip
        if self._rlp is None or self._fresh or not len(rows):
            return block
        return self._with_factors(block, self._rlp, epoch, units)

    def _with_factors(self, block: Block, r: RLP, epoch: int, units: Tensor) -> Block:
        if r.float32_cutoff:
            projector, offset = _cut_off_rows(self.table, block.rows.view(-1, self._unit))
            return replace(block, projector=projector, offset=offset)
        bank = self._bank if self._at_once and r.plan == "once" and r.mixup is None else None
        if bank is None:
            bank = self._make_bank(block, r)
            self._bank = bank if self._at_once and r.probe == "draw" else None
        if r.probe == "draw":
            points = draw_rows(self._plan(epoch)[0], self.table.n_rows, r.draw_from, stream(self.job.seed, "draw", epoch))
            index = points[units]
            x, _ = self.table.read(index)
            bank.redraw(self._columns(x, None if self._root is None else self._root[index.to(self._root.device)]))
        N = self.table.n_rows
        if self._form_wanted() and bank.probe != "draw" and N <= bank.dense_rows:
            height = 0 if bank.rows is None else bank.rows.shape[1]
            if N * N <= block.rows.numel() * (height + 4):  # gathering a row costs about as much as four products
                return replace(block, form=bank.form())
        if bank.kind == "chunks":
            return replace(block, bank=bank)
        rest = 1 / self._unit if bank.kind in ("complement", "mse") else 0.0
        return replace(block, projector=self._projector(bank, block), residual_weight=rest)

    def _projector(self, bank: ProjectionBank, block: Block) -> Tensor | None:
        """W of the block's subsets; None where they see the residual whole."""
        if self._rlp is None or self._rlp.probe != "sum" or self._root is None:
            return bank.rows
        # Repeated rows would be summed as often as they are there: the sum of w·x, not of √w·x.
        found = []
        for subset, rows in zip(bank.subsets, block.rows.view(-1, self._unit), strict=True):
            basis = factor(bank.features[subset].unsqueeze(0), ridge=self._rlp.ridge, solve=False).basis[0]
            found.append((self._root[rows].double().mT @ basis) @ basis.mT)
        return torch.stack(found).to(self.table.dtype)

    def _make_bank(self, block: Block, r: RLP) -> ProjectionBank:
        own = self._at_once and block.partner is None  # the planes' rows are those of the table
        rows, pool = block.rows.to(block.x.device), None
        if own:
            features, plan = self._columns(block.x, self._root), rows.view(-1, self._unit)
        else:
            x = block.x[rows]
            if block.partner is not None and block.lam is not None:
                x = mixup(x, block.x[block.partner.to(x.device)], block.lam.to(x))
            features = self._columns(x, None if self._root is None else self._root[rows])
            plan = torch.arange(len(features), device=features.device).view(-1, self._unit)
        if r.probe == "expected" and not own:
            if self._pool is None:
                self._pool = same_moments(self._column_parts)
            pool = self._pool
        elif r.probe == "draw" and not own:
            pool = features[:1]  # stands for the points, which are given
        with warnings.catch_warnings():
            if self._told:  # about subsets like these
                warnings.simplefilter("ignore")
            self._told = True
            return ProjectionBank(
                features,
                plan,
                probe=r.probe,
                intercept=r.has_offset and self._root is None,
                ridge=r.ridge,
                draw_from=r.draw_from if own else "train",
                probe_points=pool,
                max_bytes=HELD_BYTES if self._form_wanted() else 2**62,
                generator=torch.Generator(),  # its own first points are replaced at once
                check_finite=False,
            )

    def _columns(self, x: Tensor, root: Tensor | None) -> Tensor:
        """Rows as the planes see them: flattened, and with weights √w·[x, 1]: least squares on them is weighted.

        With an intercept x is centred first, which the planes do not see, for the sake of precision. A ridge must not
        reach the column of ones, so that column is made long: its coefficient, and λ with it, all but vanishes.
        """
        flat = x.unsqueeze(1) if x.ndim == 1 else x.flatten(1)
        if root is None:
            return flat
        assert self._rlp is not None
        wide = flat.double()
        if self._rlp.has_offset:
            ones = 1.0 if self._rlp.ridge == 0 else 1e6
            wide = torch.nn.functional.pad(wide - self._centre, (0, 1), value=ones)
        return (wide * root.double()).to(flat.dtype)

    def _column_parts(self) -> Iterator[Tensor]:
        """All rows as the planes see them, a part at a time."""
        for index in torch.split(torch.arange(self.table.n_rows), 2**16):
            x, _ = self.table.read(index)
            yield self._columns(x, None if self._root is None else self._root[index])


def _weighted_centre(table: Table) -> Tensor:
    """The weighted mean of the features [d] in float64."""
    assert table.weight is not None
    weight = table.weight.double()
    return (weight * table.features.double()).sum(0) / weight.sum()


def _cut_off_rows(table: Table | object, plan: Tensor) -> tuple[Tensor, Tensor]:
    """The released autoencoder's loss, mean of (P_cut·pred − target)², as rows and a constant per subset.

    Its pseudo-inverse of xᵀx in float32 drops directions with σ²/σ₁² below max(d, d)·eps of float32. What is left of
    xx⁺ is still a projection P, so ‖P·pred − target‖² = ‖P(pred − target)‖² + ‖(I − P)target‖².

    NOTE[DIFF]: the eigenvalues are computed in float64 and cut at the same place, so that the rank does not depend on
    the rounding of the machine at hand.
    """
    assert isinstance(table, Table)
    features, plan = table.features, plan.to(table.x.device)
    K, M = plan.shape
    d = features.shape[1]
    cut = d * torch.finfo(torch.float32).eps
    found, offset = [], []
    for subset in plan:
        x, target = features[subset].to(torch.float64), table.y[subset]
        tall = d <= M
        values, vectors = torch.linalg.eigh(x.mT @ x if tall else x @ x.mT)
        keep = values > cut * values[-1]
        basis = x @ vectors[:, keep] / values[keep].sqrt() if tall else vectors[:, keep]
        found.append((basis.mT / math.sqrt(M)).to(features.dtype))  # [r, M]
        offset.append(target.square().mean() - (found[-1] @ target).square().sum() / target.shape[1])
    height = max(part.shape[0] for part in found)
    padded = [torch.nn.functional.pad(part, (0, 0, 0, height - part.shape[0])) for part in found]
    return torch.stack(padded), torch.stack(offset)
