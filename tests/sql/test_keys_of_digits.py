"""Keys that a SELECT writes by their digits, beside DuckDB over the element rows."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import einsql

Y = np.arange(24.0).reshape(2, 12)


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    made = einsql.connect()
    made.register("y", Y, ("t", "o"))
    made.execute("SET fallback = off")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("items", "keys"),
    [
        ("t, o // 4 AS h, o % 4 AS d, val", "thd"),
        ("o % 5 AS d, t, o // 5 AS h, val + o AS v", "dth"),
        ("t, o // 6 AS a, (o // 2) % 3 AS b, o % 2 AS c, val", "tabc"),
        ("t, o // 6 AS a, o % 6 // 2 AS b, o % 2 AS c, val", "tabc"),
        ("t, o // 4 % 3 AS h, o % 4 AS d, val", "thd"),
        ("t, o // 4 AS h, o // 4 AS g, o % 4 AS d, val", "thd"),
        ("t, o // 4 AS h, o % 4 AS d, SUM(val) OVER (PARTITION BY t) AS v", "thd"),
        # not all digits, or other ones
        ("t, o // 4 AS h, val", ""),
        ("t, o // 4 AS h, o % 3 AS d, val", ""),
        ("t, o // 4 % 2 AS h, o % 4 AS d, val", ""),
        ("t, o // 4 AS h, o % 4 AS d, o, val", "to"),
    ],
)
@pytest.mark.parametrize("where", ["", "WHERE o > 2 AND o < 9", "WHERE val > 3 AND val < 17"])
def test_digits_that_cover_a_key_are_keys(
    con: einsql.Connection, items: str, keys: str, where: str
) -> None:
    sql = f"SELECT {items} FROM y {where}"
    oracle = duckdb.connect()
    oracle.execute(
        "CREATE TABLE y AS SELECT t, o, (t * 12 + o)::DOUBLE AS val "
        "FROM range(2) a(t), range(12) b(o)"
    )
    cursor = con.execute(sql)
    assert sorted(cursor.fetchall()) == sorted(oracle.execute(sql).fetchall())
    assert (cursor.key_names or ()) == tuple(keys)
    oracle.close()


def test_heads_are_a_view_and_a_tensor(con: einsql.Connection) -> None:
    heads = "SELECT t, o // 4 AS h, o % 4 AS d, val FROM y"
    array = con.execute(heads).fetch_numpy()
    np.testing.assert_array_equal(array, Y.reshape(2, 3, 4))
    assert np.shares_memory(array, Y)
    con.execute(f"CREATE TENSOR q AS {heads}")
    products = con.execute(
        f"SELECT q.h, q.t, k.t AS s, SUM(q.val * k.val) AS val FROM q JOIN ({heads}) k "
        "ON q.h = k.h AND q.d = k.d GROUP BY q.h, q.t, k.t"
    ).fetch_numpy()
    split = Y.reshape(2, 3, 4)
    np.testing.assert_array_equal(products, np.einsum("thd,shd->hts", split, split))
