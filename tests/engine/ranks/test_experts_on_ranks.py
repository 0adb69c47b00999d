"""Rows that are sent to the ranks of the experts that they choose, in messages of unequal sizes."""

from __future__ import annotations

import numpy as np
import pytest

import einsql
from tests.engine.ranks.conftest import Connected
from tests.engine.test_experts import (
    KEYS,
    QUERIES,
    arrays,
    assert_same,
    by_duckdb,
    hinted,
    report,
    rows_of,
)


@pytest.mark.parametrize(("route", "sites"), [("spread", 2), ("one", 5), ("none", 2)])
def test_ranks_answer_and_send_as_virtual_sites(
    connected: Connected, route: str, sites: int
) -> None:
    """Two ranks, with several sites each or with one."""
    given = arrays(route)
    con = connected(2)
    con.execute(f"SET sites = {sites}")
    virtual = einsql.connect(config={"sites": sites})
    for name, array in given.items():
        for some in (con, virtual):
            some.register(name, array, dims=tuple(KEYS[name]))
    for query in ("chain", "gated", "nulls"):
        sql = hinted(QUERIES[query], sites)
        wanted = by_duckdb(given, hinted(QUERIES[query], 1))
        for _ in range(3):  # from the second run on, steps run as generated functions
            assert_same(rows_of(con, sql), wanted)
        at_ranks, at_sites = (
            [s["bytes_sent"] for s in report(some, sql, "ANALYZE, FORMAT json")["per_site"]]
            for some in (con, virtual)
        )
        assert at_ranks == at_sites


def test_an_error_at_one_expert_ends_the_statement_at_all_ranks(connected: Connected) -> None:
    con = connected(2)
    con.register("r", np.array([0, 1, 2, 3]), dims=("i",))
    con.register("w", np.array([1, 2, 3, 2**62]), dims=("e",))
    sql = "SELECT /*+ PARTITION(w.e=2) */ r.i, w.val * 4 AS val FROM r JOIN w ON w.e = r.val"
    with pytest.raises(einsql.DataError, match="Overflow"):
        con.execute(sql)
    con.execute("SELECT r.i FROM r").fetchall()
