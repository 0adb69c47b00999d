"""What a mask or a filter drops contributes nothing to a gradient, whatever it is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ir.autodiff.differences import connected, gradient
from tests.support.samples import sample, spread

ROWS = {
    "logsumexp": "SELECT i, LOGSUMEXP(val) AS val FROM x GROUP BY i",
    "its spelling": "SELECT i, LN(SUM(EXP(val))) AS val FROM x GROUP BY i",
    "average": "SELECT i, AVG(val * val) AS val FROM x GROUP BY i",
    "variance": "SELECT i, VAR_POP(val) AS val FROM x GROUP BY i",
    "deviation": "SELECT i, STDDEV_POP(val) AS val FROM x GROUP BY i",
    "product": "SELECT i, PRODUCT(val) AS val FROM x GROUP BY i",
    "extremes": "SELECT i, MAX(val) * MIN(val) AS val FROM x GROUP BY i",
    "norm": "SELECT i, SQRT(SUM(val * val)) AS val FROM x GROUP BY i",
    "filtered": "SELECT i, COALESCE(SUM(EXP(val)) FILTER (WHERE j > 0), 0) AS val FROM x "
                "GROUP BY i",
    "maps": "SELECT i, SUM(TANH(val) * EXP(val) / val + SIGMOID(val) * POW(val, 3)) AS val "
            "FROM x GROUP BY i",
    "softmax": "SELECT i, SUM(val * val * (j + 1)) AS val FROM softmax(x, j) GROUP BY i",
    "softmax by hand": "SELECT i, SUM(val * val) AS val FROM (SELECT i, j, e / SUM(e) OVER "
                       "(PARTITION BY i) AS val FROM (SELECT i, j, EXP(val - MAX(val) OVER "
                       "(PARTITION BY i)) AS e FROM x)) GROUP BY i",
    "layer norm": "SELECT i, SUM(val * val * val) AS val FROM (SELECT i, j, (val - AVG(val) OVER "
                  "(PARTITION BY i)) / SQRT(VAR_POP(val) OVER (PARTITION BY i) + 0.1) AS val "
                  "FROM x) GROUP BY i",
    "log softmax": "SELECT x.i, SUM(x.val - z.val) AS val FROM x JOIN (SELECT i, LOGSUMEXP(val) "
                   "AS val FROM x GROUP BY i) z USING (i) WHERE x.j = 1 GROUP BY x.i",
}  # fmt: skip
"""A value for each row of x."""
DROPS = {
    "key": "SELECT SUM(val * val) AS val FROM r WHERE i <> 1",
    "mask": "SELECT SUM(r.val * r.val) AS val FROM r JOIN m USING (i) WHERE m.val > 0",
    "join": "SELECT SUM(r.val * r.val) AS val FROM r JOIN (SELECT i, val FROM m WHERE val > 0) m "
            "USING (i)",
    "case": "SELECT SUM(CASE WHEN m.val > 0 THEN r.val * r.val ELSE 0 END) AS val "
            "FROM r JOIN m USING (i)",
    "filter": "SELECT SUM(r.val * r.val) FILTER (WHERE m.val > 0) AS val FROM r JOIN m USING (i)",
    "two steps": "SELECT SUM(EXP(val)) AS val FROM (SELECT i, SIN(val) / (1 + val * val) AS val "
                 "FROM r) WHERE i <> 1",
}  # fmt: skip
DROPPED = {
    "masked": [-np.inf] * 3,
    "infinite": [np.inf] * 3,
    "mixed": [np.inf, -np.inf, 1.0],
    "missing": [np.nan] * 3,
    "zeros": [0.0] * 3,
    "huge": [1e300, -1e300, 1e200],
    "low": [-1e4, -2e4, -3e4],
}

SECOND = [("mask", True), ("two steps", True)]
EACH = [(r, *d) for r in ROWS for d in [*((d, False) for d in DROPS), *SECOND]]
SOME = [
    *((r, list(DROPS)[n % len(DROPS)], False) for n, r in enumerate(ROWS)),
    *((r, "mask", True) for r in ("logsumexp", "extremes", "maps")),
    ("softmax", "two steps", True),
]
"""Each value of a row with one of what is dropped, and each of what is dropped with several."""


def losses(rows: str, drop: str, second: bool) -> str:
    query = f"WITH r AS ({ROWS[rows]}), loss AS ({DROPS[drop]})"
    if not second:
        return query
    first = query.replace("loss AS", "once AS")
    return f"{first}, loss AS (SELECT SUM(SIN(val) * (i + j)) AS val FROM GRADIENT(once, x))"


def arrays(row: list[float]) -> dict[str, tuple[str, np.ndarray]]:
    x = np.array([[0.3, -1.1, 0.8], row, [1.3, 0.4, -0.2], [2.0, -0.7, 0.1]])
    return {"x": ("ij", x), "m": ("i", np.array([1.0, 0.0, 2.0, 1.0]))}


@pytest.mark.parametrize(("rows", "drop", "second"), spread(sample(SOME, EACH), 6))
def test_what_is_dropped_counts_for_nothing(rows: str, drop: str, second: bool) -> None:
    query = losses(rows, drop, second)
    wanted = gradient(connected(arrays([0.5, 1.5, -0.4])), query, "x")
    assert np.isfinite(wanted).all()
    assert not wanted[1].any()
    con = connected(arrays([0.0, 0.0, 0.0]))
    for name, row in DROPPED.items():
        con.register("x", arrays(row)["x"][1], dims=("i", "j"))
        got = gradient(con, query, "x")
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-15, err_msg=name)


def test_entries_at_minus_infinity_get_nothing() -> None:
    x = np.array([[1.0, -np.inf, 2.0], [-np.inf, -np.inf, 0.5]])
    for rows in ("logsumexp", "its spelling", "softmax", "softmax by hand"):
        query = f"WITH r AS ({ROWS[rows]}), loss AS (SELECT SUM(val * val) AS val FROM r)"
        got = gradient(connected({"x": ("ij", x)}), query, "x")
        assert np.isfinite(got).all()
        assert not got[np.isinf(x)].any()
