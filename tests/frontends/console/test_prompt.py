from pathlib import Path

from tests.support.terminal import Terminal


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
        terminal.send("\x12VALUES")  # Ctrl-R searches what was typed before
        terminal.wait_for("(reverse-i-search)`VALUES'")
        terminal.send("\x03")
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


def test_long_results_go_to_the_pager(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged by $LESS; head -n 1 >/dev/null\n")
    pager.chmod(0o755)
    terminal = Terminal(tmp_path, "-m", "einsql", "-csv")
    try:
        terminal.wait_for("einsql>")
        terminal.send(f".pager {pager}\r")
        terminal.wait_for("einsql>")
        terminal.send("SELECT r.i FROM range(300000) AS r(i);\r")
        terminal.wait_for("paged by SRF")  # which leaves early: that is no error
        terminal.wait_for("einsql>")
        terminal.send(".pager no-such-pager\rSELECT r.i FROM range(60) AS r(i);\r")
        terminal.wait_for("cannot be run")
        terminal.wait_for("einsql>")
        terminal.send(".pager off\rSELECT r.i FROM range(60) AS r(i);\r")
        terminal.wait_for("58\n59\n")
        terminal.wait_for("einsql>")
        terminal.send("\x1b[200~.mode list\nSELECT 1 AS a; SELECT\n2 AS b;\n.none\n\x1b[201~\r")
        terminal.wait_for("a\n1\nb\n2\n")  # a paste runs at once and in order
        terminal.wait_for('no command ".none"')
        terminal.wait_for("einsql>")
        terminal.send("exit\r")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
