"""Ranks run on NumPy while one of them compiles a kernel; all of them run the same tier."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import einsql
from tests.support.samples import sample

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

RANKS = 3
SOFTMAX = "SELECT * FROM softmax(a, k)"
MIN_PLUS = "SELECT a.i, b.j, MIN(a.val + b.val) AS val FROM a JOIN b USING (k) GROUP BY a.i, b.j"
OVERFLOW = "SELECT i, k, CAST(val * 1e9 AS INTEGER) AS val FROM a"


class Compilers:
    """The compilers of all ranks, which wait for the locks of their directory of kernels."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700)
        self.home = home
        self._locks = list[int]()

    def stop(self) -> None:
        """Takes all locks, so that no compilation begins for some seconds."""
        for number in range(256):
            lock = os.open(self.home / f"{number:02x}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._locks.append(lock)

    def begin(self) -> None:
        """Gives the locks back."""
        locks, self._locks = self._locks, []
        for lock in locks:
            os.close(lock)


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilers]:
    monkeypatch.setenv("EINSQL_CACHE_DIR", str(tmp_path))
    compilers = Compilers(tmp_path / "kernels")
    compilers.stop()
    yield compilers
    compilers.begin()


def connection(rows: int, columns: int) -> einsql.Connection:
    con = einsql.connect(config={"mpi": RANKS, "jit": "auto"})
    row = np.random.default_rng(3).normal(size=columns).astype(np.float32)
    con.register("a", np.broadcast_to(row, (rows, columns)).copy(), ("i", "k"))
    return con


def tier(con: einsql.Connection, sql: str) -> str | None:
    """The tier of a run."""
    (row,) = con.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}").fetchall()
    (ran,) = {node["measured"]["tier"] for node in json.loads(row[-1])["nodes"]}
    assert ran is None or isinstance(ran, str)
    return ran


@pytest.mark.parametrize("sites", sample([2 * RANKS], [1, RANKS, 2 * RANKS]))
def test_all_ranks_run_one_tier(compilers: Compilers, sites: int) -> None:
    """Equal rows of different ranks have equal bits, whichever tier runs."""
    with connection(600, 600) as con:
        con.execute(f"SET sites = {sites}")
        plain = con.execute(SOFTMAX).fetch_numpy()
        assert (plain == plain[0]).all()
        assert tier(con, SOFTMAX) == "plain"
        assert "on NumPy, while a kernel" in str(con.explain(SOFTMAX, analyze=True))
        compilers.begin()
        while tier(con, SOFTMAX) == "plain":
            time.sleep(0.02)
        compiled = con.execute(SOFTMAX).fetch_numpy()
        assert (compiled == compiled[0]).all()
        np.testing.assert_allclose(plain, compiled, rtol=1e-5)


def test_ranks_switch_in_the_middle_of_a_run(compilers: Compilers) -> None:
    rows = 1500
    with connection(rows, rows) as con:
        con.register("b", np.eye(rows, dtype=np.float32), ("k", "j"))
        begin = threading.Timer(0.2, compilers.begin)
        begin.start()
        assert tier(con, MIN_PLUS) == "compiled"  # NumPy alone would take seconds
        begin.join()
        (row,) = {tuple(r) for r in con.execute(MIN_PLUS).fetch_numpy()}
        values = con.execute("SELECT k, val FROM a WHERE i = 0").fetch_numpy()
        others = [np.delete(values, j).min() for j in range(5)]
        expected = [min(o, values[j] + 1) for j, o in enumerate(others)]
        np.testing.assert_array_equal(row[:5], np.array(expected, np.float32))


def test_an_error_is_the_same_and_leaves_the_ranks_alive(compilers: Compilers) -> None:
    with connection(600, 600) as con:
        con.execute("CREATE TENSOR c AS SELECT i, k, val FROM a")
        con.execute("UPDATE c SET val = 100 WHERE i = 599 AND k = 599")
        overflow = OVERFLOW.replace("FROM a", "FROM c")
        for _ in range(2):
            with pytest.raises(einsql.DataError, match="INTEGER"):
                con.execute(overflow)
            compilers.begin()
        assert con.execute("SELECT COUNT(*) FROM c").fetchone() == (360_000,)


def test_a_loop_runs_ahead_when_its_kernels_are_compiled(compilers: Compilers) -> None:
    loop = "FOR step IN range(40) DO UPDATE c SET val = c.val / 2 + EXP(-c.val * c.val); END FOR"
    results = []
    for begins in (False, True):
        with connection(300, 400) as con:
            if begins:
                compilers.begin()
            con.execute("CREATE TENSOR c AS SELECT i, k, val FROM a")
            con.execute(loop)
            results.append(con.execute("SELECT i, k, val FROM c").fetch_numpy())
    plain, compiled = results
    np.testing.assert_allclose(plain, compiled, rtol=1e-5)


def test_a_query_over_tiles_does_not_wait(compilers: Compilers) -> None:
    tiles = "SELECT i, k, tile / 3 + ROUND(tile) AS t FROM TILES(a, 2, 2)"
    with connection(600, 600) as con:
        plain, *_ = (np.array(t) for _, _, t in con.execute(tiles).fetchall())
        assert not list(compilers.home.glob("k_*"))
        compilers.begin()
        while not list(compilers.home.glob("k_*")):
            con.execute(tiles)
            time.sleep(0.02)
        compiled, *_ = (np.array(t) for _, _, t in con.execute(tiles).fetchall())
        np.testing.assert_array_equal(plain, compiled)
