"""Facts about the project itself: what imports what, what is public, what the documents say."""

import ast
import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlploss

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "rlploss"

# Arrows go up only: a room may import itself and the rooms named beside it. "top" is what lies beside the rooms.
TOP = {"loss", "top"}
TRAINING = TOP | {"training"}
ROOMS = {
    "top": {"loss", "training"},
    "loss": {"top"},
    "training": TOP,
    "estimators": TRAINING,
    "datasets": {"top"},
    "lab": TRAINING | {"datasets"},
    "paper": TRAINING | {"datasets", "lab"},
    "compare": TRAINING | {"datasets", "lab", "estimators"},
    "cli": TRAINING | {"datasets", "lab", "paper", "compare", "estimators"},
}
CORE = {"top", "loss", "training"}  # torch and numpy only
HEAVY = {"sklearn", "scipy", "pandas", "matplotlib", "jinja2", "typer", "rich", "platformdirs", "joblib", "dask"}
STANDARD = sys.stdlib_module_names


def room_of(module):
    """`rlploss.lab.store` -> lab; what is in no room is "top"."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "top"


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_text())


def imported(tree, *, top_level=False):
    nodes = tree.body if top_level else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module.startswith("rlploss"))


def is_module(name):
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def test_import_arrows():
    wrong = []
    for module, tree in modules():
        here = room_of(module)
        for name in imported(tree):
            if not name.startswith("rlploss.") or not is_module(name):
                continue
            there = room_of(name)
            if there != here and there not in ROOMS[here]:
                wrong.append(f"{module} ({here}) imports {name} ({there})")
    assert not wrong, wrong


def test_core_needs_torch_and_numpy_only():
    wrong = []
    for module, tree in modules():
        if room_of(module) not in CORE:
            continue
        for name in imported(tree):
            top = name.split(".")[0]
            if top not in STANDARD and top not in ("torch", "numpy", "rlploss"):
                wrong.append(f"{module} imports {name}")
    assert not wrong, wrong


def test_importing_rlploss_imports_nothing_heavy():
    code = f"import sys, rlploss; print(sorted({HEAVY!r} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_public_names_resolve():
    assert sorted(rlploss.__all__, key=str.lower) == sorted(set(rlploss.__all__), key=str.lower)
    for name in rlploss.__all__:
        assert getattr(rlploss, name).__doc__ or name == "__version__", f"{name} has no docstring"
    assert (PACKAGE / "py.typed").exists()


def python_blocks():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for i, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.S)):
            yield pytest.param(block, id=f"{path.name}-{i}")


@pytest.mark.parametrize("block", list(python_blocks()))
def test_documented_code_runs(block, tmp_path):
    """Every Python block of the documents, on its own, in an empty directory."""
    done = subprocess.run(
        [sys.executable, "-W", "error::rlploss.DegenerateLossWarning", "-c", block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_docstring_examples():
    import doctest
    import importlib

    tried = 0
    for module, tree in modules():
        if ">>> " not in ast.unparse(tree):
            continue
        result = doctest.testmod(importlib.import_module(module), extraglobs={"torch": __import__("torch")})
        tried += result.attempted
        assert result.failed == 0, module
    assert tried > 10


def tracked():
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if out.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in out.stdout.splitlines()]


def test_every_difference_from_the_paper_is_on_the_page_that_lists_them():
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in tracked()
        if path.suffix == ".py" and path.is_relative_to(PACKAGE) and "NOTE[DIFF]" in path.read_text()
    }
    page = (ROOT / "docs" / "differences.md").read_text()
    assert marked, "no difference is marked at all"
    assert not [name for name in marked if name not in page]


def test_readme_keeps_its_promise():
    head = "\n".join((ROOT / "README.md").read_text().splitlines()[:35])
    assert "make demo" in head
    assert "make test" in head
    assert "|" in head, "a result within the first 35 lines"


def test_links_in_documents_lead_somewhere():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
            if not target.startswith(("http://", "https://", "mailto:")):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_numbers_of_the_readme_are_those_of_the_results():
    with (ROOT / "docs/results/table1-paper/tables/table1-ratios.csv").open() as file:
        found = {(row["dataset"], row["protocol"]): row for row in csv.DictReader(file) if row["baseline"] == "mse"}
    shown = re.findall(
        r"^\| (California|Wine|Linear|Nonlinear) \| (.+) \| (.+) \|$", (ROOT / "README.md").read_text(), re.M
    )
    assert len(shown) >= 3
    for name, *cells in shown:
        for cell, protocol in zip(cells, ("released", "steps"), strict=True):
            row = found[name.lower(), protocol]
            for text, key in zip(re.findall(r"[\d.e-]+", cell), ("effect", "low", "high"), strict=True):
                digits = len(text.partition(".")[2])
                assert float(text) == pytest.approx(float(row[key]), abs=0.5000001 * 10.0**-digits), (name, key)
