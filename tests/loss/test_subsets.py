from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlploss import _checks, balanced_subsets
from rlploss.loss import subsets


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def check_different(plan: torch.Tensor, n: int, m: int, k: int) -> None:
    """k different subsets of m different rows out of n."""
    assert plan.shape == (k, m)
    assert plan.dtype == torch.int64
    assert plan.is_contiguous()
    assert plan.min() >= 0
    assert plan.max() < n
    ordered = plan.sort(dim=1).values
    assert (ordered[:, 1:] > ordered[:, :-1]).all(), "a row twice in one subset"
    assert len(torch.unique(ordered, dim=0)) == k, "two equal subsets"


def check_balanced(plan: torch.Tensor, n: int, m: int, k: int) -> None:
    check_different(plan, n, m, k)
    counts = plan.flatten().bincount(minlength=n)
    assert counts.max() - counts.min() <= 1
    if k * m >= n:
        assert counts.min() >= 1


SWEEP = [
    (1, 1, 1),
    (7, 7, 1),  # M = N
    (12, 1, 5),
    (12, 1, 12),  # M = 1, all of them
    (100, 10, 10),  # M divides N, K·M = N
    (100, 10, 37),
    (100, 50, 20),
    (100, 7, 14),  # K·M = N - 2
    (100, 7, 15),  # K·M = N + 5
    (101, 10, 10),  # K·M = N - 1
    (99, 10, 10),  # K·M = N + 1
    (1000, 3, 2),  # K·M far below N
    (101, 50, 300),  # two blocks fill a permutation but for one row
    (101, 51, 300),  # more than half of the rows
    (40, 39, 40),  # all of them, by the one row left out
    (40, 39, 23),
    (150, 100, 1000),
    (997, 100, 1000),
    (10, 3, 120),  # K = C(N, M)
    (10, 3, 119),
    (10, 3, 60),
    (10, 3, 61),
    (10, 7, 60),
    (30, 2, 217),  # C = 435
    (30, 28, 218),
    (300, 2, 20_000),  # C = 44,850
    (20, 10, 184_756),  # all of them
    (20, 10, 184_755),
    (20, 10, 100_000),
    (20, 10, 92_378),  # half of them
    (1_000_000, 10, 100),
]


@pytest.mark.parametrize(("n", "m", "k"), SWEEP)
def test_balanced_keeps_its_promises(n, m, k):
    check_balanced(balanced_subsets(n, m, k, generator=seeded()), n, m, k)


def test_few_subsets_of_many_rows_need_no_permutation_of_all():
    plan = balanced_subsets(
        2**31 - 1, 10, 100, generator=seeded()
    )  # a permutation would take 16 GiB
    assert plan.unique().numel() == 1000
    assert plan.max() < 2**31 - 1


@pytest.mark.parametrize("n", range(1, 9))
def test_balanced_keeps_its_promises_for_every_request(n):
    for m in range(1, n + 1):
        for k in range(1, math.comb(n, m) + 1):
            for seed in range(3):
                check_balanced(balanced_subsets(n, m, k, generator=seeded(seed)), n, m, k)


@st.composite
def requests(draw: st.DrawFn, most: int) -> tuple[int, int, int, int]:
    n = draw(st.integers(1, 40))
    m = draw(st.integers(1, n))
    k = draw(st.integers(1, min(math.comb(n, m), most)))
    return n, m, k, draw(st.integers(0, 2**31))


@settings(max_examples=200, deadline=None)
@given(requests(most=3000))
def test_balanced_keeps_its_promises_drawn(request_):
    n, m, k, seed = request_
    check_balanced(balanced_subsets(n, m, k, generator=seeded(seed)), n, m, k)


def algorithm_1(n: int, m: int, k: int, generator: torch.Generator) -> list[list[int]]:
    """The paper's lines 1 to 15, one shuffle after another, with the shuffles of the fast
    version."""
    kept: list[list[int]] = []
    seen: set[frozenset[int]] = set()
    while len(seen) < k:
        shuffled = subsets._shuffled(np.arange(n), 1, generator)[0].tolist()
        for i in range(0, n - m + 1, m):
            block = shuffled[i : i + m]
            if frozenset(block) not in seen:
                seen.add(frozenset(block))
                kept.append(block)
            if len(seen) >= k:
                break
    return kept


@pytest.mark.parametrize(
    ("n", "m", "k"),
    [
        (1, 1, 1),
        (6, 6, 1),
        (6, 1, 6),
        (6, 2, 15),
        (7, 3, 35),
        (7, 3, 20),
        (9, 3, 50),
        (10, 4, 7),
        (50, 7, 100),
        (20, 15, 9),
    ],
)
def test_paper_is_algorithm_1(n, m, k):
    for seed in range(20):
        plan = balanced_subsets(n, m, k, method="paper", generator=seeded(seed))
        check_different(plan, n, m, k)
        assert plan.tolist() == algorithm_1(n, m, k, seeded(seed))


@settings(max_examples=100, deadline=None)
@given(requests(most=300))
def test_paper_is_algorithm_1_drawn(request_):
    n, m, k, seed = request_
    plan = balanced_subsets(n, m, k, method="paper", generator=seeded(seed))
    check_different(plan, n, m, k)
    assert plan.tolist() == algorithm_1(n, m, k, seeded(seed))


@pytest.mark.timeout(60)
def test_paper_ends_when_all_subsets_are_asked_for():
    check_different(
        balanced_subsets(16, 8, 12_870, method="paper", generator=seeded()), 16, 8, 12_870
    )


def test_paper_drops_the_rest_of_each_shuffle():
    # One shuffle, two blocks of 3 out of 8 rows: coverage is not promised, and here it cannot hold.
    plan = balanced_subsets(8, 3, 2, method="paper", generator=seeded())
    assert plan.flatten().unique().numel() == 6


@pytest.mark.parametrize(
    ("n", "m", "k"),
    [(6, 3, 7), (6, 3, 16), (5, 2, 4), (6, 4, 7), (7, 3, 5), (40, 2, 3)],
    ids=["replaced", "all-but", "across", "left-out", "mended", "first-rows"],
)
def test_each_subset_is_a_uniform_draw_in_random_order(n, m, k):
    """Every place of the plan holds every row equally often, over many plans: chi-square, six
    deviations."""
    repeats = 4000
    generator = seeded(5)
    plans = torch.stack([balanced_subsets(n, m, k, generator=generator) for _ in range(repeats)])
    for place in ((0, 0), (k - 1, m - 1), (k // 2, 0)):
        counts = plans[:, place[0], place[1]].bincount(minlength=n).double()
        statistic = float(((counts - repeats / n) ** 2).sum() / (repeats / n))
        assert statistic < (n - 1) + 6 * math.sqrt(2 * (n - 1))
    if (total := math.comb(n, m)) <= 40:
        numbers = (2 ** plans[:, k - 1]).sum(dim=1)
        counts = torch.unique(numbers, return_counts=True)[1].double()
        assert len(counts) == total
        statistic = float(((counts - repeats / total) ** 2).sum() / (repeats / total))
        assert statistic < (total - 1) + 6 * math.sqrt(2 * (total - 1))


@pytest.mark.parametrize("method", ["balanced", "paper"])
@pytest.mark.parametrize(
    ("n", "m", "k"), [(30, 7, 50), (10, 3, 100), (10, 7, 55), (100_000, 3, 10)]
)
def test_one_state_one_plan(method, n, m, k):
    first = balanced_subsets(n, m, k, method=method, generator=seeded(1))
    assert torch.equal(first, balanced_subsets(n, m, k, method=method, generator=seeded(1)))
    assert not torch.equal(first, balanced_subsets(n, m, k, method=method, generator=seeded(2)))
    generator = seeded(1)
    balanced_subsets(n, m, k, method=method, generator=generator)
    assert not torch.equal(first, balanced_subsets(n, m, k, method=method, generator=generator))


@pytest.mark.parametrize("method", ["balanced", "paper"])
def test_the_default_generator_is_used_only_without_another(method):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        before = torch.random.get_rng_state()
        balanced_subsets(10, 3, 100, method=method, generator=seeded())
        assert torch.equal(before, torch.random.get_rng_state())
        plan = balanced_subsets(10, 3, 100, method=method)
        assert not torch.equal(before, torch.random.get_rng_state())
        torch.manual_seed(3)
        assert torch.equal(plan, balanced_subsets(10, 3, 100, method=method))
    assert torch.equal(plan, balanced_subsets(10, 3, 100, method=method, generator=seeded(3)))


def test_numpy_integers_are_whole_numbers():
    plan = balanced_subsets(np.int64(10), np.int32(3), np.int64(4), generator=seeded())
    assert torch.equal(plan, balanced_subsets(10, 3, 4, generator=seeded()))


@pytest.mark.parametrize(("n", "m"), [(n, m) for n in range(2, 13) for m in range(1, n // 2 + 1)])
def test_stream_is_level_and_holds_no_row_twice_in_a_block(n, m):
    for k in (n, 5 * n + 1):
        plan = torch.from_numpy(subsets._stream(n, m, k, seeded(n + m)))
        ordered = plan.sort(dim=1).values
        assert (ordered[:, 1:] > ordered[:, :-1]).all()
        counts = plan.flatten().bincount(minlength=n)
        assert counts.max() - counts.min() <= 1
        # every prefix is level too: training on the subsets in order sees all rows at the same pace
        for prefix in range(1, k):
            counts = plan[:prefix].flatten().bincount(minlength=n)
            assert counts.max() - counts.min() <= 1


def naive_repeats(plan: np.ndarray) -> list[bool]:
    sets = [frozenset(line) for line in plan.tolist()]
    return [line in sets[:i] for i, line in enumerate(sets)]


@pytest.mark.parametrize("bits", [64, 3, 0])
def test_repeats_are_exact_whatever_the_digest(monkeypatch, bits):
    true_digest = subsets._digest
    if bits < 64:
        monkeypatch.setattr(
            subsets, "_digest", lambda plan: true_digest(plan) % np.uint64(1 << bits)
        )
    generator = seeded(2)
    for n, m, k in ((5, 2, 1), (5, 2, 9), (6, 3, 40), (30, 4, 50), (9, 1, 20)):
        shuffled = subsets._shuffled(np.arange(n), k, generator)[:, :m]
        assert subsets._repeats(shuffled).tolist() == naive_repeats(shuffled)


def test_digest_does_not_depend_on_the_order_of_rows():
    plan = balanced_subsets(1000, 20, 50, generator=seeded()).numpy()
    turned = np.ascontiguousarray(plan[:, ::-1])
    assert (subsets._digest(plan) == subsets._digest(turned)).all()
    assert len(np.unique(subsets._digest(plan))) == len(plan)


@pytest.mark.parametrize("only_exchanges", [False, True])
def test_level_keeps_subsets_different_from_any_start(monkeypatch, only_exchanges):
    """Any family of different subsets, however lopsided or dense, can be levelled one exchange at a
    time."""
    if only_exchanges:
        monkeypatch.setattr(
            subsets, "_within", lambda values, ordered: np.ones(len(values), dtype=bool)
        )
    none = np.empty((0, 1), dtype=np.int64)
    for n in range(2, 8):
        for m in range(1, n):
            everything = subsets._all_but(none.repeat(m, axis=1), n, seeded(n))
            ordered = np.sort(everything, axis=1)
            lopsided = np.ascontiguousarray(
                ordered[np.lexsort(ordered.T[::-1])]
            )  # row 0 first, and so on
            for k in range(1, len(lopsided) + 1):
                plan = lopsided[:k].copy()
                subsets._level(plan, n, seeded(k))
                check_balanced(torch.from_numpy(plan), n, m, k)


def test_all_but_enumerates_the_others():
    none = np.empty((0, 3), dtype=np.int64)
    every = torch.from_numpy(subsets._all_but(none, 9, seeded()))
    check_balanced(every, 9, 3, math.comb(9, 3))
    left = torch.from_numpy(subsets._all_but(every[:20].numpy(), 9, seeded()))
    check_different(torch.cat([left, every[:20]]), 9, 3, math.comb(9, 3))


def test_n_different_is_the_binomial_coefficient_up_to_a_cap():
    assert _checks.n_different(10, 3) == 120
    assert _checks.n_different(10, 10) == 1
    assert _checks.n_different(66, 33) == math.comb(66, 33)
    assert _checks.n_different(68, 34) == 2**63
    assert _checks.n_different(10**9, 10**8) == 2**63


class ElsewhereGenerator(torch.Generator):
    device = torch.device("cuda")


IMPOSSIBLE = [
    (
        (3, 4, 1),
        ValueError,
        r"subset_size must be at most n_rows = 3, got 4; take smaller subsets or more rows",
    ),
    (
        (4, 2, 7),
        ValueError,
        r"n_subsets must be at most 6, .* subsets of 2 out of 4 rows, got 7; ask for at most 6",
    ),
    ((4, 2, 10**40), ValueError, r"n_subsets must be at most 6, .* got 1000"),
    (
        (5, 5, 2),
        ValueError,
        r"n_subsets must be at most 1, the number of different subsets of 5 out of 5 rows, got 2",
    ),
    (
        (100, 50, 2**48),
        ValueError,
        r"n_subsets \* subset_size must be below 2\*\*48 to fit in memory, got .* each epoch",
    ),
    (
        (2**31, 1, 1),
        ValueError,
        r"n_rows must be below 2\*\*31, got 2147483648; draw from a part of the rows",
    ),
    ((10**9, 5 * 10**8, 10**30), ValueError, r"n_subsets \* subset_size must be below 2\*\*48"),
    ((0, 1, 1), ValueError, r"n_rows must be at least 1, got 0"),
    ((5, 0, 1), ValueError, r"subset_size must be at least 1, got 0"),
    ((5, 1, -1), ValueError, r"n_subsets must be at least 1, got -1"),
    ((5.0, 1, 1), TypeError, r"n_rows must be a whole number, got 5.0 \(float\)"),
    ((5, True, 1), TypeError, r"subset_size must be a whole number, got True \(bool\)"),
    ((5, 1, "3"), TypeError, r"n_subsets must be a whole number, got '3' \(str\)"),
]


@pytest.mark.parametrize("method", ["balanced", "paper"])
@pytest.mark.parametrize(("sizes", "error", "message"), IMPOSSIBLE)
@pytest.mark.timeout(1, func_only=True)
def test_impossible_requests_raise_at_once(sizes, error, message, method):
    with pytest.raises(error, match=message):
        balanced_subsets(*sizes, method=method)


def test_wrong_options_are_refused():
    with pytest.raises(
        ValueError,
        match=(
            r'method must be one of "balanced", "paper", got \'balance\'; did you mean "balanced"'
        ),
    ):
        balanced_subsets(5, 2, 3, method="balance")
    with pytest.raises(TypeError, match=r"generator must be a torch.Generator or None, got int"):
        balanced_subsets(5, 2, 3, generator=0)
    with pytest.raises(
        ValueError,
        match=r"generator must be on the CPU, .* got one on cuda; pass torch.Generator\(\)",
    ):
        balanced_subsets(5, 2, 3, generator=ElsewhereGenerator())


def test_examples_in_the_docstrings():
    result = doctest.testmod(subsets)
    assert result.attempted > 0
    assert result.failed == 0
