"""Bytes to arrays: delimited text, IDX, the CIFAR-10 binary batches."""

from __future__ import annotations

import csv
import io
import struct

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

CIFAR_RECORD = 1 + 3072  # one label, then the red, green and blue planes of 32×32


class FormatError(ValueError):
    """The bytes are not in the format they should be in."""


def read_csv(data: bytes, *, delimiter: str = ",", header: bool) -> tuple[tuple[str, ...], Floats]:
    """Read a table of numbers: column names (empty without a header) and values [rows, columns]."""
    try:
        lines = csv.reader(io.StringIO(data.decode("utf-8")), delimiter=delimiter)
        rows = [line for line in lines if line]
        names = tuple(rows.pop(0)) if header else ()
        # float() on each cell: correctly rounded, so equal text gives equal bits on every machine.
        values = np.array([[float(cell) for cell in row] for row in rows], dtype=np.float64)
    except (ValueError, IndexError, csv.Error) as error:
        raise FormatError(f"not a table of numbers separated by {delimiter!r} ({error})") from error
    if values.ndim != 2 or (header and values.shape[1] != len(names)):
        raise FormatError(f"not a table of numbers separated by {delimiter!r} (rows of unequal length)")
    return names, values


def read_idx(data: bytes) -> Bytes:
    """Read an IDX file of unsigned bytes: two zeros, type 8, number of dimensions, their sizes, values."""
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise FormatError(
            f"not an IDX file of unsigned bytes: it begins with {data[:4].hex() or 'nothing'}, not 000008"
        )
    n_dims = data[3]
    start = 4 + 4 * n_dims
    if n_dims == 0 or len(data) < start:
        raise FormatError(f"the IDX header announces {n_dims} dimensions but the file has {len(data):,} bytes")
    shape = struct.unpack(f">{n_dims}I", data[4:start])
    expected = start
    size = 1
    for length in shape:
        size *= length
    expected += size
    if len(data) != expected:
        raise FormatError(f"an IDX file of shape {shape} has {expected:,} bytes, this one {len(data):,}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def read_cifar_batch(data: bytes) -> tuple[Bytes, Bytes]:
    """Read one CIFAR-10 binary batch: images [rows, 3072] (red, green, blue planes) and labels [rows]."""
    if len(data) == 0 or len(data) % CIFAR_RECORD:
        raise FormatError(f"a CIFAR-10 batch is whole records of {CIFAR_RECORD:,} bytes, this one has {len(data):,}")
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        raise FormatError(f"a CIFAR-10 label is 0 to 9, this batch has {labels.max()}")
    return records[:, 1:], labels


def write_cifar_batch(pixels: Bytes, labels: Bytes) -> bytes:
    """Write one CIFAR-10 binary batch from pixels [rows, 1024, 3] and labels [rows]."""
    n_rows = len(pixels)
    planes = pixels.transpose(0, 2, 1).reshape(n_rows, 3072)  # [rows, 1024, 3] -> red, green, blue planes
    return np.concatenate([labels.reshape(n_rows, 1), planes], axis=1).tobytes()
