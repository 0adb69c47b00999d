"""Parameters over several sites: one plan for many values, and the answers of one site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import einsql
from tests.sql.test_parameters import ONCE, SINGLE, WINDOWS, W, X, Y
from tests.support.oracle.parameters import alike, answer, parameter_campaign
from tests.support.samples import sample

EDGES: list[tuple[str, list[list[object]]]] = [
    ("SELECT i, j, val FROM x WHERE i BETWEEN ? AND ?",
     [[0, 5], [5, 5], [0, 0], [4, 3], [-1, 0], [5, 6], [7, 9], [-(2**62), 2**62]]),
    ("SELECT i, SUM(val) AS s, MAX(val) AS m FROM x WHERE j <= ? GROUP BY i",
     [[6], [0], [-1], [7], [2**62], [-(2**62)]]),
    ("SELECT MIN(val) AS m, MAX(j) AS j, ARG_MAX(i, val) AS a FROM x WHERE j >= ?",
     [[0], [6], [7], [-3]]),
    ("SELECT SUM(x.val * w.val) AS s FROM x JOIN w USING (i, j) WHERE i = ?", [[0], [5], [6]]),
    ("SELECT i, j, 6 // (? - i) AS v FROM x", [[-1], [6], [3]]),
    ("SELECT i, CAST(val + ? AS TINYINT) AS v FROM x", [[100.0], [0.0], [110.0]]),
]  # fmt: skip


def session(sites: int) -> einsql.Connection:
    con = einsql.connect()
    for name, array, dims in (("x", X, "ij"), ("w", W, "ij"), ("y", Y, "jk")):
        con.register(name, array, dims=tuple(dims))
    con.execute(f"SET sites = {sites}")
    return con


def planned(con: einsql.Connection, sql: str, many: Sequence[Sequence[object]]) -> int:
    before = con.planner_calls
    for given in many:
        con.execute(sql, given).fetchall()
    return con.planner_calls - before


@pytest.mark.parametrize("sites", sample([3], [2, 3, 4]))
def test_a_statement_is_planned_as_often_as_at_one_site(sites: int) -> None:
    one, several = session(1), session(sites)
    for sql, many in (*ONCE, *WINDOWS, *SINGLE):
        assert planned(several, sql, many) == planned(one, sql, many) == 1, sql
        for given in many:
            assert alike(answer(several, sql, given), answer(one, sql, given)), (sql, given)


@pytest.mark.parametrize("strategy", ["eindecomp", "equal"])
def test_values_at_the_edges_give_what_one_site_gives(strategy: str) -> None:
    one, several = session(1), session(3)
    several.execute(f"SET strategy = '{strategy}'")
    for sql, many in EDGES:
        for given in many * 2:
            found, wanted = (answer(con, sql, list(given)) for con in (several, one))
            assert alike(found, wanted), (sql, given, found, wanted)
            assert found[0] == "rows" or found[2] == wanted[2]
    assert several.planner_calls == one.planner_calls


def test_windows_are_cut_by_every_label() -> None:
    con = session(3)
    sql = """WITH b AS (SELECT i, j, val FROM x WHERE i BETWEEN ?1 AND ?1 + 2)
      SELECT /*+ PARTITION({}=3) */ b.i, y.k, SUM(b.val * y.val * (b.i + 1)) AS s
      FROM b JOIN y USING (j) GROUP BY b.i, y.k"""
    for label in "ijk":
        before = con.planner_calls
        for lo in (0, 3, 1):
            found = con.execute(sql.format(label), [lo]).fetch_numpy()
            inside = X[lo : lo + 3] * np.arange(lo + 1, lo + 4)[:, None]
            np.testing.assert_allclose(found, inside @ Y)
        assert con.planner_calls - before == 1


@pytest.mark.parametrize("sites", sample([3], [2, 3, 4]))
def test_random_statements_give_what_literals_give_at_one_site(sites: int) -> None:
    found = parameter_campaign(sample(2, 12), 30 + sites, sites=sites)
    assert not found.differences, "\n\n".join(found.differences)
    assert found.shared


def test_changes_of_tensors_are_planned_once() -> None:
    con = session(3)
    con.execute("CREATE TENSOR c (i DIM(6), j DIM(7), val DOUBLE) DEFAULT 0")
    con.execute("CREATE TENSOR d (i DIM(6), j DIM(7), val DOUBLE) DEFAULT 0")
    before = con.planner_calls
    sql = """WITH m AS (SELECT j, val, val * ?2 AS twice FROM x WHERE i = ?1),
      kept AS (INSERT INTO c SELECT ?1 AS i, j, val FROM m)
      INSERT INTO d SELECT ?1 AS i, j, twice FROM m"""
    for row in (0, 5, 3):
        con.execute(sql, [row, row + 1.0])
    for row in (3, 0):
        con.execute("UPDATE c SET val = c.val - ?1 * w.val FROM w "
                    "WHERE w.i = c.i AND w.j = c.j AND w.i = ?2", [0.5, row])  # fmt: skip
    c, d = np.zeros_like(X), np.zeros_like(X)
    c[[0, 3, 5]], d[[0, 3, 5]] = X[[0, 3, 5]], X[[0, 3, 5]] * [[1], [4], [6]]
    c[[0, 3]] -= 0.5 * W[[0, 3]]
    assert con.planner_calls - before == 2
    np.testing.assert_allclose(con.execute("SELECT i, j, val FROM c").fetch_numpy(), c)
    np.testing.assert_allclose(con.execute("SELECT i, j, val FROM d").fetch_numpy(), d)
