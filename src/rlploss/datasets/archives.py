"""Read chosen members out of zip, tar.gz and gz files that nobody vouches for.

Nothing is unpacked to disk: members come back as bytes, under names that the caller chose, so no path of an
archive can lead anywhere. An archive that tries (absolute paths, "..", links, devices) is refused whole, and the
expected size of every member is known beforehand, which bounds what a bomb can cost.
"""

from __future__ import annotations

import contextlib
import gzip
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Protocol, cast

from rlploss.datasets.cache import DataFile

MAX_MEMBERS = 20_000
MAX_UNPACKED = 1 << 30  # bytes of a whole tar stream, wanted or not


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class ArchiveError(ValueError):
    """The archive is damaged, hostile, or not the one expected."""


def read_zip(path: Path | IO[bytes], sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Return the members named in `sizes` (member -> exact number of bytes) of a zip file or wheel."""
    found: dict[str, bytes] = {}
    with _refusing("zip"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise ArchiveError(f"it has {len(members):,} members, more than the {MAX_MEMBERS:,} allowed")
        for member in members:
            if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ArchiveError(f"member {member.filename!r} is a link or a device")
            if _wanted(member.filename, member.file_size, sizes, found):
                with archive.open(member) as stream:
                    found[member.filename] = _exactly(stream, member.filename, sizes[member.filename])
    return _complete(found, sizes)


def read_tar_gz(path: Path, sizes: Mapping[str, int], *, max_unpacked: int = MAX_UNPACKED) -> dict[str, bytes]:
    """Return the members named in `sizes` (member -> exact number of bytes) of a gzipped tar file."""
    found: dict[str, bytes] = {}
    with _refusing("tar.gz"), gzip.open(path) as unzipped:
        # A stream ("r|"): read once, front to back, through a reader that counts what the gzip expands to.
        limited = cast(IO[bytes], _Limited(unzipped, max_unpacked))
        with tarfile.open(fileobj=limited, mode="r|") as archive:
            for number, member in enumerate(archive, start=1):
                if number > MAX_MEMBERS:
                    raise ArchiveError(f"it has more than the {MAX_MEMBERS:,} members allowed")
                if not (member.isreg() or member.isdir()) or member.issparse():
                    raise ArchiveError(f"member {member.name!r} is a link or a device")
                if _wanted(member.name, member.size, sizes, found):
                    stream = archive.extractfile(member)
                    if stream is None:
                        raise ArchiveError(f"member {member.name!r} is not a file")
                    found[member.name] = _exactly(stream, member.name, sizes[member.name])
    return _complete(found, sizes)


def read_gz(path: Path, size: int) -> bytes:
    """Return the content of a gzipped file that unpacks to exactly `size` bytes."""
    with _refusing("gz"), gzip.open(path) as stream:
        return _exactly(stream, path.name, size)


@contextlib.contextmanager
def _refusing(kind: str) -> Iterator[None]:
    """Turn whatever the standard library raises on a damaged archive, and that may be anything, into ArchiveError."""
    try:
        yield
    except ArchiveError:
        raise
    except Exception as error:
        raise ArchiveError(f"damaged or truncated {kind} file ({str(error)[:100]})") from error


def checked(data: bytes, file: DataFile) -> bytes:
    """Return a member's bytes if they are the right ones."""
    problem = file.problem(data)
    if problem is not None:
        raise ArchiveError(f"{file.name}: {problem}")
    return data


def _wanted(name: str, declared: int, sizes: Mapping[str, int], found: Mapping[str, bytes]) -> bool:
    """Check a member's name and declared size; say whether it is one to read."""
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or (parts.parts and ":" in parts.parts[0]) or "\0" in name:
        raise ArchiveError(f"member {name!r} has a path that leaves the archive")
    if name not in sizes:
        return False
    if name in found:
        raise ArchiveError(f"member {name!r} is there twice")
    if declared != sizes[name]:
        raise ArchiveError(f"member {name!r} has {declared:,} bytes, not {sizes[name]:,}")
    return True


def _exactly(stream: _Readable, name: str, size: int) -> bytes:
    data = stream.read(size + 1)
    if len(data) != size:
        more = "more than" if len(data) > size else f"{len(data):,} bytes, not"
        raise ArchiveError(f"{name!r} unpacks to {more} {size:,} bytes")
    return data


def _complete(found: dict[str, bytes], sizes: Mapping[str, int]) -> dict[str, bytes]:
    missing = sorted(set(sizes) - set(found))
    if missing:
        raise ArchiveError(f"it has no member {missing[0]!r}")
    return found


class _Limited:
    """A stream that refuses to give more than `limit` bytes."""

    def __init__(self, stream: _Readable, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveError("it unpacks to more than the size allowed")
        return data
