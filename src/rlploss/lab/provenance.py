"""Where a number comes from: the code that made it, the versions, the machine."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

# Messages and re-exports: they change often and never change a number.
IGNORED = frozenset({"rlploss", "rlploss._checks", "rlploss._version"})


def _dump(tree: ast.AST) -> str:
    """The syntax tree as text without docstrings, so that words about the code do not make old rows foreign."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
    return ast.dump(tree)


def _source(module: str) -> Path | None:
    """The source file of a module of this package, without importing it; None for a name inside one."""
    root = Path(__file__).parents[1]
    path = root.joinpath(*module.split(".")[1:])
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _imports(tree: ast.AST) -> set[str]:
    """Names under `rlploss` that a module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name == "rlploss" or name.startswith("rlploss.")}


@cache
def code_hash(root: str) -> str:
    """SHA-256 over the syntax trees of a module and of all that it imports from this package.

    Comments, docstrings and layout do not count, nor do reports, figures and the command line:
    no trainer imports them.
    """
    if _source(root) is None:
        raise ValueError(f"root must name a module of rlploss, got {root!r}; check its spelling")
    found: dict[str, str] = {}
    waiting = {root}
    while waiting:
        module = waiting.pop()
        path = _source(module)
        if path is None or module in IGNORED or module in found:
            continue
        tree = ast.parse(path.read_bytes())
        waiting |= _imports(tree)
        found[module] = _dump(tree)
    digest = hashlib.sha256()
    for module in sorted(found):
        digest.update(f"{module}\0{found[module]}\0".encode())
    return digest.hexdigest()


def code_version(root: str) -> str:
    """What two rows of one table must share: the code behind `root` and the version of torch."""
    identity = f"{code_hash(root)} torch {_version('torch')}"
    return hashlib.sha256(identity.encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@cache
def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of everything that touches the numbers."""
    packages = ("rlploss", "torch", "numpy", "scikit-learn")
    return {"python": platform.python_version(), **{p: _version(p) for p in packages}}


def machine() -> dict[str, str | int]:
    """The machine, without names of people or hosts."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "byteorder": sys.byteorder,
    }
