"""The search of the cross-validated networks: the race in heats, the choice, a mixture."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.linear_model import RidgeCV
from torch import nn

from rlploss import Event, Steps
from rlploss._progress import ProgressFunction
from rlploss._scaling import Array
from rlploss._torch import one_torch_thread
from rlploss.estimators.dial import relative
from rlploss.models import FromLogarithms, Skip, WeightedMean
from rlploss.training.fit import train
from rlploss.training.job import Job
from rlploss.training.loop import Supervision
from rlploss.training.objectives import CrossEntropy

PENALTIES = np.logspace(-3, 4, 15)  # of the plane below a network, to choose from
TOLERANCE = 3e-3  # what is 0.3 % better is better
LAST_PART = 0.8  # of the steps: a best step beyond it asks for more

Index = NDArray[np.int64]
Split = tuple[Index, Index]  # training and validation rows


# Networks that are trained further and further, and the plane below them


@dataclass(eq=False)
class Replica:
    """A network that is trained further and further, the plane below it, and its weights at every
    evaluation.
    """

    job: Job  # its targets are what the plane leaves
    plane: nn.Linear | None = None
    back: FromLogarithms | None = None  # where its targets are logarithms
    kept: list[NDArray[np.float32]] = field(
        default_factory=list
    )  # the weights [P] of every evaluation
    diverged: bool = False

    def keep(self) -> None:
        """Keep the weights as they are now."""
        self.kept.append(
            nn.utils.parameters_to_vector(self.job.model.parameters()).detach().cpu().numpy()
        )

    def outputs(self, X: NDArray[np.float32], kept: Sequence[NDArray[np.float32]]) -> Array:
        """What the last layer gives [e, n, C] for rows X [n, d] with each of the weights; a
        soft-max is left out.
        """
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
        """Predictions [e, n, C] for rows X [n, d] at evaluations first..last; NaN after the network
        diverged.
        """
        kept = self.kept[first:last]
        kept += [np.full_like(self.kept[0], np.nan)] * (last - first - len(kept))
        out = self.outputs(X.astype(np.float32), kept)
        if self.job.table.classes:
            out = softmax(out, axis=-1)
        if self.plane is not None:
            out = out + on_plane(self.plane, X)
        return out if self.back is None else self.back(torch.from_numpy(out)).numpy()

    def module(self, evaluation: int) -> nn.Module:
        """The network as it was at one evaluation, with its plane or its soft-max, in float64; its
        training is over.
        """
        nn.utils.vector_to_parameters(
            torch.tensor(self.kept[evaluation]), self.job.model.parameters()
        )
        network: nn.Module = copy.deepcopy(self.job.model).cpu().double()
        if self.plane is not None:
            network = Skip(self.plane, network)
        if self.back is not None:
            return nn.Sequential(network, self.back)
        gives_logits = isinstance(self.job.objective, CrossEntropy)
        return nn.Sequential(*network.children(), nn.Softmax(dim=-1)) if gives_logits else network


def train_further(
    replicas: Sequence[Replica],
    steps: int,
    every: int,
    *,
    progress: bool | ProgressFunction = False,
) -> None:
    """Train all that have not diverged for so many steps more, and keep their weights every so
    often.
    """
    going = [one for one in replicas if not one.diverged]

    def keep(event: Event) -> None:
        if event.step:
            going[event.replica].keep()

    watch = Supervision(
        Steps(steps), evaluate_every=Steps(every), callbacks=(keep,), on_divergence="record"
    )
    loops = train([(one.job, watch) for one in going], progress=progress, fleet=True)
    for one, loop in zip(going, loops, strict=True):
        one.job = replace(loop.job, state=loop.state)
        one.diverged = loop.history.stopped == "diverged"


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


# The choice among settings and stopping steps, and their mixture


@dataclass(frozen=True)
class Choice:
    """The validation error of every setting along its training, and where it is lowest."""

    curves: Array  # [settings, evaluations], over all folds; infinite from where a network diverged
    evaluations: Index  # [settings]: the best evaluation of each
    errors: Array  # [settings]: the error there
    fold_errors: Array  # [settings, folds]: the error of every fold there
    order: Index  # settings from best to worst; of equal ones the first comes first
    setting: int  # the best


def choose(errors: Array, fold_sizes: Sequence[float] | Array | None = None) -> Choice:
    """Choose by errors [settings, folds, evaluations], averaged over folds by their sizes (None:
    all alike).

    NaN counts as infinite: a network that diverged.
    """
    finite = np.where(np.isnan(errors), np.inf, errors)
    curves = np.average(finite, axis=1, weights=fold_sizes)
    evaluations, here = curves.argmin(axis=1), np.arange(len(curves))
    best = curves[here, evaluations]
    order = np.argsort(best, kind="stable")
    return Choice(curves, evaluations, best, finite[here, :, evaluations], order, int(order[0]))


def heats(first: int, total: int, evaluations: int) -> list[Index]:
    """Return the steps at which networks are evaluated, heat by heat, up to `total`.

    The first heat has `first` steps and so many evaluations. Each other takes as many steps as all
    before it, with half as many evaluations.
    """
    plan: list[Index] = []
    begin, end = 0, min(first, total)
    while begin < total:
        every = -(-(end - begin) // (max(1, evaluations // 2) if begin else evaluations))
        plan.append(np.minimum(np.arange(begin + every, end + every, every), end))
        begin, end = end, min(total, 2 * end)
    return plan


def worth_more(curves: Array, steps: Index, last: int) -> NDArray[np.bool_]:
    """Return which settings, with errors [settings, evaluations] at these steps, go on in a race.

    A setting goes on while its best step lies in the last fifth of the steps, unless it would not
    come to the best of all by the `last` step even if every doubling of its steps were to gain as
    much as the latest has.
    """
    now = curves.min(axis=1)
    earlier = curves[:, steps <= steps[-1] / 2].min(axis=1, initial=np.inf)
    best = steps[np.argmax(curves <= (1 + TOLERANCE) * now[:, None], axis=1)]
    with np.errstate(invalid="ignore"):  # infinite errors
        gain = np.log2(last / steps[-1]) * (earlier - now)
        late, hopeful = best > LAST_PART * steps[-1], now - gain <= now.min()
    goes_on: NDArray[np.bool_] = np.isfinite(now) & late & hopeful
    return goes_on


class Search:
    """The candidates: every network of every setting at every evaluation, and its out-of-fold
    errors.

    `replicas` are those of every setting, fold by fold. `tests` are the validation rows [n, d] of
    each fold, `truth` their targets one fold after another [rows, C], and `counts` their weights
    [rows].
    """

    def __init__(
        self,
        replicas: Sequence[Sequence[Replica]],
        tests: Sequence[Array],
        truth: Array,
        counts: Array,
    ) -> None:
        self.replicas, self._tests, self._truth, self._counts = replicas, tests, truth, counts
        self.steps: Index = np.zeros(1, dtype=np.int64)  # [e] of every evaluation
        # [settings, e, rows, C]; NaN after a network diverged
        self.residuals = np.stack([self._latest(folds, 0) for folds in replicas])

    def _latest(self, folds: Sequence[Replica], first: int) -> Array:
        """Return the residuals [e, rows, C] of one setting at the evaluations from `first` on."""
        with one_torch_thread():
            predictions = [
                replica.predictions(rows, first, len(self.steps))
                for replica, rows in zip(folds, self._tests, strict=True)
            ]
        return np.concatenate(predictions, axis=1) - self._truth

    def race(self, plan: Sequence[Index], *, progress: bool) -> None:
        """Train all settings heat by heat, until none is worth another.

        A setting that has ended keeps its last residuals.
        """
        going = list(range(len(self.replicas)))
        for steps in plan:
            if not going:
                return
            begin, first = int(self.steps[-1]), len(self.steps)
            runners = [replica for setting in going for replica in self.replicas[setting]]
            train_further(runners, int(steps[-1]) - begin, int(steps[0]) - begin, progress=progress)
            self.steps = np.concatenate([self.steps, steps])
            latest = np.repeat(self.residuals[:, -1:], len(steps), axis=1)
            for setting in going:
                latest[setting] = self._latest(self.replicas[setting], first)
            self.residuals = np.concatenate([self.residuals, latest], axis=1)
            goes_on = worth_more(self.choice().curves[going, 1:], self.steps[1:], int(plan[-1][-1]))
            going = [setting for setting, more in zip(going, goes_on, strict=True) if more]

    def choice(self) -> Choice:
        """Return the best single candidate, and the best of every setting."""
        with np.errstate(over="ignore"):
            squared = self._counts * (self.residuals**2).mean(axis=-1)  # [settings, e, rows]
        ends = np.cumsum([len(rows) for rows in self._tests])[:-1]
        sizes = np.add.reduceat(self._counts, [0, *ends])
        sums = [fold.sum(axis=-1) for fold in np.split(squared, ends, axis=-1)]
        return choose(np.stack(sums, axis=1) / sizes[:, None], sizes)

    def mixture(self, draws: int) -> tuple[Array, float]:
        """Return the shares [settings, e] of the candidates in the best mixture of so many draws,
        and its error.
        """
        candidates = self.residuals.reshape(-1, *self._truth.shape)
        shares = greedy(candidates, self._counts, draws)
        mixed = np.einsum("k,knc->nc", shares[shares > 0], candidates[shares > 0])
        error = np.average((mixed**2).mean(axis=1), weights=self._counts)
        return shares.reshape(self.residuals.shape[:2]), float(error)

    def network(self, shares: Array, folds: Array) -> WeightedMean:
        """Return the mixture as one network; `folds` [F] weigh the networks of the folds."""
        chosen = [(s, e, f) for s, e in np.argwhere(shares > 0) for f in range(len(folds))]
        members = [self.replicas[s][f].module(e) for s, e, f in chosen]
        return WeightedMean(members, [float(shares[s, e] * folds[f]) for s, e, f in chosen])


def greedy(residuals: Array, weight: Array, most: int) -> Array:
    """Shares [k] of the candidates with residuals [k, n, C] in the mixture that has the least
    squared error.

    One begins with the best and adds, `most` times in all and with repetition, the one that helps
    most; the best mixture on the way is taken. So it is never worse than the best single one.
    `weight` [n] weighs the rows.
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
