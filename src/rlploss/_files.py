"""Files that are there whole or not at all, files of others that are read with care, and locks that
die with their holder. The same for every room.
"""

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

PART = ".part"  # ends the names of files that are being written


class NoPlainFile(OSError):
    """A file cannot take this place; the text is the whole sentence."""

    exit_code = 2  # of the command


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends well: a reader sees the old
    one or the new one.

    What processes that were killed in the middle have left beside it is removed.
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
            error.filename = str(path)  # for the sentence that names it
        raise
    if os.name == "posix":  # make the new name itself durable
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_bytes(path: Path, data: bytes) -> None:
    """Write the whole file, or leave what was there."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """As `write_bytes`, for text in UTF-8."""
    write_bytes(path, text.encode())


def open_plain(path: Path, most: int) -> BinaryIO:
    """Open a file that somebody else may have made: refuse a link, a pipe, a device, and more than
    `most` bytes.
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
    """Open a zip file whose members are stored as they are, each once.

    What is compressed or overlaps could become any size; a file that we wrote has neither.
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
    """Take the lock of this name, waiting so long at most; None if another process holds it.
    `release()` gives it back.

    The system releases it when its holder dies; the file stays.
    """
    held = FileLock(path)
    with suppress(Timeout):
        held.acquire(timeout=seconds)
    return held if held.is_locked else None


def refuse_links_out(directory: Path) -> None:
    """Refuse a directory in which a link leads out of it: what is written there must stay there."""
    home = os.path.realpath(directory)
    for path in Path(home).rglob("*"):
        target = os.path.realpath(path)
        if os.path.commonpath([home, target]) != home:
            raise ValueError(
                f"{path} is a link out of the directory, to {target}; remove it, since results are"
                " written to this directory only"
            )


def _sweep(path: Path) -> None:
    """Remove what processes that were killed while they wrote this file have left."""
    start = f".{path.name}."
    # Elsewhere a process cannot be asked whether it lives.
    for name in os.listdir(path.parent) if os.name == "posix" else ():
        if name.startswith(start) and name.endswith(PART):
            with suppress(
                PermissionError, OverflowError, ValueError
            ):  # it lives, or this is no process's
                try:
                    os.kill(int(name[len(start) :].partition("-")[0]), 0)
                except ProcessLookupError:
                    (path.parent / name).unlink(missing_ok=True)
