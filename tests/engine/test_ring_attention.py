"""Ring attention in the sharded notation: blocks of keys and values pass from rank to rank."""

from __future__ import annotations

import json

import duckdb
import numpy as np

import einsql

RANKS, ROWS, WIDTH = 4, 3, 5
BLOCK = ROWS * WIDTH * 4
"""Bytes of one rank's keys, and of its values."""


def rotated(name: str) -> str:
    """The tensor whose block b is the next rank's block."""
    block = (
        f"SELECT a.b, o.u, o.d, o.val FROM range({RANKS}) AS a(b) "
        f"JOIN {name} o ON o.b = (a.b + 1) % {RANKS}"
    )
    return f"(SELECT b, u, d, val FROM EINSUM('b_r u d -> b_r u d', ({block}), sharded := true))"


STEP = f"""
WITH s AS (
    SELECT b, t, u, val FROM EINSUM('b_r t d, b_r u d -> b_r t u', q, k, sharded := true)),
  top AS (SELECT b, t, MAX(val) AS val FROM s GROUP BY b, t),
  new AS (SELECT b, t, GREATEST(m.val, top.val) AS val FROM m JOIN top USING (b, t)),
  scale AS (SELECT b, t, EXP(m.val - new.val) AS val FROM m JOIN new USING (b, t)),
  p AS (SELECT b, t, u, EXP(s.val - new.val) AS val FROM s JOIN new USING (b, t)),
  pz AS (SELECT b, t, SUM(val) AS val FROM p GROUP BY b, t),
  pn AS (SELECT b, t, d, val FROM EINSUM('b_r t u, b_r u d -> b_r t d', p, v, sharded := true)),
  rk AS {rotated("k")}, rv AS {rotated("v")},
  um AS (UPDATE m SET val = new.val FROM new WHERE new.b = m.b AND new.t = m.t),
  uz AS (UPDATE z SET val = z.val * scale.val + pz.val FROM scale, pz
    WHERE z.b = scale.b AND z.t = scale.t AND z.b = pz.b AND z.t = pz.t),
  un AS (UPDATE n SET val = n.val * scale.val + pn.val FROM scale, pn
    WHERE n.b = scale.b AND n.t = scale.t AND n.b = pn.b AND n.t = pn.t AND n.d = pn.d),
  uk AS (UPDATE k SET val = rk.val FROM rk WHERE rk.b = k.b AND rk.u = k.u AND rk.d = k.d)
UPDATE v SET val = rv.val FROM rv WHERE rv.b = v.b AND rv.u = v.u AND rv.d = v.d
"""
"""A round: every rank updates the maximum, the denominator and the numerator of its queries with
the block that it has, and passes the block on."""

ANSWER = "SELECT n.b, n.t, d, n.val / z.val AS val FROM n JOIN z USING (b, t)"

ORACLE = """
WITH s AS (SELECT q.b, q.t, k.b AS c, k.u, SUM(q.val * k.val) AS val
    FROM q JOIN k ON q.d = k.d GROUP BY ALL),
  e AS (SELECT *, EXP(val - MAX(val) OVER (PARTITION BY b, t)) AS w FROM s)
SELECT e.b, e.t, v.d, SUM(e.w * v.val) / SUM(e.w) AS val
FROM e JOIN v ON e.c = v.b AND e.u = v.u GROUP BY ALL ORDER BY ALL
"""
"""Attention over all keys at once, in DuckDB."""


def blocks() -> dict[str, np.ndarray]:
    """Queries, keys and values in blocks of rows, one block for each rank."""
    chance = np.random.default_rng(11)
    return {name: chance.standard_normal((RANKS, ROWS, WIDTH)).astype(np.float32) for name in "qkv"}


def prepare(con: einsql.Connection, arrays: dict[str, np.ndarray]) -> None:
    """Creates the blocks, and the state of each rank's queries."""
    for name, array in arrays.items():
        con.register(f"{name}0", array, dims=("b", "t" if name == "q" else "u", "d"))
        con.execute(f"CREATE TENSOR {name} PARTITION BY (b r) AS SELECT * FROM {name}0")
    keys = f"b DIM({RANKS}), t DIM({ROWS})"
    for name, key, start in (("m", "", "-1e30"), ("z", "", "0"), ("n", f", d DIM({WIDTH})", "0")):
        con.execute(
            f"CREATE TENSOR {name} ({keys}{key}, val FLOAT) PARTITION BY (b r) DEFAULT {start}"
        )


def expected(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The attention of DuckDB over element rows in float64."""
    with duckdb.connect() as duck:
        for name, array in arrays.items():
            row = "t" if name == "q" else "u"
            duck.execute(f"CREATE TABLE {name} (b INT, {row} INT, d INT, val DOUBLE)")
            rows = [(*index, float(x)) for index, x in np.ndenumerate(array)]
            duck.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?)", rows)
        found = duck.execute(ORACLE).fetchall()
    return np.array([row[-1] for row in found]).reshape(RANKS, ROWS, WIDTH)


def test_every_round_passes_one_block_of_keys_and_values() -> None:
    arrays = blocks()
    con = einsql.connect(config={"mesh": f"r={RANKS}", "jit": "never"})
    prepare(con, arrays)
    (text,) = con.execute(f"EXPLAIN (ANALYZE, FORMAT json) {STEP}").fetchone() or ("{}",)
    plan = json.loads(text)["plan"]
    assert [n["bytes_sent"] for n in plan["nodes"] if n["bytes_sent"]] == [RANKS * BLOCK] * 2
    assert [s["bytes_sent"] for s in plan["per_site"]] == [2 * BLOCK] * RANKS
    con.execute(f"FOR round IN range({RANKS}) DO {STEP}; END FOR")
    answer = con.execute(ANSWER).fetch_numpy()
    np.testing.assert_allclose(answer, expected(arrays), rtol=2e-5, atol=2e-6)
    for name in "kv":  # a whole turn brings each block back
        again = con.execute(f"SELECT * FROM {name}").fetch_numpy()
        np.testing.assert_array_equal(again, arrays[name])
