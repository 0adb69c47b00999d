"""Convolutions, pooling, lookups and messages as users write them, beside DuckDB."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

import einsql
from tests.support.samples import combinations

RNG = np.random.default_rng(5)
TENSORS: dict[str, tuple[np.ndarray, tuple[str, ...]]] = {
    "x": (RNG.integers(-4, 5, (2, 3, 9, 8)) / 2, ("n", "c", "h", "w")),
    "f": (RNG.integers(-4, 5, (5, 3, 3, 2)) / 2, ("o", "c", "r", "s")),
    "img": (RNG.integers(-4, 5, (12, 10)) / 2, ("i", "j")),
    "ids": (RNG.integers(-1, 8, 20), ("e",)),
    "dst": (RNG.integers(0, 6, 20), ("e",)),
    "v": (RNG.integers(-4, 5, (7, 3)) / 2, ("n", "f")),
}
QUERIES = [
    """SELECT n, o, x.h - f.r AS h, x.w - f.s AS w, SUM(x.val * f.val) AS val
       FROM x JOIN f ON x.c = f.c
       WHERE x.h - f.r BETWEEN 0 AND 6 AND x.w - f.s BETWEEN 0 AND 6
       GROUP BY n, o, x.h - f.r, x.w - f.s""",
    """SELECT n, o, x.h - f.r + 1 AS h, x.w - f.s AS w, SUM(x.val * f.val) AS val
       FROM x JOIN f ON x.c = f.c GROUP BY n, o, x.h - f.r + 1, x.w - f.s""",
    """SELECT n, o, p.h AS h, q.w AS w, SUM(x.val * f.val) AS val
       FROM range(5) AS p(h), range(4) AS q(w), x JOIN f ON x.c = f.c
       WHERE x.h = 2 * p.h + f.r - 1 AND x.w = 2 * q.w + f.s GROUP BY n, o, p.h, q.w""",
    """SELECT n, o, x.h - 2 * f.r AS h, x.w - f.s AS w, SUM(x.val * f.val) AS val
       FROM x JOIN f ON x.c = f.c WHERE x.h - 2 * f.r >= 0
       GROUP BY n, o, x.h - 2 * f.r, x.w - f.s""",
    "SELECT i // 4 AS a, j // 5 AS b, MAX(val) AS val FROM img GROUP BY i // 4, j // 5",
    "SELECT i // 5 AS a, j AS b, AVG(val) AS val FROM img GROUP BY i // 5, j",
    "SELECT i * 10 + j AS k, SUM(val) AS val FROM img GROUP BY i * 10 + j",
    "SELECT i + j AS k, COUNT(*) AS val FROM img GROUP BY i + j",
    "SELECT e, v.f, v.val AS val FROM ids JOIN v ON v.n = ids.val",
    """SELECT dst.val AS d, v.f, SUM(v.val) AS val, COUNT(*) AS many
       FROM ids JOIN dst USING (e) JOIN v ON v.n = ids.val GROUP BY dst.val, v.f""",
    "SELECT ids.val AS d, COUNT(*) AS val FROM ids GROUP BY ids.val",
]


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for name, (array, dims) in TENSORS.items():
        kind = "BIGINT" if array.dtype.kind == "i" else "DOUBLE"
        keys = ", ".join(f"{d} BIGINT" for d in dims)
        con.execute(f"CREATE TABLE {name} ({keys}, val {kind})")
        rows = [(*at, array[at].item()) for at in np.ndindex(*array.shape)]
        con.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * (len(dims) + 1))})", rows)
    return con


@pytest.mark.parametrize(("jit", "sql"), combinations(["auto", "always"], QUERIES))
def test_answers_are_those_of_duckdb(sql: str, jit: str, duck: duckdb.DuckDBPyConnection) -> None:
    con = einsql.connect()
    con.execute(f"SET jit = '{jit}'")
    for name, (array, dims) in TENSORS.items():
        con.register(name, array, dims=dims)
    assert sorted(con.execute(sql).fetchall()) == sorted(duck.execute(sql).fetchall())


@pytest.mark.parametrize("sql", QUERIES[:1])
def test_a_convolution_is_dense_from_its_first_place_on(sql: str) -> None:
    con = einsql.connect()
    for name, (array, dims) in TENSORS.items():
        con.register(name, array, dims=dims)
    assert con.execute(sql).fetch_numpy().shape == (2, 5, 7, 7)
