"""Sparse tensors with one key and with three keys as SQL, beside DuckDB over the same rows.

Usage: `python -m benchmarks.sparse_keys [ROWS …]`. The ratings are by user, film and day. Products
with factors of rank 16 are those of a CP decomposition. Vectors have a fiftieth of their keys.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import einsql
from benchmarks import report
from benchmarks.measure import Run, measure
from benchmarks.report import Finding, Section, factor, times

EXTENTS = {"u": 10_000, "f": 5_000, "d": 365}
FACTORS = 16
VECTOR = 5_000_000
ONE_KEY = 2**20

OF_RATINGS = {
    "sum": "SELECT SUM(val) AS s FROM t",
    "sum by user": "SELECT u, SUM(val) AS s FROM t GROUP BY u",
    "sum and count by day": "SELECT d, SUM(val) AS s, COUNT(*) AS n FROM t GROUP BY d",
    "sum by user and day": "SELECT u, d, SUM(val) AS s FROM t GROUP BY u, d",
    "sum by user and film": "SELECT u, f, SUM(val) AS s FROM t GROUP BY u, f",
    "map": "SELECT u, f, d, val * 2 + 1 AS val FROM t",
    "ranges of keys": "SELECT u, SUM(val) AS s FROM t WHERE d >= 100 AND d < 200 AND f < 1000 "
    "GROUP BY u",
    "factors of users": "SELECT t.u, b.r, SUM(t.val * b.val * c.val) AS val FROM t JOIN b "
    "ON b.f = t.f JOIN c ON c.d = t.d AND c.r = b.r GROUP BY t.u, b.r",
    "factors of days": "SELECT t.d, a.r, SUM(t.val * a.val * b.val) AS val FROM t JOIN a "
    "ON a.u = t.u JOIN b ON b.f = t.f AND b.r = a.r GROUP BY t.d, a.r",
    "times a vector": "SELECT t.u, t.f, SUM(t.val * c.val) AS val FROM t JOIN c ON c.d = t.d "
    "WHERE c.r = 3 GROUP BY t.u, t.f",
    "join with changes": "SELECT SUM(t.val * o.val) AS s FROM t JOIN o USING (u, f, d)",
    "ratings a week later": "SELECT u, f, d + 7 AS d, val FROM t",
    "ratings a day after another": "SELECT x.u, x.f, x.d, x.val - y.val AS val FROM t x JOIN t y "
    "ON x.u = y.u AND x.f = y.f AND x.d = y.d + 1",
}
OF_VECTORS = {
    "sum of a vector": "SELECT SUM(val) AS s FROM v",
    "map of a vector": "SELECT i, val * 2 AS val FROM v",
    "product of sparse vectors": "SELECT SUM(v.val * w.val) AS s FROM v JOIN w USING (i)",
    "join of sparse vectors": "SELECT i, v.val * w.val AS val FROM v JOIN w USING (i)",
    "join of neighbours": "SELECT v.i, v.val - w.val AS val FROM v JOIN w ON v.i = w.i + 1",
}
OF_ONE_KEY = (
    "SELECT SUM(val) AS s FROM x",
    "SELECT i, val * 2 + 1 AS v FROM x",
    "SELECT SUM(x.val * y.val) AS s FROM x JOIN y USING (i)",
    "SELECT m.k, SUM(x.val * m.val) AS s FROM x JOIN m USING (i) GROUP BY m.k",
    "SELECT g.i, SUM(x.val * g.val) AS s FROM g JOIN x ON x.i = g.j GROUP BY g.i",
    "SELECT COUNT(*) AS n FROM x WHERE val > 2",
    "SELECT SUM(x.val) AS s FROM places JOIN x ON x.i = places.i",
)
"""Statements for the choice of the storage of tensors with one key."""


def connections(rows: int) -> tuple[einsql.Connection, duckdb.DuckDBPyConnection]:
    """Sessions of einsql and DuckDB with the same tables."""
    chance = np.random.default_rng(0)
    shape = tuple(EXTENTS.values())
    cells = np.unique(chance.integers(0, np.prod(shape), rows))
    keys = dict(zip(EXTENTS, np.unravel_index(cells, shape), strict=True))
    val = chance.random(len(cells), np.float32)
    few = np.sort(chance.choice(VECTOR, VECTOR // 50, replace=False))
    tables = {
        "t": {**keys, "val": val},
        "o": {**{k: a[::3] for k, a in keys.items()}, "val": val[::3]},
        "v": {"i": few, "val": chance.random(len(few), np.float32)},
        "w": {"i": few[::3], "val": chance.random(len(few[::3]), np.float32)},
    }
    extents = {**EXTENTS, "i": VECTOR}
    ours, theirs = einsql.connect(), duckdb.connect()
    for name, columns in tables.items():
        ours.register("arrow", pa.table(columns))
        theirs.register("arrow", pa.table(columns))
        theirs.execute(f"CREATE TABLE {name} AS FROM arrow")
        dims = ", ".join(f"{k} DIM({extents[k]})" for k in columns if k != "val")
        ours.execute(f"CREATE TENSOR {name} ({dims}, val FLOAT) STORAGE SPARSE")
        ours.execute(f"INSERT INTO {name} SELECT * FROM arrow")
    for name, (key, extent) in zip("abc", EXTENTS.items(), strict=True):
        array = chance.random((extent, FACTORS), np.float32)
        ours.register(name, array, dims=(key, "r"))
        places = np.indices(array.shape).reshape(2, -1)
        columns = {key: places[0], "r": places[1], "val": array.reshape(-1)}
        theirs.register("arrow", pa.table(columns))
        theirs.execute(f"CREATE TABLE {name} AS FROM arrow")
    return ours, theirs


def findings(rows: int) -> Iterator[Finding]:
    """Every statement over some number of ratings."""
    ours, theirs = connections(rows)
    for what, sql in {**OF_RATINGS, **OF_VECTORS}.items():
        found, wanted = _all(ours, sql), _all(theirs, sql)
        assert found.num_rows == wanted.num_rows, sql
        ours_sum, other = (float(np.sum(np.asarray(t.column(-1)))) for t in (found, wanted))
        np.testing.assert_allclose(ours_sum, other, rtol=1e-4)
        contestants: dict[str, Run] = {
            "einsql": partial(_all, ours, sql),
            "duckdb": partial(_all, theirs, sql),
        }
        taken = measure(contestants, rounds=5, seconds=0.5)
        ratio = taken.ratio("duckdb", "einsql")
        yield Finding(
            f"{what}, {rows:,} rows",
            factor(ratio, 2),
            "≥ 1.00×",
            ratio.value >= 1,
            times({name: taken.median(name) for name in contestants}),
        )


def one_key() -> Iterator[tuple[int, float]]:
    """The processor time of sparse vectors relative to dense ones, by keys for each element."""
    con = einsql.connect()
    con.execute(
        f"CREATE TABLE ids AS SELECT range AS e, range * 7919 % {ONE_KEY} AS i FROM range(500000)"
    )
    con.execute(f"CREATE TENSOR y AS SELECT i, (i % 7)::FLOAT AS val FROM range({ONE_KEY}) r(i)")
    con.execute(
        f"CREATE TENSOR m AS SELECT i, k, ((i + k) % 7)::FLOAT AS val FROM range({ONE_KEY}) r(i), "
        "range(4) s(k)"
    )
    con.execute("CREATE TENSOR g STORAGE SPARSE AS SELECT e AS i, i AS j, 1::FLOAT AS val FROM ids")
    con.execute("CREATE TENSOR places AS SELECT e, i AS i FROM ids")
    for keys in (4, 8, 16, 64, 256):
        taken = []
        for storage in ("SPARSE", "DENSE"):
            con.execute(
                f"CREATE OR REPLACE TENSOR x (i DIM({ONE_KEY}), val FLOAT) STORAGE {storage}"
            )
            con.execute(
                f"INSERT INTO x SELECT range * {keys}, (range % 5)::FLOAT "
                f"FROM range({ONE_KEY // keys})"
            )
            taken.append(sum(_processor_time(con, sql) for sql in OF_ONE_KEY))
        yield keys, taken[0] / taken[1]


def _processor_time(con: einsql.Connection, sql: str) -> float:
    least = float("inf")
    for _ in range(7):
        start = time.process_time()
        con.execute(sql).fetchone()
        least = min(least, time.process_time() - start)
    return least


def _all(con: Any, sql: str) -> pa.Table:
    """The rows of a result."""
    ran = con.execute(sql)
    return ran.fetch_arrow_table() if isinstance(con, einsql.Connection) else ran.to_arrow_table()


def main() -> None:
    """Prints a table of ratios, and the ratios that decide about the storage of one key."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*", type=int, default=[1_000_000])
    every = tuple(f for rows in parser.parse_args().rows for f in findings(rows))
    title = "Sparse tensors with one and three keys: DuckDB's time / einsql's time"
    print("\n".join(report.machine()), end="\n\n")
    print(report.as_text([Section(title, every)]))
    for keys, ratio in one_key():
        print(f"one key, 1/{keys} of the elements: {ratio:.2f} of the dense tensor's time")


if __name__ == "__main__":
    main()
