"""Who trains: processes of this machine that raise, exit or are killed, and what is told of
them."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor
from types import SimpleNamespace

import pytest
from tests.lab import stub

from rlploss.lab import executors
from rlploss.lab.executors import Processes, Workers, attempt, parse_workers


def test_parse_workers():
    assert parse_workers("local:3") == Workers("local", 3)
    assert parse_workers("inline") == Workers("inline", 1)
    assert 1 <= parse_workers("local").count <= os.cpu_count()


@pytest.mark.parametrize(
    "text",
    ["cloud:9", "local:²", "local:-1", "local:0", "inline:2", "inline:", "", "dask", "dask:here"],
)
def test_workers_that_are_none(text):
    with pytest.raises(ValueError, match=r"workers must be .*dask:tcp://HOST:PORT.*, got .*; "):
        parse_workers(text)


# Cells that do not end well


def tries(ledger):
    """The rates of the cells that were tried, in order."""
    return [line.split()[0] for line in stub.read_ledger(ledger)]


KILLED = "a worker process died (signal 9, Killed)"


def test_a_cell_whose_process_dies_is_tried_again_behind_the_others(tmp_path):
    ledger = str(tmp_path / "ledger")
    cells = [stub.cell(rate=0.1, ledger=ledger, die_times=2)]
    cells += [stub.cell(rate=r, ledger=ledger) for r in (0.2, 0.3)]
    outcomes, said = stub.outcomes(cells, "local:1")
    assert not any(isinstance(outcome, str) for outcome in outcomes.values())
    assert tries(ledger) == ["0.1", "0.2", "0.3", "0.1", "0.1"]
    assert said.splitlines()[0] == (
        f"{KILLED}; toy · released · mse · 4 epochs is tried again on its own (2 of 3)"
    )
    assert said.count("is tried again") == 2


def test_a_cell_that_always_kills_is_given_up_after_three_tries_and_harms_no_other(tmp_path):
    """Whatever was in flight beside it is tried again, alone, and is not given up."""
    ledger = str(tmp_path / "ledger")
    cells = [stub.cell(rate=0.1, ledger=ledger, die=True, sleep=0.5)]
    cells += [stub.cell(rate=r / 10, ledger=ledger, sleep=1.0) for r in (2, 3, 4)]
    outcomes, said = stub.outcomes(cells, "local:2")
    assert outcomes[0.1] == f"{KILLED}, as in each of 3 attempts"
    assert not any(isinstance(outcomes[rate], str) for rate in (0.2, 0.3, 0.4))
    tried = tries(ledger)
    assert tried.count("0.1") == 3
    assert sorted(tried.count(rate) for rate in ("0.2", "0.3", "0.4"))[:2] == [1, 1]
    assert len(tried) <= 7
    assert said.count("failed: ") == 1


def exits(cell, tell):
    sys.exit(3)


def exits_hard(cell, tell):
    os._exit(3)


def test_a_cell_that_exits_is_told():
    outcomes, _ = stub.outcomes([stub.cell(rate=0.1)], "local:1", exits)
    assert outcomes[0.1] == "SystemExit: 3"
    outcomes, _ = stub.outcomes([stub.cell(rate=0.1)], "inline", exits)
    assert outcomes[0.1] == "SystemExit: 3"


@pytest.mark.slow
def test_a_cell_whose_process_exits_is_told():
    outcomes, _ = stub.outcomes([stub.cell(rate=0.1)], "local:1", exits_hard)
    assert outcomes[0.1] == "a worker process died (exit code 3), as in each of 3 attempts"


@pytest.mark.parametrize(
    ("code", "how"),
    [(3, "exit code 3"), (-11, "signal 11, Segmentation fault"), (-9, "signal 9, Killed")],
)
@pytest.mark.parametrize("others", [(-15,), (-15, 0), (0, -15, -15), (-15, None)])
def test_the_process_to_blame_is_not_one_that_was_ended(code, how, others):
    """The pool terminates the others, or they have ended by themselves, in whatever order."""
    for codes in itertools.permutations([code, *others]):
        team = {number: SimpleNamespace(exitcode=each) for number, each in enumerate(codes)}
        said = Processes.death(SimpleNamespace(_team=team))
        assert said == f"a worker process died ({how})"


def unsendable(cell, tell):
    return lambda: None


def orphan(cell, tell):
    """Die, and leave a child behind that holds all pipes open."""
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    os._exit(3)


class Demanding(Exception):
    """An exception that can be pickled and not read again."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def demanding(cell, tell):
    raise Demanding("this", "that")


def test_what_cannot_be_sent_is_a_reason_and_the_process_lives_on():
    cells = [stub.cell(rate=0.1), stub.cell(rate=0.2)]
    outcomes, said = stub.outcomes(cells, "local:1", unsendable)
    assert all("pickle" in outcome for outcome in outcomes.values())
    assert "tried again" not in said
    outcomes, said = stub.outcomes(cells, "local:1", demanding)
    assert set(outcomes.values()) == {"Demanding: this and that"}
    assert "tried again" not in said
    cells = [stub.cell(rate=0.1, ledger=lambda: None), stub.cell(rate=0.2)]
    outcomes, said = stub.outcomes(cells, "local:1")
    assert "pickle" in outcomes[0.1]
    assert not isinstance(outcomes[0.2], str)
    assert "tried again" not in said


@pytest.mark.slow
def test_a_process_that_dies_while_its_child_holds_the_pipes_is_noticed():
    outcomes, _ = stub.outcomes([stub.cell(rate=0.1)], "local:1", orphan)
    assert outcomes[0.1] == "a worker process died (exit code 3), as in each of 3 attempts"


def large(cell, tell):
    """A result that does not fit into a pipe."""
    return bytes(50_000_000)


def test_a_process_that_is_killed_while_it_sends_a_result_is_noticed(monkeypatch):
    """What the driver has of it is half a result: it must not wait for the other half."""
    with Processes(1) as team:
        future = team.submit(large, None, None)
        (number,) = team._team
        reader = team._result_queue._reader
        while not reader.poll(0.001):
            pass
        os.kill(number, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(BrokenExecutor):  # noqa: PT012 - one of the two says so
            while not future.done():
                team.check()
                time.sleep(0.01)
            future.result()
    assert time.monotonic() - began < 10
    assert not multiprocessing.active_children()


class Large:
    """A trainer that does not fit into a pipe."""

    def __init__(self, data):
        self.data = data

    def __call__(self, cell, tell):
        os.kill(os.getpid(), signal.SIGKILL)


def test_workers_that_die_before_they_have_taken_a_large_call_do_not_block(monkeypatch):
    monkeypatch.setattr(executors, "_prepare_process", os.abort)
    began = time.monotonic()
    outcomes, _ = stub.outcomes([stub.cell(rate=0.1)], "local:2", Large(bytes(5_000_000)))
    assert outcomes[0.1] == "a worker process died (signal 6, Aborted), as in each of 3 attempts"
    assert time.monotonic() - began < 60
    assert not [thread for thread in threading.enumerate() if "Executor" in type(thread).__name__]


# Processes that go


def test_ending_does_not_wait_for_a_process_that_is_stopped(tmp_path):
    ledger = tmp_path / "ledger"
    with Processes(1) as team:
        team.submit(attempt, stub.train, stub.cell(ledger=str(ledger), sleep=60.0))
        while not ledger.exists() or not ledger.read_text():
            time.sleep(0.01)
        os.kill(int(stub.read_ledger(ledger)[0].split()[1]), signal.SIGSTOP)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_command_that_is_refused_leaves_no_process_and_does_not_wait(tmp_path):
    code = "import sys; from rlploss.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "compare", str(tmp_path / "gone.csv"), "--target", "y"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "gone.csv" in done.stderr
    assert "Traceback" not in done.stderr


# One thread


@pytest.mark.parametrize("workers", ["local:1", "local:2"])
def test_a_process_computes_with_one_thread(monkeypatch, workers):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    outcomes, _ = stub.outcomes([stub.cell(rate=0.1)], workers, stub.threads)
    assert outcomes[0.1] == "RuntimeError: {1} 1"


def test_an_exception_becomes_one_line():
    said = attempt(stub.train, stub.cell(fail=True))
    assert said == "ValueError: the loss became NaN at step 3"


def test_a_process_that_is_stopped_is_told_once_and_goes_on(monkeypatch, tmp_path):
    monkeypatch.setattr(executors, "STOPPED_FOR", 0.5)
    ledger = tmp_path / "ledger"
    stopped = []

    def meddle():
        while not ledger.exists() or not ledger.read_text():
            time.sleep(0.01)
        stopped.append(int(stub.read_ledger(ledger)[0].split()[1]))
        os.kill(stopped[0], signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(stopped[0], signal.SIGCONT)

    thread = threading.Thread(target=meddle)
    thread.start()
    outcomes, said = stub.outcomes([stub.cell(rate=0.1, ledger=str(ledger), sleep=2.5)], "local:1")
    thread.join()
    assert not isinstance(outcomes[0.1], str)
    told = [line for line in said.splitlines() if "%" not in line]
    assert told == [
        f"worker processes have been stopped for a minute: {stopped[0]}; kill -CONT {stopped[0]}"
        " lets them continue, kill -KILL makes rlploss try their cells again",
        "the workers continue",
    ]
