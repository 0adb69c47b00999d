"""Sums start at +0.0 as DuckDB's do: no kernel, rewrite or cut gives -0.0 for one."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pytest

import einsql
from tests.support.samples import combinations

SHAPES = {"x": ("ij", (6, 5)), "y": ("jk", (5, 4)), "row": ("ij", (1, 5)), "one": ("jk", (1, 1)),
          "wide": ("ij", (3, 3000)), "high": ("jk", (3000, 2)), "v": ("k", (4,))}  # fmt: skip

QUERIES = [
    "SELECT i, j, SUM({x}.val) AS s FROM {x} GROUP BY i, j",
    "SELECT i, j, SUM({x}.val * -1) AS s FROM {x} GROUP BY i, j",
    "SELECT i, SUM({x}.val) AS s FROM {x} GROUP BY i",
    "SELECT j, SUM({x}.val) AS s FROM {x} GROUP BY j",
    "SELECT SUM({x}.val) AS s FROM {x}",
    "SELECT SUM({x}.val * -1) AS s FROM {x}",
    "SELECT i, AVG({x}.val) AS s FROM {x} GROUP BY i",
    "SELECT i, j, AVG({x}.val) AS s FROM {x} GROUP BY i, j",
    "SELECT i, SUM({x}.val) FILTER (WHERE j = 0) AS s FROM {x} GROUP BY i",
    "SELECT i, j, SUM({x}.val) FILTER (WHERE {x}.val < 1) AS s FROM {x} GROUP BY i, j",
    "SELECT i, SUM({x}.val) AS s FROM {x} WHERE j = 0 GROUP BY i",
    "SELECT i, SUM({x}.val) OVER (PARTITION BY i, j) AS s FROM {x}",
    "SELECT i // 2 AS g, SUM({x}.val) AS s FROM {x} GROUP BY i // 2",
    "SELECT i, k, SUM({x}.val * {y}.val) AS s FROM {x} JOIN {y} USING (j) GROUP BY i, k",
    "SELECT i, k, SUM(-2 * {x}.val * {y}.val) AS s FROM {x} JOIN {y} USING (j) GROUP BY i, k",
    "SELECT i, j, k, SUM({x}.val * {y}.val) AS s FROM {x} JOIN {y} USING (j) GROUP BY i, j, k",
    "SELECT {x}.i, v.k, SUM({x}.val * v.val) AS s FROM {x}, v GROUP BY {x}.i, v.k",
    "SELECT i, SUM({x}.val * {x}.val) AS s FROM {x} GROUP BY i",
    "SELECT {x}.i, SUM({x}.val * {y}.val * v.val) AS s FROM {x}, {y}, v "
    "WHERE {x}.j = {y}.j AND {y}.k = v.k GROUP BY {x}.i",
    "SELECT i, PRODUCT({x}.val) AS s FROM {x} WHERE j = 0 GROUP BY i",
]


def connection(dtype: type, jit: str, sites: int, chance: int) -> einsql.Connection:
    con = einsql.connect(config={"jit": jit, "sites": sites})
    rng = np.random.default_rng(chance)
    for name, (dims, shape) in SHAPES.items():
        # Zeros of either sign, and pairs that cancel.
        con.register(name, rng.choice([-0.0, -0.0, 0.0, 1, -1], shape).astype(dtype), tuple(dims))
    return con


def spelled(rows: list[tuple[Any, ...]], dtype: type) -> list[str]:
    """Rows in some order; FLOAT averages are FLOAT here, and DOUBLE in DuckDB."""
    return sorted(
        repr((*row[:-1], None if row[-1] is None else dtype(row[-1]))) for row in map(tuple, rows)
    )


@pytest.mark.parametrize(
    ("pair", "jit", "dtype"),
    combinations(
        [("x", "y"), ("row", "y"), ("row", "one"), ("wide", "high")],
        ["never", "always"],
        [np.float32, np.float64],
    ),
)
def test_a_zero_sum_has_duckdbs_sign(pair: tuple[str, str], jit: str, dtype: type) -> None:
    duck = duckdb.connect()
    cons = [connection(dtype, jit, sites, 3) for sites in (1, 3)]
    for name in SHAPES:
        rows = cons[0].execute(f"SELECT * FROM {name}").fetch_arrow_table()
        duck.register("rows", rows)
        duck.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
    for text in QUERIES:
        sql = text.format(x=pair[0], y=pair[1])
        if jit == "always" and "wide" in pair and "j, k" in sql:
            continue  # a big result says no more
        wanted = spelled(duck.execute(sql).fetchall(), dtype)
        for con in cons:
            got = spelled(con.execute(sql).fetchall(), dtype)
            assert got == wanted, (sql, con.settings.sites)


@pytest.mark.parametrize("jit", ["never", "always"])
def test_the_power_of_a_lone_negative_zero_is_positive(jit: str) -> None:
    con = einsql.connect(config={"jit": jit})
    con.register("x", np.array([-0.0]), ("i",))
    sql = "SELECT i, POW(SUM(val), -1) AS p FROM x GROUP BY i"
    assert con.execute(sql).fetchall() == [(0, float("inf"))]
