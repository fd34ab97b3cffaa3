"""Write files atomically, read files from untrusted sources safely, and lock directories."""

from __future__ import annotations

import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

PART = ".part"  # the suffix of files that are being written


class NoPlainFile(OSError):
    """A file cannot take this place; the text is the whole sentence."""

    exit_code = 2  # of the command


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block ends without an error, so a reader sees
    the whole old file or the whole new one.

    Parts that killed processes left beside it are removed.
    """
    if path.exists() and not path.is_file():
        raise NoPlainFile(f"{path} is no plain file; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    handle, temporary = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.{os.getpid()}-", suffix=PART
    )
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # the error message names it
        raise
    if os.name == "posix":  # make the new directory entry durable
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_bytes(path: Path, data: bytes) -> None:
    """Write the whole file, or leave the old one."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode())


def open_plain(path: Path, most: int) -> BinaryIO:
    """Open an untrusted file; refuse a link, a pipe, a device, and a file of more than `most`
    bytes.
    """
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{path.name} must be a plain file, got a link, a pipe or a device")
    if about.st_size > most:
        raise ValueError(f"{path.name} must have at most {most:,} bytes, got {about.st_size:,}")
    return path.open("rb")


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a file that `open_plain` opens."""
    with open_plain(path, most) as file:
        return file.read(most)


def stored_zip(file: BinaryIO) -> zipfile.ZipFile:
    """Open a zip file whose members are uncompressed, each with a name of its own.

    Compressed or overlapping members could unpack to any size; files that we wrote have
    neither.
    """
    archive, size = zipfile.ZipFile(file), file.seek(0, os.SEEK_END)
    members = archive.infolist()
    packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if packed or sum(member.file_size for member in members) > size:
        raise ValueError("its parts must be stored as they are, but unpacked they are larger")
    if len({member.filename for member in members}) < len(members):
        raise ValueError("two of its parts have one name")
    return archive


def lock(path: Path, *, seconds: float = 0.0) -> FileLock | None:
    """Take the lock of this name, or return None if another process still holds it after `seconds`.
    `release()` frees it.

    The system frees the lock when its process dies; the file stays.
    """
    held = FileLock(path)
    with suppress(Timeout):
        held.acquire(timeout=seconds)
    return held if held.is_locked else None


def refuse_links_out(directory: Path) -> None:
    """Refuse a directory with a link that leads out of it, through which we would write
    elsewhere.
    """
    home = os.path.realpath(directory)
    for path in Path(home).rglob("*"):
        target = os.path.realpath(path)
        if os.path.commonpath([home, target]) != home:
            raise ValueError(
                f"{path} is a link out of the directory, to {target}; remove it, since results are"
                " written to this directory only"
            )


def _sweep(path: Path) -> None:
    """Remove the parts of this file that killed processes left."""
    start = f".{path.name}."
    # Only POSIX can tell whether a process lives.
    for name in os.listdir(path.parent) if os.name == "posix" else ():
        if name.startswith(start) and name.endswith(PART):
            # The process lives, or the name holds no process number.
            with suppress(PermissionError, OverflowError, ValueError):
                try:
                    os.kill(int(name[len(start) :].partition("-")[0]), 0)
                except ProcessLookupError:
                    (path.parent / name).unlink(missing_ok=True)
