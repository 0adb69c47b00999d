"""Parameters: one plan for many values, and the answers that constants give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import pytest

import einsql
from tests.oracle.parameters import parameter_campaign

X = np.arange(42.0).reshape(6, 7) - 20
W = np.sin(X)


@pytest.fixture
def con() -> einsql.Connection:
    connection = einsql.connect()
    connection.register("x", X, ("i", "j"))
    connection.register("w", W, ("i", "j"))
    return connection


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    made = duckdb.connect()
    for name, array in (("x", X), ("w", W)):
        i, j = np.indices(array.shape).reshape(2, -1)
        made.execute(f"CREATE TABLE {name} (i BIGINT, j BIGINT, val DOUBLE)")
        made.executemany(
            f"INSERT INTO {name} VALUES (?, ?, ?)",
            list(zip(i.tolist(), j.tolist(), array.ravel().tolist(), strict=True)),
        )
    return made


def planned(con: einsql.Connection, sql: str, many: Sequence[Sequence[object]]) -> int:
    """How many plans a statement takes for many values, each of which is right."""
    before = con.planner_calls
    for given in many:
        con.execute(sql, given).fetchall()
    return con.planner_calls - before


ONCE: list[tuple[str, list[list[Any]]]] = [
    ("SELECT SUM(x.val * ?) AS s FROM x", [[0.5], [-1.0], [0.0], [math.inf], [math.nan]]),
    ("SELECT i, j, w.val - ? * x.val AS v FROM w JOIN x USING (i, j)", [[0.1], [0.01]]),
    ("SELECT i, SUM(val) AS s FROM x WHERE j <= ? GROUP BY i", [[0], [3], [6], [100]]),
    ("SELECT i, SUM(val) AS s FROM x WHERE ? < j GROUP BY i", [[-5], [0], [5]]),
    ("SELECT i, j, val FROM x WHERE i < ? + 1", [[0], [2], [5], [6]]),
    ("SELECT i, j, val FROM x WHERE i >= ? % 4", [[0], [6], [3]]),
    (
        "WITH c AS (SELECT i, j, val FROM x WHERE j <= ?) "
        "SELECT c.i, SUM(c.val * w.val) AS s FROM c JOIN w USING (i, j) GROUP BY c.i",
        [[0], [4], [6]],
    ),
    ("SELECT i, (SELECT SUM(val) FROM w WHERE w.i = x.i AND w.j <= ?) AS s FROM x", [[2], [3]]),
    ("SELECT i, COUNT(*) AS n FROM x WHERE val > ? GROUP BY i HAVING SUM(val) > ?", [[0.0, 1.0],
     [-3.0, 2.0]]),
    ("SELECT i, CASE WHEN val > ? THEN ? ELSE val END AS v FROM x WHERE i IN (?, ?)",
     [[0.0, 1.0, 1, 2], [2.0, 5.0, 1, 2]]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "many"), ONCE, ids=[c[0][:60] for c in ONCE])
def test_planned_once_for_many_values(
    con: einsql.Connection, duck: duckdb.DuckDBPyConnection, sql: str, many: list[list[object]]
) -> None:
    assert planned(con, sql, many) == 1
    for given in many:
        found = con.execute(sql, given).fetchall()
        wanted = sorted(duck.execute(sql, given).fetchall())
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            assert a == pytest.approx(b, nan_ok=True)
    assert planned(con, sql, many) == 0


def test_types_and_structure_have_plans_of_their_own(con: einsql.Connection) -> None:
    assert (
        planned(con, "SELECT val * ? AS v FROM x", [[1], [2], [2.0], [None], [3.5], [2**40]]) == 4
    )
    assert planned(con, "SELECT ? AS v FROM range(?) AS t(i)", [[1, 2], [7, 2], [7, 3]]) == 2
    assert planned(con, "SELECT i // ? AS k, SUM(val) AS s FROM x GROUP BY k", [[2], [3], [2]]) == 2
    assert con.execute("SELECT ? AS v", [-0.0]).fetchall()[0][0].hex() == "-0x0.0p+0"
    assert con.execute("SELECT ? AS v", [0.0]).fetchall()[0][0].hex() == "0x0.0p+0"
    for value in (True, False, None, np.float32(0.1), np.int64(7)):
        assert con.execute("SELECT ? AS v", [value]).fetchall() == [(value,)]


def test_bounds_of_the_result_follow_the_values(con: einsql.Connection) -> None:
    for below in (6, 3, 1, 9):
        cur = con.execute("SELECT i, j, val FROM x WHERE i < ? AND 2 <= j", [below])
        assert cur.shape == (min(6, below), 5)
        assert cur.fetch_numpy().tolist() == X[:below, 2:].tolist()
    cur = con.execute("SELECT j, i, val FROM x WHERE i > ?", [3])
    assert (cur.origin, cur.shape) == ((0, 4), (7, 2))
    assert con.execute("SELECT i, val FROM x WHERE i < ?", [-1]).fetchall() == []


def test_a_range_is_cut_in_few_steps_where_the_key_is_long(con: einsql.Connection) -> None:
    con.register("y", np.ones(100_000), ("t",))
    sql = "SELECT SUM(val) AS s FROM y WHERE t < ?"
    assert planned(con, sql, [[n] for n in (1, 10, 4000, 5000, 8000, 9000, 70_000, 99_999)]) == 4
    assert con.execute(sql, [5001]).fetchall() == [(5001.0,)]


def test_products_stay_products(con: einsql.Connection) -> None:
    scaled = "SELECT x.i, w.i AS k, SUM(x.val * w.val * ?) AS s FROM x JOIN w USING (j) "
    for where, given in (("", [0.5]), ("WHERE j <= ? ", [0.5, 3])):
        sql = f"{scaled}{where}GROUP BY x.i, w.i"
        lines = [r[0] for r in con.execute(f"EXPLAIN {sql}", given).fetchall()]
        assert lines[lines.index("-- steps") + 1].startswith("r0  blas"), lines
        found = con.execute(sql, given).fetch_numpy()
        end = 4 if where else 7
        np.testing.assert_allclose(found, 0.5 * X[:, :end] @ W[:, :end].T, rtol=1e-12)


def test_attention_up_to_a_position_is_a_group() -> None:
    con = einsql.connect()
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 64)).astype(np.float32) for n in (512, 700, 700))
    for name, array, dims in (("q", q, ("s", "d")), ("k", k, ("t", "d")), ("v", v, ("t", "d"))):
        con.register(name, array, dims)
    sql = """WITH a AS (SELECT s, t, SUM(q.val * k.val) / 8 AS val FROM q JOIN k USING (d)
        WHERE t <= ? GROUP BY s, t),
      m AS (SELECT s, MAX(val) AS val FROM a GROUP BY s),
      e AS (SELECT s, t, EXP(a.val - m.val) AS val FROM a JOIN m USING (s)),
      z AS (SELECT s, SUM(val) AS val FROM e GROUP BY s),
      p AS (SELECT s, t, e.val / z.val AS val FROM e JOIN z USING (s))
      SELECT s, d, SUM(p.val * v.val) AS val FROM p JOIN v USING (t) GROUP BY s, d"""
    steps = [r[0] for r in con.execute(f"EXPLAIN {sql}", [300]).fetchall()]
    assert any(line.startswith("r0..r5  group") for line in steps), steps
    for last in (0, 300, 699):
        weights = np.exp(q @ k[: last + 1].T / 8)
        wanted = weights @ v[: last + 1] / weights.sum(1, keepdims=True)
        np.testing.assert_allclose(con.execute(sql, [last]).fetch_numpy(), wanted, atol=2e-5)
    assert planned(con, sql, [[5], [500]]) == 0


@pytest.mark.parametrize("seed", range(3))
def test_answers_do_not_depend_on_when_values_are_known(seed: int) -> None:
    found = parameter_campaign(12, seed)
    assert not found.differences, "\n\n".join(found.differences)
    assert found.shared
