"""Macros that read tables, and macros in what DuckDB runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import einsql
from tests.support.samples import spread


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    made = einsql.connect()
    made.register("x", np.arange(12.0).reshape(3, 4), ("i", "j"))
    made.execute("CREATE TABLE t (r INTEGER, c INTEGER, v FLOAT, n VARCHAR)")
    made.execute("INSERT INTO t VALUES (0, 0, 1.5, 'a'), (2, 1, 2.5, 'b')")
    yield made
    made.close()


def rows(con: einsql.Connection, sql: str, given: Any = None) -> list[Any]:
    return con.execute(sql, given).fetchall()


# ---- macros over tables


@pytest.fixture
def macros(con: einsql.Connection) -> einsql.Connection:
    con.execute("""
        CREATE MACRO total(x) AS TABLE SELECT SUM(x.v) AS s FROM x;
        CREATE MACRO doubled(x) AS TABLE SELECT x.r, x.n, 2 * x.v AS v FROM x;
        CREATE MACRO under(x, n) AS TABLE
            WITH low AS (SELECT * FROM x WHERE x.r < n) SELECT * FROM low;
        CREATE MACRO sum_of(x) AS (SELECT SUM(v) FROM x);
        CREATE MACRO all_of() AS (SELECT SUM(val) FROM x);
        CREATE MACRO row_of(k) AS (SELECT SUM(val) FROM x WHERE x.i = k);
    """)
    return con


@pytest.mark.parametrize(
    ("sql", "given", "expected"),
    spread([
        # x is a tensor of the caller's as well, which the parameter hides
        ("SELECT * FROM total(t)", None, [(4.0,)]),
        ("SELECT * FROM total((SELECT v FROM t WHERE n = 'a'))", None, [(1.5,)]),
        ("SELECT d.v, 'q' FROM doubled(t) d, t WHERE d.r = t.r ORDER BY 1", None,
         [(3.0, "q"), (5.0, "q")]),
        ("SELECT doubled.v FROM doubled(t) ORDER BY v", None, [(3.0,), (5.0,)]),
        ("SELECT SUM(v) FROM doubled((SELECT * FROM doubled(t)))", None, [(16.0,)]),
        ("SELECT * FROM total((SELECT * FROM doubled(t)))", None, [(8.0,)]),
        ("WITH q AS (SELECT * FROM t ORDER BY v LIMIT 1) SELECT * FROM total(q)", None, [(1.5,)]),
        ("WITH q AS (SELECT * FROM t) SELECT * FROM under(q, 1), total(q)", None,
         [(0, 0, 1.5, "a", 4.0)]),
        ("SELECT $2, v FROM under((SELECT * FROM t WHERE v < $1), $3)", (9, "z", 2), [("z", 1.5)]),
        ("SELECT n, (SELECT s FROM total(t)) FROM t ORDER BY n", None, [("a", 4.0), ("b", 4.0)]),
        ("SELECT all_of() || ''", None, [("66.0",)]),
        ("SELECT n || row_of(r) FROM t ORDER BY 1", None, [("a6.0",), ("b38.0",)]),
        ("WITH x AS (SELECT 'q' AS s) SELECT n || row_of(r) || s FROM t, x ORDER BY 1", None,
         [("a6.0q",), ("b38.0q",)]),
        ("SELECT val FROM softmax((SELECT r, c, v AS val FROM t), c)", None, [(1.0,), (1.0,)]),
    ], 6),
)  # fmt: skip
def test_table_macros_take_tables(
    macros: einsql.Connection, sql: str, given: Any, expected: list[Any]
) -> None:
    assert rows(macros, sql, given) == expected


def test_macros_over_tables_inside_other_statements(macros: einsql.Connection) -> None:
    macros.execute("CREATE VIEW w AS SELECT * FROM doubled(t)")
    assert rows(macros, "SELECT SUM(v) FROM w") == [(8.0,)]
    macros.execute("CREATE TENSOR a AS SELECT r AS i, v FROM doubled(t)")
    assert rows(macros, "SELECT * FROM a") == [(0, 3.0), (2, 5.0)]
    macros.execute("INSERT INTO t SELECT r + 1, 7, v, n FROM doubled(t)")
    assert rows(macros, "SELECT * FROM total(t)") == [(12.0,)]
    macros.execute("CREATE MACRO again(y) AS TABLE SELECT * FROM total(y)")
    assert rows(macros, "SELECT * FROM again(t)") == [(12.0,)]
    assert "total" in str(macros.explain("SELECT * FROM total(t)"))


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT * FROM total(nosuch)", 'There is no tensor "nosuch"'),
        ("SELECT * FROM doubled((SELECT r FROM t))", '"n"'),
        ("SELECT * FROM total(t, t)", r"takes 1 argument, not 2"),
        ("SELECT sum_of(t) || 'a'", r"sum_of\(\) reads its parameter x as a table"),
        ("SELECT sum_of(t)", r"sum_of\(\) reads its parameter x as a table"),
    ],
)
def test_wrong_tables_of_macros_are_named(macros: einsql.Connection, sql: str, reason: str) -> None:
    with pytest.raises(einsql.Error, match=reason) as caught:
        macros.execute(sql)
    assert caught.value.position in range(len(sql))


def test_macros_over_tables_that_call_themselves(macros: einsql.Connection) -> None:
    macros.execute("CREATE MACRO around(x) AS TABLE SELECT * FROM around(x)")
    with pytest.raises(einsql.ProgrammingError, match="refers to itself"):
        macros.execute("SELECT * FROM around(t)")


@pytest.mark.parametrize(
    "call",
    [
        "softmax({0}, k)",
        "log_softmax((SELECT * FROM {0}), k)",
        "layer_norm({0}, k)",
        "rms_norm({0}, k)",
        "softmax(rms_norm({0}, k), k)",
        "softmax({1}, k)",
        "attention({0}, {1}, {1}, b, k)",
        "attention({0}, {0}, {0}, k, k)",
    ],
)
def test_built_in_macros_over_tables_of_one_key(con: einsql.Connection, call: str) -> None:
    con.register("one", np.array([0.5, -1.0, 2.0]), ("k",))
    con.register("two", np.arange(6.0).reshape(2, 3) / 4, ("b", "k"))
    con.execute("CREATE TABLE rows1 AS SELECT k, val FROM one WHERE 'a' = 'a'")
    con.execute("CREATE TABLE rows2 AS SELECT b, k, val FROM two WHERE 'a' = 'a'")
    wanted = rows(con, f"SELECT * FROM {call.format('one', 'two')}")
    got = rows(con, f"SELECT * FROM {call.format('rows1', 'rows2')} ORDER BY ALL")
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    assert len(rows(con, f"SELECT *, 'a' FROM {call.format('rows1', 'two')}")) == len(wanted)
    assert con.notices == []


def test_the_key_of_a_macro_in_quotes_names_nothing(con: einsql.Connection) -> None:
    con.execute("CREATE MACRO f(x) AS x + 1")
    for sql in ('FROM "f()"', 'CREATE VIEW v AS FROM "F()"', 'DESCRIBE "f()"', 'TABLE "f()"'):
        with pytest.raises(einsql.ProgrammingError, match=r"(?i)f\(\)"):
            con.execute(sql)
