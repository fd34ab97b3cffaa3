"""Protect torch's global state, its generators and number of threads, and read its files safely."""

from __future__ import annotations

import os
import pickletools
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

import torch

from rlploss._files import open_plain, stored_zip

PARTS = r"collections OrderedDict|torch._utils _rebuild_tensor_v2|torch \w+Storage"  # in a pickle

# Held while torch's default generator is seeded, until its state is restored.
_GENERATOR = threading.RLock()
# Not on Windows; a child process has no thread that could release the lock.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_GENERATOR._at_fork_reinit)  # type: ignore[attr-defined]  # as logging does


@contextmanager
def borrow_generators(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Give one thread torch's default generators (CPU and these GPUs), and restore them after."""
    with _GENERATOR, torch.random.fork_rng(devices=list(devices)):
        yield


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run torch on one thread: small products are faster so, and sums round the same everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def load_tensors(path: Path, most: int) -> object:
    """Return the tensors, texts and numbers of an untrusted file of at most `most` bytes that
    `torch.save` wrote.
    """
    with open_plain(path, most) as file:
        archive, size = stored_zip(file), os.fstat(file.fileno()).st_size
        for name in archive.namelist():
            pickled = archive.read(name) if name.endswith(".pkl") else b"."
            for code, argument, _ in pickletools.genops(pickled):
                if "GLOBAL" in code.name and not re.fullmatch(PARTS, str(argument)):
                    raise ValueError("what is no tensor, text or number")
        file.seek(0)
        try:
            content: object = torch.load(file, map_location="cpu", weights_only=True)
        except UnpicklingError as error:  # torch's message advises to load the file unsafely
            raise ValueError("what torch did not write") from error
    _count(content, size)
    return content


def _count(value: object, left: int) -> int:
    """Subtract a value's size from `left`, a number of bytes; refuse content that is larger than
    its file because parts share memory.
    """
    left -= value.nbytes // 64 if isinstance(value, torch.Tensor) else 1
    if left < 0:
        raise ValueError("its content is larger than it")
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    for part in parts if isinstance(parts, list | tuple) else ():
        left = _count(part, left)
    return left
