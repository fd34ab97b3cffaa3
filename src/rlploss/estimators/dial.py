"""The dial: places on it, and the objective that a place comes to.

The subset size is a dial. N is the number of rows and p that of the planes' columns, the ones
included. Up to M = p RLP is MSE; at M = N it sees only the least-squares plane of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.linear_model import RidgeCV

from rlploss._checks import count, n_different, number
from rlploss._scaling import Array, Scaling
from rlploss.training.objectives import MSE, RLP, CrossEntropy

BATCH = 200  # rows per step of pointwise losses, as in scikit-learn's MLP estimators
FEWEST_STEPS = 10  # in one iteration, so that small tables are trained too
MOST_SUBSETS = 1000  # in a plan
_PLAN_WORK = 10**9  # of K·M·p², the cost of factoring a plan
RULE_ROWS, RULE_FEATURES = 1000, 300  # that "auto" looks at
CURVED = 0.7  # of a plane's error: a curved fit below it tells that there is little noise

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
        """Read a number of rows, a fraction of them as a float, or "auto", the middle; `name` is
        the setting that it comes from.
        """
        if isinstance(size, str) and size == "auto":
            return MIDDLE
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
