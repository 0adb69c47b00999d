"""Rows of nested loops, and callbacks that see the rows of each step."""

from __future__ import annotations

from typing import Any

import pytest

import einsql


@pytest.fixture
def con() -> einsql.Connection:
    con = einsql.connect()
    con.execute("CREATE TENSOR y AS SELECT i, 1::DOUBLE AS val FROM range(3) AS r(i)")
    con.execute("CREATE TABLE log (step INTEGER, total DOUBLE)")
    return con


def test_a_loop_whose_rows_are_not_shown_has_no_columns(con: einsql.Connection) -> None:
    seen: list[tuple[Any, ...]] = []
    con.stepped = lambda _, row: seen.append(row)
    cursor = con.execute(
        "FOR s IN range(2) DO FOR u IN range(2) DO SELECT u AS a, u AS b; END FOR; "
        "SELECT s * 10 AS v; END FOR"
    )
    assert [d[0] for d in cursor.description or ()] == ["s", "v"]
    assert cursor.fetchall() == seen == [(0, 0), (1, 10)]


def test_every_step_has_the_same_columns(con: einsql.Connection) -> None:
    loop = "FOR s IN range(2) DO CREATE OR REPLACE TABLE t AS SELECT {} ; SELECT * FROM t; END FOR"
    assert con.execute(loop.format("1 AS a")).fetchall() == [(0, 1), (1, 1)]
    con.execute("CREATE TABLE u (a INTEGER); INSERT INTO u VALUES (1)")
    with pytest.raises(einsql.ProgrammingError, match="columns s, a, b in this step"):
        con.execute(
            "FOR s IN range(2) DO SELECT * FROM u; "
            "ALTER TABLE u ADD COLUMN b INTEGER DEFAULT 2; END FOR"
        )


STEPS = """
FOR s IN range(4) DO
  UPDATE y SET val = val + 10 WHERE i = 0;
  UPDATE y SET val = 6 // (2 - s) WHERE i = 1;
  SELECT SUM(val) AS total FROM y;
END FOR
"""
"""The third step divides by zero."""


def test_a_callback_s_changes_are_kept_with_its_step(con: einsql.Connection) -> None:
    def write(_: object, row: tuple[Any, ...]) -> None:
        con.execute("INSERT INTO log VALUES (?, ?)", row)

    con.stepped = write
    with pytest.raises(einsql.Error, match=r"up to s = 1 are kept"):
        con.execute(STEPS)
    assert con.execute("SELECT val FROM y").fetchall() == [(21,), (6,), (1,)]
    assert con.execute("FROM log ORDER BY step").fetchall() == [(0, 15), (1, 28)]


@pytest.mark.parametrize("how", ["commit", "rollback", "COMMIT", "ROLLBACK", "BEGIN"])
def test_a_callback_does_not_end_the_loop_s_transaction(how: str, con: einsql.Connection) -> None:
    def end(_: object, row: tuple[Any, ...]) -> None:
        if row[0] == 1:
            getattr(con, how)() if how.islower() else con.execute(how)

    con.stepped = end
    with pytest.raises(einsql.OperationalError, match="cannot begin or end a transaction") as error:
        con.execute(STEPS)
    assert error.value.hint
    assert con.execute("SELECT val FROM y").fetchall()[0] == (21,)
    con.stepped = None
    con.execute("BEGIN; UPDATE y SET val = 0; ROLLBACK")
    assert con.execute("SELECT val FROM y").fetchall()[0] == (21,)
