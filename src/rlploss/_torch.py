"""Borrow what torch shares between threads: its default generators and its number of threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

# Held while torch's default generator is seeded, until its state is restored.
_GENERATOR = threading.RLock()
if hasattr(os, "register_at_fork"):  # not on Windows; in a child the threads that held it are gone
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
