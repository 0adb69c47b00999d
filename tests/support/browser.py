"""A Chromium without a window, driven over two pipes by the protocol of its developer tools."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

_MOVE = """
import os, sys
first, second = (os.dup(os.dup(int(n))) for n in sys.argv[1:3])
os.dup2(first, 3)
os.dup2(second, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Runs a program with two open files as the descriptors 3 and 4, which the protocol takes."""


class Browser:
    """One page; `problems` has the messages of its console and what its policy has refused."""

    def __init__(self, folder: Path) -> None:
        to_browser, from_test = os.pipe()
        to_test, from_browser = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update",
                 "--disable-sync", f"--user-data-dir={folder / 'profile'}",
                 "--remote-debugging-pipe", "about:blank"]  # fmt: skip
        command = [sys.executable, "-c", _MOVE, str(to_browser), str(from_browser), CHROMIUM]
        command += flags
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._writes, self._reads = os.fdopen(from_test, "wb"), os.fdopen(to_test, "rb")
        self._number, self._session = 0, ""
        self.problems: list[str] = []
        (page,) = (t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Sends a command and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._writes.write(json.dumps(message).encode() + b"\0")
        self._writes.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(answer)

    def _read(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._reads.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        return dict(json.loads(text))

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Log.entryAdded":
            self.problems.append(event["params"]["entry"]["text"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(event["params"]["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.problems.append(str(event["params"]["args"]))

    def open(self, address: str, width: int = 1400, height: int = 900) -> None:
        """Opens an address in a window of this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 700)  # fmt: skip
        for place in ("about:blank", address):  # a new fragment alone would load nothing
            self.call("Page.navigate", url=place)
            loaded = f"location.href.startsWith({place.partition('#')[0]!r})"
            self.wait(f"document.readyState === 'complete' && {loaded}")

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        evaluated = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in evaluated, evaluated
        return evaluated["result"].get("value")

    def wait(self, script: str) -> Any:
        """The value of an expression once it is true."""
        deadline = time.monotonic() + 60
        while not (seen := self.run(script)):
            assert time.monotonic() < deadline, (script, self.run("document.body.innerText"))
            time.sleep(0.02)
        return seen

    def picture(self, path: Path, whole: bool = False) -> None:
        """Writes a picture of the window, or of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._writes.close()
        self._reads.close()
