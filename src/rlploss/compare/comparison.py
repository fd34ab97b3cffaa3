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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console

from rlploss import _checks
from rlploss._progress import duration, say
from rlploss.compare.answer import Comparison
from rlploss.compare.arms import BASELINES, FEWEST_TRAINING_ROWS, QUICK, Contender, contenders_for
from rlploss.compare.columns import frame_of
from rlploss.compare.design import Design, make_design
from rlploss.compare.read import TableError, check_frame
from rlploss.compare.rows import MEASURES, WINDOWS, filled, medians
from rlploss.compare.train import Trainer
from rlploss.estimators.search import Index, auto_subset_size
from rlploss.lab.run import execute, plan
from rlploss.lab.store import Store, code_version
from rlploss.lab.study import StoredCell
from rlploss.lab.text import LabError, sentence
from rlploss.lab.workers import Inline, LocalProcesses, Workers, parse_workers

ROOT = "rlploss.compare.train"  # the code whose changes make stored rows foreign
MOST_SPLITS, MOST_SEED = 10_000, 2**62  # the store's numbers have 64 bits
FEWEST_ROWS, FEWEST_OF_A_CLASS, FEWEST_TEST_ROWS = 24, 8, 5
FIRST = 3  # splits after which arms that are clearly behind are stopped
BEHIND, POINTS = 1.1, 0.03  # so much more error, or so much less accuracy, in every one of them
WORTH_PROCESSES, WORTH_A_PAIR = 90.0, 12.0  # seconds of work for which processes are started
BEGINNING, ENDING = 2.0, 4.0  # seconds to start processes, and to write a report
INLINE = 0.8  # seconds on the wall for one of a core: one process keeps a second core half busy
MIXUP_ROWS = 700  # from which arms with mixup are trained unasked

Cells = dict[str, StoredCell]  # by contender


def compare(
    X: Any,
    y: Any = None,
    *,
    task: str = "auto",
    arms: Sequence[str] | None = None,
    losses: Mapping[str, Any] | None = None,
    time: str | None = None,
    group: str | None = None,
    n_splits: int | None = None,
    steps: int = 4000,
    max_rows: int = 10_000,
    quick: bool = False,
    time_limit: float | None = None,
    random_state: int = 0,
    workers: str | Workers = "auto",
    out: str | Path | None = None,
    progress: bool | Console = False,
    on_start: Callable[[], object] | None = None,
) -> Comparison:
    """Compare RLP with other losses and with what one would otherwise use, on rows X (n, d) and targets y (n,).

    Every arm sees the same splits and chooses among its settings on validation parts of the training rows. Networks try
    the same number of settings, and go on while their best step is among the latest, to at most `steps` steps. The
    test rows are used once. Other models come first. With six splits or more, networks that are clearly behind end
    after three; RLP and the best network without it go on. An arm that cannot be trained is left out, with a note.

    Args:
        X: array or frame (pandas, polars); text, dates and missing values are fine. Or the `Design` of a table that
            has been read, without y.
        y: numbers or classes.
        task: `"regression"`, `"classification"`, or `"auto"`.
        arms: names to narrow it to, e.g. `["mse", "rlp", "boosting"]`.
        losses: your own, by name: a `Pointwise` or `BatchLoss` value, a function (pred, target) of rows, or a function
            (pred, target, features) of a batch. Each is an arm beside the others.
        time: a column of X: train on the past, test on the future, in five windows.
        group: a column of X: rows that share its value are all in training or all in test.
        n_splits: splits into training and test rows; 10, or 5 if it is to be quick.
        steps: the most optimiser steps of a network.
        max_rows: larger tables are sampled down to this, and the answer says so.
        quick: the arms that matter most, on fewer splits.
        time_limit: seconds after which no more is trained; the answer tells what was left out.
        random_state: seed of the first split; the others follow.
        workers: `"auto"`, `"inline"`, `"local:N"` processes, `"dask:tcp://HOST:PORT"`, or anything with a `run` method.
        out: a directory that keeps what is trained, and from which a stopped comparison goes on.
        progress: whether to show progress on stderr, or the console to show it on.
        on_start: called once all is checked, before anything is trained.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
        >>> found = compare(X, y, arms=["ridge", "mean"], n_splits=5)
        >>> found.summary().startswith("Use ridge regression: root mean squared error")
        True
    """
    design = X if isinstance(X, Design) else make_design(*as_frame(X, y), task=task, time=time, group=group)
    target = design.target
    names = QUICK[target.task] if quick and arms is None else (arms,) if isinstance(arms, str) else arms
    chosen = contenders_for(target.task, names, losses, session=out is None)
    first = _checks.count("random_state", random_state, minimum=0, maximum=MOST_SEED)
    if n_splits is None:
        n_splits = 5 if quick else 10
    n_splits = _checks.count("n_splits", n_splits, minimum=2, maximum=MOST_SPLITS)
    seeds = tuple(range(WINDOWS)) if design.time is not None else tuple(range(first, first + n_splits))
    keep = sample(design, _checks.count("max_rows", max_rows, minimum=FEWEST_ROWS), first)
    limit = None if time_limit is None else _checks.number("time_limit", time_limit, 1.0)
    rows = Trainer.of(design, keep)
    check_rows(rows, seeds)
    steps = _checks.count("steps", steps)
    team = parse_workers(workers) if isinstance(workers, str) and workers != "auto" else workers
    chosen, notes = of_use(chosen, rows, asked=names is not None)
    may_stay = workers in ("auto", "inline") or (isinstance(workers, LocalProcesses) and workers.here)
    if stays_here(chosen) and not may_stay:
        raise ValueError(f'workers must be "inline" for losses of this session, got {workers!r}; leave it out')
    console = progress if isinstance(progress, Console) else Console(stderr=True, quiet=not progress)

    def found(cells: Cells) -> Comparison | None:
        there = tuple(one for one in chosen if one.name in cells)
        return Comparison(design, there, cells, rows, steps, seeds, tuple(notes)) if len(there) > 1 else None

    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "store" if out is None else Path(out)
        with Store(place, code_version=code_version(ROOT)) as store:
            store.refuse_others("compare")
            if on_start is not None:
                on_start()
            if len(keep) < len(design.X):
                say(console, sampled_said(len(keep), len(design.X)))
            say(console, dial_said(rows))
            run = Run(rows, chosen, seeds, steps, store, team, console, limit)
            notes += run.all(found)
    made = found(run.cells)
    if made is None and run.failed:
        reason = next(iter(run.failed.values()))
        raise LabError(f"{len(run.failed)} of {len(chosen)} arms could not be trained: {reason}")
    if made is None:
        raise LabError(f"fewer than two arms were trained within {duration(limit or 0)}; give more time")
    return made


def as_frame(X: Any, y: Any) -> tuple[pd.DataFrame, str]:
    """Return X and y in one pandas frame, and the name of the target in it."""
    frame = frame_of(X)
    target = np.asarray(y) if not hasattr(y, "to_list") else np.asarray(y.to_list(), dtype=object)
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.ndim != 1 or len(target) != len(frame):
        raise TableError(f"y must have one value per row of X, got shape {target.shape} for {len(frame)} rows")
    frame = check_frame(frame.reset_index(drop=True), "X")
    given = getattr(y, "name", None)
    name = "target" if given in (None, "") else str(given)
    while name in frame.columns:
        name += " (target)"
    frame[name] = pd.Series(list(target), dtype=object).infer_objects()
    return frame, name


# When arms are trained


@dataclass
class Run:
    """The arms of one comparison, where and for how long they are trained, and what they have come to."""

    rows: Trainer
    contenders: tuple[Contender, ...]
    seeds: tuple[int, ...]
    steps: int
    store: Store
    workers: str | Workers  # "auto" decides by how much there is to do
    console: Console
    time_limit: float | None
    cells: Cells = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # reasons by contender

    def all(self, found: Callable[[Cells], Comparison | None]) -> list[str]:
        """Train what is not stored, and return sentences on what was left out; `found` makes the answer so far."""
        models = [one for one in self.contenders if one.model and one.model != "rlp-cv"]
        networks = [one for one in self.contenders if one not in models]
        first = self.seeds[:FIRST] if len(self.seeds) >= 2 * FIRST else self.seeds
        rest = self.seeds[len(first) :]
        self._read(models, self.seeds)
        self._read(networks, first)
        going = [one for one in networks if one not in self._behind(networks)] if rest else []
        team = self._team([(models, self.seeds), (networks, first), (going, rest)])
        deadline = math.inf if self.time_limit is None else clock.monotonic() + self.time_limit
        train = partial(self._train, team, deadline)
        train(models, self.seeds)
        if networks and (provisional := found(self.cells)) is not None:
            say(self.console, f"So far, without networks: {provisional.lines()[0]}")
        train(networks, first)
        notes = []
        if rest:
            behind = self._behind(networks)
            train([one for one in networks if one not in behind], rest)
            if behind:
                labels = ", ".join(one.label for one in behind)
                notes.append(f"Ended after {FIRST} splits, clearly behind: {labels}.")
        if self.failed:
            reasons = [f"{one.label} ({self.failed[one.name]})" for one in self.contenders if one.name in self.failed]
            notes.append(f"Left out, because it could not be trained: {'; '.join(reasons)}.")
        if clock.monotonic() > deadline:
            there = {*self.cells, *self.failed}
            missing = [one.label for one in self.contenders if one.name not in there]
            left = f"; not trained at all: {', '.join(missing)}" if missing else "; some arms have fewer splits"
            notes.append(f"The time limit of {duration(self.time_limit or 0)} ended the training{left}.")
        return notes

    def _team(self, parts: Sequence[tuple[Sequence[Contender], tuple[int, ...]]]) -> Workers:
        """Say what will be done and how long it takes, and return who does it; `parts` are arms and their splits."""
        cells = [self.rows.cell(one, seeds, self.steps) for arms, seeds in parts for one in arms]
        todo = [cell for cell in cells if not self.store.has(cell)]
        work = sum(map(self.rows.expected_seconds, todo))
        stored = len(self.contenders) - len({cell.arm.name for cell in todo})
        stays = stays_here(self.contenders)
        cores = torch.get_num_threads()
        team = self.workers
        if isinstance(team, str):
            team = parse_workers("inline" if work < WORTH_PROCESSES or stays else "local")
        elif isinstance(team, LocalProcesses) and team.here and (work < WORTH_A_PAIR or stays or cores < 2):
            team = Inline()
        threads = cores if isinstance(team, Inline) else team.count
        left = ENDING + (work * INLINE if isinstance(team, Inline) else BEGINNING + work / threads)
        kept = f", {stored} trained already" if stored else ""
        on = "1 core" if threads == 1 else f"{threads} cores"
        about = f": about {duration(left)} on {on}" if todo else ""
        say(self.console, f"{len(self.contenders)} arms × {len(self.seeds)} splits{kept}{about}.")
        return team

    def _train(self, team: Workers, deadline: float, arms: Sequence[Contender], seeds: tuple[int, ...]) -> None:
        """Train arms on these splits unless they are stored; one that fails is left out from there on."""
        made = [self.rows.cell(one, seeds, self.steps) for one in arms if one.name not in self.failed]
        if clock.monotonic() < deadline:
            todo = plan(made, self.store, cost=self.rows.expected_seconds, workers=team)
            done = execute(todo, self.store, train=self.rows, workers=team, console=self.console, deadline=deadline)
            for cell in made:
                if cell.hash in done.failed:
                    self.failed[cell.arm.name] = sentence(done.failed[cell.hash], 300)
                    self.cells.pop(cell.arm.name, None)
        self._read([one for one in arms if one.name not in self.failed], seeds)

    def _read(self, arms: Sequence[Contender], seeds: tuple[int, ...]) -> None:
        """Add what is stored of arms on these splits to what there is."""
        for one in arms:
            before = self.cells.get(one.name)
            if before is not None and before.networks[-1].seed >= seeds[-1]:
                continue  # it is there already
            found = self.store.read(self.rows.cell(one, seeds, self.steps))
            if found is None:
                continue
            if before is not None:
                networks = before.networks + found.networks
                found = replace(found, networks=networks, seconds=before.seconds + found.seconds)
            self.cells[one.name] = found

    def _behind(self, networks: Sequence[Contender]) -> list[Contender]:
        """Return networks that were clearly behind the best arm in each of the first splits.

        RLP, and the best network without it, go on: how they stand to each other is a question of its own.
        """
        measure, lower = next(iter(MEASURES[self.rows.task])), self.rows.task == "regression"
        found = {name: (1 if lower else -1) * cell.final(measure)[:FIRST] for name, cell in self.cells.items()}
        there = [one for one in networks if one.name in found]
        names = sorted(found, key=lambda name: float(found[name].mean()))  # the best first
        plain = [one.name for one in there if not one.model and not one.is_rlp]
        kept = {"rlp", *[name for name in names if name in plain][:1]}
        most = [BEHIND * found[name] if lower else found[name] + POINTS for name in names[:1]]
        return [one for one in there if one.name not in kept and (found[one.name] > most).all()]


def stays_here(contenders: Sequence[Contender]) -> bool:
    """Whether a loss among them cannot be sent to another process: a lambda, or a function of the main script."""
    try:
        sent = [pickle.dumps(one.objective) for one in contenders if hasattr(one.objective, "function")]
    except (pickle.PicklingError, AttributeError, TypeError):
        return True
    return any(b"__main__" in data for data in sent)


# The rows before anything is trained


def of_use(chosen: tuple[Contender, ...], rows: Trainer, *, asked: bool) -> tuple[tuple[Contender, ...], list[str]]:
    """Return the arms that are of use on these rows, and why others are not.

    RLP is MSE where a fold has no more rows than the planes have columns. Mixup, unless it is asked for, is left out on
    few rows: every step draws anew, which takes ten times as long.
    """
    smallest, p, notes = _smallest(rows), rows.X.shape[1] + 1, []
    rlp = [one for one in chosen if one.is_rlp or one.model == "rlp-cv"]
    if rlp and smallest <= p:
        notes.append(
            f"RLP is MSE here: {p} columns with the intercept leave no subset of {smallest} training rows with more "
            f"rows than columns. {', '.join(one.label for one in rlp)} not trained."
        )
        chosen = tuple(one for one in chosen if one not in rlp)
        wanted = {"mse", *BASELINES} if len(chosen) < 2 else set()
        chosen += tuple(one for one in contenders_for(rows.task) if one.name in wanted and one not in chosen)
    mixed = [one for one in chosen if one.own == "shape"]
    if mixed and not asked and len(rows.X) < MIXUP_ROWS:
        labels = ", ".join(one.label for one in mixed)
        notes.append(f"Left out on fewer than {MIXUP_ROWS} rows, where they take long: {labels}; --arms asks for them.")
        chosen = tuple(one for one in chosen if one not in mixed)
    return chosen, notes


def _smallest(rows: Trainer) -> int:
    """Return the fewest rows that a network trains on: of the first window of time, or of a fold."""
    train, _ = rows.split(0)
    one_group = rows.group is not None and len(np.unique(rows.group[train])) == 1
    if len(train) < FEWEST_TRAINING_ROWS or one_group:
        return len(train)
    return min(len(inside) for inside, _ in rows.folds(train, np.random.default_rng(0)))


def dial_said(rows: Trainer) -> str:
    """Return where RLP's dial may stand on this table, and why."""
    n, d = _smallest(rows), rows.X.shape[1]
    if n <= d + 1:
        none = "leave RLP no subset with more rows than columns: it is MSE"
        return f"The dial: {d} columns and {n} rows to choose settings on {none}."
    rlp = next(one for one in contenders_for(rows.task) if one.is_rlp)
    sizes = sorted({setting.subset_size(n, d) or 0 for setting in rlp.settings} - {0})
    auto = auto_subset_size(
        filled(rows.X, medians(rows.X)), np.eye(rows.n_classes)[rows.y] if rows.n_classes else rows.y
    )
    curved = "MSE, because a curved fit is much better than a plane: what is not linear is no noise"
    return (
        f"The dial: subsets of {d + 1} rows or fewer (columns and intercept) are MSE, all rows are linear regression; "
        f"tried are MSE and {', '.join(f'{size:,}' for size in sizes)} rows, where settings are chosen on {n:,}. "
        f'subset_size="auto" of the estimators is {f"{auto} rows" if auto else curved}.'
    )


def sample(design: Design, max_rows: int, seed: int) -> Index:
    """Return the rows that are used, all or a sample of them; refuse a table that has too few."""
    n = len(design.X)
    if n < FEWEST_ROWS:
        gone = f" ({design.n_dropped} more have no target)" if design.n_dropped else ""
        raise TableError(f"a comparison needs at least {FEWEST_ROWS} rows to split, got {n}{gone}; add rows")
    y, classes = design.target.y, design.target.classes
    for number, label in enumerate(classes):
        rows = int((y == number).sum())
        if rows < FEWEST_OF_A_CLASS:
            raise TableError(
                f"every class needs at least {FEWEST_OF_A_CLASS} rows to be split, but class {label!r} has {rows}; "
                "merge rare classes or drop their rows"
            )
    if n <= max_rows:
        return np.arange(n)
    order = np.random.default_rng([seed, 9]).permutation(n)
    if not classes:
        return np.sort(order[:max_rows])
    kept = []  # every class keeps its share, and the rows it needs
    for number in range(len(classes)):
        mine = order[y[order] == number]
        kept.append(mine[: max(FEWEST_OF_A_CLASS, round(max_rows * len(mine) / n))])
    return np.sort(np.concatenate(kept))


def check_rows(rows: Trainer, seeds: Sequence[int]) -> None:
    """Refuse times and groups that leave too few rows, before anything is trained."""
    if rows.time is None and rows.group is None:
        return
    fewest = FEWEST_TEST_ROWS * 2 * WINDOWS
    if rows.time is not None and len(rows.X) < fewest:
        raise TableError(f"--time needs at least {fewest} rows, got {len(rows.X)}; add rows or leave --time out")
    for seed in seeds:
        train, test = rows.split(seed)
        left = ""
        if len(train) < FEWEST_TRAINING_ROWS or len(test) < FEWEST_TEST_ROWS:
            wanted = f"{FEWEST_TRAINING_ROWS} training rows and {FEWEST_TEST_ROWS} test rows"
            left = f"{wanted} in every split, got {len(train)} and {len(test)}: it has too few different values"
        elif rows.group is not None and len(np.unique(rows.group[train])) == 1:
            left = "two groups to train on in every split, got one that has most of the rows"
        elif rows.n_classes and len(np.unique(rows.y[train])) == 1:
            left = "two classes to train on in every split, got one class only"
        if left:
            option = "--group" if rows.time is None else "--time"
            raise TableError(f"{option} must leave {left}; name another column")


def sampled_said(n_used: int, n: int) -> str:
    """Return what is told about a sample, on the terminal and in the report."""
    return f"{n_used:,} of {n:,} rows are used, a random sample; --max-rows changes that."
