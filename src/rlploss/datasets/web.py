"""Download one file over HTTP: short time-outs, a size limit, and parts that are kept and resumed."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from rlploss.datasets._progress import Quiet
from rlploss.datasets.cache import cache_errors

TIMEOUT = 10.0  # seconds for a connection, and for each read
ATTEMPTS = 3  # connections per download, as long as each one brings something
BLOCK = 1 << 18


class SourceError(Exception):
    """A source could not deliver; the text is the reason."""


class TransferError(SourceError):
    """The server or the connection failed; what came so far is kept, to be resumed."""


class HostError(TransferError):
    """The host did not answer at all: other files on it need not be tried."""


def download(url: str, part: Path, *, max_bytes: int, progress: Quiet, timeout: float = TIMEOUT) -> bool:
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
    except urllib.error.URLError as error:
        raise HostError(f"{urllib.parse.urlsplit(url).hostname} not reached ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise HostError(f"{urllib.parse.urlsplit(url).hostname} not reached ({error})") from error
    honoured = response.status == http.HTTPStatus.PARTIAL_CONTENT
    if honoured and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        response.close()
        return _open(url, 0, timeout)  # not the range asked for
    return response, start if honoured else 0


def _copy(
    response: http.client.HTTPResponse, part: Path, start: int, total: int | None, max_bytes: int, progress: Quiet
) -> tuple[int, str | None]:
    """Append the response to `part` from byte `start`; returns the new size and what broke, if anything."""
    position = start
    transfer = progress.transfer(part.stem, total, start)
    # Errors of the network are caught inside; what else is an OSError is the disk's, also when the file is closed.
    with cache_errors(part), part.open("r+b" if start else "wb") as file, transfer as advance:
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
            advance(len(block))


def use_download(url: str, part: Path, use: Callable[[Path], None], *, max_bytes: int, progress: Quiet) -> None:
    """Download `url` and hand the file to `use`, which raises SourceError when the content is wrong.

    A resumed download that turns out wrong is begun again, once. The part is removed unless the connection broke.
    """
    for last in (False, True):
        pieced = part.exists()
        try:
            pieced |= download(url, part, max_bytes=max_bytes, progress=progress)
            use(part)
        except TransferError:
            raise
        except SourceError:
            _remove(part)
            if last or not pieced:
                raise
            progress.note(f"{part.stem}: the resumed download is damaged; beginning again")
        else:
            _remove(part)
            return


def _remove(part: Path) -> None:
    with cache_errors(part):
        part.unlink(missing_ok=True)


def check_hash(path: Path, sha256: str | None) -> None:
    """Raise SourceError unless the file has this SHA-256; None asks for nothing."""
    if sha256 is None:
        return
    with cache_errors(path), path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise SourceError(f"the download's SHA-256 is {found}, not {sha256}")
