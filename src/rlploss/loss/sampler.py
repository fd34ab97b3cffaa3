"""Feed the subsets of a plan to a `DataLoader` as batches, in one process or many, resumable in
mid-epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Sampler

from rlploss import _checks
from rlploss.loss.subsets import METHODS, balanced_subsets

PLANS = ("once", "each-epoch")


class BalancedBatchSampler(Sampler[list[int]]):
    """Yields the K subsets of `balanced_subsets` one by one: `DataLoader(data,
    batch_sampler=...)`.

    One epoch is one pass over the K subsets, in ⌈K/W⌉ steps on each of W = `world_size` processes.
    In step s, rank r gets subset number s·W + r, so all ranks together use the same plan as one
    process.

    **The short step.** If W does not divide K, only w_s < W subsets are left for the last step. The
    other ranks get a subset already used earlier in the epoch, so that all ranks take the same
    number of steps, and its weight is 0. `weights[s]` is W/w_s for a subset that counts and 0
    for one that does not (all are 1 in a full step). So for the loss ℓ_r of the batch on rank r

        mean over ranks of weights_r[s]·ℓ_r  =  mean of ℓ over the w_s subsets of step s,

    which DistributedDataParallel computes for `(sampler.weights[s] * loss).backward()`. Steps
    weighted by `shares[s]` = w_s/K give the mean over the whole plan: Σ_s shares[s] ·
    mean_r(weights_r[s]·ℓ_r).

    **Epochs.** After a complete iteration the next one is the next epoch. `set_epoch` chooses an
    epoch. An interrupted iteration does not count: the next one begins the same epoch again
    (unless the workers of a `DataLoader` had fetched all of it). `plan="each-epoch"` draws a
    new plan in every epoch, which depends on the seed and the number of the epoch only.

    **Resuming.** A `DataLoader` with workers fetches batches ahead of the training, so the sampler
    cannot know how many were used; pass the number, `state_dict(step=steps_done)`. Without
    `step` it is the number of batches yielded, which is correct without workers. After
    `load_state_dict` the next iteration yields the rest of the epoch, from step `start` on;
    `len` stays that of a whole epoch. The state consists of plain numbers and strings, and
    every rank can load that of any rank::

        for epoch in range(sampler.epoch, n_epochs):
            sampler.set_epoch(epoch)
            for step, batch in enumerate(loader, start=sampler.start):
                ...
                checkpoint["sampler"] = sampler.state_dict(step=step + 1)

    Args:
        n_rows: N, the number of rows of the data.
        subset_size: M ≤ N, the number of rows in a batch.
        n_subsets: K ≤ C(N, M), the number of subsets in an epoch.
        method: `"balanced"` or `"paper"`, see `balanced_subsets`.
        plan: `"once"` (the same subsets in every epoch, as in the paper's Algorithm 2) or
            `"each-epoch"`.
        seed: the same number on every rank. The plan of epoch 0 is that of `balanced_subsets` with
            `generator=torch.Generator().manual_seed(seed)` for a seed below 2³².
        rank: number of this process, 0 ≤ rank < world_size.
        world_size: W, the number of processes that share an epoch.

    >>> sampler = BalancedBatchSampler(6, 2, 4, rank=1, world_size=3)
    >>> len(sampler), sampler.weights.tolist(), sampler.shares.tolist()
    (2, [1.0, 0.0], [0.75, 0.25])
    """

    def __init__(
        self,
        n_rows: int,
        subset_size: int,
        n_subsets: int,
        *,
        method: str = "balanced",
        plan: str = "once",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.n_rows, self.subset_size, self.n_subsets = _checks.plan_sizes(
            n_rows, subset_size, n_subsets
        )
        self.method = _checks.one_of("method", method, METHODS)
        self.plan = _checks.one_of("plan", plan, PLANS)
        self.seed = _checks.count("seed", seed, minimum=0)
        self.world_size = _checks.count("world_size", world_size)
        self.rank = _checks.count("rank", rank, minimum=0)
        if self.rank >= self.world_size:
            raise ValueError(
                f"rank must be below world_size = {self.world_size}, got {self.rank}; ranks are"
                " counted from 0"
            )
        self._epoch = 0
        self._start = 0  # the step at which the next iteration begins
        self._handed_out = 0  # the number of steps that the latest iteration has yielded
        self._chosen = False  # whether set_epoch was called since then
        self._drawn: tuple[int, torch.Tensor] | None = None

    def __len__(self) -> int:
        """Return the number of steps in an epoch, the same on every rank."""
        return -(-self.n_subsets // self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches of this rank as lists of row numbers."""
        # The state changes only with the first batch, because a DataLoader with workers calls
        # iter() twice.
        if self._complete():
            self._epoch, self._start = self._epoch + 1, 0
        start, self._start, self._chosen = self._start, 0, False
        self._handed_out = start
        plan = self.subsets
        for done, number in enumerate(self.which[start:], start=start + 1):
            self._handed_out = done
            yield plan[number].tolist()

    @property
    def epoch(self) -> int:
        """The epoch that the latest iteration belongs to, or that `set_epoch` or `load_state_dict`
        chose.
        """
        return self._epoch

    @property
    def start(self) -> int:
        """The step at which the next iteration begins: 0, except after `load_state_dict`."""
        return 0 if self._complete() else self._start

    @property
    def subsets(self) -> torch.Tensor:
        """The plan of the current epoch, for all ranks together: int64 [K, M]."""
        key = self._epoch if self.plan == "each-epoch" else 0
        if self._drawn is None or self._drawn[0] != key:
            # torch's CPU generator uses 32 bits of a seed; odd factors give each epoch its own.
            seed = (self.seed + (self.seed >> 32) * 0x85EBCA6B + key * 0x9E3779B9) % 2**32
            generator = torch.Generator().manual_seed(seed)
            sizes = self.n_rows, self.subset_size, self.n_subsets
            self._drawn = key, balanced_subsets(*sizes, method=self.method, generator=generator)
        return self._drawn[1]

    @property
    def which(self) -> torch.Tensor:
        """For each step, the number in `subsets` of the subset that this rank gets: int64 [len]."""
        return (torch.arange(len(self)) * self.world_size + self.rank) % self.n_subsets

    @property
    def weights(self) -> torch.Tensor:
        """For each step, the factor of this rank's loss: W/w_s if its subset counts, else 0;
        float64 [len].
        """
        present = self._present()
        return (self.rank < present) * self.world_size / present.double()

    @property
    def shares(self) -> torch.Tensor:
        """For each step, the share w_s/K of the plan that all ranks together use: float64 [len]."""
        return self._present().double() / self.n_subsets

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration one of this epoch, or the rest of it if a state of it was just
        loaded.
        """
        epoch = _checks.count("epoch", epoch, minimum=0)
        if epoch != self._epoch:
            self._epoch, self._start = epoch, 0
        self._handed_out, self._chosen = self._start, True

    def state_dict(self, step: int | None = None) -> dict[str, int | str]:
        """Return the position in the epoch, and everything that the plan depends on.

        Args:
            step: the number of finished steps of the current epoch. None is the number of batches
                yielded, which is too large if a DataLoader with workers fetched some in advance.
        """
        return {
            "epoch": self._epoch,
            "step": self._handed_out if step is None else self._checked_step(step),
            "world_size": self.world_size,
            **self._plan_arguments(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a `state_dict`: the next iteration yields the rest of its
        epoch.
        """
        here = {"world_size": self.world_size, **self._plan_arguments()}
        if lacking := [name for name in ("epoch", "step", *here) if name not in state]:
            raise ValueError(
                f"state must come from state_dict(), got one that lacks {', '.join(lacking)}"
            )
        if state["step"] == 0:
            # The number of processes may change between epochs.
            del here["world_size"]
        differing = [
            f"{name}={state[name]!r} instead of {value!r}"
            for name, value in here.items()
            if state[name] != value
        ]
        if differing:
            raise ValueError(
                "state must come from a sampler with the same arguments, got"
                f" {', '.join(differing)}; build this sampler as the other one was built"
            )
        epoch, step = (
            _checks.count("epoch", state["epoch"], minimum=0),
            self._checked_step(state["step"]),
        )
        self._epoch, self._start, self._handed_out, self._chosen = epoch, step, step, False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the plan, which can be drawn again."""
        return {**self.__dict__, "_drawn": None}

    def _complete(self) -> bool:
        return self._handed_out == len(self) and not self._chosen

    def _present(self) -> torch.Tensor:
        """Return the number w_s of subsets that count in each step: int64 [len]."""
        return (self.n_subsets - torch.arange(len(self)) * self.world_size).clamp(
            max=self.world_size
        )

    def _checked_step(self, step: object) -> int:
        done = _checks.count("step", step, minimum=0)
        if done > len(self):
            raise ValueError(
                f"step must be at most {len(self)}, the number of steps of an epoch, got {done};"
                " count the steps of the present epoch only"
            )
        return done

    def _plan_arguments(self) -> dict[str, int | str]:
        return {
            "n_rows": self.n_rows,
            "subset_size": self.subset_size,
            "n_subsets": self.n_subsets,
            "method": self.method,
            "plan": self.plan,
            "seed": self.seed,
        }
