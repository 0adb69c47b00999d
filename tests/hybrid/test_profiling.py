"""DuckDB's profiles are of the user's statements, one for each that DuckDB runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import einsql

_HEAD = "Total Time"


@pytest.fixture
def profiles(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[[str], str]]:
    """Runs a statement of one session, and gives what DuckDB prints meanwhile."""
    with einsql.connect(str(tmp_path / "m.db")) as con:
        con.execute("CREATE TABLE t AS SELECT 1 AS a")
        con.execute("CREATE TENSOR w (i DIM(3), val FLOAT) DEFAULT 1")

        def run(sql: str) -> str:
            capfd.readouterr()
            con.execute(sql)
            printed = capfd.readouterr()
            return printed.out + printed.err

        yield run


@pytest.mark.parametrize(
    "on", ["PRAGMA enable_profiling = 'query_tree'", "SET enable_profiling = 'query_tree'",
           "CALL enable_profiling(format = 'query_tree')"],
)  # fmt: skip
def test_inner_queries_are_not_profiled(profiles: Callable[[str], str], on: str) -> None:
    assert profiles(on) == ""
    for sql, shown in {
        "SELECT a AS x, a || 'y' AS y FROM t": "Table: m.main.t",
        "SELECT a AS x, a || 'z' AS x FROM t": "Table: m.main.t",  # its columns need a query
        "SELECT i, val, a || '' AS b FROM w JOIN t ON i = a": "PYTHON_ARROW_SCAN",
    }.items():
        for _ in range(2):
            printed = profiles(sql)
            assert printed.count(_HEAD) == 1, sql
            assert shown in printed
    for sql in (
        "SELECT SUM(val) AS s FROM w", "INSERT INTO t VALUES (2)", "UPDATE w SET val = 3",
        "SHOW TABLES", "SET threads = 2", "BEGIN", "ROLLBACK",
    ):  # fmt: skip
        assert profiles(sql) == "", sql
    profiles("PRAGMA disable_profiling")
    assert profiles("SELECT a || 'y' AS y FROM t") == ""


def test_changes_are_profiled_on_demand(profiles: Callable[[str], str]) -> None:
    profiles("SET enable_profiling = 'query_tree'")
    profiles("SET profiling_coverage = 'ALL'")
    assert profiles("INSERT INTO t VALUES (3) RETURNING a").count(_HEAD) == 1
    assert "Insert" in profiles("INSERT INTO t VALUES (3)")
    profiles("RESET enable_profiling")
    assert profiles("SELECT a || '' AS b FROM t") == ""
