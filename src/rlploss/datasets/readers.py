"""Bytes to arrays, and members out of archives that nobody vouches for.

Nothing is unpacked to disk: members come back as bytes, under names that the caller chose, so no path of an
archive can lead anywhere. An archive that tries (absolute paths, "..", links, devices) is refused whole, and the
expected size of every member is known beforehand, which bounds what a bomb can cost.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import stat
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from rlploss import _extras

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

MAX_MEMBERS = 20_000
MAX_UNPACKED = 1 << 30  # bytes of a whole tar stream, wanted or not
CIFAR_RECORD = 1 + 3072  # one label, then the red, green and blue planes of 32×32


class ArchiveError(ValueError):
    """The archive is damaged, hostile, or not the one expected."""


class FormatError(ValueError):
    """The bytes are not in the format they should be in."""


def read_archive(path: Path, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Return the members named in `sizes` of a wheel, or of a gzipped tar file."""
    return (read_zip if path.suffix == ".whl" else read_tar_gz)(path, sizes)


def read_zip(path: Path | IO[bytes], sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Return the members named in `sizes` (member -> exact number of bytes) of a zip file or wheel."""
    found: dict[str, bytes] = {}
    with _refusing("damaged or truncated zip file"), zipfile.ZipFile(path) as archive:
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
    with _refusing("damaged or truncated tar.gz file"), _Limited(path) as unzipped:
        unzipped.left = max_unpacked
        # A stream ("r|"): read once, front to back, through a reader that counts what the gzip expands to.
        with tarfile.open(fileobj=unzipped, mode="r|") as archive:
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
    with _refusing("damaged or truncated gz file"), gzip.open(path) as stream:
        return _exactly(cast(IO[bytes], stream), path.name, size)


@contextlib.contextmanager
def _refusing(what: str, kind: type[ValueError] = ArchiveError) -> Iterator[None]:
    """Turn whatever damaged bytes raise, and that may be anything, into one kind of error."""
    try:
        yield
    except kind:
        raise
    except Exception as error:
        raise kind(f"{what} ({str(error)[:100]})") from error


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


def _exactly(stream: IO[bytes], name: str, size: int) -> bytes:
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


class _Limited(gzip.GzipFile):
    """A gzipped stream that refuses to give more than `left` bytes."""

    left = MAX_UNPACKED

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.left -= len(data)
        if self.left < 0:
            raise ArchiveError("it unpacks to more than the size allowed")
        return data


def read_csv(data: bytes, *, delimiter: str = ",", header: bool) -> tuple[tuple[str, ...], Floats]:
    """Read a table of numbers: column names (empty without a header) and values [rows, columns]."""
    with _refusing(f"not a table of numbers separated by {delimiter!r}", FormatError):
        rows = [line for line in csv.reader(io.StringIO(data.decode("utf-8")), delimiter=delimiter) if line]
        names = tuple(rows.pop(0)) if header else ()
        # float() on each cell: correctly rounded, so equal text gives equal bits on every machine.
        values = np.array([[float(cell) for cell in row] for row in rows], dtype=np.float64)
        if values.ndim != 2 or (header and values.shape[1] != len(names)):
            raise ValueError("rows of unequal length")
    return names, values


def read_idx(data: bytes) -> Bytes:
    """Read an IDX file of unsigned bytes: two zeros, type 8, number of dimensions, their sizes, values."""
    with _refusing("not an IDX file of unsigned bytes", FormatError):
        if data[:3] != b"\x00\x00\x08" or not data[3]:
            raise ValueError(f"it begins with {data[:4].hex() or 'nothing'}, not 000008")
        start = 4 + 4 * data[3]
        return np.frombuffer(data, np.uint8, offset=start).reshape(struct.unpack(f">{data[3]}I", data[4:start]))


def read_cifar_batch(data: bytes) -> tuple[Bytes, Bytes]:
    """Read one CIFAR-10 binary batch: images [rows, 3072] (red, green, blue planes) and labels [rows]."""
    with _refusing("not a CIFAR-10 batch", FormatError):
        records = np.frombuffer(data, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
        labels = records[:, 0]
        if labels.max() > 9:
            raise ValueError(f"a label is 0 to 9, this batch has {labels.max()}")
    return records[:, 1:], labels


def write_cifar_batch(pixels: Bytes, labels: Bytes) -> bytes:
    """Return one CIFAR-10 binary batch made of pixels [rows, 1024, 3] and labels [rows]."""
    n_rows = len(pixels)
    planes = pixels.transpose(0, 2, 1).reshape(n_rows, 3072)  # [rows, 1024, 3] -> red, green, blue planes
    return np.concatenate([labels.reshape(n_rows, 1), planes], axis=1).tobytes()


def read_labels(data: bytes) -> Bytes:
    """Read a JSON list of class labels."""
    with _refusing("not a JSON list of labels", FormatError):
        return np.array(json.loads(data), dtype=np.uint8)


def read_png(data: bytes, *, width: int, height: int) -> Bytes:
    """Return the pixels [height, width, 3] of an RGB PNG of exactly that size; the size is checked before decoding."""
    _extras.need("lab", "reading PNG files", "PIL")
    from PIL import Image

    with _refusing("damaged PNG file", FormatError), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if (*image.size, image.mode) != (width, height, "RGB"):
                found = f"{image.width}×{image.height} {image.mode}"
                raise FormatError(f"expected a {width}×{height} RGB PNG, got {found}")
            return np.array(image, dtype=np.uint8)
