"""Parameters in statements that change tensors: one plan for many values."""

from __future__ import annotations

import random
from collections.abc import Sequence

import duckdb
import numpy as np
import pytest

import einsql
from tests.support.samples import sample

W = np.linspace(-1.0, 1.0, 30).reshape(6, 5)
G = np.cos(np.arange(30.0)).reshape(6, 5)


@pytest.fixture
def con() -> einsql.Connection:
    connection = einsql.connect()
    connection.register("start", W, ("i", "j"))
    connection.register("g", G, ("i", "j"))
    connection.execute("CREATE TENSOR w AS SELECT i, j, val FROM start")
    return connection


def value(con: einsql.Connection, name: str = "w") -> np.ndarray:
    return np.asarray(con.execute(f"SELECT i, j, val FROM {name}").fetch_numpy(fill=0))


def planned(con: einsql.Connection, sql: str, many: Sequence[Sequence[object]]) -> int:
    before = con.planner_calls
    con.cursor().executemany(sql, many)
    return con.planner_calls - before


def test_a_learning_rate_is_no_part_of_the_plan(con: einsql.Connection) -> None:
    sql = "UPDATE w SET val = w.val - ? * g.val FROM g WHERE g.i = w.i AND g.j = w.j"
    assert planned(con, sql, [[0.5], [0.25], [0.125]]) == 1
    np.testing.assert_allclose(value(con), W - 0.875 * G)


def test_rows_and_ranges_are_windows(con: einsql.Connection) -> None:
    wanted = W.copy()
    sql = "UPDATE w SET val = w.val * ? WHERE i = ?"
    assert planned(con, sql, [[2.0, 0], [3.0, 5], [4.0, 2], [9.0, 7]]) == 2  # 7 lies beyond
    for factor, row in ((2.0, 0), (3.0, 5), (4.0, 2)):
        wanted[row] *= factor
    sql = "UPDATE w SET val = i + 10 * j WHERE i BETWEEN ? AND ? + 1 AND j < ?"
    assert planned(con, sql, [[0, 0, 2], [4, 4, 5], [1, 1, 3]]) == 1
    i, j = np.indices(W.shape)
    for lo, below in ((0, 2), (4, 5), (1, 3)):
        inside = (i >= lo) & (i <= lo + 1) & (j < below)
        wanted[inside] = (i + 10 * j)[inside]
    np.testing.assert_allclose(value(con), wanted)
    con.execute("DELETE FROM w WHERE i = 5")  # from now on keys are absent
    assert planned(con, "DELETE FROM w WHERE i = ? AND j >= ?", [[1, 3], [3, 1]]) == 1
    wanted[1, 3:] = wanted[3, 1:] = wanted[5] = 0
    np.testing.assert_allclose(value(con), wanted)


def test_a_cache_grows_without_new_plans(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR cache (i DIM(9), j DIM(5), val DOUBLE) DEFAULT 0")
    sql = (
        "INSERT OR REPLACE INTO cache "
        "SELECT ? AS i, j, SUM(val) AS val FROM g WHERE i <= ? GROUP BY j"
    )
    assert planned(con, sql, [[n, n] for n in range(6)]) == 1
    np.testing.assert_allclose(value(con, "cache")[:6], G.cumsum(0))
    sql = "INSERT OR REPLACE INTO cache SELECT i + 3 AS i, j, val FROM g WHERE i = ?"
    assert planned(con, sql, [[n] for n in (0, 5)]) <= 2
    np.testing.assert_allclose(value(con, "cache")[[3, 8]], G[[0, 5]])
    sql = "INSERT OR REPLACE INTO cache SELECT i, j, val FROM g WHERE i BETWEEN ? AND ?"
    assert planned(con, sql, [[0, 1], [3, 4]]) == 1
    np.testing.assert_allclose(value(con, "cache")[:5:3], G[:5:3])
    with pytest.raises(einsql.IntegrityError, match="out of bounds"):
        con.execute("INSERT INTO cache SELECT ? AS i, j, val FROM g WHERE i = 0", [9])


def test_a_step_of_training_is_planned_once(con: einsql.Connection) -> None:
    con.register("y", np.arange(6.0), ("i",))
    con.execute("CREATE TENSOR v AS SELECT j, AVG(val) AS val FROM start GROUP BY j")
    v = W.mean(0)
    sql = """WITH b AS (SELECT i, j, val FROM g WHERE i BETWEEN ? AND ? + 1),
      p AS (SELECT i, SUM(b.val * v.val) AS val FROM b JOIN v USING (j) GROUP BY i),
      loss AS (SELECT SUM((p.val - y.val) * (p.val - y.val)) AS val FROM p JOIN y USING (i)),
      step AS (UPDATE v SET val = v.val - ? * d.val FROM GRADIENT(loss, v) d WHERE d.j = v.j)
      SELECT val FROM loss"""
    before = con.planner_calls
    for n in range(9):
        lo = n % 3 * 2
        rows, wanted = G[lo : lo + 2], np.arange(6.0)[lo : lo + 2]
        (loss,) = con.execute(sql, [lo, lo, 0.1 / (n + 1)]).fetchone() or (None,)
        assert loss == pytest.approx(((rows @ v - wanted) ** 2).sum())
        v = v - 0.1 / (n + 1) * 2 * (rows @ v - wanted) @ rows
    assert con.planner_calls - before == 1
    np.testing.assert_allclose(con.execute("SELECT j, val FROM v").fetch_numpy(), v)
    body = sql.replace("BETWEEN ? AND ? + 1", "BETWEEN n % 3 * 2 AND n % 3 * 2 + 1")
    losses = con.execute(f"FOR n IN range(6) DO {body.replace('?', '0.01')} END FOR").fetchall()
    assert len(losses) == 6
    assert con.planner_calls - before == 3


_CONDITIONS = (
    "i = ?", "j = ?", "i <= ?", "i < ?", "i >= ?", "? < i", "j > ?", "i = ? + 1", "val > ?",
    "i BETWEEN ? AND ? + 1", "j >= ? AND j < ? + 2", "i <= ? AND j = ?", "i >= ? AND j <= ?",
    "i = j AND i <= ?", "i + j <= ?", "(i < ? OR j = ?)", "i >= ? AND i < ? AND val < 0.5",
    "i <= ? AND i <= ?", "i = ? AND i <= ?",
)  # fmt: skip
_CHANGES = (
    "UPDATE w SET val = val + ? WHERE {}", "UPDATE w SET val = i - 2 * j WHERE {}",
    "UPDATE w SET val = b * ? FROM (SELECT i AS y, j AS x, val AS b FROM g) "
    "WHERE y = i AND x = j AND {}",
    "DELETE FROM w WHERE {}", "UPDATE w SET val = val WHERE {}",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(sample(2, 8)))
def test_changes_are_those_of_the_literal_form_and_of_duckdb(seed: int) -> None:
    rng = random.Random(seed)
    late, early, duck = einsql.connect(), einsql.connect(), duckdb.connect()
    for con in (late, early):
        con.register("g", G, ("i", "j"))
        con.register("start", W, ("i", "j"))
    i, j = np.indices(W.shape)
    elements = zip(i.ravel().tolist(), j.ravel().tolist(), strict=True)
    rows = [(a, b, float(W[a, b]), float(G[a, b])) for a, b in elements]
    duck.execute("CREATE TABLE filled (i BIGINT, j BIGINT, val DOUBLE, other DOUBLE)")
    duck.executemany("INSERT INTO filled VALUES (?, ?, ?, ?)", rows)
    duck.execute("CREATE TABLE g AS SELECT i, j, other AS val FROM filled")
    duck.execute("CREATE TABLE w AS SELECT i, j, val FROM filled")
    for con in (late, early):
        con.execute("CREATE TENSOR w AS SELECT i, j, val FROM start")
    for _ in range(8):
        sql = rng.choice(_CHANGES).format(rng.choice(_CONDITIONS))
        for _ in range(4):
            given = [rng.randint(-1, 6) for _ in range(sql.count("?"))]
            parts = sql.split("?")
            literal = "".join(a + str(b) for a, b in zip(parts, [*given, ""], strict=True))
            touched = late.execute(sql, given).rowcount
            assert early.execute(literal).rowcount == touched, literal
            assert duck.execute(literal).fetchone() == (touched,), literal
            wanted = duck.execute("SELECT i, j, val FROM w ORDER BY i, j").fetchall()
            for con in (late, early):
                assert con.execute("SELECT i, j, val FROM w").fetchall() == wanted, literal
        if not wanted or rng.random() < 0.3:
            for con in (late, early):
                con.execute("INSERT OR REPLACE INTO w SELECT i, j, val FROM start")
            duck.execute("DELETE FROM w")
            duck.execute("INSERT INTO w SELECT i, j, val FROM filled")
