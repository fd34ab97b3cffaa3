"""A headless Chromium driven over a pipe (the DevTools protocol), with nothing to install but the
browser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

CANDIDATES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip


def find() -> str | None:
    """The browser's path, or None."""
    named = os.environ.get("RLPLOSS_CHROMIUM")
    return named or next((path for name in CANDIDATES if (path := shutil.which(name))), None)


class Browser:
    """`with Browser(tmp_path) as browser: page = browser.open(url, width=360)`."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def hand_over() -> None:  # the protocol reads descriptor 3 and writes descriptor 4
            spare = [os.dup(to_browser), os.dup(from_browser)]
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        self._process = subprocess.Popen(
            [find(), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=hand_over, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._next, self.events = b"", 0, []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def _receive(self) -> dict:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 16)
            if not part:
                raise RuntimeError("the browser has closed its pipe")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, session: str | None = None, **parameters: object) -> dict:
        """One command and its answer; events that come in between are kept."""
        self._next += 1
        message = {"id": self._next, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, url: str, *, width: int, height: int = 900, dark: bool = False) -> Page:
        """Load a page in a window of its own."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable", session)
        self.call(
            "Emulation.setDeviceMetricsOverride", session,
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", session, features=[scheme])
        self.events.clear()
        self.call("Page.navigate", session, url=url)
        deadline = time.monotonic() + 60
        page = Page(self, session)
        while page.evaluate("document.readyState") != "complete":
            if time.monotonic() > deadline:
                raise TimeoutError(url)
            time.sleep(0.05)
        return page


class Page:
    """A loaded page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def evaluate(self, expression: str) -> object:
        """The value of a JavaScript expression."""
        found = self._browser.call(
            "Runtime.evaluate", self._session, expression=expression, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def _mine(self, method: str) -> list[dict]:
        self.evaluate("0")  # lets what is on its way arrive
        return [e["params"] for e in self._browser.events if e.get("method") == method]

    def requests(self) -> list[str]:
        """Every address that the page has asked for; what it carries itself (data:) is not asked
        for."""
        urls = [e["request"]["url"] for e in self._mine("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith("data:")]

    def errors(self) -> list[str]:
        """Console errors, uncaught exceptions, blocked resources."""
        logged = [
            e["entry"]["text"]
            for e in self._mine("Log.entryAdded")
            if e["entry"]["level"] == "error"
        ]
        thrown = [str(e["exceptionDetails"]) for e in self._mine("Runtime.exceptionThrown")]
        told = [
            str(e["args"])
            for e in self._mine("Runtime.consoleAPICalled")
            if e["type"] in ("error", "warning")
        ]
        return logged + thrown + told

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        import base64

        found = self._browser.call(
            "Page.captureScreenshot", self._session, format="png", captureBeyondViewport=True
        )
        path.write_bytes(base64.b64decode(found["data"]))
