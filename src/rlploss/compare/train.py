"""Train one arm of a comparison: the same splits for all, selection inside the training rows, the test rows once.

For every seed the rows are split into training and test rows. On held-out parts of the training rows an arm chooses
among its settings, and, if it is a network, its stopping step; then it is trained once more on all training rows, and
its predictions on the test rows are measured.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlploss._progress import Progress
from rlploss.compare.arms import HIDDEN, Arm, Setting, arm_named, classical_model, classical_settings, network_settings
from rlploss.datasets.splits import mahalanobis_region
from rlploss.estimators.base import BATCH, steps_per_iteration
from rlploss.estimators.predictor import Scaling, build_network
from rlploss.lab.results import CellResult, Run, Tell
from rlploss.lab.study import Cell
from rlploss.training.fit import fit_fleet
from rlploss.training.job import Problem, Steps

Array = NDArray[np.float64]
Index = NDArray[np.int64]
TEST_SHARE, MOST_TEST_ROWS = 0.25, 5000
FOLDS, FOLD_ROWS, HELD_SHARE = 5, 300, 0.2  # five folds up to 300 training rows, one held-out fifth beyond
EVALUATIONS = 40
MEASURES = {"regression": ("rmse", "mae", "r2"), "classification": ("accuracy", "brier", "log_loss")}


@dataclass(frozen=True)
class Rows:
    """The rows of one seed, scaled by its training rows; classes are one-hot."""

    X: Array
    Y: Array
    X_test: Array
    truth: NDArray[Any]  # of the test rows, as in the table
    scaling: Scaling
    folds: list[tuple[Index, Index]]


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains cells of a comparison on one table; small enough to be sent to another process."""

    X: Array
    y: NDArray[Any]
    task: str
    n_classes: int = 0

    def __call__(self, cell: Cell, tell: Tell) -> CellResult:
        """Train one arm with all its seeds."""
        started = time.perf_counter()
        arm = arm_named(self.task, str(cell.arm.get("arm")))
        rows = [self.rows(cell, seed) for seed in cell.seeds]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            runs = self._networks(arm, cell, rows, tell) if arm.objective else self._classical(arm, cell, rows, tell)
        notes = dict.fromkeys(" ".join(str(w.message).split()) for w in told)
        return CellResult(
            tuple(runs),
            path="plain",
            threads=torch.get_num_threads(),
            seconds=time.perf_counter() - started,
            notes=tuple(notes),
        )

    @property
    def digest(self) -> str:
        """What tells this table from another."""
        digest = hashlib.sha256(f"{self.task} {self.X.shape}".encode())
        digest.update(np.ascontiguousarray(self.X).tobytes())
        digest.update(np.ascontiguousarray(self.y).tobytes())
        return digest.hexdigest()[:32]

    # Rows

    def rows(self, cell: Cell, seed: int) -> Rows:
        """Training and test rows of a seed: they depend on the condition and the seed, never on the arm."""
        noise, inside = (np.random.default_rng([seed, stream]) for stream in (1, 2))
        train, test = self.split(cell, seed)
        X, X_test = self.X[train], self.X[test]
        middle = np.nan_to_num(_nanmedian(X))
        X, X_test = (np.where(np.isnan(part), middle, part) for part in (X, X_test))
        level = cell.task.get("noise")
        if level is not None:
            X = X + float(level) * X.std(axis=0) * noise.standard_normal(X.shape)
        y = self.y[train]
        target = y[:, None].astype(np.float64) if self.task == "regression" else np.eye(self.n_classes)[y]
        scaling = Scaling.of(X, target if self.task == "regression" else None, None, on=True)
        Y = scaling.targets(target) if self.task == "regression" else target
        folds = self._folds(y, inside)
        return Rows(scaling.inputs(X), Y, scaling.inputs(X_test), self.y[test], scaling, folds)

    def split(self, cell: Cell, seed: int) -> tuple[Index, Index]:
        """Training and test rows: at random, or with a shift training rows near the mean and test rows far from it."""
        n, rng = len(self.X), np.random.default_rng([seed, 0])
        train_size, shift = cell.task.get("train_size"), cell.task.get("shift")
        if shift is not None:
            near = mahalanobis_region(np.where(np.isnan(self.X), np.nan_to_num(_nanmedian(self.X)), self.X))
            chosen = rng.random(n) < np.where(near, float(str(shift)), 1.0 - float(str(shift)))
            train, test = np.flatnonzero(chosen), np.flatnonzero(~chosen)
            if len(test) > MOST_TEST_ROWS:
                test = rng.choice(test, MOST_TEST_ROWS, replace=False)
            return train, test
        order = self._order(rng)
        n_test = min(round(TEST_SHARE * n), MOST_TEST_ROWS)
        n_train = n - n_test if train_size is None else int(str(train_size))
        return order[n_test : n_test + n_train], order[:n_test]

    def _order(self, rng: np.random.Generator) -> Index:
        """A random order; classes are spread evenly through it, so that every part of it has its share of each."""
        order = rng.permutation(len(self.X))
        if self.task == "regression":
            return order
        place = np.empty(len(order))
        for label in range(self.n_classes):
            mine = np.flatnonzero(self.y[order] == label)
            place[mine] = (np.arange(len(mine)) + rng.random()) / len(mine)
        return order[np.argsort(place, kind="stable")]

    def _folds(self, y: NDArray[Any], rng: np.random.Generator) -> list[tuple[Index, Index]]:
        from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit

        state = int(rng.integers(2**31))
        # Classes in equal shares, unless an ablation left them too few rows for that.
        sizes = np.unique(y, return_counts=True)[1] if self.task == "classification" else np.zeros(1)
        if len(y) <= FOLD_ROWS:
            kind = StratifiedKFold if sizes.max() >= FOLDS else KFold
            cutter = kind(FOLDS, shuffle=True, random_state=state)
        else:
            kind = StratifiedShuffleSplit if sizes.min() >= 2 else ShuffleSplit
            cutter = kind(1, test_size=HELD_SHARE, random_state=state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a class with fewer rows than folds
            return list(cutter.split(np.empty((len(y), 1)), y))

    # Networks

    def _networks(self, arm: Arm, cell: Cell, rows: list[Rows], tell: Tell) -> list[Run]:
        started = time.perf_counter()
        settings = network_settings(arm)
        d = self.X.shape[1]
        every = evaluation_steps(len(rows[0].X), cell.budget.n)
        problems = [
            Problem(
                one.X[train],
                one.Y[train],
                validation=(one.X[held], one.Y[held]),
                seed=seed,
                **setting.problem(arm, len(train), d),
            )
            for seed, one in zip(cell.seeds, rows, strict=True)
            for setting in settings
            for train, held in one.folds
        ]
        histories = fit_fleet(
            self._builder(arm),
            problems,
            budget=Steps(cell.budget.n),
            evaluate_every=Steps(every),
            metrics=brier_of_logits if _logits(arm) else "mse",
            on_divergence="record",
            progress=_telling(tell, 0.0, 0.9),
        )
        metric = "brier_of_logits" if _logits(arm) else "mse"
        points = 1 + -(-cell.budget.n // every)
        curves = np.full((len(histories), points), np.nan)
        for i, history in enumerate(histories):
            curves[i, : len(history)] = history[metric]
        steps = np.minimum(np.arange(points) * every, cell.budget.n)
        chosen, at = [], 0
        for one in rows:
            count = len(settings) * len(one.folds)
            mine = curves[at : at + count].reshape(len(settings), len(one.folds), points)
            chosen.append(_choice(mine, steps))
            at += count
        predictions = self._refit(arm, cell, rows, settings, chosen, tell)
        share = (time.perf_counter() - started) / len(rows)
        return [
            Run(
                seed,
                0,
                {
                    "step": steps.tolist(),
                    "validation": choice.curve.tolist(),
                    "setting": [float(choice.setting)],
                    "best_step": [float(choice.step)],
                    "errors": choice.errors.tolist(),
                    "sizes": [float(s.subset_size(len(one.X), d) or 0) for s in settings],
                    **self._measured(one, predicted),
                },
                share,
                _scatter(one, predicted) if seed == cell.seeds[0] else {},
            )
            for seed, one, choice, predicted in zip(cell.seeds, rows, chosen, predictions, strict=True)
        ]

    def _refit(
        self, arm: Arm, cell: Cell, rows: list[Rows], settings: list[Setting], chosen: list[Choice], tell: Tell
    ) -> list[Array]:
        """Train the chosen setting on all training rows, and predict the test rows: the only time they are used."""
        d = self.X.shape[1]
        problems = [
            Problem(
                one.X,
                one.Y,
                seed=seed,
                budget=Steps(max(1, choice.step)),
                **settings[choice.setting].problem(arm, len(one.X), d),
            )
            for seed, one, choice in zip(cell.seeds, rows, chosen, strict=True)
        ]
        histories = fit_fleet(
            self._builder(arm),
            problems,
            budget=Steps(cell.budget.n),
            on_divergence="record",
            progress=_telling(tell, 0.9, 1.0),
        )
        found = []
        for one, history in zip(rows, histories, strict=True):
            assert history.model is not None
            with torch.no_grad():
                out = history.model(torch.tensor(one.X_test, dtype=torch.float32))
            out = out.softmax(-1) if _logits(arm) else out
            found.append(out.double().numpy())
        return found

    def _builder(self, arm: Arm) -> Callable[[int], torch.nn.Module]:
        d, outputs = self.X.shape[1], max(1, self.n_classes)
        softmax = self.task == "classification" and not _logits(arm)
        return lambda seed: build_network(d, HIDDEN, outputs, activation="relu", softmax=softmax, seed=seed)

    # What is no network

    def _classical(self, arm: Arm, cell: Cell, rows: list[Rows], tell: Tell) -> list[Run]:
        runs = []
        for number, (seed, one) in enumerate(zip(cell.seeds, rows, strict=True)):
            started = time.perf_counter()
            settings = classical_settings(arm, len(one.X))
            errors = []
            for at, setting in enumerate(settings):
                tell((number + at / len(settings)) / len(rows))
                if len(settings) == 1:
                    errors.append(0.0)
                    continue
                total = 0.0
                for train, held in one.folds:
                    predicted = self._fitted(arm, setting, seed, one, train, one.X[held])
                    total += float(((predicted - one.Y[held]) ** 2).mean(1).sum())
                errors.append(total)
            best = int(np.argmin(errors))
            predicted = self._fitted(arm, settings[best], seed, one, np.arange(len(one.X)), one.X_test)
            seconds = time.perf_counter() - started
            curve = {"setting": [float(best)], **self._measured(one, predicted)}
            runs.append(Run(seed, 0, curve, seconds, _scatter(one, predicted) if number == 0 else {}))
        return runs

    def _fitted(self, arm: Arm, setting: dict[str, Any], seed: int, one: Rows, train: Index, X: Array) -> Array:
        """Predictions [n, C] on X: scaled numbers, or probabilities of all classes."""
        model = classical_model(arm, self.task, setting, len(one.X), seed)
        if self.task == "regression":
            return np.asarray(model.fit(one.X[train], one.Y[train, 0]).predict(X))[:, None]
        labels = one.Y[train].argmax(1)
        found = np.zeros((len(X), self.n_classes))
        if len(np.unique(labels)) == 1:
            found[:, labels[0]] = 1.0
            return found
        model.fit(one.X[train], labels)
        found[:, model.classes_] = model.predict_proba(X)
        return found

    # What is measured

    def _measured(self, one: Rows, predicted: Array) -> dict[str, list[float]]:
        """Errors on the test rows, in the units of the table, and how many rows there are."""
        sizes = {"n_train": [float(len(one.X))], "n_test": [float(len(one.X_test))]}
        if self.task == "regression":
            gap = predicted[:, 0] * one.scaling.y_scale[0] + one.scaling.y_mean[0] - one.truth
            spread = float(np.mean((one.truth - one.truth.mean()) ** 2))
            mse = float(np.mean(gap**2))
            r2 = 1 - mse / spread if spread > 0 else float("nan")
            return {"rmse": [mse**0.5], "mae": [float(np.abs(gap).mean())], "r2": [r2], **sizes}
        hot = np.eye(self.n_classes)[one.truth]
        right = predicted[np.arange(len(hot)), one.truth]
        return {
            "accuracy": [float((predicted.argmax(1) == one.truth).mean())],
            "brier": [float(((predicted - hot) ** 2).sum(1).mean())],
            "log_loss": [float(-np.log(np.clip(right, 1e-7, 1.0)).mean())],
            **sizes,
        }


@dataclass(frozen=True)
class Choice:
    """A setting and a step, the validation error along the way, and the error of every setting at its best step."""

    setting: int
    step: int
    curve: Array
    errors: Array


def _choice(curves: Array, steps: Index) -> Choice:
    """The best setting and step by the mean over folds [settings, folds, points]; step 0 is not a choice."""
    mean = np.where(np.isnan(curves), np.inf, curves).mean(1)
    best = mean[:, 1:].argmin(1) + 1
    errors = mean[np.arange(len(mean)), best]
    setting = int(errors.argmin())
    return Choice(setting, int(steps[best[setting]]), mean[setting], errors)


def evaluation_steps(n_rows: int, total: int) -> int:
    """Steps between evaluations: whole iterations of the estimators, about 40 evaluations in all."""
    iteration = steps_per_iteration(n_rows, min(BATCH, n_rows))
    return iteration * max(1, round(total / iteration / EVALUATIONS))


def brier_of_logits(pred: Tensor, target: Tensor, features: Tensor) -> float:
    """Mean squared error of the probabilities: what arms with probabilities are chosen by, too."""
    return float((pred.softmax(-1) - target).square().mean())


def _logits(arm: Arm) -> bool:
    return arm.objective.startswith("cross_entropy")


def _scatter(one: Rows, predicted: Array) -> dict[str, NDArray[np.float32]]:
    """Predictions against truth, at most 500 points."""
    values = predicted[:500]
    if predicted.shape[1] == 1:
        values = values * one.scaling.y_scale + one.scaling.y_mean
    return {"predicted": values.astype(np.float32), "truth": one.truth[:500].astype(np.float32)}


def _telling(tell: Tell, low: float, high: float) -> Callable[[Progress], None]:
    def told(state: Progress) -> None:
        tell(low + (high - low) * state.step / max(1, state.total_steps))

    return told


def _nanmedian(X: Array) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a column without values in these rows
        median: Array = np.nanmedian(X, axis=0)
    return median
