from __future__ import annotations

import importlib.util
import io
import struct

import numpy as np
import pytest
from PIL import Image

from rlploss.datasets.readers import (
    read_cifar_batch,
    read_csv,
    read_idx,
    read_png,
    write_cifar_batch,
)


def test_csv_gives_the_nearest_doubles() -> None:
    values = np.random.default_rng(0).normal(size=(50, 3)) * 10.0 ** np.arange(-5, 10, 5)
    text = "\r\n".join(";".join(repr(cell) for cell in row) for row in values.tolist())
    names, table = read_csv(f'"a b";"c";"d"\r\n{text}\r\n'.encode(), delimiter=";", header=True)
    assert names == ("a b", "c", "d")
    assert (table == values).all()


@pytest.mark.parametrize("shape", [(3,), (2, 4, 5), (1, 1), (0, 3)])
def test_idx_round_trip(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).integers(0, 256, size=shape, dtype=np.uint8)
    data = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values.tobytes()
    assert (read_idx(data) == values).all()
    assert read_idx(data).shape == shape


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


PIXELS = (np.random.default_rng(0).integers(0, 256, size=(40, 60, 3)) * [1, 0.5, 0.1]).astype(
    np.uint8
)


def png(pixels: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", **options)
    return buffer.getvalue()


def test_png_round_trip() -> None:
    assert (read_png(png(PIXELS)) == PIXELS).all()


def test_png_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r"reading PNG files needs PIL.*pip install 'rlploss\[lab\]'"
    ):
        read_png(b"")
