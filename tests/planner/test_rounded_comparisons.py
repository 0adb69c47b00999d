"""Comparisons of functions such as EXP that two operations compute: no row is lost."""

from __future__ import annotations

import numpy as np
import pytest

import einsql

CHANCE = np.random.default_rng(1)
W = CHANCE.normal(size=(96, 80)).astype(np.float32)
X = CHANCE.normal(size=(80, 64)).astype(np.float32)


@pytest.fixture
def con() -> einsql.Connection:
    con = einsql.connect()
    con.register("w", W, dims=("i", "j"))
    con.register("x", X, dims=("j", "k"))
    return con


@pytest.mark.parametrize("term", ["EXP(w.val * x.val * 0.5)", "SIN(w.val * x.val)"])
def test_every_group_has_its_maximum(con: einsql.Connection, term: str) -> None:
    best = f"SELECT w.i, x.k, MAX({term}) AS val FROM w JOIN x USING (j) GROUP BY w.i, x.k"
    sql = (
        f"WITH m AS ({best}) SELECT w.i, x.k FROM w JOIN x USING (j) "
        f"JOIN m ON m.i = w.i AND m.k = x.k WHERE {term} = m.val"
    )
    con.execute("SET jit = 'wait'")
    con.execute(best).fetchall()  # the kernel of this part is there, and no other
    for jit in ("auto", "wait", "never"):
        con.execute(f"SET jit = '{jit}'")
        assert len(set(con.execute(sql).fetchall())) == 96 * 64


def test_a_small_operation_beside_a_large_one(con: einsql.Connection) -> None:
    sql = "SELECT COUNT(*) FROM w JOIN x USING (j) WHERE {0}(w.val) = (SELECT MAX({0}(val)) FROM w)"
    con.execute("SET jit = 'wait'")
    for function in ("EXP", "SIN", "TANH"):
        assert con.execute(sql.format(function)).fetchone() == (64,)
