"""The search of the cross-validated estimators and of `compare`: places on the dial, networks, the
choice, a mixture.

The subset size is a dial. N is the number of rows and p that of the planes' columns, the ones
included. Up to M = p RLP is MSE; at M = N it sees only the least-squares plane of all rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.linear_model import RidgeCV
from torch import nn

from rlploss import Event, Steps
from rlploss._checks import count, n_different, number
from rlploss._progress import ProgressFunction
from rlploss._scaling import Array, Scaling
from rlploss._torch import one_torch_thread
from rlploss.models import Skip, WeightedMean
from rlploss.training.fit import train
from rlploss.training.job import Job
from rlploss.training.loop import Supervision
from rlploss.training.objectives import MSE, RLP, CrossEntropy

PENALTIES = np.logspace(-3, 4, 15)  # of the plane below a network, to choose from
BATCH = 200  # rows per step of pointwise losses, as in scikit-learn's MLP estimators
FEWEST_STEPS = 10  # in one iteration, so that small tables are trained too
MOST_SUBSETS = 1000  # in a plan
_PLAN_WORK = 10**9  # of K·M·p², the cost of factoring a plan
RULE_ROWS, RULE_FEATURES = 1000, 300  # that "auto" looks at
CURVED = 0.7  # of a plane's error: a curved fit below it tells that there is little noise

Index = NDArray[np.int64]
Split = tuple[Index, Index]  # training and validation rows
PointwiseEnd = MSE | CrossEntropy  # of the dial: it has no subsets


@dataclass(frozen=True)
class Dial:
    """A place on the dial: so many rows (an int), a fraction of them (a float), or a place on a
    logarithmic scale.

    `place` 0 is M = p, which is MSE, and 1 is M = N, the least-squares plane of all rows.
    """

    size: int | float | None = None
    place: float = 0.0  # where there is no size

    @classmethod
    def of(cls, name: str, size: object) -> Dial:
        """Read a number of rows, or a fraction of them as a float; `name` is the setting that it
        comes from.
        """
        if not isinstance(size, float | np.floating):
            return cls(count(name, size))
        fraction = number(f"{name}, a fraction of the rows,", float(size), 0.0, 1.0)
        if fraction == 0:
            raise ValueError(
                f"{name}, a fraction of the rows, must be above 0, got 0.0; 1 is one row"
            )
        return cls(fraction)

    def subset_size(self, n_rows: int, n_columns: int) -> int:
        """M for N rows and p columns, at most N; M ≤ p stands for MSE."""
        if isinstance(self.size, float):
            return max(1, round(self.size * n_rows))
        if self.size is None and n_rows > n_columns:
            return round(float(n_columns * (n_rows / n_columns) ** self.place))
        return n_rows if self.size is None else min(self.size, n_rows)


MSE_END, MIDDLE, LINEAR_END = Dial(), Dial(place=0.5), Dial(place=1.0)
DIALS = (MSE_END, MIDDLE, Dial(0.85), LINEAR_END)  # what is tried unless the user says otherwise


def relative(weight: Array | None) -> Array | None:
    """Weights [n] with mean 1, as only their ratios count; None where all are the same."""
    return None if weight is None or np.ptp(weight) == 0 else weight / weight.mean()


def auto_subset_size(
    X: Any, y: Any, sample_weight: Any = None, *, intercept: bool = True
) -> int | None:
    """The subset size M that `subset_size="auto"` takes for rows X (n, d) and targets y (n,) or (n,
    C); None is MSE.

    M = √(p·N), the middle of the dial on a logarithmic scale, for N rows and p columns (the
    intercept included). MSE where there are fewer than p + 3 rows, and where a curved fit, ridge
    regression on random features, has less than 0.7 of the leave-one-out error of a plane: what is
    not linear is no noise there, and RLP would learn it slowly.

    >>> X = np.linspace(-1, 1, 90).reshape(30, 3) ** [1, 2, 3]
    >>> auto_subset_size(X, X @ [1.0, 2.0, 3.0]), auto_subset_size(X, np.cos(9 * X[:, 0]))
    (11, None)
    """
    X, Y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64).reshape(len(X), -1)
    n_rows, p = len(X), X.shape[1] + int(intercept)
    if n_rows < p + 3:
        return None
    rng = np.random.default_rng(0)
    some = rng.permutation(n_rows)[:RULE_ROWS]
    weight = (
        None
        if sample_weight is None
        else relative(np.asarray(sample_weight, dtype=np.float64)[some])
    )
    scaling = Scaling.of(X[some], Y[some], weight)
    Z, target = scaling.inputs(X[some]), scaling.targets(Y[some])
    directions = rng.normal(size=(X.shape[1], RULE_FEATURES)) / np.sqrt(X.shape[1])
    bent = np.maximum(Z @ directions + rng.uniform(-2, 2, size=RULE_FEATURES), 0)
    curved = np.hstack([Z, Scaling.of(bent).inputs(bent)])
    plane, curve = (
        -RidgeCV(np.logspace(-4, 4, 17)).fit(part, target, weight).best_score_
        for part in (Z, curved)
    )
    return None if curve < CURVED * plane else max(p + 2, round(float(np.sqrt(p * n_rows))))


def with_subsets(
    form: RLP, size: int, n_rows: int, n_features: int, *, most_subsets: int = MOST_SUBSETS
) -> RLP:
    """`form` with subsets of `size` rows; K, unless `form` has it, and the subsets per step follow.

    K is `most_subsets`, or fewer where factoring them would take more than about a second or there
    are not as many. Small subsets are taken several at a time: as many as fit into 200 rows and
    into a fifth of all.
    """
    n_subsets = form.n_subsets
    if n_subsets is None:
        affordable = _PLAN_WORK // (size * form.planes.n_columns(n_features) ** 2)
        n_subsets = max(min(most_subsets, affordable), -(-n_rows // size))
        n_subsets = min(n_subsets, n_different(n_rows, size))
    per_step = max(1, min(BATCH, n_rows // 5) // size)
    return replace(
        form, subset_size=size, n_subsets=n_subsets, subsets_per_step=min(n_subsets, per_step)
    )


def objective_at(
    form: RLP,
    size: int | None,
    n_rows: int,
    n_features: int,
    *,
    end: type[PointwiseEnd] = MSE,
    batch_size: int = BATCH,
    most_subsets: int = MOST_SUBSETS,
) -> RLP | PointwiseEnd:
    """What is made small with subsets of `size` rows: `end` up to p or with None, beyond it `form`
    with these subsets.

    `form` says what else belongs to RLP (probe, intercept, ridge, mixup); `end` takes its mixup and
    `batch_size`.
    """
    if size is None or size <= form.planes.n_columns(n_features):
        return end(min(batch_size, n_rows), mixup=form.mixup)
    return with_subsets(form, size, n_rows, n_features, most_subsets=most_subsets)


def steps_per_iteration(n_rows: int, batch_size: int = BATCH) -> int:
    """Optimiser steps in one iteration: a pass over the rows in batches, at least 10. The same for
    every loss.
    """
    return max(FEWEST_STEPS, -(-n_rows // min(batch_size, n_rows)))


# Networks that are trained further and further, and the plane below them


@dataclass(eq=False)
class Replica:
    """A network that is trained further and further, the plane below it, and its weights at every
    evaluation.
    """

    job: Job  # its targets are what the plane leaves
    plane: nn.Linear | None = None
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
        return out if self.plane is None else out + on_plane(self.plane, X)

    def module(self, evaluation: int) -> nn.Module:
        """The network as it was at one evaluation, with its plane or its soft-max, in float64; its
        training is over.
        """
        nn.utils.vector_to_parameters(
            torch.tensor(self.kept[evaluation]), self.job.model.parameters()
        )
        network = copy.deepcopy(self.job.model).cpu().double()
        if self.plane is not None:
            return Skip(self.plane, network)
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

    Leave the evaluation before the first step out, it is no choice. NaN counts as infinite: a
    network that diverged.
    """
    finite = np.where(np.isnan(errors), np.inf, errors)
    curves = np.average(finite, axis=1, weights=fold_sizes)
    evaluations, here = curves.argmin(axis=1), np.arange(len(curves))
    best = curves[here, evaluations]
    order = np.argsort(best, kind="stable")
    return Choice(curves, evaluations, best, finite[here, :, evaluations], order, int(order[0]))


class Search:
    """The candidates: every network of every setting at every evaluation, and its out-of-fold
    errors.

    Replicas go through the folds one after another, setting by setting. `tests` are the validation
    rows [n, d] of each fold, `truth` their targets one fold after another [rows, C], and `counts`
    their weights [rows].
    """

    def __init__(
        self, replicas: Sequence[Replica], tests: Sequence[Array], truth: Array, counts: Array
    ) -> None:
        self.replicas, self._tests, self._truth, self._counts = replicas, tests, truth, counts
        self.steps: Index = np.zeros(1, dtype=np.int64)  # [e] of every evaluation
        self.residuals = self._latest(0)  # [settings, e, rows, C]; NaN after a network diverged

    def _latest(self, first: int) -> Array:
        """Residuals at the evaluations from `first` on."""
        folds, last = len(self._tests), len(self.steps)
        with one_torch_thread():
            found = [
                one.predictions(self._tests[i % folds], first, last)
                for i, one in enumerate(self.replicas)
            ]
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
        """The shares [settings, e] of the candidates in the best mixture of so many draws, and its
        error.
        """
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
