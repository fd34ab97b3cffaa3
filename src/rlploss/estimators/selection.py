"""Choosing among settings and stopping steps by the error on validation rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rlploss.training.history import Event

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Split = tuple[Index, Index]  # training and validation rows


@dataclass(frozen=True)
class Choice:
    """The validation error of every setting along its training, and where it is lowest."""

    curves: Array  # [settings, evaluations]; infinite from where a network diverged
    evaluations: Index  # [settings]: the best evaluation of each
    errors: Array  # [settings]: the error there

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
    best = curves.argmin(axis=1)
    return Choice(curves, best, curves[np.arange(len(curves)), best])


class SnapshotRecorder:
    """Keeps the weights of every network of a fleet at every evaluation, and its error on its validation rows.

    A callback of `fit_fleet`. Network i is measured on rows `validation[i]` of X [n, d] and Y [n, C], by the squared
    error with row weights [n].
    """

    def __init__(self, X: Array, Y: Array, weight: Array | None, validation: Sequence[Index]) -> None:
        self._X, self._Y, self._weight, self._validation = torch.tensor(X), Y, weight, validation
        self._weights: list[list[torch.Tensor]] = [[] for _ in validation]  # by network and evaluation, flat
        self._errors: list[list[float]] = [[] for _ in validation]

    def __call__(self, event: Event) -> None:
        """Take in one evaluation of one network."""
        if event.step == 0:
            return
        network, rows = event.model(), self._validation[event.replica]
        first = next(network.parameters())
        with torch.no_grad():
            predicted = network(self._X[rows].to(first)).double().cpu().numpy()
            self._weights[event.replica].append(nn.utils.parameters_to_vector(network.parameters()).cpu())
        with np.errstate(over="ignore"):
            squared = ((predicted - self._Y[rows]) ** 2).mean(axis=1)
        weight = None if self._weight is None else self._weight[rows]
        self._errors[event.replica].append(float(np.average(squared, weights=weight)))

    def errors(self, n_evaluations: int) -> Array:
        """Errors [networks, evaluations]; NaN from where a network diverged."""
        found = np.full((len(self._errors), n_evaluations), np.nan)
        for errors, row in zip(self._errors, found, strict=True):
            row[: len(errors)] = errors
        return found

    def network(self, replica: int, evaluation: int, blank: nn.Module) -> nn.Module:
        """A network as it was at one evaluation, put into a blank one."""
        nn.utils.vector_to_parameters(self._weights[replica][evaluation], blank.parameters())
        return blank
