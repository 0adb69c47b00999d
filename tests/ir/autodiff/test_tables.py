"""Losses that read DuckDB's tables, compared with differences of the same SQL in DuckDB."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

import einsql
from tests.support.samples import combinations, spread

ROWS = "(0, 1.5, 'a', 1.5), (1, 2.5, 'b', 2.5), (1, 0.5, 'c', 2), (7, 1, 'd', 0), (2, NULL, 'e', 1)"
SQUARES = "SUM((w.val - t.y) * (w.val - t.y)) AS val"
LOSSES = (
    f"WITH loss AS (SELECT {SQUARES} FROM w JOIN t ON t.i = w.i)",
    f"WITH loss AS (SELECT {SQUARES} FROM w JOIN t USING (i) WHERE t.y > 0.5)",
    f"WITH loss AS (SELECT {SQUARES} FROM w, t)",
    f"WITH loss AS (SELECT {SQUARES} FROM w JOIN t ON t.i <= w.i)",
    "WITH loss AS (SELECT SUM(w.val * t.y) AS val FROM w JOIN t ON t.i = w.i)",
    "WITH m AS (SELECT MAX(y) AS val FROM t), loss AS (SELECT SUM(w.val * m.val) AS val FROM w, m)",
    "WITH y AS (SELECT i, AVG(y) AS val FROM t GROUP BY i), "
    f"loss AS (SELECT {SQUARES.replace('t.y', 't.val')} FROM w JOIN y t USING (i))",
)
BODIES = (
    "SELECT * FROM GRADIENT(loss, w)",
    "SELECT g.i, g.val FROM GRADIENT(loss, w) g ORDER BY g.val",
    "SELECT DISTINCT g.i, g.val FROM GRADIENT(loss, w) g JOIN t ON t.name <> 'z'",
)


def _both() -> tuple[einsql.Connection, duckdb.DuckDBPyConnection]:
    con, duck = einsql.connect(), duckdb.connect()
    con.execute("CREATE TENSOR w (i DIM(3), val DOUBLE)")
    duck.execute("CREATE TABLE w (i INTEGER, val DOUBLE)")
    for each in (con, duck):
        each.execute("CREATE TABLE t (i INTEGER, y DOUBLE, name VARCHAR, d DECIMAL(4, 1))")
        each.execute(f"INSERT INTO t VALUES {ROWS}")
        each.execute("INSERT INTO w VALUES (0, 1), (1, 2), (2, -0.5)")
    return con, duck


def _differences(duck: duckdb.DuckDBPyConnection, loss: str) -> list[float]:
    found = []
    for i in range(3):
        values: list[tuple[float]] = []
        for step in (1e-4, -1e-4):
            duck.execute("BEGIN")
            duck.execute(f"UPDATE w SET val = val + {step} WHERE i = {i}")
            values += duck.execute(f"{loss} SELECT val FROM loss").fetchall()
            duck.execute("ROLLBACK")
        (up,), (down,) = values
        found.append((up - down) / 2e-4)
    return found


@pytest.mark.parametrize(("loss", "body"), spread(combinations(LOSSES, BODIES), 9))
def test_a_loss_reads_tables(loss: str, body: str) -> None:
    con, duck = _both()
    found = dict(con.execute(f"{loss} {body}").fetchall())
    np.testing.assert_allclose([found[i] for i in range(3)], _differences(duck, loss), atol=1e-6)


STEP = "UPDATE w SET val = w.val - 0.1 * g.val FROM GRADIENT(loss, w) g WHERE g.i = w.i"


@pytest.mark.parametrize("loss", spread(LOSSES, 3))
def test_a_step_over_tables_reads_their_rows_each_time(loss: str) -> None:
    con, duck = _both()
    for row in (None, "(2, 4, 'f', 1)", "(0, -1, 'g', 1), (1, 0.25, 'h', 1)"):
        if row is not None:
            con.execute(f"INSERT INTO t VALUES {row}")
            duck.execute(f"INSERT INTO t VALUES {row}")
        before = con.execute("SELECT i, val FROM w").fetch_numpy()
        slope = np.array(_differences(duck, loss))
        (told,) = duck.sql(f"{loss} SELECT val FROM loss").fetchall()
        ((shown,),) = con.execute(f"{loss}, step AS ({STEP}) SELECT val FROM loss").fetchall()
        assert shown == pytest.approx(told[0])
        first = con.execute("SELECT i, val FROM w").fetch_numpy()
        np.testing.assert_allclose(first, before - 0.1 * slope, atol=1e-6)
        for i, val in enumerate(first):
            duck.execute(f"UPDATE w SET val = {val} WHERE i = {i}")
        con.execute(f"{loss} {STEP}")
        second = con.execute("SELECT i, val FROM w").fetch_numpy()
        np.testing.assert_allclose(
            second, first - 0.1 * np.array(_differences(duck, loss)), atol=1e-6
        )
        for i, val in enumerate(second):
            duck.execute(f"UPDATE w SET val = {val} WHERE i = {i}")


def test_a_loop_of_steps_over_tables() -> None:
    con, _ = _both()
    loop = f"FOR s IN range(40) DO {LOSSES[0]}, step AS ({STEP}) SELECT val FROM loss; END FOR"
    losses = [row[1] for row in con.execute(loop).fetchall()]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(2.0)  # of 2.5 and 0.5 about their mean


@pytest.mark.parametrize(
    ("query", "at", "reason"),
    [
        (f"WITH k AS (SELECT i, y FROM t WHERE name <> 'c'), loss AS (SELECT {SQUARES} FROM w "
         "JOIN k t USING (i))", "t WHERE", "and k, which it reads, is not: no tensor has the"),
        (f"WITH loss AS (SELECT {SQUARES.replace('t.y', 't.d')} FROM w JOIN t ON t.i = w.i)",
         "t ON", "no tensor has the type of t.d\n"),
        ("WITH loss AS (SELECT SUM(w.val * t.y) AS val FROM w JOIN t ON t.name = 'a')", "t ON",
         "no tensor has the type of t.name"),
    ],
)  # fmt: skip
def test_what_is_refused_says_why_and_what_to_do(query: str, at: str, reason: str) -> None:
    con, _ = _both()
    sql = f"{query} SELECT * FROM GRADIENT(loss, w)"
    with pytest.raises(einsql.ProgrammingError, match=reason) as error:
        con.execute(sql)
    assert error.value.position == sql.index(at)
    assert "CREATE TABLE" in error.value.hint
    assert "CREATE TENSOR" in error.value.hint


def test_a_loss_over_a_table_alone_reads_no_tensor() -> None:
    con, _ = _both()
    sql = "WITH loss AS (SELECT SUM(y) AS val FROM t) SELECT * FROM GRADIENT(loss, w)"
    with pytest.raises(einsql.ProgrammingError, match="loss does not read w") as error:
        con.execute(sql)
    assert error.value.position == sql.index("w)")


def test_groups_of_a_table_that_are_far_apart_are_refused_in_a_step() -> None:
    con, _ = _both()
    con.execute("INSERT INTO t VALUES (10000000, 1, 'far', 1)")
    far = "WITH far AS (SELECT i, SUM(y) AS val FROM t GROUP BY i)"
    step = "UPDATE w SET val = far.val FROM far WHERE far.i = w.i"
    with pytest.raises(einsql.NotSupportedError, match="far apart") as error:
        con.execute(f"{far} {step}")
    assert "CREATE TABLE" in error.value.hint


def test_without_a_fallback_tables_are_none() -> None:
    con, _ = _both()
    con.execute("SET fallback = off")
    with pytest.raises(einsql.ProgrammingError, match='no tensor "t"'):
        con.execute(f"{LOSSES[0]} {STEP}")
