"""A headless browser, driven through Chrome's debugging pipe with the standard library alone."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

CHROME = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-ipc-flooding-protection",  # a test may follow hundreds of links
    "--remote-debugging-pipe",
)


class Browser:
    """A headless browser with one page; commands go to file descriptor 3, answers come from 4, zero bytes between."""

    def __init__(self, profile: Path, patience: float = 60) -> None:
        self.patience = patience
        self.events: list[dict[str, Any]] = []
        self._ids = itertools.count(1)
        self._rest = b""
        # The shell moves its own input and output to where Chrome looks; subprocess cannot choose numbers.
        shell = ["/bin/sh", "-c", 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null', "sh"]
        self._process = subprocess.Popen(
            [*shell, str(CHROME), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        assert self._process.stdin and self._process.stdout
        self._out, self._in = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._session: str | None = None

    def __enter__(self) -> Self:
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")
        return self

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command."""
        message = {"id": next(self._ids), "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def open(self, url: str, width: int = 1400, dark: bool = False) -> None:
        """Load a page and wait until it has settled."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", media="", features=[scheme])
        self._load("about:blank")  # a page that differs from the last one only after "#" would not load again
        self._load(url)
        self.run("new Promise(done => setTimeout(done, 200))")

    def _load(self, url: str) -> None:
        self.events.clear()
        self("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """The whole page, or its first screen, as a picture."""
        data = self("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def named(self, *methods: str) -> list[dict[str, Any]]:
        """The parameters of the events of these kinds since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes the pipes and waits
            self._process.terminate()

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + self.patience
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no answer from the browser for {self.patience} seconds"
            data = os.read(self._in, 1 << 16)
            assert data, "the browser exited"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
