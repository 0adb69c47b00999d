"""Statements in turn that change the same tensors on ranks: each runs from the plan cache."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

import einsql
from tests.engine.ranks.conftest import Connected

X = np.random.default_rng(0).standard_normal((48, 64))
W = np.random.default_rng(1).standard_normal((64, 32))
STEP = """
WITH z AS (SELECT n, h, SUM(x.val * w.val) AS val FROM x JOIN w USING (d) GROUP BY n, h),
loss AS (SELECT SUM(val * val) AS val FROM z),
s AS (UPDATE w SET val = w.val - 0.001 * g.val FROM GRADIENT(loss, w) AS g
      WHERE g.d = w.d AND g.h = w.h)
SELECT val FROM loss
"""
RESET = "UPDATE w SET val = b.val FROM b WHERE b.d = w.d AND b.h = w.h"
SCALE = "UPDATE w SET val = w.val * 0.5"
CLEAR = "UPDATE w SET val = 0 WHERE d < 5"
VALIDATE = "SELECT SUM(x.val * w.val) AS val FROM x JOIN w USING (d)"
RECREATE = "CREATE OR REPLACE TENSOR w AS SELECT d, h, val FROM b"


@pytest.fixture
def con(connected: Connected) -> einsql.Connection:
    made = connected(2)
    for name, array, keys in (("x", X, "nd"), ("b", W, "dh")):
        made.register("source", array, dims=tuple(keys))
        made.execute(f"CREATE TENSOR {name} AS SELECT {keys[0]}, {keys[1]}, val FROM source")
    made.execute(RECREATE)
    return made


@pytest.mark.parametrize("strategy", ["eindecomp", "data:n", "data:h"])
@pytest.mark.parametrize(
    "turn",
    [
        (RESET, STEP),
        (STEP, VALIDATE, STEP, VALIDATE, RESET),
        (STEP, SCALE, VALIDATE),
        (STEP, CLEAR),
        (RECREATE, STEP),
    ],
    ids=["reset", "validate", "scale", "clear", "recreate"],
)
def test_statements_in_turn_are_planned_once(
    con: einsql.Connection, turn: tuple[str, ...], strategy: str
) -> None:
    con.execute(f"SET strategy = '{strategy}'")
    for _ in range(3):  # a first turn has other placements
        for text in turn:
            con.execute(text)
    expected = con.execute("SELECT d, h, val FROM w").fetch_numpy()
    planned = con.planner_calls
    for _ in range(3):
        for text in turn:
            con.execute(text)
        expected = after(turn, expected)
    assert con.planner_calls - planned == 3 * turn.count(RECREATE)  # CREATE is not cached
    np.testing.assert_allclose(con.execute("SELECT d, h, val FROM w").fetch_numpy(), expected)


def after(turn: tuple[str, ...], w: np.ndarray) -> np.ndarray:
    """The tensor after the statements of a turn, by NumPy."""
    for text in turn:
        match text:
            case _ if text is STEP:
                w = w - 0.001 * 2 * X.T @ (X @ w)
            case _ if text is SCALE:
                w = w * 0.5
            case _ if text is CLEAR:
                w = np.where(np.arange(len(w))[:, None] < 5, 0, w)
            case _ if text in (RESET, RECREATE):
                w = W
    return w
