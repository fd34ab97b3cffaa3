"""One process per output directory: a lock that the system releases when its holder dies."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rlploss._locks import try_lock
from rlploss.lab.errors import LabError


class DirectoryBusy(LabError):
    """Another process works in the directory; the message is one sentence for the user."""


class DirectoryLock:
    """Held from construction to `release`. The file stays; the lock on it does not outlive the process."""

    NAME = ".lock"

    def __init__(self, directory: Path) -> None:
        self.path = directory / self.NAME
        try:
            self._handle: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise DirectoryBusy(
                f"cannot lock {directory} ({error.strerror}); choose a directory you may write to"
            ) from error
        if not try_lock(self._handle):
            holder = os.read(self._handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._handle)
            self._handle = None
            raise DirectoryBusy(
                f"another rlploss (process {holder}) is working in {directory}; wait for it or choose another directory"
            )
        # The number is for the message above only: a full disk may refuse it, the lock holds all the same.
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, 0)
            os.write(self._handle, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Give the directory free; safe to call twice."""
        if self._handle is not None:
            os.close(self._handle)  # closing releases the lock
            self._handle = None
