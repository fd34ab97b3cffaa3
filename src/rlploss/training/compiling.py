"""How the kernel is compiled: once for each floating type, and kept on disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])
_njit: Any = numba.njit  # its types do not know all of its options
_config: Any = numba.config

# The order of sums may change, nothing else: full fast-math would fold every test for NaN away.
_RULES: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"}}


def compiled(function: F) -> F:
    """Compile a function that other compiled functions call."""
    made: F = _njit(no_cpython_wrapper=True, **_RULES)(function)
    return made


def cached(function: F) -> F:
    """Compile a function that is called from Python, and keep the result on disk where that is possible.

    The folder is named by a digest of this room's compiled sources: numba itself looks at one file only.
    """
    folder, before, kept = _folder(), _config.CACHE_DIR, True
    try:  # numba would fall back on a place that does not notice a change of the other sources
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            _config.CACHE_DIR = str(folder)
    except OSError:
        kept = False
    made: F = _njit(cache=kept, **_RULES)(function)
    _config.CACHE_DIR = before
    return made


def cache_folder() -> Path:
    """Where compiled code is kept: `RLPLOSS_CACHE`, else the user's own cache folder."""
    if given := os.environ.get("RLPLOSS_CACHE"):
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "rlploss"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rlploss"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlploss"


def forget() -> None:
    """Remove what is on disk, so that it is made anew."""
    shutil.rmtree(_folder(), ignore_errors=True)


def _folder() -> Path:
    digest = hashlib.sha256()
    for name in ("compiling", "kernel", "kernel_losses", "kernel_types"):
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return cache_folder() / f"kernel-{digest.hexdigest()[:16]}"
