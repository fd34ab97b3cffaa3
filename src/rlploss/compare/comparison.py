"""`compare`: what to use on this table, and does RLP help? Every contender on a user's own data."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Console

from rlploss import _checks
from rlploss._progress import duration, say
from rlploss._scaling import Array
from rlploss.compare import schedule
from rlploss.compare.answer import Answer, Reached, answer, by, gap, reverse
from rlploss.compare.arms import BASELINES, QUICK, Contender, contenders_for
from rlploss.compare.columns import Design, make_design
from rlploss.compare.read import as_frame
from rlploss.compare.rows import MEASURES, WINDOWS
from rlploss.compare.train import Trainer
from rlploss.lab import stats
from rlploss.lab.store import Store, code_version
from rlploss.lab.study import StoredCell
from rlploss.lab.text import LabError, number
from rlploss.lab.workers import Workers, parse_workers

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

ROOT = "rlploss.compare.train"  # the code whose changes make stored rows foreign
MOST_SPLITS, MOST_SEED = 10_000, 2**62  # the store's numbers have 64 bits


@dataclass(frozen=True)
class Comparison:
    """What a comparison found. `.table`, `.summary()`, `.best_model()`, `.write(directory)`."""

    design: Design
    contenders: tuple[Contender, ...]
    cells: Mapping[str, StoredCell]  # by contender
    rows: Trainer  # after sampling
    steps: int
    seeds: tuple[int, ...]
    notes: tuple[str, ...] = ()  # what was not done, and why
    source: str = "the table"
    command: str = ""  # what made it

    @property
    def task(self) -> str:
        """The task, regression or classification."""
        return self.design.target.task

    @property
    def measures(self) -> dict[str, str]:
        """What is measured on the test rows, in words by name; the first decides."""
        return MEASURES[self.task]

    @property
    def lower_is_better(self) -> bool:
        """Whether lower values of the measure that decides are better."""
        return self.task == "regression"

    def values(self, contender: str, measure: str = "") -> Array:
        """Return a measure of one contender [splits], or another number that is kept of every split."""
        return self.cells[contender].final(measure or next(iter(self.measures)))

    def spread(self, one: Contender, measure: str = "") -> tuple[float, float, float]:
        """Return the mean of a measure over splits, and the ends of its 95 % t-interval; no share is above 1."""
        measure = measure or next(iter(self.measures))
        mean, low, high = (float(end[0]) for end in stats.band(self.values(one.name, measure)[:, None]))
        return mean, low, min(high, 1.0) if measure in ("accuracy", "balanced", "auc", "r2") else high

    def answer(self) -> Answer:
        """Return the verdicts."""
        n_test, n_train = (self.values(self.contenders[0].name, name) for name in ("n_test", "n_train"))
        reached = {}
        for one in self.contenders:
            rows = [network.artifacts["rows"] for network in self.cells[one.name].of_variant()]
            tie = 0.0 if self.lower_is_better else float(self.values(one.name, "log_loss").mean())
            reached[one.name] = Reached(self.values(one.name), rows, tie)
        stays, of = self.dial_stays()
        overlap = 0.0 if self.design.time is not None else float(np.mean(n_test / n_train))
        lower, n_rows = self.lower_is_better, len(self.rows.X)
        return answer(
            self.contenders, reached, lower_is_better=lower, overlap=overlap, n_rows=n_rows, stays=stays, of=of
        )

    def dial_stays(self, contender: str = "rlp") -> tuple[int, int]:
        """Return in how many splits RLP chose the MSE end of its dial, and how many splits there are."""
        if contender not in self.cells or not self.cells[contender].has("subset_size"):
            return 0, 0
        sizes = self.values(contender, "subset_size")
        return int((sizes == 0).sum()), len(sizes)

    def called(self, one: Contender) -> str:
        """Return the name of an arm by what it was: RLP whose dial stands at its MSE end is MSE."""
        stays, of = self.dial_stays(one.name) if one.is_rlp else (0, 0)
        return one.label.replace("RLP", "MSE", 1) if of and 2 * stays > of else one.label

    def lines(self) -> list[str]:
        """Return what to use, whether RLP adds anything, how sure that is."""
        a = self.answer()
        best, n, seconds = self.called(a.best), len(self.values(a.best.name)), self.seconds(a.best)
        trivial = next((one for one in self.contenders if one.name in BASELINES), None)
        value = float(self.values(a.best.name).mean())
        how = f"root mean squared error {number(value)}" if self.lower_is_better else f"{value:.1%} right"
        against = ""
        if trivial is not None and trivial is not a.best:
            base = float(self.values(trivial.name).mean())
            against = f", against {base:.1%} for the most frequent class"
            if self.lower_is_better:
                against = f", {100 * (1 - value / base):.0f} % better than predicting the mean"
        renamed = f" (RLP's dial stood at its MSE end in {self.dial_stays(a.best.name)[0]} of {n} splits)"
        use = f"Use {best}{renamed if best != a.best.label else ''}: {how}{against}; {seconds:.1f} s to tune and train."
        if trivial is not None and a.useless:
            use = f"Use none of them: no arm is shown to be better than predicting {trivial.label} ({how} for {best})."
        word = a.verdict(at_mse=best != a.best.label)
        told = [use, (f"{word}: " if word else "") + a.sentence("on this table")]
        told[1:1] = [note for note in self.notes if note.startswith("RLP is MSE")]
        second = self.called(a.second)
        if second == best:  # one of them is RLP at its MSE end
            best, second = a.best.label, a.second.label
        many = f"{n} {'windows of time' if self.design.time is not None else 'splits'}"
        useful = "Not sure that any is of use" if trivial is not None and a.useless else ""
        if a.lead.word == "better":
            sure = f"{useful or 'Sure'}: {best} is better than the next, {second}, by {by(a.lead)} in {many}"
        else:
            level = f"{second} is not distinguishable from {best} ({gap(reverse(a.lead))})"
            if a.lead.word == "worse":  # an average that a few splits have made
                level = f"{second} is better than {best} in most splits, not on average ({gap(reverse(a.lead))})"
            sure = f"{useful or 'Not sure'}: {level} in {many}"
        heed = "; the warnings may change this" if self.design.warnings else ""
        told.append(f"{sure}{heed}.")
        return told

    def seconds(self, one: Contender) -> float:
        """Return how long it takes to tune and train an arm once."""
        return float(np.mean([network.seconds for network in self.cells[one.name].networks]))

    def summary(self) -> str:
        """Return what to use, whether RLP adds anything and how sure that is, a line each."""
        return "\n".join(self.lines())

    @property
    def table(self) -> pd.DataFrame:
        """One row per contender: means, intervals, the paired test against RLP, seconds."""
        from rlploss.compare.report import result_rows

        return pd.DataFrame(result_rows(self))

    def best_model(self) -> Pipeline:
        """Return the winner, trained on all rows: a scikit-learn Pipeline that predicts from raw frames."""
        from rlploss.compare.model import train_model

        return train_model(self)

    def write(self, directory: str | Path) -> Path:
        """Write report.html, its tables and figures, comparison.json and the model; returns the path of the page."""
        from rlploss.compare.report import write

        return write(self, Path(directory))

    def __repr__(self) -> str:
        return f"Comparison of {len(self.contenders)} arms on {self.source}, {len(self.seeds)} splits\n{self.summary()}"


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
    test rows are used once. Arms that are no networks come first; arms that are clearly behind after three splits end.

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
    names = QUICK[design.target.task] if quick and arms is None else (arms,) if isinstance(arms, str) else arms
    chosen = contenders_for(design.target.task, names, losses, session=out is None)
    first = _checks.count("random_state", random_state, minimum=0, maximum=MOST_SEED)
    n_splits = _checks.count("n_splits", n_splits or (5 if quick else 10), minimum=2, maximum=MOST_SPLITS)
    seeds = tuple(range(WINDOWS)) if design.time is not None else tuple(range(first, first + n_splits))
    keep = schedule.sample(design, _checks.count("max_rows", max_rows, minimum=schedule.FEWEST_ROWS), first)
    limit = None if time_limit is None else _checks.number("time_limit", time_limit, 1.0)
    when = None if design.time is None else design.time[keep]
    groups = None if design.group is None else design.group[keep]
    target = design.target
    rows = Trainer(design.X[keep], target.y[keep], target.task, len(target.classes), when, groups)
    schedule.check_rows(rows, seeds)
    steps = _checks.count("steps", steps)
    team = parse_workers(workers) if isinstance(workers, str) and workers != "auto" else workers
    chosen, notes = schedule.without_dial(chosen, rows)
    if names is None:
        chosen, more = schedule.without_mixup(chosen, rows)
        notes += more
    console = progress if isinstance(progress, Console) else Console(stderr=True, quiet=not progress)
    if schedule.stays_here(chosen) and workers not in ("auto", "inline"):
        raise ValueError(
            f'losses of this session are trained in this process: workers must be "inline", got {workers!r}'
        )
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "store" if out is None else Path(out)
        with Store(place, code_version=code_version(ROOT)) as store:
            store.refuse_others("compare")
            if on_start is not None:
                on_start()
            if len(keep) < len(design.X):
                say(console, schedule.sampled_said(len(keep), len(design.X)))
            say(console, schedule.dial_said(rows))

            def so_far(cells: Mapping[str, StoredCell]) -> str:
                there = tuple(one for one in chosen if one.name in cells)
                return Comparison(design, there, cells, rows, steps, seeds).lines()[0] if there[1:] else ""

            run = schedule.Run(rows, chosen, seeds, steps, store, team, console, limit)
            cells, left = run.all(so_far)
    there = tuple(one for one in chosen if one.name in cells)
    if len(there) < 2:
        raise LabError(f"fewer than two arms were trained within {duration(limit or 0)}; give more time")
    return Comparison(design, there, cells, rows, steps, seeds, (*notes, *left))
