"""Everything random in a run, drawn epoch by epoch from its seed.

Four generators are made from the seed, one per purpose, so that a plan does not change when, say, the probe does.
What an epoch draws is kept (`state_dict`) and can be put back exactly. Every process of a distributed run draws the
same.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from rlploss.loss.functional import draw_rows
from rlploss.loss.mixup import mixup_lambdas
from rlploss.loss.subsets import balanced_subsets
from rlploss.training.recipes import Recipe

PURPOSES = ("plan", "shuffle", "draw", "mixup")


def stream(seed: int, purpose: str) -> torch.Generator:
    """A CPU generator that depends on the seed and on what it is for."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


class Draws(ABC):
    """What the epochs of one run draw: the plan, or the order of the rows; partners and λ of mixup; probe points.

    A subclass turns draws into tensors (`_prepare`) and lets go of them (`release`).
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.streams = {purpose: stream(recipe.seed, purpose) for purpose in PURPOSES}
        self.draws: dict[str, Tensor] = {}  # what the current epoch drew

    def begin_epoch(self) -> None:
        """Draw what this epoch needs; everything random happens here."""
        r, draws = self.recipe, self.draws
        if r.loss == "rlp":
            if "plan" not in draws or r.plan == "each-epoch":
                for name in ("plan", "plan_b") if r.mixup else ("plan",):
                    draws[name] = self._draw_plan()
                self.release()
            if r.mixup:
                self.release()
                draws["lam"] = self._draw_lambdas(self._n_subsets)
            if r.probe == "draw":
                draws["points"] = draw_rows(draws["plan"], r.n_rows, str(r.draw_from), self.streams["draw"])
        else:
            self.forget_rows()
            if r.batch_size != r.n_rows:  # with all rows in each step their order means nothing
                draws["order"] = torch.randperm(r.n_rows, generator=self.streams["shuffle"])
            if r.mixup:
                draws["partner"] = torch.randperm(r.n_rows, generator=self.streams["mixup"])
                draws["lam"] = self._draw_lambdas(r.steps_per_epoch)
        self._prepare()

    @abstractmethod
    def release(self) -> None:
        """Let go of what can be made again from the draws."""

    @abstractmethod
    def forget_rows(self) -> None:
        """Let go of rows that were gathered in the order of the last epoch."""

    @abstractmethod
    def _prepare(self) -> None:
        """Build what the steps of this epoch use from what was drawn."""

    def end(self) -> None:
        """Let go of everything: no step follows."""
        self.release()
        self.draws.clear()

    def _draw_plan(self) -> Tensor:
        r = self.recipe
        assert r.subset_size is not None
        return balanced_subsets(
            r.n_rows, r.subset_size, self._n_subsets, method=str(r.method), generator=self.streams["plan"]
        )

    def _draw_lambdas(self, n: int) -> Tensor:
        assert self.recipe.mixup_alpha is not None
        return mixup_lambdas(n, self.recipe.mixup_alpha, generator=self.streams["mixup"])

    @property
    def _n_subsets(self) -> int:
        assert self.recipe.n_subsets is not None
        return int(self.recipe.n_subsets)

    # For checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The generators and what the current epoch drew."""
        states = {name: generator.get_state() for name, generator in self.streams.items()}
        return {"streams": states, "draws": dict(self.draws)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue in the middle of the epoch that `state` was taken in."""
        for name, generator in self.streams.items():
            generator.set_state(state["streams"][name])
        self.draws = dict(state["draws"])
        self.release()
        if self.draws:
            self._prepare()
