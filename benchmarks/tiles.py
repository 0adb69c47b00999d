"""Ten elements in ten tiles of a large stored tensor; a database of 100,000 tiles; reads.

usage: python -m benchmarks.tiles [GIGABYTES] [FOLDER]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

import einsql
from einsql.storage.database.tiles import tile_grid

COMMITS = 20
"""Commits, of which the median is shown."""
COLUMNS = 2**18
"""FLOATs in a row: one MiB."""


def counters() -> dict[str, int]:
    """Bytes that this process has read and written."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(n) for name, n in (line.split(": ") for line in lines)}


def counted(work: Callable[[], object]) -> tuple[float, dict[str, int]]:
    """Seconds of a call, and the bytes it has read and written."""
    before, start = counters(), time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return seconds, {name: n - before[name] for name, n in counters().items()}


def forget(folder: str) -> None:
    """Drops the pages of files from the system's cache."""
    for root, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(root, name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk(folder: str, nbytes: int) -> float:
    """Median seconds to write and sync a new file of some bytes, and its directory."""
    data, times = os.urandom(nbytes), []
    for n in range(COMMITS):
        start = time.perf_counter()
        with open(os.path.join(folder, f"probe{n}"), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        times.append(time.perf_counter() - start)
        os.unlink(os.path.join(folder, f"probe{n}"))
    return median(times)


def changes(path: str, rows: int) -> None:
    """Commits ten elements in ten tiles, and prints time and bytes."""
    random = np.random.default_rng(3)
    with einsql.connect(path) as con:
        con.execute("UPDATE x SET val = 0 WHERE i = 0 AND j = 0")  # compiles and imports
        forget(f"{path}.tensors")
        times, reads, writes = [], [], []
        for n in range(COMMITS):
            tiles = random.choice(rows, 10, replace=False).tolist()
            values = ", ".join(f"({i}, {int(random.integers(COLUMNS))}, {n})" for i in tiles)
            statement = f"INSERT OR REPLACE INTO x VALUES {values}"
            seconds, moved = counted(partial(con.execute, statement))
            times.append(seconds)
            reads.append(moved["read_bytes"])
            writes.append(moved["wchar"])
        probe = disk(os.path.dirname(path), 10 * 2**20)
        print(f"{COMMITS} commits of ten elements in ten tiles of {rows / 2**10:.1f} GiB:")
        print(f"  median {median(times) * 1e3:.1f} ms, most {max(times) * 1e3:.1f} ms; writing and "
              f"syncing 10 MiB on this disk takes {probe * 1e3:.1f} ms")  # fmt: skip
        print(f"  read from the disk: median {median(reads) / 2**20:.2f} MiB")
        print(f"  written: median {median(writes) / 2**20:.2f} MiB")
        seconds, moved = counted(lambda: con.execute("SELECT SUM(val) FROM x").fetchall())
        print(f"  SUM afterwards {seconds * 1e3:.0f} ms")


def many_tiles(folder: str) -> None:
    """Opens a database with 100,000 entries in a tile index."""
    path = os.path.join(folder, "many.db")
    rows, columns = 500_000, 8
    before, tile_grid.TILE = tile_grid.TILE, columns * 8
    try:
        with einsql.connect(path) as con:
            con.execute(f"CREATE TENSOR x (i DIM({rows}), j DIM({columns}), val DOUBLE) DEFAULT 0")
            con.execute("UPDATE x SET val = i")
            con.execute("UPDATE x SET val = val + 1 WHERE i < 100000")
    finally:
        tile_grid.TILE = before
    times = []
    for _ in range(5):
        start = time.perf_counter()
        with einsql.connect(path, read_only=True):
            times.append(time.perf_counter() - start)
    print(f"opening {rows:,} tiles, 100,000 in the index: {median(times):.3f} s")
    with einsql.connect(path) as con:
        seconds, moved = counted(
            lambda: con.execute("INSERT OR REPLACE INTO x VALUES (7, 3, 5), (90000, 3, 5)")
        )
        print(f"  a commit: {seconds * 1e3:.0f} ms, {moved['wchar'] / 2**10:.0f} KiB written")


def reads(path: str, rows: int) -> None:
    """Prints times of reads, in processes that have the file in the cache."""
    for name, text in (
        ("SUM", "SELECT SUM(val) FROM x"),
        ("a row", f"SELECT SUM(val) FROM x WHERE i = {rows // 2}"),
        (
            "product",
            "SELECT a.i, SUM(a.val * b.val) AS s FROM x a JOIN v b ON a.j = b.j GROUP BY a.i",
        ),
        ("fetch_numpy", "SELECT * FROM x"),
    ):
        with einsql.connect(path) as con:
            con.register("v", np.ones(COLUMNS, np.float32), dims=("j",))
            times = []
            for _ in range(6):
                start = time.process_time()
                cursor = con.execute(text)
                _ = cursor.fetch_numpy() if name == "fetch_numpy" else cursor.fetch_arrow_table()
                times.append(time.process_time() - start)
            first, then = times[0] * 1e3, min(times[1:]) * 1e3
            print(f"  {name}: first {first:.1f} ms, then {then:.1f} ms of CPU")


def main() -> None:
    """Prints the figures."""
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    folder = tempfile.mkdtemp(dir=sys.argv[2] if len(sys.argv) > 2 else None)
    rows = int(gigabytes * 2**10)
    path = os.path.join(folder, "model.db")
    try:
        with einsql.connect(path) as con:
            seconds, _ = counted(
                lambda: con.execute(
                    f"CREATE TENSOR x AS SELECT i, j, CAST(i + j AS FLOAT) AS val "
                    f"FROM RANGE({rows}) a(i), RANGE({COLUMNS}) b(j)"
                )
            )
        print(f"creation: {seconds:.1f} s")
        reads(path, rows)
        changes(path, rows)
        reads(path, rows)
        many_tiles(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
