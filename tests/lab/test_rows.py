"""All rows as one long table; and rows of older code, which this code may use once it gives them
again."""

import csv
import dataclasses
import io
import math

import numpy as np
import pytest
from rich.console import Console
from tests.lab import stub

from rlploss import RLP, Adam, Epochs
from rlploss.lab import run, train
from rlploss.lab.executors import parse_workers
from rlploss.lab.report import write_csv
from rlploss.lab.run import Study, declare_equal, difference
from rlploss.lab.store import Store, networks_json
from rlploss.lab.study import Arm, Cell, Task, Variant
from rlploss.lab.text import LabError


@pytest.fixture(autouse=True)
def asked_for(monkeypatch, request):
    """Who was asked to train; it is this process, because others take seconds to start."""
    asked = []

    def here(text):
        asked.append(text)
        return parse_workers("inline")

    if "slow" not in request.keywords:
        monkeypatch.setattr(run, "parse_workers", here)
    return asked


CELLS = [stub.cell(rate=rate / 20) for rate in range(1, 14)]


def result_of(cell):
    return stub.train(cell, lambda fraction: None)


def fill(out, code, cells):
    with Store(out, code_version=code) as store:
        for cell in cells:
            store.write(cell, result_of(cell))
    return store


def table(store):
    write_csv(store, Console(file=io.StringIO()))
    return [*csv.DictReader(io.StringIO((store.directory / "rows.csv").read_text("utf-8")))]


def check(store, cells=CELLS, trainer=stub.train):
    said = Console(file=io.StringIO(), width=300)
    study = Study(store.code_version, lambda: cells, lambda cell: 1.0, lambda: trainer)
    declare_equal(store, study, said)
    return said.file.getvalue()


def test_every_number_is_a_row_of_the_long_table(tmp_path):
    cells = [stub.cell(rate=0.3), stub.cell("=mae", seeds=(4,))]
    fill(tmp_path, "old", cells[:1])
    with Store(tmp_path, code_version="e") as store:
        store.write(cells[1], result_of(cells[1]))
        lines = table(store)
    assert len(lines) == (3 + 1) * (4 * 4 + 1)
    for cell, code in zip(cells, ("old", "e"), strict=True):
        for network in result_of(cell).networks:
            mine = [line for line in lines if (line["cell"], line["seed"]) == (cell.hash, str(network.seed))]  # fmt: skip
            assert {line["code_version"] for line in mine} == {code}
            assert {line["arm"] for line in mine} == {f"released · {cell.arm.name}"}
            for name in ("mse", "rlp", "epoch", "samples"):
                points = [line for line in mine if line["metric"] == name]
                assert [float(line["value"]) for line in points] == network.curve[name]
                assert [int(line["step"]) for line in points] == network.curve["step"]
                assert [float(line["seconds"]) for line in points] == network.curve["seconds"]
            (single,) = [line for line in mine if line["metric"] == "size"]
            assert (single["step"], float(single["value"])) == ("", 7.0)


def test_the_table_says_how_rows_were_drawn_and_keeps_gaps(tmp_path):
    task = Task("Linear", "linear", "regression", n_train=60, variants=(Variant(), Variant(shift=0.0), Variant(noise=0.5)))  # fmt: skip
    cell = Cell(Arm("RLP", RLP(50), Adam(), protocol="main"), task, Epochs(2), (0, 1))
    result = train.train(cell, lambda fraction: None)
    result.networks[0].curve["mse"][0] = math.inf
    with Store(tmp_path, code_version="e") as store:
        store.write(cell, result)
        lines = table(store)
    assert list(dict.fromkeys(line["split"] for line in lines)) == ["n_train=60", "n_train=60 shift=0.0", "n_train=60 noise=0.5"]  # fmt: skip
    assert {(line["task"], line["arm"]) for line in lines} == {("Linear", "main · RLP")}
    mse = [line["value"] for line in lines if line["metric"] == "mse"]
    assert mse[0] == "nan"
    assert np.isfinite([float(value) for value in mse[1:]]).all()


def test_rows_of_older_code_that_gives_the_same_bits_are_used(tmp_path):
    timed = stub.cell("timed", timed=True)
    fill(tmp_path, "older", [*CELLS, timed])
    with Store(tmp_path, code_version="new") as store:
        assert not any(map(store.has, CELLS))
        said = check(store, [*CELLS, timed])
        assert said.splitlines()[0] == "Training 10 of 13 cells of other code again."
        assert said.splitlines()[-1].startswith("Every bit is the same")
        assert all(map(store.has, CELLS))
        assert not store.has(timed)  # seconds belong to the code that took them
        assert store.read(timed) is None
        assert store.foreign_cells() == 1
        assert store.read(CELLS[0]).final("mse").tolist() == [
            network.curve["mse"][-1] for network in result_of(CELLS[0]).networks
        ]
    with Store(tmp_path, code_version="newer") as store:  # what is equal to an equal is equal
        assert not any(map(store.has, CELLS))
        for seconds, cell in enumerate(CELLS[:3], start=1000):
            store.write(cell, dataclasses.replace(result_of(cell), seconds=seconds))
        store.declare_equal("new")
        assert all(map(store.has, CELLS))
        assert [store.read(cell).seconds for cell in CELLS[:3]] == [1000, 1001, 1002]  # its own
    with Store(tmp_path, code_version="another") as store:
        assert not any(map(store.has, CELLS))


@pytest.mark.parametrize(("threads", "who"), [(1, "local"), (2, "inline")])
def test_cells_are_trained_again_with_as_many_threads(tmp_path, asked_for, threads, who):
    """Torch's sums round otherwise with other threads, and processes have one."""
    with Store(tmp_path, code_version="older") as store:
        for cell in CELLS:
            store.write(cell, dataclasses.replace(result_of(cell), threads=threads))
    with Store(tmp_path, code_version="new") as store:
        check(store)
    assert asked_for == [who]


@pytest.mark.slow
def test_processes_train_again_what_processes_have_trained(tmp_path):
    fill(tmp_path, "older", CELLS)
    with Store(tmp_path, code_version="new") as store:
        check(store)
        assert all(map(store.has, CELLS))


def worse(cell, tell):
    """As the stub, but for one bit of one seed of every cell."""
    result = stub.train(cell, tell)
    curve = result.networks[1].curve["mse"]
    curve[2] = float(np.nextafter(curve[2], 1.0))
    return result


@pytest.mark.parametrize("round_", range(3))
def test_one_bit_keeps_the_rows_apart(tmp_path, round_):
    fill(tmp_path, "older", CELLS)
    with Store(tmp_path, code_version="new") as store:
        with pytest.raises(LabError, match=r"mse · 4 epochs gives other numbers than before \(mse of seed 1: .* stored, .* now\); the older rows are not used"):  # fmt: skip
            check(store, trainer=worse)
        assert not any(map(store.has, CELLS))
        with pytest.raises(LabError, match=r"gives other numbers than before \(ValueError: no\)"):
            check(store, trainer=refuses)
        assert not any(map(store.has, CELLS))


def refuses(cell, tell):
    raise ValueError("no")


def test_ten_random_cells_are_trained_again(tmp_path, monkeypatch):
    chosen = set()

    def execute(todo, store, *, train, **options):
        assert len(todo.todo) == run.CHECKED == 10
        chosen.add(frozenset(cell.hash for cell in todo.todo))
        for cell in todo.todo:
            store.write(cell, result_of(cell))

    monkeypatch.setattr(run, "execute", execute)
    for number in range(5):
        fill(tmp_path / str(number), "older", CELLS)
        with Store(tmp_path / str(number), code_version="new") as store:
            check(store)
    assert len(chosen) > 1


@pytest.mark.parametrize(("code", "timed"), [("e", False), ("older", True)])
def test_nothing_to_declare_is_a_sentence(tmp_path, code, timed):
    fill(tmp_path, code, [stub.cell(timed=timed)])
    with (
        Store(tmp_path, code_version="e") as store,
        pytest.raises(LabError, match="has no rows of other code that this code could use; "),
    ):
        check(store, [stub.cell(timed=timed)])


@pytest.mark.parametrize("where", ["curve", "values", "artifacts"])
def test_a_difference_is_found_wherever_it_is(tmp_path, where):
    cell = stub.cell()
    with Store(tmp_path, code_version="e") as store:
        store.write(cell, result_of(cell))
        stored, now = store.read(cell), store.read(cell)
    assert difference(stored, now) == ""
    now.networks[2].curve["seconds"][0] += 1.0
    assert difference(stored, now) == ""
    changed = getattr(now.networks[2], where)
    name = {"curve": "rlp", "values": "size", "artifacts": "grid"}[where]
    changed[name] = np.nextafter(np.array(changed[name]), np.float32(9)).tolist() if where != "artifacts" else changed[name] + 1  # fmt: skip
    assert difference(stored, now).startswith(f"{name} of seed 2: ")


def test_minus_zero_is_not_zero_and_nan_is_nan():
    result = result_of(stub.cell(seeds=(0,)))
    curve = result.networks[0].curve
    curve["mse"] = [math.nan, 0.0, 1.0, 2.0]
    same = networks_json(result)
    assert networks_json(result) == same
    curve["mse"] = [math.nan, -0.0, 1.0, 2.0]
    assert networks_json(result) != same
