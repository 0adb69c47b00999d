"""einsql on a terminal, as a user sees it."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")


class Terminal:
    """einsql on a pseudo-terminal of its own."""

    def __init__(self, home: Path, *options: str) -> None:
        self._master, self._slave = pty.openpty()
        # A session leader without a terminal takes the first one it opens: then the
        # terminal turns Ctrl-C into a signal for it.
        program = 'exec "$@" <"$0" >"$0" 2>&1'
        self.process = subprocess.Popen(
            ["sh", "-c", program, os.ttyname(self._slave), sys.executable, *options],
            start_new_session=True,
            env={**os.environ, "HOME": str(home), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
        )
        self._seen = ""

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> str:
        """What the screen got up to and with `text`, since the former wait."""
        deadline = time.monotonic() + 60
        while text not in (plain := CONTROL.sub("", self._seen)):
            ready, _, _ = select.select([self._master], [], [], deadline - time.monotonic())
            assert ready, f"no {text!r} in {plain!r}"
            self._seen += os.read(self._master, 4096).decode(errors="replace")
        end = plain.index(text) + len(text)
        self._seen = plain[end:]
        return plain[:end]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)
