"""`make results`: rows are packed, pages come from the packed rows, and a changed number is
noticed."""

import importlib.util
import sys
from pathlib import Path

import pytest

from rlploss.lab.store import FILE, Store

pytestmark = pytest.mark.slow


@pytest.fixture
def results(tmp_path, monkeypatch):
    path = Path(__file__).parents[1] / "docs" / "run_results.py"
    spec = importlib.util.spec_from_file_location("run_results", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    small = ("table1", "propositions", "--scale", "smoke", "--datasets", "linear", "--seeds", "2")
    monkeypatch.setattr(module, "STUDIES", {"paper": ("reproduce", *small)})
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    return module


def test_a_study_is_packed_resumed_elsewhere_and_checked(results, tmp_path):
    results.make("paper")
    packed = tmp_path / "results" / "rows" / "paper.sqlite.xz"
    pages = tmp_path / "results" / "paper"
    assert (pages / "report.html").exists()
    assert (pages / "commit.txt").read_text()
    results.unpack(packed, tmp_path / "elsewhere")
    with Store(tmp_path / "elsewhere", code_version="", create=False) as store:
        n_cells = len([*store.every_cell()])
        values = [v for *_, ns in store.every_cell() for n in ns for v in n.curve.get("mse", ())]
    assert n_cells > 3
    assert all(value == float(f"{value:.5g}") for value in values)
    # Another machine has the committed rows only: nothing is trained again.
    (tmp_path / "build" / "paper" / FILE).unlink()
    results.make("paper")
    results.unpack(packed, tmp_path / "again")
    with Store(tmp_path / "again", code_version="", create=False) as store:
        assert len([*store.every_cell()]) == n_cells

    table = next(path for path in (pages / "tables").iterdir() if path.name == "table1.csv")
    table.write_text(table.read_text().replace("linear", "lineal"))
    with pytest.raises(SystemExit, match=r"table1\.csv is not what the rows"):
        results.check("paper")


def test_a_number_that_training_does_not_give_is_noticed(results, tmp_path, monkeypatch):
    results.make("paper")
    monkeypatch.setattr(results, "rounded", lambda value: value)  # now bits are compared
    with pytest.raises(SystemExit, match="has other numbers when it is trained again"):
        results.check("paper")
