"""EXPLAIN (LEVEL …): the text of each level with its derivation, the JSON, and errors.

Refresh the golden texts with EINSQL_GOLDEN=1 pytest tests/explain/test_levels.py, and read the
difference.
"""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import einsql
from einsql.explain.level_text import MOST_NAMED
from einsql.optimizer.tra import RULES
from einsql.sql.parser.syntax import LEVELS
from tests.explain.test_plan_page import PRODUCT, SOFTMAX, network

GOLDEN = Path(__file__).parent / "levels"
WINDOW = """SELECT y.j, SUM(s.val * y.val) AS val FROM s, w AS y WHERE s.j = y.j + y.k
GROUP BY y.j"""
TILES = """SELECT x.i, y.k, tensor_sum(tensor_einsum('ij,jk->ik', x.tile, y.tile)) AS tile
FROM TILES(x, 2, 2) x JOIN TILES(y, 2, 2) y ON x.j = y.j GROUP BY x.i, y.k"""
PARTS = """SELECT i, k, val FROM ELEMENTS((SELECT x.i, y.k,
tensor_sum(tensor_einsum('ij,jk->ik', x.tile, y.tile)) AS tile
FROM TILES(x, 2, 2) x JOIN TILES(y, 2, 2) y ON x.j = y.j GROUP BY x.i, y.k))"""


@pytest.fixture
def con() -> einsql.Connection:
    connection = einsql.connect(config={"jit": "never"})
    connection.register("x", np.ones((16, 32), np.float32), ("i", "j"))
    connection.register("y", np.ones((32, 8), np.float32), ("j", "k"))
    connection.register("s", np.ones((66,), np.float32), ("j",))
    connection.register("w", np.ones((64, 3), np.float32), ("j", "k"))
    return connection


@pytest.mark.parametrize(
    ("name", "sql", "sites"),
    [
        ("product", PRODUCT, 4),
        ("softmax", SOFTMAX, 4),
        ("window", WINDOW, 4),
        ("tiles", TILES, 4),
        ("one_site", PRODUCT, 1),
        ("one_site_tiles", TILES, 1),
    ],
)
def test_the_levels_are_golden(con: einsql.Connection, name: str, sql: str, sites: int) -> None:
    texts = []
    for level in LEVELS:
        if "TILES" in sql and level == "einsum":
            continue  # their first level is tra
        plan = con.explain(sql, sites=sites, level=level, verbose=True)
        texts.append(f"==== {level}\n{plan}\n")
        assert str(con.explain(sql, sites=sites, level=level)) in str(plan)
    text = "".join(texts)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("EINSQL_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


# ---- the JSON


def test_the_json_has_the_asked_level(con: einsql.Connection) -> None:
    for level in LEVELS:
        (row,) = con.execute(f"EXPLAIN (LEVEL {level}, SITES 4, FORMAT json) {PRODUCT}").fetchall()
        report = json.loads(row[0])
        assert list(report["levels"]) == [level]
        assert "derivation" not in report["levels"][level]
        assert report == con.explain(PRODUCT, sites=4, level=level).to_dict()
    assert "levels" not in con.explain(PRODUCT, sites=4, verbose=True).to_dict()


def test_verbose_json_has_every_level_and_derivation(con: einsql.Connection) -> None:
    levels = con.explain(PRODUCT, sites=4, level="ia", verbose=True).to_dict()["levels"]
    assert tuple(levels) == LEVELS
    for level in levels.values():
        ids = [node["id"] for node in level["nodes"]]
        for n, node in enumerate(level["nodes"]):
            assert set(node["reads"]) <= set(ids[:n])
            assert any(node["relation"] in line for line in level["text"])
    cuts = levels["tra"]["derivation"]
    assert (cuts["source"], cuts["strategy"], cuts["unit"]) == ("einsum", "eindecomp", "floats")
    assert cuts["cost"] <= min(cuts["strategies"].values())
    (product, _) = cuts["choices"]
    assert product["nodes"] == ["r0"]
    assert product["taken"]["cost"] <= product["runners_up"][0]["cost"]
    assert product["viable"] == product["others"] + 1
    steps = levels["program"]["derivation"]["steps"]
    made = sorted(step for became in steps.values() for step in became)
    assert made == sorted(node["id"] for node in levels["program"]["nodes"])


@pytest.mark.parametrize("sites", [1, 2, 4])
def test_every_step_of_tiles_comes_from_a_node_of_the_plan(
    con: einsql.Connection, sites: int
) -> None:
    sql = "SELECT x.i, x.j, x.tile FROM TILES(x, 4, 2) x WHERE x.i < 3" if sites == 1 else TILES
    levels = con.explain(sql, sites=sites, level="program", verbose=True).to_dict()["levels"]
    derived = levels["program"]["derivation"]
    assert derived["source"] == "ia"
    assert list(derived["steps"]) == [node["id"] for node in levels["ia"]["nodes"]]
    made = sorted(step for became in derived["steps"].values() for step in became)
    assert made == sorted(node["id"] for node in levels["program"]["nodes"])
    sent = {node["id"]: node["bytes_sent"] for node in levels["program"]["nodes"]}
    assert sum(sent.values()) == sum(node["bytes_sent"] for node in levels["ia"]["nodes"])


def test_rules_have_the_bytes_before_and_after(con: einsql.Connection) -> None:
    level = con.explain(TILES, sites=4, level="ia", verbose=True).to_dict()["levels"]["ia"]
    rules = level["derivation"]["rules"]
    assert rules[-1]["bytes_after"] == sum(node["bytes_sent"] for node in level["nodes"])
    for rule, following in pairwise(rules):
        assert rule["bytes_after"] == following["bytes_before"]


def test_rules_that_are_disabled_do_not_fire(con: einsql.Connection) -> None:
    names = ", ".join(rule.name for rule in RULES)
    con.execute(f"SET disabled_rules = '{names}'")
    plan = con.explain(TILES, sites=4, level="ia", verbose=True)
    assert plan.to_dict()["levels"]["ia"]["derivation"]["rules"] == []
    assert "\nno rule gives another plan\n" in str(plan)


def test_equal_choices_are_shown_once() -> None:
    con, sql = network(8)
    plan = con.explain(sql, sites=4, level="tra", verbose=True)
    choices = plan.to_dict()["levels"]["tra"]["derivation"]["choices"]
    count = len(plan.to_dict()["nodes"])
    assert sum(len(choice["nodes"]) for choice in choices) == count
    assert len(choices) <= 6 < count
    assert re.search(rf"(r\d+, ){{{MOST_NAMED - 1}}}r\d+ and \d more", str(plan))


def test_costs_are_in_the_unit_of_the_objective(con: einsql.Connection) -> None:
    con.execute("SET cost = 'seconds'")
    plan = con.explain(PRODUCT, sites=4, level="tra", verbose=True)
    assert plan.to_dict()["levels"]["tra"]["derivation"]["unit"] == "seconds"
    assert re.search(r"^total .* µs  by eindecomp$", str(plan), re.MULTILINE)


def test_rules_that_changed_a_cut_follow_the_choices() -> None:
    con = einsql.connect(config={"cost": "seconds", "jit": "never"})
    for name, first, second, shape, parts in (
        ("a", "i", "j", (32, 96), "i 2, j 4"),
        ("b", "j", "k", (96, 128), "j 1, k 4"),
        ("c", "k", "l", (128, 64), "k 1, l 1"),
    ):
        con.register(f"{name}_rows", np.ones(shape))
        con.execute(
            f"CREATE TENSOR {name} PARTITION BY ({parts}) AS "
            f"SELECT d0 AS {first}, d1 AS {second}, val FROM {name}_rows"
        )
    sql = """WITH p AS (SELECT a.i, b.k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j)
    GROUP BY a.i, b.k) SELECT p.i, c.l, SUM(p.val * c.val) AS val FROM p JOIN c USING (k)
    GROUP BY p.i, c.l"""
    plan = con.explain(sql, sites=6, level="tra", verbose=True)
    (rule,) = plan.to_dict()["levels"]["tra"]["derivation"]["rules"]
    assert (rule["rule"], rule["nodes"], rule["new"]) == ("BMM", ["r0"], {"i": 2, "j": 1, "k": 1})
    assert rule["bytes_after"] == plan.to_dict()["total"]["bytes_sent"] < rule["bytes_before"]
    assert "\nBMM: X·Y = " in str(plan)
    assert "\n  r0: i:2 k:3 becomes i:2; " in str(plan)


def test_a_load_belongs_to_the_operation_that_needs_it(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR t PARTITION BY (i 2, j 2) AS SELECT i, j, val FROM x")
    plan = con.explain("SELECT i, j, val FROM t", sites=4, level="program", verbose=True)
    assert "\nr0 -> s0 load, s1 local\n" in str(plan)


# ---- other statements and options


def test_groups_of_operations_are_shown_at_the_program() -> None:
    con = einsql.connect(config={"jit": "always"})
    con.register("x", np.ones((1024, 1024), np.float32), ("i", "j"))
    (step,) = str(con.explain(SOFTMAX, level="program")).split("\n")
    assert step.startswith("s0 r3 := group(x)")
    assert "of r0..r3" in step
    assert str(con.explain(SOFTMAX, level="program", sites=2)).count("together s") == 1


def test_a_program_beyond_the_memory_says_that_it_spills() -> None:
    con = einsql.connect(config={"memory_limit": "4MB", "jit": "never"})
    con.execute("CREATE TENSOR t AS SELECT i, 1.5::FLOAT AS val FROM range(200000) AS r(i)")
    sql = "SELECT a.i, a.val + b.val AS val FROM t a JOIN t b ON b.i = 199999 - a.i"
    assert "-- spills: the steps take" not in str(con.explain("SELECT 1", level="program"))
    assert "-- spills: the steps take" in str(con.explain(sql, level="program"))


@pytest.mark.parametrize("sites", [1, 2])
def test_the_program_of_analyze_has_measures(con: einsql.Connection, sites: int) -> None:
    plan = con.explain(PRODUCT, sites=sites, level="program", analyze=True)
    steps = [line for line in str(plan).split("\n") if re.match(r"s\d", line)]
    assert steps
    assert all(re.search(r"  \d+\.\d{3} ms  ", line) for line in steps)


def test_several_changes_show_the_level_of_their_one_plan(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR t (i DIM(16), val FLOAT); CREATE TENSOR u (i DIM(16), val FLOAT)")
    sql = """WITH a AS (INSERT INTO t SELECT i, SUM(val) AS val FROM x GROUP BY i)
    INSERT INTO u SELECT i, MAX(val) AS val FROM x GROUP BY i"""
    text = str(con.explain(sql, level="program"))
    assert text.startswith("s0 ")
    assert text.endswith("-- roots\nr1  INSERT t\nr3  INSERT u")
    for sites in (1, 2):
        for level in LEVELS:
            report = con.explain(sql, level=level, verbose=True, sites=sites).to_dict()
            assert tuple(report["plan"]["levels"]) == LEVELS


def test_parts_that_run_first_precede_the_level(con: einsql.Connection) -> None:
    text = str(con.explain(PARTS, level="program", sites=4))
    assert text.startswith("-- Q0\n")
    assert "-- elements\ns0 " in text


def test_fragments_of_other_statements_have_levels(con: einsql.Connection) -> None:
    plan = con.explain(f"SELECT * FROM ({PRODUCT}) ORDER BY v LIMIT 3", level="tra")
    (fragment,) = plan.to_dict()["fragments"]
    assert list(fragment["plan"]["levels"]) == ["tra"]
    assert "  scan         x[i:16, j:32]" in str(plan)


def test_the_page_shows_the_level(con: einsql.Connection) -> None:
    page = con.explain(PRODUCT, level="tra").html()
    assert "  scan         x[i:16, j:32]" in page
    assert '<details class="block" open><summary>Text</summary>' in page
    shut = '<details class="block"><summary>Text</summary>'
    assert shut in con.explain(PRODUCT).html()


# ---- errors


@pytest.mark.parametrize(
    ("options", "message", "hint", "at"),
    [
        ("LEVEL trs", 'A plan has no level "trs"', 'Did you mean "tra"?', "trs"),
        ("LEVEL", "Expected a level", "Write LEVEL einsum or tra", ")"),
        ("LEVEL, SITES 4", "Expected a level", "Write LEVEL einsum or tra", ","),
        ("LEVEL 'spmd'", 'A plan has no level "spmd"', "Known levels: einsum", "'spmd'"),
        ("LEVEL tra, LEVEL ia", "LEVEL is given twice", "", "LEVEL ia"),
        ("LEVELS tra", 'EXPLAIN has no option "LEVELS"', 'Did you mean "LEVEL"?', "LEVELS"),
    ],
)
def test_wrong_levels(
    con: einsql.Connection, options: str, message: str, hint: str, at: str
) -> None:
    sql = f"EXPLAIN ({options}) {PRODUCT}"
    with pytest.raises(einsql.ProgrammingError, match=re.escape(message)) as caught:
        con.execute(sql)
    assert hint in (caught.value.hint or "")
    assert caught.value.position == sql.index(at, len("EXPLAIN ("))


def test_an_option_without_parentheses_is_refused(con: einsql.Connection) -> None:
    with pytest.raises(einsql.ProgrammingError, match="need parentheses"):
        con.execute(f"EXPLAIN LEVEL tra {PRODUCT}")


def test_a_plan_over_tiles_begins_at_its_algebra(con: einsql.Connection) -> None:
    with pytest.raises(einsql.NotSupportedError, match="no level einsum") as caught:
        con.explain(TILES, level="einsum", sites=4)
    assert "LEVEL tra" in caught.value.hint
    levels = con.explain(TILES, level="ia", sites=4, verbose=True).to_dict()["levels"]
    assert list(levels) == ["tra", "ia", "program"]
    sent = sum(node["bytes_sent"] for node in levels["program"]["nodes"])
    assert sent == sum(node["bytes_sent"] for node in levels["ia"]["nodes"])
