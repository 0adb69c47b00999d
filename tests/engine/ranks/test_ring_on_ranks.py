"""Attention whose keys pass around a ring of MPI ranks."""

from __future__ import annotations

import numpy as np
import pytest

import einsql
from tests.engine.ranks.conftest import Connected
from tests.engine.test_ring import around
from tests.engine.test_split_keys import (
    KEYS,
    MASKS,
    SMALL,
    arrays,
    attention,
    by_duckdb,
    report,
    rows_of,
)
from tests.support.samples import sample


def connected_to(
    connected: Connected, count: int
) -> tuple[einsql.Connection, dict[str, np.ndarray]]:
    con, given = connected(count), arrays(SMALL)
    for name, array in given.items():
        con.register(f"{name}0", array, dims=("h", KEYS[name], "d"))
        cut = f"PARTITION BY ({KEYS[name]} {count})"
        con.execute(f"CREATE TENSOR {name} {cut} AS SELECT * FROM {name}0")
    return con, given


@pytest.mark.parametrize("count", sample([4], [2, 4]))
def test_ranks_pass_the_keys_and_send_what_is_planned(connected: Connected, count: int) -> None:
    con, given = connected_to(connected, count)
    for mask in sample(("causal",), ("none", "causal")):
        sql = around(MASKS[mask], count)
        wanted = by_duckdb(given, attention(MASKS[mask], None))
        for _ in range(3):  # from the third run on, short steps are one function
            np.testing.assert_allclose(rows_of(con, sql), wanted, rtol=2e-5, atol=2e-6)
        plan = report(con, sql, "ANALYZE, FORMAT json")
        assert plan["ranks"] == count
        assert sum(s["bytes_sent"] for s in plan["per_site"]) == plan["total"]["bytes_sent"]


def test_one_rank_fails_between_the_start_and_the_end_of_a_transfer(connected: Connected) -> None:
    """The transfer is completed at all ranks, and the next statement finds no message of it."""
    con, given = connected_to(connected, 2)
    large = "SELECT h, s, d, CASE WHEN s = 0 THEN 1e30 ELSE 1.0 END * val AS val FROM q"
    con.execute(f"CREATE TENSOR large PARTITION BY (s 2) AS {large}")
    integers = "CAST(CAST(SUM(q.val * k.val) AS INTEGER) AS FLOAT)"  # fails at the first rank
    sql = around("", 2).replace("SUM(q.val * k.val) / 4", integers)
    with pytest.raises(einsql.DataError):
        con.execute(sql.replace("FROM q JOIN", "FROM large AS q JOIN")).fetchall()
    wanted = by_duckdb(given, attention("", None))
    np.testing.assert_allclose(rows_of(con, around("", 2)), wanted, rtol=2e-5, atol=2e-6)
