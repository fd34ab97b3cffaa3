"""What `help` says about the parameters of the estimators: written once, shown whole in every class."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import TypeVar

C = TypeVar("C", bound=type)

# Defaults are those of the signature.
PARAMETERS = """
hidden_layer_sizes : int or sequence of int
    Units of every hidden layer; () is a linear model.
activation : {"relu", "tanh", "logistic", "identity"}
    What follows every hidden layer.
subset_size : "auto", int, or float in (0, 1]
    M, the rows of one subset, as a number or as a fraction of the training rows. It is a dial: up to the number of
    columns RLP is MSE, at all rows it sees only the least-squares plane. "auto" is `auto_subset_size(X, y)`: √(p·N) for
    N rows and p columns, the intercept included, or MSE where the training rows show a curve without much noise.
n_subsets : "auto" or int
    K, the subsets of the plan that training goes through. "auto" is up to 1000, fewer where their factors would take
    more than about a second.
probe : {"subset", "draw", "expected", "sum"}
    Where the planes of prediction and target are compared. "subset": on the rows of the subset, which is what the
    paper's released code does. "draw": at one training row, drawn anew every epoch. "expected": the mean of "draw" over
    all training rows, taken exactly. "sum": at the sum of the rows of the subset.
intercept : bool or None
    Whether planes have an offset. None is True, except for probe="sum", where the column of ones would leave nothing
    but the mean error.
ridge : float
    λ ≥ 0 of the planes' own ridge penalty. It does not act on the weights of the network.
mixup : float or None
    ψ of the distribution Beta(ψ, ψ) by which pairs of subsets, or of rows, are mixed. None: no mixup. Sample weights
    are refused with it.
standardize : bool
    Whether inputs and targets are centred and scaled by their training rows.
alpha : float
    Weight decay: alpha/2·‖weights‖² is added to the mean loss. (scikit-learn's MLP divides it by the batch.)
batch_size : "auto" or int
    Rows per step of losses without subsets; "auto" is min(200, N). One iteration is a pass over the rows in such
    batches, at least 10 steps, the same number for every loss.
learning_rate_init : float
    Learning rate of Adam.
max_iter : int
    The most iterations.
tol : float
    An iteration improves if the training loss (with `early_stopping` the validation error) is at least this much below
    the lowest so far.
n_iter_no_change : int
    Training stops after this many iterations in a row that do not improve. (scikit-learn's MLP has 10; the loss of
    random subsets is noisier.)
early_stopping : bool
    Whether to hold out validation rows, stop by their error, and keep the weights where it is lowest.
validation_fraction : float
    The share of the rows that `early_stopping` holds out.
warm_start : bool
    Whether `fit` goes on from the weights and the scaling of the last call.
random_state : int, RandomState or None
    Decides initial weights, subsets, batches and validation rows. None is different each time.
verbose : bool
    Whether to tell how training goes.
device : str or None
    Where to train; None is the CPU. The fitted network is on the CPU in any case.
"""
CV_PARAMETERS = """
subset_sizes : "auto" or sequence of int or float
    Places on the dial, as numbers of rows or as fractions of the training rows of a fold. Its pointwise end, which has
    no subsets, is always among them, and alone with (). "auto" adds the middle of the dial on a logarithmic scale.
alphas : sequence of float
    Weight decays to choose from: alpha/2·‖weights‖² is added to the mean loss.
learning_rates : sequence of float
    Learning rates of Adam to choose from.
activations : sequence of {"relu", "tanh", "logistic", "identity"}
    What follows every hidden layer, to choose from.
linear_skip : "auto" or bool
    Whether a network adds to the plane of a ridge regression. "auto" tries both.
cv : int, splitter or iterable of splits
    The number of folds, or who makes them (`GroupKFold`, `TimeSeriesSplit`), or the folds themselves as pairs of
    training and validation rows.
ensemble : bool
    Whether to predict with the best mixture of the fold models, which are trained already. False trains one network on
    all rows with the best setting.
max_iter : int
    The first budget, in iterations: the longest training to choose from.
max_doublings : int
    How often the budget may double. It does while the best step lies in its last fifth, for all settings alike.
random_state : int, RandomState or None
    Decides folds, initial weights, subsets and batches. None is different each time.
"""
CV_ATTRIBUTES = """
cv_results_ : dict of arrays, one entry per setting at its best step: `param_subset_size` (rows in a fold; the number of
    the planes' columns stands for the pointwise end) and the other `param_...`, `params` (all of them as a dict),
    `n_steps`, `share` (in the ensemble, all steps together), `split{i}_test_score`, `mean_test_score`, `std_test_score`
    (negative mean squared error in units of y), `rank_test_score`. `to_frame()` and `plot()` show it.
best_params_ : dict with the best setting and its `n_steps`; `subset_size` is for all rows (None: the pointwise end).
best_score_, best_index_ : the `mean_test_score` of the best setting, and its place in `cv_results_`.
ensemble_score_ : the same score of the mixture: at least `best_score_`.
n_iter_ : iterations of the best setting.
n_splits_ : the number of folds.
network_ : the network, or the mixture of networks, on standardised columns; `to_torch()` is the whole model.
"""
ATTRIBUTES = """
loss_curve_ : the training loss of every iteration.
loss_, best_loss_ : its last and its lowest value; the latter is None with `early_stopping`.
n_iter_ : the number of iterations.
subset_size_, n_subsets_ : M and K in use; None where the loss has no subsets (or "auto" found it to be MSE).
network_ : the network on standardised columns; `to_torch()` is the whole model.
"""
COMMON = """
scaling_ : what is subtracted from columns and targets, and what they are divided by.
n_features_in_, feature_names_in_ : the number of columns, and their names if X had some."""


def documented(own: str, attributes: str = ATTRIBUTES) -> Callable[[C], C]:
    """Fill {parameters} and {attributes} into the docstring of a class; `own` parameters come first."""

    def fill(cls: C) -> C:
        defaults = {name: p.default for name, p in inspect.signature(cls).parameters.items()}
        texts: dict[str, str] = {}
        for text in re.split(r"\n(?=\S)", (own + PARAMETERS).strip()):  # one per parameter
            name, _, rest = text.strip().partition(" : ")
            if name in defaults:
                texts.setdefault(name, f"{name} : " + rest.replace("\n", f", default={defaults[name]!r}\n", 1))
        said = inspect.cleandoc(cls.__doc__ or "")  # python -OO leaves none
        said = said.replace("{parameters}", "\n".join(texts.values()))
        cls.__doc__ = said.replace("{attributes}", attributes.strip() + COMMON)
        return cls

    return fill
