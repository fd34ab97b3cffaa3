"""Programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import rlploss

SOURCE = str(Path(rlploss.__file__).parents[1])  # the same library as that of the tests


def in_a_process(code: str, *arguments: str, **environment: str) -> str:
    """What a Python program prints; its warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": SOURCE, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
