"""Run the cells of a study: plan them, train and store what is missing, show progress, stop
cleanly.

This module submits cells to the workers (`lab.executors`), waits for them, stores each result,
tries a cell again if its worker died, and gives up after a few attempts.
"""

from __future__ import annotations

import io
import math
import random
import shlex
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from rlploss._progress import ProgressLine, duration, say
from rlploss.lab.executors import Team, Workers, attempt, parse_workers, reason
from rlploss.lab.store import FILE, STRANGE, Store
from rlploss.lab.study import AnyCell, CellResult, StoredCell, Train, distinct
from rlploss.lab.text import LabError, Stopped, sentence

Cost = Callable[[Any], float]  # predicted seconds of a cell on one core
CHECKED = 10  # cells to train again before older rows may be used
ATTEMPTS = 3  # for a cell whose worker dies: the machine may have been short of memory once
TICK = (
    0.25  # seconds between two looks at the workers, and between two updates of the progress line
)


@dataclass(frozen=True)
class Plan:
    """What a command will train, and how long that will take."""

    todo: tuple[AnyCell, ...]
    stored: int
    seconds: dict[str, float]  # predicted, by cell hash
    workers: int = 1

    @property
    def expected_seconds(self) -> float:
        """The expected wall-clock time: the longest cell or an even share of the work, whichever is
        longer, and then the cells that run alone.
        """
        alone = sum(self.seconds[c.hash] for c in self.todo if c.task.timed)
        shared = [self.seconds[c.hash] for c in self.todo if not c.task.timed]
        return alone + max([sum(shared) / self.workers, *shared])

    def sentence(self) -> str:
        """Say the plan in one sentence."""
        if not self.todo:
            return f"All {self.stored} cells are stored already: nothing to train."
        networks = sum(cell.n_replicas for cell in self.todo)
        return (
            f"{len(self.todo) + self.stored} cells: "
            + f"{self.stored} stored already, " * bool(self.stored)
            + f"{len(self.todo)} to train ({networks} networks), about"
            f" {duration(self.expected_seconds)} on {self.workers} core{'s' * (self.workers > 1)}."
        )


class Finished(NamedTuple):
    """What a run did."""

    trained: int
    failed: dict[str, str]  # reason by cell hash
    seconds: float


def plan(
    cells: Iterable[AnyCell], store: Store, *, cost: Cost, workers: Workers, in_turn: bool = False
) -> Plan:
    """Plan the missing cells, the longest first (or as given, `in_turn`), with their expected
    seconds.

    The predicted cost is corrected by the seconds that stored cells of the same family took.
    """
    cells = distinct(cells)
    todo = [cell for cell in cells if not store.has(cell)]
    ratios: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for cell, took in store.costs(cells):
        with suppress(*STRANGE):  # a cell of another version, whose cost is unknown
            ratios[cell.arm.family, cell.task.family].append(took / max(cost(cell), 1e-9))
    factors = {family: statistics.median(values) for family, values in ratios.items()}
    seconds = {
        cell.hash: cost(cell) * factors.get((cell.arm.family, cell.task.family), 1.0)
        for cell in todo
    }
    if not in_turn:
        todo.sort(key=lambda cell: -seconds[cell.hash])
    return Plan(tuple(todo), stored=len(cells) - len(todo), seconds=seconds, workers=workers.count)


class _TimeUp(BaseException):
    """The deadline has passed; not an `Exception`, so no trainer reports it as a failure of its
    cell.
    """


def execute(
    todo: Plan,
    store: Store,
    *,
    train: Train,
    workers: Workers,
    console: Console,
    deadline: float = math.inf,
    team: Team | None = None,
) -> Finished:
    """Train the cells of a plan and store each as it finishes. Ctrl-C and the deadline, a time of
    `time.monotonic`, leave whole cells only. A `team` that is passed in stays open.
    """
    started, failed = time.monotonic(), dict[str, str]()
    rings = workers.kind == "inline" and math.isfinite(deadline) and hasattr(signal, "setitimer")
    alarm = _alarm(deadline) if rings else nullcontext()
    board = _Board(todo, console)
    outcomes = _trained(
        todo.todo, train, workers=workers, board=board, team=team, deadline=deadline
    )
    with suppress(_TimeUp), board, alarm, closing(outcomes):
        for cell, outcome in outcomes:
            if isinstance(outcome, str):
                failed[cell.hash] = outcome
                store.write_failure(cell, outcome)
                board.say(f"failed: {cell}: {outcome}")
            else:
                store.write(cell, outcome)
            check_there(store.directory)
            board.finish(cell)
    return Finished(board.finished - len(failed), failed, time.monotonic() - started)


def check_there(directory: Path) -> None:
    """Stop if the directory was removed: its open store could still be written to, but would be
    lost.
    """
    if not (directory / FILE).exists():
        raise LabError(
            f"{directory} was removed while rlploss worked in it, and what was stored is lost;"
            " remove what is left there and give the same command again"
        )


def _trained(
    cells: Iterable[AnyCell],
    train: Train,
    workers: Workers,
    board: _Board,
    team: Team | None,
    deadline: float,
) -> Generator[tuple[AnyCell, CellResult | str]]:
    """Yield each cell as it finishes, with its result or with the reason why it has none.

    A worker that dies breaks its pool, and no one can tell which of the cells in flight caused it.
    They are tried again one at a time, after the others. So a cell that fails three times was alone
    in two of the attempts. Timed cells run alone too, at the very end.
    """
    together, alone, attempts = deque[AnyCell](), deque[AnyCell](), Counter[AnyCell]()
    for cell in cells:
        (alone if cell.task.timed else together).append(cell)
    while together or alone:
        waiting, size = (together, workers.count) if together else (alone, 1)
        given, team = team if together else None, None
        with nullcontext(given) if given else workers.start(min(size, len(waiting))) as crew:
            lost = yield from _until_broken(crew, train, waiting, board=board, deadline=deadline)
            if lost:
                crew.shutdown()  # the caller's team too, since it is broken
        how = crew.death()
        for cell in lost:
            attempts[cell] += 1
            if attempts[cell] == ATTEMPTS:
                yield cell, f"{how}, as in each of {ATTEMPTS} attempts"
            else:
                which = f"{attempts[cell] + 1} of {ATTEMPTS}"
                board.say(f"{how}; {cell} is tried again on its own ({which})")
                alone.appendleft(cell)


def _until_broken(
    team: Team, train: Train, waiting: deque[AnyCell], board: _Board, deadline: float
) -> Generator[tuple[AnyCell, CellResult | str], None, list[AnyCell]]:
    """Have the team train the waiting cells, and return those in flight when the team broke."""
    in_flight: dict[Future[Any], AnyCell] = {}
    with suppress(BrokenExecutor):
        while waiting or in_flight:
            while waiting and len(in_flight) < max(1, team.size):
                board.since[waiting[0]] = time.monotonic()
                in_flight[team.submit(attempt, train, waiting[0])] = waiting[0]
                waiting.popleft()
            done, _ = wait(in_flight, TICK, FIRST_COMPLETED)
            # Finished results before broken ones.
            whole = [f for f in done if not f.cancelled() and not f.exception()]
            for future in dict.fromkeys([*whole, *done]):
                yield in_flight[future], _outcome(future)
                del in_flight[future]
            team.check()
            board.report(team.news())
            if time.monotonic() > deadline:
                raise _TimeUp
    return list(in_flight.values())


def _outcome(future: Future[Any]) -> Any:
    """Return the result of an attempt, or the reason why the attempt was impossible."""
    try:
        return future.result()
    except (BrokenExecutor, CancelledError):  # its worker is gone
        raise BrokenExecutor from None
    except Exception as error:  # a cell or a result could not be sent
        # A worker without this package, or with another version of it.
        if getattr(error, "name", "") == "rlploss":
            raise LabError(sentence(str(error))) from None
        return reason(error)


@contextmanager
def _alarm(deadline: float) -> Iterator[None]:
    """Raise `_TimeUp` in the main thread at the deadline; not on Windows."""

    def ring(*_: object) -> None:
        raise _TimeUp

    handler = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(1e-3, deadline - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)


class _Board(ProgressLine):
    """A progress line: how many cells are finished, and how long the rest will take.

    A cell in flight counts by its elapsed seconds, up to 95 % of its predicted ones. On a terminal
    a thread updates the line, because this process may be training. When piped there is one line
    per cell.
    """

    def __init__(self, plan: Plan, console: Console) -> None:
        stream = io.StringIO() if console.quiet else console.file
        super().__init__(sum(plan.seconds.values()), stream=stream, every=math.inf)
        self.since: dict[AnyCell, float] = {}  # start time of each cell in flight
        self.finished, self._passed, self._plan, self._news = 0, 0.0, plan, ""
        self._ended, self._thread = threading.Event(), threading.Thread(target=self._move)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """End the line, so that other output goes below it."""
        self._ended.set()
        self._thread.join()
        self.close()

    def finish(self, cell: AnyCell) -> None:
        """Count a cell as finished: it is stored, or it failed."""
        del self.since[cell]
        self._passed += self._plan.seconds[cell.hash]
        self.finished += 1
        self._show(cell, now=True)

    def report(self, news: str) -> None:
        """Print news of the workers, each message once."""
        if news != self._news:
            self._news = news
            self.say(news or "the workers continue")

    def _move(self) -> None:
        while not self._ended.wait(TICK):
            for cell in [*self.since][:1]:
                self._show(cell)

    def _show(self, cell: AnyCell, *, now: bool = False) -> None:
        passed, n = self._passed, len(self._plan.todo)
        for running, since in [*self.since.items()]:
            passed += min(time.monotonic() - since, 0.95 * self._plan.seconds[running.hash])
        done = self._total if self.finished == n else passed
        self.tell(done, f"[{self.finished}/{n}] {cell}", now=now)


def run_study(
    what: str,
    cells: Iterable[AnyCell],
    store: Store,
    *,
    cost: Cost,
    train: Train,
    workers: Workers,
    console: Console,
    in_turn: bool = False,
) -> None:
    """Train the cells of a study that are not stored. Print the expected time first, and then what
    was trained and what failed.
    """
    cells = distinct(cells)
    todo = plan(cells, store, cost=cost, workers=workers, in_turn=in_turn)
    say(console, f"{what}. {todo.sentence()}")
    if count := store.foreign_cells():
        say(console, f"{count} stored cells come from other code and are not used.")
    try:
        done = execute(todo, store, train=train, workers=workers, console=console)
    except KeyboardInterrupt:
        raise Stopped(
            f"{sum(map(store.has, cells))} of {len(cells)} cells are stored, rlploss report"
            f" {shlex.quote(str(store.directory))} shows them"
        ) from None
    if done.trained:
        say(console, f"Trained {done.trained} cells in {duration(done.seconds)}.")
    for why in [*done.failed.values()][:1]:
        say(console, f"{len(done.failed)} cells failed; the same command tries them again: {why}")


@dataclass(frozen=True)
class Study:
    """The study of a directory: its cells, their cost, and the function that trains them."""

    code_version: str
    cells: Callable[[], Sequence[AnyCell]]
    cost: Callable[[Any], float]
    trainer: Callable[[], Train]


def declare_equal(store: Store, study: Study, console: Console) -> None:
    """Train ten random cells of the latest older code again. If every bit is the same, let this
    code use the rows of the older code; else raise LabError with the cell that differs.
    """
    older = store.older_version()
    stored = {
        cell: read
        for cell in study.cells()
        if older and not cell.task.timed and (read := store.read(cell, older)) is not None
    }
    if not stored:
        raise LabError(
            f"{store.directory} has no rows of other code that this code could use; give the"
            " command that made it, which trains what is missing"
        )
    chosen = random.SystemRandom().sample([*stored], min(CHECKED, len(stored)))
    # Another number of threads rounds differently.
    threads = {stored[cell].provenance["threads"] for cell in chosen}
    workers = parse_workers("local" if threads == {1} else "inline")
    with (
        tempfile.TemporaryDirectory() as scratch,
        Store(scratch, code_version=store.code_version) as again,
    ):
        todo = plan(chosen, again, cost=study.cost, workers=workers)
        say(console, f"Training {len(chosen)} of {len(stored)} cells of other code again.")
        execute(todo, again, train=study.trainer(), workers=workers, console=console)
        for cell in chosen:
            now = again.read(cell)
            if wrong := again.failure(cell) if now is None else difference(stored[cell], now):
                raise LabError(
                    f"{cell} gives other numbers than before ({wrong}); the older rows are not used"
                )
    store.declare_equal(older)
    say(console, "Every bit is the same: this code now uses the older rows, except timed ones.")


def difference(before: StoredCell, now: StoredCell) -> str:
    """Return the first number that differs between two trainings of a cell, or nothing; seconds are
    not compared.
    """
    for old, new in zip(before.networks, now.networks, strict=True):
        first, second = (
            {name: list(points) for name, points in n.curve.items() if name != "seconds"}
            | {name: [value] for name, value in n.values.items()}
            | {name: array.ravel().tolist() for name, array in n.artifacts.items()}
            for n in (old, new)
        )
        for name in sorted({*first, *second}):
            # As text, NaN equals NaN.
            pair = [repr(numbers.get(name)) for numbers in (first, second)]
            if pair[0] != pair[1]:
                return f"{name} of seed {old.seed}: {pair[0][:60]} stored, {pair[1][:60]} now"
    return ""
