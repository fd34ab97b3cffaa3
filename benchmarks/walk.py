"""`make walk`: how many modules and functions of rlploss a reader opens to follow one call.

python -m benchmarks.walk [loss] [fit] [reproduce] [compare]

Each call runs in a process of its own, after every module has been imported, so that only what the
call itself enters counts. Functions that numba has compiled are not seen by a profiler; those that
this call made it load are counted too."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import pkgutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import rlploss

SOURCE = Path(rlploss.__file__).parent
LIMITS = {"loss": None, "fit": 16, "reproduce": None, "compare": 35}  # modules, at most


Call = Callable[[], object]


def loss(_: Path) -> Call:
    """One value of the loss."""
    import torch

    X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    return lambda: rlploss.rlp_loss(X[:, :1], X[:, 1:2], X)


def fit(_: Path) -> Call:
    """One network trained with RLP."""
    import torch

    X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    network = rlploss.RegressionNet(3)
    return lambda: rlploss.fit(network, X, X[:, :1], rlploss.RLP(), budget=rlploss.Steps(20))


def reproduce(folder: Path) -> Call:
    """One table of the paper at the smallest scale."""
    options = [
        "--datasets",
        "linear",
        "--scale",
        "smoke",
        "--workers",
        "inline",
        "--out",
        str(folder / "out"),
    ]
    return lambda: command("reproduce", "table1", *options)


def compare(folder: Path) -> Call:
    """One comparison on a small table."""
    rows = [f"{i % 7},{i * i % 11},{'ab'[i % 2]},{i % 7 + i * i % 11}" for i in range(60)]
    table = folder / "table.csv"
    table.write_text("\n".join(["u,v,w,y", *rows]))
    options = [
        "--splits",
        "2",
        "--steps",
        "10",
        "--workers",
        "inline",
        "--out",
        str(folder / "out"),
    ]
    return lambda: command("compare", str(table), "--target", "y", *options)


WALKS = {"loss": loss, "fit": fit, "reproduce": reproduce, "compare": compare}


def command(*arguments: str) -> None:
    """Run the command in this process; what it prints is shown only if it fails."""
    from rlploss import cli

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.run(arguments)
    if code:
        raise SystemExit(
            f"rlploss {' '.join(arguments)} ended with code {code}:\n{said.getvalue()}"
        )


def walk(name: str) -> dict[str, list[str]]:
    """Run one call and return the functions entered of each module, both in the order of first
    entry."""
    modules = []
    for found in pkgutil.walk_packages([str(SOURCE)], "rlploss.", onerror=lambda name: None):
        with contextlib.suppress(ImportError):  # of an extra that is not installed
            modules.append(importlib.import_module(found.name))
    for public in rlploss.__all__:
        getattr(rlploss, public)
    compiled_before = {id(function) for _, function in compiled(modules)}
    entered: dict[str, list[str]] = {}

    def enter(module: str, function: str) -> None:
        functions = entered.setdefault(module, [])
        if function not in functions:
            functions.append(function)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(str(SOURCE)) and code.co_filename.endswith(
            ".py"
        )  # not a template
        if event == "call" and ours and not code.co_name.startswith("<"):
            enter(module_name(code.co_filename), code.co_qualname)

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = WALKS[name](Path(folder))
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    for module, function in compiled(modules):
        if id(function) not in compiled_before:
            enter(module, function.__qualname__)
    return entered


def module_name(path: str) -> str:
    """`.../rlploss/training/fit.py` -> training.fit."""
    parts = Path(path).relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "rlploss"


def compiled(modules: list[Any]) -> list[tuple[str, Any]]:
    """Functions that numba has compiled or loaded so far, each with its module."""
    found = [
        value
        for module in modules
        for value in vars(module).values()
        if getattr(value, "signatures", None)
    ]
    return [
        (module_name(f.py_func.__code__.co_filename), f.py_func)
        for f in found
        if hasattr(f, "py_func")
    ]


def main(arguments: list[str]) -> int:
    """Print the walks; the exit code is 1 if one is longer than its limit."""
    if arguments[:1] == ["--one"]:
        print(json.dumps(walk(arguments[1])))
        return 0
    found = {}
    for name in arguments or WALKS:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.walk", "--one", name], capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"the walk {name} failed:\n{done.stderr}")
        found[name] = json.loads(done.stdout.splitlines()[-1])
    for name, modules in found.items():
        print(f"{name}: {WALKS[name].__doc__}")
        print("".join(f"  {module} ({len(functions)})\n" for module, functions in modules.items()))
    print("| one | modules | at most | functions |\n|---|---|---|---|")
    for name, modules in found.items():
        print(
            f"| {name} | {len(modules)} | {LIMITS[name] or ''} |"
            f" {sum(map(len, modules.values()))} |"
        )
    return int(
        any(len(modules) > (LIMITS[name] or len(modules)) for name, modules in found.items())
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
