import math
import os
import sqlite3
import stat
import subprocess
import sys
from functools import partial

import filelock
import numpy as np
import pytest
from tests.lab import stub

from rlploss import Adam, Epochs, Pointwise
from rlploss.lab import store as store_module
from rlploss.lab.store import Store, StoreError
from rlploss.lab.study import Arm, Cell, CellResult, Task, TrainedNetwork


def result_of(cell):
    return stub.train(cell, lambda fraction: None)


def test_a_cell_reads_back_bit_for_bit(tmp_path):
    cell = stub.cell(rate=0.3)
    with Store(tmp_path / "out", code_version="e") as store:
        assert not store.has(cell)
        assert store.read(cell) is None
        store.write(cell, result_of(cell))
    with Store(tmp_path / "out", code_version="e") as store:
        read = store.read(cell)
    written = result_of(cell)
    assert [dict(r.curve) for r in read.networks] == [dict(r.curve) for r in written.networks]
    assert np.array_equal(read.networks[1].artifacts["grid"], written.networks[1].artifacts["grid"])
    assert read.provenance["engine"] == "none"
    assert read.final("size").tolist() == [7.0, 7.0, 7.0]
    assert read.provenance["threads"] == 1
    assert {"python", "torch", "numpy", "rlploss"} <= set(read.provenance["versions"])


def test_non_finite_values_read_back_as_nan(tmp_path):
    cell = stub.cell(seeds=(0,))
    curve = {"step": [1.0, 2.0], "mse": [math.inf, math.nan]}
    with Store(tmp_path, code_version="e") as store:
        store.write(
            cell,
            CellResult((TrainedNetwork(0, 0, curve, 0.1, {"score": math.nan}),), "none", 1, 0.1),
        )
        assert np.isnan(store.read(cell).matrix("mse")).all()
        assert np.isnan(store.read(cell).final("score")).all()


def test_a_cell_is_written_whole_and_once(tmp_path):
    cell = stub.cell()
    whole = result_of(cell)
    with Store(tmp_path, code_version="e") as store:
        with pytest.raises(ValueError, match="a cell is stored whole: expected 3 networks"):
            store.write(cell, CellResult(whole.networks[:2], "none", 1, 0.1))
        assert not store.has(cell)
        store.write(cell, whole)
        with pytest.raises(StoreError, match="UNIQUE"):
            store.write(cell, whole)
        for statement in ("UPDATE cell SET networks = ''", "DELETE FROM cell"):
            with pytest.raises(sqlite3.IntegrityError, match=r"written once|kept"):
                store._connection.execute(statement)
        assert len(store.read(cell).networks) == 3


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    cell = stub.cell()

    def failing(result):
        raise KeyboardInterrupt

    with Store(tmp_path, code_version="e") as store:
        monkeypatch.setattr(store_module, "networks_json", failing)
        with pytest.raises(KeyboardInterrupt):
            store.write(cell, result_of(cell))
        assert not store.has(cell)
        monkeypatch.undo()
        monkeypatch.setattr(store_module, "_now", lambda: None)  # which no row may have
        with pytest.raises(StoreError, match="NOT NULL"):
            store.write(cell, result_of(cell))
        assert not store.has(cell)
        monkeypatch.undo()
        store.write(cell, result_of(cell))
        assert store.has(cell)


def test_rows_of_other_code_are_kept_and_told_apart(tmp_path):
    cell = stub.cell()
    with Store(tmp_path, code_version="old") as store:
        store.write(cell, result_of(cell))
    with Store(tmp_path, code_version="new") as store:
        assert not store.has(cell)
        assert store.foreign_cells() == 1
        store.write(cell, result_of(cell))
        assert store.foreign_cells() == 1
        assert len(list(store.costs())) == 2
    with Store(tmp_path, code_version="old") as store:
        assert store.has(cell)


def test_failures_are_remembered_until_the_cell_succeeds(tmp_path):
    cell = stub.cell()
    with Store(tmp_path, code_version="e") as store:
        assert store.failure(cell) is None
        store.write_failure(cell, "no data")
        store.write_failure(cell, "diverged")
        assert store.failure(cell) == "diverged"
        assert not store.has(cell)
        store.write(cell, result_of(cell))
        assert store.failure(cell) is None


def test_requests_are_remembered_in_order(tmp_path):
    with Store(tmp_path, code_version="e") as store:
        store.write_request("table1", {"scale": "smoke"})
        store.write_request("table2", {"scale": "smoke"})
    with Store(tmp_path, code_version="e", create=False) as store:
        assert store.requests() == {"table1": {"scale": "smoke"}, "table2": {"scale": "smoke"}}


def test_a_second_process_says_so_and_stops(tmp_path):
    code = (
        "import sys; from rlploss.lab.store import Store\n"
        "try: Store(sys.argv[1], code_version='e')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    with Store(tmp_path, code_version="e"):
        printed = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
        ).stdout
        # versions of filelock before 4 empty the file in which the number stands
        number = f" (process {os.getpid()})" if int(filelock.__version__.split(".")[0]) >= 4 else ""
        assert printed.startswith(f"StoreError another rlploss{number} is working in")
        with pytest.raises(StoreError, match="wait for it or choose another directory"):
            Store(tmp_path, code_version="e")
    Store(tmp_path, code_version="e").close()


def _damage(path, kind):
    if kind == "text":
        path.write_text("not a database, only some words " * 20)
    elif kind == "short":
        path.write_bytes(b"SQLite format 3\0")
    elif kind == "byte":
        path.write_bytes(b"S")
    elif kind == "foreign":
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE t (a)")
        connection.close()
    else:
        with Store(path.parent, code_version="e") as store:
            for rate in (0.1, 0.2, 0.3):
                cell = stub.cell(rate=rate, n=500)
                store.write(cell, result_of(cell))
            if kind == "older":
                store._connection.execute("PRAGMA user_version = 0")
            elif kind == "newer":
                store._connection.execute("PRAGMA user_version = 9")
        if kind == "truncated":
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("text", "is damaged or truncated .file is not a database"),
        ("short", "is damaged or truncated .file is not a database"),
        ("byte", "is empty or of another program"),
        ("foreign", "is empty or of another program"),
        ("older", "has schema version 0, an older one"),
        ("newer", "has schema version 9, a newer one"),
        ("truncated", "is damaged or truncated"),
    ],
)
def test_files_that_are_not_a_good_store_are_named_and_left_alone(tmp_path, kind, text):
    path = tmp_path / store_module.FILE
    _damage(path, kind)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=text) as caught:
        Store(tmp_path, code_version="e")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    Store(tmp_path / "another", code_version="e").close()


def test_directories_that_cannot_be_ours(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file, not a directory"):
        Store(tmp_path / "file", code_version="e")
    with pytest.raises(StoreError, match="is not empty and was not made by rlploss"):
        Store(tmp_path, code_version="e")
    with pytest.raises(StoreError, match=r"holds no runs\.sqlite"):
        Store(tmp_path / "nothing", code_version="e", create=False)
    with pytest.raises(StoreError, match="cannot create"):
        Store(tmp_path / "file" / "below", code_version="e")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() == 0, reason="root may write to read-only directories"
)
def test_a_read_only_directory_is_one_sentence(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(StoreError, match="may write to"):
            Store(tmp_path, code_version="e")
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_an_interrupted_creation_is_started_again(tmp_path):
    (tmp_path / store_module.FILE).touch()
    with Store(tmp_path, code_version="e") as store:
        assert store.requests() == {}


def halved(pred, target):
    return (pred - target).abs() / 2


def test_functions_are_stored_by_name_and_others_are_refused(tmp_path):
    def with_loss(function):
        return Cell(
            Arm("own", Pointwise(function), Adam()),
            Task("t", "linear", "regression"),
            Epochs(1),
            (0,),
        )

    with Store(tmp_path, code_version="e") as store:
        assert not store.has(with_loss(halved))
        for refused in (lambda pred, target: pred, partial(halved)):
            with pytest.raises(
                ValueError,
                match=r"a store keeps functions by name, got .*; define it there with def",
            ):
                store.has(with_loss(refused))
        store.write(
            with_loss(halved), CellResult((TrainedNetwork(0, 0, {}, 0.1),), "torch", 1, 0.1)
        )
        assert store.has(with_loss(halved))
        assert (
            list(store.costs()) == []
        )  # a stored function is never loaded, so nobody can plant one


@pytest.mark.parametrize(
    ("asked", "trained", "maker"),
    [("table1", True, "reproduce"), ("survey", False, "survey"), ("", True, "compare")],
)
def test_what_another_command_made_is_refused(tmp_path, asked, trained, maker):
    with Store(tmp_path / "out", code_version="e") as store:
        if asked:
            store.write_request(asked, {})
        if trained:
            store.write(stub.cell(), result_of(stub.cell()))
        store.refuse_others(maker)
        for other in {"reproduce", "survey", "compare"} - {maker}:
            with pytest.raises(
                StoreError, match=f"holds what `rlploss {maker}` made; choose another directory"
            ):
                store.refuse_others(other)
