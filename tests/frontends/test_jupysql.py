"""jupysql's %sql in IPython, over a connection and over a URL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("IPython", reason="notebooks need IPython")
pytest.importorskip("sql.magic", reason="%sql is jupysql's")

from sqlalchemy.dialects import registry
from traitlets.config import Config

import einsql

shells = import_module("IPython.core.interactiveshell")  # it has types in part only
registry.register("einsql", "einsql.frontends.sqlalchemy", "EinsqlDialect")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    made: Any = shells.InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    made.run_line_magic("load_ext", "sql")
    made.run_line_magic("config", "SqlMagic.displaycon = False")
    yield made
    from sql.connection import ConnectionManager

    ConnectionManager.close_all()
    shells.InteractiveShell.clear_instance()


def check(shell: Any) -> None:
    shell.run_line_magic(
        "sql", "CREATE TENSOR x AS SELECT i, i::DOUBLE AS val FROM range(4) AS r(i)"
    )
    shell.run_line_magic("sql", "CREATE TABLE label (i BIGINT, name VARCHAR)")
    shell.run_line_magic("sql", "INSERT INTO label VALUES (2, 'two'), (3, NULL)")
    found = shell.run_cell_magic(
        "sql", "", "SELECT name, val FROM x JOIN label USING (i) ORDER BY i"
    )
    assert [tuple(row) for row in found] == [("two", 2.0), (None, 3.0)]
    assert list(found.DataFrame().columns) == ["name", "val"]
    total = shell.run_line_magic("sql", "SELECT SUM(val) AS total FROM x")
    assert [tuple(row) for row in total] == [(6.0,)]


def test_over_a_connection(shell: Any) -> None:
    shell.user_ns["con"] = einsql.connect()
    shell.run_line_magic("sql", "con --alias it")
    check(shell)


def test_over_a_url(shell: Any, tmp_path: Path) -> None:
    shell.run_line_magic("sql", f"einsql:///{tmp_path}/model.db --alias it")
    check(shell)
    with pytest.raises(Exception, match="no tensor"):
        shell.run_line_magic("sql", "SELECT * FROM nothing")


def test_the_documented_cells(shell: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "clients.md").read_text(
        encoding="utf-8"
    )
    cells = re.findall(r"```ipython\n(.*?)```", text, re.DOTALL)[1].splitlines()
    con = shell.user_ns["con"] = einsql.connect()
    con.execute("CREATE TENSOR x (i DIM(2), j DIM(3), val FLOAT) DEFAULT 2")
    found = [shell.run_cell(cell).result for cell in cells]
    assert [tuple(row) for row in found[-1]] == [(0, 6.0), (1, 6.0)]
