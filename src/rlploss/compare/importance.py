"""Which columns matter: how much worse predictions of test rows become when one is shuffled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlploss._scaling import Array
from rlploss.compare.metrics import Metric

MOST_ROWS, FEWEST_ROWS, MOST_CELLS = 500, 20, 2_000_000  # of one split, and of all its copies


def importance(
    predict: Callable[[pd.DataFrame], Array],
    X: pd.DataFrame,
    truth: NDArray[Any],
    *,
    metric: Metric,
    columns: Sequence[Sequence[int]],
    seed: int = 0,
) -> Array:
    """Return for each of `columns` (the places in X that belong together) how much worse the metric
    becomes on the rows X when they are shuffled; above 0 is worse.

    All shuffled copies are predicted in one call, of at most 500 rows each.
    """
    rng = np.random.default_rng(seed)
    most = min(MOST_ROWS, max(FEWEST_ROWS, MOST_CELLS // X.shape[1] ** 2))
    rows = rng.permutation(len(X))[:most]
    X, truth = X.iloc[rows].reset_index(drop=True), truth[rows]
    copies = [X]
    for places in columns:
        copy, order = X.copy(), rng.permutation(len(X))
        for place in places:
            copy.isetitem(place, X.iloc[order, place].array)
        copies.append(copy)
    predicted = predict(pd.concat(copies, ignore_index=True)).reshape(len(copies), len(X), -1)
    values = np.array([metric.value(metric.losses(p, truth)) for p in predicted])
    return np.asarray((values[1:] - values[0]) * (1 if metric.lower_is_better else -1))
