"""Networks of a cross-validation: trained as one fleet, their weights kept at every evaluation, mixed at the end."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.linear_model import RidgeCV
from torch import Tensor, nn

from rlploss import CrossEntropy, Event, Steps
from rlploss._progress import ProgressFunction
from rlploss._scaling import Array
from rlploss.distributed import one_torch_thread
from rlploss.estimators.dial import Choice, Index, choose, relative
from rlploss.models import Skip, WeightedMean
from rlploss.training.fit import train
from rlploss.training.job import Job
from rlploss.training.loop import Supervision

PENALTIES = np.logspace(-3, 4, 15)  # of the plane below a network, to choose from


@dataclass(eq=False)
class Replica:
    """A network that is trained further and further, the plane below it, and its weights at every evaluation."""

    job: Job  # its targets are what the plane leaves
    plane: nn.Linear | None = None
    kept: list[NDArray[np.float32]] = field(default_factory=list)  # the weights [P] of every evaluation
    diverged: bool = False

    @cached_property
    def _live(self) -> list[NDArray[np.float32] | Tensor]:
        """The weights, which training changes in place.

        Arrays: torch would let go of Python's lock for each of them, and wait for it beside the threads that train.
        """
        live = [parameter.detach() for parameter in self.job.model.parameters()]
        return [weights if weights.is_cuda else weights.numpy() for weights in live]

    def keep(self) -> None:
        """Keep the weights as they are now."""
        here = [weights.cpu().numpy() if isinstance(weights, Tensor) else weights for weights in self._live]
        self.kept.append(np.concatenate([weights.ravel() for weights in here]))

    def watch(self, event: Event) -> None:
        """Keep the weights at every evaluation after the first step."""
        if event.step:
            self.keep()

    def outputs(self, X: NDArray[np.float32], kept: Sequence[NDArray[np.float32]]) -> Array:
        """What the last layer gives [e, n, C] for rows X [n, d] with each of the weights; a soft-max is left out."""
        sizes = [parameter.numel() for parameter in self.job.model.parameters()]
        parts = iter(np.split(np.stack(kept), np.cumsum(sizes)[:-1], axis=1))
        out = X
        with np.errstate(over="ignore", invalid="ignore"), torch.no_grad():
            for layer in self.job.model.children():
                if isinstance(layer, nn.Linear):
                    weight = next(parts).reshape(-1, *layer.weight.shape)
                    out = out @ weight.swapaxes(1, 2) + next(parts)[:, None]
                elif not isinstance(layer, nn.Softmax):
                    out = layer(torch.from_numpy(out)).numpy()
        return out.astype(np.float64)

    def predictions(self, X: Array, first: int, last: int) -> Array:
        """Predictions [e, n, C] for rows X [n, d] at evaluations first..last; NaN after the network diverged."""
        kept = self.kept[first:last]
        kept += [np.full_like(self.kept[0], np.nan)] * (last - first - len(kept))
        out = self.outputs(X.astype(np.float32), kept)
        if self.job.table.classes:
            out = softmax(out, axis=-1)
        return out if self.plane is None else out + on_plane(self.plane, X)

    def module(self, evaluation: int) -> nn.Module:
        """The network as it was at one evaluation, with its plane or its soft-max, in float64; its training is over."""
        nn.utils.vector_to_parameters(torch.tensor(self.kept[evaluation]), self.job.model.parameters())
        network = copy.deepcopy(self.job.model).cpu().double()
        if self.plane is not None:
            return Skip(self.plane, network)
        gives_logits = isinstance(self.job.objective, CrossEntropy)
        return nn.Sequential(*network.children(), nn.Softmax(dim=-1)) if gives_logits else network


def train_further(
    replicas: Sequence[Replica], steps: int, every: int, *, progress: bool | ProgressFunction = False
) -> None:
    """Train all that have not diverged for so many steps more, and keep their weights every so often."""
    going = [one for one in replicas if not one.diverged]
    jobs = [replace(one.job, budget=Steps(steps)) for one in going]
    watch = Supervision(Steps(every), (lambda event: going[event.replica].watch(event),), on_divergence="record")
    for one, loop in zip(going, train(jobs, watch, progress=progress, fleet=True), strict=True):
        one.job = replace(loop.job, engine_state=loop.engine.state_dict())
        one.diverged = loop.history.stopped == "diverged"


class Search:
    """The candidates: every network of every setting at every evaluation, and its out-of-fold errors.

    Replicas go through the folds one after another, setting by setting. `tests` are the validation rows [n, d] of each
    fold, `truth` their targets one fold after another [rows, C], and `counts` their weights [rows].
    """

    def __init__(self, replicas: Sequence[Replica], tests: Sequence[Array], truth: Array, counts: Array) -> None:
        self.replicas, self._tests, self._truth, self._counts = replicas, tests, truth, counts
        self.steps: Index = np.zeros(1, dtype=np.int64)  # [e] of every evaluation
        self.residuals = self._latest(0)  # [settings, e, rows, C]; NaN after a network diverged

    def _latest(self, first: int) -> Array:
        """Residuals at the evaluations from `first` on."""
        folds, last = len(self._tests), len(self.steps)
        with one_torch_thread():
            found = [one.predictions(self._tests[i % folds], first, last) for i, one in enumerate(self.replicas)]
        rows = [np.concatenate(found[i : i + folds], axis=1) for i in range(0, len(found), folds)]
        return np.stack(rows) - self._truth

    def grow(self, steps: int, every: int, *, progress: bool) -> None:
        """Train for so many steps more, with an evaluation every so often."""
        train_further(self.replicas, steps, every, progress=progress)
        first, more = len(self.steps), np.minimum(np.arange(every, steps + every, every), steps)
        self.steps = np.concatenate([self.steps, self.steps[-1] + more])
        self.residuals = np.concatenate([self.residuals, self._latest(first)], axis=1)

    def choice(self) -> Choice:
        """The best single candidate, and the best of every setting."""
        with np.errstate(over="ignore"):
            squared = self._counts * (self.residuals**2).mean(axis=-1)  # [settings, e, rows]
        ends = np.cumsum([len(rows) for rows in self._tests])[:-1]
        sizes = np.add.reduceat(self._counts, [0, *ends])
        sums = [one.sum(axis=-1) for one in np.split(squared, ends, axis=-1)]
        return choose(np.stack(sums, axis=1) / sizes[:, None], sizes)

    def mixture(self, draws: int) -> tuple[Array, float]:
        """The shares [settings, e] of the candidates in the best mixture of so many draws, and its error."""
        candidates = self.residuals.reshape(-1, *self._truth.shape)
        shares = greedy(candidates, self._counts, draws)
        mixed = np.einsum("k,knc->nc", shares[shares > 0], candidates[shares > 0])
        error = np.average((mixed**2).mean(axis=1), weights=self._counts)
        return shares.reshape(self.residuals.shape[:2]), float(error)

    def network(self, shares: Array, folds: Array) -> WeightedMean:
        """The mixture as one network; `folds` [F] weigh the networks of the folds."""
        chosen = [(s, e, f) for s, e in np.argwhere(shares > 0) for f in range(len(folds))]
        members = [self.replicas[s * len(folds) + f].module(e) for s, e, f in chosen]
        return WeightedMean(members, [float(shares[s, e] * folds[f]) for s, e, f in chosen])


def greedy(residuals: Array, weight: Array, most: int) -> Array:
    """Shares [k] of the candidates with residuals [k, n, C] in the mixture that has the least squared error.

    One begins with the best and adds, `most` times in all and with repetition, the one that helps most; the best
    mixture on the way is taken. So it is never worse than the best single one. `weight` [n] weighs the rows.
    """
    flat = (residuals * np.sqrt(weight)[:, None]).reshape(len(residuals), -1)
    alone = np.einsum("kn,kn->k", flat, flat)
    alone[~np.isfinite(alone)] = np.inf
    flat = np.where(np.isfinite(alone)[:, None], flat, 0.0)
    drawn, total = np.zeros(len(flat)), np.zeros(flat.shape[1])
    best, shares = np.inf, drawn
    for size in range(1, most + 1):
        errors = (total @ total + 2 * flat @ total + alone) / size**2
        chosen = int(errors.argmin())
        drawn[chosen] += 1
        total += flat[chosen]
        if (error := float(total @ total) / size**2) < best:
            best, shares = error, drawn / size
    return shares


def fit_plane(X: Array, Y: Array, weight: Array | None) -> nn.Linear:
    """The plane of a ridge regression of Y [n, C] on X [n, d], its penalty by leave-one-out."""
    ridge = RidgeCV(PENALTIES).fit(X, Y, relative(weight))
    plane = nn.Linear(X.shape[1], Y.shape[1], device="meta")  # draws no weights
    plane.weight = nn.Parameter(torch.tensor(ridge.coef_).view(plane.weight.shape).contiguous())
    plane.bias = nn.Parameter(torch.tensor(ridge.intercept_).view(plane.bias.shape))
    return plane


def on_plane(plane: nn.Linear, X: Array) -> Array:
    """The plane [n, C] over rows X [n, d]."""
    with torch.no_grad():
        out: Array = plane(torch.tensor(X)).numpy()
    return out
