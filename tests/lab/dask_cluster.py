"""A real Dask scheduler and real worker processes on the loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def wait_for(what, *, seconds=240.0):
    """Poll until `what()` is true; fails loudly instead of hanging."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """Workers get a directory of their own, no data cache, and nothing else in common with the
    driver's disk."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.workers: list[subprocess.Popen] = []
        card = directory / "scheduler.json"
        # A scheduler that nobody uses ends, and its workers with it: nothing is left of a test run
        # that was killed.
        options = ("--port", "0", "--scheduler-file", str(card), "--idle-timeout", "5 minutes")
        self.scheduler = self._start("scheduler", *options)
        self.address = wait_for(
            lambda: card.exists() and card.stat().st_size and json.loads(card.read_text())
        )["address"]

    def _start(self, kind, *arguments):
        place = self.directory / f"{kind}-{len(self.workers)}"
        place.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-m",
            f"distributed.cli.dask_{kind}",
            "--host",
            "127.0.0.1",
            "--no-dashboard",
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",  # the stub, and the code under test
            "RLPLOSS_DATA": str(place / "no" / "cache"),
            "HOME": str(place),
            "OMP_NUM_THREADS": "2",  # not the driver's
        }
        with (place / "log").open("w") as log:
            return subprocess.Popen(
                [*command, *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=place,
                start_new_session=True,
            )

    def add_worker(self, *arguments, nanny=False):
        options = [
            self.address,
            "--nthreads",
            "1",
            "--nanny" if nanny else "--no-nanny",
            *arguments,
        ]
        worker = self._start("worker", *options)
        self.workers.append(worker)
        return worker

    def kill_workers(self):
        for worker in self.workers:
            _kill_group(worker)
        self.workers.clear()

    def close(self):
        self.kill_workers()
        _kill_group(self.scheduler)


def _kill_group(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
