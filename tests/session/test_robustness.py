"""Odd input through the Python interface: the right answer or an einsql.Error, never a crash."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pytest

import einsql


@pytest.fixture
def con() -> einsql.Connection:
    connection = einsql.connect(config={"jit": "never"})
    connection.register("x", np.arange(6.0).reshape(2, 3), ("i", "j"))
    return connection


# ---- parameters

ANSWERED: list[tuple[str, list[object]]] = [
    ("SELECT ?,?", [1, 2]),
    ("SELECT ?::INT, -?", [1.5, 2]),
    ("SELECT $1,$1+$2-$3", [7, 1, 2]),
    ("SELECT ?2, ?1", [7, 8]),
    ("SELECT ?1, $2", [7, 8]),
    ("SELECT ? a, /* ? */ ? AS b -- ? '", [1, 2]),
    ('SELECT "?" + ? AS v FROM (SELECT 1 AS "?") AS q', [2]),
    ("SELECT COUNT(*) FROM range(?)", [3]),
    ("SELECT j + $1 AS v FROM range(2) AS r(j) GROUP BY j + $1", [3]),
    ("SELECT ? BETWEEN ? AND ?", [2, 1, 3]),
]


@pytest.mark.parametrize(("sql", "given"), ANSWERED)
def test_parameters_as_duckdb_reads_them(
    con: einsql.Connection, sql: str, given: list[object]
) -> None:
    expected = duckdb.execute(sql, given)
    cursor = con.execute(sql, given)
    assert sorted(cursor.fetchall()) == sorted(expected.fetchall())


REFUSED: list[tuple[str, object, type[einsql.Error], str, int]] = [
    ("SELECT ?, $1", [1], einsql.ProgrammingError, "cannot be mixed", 10),
    ("SELECT 1, $a", [1], einsql.ProgrammingError, "take their values by them", 10),
    ("SELECT 1, $a", None, einsql.ProgrammingError, "Parameter \\$a has no value", 10),
    ("SELECT 1, $rate", {"rat": 1}, einsql.ProgrammingError, "\\$rate has no value", 10),
    ("SELECT $a", {"a": 1, "b": 2}, einsql.ProgrammingError, "no parameter \\$b", 0),
    ("SELECT $a + ?", {"a": 1}, einsql.ProgrammingError, "\\? and named parameters cannot", 12),
    ("SELECT $a + $1", [1], einsql.ProgrammingError, "named and numbered parameters cannot", 12),
    ("SELECT 1, :a FROM x", None, einsql.NotSupportedError, "parameter :a", 0),
    ("SELECT $0", [1], einsql.ProgrammingError, "numbered from 1", 7),
    ("SELECT $99999999999999999999", [1], einsql.ProgrammingError, "numbered from 1", 7),
    ("SELECT 1, ?", [], einsql.ProgrammingError, "Parameter 1 has no value", 10),
    ("SELECT ?, ?", [1], einsql.ProgrammingError, "2 parameters; 1 was given", 10),
    ("SELECT ?", [1, 2], einsql.ProgrammingError, "1 parameter, but 2 were given", 0),
    ("SELECT 1", [1], einsql.ProgrammingError, "0 parameters, but 1 was given", 0),
    ("SELECT $2", [1, 2], einsql.ProgrammingError, "Nothing takes value 1", 0),
    ("SELECT 1; SELECT ?", None, einsql.ProgrammingError, "has no value", 17),
    ("SELECT ??", [1, 2], einsql.ProgrammingError, "Syntax error", 7),
    ("SELECT ?a", [1], einsql.ProgrammingError, "Syntax error", 7),
    ("SELECT 1 AS ?", [1], einsql.ProgrammingError, "is not allowed here", 12),
    ("SELECT * FROM ?", [1], einsql.ProgrammingError, "is not allowed here", 14),
    ("SELECT CAST(1 AS ?)", [1], einsql.ProgrammingError, "is not allowed here", 17),
    ("CREATE TENSOR ? (i DIM(2), v FLOAT)", [1], einsql.ProgrammingError, "tensor name", 14),
    ("SELECT \ue000", None, einsql.ProgrammingError, "U\\+E000", 7),
    ("SELECT ?", ["a"], einsql.NotSupportedError, "of type str is outside", 7),
    ("SELECT ?", [10**5000], einsql.DataError, "does not fit BIGINT", -1),
    ("SELECT ?", [np.complex64(1)], einsql.ProgrammingError, "cannot be a complex64", -1),
    ("SELECT ?", {"a": 1}, einsql.ProgrammingError, "in their order", 7),
    ("SELECT $1", {"a": 1}, einsql.ProgrammingError, "\\$1 has no value", 7),
    ("SELECT ?", "a", einsql.InterfaceError, "a sequence, not a str", -1),
    ("SELECT ?", 5, einsql.InterfaceError, "a sequence, not a int", -1),
]


@pytest.mark.parametrize(("sql", "given", "kind", "text", "at"), REFUSED)
def test_parameters_refused(
    con: einsql.Connection, sql: str, given: Any, kind: type[einsql.Error], text: str, at: int
) -> None:
    con.execute("SET fallback = off")
    with pytest.raises(kind, match=text) as caught:
        con.execute(sql, given)
    assert (caught.value.position if at >= 0 else -1) == at


def test_dollar_quotes_stay_text(con: einsql.Connection) -> None:
    con.execute("SET fallback = off")
    with pytest.raises(einsql.NotSupportedError, match=r"'a\?\$1' is outside"):
        con.execute("SELECT $t$a?$1$t$")


def test_plans_are_told_apart_by_exact_parameters(con: einsql.Connection) -> None:
    sql = "SELECT ? AS v"

    def answer(value: object) -> Any:
        return con.execute(sql, [value]).fetchall()[0][0]

    zeros = [0, 0.0, -0.0, False, np.float32(0), np.float32(-0.0), np.array(0, np.int8)]
    kinds = {(type(v), repr(v)) for v in map(answer, zeros)}
    assert kinds == {(int, "0"), (float, "0.0"), (float, "-0.0"), (bool, "False")}
    types = {(con.execute(sql, [z]).description or ())[0][1] for z in zeros}
    assert types == {"INTEGER", "DOUBLE", "BOOLEAN", "FLOAT", "TINYINT"}
    before = con.planner_calls
    assert all(math.isnan(answer(float("nan"))) for _ in range(3))
    assert con.planner_calls == before  # a DOUBLE is read when the plan runs


def test_a_reused_plan_places_its_error_too(con: einsql.Connection) -> None:
    for _ in range(2):
        with pytest.raises(einsql.DataError, match="Division by zero") as caught:
            con.execute("SELECT 1 // (i - ?) AS v FROM x", [1])
        assert "LINE 1" in str(caught.value)


# ---- arguments of the Python interface

FIVE: Any = 5  # in place of arguments of other types

CALLS: list[tuple[Callable[[Any], object], str]] = [
    (lambda c: c.execute(5), "is a str, not a int"),
    (lambda c: c.cursor().executemany(None, []), "is a str"),
    (lambda c: c.cursor().executemany("SELECT 1", 5), "takes a sequence"),
    (lambda c: c.execute("SELECT 1").fetchmany(-1), "not -1"),
    (lambda c: c.execute("SELECT 1").fetchmany("a"), "not 'a'"),
    (lambda c: c.execute("SELECT 1").fetchmany(2.5), "not 2.5"),
    (lambda c: c.execute("SELECT 1 AS a, 2 AS a").fetch_numpy(), "the same name"),
    (lambda c: c.execute("SELECT i, val FROM x").fetch_numpy(), "not selected"),
    (lambda c: c.execute("SELECT NULLIF(1, 1)").fetch_numpy(fill="a"), "cannot hold 'a'"),
    (lambda c: c.execute("SELECT NULLIF(1, 1)").fetch_numpy(fill=0.5), "cannot hold 0.5"),
    (lambda c: c.execute("SELECT NULLIF(1, 1)").fetch_numpy(fill=2**40), "cannot hold"),
    (lambda c: c.register("", np.ones(2)), "cannot be named ''"),
    (lambda c: c.register(5, np.ones(2)), "cannot be named 5"),
    (lambda c: c.register("f()", np.ones(2)), "cannot be named"),
    (lambda c: c.register("a", np.ones((2, 2)), "ij"), "dims are key names, not 'ij'"),
    (lambda c: c.register("a", np.ones(2), 5), "dims are key names"),
    (lambda c: c.register("a", np.ones(2), [5]), "named 5"),
    (lambda c: c.register("a", np.ones(2), [""]), "cannot be named ''"),
    (lambda c: c.register("a", np.ones(2), [".present"]), "cannot be named"),
    (lambda c: c.register("a", np.ones((2, 2)), ["i", "I"]), "repeat"),
    (lambda c: c.register("a", np.ma.array([1.0, 2.0], mask=[False, True])), "has 1 masked"),
    (lambda c: c.register("a", np.ones((1,) * 64)), "more than 63 axes"),
    (lambda c: c.register("a", "text"), "is no tensor"),
    (lambda c: c.register("a", [[1], [1, 2]]), "no dense tensor"),
    (lambda c: einsql.einsum(FIVE, np.ones(2)), "is a str, not a int"),
    (lambda c: einsql.connect(FIVE), "is a str, not a int"),
    (lambda c: einsql.connect(config=FIVE), "is a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), CALLS, ids=[c[1] for c in CALLS])
def test_wrong_arguments(con: einsql.Connection, call: Callable[[Any], object], text: str) -> None:
    with pytest.raises(einsql.InterfaceError, match=text):
        call(con)


def test_executemany_counts_changes_and_keeps_the_last_rows(con: einsql.Connection) -> None:
    cursor = con.execute("SELECT 1")
    cursor.executemany("SELECT ?", [])
    assert (cursor.rowcount, cursor.description) == (0, None)
    assert cursor.executemany("SELECT ?", [[1], [2]]).fetchall() == [(2,)]


# ---- registered arrays


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_are_read_as_plain_arrays(con: einsql.Connection) -> None:
    con.register("m", np.ma.array([1.0, 2.0]))
    con.register("n", np.asmatrix([[3.0, 4.0]]))
    assert con.execute("SELECT * FROM m").fetchall() == [(0, 1.0), (1, 2.0)]
    assert con.execute("SELECT * FROM n").fetchall() == [(0, 0, 3.0), (0, 1, 4.0)]
    assert type(con.execute("SELECT * FROM n").fetch_numpy()) is np.ndarray


def test_masked_arrays_in_scope_are_refused(con: einsql.Connection) -> None:
    hidden = np.ma.array([1.0, 2.0], mask=[False, True])
    assert hidden.mask.any()
    with pytest.raises(einsql.InterfaceError, match="1 masked"):
        con.execute("SELECT * FROM hidden")


def test_arrays_of_many_axes_work_or_are_refused(con: einsql.Connection) -> None:
    con.register("a", np.arange(2.0).reshape((1,) * 62 + (2,)))
    assert con.execute("SELECT d0, d62, val FROM a WHERE d62 = 1").fetchall() == [(0, 1, 1.0)]
    assert len(con.execute("SELECT * FROM a").fetchall()) == 2
    same = "SELECT SUM(a.val * b.val) FROM a NATURAL JOIN (SELECT * EXCLUDE (val), val AS w FROM a)"
    assert con.execute(same.replace("b.val", "w")).fetchall() == [(1.0,)]
    with pytest.raises(einsql.NotSupportedError, match="125 keys at once"):
        con.execute("SELECT SUM(a.val + b.val * b.val) FROM a JOIN a b USING (d0)")


def test_register_never_replaces_what_is_stored(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w (i DIM(1), v FLOAT) DEFAULT 7; CREATE VIEW u AS SELECT 5 AS v")
    for name in ("w", "U"):
        with pytest.raises(einsql.ProgrammingError, match="already"):
            con.register(name, np.ones(2))
    con.execute("BEGIN; DROP TENSOR w")
    with pytest.raises(einsql.ProgrammingError, match="already"):
        con.register("w", np.ones(2))
    con.execute("ROLLBACK")
    assert con.execute("SELECT v FROM w").fetchall() == [(7.0,)]


def test_registered_arrays_are_no_part_of_a_transaction(con: einsql.Connection) -> None:
    con.execute("BEGIN")
    con.register("new", np.ones(2))
    con.unregister("x")
    con.execute("ROLLBACK")
    assert con.execute("SELECT SUM(val) FROM new").fetchall() == [(2.0,)]
    with pytest.raises(einsql.ProgrammingError, match='no tensor "x"'):
        con.execute("SELECT * FROM x")


# ---- domains beyond any memory

HUGE: list[tuple[str, object]] = [
    ("SELECT COUNT(*) FROM range(4000000000) a(i), range(4000000000) b(j)", "combinations of keys"),
    ("SELECT SUM(i + j) FROM range(4000000000) a(i), range(4000000000) b(j)", "combinations"),
    ("SELECT COUNT(*) FROM range(2000000000) a(i), range(2000000000) b(j)", (4 * 10**18,)),
    ("SELECT i FROM range(10000000000000) a(i)", (0,)),
    ("SELECT COUNT(*) FROM range(9223372036854775807) a(i)", "beyond"),
    ("SELECT COUNT(*) FROM range(4611686018427387904) a(i)", (2**62,)),
    ("SELECT i FROM range(4611686018427387903, 4611686018427387904) a(i)", (2**62 - 1,)),
    (
        "SELECT i * 2 AS k FROM range(4611686018427387000, 4611686018427387904) a(i)",
        (2**63 - 1808,),
    ),
    ("SELECT i * 4 AS k FROM range(4611686018427387000, 4611686018427387904) a(i)", "Overflow"),
    ("SELECT i, i * 2 AS v FROM range(1000000000000000) a(i)", "memory"),
    ("SELECT a.d0 * 0.5::DOUBLE AS v FROM wide a, wide b, wide c", "memory"),
    ("SELECT val, COUNT(*) AS n FROM sparse GROUP BY val", "too far for a tensor key"),
    ("SELECT * FROM large", (0, 0, 1.0)),
    ("SELECT COUNT(*) FROM large", (10**12,)),
]


@pytest.mark.parametrize(("sql", "expected"), HUGE)
@pytest.mark.parametrize("jit", ["never", "auto"])
def test_huge_domains_answer_or_fail_at_once(sql: str, expected: object, jit: str) -> None:
    con = einsql.connect(config={"jit": jit, "fallback": "off"})
    sparse = np.array([0, 2**30, 5])
    wide = np.broadcast_to(np.float64(1), 2**20)
    con.execute("CREATE TENSOR large (i DIM(1000000), j DIM(1000000), v FLOAT) DEFAULT 1")
    con.register("sparse", sparse, ("i",))
    con.register("wide", wide)
    if isinstance(expected, str):
        with pytest.raises(einsql.DatabaseError, match=expected):
            con.execute(sql).fetchone()
    else:
        assert con.execute(sql).fetchone() == expected


NAMED = [
    ("SELECT $a + $b * $A", {"a": 3, "b": 4}),
    ("SELECT $a + $b * $a", {"B": 4, "A": 3}),
    ("SELECT $2 - $1", {"1": 1, "2": 5}),
    ("SELECT $t$a$t$ || $name, '$b' -- $c", {"name": "x"}),
    ("SELECT $größe::INTEGER AS v, $_x/2 AS w", {"größe": 7, "_x": 3}),
    ("WITH q AS (SELECT r.j FROM range(5) AS r(j) WHERE j < $n) SELECT j FROM q UNION ALL "
     "SELECT $k FROM (SELECT $n AS n) ORDER BY 1", {"k": 9, "n": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "given"), NAMED)
def test_names_as_duckdb_reads_them(
    con: einsql.Connection, sql: str, given: dict[str, object]
) -> None:
    expected = duckdb.execute(sql, given)
    assert sorted(con.execute(sql, given).fetchall()) == sorted(expected.fetchall())


def test_names_in_changes_loops_and_tables(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w (i DIM(3), val DOUBLE)")
    con.executemany("INSERT INTO w VALUES ($i, $v)", [{"i": n, "v": n / 2} for n in range(3)])
    step = "UPDATE w SET val = w.val - $rate * $scale WHERE i >= $first"
    con.execute(step, {"rate": 0.5, "scale": 2, "first": 1})
    before = con.planner_calls
    con.execute(step, {"scale": 4, "first": 1, "rate": 0.25})
    assert con.planner_calls == before
    loop = "FOR s IN range($n) DO UPDATE w SET val = w.val + $up * s; END FOR"
    con.execute(loop, {"up": 10, "n": 3})
    assert con.execute("SELECT i, val FROM w").fetchall() == [(0, 30.0), (1, 28.5), (2, 29.0)]
    con.execute("CREATE TABLE t (name VARCHAR, v DOUBLE)")
    con.execute("INSERT INTO t SELECT $who, SUM(val) FROM w WHERE i > $at", {"at": 0, "who": "a"})
    sql = "SELECT name, v + $more FROM t WHERE name = $who"
    assert con.execute(sql, {"who": "a", "more": 1}).fetchall() == [("a", 58.5)]
    with pytest.raises(einsql.ProgrammingError, match="Did you mean who") as caught:
        con.execute(sql, {"whom": "a", "more": 1})
    assert caught.value.position == sql.index("$who")


def test_the_hints_of_names(con: einsql.Connection) -> None:
    for given, hint in (
        ([1], 'Give a dict: {"rate": …}'),
        (None, 'Give a dict: {"rate": …}'),
        ({"rat": 1}, "Did you mean rat"),
        ({}, "Values given: none"),
        ({"rate": 1, "b": 2}, "Its parameters: \\$rate"),
    ):
        with pytest.raises(einsql.ProgrammingError, match=hint.replace("{", "\\{")):
            con.execute("SELECT $rate", given)
