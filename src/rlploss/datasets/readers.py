"""Turn the bytes of a dataset's files into arrays, and read archives in memory.

The SHA-256 of the bytes has been checked before, so damaged and hostile files do not come here.
Nothing is unpacked to disk.
"""

from __future__ import annotations

import csv
import io
import struct
import tarfile
import zipfile
from collections.abc import Collection
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from rlploss import _extras

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
CIFAR_RECORD = 1 + 3072  # one label, then the red, green and blue planes of 32×32


def read_members(archive: bytes, names: Collection[str]) -> dict[str, bytes]:
    """Return the members `names` of a zip file or of a tar file, gzipped or not."""
    if archive.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(archive)) as file:
            return {name: file.read(name) for name in names}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:  # read once, front to back
        wanted = (member for member in tar if member.name in names)
        return {member.name: cast(IO[bytes], tar.extractfile(member)).read() for member in wanted}


def read_csv(data: bytes, *, delimiter: str = ",", header: bool) -> tuple[tuple[str, ...], Floats]:
    """Read a table of numbers: column names (empty without a header) and values [rows, columns]."""
    lines = data.decode("utf-8").splitlines()
    names = tuple(next(csv.reader(lines, delimiter=delimiter))) if header else ()
    # numpy rounds correctly, so equal text gives equal bits on every machine.
    return names, np.loadtxt(lines[bool(header) :], delimiter=delimiter, ndmin=2)


def read_idx(data: bytes) -> Bytes:
    """Read an IDX file of unsigned bytes: two zeros, type 8, number of dimensions, their sizes,
    values.
    """
    start = 4 + 4 * data[3]
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_cifar_batch(data: bytes) -> tuple[Bytes, Bytes]:
    """Read one CIFAR-10 binary batch: images [rows, 3072] (red, green, blue planes) and labels
    [rows].
    """
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
    return records[:, 1:], records[:, 0]


def write_cifar_batch(pixels: Bytes, labels: Bytes) -> bytes:
    """Return one CIFAR-10 binary batch made of pixels [rows, 1024, 3] and labels [rows]."""
    n_rows = len(pixels)
    planes = pixels.transpose(0, 2, 1).reshape(n_rows, 3072)  # red, green, blue planes
    return np.concatenate([labels.reshape(n_rows, 1), planes], axis=1).tobytes()


def read_png(data: bytes) -> Bytes:
    """Return the pixels [height, width, 3] of an RGB PNG."""
    _extras.need("lab", "reading PNG files", "PIL")
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
        return np.array(image, dtype=np.uint8)
