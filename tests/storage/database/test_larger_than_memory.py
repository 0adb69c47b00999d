"""A stored tensor larger than memory_limit is read tile by tile, in little anonymous memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import einsql

LIMIT, ROWS, COLUMNS = 16, 64, 2**17
"""The limit in MB, and the shape of a tensor of 64 MiB: a row of DOUBLEs is a tile."""

READER = """
import sys, threading
import einsql

def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(x.split()[1]) for x in lines if x.startswith("RssAnon"))

def watch():
    while not done.wait(0.001):
        peak[0] = max(peak[0], anonymous())

con = einsql.connect(sys.argv[1], config={"memory_limit": sys.argv[2], "jit": "never"})
for sql in sys.argv[3:]:
    cur = con.execute(sql.replace(" x", " few"))
    rows = cur.description and cur.fetch_arrow_table()  # imports
before = anonymous()
peak, done = [before], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
for sql in sys.argv[3:]:
    cur = con.execute(sql)
    print(cur.fetch_arrow_table().num_rows if cur.description else cur.rowcount)
done.set()
watcher.join()
print(peak[0] - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux counts the memory")
def test_sums_and_filters_take_less_than_the_limit(path: str, tmp_path: Path) -> None:
    with einsql.connect(path) as con:
        for name, rows in (("x", ROWS), ("few", 2)):
            con.execute(
                f"CREATE TENSOR {name} AS SELECT i, j, CAST(i + j / 1e6 AS DOUBLE) AS val "
                f"FROM RANGE({rows}) a(i), RANGE({COLUMNS}) b(j)"
            )
    queries = {
        "SELECT i, SUM(val) AS s FROM x GROUP BY i": ROWS,
        "SELECT j, MAX(val) AS s FROM x WHERE i > 60 GROUP BY j": COLUMNS,
        "SELECT SUM(val * 2) AS s FROM x": 1,
        "SELECT i, j, val FROM x WHERE val > 62.5 AND val < 63.00001": 10,
        f"COPY (SELECT i, j, val + 1 AS val FROM x) TO '{tmp_path / 'y.npy'}'": 8388608,
    }
    done = subprocess.run(
        [sys.executable, "-c", READER, path, f"{LIMIT}MB", *queries],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *counts, kilobytes = map(int, done.stdout.split())
    assert counts == list(queries.values())
    assert kilobytes < LIMIT * 1000
