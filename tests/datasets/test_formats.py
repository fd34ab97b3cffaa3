from __future__ import annotations

import importlib.util
import io
import re
import struct
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from rlploss.datasets.readers import (
    FormatError,
    read_cifar_batch,
    read_csv,
    read_idx,
    read_labels,
    read_png,
    write_cifar_batch,
)

from .builders import png_bytes, png_chunk


def test_csv_gives_the_nearest_doubles() -> None:
    values = np.random.default_rng(0).normal(size=(50, 3)) * 10.0 ** np.arange(-5, 10, 5)
    text = "\r\n".join(";".join(repr(cell) for cell in row) for row in values.tolist())
    names, table = read_csv(f'"a b";"c";"d"\r\n{text}\r\n'.encode(), delimiter=";", header=True)
    assert names == ("a b", "c", "d")
    assert (table == values).all()


@pytest.mark.parametrize(
    "text", [b"", b"1,2\n3\n", b"1,two\n", b"\xff\xfe\n", b"a,b\n1\n"], ids=lambda text: repr(text)
)
def test_csv_refuses_what_is_no_table(text: bytes) -> None:
    with pytest.raises(FormatError, match="not a table of numbers separated by ','"):
        read_csv(text, header=text.startswith(b"a"))


@pytest.mark.parametrize("shape", [(3,), (2, 4, 5), (1, 1), (0, 3)])
def test_idx_round_trip(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).integers(0, 256, size=shape, dtype=np.uint8)
    data = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values.tobytes()
    assert (read_idx(data) == values).all()
    assert read_idx(data).shape == shape


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an IDX file of unsigned bytes (it begins with nothing, not 000008)"),
        (b"\x1f\x8b\x08\x00", "it begins with 1f8b0800, not 000008"),
        (b"\x00\x00\x08\x00", "it begins with 00000800"),
        (b"\x00\x00\x08\x02\x00\x00\x00\x01", "not an IDX file of unsigned bytes ("),
        (b"\x00\x00\x08\x01\x00\x00\x00\x05abc", "(cannot reshape array of size 3 into shape (5,))"),
        (b"\x00\x00\x08\x02\xff\xff\xff\xff\xff\xff\xff\xffabc", "not an IDX file of unsigned bytes ("),
    ],
)
def test_idx_refuses(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=re.escape(message)):
        read_idx(data)


def test_cifar_batch_round_trip() -> None:
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, size=(4, 1024, 3), dtype=np.uint8)
    labels = np.array([0, 9, 3, 3], dtype=np.uint8)
    data = write_cifar_batch(pixels, labels)
    images, read = read_cifar_batch(data)
    assert (read == labels).all()
    for row in range(4):
        for channel in range(3):
            plane = images[row, 1024 * channel : 1024 * (channel + 1)]
            assert (plane == pixels[row, :, channel]).all()
    assert data[:2] == bytes([0, pixels[0, 0, 0]])  # the label, then red


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a CIFAR-10 batch"),
        (b"\x01" * 3072, "not a CIFAR-10 batch .*3072 into shape .*3073"),
        (b"\x0a" + b"\x00" * 3072, "not a CIFAR-10 batch .a label is 0 to 9, this batch has 10"),
    ],
)
def test_cifar_batch_refuses(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_cifar_batch(data)


def test_labels() -> None:
    assert read_labels(b"[3, 0, 9]").tolist() == [3, 0, 9]
    for bad in (b"[1, 2", b'["x"]', b"[-1]", b"[300]"):
        with pytest.raises(FormatError, match="not a JSON list of labels"):
            read_labels(bad)


PIXELS = (np.random.default_rng(0).integers(0, 256, size=(40, 60, 3)) * [1, 0.5, 0.1]).astype(np.uint8)


def png(pixels: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", **options)
    return buffer.getvalue()


def test_png_round_trip() -> None:
    assert (read_png(png(PIXELS), width=60, height=40) == PIXELS).all()


GOOD = png_bytes(b"\x00" * 2 * 10, width=3, height=2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "damaged PNG file"),
        (b"GIF89a", "damaged PNG file"),
        (GOOD[:30], "damaged PNG file"),
        (GOOD[:45], "damaged PNG file"),
        (GOOD.replace(b"IDAT", b"IDAX"), "damaged PNG file"),
        (GOOD[:33] + png_chunk(b"IDAT", b"not zlib") + png_chunk(b"IEND", b""), "damaged PNG file"),
        (png_bytes(b"\x00" * 9, width=3, height=2), "damaged PNG file"),
        (png_bytes(b"\x05" + b"\x00" * 19, width=3, height=2), "damaged PNG file"),
        (png_bytes(b"\x00" * 20, width=2, height=3), "expected a 3×2 RGB PNG, got 2×3 RGB"),
        (png_bytes(b"\x00" * 20, width=3, height=2, header_tail=(8, 6, 0, 0, 0)), "expected a 3×2 RGB PNG, got .*RGBA"),
        (png_bytes(b"", width=60_000, height=60_000), "damaged PNG file .*exceeds limit"),
        (png_bytes(b"", width=10_000, height=10_000), "damaged PNG file .*exceeds limit"),
    ],
)
def test_png_refuses(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_png(data, width=3, height=2)


def test_png_bomb_is_not_expanded() -> None:
    """The data may hold more than the header announces; what is too much is not unpacked."""
    bomb = png_bytes(b"\x00" * 50_000_000, width=3, height=2)
    tracemalloc.start()
    assert (read_png(bomb, width=3, height=2) == 0).all()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_png_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"reading PNG files needs PIL.*pip install 'rlploss\[lab\]'"):
        read_png(GOOD, width=3, height=2)
