"""The kernel: many steps of one dense network in one compiled call without a lock. Loops by numba, products by BLAS.

A step is what a torch user would write: gather rows, forward, value and gradient of the loss, backward, update. Sizes,
activations, losses and optimisers are values at run time, so there is one compiled function for each floating type.

Sums may be taken in another order ("reassoc", "contract") and nothing else is relaxed: with full fast-math a test for
NaN would be folded away. Bits are the same in every run on one machine, however a run is cut into calls.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rlploss.training.compiling import cached, compiled
from rlploss.training.kernel_losses import CROSS_ENTROPY, FRESH_SUBSET, OUTSIDE, log_sum_exp, of_subsets, pointwise

IDENTITY, RELU, TANH, SIGMOID, SOFTMAX = range(5)
ADAM, ADAMW, SGD, NESTEROV = range(4)
DONE, NOT_FINITE, DOUBTFUL = range(3)
WHOLE, FORWARD, BACKWARD = range(3)  # parts of a step

TINY = 1e-30  # averages of a dead unit would shrink to subnormal numbers, with which a step takes four times as long


class Chain(NamedTuple):
    """The network: widths [L + 1], and of each of the L layers its activation and where its parameters lie."""

    widths: Any
    activations: Any
    weights: Any  # offset of weight [n_out, n_in]
    biases: Any  # offset of bias [n_out]; -1: none


class Rows(NamedTuple):
    """The table, and which of its rows the steps read: step s those numbered rows[spans[s, 0]:spans[s, 1]]."""

    x: Any  # [N, d]
    y: Any  # [N, C]
    weight: Any  # [N] of the rows, or of their residuals for RLP; [0]: all count the same
    rows: Any
    partner: Any  # of each entry of `rows`, the row it is mixed with; [0]: no mixup
    lam: Any  # of each entry of `rows`, λ
    spans: Any  # [S, 2]
    every_row: bool  # the network runs on all N rows, `rows` are positions among them


class Update(NamedTuple):
    """The optimiser: its kind and constants; learning rates [S] are those of the steps."""

    kind: int
    rates: Any
    decay: float
    momentum: float
    clip: float  # largest norm of the gradient; 0: any
    beta1: float
    beta2: float
    eps: float


class State(NamedTuple):
    """What a step changes. powers: β₁ᵗ and β₂ᵗ; total: the sum of the losses since it was last set to zero."""

    theta: Any  # [P]
    first: Any  # [P] Adam's mean of gradients, or SGD's momentum
    second: Any  # [P] Adam's mean of squares
    powers: Any  # [2]
    total: Any  # [1]


class Work(NamedTuple):
    """Room for one step, for at most B rows: kept between the two parts of a step with a loss from outside."""

    acts: Any  # [B·Σ widths] inputs and outputs of every layer
    back: Any  # [B·Σ widths] gradients of the same
    target: Any  # [B·C]
    residual: Any  # [B·C]
    seen: Any  # [q·C]
    some: Any  # [2·M·C]
    gradient: Any  # [P]
    columns: Any  # [M·d] in float64, as are the others below
    triangle: Any  # [2·d·d]
    plane: Any  # [4·d + 4·M]


@compiled
def gather(data, s, acts, target):
    """Copy, or mix, the rows of a step and their targets."""
    d, C = data.x.shape[1], data.y.shape[1]
    low, high = data.spans[s, 0], data.spans[s, 1]
    x, y = acts[: (high - low) * d].reshape(high - low, d), target[: (high - low) * C].reshape(high - low, C)
    for i in range(low, high):
        a = data.rows[i]
        if data.partner.size:
            b, lam = data.partner[i], data.lam[i]
            rest = data.lam.dtype.type(1) - lam
            for j in range(d):
                x[i - low, j] = lam * data.x[a, j] + rest * data.x[b, j]
            for j in range(C):
                y[i - low, j] = lam * data.y[a, j] + rest * data.y[b, j]
        else:
            for j in range(d):
                x[i - low, j] = data.x[a, j]
            for j in range(C):
                y[i - low, j] = data.y[a, j]


@compiled
def activate(z, bias, kind):
    """Add the bias to z [B, n] and apply the activation, in place."""
    zero, one = z.dtype.type(0), z.dtype.type(1)
    for i in range(z.shape[0]):
        row = z[i]
        if bias.size:
            for j in range(row.size):
                row[j] += bias[j]
        if kind == RELU:
            for j in range(row.size):
                row[j] = max(row[j], zero)
        elif kind == TANH:
            for j in range(row.size):
                row[j] = math.tanh(row[j])
        elif kind == SIGMOID:
            for j in range(row.size):
                row[j] = one / (one + math.exp(-row[j]))
        elif kind == SOFTMAX:
            log_sum = log_sum_exp(row)
            for j in range(row.size):
                row[j] = math.exp(row[j] - log_sum)


@compiled
def through_activation(back, out, kind):
    """Turn the gradient of a layer's output [B, n] into that of its linear part, in place."""
    zero, one = out.dtype.type(0), out.dtype.type(1)
    for i in range(out.shape[0]):
        row, g = out[i], back[i]
        if kind == RELU:
            for j in range(row.size):
                g[j] = g[j] if row[j] > zero else zero
        elif kind == TANH:
            for j in range(row.size):
                g[j] *= one - row[j] * row[j]
        elif kind == SIGMOID:
            for j in range(row.size):
                g[j] *= row[j] * (one - row[j])
        elif kind == SOFTMAX:
            inner = zero
            for j in range(row.size):
                inner += g[j] * row[j]
            for j in range(row.size):
                g[j] = row[j] * (g[j] - inner)


@compiled
def forward(chain, theta, acts, B, room):
    """Run the network on the B rows at the start of `acts`; layer l has its output at `room` times Σ widths before."""
    start = 0
    for layer in range(chain.activations.size):
        n_in, n_out = chain.widths[layer], chain.widths[layer + 1]
        x = acts[start : start + B * n_in].reshape(B, n_in)
        start += room * n_in
        out = acts[start : start + B * n_out]
        weight = theta[chain.weights[layer] : chain.weights[layer] + n_out * n_in]
        if n_out == 1:
            np.dot(x, weight, out)
        else:
            np.dot(x, weight.reshape(n_out, n_in).T, out.reshape(B, n_out))
        at = chain.biases[layer]
        activate(out.reshape(B, n_out), theta[at : at + n_out] if at >= 0 else theta[:0], chain.activations[layer])
    return start


@compiled
def backward(chain, theta, acts, back, gradient, B, room):
    """From the gradient of the last output, which stands in `back`, to that of all parameters."""
    start = room * (chain.widths.sum() - chain.widths[-1])
    for layer in range(chain.activations.size - 1, -1, -1):
        n_in, n_out = chain.widths[layer], chain.widths[layer + 1]
        g = back[start : start + B * n_out]
        g2 = g.reshape(B, n_out)
        if chain.activations[layer] != IDENTITY:
            through_activation(g2, acts[start : start + B * n_out].reshape(B, n_out), chain.activations[layer])
        start -= room * n_in
        x = acts[start : start + B * n_in].reshape(B, n_in)
        at = chain.weights[layer]
        slope = gradient[at : at + n_out * n_in]
        if n_out == 1:
            np.dot(g, x, slope)
        else:
            np.dot(g2.T, x, slope.reshape(n_out, n_in))
        if chain.biases[layer] >= 0:
            column_sums(g2, gradient[chain.biases[layer] : chain.biases[layer] + n_out])
        if layer > 0:
            weight = theta[at : at + n_out * n_in]
            before = back[start : start + B * n_in].reshape(B, n_in)
            if n_out == 1:
                for i in range(B):
                    row, factor = before[i], g[i]
                    for j in range(n_in):
                        row[j] = factor * weight[j]
            else:
                np.dot(g2, weight.reshape(n_out, n_in), before)


@compiled
def column_sums(a, out):
    """Sum the rows of a [B, n] into out [n]."""
    out[:] = 0
    for i in range(a.shape[0]):
        row = a[i]
        for j in range(out.size):
            out[j] += row[j]


@compiled
def advance(update, s, state, gradient):
    """One step of the optimiser, as torch takes it."""
    theta, first, second = state.theta, state.first, state.second
    real = theta.dtype.type
    lr = update.rates[s]
    decay, tiny = real(update.decay), real(TINY)
    if update.clip > 0:
        square = 0.0
        for j in range(gradient.size):
            square += float(gradient[j]) * float(gradient[j])
        ratio = update.clip / (math.sqrt(square) + 1e-6)
        if ratio < 1:
            for j in range(gradient.size):
                gradient[j] *= real(ratio)
    if update.kind == ADAMW:
        shrink = real(1 - lr * update.decay)
        for j in range(theta.size):
            theta[j] *= shrink
    elif update.decay > 0:
        for j in range(theta.size):
            gradient[j] += decay * theta[j]
    if update.kind >= SGD:
        rate, momentum = real(lr), real(update.momentum)
        for j in range(theta.size):
            g = gradient[j]
            if update.momentum > 0:
                m = momentum * first[j] + g
                first[j] = m if abs(m) > tiny else real(0)
                g = g + momentum * m if update.kind == NESTEROV else m
            theta[j] -= rate * g
        return
    state.powers[0] *= update.beta1
    state.powers[1] *= update.beta2
    rate, root = real(lr / (1 - state.powers[0])), real(1 / math.sqrt(1 - state.powers[1]))
    # 1 − β is taken in float64: in float32 it would be off by 5e-5
    keep1, take1, keep2, take2 = real(update.beta1), real(1 - update.beta1), real(update.beta2), real(1 - update.beta2)
    eps = real(update.eps)
    for j in range(theta.size):
        g = gradient[j]
        m = keep1 * first[j] + take1 * g
        v = keep2 * second[j] + take2 * (g * g)
        m = m if abs(m) > tiny else real(0)
        v = v if v > tiny else real(0)
        first[j] = m
        second[j] = v
        theta[j] -= rate * m / (math.sqrt(v) * root + eps)


@cached
def run(chain, data, loss, update, state, work, part, value):
    """Take the steps of data.spans, or one part of the first; return how many were taken, how it ended, the last value.

    The loss is looked at in every step, and the gradient too: what is not finite never reaches the parameters.
    `value` is that of a loss from outside, whose gradient stands in work.back.
    """
    C = data.y.shape[1]
    d = data.x.shape[1]
    room = work.target.size // C
    for s in range(data.spans.shape[0]):
        B = data.y.shape[0] if data.every_row else data.spans[s, 1] - data.spans[s, 0]
        if part != BACKWARD:
            if data.every_row:
                if s == 0:
                    work.acts[: B * d] = data.x.reshape(B * d)
                    work.target[: B * C] = data.y.reshape(B * C)
            else:
                gather(data, s, work.acts, work.target)
        last = room * (chain.widths.sum() - C)
        if part != BACKWARD:
            forward(chain, state.theta, work.acts, B, room)
            if part == FORWARD:
                return 0, DONE, 0.0
        pred, back = work.acts[last : last + B * C].reshape(B, C), work.back[last : last + B * C].reshape(B, C)
        target = work.target[: B * C].reshape(B, C)
        if loss.kind <= CROSS_ENTROPY:
            value = pointwise(loss, data, s, pred, target, back)
        elif loss.kind != OUTSIDE:
            value = of_subsets(loss, data, s, work.acts[: B * d].reshape(B, d), pred, target, back, work)
            if value < 0 and loss.kind >= FRESH_SUBSET:
                return s, DOUBTFUL, value
        if not math.isfinite(value):
            return s, NOT_FINITE, value
        backward(chain, state.theta, work.acts, work.back, work.gradient, B, room)
        total = 0.0
        for j in range(work.gradient.size):
            total += work.gradient[j]
        if not math.isfinite(total):
            return s, NOT_FINITE, math.inf
        advance(update, s, state, work.gradient)
        state.total[0] += value
    return data.spans.shape[0], DONE, value
