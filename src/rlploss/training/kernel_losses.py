"""Compute the value and gradient of every objective for the predictions of one step, in the
kernel.
"""

import math

import numpy as np

from rlploss.training import kernel_types as kt
from rlploss.training.compiling import call_loss, compiled, view
from rlploss.training.tiles import PLAIN, dots, product

# Up to this condition number of a subset's columns, normal equations, refined once, are as good as
# a QR.
CONDITION = 1e4


@compiled
def fill(a, value):
    """Set every number of a [n]; this is a loop, because assigning to a slice takes long to
    compile.
    """
    for i in range(a.size):
        a[i] = value


@compiled
def copy(a, out):
    """Copy a [n] to the first n numbers of out."""
    for i in range(a.size):
        out[i] = a[i]


@compiled
def log_sum_exp(row):
    """Return log Σ exp of the numbers in a row, without overflow."""
    top = row[0]
    for j in range(1, row.size):
        top = max(top, row[j])
    total = row.dtype.type(0)
    for j in range(row.size):
        total += math.exp(row[j] - top)
    return top + math.log(total)


@compiled
def weigh(numbers, data, low):
    """Multiply the rows of a matrix [B, C] by their weights, if they have any."""
    for i in range(numbers.shape[0] if data.weight.size else 0):
        w = data.weight[i if data.every_row else data.rows[low + i]]
        for j in range(numbers.shape[1]):
            numbers[i, j] *= w


@compiled
def pointwise(loss, data, s, pred, target, back):
    """Compute the value of a loss of single rows, and its gradient: means over rows and outputs, or
    over rows for cross entropy.
    """
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
        row_loss = pred.dtype.type(0)
        p, t, g = pred[i], target[i], back[i]
        if loss.kind == kt.CROSS_ENTROPY:
            log_sum = log_sum_exp(p)
            for j in range(p.size):
                log = p[j] - log_sum
                row_loss -= t[j] * log
                g[j] = w * (math.exp(log) - t[j])
        else:
            for j in range(p.size):
                e = p[j] - t[j]
                if loss.kind == kt.MSE:
                    row_loss += e * e
                    g[j] = (w + w) * e
                elif loss.kind == kt.MAE:
                    row_loss += abs(e)
                    g[j] = w if e > 0 else -w if e < 0 else w * e
                else:
                    clipped = min(max(e, -delta), delta)
                    row_loss += clipped * (e - clipped / 2)
                    g[j] = w * clipped
        value += w * row_loss
    return value


@compiled
def of_function(loss, data, s, pred, target, back, values):
    """Compute the value of a user's loss, and its gradient: means over rows and outputs."""
    B, C = pred.shape
    n, each = B * C, pred.dtype.type(1) / (B * C)
    g, v = view(back, 0, (n,)), view(values, 0, (n,))
    call_loss(loss.address, view(pred, 0, (n,)), view(target, 0, (n,)), v, g)
    weigh(back, data, data.spans[s, 0])
    weigh(view(values, 0, (B, C)), data, data.spans[s, 0])
    total = pred.dtype.type(0)
    for j in range(n):
        total += v[j]
        g[j] *= each
    return float(each * total)


@compiled
def projected(W, residual_weight, residual, back, seen, scale):
    """Return scale·(a·‖R‖² + b·‖W R‖²) for the residual R [M, C] of one subset, and write its
    gradient into `back`.
    """
    M, C = residual.shape
    r, g, z = view(residual, 0, (M * C,)), view(back, 0, (M * C,)), view(seen, 0, (W.shape[0] * C,))
    q, none, one, plain = W.shape[0], view(residual, 0, (0,)), np.intp(1), np.intp(PLAIN)
    if C == 1:
        dots(W, r, z)
        row = view(back, 0, (1, M))
        product(view(seen, 0, (1, q)), q, one, W, row, none, plain, row)
    else:
        into = view(seen, 0, (q, C))
        product(W, M, one, residual, into, none, plain, into)
        product(W, one, M, into, back, none, plain, back)
    value = 0.0
    two = residual.dtype.type(2 * scale)
    if residual_weight == 0:
        for j in range(z.size):
            value += z[j] * z[j]
        for j in range(g.size):
            g[j] *= two
        return scale * value
    a = residual.dtype.type(residual_weight)
    # aR − WᵀWR is a·(projection of R), whose square is the value, without a difference of squares.
    for j in range(g.size):
        g[j] = a * r[j] - g[j]
        value += g[j] * g[j]
        g[j] *= two
    return scale * value / residual_weight


@compiled
def orthonormal(x, intercept, rows, rounds):
    """Fill rows [p, M] with an orthonormal basis of the columns of one subset x [M, d], and of ones
    with an intercept.

    This is Cholesky QR in float64. It loses up to eight digits, which does not matter in float32,
    and which a second round restores. Return False if the columns are not certainly well
    conditioned; then the rows are invalid.
    """
    M, d = x.shape
    own = view(rows, 0, (d, M))
    Q, G, inverse = np.empty((d, M)), np.empty((d, d)), np.zeros((d, d))
    for j in range(d):
        row = Q[j]
        mean, square = 0.0, 0.0
        for i in range(M):
            row[i] = x[i, j]
            mean += row[i]
        mean = mean / M if intercept else 0.0
        for i in range(M):
            row[i] -= mean
            square += row[i] * row[i]
        norm = math.sqrt(square)
        if not (1e-140 < norm < 1e140) or norm < 1e-5 * abs(mean):
            return False
        for i in range(M):
            row[i] *= 1 / norm
    for _ in range(rounds):
        for j in range(d):
            dots(Q, Q[j], G[j])
        size = 0.0
        for j in range(d):  # G = LLᵀ, column by column, and the rows of L⁻¹
            for k in range(j):
                G[j, j] -= G[j, k] * G[j, k]
            if not G[j, j] > 1e-9:
                return False
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
        if not math.sqrt(d * size) < CONDITION:
            return False
        product(inverse, d, np.intp(1), Q, own, view(Q, 0, (0,)), np.intp(PLAIN), own)
        copy(view(own, 0, (d * M,)), view(Q, 0, (d * M,)))
    if intercept:
        fill(rows[d], 1 / math.sqrt(M))
    return True


@compiled
def of_subsets(loss, data, s, pred, target, back, work):
    """Return the mean over the subsets of a step, and write its gradient into back [B, C]."""
    B, C = pred.shape
    M, q = loss.subset_size, loss.projector.shape[1]
    low, high = data.spans[s, 0], data.spans[s, 1]
    residual = view(work.residual, 0, (B, C))
    r, p, t = view(residual, 0, (B * C,)), view(pred, 0, (B * C,)), view(target, 0, (B * C,))
    for i in range(B * C):
        r[i] = p[i] - t[i]
    weigh(residual, data, low)
    value = 0.0
    k = (high - low) // M
    if loss.kind == kt.FORM:
        if C == 1:
            dots(loss.form, r, view(back, 0, (B,)))
        else:
            product(
                loss.form, B, np.intp(1), residual, back, view(r, 0, (0,)), np.intp(PLAIN), back
            )
        for i in range(B):
            for j in range(C):
                value += residual[i, j] * back[i, j]
                back[i, j] *= pred.dtype.type(2.0 / C)
        value /= C
    else:
        shared = data.every_row and M < B  # subsets share rows, so their gradients are added
        if shared:
            fill(view(back, 0, (B * C,)), pred.dtype.type(0))
        for u in range(k):
            rows = view(data.rows, low + u * M, (M,))
            part, g = view(residual, u * M * C, (M, C)), view(back, u * M * C, (M, C))
            if shared:
                part, g = view(work.gathered, 0, (M, C)), view(work.gathered, M * C, (M, C))
                for i in range(M):
                    for j in range(C):
                        part[i, j] = residual[rows[i], j]
            W = view(loss.projector, (low // M + u) * q * M, (q, M))
            value += projected(W, loss.residual_weight, part, g, work.seen, 1.0 / (k * C))
            if shared:
                for i in range(M):
                    for j in range(C):
                        back[rows[i], j] += g[i, j]
    if loss.offset.size:
        for u in range(k):
            value += loss.offset[low // M + u] / k
    if loss.kappa > 0:
        g, squares = view(back, 0, (B * C,)), 0.0
        own, rest = pred.dtype.type(2 * loss.kappa / (B * C)), pred.dtype.type(1 - loss.kappa)
        for i in range(B * C):
            squares += r[i] * r[i]
            g[i] = own * r[i] + rest * g[i]
        value = loss.kappa * squares / (B * C) + (1 - loss.kappa) * value
    weigh(back, data, low)
    return value
