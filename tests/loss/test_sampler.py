from __future__ import annotations

import copy
import doctest
import io
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from rlploss import BalancedBatchSampler, balanced_subsets
from rlploss.loss import sampler

N, M, K = 23, 5, 17


def loader(
    batches: BalancedBatchSampler, workers: int = 0, persistent: bool = False
) -> DataLoader[list[torch.Tensor]]:
    """The rows of the data are their own numbers, so that a batch shows which rows it holds."""
    data = TensorDataset(torch.arange(batches.n_rows))
    return DataLoader(
        data, batch_sampler=batches, num_workers=workers, persistent_workers=persistent
    )


def rows(batches: Iterator[list[torch.Tensor]] | DataLoader[list[torch.Tensor]]) -> list[list[int]]:
    return [batch[0].tolist() for batch in batches]


def plan_of(seed: int, method: str = "balanced") -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return balanced_subsets(N, M, K, method=method, generator=generator).tolist()


@pytest.mark.parametrize("method", ["balanced", "paper"])
@pytest.mark.parametrize("plan", ["once", "each-epoch"])
def test_the_first_epoch_is_the_plan_of_balanced_subsets(method, plan):
    batches = BalancedBatchSampler(N, M, K, method=method, plan=plan, seed=4)
    assert len(batches) == K
    assert list(batches) == batches.subsets.tolist() == plan_of(4, method)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("plan", ["once", "each-epoch"])
def test_a_loader_sees_every_epoch_with_and_without_workers(plan, workers, persistent):
    expected = BalancedBatchSampler(N, M, K, plan=plan, seed=1)
    data = loader(BalancedBatchSampler(N, M, K, plan=plan, seed=1), workers, persistent)
    assert len(data) == K
    seen = []
    for epoch in range(3):
        expected.set_epoch(epoch)
        seen.append(rows(data))
        assert seen[-1] == expected.subsets.tolist()
        assert data.batch_sampler.epoch == epoch
    assert (seen[0] == seen[1]) == (seen[1] == seen[2]) == (plan == "once")


def test_set_epoch_chooses_the_plan():
    batches = BalancedBatchSampler(N, M, K, plan="each-epoch", seed=1)
    epochs = [list(batches) for _ in range(4)]
    assert len({str(epoch) for epoch in epochs}) == 4
    for epoch in (2, 0, 3, 3):
        batches.set_epoch(epoch)
        assert list(batches) == epochs[epoch]


def test_an_iteration_broken_off_begins_again():
    batches = BalancedBatchSampler(N, M, K, plan="each-epoch")
    whole = list(batches)
    batches.set_epoch(0)
    assert [batch for batch, _ in zip(batches, range(3), strict=False)] == whole[:3]
    assert batches.epoch == 0
    assert list(batches) == whole
    assert list(batches) != whole


def test_seeds_differ_beyond_the_bits_that_torch_reads():
    plans = {
        str(list(BalancedBatchSampler(N, M, K, seed=seed))) for seed in (0, 1, 2**32, 2**33, 2**63)
    }
    assert len(plans) == 5


SHARED = [(17, 1), (17, 2), (17, 4), (16, 4), (3, 5), (1, 3), (18, 17)]


def ranks(k: int, world_size: int, **options) -> list[BalancedBatchSampler]:
    return [
        BalancedBatchSampler(N, M, k, rank=r, world_size=world_size, **options)
        for r in range(world_size)
    ]


@pytest.mark.parametrize(("k", "world_size"), SHARED)
@pytest.mark.parametrize("plan", ["once", "each-epoch"])
def test_ranks_together_go_through_the_plan_of_one_process(k, world_size, plan):
    alone = BalancedBatchSampler(N, M, k, plan=plan)
    parts = ranks(k, world_size, plan=plan)
    for _ in range(2):
        whole = list(alone)
        taken = [list(part) for part in parts]
        assert {len(batches) for batches in taken} == {len(parts[0])} == {-(-k // world_size)}
        real = [[w > 0 for w in part.weights.tolist()] for part in parts]
        in_turn = [
            taken[r][s] for s in range(len(parts[0])) for r in range(world_size) if real[r][s]
        ]
        assert in_turn == whole
        assert all(batch in whole for batches in taken for batch in batches)
        per_rank = [sum(flags) for flags in real]
        assert max(per_rank) - min(per_rank) <= 1


@pytest.mark.parametrize(("k", "world_size"), SHARED)
def test_weights_make_means_over_ranks_means_over_subsets(k, world_size):
    losses = torch.rand(k, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
    parts = ranks(k, world_size)
    weighted = torch.stack([part.weights * losses[part.which] for part in parts])  # [ranks, steps]
    step_means = weighted.mean(dim=0)
    for step, mean in enumerate(step_means):
        torch.testing.assert_close(mean, losses[step * world_size : (step + 1) * world_size].mean())
    torch.testing.assert_close((parts[0].shares * step_means).sum(), losses.mean())
    torch.testing.assert_close(parts[0].shares.sum(), torch.tensor(1.0, dtype=torch.float64))
    for part in parts:
        assert part.subsets[part.which].tolist() == list(part)


def through_a_file(state: dict[str, int | str]) -> dict[str, int | str]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("plan", ["once", "each-epoch"])
@pytest.mark.parametrize("done", [0, 1, 8, K - 1])
def test_a_state_resumes_in_mid_epoch(plan, done):
    first = BalancedBatchSampler(N, M, K, plan=plan, seed=6)
    list(first)
    second_epoch = iter(first)
    for _ in range(done):
        next(second_epoch)
    state = through_a_file(first.state_dict() if done else first.state_dict(step=K))
    rest = list(second_epoch) if done else list(first)
    following = list(first)

    resumed = BalancedBatchSampler(N, M, K, plan=plan, seed=6)
    resumed.load_state_dict(state)
    assert resumed.start == done
    assert len(resumed) == K
    assert list(resumed) == rest
    assert resumed.start == 0
    assert list(resumed) == following
    assert resumed.epoch == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("stop", [(0, 1), (1, 2), (1, -1), (2, 0)])
def test_the_documented_loop_resumes_under_a_loader(workers, world_size, stop):
    """Batches taken in advance by workers are not lost: the state counts the steps that were
    done."""

    def train(
        batches: BalancedBatchSampler, stop: tuple[int, int] | None
    ) -> tuple[list[list[int]], dict[str, int | str]]:
        data, seen, state = (
            loader(batches, workers, persistent=workers > 0),
            [],
            batches.state_dict(),
        )
        for epoch in range(batches.epoch, 3):
            batches.set_epoch(epoch)
            for step, batch in enumerate(data, start=batches.start):
                seen.append(batch[0].tolist())
                state = batches.state_dict(step=step + 1)
                if stop is not None and (epoch, step) == (stop[0], stop[1] % len(batches)):
                    return seen, state
        return seen, state

    for rank in range(world_size):
        options = {"plan": "each-epoch", "seed": 2, "rank": rank, "world_size": world_size}
        whole, _ = train(BalancedBatchSampler(N, M, K, **options), None)
        before, state = train(BalancedBatchSampler(N, M, K, **options), stop)
        resumed = BalancedBatchSampler(N, M, K, **options)
        resumed.load_state_dict(through_a_file(state))
        after, _ = train(resumed, None)
        assert before + after == whole


def test_a_state_after_set_epoch_is_at_its_beginning():
    batches = BalancedBatchSampler(N, M, K)
    list(batches)
    assert batches.state_dict()["step"] == K
    batches.set_epoch(1)
    assert (batches.state_dict()["epoch"], batches.state_dict()["step"]) == (1, 0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_another_epoch_than_that_of_a_loaded_state_begins_at_its_beginning(seed):
    batches = BalancedBatchSampler(N, M, K, plan="each-epoch", seed=seed)
    state = BalancedBatchSampler(N, M, K, plan="each-epoch", seed=seed).state_dict(step=2)
    batches.load_state_dict(state)
    batches.set_epoch(3)
    assert batches.start == 0
    plan = batches.subsets.tolist()
    assert list(batches) == plan
    batches.load_state_dict(state)
    batches.set_epoch(0)  # its own epoch goes on
    assert len(list(batches)) == K - 2


def test_the_number_of_processes_may_change_between_epochs_only():
    state = BalancedBatchSampler(N, M, K, world_size=2).state_dict()
    BalancedBatchSampler(N, M, K, world_size=3).load_state_dict(state)
    state = BalancedBatchSampler(N, M, K, world_size=2).state_dict(step=1)
    with pytest.raises(
        ValueError, match=r"same arguments, got world_size=2 instead of 3; build this sampler as"
    ):
        BalancedBatchSampler(N, M, K, world_size=3).load_state_dict(state)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda batches: pickle.loads(pickle.dumps(batches))]
)
def test_a_copy_goes_on_where_the_original_is(duplicate):
    batches = BalancedBatchSampler(N, M, K, plan="each-epoch", seed=3, rank=1, world_size=2)
    state = batches.state_dict(step=4) | {"epoch": 2}
    batches.load_state_dict(state)
    twin = duplicate(batches)
    assert list(twin) == list(batches)
    assert list(twin) == list(batches)
    assert twin.epoch == batches.epoch == 3
    assert len(pickle.dumps(BalancedBatchSampler(10**6, 100, 1000))) < 1000


def test_nothing_touches_the_global_generator():
    before = torch.random.get_rng_state()
    list(BalancedBatchSampler(N, M, K, plan="each-epoch"))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_subsets": 10**6}, ValueError, r"n_subsets must be at most 33649, .* got 1000000"),
        ({"subset_size": 24}, ValueError, r"subset_size must be at most n_rows = 23, got 24"),
        (
            {"method": "Paper"},
            ValueError,
            r'method must be one of "balanced", "paper", got \'Paper\'',
        ),
        ({"plan": "epoch"}, ValueError, r'plan must be one of "once", "each-epoch", got \'epoch\''),
        ({"seed": -1}, ValueError, r"seed must be at least 0, got -1"),
        ({"seed": None}, TypeError, r"seed must be a whole number, got None \(NoneType\)"),
        ({"world_size": 0}, ValueError, r"world_size must be at least 1, got 0"),
        (
            {"rank": 2, "world_size": 2},
            ValueError,
            r"rank must be below world_size = 2, got 2; ranks are counted from 0",
        ),
        ({"rank": 1}, ValueError, r"rank must be below world_size = 1, got 1"),
        ({"rank": -1}, ValueError, r"rank must be at least 0, got -1"),
    ],
)
def test_wrong_arguments_are_refused(options, error, message):
    sizes = {"n_rows": N, "subset_size": M, "n_subsets": K}
    with pytest.raises(error, match=message):
        BalancedBatchSampler(**(sizes | options))


def test_wrong_states_are_refused_and_change_nothing():
    batches = BalancedBatchSampler(N, M, K)
    good = batches.state_dict()
    step_rule = (
        r"step must be at most 17, the number of steps of an epoch, got 18; count the steps of the"
        r" present"
    )
    with pytest.raises(ValueError, match=step_rule):
        batches.state_dict(step=18)
    with pytest.raises(ValueError, match=r"step must be at least 0, got -1"):
        batches.state_dict(step=-1)
    with pytest.raises(ValueError, match=step_rule):
        batches.load_state_dict(good | {"epoch": 3, "step": 18})
    with pytest.raises(
        ValueError, match=r"state must come from state_dict\(\), got one that lacks step, seed"
    ):
        batches.load_state_dict({name: good[name] for name in good if name not in ("step", "seed")})
    with pytest.raises(
        ValueError,
        match=r"got n_subsets=16 instead of 17, seed=9 instead of 0; build this sampler as",
    ):
        batches.load_state_dict(good | {"seed": 9, "n_subsets": 16})
    with pytest.raises(ValueError, match=r"epoch must be at least 0, got -1"):
        batches.load_state_dict(good | {"epoch": -1})
    with pytest.raises(ValueError, match=r"epoch must be at least 0, got -2"):
        batches.set_epoch(-2)
    assert batches.state_dict() == good


def test_examples_in_the_docstrings():
    result = doctest.testmod(sampler)
    assert result.attempted > 0
    assert result.failed == 0
