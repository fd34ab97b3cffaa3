from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("RLPLOSS_TEST_NETWORK") == "1":
        return
    skip = pytest.mark.skip(reason="fetches real packages: `make test-data` sets RLPLOSS_TEST_NETWORK=1")
    for item in items:
        if "network" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory of the test's own."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("RLPLOSS_DATA", str(directory))
    return directory


@dataclass
class Server:
    """A local HTTP server: what it serves, how it misbehaves, what it was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)  # path -> error to answer with
    cut: dict[str, list[int]] = field(default_factory=dict)  # path -> bytes to send before each next hang-up
    ranges: bool = True  # honour Range
    wrong_range: bool = False  # answer 206 with another range
    announce: bool = True  # send Content-Length
    delay: float = 0.0  # seconds before each answer
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range header


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.asked.append((self.path, asked))
            time.sleep(state.delay)
            body = state.files.get(self.path)
            if self.path in state.status or body is None:
                self.send_error(state.status.get(self.path, 404))
                return
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and state.ranges else 0
            if start >= len(body) and start:
                self.send_error(416)
                return
            if start and state.wrong_range:
                start = 0
            partial = bool(asked) and state.ranges
            self.send_response(206 if partial else 200)
            if partial:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            if state.announce:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            body = body[start:]
            cuts = state.cut.get(self.path, [])
            if cuts:
                body = body[: cuts.pop(0)]
            self.wfile.write(body)
            self.close_connection = True

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    http.shutdown()
    thread.join()
    http.server_close()
