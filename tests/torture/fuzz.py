"""Fuzzing with hypothesis: every reader of what others wrote, each with its share of the cases."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy
from tests.torture import targets, words
from tests.torture.guard import Hang, no_hang
from tests.torture.summary import Line, Progress


@dataclass(frozen=True)
class Target:
    """What is fuzzed, how input is made, how the outcome is judged, and its share of all cases."""

    name: str
    cases: SearchStrategy[Any]
    check: Callable[[Any], bool]
    share: float


TARGETS = (
    Target("tables (CSV, TSV)", targets.table_bytes(), targets.check_table, 0.4),
    Target("tables (Parquet)", targets.parquet_bytes(), targets.check_parquet, 0.2),
    Target("specs and rows of a store", targets.stored_rows(), targets.check_store, 0.2),
    Target("checkpoints", targets.checkpoint_bytes(), targets.check_checkpoint, 0.1),
    Target("command lines", words.command_lines(), words.check_words, 0.1),
)


def fuzz(target: Target, n_cases: int, seed: int) -> Line:
    """Cases drawn from one seed; a failure is shrunk and told, and does not stop the other
    targets."""
    progress = Progress(f"fuzz, {target.name}", n_cases)
    seen = {True: 0, False: 0}

    @hypothesis.seed(seed)
    @settings(
        max_examples=n_cases,
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=False,
    )
    @hypothesis.given(target.cases)
    def one(case: Any) -> None:
        with no_hang():
            seen[bool(target.check(case))] += 1
        progress.tell(sum(seen.values()))

    broken = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", hypothesis.errors.HypothesisWarning
            )  # of cases that are long to print
            one()
    except (Exception, Hang) as error:
        broken += [_told(each) for each in getattr(error, "exceptions", [error])]
    told = f"{seen[True]:,} accepted, {seen[False]:,} refused"
    return Line("fuzz", target.name, sum(seen.values()), told, progress.seconds, broken)


def _told(error: BaseException) -> str:
    """What went wrong, where in the package, and the smallest case that shows it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/src/rlploss/" in f.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "here"
    notes = " ".join(getattr(error, "__notes__", []))
    return f"{type(error).__name__} at {where}: {str(error)[:400]}\n  {notes[:600]}"


def run(n_cases: int, seed: int, only: str = "") -> list[Line]:
    """All targets, or those whose name contains `only`."""
    chosen = [target for target in TARGETS if only in target.name]
    return [fuzz(target, max(1, round(target.share * n_cases)), seed) for target in chosen]
