"""Processes that wait for work at the end of a pipe.

Nothing heavy is imported here, so that one can begin to import what it needs while its driver still does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait


class Process:
    """One process: it imports some modules, and waits for what `lab.workers.live` is to do."""

    def __init__(self, *modules: str) -> None:
        # "spawn": no lock, no open store and no thread of the driver is inherited.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(modules, theirs))
        with _interrupts_held():
            self.process.start()
        theirs.close()

    def ending(self) -> str:
        """How it has ended."""
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"exit code {code}"
        return f"killed by signal {-code}, {next((s.name for s in signal.Signals if s == -code), 'without a name')}"


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def stop(team: Sequence[Process]) -> None:
    """End some processes: all are asked at once, and those that do not go within a second are killed."""
    for one in team:
        one.process.terminate()
    deadline = time.monotonic() + 1.0
    for one in team:
        one.process.join(max(0.0, deadline - time.monotonic()))
        if one.process.is_alive():
            one.process.kill()
        one.pipe.close()


@contextmanager
def _interrupts_held() -> Generator[None]:
    """Processes started in here never see Ctrl-C, not even while they import; the driver sees it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # its own start would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(modules: Sequence[str], driver: Connection) -> None:
    """The life of a process. Ctrl-C is the driver's to handle; without a driver there is nobody to work for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    for name in modules:
        import_module(name)
    import_module("rlploss.lab.workers").live(driver)
