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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rlploss import _extras

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

MAX_MEMBERS = 20_000
MAX_UNPACKED = 1 << 30  # bytes of a whole tar stream, wanted or not
CIFAR_RECORD = 1 + 3072  # one label, then the red, green and blue planes of 32×32


class FormatError(ValueError):
    """The bytes are damaged, hostile, or not in the format they should be in."""


@contextlib.contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Turn whatever damaged bytes raise, and that may be anything, into one kind of error."""
    try:
        yield
    except FormatError:
        raise
    except Exception as error:
        raise FormatError(f"{what} ({str(error)[:100]})") from error


def read_archive(file: IO[bytes], sizes: Mapping[str, int]) -> dict[str, bytes]:
    """Return the members named in `sizes` (member -> exact number of bytes) of a zip file or of a gzipped tar file."""
    found: dict[str, bytes] = {}
    with _refusing("damaged or truncated archive"):
        for number, (name, declared, ordinary, open_member) in enumerate(_members(file), start=1):
            parts = name.replace("\\", "/").split("/")
            if number > MAX_MEMBERS:
                raise FormatError(f"it has more than the {MAX_MEMBERS:,} members allowed")
            if not ordinary:
                raise FormatError(f"member {name!r} is a link or a device")
            if not parts[0] or ":" in parts[0] or ".." in parts:
                raise FormatError(f"member {name!r} has a path that leaves the archive")
            if name not in sizes:
                continue
            if name in found:
                raise FormatError(f"member {name!r} is there twice")
            if declared != sizes[name]:
                raise FormatError(f"member {name!r} has {declared:,} bytes, not {sizes[name]:,}")
            with open_member() as stream:
                found[name] = _exactly(stream, name, declared)
    missing = [name for name in sizes if name not in found]
    if missing:
        raise FormatError(f"it has no member {missing[0]!r}")
    return found


def _members(file: IO[bytes]) -> Iterator[tuple[str, int, bool, Callable[[], Any]]]:
    """Yield each member's name, its declared size, whether it is a file or a directory, and what opens it."""
    is_zip = file.read(2) == b"PK"
    file.seek(0)
    if is_zip:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                ordinary = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
                yield info.filename, info.file_size, ordinary, partial(archive.open, info)
        return
    # A stream ("r|"): read once, front to back, through a reader that counts what the gzip expands to.
    with _Limited(fileobj=file) as unzipped, tarfile.open(fileobj=unzipped, mode="r|") as stream:
        for member in stream:
            ordinary = (member.isreg() or member.isdir()) and not member.issparse()
            yield member.name, member.size, ordinary, partial(stream.extractfile, member)


class _Limited(gzip.GzipFile):
    """A gzipped stream that refuses to give more than `MAX_UNPACKED` bytes."""

    given = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.given += len(data)
        if self.given > MAX_UNPACKED:
            raise FormatError("it unpacks to more than the size allowed")
        return data


def read_gz(file: IO[bytes], name: str, size: int) -> bytes:
    """Return the content of a gzipped file that unpacks to exactly `size` bytes."""
    with _refusing("damaged or truncated gz file"):
        return _exactly(gzip.GzipFile(fileobj=file), name, size)


def _exactly(stream: IO[bytes] | gzip.GzipFile, name: str, size: int) -> bytes:
    data = stream.read(size + 1)
    if len(data) != size:
        more = "more than" if len(data) > size else f"{len(data):,} bytes, not"
        raise FormatError(f"{name!r} unpacks to {more} {size:,} bytes")
    return data


def read_csv(data: bytes, *, delimiter: str = ",", header: bool) -> tuple[tuple[str, ...], Floats]:
    """Read a table of numbers: column names (empty without a header) and values [rows, columns]."""
    with _refusing(f"not a table of numbers separated by {delimiter!r}"):
        rows = [line for line in csv.reader(io.StringIO(data.decode("utf-8")), delimiter=delimiter) if line]
        names = tuple(rows.pop(0)) if header else ()
        # float() on each cell: correctly rounded, so equal text gives equal bits on every machine.
        values = np.array([[float(cell) for cell in row] for row in rows], dtype=np.float64)
        if values.ndim != 2 or (header and values.shape[1] != len(names)):
            raise ValueError("rows of unequal length")
    return names, values


def read_idx(data: bytes) -> Bytes:
    """Read an IDX file of unsigned bytes: two zeros, type 8, number of dimensions, their sizes, values."""
    with _refusing("not an IDX file of unsigned bytes"):
        if data[:3] != b"\x00\x00\x08" or not data[3]:
            raise ValueError(f"it begins with {data[:4].hex() or 'nothing'}, not 000008")
        start = 4 + 4 * data[3]
        return np.frombuffer(data, np.uint8, offset=start).reshape(struct.unpack(f">{data[3]}I", data[4:start]))


def read_cifar_batch(data: bytes) -> tuple[Bytes, Bytes]:
    """Read one CIFAR-10 binary batch: images [rows, 3072] (red, green, blue planes) and labels [rows]."""
    with _refusing("not a CIFAR-10 batch"):
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
    with _refusing("not a JSON list of labels"):
        labels = np.array(json.loads(data), dtype=np.int64)
        if labels.min(initial=0) < 0 or labels.max(initial=0) > 255:
            raise ValueError("labels must be from 0 to 255")
        return labels.astype(np.uint8)


def read_png(data: bytes, *, width: int, height: int) -> Bytes:
    """Return the pixels [height, width, 3] of an RGB PNG of exactly that size; the size is checked before decoding."""
    _extras.need("lab", "reading PNG files", "PIL")
    from PIL import Image

    with _refusing("damaged PNG file"), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if (*image.size, image.mode) != (width, height, "RGB"):
                found = f"{image.width}×{image.height} {image.mode}"
                raise FormatError(f"expected a {width}×{height} RGB PNG, got {found}")
            return np.array(image, dtype=np.uint8)
