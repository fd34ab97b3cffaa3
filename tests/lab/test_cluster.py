"""Studies on a real Dask cluster of the loopback: equal tables, data sent once, and workers that die."""

import ast
import csv
import hashlib
import io
import json
import os
import signal
import sqlite3
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from tests.lab import stub
from tests.lab.dask_cluster import Cluster, free_port, wait_for

from rlploss import cli
from rlploss._extras import MissingExtra
from rlploss.datasets import registry
from rlploss.lab import cluster
from rlploss.lab.cluster import ClusterError, DaskWorkers
from rlploss.lab.run import execute, plan
from rlploss.lab.store import Store
from rlploss.lab.train import train
from rlploss.lab.workers import one_thread, parse_workers

pytestmark = pytest.mark.slow  # processes that find each other

Client = pytest.importorskip("distributed").Client


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A dataset with a file, which the driver knows and has not got."""
    monkeypatch.setitem(registry.ENTRIES, "tiny", stub.TINY)
    monkeypatch.setenv("RLPLOSS_DATA", str(tmp_path))
    return tmp_path / "tiny" / stub.TINY.files[0].name


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


def start(workers, cells, train=stub.train):
    """Outcomes, what was told and what was said; the outcomes come as they are asked for."""
    told, said = [], []
    return workers.run(train, cells, tell=lambda *t: told.append(t), say=said.append), told, said


def by_rate(outcomes, cells):
    found = list(outcomes)
    assert len(found) == len(cells)
    assert {o.cell for o in found} == set(cells)
    return {o.cell.arm.rate: o for o in found}


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
            found[path.name] = [[cell for i, cell in enumerate(line) if i not in seconds] for line in lines]
    assert found
    return found


def rows(out):
    """Everything stored but seconds, in an order of its own."""
    with closing(sqlite3.connect(out / "runs.sqlite")) as file:
        found = file.execute(
            "SELECT spec_hash, code_version, seed, variant, curve FROM cell JOIN network ON network.cell = cell.id "
            "ORDER BY 1, 2, 3, 4"
        ).fetchall()
    assert len(found) == len({row[:4] for row in found})
    return [(*row[:4], {k: v for k, v in json.loads(row[4]).items() if k != "seconds"}) for row in found]


def test_reproduce_gives_the_local_tables_byte_for_byte(two, tmp_path, capsys):
    command = ["reproduce", "table1", "--scale", "smoke", "--datasets", "linear", "--arms", "mse,rlp"]
    for place, workers in (("here", "local:1"), ("there", f"dask:{two.address}")):
        assert cli.run([*command, "--workers", workers, "--out", str(tmp_path / place)]) == 0
    assert "on 2 cores" in capsys.readouterr().out
    assert tables(tmp_path / "here") == tables(tmp_path / "there")
    assert rows(tmp_path / "here") == rows(tmp_path / "there")


def test_compare_gives_the_local_rows(two, tmp_path, monkeypatch):
    """The table is sent with the trainer; the report is made from the rows."""
    from rlploss.compare import compare

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = X @ [1, 2, 3] + rng.normal(size=40)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y}).to_csv("t.csv", index=False)
    command = ["compare", "t.csv", "--target", "y", "--splits", "2", "--steps", "20", "--arms", "mse,rlp,ridge"]
    assert cli.run([*command, "--workers", f"dask:{two.address}", "--out", "there"]) == 0
    table = pd.read_csv("t.csv")
    with one_thread():
        compare(table[["a", "b", "c"]], table["y"], arms=["mse", "rlp", "ridge"], n_splits=2, steps=20, out="here")
    assert len(rows(tmp_path / "here")) == 6
    assert rows(tmp_path / "here") == rows(tmp_path / "there")


# Data


def test_data_travel_once_per_worker(two, tiny, tmp_path, monkeypatch):
    """The workers have no cache; the driver's holds the file."""
    tiny.parent.mkdir()
    tiny.write_bytes(stub.TINY_BYTES)
    ledger = str(tmp_path / "ledger")
    cells = [stub.cell("mse", dataset="tiny", rate=r / 10, ledger=ledger, sleep=0.2) for r in range(1, 9)]
    tasks, sent = [], []
    submit, scatter = Client.submit, Client.scatter
    monkeypatch.setattr(
        Client,
        "submit",
        lambda self, f, task, *data, **kw: tasks.append(len(task)) or submit(self, f, task, *data, **kw),
    )
    monkeypatch.setattr(
        Client, "scatter", lambda self, data, **kw: sent.append((*kw["workers"], *data)) or scatter(self, data, **kw)
    )
    outcomes, _, _ = start(DaskWorkers(two.address), cells, stub.train_on_file)
    first = next(outcomes)
    with ask(two) as client:  # while the study runs: afterwards the cluster forgets the data
        held = client.has_what()
        received = client.run(lambda dask_worker: [set(log["keys"]) for log in dask_worker.transfer_incoming_log])
    assert all(o.error is None for o in by_rate([first, *outcomes], cells).values())
    assert len({pid for pids in tries(ledger).values() for pid in pids}) == 2
    assert len(tasks) == 8
    assert max(tasks) < 5_000
    assert len(sent) == len(set(sent)) == 4, "the file and the trainer went to each worker once"
    assert sum(stub.TINY.files[0].sha256 in name for _, name in sent) == 2
    assert {name for names in held.values() for name in names} >= {name for _, name in sent}
    assert not any("rlploss-data" in str(keys) for keys in received.values()), "workers need not reach each other"
    with ask(two) as client:
        wait_for(lambda: not any(client.has_what().values()))


def test_a_dataset_that_cannot_be_had_fails_its_cells_only(two, tiny):
    cells = [stub.cell(dataset="tiny", rate=0.1), stub.cell(rate=0.2)]
    outcomes, _, _ = start(DaskWorkers(two.address), cells)
    found = by_rate(outcomes, cells)
    assert found[0.1].error.startswith("DatasetUnavailable: tiny: no source could deliver tiny.csv")
    assert found[0.2].error is None


def test_data_that_arrive_changed_are_refused():
    key = hashlib.sha256(b"a").hexdigest()
    cluster.check_arrived({key: b"a"})
    with pytest.raises(ValueError, match=r"data with SHA-256 x were sent, but .* arrived; check the network"):
        cluster.check_arrived({key: b"a", "x": b"a"})


def test_lent_files_are_found_before_any_cache(tiny):
    with registry.lent({stub.TINY.files[0].sha256: stub.TINY_BYTES}):
        assert registry.load("tiny").X.shape == (50_000, 1)
    with pytest.raises(OSError, match="tiny"):
        registry.load("tiny")


# Progress, failures, order


def test_progress_reasons_and_timed_cells(two, tmp_path):
    ledger = str(tmp_path / "ledger")
    cells = [stub.cell(rate=r, ledger=ledger, timed=True) for r in (0.7, 0.8, 0.9)]
    cells += [stub.cell(rate=r, ledger=ledger, sleep=0.7) for r in (0.1, 0.2)] + [stub.cell(rate=0.3, fail=True)]
    outcomes, told, said = start(DaskWorkers(two.address), cells)
    found = by_rate(outcomes, cells)
    assert found[0.3].error == "ValueError: the loss became NaN at step 3"
    assert [rate for rate, outcome in found.items() if outcome.error] == [0.3]
    assert {(cell.arm.rate, done) for cell, done in told} >= {(0.1, 0.5), (0.2, 0.5)}
    order = [float(line.split()[0]) for line in stub.read_ledger(ledger)]
    assert order[2:] == [0.7, 0.8, 0.9]
    assert len({pid for rate, pids in tries(ledger).items() if rate >= 0.7 for pid in pids}) == 1
    assert said == []
    assert found[0.1].result.notes[-1].startswith("trained by a Dask worker: system ")


def test_cells_run_with_one_thread(two):
    outcomes, _, _ = start(DaskWorkers(two.address), [stub.cell(rate=0.1)], stub.threads)
    assert next(outcomes).error == "RuntimeError: {1} 1"
    outcomes.close()


def test_closing_stops_the_work(two, tmp_path):
    ledger = str(tmp_path / "ledger")
    cells = [stub.cell(rate=r / 10, ledger=ledger, sleep=0.0 if r == 1 else 600.0) for r in range(1, 6)]
    outcomes, _, _ = start(DaskWorkers(two.address), cells)
    with closing(outcomes):
        assert next(outcomes).cell == cells[0]
    with ask(two) as client:
        wait_for(lambda: not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))
        wait_for(lambda: not any(client.run(lambda dask_worker: dask_worker.state.executing_count).values()))
    assert max(tries(ledger)) < 0.5  # nothing new was begun


# Workers that die


def processes(ledger):
    """Every process that has tried a cell."""
    return {pid for pids in tries(ledger).values() for pid in pids}


def test_a_worker_killed_in_mid_task(two, tmp_path):
    ledger, gate = tmp_path / "ledger", tmp_path / "gate"
    cells = [stub.cell(rate=r / 10, ledger=str(ledger), until=str(gate)) for r in range(1, 6)]
    console = Console(file=io.StringIO(), width=300)
    victim = two.workers[0].pid

    def kill():
        wait_for(lambda: len(processes(ledger)) == 2)
        os.kill(victim, signal.SIGKILL)
        gate.touch()

    killer = threading.Thread(target=kill)
    killer.start()
    workers = DaskWorkers(two.address)
    with Store(tmp_path / "out", code_version="e") as store:
        done = execute(
            plan(cells, store, cost=lambda cell: 1.0, workers=workers),
            store, train=stub.train, workers=workers, console=console,
        )  # fmt: skip
        killer.join()
        assert done.trained == 5
        assert done.failed == {}
        for cell in cells:
            assert [run.curve for run in store.read(cell).networks] == [
                dict(run.curve) for run in stub.train(stub.cell(rate=cell.arm.rate), print).networks
            ]
    seen = tries(ledger)
    again = [rate for rate, pids in seen.items() if len(pids) > 1]
    assert len(again) == 1
    assert seen[again[0]][0] == victim
    assert len(seen[again[0]]) == 2
    assert "was lost; toy · released · mse · 4 epochs is tried again (2 of 3)" in console.file.getvalue()


def test_all_workers_gone_it_waits_says_so_and_goes_on(two, tmp_path):
    ledger, gate = tmp_path / "ledger", tmp_path / "gate"
    cells = [stub.cell(rate=r / 10, ledger=str(ledger), until=str(gate)) for r in range(1, 4)]
    outcomes, _, said = start(DaskWorkers(two.address), cells)

    def disaster():
        wait_for(lambda: len(processes(ledger)) == 2)
        two.kill_workers()
        gate.touch()
        wait_for(lambda: any(text.startswith(f"no workers at {two.address}: waiting for one") for text in said))
        two.add_worker()

    thread = threading.Thread(target=disaster)
    thread.start()
    found = by_rate(outcomes, cells)
    thread.join()
    assert all(outcome.error is None for outcome in found.values())
    assert said[-1] == "a worker has come: going on"
    assert sum("was lost" in text for text in said) == 2
    assert sorted(len(pids) for pids in tries(ledger).values()) == [1, 2, 2]


def allow_failures(dask, number):
    """The scheduler's own limit, 3 unless it is told otherwise."""
    with ask(dask) as client:
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", number))


@pytest.mark.parametrize("fixed", [False, True], ids=["new address", "same address"])
def test_a_cell_that_always_kills_is_given_up_and_the_rest_finishes(dask, tmp_path, fixed):
    """A nanny starts the worker again each time; with a fixed port it comes back at the address of the dead one.

    A cluster that allows no failures gives tasks up at once; the driver still tries three times.
    """
    dask.kill_workers()
    allow_failures(dask, 3 if fixed else 0)
    dask.add_worker(*(("--worker-port", str(free_port())) if fixed else ()), nanny=True)
    ledger = str(tmp_path / "ledger")
    cells = [stub.cell(rate=0.9, ledger=ledger, die=True)]
    cells += [stub.cell(rate=r, ledger=ledger) for r in (0.1, 0.2)]
    try:
        outcomes, _, said = start(DaskWorkers(dask.address), cells)
        found = by_rate(outcomes, cells)
    finally:
        dask.kill_workers()
        allow_failures(dask, 3)
    assert "was lost, as in each of 3 tries" in found[0.9].error
    assert found[0.1].error is None
    assert found[0.2].error is None
    seen = tries(ledger)
    assert len(seen[0.9]) == len(set(seen[0.9])) == 3
    assert len(seen[0.1]) == len(seen[0.2]) == 1
    assert sum("is tried again" in text for text in said) == 2


# Clusters that cannot be used


def test_a_worker_with_other_code_is_left_aside(two, monkeypatch):
    monkeypatch.setattr(cluster.store, "code_version", lambda root: "another")
    outcomes, _, said = start(DaskWorkers(two.address), [stub.cell()], train)
    with pytest.raises(
        ClusterError, match=r"no worker at tcp://.* can be used: its rlploss has other code .*; install the same"
    ):
        next(outcomes)
    assert len(said) == 2
    assert all(
        "is left aside: its rlploss has other code than the driver's; install the same there" in text for text in said
    )


def test_versions_that_differ_are_named():
    driver = {**cluster.versions("rlploss.lab.train"), "torch": "1.0", "code": "another"}
    with pytest.raises(ImportError, match=r"it has torch 2.*, the driver 1\.0; install the same there"):
        cluster.check_code("rlploss.lab.train", driver)


def test_a_trainer_that_workers_cannot_import_is_a_reason(two, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def train(cell, tell): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    outcomes, _, _ = start(DaskWorkers(two.address), [stub.cell()], only_here.train)
    assert next(outcomes).error == "ModuleNotFoundError: No module named 'only_here'"
    outcomes.close()


def test_no_scheduler_there(monkeypatch):
    monkeypatch.setattr(cluster, "TIMEOUT", 0.5)
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(
        ClusterError, match=rf"no Dask scheduler answered at {address} within 0.5 s \(.*\); check the address"
    ):
        DaskWorkers(address)


def test_a_command_without_scheduler_is_one_sentence_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cluster, "TIMEOUT", 0.5)
    out = tmp_path / "out"
    workers = f"dask:tcp://127.0.0.1:{free_port()}"
    assert cli.run(["reproduce", "table1", "--workers", workers, "--out", str(out)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("rlploss: no Dask scheduler answered at tcp://127.0.0.1")
    assert printed.count("\n") == 1
    assert not out.exists()


def test_a_scheduler_that_dies_is_told(tmp_path):
    own = Cluster(tmp_path)
    try:
        workers = DaskWorkers(own.address)
        assert workers.count == 1
        said = []

        def say(text):
            said.append(text)
            own.close()

        with pytest.raises(ClusterError, match=r"scheduler at tcp://.* does not answer any more .* same command"):
            list(workers.run(stub.train, [stub.cell()], tell=print, say=say))
        assert "no workers at" in said[0]
    finally:
        own.close()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"dask:.* needs distributed, .*: pip install 'rlploss\[cluster\]'"):
        parse_workers("dask:tcp://127.0.0.1:1")


def test_dask_is_imported_only_when_it_is_used():
    tree = ast.parse(Path(cluster.__file__).read_text())
    top = {getattr(node, "module", "") for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith(("distributed", "dask")) for name in top)
