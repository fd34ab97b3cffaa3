"""Products out of registers: their twin is numpy, and they touch nothing beyond their matrices."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from rlploss.training.tiles import BITS, PLAIN, RELU, TALL, WHERE_POSITIVE, dots, product  # noqa: E402 - after the skip

LANES = BITS // 32  # of float32
GUARD = 7.5


@numba.njit
def run_product(
    a: Any, row_step: int, term_step: int, b: Any, out: Any, start: Any, after: int, h: Any
) -> None:
    product(a, row_step, term_step, b, out, start, after, h)


@numba.njit
def run_dots(a: Any, b: Any, out: Any) -> None:
    dots(a, b, out)


def guarded(*shape: int, dtype: Any) -> tuple[Any, Any]:
    """An array for a result, and the numbers that lie around it."""
    around = np.full(int(np.prod(shape)) + 128, GUARD, dtype)
    return around[64:-64].reshape(shape), around


def is_whole(around: Any) -> bool:
    return bool((around[:64] == GUARD).all() and (around[-64:] == GUARD).all())


@pytest.mark.parametrize(
    "n", [1, 3, LANES // 2, LANES - 1, LANES, LANES + 1, 2 * LANES - 1, 2 * LANES, 5 * LANES + 2]
)
@pytest.mark.parametrize("m", [1, 2, TALL - 1, TALL, TALL + 1, 3 * TALL - 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_equals_its_twin(m: int, n: int, dtype: Any) -> None:
    rng = np.random.default_rng([m, n])
    for k in (1, 2, 5, 40):
        a, b, h = (rng.normal(size=size).astype(dtype) for size in ((m, k), (k, n), (m, n)))
        for start in (np.zeros(0, dtype), rng.normal(size=n).astype(dtype)):
            twin = a.astype(np.float64) @ b + (start if len(start) else 0)
            wanted = {
                PLAIN: twin,
                RELU: np.maximum(twin, 0),
                WHERE_POSITIVE: np.where(h > 0, twin, 0),
            }
            for after, expected in wanted.items():
                for given, steps in ((a, (k, 1)), (np.ascontiguousarray(a.T), (1, m))):
                    out, around = guarded(m, n, dtype=dtype)
                    run_product(given, *steps, b, out, start, after, h)
                    np.testing.assert_allclose(
                        out, expected, rtol=0, atol=8 * k * np.finfo(dtype).eps
                    )
                    assert is_whole(around), "it writes beyond its matrix"


@pytest.mark.parametrize("k", [1, 3, LANES - 1, LANES, LANES + 1, 4 * LANES + 5])
@pytest.mark.parametrize("m", [1, 3, 4, 5, 11])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dots_equal_their_twin(m: int, k: int, dtype: Any) -> None:
    rng = np.random.default_rng([m, k])
    a, b = (rng.normal(size=size).astype(dtype) for size in ((m, k), k))
    out, around = guarded(m, dtype=dtype)
    run_dots(a, b, out)
    np.testing.assert_allclose(
        out, a.astype(np.float64) @ b, rtol=0, atol=8 * k * np.finfo(dtype).eps
    )
    assert is_whole(around)


def test_numbers_do_not_depend_on_where_they_stand() -> None:
    """Rows and columns of a larger product have the bits of the same ones alone."""
    rng = np.random.default_rng(0)
    a, b = (
        rng.normal(size=size).astype(np.float32) for size in ((3 * TALL + 1, 9), (9, 4 * LANES + 3))
    )
    none = np.zeros(0, np.float32)
    whole = np.zeros((len(a), b.shape[1]), np.float32)
    run_product(a, 9, 1, b, whole, none, PLAIN, whole)
    for rows in (slice(2, 3), slice(1, TALL + 5)):
        for columns in (slice(5, 8), slice(0, 2 * LANES + 1)):
            part = np.zeros((len(a[rows]), b[:, columns].shape[1]), np.float32)
            run_product(a[rows], 9, 1, np.ascontiguousarray(b[:, columns]), part, none, PLAIN, part)
            assert (part == whole[rows, columns]).all()


@pytest.mark.parametrize("after", [PLAIN, RELU])
def test_what_is_not_finite_is_passed_on(after: int) -> None:
    a, b = np.array([[1.0, np.nan], [np.inf, 1.0]], np.float32), np.ones((2, 3), np.float32)
    out = np.zeros((2, 3), np.float32)
    run_product(a, 2, 1, b, out, np.zeros(0, np.float32), after, out)
    assert np.isnan(out[0]).all()
    assert np.isinf(out[1]).all()


BESIDE_FORBIDDEN_MEMORY = """
import ctypes, mmap
import numpy as np
from tests.training.test_tiles import LANES, PLAIN, RELU, TALL, WHERE_POSITIVE, run_dots, run_product

PAGE = mmap.PAGESIZE

def at_the_end(*shape):
    # an array that ends where memory ends: the next page may not be read
    size = int(np.prod(shape)) * 4
    pages = -(-size // PAGE) + 1
    memory = mmap.mmap(-1, pages * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + (pages - 1) * PAGE), PAGE, 0) == 0
    return np.frombuffer(memory, np.float32, size // 4, (pages - 1) * PAGE - size).reshape(shape)

for m in (1, 3, TALL + 1):
    for n in (1, LANES - 1, LANES + 1, 2 * LANES + 1):
        for k in (1, 5):
            for after in (PLAIN, RELU, WHERE_POSITIVE):
                a, b, out, start, h = (at_the_end(*size) for size in ((m, k), (k, n), (m, n), (n,), (m, n)))
                run_product(a, k, 1, b, out, start, after, h)
            run_dots(at_the_end(m, n), at_the_end(n), at_the_end(m))
print("nothing beyond")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forbids memory with Linux's mprotect")
def test_nothing_beyond_the_matrices_is_read() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BESIDE_FORBIDDEN_MEMORY], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "nothing beyond", (
        done.stderr[-2000:] or f"it ended with {done.returncode}"
    )
