"""Processes of this machine: retries, what is told, threads, what cannot be sent."""

import multiprocessing
import os
import subprocess
import sys
import time

import pytest
import torch
from tests.lab import stub

from rlploss.lab.workers import Inline, LocalProcesses, Process, attempt, one_thread, parse_workers


def collect(workers, cells, train=stub.train):
    """Outcomes by rate, and what was said."""
    said = []
    found = list(workers.run(train, cells, tell=lambda cell, done: None, say=said.append))
    assert len({o.cell for o in found}) == len(found) == len(cells)
    return {o.cell.arm.rate: o for o in found}, said


def test_parse_workers():
    assert parse_workers("local:3") == LocalProcesses(3)
    assert parse_workers("inline") == Inline()
    assert 1 <= parse_workers("local").count <= os.cpu_count()


@pytest.mark.parametrize("text", ["cloud:9", "local:²", "local:-1", "inline:2", "", "dask", "dask:here"])
def test_workers_that_are_none(text):
    with pytest.raises(ValueError, match=r"workers must be .*dask:tcp://HOST:PORT.*, got .*; "):
        parse_workers(text)


def test_no_workers():
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        parse_workers("local:0")


def test_a_cell_whose_process_dies_is_tried_again_behind_the_others(tmp_path):
    ledger = str(tmp_path / "ledger")
    cells = [stub.cell(rate=0.1, ledger=ledger, die_times=2)]
    cells += [stub.cell(rate=r, ledger=ledger) for r in (0.2, 0.3)]
    found, said = collect(LocalProcesses(1), cells)
    assert all(outcome.error is None for outcome in found.values())
    tries = [line.split()[0] for line in stub.read_ledger(ledger)]
    assert tries == ["0.1", "0.2", "0.3", "0.1", "0.1"]
    dead = "the worker process died (killed by signal 9, SIGKILL)"
    assert said == [f"{dead}; toy · released · mse · 4 epochs is tried again ({n} of 3)" for n in (2, 3)]


def test_a_cell_that_always_kills_is_given_up_after_three_tries(tmp_path):
    ledger = str(tmp_path / "ledger")
    cells = [stub.cell(rate=0.1, ledger=ledger, die=True), stub.cell(rate=0.2, ledger=ledger)]
    found, _ = collect(LocalProcesses(2), cells)
    assert found[0.1].error == "the worker process died (killed by signal 9, SIGKILL), as in each of 3 tries"
    assert found[0.2].error is None
    tries = sorted(line.split()[0] for line in stub.read_ledger(ledger))
    assert tries == ["0.1", "0.1", "0.1", "0.2"]


def unsendable(cell, tell):
    return lambda: None


def orphan(cell, tell):
    """Dies and leaves a child behind that holds the pipe open."""
    if os.fork() == 0:
        import time

        time.sleep(10)
        os._exit(0)
    os._exit(3)


def test_a_result_that_cannot_be_pickled_is_a_reason_and_the_process_lives_on():
    found, said = collect(LocalProcesses(1), [stub.cell(rate=0.1), stub.cell(rate=0.2)], unsendable)
    assert all(o.error.startswith("the result cannot be sent: ") for o in found.values())
    assert said == []


def test_a_cell_that_cannot_be_pickled_is_a_reason_and_the_process_lives_on():
    found, said = collect(LocalProcesses(1), [stub.cell(rate=0.1, ledger=lambda: None), stub.cell(rate=0.2)])
    assert found[0.1].error.startswith("the cell cannot be sent: ")
    assert found[0.2].error is None
    assert said == []


@pytest.mark.slow
def test_a_process_that_dies_while_its_child_holds_the_pipe_is_noticed():
    found, _ = collect(LocalProcesses(1), [stub.cell(rate=0.1)], orphan)
    assert found[0.1].error == "the worker process died (exit code 3), as in each of 3 tries"


# This process beside others


def slowly(cell, tell):
    """A result that tells where it was made and when; the longer part of its time without a word."""
    began = time.monotonic()
    for _ in range(4):
        time.sleep(0.01)
        tell(0.5)
    return os.getpid(), began, time.monotonic()


def dying_elsewhere(cell, tell):
    if multiprocessing.parent_process() is not None:
        os._exit(3)
    return slowly(cell, tell)


def silent_elsewhere(cell, tell):
    if multiprocessing.parent_process() is not None:
        time.sleep(60)
    return slowly(cell, tell)


def test_this_process_and_others_train_every_cell_once_and_the_others_stay():
    cells = [stub.cell(rate=r / 100) for r in range(1, 30)]
    workers, timed = LocalProcesses(2, here=True), [stub.cell(rate=0.5, timed=True), stub.cell(rate=0.6, timed=True)]
    pids = []
    for todo in (cells[:1], cells, [*timed, *cells]):
        found, said = collect(workers, todo, slowly)
        assert said == []
        pids.append({outcome.result[0] for outcome in found.values()})
    assert pids[0] == {os.getpid()}  # nobody begins a process for one cell
    assert pids[1] == pids[2]
    assert len(pids[1]) == 2
    late = [found[cell.arm.rate].result for cell in timed]
    assert max(o.result[2] for o in found.values() if not o.cell.task.timed) <= late[0][1] <= late[0][2] <= late[1][1]
    workers.close()
    workers.close()
    (other,) = pids[1] - {os.getpid()}
    assert not os.path.exists(f"/proc/{other}")


def test_a_process_that_waits_already_is_taken_and_ended():
    waiting = [Process(), Process()]
    one, other = waiting
    team = LocalProcesses(2, here=True, team=waiting)
    found, _ = collect(team, [stub.cell(rate=rate / 100) for rate in range(1, 30)], slowly)
    assert all(outcome.error is None for outcome in found.values())
    assert {outcome.result[0] for outcome in found.values()} == {os.getpid(), one.process.pid}
    assert waiting == [one, other]
    assert other.process.is_alive()
    team.close()
    assert not waiting
    assert not one.process.is_alive()
    assert not other.process.is_alive()


def test_a_process_takes_another_function_when_it_is_given_one():
    cells = [stub.cell(rate=rate / 100) for rate in range(1, 30)]
    team = LocalProcesses(2, here=True)
    for train in (slowly, stub.train, slowly):
        found, said = collect(team, cells, train)
        assert said == []
        assert all(isinstance(outcome.result, tuple) == (train is slowly) for outcome in found.values())
    team.close()


@pytest.mark.slow
def test_a_command_that_is_refused_leaves_no_process_and_does_not_wait(tmp_path):
    code = "import sys; from rlploss.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "compare", str(tmp_path / "gone.csv"), "--target", "y"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "gone.csv" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_process_that_died_leaves_is_done_here():
    cells = [stub.cell(rate=r / 10) for r in range(1, 5)]
    workers = LocalProcesses(3, here=True)
    for n_dead in (2, 0):  # none takes their place
        found, said = collect(workers, cells, dying_elsewhere)
        assert {outcome.result[0] for outcome in found.values()} == {os.getpid()}
        assert len(said) == n_dead
    workers.close()


def patient_here(cell, tell):
    """Dies elsewhere; here it waits until the others are dead, and then tells something."""
    if multiprocessing.parent_process() is not None:
        os._exit(3)
    while multiprocessing.active_children():
        time.sleep(0.02)
    tell(0.5)
    tell(0.6)
    return os.getpid()


def test_trouble_with_the_others_is_no_failure_of_a_cell_and_is_not_swallowed():
    def say(text):
        raise RuntimeError("nobody can be told")

    cells = [stub.cell(rate=rate) for rate in (0.1, 0.2)]
    running = LocalProcesses(2, here=True).run(patient_here, cells, tell=lambda *_: None, say=say)
    assert next(running).result == os.getpid()
    with pytest.raises(RuntimeError, match="nobody can be told"):
        next(running)


def test_a_deadline_is_seen_while_nobody_tells_anything():
    started = time.monotonic()

    def tell(cell, fraction):
        if fraction is None and time.monotonic() > started + 0.5:
            raise TimeoutError

    running = LocalProcesses(2, here=True).run(
        silent_elsewhere, [stub.cell(rate=r) for r in (0.1, 0.2)], tell=tell, say=print
    )
    with pytest.raises(TimeoutError):
        list(running)
    assert time.monotonic() - started < 20
    assert not multiprocessing.active_children()


def test_a_process_computes_with_one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    found, _ = collect(LocalProcesses(1), [stub.cell(rate=0.1)], stub.threads)
    assert found[0.1].error == "RuntimeError: {1} 1"


def test_one_thread_leaves_things_as_they_were(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    try:
        torch.set_num_threads(3)
        with one_thread():
            assert torch.get_num_threads() == 1
            assert os.environ["MKL_NUM_THREADS"] == "1"
        assert torch.get_num_threads() == 3
        assert os.environ["OMP_NUM_THREADS"] == "5"
        assert "MKL_NUM_THREADS" not in os.environ
    finally:
        torch.set_num_threads(before)


def test_attempt_turns_an_exception_into_one_line():
    outcome = attempt(stub.train, stub.cell(fail=True), lambda done: None)
    assert outcome.error == "ValueError: the loss became NaN at step 3"
