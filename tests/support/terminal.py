"""einsql on a terminal, as a user sees it: what it writes, or what stands on the screen."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

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


class Screen:
    """einsql in tmux, which keeps the screen as a terminal would show it."""

    def __init__(self, home: Path, *options: str) -> None:
        self._folder = Path(mkdtemp(prefix="tmux"))  # for the path of a socket is short
        self._status = home / "exit-status"
        variables = {"HOME": home, "TERM": "xterm-256color", "COLORTERM": "", "NO_COLOR": "",
                     "PYTHONPATH": Path(__file__).parents[2]}  # fmt: skip
        unset = [word for name in ("EINSQL_HISTORY", "LINES", "COLUMNS") for word in ("-u", name)]
        command = ["env", *unset, *(f"{k}={v}" for k, v in variables.items()), sys.executable]
        # The trap keeps Ctrl-C from ending the shell, too.
        shell = ["sh", "-c", 'trap : INT; "$@"; echo $? >"$0"; exec cat', str(self._status)]
        self._tmux("-u", "-f", os.devnull, "new-session", "-d", "-x", "80", "-y", "40", "-c",
                   str(home), *shell, *command, *options)  # fmt: skip

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self._folder / "socket"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def type(self, text: str) -> None:
        """Presses one key after the other; tmux takes a lone semicolon for its own."""
        for character in text:
            self._tmux("send-keys", "-l", "--", "\\;" if character == ";" else character)

    def press(self, key: str) -> None:
        """Presses a key of tmux's name."""
        self._tmux("send-keys", key)

    def colours(self) -> set[str]:
        """The codes of the colours on the screen."""
        return set(re.findall(r"\x1b\[([0-9;]*)m", self._tmux("capture-pane", "-p", "-e")))

    def lines(self) -> list[str]:
        """All lines since the start, the last one that is not blank at the end."""
        return self._tmux("capture-pane", "-p", "-S", "-").rstrip().split("\n")

    def wait(self, found: Callable[[list[str]], bool]) -> list[str]:
        """The lines once they are as wanted."""
        deadline = time.monotonic() + 120
        while not found(lines := self.lines()):
            assert time.monotonic() < deadline, "\n".join(lines)
            time.sleep(0.05)
        return lines

    def exit_status(self) -> int:
        """The status einsql left with."""
        self.wait(lambda _: self._status.exists() and self._status.read_text() != "")
        return int(self._status.read_text())

    def close(self) -> None:
        self._tmux("kill-server")
        shutil.rmtree(self._folder)
