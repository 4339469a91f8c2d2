"""Opens a page in headless Chromium over its DevTools protocol and says what it asked for, printed and drew.

`tests/make_simulators.sh chromium` makes the environment. Chromium talks over two pipes (`--remote-debugging-pipe`), messages in JSON, each
ended by a zero byte: https://chromedevtools.github.io/devtools-protocol/.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulator_env import simulator_python

PATIENCE_S = 300


class Browser:
    """One tab. `requests` are the addresses asked for, `complaints` what the console or the engine complained of."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command; events on the way are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: dict[str, Any] = answer["result"]
                return found
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            assert time.monotonic() < end, "the browser does not answer"
            if select.select([self._read], [], [], 1)[0]:
                data = os.read(self._read, 1 << 20)
                assert data, "the browser has ended"
                self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        method, what = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(what["exceptionDetails"])[:1000])
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(what["args"])[:1000])
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(what["entry"])[:1000])

    def open(self, page: Path, width: int, height: int = 900, is_dark: bool = False) -> None:
        """Load a file in a window of this size, in light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.shade(is_dark)
        self.call("Page.navigate", url=page.resolve().as_uri())

    def shade(self, is_dark: bool) -> None:
        """Switch the system's preference."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + PATIENCE_S
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression}; complaints: {self.complaints}"
            time.sleep(0.1)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser whose profile is in `folder`; the test is skipped (or fails, see `simulator_python`) where there is none."""
    home = simulator_python("chromium").parents[1]
    (to_read, from_us), (from_it, to_write) = os.pipe(), os.pipe()
    command = [
        str(home / "chromium" / "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}",
    ]  # fmt: skip
    environment = {**os.environ, "LD_LIBRARY_PATH": str(home / "chromium" / "lib"), "HOME": str(folder)}
    environment["FONTCONFIG_PATH"] = str(home / "chromium")
    # the browser reads file descriptor 3 and writes 4
    shell = f'exec "$@" 3<&{to_read} 4>&{to_write}'
    with open(folder / "browser.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            ["bash", "-c", shell, "browser", *command], env=environment, pass_fds=(to_read, to_write), stdout=log, stderr=log
        )
    os.close(to_read)
    os.close(to_write)
    try:
        yield Browser(from_it, from_us)
    finally:
        process.kill()
        process.wait()
        os.close(from_it)
        os.close(from_us)
