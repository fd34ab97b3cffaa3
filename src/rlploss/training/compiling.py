"""How the kernel is compiled: once for each floating type, and kept on disk."""

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

_njit: Any = numba.njit  # its types do not know all of its options
_intrinsic: Any = intrinsic
config: Any = numba.config

# The order of sums may change, nothing else: full fast-math would fold every test for NaN away.
_RULES: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract"},
}

compiled = _njit(
    no_cpython_wrapper=True, no_cfunc_wrapper=True, **_RULES
)  # what other compiled functions call


def cached(function: Any) -> Any:
    """Compile a function that is called from Python, and keep the result on disk where that is
    possible.

    The folder is named by a digest of this room's compiled sources: numba itself looks at one file
    only. Folders of other sources that nobody has used for a month are removed.
    """
    folder, before, kept = _folder(), config.CACHE_DIR, True
    try:  # numba would fall back on a place that does not notice a change of the other sources
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            config.CACHE_DIR = str(folder)
        os.utime(folder)  # used today
        for each in folder.parent.glob("kernel-*"):
            with suppress(OSError):  # another process sweeps too
                if time.time() - each.stat().st_mtime > UNUSED_SECONDS:
                    shutil.rmtree(each)
    except OSError:
        kept = False
    made = _njit(cache=kept, no_cfunc_wrapper=True, **_RULES)(function)
    config.CACHE_DIR = before
    return made


def forget() -> None:
    """Remove what is on disk, so that it is made anew."""
    shutil.rmtree(_folder(), ignore_errors=True)


def _folder() -> Path:
    """Where compiled code of these sources is kept: in `RLPLOSS_CACHE`, else in the user's own
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
    """Call the C function of a loss, which fills `values` and `back`, all of the same length.

    The address is a value at run time, so what is compiled here serves every loss.
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
    """The numbers of a contiguous array from `start` on in another shape: a reshape that checks and
    counts nothing.

    It does not keep the array alive, so it is for arrays that the caller holds.
    """
    made = types.Array(a.dtype, len(shape), "C")

    def build(context, builder, signature, arguments):
        source, out = (
            make_array(a)(context, builder, arguments[0]),
            make_array(made)(context, builder),
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

    return made(a, types.intp, shape), build
