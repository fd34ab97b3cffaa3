"""A process that has imported everything once and forks a child for each call: a command line costs
only its work.

The parent of the forks starts no threads and computes nothing, so a fork of it is as good as a
fresh process. Requests and answers are lines of JSON on its standard input and output."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CLI = "tests.torture.forks:command_line"
CRASHED = 70  # exit code of a child that ended with an exception


@dataclass(frozen=True)
class Done:
    """How a child ended: `code` is negative for a signal, None if it was still running at the
    time-out."""

    code: int | None
    out: str
    err: str
    seconds: float  # since the start
    stopping: float  # since the signal was sent


@dataclass(frozen=True)
class Call:
    """A function of a module with arguments, and what befalls the process that runs it."""

    function: str
    arguments: Mapping[str, Any]
    cwd: str = "."
    environment: Mapping[str, str] | None = None
    uid: int | None = None
    file_limit: int | None = None  # bytes that a file may have
    signal_number: int | None = None
    after_seconds: float | None = None  # when the signal comes: so long after the start ...
    after_text: str | None = None  # ... or so long after the output matches
    to_group: bool = False  # as a terminal does
    timeout: float = 120.0


class Forker:
    """`with Forker() as forker: forker.cli(["data", "list"])`."""

    def __init__(self) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.forks"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Forker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def start(self, *calls: Call) -> None:
        """Run calls at the same time; `results` waits for them."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([vars(call) for call in calls]) + "\n")
        self._process.stdin.flush()

    def results(self) -> list[Done]:
        """What became of the calls last started."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the forking process has ended with code {self._process.wait()}")
        return [Done(**answer) for answer in json.loads(line)]

    def run(self, *calls: Call) -> list[Done]:
        """Run calls at the same time and wait for them."""
        self.start(*calls)
        return self.results()

    def cli(self, words: Sequence[str], **circumstances: Any) -> Done:
        """One command line of rlploss."""
        return self.run(command(words, **circumstances))[0]


def command(words: Sequence[str], **circumstances: Any) -> Call:
    """A command line of rlploss as a call."""
    return Call(CLI, {"words": list(words)}, **circumstances)


def command_line(words: list[str]) -> None:
    """What the installed command does."""
    from rlploss import cli

    sys.argv = ["rlploss", *words]
    cli.main()


def _child(call: Call, out: int, err: int) -> int:
    os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    # The streams of the parent know what they wrote to, which is something else now.
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115 - for good
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.chdir(call.cwd)
    os.environ.update(call.environment or {})
    if call.file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (call.file_limit, call.file_limit))
    if call.uid is not None:
        os.setgroups([])
        os.setgid(call.uid)
        os.setuid(call.uid)
    module, _, name = call.function.partition(":")
    try:
        getattr(importlib.import_module(module), name)(**call.arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        traceback.print_exc()
        return CRASHED
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
    return 0


class _Child:
    def __init__(self, call: Call) -> None:
        self.call = call
        # Pipes, not files: a limit on files must not keep the child from saying so.
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            code = CRASHED
            try:
                code = _child(call, to_out, to_err)
            finally:
                os._exit(code)
        for handle in (to_out, to_err):
            os.close(handle)
        self.pipes = {out: bytearray(), err: bytearray()}
        for handle in self.pipes:
            os.set_blocking(handle, False)
        self.signal_at: float | None = None
        self.sent: float | None = None
        self.code: int | None = None
        self.ended: float | None = None

    def look(self) -> bool:
        """Send the signal if it is time; returns whether the child has ended."""
        now = time.monotonic()
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        self._drain()
        if pid:
            self.code, self.ended = os.waitstatus_to_exitcode(status), now
            return True
        call = self.call
        if self.sent is None and call.signal_number is not None:
            if self.signal_at is None and (call.after_text is None or self._says(call.after_text)):
                start = self.started if call.after_text is None else now
                self.signal_at = start + (call.after_seconds or 0.0)
            if self.signal_at is not None and now >= self.signal_at:
                (os.killpg if call.to_group else os.kill)(self.pid, call.signal_number)
                self.sent = now
        if now - self.started > call.timeout:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.ended = now
            return True
        return False

    def _drain(self) -> None:
        for handle, text in self.pipes.items():
            with contextlib.suppress(BlockingIOError):
                while block := os.read(handle, 1 << 16):
                    text += block

    def _texts(self) -> list[str]:
        return [bytes(text).decode(errors="replace") for text in self.pipes.values()]

    def _says(self, pattern: str) -> bool:
        return any(re.search(pattern, text) for text in self._texts())

    def done(self) -> Done:
        assert self.ended is not None
        self._drain()
        for handle in self.pipes:
            os.close(handle)
        stopping = 0.0 if self.sent is None else self.ended - self.sent
        return Done(self.code, *self._texts(), seconds=self.ended - self.started, stopping=stopping)


def _serve(calls: list[Call]) -> list[Done]:
    children = [_Child(call) for call in calls]
    running = list(children)
    while running:
        running = [child for child in running if not child.look()]
        time.sleep(0.001)
    return [child.done() for child in children]


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed here is not an answer
    import torch

    torch.set_num_threads(1)
    for module in (
        "rlploss.cli",
        "rlploss.compare",
        "rlploss.compare.report",
        "rlploss.compare.design",
        "rlploss.paper.reproduce",
        "rlploss.paper.measure",
        "rlploss.lab.train",
        "sklearn.linear_model",
        "sklearn.ensemble",
        "sklearn.pipeline",
        "sklearn.datasets",
        "pyarrow.parquet",
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_svg",
        "torch._dynamo",
        "torch._inductor",
        "pydantic.main",
        "importlib.readers",
        "rich._emoji_codes",
        "encodings.unicode_escape",
        "typer._adapters",
        "tests.torture.work",
    ):
        with contextlib.suppress(ImportError):  # of another version of theirs
            importlib.import_module(module)
    from rlploss.compare import train
    from rlploss.lab import store
    from rlploss.paper import measure

    for files in (measure.DECIDING, train.DECIDING):
        store.code_version(*files)  # reads and hashes the sources, once
    for line in sys.stdin:
        done = _serve([Call(**call) for call in json.loads(line)])
        answers.write(json.dumps([vars(answer) for answer in done]) + "\n")
        answers.flush()


if __name__ == "__main__":
    _main()
