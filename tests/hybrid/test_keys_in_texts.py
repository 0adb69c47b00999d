"""Groups of a fragment in a SELECT that DuckDB runs: keys are expressions, not parts of a text."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

import einsql

R = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [4, 4, 1, 9]], np.int32)
V = np.array([3, -1, 7, 8, 0, -5], np.int32)
TABLE = "CREATE TABLE t AS SELECT range AS k, 'w' || range % 2 AS w FROM range(6)"
QUERIES: list[tuple[str, list[int]]] = [
    (sql, [])
    for sql in (
        # strings and names of arguments are no keys
        "SELECT 'i' || i AS label, SUM(val) AS s FROM r GROUP BY i",
        "SELECT i, CASE WHEN SUM(val) > 12 THEN 'i' ELSE '7' END AS c FROM r GROUP BY i",
        "SELECT i, upper('i') || SUM(val) AS c FROM r GROUP BY i HAVING concat('i', i) <> 'i0'",
        "SELECT json_object('i', i, 's', SUM(val)) AS o FROM r GROUP BY i",
        "SELECT struct_pack(i := SUM(val)) AS o FROM r GROUP BY i",
        "SELECT {'i': SUM(val), 'k': i} AS o FROM r GROUP BY i",
        # a key is no part of an expression that binds otherwise
        "SELECT 2 * i + 1 AS a, 'k' || SUM(val) AS s FROM r GROUP BY i, i + 1",
        "SELECT 5 - i - 1 AS a, 'k' || SUM(val) AS s FROM r GROUP BY i, i - 1",
        "SELECT 'k' || SUM(val) AS s, 12 // i + 1 AS a FROM r WHERE i > 0 GROUP BY i, i + 1",
        "SELECT 'k' || SUM(val) AS s, i + 1::DOUBLE / 2 AS a FROM r GROUP BY i, i + 1",
        "SELECT 'k' || SUM(val) AS s, NOT i > 0 AND i < 2 AS a FROM r GROUP BY i, i > 0 AND i < 2",
        # it is one between other operators
        "SELECT i + 1 AS a, 'k' || SUM(val) FROM r GROUP BY i + 1 HAVING i + 1 > 1 OR i + 1 < 0",
        "SELECT (i + 1) * 2 AS a, 'k' || SUM(val) AS s FROM r GROUP BY i + 1",
        "SELECT abs(i - 1) || 'k' || SUM(val) AS s FROM r GROUP BY abs(i - 1)",
        "SELECT 'k' || SUM(r.val) AS s, -r.i AS a FROM r GROUP BY r.i",
        # names in ORDER BY are aliases alone, and columns in expressions
        "SELECT 'k' || SUM(val) AS s, -j AS j FROM r GROUP BY j ORDER BY j",
        "SELECT 'k' || SUM(val) AS s, -j AS j FROM r GROUP BY j ORDER BY j + 0",
        "SELECT 'k' || SUM(val) AS s, -j AS j FROM r GROUP BY j ORDER BY (j)",
        "SELECT 'k' AS k, (a.i - 1) AS i, b.i AS h, SUM(a.val) AS s FROM r a JOIN r b USING (j) "
        "GROUP BY b.i, a.i - 1 ORDER BY h, ((i)) DESC NULLS LAST",
        # names like those of fragments, numbers of columns behind *, and parentheses
        "SELECT i, 10 * SUM(val) AS c0, 'a' || i AS z FROM v GROUP BY i HAVING c0 > 10 ORDER BY i",
        "SELECT i AS c1, val AS c0 FROM v ORDER BY -c0, c1 LIMIT 2",
        "SELECT * REPLACE (-val AS val) FROM v ORDER BY val, i LIMIT 2",
        "SELECT * RENAME (val AS k, j AS val) FROM r ORDER BY val, i LIMIT 3",
        "SELECT *, -val AS k FROM v ORDER BY 2 LIMIT 1",
        "SELECT i, val FROM v ORDER BY (2) DESC, (1) LIMIT 2",
        "SELECT i % 2 AS g, 'a' AS q, SUM(val) AS t FROM v GROUP BY (1) ORDER BY g",
        # what the fragment lacks runs in DuckDB
        "SELECT LIST(i ORDER BY i) FILTER (WHERE val > 1) AS h FROM v",
        "SELECT i // 2 AS g, (SELECT COUNT(*) FROM r WHERE r.i = v.i // 2) AS n, COUNT(*) AS c "
        "FROM v GROUP BY i // 2",
        # a limit of the rows is that of the ROW_NUMBER
        "SELECT i, j, val FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY i ORDER BY val) AS j "
        "FROM r) WHERE j <= 1 ORDER BY i, j",
        "SELECT i, k, val FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY i ORDER BY val, j) AS k "
        "FROM r) WHERE k <= 1 ORDER BY i",
        # keys within lists and structs are no aliases of their names
        "SELECT i - 1 AS i, [i - 1, 2]::VARCHAR AS l FROM r GROUP BY i - 1",
        "SELECT (i - 1) AS i, val AS v, [(i - 1), (i - 1) + 1]::VARCHAR AS l FROM r "
        "GROUP BY (i - 1), val HAVING COUNT(*) < 3",
        "SELECT i - 1 AS i, {'i': i - 1, 'n': [COUNT(*), SUM(val)]}::VARCHAR AS o FROM r "
        "GROUP BY i - 1",
        "SELECT [i % 2, SUM(val)][1] + 1 AS a, i % 2 AS i, MAP {i % 2: 3}::VARCHAR AS m FROM r "
        "GROUP BY i % 2 ORDER BY [i % 2, 1]",
        "SELECT SUM(val) AS i, [r.i, i]::VARCHAR AS l FROM r GROUP BY r.i",
        # a table qualifies a key only if it is one of FROM
        "SELECT t.k AS i, (SELECT [i, t.k, SUM(val)] FROM r GROUP BY i ORDER BY i LIMIT 1) AS l "
        "FROM t WHERE t.k < 3",
        "SELECT x.i, (SELECT x.i * 100 + SUM(val) FROM r GROUP BY i ORDER BY i LIMIT 1) AS s "
        "FROM v x",
        "SELECT x.i, y.z FROM v x, LATERAL (SELECT i, x.i || ':' || SUM(val) AS z FROM r "
        "GROUP BY i) y",
        "SELECT x.i FROM v x WHERE EXISTS (SELECT 'k' || SUM(val) FROM r GROUP BY i HAVING x.i=2)",
        "SELECT x.i, (SELECT SUM(val) FROM r GROUP BY i ORDER BY abs(i - x.i), i LIMIT 1) AS s "
        "FROM v x",
        "SELECT e.i, 'k' || SUM(val) || e.i AS s FROM r e GROUP BY i",
        # fields of parameters are no columns, an alias may be an item
        "SELECT i, list_transform([{'i': 10}], lambda x: x.i) AS l, SUM(val) FROM r GROUP BY i",
        "SELECT i, [x.i FOR x IN [{'i': 10}]] AS l, 'k' || SUM(val) AS s FROM r GROUP BY i",
        "SELECT i, list_transform([{'i': 10}], lambda r: r.i) AS l, SUM(val) FROM r GROUP BY i",
        "SELECT -i AS z, z, [SUM(val)] AS l FROM r GROUP BY -i",
        # parameters of lambdas are no columns
        "SELECT i, list_transform([1, 2], lambda i: i + 1) AS l FROM r GROUP BY i",
        "SELECT i, list_reduce([1, 2], lambda a, i: a + i) AS l FROM r GROUP BY i",
        # words stay apart without blanks in the text
        "SELECT SUM(val)s, upper('a')u, i FROM r GROUP BY i ORDER BY i",
        "SELECT i, val FROM v ORDER BY abs(val)LIMIT 1",
        "SELECT i, val FROM v ORDER BY(-val)DESC",
        "SELECT i,upper('a')||SUM(val)FROM r GROUP BY i ORDER BY i",
        # aggregates of a subquery are its own
        "SELECT t.w, SUM(v.val) AS s FROM v JOIN t ON v.i = t.k GROUP BY t.w "
        "ORDER BY (SELECT COUNT(*) FROM t), t.w DESC LIMIT (SELECT COUNT(*) FROM t WHERE k = 1)",
        "SELECT 'a' AS x FROM v LIMIT (SELECT COUNT(*) - 8 FROM r)",
        "SELECT 1 AS one FROM v ORDER BY (SELECT MAX(i) FROM r)",
        "SELECT i, val FROM v ORDER BY (SELECT MAX(val) FROM v) - val LIMIT 2",
        "SELECT i, SUM(val) s FROM r GROUP BY i ORDER BY (SELECT SUM(val) FROM v WHERE v.i = r.i)",
    )
] + [("SELECT i // ? AS a, 'k' || SUM(val) AS s FROM r GROUP BY i, i // ?", [2, 3])]


@pytest.fixture(scope="module")
def con() -> einsql.Connection:
    con = einsql.connect()
    con.register("r", R, dims=("i", "j"))
    con.register("v", V, dims=("i",))
    con.execute(TABLE)
    return con


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    duck = duckdb.connect()
    duck.execute("CREATE TABLE r (i BIGINT, j BIGINT, val INTEGER)")
    duck.execute("CREATE TABLE v (i BIGINT, val INTEGER)")
    duck.execute(TABLE)
    for name, array in (("r", R), ("v", V)):
        rows = [[*at, cell.item()] for at, cell in np.ndenumerate(array)]
        duck.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    return duck


@pytest.mark.parametrize(("sql", "values"), QUERIES)
def test_keys_are_found_by_their_meaning(
    sql: str, values: list[int], con: einsql.Connection, duck: duckdb.DuckDBPyConnection
) -> None:
    rows, expected = con.execute(sql, values).fetchall(), duck.execute(sql, values).fetchall()
    if "ORDER BY" not in sql:
        rows, expected = sorted(rows, key=str), sorted(expected, key=str)
    assert rows == expected


LIMITED = "SELECT i, val, ROW_NUMBER() OVER (ORDER BY val DESC) AS rn FROM v"


@pytest.mark.parametrize(
    "sql",
    [
        f"WITH q AS ({LIMITED}) SELECT q.i, q.val, m.s FROM q, total(q) m WHERE q.rn <= 2",
        f"SELECT * FROM best(({LIMITED}))",
        f"WITH q AS ({LIMITED}) SELECT * FROM best(q)",
    ],
)
def test_a_limit_of_rows_is_that_of_one_reader(sql: str, con: einsql.Connection) -> None:
    """The macro reads all rows, and WHERE only the first two."""
    con.execute("CREATE OR REPLACE MACRO total(x) AS TABLE SELECT SUM(val) AS s FROM x")
    con.execute(
        "CREATE OR REPLACE MACRO best(x) AS TABLE SELECT x.i, x.val, m.s "
        "FROM x, (SELECT SUM(val) AS s FROM x) m WHERE x.rn <= 2"
    )
    assert sorted(con.execute(sql).fetchall()) == [(2, 7, 12), (3, 8, 12)]


@pytest.mark.parametrize(
    "setting",
    ["default_order = 'desc'", "default_null_order = 'nulls_first'", "integer_division = true",
     "ieee_floating_point_ops = false"],
)  # fmt: skip
def test_settings_that_change_results_are_refused(setting: str) -> None:
    con = einsql.connect()
    with pytest.raises(einsql.ProgrammingError, match="einsql computes with") as error:
        con.execute(f"SET {setting}")
    assert error.value.hint
    con.execute(
        "SET default_order = 'ascending'; SET integer_division = 'false'; RESET default_order"
    )
