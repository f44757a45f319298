"""The report in a real browser, driven through Chrome's debugging pipe with the standard library alone."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from normplace.lab.report import write_report

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
    "--remote-debugging-pipe",
)
pytestmark = pytest.mark.skipif(CHROME is None, reason="no chromium, chromium-browser or google-chrome on this machine")


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
        self.events.clear()
        self("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())
        self.run("new Promise(done => setTimeout(done, 200))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as a picture."""
        data = self("Page.captureScreenshot", captureBeyondViewport=True)["data"]
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


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(sections, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(sections, path)
    return path.as_uri()


def test_no_console_message_and_no_request_leaves_the_page(browser, page):
    browser.open(page)
    assert browser.named("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded") == []
    addresses = [params["request"]["url"] for params in browser.named("Network.requestWillBeSent")]
    assert addresses[0] == page
    assert all(address.startswith("data:") for address in addresses[1:])


def test_the_probe_sees_console_messages_and_requests(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://127.0.0.1:9/a.png'><script>console.error('no')</script>")
    browser.open(bad.as_uri())
    assert browser.named("Runtime.consoleAPICalled", "Log.entryAdded")
    assert any("127.0.0.1" in params["request"]["url"] for params in browser.named("Network.requestWillBeSent"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 700, 1400])
def test_nothing_is_wider_than_the_window(browser, page, width, dark):
    browser.open(page, width, dark)
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    root = "document.documentElement"
    assert browser.run(f"{root}.scrollWidth") <= browser.run(f"{root}.clientWidth") <= width
    assert browser.run("innerWidth") == width  # a phone zooms out instead of scrolling


def test_hostile_names_are_text(browser, page, hostile):
    browser.open(page)
    assert browser.run("document.scripts.length") == 1
    text = browser.run("document.body.innerText")
    for kind in ("Study", "Paper", "Summary", "Claimed in", "Statement", "Label", "Note", "Figure", "Caption", "Error"):
        assert f"{kind} {hostile}" in text
    drawn = browser.run("Array.from(document.querySelectorAll('svg text'), t => t.textContent).join('|')")
    assert f"Chart {hostile}" in drawn and f"Axis {hostile}" in drawn


def test_injected_scripts_are_refused(browser, page):
    browser.open(page)
    ran = browser.run("""(() => {
        const script = document.createElement('script');
        script.textContent = 'window.ran = true';
        document.body.append(script);
        return window.ran === true;
    })()""")
    assert ran is False


@pytest.mark.parametrize(("width", "layout"), [(390, "narrow"), (1400, "wide")])
def test_one_layout_of_each_chart_is_shown(browser, page, width, layout):
    browser.open(page, width)
    shown = browser.run("""Array.from(document.querySelectorAll('.chart'))
        .filter(c => c.offsetWidth > 0).map(c => c.className)""")
    assert shown == [f"chart {layout}"] * 3


def test_chart_text_is_large_enough_to_read_on_a_phone(browser, page):
    browser.open(page, 390)
    least = browser.run("""Math.min(...Array.from(document.querySelectorAll('.narrow svg'), svg => {
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        const sizes = Array.from(svg.querySelectorAll('text'), text => parseFloat(text.getAttribute('font-size')));
        return scale * Math.min(...sizes);
    }))""")
    assert least >= 9


def test_pointing_at_a_curve_shows_its_value(browser, page):
    browser.open(page)
    spot = browser.run("""(() => {
        const mark = document.querySelectorAll('.wide .unseen')[5];
        mark.scrollIntoView({block: 'center'});
        const box = mark.getBoundingClientRect();
        return [box.x + box.width / 2 + 2, box.y + box.height / 2 + 2];
    })()""")
    browser.run("new Promise(done => setTimeout(done, 100))")
    browser("Input.dispatchMouseEvent", type="mouseMoved", x=spot[0], y=spot[1])
    tip = browser.run("document.getElementById('tip').innerText")
    assert "input x: " in tip and "prediction: " in tip and "architecture: " in tip
    browser("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert browser.run("document.getElementById('tip').hidden")


def test_the_keyboard_reaches_the_numbers(browser, page):
    browser.open(page)
    browser.run("document.querySelector('figure summary').focus()")
    for kind in ("keyDown", "keyUp"):
        browser("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    assert browser.run("document.querySelector('figure details').open")
    assert browser.run("document.querySelector('figure .scroll').tabIndex") == 0


def test_the_chart_is_one_image_to_a_screen_reader(browser, page):
    browser.open(page)
    nodes = browser("Accessibility.getFullAXTree")["nodes"]
    images = [node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == "image"]
    assert "On log-log axes only the standard network rises, with slope one." in images
    assert not any(node.get("role", {}).get("value", "").startswith("graphics") for node in nodes)


def test_the_claim_table_stays_a_table_as_cards(browser, page):
    browser.open(page, 390)
    nodes = browser("Accessibility.getFullAXTree")["nodes"]
    roles = [node.get("role", {}).get("value") for node in nodes if not node.get("ignored")]
    assert "table" in roles and "rowheader" in roles and roles.count("cell") >= 20
