"""Names of columns without an alias, beside DuckDB's."""

from __future__ import annotations

import random

import duckdb
import numpy as np

import einsql

ITEMS = (
    "val ** 2", "val ^ 2", "(val ** 2) ^ (1 + 1)", "2 ** val + 1", "(val + 1) ** -1", "pow(val, 2)",
    "+val", "+(val)", "+ val + 1", "-(+val)", "+i + +val", "+1", "+(val + 1) * 2", "+abs(val)",
    "+val::INT4", "@val", "@(val - 1)", "@val + 1", "abs(val)", "1 + abs(val - 1)",
    "min_by(i, val)", "max_by(i, val)", "MIN_BY(abs(i), val)", "arg_min(i, val)", "argmax(i, val)",
    "val::INT4", "val::INT8", "CAST(val AS INT8)", "val::BOOL", "val::BOOLEAN", "val::INTEGER",
    "val::FLOAT8::INT4", "(val + 1)::INT1", "(val::INT4)::BOOL",
    "CAST(val::FLOAT4 AS INT8)", "abs(val)::INT4", "val::LONG + i::SIGNED", "val::DOUBLE",
    "val > .5", "val * .5 + 0.5", "1_000 * val", "val * 1.50", "x.val + .25",
    "NOT val IS NULL", "val IS NOT NULL", "NOT (val IS NULL)", "NOT val + 1 IS NULL", "val IS NULL",
    "NOT val IS NOT NULL", "CASE WHEN +val > .5 THEN @val ELSE val ** 2 END", "sum(+val ** 2)",
    "coalesce(+val, .5)", "val::INT4 BETWEEN +1 AND .5", "(SELECT max(val ** 2) FROM x)",
)  # fmt: skip


def test_names_are_spelled_as_duckdb_spells_them() -> None:
    """All items alone, and drawn together, because spellings are found beside operands."""
    with einsql.connect() as con, duckdb.connect() as oracle:
        con.register("x", np.ones((2, 3), np.float32), ("i", "j"))
        oracle.execute(
            "CREATE TABLE x AS SELECT i, j, 1::FLOAT AS val FROM range(2) a(i), range(3) b(j)"
        )
        con.execute("SET fallback = off")
        drawn = random.Random(0)
        plain = [item for item in ITEMS if not item.lower().startswith(("m", "arg", "sum"))]
        lists = [[item] for item in ITEMS] + [drawn.sample(plain, 6) for _ in range(20)]
        for items in lists:
            sql = f"SELECT {', '.join(items)} FROM x"
            wanted = [column[0] for column in oracle.execute(sql).description]
            assert [column[0] for column in con.execute(sql).description or ()] == wanted, sql


def test_a_name_with_a_spelling_can_be_read() -> None:
    with einsql.connect() as con:
        con.register("x", np.array([1.0, 3.0]), ("i",))
        sql = 'SELECT SUM("(val ** 2)" + "(+(val))") AS v FROM (SELECT val ** ?, +val FROM x)'
        assert con.execute(sql.replace("** ?", "** 2")).fetchone() == (14.0,)


OVER = (
    "ORDER BY SUM(val)", "ORDER BY SUM(val * 2) DESC NULLS FIRST, i", "ORDER BY -SUM(val), i + 1",
    "PARTITION BY i % 2 ORDER BY SUM(val) DESC", "ORDER BY i ROWS 1 PRECEDING", "",
    "ORDER BY i ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING", "ORDER BY i RANGE UNBOUNDED PRECEDING",
    "ORDER BY i ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
)  # fmt: skip


def test_windows_over_groups_have_duckdbs_names_and_rows() -> None:
    with einsql.connect() as con, duckdb.connect() as oracle:
        con.register("x", np.arange(12.0).reshape(4, 3) % 5, ("i", "j"))
        rows = con.execute("SELECT i, j, val FROM x").fetch_arrow_table()
        oracle.register("x", rows)
        for over in OVER:
            sql = f"SELECT i, RANK() OVER ({over}), SUM(SUM(val)) OVER ({over}) FROM x GROUP BY i"
            mine, wanted = con.execute(sql), oracle.execute(sql)
            assert [c[0] for c in mine.description or ()] == [c[0] for c in wanted.description]
            assert sorted(mine.fetchall()) == sorted(wanted.fetchall())
