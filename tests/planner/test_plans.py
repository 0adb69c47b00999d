"""Golden plans: the graph of typical statements, as bound and optimised.

Refresh them with EINSQL_GOLDEN=1 pytest tests/planner/test_plans.py, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import einsql

GOLDEN = Path(__file__).parent / "plans"
STATEMENTS = {
    "matmul": "SELECT i, k, SUM(x.val * y.val) AS val FROM x JOIN y USING (j) GROUP BY i, k",
    "chain": """
        WITH ab AS (SELECT i, k, SUM(x.val * y.val) AS val FROM x JOIN y USING (j) GROUP BY i, k),
        cd AS (SELECT i, k, SUM(x.val * y.val) AS val FROM x, y WHERE x.j = y.j GROUP BY i, k)
        SELECT i, k, ab.val + cd.val AS val FROM ab JOIN cd USING (i, k)""",
    "diagonal": "SELECT SUM(val) AS trace FROM s WHERE i = j",
    "filter": "SELECT i, SUM(val) AS val FROM x WHERE val > 0 AND j >= 1 GROUP BY i",
    "average": "SELECT i, AVG(val) AS mean, COUNT(*) AS n FROM x GROUP BY i",
    "softmax": """
        WITH e AS (SELECT i, j, EXP(val - MAX(val) OVER (PARTITION BY i)) AS val FROM x)
        SELECT i, j, val / SUM(val) OVER (PARTITION BY i) AS val FROM e""",
    "embedding": "SELECT t.p, e.d, e.val FROM tokens t JOIN e ON e.w = t.val",
    "embedding_out_of_range": "SELECT t.p, e.d, e.val FROM outside t JOIN e ON e.w = t.val",
    "embedding_product": """
        WITH x AS (SELECT t.p, e.d, e.val FROM tokens t JOIN e ON e.w = t.val)
        SELECT p, c, SUM(x.val * m.val) AS val FROM x JOIN m USING (d) GROUP BY p, c""",
    "segments": "SELECT j // 2 AS p, SUM(val) AS val FROM x GROUP BY j // 2",
    "convolution": """
        SELECT y.j, SUM(s.val * y.val) AS val FROM s, y WHERE s.j = y.j + y.k GROUP BY y.j""",
    "three_way": """
        SELECT x.i, s.j, SUM(x.val * y.val * s.val) AS val FROM x, y, s
        WHERE x.j = y.j AND y.k = s.i GROUP BY x.i, s.j""",
    "shift": "SELECT i - 1 AS i, val FROM s WHERE j = 0",
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_plan(name: str) -> None:
    con = einsql.connect(config={"jit": "never"})
    con.register("x", np.ones((4, 6), np.float32), ("i", "j"))
    con.register("y", np.ones((6, 5), np.float32), ("j", "k"))
    con.register("s", np.ones((8, 8), np.float32), ("i", "j"))
    con.register("e", np.ones((9, 3), np.float32), ("w", "d"))
    con.register("tokens", np.array([1, 8, 3], np.int32), ("p",))
    con.register("outside", np.array([1, 9, 3], np.int32), ("p",))
    con.register("m", np.ones((3, 7), np.float32), ("d", "c"))
    text = f"{con.explain(STATEMENTS[name])}\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("EINSQL_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
