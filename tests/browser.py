"""Drives a Chromium by its DevTools protocol, over a pair of pipes: https://chromedevtools.github.io/devtools-protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
# A new profile, no sandbox (root has none in a container), and nothing that asks the network by itself.
_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
)
_LIMIT = 120  # seconds without a message, after which the browser counts as hung


def find_browser() -> str | None:
    """The path of a browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A page, and the messages that its console printed."""

    def __init__(self, commands: int, answers: int) -> None:
        self.complaints: list[str] = []
        self._requests: dict[str, str] = {}
        self._commands, self._answers = commands, answers
        self._received = b""
        self._number = 0
        self._session: dict[str, str] = {}
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(f"{domain}.enable")

    @property
    def requests(self) -> set[str]:
        """The addresses that pages requested, except for those that their content security policy refused."""
        return set(self._requests.values())

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command. Events that come before it are recorded."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]

    def open(self, path: Path) -> None:
        """Show a file, and wait until it has loaded."""
        self.open_url(path.as_uri())

    def open_url(self, url: str) -> None:
        """Show the page at an address, and wait until it has loaded."""
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._next()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Poll a JavaScript expression until it is true."""
        look = f"new Promise(done => (function look() {{ ({condition}) ? done() : setTimeout(look, 10); }})())"
        found = self.call("Runtime.evaluate", expression=look, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]

    @contextmanager
    def prepared(self, script: str) -> Iterator[None]:
        """Until the block ends, ``script`` runs in every page before the page's own scripts."""
        made = self.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        try:
            yield
        finally:
            self.call("Page.removeScriptToEvaluateOnNewDocument", identifier=made["identifier"])

    def resize(self, width: int, height: int = 900) -> None:
        """Give the page a window of this size, in CSS pixels."""
        size = {"width": width, "height": height}
        self.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=width < 600)

    def prefer(self, scheme: str) -> None:
        """Let pages prefer the color scheme ``light`` or ``dark``."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, *, whole: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], _LIMIT)
            data = os.read(self._answers, 1 << 20) if ready else b""
            assert data, "the browser ended" if ready else f"the browser was silent for {_LIMIT} s"
            self._received += data
        text, self._received = self._received.split(b"\0", 1)
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, found: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self._requests[found["requestId"]] = found["request"]["url"]
        elif event == "Network.loadingFailed" and found.get("blockedReason") == "csp":
            del self._requests[found["requestId"]]
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(found["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(str(found["args"]))
        elif event == "Log.entryAdded":
            self.complaints.append(f"{found['entry']['level']}: {found['entry']['text']}")


@contextmanager
def browsing(browser: str) -> Iterator[Page]:
    """A page of a browser that runs until the block ends."""
    commands_read, commands = os.pipe()
    answers, answers_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        # The protocol is spoken on descriptors 3 and 4.
        script = f'exec "$@" 3<&{commands_read} 4>&{answers_write}'
        arguments = ["bash", "-c", script, "browser", browser, *_ARGUMENTS, f"--user-data-dir={profile}"]
        passed = (commands_read, answers_write)
        process = subprocess.Popen(arguments, pass_fds=passed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for descriptor in passed:
            os.close(descriptor)
        try:
            yield Page(commands, answers)
        finally:
            os.close(commands)  # the browser exits when its commands end
            process.wait(timeout=_LIMIT)
            os.close(answers)
