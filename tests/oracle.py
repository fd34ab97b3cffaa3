"""The slow, obviously correct twin: every probe subset by subset, in float64, from a
pseudo-inverse.

`pseudo_inverse` follows the rank rule of the library's contract: columns centred (with an
intercept) and scaled to unit norm, singular values at or below max(M, p)·eps of the largest are
zero; where x is rank-deficient the solution of minimum norm in the caller's coordinates.
`exact_pseudo_inverse` is the same map in rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np

EPS = np.finfo(np.float64).eps


def design(x, intercept):
    return np.column_stack([x, np.ones(len(x))]) if intercept else x


def scaled_columns(x, intercept):
    """Unit columns, their norms, and the tolerance."""
    M, d = x.shape
    tolerance = max(M, d + intercept) * EPS
    if intercept:
        centred = x - x.mean(0)
        centred = centred - centred.mean(0)
        centred[:, np.abs(centred).max(0) <= tolerance * np.abs(x).max(0)] = 0.0
    else:
        centred = x
    norm = np.sqrt((centred**2).sum(0))
    norm[norm == 0] = 1.0
    return centred / norm, norm, tolerance


def rank(x, intercept=False):
    unit, _, tolerance = scaled_columns(x, intercept)
    s = np.linalg.svd(unit, compute_uv=False)
    return int((s > tolerance * s[0]).sum()) + intercept


def condition(x, intercept=False):
    unit, _, _ = scaled_columns(x, intercept)
    s = np.linalg.svd(unit, compute_uv=False)
    return s[0] / s[-1] if s[-1] > 0 else np.inf


def pseudo_inverse(x, intercept=False, ridge=0.0):
    """P [p, M] with coefficients Δ = P r."""
    M, d = x.shape
    unit, norm, tolerance = scaled_columns(x, intercept)
    mean = x.mean(0)
    if ridge > 0:
        # the ones column is not penalised: centre, solve the stacked least-squares problem, put the
        # mean back
        body = unit * norm
        stacked = np.vstack([body, np.sqrt(ridge) * np.eye(d)])
        scale = np.sqrt((stacked**2).sum(0))
        slope = (np.linalg.pinv(stacked / scale) / scale[:, None])[:, :M]
        if not intercept:
            return slope
        return np.vstack([slope, np.ones((1, M)) / M - mean @ slope])
    u, s, vt = np.linalg.svd(unit, full_matrices=False)
    keep = s > tolerance * s[0]
    u, s, vt = u[:, keep], s[keep], vt[keep]
    if keep.sum() == d:
        slope = (vt.T / s @ u.T) / norm[:, None]
        if not intercept:
            return slope
        return np.vstack([slope, np.ones((1, M)) / M - mean @ slope])
    coordinates = s[:, None] * vt * norm  # x = u · coordinates
    if intercept:
        coordinates = np.vstack(
            [np.column_stack([coordinates, np.zeros(len(s))]), np.sqrt(M) * np.r_[mean, 1.0]]
        )
        u = np.column_stack([u, np.ones(M) / np.sqrt(M)])
    return np.linalg.pinv(coordinates, rcond=1e-300) @ u.T  # the rank has been decided above


def exact_pseudo_inverse(x, intercept=False, ridge=0):
    """P in exact rational arithmetic, for x of any rank: x = C·F with C independent columns, F in
    echelon form."""
    rows = [[Fraction(float(v)) for v in row] + [Fraction(1)] * intercept for row in x]
    p = len(rows[0])
    if ridge:
        gram = _add_diagonal(_times(_transpose(rows), rows), Fraction(float(ridge)), p - intercept)
        return _to_float(_solve(gram, _transpose(rows)))
    echelon, pivots = _echelon(rows)
    columns = [[row[j] for j in pivots] for row in rows]  # M × r
    wide = [echelon[i] for i in range(len(pivots))]  # r × p
    left = _solve(_times(_transpose(columns), columns), _transpose(columns))  # r × M
    return _to_float(_times(_transpose(wide), _solve(_times(wide, _transpose(wide)), left)))


def reading(x, probe, intercept=False, ridge=0.0, z=None, Z=None, inverse=None):
    """A with value = ‖A r‖² / C: the scale is folded in."""
    M = len(x)
    P = pseudo_inverse(x, intercept, ridge) if inverse is None else inverse
    if probe == "subset":
        return design(x, intercept) @ P / np.sqrt(M)
    if probe == "sum":
        return (design(x, intercept) @ P).sum(0, keepdims=True)
    if probe == "draw":
        return design(z[None], intercept) @ P
    return design(Z, intercept) @ P / np.sqrt(len(Z))


def value_and_grad(x, r, probe, **options):
    """Value of one subset with residual r [M, C], and its gradient in r."""
    C = r.shape[1]
    A = reading(x, probe, **options)
    return ((A @ r) ** 2).sum() / C, 2 * A.T @ (A @ r) / C


def loss_and_grad(pred, target, features, subsets, probe, *, intercept=False, ridge=0.0, points=None, pool=None,
                  draw_from="train", inverse_of=None):  # fmt: skip
    """Mean over the subsets, its gradient in pred, and the values; subset by subset."""
    pred, target, features = (np.asarray(a, dtype=np.float64) for a in (pred, target, features))
    shape = pred.shape
    r = (pred - target).reshape(len(pred), -1)
    grad, values = np.zeros_like(r), []
    for k, rows in enumerate(np.asarray(subsets)):
        outside = np.setdiff1d(np.arange(len(features)), rows)
        Z = pool if pool is not None else features[outside] if draw_from == "outside" else features
        z = None if points is None else np.asarray(points, dtype=np.float64)[k]
        x = features[rows]
        inverse = None if inverse_of is None else inverse_of(x, intercept, ridge)
        Z = np.asarray(Z, dtype=np.float64)
        value, g = value_and_grad(
            x, r[rows], probe, intercept=intercept, ridge=ridge, z=z, Z=Z, inverse=inverse
        )
        values.append(value)
        np.add.at(grad, rows, g)
    return np.mean(values), (grad / len(values)).reshape(shape), np.array(values)


def exact_empirical_loss(pred, target, features, subset_size, intercept=False):
    """The paper's empirical loss: the mean over all C(N, M) subsets and all rows outside each."""
    N = len(features)
    total = []
    for rows in combinations(range(N), subset_size):
        delta = pseudo_inverse(features[list(rows)], intercept) @ (pred - target)[list(rows)]
        for k in set(range(N)) - set(rows):
            total.append((design(features[k : k + 1], intercept) @ delta) ** 2)
    return float(np.mean(total))


def _transpose(a):
    return [list(column) for column in zip(*a, strict=True)]


def _times(a, b):
    columns = _transpose(b)
    return [
        [sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in a
    ]


def _add_diagonal(a, value, n):
    return [
        [v + (value if i == j and i < n else 0) for j, v in enumerate(row)]
        for i, row in enumerate(a)
    ]


def _echelon(a):
    """Reduced row echelon form (its nonzero rows first) and the pivot columns."""
    a = [row[:] for row in a]
    pivots, i = [], 0
    for j in range(len(a[0])):
        hit = next((k for k in range(i, len(a)) if a[k][j] != 0), None)
        if hit is None:
            continue
        a[i], a[hit] = a[hit], a[i]
        a[i] = [v / a[i][j] for v in a[i]]
        for k in range(len(a)):
            if k != i and a[k][j] != 0:
                a[k] = [v - a[k][j] * w for v, w in zip(a[k], a[i], strict=True)]
        pivots.append(j)
        i += 1
        if i == len(a):
            break
    return a, pivots


def _solve(a, b):
    n = len(a)
    solved, _ = _echelon([row + right for row, right in zip(a, b, strict=True)])
    return [row[n:] for row in solved]


def _to_float(a):
    return np.array([[float(v) for v in row] for row in a])
