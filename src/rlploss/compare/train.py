"""Train one contender: the same splits for all, selection inside the training rows, the test rows
once.

For every seed the rows are split into training and test rows. On validation parts of the training
rows a contender chooses among its settings, and, if it is a network, its stopping step; then it is
trained once more on all training rows, and its predictions on the test rows are measured.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from threadpoolctl import threadpool_limits
from torch import nn

from rlploss._progress import Progress
from rlploss._scaling import Array
from rlploss._torch import one_torch_thread
from rlploss.compare.arms import (
    BASELINES,
    GP_ROWS,
    HIDDEN,
    LARGE,
    N_SETTINGS,
    STAGES,
    Contender,
    Setting,
    tuned,
)
from rlploss.compare.rows import TEST_SHARE, VALIDATION_SHARE, Rows, SplitData, n_folds
from rlploss.estimators.search import BATCH, Replica, choose, train_further
from rlploss.lab.store import TRAINING
from rlploss.lab.study import Cell, CellResult, Part, Tell, TrainedNetwork
from rlploss.models import build_network
from rlploss.training.evaluation import History
from rlploss.training.fit import train
from rlploss.training.job import Problem, Steps, make_job
from rlploss.training.loop import DivergenceError, Supervision
from rlploss.training.objectives import BatchLoss

DECIDING = (
    *(*TRAINING, "estimators/*.py"),
    *("compare/arms.py", "compare/metrics.py", "compare/rows.py", "compare/train.py"),
)  # files that decide a number
EVERY, EVALUATIONS = (
    30,
    8,
)  # steps between evaluations in the first heat, and how many it has; others have half
LAST_PART, TOLERANCE = (
    0.8,
    3e-3,
)  # a best step beyond this part asks for more; what is 0.3 % better is better
VALIDATION_TREES, TREES = (
    12,
    100,
)  # of extra trees while settings are chosen, which ranks them as well, and then


@dataclass(frozen=True)
class Table(Part):
    """The rows that a cell is trained on."""

    name: str
    digest: str


ComparisonCell = Cell[Contender, Table]


class Trainer(Rows):
    """Trains cells of a comparison on one table; small enough to be sent to another process."""

    def __call__(self, cell: ComparisonCell, tell: Tell) -> CellResult:
        """Train one contender with all its seeds, and return what it reached."""
        started = time.perf_counter()
        data = [self.data(seed) for seed in cell.seeds]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            engine, networks = (self._models if cell.arm.model else self._networks)(
                cell, data, tell
            )
        notes = tuple(dict.fromkeys(" ".join(str(w.message).split())[:300] for w in told))
        seconds = time.perf_counter() - started
        return CellResult(tuple(networks), engine, torch.get_num_threads(), seconds, notes)

    def cell(self, arm: Contender, seeds: tuple[int, ...], steps: int) -> ComparisonCell:
        """Return the cell of one contender."""
        return Cell(
            arm,
            Table("the table", self.digest),
            Steps(steps),
            seeds,
            evaluate_every=max(1, min(EVERY, steps // EVALUATIONS)),
        )

    # Networks

    def _networks(
        self, cell: ComparisonCell, data: list[SplitData], tell: Tell
    ) -> tuple[str, list[TrainedNetwork]]:
        started = time.perf_counter()
        tries = self.settings(cell.arm)
        with one_torch_thread():
            splits = [self._runners(cell, one, tries) for one in data]
        plan = heats(cell)
        race(splits, plan, lambda done: tell(0.9 * done))
        steps = np.concatenate(plan)
        choices = [
            choose(
                np.array([[runner.carried(len(steps)) for runner in runners] for runners in split]),
                one.fold_sizes,
            )
            for one, split in zip(data, splits, strict=True)
        ]
        for one, choice in zip(data, choices, strict=True):
            if not np.isfinite(choice.errors[choice.setting]):
                raise DivergenceError(
                    f"with every setting the loss became infinite or NaN in split {one.seed}"
                )
        # The chosen setting on all training rows, and the test rows, which are used here only.
        chosen = [
            (tries[choice.setting], int(steps[choice.evaluations[choice.setting]]))
            for choice in choices
        ]
        refits = [
            (
                network_problem(setting, one.X, one.scale(setting.log).matrix(one.y), one.seed),
                Steps(stop),
            )
            for one, (setting, stop) in zip(data, chosen, strict=True)
        ]
        histories = self.fit(cell.arm, refits, lambda done: tell(0.9 + 0.1 * done))
        seconds = (time.perf_counter() - started) / len(data)
        networks = []
        for one, choice, (setting, stop), history in zip(
            data, choices, chosen, histories, strict=True
        ):
            assert history.model is not None
            with torch.no_grad():
                out = history.model(torch.tensor(one.X_test, dtype=torch.float32)).double().numpy()
            predicted = one.scale(setting.log).original(out, logits=cell.arm.gives_logits)
            sizes = [tried.subset_size(*one.X.shape) or 0 for tried in tries]  # 0 is MSE
            values = {
                "setting": float(choice.setting),
                "best_step": float(stop),
                "subset_size": float(sizes[choice.setting]),
                "log": float(setting.log),
                "late": float(stop > LAST_PART * cell.budget.n),  # it might have gone on
                **one.measures(predicted),
            }
            curve = {"step": steps.tolist(), "validation": choice.curves[choice.setting].tolist()}
            kept = {
                "errors": choice.errors.astype(np.float32),
                "sizes": np.array(sizes, dtype=np.float32),
            }
            kept |= one.kept(predicted)
            networks.append(TrainedNetwork(one.seed, 0, curve, seconds, values, kept))
        return str(histories[0].settings.get("engine", "torch")), networks

    def settings(self, arm: Contender) -> list[Setting]:
        """Return what a network tries: its settings, and again for the logarithm of a skewed
        target.
        """
        return [replace(setting, log=log) for log in self.logs for setting in arm.settings]

    def _runners(
        self, cell: ComparisonCell, one: SplitData, tries: Sequence[Setting]
    ) -> list[list[Runner]]:
        """Return the networks of every try, one for each fold; tries that come to the same share
        theirs.
        """
        made: dict[str, list[Runner]] = {}
        found = []
        scales = {log: one.scale(log) for log in self.logs}
        targets = {log: scale.matrix(one.y) for log, scale in scales.items()}
        for setting in tries:
            Y = targets[setting.log]
            problems = [
                network_problem(setting, one.X[train], Y[train], one.seed) for train, _ in one.folds
            ]
            same = repr(
                (setting.log, setting.optimizer, [problem.objective for problem in problems])
            )
            if same not in made:
                made[same] = [
                    Runner(
                        job=make_job(self._build(cell.arm, one.seed), problem),
                        rows=one.X[validation].astype(np.float32),
                        measure=one.error(validation, scales[setting.log], logits=True),
                    )
                    for problem, (_, validation) in zip(problems, one.folds, strict=True)
                ]
            found.append(made[same])
        return found

    def _build(self, arm: Contender, seed: int) -> nn.Sequential:
        softmax = self.task == "classification" and not arm.gives_logits
        outputs = max(1, self.n_classes)
        return build_network(
            self.X.shape[1], HIDDEN, outputs, activation="relu", softmax=softmax, seed=seed
        )

    def fit(
        self, arm: Contender, problems: list[tuple[Problem, Steps]], tell: Callable[[float], None]
    ) -> list[History]:
        """Train networks on scaled rows, each with its own budget; one that diverges is an
        error.
        """
        return [
            loop.history
            for loop in train(
                [
                    (
                        make_job(self._build(arm, problem.seed), problem),
                        Supervision(budget, evaluate_every=budget),
                    )
                    for problem, budget in problems
                ],
                progress=lambda state: tell(state.step / max(1, state.total_steps)),
                fleet=True,
            )
        ]

    # Models of scikit-learn

    def _models(
        self, cell: ComparisonCell, data: list[SplitData], tell: Tell
    ) -> tuple[str, list[TrainedNetwork]]:
        # For so few rows more threads wait for each other; networks of an estimator have threads of
        # their own.
        networks = []
        with threadpool_limits(None if cell.arm.model.endswith("-cv") else 1):
            for one in data:
                networks.append(self._model(cell.arm, one))
                tell(len(networks) / len(data))
        return "none", networks

    def _model(self, arm: Contender, one: SplitData) -> TrainedNetwork:
        """Return what a model of scikit-learn reaches on one split: its setting by the folds, then
        the test rows.
        """
        started = time.perf_counter()
        tries = self.tries(arm, len(one.X), one.seed)
        stages = STAGES if arm.model == "boosting" else ()
        errors = np.zeros((len(tries), len(one.folds), len(stages) or 1))
        for at, (model, log) in enumerate(tries if errors[:, 0].size > 1 else ()):
            scale = one.scale(log)
            y = scale.scaled(one.y)
            tried = with_trees(model, STAGES[-1] if stages else VALIDATION_TREES)
            for fold, (inside, validation) in enumerate(one.folds):
                fitted = fit_model(tried, one.X[inside], y[inside])
                found = outputs(fitted, one.X[validation], self.n_classes, stages)
                errors[at, fold] = list(map(one.error(validation, scale), found))
        choice = choose(errors, one.fold_sizes)
        model, log = tries[choice.setting]
        trees = stages[choice.evaluations[choice.setting]] if stages else TREES
        scale = one.scale(log)
        fitted = fit_model(with_trees(model, trees), one.X, scale.scaled(one.y))
        predicted = scale.original(outputs(fitted, one.X_test, self.n_classes)[0])
        values = {
            "setting": float(choice.setting),
            "best_step": float(trees),
            "log": float(log),
            "late": 0.0,
        }
        kept = one.kept(predicted)
        seconds = time.perf_counter() - started
        return TrainedNetwork(one.seed, 0, {}, seconds, values | one.measures(predicted), kept)

    def tries(self, arm: Contender, n_rows: int, seed: int) -> list[tuple[Any, bool]]:
        """Return the models that an arm tries, each with whether it predicts logarithms."""
        logs = (False,) if arm.model in BASELINES else self.logs
        return [(model, log) for log in logs for model in tuned(arm.model, self.task, n_rows, seed)]

    def expected_seconds(self, cell: ComparisonCell) -> float:
        """Return a rough cost on one core, for the time left; stored cells correct it."""
        n, d, arm = len(self.X), int(self.X.shape[1]), cell.arm
        n_train = round((1 - TEST_SHARE) * n)
        folds, logs, splits = n_folds(n_train), len(self.logs), len(cell.seeds)
        if arm.model in BASELINES:
            return 0.1
        if arm.model in ("ridge", "logistic", "lasso"):
            return 0.1 + splits * logs * N_SETTINGS * folds * (7e-4 + 3e-8 * n_train * d)
        if arm.model == "gp":
            return (
                splits
                * logs
                * (folds if logs > 1 else 1)
                * (0.015 + 2e-6 * min(n_train, GP_ROWS[0]) ** 2)
            )
        if arm.model == "rlp-cv":
            return splits * (0.2 + 2e-4 * n_train) * (1 if logs == 1 else 2 * folds + 1)
        if arm.model == "trees":
            return (
                splits
                * (0.05 + 1e-5 * n_train * d)
                * (1 + 3 * logs * folds * VALIDATION_TREES / TREES)
            )
        if arm.model == "boosting":
            one, tried = (
                (0.045 + 6e-7 * n_train * d, 4)
                if n_train > LARGE
                else (0.03 + 1.3e-5 * n_train * d, 2)
            )
            return splits * one * (1 + tried * logs * folds)
        taken = min(cell.budget.n, 300 + min(n_train, 1000) / 2)
        if isinstance(arm.objective, BatchLoss):  # no compiled loss
            taken *= 20.0
        rows = min(BATCH, n_train * (1 - 1 / folds if folds > 1 else 1 - VALIDATION_SHARE))
        one = 2e-3 + taken * (2e-6 + 3e-9 * rows * (d + 8))
        one *= (1.5 if arm.is_rlp else 1.0) * (2.0 if arm.own == "shape" else 1.0)
        return splits * (N_SETTINGS * folds * logs + 1) * one


@dataclass(eq=False, kw_only=True)
class Runner(Replica):
    """A network in a race: its validation rows [n, d], what measures outputs there, and its errors
    so far.
    """

    rows: NDArray[np.float32]
    measure: Callable[[Array], float]
    errors: list[float] = field(default_factory=list)  # at every evaluation

    def measured(self) -> None:
        """Measure the outputs on the validation rows at all evaluations since the last time."""
        if self.kept:
            self.errors += [self.measure(out) for out in self.outputs(self.rows, self.kept)]
            self.kept.clear()

    def carried(self, n: int) -> list[float]:
        """Return n errors: a network that has ended keeps its last; one that diverged has none from
        there on.
        """
        return self.errors + (self.errors[-1:] or [math.nan]) * (n - len(self.errors))


def heats(cell: ComparisonCell) -> list[NDArray[np.int64]]:
    """Return the steps at which networks are measured, heat by heat: each takes as many steps as
    all before it.
    """
    total = cell.budget.n
    found = []
    begin, end = 0, min(total, EVALUATIONS * cell.evaluate_every)
    while begin < total:
        every = -(-(end - begin) // (EVALUATIONS // 2 if begin else EVALUATIONS))
        found.append(np.minimum(np.arange(begin + every, end + every, every), end))
        begin, end = end, min(total, 2 * end)
    return found


def race(
    splits: Sequence[Sequence[Sequence[Runner]]], plan: Sequence[NDArray[np.int64]], tell: Tell
) -> None:
    """Train the networks [split][setting][fold] in heats, until no setting is worth another."""
    begin = n = 0  # steps and evaluations so far
    last = int(plan[-1][-1])
    going = [list({id(folds): folds for folds in split}.values()) for split in splits]
    for heat, steps in enumerate(plan):
        runners = [runner for split in going for folds in split for runner in folds]
        if not runners:
            return

        def progress(state: Progress, heat: int = heat) -> None:
            tell((heat + state.step / max(1, state.total_steps)) / len(plan))

        train_further(runners, int(steps[-1]) - begin, int(steps[0]) - begin, progress=progress)
        n += len(steps)
        for runner in runners:
            runner.measured()
            runner.errors += [math.nan] * (n - len(runner.errors))  # it diverged
        begin = int(steps[-1])
        seen = np.concatenate(plan[: heat + 1])
        going = [worth_another(split, seen, last) if split else [] for split in going]


def worth_another(
    split: Sequence[Sequence[Runner]], steps: NDArray[np.int64], last: int
) -> list[Sequence[Runner]]:
    """Return the settings [fold] of a split that go on: those whose best step lies in the last
    fifth of the steps.

    One ends too if, with all the steps there are, it would not come to the best of the others even
    if every doubling of its steps were to gain as much as the latest has.
    """
    curves = np.array([np.mean([runner.errors for runner in folds], axis=0) for folds in split])
    curves = np.where(np.isnan(curves), np.inf, curves)
    now = curves.min(axis=1)
    before = curves[:, steps <= steps[-1] / 2].min(axis=1, initial=np.inf)
    kept = []
    for folds, curve, error, earlier in zip(split, curves, now, before, strict=True):
        best = steps[int(np.argmax(curve <= (1 + TOLERANCE) * error))]
        doublings = math.log2(last / steps[-1])
        if (
            math.isfinite(error)
            and best > LAST_PART * steps[-1]
            and error - doublings * (earlier - error) <= now.min()
        ):
            kept.append(folds)
    return kept


# One network, one model


def network_problem(setting: Setting, X: Array, Y: Array, seed: int) -> Problem:
    """Return one network to train on scaled rows."""
    objective = setting.objective_for(*X.shape)
    return Problem(X, Y, seed=seed, objective=objective, optimizer=setting.optimizer)


def with_trees(model: Any, n: int) -> Any:
    """Return a model of trees with so many of them, and any other as it is."""
    name = type(model).__name__
    if not name.startswith(("ExtraTrees", "GradientBoosting", "HistGradientBoosting")):
        return model
    return model.set_params(**{"max_iter" if name.startswith("Hist") else "n_estimators": n})


def _few_steps(objective: Any, start: Array, bounds: Any) -> tuple[Array, float]:
    """Fit the hyperparameters of a Gaussian process in few steps: the last ones change no
    prediction.
    """
    found = optimize.minimize(
        objective, start, method="L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": 12}
    )
    return found.x, float(found.fun)


def fit_model(model: Any, X: Array, y: NDArray[Any]) -> Any:
    """Return the fitted model. A Gaussian process takes hyperparameters from few rows and
    predictions from some.
    """
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


def outputs(fitted: Any, X: Array, n_classes: int, stages: Sequence[int] = ()) -> list[Array]:
    """Return predictions [n, C], of boosting for each of these numbers of trees: numbers, or
    chances of all classes.
    """
    name = "predict_proba" if n_classes else "predict"
    if stages and hasattr(fitted, f"staged_{name}"):
        found = [
            out
            for n, out in enumerate(getattr(fitted, f"staged_{name}")(X), start=1)
            if n in stages
        ]
    else:
        found = [getattr(fitted, name)(X)] * (len(stages) or 1)
    shaped = np.zeros((len(found), len(X), n_classes or 1))
    shaped[:, :, fitted.classes_ if n_classes else [0]] = np.reshape(
        found, (len(found), len(X), -1)
    )
    return list(shaped)
