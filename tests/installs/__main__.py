"""Wheel and sdist in fresh environments, with every set of extras: `python -m tests.installs
python3.11 python3.13 …`.

The newest packages are taken; UV_CONSTRAINT=constraints.txt takes those of `make setup`. An
environment is deleted when it was tried. uv links packages to its cache, so a dozen environments
with torch need the room of one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tested.md"
SETS = {  # what is installed: which promises are tried
    "": ["core"],
    "kernel": ["numba_alone", "kernel"],
    "sklearn": ["sklearn"],
    "lab": ["lab"],
    "cluster": ["cluster"],
    "lab,cluster": ["kernel", "sklearn", "lab", "cluster"],
}
SHOWN = ("torch", "numpy", "numba", "scikit-learn", "pandas", "dask")  # whose versions are told


class Failed(Exception):
    """A command ended with an error; the message is what it said last."""


def run(*words: object, **settings: object) -> str:
    """Standard output of a command that ended well."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=1800, **settings
    )
    if done.returncode:
        raise Failed((done.stderr or done.stdout).strip()[-2000:])
    return done.stdout


def uv(*words: object) -> str:
    """Standard output of uv, which is not to download Pythons."""
    return run(
        sys.executable, "-m", "uv", *words, env={"UV_PYTHON_DOWNLOADS": "never", **os.environ}
    )


def attempt(python: str, package: Path, extras: str) -> str:
    """Install one set of extras with one Python and try its promises; return what it was tried
    with."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        uv("venv", "--quiet", "--python", python, here / "venv")
        inside = next(here.glob("venv/[bS]*/python*"))  # in bin, or in Scripts
        wanted = f"rlploss[{extras}] @ {package.as_uri()}".replace("[]", "")
        uv("pip", "install", "--quiet", "--python", inside, wanted)
        script = shutil.copy(Path(__file__).with_name("promises.py"), here)
        said = run(
            inside, script, *SETS[extras], cwd=here, env={**clean, "OMP_NUM_THREADS": "1"}
        ).split("\n")[:-1]
        freeze = uv("pip", "freeze", "--python", inside)
    versions = dict(line.split("==") for line in freeze.splitlines() if "==" in line)
    return ", ".join([*(f"{name} {versions[name]}" for name in SHOWN if name in versions), *said])


def label(extras: str, package: Path) -> str:
    """What a row of the table is called."""
    return (f"`[{extras}]`" if extras else "core") + (
        ", from the sdist" if package.suffix == ".gz" else ""
    )


def write(rows: list[str]) -> None:
    """Put the rows between the markers in docs/tested.md; those of Pythons that were not tried
    stay."""
    text = PAGE.read_text(encoding="utf-8")
    marked = re.compile(
        r"(<!-- begin: installs -->\n.*?\n.*?\n)(.*?)(<!-- end: installs -->)", re.S
    )
    tried = {feature(row) for row in rows}
    kept = [row for row in marked.search(text)[2].splitlines() if feature(row) not in tried]
    table = "\n".join(sorted(kept + rows, key=feature))  # the sort is stable
    PAGE.write_text(
        marked.sub(lambda found: f"{found[1]}{table}\n{found[3]}", text), encoding="utf-8"
    )


def feature(row: str) -> tuple[int, ...]:
    """The feature version of a row's Python: (3, 11)."""
    return tuple(int(number) for number in row.split("|")[1].split(".")[:2])


def main(pythons: list[str]) -> int:
    """Try every set on every Python and say so line by line; the table is written if all of them
    pass."""
    rows, failed = [], 0
    with tempfile.TemporaryDirectory() as directory:
        uv("build", "--quiet", "--python", sys.executable, "--out-dir", directory, ROOT)
        (wheel,), (sdist,) = Path(directory).glob("*.whl"), Path(directory).glob("*.tar.gz")
        for python in pythons:
            version = run(python, "-c", "import platform; print(platform.python_version())").strip()
            for extras, package in [*((extras, wheel) for extras in SETS), ("", sdist)]:
                start = time.perf_counter()
                try:
                    words = attempt(python, package, extras)
                except Failed as error:
                    failed += 1
                    print(f"FAILED Python {version}, {label(extras, package)}\n{error}", flush=True)
                else:
                    rows.append(f"| {version} | {label(extras, package)} | {words} |")
                    seconds = time.perf_counter() - start
                    print(
                        f"ok Python {version}, {label(extras, package)}: {words} ({seconds:.0f} s)",
                        flush=True,
                    )
    if not failed:
        write(rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [sys.executable]))
