"""The code that trains the winner of a comparison on all rows of the table."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rlploss.compare.arms import HIDDEN, Arm, classical_model, classical_settings, network_settings
from rlploss.estimators.base import BATCH, steps_per_iteration

if TYPE_CHECKING:
    from rlploss.compare.answer import Comparison

LINEAR = ("ridge", "logistic")


def winner_code(found: Comparison) -> str:
    """Python that trains the best arm with the setting it chose most often."""
    arm = found.answer().best
    runs = found.cells["plain", arm.name].of_variant()
    setting = Counter(int(run.curve["setting"][0]) for run in runs).most_common(1)[0][0]
    d, n_train = found.design.X.shape[1], int(runs[0].curve["n_train"][0])
    if arm.objective:
        steps = [run.curve["best_step"][0] for run in runs if int(run.curve["setting"][0]) == setting]
        sizes = found.n_used, len(found.design.X)
        imports, model = _network(arm, found.task, setting, sorted(steps)[len(steps) // 2], sizes, d)
    else:
        imports, model = _classical(arm, found.task, setting, n_train)
    rows = f'# X: the {d} columns of numbers listed under "The columns"; y: {found.design.target.name!r}\n'
    if found.loads:
        imports += "\nfrom rlploss.compare.answer import load_table"
        rows = f'X, y = {found.loads}  # the {d} columns of numbers listed under "The columns"\n'
    return f"{imports}\n\n{rows}model = {model}\nmodel.fit(X, y)\n"


def _network(arm: Arm, task: str, setting: int, steps: float, sizes: tuple[int, int], d: int) -> tuple[str, str]:
    """Import and model: subsets as of the rows compared (some of the table), as many steps on all of its rows."""
    used, n = sizes
    chosen = network_settings(arm)[setting].estimator(arm, used, d)
    iterations = max(1, round(steps / steps_per_iteration(n, min(chosen.get("batch_size", BATCH), n))))
    name = "RLPRegressor" if task == "regression" else "RLPClassifier"
    extra: dict[str, Any] = {"hidden_layer_sizes": HIDDEN, "max_iter": iterations, "tol": 0.0}
    arguments = _arguments({**chosen, **extra, "n_iter_no_change": iterations, "random_state": 0})
    return f"from rlploss.estimators import {name}", f"{name}({arguments})"


def _classical(arm: Arm, task: str, setting: int, n_train: int) -> tuple[str, str]:
    """Import and model, for the number of training rows: it decides what is tried."""
    made = classical_model(arm, task, classical_settings(arm, n_train)[setting], n_train, 0)
    name = type(made).__name__
    imports = f"from {'.'.join(type(made).__module__.split('.')[:2])} import {name}"  # its public module
    model = f"{name}({_arguments(_changed(made))})"
    if arm.name in LINEAR:
        imports += "\nfrom sklearn.pipeline import make_pipeline\nfrom sklearn.preprocessing import StandardScaler"
        model = f"make_pipeline(StandardScaler(), {model})"
    return imports, model


def _changed(model: Any) -> dict[str, Any]:
    """The parameters that differ from their defaults."""
    default = type(model)().get_params()
    return {key: value for key, value in model.get_params().items() if value != default[key]}


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in values.items())
