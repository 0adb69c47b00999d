"""What docs/how-to/console.md shows: the session, typed key by key in a terminal, and the rest."""

import re
import shutil
from functools import partial
from operator import ne
from pathlib import Path

import pytest

from einsql.frontends.console.main import main
from tests.support.terminal import Screen

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "console.md"
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


def ends(end: str, lines: list[str]) -> bool:
    """True if a text has come to be seen at the end of a line."""
    return any(line.endswith(end) for line in lines)


def prompts_after(shown: int, lines: list[str]) -> bool:
    """True if a prompt has come after so many lines."""
    return lines[-1] == "einsql>" and len(lines) > shown


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
                        screen.wait(partial(ne, before))
                    elif part:
                        screen.type(part)
                        screen.wait(partial(ends, part.rstrip()))
                screen.press("C-d" if leave else "C-c" if interrupt else "Enter")
            if leave:
                break
            if seen and seen[0].endswith("^C"):
                screen.wait(lambda lines: "░" in lines[-1])
                screen.press("C-c")
                del seen[0]
            shown = start + len(typed)
            lines = screen.wait(partial(prompts_after, shown))
            assert lines[-1 - len(seen) : -1] == seen, typed
            recalled = any("↑" in line for line in typed)  # these lines are more than one
            assert recalled or len(lines) - 1 == shown + len(seen), typed
            start = len(lines) - 1
        assert screen.exit_status() == 0
    finally:
        screen.close()
    assert (tmp_path / "top.csv").read_text() == "i,val\n0,0.0\n1,0.25\n2,0.48\n"
    assert (tmp_path / ".einsql_history").stat().st_mode & 0o077 == 0


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_heat_map_fits_the_screen_in_colours(tmp_path: Path) -> None:
    screen = Screen(tmp_path, "-m", "einsql", "-cmd", ".maxrows 1")
    try:
        screen.wait(partial(prompts_after, 1))
        screen.type("SELECT a.i, b.j, a.i - b.j AS v FROM range(300) AS a(i), range(200) AS b(j);")
        screen.press("Enter")
        screen.wait(partial(ends, ".last shows all"))
        screen.wait(partial(ends, "einsql>"))
        screen.type(".plot")
        screen.press("Enter")
        screen.wait(partial(ends, " 199"))
        lines = screen.wait(partial(ends, "einsql>"))[-40:]
        at = lines.index("einsql> .plot")  # the command is still on the screen
        assert lines[at + 1].startswith("v over i (down) and j (across), means of up to")
        assert "▀" * 40 in lines[at + 3]
        assert len({c for c in screen.colours() if c.startswith("48;5;")}) > 10
    finally:
        screen.close()


def block(language: str, begin: str) -> str:
    """A fenced block of the page."""
    text = PAGE.read_text("utf-8")
    (found,) = re.findall(rf"```{language}\n({re.escape(begin)}.*?)```", text, re.DOTALL)
    return str(found)


def test_the_documented_plot_and_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    Path("wave.sql").write_text(block("sql", "CREATE TENSOR wave"))
    assert main(["-no-init", "-f", "wave.sql"]) == 0
    command, _, plot = block("text", "$ einsql").partition("\n")
    assert (command, capsys.readouterr().out) == ("$ einsql -f wave.sql", plot)
    assert main(["-no-init", "-c", ".help"]) == 0
    assert capsys.readouterr().out == block("text", ".bail")
