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


def test_a_session_at_the_prompt(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "-m", "einsql")
    try:
        terminal.wait_for("einsql>")
        terminal.send("CREATE TENSOR longname (k DIM(2), val FLOAT);\r")
        terminal.wait_for("einsql>")
        terminal.send("INSERT INTO longname\r")
        terminal.wait_for("...>")
        terminal.send("VALUES (0, 0.5), (1, 41);\r")
        terminal.wait_for("einsql>")
        terminal.send("SELECT nonsense")
        terminal.wait_for("nonsense")
        terminal.send("\x03")  # Ctrl-C clears what was typed
        terminal.wait_for("einsql>")
        terminal.send("SELECT SUM(val) AS total FROM longn")
        terminal.wait_for("total FROM longn")
        terminal.send("\t")
        terminal.wait_for("ame")  # what completion adds
        terminal.send(";\r")
        terminal.wait_for("41.5")
        terminal.wait_for("einsql>")
        terminal.send("SELECT wrong FROM longname;\r")
        terminal.wait_for("^")
        terminal.wait_for("einsql>")
        terminal.send("\x04")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
    history = (tmp_path / ".einsql_history").read_text()
    assert "+INSERT INTO longname\n+VALUES" in history


def test_a_prompt_without_its_packages_still_works(tmp_path: Path) -> None:
    (tmp_path / "prompt_toolkit.py").write_text("raise ImportError('not installed')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += "from einsql.__main__ import main; sys.exit(main([]))"
    terminal = Terminal(tmp_path, "-c", code)
    try:
        assert "einsql[console]" in terminal.wait_for("einsql>")
        terminal.send("SELECT 40 + 2\n")
        terminal.wait_for("...>")
        terminal.send("AS answer;\n")
        terminal.wait_for("│     42 │")
        terminal.send(".quit 3\n")
        assert terminal.process.wait(60) == 3
    finally:
        terminal.close()
