"""A statement over tables and tensors reads both as of one commit, whatever it does with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import einsql
from tests.support.samples import spread

STATEMENTS = [
    "CREATE TENSOR made AS SELECT i, v, x FROM a JOIN t USING (i) ORDER BY i",
    "INSERT INTO two SELECT i, v, x FROM a JOIN t USING (i) ORDER BY i",
    "INSERT OR REPLACE INTO two SELECT i, v, x FROM a JOIN t USING (i) ORDER BY i",
    "UPDATE u SET v = a.v, x = t.x FROM a, t WHERE a.i = u.i AND t.i = a.i AND t.word <> ''",
    "CREATE TABLE made AS SELECT i, v, x FROM a JOIN t USING (i)",
    "INSERT INTO pairs SELECT i, v, x FROM a JOIN t USING (i)",
    "WITH p AS (SELECT i, v, x FROM a JOIN t USING (i)) INSERT INTO pairs SELECT * FROM p",
    "UPDATE pairs SET v = a.v, x = t.x FROM a, t WHERE a.i = pairs.i AND t.i = pairs.i",
    "COPY (SELECT i, v, x FROM a JOIN t USING (i) ORDER BY i) TO '{path}/out.csv'",
]


@pytest.mark.parametrize("sql", spread(STATEMENTS, 4))
def test_tables_and_tensors_are_read_as_of_one_commit(
    tmp_path: Path, sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "m.db")
    with einsql.connect(path) as con, einsql.connect(path) as other:
        con.execute("CREATE TABLE t AS SELECT range AS i, 1 AS x, 'a' AS word FROM range(4)")
        con.execute("CREATE TABLE pairs AS SELECT range AS i, 0 AS v, 0 AS x FROM range(1)")
        con.execute("CREATE TENSOR a AS SELECT i, 1 AS v FROM range(4) AS r(i)")
        con.execute("CREATE TENSOR two (i DIM(4), v INTEGER, x INTEGER)")
        con.execute("CREATE TENSOR u (i DIM(4), v INTEGER, x INTEGER) DEFAULT 0")
        commits = 0
        run = con.duck.run

        def late(work: Callable[[], Any], tick: Callable[[float], None]) -> Any:
            nonlocal commits
            commits += 1
            other.execute("BEGIN")
            other.execute("UPDATE a SET v = a.v + 1")
            other.execute("UPDATE t SET x = x + 1")
            other.execute("COMMIT")
            return run(work, tick)

        with monkeypatch.context() as patch:
            patch.setattr(con.duck, "run", late)
            con.execute(sql.format(path=tmp_path))
        assert commits
        table = sql.split()[2 if sql.startswith(("CREATE", "INSERT INTO")) else 1]
        table = {"OR": "two", "p": "pairs", "(SELECT": f"'{tmp_path}/out.csv'"}.get(table, table)
        found = con.execute(f"SELECT DISTINCT v, x FROM {table} WHERE v > 0").fetchall()
        assert found == [(1, 1)]
        newest = (commits + 1, commits + 1)
        assert con.execute("SELECT MAX(v), MAX(x) FROM a JOIN t USING (i)").fetchall() == [newest]
        assert other.execute("SELECT MAX(v), MAX(x) FROM a JOIN t USING (i)").fetchall() == [newest]


def test_a_statement_that_loses_to_another_connection_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "m.db")
    with einsql.connect(path) as con, einsql.connect(path) as other:
        con.execute("CREATE TABLE t AS SELECT range AS i, 1 AS x FROM range(4)")
        con.execute("CREATE TENSOR a (i DIM(4), v INTEGER) DEFAULT 1")
        run = con.duck.run

        def late(work: Callable[[], Any], tick: Callable[[float], None]) -> Any:
            other.execute("UPDATE a SET v = a.v + 10 WHERE i = 1")
            return run(work, tick)

        with monkeypatch.context() as patch:
            patch.setattr(con.duck, "run", late)
            with pytest.raises(einsql.OperationalError, match="committed a change"):
                con.execute("INSERT INTO a SELECT i, x + 5 FROM t ORDER BY i")
        for one in (con, other):
            assert one.execute("SELECT v FROM a").fetchall() == [(1,), (11,), (1,), (1,)]
        con.execute("INSERT INTO a SELECT i, x + 5 FROM t ORDER BY i")
        assert other.execute("SELECT MIN(v), MAX(v) FROM a").fetchall() == [(6, 6)]
