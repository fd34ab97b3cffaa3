"""Places on the dial, rows cut into folds, and the networks of a cross-validation at every evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rlploss.estimators.predictor import Array
from rlploss.training.fleet import Problem
from rlploss.training.history import Event
from rlploss.training.objectives import Objective
from rlploss.training.optimizers import Adam

Split = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Dial:
    """A subset size: a number of rows, a fraction of them, or a place between the ends on a logarithmic scale.

    `place` 0 is M = p, which is MSE, and 1 is M = N, the least-squares plane of all rows.
    """

    rows: int | None = None
    fraction: float | None = None
    place: float | None = None

    def subset_size(self, n_rows: int, n_columns: int) -> int:
        """M for N rows and p columns, at most N; M ≤ p stands for MSE."""
        if self.rows is not None:
            return min(self.rows, n_rows)
        if self.fraction is not None:
            return max(1, round(self.fraction * n_rows))
        assert self.place is not None
        if n_rows <= n_columns:
            return n_rows
        size: float = n_columns * (n_rows / n_columns) ** self.place
        return round(size)


MSE_END, LINEAR_END = Dial(place=0.0), Dial(place=1.0)
AUTO = (MSE_END, Dial(place=0.5), Dial(fraction=0.85), LINEAR_END)


@dataclass(frozen=True)
class Rows:
    """Scaled rows and their weights."""

    x: Array
    y: Array
    weight: Array | None

    def weight_of(self, which: NDArray[np.int64]) -> float:
        """How much some rows count together."""
        return float(len(which) if self.weight is None else self.weight[which].sum())

    def problem(
        self, train: NDArray[np.int64], test: NDArray[np.int64], seed: int, objective: Objective, optimizer: Adam
    ) -> Problem:
        """One network of the fleet."""
        return Problem(
            self.x[train],
            self.y[train],
            validation=(self.x[test], self.y[test]),
            seed=seed,
            sample_weight=None if self.weight is None else self.weight[train],
            objective=objective,
            optimizer=optimizer,
        )


class Keeper:
    """Keeps the weights of every network at every evaluation, and its error on its held-out rows."""

    def __init__(self, rows: Rows, splits: list[Split]) -> None:
        self._kept: dict[tuple[int, int], torch.Tensor] = {}  # replica, evaluation -> flat weights
        self._errors: dict[int, list[float]] = {}
        self._rows, self._splits = rows, splits

    def __call__(self, event: Event) -> None:
        """Take in one evaluation of one network."""
        if event.step == 0:
            return
        errors = self._errors.setdefault(event.replica, [])
        network = event.model()
        self._kept[event.replica, len(errors)] = nn.utils.parameters_to_vector(network.parameters()).detach().cpu()
        error = event.metrics["mse"]
        if self._rows.weight is not None:
            _, test = self._splits[event.replica % len(self._splits)]
            error = self._weighted(network, test)
        errors.append(error)

    def _weighted(self, network: nn.Module, test: NDArray[np.int64]) -> float:
        assert self._rows.weight is not None
        first = next(network.parameters())
        with torch.no_grad():
            gap = network(torch.tensor(self._rows.x[test]).to(first)).cpu().double().numpy() - self._rows.y[test]
        weight = self._rows.weight[test]
        return float((weight[:, None] * gap**2).sum() / (weight.sum() * gap.shape[1]))

    def curves(self, n_networks: int, n_evaluations: int) -> Array:
        """Errors [networks, evaluations]; infinite from where a network diverged."""
        found = np.full((n_networks, n_evaluations), np.inf)
        for replica, errors in self._errors.items():
            found[replica, : len(errors)] = errors
        return found

    def network(self, replica: int, evaluation: int, blank: nn.Module) -> nn.Module:
        """A network as it was at one evaluation, put into a blank one."""
        nn.utils.vector_to_parameters(self._kept[replica, evaluation], blank.parameters())
        return blank
