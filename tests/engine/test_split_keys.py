"""Attention cut along its keys: answers, traffic and memory of sites, and the choice of parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from tests.support.samples import sample, spread

Shape = tuple[int, int, int, int]
"""Heads, queries, keys, width."""

SMALL: Shape = (2, 9, 23, 3)
FUSED: Shape = (1, 128, 2049, 16)
"""Large enough to run as a group, with a last part that is shorter than the others."""
MASKS = {
    "none": "",
    "causal": "WHERE k.t <= q.s",
    "causal, rows without keys": "WHERE k.t <= q.s - 2",
    "window": "WHERE k.t >= q.s AND k.t < q.s + 5",
}
KEYS = {"q": "s", "k": "t", "v": "t"}


def arrays(shape: Shape) -> dict[str, np.ndarray]:
    heads, queries, keys, width = shape
    chance = np.random.default_rng(5)
    rows = {"q": queries, "k": keys, "v": keys}
    return {n: chance.standard_normal((heads, rows[n], width)).astype(np.float32) for n in KEYS}


def connected(given: dict[str, np.ndarray], sites: int, **config: Any) -> einsql.Connection:
    con = einsql.connect(config={"sites": sites, "cost": "floats", **config})
    for name, array in given.items():
        con.register(name, array, dims=("h", KEYS[name], "d"))
    return con


def attention(mask: str, parts: int | None, last: str = "") -> str:
    hint = "" if parts is None else f"/*+ PARTITION(e.t={parts}) */ "
    return f"""
        WITH x AS (SELECT q.h, q.s, k.t, SUM(q.val * k.val) / 4 AS val
            FROM q JOIN k ON q.h = k.h AND q.d = k.d {mask} GROUP BY q.h, q.s, k.t),
          m AS (SELECT h, s, MAX(val) AS val FROM x GROUP BY h, s),
          e AS (SELECT x.h, x.s, x.t, EXP(x.val - m.val) AS val
            FROM x JOIN m ON x.h = m.h AND x.s = m.s),
          z AS (SELECT h, s, SUM(val) AS val FROM e GROUP BY h, s),
          o AS (SELECT {hint}e.h, e.s, v.d, SUM(e.val / z.val * v.val) AS val
            FROM e JOIN z ON e.h = z.h AND e.s = z.s JOIN v ON v.h = e.h AND v.t = e.t
            GROUP BY e.h, e.s, v.d)
        {last or "SELECT h, s, d, val FROM o"}
    """


def by_duckdb(given: dict[str, np.ndarray], sql: str) -> np.ndarray:
    with duckdb.connect() as duck:
        for name, array in given.items():
            axes = np.indices(array.shape).reshape(3, -1)
            columns = {"h": axes[0], KEYS[name]: axes[1], "d": axes[2]}
            values = array.reshape(-1).astype(np.float64)
            duck.register("rows", pa.table({**columns, "val": values}))
            duck.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
        return np.array(duck.execute(f"{sql} ORDER BY ALL").fetchall())


def rows_of(con: einsql.Connection, sql: str) -> np.ndarray:
    return np.array(sorted(con.execute(sql).fetchall()))


def report(con: einsql.Connection, sql: str, options: str = "FORMAT json") -> Any:
    (text,) = con.execute(f"EXPLAIN ({options}) {sql}").fetchone() or ("{}",)
    return json.loads(text)


def parts_of(nodes: list[dict[str, Any]]) -> set[int]:
    return {n["partition"]["part"] for n in nodes if "part" in n["partition"]}


@pytest.mark.parametrize("mask", spread(MASKS, 2))
def test_parts_merge_to_the_answer_of_all_keys(mask: str) -> None:
    given = arrays(SMALL)
    wanted = by_duckdb(given, attention(MASKS[mask], None))
    con = connected(given, 1, jit="never")
    for sites in sample((1, 5), (1, 2, 3, 5)):
        con.execute(f"SET sites = {sites}")
        sql = attention(MASKS[mask], sites)
        np.testing.assert_allclose(rows_of(con, sql), wanted, rtol=2e-5, atol=2e-6)
    assert parts_of(report(con, sql)["nodes"]) == {5}


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_each_part_is_one_step_and_peaks_fall_with_the_parts(mask: str) -> None:
    """The steps of a part pass no score in memory; sites store their share of keys and values."""
    given = arrays(FUSED)
    offset = FUSED[2] - FUSED[1]
    condition = f"WHERE k.t <= q.s + {offset}" if mask == "causal" else ""
    wanted = by_duckdb(given, attention(condition, None))
    keys_and_values = given["k"].nbytes + given["v"].nbytes
    for sites in sample((4,), (2, 4)):
        con = connected(given, sites, jit="wait")
        sql = attention(condition, sites)
        np.testing.assert_allclose(rows_of(con, sql), wanted, rtol=2e-5, atol=2e-6)
        plan = report(con, sql, "ANALYZE, FORMAT json")
        groups = [n["group"]["nodes"] for n in plan["nodes"] if n.get("group")]
        assert any(len(names) == 5 for names in groups)
        sent = [s["bytes_sent"] for s in plan["per_site"]]
        assert sum(sent) == plan["total"]["bytes_sent"]
        queries = 4 * given["q"].nbytes  # the queries, the numerators, and what is merged
        # The last part is a copy, because it is shorter than the others.
        assert plan["total"]["memory"] < 2 * keys_and_values / sites + queries


@pytest.mark.parametrize(("shape", "jit"), [(SMALL, "never"), (FUSED, "wait")])
def test_a_part_may_have_only_scores_of_minus_infinity(shape: Shape, jit: str) -> None:
    """Scores as an added mask leaves them; NaN of a value passes through."""
    given = arrays(shape)
    given["k"][:, : shape[2] // 2] = np.inf  # with negative queries these scores are -infinity
    given["q"][:] = -np.abs(given["q"])
    given["v"][0, 3, 1] = np.nan
    wanted = by_duckdb(given, attention("", None))
    assert np.isnan(wanted).any()
    assert np.isfinite(wanted).any(axis=0).all()
    con = connected(given, 5, jit=jit)
    for parts in (2, 5):
        np.testing.assert_allclose(rows_of(con, attention("", parts)), wanted, rtol=2e-5, atol=2e-6)


def test_a_search_that_cuts_the_keys_cuts_them_into_parts(tmp_path: Path) -> None:
    given = arrays((2, 256, 1024, 32))
    con = connected(given, 4, jit="wait")
    sql = attention("", None)
    parts = rows_of(con, sql)
    chosen = report(con, sql)
    assert parts_of(chosen["nodes"]) == {2}
    path = tmp_path / "plan.json"
    con.execute(f"EXPORT PLAN '{path}' FOR {sql}")
    con.execute("SET disabled_rules = 'split-keys'")
    separate = report(con, sql)
    assert parts_of(separate["nodes"]) == set()
    np.testing.assert_allclose(rows_of(con, sql), parts, rtol=2e-5, atol=2e-6)
    assert chosen["total"]["seconds"] < separate["total"]["seconds"]
    assert chosen["total"]["memory"] < separate["total"]["memory"] / 2
    con.execute("SET disabled_rules = ''")
    con.execute(f"SET plan = '{path}'")
    assert report(con, sql)["plan_file"] == f"'{path}' cuts 12 of 12 operations"


@pytest.mark.parametrize("cost", sample(["seconds"], ["seconds", "bytes"]))
def test_parts_are_taken_where_nothing_else_fits_a_site(cost: str) -> None:
    given = arrays((1, 256, 4096, 32))
    con = connected(given, 4, jit="wait", cost=cost)
    sql = attention("", None)
    whole = report(con, sql, "ANALYZE, FORMAT json")
    assert parts_of(whole["nodes"]) == set()
    con.execute("SET site_memory = '500KB'")
    plan = report(con, sql, "ANALYZE, FORMAT json")
    assert max(parts_of(plan["nodes"])) == 4
    assert {s["memory"] for s in plan["per_site"]} == {plan["total"]["memory"]}
    assert plan["total"]["memory"] < 500_000 < whole["total"]["memory"]


def test_logsumexp_and_weights_that_are_read_twice() -> None:
    """A sum may compute its weights itself; a weight with another reader stays whole."""
    given = arrays(SMALL)
    steps = attention("", 3).split("z AS")[0]
    logs = f"""{steps} z AS (SELECT /*+ PARTITION(x.t=3) */ x.h, x.s, SUM(EXP(x.val - m.val)) AS val
        FROM x JOIN m ON x.h = m.h AND x.s = m.s GROUP BY x.h, x.s)
        SELECT m.h, m.s, m.val + LN(z.val) AS val FROM m JOIN z ON m.h = z.h AND m.s = z.s"""
    twice = attention("", 3, "SELECT o.h, o.s, SUM(o.val) + SUM(e.val) AS val FROM o JOIN e "
                      "ON o.h = e.h AND o.s = e.s GROUP BY o.h, o.s")  # fmt: skip
    con = connected(given, 3, jit="never")
    for sql, parts in ((logs, {3}), (twice, set[int]())):
        np.testing.assert_allclose(rows_of(con, sql), by_duckdb(given, sql), rtol=2e-5)
        assert parts_of(report(con, sql)["nodes"]) == parts


def test_gradients_are_those_of_one_site() -> None:
    given = arrays(SMALL)
    loss = ", l AS (SELECT SUM(val * val) AS val FROM o) SELECT * FROM GRADIENT(l, k)"
    whole, cut = (attention(MASKS["causal"], n, " ").rstrip() + loss for n in (None, 3))
    wanted = connected(given, 1, jit="never").execute(whole).fetch_numpy(fill=0)
    found = connected(given, 3, jit="never").execute(cut).fetch_numpy(fill=0)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


CONDITIONS = ("", "WHERE x.t <= x.s", "WHERE x.t >= x.s + 2", "WHERE x.val < 3")


@pytest.mark.parametrize("least", CONDITIONS)
def test_a_maximum_over_other_keys_than_its_sum_is_not_split(least: str) -> None:
    """A part of the keys would have another maximum than the sum's terms need."""
    values = np.random.default_rng(5).integers(-4, 5, (3, 8)).astype(float)
    duck, con = duckdb.connect(), einsql.connect()
    duck.execute("CREATE TABLE x (s BIGINT, t BIGINT, val DOUBLE)")
    duck.executemany("INSERT INTO x VALUES (?, ?, ?)",
                     [[*at, v.item()] for at, v in np.ndenumerate(values)])  # fmt: skip
    con.register("x", values, dims=("s", "t"))
    con.execute("SET jit = 'never'")
    con.execute("SET sites = 4")
    for summed in CONDITIONS:
        sql = (
            f"WITH m AS (SELECT {{}} s, MAX(val) AS val FROM x {least} GROUP BY s) "
            f"SELECT x.s, SUM(EXP(x.val - m.val)) AS val FROM x JOIN m USING (s) {summed} "
            "GROUP BY x.s ORDER BY x.s"
        )
        expected = np.array(duck.execute(sql.format("")).fetchall())
        rows = con.execute(sql.format("/*+ PARTITION(t=3) */")).fetchall()
        np.testing.assert_allclose(np.array(rows), expected, rtol=1e-12)
