"""Odd input through the Python interface: the right answer or an einsql.Error, never a crash."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
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
    ("SELECT 1, $a", [1], einsql.NotSupportedError, "have no names", 10),
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
    ("SELECT 1 AS ?", [1], einsql.ProgrammingError, "cannot stand here", 12),
    ("SELECT * FROM ?", [1], einsql.ProgrammingError, "cannot stand here", 14),
    ("SELECT CAST(1 AS ?)", [1], einsql.ProgrammingError, "cannot stand here", 17),
    ("CREATE TENSOR ? (i DIM(2), v FLOAT)", [1], einsql.ProgrammingError, "tensor name", 14),
    ("SELECT \ue000", None, einsql.ProgrammingError, "U\\+E000", 7),
    ("SELECT ?", ["a"], einsql.ProgrammingError, "cannot be a str", -1),
    ("SELECT ?", [10**5000], einsql.DataError, "does not fit BIGINT", -1),
    ("SELECT ?", [np.complex64(1)], einsql.ProgrammingError, "cannot be a complex64", 7),
    ("SELECT ?", {"a": 1}, einsql.NotSupportedError, "are numbered", -1),
    ("SELECT ?", "a", einsql.InterfaceError, "a sequence, not a str", -1),
    ("SELECT ?", 5, einsql.InterfaceError, "a sequence, not a int", -1),
]


@pytest.mark.parametrize(("sql", "given", "kind", "text", "at"), REFUSED)
def test_parameters_refused(
    con: einsql.Connection, sql: str, given: Any, kind: type[einsql.Error], text: str, at: int
) -> None:
    with pytest.raises(kind, match=text) as caught:
        con.execute(sql, given)
    assert (caught.value.position if at >= 0 else -1) == at


def test_dollar_quotes_stay_text(con: einsql.Connection) -> None:
    with pytest.raises(einsql.NotSupportedError, match=r"'a\?\$1' is outside"):
        con.execute("SELECT $t$a?$1$t$")


def test_plans_are_told_apart_by_exact_parameters(con: einsql.Connection) -> None:
    sql = "SELECT ? AS v"

    def answer(value: object) -> object:
        return con.execute(sql, [value]).fetchall()[0][0]

    zeros = [0, 0.0, -0.0, False, np.float32(0), np.float32(-0.0), np.array(0, np.int8)]
    kinds = {(type(v), repr(v)) for v in map(answer, zeros)}
    assert kinds == {(int, "0"), (float, "0.0"), (float, "-0.0"), (bool, "False")}
    types = {con.execute(sql, [z]).description[0][1] for z in zeros}  # type: ignore[index]
    assert types == {"INTEGER", "DOUBLE", "BOOLEAN", "FLOAT", "TINYINT"}
    before = len(con._plans)
    assert all(math.isnan(answer(float("nan"))) for _ in range(3))  # type: ignore[arg-type]
    assert len(con._plans) == before + 1


# ---- arguments of the Python interface

CALLS: list[tuple[Callable[[einsql.Connection], object], str]] = [
    (lambda c: c.execute(5), "is a str, not a int"),  # type: ignore[arg-type]
    (lambda c: c.cursor().executemany(None, []), "is a str"),  # type: ignore[arg-type]
    (lambda c: c.cursor().executemany("SELECT 1", 5), "takes a sequence"),  # type: ignore[arg-type]
    (lambda c: c.execute("SELECT 1").fetchmany(-1), "not -1"),
    (lambda c: c.execute("SELECT 1").fetchmany("a"), "not 'a'"),  # type: ignore[arg-type]
    (lambda c: c.execute("SELECT 1").fetchmany(2.5), "not 2.5"),  # type: ignore[arg-type]
    (lambda c: c.execute("SELECT 1 AS a, 2 AS a").fetch_numpy(), "the same name"),
    (lambda c: c.execute("SELECT i, val FROM x").fetch_numpy(), "not selected"),
    (lambda c: c.execute("SELECT NULLIF(1, 1)").fetch_numpy(fill="a"), "cannot hold 'a'"),
    (lambda c: c.execute("SELECT NULLIF(1, 1)").fetch_numpy(fill=0.5), "cannot hold 0.5"),
    (lambda c: c.execute("SELECT NULLIF(1, 1)").fetch_numpy(fill=2**40), "cannot hold"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), CALLS, ids=[c[1] for c in CALLS])
def test_wrong_arguments(
    con: einsql.Connection, call: Callable[[einsql.Connection], object], text: str
) -> None:
    with pytest.raises(einsql.InterfaceError, match=text):
        call(con)


def test_executemany_counts_changes_and_keeps_the_last_rows(con: einsql.Connection) -> None:
    cursor = con.execute("SELECT 1")
    cursor.executemany("SELECT ?", [])
    assert (cursor.rowcount, cursor.description) == (0, None)
    assert cursor.executemany("SELECT ?", [[1], [2]]).fetchall() == [(2,)]
