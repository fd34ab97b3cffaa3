"""Define the kernel's arguments: numbers that stand for choices, and the arrays that it reads and
writes.
"""

from collections import namedtuple

IDENTITY, RELU, TANH, SIGMOID, SOFTMAX = range(5)
MSE, MAE, HUBER, CROSS_ENTROPY, PROJECTED, FORM, OUTSIDE, COMPILED = range(8)
ADAM, ADAMW, SGD, NESTEROV = range(4)
WHOLE, FORWARD, BACKWARD = range(3)  # parts of a step
DONE, NOT_FINITE = range(2)  # how a call ends

# The network: widths [L + 1], and of each of the L layers its activation and where its parameters
# lie.
Chain = namedtuple(
    "Chain",
    (
        "widths",
        "activations",
        # offset of weight [n_in, n_out]: torch's the other way round, so that products read it in
        # order
        "weights",
        "biases",  # offset of bias [n_out]; -1: none
    ),
)

# The table, and the rows that each step reads: step s reads rows[spans[s, 0]:spans[s, 1]].
Rows = namedtuple(
    "Rows",
    (
        "x",  # [N, d]
        "y",  # [N, C]
        "weight",  # [N] of the rows, or of their residuals for RLP; [0]: all count the same
        "rows",
        "partner",  # of each entry of `rows`, the row it is mixed with; [0]: no mixup
        "lam",  # of each entry of `rows`, λ
        "spans",  # [S, 2]
        "every_row",  # whether the network runs on all N rows; `rows` are positions among them
    ),
)

# What training minimises. value = (a·‖R‖² + b·‖W R‖²)/C with W [K, q, M], or tr(RᵀQR)/C, or a
# formula by `kind`.
Loss = namedtuple(
    "Loss",
    (
        "kind",
        "delta",  # of Huber's loss
        "projector",  # W [K, q, M]; its subset is that of the position in `rows`
        "residual_weight",  # a; b is 1 where it is 0, else -1
        "offset",  # [K] added to each subset's value
        "form",  # Q [N, N]
        "subset_size",
        "kappa",  # κ: κ·MSE + (1 − κ)·value, for one subset in a step
        "address",  # of the C function of a user's loss
    ),
)

# The optimiser: its kind and settings; learning rates [S] are those of the steps. `clip` is the
# largest norm of the gradient; 0: any.
Update = namedtuple("Update", ("kind", "rates", "decay", "momentum", "clip"))

# What a step changes.
State = namedtuple(
    "State",
    (
        "theta",  # [P]
        "first",  # [P] Adam's mean of gradients, or SGD's momentum
        "second",  # [P] Adam's mean of squares
        "powers",  # [2] β₁ᵗ and β₂ᵗ
        "total",  # [1] the sum of the losses since it was last set to zero
    ),
)

# Room for one step, for at most B rows: kept between the two parts of a step with a loss from
# outside.
Work = namedtuple(
    "Work",
    (
        # [B·Σ widths] inputs and outputs of every layer; with `every_row` the inputs are there
        "acts",
        "back",  # [B·Σ widths] gradients of the same
        "target",  # [B·C]; as the inputs
        "residual",  # [B·C]
        "gathered",  # [2·B·C] with `every_row`: residual and gradient of one subset
        "seen",  # [B·C], since W has at most as many rows as a subset
        "gradient",  # [P]
        "before",  # [P] the weights before the update
        "turned",  # [largest weight] transposed
        "ones",  # [B]
    ),
)
