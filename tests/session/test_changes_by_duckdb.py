"""Changes of tensors that DuckDB computes: UPDATE with its joins, and CREATE TENSOR of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import einsql


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as opened:
        opened.execute("CREATE TENSOR w (i DIM(4), a DOUBLE, b DOUBLE) DEFAULT 1")
        opened.execute(
            "CREATE TABLE t AS SELECT * FROM (VALUES (0, 10, 'x'), (2, 20, 'y')) v(k, v, s)"
        )
        opened.execute("CREATE TABLE u AS SELECT 0 AS k, 'q' AS s")
        yield opened


CHANGES = (
    ("SET a = t.v FROM t JOIN u USING (k) WHERE t.k = w.i AND u.s = 'q'", [10, 1, 1, 1]),
    ("SET a = t.v FROM t LEFT JOIN u USING (k) WHERE t.k = w.i", [10, 1, 20, 1]),
    ("SET a = [5, 6, 7, 8][CAST(i AS INTEGER) + 1], b = len('abc')", [5, 6, 7, 8]),
    ("SET a = {'p': 3, 'q': 4}.q, b = len('abc') WHERE i = 1", [1, 4, 1, 1]),
)


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_update_by_duckdb(con: einsql.Connection, change: str, expected: list[float]) -> None:
    con.execute(f"UPDATE w {change}")
    assert [a for (a,) in con.execute("SELECT a FROM w ORDER BY i").fetchall()] == expected


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("UPDATE w SET a = 1, a = 2 WHERE i IN (SELECT k FROM t WHERE s = 'x')", "SET twice"),
        ("UPDATE w SET a = len('abc'), b = v0", '"v0" not found'),
        ("UPDATE w SET a = 1 WHERE len('a') = 1 AND v0 = 1", '"v0" not found'),
    ],
)
def test_update_by_duckdb_is_refused(con: einsql.Connection, sql: str, reason: str) -> None:
    with pytest.raises(einsql.ProgrammingError, match=reason):
        con.execute(sql)
    assert con.execute("SELECT SUM(a) + SUM(b) FROM w").fetchone() == (8.0,)


def test_a_tensor_of_ordered_rows_keeps_its_values(con: einsql.Connection) -> None:
    con.execute(
        "CREATE TENSOR n AS SELECT i, CAST(i - 1 AS INTEGER) AS b, i * 1.5e0 AS val "
        "FROM range(3) r(i)"
    )
    con.execute("CREATE TENSOR all_rows AS SELECT i, b, val FROM n ORDER BY b DESC")
    con.execute("CREATE TENSOR first AS SELECT i, b + 1 AS b, val FROM n ORDER BY i LIMIT 2")
    assert con.execute("SELECT * FROM all_rows").fetchall() == con.execute("FROM n").fetchall()
    assert con.execute("FROM first").fetchall() == [(0, 0, 0.0), (1, 1, 1.5)]
    con.execute("UPDATE first SET b = 7 WHERE i = 1")
    assert con.execute("FROM first").fetchall() == [(0, 0, 0.0), (1, 7, 1.5)]


def test_a_table_of_another_connection_hides_a_variable(tmp_path: Path) -> None:
    hidden = np.arange(4.0)
    with (
        einsql.connect(str(tmp_path / "d.einsql")) as first,
        einsql.connect(str(tmp_path / "d.einsql")) as second,
    ):
        count = "SELECT COUNT(*) FROM hidden"
        assert first.execute(count).fetchall() == [(len(hidden),)]
        second.execute("CREATE TABLE hidden AS SELECT 1 AS i, 2 AS val")
        assert first.execute(count).fetchall() == [(1,)]
        second.execute("DROP TABLE hidden")
        assert first.execute(count).fetchall() == [(4,)]
