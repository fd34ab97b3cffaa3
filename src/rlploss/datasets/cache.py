"""The cache directory: verified reads, atomic writes, one lock per dataset.

Layout: `<cache>/<dataset>/<file>`, the plain names a user would give to a file placed by hand. Nothing is
trusted because it is there: every read hashes the bytes it returns.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlploss import _files

VARIABLE = "RLPLOSS_DATA"
OK, ABSENT = "ok", "not there"  # states of a file
WORKSPACE = ".tmp-"  # begins the names of directories that a killed process may leave behind


class CacheError(OSError):
    """The cache directory cannot be used: not a directory, not readable or writable, or full."""


class DataWarning(UserWarning):
    """A cached file does not hold the bytes it should."""


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset: its name in the cache, and what its bytes must be."""

    name: str
    sha256: str
    size: int

    def problem(self, data: bytes) -> str | None:
        """Say what is wrong with `data`, or None if these are the right bytes."""
        if len(data) != self.size:
            return f"it has {len(data):,} bytes, not {self.size:,}"
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            return f"its SHA-256 is {found}, not {self.sha256}"
        return None


def cache_dir() -> Path:
    """Return the cache directory: `RLPLOSS_DATA` if set, else the platform's user cache directory."""
    chosen = os.environ.get(VARIABLE, "").strip()
    if chosen:
        return Path(chosen).expanduser()
    try:
        import platformdirs
    except ImportError:
        raise CacheError(
            f"the default cache directory needs the package platformdirs, which is not installed: "
            f"install rlploss[lab] or set {VARIABLE} to a directory"
        ) from None
    return Path(platformdirs.user_cache_dir("rlploss", appauthor=False))


@contextlib.contextmanager
def cache_errors(path: Path) -> Iterator[None]:
    """Turn an OSError on the cache into one sentence with the path and the remedy."""
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        what = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"free some space or set {VARIABLE} to a directory with more of it"
        else:
            remedy = f"make it a directory that you can read and write, or set {VARIABLE} to one"
        raise CacheError(f"the cache {error.filename or path} cannot be used ({what}): {remedy}") from error


def read_file(directory: Path, file: DataFile) -> tuple[bytes, str]:
    """Return what the directory holds as this file, and "ok", "not there" or what is wrong with it."""
    path = directory / file.name
    with cache_errors(path):
        try:
            with path.open("rb") as stream:
                data = stream.read(file.size + 1)  # a byte too many tells that it is too long
        except FileNotFoundError:
            return b"", ABSENT
    return data, file.problem(data) or OK


def need_space(directory: Path, n_bytes: int) -> None:
    """Raise CacheError before a long download if its result cannot fit."""
    with cache_errors(directory):
        free = shutil.disk_usage(directory).free
    if free < n_bytes:
        raise CacheError(
            f"the cache {directory} has {free / 1e6:,.0f} MB free and needs {n_bytes / 1e6:,.0f} MB: "
            f"free some space or set {VARIABLE} to a directory with more of it"
        )


def install(path: Path, data: bytes) -> Path | None:
    """Write `data` to `path` so that it is there whole or not at all; call with the lock held.

    A file of other content that is in the way is renamed, not deleted; its new path is returned.
    """
    aside = None
    with cache_errors(path.parent):
        if os.path.lexists(path):
            names = (path.with_name(f"{path.name}.mismatch-{number}") for number in itertools.count(1))
            aside = path.rename(next(name for name in names if not os.path.lexists(name)))
        try:
            _files.write_bytes(path, data)
        except BaseException:
            if aside is not None:
                aside.rename(path)
            raise
    return aside


@contextlib.contextmanager
def locked(directory: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of the directory, which is made if need be; `on_wait` is called once if another process has it.

    What a killed process has left half-made there is removed.
    """
    with cache_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = _files.lock(directory / ".lock")
        if lock is None:
            on_wait()
            lock = _files.lock(directory / ".lock", seconds=-1.0)  # for ever
            assert lock is not None
    try:
        with cache_errors(directory):
            for leftover in directory.glob(f"{WORKSPACE}*"):
                shutil.rmtree(leftover)
        yield
    finally:
        lock.release()
