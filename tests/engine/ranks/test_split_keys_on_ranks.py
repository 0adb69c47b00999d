"""Attention cut along its keys, on MPI ranks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.ranks.conftest import Connected
from tests.engine.test_split_keys import KEYS, SMALL, arrays, attention, by_duckdb, report, rows_of
from tests.support.samples import sample


@pytest.mark.parametrize("count", sample([4], [2, 4]))
def test_ranks_merge_the_parts_and_send_what_is_planned(connected: Connected, count: int) -> None:
    given = arrays(SMALL)
    con = connected(count)
    for name, array in given.items():
        con.register(f"{name}0", array, dims=("h", KEYS[name], "d"))
        cut = f"PARTITION BY (t {count})" if name in "kv" else ""
        con.execute(f"CREATE TENSOR {name} {cut} AS SELECT * FROM {name}0")
    for mask in ("", "WHERE k.t <= q.s"):
        sql = attention(mask, count)
        wanted = by_duckdb(given, attention(mask, None))
        np.testing.assert_allclose(rows_of(con, sql), wanted, rtol=2e-5, atol=2e-6)
        plan = report(con, sql, "ANALYZE, FORMAT json")
        assert plan["ranks"] == count
        assert sum(s["bytes_sent"] for s in plan["per_site"]) == plan["total"]["bytes_sent"]
