"""Draw plans of subsets: the rows to which each of the K planes is fitted.

All draws are whole numbers on the CPU, so a generator state gives the same plan on every platform.
The code works on whole numpy arrays, without loops over rows, subsets or permutations; numpy sorts
packed 64-bit keys several times faster than `torch.argsort`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlploss import _checks

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

METHODS = ("balanced", "paper")

# Digests are computed for this many indices at a time, so that temporaries stay in the processor's
# cache.
_SLAB = 1 << 16


def balanced_subsets(
    n_rows: int,
    subset_size: int,
    n_subsets: int,
    *,
    method: str = "balanced",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw K different subsets of M out of N rows, in which every row appears equally often.

    `method="balanced"`, for every 1 ≤ K ≤ C(N, M):

    - no two subsets are equal as sets;
    - any two rows appear equally often, up to 1, so each appears ⌊KM/N⌋ or ⌈KM/N⌉ times;
    - hence every row is in at least one subset whenever K·M ≥ N;
    - each subset on its own is a uniform draw from all C(N, M), its rows in random order.

    `method="paper"` is the paper's Algorithm 1: shuffle all rows, cut the first ⌊N/M⌋·M of them
    into blocks, keep the blocks not yet kept, and again until there are K. The N mod M rows that
    remain after each shuffle are dropped, so neither coverage nor balance is promised. It always
    ends: with C = C(N, M), about C·ln(C/(C − K)) blocks are drawn, and C·(ln C + 1) where all C
    subsets are asked for.

    Args:
        n_rows: N, the number of rows of the data.
        subset_size: M ≤ N, the number of rows in each subset.
        n_subsets: K ≤ C(N, M), the number of subsets.
        method: `"balanced"` or `"paper"`.
        generator: source of randomness, on the CPU; torch's default generator if None. The same
            state gives the same plan on every platform with the same torch version.

    Returns:
        int64 tensor [K, M] of row numbers in [0, N), on the CPU.

    >>> plan = balanced_subsets(10, 4, 5, generator=torch.Generator().manual_seed(0))
    >>> plan.shape, plan.flatten().bincount().tolist()
    (torch.Size([5, 4]), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    """
    n, m, k = _checks.plan_sizes(n_rows, subset_size, n_subsets)
    draw = _paper if _checks.one_of("method", method, METHODS) == "paper" else _balanced
    return torch.from_numpy(draw(n, m, k, _checks.cpu_generator("generator", generator)))


def draw_rows(
    subsets: Tensor,
    n_rows: int,
    draw_from: str,
    generator: torch.Generator | None,
    weight: Tensor | None = None,
) -> Tensor:
    """Draw one row number per subset [K], from all rows ("train") or from those not in the subset
    ("outside"), with probabilities proportional to `weight` [N].
    """
    K, M = subsets.shape
    source: dict[str, Any] = {"device": subsets.device}
    if generator is not None:  # compiled code with symbolic sizes does not accept None
        source = {"device": generator.device, "generator": generator}
    if weight is not None:
        chances = weight.expand(K, -1)
        if draw_from == "outside":
            chances = chances.scatter(1, subsets, 0)
        drawn = torch.multinomial(chances.to(source.pop("device")), 1, **source)
        return drawn.squeeze(1).to(subsets.device)
    if draw_from == "train":
        return torch.randint(n_rows, (K,), **source).to(subsets.device)
    rank = torch.randint(n_rows - M, (K, 1), **source).to(subsets.device)
    # The sorted subset s₀ < s₁ < … leaves sᵢ − i other rows before sᵢ. Step over those at or below
    # the rank.
    before = subsets.sort(dim=1).values - torch.arange(M, device=subsets.device)
    return (rank + torch.searchsorted(before.contiguous(), rank, right=True)).squeeze(1)


def rows_outside(subsets: Tensor, n_rows: int) -> Tensor:
    """Return the rows [K, N − M] that are not in each subset."""
    K, M = subsets.shape
    outside = torch.ones(K, n_rows, dtype=torch.int8, device=subsets.device).scatter(1, subsets, 0)
    # A stable sort puts the N − M ones first, in order. Unlike with `nonzero`, the shape does not
    # depend on values.
    return outside.argsort(dim=1, descending=True, stable=True)[:, : n_rows - M]


def _paper(n: int, m: int, k: int, generator: torch.Generator | None) -> Rows:
    """Draw a plan by Algorithm 1: [k, m].

    NOTE[DIFF]: a request that no number of shuffles can meet has been refused before; Algorithm 1
    would loop for ever.
    NOTE[DIFF]: subsets are compared by row numbers. Algorithm 1 compares the examples, among which
    two may be equal.
    NOTE[DIFF]: shuffles are drawn many at a time; the blocks and their order are those of one
    shuffle after another.
    """
    per_shuffle = n // m

    def blocks(count: int) -> Rows:
        shuffles = -(-count // per_shuffle)
        order = _shuffled(np.arange(n), shuffles, generator)
        return np.ascontiguousarray(order[:, : per_shuffle * m]).reshape(-1, m)

    return _distinct(blocks, k, _checks.n_different(n, m))[0]


def _balanced(n: int, m: int, k: int, generator: torch.Generator | None) -> Rows:
    """Draw a plan that keeps the promises of `method="balanced"`: [k, m].

    NOTE[DIFF]: not Algorithm 1. The rows that one permutation leaves over begin the next block
    instead of being dropped, and appearances are levelled after equal subsets have been replaced.
    """
    if 2 * m > n:
        # Choose the n - m rows to leave out: these are different and level exactly if the subsets
        # are.
        members = np.ones((k, n), dtype=np.bool_)
        np.put_along_axis(members, _balanced(n, n - m, k, generator), False, axis=1)
        rows = np.flatnonzero(members).reshape(k, m) - n * np.arange(k)[:, None]
        return _shuffled(rows, k, generator)
    if k * m <= n:
        return _stream(n, m, k, generator)
    total = _checks.n_different(n, m)
    if 2 * k > total:
        # All subsets together are level, so leaving out a few level ones keeps the rest level.
        others = (
            _balanced(n, m, total - k, generator) if k < total else np.empty((0, m), dtype=np.int64)
        )
        return _all_but(others, n, generator)
    plan, replaced = _distinct(lambda count: _stream(n, m, count, generator), k, total)
    if replaced:
        _level(plan, n, generator)
    return plan


def _distinct(draw: Callable[[int], Rows], k: int, total: int) -> tuple[Rows, bool]:
    """Return the first k different subsets that `draw` yields, and whether it took more than one
    call.
    """
    plan, again = draw(k), False
    while True:
        repeats = _repeats(plan)
        if repeats.any():
            plan = plan[~repeats]
        have = len(plan)
        if have >= k:
            return plan[:k], again
        # A uniform subset is new with probability 1 - have/total. Draw a little more than needed on
        # average, up to k.
        wanted = min(k, (k - have) * total * 9 // ((total - have) * 8) + 8)
        plan, again = np.concatenate([plan, draw(wanted)]), True


def _stream(n: int, m: int, k: int, generator: torch.Generator | None) -> Rows:
    """Cut permutations of the rows, one after another, into k blocks of m ≤ n/2: [k, m].

    Appearances differ by at most 1, no block holds a row twice, but two blocks may be equal.
    """
    need = k * m
    if 4 * need <= n:
        return _first_rows(n, need, generator).reshape(k, m)
    stream = _shuffled(np.arange(n), -(-need // n), generator).reshape(-1)
    if n % m:
        _mend(stream, n, m)
    return stream[:need].reshape(k, m)


def _mend(stream: Rows, n: int, m: int) -> None:
    """Replace, in place, the rows that a block holds twice because it lies across two
    permutations.

    The two copies are in different permutations. The second copy changes places with a row from the
    next block, which lies wholly in the second permutation. At most m - 1 rows are excluded, so a
    free row always exists. The end of the second permutation, which the block after it may share,
    does not change, so all blocks are mended at once.
    """
    border = np.arange(n, len(stream), n)
    across = border[border % m > 0]
    start = across - across % m
    # [B, 2m]: the block across the border, and the next one.
    window = start[:, None] + np.arange(2 * m)
    rows = stream[window]
    bits = (2 * m).bit_length()
    packed = np.sort((rows << bits) | np.arange(2 * m), axis=1)
    b, i = np.nonzero(packed[:, 1:] >> bits == packed[:, :-1] >> bits)
    # Rows of the second permutation that the first part holds.
    taken = np.zeros(rows.shape, dtype=np.bool_)
    taken[b, packed[b, i + 1] & ((1 << bits) - 1)] = True
    clash, free = taken[:, :m], ~taken[:, m:]
    free &= free.cumsum(axis=1) <= clash.sum(axis=1)[:, None]
    doubled, spare = window[:, :m][clash], window[:, m:][free]
    stream[doubled], stream[spare] = stream[spare], stream[doubled]


def _level(plan: Rows, n: int, generator: torch.Generator | None) -> None:
    """Make appearances differ by at most 1, in place, while the subsets stay different.

    A row that appears too often gives a place to one that appears too rarely. Some subset can
    always make this exchange and stay different from all others: a appears more often than c, so
    more subsets hold a without c than c without a, and not all of the former can turn into the
    latter.
    """
    k, m = plan.shape
    flat = plan.reshape(-1)
    counts = np.bincount(flat, minlength=n)
    order = _permutation(n, generator)  # so that ties do not favour the lower row
    often = order[np.argsort(-counts[order], kind="stable")]
    goal = np.full(n, k * m // n)
    goal[often[: k * m % n]] += 1
    giver = np.repeat(np.arange(n), np.maximum(counts - goal, 0))
    taker = np.repeat(np.arange(n), np.maximum(goal - counts, 0))
    bits = len(flat).bit_length()
    # The places of row 0, then those of row 1, ...
    places = np.sort((flat << bits) | np.arange(len(flat)))
    places &= (1 << bits) - 1
    begin = counts.cumsum() - counts
    digest = _digest(plan)
    while giver.size:
        giver, taker = (side[_permutation(len(side), generator)] for side in (giver, taker))
        at = places[begin[giver] + _integers(1 << 62, giver.size, generator) % counts[giver]]
        subset = at // m
        fresh = digest[subset] - _mix(giver) + _mix(taker)
        done = (flat[at] == giver) & (plan[subset] != taker[:, None]).all(axis=1)
        done &= ~_within(fresh, np.sort(digest))
        done &= _first_of_each(subset) & _first_of_each(fresh)
        flat[at[done]] = taker[done]
        digest[subset[done]] = fresh[done]
        if not done.any():
            _exchange(plan, giver=giver[0], taker=taker[0], generator=generator)
            done[0], digest = True, _digest(plan)
        giver, taker = giver[~done], taker[~done]


def _exchange(
    plan: Rows, giver: np.int64, taker: np.int64, generator: torch.Generator | None
) -> None:
    """Replace giver by taker in one subset, in place. The subset is drawn among all that stay
    different from every other.
    """
    able = np.flatnonzero((plan == giver).any(axis=1) & (plan != taker).all(axis=1))
    changed = np.where(plan[able] == giver, taker, plan[able])
    new = np.flatnonzero(~_repeats(np.concatenate([plan, changed]))[len(plan) :])
    chosen = new[_integers(len(new), 1, generator)]
    plan[able[chosen]] = changed[chosen]


def _all_but(others: Rows, n: int, generator: torch.Generator | None) -> Rows:
    """Return every subset of the n rows except `others` [L, m], in random order: [C(n, m) -
    L, m].

    Subsets are numbered c₁ < … < c_m ↦ Σⱼ C(cⱼ, j). The loops run over j ≤ m ≤ log₂ C(n, m).
    """
    m = others.shape[1]
    choose = np.ones((m + 1, n + 1), dtype=np.int64)  # choose[j, c] = C(c, j)
    for j in range(1, m + 1):
        choose[j] = np.concatenate([[0], choose[j - 1, :-1].cumsum()])
    left = np.ones(choose[m, n], dtype=np.bool_)
    left[choose[np.arange(1, m + 1), np.sort(others, axis=1)].sum(axis=1)] = False
    number = np.flatnonzero(left)
    number = number[_permutation(len(number), generator)]
    plan = np.empty((len(number), m), dtype=np.int64)
    for j in range(m, 0, -1):
        plan[:, j - 1] = np.searchsorted(choose[j], number, side="right") - 1
        number -= choose[j, plan[:, j - 1]]
    return _shuffled(plan, len(plan), generator)


def _repeats(plan: Rows) -> Mask:
    """Return which subsets equal an earlier one [K]. Digests find the candidates, which are then
    compared.
    """
    bits = np.uint64(len(plan).bit_length())
    packed = np.sort((_digest(plan) >> bits << bits) | np.arange(len(plan), dtype=np.uint64))
    twins = np.flatnonzero(packed[1:] >> bits == packed[:-1] >> bits)
    number = (packed & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)
    repeats = np.zeros(len(plan), dtype=np.bool_)
    repeats[number[twins]] = repeats[number[twins + 1]] = True
    where = np.flatnonzero(repeats)
    rows = np.sort(plan[where], axis=1)
    order = np.lexsort(rows.T)  # stable: of equal subsets the earliest comes first
    equal = (rows[order[1:]] == rows[order[:-1]]).all(axis=1)
    repeats[:] = False
    repeats[where[order[1:][equal]]] = True
    return repeats


def _digest(plan: Rows) -> npt.NDArray[np.uint64]:
    """Sum one 64-bit number per row over the rows of each subset, which is the same in every order:
    [K].
    """
    step = max(1, _SLAB // plan.shape[1])
    return np.concatenate([_mix(plan[i : i + step]).sum(axis=1) for i in range(0, len(plan), step)])


def _mix(rows: Rows) -> npt.NDArray[np.uint64]:
    """Spread row numbers over all 64 bits (multiply and fold twice, modulo 2⁶⁴)."""
    mixed = rows.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return mixed


def _within(values: npt.NDArray[np.uint64], ordered: npt.NDArray[np.uint64]) -> Mask:
    """Return which values are among the sorted ones."""
    place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.equal(ordered[place], values)


def _first_of_each(values: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> Mask:
    first = np.zeros(len(values), dtype=np.bool_)
    first[np.unique(values, return_index=True)[1]] = True
    return first


def _shuffled(rows: Rows, count: int, generator: torch.Generator | None) -> Rows:
    """Shuffle each of the `count` lines of `rows` ([n], or [count, n]) independently: [count,
    n].

    A 64-bit key has random bits above and the row number below, so sorting the keys shuffles the
    rows. If two keys share all their 31 random bits, the lower row goes first: a bias of 2⁻³² in
    the order of two rows.
    """
    width = rows.shape[-1]
    bits = int(rows.max(initial=0)).bit_length()
    noise = torch.empty((count, width), dtype=torch.int32).random_(generator=generator)
    key: Rows = noise.numpy().astype(np.int64)
    key <<= bits
    key |= rows
    key.sort(axis=1)
    key &= (1 << bits) - 1
    return key


def _first_rows(n: int, count: int, generator: torch.Generator | None) -> Rows:
    """Draw the first `count` ≪ n entries of a permutation of n rows, without the rest."""
    rows = np.empty(0, dtype=np.int64)
    while len(rows) < count:
        rows = np.sort(np.concatenate([rows, _integers(n, 2 * count, generator)]))
        rows = rows[np.diff(rows, prepend=-1) > 0]  # np.unique takes many times as long
    return rows[_permutation(len(rows), generator)[:count]]


def _integers(below: int, count: int, generator: torch.Generator | None) -> Rows:
    return torch.randint(below, (count,), generator=generator).numpy()


def _permutation(n: int, generator: torch.Generator | None) -> Rows:
    return torch.randperm(n, generator=generator).numpy()
