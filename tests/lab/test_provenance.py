import ast
import importlib
from pathlib import Path

import pytest

import rlploss
from rlploss.lab import store

PACKAGE = Path(rlploss.__file__).parent
TRAINERS = ("lab.train", "paper.measure", "compare.train", "survey.run")
# What trainers import and no number comes from: input is checked, files are written and fetched,
# cells are stored and named, words are found. Their options are in a cell's spec.
NO_NUMBERS = {
    *("__init__", "_api", "_checks", "_extras", "_files", "_progress", "_values", "_version"),
    *("datasets/__init__", "datasets/sources", "datasets/transfers"),
    *("compare/__init__", "compare/doubts", "compare/design", "compare/read"),
    *("lab/__init__", "lab/cost", "lab/store", "lab/study", "lab/text"),
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    root = tmp_path / "rlploss"
    (root / "lab").mkdir(parents=True)
    for name in ("a.py", "lab/b.py", "lab/c.py"):
        (root / name).write_text("X = 1\n")
    monkeypatch.setattr(store, "__file__", str(root / "lab" / "store.py"))
    store.code_version.cache_clear()
    yield root
    store.code_version.cache_clear()


def version():
    store.code_version.cache_clear()
    return store.code_version("a.py", "lab/*.py")


@pytest.mark.parametrize("name", ["a.py", "lab/b.py", "lab/c.py"])
def test_each_file_that_decides_changes_the_version_and_others_do_not(package, name):
    before = version()
    (package / "words.py").write_text("X = 1\n")
    assert version() == before
    (package / name).write_text("X = 2\n")
    assert version() != before
    (package / name).write_text("X = 1\n")
    assert version() == before
    (package / name).rename(package / "lab" / "d.py")  # the name of a file counts too
    (package / "a.py").touch()
    assert version() != before


def test_another_torch_changes_the_version(package, monkeypatch):
    """Rows of two versions of torch are never mixed; numpy's version is a remark on a row."""
    seen = {version()}
    for torch in ("2.0.0", "2.13.0", "2.13.0+cu126"):
        numbers = {"torch": torch, "numpy": torch}
        monkeypatch.setattr(store.metadata, "version", lambda name, n=numbers: n.get(name, "1"))
        seen.add(version())
    assert len(seen) == 4
    monkeypatch.setattr(
        store.metadata, "version", lambda name: "9" if name == "numpy" else "2.13.0"
    )
    assert version() in seen


def test_files_that_are_not_there_are_named(package):
    with pytest.raises(FileNotFoundError, match=r"lab/z\.py"):
        store.code_version("a.py", "lab/z.py")


def imported(path):
    """The files of this package that a file imports, by names below it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    for name in names:
        below = name.removeprefix("rlploss.").replace(".", "/")
        for file in (f"{below}.py", f"{below}/__init__.py"):
            if name.startswith("rlploss.") and (PACKAGE / file).exists():
                yield file


@pytest.mark.parametrize("trainer", TRAINERS)
def test_whatever_a_trainer_imports_decides_a_number_or_is_known_not_to(trainer):
    module = importlib.import_module(f"rlploss.{trainer}")
    listed = {
        path.relative_to(PACKAGE).as_posix()
        for pattern in module.DECIDING
        for path in PACKAGE.glob(pattern)
    }
    waiting, reached = {f"{trainer.replace('.', '/')}.py"}, set()
    while waiting:
        file = waiting.pop()
        reached.add(file)
        if file.removesuffix(".py") not in NO_NUMBERS:
            waiting |= {*imported(PACKAGE / file)} - reached
    unknown = {file for file in reached - listed if file.removesuffix(".py") not in NO_NUMBERS}
    assert not unknown, "add these files to DECIDING of the trainer, or to NO_NUMBERS"
    assert f"{trainer.replace('.', '/')}.py" in listed


def test_versions_and_machine_are_plain():
    assert store.versions()["torch"].startswith("2.")
    assert store.machine()["cores"] >= 1
