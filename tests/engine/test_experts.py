"""Rows that are sent to the sites of the experts that they choose: answers, traffic and choice."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from tests.support.samples import spread

TOKENS, WIDTH, HIDDEN, EXPERTS, SLOTS = 37, 24, 20, 7, 2
KEYS = {"x": "ih", "r": "i", "s": "ik", "g": "ik", "w1": "ehf", "w2": "efo", "w3": "ehf", "b": "f"}

Arrays = dict[str, np.ndarray]


@cache
def routes() -> Arrays:
    """Experts of tokens: all of them, one for all tokens, an empty half, and some that are none."""
    chance = np.random.default_rng(4)
    return {
        "spread": chance.integers(0, EXPERTS, TOKENS),
        "one": np.full(TOKENS, 5),
        "empty": chance.integers(EXPERTS - 2, EXPERTS, TOKENS),
        "outside": chance.integers(-2, EXPERTS + 2, TOKENS),
        "none": np.full(TOKENS, -1),
    }


@cache
def arrays(route: str) -> Arrays:
    chance = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return chance.standard_normal(shape).astype(np.float32)

    return {
        "x": normal(TOKENS, WIDTH),
        "r": routes()[route],
        "s": chance.integers(0, EXPERTS, (TOKENS, SLOTS)).astype(np.int32),
        "g": normal(TOKENS, SLOTS),
        "w1": normal(EXPERTS, WIDTH, HIDDEN),
        "w2": normal(EXPERTS, HIDDEN, WIDTH),
        "w3": normal(EXPERTS, WIDTH, HIDDEN),
        "b": normal(HIDDEN),
    }


CHAIN = """
    WITH a AS (SELECT {hint} x.i, w.f, SUM(x.val * w.val) AS val
        FROM x JOIN r ON x.i = r.i JOIN w1 AS w ON w.e = r.val AND w.h = x.h GROUP BY x.i, w.f),
      c AS (SELECT a.i, a.f, CASE WHEN a.val > 0 THEN a.val ELSE 0 END + b.val AS val
        FROM a JOIN b ON a.f = b.f)
    SELECT {hint} c.i, w.o, SUM(c.val * w.val) AS val
    FROM c JOIN r ON c.i = r.i JOIN w2 AS w ON w.e = r.val AND w.f = c.f GROUP BY c.i, w.o"""
GATED = """
    WITH a AS (SELECT {hint} x.i, s.k, w.f, SUM(x.val * w.val) AS val
        FROM x JOIN s ON x.i = s.i JOIN w1 AS w ON w.e = s.val AND w.h = x.h
        GROUP BY x.i, s.k, w.f),
      c AS (SELECT {hint} x.i, s.k, w.f, SUM(x.val * w.val) AS val
        FROM x JOIN s ON x.i = s.i JOIN w3 AS w ON w.e = s.val AND w.h = x.h
        GROUP BY x.i, s.k, w.f),
      d AS (SELECT a.i, a.k, a.f, a.val / (1 + EXP(-a.val)) * c.val AS val
        FROM a JOIN c ON a.i = c.i AND a.k = c.k AND a.f = c.f),
      y AS (SELECT {hint} d.i, d.k, w.o, SUM(d.val * w.val) AS val
        FROM d JOIN s ON d.i = s.i AND d.k = s.k JOIN w2 AS w ON w.e = s.val AND w.f = d.f
        GROUP BY d.i, d.k, w.o)
    SELECT y.i, y.o, SUM(y.val * g.val) AS val FROM y JOIN g ON y.i = g.i AND y.k = g.k
    GROUP BY y.i, y.o"""
SLOTS_AT_ONCE = """
    SELECT {hint} x.i, w.f, SUM(x.val * w.val * g.val) AS val
    FROM x JOIN s ON x.i = s.i JOIN g ON g.i = s.i AND g.k = s.k
    JOIN w1 AS w ON w.e = s.val AND w.h = x.h GROUP BY x.i, w.f"""
NULLS = """
    WITH q AS (SELECT i, CASE WHEN val = 3 THEN NULL ELSE val END AS val FROM r)
    SELECT {hint} w.f, x.i, MAX(x.val + w.val) AS val
    FROM x JOIN q ON x.i = q.i JOIN w1 AS w ON w.e = q.val AND w.h = x.h
    WHERE w.e < 6 AND x.h > 1 GROUP BY x.i, w.f"""
LOOKUP = """
    SELECT {hint} r.i, w.h, w.f, w.val FROM r JOIN w1 AS w ON w.e = (r.val + 5) % 7"""
GRADIENT = """
    WITH l AS (SELECT {hint} x.i, w.f, SUM(x.val * w.val) AS val
        FROM x JOIN r ON x.i = r.i JOIN w1 AS w ON w.e = r.val AND w.h = x.h GROUP BY x.i, w.f),
      t AS (SELECT SUM(val * val * val) AS val FROM l)
    SELECT * FROM GRADIENT(t, {of})"""
QUERIES = {
    "chain": CHAIN,
    "gated": GATED,
    "slots": SLOTS_AT_ONCE,
    "nulls": NULLS,
    "lookup": LOOKUP,
}


def connected(given: Arrays, sites: int, **config: Any) -> einsql.Connection:
    con = einsql.connect(config={"sites": sites, "jit": "never", **config})
    for name, array in given.items():
        con.register(name, array, dims=tuple(KEYS[name]))
    return con


def hinted(sql: str, parts: int, **names: str) -> str:
    hint = f"/*+ PARTITION(w.e={min(parts, 6)}) */" if parts > 1 else ""
    return sql.format(hint=hint, **names)


def by_duckdb(given: Arrays, sql: str) -> np.ndarray:
    with duckdb.connect() as duck:
        for name, array in given.items():
            axes = np.indices(array.shape).reshape(array.ndim, -1)
            columns = dict(zip(KEYS[name], axes, strict=True))
            values = array.reshape(-1)
            values = values.astype(np.float64) if values.dtype.kind == "f" else values
            duck.register("rows", pa.table({**columns, "val": values}))
            duck.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
        return np.array(duck.execute(f"{sql} ORDER BY ALL").fetchall())


def rows_of(con: einsql.Connection, sql: str) -> np.ndarray:
    return np.array(sorted(con.execute(sql).fetchall()))


def report(con: einsql.Connection, sql: str, options: str = "FORMAT json") -> Any:
    (text,) = con.execute(f"EXPLAIN ({options}) {sql}").fetchone() or ("{}",)
    return json.loads(text)


def blocks_of(plan: Any) -> list[int]:
    return [n["partition"]["e"] for n in plan["nodes"] if "e" in n["partition"]]


def assert_same(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("query", "route"),
    spread(
        [*((q, "spread") for q in QUERIES), *(("chain", r) for r in routes() if r != "spread")], 5
    ),
)
def test_sites_answer_as_one_and_as_duckdb(query: str, route: str) -> None:
    """Experts without rows and with all rows, values that are no expert, more sites than experts.

    Some sites have one expert more than others.
    """
    given = arrays(route)
    wanted = by_duckdb(given, hinted(QUERIES[query], 1))
    con = connected(given, 1)
    for sites in (1, 2, 3, 4, 5) if query == "chain" and route == "spread" else (3, 4, 9):
        con.execute(f"SET sites = {sites}")
        assert_same(rows_of(con, hinted(QUERIES[query], sites)), wanted)


def test_few_rows_reach_the_experts_of_all_sites() -> None:
    given = {n: a[:2] if KEYS[n][0] == "i" else a for n, a in arrays("outside").items()}
    plan = report(connected(given, 5), hinted(CHAIN, 5))
    assert blocks_of(plan) == [5, 5]
    assert [n["collective"] for n in plan["nodes"]].count("all-to-all") == 1
    assert_same(rows_of(connected(given, 5), hinted(CHAIN, 5)), by_duckdb(given, hinted(CHAIN, 1)))


@pytest.mark.parametrize(
    ("sites", "route"), [(2, "spread"), (3, "one"), (4, "empty"), (5, "spread"), (5, "one")]
)
def test_bytes_are_those_of_rows_that_leave_their_site(sites: int, route: str) -> None:
    """Between both matrices rows stay at their expert, so each direction sends a row once."""
    given = arrays(route)
    con = connected(given, sites)
    plan = report(con, hinted(CHAIN, sites), "ANALYZE, FORMAT json")
    assert blocks_of(plan) == [sites, sites]
    (group,) = {tuple(n["group"]["nodes"]) for n in plan["nodes"] if "group" in n}
    assert len(group) == 3
    homes = np.repeat(np.arange(sites), [len(p) for p in np.array_split(np.arange(TOKENS), sites)])
    sizes = [len(p) for p in np.array_split(np.arange(EXPERTS), sites)]
    leaving = int((np.repeat(np.arange(sites), sizes)[given["r"]] != homes).sum())
    sent = sum(s["bytes_sent"] for s in plan["per_site"])
    assert 2 * leaving * WIDTH * 4 < sent <= 1.2 * 2 * leaving * WIDTH * 4 + 8 * sites**3
    assert max(s["memory_measured"] for s in plan["per_site"]) > 0


def test_the_bytes_of_uniform_rows_are_planned() -> None:
    given = {**arrays("spread"), "r": np.arange(TOKENS) % EXPERTS}
    plan = report(connected(given, 4), hinted(CHAIN, 4), "ANALYZE, FORMAT json")
    sent = sum(s["bytes_sent"] for s in plan["per_site"])
    assert plan["total"]["bytes_sent"] == pytest.approx(sent, rel=0.1)
    (last,) = [n for n in plan["nodes"] if n["collective"] == "all-to-all"]
    assert last["bytes_sent"] == plan["total"]["bytes_sent"]
    text = connected(given, 4).execute("EXPLAIN " + hinted(CHAIN, 4)).fetchall()
    lines = [line for (row,) in text for line in row.splitlines()]
    assert any("about" in line and "sent between sites" in line for line in lines)
    assert any("bytes of rows are estimated" in line for line in lines)


@pytest.mark.parametrize("cost", ["seconds", "bytes", "floats"])
def test_a_search_sends_rows_to_declared_experts(cost: str) -> None:
    """Without a hint weights that are cut by expert stay, if moving them costs more than rows."""
    given = arrays("spread")
    con = connected(given, 4, cost=cost, network="100Mbps", latency="1us")
    for name in ("w1", "w2"):
        con.execute(f"CREATE TENSOR d{name} PARTITION BY (e 4) AS SELECT * FROM {name}")
    sql = hinted(CHAIN.replace("w1 AS", "dw1 AS").replace("w2 AS", "dw2 AS"), 1)
    assert blocks_of(report(con, sql)) == [4, 4]
    assert_same(rows_of(con, sql), by_duckdb(given, hinted(CHAIN, 1)))
    con.execute("SET disabled_rules = 'route-rows'")
    assert blocks_of(report(con, sql)) == []


def test_memory_of_a_site_makes_blocks() -> None:
    given = arrays("spread")
    con = connected(given, 4, site_memory="7000B")
    plan = report(con, hinted(CHAIN, 1))
    assert blocks_of(plan) == [4, 4]
    assert all(n["memory"] <= 7000 for n in plan["nodes"] if "group" not in n)


@pytest.mark.parametrize("of", ["w1", "x"])
def test_gradients_are_those_of_one_site(of: str) -> None:
    given = arrays("spread")
    wanted = rows_of(connected(given, 1), hinted(GRADIENT, 1, of=of))
    assert_same(rows_of(connected(given, 3), hinted(GRADIENT, 3, of=of)), wanted)


def test_a_plan_file_keeps_the_blocks(tmp_path: Any) -> None:
    con = connected(arrays("spread"), 4)
    sql = hinted(CHAIN, 4)
    con.execute(f"EXPORT PLAN '{tmp_path / 'plan.json'}' FOR {sql}")
    con.execute(f"SET plan = '{tmp_path / 'plan.json'}'")
    plan = report(con, sql)
    assert plan["plan_file"] is not None
    assert blocks_of(plan) == [4, 4]


def test_simulations_and_derivations_know_the_rows() -> None:
    con = connected(arrays("spread"), 4)
    plan = report(con, hinted(CHAIN, 4), "SIMULATE, VERBOSE, FORMAT json")
    sent = sum(s["bytes_sent"] for s in plan["simulation"]["per_site"])
    assert sent == plan["total"]["bytes_sent"]


def test_a_hint_for_a_tensor_of_which_no_value_is_read_has_no_effect() -> None:
    given = arrays("outside")
    sql = """SELECT {hint} x.i, w.f, COUNT(*) AS val
        FROM x JOIN r ON x.i = r.i JOIN w1 AS w ON w.e = {key} AND w.h = x.h GROUP BY x.i, w.f"""
    for key in ("r.val", "(r.val + 5) % 7"):
        wanted = by_duckdb(given, hinted(sql, 1, key=key))
        assert_same(rows_of(connected(given, 3), hinted(sql, 3, key=key)), wanted)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (CHAIN.replace("x.val * w.val", "x.val * w.val * x.i"), "cannot send its rows"),
        (CHAIN.replace("{hint}", "/*+ PARTITION(w.e=2, w.f=2) */"), 'cuts "f" beside "e"'),
        (CHAIN.replace("{hint}", "/*+ PARTITION(w.e=8) */"), "too few values for 8 parts"),
    ],
)
def test_hints_that_cannot_be_met_are_refused(sql: str, reason: str) -> None:
    con = connected(arrays("spread"), 8)
    with pytest.raises(einsql.Error, match=reason):
        con.execute(hinted(sql, 3))
