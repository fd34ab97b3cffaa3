"""`compare`: what to use on this table, and does RLP help? Every contender on a user's own data.

Other models are trained first, networks after, those clearly behind only on the first splits.
"""

from __future__ import annotations

import math
import pickle
import tempfile
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from rlploss import _checks
from rlploss._progress import duration, say
from rlploss._values import LOADED
from rlploss.compare.answer import Comparison
from rlploss.compare.arms import BASELINES, DIAL, QUICK, EstimatorArm, arms_for
from rlploss.compare.design import Design, make_design
from rlploss.compare.metrics import choose_metric
from rlploss.compare.read import TableError, check_frame
from rlploss.compare.rows import FEWEST_ROWS, WINDOWS, check_rows, sample, sampled_said
from rlploss.compare.train import DECIDING, ComparisonCell, Trainer
from rlploss.estimators.dial import Dial, auto_subset_size
from rlploss.estimators.settings import MOST_ROWS_IN_A_SUBSET
from rlploss.estimators.table import frame_of
from rlploss.lab.executors import Team, Workers, cores, parse_workers
from rlploss.lab.run import check_there, execute, plan
from rlploss.lab.store import Store, code_version
from rlploss.lab.study import StoredCell
from rlploss.lab.text import LabError, sentence

MOST_SPLITS, MOST_SEED = 10_000, 2**62  # the store's numbers have 64 bits
FIRST = 3  # splits after which arms that are clearly behind are stopped
BEHIND, POINTS = 1.1, 0.03  # so much more error, or so much less accuracy, in every one of them
WORTH_PROCESSES = 22.0  # seconds of work for which processes are started
BEGINNING, ENDING = 3.0, 3.0  # seconds to start processes, and to write a report
TRAINING_SHARE = 0.7  # of a time limit
MIXUP_ROWS = 700  # from which arms with mixup are trained unasked


def compare(
    X: Any,
    y: Any = None,
    *,
    task: str = "auto",
    metric: str | None = None,
    arms: Sequence[str] | None = None,
    losses: Mapping[str, Any] | None = None,
    models: Mapping[str, Any] | None = None,
    time: str | None = None,
    group: str | None = None,
    n_splits: int | None = None,
    steps: int = 4000,
    max_rows: int = 10_000,
    quick: bool = False,
    time_limit: float | None = None,
    random_state: int = 0,
    workers: str = "auto",
    out: str | Path | None = None,
    progress: bool | Console = False,
    on_start: Callable[[], object] | None = None,
) -> Comparison:
    """Compare RLP with other losses and with what one would otherwise use, on rows X (n, d) and
    targets y (n,).

    An arm is an estimator of scikit-learn. Every arm sees the same splits, and chooses among its
    settings on validation parts of the training rows. Networks try the same number of settings, and
    go on while their best step is among the latest, to at most `steps` steps. The test rows are
    used once. Other models come first. With six splits or more, networks that are clearly behind
    end after three; RLP and the best network without it go on. An arm that cannot be trained is
    left out, with a note.

    Args:
        X: array or frame (pandas, polars); text, dates and missing values are fine. Or the `Design`
            of a table that has been read, without y.
        y: numbers or classes.
        task: `"regression"`, `"classification"`, or `"auto"`.
        metric: what decides: `"rmse"`, `"mae"` or `"r2"`; for classes `"accuracy"`, `"balanced"`,
            `"auc"`, `"log_loss"` or `"brier"`. By default the first, or AUC where a class is rare.
        arms: names to narrow it to, e.g. `["mse", "rlp", "boosting"]`.
        losses: your own, by name: a `Pointwise` or `BatchLoss` value, a function (pred, target) of
            rows, or a function (pred, target, features) of a batch. Each is an arm beside the
            others.
        models: your own estimators of scikit-learn, by name. Each is cloned and fitted on the
            columns as numbers, standardised, or on the frame itself as `Raw(estimator)`.
        time: a column of X: train on the past, test on the future, in five windows.
        group: a column of X: rows that share its value are all in training or all in test.
        n_splits: splits into training and test rows; 10, or 5 if it is to be quick.
        steps: the most optimiser steps of a network.
        max_rows: larger tables are sampled down to this, and the answer says so.
        quick: the arms that matter most, on fewer splits.
        time_limit: seconds after which no more is trained; the answer tells what was left out.
        random_state: seed of the first split; the others follow.
        workers: `"auto"`, `"inline"`, `"local:N"` processes or `"dask:tcp://HOST:PORT"`.
        out: a directory that keeps what is trained, and from which a stopped comparison goes on.
        progress: whether to show progress on stderr, or the console to show it on.
        on_start: called once all is checked, before anything is trained.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> found = compare(X, y, arms=["ridge", "mean"], n_splits=5)
    >>> found.summary().startswith("Use ridge regression: root mean squared error")
    True
    """
    design = (
        X
        if isinstance(X, Design)
        else make_design(*as_frame(X, y), task=task, time=time, group=group)
    )
    names = (arms,) if isinstance(arms, str) else arms
    started = clock.monotonic()
    first = _checks.count("random_state", random_state, minimum=0, maximum=MOST_SEED)
    if design.time is not None and n_splits not in (None, WINDOWS):
        raise ValueError(
            f"n_splits is for random splits, got {n_splits}; with time there are {WINDOWS} windows"
        )
    if n_splits is None:
        n_splits = 5 if quick else 10
    n_splits = _checks.count("n_splits", n_splits, minimum=2, maximum=MOST_SPLITS)
    seeds = (
        tuple(range(WINDOWS)) if design.time is not None else tuple(range(first, first + n_splits))
    )
    keep = sample(design, _checks.count("max_rows", max_rows, minimum=FEWEST_ROWS), first)
    limit = None if time_limit is None else _checks.number("time_limit", time_limit, 1.0)
    rows = Trainer.of(design, keep)
    check_rows(rows, seeds)
    steps = _checks.count("steps", steps)
    n_train = max(len(rows.split(seed)[0]) for seed in seeds)
    chosen = arms_for(
        rows.task,
        n_train,
        names=names,
        losses=losses,
        models=models,
        steps=steps,
        session=out is None,
    )
    team = None if workers == "auto" else parse_workers(workers)
    truths = [rows.y[rows.split(seed)[1]] for seed in seeds]
    chosen, left_out = of_quick(chosen, rows) if quick and names is None else (chosen, [])
    deciding, why = choose_metric(rows.task, metric, truths, design.target.classes)
    chosen, no_rlp, notes = of_use(chosen, rows, asked=names is not None)
    deadline = math.inf if limit is None else started + limit
    if stays_here(chosen):
        if workers not in ("auto", "inline"):
            raise ValueError(
                f'workers must be "inline" for losses of this session, got {workers!r}; leave'
                " it out"
            )
        team = parse_workers("inline")
    console = (
        progress if isinstance(progress, Console) else Console(stderr=True, quiet=not progress)
    )
    asked = Comparison(
        design,
        chosen,
        {},
        rows,
        steps,
        seeds,
        (*left_out, *notes),
        deadline=deadline,
        metric=deciding,
        why_metric=why,
        no_rlp=no_rlp,
    )
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "store" if out is None else Path(out)
        with Store(place, code_version=code_version(*DECIDING)) as store:
            store.refuse_others("compare")
            if on_start is not None:
                on_start()
            if len(keep) < len(design.frame):
                say(console, sampled_said(len(keep), len(design.frame)))
            say(console, dial_said(rows))
            return Run(asked, store, console).all(team, limit)


def as_frame(X: Any, y: Any) -> tuple[pd.DataFrame, str]:
    """Return X and y in one pandas frame, and the name of the target in it."""
    frame = frame_of(X)
    target = np.asarray(y) if not hasattr(y, "to_list") else np.asarray(y.to_list(), dtype=object)
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.ndim != 1 or len(target) != len(frame):
        raise TableError(
            f"y must have one value per row of X, got shape {target.shape} for {len(frame)} rows"
        )
    frame = check_frame(frame.reset_index(drop=True), "X")
    given = getattr(y, "name", None)
    name = "target" if given in (None, "") else str(given)
    while name in frame.columns:
        name += " (target)"
    frame[name] = pd.Series(list(target), dtype=object).infer_objects()
    return frame, name


# When arms are trained

Stage = tuple[Sequence[EstimatorArm], tuple[int, ...]]  # arms, and the splits that they train on


@dataclass
class Run:
    """A comparison in the making: what was asked for, where it is kept, and which arms have
    failed.
    """

    asked: Comparison  # all arms, without results
    store: Store
    console: Console
    failed: dict[str, str] = field(default_factory=dict)  # reasons by arm

    def all(self, workers: Workers | None, time_limit: float | None) -> Comparison:
        """Train what is not stored: other models, networks on the first splits, on the rest those
        not behind.
        """
        arms, seeds = self.asked.arms, self.asked.seeds
        cut = FIRST if len(seeds) >= 2 * FIRST else len(seeds)
        networks = [arm for arm in arms if arm.role in ("network", "rlp", "mixture")]
        models = [arm for arm in arms if arm not in networks]

        def rest() -> Stage:
            behind = clearly_behind(networks, self._read()) if seeds[cut:] else []
            return [arm for arm in networks if arm not in behind], seeds[cut:]

        stages: list[Stage] = [(models, seeds), (networks, seeds[:cut])]
        workers = self._workers(workers, [*stages, rest()])
        deadline = self.asked.deadline
        if time_limit is not None:  # the rest is for the model, its columns and the report
            deadline -= (1 - TRAINING_SHARE) * time_limit
        with workers.start(workers.count) as team:
            self._train(stages[0], workers, team, deadline)
            so_far = self._read()
            if networks and len(so_far.arms) > 1:
                say(self.console, f"So far, without networks: {so_far.lines()[0]}")
            self._train(stages[1], workers, team, deadline)
            stages.append(rest())
            self._train(stages[2], workers, team, deadline)
        check_there(self.store.directory)
        results, notes = self._read(), list(self.asked.notes)
        if behind := [arm.label for arm in networks if arm not in stages[2][0]]:
            notes.append(f"Ended after {FIRST} splits, clearly behind: {', '.join(behind)}.")
        if self.failed:
            reasons = [
                f"{arm.label} ({self.failed[arm.name]})" for arm in arms if arm.name in self.failed
            ]
            notes.append(f"Left out, because it could not be trained: {'; '.join(reasons)}.")
        limit = duration(time_limit or 0)
        if clock.monotonic() > deadline:
            missing = [
                arm.label for arm in arms if arm not in results.arms and arm.name not in self.failed
            ]
            left = (
                f"; not trained at all: {', '.join(missing)}"
                if missing
                else "; some arms have fewer splits"
            )
            notes.append(f"The time limit of {limit} ended the training{left}.")
        if len(results.arms) > 1:
            return replace(results, notes=tuple(notes))
        if self.failed:
            reason = next(iter(self.failed.values()))
            raise LabError(f"{len(self.failed)} of {len(arms)} arms could not be trained: {reason}")
        raise LabError(f"fewer than two arms were trained within {limit}; give more time")

    def _cells(self, stages: Sequence[Stage]) -> list[ComparisonCell]:
        """Return the cells of arms that have not failed: one for each arm and split."""
        rows, steps = self.asked.rows, self.asked.steps
        return [
            rows.cell(arm, seed, steps)
            for arms, seeds in stages
            for arm in arms
            if arm.name not in self.failed
            for seed in seeds
        ]

    def _read(self) -> Comparison:
        """Return the comparison of what is stored: of every arm the splits from the first on."""
        cells: dict[str, StoredCell] = {}
        for arm in self.asked.arms:
            stored = map(self.store.read, self._cells([([arm], self.asked.seeds)]))
            splits: list[StoredCell] = []
            for cell in stored:
                if cell is None:
                    break
                splits.append(cell)
            if splits:
                networks = tuple(split.networks[0] for split in splits)
                seconds = sum(split.seconds for split in splits)
                cells[arm.name] = StoredCell(networks, splits[0].provenance, seconds)
        there = tuple(arm for arm in self.asked.arms if arm.name in cells)
        with self.store.understood("what is stored of an arm"):  # whoever has written it
            results = replace(self.asked, arms=there, cells=cells)
            if len(there) > 1:
                results.lines()
        return results

    def _workers(self, workers: Workers | None, stages: Sequence[Stage]) -> Workers:
        """Say what will be done and how long it takes, and return who does it."""
        n_arms = len(self.asked.arms)
        todo = [cell for cell in self._cells(stages) if not self.store.has(cell)]
        work = sum(map(self.asked.rows.expected_seconds, todo))
        stored = n_arms - len({cell.arm.name for cell in todo})
        many = work >= WORTH_PROCESSES and cores() > 1
        workers = workers or parse_workers("local" if many else "inline")
        begin = 0.0 if workers.kind == "inline" else BEGINNING
        left = ENDING + begin + work / workers.count
        kept = f", {stored} trained already" if stored else ""
        on = f"on {workers.count} core{'s' * (workers.count > 1)}"
        about = f": about {duration(left)} {on}" if todo else ""
        say(self.console, f"{n_arms} arms × {len(self.asked.seeds)} splits{kept}{about}.")
        return workers

    def _train(self, stage: Stage, workers: Workers, team: Team, deadline: float) -> None:
        """Train arms unless they are stored; one that fails is left out from there on."""
        if clock.monotonic() >= deadline:
            return
        cells, rows = self._cells([stage]), self.asked.rows
        todo = plan(cells, self.store, cost=rows.expected_seconds, workers=workers)
        done = execute(
            todo,
            self.store,
            train=rows,
            workers=workers,
            console=self.console,
            deadline=deadline,
            team=team,
        )
        reasons = {
            cell.arm.name: done.failed[cell.hash] for cell in cells if cell.hash in done.failed
        }
        self.failed |= {name: sentence(reason, 300) for name, reason in reasons.items()}


def clearly_behind(networks: Sequence[EstimatorArm], results: Comparison) -> list[EstimatorArm]:
    """Return networks that were clearly behind the best arm in each of the first splits.

    RLP, and the best network without it, go on: how they stand to each other is a question of its
    own.
    """
    lower = results.results.metric.lower_is_better
    errors = {
        arm.name: (1 if lower else -1) * results.values(arm.name)[:FIRST] for arm in results.arms
    }
    errors = {name: values for name, values in errors.items() if len(values) == FIRST}
    order = sorted(errors, key=lambda name: float(errors[name].mean()))  # the best first
    plain = [arm.name for arm in networks if arm.role == "network"]
    going = {"rlp", *[name for name in order if name in plain][:1]}
    most = [BEHIND * errors[name] if lower else errors[name] + POINTS for name in order[:1]]
    return [
        arm
        for arm in networks
        if arm.name in errors and arm.name not in going and (errors[arm.name] > most).all()
    ]


def stays_here(arms: Sequence[EstimatorArm]) -> bool:
    """Whether an arm cannot be sent to another process: a lambda, what the main script defines, or
    a model whose class is in a file of the reader's.
    """
    try:
        sent = [(pickle.dumps(arm.estimator), arm.role) for arm in arms]
    except (pickle.PicklingError, AttributeError, TypeError):
        return True
    return any(
        b"__main__" in data or (role == "model" and LOADED.encode() in data) for data, role in sent
    )


# The rows before anything is trained


def of_quick(
    arms: tuple[EstimatorArm, ...], rows: Trainer
) -> tuple[tuple[EstimatorArm, ...], list[str]]:
    """Return the arms that `quick` keeps, and which it leaves out; elastic net stays where there
    are as many columns as training rows.
    """
    wide = ("lasso",) if rows.X.shape[1] >= rows.fewest() else ()
    names = (*QUICK[rows.task], *wide)
    own = {arm.name for arm in arms} - {arm.name for arm in arms_for(rows.task)}
    kept = tuple(arm for arm in arms if arm.name in own or arm.name in names)
    gone = ", ".join(arm.label for arm in arms if arm not in kept)
    return kept, [f"Left out by --quick: {gone}."]


def of_use(
    chosen: tuple[EstimatorArm, ...], rows: Trainer, *, asked: bool
) -> tuple[tuple[EstimatorArm, ...], str, list[str]]:
    """Return the arms that are of use on these rows, why RLP is not one of them, and why others are
    not.

    RLP is MSE where a fold has no more rows than the planes have columns. Mixup, unless it is asked
    for, is left out on few rows: every step draws anew, which takes ten times as long.
    """
    smallest, p, no_rlp, notes = rows.fewest(), rows.X.shape[1] + 1, "", []
    rlp = [arm for arm in chosen if arm.role in ("rlp", "mixture")]
    if rlp and smallest <= p:
        none = f"leave no subset of {smallest} training rows with more rows than columns"
        labels = ", ".join(arm.label for arm in rlp)
        no_rlp = f"RLP is MSE here: {p} columns with the intercept {none}. {labels} not trained."
        chosen = tuple(arm for arm in chosen if arm not in rlp)
        wanted = {"mse", *BASELINES} if len(chosen) < 2 else set()
        there = {arm.name for arm in chosen}
        known = arms_for(rows.task, smallest, steps=0)
        chosen += tuple(arm for arm in known if arm.name in wanted - there)
    mixed = [arm for arm in chosen if arm.mixes_rows]
    if mixed and not asked and len(rows.X) < MIXUP_ROWS:
        labels = ", ".join(arm.label for arm in mixed)
        notes.append(
            f"Left out on fewer than {MIXUP_ROWS} rows, where they take long: {labels}; --arms asks"
            " for them."
        )
        chosen = tuple(arm for arm in chosen if arm not in mixed)
    return chosen, no_rlp, notes


def dial_said(rows: Trainer) -> str:
    """Return where RLP's dial may stand on this table, and why."""
    n, d = rows.fewest(), rows.X.shape[1]
    if n <= d + 1:
        none = "leave RLP no subset with more rows than columns: it is MSE"
        return f"The dial: {d} columns and {n} rows to choose settings on {none}."
    most = min(n, MOST_ROWS_IN_A_SUBSET)
    places = {Dial.of("dial", place).subset_size(most, d + 1) for place in DIAL}
    sizes = sorted(size for size in places if size > d + 1)
    Y = np.eye(rows.n_classes)[rows.y] if rows.n_classes else rows.y
    auto = auto_subset_size(rows.X, Y)
    curved = "MSE, because a curved fit is much better than a plane: what is not linear is no noise"
    ends = (
        f"subsets of {d + 1} rows or fewer (columns and intercept) are MSE, all rows are linear"
        " regression"
    )
    tried = (
        f"tried are MSE and {', '.join(f'{size:,}' for size in sizes)} rows, where settings are"
        f" chosen on {n:,}"
    )
    rule = f'subset_size="auto" of the estimators is {f"{auto} rows" if auto else curved}'
    return f"The dial: {ends}; {tried}. {rule}."
