"""Train one contender: the same splits for all, selection inside the training rows, the test rows once.

For every seed the rows are split into training and test rows. On validation parts of the training rows a contender
chooses among its settings, and, if it is a network, its stopping step; then it is trained once more on all training
rows, and its predictions on the test rows are measured.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlploss._progress import Progress
from rlploss.compare.arms import (
    BASELINES,
    HIDDEN,
    MOST_ROWS_IN_A_SUBSET,
    N_SETTINGS,
    Condition,
    Contender,
    Setting,
    models,
)
from rlploss.datasets.splits import mahalanobis_region
from rlploss.estimators.dial import steps_per_iteration
from rlploss.estimators.network import build_network
from rlploss.estimators.scaling import Array, Scaling
from rlploss.estimators.selection import Split, choose
from rlploss.lab.results import CellResult, Tell, TrainedNetwork
from rlploss.lab.study import Cell
from rlploss.training.evaluation import History
from rlploss.training.fit import fit_fleet
from rlploss.training.job import Problem, Steps

TEST_SHARE, MOST_TEST_ROWS = 0.25, 5000
FOLDS, FOLD_ROWS, VALIDATION_SHARE = 5, 300, 0.2  # five folds up to 300 training rows, one validation part beyond
EVALUATIONS = 40
MEASURES = {  # on the test rows, in words; the first decides
    "regression": {"rmse": "root mean squared error", "mae": "mean absolute error", "r2": "R²"},
    "classification": {"accuracy": "accuracy", "brier": "Brier score", "log_loss": "log loss"},
}
ComparisonCell = Cell[Contender, Condition]


@dataclass(frozen=True)
class SplitData:
    """Training and test rows of one seed, scaled by the training rows; classes are one-hot."""

    seed: int
    X: Array
    Y: Array
    X_test: Array
    truth: NDArray[Any]  # of the test rows, as in the table
    scaling: Scaling
    folds: list[Split]

    @property
    def fold_sizes(self) -> list[int]:
        """How many validation rows each fold has."""
        return [len(validation) for _, validation in self.folds]

    def problem(self, setting: Setting, fold: Split | None = None, budget: Steps | None = None) -> Problem:
        """Return one network to train: on a fold's training rows, measured on its validation rows, or on all rows."""
        train, validation = fold or (np.arange(len(self.X)), None)
        return Problem(
            self.X[train],
            self.Y[train],
            seed=self.seed,
            validation=None if validation is None else (self.X[validation], self.Y[validation]),
            objective=setting.objective_for(len(train), self.X.shape[1]),
            optimizer=setting.optimizer,
            budget=budget,
        )


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains cells of a comparison on one table; small enough to be sent to another process."""

    X: Array
    y: NDArray[Any]
    task: str
    n_classes: int = 0

    def __call__(self, cell: ComparisonCell, tell: Tell) -> CellResult:
        """Train one contender with all its seeds, and return what it reached."""
        started = time.perf_counter()
        data = [self.data(cell.task, seed) for seed in cell.seeds]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            train = self._networks if cell.arm.objectives else self._models
            engine, networks = train(cell, data, tell)
        notes = tuple(dict.fromkeys(" ".join(str(w.message).split()) for w in told))
        seconds = time.perf_counter() - started
        return CellResult(tuple(networks), engine, torch.get_num_threads(), seconds, notes)

    @cached_property
    def digest(self) -> str:
        """A digest that tells this table from another."""
        digest = hashlib.sha256(f"{self.task} {self.X.shape}".encode())
        digest.update(np.ascontiguousarray(self.X).tobytes())
        digest.update(np.ascontiguousarray(self.y).tobytes())
        return digest.hexdigest()[:32]

    # Rows

    def data(self, condition: Condition, seed: int) -> SplitData:
        """Return the rows of a seed: they depend on the condition and the seed, never on the contender."""
        noise, inside = (np.random.default_rng([seed, stream]) for stream in (1, 2))
        train, test = self.split(condition, seed)
        X, X_test = _filled(self.X[train], self.X[test])
        if condition.noise is not None:
            X = X + condition.noise * X.std(axis=0) * noise.standard_normal(X.shape)
        y = self.y[train]
        if self.task == "regression":
            target = y[:, None].astype(np.float64)
            scaling = Scaling.of(X, target)
        else:
            target = np.eye(self.n_classes)[y]
            scaling = Scaling.of(X)
        rows = scaling.inputs(X), scaling.targets(target), scaling.inputs(X_test)
        return SplitData(seed, *rows, self.y[test], scaling, self._folds(y, inside))

    def split(self, condition: Condition, seed: int) -> Split:
        """Return training and test rows: random ones, or with a shift those near the mean and those far from it."""
        n, rng = len(self.X), np.random.default_rng([seed, 0])
        if condition.shift is not None:
            near = mahalanobis_region(_filled(self.X)[0])
            chosen = rng.random(n) < np.where(near, condition.shift, 1.0 - condition.shift)
            train, test = np.flatnonzero(chosen), np.flatnonzero(~chosen)
            if len(test) > MOST_TEST_ROWS:
                test = rng.choice(test, MOST_TEST_ROWS, replace=False)
            return train, test
        order = rng.permutation(n)
        if self.task == "classification":  # classes are spread evenly, so that every part has its share of each
            place = np.empty(n)
            for label in range(self.n_classes):
                mine = np.flatnonzero(self.y[order] == label)
                place[mine] = (np.arange(len(mine)) + rng.random()) / len(mine)
            order = order[np.argsort(place, kind="stable")]
        n_test = n_test_rows(n)
        return order[n_test:][: condition.train_size], order[:n_test]

    def _folds(self, y: NDArray[Any], rng: np.random.Generator) -> list[Split]:
        from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit

        state = int(rng.integers(2**31))
        # Classes in equal shares, unless an ablation left them too few rows for that.
        sizes = np.unique(y, return_counts=True)[1] if self.task == "classification" else np.zeros(1)
        if len(y) <= FOLD_ROWS:
            kind = StratifiedKFold if sizes.max() >= FOLDS else KFold
            cutter = kind(FOLDS, shuffle=True, random_state=state)
        else:
            kind = StratifiedShuffleSplit if sizes.min() >= 2 else ShuffleSplit
            cutter = kind(1, test_size=VALIDATION_SHARE, random_state=state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a class with fewer rows than folds
            return list(cutter.split(np.empty((len(y), 1)), y))

    # Networks

    def _networks(self, cell: ComparisonCell, data: list[SplitData], tell: Tell) -> tuple[str, list[TrainedNetwork]]:
        started, settings = time.perf_counter(), cell.arm.settings
        problems = [one.problem(setting, fold) for one in data for setting in settings for fold in one.folds]
        histories = self._fit(cell, problems, tell, 0.0, 0.9)
        n_evaluations = -(-cell.budget.n // cell.evaluate_every)
        steps = np.minimum(np.arange(1, n_evaluations + 1) * cell.evaluate_every, cell.budget.n)
        metric = "brier_of_logits" if cell.arm.gives_logits else "mse"
        choices = []
        for one in data:
            errors = np.full((len(settings), len(one.folds), n_evaluations), np.nan)
            for row in errors.reshape(-1, n_evaluations):
                found = histories.pop(0)[metric][1:]  # step 0 is no choice
                row[: len(found)] = found
            choices.append(choose(errors, one.fold_sizes))
        stops = [int(steps[choice.evaluations[choice.setting]]) for choice in choices]
        # The chosen setting on all training rows, and the test rows, which are used here only.
        chosen = zip(data, choices, stops, strict=True)
        refits = [one.problem(settings[choice.setting], budget=Steps(stop)) for one, choice, stop in chosen]
        histories = self._fit(cell, refits, tell, 0.9, 1.0)
        seconds = (time.perf_counter() - started) / len(data)
        networks = []
        for one, choice, stop, history in zip(data, choices, stops, histories, strict=True):
            assert history.model is not None
            with torch.no_grad():
                out = history.model(torch.tensor(one.X_test, dtype=torch.float32))
            predicted = (out.softmax(-1) if cell.arm.gives_logits else out).double().numpy()
            sizes = [setting.subset_size(*one.X.shape) or 0 for setting in settings]  # 0 is MSE
            values = {"best_step": float(stop), "subset_size": float(sizes[choice.setting])}
            curve = {"step": steps.tolist(), "validation": choice.curves[choice.setting].tolist()}
            kept = {"errors": choice.errors.astype(np.float32), "sizes": np.array(sizes, dtype=np.float32)}
            values |= self._measured(one, choice.setting, predicted)
            kept |= self._scatter(one, predicted) if one is data[0] else {}
            networks.append(TrainedNetwork(one.seed, 0, curve, seconds, values, kept))
        return str(histories[0].settings.get("engine", "torch")), networks

    def _fit(self, cell: ComparisonCell, problems: list[Problem], tell: Tell, low: float, high: float) -> list[History]:
        def progress(state: Progress) -> None:
            tell(low + (high - low) * state.step / max(1, state.total_steps))

        logits = cell.arm.gives_logits
        softmax = self.task == "classification" and not logits
        d, n_outputs = self.X.shape[1], max(1, self.n_classes)
        return fit_fleet(
            lambda seed: build_network(d, HIDDEN, n_outputs, activation="relu", softmax=softmax, seed=seed),
            problems,
            budget=cell.budget,
            evaluate_every=Steps(cell.evaluate_every) if problems[0].validation else None,
            metrics=(brier_of_logits if logits else "mse") if problems[0].validation else None,
            on_divergence="record",
            progress=progress,
        )

    # Models of scikit-learn

    def _models(self, cell: ComparisonCell, data: list[SplitData], tell: Tell) -> tuple[str, list[TrainedNetwork]]:
        networks = []
        for number, one in enumerate(data):
            started = time.perf_counter()
            tried = models(cell.arm.model, self.task, len(one.X), one.seed)
            errors = np.zeros((len(tried), len(one.folds), 1))
            for at, model in enumerate(tried if len(tried) > 1 else ()):
                tell((number + at / len(tried)) / len(data))
                for fold, (train, validation) in enumerate(one.folds):
                    gap = self._fitted(model, one.X[train], one.Y[train], one.X[validation]) - one.Y[validation]
                    errors[at, fold] = np.mean(gap**2)
            setting = choose(errors, one.fold_sizes).setting
            predicted = self._fitted(tried[setting], one.X, one.Y, one.X_test)
            seconds, values = time.perf_counter() - started, self._measured(one, setting, predicted)
            kept = self._scatter(one, predicted) if one is data[0] else {}
            networks.append(TrainedNetwork(one.seed, 0, {}, seconds, values, kept))
        return "none", networks

    def _fitted(self, model: Any, X: Array, Y: Array, X_new: Array) -> Array:
        """Fit a model, and return its predictions [n, C] on other rows: numbers, or probabilities of all classes."""
        if self.task == "regression":
            return np.asarray(model.fit(X, Y[:, 0]).predict(X_new))[:, None]
        labels = Y.argmax(1)
        found = np.zeros((len(X_new), self.n_classes))
        if len(np.unique(labels)) == 1:
            found[:, labels[0]] = 1.0
        else:
            model.fit(X, labels)
            found[:, model.classes_] = model.predict_proba(X_new)
        return found

    # What is measured

    def _measured(self, one: SplitData, setting: int, predicted: Array) -> dict[str, float]:
        """Return the setting, errors on the test rows in the units of the table, and how many rows there are."""
        truth = one.truth
        if self.task == "regression":
            gap = one.scaling.original(predicted)[:, 0] - truth
            mse, spread = float(np.mean(gap**2)), float(np.var(truth))
            r2 = 1 - mse / spread if spread > 0 else float("nan")
            found = {"rmse": mse**0.5, "mae": float(np.abs(gap).mean()), "r2": r2}
        else:
            right = predicted[np.arange(len(truth)), truth]
            found = {
                "accuracy": float((predicted.argmax(1) == truth).mean()),
                "brier": float(((predicted - np.eye(self.n_classes)[truth]) ** 2).sum(1).mean()),
                "log_loss": float(-np.log(np.clip(right, 1e-7, 1.0)).mean()),
            }
        return {"setting": float(setting), **found, "n_train": float(len(one.X)), "n_test": float(len(one.X_test))}

    def _scatter(self, one: SplitData, predicted: Array) -> dict[str, NDArray[np.float32]]:
        """Return predictions and truth of at most 500 test rows."""
        values = one.scaling.original(predicted) if self.task == "regression" else predicted
        return {"predicted": values[:500].astype(np.float32), "truth": one.truth[:500].astype(np.float32)}


def brier_of_logits(pred: Tensor, target: Tensor, features: Tensor) -> float:
    """Return the mean squared error of the probabilities: contenders with probabilities are chosen by it, too."""
    return float((pred.softmax(-1) - target).square().mean())


def _filled(train: Array, *others: Array) -> list[Array]:
    """Return rows with missing values filled by the median of the training rows, 0 for a column without values."""
    from sklearn.impute import SimpleImputer

    imputer = SimpleImputer(strategy="median", keep_empty_features=True).fit(train)
    return [imputer.transform(rows) for rows in (train, *others)]


# Rows and cells


def n_test_rows(n_rows: int) -> int:
    """Return how many rows are test rows."""
    return min(round(TEST_SHARE * n_rows), MOST_TEST_ROWS)


def make_cell(
    trainer: Trainer, contender: Contender, condition: Condition, seeds: tuple[int, ...], steps: int
) -> ComparisonCell:
    """Return the cell of one contender under one condition, evaluated about 40 times, after whole iterations."""
    iteration = steps_per_iteration(len(trainer.X))
    every = iteration * max(1, round(steps / iteration / EVALUATIONS))
    return Cell(contender, replace(condition, table=trainer.digest), Steps(steps), seeds, evaluate_every=every)


def expected_seconds(trainer: Trainer, cell: ComparisonCell) -> float:
    """Return a rough cost on one core, for the time left; stored cells correct it."""
    n, d = len(trainer.X), int(trainer.X.shape[1])
    n_train = cell.task.train_size or round((1 - TEST_SHARE) * n)
    fits = len(cell.seeds) * (N_SETTINGS * (FOLDS if n_train <= FOLD_ROWS else 1) + 1)
    if cell.arm.model in BASELINES:
        return 0.1
    if cell.arm.model in ("ridge", "logistic"):
        return 0.5 + fits * 2e-7 * n_train * d
    if cell.arm.model == "boosting":
        return float(1.0 + fits * (0.1 + 3e-5 * n_train * min(d, 30) ** 0.5))
    rows = min(n_train, MOST_ROWS_IN_A_SUBSET) * 0.55 if cell.arm.is_rlp else min(n_train, 100.0)
    return 1.0 + fits * cell.budget.n * (5e-6 + 2.5e-9 * rows * (d + 10) * 10)
