"""The kernel's losses: value and gradient of every objective for the predictions of one step."""

from __future__ import annotations

import math

import numpy as np

from rlploss.training import kernel_types as kt
from rlploss.training.compiling import compiled, view

CONDITION = 1e4  # of a subset's columns up to which normal equations, refined once, are as good as a QR


@compiled
def fill(a, value):
    """Set every number of a [n]; a loop, because a slice on the left takes long to compile."""
    for i in range(a.size):
        a[i] = value


@compiled
def log_sum_exp(row):
    """Log Σ exp of the numbers in a row, safe from overflow."""
    top = row[0]
    for j in range(1, row.size):
        top = max(top, row[j])
    total = row.dtype.type(0)
    for j in range(row.size):
        total += math.exp(row[j] - top)
    return top + math.log(total)


@compiled
def pointwise(loss, data, s, pred, target, back):
    """The value of a loss of single rows, and its gradient: means over rows and outputs, cross entropy over rows."""
    B, C = pred.shape
    one, delta = pred.dtype.type(1), pred.dtype.type(loss.delta)
    each = one / (B if loss.kind == kt.CROSS_ENTROPY else B * C)
    if loss.kind != kt.CROSS_ENTROPY and data.weight.size == 0:  # as one long row
        n = B * C
        pred, target, back = view(pred, 0, (1, n)), view(target, 0, (1, n)), view(back, 0, (1, n))
    value = 0.0
    for i in range(pred.shape[0]):
        w = each
        if data.weight.size:
            w *= data.weight[data.rows[data.spans[s, 0] + i]]
        here = pred.dtype.type(0)
        p, t, g = pred[i], target[i], back[i]
        if loss.kind == kt.CROSS_ENTROPY:
            log_sum = log_sum_exp(p)
            for j in range(p.size):
                log = p[j] - log_sum
                here -= t[j] * log
                g[j] = w * (math.exp(log) - t[j])
        else:
            for j in range(p.size):
                e = p[j] - t[j]
                if loss.kind == kt.MSE:
                    here += e * e
                    g[j] = (w + w) * e
                elif loss.kind == kt.MAE:
                    here += abs(e)
                    g[j] = w if e > 0 else -w if e < 0 else w * e
                else:
                    clipped = min(max(e, -delta), delta)
                    here += clipped * (e - clipped / 2)
                    g[j] = w * clipped
        value += w * here
    return value


@compiled
def projected(W, residual_weight, residual, back, seen, scale):
    """scale·(a·‖R‖² + b·‖W R‖²) for the residual R [M, C] of one subset, and its gradient into `back`."""
    M, C = residual.shape
    r, g, z = view(residual, 0, (M * C,)), view(back, 0, (M * C,)), view(seen, 0, (W.shape[0] * C,))
    if C == 1:
        np.dot(W, r, z)
        np.dot(W.T, z, g)
    else:
        np.dot(W, residual, view(seen, 0, (W.shape[0], C)))
        np.dot(W.T, view(seen, 0, (W.shape[0], C)), back)
    value = 0.0
    two = residual.dtype.type(2 * scale)
    if residual_weight == 0:
        for j in range(z.size):
            value += z[j] * z[j]
        for j in range(g.size):
            g[j] *= two
        return scale * value
    a = residual.dtype.type(residual_weight)
    for j in range(g.size):  # aR − WᵀWR is a·(projection of R), so its square gives the value: no difference of squares
        g[j] = a * r[j] - g[j]
        value += g[j] * g[j]
        g[j] *= two
    return scale * value / residual_weight


@compiled
def factor(x, intercept):
    """Centred and scaled columns Z of one subset x [M, d], and L⁻¹ where ZᵀZ = LLᵀ; float64, whatever x is.

    The first result is False where the columns are not certainly well conditioned.
    """
    M, d = x.shape
    Z, G, inverse = np.empty((M, d)), np.empty((d, d)), np.zeros((d, d))
    mean, norm = np.zeros(d), np.zeros(d)
    if intercept:
        for i in range(M):
            for j in range(d):
                mean[j] += x[i, j]
        for j in range(d):
            mean[j] /= M
    for i in range(M):
        for j in range(d):
            Z[i, j] = x[i, j] - mean[j]
            norm[j] += Z[i, j] * Z[i, j]
    for j in range(d):
        norm[j] = math.sqrt(norm[j])
        if not (1e-140 < norm[j] < 1e140) or norm[j] < 1e-5 * abs(mean[j]):
            return False, Z, inverse
        norm[j] = 1 / norm[j]
    for i in range(M):
        for j in range(d):
            Z[i, j] *= norm[j]
    np.dot(Z.T, Z, G)
    size = 0.0
    for j in range(d):  # G = LLᵀ, column by column, and the rows of L⁻¹
        for k in range(j):
            G[j, j] -= G[j, k] * G[j, k]
        if not G[j, j] > 1e-9:
            return False, Z, inverse
        root = 1 / math.sqrt(G[j, j])
        for i in range(j + 1, d):
            for k in range(j):
                G[i, j] -= G[i, k] * G[j, k]
            G[i, j] *= root
        for k in range(j):
            total = 0.0
            for m in range(k, j):
                total += G[j, m] * inverse[m, k]
            inverse[j, k] = -root * total
            size += inverse[j, k] * inverse[j, k]
        inverse[j, j] = root
        size += root * root
    return math.sqrt(d * size) < CONDITION, Z, inverse


@compiled
def fitted(R, intercept, Z, inverse):
    """The planes through R [M, C] at the rows of the subset that `factor` saw."""
    M, C = R.shape
    d = inverse.shape[0]
    r, out, rest, change = R.reshape(M * C), np.zeros(M * C), np.empty(M * C), np.empty(M * C)
    a, b = np.empty((d, C)), np.empty((d, C))
    for c in range(C if intercept else 0):
        middle = 0.0
        for i in range(M):
            middle += R[i, c]
        for i in range(M):
            out[i * C + c] = middle / M
    for _ in range(2):  # the second time refines: normal equations alone would lose twice the digits
        for i in range(M * C):
            rest[i] = r[i] - out[i]
        np.dot(Z.T, rest.reshape(M, C), a)
        np.dot(inverse, a, b)
        np.dot(inverse.T, b, a)
        np.dot(Z, a, change.reshape(M, C))
        for i in range(M * C):
            out[i] += change[i]
    return out.reshape(M, C)


@compiled
def fresh(kind, intercept, x, residual, back, scale):
    """As `projected`, for a subset x [M, d] whose planes were not fitted beforehand; -1 where it is doubtful."""
    M, C = residual.shape
    sure, Z, inverse = factor(x, intercept)
    if not sure:
        return -1.0
    value = 0.0
    if kind == kt.FRESH_SUM:
        ones = np.empty((M, 1), residual.dtype)
        fill(ones.reshape(M), residual.dtype.type(1))
        out = fitted(ones, intercept, Z, inverse)
        for c in range(C):
            seen = 0.0
            for i in range(M):
                seen += out[i, 0] * residual[i, c]
            value += seen * seen
            for i in range(M):
                back[i, c] = 2 * scale * seen * out[i, 0]
        return scale * value
    out = fitted(residual, intercept, Z, inverse)
    for i in range(M):
        for c in range(C):
            value += out[i, c] * out[i, c]
            back[i, c] = 2 * scale / M * out[i, c]
    return scale / M * value


@compiled
def of_subsets(loss, data, s, x, pred, target, back, work):
    """The mean over the subsets of a step, and its gradient into back [B, C]; -1 where one is doubtful."""
    B, C = pred.shape
    M = loss.subset_size
    low, high = data.spans[s, 0], data.spans[s, 1]
    residual = view(work.residual, 0, (B, C))
    r, p, t = view(residual, 0, (B * C,)), view(pred, 0, (B * C,)), view(target, 0, (B * C,))
    for i in range(B * C):
        r[i] = p[i] - t[i]
    for i in range(B if data.weight.size else 0):
        w = data.weight[i if data.every_row else data.rows[low + i]]
        for j in range(C):
            residual[i, j] *= w
    value = 0.0
    k = (high - low) // M
    scale = 1.0 / (k * C)
    if loss.kind == kt.FORM:
        np.dot(loss.form, residual, back)
        for i in range(B):
            for j in range(C):
                value += residual[i, j] * back[i, j]
                back[i, j] *= pred.dtype.type(2.0 / C)
        value /= C
    else:
        if data.every_row:  # subsets share rows: what each gives is added
            fill(view(back, 0, (B * C,)), pred.dtype.type(0))
        for u in range(k):
            rows = view(data.rows, low + u * M, (M,))
            part, g = view(residual, u * M * C, (M, C)), view(back, u * M * C, (M, C))
            if data.every_row:
                part, g = view(work.gathered, 0, (M, C)), view(work.gathered, M * C, (M, C))
                for i in range(M):
                    for j in range(C):
                        part[i, j] = residual[rows[i], j]
            if loss.kind == kt.PROJECTED:
                q = loss.projector.shape[1]
                W = view(loss.projector, (low // M + u) * q * M, (q, M))
                value += projected(W, loss.residual_weight, part, g, work.seen, scale)
            else:
                here = fresh(loss.kind, loss.intercept, view(x, u * M * x.shape[1], (M, x.shape[1])), part, g, scale)
                if here < 0:
                    return -1.0
                value += here
            if data.every_row:
                for i in range(M):
                    for j in range(C):
                        back[rows[i], j] += g[i, j]
    if loss.offset.size:
        for u in range(k):
            value += loss.offset[low // M + u] / k
    if data.weight.size:
        for i in range(B):
            w = data.weight[i if data.every_row else data.rows[low + i]]
            for j in range(C):
                back[i, j] *= w
    return value
