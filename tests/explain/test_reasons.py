"""EXPLAIN says why a step is not dense, not fused or not on BLAS, and only then."""

from __future__ import annotations

import json

import numpy as np
import pytest

import einsql

SQUARE = (
    "SELECT a.i, b.j, SUM(a.val * b.val) AS val FROM {0} a JOIN {0} b ON b.i = a.j {1} "
    "GROUP BY a.i, b.j"
)
CHAIN = """
    WITH h AS (SELECT i, o, SUM(x.val * w.val) AS val FROM x JOIN w USING (j) GROUP BY i, o),
         g AS (SELECT i, o, EXP(val) AS val FROM h)
    SELECT i, p, SUM(g.val * v.val) AS val FROM g JOIN v USING (o) GROUP BY i, p"""
LOOKUP = "SELECT t.t, e.d, e.val FROM {0} t JOIN emb e ON e.v = t.val"
REASONS = {
    SQUARE.format("x", ""): {},
    SQUARE.format("k", ""): {"r0": ["{kernel}: the sum is BIGINT, and BLAS adds floats"]},
    SQUARE.format("x", "WHERE a.val > 0"): {"r0": ["masked: WHERE reads values of x"]},
    SQUARE.format("x", "WHERE a.i < b.j"): {
        "r1": ["not fused: 512 multiplications for each value of r0 (limit 256)"]
    },
    LOOKUP.format("inside"): {},
    LOOKUP.format("outside"): {"r0": ["masked: outside.val may exceed the bounds of emb.v"]},
    f"SELECT s.t, SUM(s.val) AS val FROM ({LOOKUP.format('outside')}) s GROUP BY s.t": {
        "r0": ["masked: outside.val may exceed the bounds of emb.v"]
    },
    "SELECT EXP(val) AS val FROM part": {"r0": ["masked: part lacks keys"]},
    CHAIN: {
        "r1": ["not fused: 1,024 multiplications for each value of r0 (limit 256)"],
        "r2": ["not fused: 512 multiplications for each value of r1 (limit 256)"],
    },
    "WITH e AS (SELECT i, j, EXP(val) AS val FROM x), f AS (SELECT j AS i, i AS j, val FROM e) "
    "SELECT e.i, e.j, e.val + f.val AS val FROM e JOIN f USING (i, j)": {
        "r1": ["not fused: a result is read by other keys than it is written"]
    },
    "WITH e AS (SELECT i, j, EXP(val) AS val FROM x) "
    "SELECT i, SUM(val * val) AS val FROM e GROUP BY i": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def con() -> einsql.Connection:
    con = einsql.connect()
    for name, shape, keys in (
        ("x", (512, 1024), "ij"), ("w", (1024, 512), "jo"), ("v", (512, 512), "op"),
        ("emb", (9, 4), "vd"),
    ):  # fmt: skip
        con.register(name, np.ones(shape, np.float32), dims=tuple(keys))
    con.register("k", np.ones((512, 512), np.int32), dims=("i", "j"))
    con.register("inside", np.array([1, 8, 3], np.int32), dims=("t",))
    con.register("outside", np.array([1, 9, 3], np.int32), dims=("t",))
    con.execute("CREATE TENSOR part (i DIM(9), val FLOAT); INSERT INTO part VALUES (2, 1)")
    return con


@pytest.mark.parametrize("sql", REASONS)
def test_reasons(con: einsql.Connection, sql: str) -> None:
    plan = con.explain(sql)
    nodes = json.loads(plan.to_json())["nodes"]
    expected = {
        n["id"]: [r.format(kernel=n["kernel"]) for r in REASONS[sql][n["id"]]]
        for n in nodes
        if n["id"] in REASONS[sql]
    }
    assert {n["id"]: n["reasons"] for n in nodes if n["reasons"]} == expected
    shown = [line.strip() for line in str(plan).split("-- steps")[1].splitlines()]
    listed = [reason for reasons in expected.values() for reason in reasons]
    assert [line for line in shown if ": " in line] == listed
    page = plan.html()
    assert all(reason in page for reason in listed)


def test_masks_on_sites(con: einsql.Connection) -> None:
    text = str(con.explain(SQUARE.format("x", "WHERE a.val > 0"), sites=4))
    assert "   masked: WHERE reads values of x" in text.splitlines()
    assert "masked" not in str(con.explain(CHAIN, sites=4))
