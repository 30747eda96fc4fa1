"""A headless Chromium by the WebDriver protocol, without a package: chromedriver answers JSON over HTTP.

Source   W3C, WebDriver, "Protocol" (the paths and bodies of the commands)
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element's id, fixed by the protocol
MISSING = (
    "chromium and chromedriver are not installed (Debian: apt-get install chromium chromium-driver)"
)


class Browser:
    """One window. Scripts run in the page; keys go to the element that has the focus."""

    def __init__(self, base: str) -> None:
        self._base = base

    def command(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The value that a command of the protocol returns; AssertionError with its message."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._base}{path}", data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, page: Path | str) -> None:
        """Load a file or an address, and forget what the console held."""
        self.command("POST", "/url", {"url": page if isinstance(page, str) else page.as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of the body of a function in the page; a promise is awaited."""
        return self.command("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """The text of the first element of a selector."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def press(self, selector: str, keys: str) -> None:
        """Focus an element as a keyboard user does, and type."""
        found = self.command("POST", "/element", {"using": "css selector", "value": selector})
        self.command("POST", f"/element/{found[ELEMENT]}/value", {"text": keys})

    def window(self, width: int, *, dark: bool = False, scripts: bool = True) -> None:
        """Set the width in pixels and the theme, and whether scripts run."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", size)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setEmulatedMedia", {"features": [theme]})
        self._devtools("Emulation.setScriptExecutionDisabled", {"value": not scripts})

    def picture(self, file: Path) -> None:
        """Write the whole page as PNG."""
        options = {"captureBeyondViewport": True}
        data = self._devtools("Page.captureScreenshot", options)["data"]
        file.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Errors of scripts and refused loads since the last call."""
        entries = self.command("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def _devtools(self, name: str, parameters: dict[str, Any]) -> Any:
        return self.command("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})


@contextmanager
def started_browser() -> Iterator[Browser]:
    """A browser until the block ends; skips the test where none is installed."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        pytest.skip(MISSING)
    with subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if "success" in line)
            port = line.rstrip(".\n").rpartition(" ")[2]
            address = f"http://127.0.0.1:{port}/session"
            # Chromium has no sandbox for root, and containers have a small /dev/shm.
            flags = ["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
            wanted = {
                "goog:chromeOptions": {"binary": chromium, "args": flags},
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            session = Browser(address).command(
                "POST", "", {"capabilities": {"alwaysMatch": wanted}}
            )
            browser = Browser(f"{address}/{session['sessionId']}")
            try:
                yield browser
            finally:
                browser.command("DELETE", "")
        finally:
            process.terminate()
