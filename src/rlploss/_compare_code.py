"""The code that trains the winner of a comparison on all rows of the table."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rlploss._compare_arms import (
    HIDDEN,
    Arm,
    classical_model,
    classical_settings,
    network_settings,
)
from rlploss._estimator_base import BATCH, steps_per_iteration

if TYPE_CHECKING:
    from rlploss.compare import Comparison

LINEAR = ("ridge", "logistic")


def winner_code(found: Comparison) -> str:
    """Python that trains the best arm with the setting it chose most often."""
    arm = found.answer().best
    runs = found.cells["plain", arm.name].of_variant()
    setting = Counter(int(run.curve["setting"][0]) for run in runs).most_common(1)[0][0]
    n, d = found.n_used, found.design.X.shape[1]
    if arm.objective:
        steps = [run.curve["best_step"][0] for run in runs if int(run.curve["setting"][0]) == setting]
        name, arguments = _network(arm, found.task, setting, sorted(steps)[len(steps) // 2], n, d)
        imports = f"from rlploss.estimators import {name}"
        model = f"{name}({arguments})"
    else:
        made = classical_model(arm, found.task, classical_settings(arm, n)[setting], n, 0)
        name = type(made).__name__
        imports = f"from {type(made).__module__.rsplit('.', 1)[0]} import {name}"
        model = f"{name}({_arguments(_changed(made))})"
        if arm.name in LINEAR:
            imports += "\nfrom sklearn.pipeline import make_pipeline\nfrom sklearn.preprocessing import StandardScaler"
            model = f"make_pipeline(StandardScaler(), {model})"
    rows = f'# X: the {d} columns of numbers listed under "The columns"; y: {found.design.target.name!r}\n'
    if found.loads:
        imports += "\nfrom rlploss.compare import load_table"
        rows = f'X, y = {found.loads}  # the {d} columns of numbers listed under "The columns"\n'
    return f"{imports}\n\n{rows}model = {model}\nmodel.fit(X, y)\n"


def _network(arm: Arm, task: str, setting: int, steps: float, n: int, d: int) -> tuple[str, str]:
    chosen = network_settings(arm)[setting].estimator(arm, n, d)
    iterations = max(1, round(steps / steps_per_iteration(n, min(chosen.get("batch_size", BATCH), n))))
    name = "RLPRegressor" if task == "regression" else "RLPClassifier"
    extra: dict[str, Any] = {"hidden_layer_sizes": HIDDEN, "max_iter": iterations, "tol": 0.0}
    return name, _arguments({**chosen, **extra, "n_iter_no_change": iterations, "random_state": 0})


def _changed(model: Any) -> dict[str, Any]:
    """The parameters that differ from their defaults."""
    default = type(model)().get_params()
    return {key: value for key, value in model.get_params().items() if value != default[key]}


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in values.items())
