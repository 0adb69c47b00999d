"""What is no SQL is refused, however much of it could be read; numbers beside signs are read."""

import duckdb
import numpy as np
import pytest

import einsql

MALFORMED = [
    "DELETE FROM q WHERE val NOT IN",
    "DELETE FROM q WHERE i = CAST(3 AS BIGINT",
    "DELETE FROM q WHERE i IN (1,,2)",
    "UPDATE q SET val = (SELECT MAX(val FROM q)",
    "UPDATE q SET , val = 5",
    "INSERT OR REPLACE INTO q VALUES (1,,1)",
    "INSERT OR REPLACE INTO q VALUES (1,1),,(2,2)",
    "INSERT OR REPLACE INTO q (i,,val) VALUES (1,1)",
    "CREATE OR REPLACE VIEW v AS SELECT i,, val FROM q",
    "CREATE OR REPLACE MACRO m(x) AS x +, 1",
    "CREATE TENSOR z AS SELECT i, val FROM q GROUP BY",
    "CREATE OR REPLACE TENSOR IF NOT EXISTS q AS SELECT i, val FROM q",
    "COPY (SELECT i,, val FROM q) TO 'never.npy'",
    "SELECT i FROM q GROUP BY",
    "SELECT SUM(val) OVER FROM q",
    "SELECT SUM(val) FILTER FROM q",
    "SELECT * EXCLUDE FROM q",
    "SELECT val NOT IN FROM q",
    "SELECT ,i FROM q",
    "SELECT i FROM q, , q AS p",
    "SELECT GREATEST(1,,2)",
    "SELECT SUM(,val) FROM q",
    "SELECT i FROM q GROUP BY i HAVING 1=1 WHERE i=1",
    "SELECT 1 false",
    "SELECT floor()",
    "SELECT 1e - 1",
    "SELECT\n  i,\n  ,val FROM q",
]


def connection() -> einsql.Connection:
    con = einsql.connect()
    con.execute("CREATE TENSOR q AS SELECT i, i AS val FROM range(4) r(i)")
    return con


@pytest.mark.parametrize("sql", MALFORMED)
def test_malformed_statements_change_nothing(sql: str) -> None:
    con = connection()
    before = con.execute("SELECT i, val FROM q").fetchall()
    with pytest.raises(einsql.ProgrammingError) as caught:
        con.execute(sql)
    assert caught.value.position is not None
    assert con.execute("SELECT i, val FROM q").fetchall() == before
    assert [r[0] for r in con.execute("SHOW TENSORS").fetchall()] == ["q"]


def test_the_caret_stands_where_duckdb_puts_it() -> None:
    sql = "SELECT i,\n       val NOT IN FROM q"
    with pytest.raises(einsql.ProgrammingError) as caught:
        connection().execute(sql)
    assert caught.value.position == sql.index("FROM")


@pytest.mark.parametrize(
    "sql",
    ["2e0+1", "2e0-1", "1.5e0*2e0+3e0", ".5e1+1", "1e+2-1e-2", "2e0- -1", "/* 2e0+1 */ 2e0"],
)
def test_an_exponent_ends_before_a_sign(sql: str) -> None:
    found = einsql.connect().execute(f"SELECT {sql} AS v").fetchall()
    assert found == duckdb.execute(f"SELECT {sql} AS v").fetchall()


def test_positions_count_from_the_text_as_written() -> None:
    sql = "SELECT 2e0+1, 3e0-2, nowhere FROM q"
    with pytest.raises(einsql.ProgrammingError) as caught:
        connection().execute(sql)
    assert caught.value.position == sql.index("nowhere")


@pytest.mark.parametrize(
    "where",
    [
        "i = 4 // val AND val <> 0",
        "4 // val > 1 AND val <> 0",
        "i < 4 // val AND val <> 0 AND i > 1",
        "i = (val * 50)::TINYINT AND val < 2",
        "i = val + 9223372036854775807 AND val = 0",
    ],
)
@pytest.mark.parametrize("jit", ["never", "always"])
def test_a_guard_protects_what_stands_before_it(where: str, jit: str) -> None:
    con = einsql.connect()
    con.execute(f"SET jit = '{jit}'")
    c = np.array([2, 0, 1, 3, 5])
    con.register("c", c, dims=("i",))
    oracle = duckdb.connect()
    values = "(0, 2), (1, 0), (2, 1), (3, 3), (4, 5)"
    oracle.execute(f"CREATE TABLE c AS SELECT * FROM (VALUES {values}) t(i, val)")
    first, second = where.split(" AND ", 1)
    expected = oracle.execute(f"SELECT i FROM c WHERE {second} AND {first} ORDER BY i").fetchall()
    assert con.execute(f"SELECT i FROM c WHERE {where}").fetchall() == expected


def test_a_macro_may_read_its_own_result() -> None:
    con = connection()
    con.execute("CREATE MACRO up(t) AS TABLE SELECT i, val + 1 AS val FROM t")
    con.execute("CREATE VIEW once AS SELECT * FROM up(q)")
    twice = con.execute("SELECT val FROM up((SELECT * FROM up(q)))").fetchall()
    assert twice == con.execute("SELECT val FROM up(once)").fetchall() == [(2,), (3,), (4,), (5,)]


def test_the_least_bigint_is_a_parameter_and_long_cases_bind() -> None:
    con = einsql.connect()
    assert con.execute("SELECT ?", [-(2**63)]).fetchall() == [(-(2**63),)]
    branches = " ".join(f"WHEN i = {k} THEN {k * k}" for k in range(900))
    rows = con.execute(f"SELECT i, CASE {branches} END AS v FROM range(899, 901) r(i)").fetchall()
    assert rows == [(899, 899**2), (900, None)]


def test_rows_of_a_declared_tensor_are_counted() -> None:
    con = einsql.connect()
    assert con.execute("CREATE TENSOR t (i DIM(4), val FLOAT)").rowcount == 0
    assert con.execute("CREATE TENSOR u (i DIM(4), val FLOAT) DEFAULT 0").rowcount == 4
