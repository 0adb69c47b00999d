"""EinDecomp's worked numbers, asked for in SQL and read from EXPLAIN's JSON (EinDecomp §6-7)."""

from __future__ import annotations

import numpy as np
import pytest

import einsql
from tests.engine.test_sites import explained

PRODUCT = (
    "SELECT {hint} i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"  # 8 × 8
)


@pytest.fixture
def con() -> einsql.Connection:
    made = einsql.connect()
    for name, dims in (("a", ("i", "j")), ("b", ("j", "k"))):
        made.register(name, np.ones((8, 8), np.float32), dims=dims)
    return made


@pytest.mark.parametrize(
    ("cut", "join", "aggregate"),
    [("i=4, j=1, k=4", 512, 0), ("i=2, j=1, k=8", 640, 0),
     ("i=2, j=4, k=2", 256, 192), ("i=2, j=2, k=4", 384, 64)],
)  # fmt: skip
def test_products_of_sixteen_calls(
    con: einsql.Connection, cut: str, join: int, aggregate: int
) -> None:
    hint = f"/*+ PARTITION({cut}) */"
    report = explained(con, PRODUCT.format(hint=hint), "SITES 16, ")
    floats = {"join": join, "aggregate": aggregate, "repartition": 0}
    assert report["nodes"][0]["floats"] == floats
    assert report["total"]["floats_moved"] == join + aggregate


def test_a_result_brought_from_2_by_4_into_4_by_1_blocks(con: einsql.Connection) -> None:
    inner = PRODUCT.format(hint="/*+ PARTITION(i=2, j=1, k=4) */")
    sql = f"SELECT /*+ PARTITION(i=4, k=1) */ i, SUM(val * val) AS v FROM ({inner}) GROUP BY i"
    made, read, _ = explained(con, sql, "SITES 8, ")["nodes"]
    assert (made["partition"], read["partition"]) == ({"i": 2, "j": 1, "k": 4}, {"i": 4, "k": 1})
    assert read["floats"]["repartition"] == 320


def test_viable_vectors_are_counted(con: einsql.Connection) -> None:
    node = explained(con, PRODUCT.format(hint=""), "SITES 8, ")["nodes"][0]
    assert node["viable"] == 10
    extents = ", ".join(f"{x} DIM(1024)" for x in "pqr")
    con.execute(f"CREATE TENSOR u ({extents}, val FLOAT) DEFAULT 0")
    extents = ", ".join(f"{x} DIM(1024)" for x in "rstw")
    con.execute(f"CREATE TENSOR v ({extents}, val FLOAT) DEFAULT 0")
    sql = "SELECT p, q, s, t, w, SUM(u.val * v.val) AS val FROM u JOIN v USING (r) GROUP BY ALL"
    node = explained(con, sql, "SITES 1024, ")["nodes"][0]
    assert (len(node["labels"]), node["viable"]) == (6, 3003)
