"""Choosing among settings and stopping steps by the error on validation rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rlploss.training.evaluation import Event

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Split = tuple[Index, Index]  # training and validation rows


@dataclass(frozen=True)
class Choice:
    """The validation error of every setting along its training, and where it is lowest."""

    curves: Array  # [settings, evaluations], over all folds; infinite from where a network diverged
    evaluations: Index  # [settings]: the best evaluation of each
    errors: Array  # [settings]: the error there
    fold_errors: Array  # [settings, folds]: the error of every fold there

    @property
    def order(self) -> Index:
        """Settings from best to worst; of equal ones the first comes first."""
        return np.argsort(self.errors, kind="stable")

    @property
    def setting(self) -> int:
        """The best setting."""
        return int(self.order[0])


def choose(errors: Array, fold_sizes: Sequence[float] | Array | None = None) -> Choice:
    """Choose by errors [settings, folds, evaluations], averaged over folds by their sizes (None: all alike).

    Leave the evaluation before the first step out, it is no choice. NaN counts as infinite: a network that diverged.
    """
    finite = np.where(np.isnan(errors), np.inf, errors)
    curves = np.average(finite, axis=1, weights=fold_sizes)
    best, here = curves.argmin(axis=1), np.arange(len(curves))
    return Choice(curves, best, curves[here, best], finite[here, :, best])


class SnapshotRecorder:
    """Keeps the weights of every network of a fleet at every evaluation, and its error on its validation rows.

    A callback of `fit_fleet` for networks that go through the folds one after another, setting by setting. Errors are
    squared, of rows X [n, d] and Y [n, C] with weights [n]; `folds` are the validation rows.
    """

    def __init__(
        self, X: Array, Y: Array, weight: Array | None, *, folds: Sequence[Index], n_settings: int, n_evaluations: int
    ) -> None:
        self._folds = [(torch.tensor(X[r]).float(), Y[r], None if weight is None else weight[r]) for r in folds]
        self._kept: list[list[torch.Tensor]] = [[] for _ in range(n_settings * len(folds))]  # flat weights
        self.errors = np.full((n_settings, len(folds), n_evaluations), np.nan)  # NaN from where a network diverged

    def __call__(self, event: Event) -> None:
        """Take in one evaluation of one network."""
        if event.step == 0:
            return
        setting, fold = divmod(event.replica, len(self._folds))
        X, Y, weight = self._folds[fold]
        network, kept = event.model(), self._kept[event.replica]
        first = next(network.parameters())
        with torch.no_grad():
            predicted = network(X.to(first)).double().cpu().numpy()
            flat = nn.utils.parameters_to_vector(network.parameters()).cpu()
        with np.errstate(over="ignore"):
            squared = ((predicted - Y) ** 2).mean(axis=1)
        self.errors[setting, fold, len(kept)] = np.average(squared, weights=weight)
        kept.append(flat)

    def network(self, setting: int, fold: int, evaluation: int, blank: nn.Module) -> nn.Module:
        """A network as it was at one evaluation, put into a blank one."""
        flat = self._kept[setting * len(self._folds) + fold][evaluation]
        nn.utils.vector_to_parameters(flat, blank.parameters())
        return blank
