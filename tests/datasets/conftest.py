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
    skip = pytest.mark.skip(
        reason="fetches real packages: `make test-data` sets RLPLOSS_TEST_NETWORK=1"
    )
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
    cut: dict[str, list[int]] = field(
        default_factory=dict
    )  # path -> bytes to send before each next hang-up
    announce: bool = True  # send Content-Length
    delay: float = 0.0  # seconds before each answer
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            state.asked.append(self.path)
            time.sleep(state.delay)
            body = state.files.get(self.path)
            if self.path in state.status or body is None:
                self.send_error(state.status.get(self.path, 404))
                return
            self.send_response(200)
            if self.path.endswith("/"):
                self.send_header("Content-Type", "text/html")  # a page of an index
            if state.announce:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            cuts = state.cut.get(self.path, [])
            self.wfile.write(body[: cuts.pop(0)] if cuts else body)
            self.close_connection = True

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    http.shutdown()
    thread.join()
    http.server_close()
