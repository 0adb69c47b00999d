"""Calls of aggregates of CREATE AGGREGATE: spellings, tables of DuckDB, and errors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import einsql

DEFINITIONS = (
    "CREATE AGGREGATE total(x DOUBLE) STATE (s DOUBLE INIT 0) LIFT (x) MERGE (a.s + b.s) "
    "FINISH (s)",
    "CREATE AGGREGATE \"a b\"(x DOUBLE) STATE (m DOUBLE INIT '-inf') LIFT (x) "
    "MERGE (greatest(a.m, b.m)) FINISH (m)",
    """CREATE AGGREGATE best(v DOUBLE, i BIGINT)
    STATE (v DOUBLE INIT 'inf', who BIGINT INIT 9223372036854775807)
    LIFT (v, i)
    MERGE (CASE WHEN b.v < a.v OR (b.v = a.v AND b.who < a.who) THEN b.v ELSE a.v END,
           CASE WHEN b.v < a.v OR (b.v = a.v AND b.who < a.who) THEN b.who ELSE a.who END)
    FINISH (v AS v, who AS who)""",
)
VALUES = np.random.default_rng(3).permutation(12).reshape(3, 4) / 2


@pytest.fixture(scope="module")
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as connection:
        connection.register("w", VALUES, dims=("i", "j"))
        for definition in DEFINITIONS:
            connection.execute(definition)
        connection.execute(
            "CREATE TABLE t AS SELECT 'a' || (r % 2) AS name, r % 3 AS g, "
            "CASE WHEN r <> 4 THEN r / 2 END AS x FROM range(10) n(r)"
        )
        yield connection


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ('"total"(val)', VALUES.sum(1)),
        ('"Total"(val)', VALUES.sum(1)),
        ('"a b"(val)', VALUES.max(1)),
        ("best(val, j).who", VALUES.argmin(1)),
        ('(best(val, j))."who"', VALUES.argmin(1)),
    ],
)
def test_spellings_of_a_call(con: einsql.Connection, call: str, expected: np.ndarray) -> None:
    rows = con.execute(f"SELECT i, {call} FROM w GROUP BY i ORDER BY i").fetchall()
    assert [v for _, v in rows] == expected.tolist()


@pytest.mark.parametrize(
    "call",
    [
        "best(val, j).who OVER (PARTITION BY i)",
        'best(val, j) . "who"OVER (PARTITION BY i)',
        "best(val, j) OVER (PARTITION BY i).who",
        "best(val, (j)/* ).v OVER */).who FILTER (WHERE (j) >= 0) OVER (PARTITION BY i)",
    ],
)
def test_a_field_before_and_behind_over(con: einsql.Connection, call: str) -> None:
    rows = con.execute(f"SELECT i, j, {call} AS who FROM w").fetchall()
    assert [who for _, _, who in rows] == VALUES.argmin(1).repeat(4).tolist()


def test_a_field_before_filter(con: einsql.Connection) -> None:
    sql = "SELECT best(val, i).who FILTER (WHERE j = 1) AS one, best(val, i).v FROM w"
    assert con.execute(sql).fetchall() == [(VALUES[:, 1].argmin(), 0.0)]


def test_any_value_of_a_window(con: einsql.Connection) -> None:
    rows = con.execute("SELECT i, j, ANY_VALUE(val) OVER (PARTITION BY i) FROM w").fetchall()
    assert all(v in VALUES[i] for i, _, v in rows)
    assert len(rows) == VALUES.size


def test_rows_of_a_table(con: einsql.Connection) -> None:
    for sql in (
        "SELECT g, total(x) AS s FROM t GROUP BY g ORDER BY g",
        "SELECT DISTINCT g, total(x) OVER (PARTITION BY g) FROM (SELECT g, x FROM t) ORDER BY g",
        "SELECT g, s FROM (SELECT g, total(x) AS s FROM t GROUP BY g) JOIN (SELECT DISTINCT g "
        "FROM t WHERE name LIKE 'a%') USING (g) ORDER BY g",
    ):
        assert con.execute(sql).fetchall() == [(0, 9.0), (1, 4.0), (2, 7.5)]
    con.execute("CREATE TEMP MACRO spread(x) AS total(x) - total(0 * x)")
    con.execute("CREATE TEMP VIEW sums AS SELECT g, spread(x) AS s FROM t GROUP BY g")
    assert con.execute("SELECT SUM(s) FROM sums").fetchall() == [(20.5,)]


def test_duckdb_runs_what_is_around_an_aggregate(con: einsql.Connection) -> None:
    rows = con.execute(
        "SELECT i, printf('%d', best(val, j).who FILTER (WHERE j > 0)), "
        'best(val, j).who FILTER (WHERE j > 0) + 0.5, "a b"(val)::VARCHAR '
        "FROM w GROUP BY i HAVING length(total(val)::VARCHAR) > 0 ORDER BY total(val) DESC"
    ).fetchall()
    order = np.argsort(-VALUES.sum(1))
    who = VALUES[:, 1:].argmin(1) + 1
    assert [row[0] for row in rows] == order.tolist()
    assert [row[1] for row in rows] == [str(who[i]) for i in order]
    assert [float(row[2]) for row in rows] == (who[order] + 0.5).tolist()
    assert [row[3] for row in rows] == [str(v) for v in VALUES.max(1)[order]]


@pytest.mark.parametrize(
    ("sql", "reason", "at", "hint"),
    [
        ("SELECT total(val), sqroot(2) FROM w", "name sqroot", "sqroot", "sqrt"),
        ("SELECT total(x), sqroot(2) FROM t", "name sqroot", "sqroot", "sqrt"),
        ("SELECT best(val, i).wo FROM w", 'no "wo"', "best", '"who"'),
        ("SELECT best(val, i) FROM w", "has the results v, who", "best", "best(…).v"),
        ("SELECT total(val).s FROM w", "has one result", "total", "total(…) alone"),
        ("SELECT name, total(x) FROM t GROUP BY name", "type of t.name", "t GROUP", "DENSE_RANK"),
        ("SELECT total(x) FROM (SELECT x FROM t LIMIT 3)", "LIMIT is outside", "3)", "TABLE"),
        ("SELECT sum(val).v OVER () FROM w", "has fields", ".v", ""),
    ],
)
def test_errors(con: einsql.Connection, sql: str, reason: str, at: str, hint: str) -> None:
    with pytest.raises(einsql.Error) as refusal:
        con.execute(sql)
    assert reason in refusal.value.reason
    assert hint in (refusal.value.hint or "")
    assert refusal.value.position == sql.index(at)


def test_texts_have_the_type_of_a_field(con: einsql.Connection) -> None:
    con.execute(
        "CREATE OR REPLACE AGGREGATE top(x FLOAT, least FLOAT := 3) "
        "STATE (m FLOAT[2] INIT '-inf', some BOOLEAN INIT FALSE) "
        "LIFT ([CASE WHEN x > least THEN x ELSE '-inf' END, '-inf'], 'true') "
        "MERGE ([greatest(a.m[1], b.m[1], '-inf'), '-Infinity'], a.some OR b.some) "
        "FINISH (CASE WHEN m[1] > '-inf' THEN m[1] ELSE 'nan' END)"
    )
    cursor = con.execute("SELECT top(val), top(val, 100), top(val, least := 5) FROM w")
    assert str(cursor.fetchall()) == "[(5.5, nan, 5.5)]"
    assert [d[1] for d in cursor.description or ()] == ["FLOAT"] * 3


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (DEFINITIONS[0], 'There is an aggregate "total" already'),
        ("CREATE MACRO total(x) AS x", 'There is an aggregate "total" already'),
        ("DROP AGGREGATE none", 'There is no aggregate "none"'),
        ("DROP FUNCTION none", 'There is no function "none"'),
        ("DROP AGGREGATE w", '"w" is a tensor, not an aggregate'),
        ("DROP TENSOR total", '"total" is an aggregate, not a tensor'),
        ("SELECT * FROM total(w)", "total is an aggregate; FROM needs a table macro"),
        ("SELECT i FROM w WHERE total(val) > 0", "total() is not allowed in WHERE"),
    ],
)
def test_errors_say_aggregate(con: einsql.Connection, sql: str, reason: str) -> None:
    with pytest.raises(einsql.ProgrammingError) as refusal:
        con.execute(sql)
    assert reason in refusal.value.reason
    assert "macro " not in refusal.value.reason.replace("table macro", "")
