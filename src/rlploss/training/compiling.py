"""Compile the kernel with numba, once for each floating type, and store the result on disk."""

import hashlib
import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

UNUSED_SECONDS = 30 * 24 * 3600

_njit: Any = numba.njit  # numba's type hints lack some options
_intrinsic: Any = intrinsic
config: Any = numba.config

# Only the order of sums may change. Full fast-math would remove every test for NaN.
_RULES: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract"},
}

# For functions that other compiled functions call.
compiled = _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_RULES)


def cached(function: Any) -> Any:
    """Compile a function that Python calls, and store the result on disk if possible.

    The folder's name has a digest of all compiled sources, because numba itself checks only one
    file. Folders of other sources that were not used for a month are removed.
    """
    folder, before, on_disk = _folder(), config.CACHE_DIR, True
    try:  # numba's default folder would not notice a change of the other sources
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            config.CACHE_DIR = str(folder)
        os.utime(folder)  # marks the folder as used today
        for other in folder.parent.glob("kernel-*"):
            with suppress(OSError):  # another process may remove it too
                if time.time() - other.stat().st_mtime > UNUSED_SECONDS:
                    shutil.rmtree(other)
    except OSError:
        on_disk = False
    dispatcher = _njit(cache=on_disk, no_cfunc_wrapper=True, **_RULES)(function)
    config.CACHE_DIR = before
    return dispatcher


def forget() -> None:
    """Remove the stored code, so that it is compiled again."""
    shutil.rmtree(_folder(), ignore_errors=True)


def _folder() -> Path:
    """Return the folder for compiled code of these sources: below `RLPLOSS_CACHE`, or in the user's
    cache folder.
    """
    here, digest = Path(__file__).parent, hashlib.sha256()
    for name in ("compiling", "kernel", "kernel_losses", "kernel_types", "tiles"):
        digest.update((here / f"{name}.py").read_bytes())
    usual = {
        "win32": Path(os.environ.get("LOCALAPPDATA", Path.home())),
        "darwin": Path.home() / "Library" / "Caches",
    }.get(sys.platform, Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"))
    return (
        Path(os.environ.get("RLPLOSS_CACHE") or usual / "rlploss")
        / f"kernel-{digest.hexdigest()[:16]}"
    )


@_intrinsic
def call_loss(typing, address, pred, target, values, back):
    """Call the C function of a loss, which fills `values` and `back`; all arrays have the same
    length.

    The address is a run-time value, so one compiled kernel serves every loss.
    """

    def build(context, builder, signature, arguments):
        arrays = [make_array(pred)(context, builder, array) for array in arguments[1:]]
        number = context.get_data_type(pred.dtype).as_pointer()
        length = arrays[0].nitems
        kind = ir.FunctionType(ir.VoidType(), [number] * 4 + [length.type])
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        builder.call(function, [*(array.data for array in arrays), length])
        return context.get_dummy_value()

    return types.void(types.intp, pred, target, values, back), build


@_intrinsic
def view(typing, a, start, shape):
    """Reshape the numbers of a contiguous array from `start` on, without checks and without
    reference counting.

    It does not keep the array alive, so the caller must hold the array.
    """
    result = types.Array(a.dtype, len(shape), "C")

    def build(context, builder, signature, arguments):
        source, out = (
            make_array(a)(context, builder, arguments[0]),
            make_array(result)(context, builder),
        )
        lengths = cgutils.unpack_tuple(builder, arguments[2])
        itemsize = context.get_constant(
            types.intp, context.get_abi_sizeof(context.get_data_type(a.dtype))
        )
        strides = [itemsize]
        for length in lengths[:0:-1]:
            strides.insert(0, builder.mul(strides[0], length))
        first = builder.gep(source.data, [arguments[1]])
        populate_array(
            out, data=first, shape=lengths, strides=strides, itemsize=itemsize, meminfo=None
        )
        return out._getvalue()

    return result(a, types.intp, shape), build
