"""Control a headless browser over its debugging pipe: no package is needed, only the browser itself."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

# No update, translation and metrics services: their requests do not come from a page.
_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--remote-debugging-pipe",
]


def find() -> str | None:
    """Return the path of a Chromium; None without one, and on Windows, which has no ``posix_spawn``."""
    if not hasattr(os, "posix_spawn"):
        return None
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _start(command: list[str], to_read: int, to_write: int) -> int:
    """Start a program that reads commands from descriptor 3 and answers on 4; return its process id."""
    import fcntl  # not on Windows

    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in (to_read, to_write)]
    moves = [(os.POSIX_SPAWN_DUP2, descriptor, at) for at, descriptor in enumerate(high, 3)]
    quiet = [(os.POSIX_SPAWN_OPEN, at, os.devnull, os.O_RDWR, 0) for at in range(3)]
    try:
        return os.posix_spawn(command[0], command, os.environ, file_actions=[*quiet, *moves])
    finally:
        for descriptor in high:
            os.close(descriptor)


class Page:
    """One page of a browser; closing the page ends the browser. ``requests`` are the addresses that it requested."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 900) -> None:
        program = find()
        assert program is not None
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        flags = [*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
        self._pid = _start([program, *flags], to_read, to_write)
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.messages: list[str] = []  # of the console, and exceptions
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, path: Path) -> None:
        """Load a local file and wait until it has loaded."""
        self._call("Page.navigate", url=path.resolve().as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def reload(self) -> None:
        """Load the page again, with its whole address, and wait until it has loaded."""
        self._call("Page.reload")
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; of a promise, its result."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def write(self, text: str) -> None:
        """Type text into the focused element, and wait until the page has handled it."""
        self._call("Input.insertText", text=text)
        self.ask("new Promise(done => setTimeout(done, 200))")

    def show(self, scheme: str = "light", media: str = "screen") -> None:
        """Set the color scheme, ``dark`` or ``light``, and the medium, ``screen`` or ``print``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media=media, features=features)

    def picture(self, path: Path) -> None:
        """Write the whole page as a PNG file."""
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page, in CSS pixels."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def pdf(self) -> bytes:
        """Return the printed page as a PDF file."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=False)["data"])

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        with suppress(OSError, AssertionError):
            self._call("Browser.close")
        os.close(self._out)
        os.close(self._in)
        until = time.monotonic() + 20
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.02)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._in, 2**20)
            assert piece, "the browser went away"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.messages.append(message["params"]["exceptionDetails"]["text"])
        if message.get("method") == "Log.entryAdded":
            self.messages.append(message["params"]["entry"]["text"])
        return message
