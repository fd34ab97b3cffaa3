"""The data of a stack, gathered many steps at a time and laid out in the order in which it is read."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rlploss.loss.bank import ProjectionBank
from rlploss.loss.planes import probe_rows
from rlploss.training.feeds import Feed
from rlploss.training.scores import row_weight
from rlploss.training.stepping import UNROLL, Batch

CHUNK_BYTES = 2**24  # small enough to be read while still in the processor's cache
STATIC_BYTES = 2**30  # an epoch that never changes is laid out once, if it takes no more than this
FACTOR_BYTES = 2**30  # what a bank keeps at most
FORM_ROWS = 4096


def mode_of(feed: Feed) -> str | None:
    """How a stack would score this replica, or None if it has to be trained on its own.

    "pointwise": weights of rows; "rows": ‖W R‖²; "complement": what is left when W spans what planes do not see;
    "form": all subsets in one step as one quadratic form.
    """
    r = feed.recipe
    if r.loss != "rlp":
        return "pointwise"
    if r.cutoff:
        return None
    if not feed.all_rows and keeps_rows(feed):
        return "rows"
    feed.begin_epoch()
    kind = feed.kind
    if kind == "chunks":
        return None
    if feed.all_rows:
        # gathering a row costs about as much as four products
        pays = r.n_rows <= FORM_ROWS and r.n_rows**2 <= r.rows_per_epoch * (feed.features.shape[1] + 4)
        return "form" if r.steps_per_epoch == 1 and is_static(feed) and pays else None
    if is_static(feed):
        return {"mse": "pointwise", "complement": "complement"}.get(kind, "rows")
    return "rows"


def keeps_rows(feed: Feed) -> bool:
    """Whether the bank will certainly keep rows W, which can be known before it is made."""
    r, p = feed.recipe, feed.features.shape[1] + int(feed.intercept)
    assert r.subset_size is not None
    assert r.n_subsets is not None
    need = ProjectionBank.bytes_for(
        r.n_subsets, r.subset_size, p, probe=str(r.probe), intercept=False, dtype=feed.x.dtype
    )
    return 2 * p <= r.subset_size and need <= FACTOR_BYTES


def is_static(feed: Feed) -> bool:
    """Whether every epoch reads the same rows in the same order and scores them alike."""
    r = feed.recipe
    if r.mixup:
        return False
    if r.loss == "rlp":
        return bool(r.plan == "once" and r.probe != "draw")
    return bool(r.batch_size == r.n_rows)


class Chunk:
    """T steps of S replicas in one block of memory each for inputs, targets, weights and sights.

    Rows of a step are cells [k, m]: k subsets of m rows, or one batch of m rows. Replicas with fewer leave the rest
    at zero, which adds nothing to their loss. `UNROLL` − 1 steps of padding let a compiled call run past the end.
    """

    _x: Tensor
    _y: Tensor
    _weight: Tensor | None
    _sight: Tensor | None

    def __init__(self, feeds: list[Feed], mode: str, *, reuse: Chunk | None = None) -> None:
        self.feeds, self.mode = feeds, mode
        self._end = max(feed.recipe.total_steps for feed in feeds)
        self._loss = "mse" if feeds[0].recipe.loss == "rlp" else feeds[0].recipe.loss
        self._cells = [cells_of(feed, mode) for feed in feeds]
        k, m = (max(cell[i] for cell in self._cells) for i in range(2))
        S, x, C = len(feeds), feeds[0].x, feeds[0].n_outputs
        q = max(sight_height(feed) for feed in feeds)
        weighted, sighted = mode in ("pointwise", "complement"), mode in ("rows", "complement")
        numbers = k * m * (x[0].numel() + C + int(weighted)) + (k * q * m if sighted else 0)
        epochs = {feed.recipe.steps_per_epoch for feed in feeds}
        per_step = S * numbers * x.element_size()
        self.static = len(epochs) == 1 and all(is_static(feed) for feed in feeds)
        self.constant = self.static and epochs == {1}  # every step is the same
        if self.static and max(epochs) * per_step <= STATIC_BYTES:
            self.n_steps = max(epochs)
        else:
            self.static = self.constant = False
            self.n_steps = max(1, min(self._end, CHUNK_BYTES // per_step) // UNROLL) * UNROLL
        T = 1 if self.constant else self.n_steps + UNROLL - 1

        def room(old: Tensor | None, *shape: int) -> Tensor:
            """Zeros, in memory that a stack before this one has used if it fits: fresh pages take time."""
            if old is None or old.shape != shape or old.dtype != x.dtype or old.device != x.device:
                return x.new_zeros(shape)
            return old.zero_()

        self._x = room(None if reuse is None else reuse._x, S, T, k, m, *x.shape[1:])
        self._y = room(None if reuse is None else reuse._y, S, T, k, m, C)
        self._weight = room(None if reuse is None else reuse._weight, S, T, k, m, 1) if weighted else None
        self._sight = room(None if reuse is None else reuse._sight, S, T, k, q, m) if sighted else None
        if mode == "form":
            self._sight = room(None if reuse is None else reuse._sight, S, T, m, m)
        self._plain = [
            cell == (k, m) and not feed.recipe.mixup and feed.root is None
            for cell, feed in zip(self._cells, feeds, strict=True)
        ]
        # without a smaller batch at the end of an epoch the weights never change
        self._even = [f.recipe.rows_per_epoch % f.recipe.rows_per_step == 0 for f in feeds]
        self.start = -1  # the global step at which this chunk begins; -1: empty
        self.feed_states: list[dict[str, Any]] | None = None  # the feeds as they were before `start`

    def batch(self) -> Batch:
        """All steps of the chunk."""
        tensors = [self._x.flatten(2, 3), self._y.flatten(2, 3)]
        weight = None if self._weight is None else self._weight.flatten(2, 3)
        sight = self._sight
        if self.constant:  # one step stands for all
            tensors = [t.expand(-1, UNROLL, *t.shape[2:]) for t in tensors]
            weight = None if weight is None else weight.expand(-1, UNROLL, *weight.shape[2:])
            sight = None if sight is None else sight.expand(-1, UNROLL, *sight.shape[2:])
        return Batch(tensors[0], tensors[1], weight, sight)

    def locate(self, step: int, *, remember: bool) -> tuple[int, int]:
        """Make sure that `step` is in the chunk; return its place and how many steps from it on are there.

        `remember` keeps the states of the feeds from before a new fill, for checkpoints.
        """
        if self.static:
            if self.start < 0:
                self._fill(0, 1 if self.constant else self.n_steps)
                for feed in self.feeds:
                    feed.release()  # everything that it holds is laid out now
            if self.constant:
                return 0, 2**62
            place = step % self.n_steps
        else:
            if self.start < 0 or not self.start <= step < self.start + self.n_steps:
                self.fill_at(step, remember=remember)
            place = step - self.start
        return place, self.n_steps - place

    def fill_at(self, start: int, *, remember: bool) -> None:
        """Fill with the steps from `start` on, which must be where the feeds are."""
        if remember:
            self.feed_states = [feed.state_dict() for feed in self.feeds]
        self._fill(start, min(self.n_steps, self._end - start))

    def pick(self, which: list[int]) -> None:
        """Keep these replicas only."""
        self.feeds = [self.feeds[i] for i in which]
        self._cells, self._plain = [self._cells[i] for i in which], [self._plain[i] for i in which]
        self._even = [self._even[i] for i in which]
        self._x, self._y = self._x[which], self._y[which]
        self._weight = None if self._weight is None else self._weight[which]
        self._sight = None if self._sight is None else self._sight[which]
        if self.feed_states is not None:
            self.feed_states = [self.feed_states[i] for i in which]

    # Filling

    def _fill(self, start: int, n_steps: int) -> None:
        seen: dict[int, int] = {}  # replicas that only fill up the stack share a feed
        for s, feed in enumerate(self.feeds):
            if id(feed) in seen:
                self._copy(seen[id(feed)], s)
                continue
            seen[id(feed)] = s
            done, per_epoch = 0, feed.recipe.steps_per_epoch
            while done < n_steps:
                position = (start + done) % per_epoch
                if position == 0 and not (start + done == 0 and feed.draws):  # the first epoch may be drawn already
                    feed.begin_epoch()
                n = min(per_epoch - position, n_steps - done)
                self._write(s, done, feed, position, n)
                done += n
        self.start = start

    def _copy(self, source: int, target: int) -> None:
        for tensor in (self._x, self._y, self._weight, self._sight):
            if tensor is not None:
                tensor[target] = tensor[source]

    def _write(self, s: int, at: int, feed: Feed, first: int, n: int) -> None:
        """Steps first..first+n of the feed's epoch to place `at`."""
        if self.mode == "form":
            self._write_form(s, feed)
            return
        k, m = self._cells[s]
        roots = feed.roots(first, first + n)
        full = min(n, feed.recipe.rows_per_epoch // (k * m) - first) if self._plain[s] else 0
        if full:  # most steps of most fleets: whole batches, gathered to where they are read
            x, y = self._x[s, at : at + full], self._y[s, at : at + full]
            rows = full * k * m
            feed.gather_into(first, first + full, x.view(rows, *x.shape[3:]), y.view(rows, -1))
            if self._weight is not None and not (self._even[s] and self.start >= 0):
                self._weight[s, at : at + full] = row_weight(self._loss, k * m, feed.n_outputs)
        if full < n:
            self._write_parts(s, at + full, feed, *feed.gather(first + full, first + n), roots)
        if self._sight is not None:
            self._put_sight(s, at, feed, first, n, roots)

    def _write_parts(self, s: int, at: int, feed: Feed, x: Tensor, y: Tensor, roots: Tensor | None) -> None:
        """Whole steps, then what is left: the last step of an epoch has fewer subsets, or fewer rows."""
        k, m = self._cells[s]
        full, rest = divmod(x.shape[0], k * m)
        self._put(s, at, feed, (full, k, m), x[: full * k * m], y[: full * k * m], roots, 0)
        if rest:
            shape = (1, 1, rest) if feed.recipe.loss != "rlp" else (1, rest // m, m)
            self._put(s, at + full, feed, shape, x[full * k * m :], y[full * k * m :], roots, full * k * m)

    def _put(
        self,
        s: int,
        at: int,
        feed: Feed,
        shape: tuple[int, int, int],
        x: Tensor,
        y: Tensor,
        roots: Tensor | None,
        offset: int,
    ) -> None:
        n, k, m = shape
        if n == 0:
            return
        where = (s, slice(at, at + n), slice(0, k), slice(0, m))
        if self._x.shape[2:4] != (k, m):  # a step may have left something there
            self._x[s, at : at + n] = 0
            self._y[s, at : at + n] = 0
        self._x[where] = x.view(n, k, m, *x.shape[1:])
        self._y[where] = y.view(n, k, m, -1)
        if self._weight is not None:
            self._weight[s, at : at + n] = 0
            self._weight[where] = row_weight(self._loss, k * m, feed.n_outputs)
            if roots is not None:
                self._weight[where] *= roots[offset : offset + n * k * m].square().view(n, k, m, 1)

    def _put_sight(self, s: int, at: int, feed: Feed, first: int, n: int, roots: Tensor | None) -> None:
        """Rows W of the subsets of n steps, with 1/√(k·C) in them, and √w of weighted rows."""
        assert self._sight is not None
        k, m = self._cells[s]
        rows = rows_of(feed, self.mode, slice(first * k, min((first + n) * k, feed.recipe.n_subsets or 0)))
        count, q, _ = rows.shape
        if roots is not None:
            rows = rows * roots.view(count, 1, m)
        self._sight[s, at : at + n] = 0
        full, left = divmod(count, k)
        where = (s, slice(at, at + full), slice(0, k), slice(0, q), slice(0, m))
        torch.mul(rows[: full * k].view(full, k, q, m), (k * feed.n_outputs) ** -0.5, out=self._sight[where])
        if left:
            scale = (left * feed.n_outputs) ** -0.5
            self._sight[s, at + full, :left, :q, :m] = rows[full * k :] * scale

    def _write_form(self, s: int, feed: Feed) -> None:
        assert self._sight is not None
        assert feed.bank is not None
        n = feed.recipe.n_rows
        self._x[s, 0, 0, :n], self._y[s, 0, 0, :n] = feed.x, feed.y
        form = feed.bank.form() / feed.n_outputs
        if feed.root is not None:
            form = feed.root * form * feed.root.mT
        self._sight[s, 0, :n, :n] = form


def cells_of(feed: Feed, mode: str) -> tuple[int, int]:
    """Rows of one step as k subsets of m rows; a batch is one subset."""
    r = feed.recipe
    if mode == "form":
        return 1, r.n_rows
    if r.subset_size is None or r.subsets_per_step is None:
        return 1, r.rows_per_step
    return r.subsets_per_step, r.subset_size


def sight_height(feed: Feed) -> int:
    """At most so many rows W per subset."""
    r = feed.recipe
    if r.subset_size is None or r.probe in ("draw", "sum"):
        return 1
    if feed.kind == "complement" and is_static(feed) and feed.sight is not None:
        return int(feed.sight.shape[1])
    return int(min(r.subset_size, feed.features.shape[1] + int(feed.intercept)))


def rows_of(feed: Feed, mode: str, which: slice) -> Tensor:
    """W of some subsets of the current epoch, whatever the bank holds."""
    if feed.sight is not None and (feed.kind == "rows") == (mode == "rows"):
        return feed.sight[which]
    bank, M = feed.bank, feed.recipe.subset_size
    assert bank is not None
    assert M is not None
    if feed.kind == "mse":
        eye = torch.eye(M, dtype=feed.x.dtype, device=feed.x.device) / math.sqrt(M)
        return eye.expand(which.stop - which.start, M, M)
    x = bank.features[bank.subsets[which]]
    return probe_rows(x, probe="subset", intercept=feed.intercept).to(feed.x.dtype)
