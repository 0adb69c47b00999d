"""The session of docs/console.md, typed key by key in a real terminal."""

import re
import shutil
from pathlib import Path

import pytest

from tests.terminal import Screen

PAGE = Path(__file__).parents[2] / "docs" / "console.md"
KEYS = {"⇥": "Tab", "↑": "Up"}
PROMPTS = ("einsql> ", "   ...> ")


def steps() -> list[tuple[list[str], list[str]]]:
    """Lines to type and the lines to be seen then, statement by statement."""
    (text,) = re.findall(r"```text\nIn memory\..*?\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    found: list[tuple[list[str], list[str]]] = []
    for line in text.splitlines():
        if line.startswith(PROMPTS[0]):
            found.append(([], []))
        typed, seen = found[-1]
        if line.startswith(PROMPTS):
            typed.append(line[8:])
        else:
            seen.append(line.rstrip())
    return found


def ends(lines: list[str], end: str) -> bool:
    """True if a text has come to be seen at the end of a line."""
    return any(line.endswith(end) for line in lines)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_the_documented_session_works_key_by_key(tmp_path: Path) -> None:
    screen = Screen(tmp_path, "-m", "einsql")
    try:
        start = len(screen.wait(lambda lines: lines[-1] == "einsql>")) - 1
        for typed, seen in steps():
            for line in typed:
                text, leave, _ = line.partition("^D")
                text, interrupt, _ = text.partition("^C")
                for part in re.split("([⇥↑])", text):
                    if part in KEYS:
                        before = screen.lines()
                        screen.press(KEYS[part])
                        screen.wait(lambda lines, before=before: lines != before)
                    elif part:
                        screen.type(part)
                        screen.wait(lambda lines, end=part.rstrip(): ends(lines, end))
                screen.press("C-d" if leave else "C-c" if interrupt else "Enter")
            if leave:
                break
            if seen and seen[0].endswith("^C"):
                screen.wait(lambda lines: "░" in lines[-1])
                screen.press("C-c")
                del seen[0]
            shown = start + len(typed)
            lines = screen.wait(
                lambda lines, shown=shown: lines[-1] == "einsql>" and len(lines) > shown
            )
            assert lines[-1 - len(seen) : -1] == seen, typed
            recalled = any("↑" in line for line in typed)  # these lines are more than one
            assert recalled or len(lines) - 1 == shown + len(seen), typed
            start = len(lines) - 1
        assert screen.exit_status() == 0
    finally:
        screen.close()
    assert (tmp_path / "top.csv").read_text() == "i,val\n0,0.0\n1,0.25\n2,0.48\n"
    assert (tmp_path / ".einsql_history").stat().st_mode & 0o077 == 0
