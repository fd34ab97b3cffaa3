"""Facts about the project itself: what imports what, what is public, what the documents say."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlploss

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "rlploss"

# Arrows go one way: a room, or a file beside the rooms, may import itself, the helpers, and what is
# named beside it.
TOOL = {"loss", "training", "models"}
LAB = TOOL | {"datasets", "lab"}
MAY_IMPORT = {
    "loss": set(),
    "models": set(),
    "theory": {"loss"},
    "training": {"loss"},
    "estimators": TOOL,
    "datasets": set(),
    "lab": LAB,
    "paper": LAB | {"theory"},
    "compare": LAB | {"estimators"},
    "survey": LAB | {"estimators", "compare"},
    "cli": LAB | {"paper", "compare", "survey", "estimators"},
}
# Inside these two a file may import only what stands before it.
FILES = {
    "loss": (
        "subsets",
        "factors",
        "planes",
        "quadratic",
        "mixup",
        "functional",
        "two_speed",
        "module",
        "bank",
        "sampler",
    ),
    "training": (
        "rows",
        "objectives",
        "evaluation",
        "job",
        "feed",
        "engine",
        "kernel_types",
        "compiling",
        "tiles",
        "kernel_losses",
        "kernel",
        "own",
        "kernel_engine",
        "checkpoint",
        "loop",
        "fit",
    ),
}
HELPERS = {"_checks", "_extras", "_files", "_progress", "_scaling", "_torch", "_trusted", "_values", "_version"}  # fmt: skip
OUTSIDE = {"torch", "numpy", "filelock"}  # packages that are always there; torch brings filelock
KERNEL = {"numba", "llvmlite"}  # numba brings llvmlite
HEAVY = {
    "sklearn",
    "scipy",
    "pandas",
    "matplotlib",
    "jinja2",
    "typer",
    "rich",
    "platformdirs",
    "pooch",
    "requests",
    "openpyxl",
    "joblib",
    "dask",
}

LINES_PER_FILE = 400
# Files that were longer before lines were at most 100 columns wide: none may be added.
LONG = {
    "compare/comparison.py",
    "lab/store.py",
    "loss/bank.py",
    "loss/factors.py",
    "paper/sections.py",
    "paper/studies.py",
    "training/objectives.py",
}  # fmt: skip
# At most so many statements (docstrings left out). A limit is lowered when it becomes true, and
# never raised; the goals are: loss 1,200, training 2,050, estimators and compare 2,000 together,
# survey 400, datasets 600, lab 950, paper 1,200, cli 400, everything 9,500.
STATEMENTS = {
    "loss": 1_198,
    "training": 2_303,  # 226 borrowed for compiled losses of users, 30 for TwoSpeed
    "estimators": 1_594,  # the reading of columns, which was in compare, among them
    "compare": 1_932,  # 208 borrowed for intervals, importance and calibration
    "survey": 404,
    "datasets": 662,
    "lab": 1_285,
    "paper": 1_287,
    "cli": 440,  # 10 of compare: warnings of a model, and models of a file
    "everything": 12_076,  # 149 of them read the files of others with care
}


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield (
            ".".join(parts[:-1] if parts[-1] == "__init__" else parts),
            ast.parse(path.read_text()),
        )


def room_of(module):
    """`rlploss.lab.store` -> lab, `rlploss._checks` -> _checks, `rlploss` -> nothing."""
    return [*module.split("."), ""][1]


def is_module(name):
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def front_door():
    """Where the names of `rlploss` come from: fit -> rlploss.training.fit.fit."""
    tree = ast.parse((PACKAGE / "_api.py").read_text())
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


def imported(tree, *, top_level=False):
    """Full names of what is imported; names of `rlploss` itself by where they come from."""
    origin = front_door()
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "rlploss":
            yield from (origin.get(alias.name, f"rlploss.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def between_rooms():
    """(module, what it imports of rlploss) for all rooms; the front door itself may import
    everything."""
    for module, tree in modules():
        if module not in ("rlploss", "rlploss._api"):
            for name in imported(tree):
                if name.startswith("rlploss.") and name != "rlploss.__version__":
                    yield module, name


def test_arrows_between_rooms_go_one_way():
    wrong = []
    for module, name in between_rooms():
        here, there = room_of(module), room_of(name)
        if there not in {here, *HELPERS, *MAY_IMPORT.get(here, ())}:
            wrong.append(f"{module} imports {name}")
    assert not wrong, wrong
    assert {room_of(module) for module, _ in modules()} == {"", "_api", *HELPERS, *MAY_IMPORT}


@pytest.mark.parametrize("room", FILES)
def test_arrows_inside_a_room_go_one_way(room):
    order = FILES[room]
    assert {path.stem for path in (PACKAGE / room).glob("*.py")} - {"__init__"} == set(order), (
        "state the order"
    )
    wrong = []
    for module, name in between_rooms():
        if room_of(module) == room_of(name) == room and module != f"rlploss.{room}":
            here, there = (full.split(".")[2] for full in (module, name))
            if here != there and order.index(there) > order.index(here):
                wrong.append(f"{module} imports {name}")
    assert not wrong, wrong


# Type names that two rooms define; none may be added.
SHARED_TYPE_NAMES = {"Table"}


def test_no_two_types_have_one_name():
    places = {}
    for module, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert shared.keys() <= SHARED_TYPE_NAMES, shared


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def test_a_rooms_private_names_stay_in_it():
    wrong = [
        f"{module} imports {name}"
        for module, name in between_rooms()
        if room_of(module) != room_of(name)
        and any(is_private(part) for part in name.split(".")[2:])
    ]
    for module, tree in modules():
        modules_here = {}  # names that stand for a module of another room in this one
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rlploss"):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    if is_module(full) and room_of(full) != room_of(module):
                        modules_here[alias.asname or alias.name] = full
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and is_private(node.attr)
            ):
                full = modules_here.get(node.value.id)
                wrong += [f"{module} uses {full}.{node.attr}"] if full else []
    assert not wrong, wrong


def test_the_core_needs_torch_and_numpy_only():
    wrong = []
    for module, tree in modules():
        room = room_of(module)
        if room in {"estimators", "datasets", "lab", "paper", "compare", "survey", "cli"}:
            continue
        allowed = {
            "rlploss",
            *OUTSIDE,
            *sys.stdlib_module_names,
            *(KERNEL if room == "training" else ()),
        }
        wrong += [f"{module} imports {name}" for name in imported(tree, top_level=True)
                  if name.split(".")[0] not in allowed]  # fmt: skip
    assert not wrong, wrong


def n_statements(path):
    total = 0
    for node in ast.walk(ast.parse(path.read_text())):
        total += isinstance(node, ast.stmt)
        documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        total -= documented and bool(ast.get_docstring(node))
    return total


def test_no_file_is_too_long():
    lines = {
        path.relative_to(PACKAGE).as_posix(): len(path.read_text().splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert {name for name, n in lines.items() if n > LINES_PER_FILE} <= LONG


@pytest.mark.parametrize("room", STATEMENTS)
def test_rooms_stay_small(room):
    folder = PACKAGE if room == "everything" else PACKAGE / room
    assert sum(map(n_statements, folder.rglob("*.py"))) <= STATEMENTS[room]


def test_public_names_resolve():
    assert rlploss.__all__ == sorted(
        set(rlploss.__all__), key=lambda name: (not name.isupper(), name)
    )
    for name in rlploss.__all__:
        assert getattr(rlploss, name).__doc__, f"{name} has no docstring"
    assert (PACKAGE / "py.typed").exists()


def documents():
    """The README in every run; the others, with their figures and folds, in `make test-all`."""
    yield pytest.param(ROOT / "README.md", id="README.md")
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if "```python\n" in path.read_text():
            yield pytest.param(
                path, id=path.relative_to(ROOT / "docs").as_posix(), marks=pytest.mark.slow
            )


RUNNER = """
import contextlib, json, os, sys, tempfile
for number, block in enumerate(json.load(sys.stdin)):
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
        exec(compile(block, f"block {number}", "exec"), {"__name__": "__main__"})
"""


@pytest.mark.parametrize("path", list(documents()))
def test_documented_code_runs(path):
    """Every Python block of a document, each with names and an empty directory of its own."""
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.S)
    done = subprocess.run(
        [sys.executable, "-W", "error::rlploss.DegenerateLossWarning", "-c", RUNNER],
        input=json.dumps(blocks),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_docstring_examples():
    import doctest
    import importlib

    tried, known = 0, {"torch": __import__("torch"), "datasets": rlploss.datasets}
    for module, tree in modules():
        if ">>> " not in ast.unparse(tree):
            continue
        result = doctest.testmod(importlib.import_module(module), extraglobs=known)
        tried += result.attempted
        assert result.failed == 0, module
    assert tried > 10


@pytest.mark.parametrize(
    "room",
    [rlploss, rlploss.compare, rlploss.datasets, rlploss.estimators],
    ids=lambda m: m.__name__,
)
def test_every_public_name_has_an_example(room):
    """But for exceptions and warnings, which one meets."""
    public = {name: getattr(room, name) for name in room.__all__}
    without = [
        name
        for name, value in public.items()
        if ">>> " not in value.__doc__ and not is_exception(value)
    ]
    assert not without, without


def is_exception(value):
    return isinstance(value, type) and issubclass(value, BaseException)


def tracked():
    out = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if out.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in out.stdout.splitlines()]


def test_every_difference_from_the_paper_is_on_the_page_that_lists_them():
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in tracked()
        if path.suffix == ".py"
        and path.is_relative_to(PACKAGE)
        and "NOTE[DIFF]" in path.read_text()
    }
    page = (ROOT / "docs" / "differences.md").read_text()
    assert marked, "no difference is marked at all"
    assert not [name for name in marked if name not in page]


def docs_module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_of_differences_holds_sentences_and_no_source_code():
    notes = docs_module("notes")
    rows = notes.departures("HOME").splitlines()[2:]
    assert len(rows) == sum(path.read_text().count("NOTE[DIFF]") for path in PACKAGE.rglob("*.py"))
    for row in rows:
        said = row.split(" | ")[1].removesuffix(" |")
        assert said.endswith("."), f"end the note with a full stop: {row}"
        assert len(said) < 300, row
        assert not re.search(r"\w\(|\w = [a-z]|:$", said), f"source code: {row}"


def test_a_note_ends_with_its_comment_or_docstring():
    notes = docs_module("notes")
    source = ["x = 1  # NOTE[DIFF]: no full stop", "y = 2", "# NOTE[DIFF]: two", "# lines.", "z = 3",
              '"""NOTE[DIFF]: a docstring', 'goes on"""', "w = 4", '"""NOTE[DIFF]: one line."""', "v = 5"]  # fmt: skip
    said = {1: "no full stop", 3: "two lines.", 6: "a docstring goes on", 9: "one line."}
    assert dict(notes.notes(source)) == said


def test_readme_keeps_its_promise():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    head = "\n".join(lines[:35])
    assert "make demo" in head
    assert "make test" in head
    assert "RLP / MSE is 0." in head, "a result within the first 35 lines"


def anchors(path):
    """The anchors of a document's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.M)
    }


def test_links_in_documents_lead_somewhere():
    for path in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]:
        if "_parts" in path.parts:  # written by the build
            continue
        for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)\s]+))?\)", path.read_text()):
            if not target.startswith(
                ("http://", "https://", "mailto:", "site:")
            ):  # site: is a file that the build writes
                there = path.parent / target if target else path
                assert there.exists(), f"{path.name} links to {target}"
                if (
                    anchor
                    and there.suffix == ".md"
                    and "{include} _parts/commands.md" not in there.read_text()
                ):
                    assert anchor in anchors(there), f"{path.name} links to {target}#{anchor}"


def test_figures_of_documents_are_drawn_by_a_command_and_have_a_dark_twin():
    drawn = ast.parse((ROOT / "docs" / "figures.py").read_text())
    table = next(
        node.value
        for node in drawn.body
        if getattr(getattr(node, "target", None), "id", "") == "DRAWINGS"
    )
    names = {key.value for key in table.keys}
    for path in sorted((ROOT / "docs").glob("*.md")):
        found = re.findall(
            r"\{image\} figures/(\S+)-(light|dark)\.svg\n:class: only-(\w+).*\n:alt: (.+)",
            path.read_text(),
        )
        assert all(theme == shown for _, theme, shown, _ in found), path.name
        assert {name for name, *_ in found} <= names, path.name
        light, dark = (
            [(n, alt) for n, theme, _, alt in found if theme == which]
            for which in ("light", "dark")
        )
        assert light == dark, path.name
    for name in re.findall(r'(?:src|srcset)="([^"]+)"', (ROOT / "README.md").read_text()):
        assert (ROOT / name).exists(), name


def test_the_numbers_of_the_readme_are_those_of_the_results():
    readme = docs_module("readme")
    text = (ROOT / "README.md").read_text()
    assert all(f"<!-- begin: {name} -->\n" in text for name in readme.BLOCKS)
    assert readme.render(text) == text, "run `python docs/readme.py`"
    assert readme.render(text.replace("| Wine |", "| Vine |")) == text, (
        "what stands between the markers is made anew"
    )
    assert [line.split(" | ")[0] for line in readme.table1().splitlines()[2:]] == [
        f"| {name}"
        for name in (
            "California",
            "Wine",
            "Linear",
            "Nonlinear",
            "MNIST (10 seeds)",
            "CIFAR-10 (10 seeds)",
        )
    ]
