"""What the kernel takes: numbers that stand for its choices, and the arrays it reads and writes."""

from __future__ import annotations

from typing import Any, NamedTuple

IDENTITY, RELU, TANH, SIGMOID, SOFTMAX = range(5)
MSE, MAE, HUBER, CROSS_ENTROPY, PROJECTED, FORM, OUTSIDE = range(7)
ADAM, ADAMW, SGD, NESTEROV = range(4)
WHOLE, FORWARD, BACKWARD = range(3)  # parts of a step
DONE, NOT_FINITE = range(2)  # how a call ends


class Chain(NamedTuple):
    """The network: widths [L + 1], and of each of the L layers its activation and where its parameters lie."""

    widths: Any
    activations: Any
    weights: Any  # offset of weight [n_in, n_out]: torch's the other way round, so that products read it in order
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


class Loss(NamedTuple):
    """What is made small. value = (a·‖R‖² + b·‖W R‖²)/C with W [K, q, M], or tr(RᵀQR)/C, or a formula by `kind`."""

    kind: int
    delta: float  # of Huber's loss
    projector: Any  # W [K, q, M]; its subset is that of the position in `rows`
    residual_weight: float  # a; b is 1 where it is 0, else -1
    offset: Any  # [K] added to each subset's value
    form: Any  # Q [N, N]
    subset_size: int


class Update(NamedTuple):
    """The optimiser: its kind and settings; learning rates [S] are those of the steps."""

    kind: int
    rates: Any
    decay: float
    momentum: float
    clip: float  # largest norm of the gradient; 0: any


class State(NamedTuple):
    """What a step changes."""

    theta: Any  # [P]
    first: Any  # [P] Adam's mean of gradients, or SGD's momentum
    second: Any  # [P] Adam's mean of squares
    powers: Any  # [2] β₁ᵗ and β₂ᵗ
    total: Any  # [1] the sum of the losses since it was last set to zero


class Work(NamedTuple):
    """Room for one step, for at most B rows: kept between the two parts of a step with a loss from outside."""

    acts: Any  # [B·Σ widths] inputs and outputs of every layer; with `every_row` the inputs are there already
    back: Any  # [B·Σ widths] gradients of the same
    target: Any  # [B·C]; as the inputs
    residual: Any  # [B·C]
    gathered: Any  # [2·B·C] with `every_row`: residual and gradient of one subset
    seen: Any  # [B·C], since W has at most as many rows as a subset
    gradient: Any  # [P]
    before: Any  # [P] the weights before the update
    turned: Any  # [largest weight] transposed
    ones: Any  # [B]
