"""A reader for one kind of PNG: 8-bit RGB, not interlaced, of a size known beforehand.

The size is checked before anything is expanded, and the data may not expand to a byte more than it allows.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from rlploss.datasets.formats import Bytes, FormatError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = 3


def read_png(data: bytes, *, width: int, height: int) -> Bytes:
    """Return the pixels [height, width, 3] of an 8-bit RGB PNG of exactly that size."""
    header, packed = _chunks(data)
    expected = (width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB, deflate, the five filters, not interlaced
    if header != expected:
        raise FormatError(f"expected a {width}×{height} 8-bit RGB PNG, header {expected}, got {header}")
    stride = CHANNELS * width
    size = height * (1 + stride)
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(packed, size + 1)
    except zlib.error as error:
        raise FormatError(f"damaged PNG data ({error})") from error
    if len(raw) != size:
        raise FormatError(f"PNG data of {width}×{height} pixels must expand to {size:,} bytes, this does not")
    return _unfilter(np.frombuffer(raw, np.uint8).reshape(height, 1 + stride)).reshape(height, width, CHANNELS)


def _chunks(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Split a PNG into its header fields and its joined image data; checksums are checked."""
    if not data.startswith(SIGNATURE):
        raise FormatError("not a PNG file: the signature is missing")
    header: tuple[int, ...] = ()
    packed: list[bytes] = []
    at = len(SIGNATURE)
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        end = at + 12 + length
        if end > len(data):
            break
        if zlib.crc32(body, zlib.crc32(kind)) != struct.unpack_from(">I", data, end - 4)[0]:
            raise FormatError(f"PNG chunk {kind!r} has a wrong checksum")
        if kind == b"IHDR" and length == 13:
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            packed.append(body)
        elif kind == b"IEND":
            return header, b"".join(packed)
        at = end
    raise FormatError("truncated PNG file: the end chunk is missing")


def _unfilter(lines: Bytes) -> Bytes:
    """Undo the filter of each line: lines [height, 1 + 3·width], the first byte of each names its filter."""
    height, stride = lines.shape[0], lines.shape[1] - 1
    out = np.empty((height, stride), dtype=np.uint8)
    above = np.zeros(stride, dtype=np.uint8)
    for row, line in enumerate(lines):
        kind, values = int(line[0]), line[1:]
        if kind == 0:
            out[row] = values
        elif kind == 1:  # Sub: a running sum along each channel, modulo 256
            np.cumsum(values.reshape(-1, CHANNELS), axis=0, dtype=np.uint8, out=out[row].reshape(-1, CHANNELS))
        elif kind == 2:  # Up
            np.add(values, above, out=out[row])
        elif kind in (3, 4):
            out[row] = _sequential(kind, values, above)
        else:
            raise FormatError(f"PNG line {row} has filter {kind}, which does not exist")
        above = out[row]
    return out


def _sequential(kind: int, values: Bytes, above: Bytes) -> NDArray[np.uint8]:
    """Average (3) and Paeth (4): each byte needs the one before it, so a loop over plain integers."""
    before = [0] * CHANNELS + above.tolist()  # bytes above and to the left
    line = [0] * CHANNELS
    for at, value in enumerate(values.tolist()):
        left, up, corner = line[at], before[at + CHANNELS], before[at]
        if kind == 3:
            guess = (left + up) // 2
        else:
            by_left, by_up, by_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
            if by_left <= by_up and by_left <= by_corner:
                guess = left
            elif by_up <= by_corner:
                guess = up
            else:
                guess = corner
        line.append((value + guess) & 255)
    return np.array(line[CHANNELS:], dtype=np.uint8)
