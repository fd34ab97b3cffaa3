"""Studies on a real Dask cluster of the loopback: equal tables, and workers that die."""

import ast
import csv
import io
import json
import os
import re
import signal
import sqlite3
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.lab import stub
from tests.lab.dask_cluster import Cluster, free_port, wait_for
from threadpoolctl import threadpool_limits

from rlploss import cli
from rlploss._extras import MissingExtra
from rlploss._torch import one_torch_thread
from rlploss.lab import executors
from rlploss.lab import store as store_module
from rlploss.lab.executors import attempt, parse_workers
from rlploss.lab.text import LabError
from rlploss.lab.train import train

pytestmark = pytest.mark.slow  # processes that find each other

Client = pytest.importorskip("distributed").Client


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield made
    finally:
        made.close()


@contextmanager
def ask(dask):
    """A client of our own, to look at the cluster from outside."""
    with Client(dask.address, set_as_default=False) as client:
        yield client


@pytest.fixture
def two(dask):
    """Exactly two workers, both there."""
    dask.workers = [worker for worker in dask.workers if worker.poll() is None]
    while len(dask.workers) < 2:
        dask.add_worker()
    with ask(dask) as client:
        wait_for(lambda: len(client.nthreads()) == 2)
    return dask


def tries(ledger):
    """How often each rate was tried, and by which processes."""
    lines = [line.split() for line in stub.read_ledger(ledger)] if os.path.exists(ledger) else []
    found = {}
    for rate, pid in lines:
        found.setdefault(float(rate), []).append(int(pid))
    return found


# Equal results


def tables(out):
    """Every table but that of seconds, byte for byte but for the column of seconds."""
    found = {}
    for path in sorted(path for path in (out / "tables").iterdir() if path.stem != "time"):
        text = path.read_bytes().decode()
        found[path.name] = text
        lines = list(csv.reader(io.StringIO(text), delimiter="," if path.suffix == ".csv" else "|"))
        seconds = [i for i, name in enumerate(lines[0]) if "seconds" in name]
        if seconds:
            found[path.name] = [
                [cell for i, cell in enumerate(line) if i not in seconds] for line in lines
            ]
    assert found
    return found


def without_seconds(text):
    """The networks of a cell without what the clock says."""
    networks = [{k: v for k, v in n.items() if k != "seconds"} for n in json.loads(text)]
    for network in networks:
        network["curve"].pop("seconds", None)
    return networks


def rows(out):
    """Everything stored but seconds, in an order of its own."""
    with closing(sqlite3.connect(out / "runs.sqlite")) as file:
        found = file.execute(
            "SELECT spec_hash, code_version, networks FROM cell ORDER BY 1, 2"
        ).fetchall()
    assert len(found) == len({row[:2] for row in found})
    return [(*row[:2], without_seconds(row[2])) for row in found]


def test_reproduce_gives_the_local_tables_byte_for_byte(two, tmp_path, capsys):
    command = [
        "reproduce",
        "table1",
        "--scale",
        "smoke",
        "--datasets",
        "linear",
        "--arms",
        "mse,rlp",
    ]
    for place, workers in (("here", "local:1"), ("there", f"dask:{two.address}")):
        assert cli.run([*command, "--workers", workers, "--out", str(tmp_path / place)]) == 0
    assert "on 2 cores" in capsys.readouterr().out
    assert tables(tmp_path / "here") == tables(tmp_path / "there")
    assert rows(tmp_path / "here") == rows(tmp_path / "there")


def test_compare_gives_the_local_rows(two, tmp_path, monkeypatch):
    """The table is sent with the trainer; the report is made from the rows."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = X @ [1, 2, 3] + rng.normal(size=40)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y}).to_csv("t.csv", index=False)
    command = [
        "compare",
        "t.csv",
        "--target",
        "y",
        "--splits",
        "2",
        "--steps",
        "20",
        "--arms",
        "mse,rlp,ridge",
    ]
    assert cli.run([*command, "--workers", f"dask:{two.address}", "--out", "there"]) == 0
    with threadpool_limits(1), one_torch_thread():
        assert cli.run([*command, "--workers", "inline", "--out", "here"]) == 0
    assert rows(tmp_path / "here")
    assert rows(tmp_path / "here") == rows(tmp_path / "there")


# Data, failures, order


def outcomes(dask, cells, train=stub.train, **options):
    """What becomes of the cells, a result or a reason, by rate, and what is said meanwhile."""
    return stub.outcomes(cells, f"dask:{dask.address}", train, **options)


def test_workers_fetch_data_themselves(two):
    """Each has a cache of its own; where it cannot have the data, that is the reason."""
    cells = [stub.cell(dataset="tiny", rate=0.1), stub.cell(dataset="tiny", rate=0.2)]
    found, _ = outcomes(two, cells, stub.train_on_file)
    assert all("tiny" in reason for reason in found.values())
    for place in two.directory.glob("worker-*"):
        cache = place / "no" / "cache" / "tiny"
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "tiny.csv").write_bytes(stub.TINY_BYTES)
    found, _ = outcomes(two, cells, stub.train_on_file)
    assert not any(isinstance(outcome, str) for outcome in found.values())


def test_reasons_order_and_where_it_was_trained(two, tmp_path):
    ledger = str(tmp_path / "ledger")
    cells = [stub.cell(rate=r, ledger=ledger, timed=True) for r in (0.7, 0.8, 0.9)]
    cells += [stub.cell(rate=r, ledger=ledger, sleep=0.7) for r in (0.1, 0.2)]
    cells += [stub.cell(rate=0.3, fail=True), stub.cell(rate=0.4, ledger=lambda: None)]
    found, said = outcomes(two, cells)
    assert found[0.3] == "ValueError: the loss became NaN at step 3"
    assert [rate for rate, outcome in found.items() if isinstance(outcome, str)] == [0.3, 0.4]
    order = [float(line.split()[0]) for line in stub.read_ledger(ledger)]
    assert order[2:] == [0.7, 0.8, 0.9]
    assert len({pid for rate, pids in tries(ledger).items() if rate >= 0.7 for pid in pids}) == 1
    assert found[0.1].notes[-1].startswith("trained by a Dask worker: system ")


def test_a_worker_trains_one_cell_at_a_time(dask, tmp_path):
    """Even one that has several threads."""
    dask.kill_workers()
    dask.add_worker("--nthreads", "2")
    ledger = str(tmp_path / "ledger")
    cells = [stub.cell(rate=r / 10, ledger=ledger, sleep=0.5) for r in range(1, 4)]
    with ask(dask) as client:
        wait_for(lambda: len(client.nthreads()) == 1)
    began = time.monotonic()
    found, _ = outcomes(dask, cells)
    assert time.monotonic() - began >= 1.5
    assert not any(isinstance(outcome, str) for outcome in found.values())
    dask.kill_workers()


def test_cells_run_with_one_thread(two):
    found, _ = outcomes(two, [stub.cell(rate=0.1)], stub.threads)
    assert found[0.1] == "RuntimeError: {1} 1"


def test_a_deadline_takes_back_what_was_asked_for(two, tmp_path):
    ledger = str(tmp_path / "ledger")
    cells = [
        stub.cell(rate=r / 10, ledger=ledger, sleep=0.0 if r == 1 else 6.0) for r in range(1, 6)
    ]
    found, _ = outcomes(two, cells, deadline=time.monotonic() + 3.0)
    assert list(found) == [0.1]
    with ask(two) as client:
        wait_for(
            lambda: not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
        )
        wait_for(
            lambda: (
                not any(client.run(lambda dask_worker: dask_worker.state.executing_count).values())
            )
        )
    assert max(tries(ledger)) < 0.5  # nothing new was begun


# Workers that die


def processes(ledger):
    """Every process that has tried a cell."""
    return {pid for pids in tries(ledger).values() for pid in pids}


def test_a_worker_killed_in_mid_task(two, tmp_path):
    ledger, gate = tmp_path / "ledger", tmp_path / "gate"
    cells = [stub.cell(rate=r / 10, ledger=str(ledger), until=str(gate)) for r in range(1, 6)]
    victim = two.workers[0].pid

    def kill():
        wait_for(lambda: len(processes(ledger)) == 2)
        os.kill(victim, signal.SIGKILL)
        gate.touch()

    killer = threading.Thread(target=kill)
    killer.start()
    found, said = outcomes(two, cells)
    killer.join()
    assert "failed" not in said
    for cell in cells:
        alone = attempt(stub.train, stub.cell(rate=cell.arm.rate))
        assert [run.curve for run in found[cell.arm.rate].networks] == [
            run.curve for run in alone.networks
        ]
    seen = tries(ledger)
    again = [rate for rate, pids in seen.items() if len(pids) > 1]
    assert len(again) == 1
    assert seen[again[0]][0] == victim
    assert len(seen[again[0]]) == 2


def test_all_workers_gone_it_waits_says_so_and_goes_on(two, tmp_path):
    ledger, gate = tmp_path / "ledger", tmp_path / "gate"
    cells = [stub.cell(rate=r / 10, ledger=str(ledger), until=str(gate)) for r in range(1, 4)]

    def disaster():
        wait_for(lambda: len(processes(ledger)) == 2)
        two.kill_workers()
        gate.touch()
        time.sleep(3.0)
        two.add_worker()

    thread = threading.Thread(target=disaster)
    thread.start()
    found, said = outcomes(two, cells)
    thread.join()
    assert not any(isinstance(outcome, str) for outcome in found.values())
    lines = [line for line in said.splitlines() if "%" not in line]
    assert lines[0].startswith(f"no workers at {two.address}: waiting for one (dask worker ")
    assert lines[1:] == ["the workers continue"]
    assert sorted(len(pids) for pids in tries(ledger).values()) == [1, 2, 2]


@pytest.mark.parametrize("fixed", [False, True], ids=["new address", "same address"])
def test_a_cell_that_always_kills_is_given_up_and_the_rest_finishes(dask, tmp_path, fixed):
    """A nanny starts the worker again each time; with a fixed port it comes back at the address of
    the dead one. The scheduler gives up after three deaths more."""
    dask.kill_workers()
    dask.add_worker(*(("--worker-port", str(free_port())) if fixed else ()), nanny=True)
    ledger = str(tmp_path / "ledger")
    cells = [stub.cell(rate=0.9, ledger=ledger, die=True)]
    cells += [stub.cell(rate=r, ledger=ledger) for r in (0.1, 0.2)]
    try:
        found, said = outcomes(dask, cells)
    finally:
        dask.kill_workers()
    assert re.match("KilledWorker: .* 4 different workers.* died while running it", found[0.9])
    assert not isinstance(found[0.1], str)
    assert not isinstance(found[0.2], str)
    seen = tries(ledger)
    assert len(seen[0.9]) == len(set(seen[0.9])) == 4
    assert len(seen[0.1]) == len(seen[0.2]) == 1
    assert said.count("failed: ") == 1


# Clusters that cannot be used


def test_a_worker_with_other_code_ends_the_study(two, monkeypatch):
    real = store_module.code_version
    monkeypatch.setattr(store_module, "code_version", lambda *files: f"another than {real(*files)}")
    with pytest.raises(
        LabError, match=r"^the worker tcp://\S+ has another torch or other code of .*; install the"
    ):
        outcomes(two, [stub.cell()], train)


def test_a_trainer_that_workers_cannot_import_is_a_reason(two, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def train(cell, tell): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    found, _ = outcomes(two, [stub.cell(rate=0.1)], only_here.train)
    assert found[0.1] == "ModuleNotFoundError: No module named 'only_here'"


def test_no_scheduler_there(monkeypatch):
    monkeypatch.setattr(executors, "TIMEOUT", 0.5)
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(
        LabError, match=rf"no Dask scheduler answers at {address} \(.*\); check the address"
    ):
        parse_workers(f"dask:{address}")


def test_a_command_without_scheduler_is_one_sentence_and_writes_nothing(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(executors, "TIMEOUT", 0.5)
    out = tmp_path / "out"
    workers = f"dask:tcp://127.0.0.1:{free_port()}"
    assert cli.run(["reproduce", "table1", "--workers", workers, "--out", str(out)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("rlploss: no Dask scheduler answers at tcp://127.0.0.1")
    assert printed.count("\n") == 1
    assert not out.exists()


def test_a_scheduler_that_dies_is_told(tmp_path):
    own = Cluster(tmp_path)
    try:
        workers = parse_workers(f"dask:{own.address}")
        assert workers.count == 1
        threading.Timer(2.0, own.close).start()
        with pytest.raises(LabError, match=r"no Dask scheduler answers at tcp://.* same command"):
            stub.outcomes([stub.cell()], workers)
    finally:
        own.close()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(
        MissingExtra, match=r"dask:.* needs distributed, .*: pip install 'rlploss\[cluster\]'"
    ):
        parse_workers("dask:tcp://127.0.0.1:1")


def test_dask_is_imported_only_when_it_is_used():
    tree = ast.parse(Path(executors.__file__).read_text())
    top = {getattr(node, "module", "") for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith(("distributed", "dask")) for name in top)
