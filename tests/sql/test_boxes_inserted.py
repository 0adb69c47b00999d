"""INSERT … SELECT of a box: what the statement says of its place is not looked for in the rows."""

from __future__ import annotations

import numpy as np
import pytest

import einsql
from einsql.session.statements import insert

STORE = """
WITH m AS (SELECT x.g, MAX(x.val) AS key, MAX(x.val + 1) AS val FROM x GROUP BY x.g),
kept AS (INSERT INTO a SELECT ?1 AS layer, g, ?2 AS t, key FROM m)
INSERT INTO b SELECT ?1 AS layer, g, ?2 AS t, val FROM m"""
PART = """
INSERT INTO a SELECT ?1 AS layer, x.g, ?2 AS t, MAX(x.val) AS key
FROM x WHERE x.val > ?3 GROUP BY x.g"""
X = np.arange(6.0, dtype=np.float32).reshape(2, 3)


def connected() -> einsql.Connection:
    con = einsql.connect()
    con.register("x", X, dims=("n", "g"))
    for name in "ab":
        con.execute(
            f"CREATE TENSOR {name} (layer DIM(2), g DIM(3), t DIM(60), val FLOAT) DEFAULT 0"
        )
    return con


def test_numbers_of_a_group_are_known_without_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    con = connected()
    con.execute(STORE, [0, 0])
    looked: list[object] = []
    monkeypatch.setattr(insert, "_only", lambda *given: looked.append(given))
    for t in range(1, 51):
        con.execute(STORE, [t % 2, t])
    assert not looked
    for name, row in (("a", X[1]), ("b", X[1] + 1)):
        found = con.execute(f"SELECT * FROM {name}").fetch_numpy()
        wanted = np.zeros((2, 3, 60), np.float32)
        for t in range(51):
            wanted[t % 2, :, t] = row
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("least", [-1.0, 3.5, 9.0])
def test_rows_that_are_absent_are_not_written(least: float) -> None:
    con = connected()
    for t in range(3):
        con.execute(PART, [1, t, least])
    wanted = np.zeros((2, 3, 60), np.float32)
    wanted[1, :, :3] = np.where(X[1] > least, X[1], 0)[:, None]
    assert np.array_equal(con.execute("SELECT * FROM a").fetch_numpy(), wanted)


def test_a_number_out_of_bounds_is_refused_for_rows_alone() -> None:
    con = connected()
    con.execute(PART, [1, 0, -1.0])
    with pytest.raises(einsql.IntegrityError, match="out of bounds"):
        con.execute(PART, [1, 60, -1.0])
    con.execute(PART, [1, 60, 9.0])  # there is no row
