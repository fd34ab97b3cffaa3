"""Where a number comes from: the code that made it, the versions, the machine."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

# Messages and re-exports: they change often and never change a number.
IGNORED = frozenset({"rlploss", "rlploss._checks", "rlploss._version"})


def _source(module: str) -> Path | None:
    """The source file of a module of this package, without importing it; None for a name inside one."""
    path = Path(__file__).parents[1].joinpath(*module.split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _read(path: Path) -> tuple[str, set[str]]:
    """A module's syntax tree as text without docstrings, and the names under `rlploss` that it imports."""
    tree, names = ast.parse(path.read_bytes()), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return ast.dump(tree), {name for name in names if name.split(".")[0] == "rlploss"}


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
        if path is not None and module not in IGNORED and module not in found:
            found[module], imported = _read(path)
            waiting |= imported
    text = "".join(f"{module}\0{found[module]}\0" for module in sorted(found))
    return hashlib.sha256(text.encode()).hexdigest()


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
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
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
