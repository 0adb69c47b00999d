"""Typed parameters of CREATE FUNCTION: casts and refusals as in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import einsql

Pair = tuple[einsql.Connection, duckdb.DuckDBPyConnection]

_DEFINITIONS = (
    "CREATE FUNCTION f(x FLOAT, y FLOAT) AS x * y + 1",
    "CREATE FUNCTION g(x INTEGER, k DOUBLE := 2) AS x * k",
    "CREATE MACRO part(k FLOAT) AS (SELECT SUM(val * k) FROM x)",
    "CREATE MACRO scaled(k FLOAT) AS TABLE SELECT i, j, k * val AS v FROM x",
)
_TYPES = ("BOOLEAN", "TINYINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE")
_ARGUMENTS = (*(f"1::{t}" for t in _TYPES), "1.5", "1", "3000000000", "1e0", "NULL", "1 + 0.5")


@pytest.fixture
def both() -> Iterator[Pair]:
    con, oracle = einsql.connect(), duckdb.connect()
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    con.register("x", values, ("i", "j"))
    oracle.execute(
        "CREATE TABLE x AS SELECT r // 3 AS i, r % 3 AS j, r::FLOAT AS val FROM range(6) t(r)"
    )
    for text in _DEFINITIONS:
        con.execute(text)
        oracle.execute(text)
    yield con, oracle
    con.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT i, j, f(val, 2.5) AS v FROM x ORDER BY ALL",
        "SELECT i, SUM(f(val, j)) AS v FROM x GROUP BY i ORDER BY ALL",
        "SELECT f(i, j) AS n, COUNT(*) AS v FROM x GROUP BY f(i, j) ORDER BY ALL",
        "SELECT i, g(2, k := 3) + g(1) AS v FROM x WHERE j = 0 ORDER BY ALL",
        "SELECT i, g(NULL) AS v FROM x WHERE j = 0 ORDER BY ALL",
        "SELECT i, part(2) AS v FROM x WHERE j = 0 ORDER BY ALL",
        "SELECT * FROM scaled(2) ORDER BY ALL",
        "SELECT DISTINCT f(val // 4, 1) AS v FROM x ORDER BY v LIMIT 2",
    ],
)
def test_answers_of_duckdb(both: Pair, sql: str) -> None:
    con, oracle = both
    assert con.execute(sql).fetchall() == oracle.execute(sql).fetchall()


def test_casts_of_duckdb(both: Pair) -> None:
    """Every type of argument is accepted or refused as in DuckDB, with its result type."""
    con, oracle = both
    for parameter in _TYPES:
        text = f"CREATE OR REPLACE FUNCTION h(x {parameter}) AS x"
        con.execute(text)
        oracle.execute(text)
        for argument in _ARGUMENTS:
            sql = f"SELECT i, h({argument}) AS v FROM x WHERE j = 0"
            try:
                expected = oracle.execute(f"{sql} ORDER BY i")
            except duckdb.BinderException:
                with pytest.raises(einsql.Error, match=r"does not accept|does not support"):
                    con.execute(sql)
                continue
            cursor = con.execute(sql)
            types = (
                [str(d[1]) for d in (cursor.description or ())],
                [str(d[1]) for d in (oracle.description or ())],
            )
            assert types[0] == types[1], (parameter, argument)
            assert cursor.fetchall() == expected.fetchall(), (parameter, argument)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("CREATE FUNCTION h(x foo) AS x", "There is no type foo"),
        ("CREATE FUNCTION h(x FLOAT FLOAT) AS x", "Expected the type of a parameter"),
        ("SELECT i, f(val, 1e0) AS v FROM x", r"f\(x FLOAT, y FLOAT\) does not accept DOUBLE"),
        ("SELECT i, k, val FROM EINSUM('i,k->ik', z, z, combine := 'f')", "does not accept DOUBLE"),
        ("SELECT * FROM scaled(2e0)", "does not accept DOUBLE"),
    ],
)
def test_refusals(both: Pair, sql: str, reason: str) -> None:
    con, _ = both
    con.register("z", np.ones(2))
    with pytest.raises(einsql.Error, match=reason):
        con.execute(sql)


def test_functions_of_einsum(both: Pair) -> None:
    con, _ = both
    a = np.arange(4, dtype=np.float32)
    expected = np.multiply.outer(a, a) + 1
    assert np.array_equal(con.einsum("i,k->ik", [a, a], combine="f"), expected)


def test_types_in_a_file(tmp_path: object) -> None:
    path = f"{tmp_path}/a.db"
    with einsql.connect(path) as con:
        con.execute("CREATE FUNCTION f(x FLOAT) AS x + 1")
    with einsql.connect(path) as con:
        con.register("v", np.ones(2, np.float32), ("i",))
        assert con.execute("SELECT i, f(val) AS v FROM v").fetchall() == [(0, 2.0), (1, 2.0)]
        with pytest.raises(einsql.ProgrammingError, match="does not accept DOUBLE"):
            con.execute("SELECT i, f(val + 1e0) AS v FROM v")
