"""Rows found by number, and rows summed by a key of theirs, beside NumPy, PyTorch and DuckDB."""

from __future__ import annotations

from functools import partial

import numpy as np

import einsql
from benchmarks.matrices import Array, check, fetched, pytorch, random
from benchmarks.measure import Run, Times, measure
from benchmarks.report import Finding, Section, against

EDGES, NODES, FEATURES = 1_000_000, 50_000, 64
ROWS, WIDTH, IDS = 50_000, 576, 4096

LOOKUP = "SELECT e, d, table.val FROM ids JOIN table ON table.w = ids.val"
MESSAGES = """
SELECT dst.val AS n, v.f, SUM(v.val) AS val
FROM src JOIN dst USING (e) JOIN v ON v.n = src.val
GROUP BY dst.val, v.f
"""
HISTOGRAM = "SELECT dst.val AS n, COUNT(*) AS rows FROM dst GROUP BY dst.val"
TOTALS = """
SELECT dst.val AS n, SUM(w.val) AS val FROM dst JOIN w USING (e) GROUP BY dst.val
"""


def segments() -> Section:
    """Embedding lookup, message passing, sums by key and a histogram."""
    return Section(
        "Rows found in data: the other's time / einsql's time",
        (_lookup(), *_messages(), *_totals(), _skewed(), _histogram()),
        "" if pytorch() else "torch is not installed",
    )


def _numbers(count: int, below: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, count, below)).integers(0, below, count)


def _line(what: str, taken: Times, peer: str, aim: float | None) -> Finding:
    return against(f"{what}, vs {peer}", taken, peer, aim)


def _lookup() -> Finding:
    table, ids = random(ROWS, WIDTH), _numbers(IDS, ROWS)
    con = einsql.connect()
    con.register("ids", ids, dims=("e",))
    con.register("table", table, dims=("w", "d"))
    sql = LOOKUP.replace("table", '"table"')
    check(con.execute(sql).fetch_numpy(), table[ids])
    taken = measure(
        {
            "einsql": lambda: con.execute(sql).fetch_numpy(),
            "numpy.take": lambda: np.take(table, ids, axis=0),
        },
        rounds=31,
        seconds=1.0,
        calls={"einsql": 8, "numpy.take": 8},
    )
    return _line(f"lookup of {IDS:,} rows of {WIDTH}", taken, "numpy.take", 0.9)


def _messages() -> list[Finding]:
    import duckdb
    import pyarrow as pa

    src, dst = _numbers(EDGES, NODES), _numbers(EDGES, NODES, seed=1)
    v = random(NODES, FEATURES)
    con = einsql.connect()
    con.register("src", src, dims=("e",))
    con.register("dst", dst, dims=("e",))
    con.register("v", v, dims=("n", "f"))
    peers: dict[str, Run] = {}
    torch = pytorch()
    if torch:
        a, b, rows = (torch.from_numpy(x) for x in (src, dst, v))
        peers["torch"] = lambda: torch.zeros(NODES, FEATURES).index_add_(0, b, rows[a])

    def ours() -> Array:
        return fetched(con, MESSAGES, fill=0)

    for run in peers.values():
        check(ours(), np.asarray(run()))
    what = f"messages along {EDGES:,} edges, {FEATURES} features"
    taken = measure({"einsql": ours, **peers}, rounds=9, seconds=1.0)
    findings = [_line(what, taken, name, 1.0) for name in peers]
    duck = duckdb.connect()
    elements = pa.table(
        {
            "n": np.repeat(np.arange(NODES), FEATURES),
            "f": np.tile(np.arange(FEATURES), NODES),
            "val": v.reshape(-1),
        }
    )
    edges = np.arange(EDGES)
    named = {
        "v": elements,
        "src": pa.table({"e": edges, "val": src}),
        "dst": pa.table({"e": edges, "val": dst}),
    }
    for name, rows_of in named.items():
        duck.register("elements", rows_of)
        duck.execute(f"CREATE TABLE {name} AS FROM elements")
        duck.unregister("elements")
    taken = measure(
        {"einsql": ours, "duckdb": lambda: duck.sql(MESSAGES).to_arrow_table()},
        rounds=2,
        seconds=0.0,
    )
    duck.close()
    return [*findings, _line(what, taken, "duckdb", 10.0)]


def _totals() -> list[Finding]:
    """A number summed along every edge."""
    dst, findings = _numbers(EDGES, NODES), []
    for dtype in (np.int32, np.int64, np.float32):
        w = (random(EDGES) * 1000).astype(dtype)
        con = einsql.connect()
        con.register("dst", dst, dims=("e",))
        con.register("w", w, dims=("e",))
        wanted = np.bincount(dst, w, NODES)
        check(con.execute(TOTALS).fetch_numpy(fill=0), wanted)
        taken = measure(
            {
                "einsql": partial(fetched, con, TOTALS, fill=0),
                "numpy.bincount": partial(np.bincount, dst, w, NODES),
            },
            rounds=15,
            seconds=0.5,
        )
        what = f"sums of {EDGES:,} {w.dtype} in {NODES:,} groups"
        findings.append(_line(what, taken, "numpy.bincount", None))
    return findings


def _skewed() -> Finding:
    """Nine of ten rows meet at one key."""
    dst = np.where(np.arange(EDGES) % 10 > 0, 7, _numbers(EDGES, NODES))
    w = random(EDGES, FEATURES)
    con = einsql.connect()
    con.register("dst", dst, dims=("e",))
    con.register("w", w, dims=("e", "f"))
    query = (
        "SELECT dst.val AS n, f, SUM(w.val) AS val FROM dst JOIN w USING (e) GROUP BY dst.val, f"
    )
    contestants: dict[str, Run] = {"einsql": lambda: con.execute(query).fetch_numpy(fill=0)}
    torch = pytorch()
    if torch:
        at, rows = torch.from_numpy(dst), torch.from_numpy(w)
        contestants["torch"] = lambda: torch.zeros(NODES, FEATURES).index_add_(0, at, rows)
    else:
        contestants["numpy.add.reduce"] = lambda: np.add.reduce(w)
    peer = list(contestants)[1]
    taken = measure(contestants, rounds=9, seconds=1.0)
    return _line(f"sums of {EDGES:,} rows of {FEATURES}, most in one group", taken, peer, None)


def _histogram() -> Finding:
    dst = _numbers(EDGES, NODES)
    con = einsql.connect()
    con.register("dst", dst, dims=("e",))
    check(con.execute(HISTOGRAM).fetch_numpy(fill=0), np.bincount(dst, minlength=NODES))
    taken = measure(
        {
            "einsql": lambda: con.execute(HISTOGRAM).fetch_numpy(fill=0),
            "numpy.bincount": lambda: np.bincount(dst, minlength=NODES),
        },
        rounds=15,
        seconds=1.0,
    )
    return _line(f"counts of {EDGES:,} rows in {NODES:,} groups", taken, "numpy.bincount", None)
