"""Take many training steps of one dense network in one compiled call, without Python's lock.

A step is what a torch user would write: gather rows, forward, value and gradient of the loss,
backward, update. Sizes, activations, losses and optimisers are run-time values, so each floating
type needs only one compiled function.

The compiler may change the order of sums ("reassoc", "contract") and nothing else; full fast-math
would remove tests for NaN. All runs on one machine have the same bits, however a run is divided
into calls.
"""

import math

import numpy as np

from rlploss.training import kernel_types as kt
from rlploss.training.compiling import cached, compiled, view
from rlploss.training.kernel_losses import (
    copy,
    fill,
    log_sum_exp,
    of_function,
    of_subsets,
    orthonormal,
    pointwise,
)
from rlploss.training.tiles import PLAIN, RELU, WHERE_POSITIVE, dots, power_of_two, product

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # torch's defaults
# The averages of a dead unit would shrink to subnormal numbers, which make a step take four times
# as long.
TINY = 1e-30


@compiled
def gather(table, data, s, out):
    """Copy, or mix, the rows of a step from a table [N, d] to the start of out."""
    low, high, d = data.spans[s, 0], data.spans[s, 1], table.shape[1]
    taken = view(out, 0, (high - low, d))
    if data.partner.size:
        for i in range(low, high):
            a, b, lam = data.rows[i], data.partner[i], data.lam[i]
            rest = data.lam.dtype.type(1) - lam
            for j in range(d):
                taken[i - low, j] = lam * table[a, j] + rest * table[b, j]
    else:
        for i in range(low, high):
            a = data.rows[i]
            for j in range(d):
                taken[i - low, j] = table[a, j]


@compiled
def tanh(z):
    """Replace z [n] by its hyperbolic tangent: Lambert's fraction for z/4, then 2t/(1+t²)
    twice.

    This is plain arithmetic, which LLVM vectorises. In float32 its relative error is at most 4e-7;
    float64 uses libm.
    """
    real = z.dtype.type
    for i in range(z.size):
        if z.itemsize > 4:
            z[i] = math.tanh(z[i])
        else:
            a = min(max(real(0.25) * z[i], real(-2.3)), real(2.3))  # tanh is 1 beyond 9.2
            s = a * a
            t = a * (real(135135) + s * (real(17325) + s * (real(378) + s)))
            t /= real(135135) + s * (real(62370) + s * (real(3150) + real(28) * s))
            t = real(2) * t / (real(1) + t * t)
            z[i] = real(2) * t / (real(1) + t * t)


@compiled
def sigmoid(z):
    """Replace z [n] by 1/(1 + e⁻ᶻ), with e⁻ᶻ = 2ᵏ·eʳ by arithmetic, as accurate as `tanh` from −87
    on.
    """
    real = z.dtype.type
    for i in range(z.size):
        if z.itemsize > 4:
            z[i] = real(1) / (real(1) + math.exp(-z[i]))
        else:
            x = min(max(-z[i], real(-87)), real(87))
            k = np.floor(x * real(1.4426950408889634) + real(0.5))
            # ln 2 in two parts, so that the first product is exact.
            r = (x - k * real(0.693359375)) - k * real(-2.12194440e-4)
            e = real(1 / 24) + r * (real(1 / 120) + r * (real(1 / 720) + r * real(1 / 5040)))
            e = real(1) + r * (real(1) + r * (real(1 / 2) + r * (real(1 / 6) + r * e)))
            z[i] = real(1) / (real(1) + e * power_of_two(k))


@compiled
def activate(z, kind):
    """Apply the activation to z [B, n], in place."""
    zero = z.dtype.type(0)
    flat = view(z, 0, (z.size,))
    if kind == kt.RELU:
        for i in range(flat.size):
            flat[i] = max(flat[i], zero)
    elif kind == kt.TANH:
        tanh(flat)
    elif kind == kt.SIGMOID:
        sigmoid(flat)
    elif kind == kt.SOFTMAX:
        for i in range(z.shape[0]):
            row = z[i]
            log_sum = log_sum_exp(row)
            for j in range(row.size):
                row[j] = math.exp(row[j] - log_sum)


@compiled
def through_activation(back, out, kind):
    """Turn the gradient of a layer's output [B, n] into that of its linear part, in place."""
    zero, one = out.dtype.type(0), out.dtype.type(1)
    h, g = view(out, 0, (out.size,)), view(back, 0, (out.size,))
    if kind == kt.RELU:
        for i in range(h.size):
            g[i] = g[i] if h[i] > zero else zero
    elif kind == kt.TANH or kind == kt.SIGMOID:  # 1 − h², or h − h²
        constant, slope = (one, zero) if kind == kt.TANH else (zero, one)
        for i in range(h.size):
            g[i] *= constant + h[i] * (slope - h[i])
    elif kind == kt.SOFTMAX:
        for i in range(out.shape[0]):
            row, mine = out[i], back[i]
            inner = zero
            for j in range(row.size):
                inner += mine[j] * row[j]
            for j in range(row.size):
                mine[j] = row[j] * (mine[j] - inner)


@compiled
def forward(chain, theta, work, B, room):
    """Run the network on the B rows at the start of work.acts, where every layer has space for
    `room` rows.
    """
    start, acts, one = 0, work.acts, np.intp(1)
    for layer in range(chain.activations.size):
        n_in, n_out, kind = chain.widths[layer], chain.widths[layer + 1], chain.activations[layer]
        x = view(acts, start, (B, n_in))
        start += room * n_in
        out = view(acts, start, (B, n_out))
        at, bias = chain.weights[layer], chain.biases[layer]
        begin = view(theta, max(bias, 0), (n_out if bias >= 0 else 0,))
        if n_out > 1:
            after = RELU if kind == kt.RELU else PLAIN
            product(x, n_in, one, view(theta, at, (n_in, n_out)), out, begin, after, out)
        else:
            dots(x, view(theta, at, (n_in,)), view(out, 0, (B,)))
            for i in range(B if bias >= 0 else 0):
                out[i, 0] += begin[0]
        if kind != kt.RELU or n_out == 1:
            activate(out, kind)


@compiled
def backward(chain, theta, work, B, room, start):
    """Compute the gradient of all parameters from that of the last output, which begins at
    work.back[start].
    """
    acts, back, gradient = work.acts, work.back, work.gradient
    none, one, plain = view(theta, 0, (0,)), np.intp(1), np.intp(PLAIN)
    last = chain.activations.size - 1
    for layer in range(last, -1, -1):
        n_in, n_out, kind = chain.widths[layer], chain.widths[layer + 1], chain.activations[layer]
        g = view(back, start, (B, n_out))
        if kind != kt.RELU or layer == last:
            through_activation(g, view(acts, start, (B, n_out)), kind)
        start -= room * n_in
        at, bias = chain.weights[layer], chain.biases[layer]
        x, before = view(acts, start, (B, n_in)), view(back, start, (B, n_in))
        ones, bias_change = (
            view(work.ones, 0, (1, B)),
            view(gradient, max(bias, 0), (1 if bias >= 0 else 0, n_out)),
        )
        if n_out > 1:
            change, turned = view(gradient, at, (n_in, n_out)), view(work.turned, 0, (n_out, n_in))
            product(x, one, n_in, g, change, none, plain, change)
            product(ones, B, one, g, bias_change, none, plain, bias_change)
            transpose(
                view(theta, at, (n_in, n_out)), view(turned, 0, (n_out if layer > 0 else 0, n_in))
            )
        else:
            column, turned = view(g, 0, (1, B)), view(theta, at, (1, n_in))
            change = view(gradient, at, (1, n_in))
            product(column, B, one, x, change, none, plain, change)
            dots(column, view(ones, 0, (B,)), view(bias_change, 0, (bias_change.size,)))
        if layer > 0:
            after = WHERE_POSITIVE if chain.activations[layer - 1] == kt.RELU else PLAIN
            product(g, n_out, one, turned, before, none, after, x)


@compiled
def transpose(a, out):
    """Put a [m, n] into out [n, m]."""
    for i in range(out.shape[0]):
        row = out[i]
        for j in range(row.size):
            row[j] = a[j, i]


@compiled
def advance(update, s, state, gradient):
    """Take one step of the optimiser, as torch does."""
    theta, first, second = state.theta, state.first, state.second
    real = theta.dtype.type
    lr, tiny, clip = update.rates[s], real(TINY), real(1)
    if update.clip > 0:
        square = 0.0
        for j in range(gradient.size):
            square += float(gradient[j]) * float(gradient[j])
        clip = real(min(update.clip / (math.sqrt(square) + 1e-6), 1.0))
    apart = update.kind == kt.ADAMW  # the decay is not part of the gradient
    decay, shrink = (
        real(0.0 if apart else update.decay),
        real(1 - lr * update.decay if apart else 1.0),
    )
    if update.kind >= kt.SGD:
        rate, momentum = real(lr), real(update.momentum)
        for j in range(theta.size):
            g = clip * gradient[j] + decay * theta[j]
            m = momentum * first[j] + g
            first[j] = m if update.momentum > 0 and abs(m) > tiny else real(0)
            theta[j] -= rate * (g + momentum * m if update.kind == kt.NESTEROV else m)
        return
    state.powers[0] *= BETA1
    state.powers[1] *= BETA2
    rate, root = real(lr / (1 - state.powers[0])), real(1 / math.sqrt(1 - state.powers[1]))
    # 1 − β is computed in float64; in float32 its relative error would be 5e-5.
    keep1, take1, keep2, take2, eps = (
        real(BETA1),
        real(1 - BETA1),
        real(BETA2),
        real(1 - BETA2),
        real(EPS),
    )
    for j in range(theta.size):
        g = clip * gradient[j] + decay * theta[j]
        m = keep1 * first[j] + take1 * g
        v = keep2 * second[j] + take2 * (g * g)
        m = real(0) if abs(m) <= tiny else m  # NaN stays, and ends the run
        v = real(0) if v <= tiny else v
        first[j] = m
        second[j] = v
        theta[j] = shrink * theta[j] - rate * m / (math.sqrt(v) * root + eps)


@cached
def run(chain, data, loss, update, state, work, part, value):
    """Take the steps of data.spans, or one part of the first. Return the number of steps taken, the
    status and the last value.

    Every step checks that the loss and the new weights are finite, and restores the old weights if
    not. `value` is the value of a loss from outside, whose gradient is in work.back.
    """
    C = data.y.shape[1]
    room = work.target.size // C
    last = work.acts.size - work.target.size  # where the outputs begin
    for s in range(data.spans.shape[0]):
        B = data.y.shape[0] if data.every_row else data.spans[s, 1] - data.spans[s, 0]
        if part != kt.BACKWARD:
            if not data.every_row:
                gather(data.x, data, s, work.acts)
                gather(data.y, data, s, work.target)
            forward(chain, state.theta, work, B, room)
            if part == kt.FORWARD:
                return 0, kt.DONE, 0.0
        pred, back = view(work.acts, last, (B, C)), view(work.back, last, (B, C))
        target = view(work.target, 0, (B, C))
        if loss.kind <= kt.CROSS_ENTROPY:
            value = pointwise(loss, data, s, pred, target, back)
        elif loss.kind == kt.COMPILED:
            value = of_function(loss, data, s, pred, target, back, work.residual)
        elif loss.kind != kt.OUTSIDE:
            value = of_subsets(loss, data, s, pred, target, back, work)
        if not math.isfinite(value):
            return s, kt.NOT_FINITE, value
        backward(chain, state.theta, work, B, room, last)
        copy(state.theta, work.before)
        advance(update, s, state, work.gradient)
        total = 0.0
        for j in range(state.theta.size):
            total += state.theta[j]
        if not math.isfinite(total):
            copy(work.before, state.theta)
            return s, kt.NOT_FINITE, math.inf
        state.total[0] += value
    return data.spans.shape[0], kt.DONE, value


@cached
def fit_planes(data, intercept, summed, projector):
    """Fit planes to the subsets of data.spans, and write W of each into projector [K, q, M]. Return
    which are reliable [K].

    The planes are compared on the subset itself, or `summed` over it.
    """
    K, q, M = projector.shape
    d, rounds = data.x.shape[1], 2 if projector.itemsize > 4 else 1
    taken, rows, sure = (
        np.empty(M * d, data.x.dtype),
        np.empty((d + intercept, M)),
        np.empty(K, np.bool_),
    )
    for u in range(K):
        gather(data.x, data, u, taken)
        sure[u] = orthonormal(view(taken, 0, (M, d)), intercept, rows, rounds)
        fill(view(projector, u * q * M, (q * M,)), data.x.dtype.type(0))
        for j in range(rows.shape[0]):
            factor = rows[j].sum() if summed else 1 / math.sqrt(M)
            into = projector[u, 0 if summed else j]
            for i in range(M):
                into[i] += factor * rows[j, i]
    return sure
