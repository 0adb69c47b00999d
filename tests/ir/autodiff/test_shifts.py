"""Maxima that cancel, as in a softmax written by hand: found where they do, and only there."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.ir.autodiff.differences import check, connected, gradient
from tests.support.samples import spread

CHANCE = np.random.default_rng(5)
ARRAYS = {
    "x": ("ij", CHANCE.normal(size=(4, 5))),
    "y": ("ij", CHANCE.normal(size=(4, 5))),
    "g": ("i", np.array([2, 0, 3, 1])),
}
TOP = "m AS (SELECT i, MAX(val) AS val FROM x GROUP BY i)"
EACH = "e AS (SELECT i, j, EXP(x.val - m.val) AS val FROM x JOIN m USING (i))"
TOTAL = "s AS (SELECT i, SUM(val) AS val FROM e GROUP BY i)"
BY_HAND = f"WITH {TOP}, {EACH}, {TOTAL}, "
SQUARES = "loss AS (SELECT SUM(p.val * p.val * y.val) AS val FROM p JOIN y USING (i, j))"
CANCEL = {
    "softmax": "p AS (SELECT i, j, e.val / s.val AS val FROM e JOIN s USING (i)), " + SQUARES,
    "log softmax": "p AS (SELECT i, j, x.val - m.val - LN(s.val) AS val FROM x JOIN m USING (i) "
                   "JOIN s USING (i)), " + SQUARES,
    "logsumexp": "l AS (SELECT i, m.val + LN(s.val) AS val FROM m JOIN s USING (i)), "
                 "loss AS (SELECT SUM(val * val) AS val FROM l)",
    "of a third": "p AS (SELECT i, j, SQRT(e.val / s.val) AS val FROM e JOIN s USING (i) "
                  "WHERE j <> 2), " + SQUARES,
    "ratio": "p AS (SELECT a.i, a.j, e.val / a.val AS val FROM e a JOIN e USING (i) "
             "WHERE e.j = 1), " + SQUARES,
    "attended": "o AS (SELECT i, SUM(e.val * y.val) AS val FROM e JOIN y USING (i, j) GROUP BY i), "
                "loss AS (SELECT SUM(o.val / s.val) AS val FROM o JOIN s USING (i))",
    "causal": "k AS (SELECT i, j, CASE WHEN j <= i THEN val ELSE 0 END AS val FROM e), "
              "t AS (SELECT i, SUM(val) AS val FROM k GROUP BY i), "
              "p AS (SELECT i, j, k.val / t.val AS val FROM k JOIN t USING (i)), " + SQUARES,
    "largest share": "t AS (SELECT i, MAX(val) AS val FROM e GROUP BY i), loss AS "
                     "(SELECT SUM(t.val / s.val) AS val FROM t JOIN s USING (i))",
}  # fmt: skip
REMAIN = {
    "one more": "p AS (SELECT i, j, e.val / (1 + s.val) AS val FROM e JOIN s USING (i)), "
                + SQUARES,
    "its log": "loss AS (SELECT SUM(LN(val) * val) AS val FROM s)",
    "the maximum": "p AS (SELECT i, j, e.val / s.val + m.val AS val FROM e JOIN s USING (i) "
                   "JOIN m USING (i)), " + SQUARES,
    "another's total": "p AS (SELECT e.i, e.j, e.val / s.val AS val FROM e JOIN g ON g.i = e.i "
                       "JOIN s ON s.i = g.val), " + SQUARES,
    "another's maximum": "loss AS (SELECT SUM(SIN(a.val - b.val)) AS val FROM m a JOIN m b "
                         "ON b.i = a.i + 1)",
    "squares": "p AS (SELECT i, j, e.val * e.val / s.val AS val FROM e JOIN s USING (i)), "
               + SQUARES,
    "across": "t AS (SELECT j, SUM(val) AS val FROM e GROUP BY j), "
              "p AS (SELECT i, j, e.val / t.val AS val FROM e JOIN t USING (j)), " + SQUARES,
    "a stopped total": "p AS (SELECT i, j, e.val / STOP_GRADIENT(s.val) AS val "
                       "FROM e JOIN s USING (i)), " + SQUARES,
}  # fmt: skip


def _reads(query: str) -> int:
    """How many nodes of a gradient's plan compare values with their maximum."""
    con = connected(ARRAYS)
    plan = str(con.explain(f"{query} SELECT * FROM GRADIENT(loss, x)"))
    return len(re.findall(r"max_\w+ = |= \S*max_|m\.val = |= m\.val", plan))


@pytest.mark.parametrize("name", spread(CANCEL, 4))
def test_a_shift_that_cancels_is_a_constant(name: str) -> None:
    query = BY_HAND + CANCEL[name]
    arrays = {n: (d, a.copy()) for n, (d, a) in ARRAYS.items()}
    got = check(arrays, query, "x")
    stopped = query.replace("- m.val)", "- STOP_GRADIENT(m.val))")
    stopped = stopped.replace("- m.val -", "- STOP_GRADIENT(m.val) -")
    stopped = stopped.replace("SELECT i, m.val +", "SELECT i, STOP_GRADIENT(m.val) +")
    np.testing.assert_allclose(got, gradient(connected(arrays), stopped, "x"), rtol=1e-13)
    assert _reads(query) == _reads(stopped)
    again = query.replace("loss AS", "once AS")
    again += ", loss AS (SELECT SUM(SIN(val)) AS val FROM GRADIENT(once, x))"
    check(arrays, again, "x", 1e-5)


@pytest.mark.parametrize("name", REMAIN)
def test_a_shift_that_remains_has_its_derivative(name: str) -> None:
    arrays = {n: (d, a.copy()) for n, (d, a) in ARRAYS.items()}
    query = BY_HAND + REMAIN[name]
    if name == "a stopped total":
        assert _reads(query) > 0
    else:
        check(arrays, query, "x")
