import io
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from rich.console import Console
from tests.lab import stub

from rlploss._progress import duration
from rlploss.lab.executors import parse_workers
from rlploss.lab.run import execute, plan
from rlploss.lab.store import Store
from rlploss.lab.text import LabError

HERE, TWO = parse_workers("inline"), parse_workers("local:2")


def cost(cell):
    return 1.0 + float(cell.arm.sleep)


def quiet():
    return Console(file=io.StringIO(), force_terminal=False, width=100)


def run(cells, out, workers, console=None):
    with Store(out, code_version="e") as store:
        todo = plan(cells, store, cost=cost, workers=workers)
        done = execute(todo, store, train=stub.train, workers=workers, console=console or quiet())
        return done, [store.read(cell) for cell in cells]


CELLS = [stub.cell(rate=r) for r in (0.1, 0.2, 0.3, 0.4)]


def test_processes_and_inline_store_the_same_numbers(tmp_path):
    done, here = run(CELLS, tmp_path / "inline", HERE)
    assert done.trained == 4
    assert done.failed == {}
    _, there = run(CELLS, tmp_path / "local", TWO)
    for a, b in zip(here, there, strict=True):
        assert np.array_equal(a.matrix("mse"), b.matrix("mse"))


def test_a_second_run_trains_nothing(tmp_path):
    run(CELLS, tmp_path, HERE)
    with Store(tmp_path, code_version="e") as store:
        todo = plan([*CELLS, stub.cell(rate=0.9)], store, cost=cost, workers=HERE)
        assert [c.arm.rate for c in todo.todo] == [0.9]
        assert todo.stored == 4
        nothing = plan(CELLS, store, cost=cost, workers=HERE)
    assert nothing.sentence() == "All 4 cells are stored already: nothing to train."
    done, _ = run(CELLS, tmp_path, HERE)
    assert done.trained == 0


def test_plan_is_longest_first_and_says_what_it_will_take(tmp_path):
    cells = [
        stub.cell(rate=0.1, sleep=0.5),
        stub.cell(rate=0.1, sleep=90.0),
        stub.cell(rate=0.1, sleep=30.0),
    ]
    with Store(tmp_path, code_version="e") as store:
        todo = plan([*cells, cells[0]], store, cost=cost, workers=TWO)
    assert [c.arm.sleep for c in todo.todo] == [90.0, 30.0, 0.5]
    assert todo.expected_seconds == 91.0
    assert todo.sentence() == "3 cells: 3 to train (9 networks), about 1 min 31 s on 2 cores."


def test_estimates_learn_from_what_is_stored(tmp_path):
    run([stub.cell(rate=0.1)], tmp_path, HERE)
    with Store(tmp_path, code_version="e") as store:
        todo = plan([stub.cell(rate=0.2), stub.cell("mae")], store, cost=cost, workers=HERE)
    # The stub says that a cell took 0.2 s where 1 s was predicted; of "mae" nothing is known.
    assert sorted(todo.seconds.values()) == pytest.approx([0.2, 1.0])


@pytest.mark.parametrize("workers", [HERE, TWO], ids=["inline", "local"])
def test_a_cell_that_fails_is_reported_and_the_rest_goes_on(tmp_path, workers):
    bad = stub.cell(fail=True)
    console = quiet()
    with Store(tmp_path, code_version="e") as store:
        todo = plan([bad, *CELLS], store, cost=cost, workers=workers)
        done = execute(todo, store, train=stub.train, workers=workers, console=console)
        assert done.trained == 4
        assert done.failed == {bad.hash: "ValueError: the loss became NaN at step 3"}
        assert store.failure(bad) == "ValueError: the loss became NaN at step 3"
    assert "failed: toy · released · mse · 4 epochs: ValueError" in console.file.getvalue()


def test_timed_cells_run_alone_and_last(tmp_path):
    ledger = str(tmp_path / "ledger")
    cells = [stub.cell(rate=rate, timed=True, sleep=0.1, ledger=ledger) for rate in (0.1, 0.2)] + [
        stub.cell(rate=rate, sleep=0.1, ledger=ledger) for rate in (0.3, 0.4, 0.5)
    ]
    outcomes, _ = stub.outcomes(cells, TWO)
    assert [rate in (0.1, 0.2) for rate in outcomes] == [False] * 3 + [True] * 2
    began = [line.split() for line in stub.read_ledger(ledger)]
    assert [float(rate) for rate, _ in began[3:]] == [0.1, 0.2]
    assert len({process for _, process in began[:3]}) == 2
    assert len({process for _, process in began[3:]}) == 1


def test_piped_progress_is_plain_lines_with_time_left(tmp_path):
    console = quiet()
    run(CELLS, tmp_path, HERE, console)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 4
    assert all(
        re.fullmatch(r" *\d+% \[\d/4\] toy · released · mse · 4 epochs, (.* left|done)", line)
        for line in lines
    )
    assert lines[-1].endswith("done")


def test_a_terminal_gets_a_line_that_is_rewritten(tmp_path):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    console = Console(file=Terminal(), width=100)
    run(CELLS, tmp_path, HERE, console)
    printed = console.file.getvalue()
    assert printed.count("\r") >= 4
    assert "4/4" in printed
    assert printed.count("\n") == 1


def test_the_line_moves_on_while_a_cell_takes_its_time(tmp_path):
    """In this process and in others; a cell is at most 95 % done before it is done."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for name, workers in (("here", HERE), ("there", parse_workers("local:1"))):
        console = Console(file=Terminal(), width=100)
        cells = [stub.cell(rate=0.1, sleep=2.5)]
        with Store(tmp_path / name, code_version="e") as store:
            todo = plan(cells, store, cost=lambda cell: 1.0, workers=workers)
            execute(todo, store, train=stub.train, workers=workers, console=console)
        shares = [
            int(share) for share in re.findall(r"\r *(\d+)% \[0/1\]", console.file.getvalue())
        ]
        assert len(shares) >= 6
        assert shares == sorted(shares)
        assert 0 < shares[0] < 80
        assert shares[-1] == 95
        assert re.search(
            r"\r *\d+% \[0/1\] toy · released · mse · 4 epochs, \d+ s left", console.file.getvalue()
        )
        assert "\r100% [1/1]" in console.file.getvalue()


@pytest.mark.parametrize("workers", [HERE, TWO], ids=["inline", "local"])
def test_a_deadline_ends_cells_in_training_and_leaves_whole_ones(tmp_path, workers):
    cells = [stub.cell(rate=0.1), stub.cell(rate=0.2, sleep=60.0), stub.cell(rate=0.3, sleep=60.0)]
    with Store(tmp_path, code_version="e") as store:
        todo = plan(cells, store, cost=lambda cell: -float(cell.arm.sleep), workers=workers)
        began, handler = time.monotonic(), signal.getsignal(signal.SIGALRM)
        limits = {"deadline": began + 8.0, "console": quiet()}
        done = execute(todo, store, train=stub.train, workers=workers, **limits)
        assert 7.5 < time.monotonic() - began < 15
        assert (done.trained, done.failed) == (1, {})
        assert [store.has(cell) for cell in cells] == [True, False, False]
    assert not multiprocessing.active_children()
    assert signal.getsignal(signal.SIGALRM) == handler


@pytest.mark.parametrize("workers", [HERE, TWO], ids=["inline", "local"])
def test_a_directory_that_is_removed_meanwhile_is_told(tmp_path, workers):
    cells = [stub.cell(rate=0.1), stub.cell(rate=0.2, until=str(tmp_path / "gate"))]
    out = tmp_path / "out"
    console = quiet()

    def remove():
        while "[1/2]" not in console.file.getvalue():
            time.sleep(0.01)
        shutil.rmtree(out)
        (tmp_path / "gate").touch()

    thread = threading.Thread(target=remove)
    thread.start()
    with Store(out, code_version="e") as store:
        todo = plan(cells, store, cost=lambda cell: -float(cell.arm.rate), workers=workers)
        with pytest.raises(
            LabError, match=r"out was removed while rlploss worked in it, .* again$"
        ):
            execute(todo, store, train=stub.train, workers=workers, console=console)
    thread.join()
    assert not out.exists()


def test_a_quiet_console_stays_quiet(tmp_path):
    console = Console(file=io.StringIO(), quiet=True)
    run(CELLS, tmp_path, HERE, console)
    assert console.file.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (59, "59 s"), (75, "1 min 15 s"), (1200, "20 min"), (4800, "1 h 20 min")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


DRIVER = """
import sys
from rich.console import Console
from rlploss.lab.executors import parse_workers
from rlploss.lab.run import execute, plan
from rlploss.lab.store import Store
from rlploss.lab.text import LabError
from tests.lab import stub
if __name__ == "__main__":
    cells = [stub.cell(rate=r / 10, sleep=0.0 if r < 3 else 60.0) for r in range(1, 6)]
    workers = parse_workers("local:2")
    with Store(sys.argv[1], code_version="e") as store:
        todo = plan(cells, store, cost=lambda c: -float(c.arm.sleep), workers=workers)
        try:
            execute(todo, store, train=stub.train, workers=workers, console=Console())
        except KeyboardInterrupt:
            print("stopped", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.slow
def test_stopped_or_killed_the_store_holds_whole_cells_and_no_process_stays(tmp_path, how):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    out = tmp_path / "out"
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]),
    }
    driver = subprocess.Popen(
        [sys.executable, str(script), str(out)],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )
    lines = [
        driver.stdout.readline() for _ in range(2)
    ]  # two quick cells are stored, long ones are running
    assert all("toy" in line for line in lines)
    if how is signal.SIGINT:
        os.killpg(driver.pid, how)  # as a terminal does: the whole group
    else:
        driver.kill()
    rest, _ = driver.communicate(timeout=20)
    assert ("stopped" in rest) == (how is signal.SIGINT)
    deadline = time.monotonic() + 20
    while _group_alive(driver.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _group_alive(driver.pid)
    with Store(out, code_version="e") as store:
        stored = [
            store.read(stub.cell(rate=r / 10, sleep=0.0 if r < 3 else 60.0)) for r in range(1, 6)
        ]
    assert [s is not None for s in stored] == [True, True, False, False, False]
    assert all(len(s.networks) == 3 for s in stored[:2])


def _group_alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
