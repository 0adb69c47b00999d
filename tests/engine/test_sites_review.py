"""Cutting over sites at its edges: single values, pairs, wrong settings, changed settings."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import einsql
from tests.support.samples import combinations

CHANCE = np.random.default_rng(11)
A = CHANCE.integers(-8, 8, (13, 7)).astype(np.float32)
WEIGHTS = CHANCE.integers(-3, 3, (7, 12)).astype(np.float32)
PRODUCT = "SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"


def connection(sites: int = 1, strategy: str = "eindecomp") -> einsql.Connection:
    con = einsql.connect()
    con.register("a", A, dims=("i", "j"))
    con.register("b", np.ascontiguousarray(A.T), dims=("j", "k"))
    con.execute(f"SET sites = {sites}")
    con.execute(f"SET strategy = '{strategy}'")
    return con


def explained(con: einsql.Connection, sql: str, options: str = "") -> dict[str, Any]:
    (text,) = con.execute(f"EXPLAIN (FORMAT json{options}) {sql}").fetchone() or ()
    report: dict[str, Any] = json.loads(text)
    return report


@pytest.mark.parametrize(
    ("select", "sites"),
    combinations(["SUM(val) AS v", "COUNT(*) AS v", "ARG_MIN(i, val) AS v"], [2, 5, 16]),
)
def test_a_single_value_is_a_tensor_wherever_it_was_made(select: str, sites: int) -> None:
    made = []
    for con in (connection(), connection(sites)):
        con.execute(f"CREATE TENSOR s PARTITION BY () AS SELECT {select} FROM a")
        con.execute("UPDATE s SET v = v + 1")
        con.execute("CREATE TENSOR t AS SELECT i, j, val + v AS w FROM a, s")
        made.append(con.execute("SELECT i, j, w, v FROM t, s").fetchall())
    assert made[0] == made[1]


@pytest.mark.parametrize("strategy", ["paper", "equal", "data:i"])
def test_floats_bound_what_pairs_send(strategy: str) -> None:
    """A pair that is merged takes along what it is compared by, and whether there is any."""
    con = connection(8, strategy)
    report = explained(con, "SELECT ARG_MIN(i, j) AS v, ARG_MAX(j, i) AS w FROM a")
    assert 0 < report["total"]["bytes_sent"] <= 8 * report["total"]["floats_moved"]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SET site_memory = '0.4B'", "is no size"),
        ("SET network = '1e-320B/s'", "is no bandwidth"),
        ("SET flops_float = '1e-300'", "is no rate"),
        ("SET strategy = 'model:i,,k'", "is incomplete"),
        ("SET sites = ٣", "a number from 1"),
        (f"EXPLAIN (SITES 65537) {PRODUCT}", "65,537 sites are too many"),
        (f"EXPLAIN (COSTS off) {PRODUCT}", 'no option "COSTS"'),
        (f"EXPLAIN (FORMAT xml) {PRODUCT}", 'found "xml"'),
    ],
)
def test_wrong_values_are_refused_and_change_nothing(statement: str, reason: str) -> None:
    con = connection(4)
    before = con.execute("SHOW SETTINGS").fetchall()
    with pytest.raises(einsql.Error, match=reason):
        con.execute(statement)
    assert con.execute("SHOW SETTINGS").fetchall() == before


FUSED = (
    "WITH p AS (SELECT {inner} i, o, SUM(a.val * w.val) AS val FROM a JOIN w USING (j) "
    "GROUP BY i, o) "
)
"""A product whose key o is read digit by digit, which makes the digits labels of their own."""


@pytest.mark.parametrize(
    ("sql", "label", "parts"),
    [
        (FUSED + "SELECT p.i, h, d, p.val FROM p, range(3) h(h), range(4) d(d) "
         "WHERE p.o = h * 4 + d", "o", 2),
        (FUSED + "SELECT i, o // 4 AS h, SUM(val * val) AS v FROM p GROUP BY i, o // 4", "o", 3),
        ("SELECT {inner} i, o // 4 AS h, SUM(w.val) AS v FROM w JOIN a USING (j) "
         "GROUP BY i, o // 4", "o", 4),
        ("SELECT {inner} o // 4 AS h, MAX(val) AS v FROM w GROUP BY o // 4", "o", 2),
        ("SELECT {inner} o // 4 AS h, MAX(val) AS v FROM w GROUP BY o // 4", "j", 3),
        ("SELECT {inner} o % 4 AS h, MAX(val) AS v FROM w GROUP BY o % 4", "o", 1),
    ],
)  # fmt: skip
def test_a_hinted_key_is_cut_as_a_whole(sql: str, label: str, parts: int) -> None:
    text = sql.format(inner=f"/*+ PARTITION({label}={parts}) */")
    rows = []
    for con in (connection(), connection(5)):
        con.register("w", WEIGHTS, dims=("j", "o"))
        rows.append(sorted(con.execute(text).fetchall()))
    assert rows[0] == rows[1]
    nodes = explained(con, text)["nodes"]
    assert parts in [n["partition"].get(label) for n in nodes if label in n["hint"]]


@pytest.mark.parametrize("strategy", ["data:row", "Data: ROW", "model:row"])
def test_strategies_name_keys_as_sql_does(strategy: str) -> None:
    con = einsql.connect()
    con.register("t", A, dims=("Row", "col"))
    con.execute(f"SET strategy = '{strategy}'")
    node, *_ = explained(con, "SELECT row, SUM(val) AS s FROM t GROUP BY row", ", SITES 4")["nodes"]
    assert node["partition"] == {"Row": 4, "col": 1}
    # EINSUM tells i from I, and so do strategies then
    sql = "SELECT * FROM EINSUM('iI,Ik->ik', t, u)"
    con.register("u", A[:7], dims=("col", "k"))
    for label, other in ("iI", "Ii"):
        con.execute(f"SET strategy = 'data:{label}'")
        node, *_ = explained(con, sql, ", SITES 4")["nodes"]
        assert (node["partition"][label], node["partition"][other]) == (4, 1)
