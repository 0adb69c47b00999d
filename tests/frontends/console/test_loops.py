"""What the console shows of a loop while it runs and when it has ended."""

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from einsql.frontends.console.main import main
from tests.support.terminal import Screen

MAKE = "CREATE TENSOR w (i DIM(3), val FLOAT) DEFAULT 1;\n"
LOOP = """FOR step IN range({}) DO
  UPDATE w SET val = w.val * 0.99;
  SELECT SUM(val) AS loss FROM w;
END FOR;
"""
TABLE = """\
┌────────────┬───────────────┐
│    step    │     loss      │
│   int64    │     float     │
├────────────┼───────────────┤
│          0 │          2.97 │
│          1 │        2.9403 │
└────────────┴───────────────┘
"""


@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        ("csv", "step,loss\n0,2.97\n1,2.9403\n"),
        ("json", '[{"step":0,"loss":2.97},\n{"step":1,"loss":2.9403}]\n'),
        ("duckbox", TABLE),
    ],
)
def test_a_loop_is_printed_as_any_result(
    mode: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(MAKE + LOOP.format(2)))
    assert main(["-no-init", f"-{mode}"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (shown, "")


def test_errors_in_a_loop_name_the_scripts_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "s.sql"
    script.write_text(MAKE + LOOP.format(3).replace("SUM(val)", "SUM(val) +\n  nothing"))
    assert main(["-no-init", "-f", str(script)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "LINE 5:   nothing AS loss FROM w;\n          ^" in captured.err
    assert "No step is complete" in captured.err


def test_rows_come_as_their_steps_end_and_ctrl_c_keeps_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "einsql", "-no-init", "-json", "-c", MAKE]
    check = "SELECT COUNT(*) AS n FROM w"
    process = subprocess.Popen(
        [*command, "-c", LOOP.format(10**8), "-c", check], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = [process.stdout.readline() for _ in range(5)]  # of a loop that takes hours
        process.send_signal(signal.SIGINT)
        rest, error = process.stdout.read(), process.stderr.read()
        assert process.wait(60) == 130
    rows = json.loads("".join(first) + rest)
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert f"The steps up to step = {len(rows) - 1} are kept." in error


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_terminal_shows_the_newest_row_a_plot_and_a_bar(tmp_path: Path) -> None:
    screen = Screen(tmp_path, "-m", "einsql")
    try:
        screen.wait(lambda lines: lines[-1] == "einsql>")

        def has(*texts: str) -> Callable[[list[str]], bool]:
            return lambda lines: all(any(text in line for line in lines) for text in texts)

        screen.type(MAKE.replace("\n", ""))
        screen.press("Enter")
        screen.wait(lambda lines: lines[-1] == "einsql>" and len(lines) > 2)
        screen.type(" ".join(LOOP.format(10**8).split()))
        screen.press("Enter")
        running = screen.wait(has("loss over row", "step ", "┤", "% "))
        assert sum("loss over row" in line for line in running) == 1
        screen.press("C-c")
        stopped = screen.wait(lambda lines: has("Interrupted")(lines) and lines[-1] == "einsql>")
        assert has("│    step │", "shown)", "are kept.")(stopped) or has("│ step")(stopped)
        assert not has("loss over row")(stopped)
        assert not has("░")(stopped)
        screen.type(".plot")
        screen.press("Enter")
        screen.wait(has("loss over step"))
    finally:
        screen.close()
