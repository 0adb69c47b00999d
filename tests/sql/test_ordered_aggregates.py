"""Aggregates of the user whose states are merged in the order of keys: rewrites keep the order."""

from __future__ import annotations

import numpy as np
import pytest

import einsql

DIGITS = """
CREATE AGGREGATE digits(v DOUBLE, {0}) STATE (p DOUBLE INIT 1, q DOUBLE INIT 0) LIFT (10, v)
MERGE (a.p * b.p, a.q * b.p + b.q) FINISH (q) ORDERED BY {0}
"""
"""The digits of a number, one after another."""


@pytest.fixture(params=["never", "wait"])
def con(request: pytest.FixtureRequest) -> einsql.Connection:
    return einsql.connect(config={"jit": request.param})


def test_equal_aggregates_in_two_orders_are_not_shared(con: einsql.Connection) -> None:
    con.register("x", np.array([[1.0, 2], [3, 4]]), dims=("i", "j"))
    con.execute(DIGITS.format("f, g"))
    sql = "SELECT (SELECT digits(val, i, j) FROM x) AS u, (SELECT digits(val, j, i) FROM x) AS v"
    assert con.execute(sql).fetchall() == [(1234, 1324)]


def test_a_computed_key_keeps_the_order(con: einsql.Connection) -> None:
    con.register("x", np.arange(1.0, 10).reshape(3, 3), dims=("i", "j"))
    con.execute(DIGITS.format("f"))
    for key, expected in (("i", [1, 24, 357, 68, 9]), ("j", [1, 42, 753, 86, 9])):
        sql = f"SELECT i + j AS k, digits(val, {key}) AS v FROM x GROUP BY i + j ORDER BY k"
        assert con.execute(sql).fetchall() == list(enumerate(expected))


@pytest.mark.parametrize("condition", ["j < k - 290", "j > k + 290"])
def test_rows_without_points_are_skipped(condition: str, con: einsql.Connection) -> None:
    """The loop over j has no points for most k, and several lanes for others."""
    x = np.random.default_rng(0).normal(size=(300, 300))
    con.register("x", x, dims=("k", "j"))
    con.execute(
        "CREATE AGGREGATE decay(v DOUBLE) STATE (p DOUBLE INIT 1, q DOUBLE INIT 0) LIFT (0.99, v) "
        "MERGE (a.p * b.p, a.q * b.p + b.q) FINISH (q) ORDERED BY k, j"
    )
    k, j = np.indices(x.shape)
    q = 0.0
    for value in x[(j < k - 290) if "<" in condition else (j > k + 290)]:
        q = q * 0.99 + value
    (decayed,) = con.execute(f"SELECT decay(val) FROM x WHERE {condition}").fetchone() or ()
    assert decayed == pytest.approx(q, rel=1e-12)


def test_a_best_key_by_a_computed_key(con: einsql.Connection) -> None:
    con.register("x", np.array([[1.0, 5, 3, 2], [4, 0, 6, 7]]), dims=("s", "t"))
    con.register("g", np.array([[0, 1, 0, 1], [1, 0, 0, 1]]), dims=("s", "t"))
    con.execute(
        "CREATE AGGREGATE best(x DOUBLE, k BIGINT) "
        "STATE (v DOUBLE INIT '-inf', a BIGINT INIT 9223372036854775807) LIFT (x, k) "
        "MERGE (greatest(a.v, b.v), CASE WHEN a.v > b.v THEN a.a WHEN a.v < b.v THEN b.a "
        "ELSE least(a.a, b.a) END) FINISH (a)"
    )
    parts = con.execute("SELECT t % 2 AS k, best(val, t) AS v FROM x GROUP BY t % 2 ORDER BY k")
    assert parts.fetchall() == [(0, 2), (1, 3)]
    sql = "SELECT g.val AS k, best(x.val, x.t) AS v FROM x JOIN g USING (s, t) GROUP BY g.val"
    assert sorted(con.execute(sql).fetchall()) == [(0, 2), (1, 3)]


@pytest.mark.parametrize("sites", [1, 2])
def test_rows_of_sparse_tensors_are_merged_in_order(sites: int) -> None:
    con = einsql.connect()
    con.execute(
        "CREATE AGGREGATE lastj(x DOUBLE) STATE (v DOUBLE INIT 0, some BOOLEAN INIT FALSE) "
        "LIFT (x, TRUE) MERGE (CASE WHEN b.some THEN b.v ELSE a.v END, a.some OR b.some) "
        "FINISH (v) ORDERED BY j"
    )
    con.execute("CREATE TENSOR p (i DIM(300), j DIM(300), val DOUBLE) STORAGE SPARSE")
    con.execute("INSERT INTO p VALUES (0, 299, 1), (1, 7, 2), (2, 3, 3), (2, 8, 4)")
    con.execute("CREATE TENSOR q (i DIM(300), j DIM(300), val DOUBLE) STORAGE SPARSE")
    con.execute("INSERT INTO q VALUES (0, 299, 10), (1, 7, 20), (2, 3, 30)")
    con.register("k", np.array([1.0, 2.0]), dims=("k",))
    con.execute(f"SET sites = {sites}")
    for sql, rows in (
        ("SELECT lastj(val) FROM p", [(1.0,)]),
        ("SELECT lastj(p.val * q.val) FROM p JOIN q USING (i, j)", [(10.0,)]),
        ("SELECT k, lastj(p.val * 10 + k.val) FROM p, k GROUP BY k", [(0, 11.0), (1, 12.0)]),
        ("SELECT i, lastj(val) FROM p GROUP BY i ORDER BY i", [(0, 1.0), (1, 2.0), (2, 4.0)]),
    ):
        assert con.execute(sql).fetchall() == rows, sql
