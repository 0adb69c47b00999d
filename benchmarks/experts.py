"""Experts at sites of their own, beside weights that every site reads: bytes and processor time.

`python -m benchmarks.experts` prints a table. Virtual sites share one process, so the time is the
work of all sites. "of the rows" is the bytes sent over those of the rows that leave their site,
with one width in each direction.
"""

from __future__ import annotations

import json
import time
from statistics import median

import numpy as np

import einsql

TOKENS, WIDTH, HIDDEN, EXPERTS = 512, 256, 512, 8
ROUNDS = 7
SQL = """
    WITH a AS (SELECT {w1} x.i, w.f, SUM(x.val * w.val) AS val
        FROM x JOIN r ON x.i = r.i JOIN w1 AS w ON w.e = r.val AND w.h = x.h GROUP BY x.i, w.f),
      b AS (SELECT i, f, GREATEST(val, 0) AS val FROM a)
    SELECT {w2} b.i, w.h, SUM(b.val * w.val) AS val
    FROM b JOIN r ON b.i = r.i JOIN w2 AS w ON w.e = r.val AND w.f = b.f GROUP BY b.i, w.h"""


def main() -> None:
    """Prints a line for each number of sites, distribution of rows, and plan."""
    chance = np.random.default_rng(0)
    skewed = np.minimum(chance.geometric(0.5, TOKENS) - 1, EXPERTS - 1)
    routes = {"uniform": chance.integers(0, EXPERTS, TOKENS), "skewed": skewed}
    print(f"{'rows':8} sites plan      bytes sent  of the rows  processor time")
    for name, route in routes.items():
        for sites in (1, 2, 4, 8):
            for plan in ("whole", "experts") if sites > 1 else ("whole",):
                sent, seconds = _measured(route, sites, plan)
                leaving = _leaving(route, sites) * 2 * WIDTH * 4
                share = f"{sent / leaving:.3f}" if plan == "experts" else ""
                print(
                    f"{name:8} {sites:5} {plan:8} {sent:11,} {share:>12} {seconds * 1e3:12.1f} ms"
                )


def _measured(route: np.ndarray, sites: int, plan: str) -> tuple[int, float]:
    """Returns the bytes that a run sends, and the median processor time in seconds."""
    chance = np.random.default_rng(1)
    con = einsql.connect(config={"sites": sites})
    con.register("x", chance.standard_normal((TOKENS, WIDTH)).astype(np.float32), dims=("i", "h"))
    con.register("r", route, dims=("i",))
    for name, shape, dims in (
        ("w1", (EXPERTS, WIDTH, HIDDEN), ("e", "h", "f")),
        ("w2", (EXPERTS, HIDDEN, WIDTH), ("e", "f", "h")),
    ):
        con.register(name, chance.standard_normal(shape).astype(np.float32), dims=dims)
    hint = f"/*+ PARTITION(w.e={sites}) */" if plan == "experts" else ""
    sql = SQL.format(w1=hint, w2=hint)
    for _ in range(3):
        con.execute(sql).fetch_numpy()
    taken = []
    for _ in range(ROUNDS):
        start = time.process_time()
        con.execute(sql).fetch_numpy()
        taken.append(time.process_time() - start)
    (text,) = con.execute(f"EXPLAIN (ANALYZE, FORMAT json) {sql}").fetchone() or ("{}",)
    return sum(s["bytes_sent"] for s in json.loads(text).get("per_site", [])), median(taken)


def _leaving(route: np.ndarray, sites: int) -> int:
    """Returns the number of rows whose expert is at another site."""
    homes = np.repeat(np.arange(sites), [len(p) for p in np.array_split(route, sites)])
    experts = [len(p) for p in np.array_split(np.arange(EXPERTS), sites)]
    return int((np.repeat(np.arange(sites), experts)[route] != homes).sum())


if __name__ == "__main__":
    main()
