"""What makes the answer of a comparison doubtful: rows in an order, keys that repeat, copies, and
columns that know the target.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np
import pandas as pd

from rlploss._scaling import Array
from rlploss.estimators.kinds import IDENTIFIER, Column

LARGEST = 1e100  # beyond, squares overflow
LEAK = 0.99  # share of the target's variance that one column alone should not tell
BY_CHANCE = 1e-4  # that all rows with a value are of one class
FEWEST_COPIES = 0.01  # share of the rows


def too_large(numbers: Sequence[float] | Array | pd.Series) -> str:
    """Return what is told of numbers whose squares overflow."""
    return f"must be within ±{LARGEST:g}, got {max(numbers, key=abs):g}; rescale it"


def doubts_of(
    columns: Sequence[Column],
    rows: pd.DataFrame,
    given: pd.DataFrame,
    Y: Array,
    classes: Sequence[str],
    *,
    asked: bool,
) -> list[str]:
    """Return a warning for each doubt, with its remedy.

    `rows` are read, `given` as they were; `Y` [n, C] is the target, one-hot for classes. Whether
    times or groups were `asked` for settles what orders and repeats rows.
    """
    doubts = [f"column {column.name!r} {column.doubt}" for column in columns if column.doubt]
    for column in columns:
        if column.used:
            doubts += _leaks(column, rows[column.name], Y, classes)
        if not asked:
            doubts += _repeats(column, given[column.name])
    return doubts if asked else [*_orders(columns, rows), *doubts, *_copies(rows, Y)]


def _leaks(column: Column, values: pd.Series, Y: Array, classes: Sequence[str]) -> list[str]:
    """Return whether one column alone tells the target, by its values or by where it has some."""
    known, name = values.notna().to_numpy(), column.name
    remedy = f"is it known beforehand? --drop {shlex.quote(name)} leaves it out"
    for there, word in ((known, "has values"), (~known, "is missing")):
        shares = Y[there].mean(axis=0) if classes and there.any() else np.zeros(1)
        if shares.max() == 1 and Y.mean(axis=0)[shares.argmax()] ** there.sum() < BY_CHANCE:
            label = classes[int(shares.argmax())]
            return [f"column {name!r} {word} only where the target is {label!r}: {remedy}"]
    x = values if column.kind in ("number", "date") else pd.factorize(values)[0]
    told = told_by_neighbours(np.asarray(x)[known].astype(np.float64), Y[known])
    if told > 1 - 1e-9:
        return [f"column {name!r} tells the target exactly: {remedy}"]
    if told > LEAK:
        return [f"column {name!r} alone tells {min(told, 0.999):.1%} of the target: {remedy}"]
    return []


def told_by_neighbours(x: Array, Y: Array) -> float:
    """Return the share of the variance of Y [n, C] that is told by a line through the two rows
    beside each in x [n]: near 1 for any copy, code, or smooth function of Y.
    """
    mixed = np.random.default_rng(0).permutation(len(x))  # the order of the file tells nothing
    order = mixed[np.argsort(x[mixed], kind="stable")]
    x, Y = x[order], Y[order]
    if len(x) < 5:
        return 0.0
    gap = x[2:] - x[:-2]
    share = np.where(gap > 0, (x[1:-1] - x[:-2]) / np.where(gap > 0, gap, 1.0), 0.5)[:, None]
    rest = Y[1:-1] - Y[:-2] - share * (Y[2:] - Y[:-2])
    spread = Y[1:-1] - Y[1:-1].mean(axis=0)
    total = float((spread**2).sum())
    return 1 - float((rest**2).sum()) / total if total > 0 else 0.0


def _orders(columns: Sequence[Column], rows: pd.DataFrame) -> list[str]:
    """Return whether a date in (almost) every row orders them; the one that rows are sorted by
    comes first.
    """
    orders: dict[bool, str] = {}
    for column in columns:
        days = rows[column.name] if column.kind == "date" else pd.Series(dtype=object)
        if 0 < len(days) / 10 < days.nunique() and days.notna().all():
            is_sorted = days.is_monotonic_increasing or days.is_monotonic_decreasing
            orders.setdefault(is_sorted, column.name)
    if not orders:
        return []
    name = orders[max(orders)]
    how = f"the rows are sorted by {name!r}" if max(orders) else f"{name!r} orders the rows in time"
    sees = (
        "random splits let an arm see days after those it is tested on, so errors on days to come"
        " may be much larger"
    )
    return [f"{how}: {sees}; --time {shlex.quote(name)} tests on the future"]


def _repeats(column: Column, values: pd.Series) -> list[str]:
    """Return whether a column is a key that repeats."""
    n, different = len(values), values.nunique()
    if not IDENTIFIER.search(column.name) or column.kind not in ("number", "category", "text"):
        return []
    if not 1 < different < 0.9 * n or n / different < 1.5:
        return []
    key = f"{column.name!r} looks like a key that repeats ({different:,} values in {n:,} rows)"
    flatters = "rows of one may be in training and in test, which flatters every arm"
    return [f"{key}: {flatters}; --group {shlex.quote(column.name)} keeps them together"]


def _copies(rows: pd.DataFrame, Y: Array) -> list[str]:
    """Return whether rows are copies of others, more than there are where columns are mixed."""
    whole = rows.assign(**{"\0target": list(map(tuple, Y))})
    n, copies = len(whole), int(whole.duplicated().sum())
    rng = np.random.default_rng(0)
    mixed = pd.DataFrame({name: rng.permutation(values) for name, values in whole.items()})
    if copies < max(2, FEWEST_COPIES * n, 2 * int(mixed.duplicated().sum())):
        return []
    flatters = "some fall into training and their copies into test, which flatters every arm"
    return [f"{copies:,} of {n:,} rows are copies of others: {flatters}; leave the copies out"]
