"""SQL over tiles on virtual sites: the same answers, the bytes that were predicted, EXPLAIN."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from mmap import mmap
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.explain.tile_report import measured
from einsql.planner.queries import bind_query
from einsql.planner.tile_plan import TilePlan
from einsql.storage.array_ownership import owner
from tests.sql.test_tiles import ERRORS, SAME, WORKED, X, Y
from tests.sql.test_tiles import con as con  # the fixture
from tests.sql.test_tiles_random import M, random_select
from tests.support.plans import cached, tree_of
from tests.support.samples import combinations, sample

SITES = (1, 2, 3, 4, 5, 8)
PRODUCT = (
    "SELECT x.i, y.k, tensor_sum(tensor_einsum('ij,jk->ik', x.tile, y.tile)) AS tile "
    "FROM TILES(x, ?, ?) x JOIN TILES(y, ?, ?) y ON x.j = y.j GROUP BY x.i, y.k"
)
DIAGONAL = (
    "SELECT i, tensor_diag(tile) AS tile FROM (SELECT x.i, x.j, x.tile + y.tile AS tile "
    "FROM TILES(u, 2, 2) x JOIN TILES(u, 2, 2) y USING (i, j)) WHERE i = j"
)


def product(i: int, j: int, k: int) -> str:
    parts = iter((i, j, j, k))
    return re.sub(r"\?", lambda _: str(next(parts)), PRODUCT)


def plan_of(con: einsql.Connection, sql: str) -> TilePlan:
    """The plan of a statement that ran just now."""
    plan = cached(con, sql)
    assert isinstance(plan, TilePlan)
    return plan


def rules(con: einsql.Connection, sql: str, sites: int = 4) -> list[str]:
    return [r["rule"] for r in con.explain(sql, verbose=True, sites=sites).to_dict()["rewrites"]]


# ---- the same answers


@pytest.mark.parametrize(
    ("parts", "sites"), combinations([(1, 1, 1), (2, 2, 2), (3, 2, 1), (7, 5, 3)], SITES)
)
def test_matrix_product_on_sites(
    con: einsql.Connection, sites: int, parts: tuple[int, ...]
) -> None:
    sql = product(*parts)
    alone = con.execute(sql).fetchall()
    con.execute(f"SET sites = {sites}")
    cursor = con.execute(sql)
    assert [row[:-1] for row in cursor.fetchall()] == [row[:-1] for row in alone]
    np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), X @ Y)
    told = con.explain(sql, analyze=True).to_dict()
    assert told["sites"] == len(told["per_site"]) == sites
    assert told["measured"]["bytes_sent"] == told["total"]["bytes_sent"]
    assert sum(s["bytes_received"] for s in told["per_site"]) == told["total"]["bytes_sent"]


def result(con: einsql.Connection, sql: str) -> Any:
    """What a statement gives, arrays as lists with their types, or how it fails."""
    try:
        rows = con.execute(sql).fetchall()
    except einsql.Error as error:
        return type(error), str(error)
    return [
        tuple((v.dtype, v.tolist()) if isinstance(v, np.ndarray) else v for v in row)
        for row in rows
    ]


STATEMENTS = [
    *WORKED.values(),
    *(tiles for tiles, _ in SAME),
    *(f"SELECT * FROM ELEMENTS(({tiles}))" for tiles, _ in SAME),
    "SELECT i, j, tile FROM TILES(u, 2, 2) WHERE i > 5",
    "SELECT tensor_sum(tile) AS t FROM TILES(u, 2, 2) WHERE i > 5",
    "SELECT i - 1 AS i, j, tile FROM TILES(u, 2, 2) WHERE i > 0",
    "SELECT a.i, b.j AS k, a.tile FROM TILES(u, 4, 1) a, TILES(u, 1, 4) b WHERE a.i < b.j",
    "SELECT i // 2 AS h, tensor_sum(tile) AS tile FROM TILES(u, 4, 1) GROUP BY h",
    "SELECT j, tensor_stack(tile, i, 0) AS tile FROM TILES(x, 3, 2) GROUP BY j",
    "SELECT i, j, tile FROM TILES(TILES(x, 3, 2), 2, 5)",
    "SELECT a.i, tensor_sum(a.tile) AS tile FROM TILES(u, 4, 1) a, TILES(y, 1, 3) b GROUP BY i",
    "SELECT e.i, tensor_mul(e.tile, 2) AS tile FROM TILES((SELECT i, SUM(val) AS v FROM "
    "ELEMENTS((SELECT i, j, tile * 2 AS tile FROM TILES((SELECT i, j, val + 1 AS v FROM x), 7, 1)))"
    " GROUP BY i), 3) e",
    *(sql for sql, *_ in ERRORS),
]


@pytest.mark.parametrize("disabled", ["", "RMM, BMM, CPMM, 3D, R2-1, R2-5, R2-6"])
def test_statements_give_the_same_on_three_sites(con: einsql.Connection, disabled: str) -> None:
    wanted = [result(con, sql) for sql in STATEMENTS]
    con.execute(f"SET sites = 3; SET disabled_rules = '{disabled}'")
    for sql, one in zip(STATEMENTS, wanted, strict=True):
        assert result(con, sql) == one, sql


def test_random_selects_on_sites_send_what_is_predicted() -> None:
    con = einsql.connect()
    con.register("m", M, ("i", "j"))
    for seed in range(1000, sample(1006, 1040)):
        sql, wanted = random_select(Random(seed))
        con.execute(f"SET sites = {SITES[1:][seed % 5]}")
        rows = con.execute(sql).fetchall()
        plan = plan_of(con, sql)
        inputs = bind_query(con.context, tree_of(sql)).inputs
        run = measured(plan, inputs, lambda done: None).run
        assert plan.program.sited is not None
        assert sum(run.sent) == plan.program.sited.cost.bytes_sent, sql
        assert list(run.blocks) == list(wanted) == sorted(wanted), sql
        assert [row[:-1] for row in rows] == list(wanted)
        for key, array in run.blocks.items():
            np.testing.assert_allclose(array, wanted[key], rtol=1e-12, err_msg=sql)


@pytest.mark.parametrize("disabled", ["", "R1-6"])
def test_blocks_that_a_filter_drops_are_not_made_on_sites(disabled: str) -> None:
    con = einsql.connect()
    con.execute(f"SET sites = 3; SET disabled_rules = '{disabled}'")
    con.register("m", np.array([[0, 2], [4, 0]]), ("i", "j"))
    kept = (
        "FROM TILES(m, 2, 2) a JOIN TILES(m, 2, 2) b ON a.i = b.i "
        "WHERE a.j < b.j + a.i * 2 AND a.j + b.j = 1 AND a.i <> 1"
    )
    rows = con.execute(f"SELECT a.i, a.j, b.j AS k, 8 // b.tile AS t {kept}").fetchall()
    assert rows == [(0, 0, 1, np.array([[4]]))]
    assert con.execute(f"SELECT tensor_sum(8 // b.tile) AS t {kept}").fetchall() == [
        (np.array([[4]]),)
    ]


# ---- plans


def test_plans_on_sites_are_kept_and_follow_settings(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w (i DIM(4), val FLOAT) DEFAULT 1")
    sql = "SELECT tensor_sum(tile) AS t FROM TILES(w, 4)"
    con.execute("SET sites = 2")
    con.execute(sql)
    plan, calls = plan_of(con, sql), con.planner_calls
    con.execute("UPDATE w SET val = 5 WHERE i = 0")
    assert con.execute(sql).fetchall()[0][0].tolist() == [8]
    assert (plan_of(con, sql), con.planner_calls) == (plan, calls + 1)  # UPDATE's own
    con.execute("SET sites = 3")
    con.execute(sql)
    sited = [p.program.sited for p in (plan, plan_of(con, sql))]
    assert [s.cost.sites for s in sited if s is not None] == [2, 3]


def test_declared_cuts_say_where_tiles_lie(con: einsql.Connection) -> None:
    for name, declared in (("rows", "i 2"), ("grid", "i 2, j 2"), ("copies", "")):
        con.execute(f"CREATE TENSOR {name} PARTITION BY ({declared}) AS SELECT i, j, val FROM u")
    grouped = "SELECT i, tensor_sum(tile) AS t FROM TILES({}, 2, 2) GROUP BY i"
    sent = {
        name: con.explain(grouped.format(name), sites=4).to_dict()["total"]["bytes_sent"]
        for name in ("rows", "grid", "copies", "u")
    }
    assert sent["rows"] == sent["copies"] == 0 < sent["grid"] == sent["u"]
    assert "at 2 Shard(0)" in str(con.explain(grouped.format("rows"), sites=4))


def test_rules_are_switched_off_by_name(con: einsql.Connection) -> None:
    sql = product(2, 2, 2)
    con.execute("SET sites = 4")
    first, text = rules(con, sql), str(con.explain(sql))
    con.execute(f"SET disabled_rules = '{first[0]}, share'")
    assert first[0] not in rules(con, sql)
    assert str(con.explain(sql)) != text
    np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), X @ Y)


def test_plans_of_very_many_blocks_stay_as_table_1_has_them(
    con: einsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("einsql.optimizer.tra.beam.MOST_ARRAYS", 100)
    con.execute("SET sites = 3")
    assert rules(con, product(7, 5, 3), 3) == []
    np.testing.assert_array_equal(con.execute(product(7, 5, 3)).fetch_numpy(), X @ Y)


def test_what_lies_in_a_mapped_file_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "z.npy"
    np.save(path, X)
    con = einsql.connect()
    con.execute("SET sites = 3")
    sql = f"SELECT d0, d1, tile FROM TILES('{path}', 3, 2) WHERE d1 = 1"
    blocks = [row[-1] for row in con.execute(sql).fetchall()]
    np.testing.assert_array_equal(np.concatenate(blocks), X[:, 3:])
    assert not any(isinstance(owner(a), mmap) for a in blocks)


def test_one_site_does_not_pay_for_several() -> None:
    script = """
import sys, numpy as np, einsql
con = einsql.connect()
con.register("u", np.ones((4, 4)), ("i", "j"))
con.execute("SELECT tensor_sum(tile) AS t FROM TILES(u, 2, 2)")
assert not any(m.startswith("einsql.optimizer.tra") for m in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# ---- EXPLAIN


def test_diagonal_of_a_sum_ends_in_the_join(con: einsql.Connection) -> None:
    assert {"R1-6", "R1-7"} <= set(rules(con, DIAGONAL))
    text = str(con.explain(DIAGONAL, verbose=True, sites=4))
    headings = [line for line in text.split("\n") if line.startswith("--")]
    assert headings[0].startswith("-- by Table 1: TRA cost ")
    assert [h.split()[1] for h in headings if ": " in h and " R" in h] == [
        f"{r}:" for r in rules(con, DIAGONAL)
    ]
    assert re.fullmatch(r"-- the cheapest of [\d,]+ plans", headings[-2])
    assert headings[-1] == "-- 4 sites: TRA cost 0, 0 floats moved, 0 bytes sent, 4 flops"
    plan = str(con.explain(DIAGONAL, sites=4))
    assert text.endswith(plan)
    assert "local join   r0<0, 1>, r0<0, 1> WHERE (k0 = k1)" in plan  # one scan of u
    assert "kernel     x0[i, i], x1[i, i] -> [i] (x0.val + x1.val)" in plan


def test_explain_has_a_text_and_a_value(con: einsql.Connection) -> None:
    sql = product(2, 2, 2)
    shown = con.execute(f"EXPLAIN (SITES 4) {sql}").fetchall()
    told = con.explain(sql, sites=4)
    assert "\n".join(row[0] for row in shown) == str(told)
    ((document,),) = con.execute(f"EXPLAIN VERBOSE (FORMAT json, SITES 4) {sql}").fetchall()
    report = json.loads(document)
    assert sorted(report) == ["parts", "plan", "rewrites", "sites", "table1", "total"]
    assert sorted(report["total"]) == ["bytes_sent", "floats_moved", "flops", "tra_cost"]
    assert report["plan"] == report["rewrites"][-1]["after"] == str(told).split("\n")[:-1]
    assert report["table1"]["total"]["tra_cost"] > report["total"]["tra_cost"]
    for site in range(4):
        assert re.search(
            rf"-- site {site}: [\d,]+ bytes sent, [\d,]+ received",
            str(con.explain(sql, sites=4, analyze=True)),
        )
    assert con.settings.sites == 1
    alone = con.explain(sql).to_dict()
    assert alone["total"] == {
        "tra_cost": 0, "floats_moved": 0, "bytes_sent": 0, "flops": report["total"]["flops"],
    }  # fmt: skip
    assert alone["sites"] == 1


def test_what_explain_of_tiles_lacks_is_named(con: einsql.Connection) -> None:
    sql = product(2, 2, 2)
    for option, part in (
        ("FORMAT svg", "has no svg"),
        ("FORMAT html", "has no html"),
        ("NETWORK '1Gbps'", "not seconds"),
        ("FLOPS '1G'", "not seconds"),
    ):
        with pytest.raises(einsql.NotSupportedError, match=part) as caught:
            con.execute(f"EXPLAIN ({option}) {sql}")
        assert caught.value.hint
    told = con.explain(sql)
    assert told._repr_html_().startswith("<pre>r0&lt;2, 2&gt;")
    for draw in (told.svg, told.html):
        with pytest.raises(einsql.NotSupportedError):
            draw()


def test_parts_on_sites_are_explained(con: einsql.Connection) -> None:
    sql = f"SELECT i, SUM(val) AS v FROM ELEMENTS(({product(2, 2, 2)})) GROUP BY i"
    con.execute("SET sites = 4")
    np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), (X @ Y).sum(axis=1))
    lines = str(con.explain(sql)).split("\n")
    assert lines[0] == "-- Q0"
    assert any(line.startswith("-- 4 sites: TRA cost") for line in lines)


def test_planning_can_be_cancelled() -> None:
    con = einsql.connect()
    con.register("x", np.ones((8, 8)), dims=("i", "j"))
    con.execute("SET sites = 4")
    con.progress = lambda fraction: con.interrupt()
    sql = (
        "SELECT x.i, y.j, tensor_sum(tensor_einsum('ij,jk->ik', x.tile, y.tile)) AS tile "
        "FROM TILES(x, 4, 4) x JOIN TILES(x, 4, 4) y ON x.j = y.i GROUP BY x.i, y.j"
    )
    with pytest.raises(einsql.InterruptedError):
        con.execute(sql)
    assert cached(con, sql) is None
    con.progress = None
    assert len(con.execute(sql).fetchall()) == 16
