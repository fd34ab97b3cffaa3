"""A lock on an open file that dies with its holder; the same for caches and for stores."""

from __future__ import annotations

import os
import sys

if sys.platform == "win32":  # pragma: no cover - exercised on Windows only
    import msvcrt

    def try_lock(handle: int) -> bool:
        """Lock the open file for this process, or say at once that another one holds it."""
        try:
            os.lseek(handle, 1 << 20, os.SEEK_SET)  # a byte past any text, so that the text stays readable
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def try_lock(handle: int) -> bool:
        """Lock the open file for this process, or say at once that another one holds it."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
