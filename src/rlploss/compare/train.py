"""Train one contender: the same splits for all, selection inside the training rows, the test rows once.

For every seed the rows are split into training and test rows. On validation parts of the training rows a contender
chooses among its settings, and, if it is a network, its stopping step; then it is trained once more on all training
rows, and its predictions on the test rows are measured.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from threadpoolctl import threadpool_limits
from torch import Tensor

from rlploss._progress import Progress
from rlploss._scaling import Array
from rlploss.compare.arms import (
    BASELINES,
    GP_ROWS,
    HIDDEN,
    LARGE,
    MOST_ROWS_IN_A_SUBSET,
    N_SETTINGS,
    STAGES,
    Condition,
    Contender,
    Setting,
    tuned,
)
from rlploss.compare.rows import TEST_SHARE, Rows, SplitData, TargetScale, n_folds, probabilities
from rlploss.estimators.dial import choose
from rlploss.lab.results import CellResult, Tell, TrainedNetwork
from rlploss.lab.study import Cell
from rlploss.models import build_network
from rlploss.training.evaluation import Event, History
from rlploss.training.fit import fit_fleet
from rlploss.training.job import Problem, Steps
from rlploss.training.objectives import BatchLoss, Pointwise

EVERY, FEWEST = 25, 8  # steps between evaluations, and evaluations before a network may stop
PATIENCE, TOLERANCE = 1.5, 1e-3  # a network stops at 1.5 times its best step; what is 0.1 % better is better
VALIDATION_TREES, TREES = 20, 100  # of extra trees while settings are chosen, and then
MEASURES = {  # on the test rows, in words; the first decides
    "regression": {"rmse": "root mean squared error", "mae": "mean absolute error", "r2": "R²"},
    "classification": {
        "accuracy": "accuracy", "balanced": "balanced accuracy", "auc": "AUC", "log_loss": "log loss",
        "brier": "Brier score",
    },
}  # fmt: skip
ComparisonCell = Cell[Contender, Condition]


class Trainer(Rows):
    """Trains cells of a comparison on one table; small enough to be sent to another process."""

    def __call__(self, cell: ComparisonCell, tell: Tell) -> CellResult:
        """Train one contender with all its seeds, and return what it reached."""
        started = time.perf_counter()
        data = [self.data(cell.task, seed) for seed in cell.seeds]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if cell.arm.model:  # on one thread: for so few rows more of them wait for each other
                with threadpool_limits(1):
                    engine, networks = self._models(cell, data, tell)
            else:
                engine, networks = self._networks(cell, data, tell)
        notes = tuple(dict.fromkeys(" ".join(str(w.message).split())[:300] for w in told))
        seconds = time.perf_counter() - started
        return CellResult(tuple(networks), engine, torch.get_num_threads(), seconds, notes)

    # Networks

    def _networks(self, cell: ComparisonCell, data: list[SplitData], tell: Tell) -> tuple[str, list[TrainedNetwork]]:
        started, logits = time.perf_counter(), cell.arm.gives_logits
        tries = [(setting, log) for log in self.logs for setting in cell.arm.settings]
        steps = evaluated_at(cell)
        problems, measured = [], []
        for one in data:
            scales = {log: one.scale(log) for log in self.logs}
            targets = {log: one.target(scale) for log, scale in scales.items()}
            for setting, log in tries:
                for train, validation in one.folds:
                    problems.append(network_problem(setting, one.X[train], targets[log][train], one.seed))
                    rows = one.X[validation].astype(np.float32)
                    measured.append((rows, one.error(validation, scales[log], logits=True)))
        watch = Watch(measured, cell.evaluate_every, len(steps))
        histories = self.fit(cell, problems, watch, lambda done: tell(0.9 * done))
        errors = watch.carried([history.stopped != "diverged" for history in histories])
        choices, at = [], 0
        for one in data:
            n = len(tries) * len(one.folds)
            choices.append(choose(errors[at : at + n].reshape(len(tries), len(one.folds), -1), one.fold_sizes))
            at += n
        # The chosen setting on all training rows, and the test rows, which are used here only.
        chosen = [(tries[choice.setting], int(steps[choice.evaluations[choice.setting]])) for choice in choices]
        refits = [
            network_problem(setting, one.X, one.target(one.scale(log)), one.seed, Steps(stop))
            for one, ((setting, log), stop) in zip(data, chosen, strict=True)
        ]
        histories = self.fit(cell, refits, None, lambda done: tell(0.9 + 0.1 * done))
        seconds = (time.perf_counter() - started) / len(data)
        networks = []
        for one, choice, ((_, log), stop), history in zip(data, choices, chosen, histories, strict=True):
            assert history.model is not None
            with torch.no_grad():
                out = history.model(torch.tensor(one.X_test, dtype=torch.float32)).double().numpy()
            scale = one.scale(log)
            predicted = probabilities(out, logits=logits) if scale is None else scale.original(out)
            sizes = [setting.subset_size(*one.X.shape) or 0 for setting, _ in tries]  # 0 is MSE
            values = {"best_step": float(stop), "subset_size": float(sizes[choice.setting]), "log": float(log)}
            values["late"] = float(stop > 0.8 * cell.budget.n)  # it might have gone on
            curve = {"step": steps.tolist(), "validation": choice.curves[choice.setting].tolist()}
            kept = {"errors": choice.errors.astype(np.float32), "sizes": np.array(sizes, dtype=np.float32)}
            values |= self._measured(one, choice.setting, predicted)
            kept |= self._kept(one, predicted, one is data[0])
            networks.append(TrainedNetwork(one.seed, 0, curve, seconds, values, kept))
        return str(histories[0].settings.get("engine", "torch")), networks

    def fit(
        self, cell: ComparisonCell, problems: list[Problem], watch: Watch | None, tell: Callable[[float], None]
    ) -> list[History]:
        """Train networks on scaled rows; `watch` measures and stops them."""
        softmax = self.task == "classification" and not cell.arm.gives_logits
        d, n_outputs = self.X.shape[1], max(1, self.n_classes)

        def progress(state: Progress) -> None:
            tell(state.step / max(1, state.total_steps))

        return fit_fleet(
            lambda seed: build_network(d, HIDDEN, n_outputs, activation="relu", softmax=softmax, seed=seed),
            problems,
            budget=cell.budget,
            evaluate_every=Steps(cell.evaluate_every) if watch else cell.budget,
            callbacks=[watch] if watch else (),
            on_divergence="record",
            progress=progress,
        )

    # Models of scikit-learn

    def _models(self, cell: ComparisonCell, data: list[SplitData], tell: Tell) -> tuple[str, list[TrainedNetwork]]:
        networks = []
        for number, one in enumerate(data):
            started = time.perf_counter()
            tries = self.tries(cell.arm, len(one.X), one.seed)
            errors = np.zeros((len(tries), len(one.folds), 1))
            for at, (model, log, stages) in enumerate(tries if len(tries) > 1 else ()):
                tell((number + at / len(tries)) / len(data))
                if stages is not None and stages != STAGES[-1]:
                    continue  # measured with the longest of its kind
                scale, first = one.scale(log), at - len(STAGES) + 1 if stages else at
                for fold, (train, validation) in enumerate(one.folds):
                    measure = one.error(validation, scale)
                    fitted = fit_model(for_validation(model), one.X[train], model_target(one, scale)[train])
                    outs = staged(fitted, one.X[validation], stages is not None, self.n_classes)
                    errors[first : at + 1, fold, 0] = [measure(out) for out in outs]
            setting = choose(errors, one.fold_sizes).setting
            model, log, stages = tries[setting]
            scale = one.scale(log)
            fitted = fit_model(with_stages(model, stages), one.X, model_target(one, scale))
            (out,) = staged(fitted, one.X_test, False, self.n_classes)
            predicted = out if scale is None else scale.original(out)
            values = self._measured(one, setting, predicted) | {"log": float(log), "late": 0.0}
            seconds, kept = time.perf_counter() - started, self._kept(one, predicted, one is data[0])
            networks.append(TrainedNetwork(one.seed, 0, {}, seconds, values, kept))
        return "none", networks

    def tries(self, arm: Contender, n_rows: int, seed: int) -> list[tuple[Any, bool, int | None]]:
        """Return the models that an arm tries, on which target, with how many trees of boosting (None: no choice)."""
        n_stages: tuple[int | None, ...] = STAGES if arm.model == "boosting" else (None,)
        logs = (False,) if arm.model in BASELINES else self.logs
        made = tuned(arm.model, self.task, n_rows, seed)
        return [(model, log, stages) for log in logs for model in made for stages in n_stages]

    # What is measured

    def _measured(self, one: SplitData, setting: int, predicted: Array) -> dict[str, float]:
        """Return the setting, errors on the test rows in the units of the table, and how many rows there are."""
        truth = one.truth
        if self.task == "regression":
            gap = predicted[:, 0] - truth
            mse, spread = float(np.mean(gap**2)), float(np.var(truth))
            r2 = 1 - mse / spread if spread > 0 else math.nan
            found = {"rmse": mse**0.5, "mae": float(np.abs(gap).mean()), "r2": r2}
        else:
            found = class_measures(predicted, truth)
        return {"setting": float(setting), **found, "n_train": float(len(one.X)), "n_test": float(len(one.X_test))}

    def _kept(self, one: SplitData, predicted: Array, first: bool) -> dict[str, NDArray[np.float32]]:
        """Return the error of every test row, and of the first split at most 500 predictions and truths."""
        if self.n_classes:
            rows = (predicted.argmax(1) != one.truth).astype(np.float32)
        else:
            rows = (((predicted[:, 0] - one.truth) / TargetScale.of(one.y).scale) ** 2).astype(np.float32)
        shown = {"predicted": predicted[:500].astype(np.float32), "truth": one.truth[:500].astype(np.float32)}
        return {"rows": rows} | (shown if first else {})


class Watch:
    """A callback of `fit_fleet`: measures every network on its validation rows, and stops it when its best is past.

    A network ends at 1.5 times its best step, so that the best lies before the last third of its steps, or at the last
    step there is.
    """

    def __init__(
        self, rows: Sequence[tuple[NDArray[np.float32], Callable[[Array], float]]], every: int, n: int
    ) -> None:
        self._rows, self._every = rows, every
        self._errors = np.full((len(rows), n), np.nan)
        self._layers: dict[int, list[Tensor]] = {}

    def __call__(self, event: Event) -> bool:
        """Take in one evaluation of one network; True stops it."""
        if event.step == 0:
            self._layers[event.replica] = list(event.model().parameters())
            return False
        X, measure = self._rows[event.replica]
        at, row = -(-event.step // self._every), self._errors[event.replica]
        with np.errstate(over="ignore", invalid="ignore"):
            row[at - 1] = measure(self._outputs(X, self._layers[event.replica]))
        seen = row[:at]
        best = 1 + int(np.argmax(seen <= (1 + TOLERANCE) * np.nanmin(seen))) if np.isfinite(seen).any() else at
        stop = at >= max(FEWEST, PATIENCE * best)
        if stop:
            del self._layers[event.replica]
        return stop

    @staticmethod
    def _outputs(X: NDArray[np.float32], layers: list[Tensor]) -> Array:
        """Return what the last layer gives; numpy takes a fifth of torch's time for so few rows."""
        first, *rest = [part.detach().numpy() for part in layers]
        out: NDArray[Any] = X @ first.T + rest[0]
        for weight, offset in zip(rest[1::2], rest[2::2], strict=True):
            out = np.maximum(out, 0) @ weight.T + offset
        return np.asarray(out, dtype=np.float64)

    def carried(self, finished: Sequence[bool]) -> Array:
        """Return errors [networks, evaluations]. One that stopped keeps its last error, one that diverged has none."""
        errors = self._errors.copy()
        for row, whole in zip(errors, finished, strict=True):
            last = int(np.isfinite(row).sum())
            row[last:] = row[last - 1] if whole and last else np.nan
        return errors


# One network, one model


def network_problem(setting: Setting, X: Array, Y: Array, seed: int, budget: Steps | None = None) -> Problem:
    """Return one network to train on scaled rows."""
    objective = setting.objective_for(*X.shape)
    return Problem(X, Y, seed=seed, objective=objective, optimizer=setting.optimizer, budget=budget)


def model_target(one: SplitData, scale: TargetScale | None) -> NDArray[Any]:
    """Return what models of scikit-learn are trained on (n,): scaled numbers, or class numbers."""
    return one.y if scale is None else scale.scaled(one.y)


def for_validation(model: Any) -> Any:
    """Return the model as it is tried: extra trees with fewer of them, which rank settings as well."""
    trees = type(model).__name__.startswith("ExtraTrees")
    return model.set_params(n_estimators=VALIDATION_TREES) if trees else model


def with_stages(model: Any, stages: int | None) -> Any:
    """Return the model as it is kept: boosting with the number of trees chosen, extra trees with all of theirs."""
    if type(model).__name__.startswith("ExtraTrees"):
        return model.set_params(n_estimators=TREES)
    if stages is None:
        return model
    return model.set_params(**{"max_iter" if hasattr(model, "max_iter") else "n_estimators": stages})


def _few_steps(objective: Any, start: Array, bounds: Any) -> tuple[Array, float]:
    """Fit the hyperparameters of a Gaussian process in few steps: the last ones change no prediction."""
    found = optimize.minimize(objective, start, method="L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": 12})
    return found.x, float(found.fun)


def fit_model(model: Any, X: Array, y: NDArray[Any]) -> Any:
    """Return the fitted model. A Gaussian process takes hyperparameters from few rows and predictions from some."""
    if hasattr(model, "kernel") and hasattr(model, "optimizer"):
        few, some = (slice(None, None, -(-len(X) // most)) for most in GP_ROWS)
        model = model.set_params(optimizer=_few_steps)
        kernel = model.fit(X[few], y[few]).kernel_
        model = type(model)(kernel, optimizer=None)
        return model.fit(X[some], y[some])
    if np.issubdtype(y.dtype, np.integer) and len(np.unique(y)) == 1:
        from sklearn.dummy import DummyClassifier

        model = DummyClassifier()
    return model.fit(X, y)


def staged(fitted: Any, X: Array, stages: bool, n_classes: int) -> list[Array]:
    """Return predictions [n, C], of boosting one for every stage: numbers, or probabilities of all classes."""
    if not n_classes:
        found = list(fitted.staged_predict(X)) if stages else [fitted.predict(X)]
        shaped = [np.asarray(one, dtype=np.float64).reshape(-1, 1) for one in found]
    else:
        many = stages and hasattr(fitted, "staged_predict_proba")
        found = (
            list(fitted.staged_predict_proba(X)) if many else [fitted.predict_proba(X)] * (STAGES[-1] if stages else 1)
        )
        shaped = []
        for one in found:
            shaped.append(np.zeros((len(X), n_classes)))
            shaped[-1][:, fitted.classes_] = one
    return [shaped[stage - 1] for stage in STAGES] if stages else shaped


def class_measures(predicted: Array, truth: NDArray[Any]) -> dict[str, float]:
    """Return accuracy, balanced accuracy, AUC, log loss and Brier score of probabilities [n, C]."""
    from sklearn.metrics import roc_auc_score

    n, C = predicted.shape
    right = predicted.argmax(1) == truth
    there = np.unique(truth)
    areas = [roc_auc_score(truth == c, predicted[:, c]) for c in there] if len(there) > 1 else [math.nan]
    return {
        "accuracy": float(right.mean()),
        "balanced": float(np.mean([right[truth == c].mean() for c in there])),
        "auc": float(np.mean(areas)),
        "log_loss": float(-np.log(np.clip(predicted[np.arange(n), truth], 1e-7, 1.0)).mean()),
        "brier": float(((predicted - np.eye(C)[truth]) ** 2).sum(1).mean()),
    }


# Cells


def make_cell(
    trainer: Trainer, contender: Contender, condition: Condition, seeds: tuple[int, ...], steps: int
) -> ComparisonCell:
    """Return the cell of one contender under one condition."""
    every = max(1, min(EVERY, steps // FEWEST))
    return Cell(contender, replace(condition, table=trainer.digest), Steps(steps), seeds, evaluate_every=every)


def evaluated_at(cell: ComparisonCell) -> NDArray[np.int64]:
    """Return the steps at which a network is measured."""
    n = -(-cell.budget.n // cell.evaluate_every)
    return np.minimum(np.arange(1, n + 1) * cell.evaluate_every, cell.budget.n)


def expected_seconds(trainer: Trainer, cell: ComparisonCell) -> float:
    """Return a rough cost on one core, for the time left; stored cells correct it."""
    n, d, arm = len(trainer.X), int(trainer.X.shape[1]), cell.arm
    n_train = cell.task.train_size or round((1 - TEST_SHARE) * n)
    folds, logs, splits = n_folds(n_train), len(trainer.logs), len(cell.seeds)
    if arm.model in BASELINES:
        return 0.1
    if arm.model in ("ridge", "logistic", "lasso"):
        return 0.1 + splits * logs * N_SETTINGS * folds * (1e-3 + 5e-8 * n_train * d)
    if arm.model == "gp":
        return splits * logs * (folds if logs > 1 else 1) * (0.1 + 8e-6 * min(n_train, GP_ROWS[0]) ** 2)
    if arm.model == "rlp-cv":
        return splits * (0.6 + 5e-4 * n_train) * (1 if logs == 1 else 2 * folds + 1)
    if arm.model == "trees":
        return splits * (0.06 + 1.5e-5 * n_train * d) * (1 + 3 * logs * folds * VALIDATION_TREES / TREES)
    if arm.model == "boosting":
        one, tried = (0.06 + 8e-6 * n_train * d**0.5, 4) if n_train > LARGE else (0.05 + 2.5e-5 * n_train * d, 2)
        return splits * one * (1 + tried * logs * folds)
    taken = min(cell.budget.n, 300 + n_train) * (20.0 if isinstance(arm.objective, Pointwise | BatchLoss) else 1.0)
    rows = min(n_train, MOST_ROWS_IN_A_SUBSET) * 0.4 if arm.is_rlp else min(n_train, 90.0)
    return splits * (N_SETTINGS * folds * logs + 1) * (2e-3 + taken * (5e-6 + 8e-10 * rows * (d + 10) * 10))
