from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from rlploss.datasets.formats import FormatError, read_cifar_batch, read_csv, read_idx, write_cifar_batch
from rlploss.datasets.images import read_labels
from rlploss.datasets.png import read_png

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
        (b"", "not an IDX file of unsigned bytes: it begins with nothing"),
        (b"\x1f\x8b\x08\x00", "it begins with 1f8b0800, not 000008"),
        (b"\x00\x00\x08\x00", "announces 0 dimensions"),
        (b"\x00\x00\x08\x02\x00\x00\x00\x01", "announces 2 dimensions but the file has 8 bytes"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x05abc", r"of shape (5,) has 13 bytes, this one 11"),
        (b"\x00\x00\x08\x02\xff\xff\xff\xff\xff\xff\xff\xffabc", "bytes, this one 15"),
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
        (b"", "whole records of 3,073 bytes, this one has 0"),
        (b"\x01" * 3072, "whole records of 3,073 bytes, this one has 3,072"),
        (b"\x0a" + b"\x00" * 3072, "label is 0 to 9, this batch has 10"),
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


def paeth(left: int, up: int, corner: int) -> int:
    """The PNG standard's predictor: whichever of the three is nearest to left + up - corner."""
    return min((left, up, corner), key=lambda value: abs(left + up - corner - value))  # first wins a tie


def filtered(pixels: np.ndarray, kinds: list[int]) -> bytes:
    """Filter an image [height, width, 3] byte by byte, as the PNG standard writes it."""
    height, width, _ = pixels.shape
    flat = pixels.reshape(height, -1).astype(int)
    out = bytearray()
    for row, kind in enumerate(kinds):
        out.append(kind)
        for at in range(3 * width):
            left = flat[row, at - 3] if at >= 3 else 0
            up = flat[row - 1, at] if row else 0
            corner = flat[row - 1, at - 3] if row and at >= 3 else 0
            guess = (0, left, up, (left + up) // 2, paeth(left, up, corner))[kind]
            out.append((flat[row, at] - guess) % 256)
    return bytes(out)


@pytest.mark.parametrize("kinds", [[0] * 6, [1] * 6, [2] * 6, [3] * 6, [4] * 6, [4, 3, 2, 1, 0, 4], [2, 4, 1, 3, 4, 1]])
def test_png_filters(kinds: list[int]) -> None:
    rng = np.random.default_rng(sum(kinds))
    # Half noise, half flat: ties in the Paeth predictor need equal neighbours.
    pixels = rng.integers(0, 256, size=(6, 9, 3), dtype=np.uint8)
    pixels[:, 4:] = rng.integers(0, 3, size=(6, 5, 3))
    data = png_bytes(filtered(pixels, kinds), width=9, height=6, n_chunks=3)
    assert (read_png(data, width=9, height=6) == pixels).all()


def test_png_reads_what_another_program_writes() -> None:
    image = pytest.importorskip("PIL.Image")
    import io

    pixels = np.add.outer(np.arange(40), np.arange(60))[..., None] * np.array([1, 2, 5])
    pixels = (pixels + np.random.default_rng(0).integers(0, 9, pixels.shape)).astype(np.uint8)
    buffer = io.BytesIO()
    image.fromarray(pixels).save(buffer, "png")
    assert (read_png(buffer.getvalue(), width=60, height=40) == pixels).all()


GOOD = png_bytes(b"\x00" * 2 * 10, width=3, height=2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GIF89a", "the signature is missing"),
        (GOOD[:-1], "truncated PNG file"),
        (GOOD[:30], "truncated PNG file"),
        (GOOD[:-14], "truncated PNG file"),
        (GOOD.replace(b"IDAT", b"IDAX"), r"chunk b'IDAX' has a wrong checksum"),
        (png_bytes(b"\x00" * 20, width=2, height=3), "expected a 3×2 8-bit RGB PNG"),
        (png_bytes(b"\x00" * 20, width=3, height=2, header_tail=(8, 6, 0, 0, 0)), "expected a 3×2 8-bit RGB PNG"),
        (png_bytes(b"\x00" * 20, width=3, height=2, header_tail=(8, 2, 0, 0, 1)), "expected a 3×2 8-bit RGB PNG"),
        (png_bytes(b"\x00" * 21, width=3, height=2), "must expand to 20 bytes, this does not"),
        (png_bytes(b"\x00" * 19, width=3, height=2), "must expand to 20 bytes, this does not"),
        (png_bytes(b"\x05" + b"\x00" * 19, width=3, height=2), "line 0 has filter 5, which does not exist"),
        (GOOD[:33] + png_chunk(b"IDAT", b"not zlib") + png_chunk(b"IEND", b""), "damaged PNG data"),
    ],
)
def test_png_refuses(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_png(data, width=3, height=2)


def test_png_bomb_is_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    bomb = png_bytes(b"\x00" * 50_000_000, width=3, height=2)
    tracemalloc.start()
    with pytest.raises(FormatError, match="must expand to 20 bytes"):
        read_png(bomb, width=3, height=2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000
