"""Attention whose keys pass around a ring of sites: answers, traffic, memory, work and schedule."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.engine.test_split_keys import (
    FUSED,
    MASKS,
    SMALL,
    Shape,
    arrays,
    attention,
    by_duckdb,
    connected,
    report,
    rows_of,
)
from tests.support.samples import sample, spread

SQUARE: Shape = (1, 512, 512, 16)
"""Queries and keys of one sequence."""
CAUSAL = MASKS["causal"]


def around(mask: str, sites: int, last: str = "") -> str:
    return attention(mask, sites, last).replace("PARTITION(", "RING(")


def site_of(nodes: list[dict[str, Any]]) -> set[int]:
    return {n["partition"]["ring"] for n in nodes if "ring" in n["partition"]}


@pytest.mark.parametrize(
    ("mask", "sites"), spread([*((m, 3) for m in MASKS), ("none", 2), ("causal", 4)], 3)
)
def test_rounds_merge_to_the_answer_of_all_keys(mask: str, sites: int) -> None:
    """The queries and keys of a site differ in number, and no length is a multiple of the sites."""
    given = arrays(SMALL)
    con = connected(given, sites, jit="never")
    wanted = by_duckdb(given, attention(MASKS[mask], None))
    np.testing.assert_allclose(
        rows_of(con, around(MASKS[mask], sites)), wanted, rtol=2e-5, atol=2e-6
    )


@pytest.mark.parametrize("sites", sample([2], [2, 4]))
def test_keys_and_values_of_a_site_are_two_blocks(sites: int) -> None:
    """One block is in use and one arrives; each block visits every other site once."""
    given = arrays(FUSED)
    con = connected(given, sites, jit="wait")
    sql = around("", sites)
    np.testing.assert_allclose(
        rows_of(con, sql), by_duckdb(given, attention("", None)), rtol=2e-5, atol=2e-6
    )
    plan = report(con, sql, "ANALYZE, FORMAT json")
    assert site_of(plan["nodes"]) == {sites}
    block = (given["k"].nbytes + given["v"].nbytes) / sites
    queries = 4 * given["q"].nbytes  # the queries, their state, a round's sums, and the result
    assert plan["total"]["memory"] < 2.01 * block + queries
    assert max(s["memory_measured"] for s in plan["per_site"]) < 2.01 * block + queries
    assert sum(s["bytes_sent"] for s in plan["per_site"]) == plan["total"]["bytes_sent"]
    turns = [n for n in plan["nodes"] if n["labels"].keys() & {"ring"} and n["bytes_sent"]]
    moved = sum(n["bytes_sent"] for n in turns if n["op"] == "map" and "t" in n["keys"][2])
    assert moved == pytest.approx((sites - 1) * sites * block, rel=0.01)


def test_causal_work_is_equal_at_all_sites() -> None:
    """Sites have an early and a late part; adjacent parts would leave the first site idle."""
    con = connected(arrays(SQUARE), 4, jit="wait")
    sql = around(CAUSAL, 4)
    for options in spread(["ANALYZE, FORMAT json", "FORMAT json, SITES 4"], 1):
        flops = [s["flops"] for s in report(con, sql, options)["per_site"]]
        assert max(flops) < 1.05 * min(flops)
    rows = report(
        con, attention(CAUSAL, None).replace("SELECT e.h", "SELECT /*+ PARTITION(e.s=4) */ e.h")
    )
    assert max(s["flops"] for s in rows["per_site"]) > 1.5 * min(
        s["flops"] for s in rows["per_site"]
    )


def test_a_repeated_statement_runs_its_short_steps_as_functions() -> None:
    """A group of steps with a large result runs on its own, behind a function with its operands."""
    given = arrays((1, 1024, 1024, 64))
    con = connected(given, 2, jit="wait")
    first, *later = [con.execute(around(CAUSAL, 2)).fetch_numpy() for _ in range(3)]
    for again in later:
        np.testing.assert_array_equal(again, first)


def test_a_transfer_starts_before_the_work_that_overlaps_with_it() -> None:
    con = connected(arrays(FUSED), 4, jit="wait")
    text = "\n".join(
        r[0] for r in con.execute("EXPLAIN (LEVEL program) " + around("", 4)).fetchall()
    )
    groups = [
        [int(n) for n in re.findall(r"s(\d+)", line)] for line in re.findall(r"together.*", text)
    ]
    posted = re.findall(
        r"^s(\d+) .*\n  exchange .* shift [\d,]+ bytes, posted before s(\d+)", text, re.MULTILINE
    )
    assert len(posted) == 6  # keys and values, three times
    for exchange, before in posted:
        assert any(int(before) <= g[0] and g[-1] < int(exchange) for g in groups)


def test_a_round_may_have_only_scores_of_minus_infinity() -> None:
    given = arrays(SMALL)
    given["k"][:, : SMALL[2] // 2] = np.inf  # with negative queries these scores are -infinity
    given["q"][:] = -np.abs(given["q"])
    wanted = by_duckdb(given, attention("", None))
    con = connected(given, 4, jit="never")
    np.testing.assert_allclose(rows_of(con, around("", 4)), wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "mask", "most"),
    [
        ((1, 1024, 1024, 32), CAUSAL, None),  # equal work takes less time than adjacent parts
        ((1, 4096, 4096, 32), "", "900KB"),  # neither all queries nor all keys of a site fit
    ],
)
def test_a_search_takes_a_ring(shape: Shape, mask: str, most: str | None) -> None:
    con = connected(arrays(shape), 4, jit="wait", cost="seconds")
    if most is not None:
        assert site_of(report(con, attention(mask, None))["nodes"]) == set()
        con.execute(f"SET site_memory = '{most}'")
    plan = report(con, attention(mask, None))
    assert site_of(plan["nodes"]) == {4}
    rows = report(con, attention(mask, 4).replace("e.t=", "e.s=")) if most is None else None
    assert rows is None or site_of(rows["nodes"]) == set()  # a hint for the queries is kept


def test_a_gradient_and_a_disabled_rule_leave_the_ring() -> None:
    given = arrays(SMALL)
    loss = ", l AS (SELECT SUM(val * val) AS val FROM o) SELECT * FROM GRADIENT(l, k)"
    con = connected(given, 3, jit="never")
    found = con.execute(around(CAUSAL, 3, " ").rstrip() + loss).fetch_numpy(fill=0)
    alone = connected(given, 1, jit="never")
    wanted = alone.execute(attention(CAUSAL, None, " ").rstrip() + loss).fetch_numpy(fill=0)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)
    con.execute("SET disabled_rules = 'ring-keys'")
    assert site_of(report(con, around(CAUSAL, 3))["nodes"]) == set()
