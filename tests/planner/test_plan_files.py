"""Plan files: exported plans come back, edited ones act, and wrong ones are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import einsql
from tests.engine.test_sites import QUERIES, connection
from tests.support.networks import FFNN, connected, ffnn, transformer
from tests.support.plan_files import cut_at_random, edit, export, recut, report
from tests.support.samples import sample

PRODUCT = QUERIES[0]
SUMS = "SELECT i, SUM(val) AS s FROM x GROUP BY i"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "p.json"


def first(content: dict[str, Any]) -> dict[str, Any]:
    """The first node of the first graph."""
    node: dict[str, Any] = content["graphs"][0]["nodes"][0]
    return node


# ---- round trips


@pytest.mark.parametrize("sql", sample(QUERIES[::8], QUERIES))
def test_an_exported_plan_comes_back_as_it_was(sql: str, path: Path) -> None:
    for strategy, sites in (("eindecomp", 2), ("eindecomp", 5), ("equal", 4), ("paper", 3)):
        con = connection(sites, strategy)
        before, rows = report(con, sql), con.execute(sql).fetchall()
        export(con, path, sql)
        text = path.read_text()
        con.execute(f"SET plan = '{path}'")
        assert report(con, sql) == before
        assert repr(con.execute(sql).fetchall()) == repr(rows)
        again = path.with_suffix(".again")
        export(con, again, sql)
        assert again.read_text() == text  # the plan is deterministic
        con.execute("SET strategy = 'data:nothing'")
        assert report(con, sql)["nodes"] == before["nodes"]  # the file precedes the strategy


@pytest.mark.parametrize(
    "strategy", sample(["eindecomp", "model"], ["eindecomp", "megatron", "model"])
)
def test_networks_with_copies_come_back(strategy: str, path: Path) -> None:
    tensors, layer = transformer(1)
    for con, sql in ((connected(ffnn(16, 12, 8, 10)), FFNN), (connected(tensors), layer)):
        con.execute(f"SET sites = 4; SET strategy = '{strategy}'")
        before = report(con, sql)
        nodes = export(con, path, sql)["graphs"][0]["nodes"]
        assert (max(n["copies"] for n in nodes) > 1) == (strategy != "eindecomp")
        con.execute(f"SET plan = '{path}'")
        assert report(con, sql) == before


def test_explain_names_the_file(path: Path) -> None:
    con = connection(4)
    export(con, path, PRODUCT)
    assert "plan_file" not in json.loads(con.explain(PRODUCT).to_json())
    con.execute(f"SET plan = '{path}'")
    summary = f"'{path}' cuts 2 of 2 operations"
    assert f"\nplan       {summary}\n" in str(con.explain(PRODUCT))
    assert json.loads(con.explain(PRODUCT).to_json())["plan_file"] == summary


def test_changes_and_create_tensor_have_plans(path: Path) -> None:
    con = connection(3)
    con.execute("CREATE TENSOR w AS SELECT * FROM x; CREATE TENSOR v AS SELECT * FROM y")
    update = (
        "UPDATE w SET val = w.val - 0.5 * g.val FROM (SELECT j, SUM(val) AS val FROM y GROUP BY j) "
        "AS g WHERE g.j = w.j"
    )
    twice = (
        "WITH a AS (UPDATE w SET val = 2 * w.val), b AS (UPDATE v SET val = 3 * v.val) "
        "SELECT SUM(val) AS s FROM x"
    )
    titles = {
        f"CREATE TENSOR t AS {SUMS}": ["SELECT"],
        update: ["UPDATE w"],
        twice: ["SELECT, UPDATE w, UPDATE v"],
        "INSERT OR REPLACE INTO w SELECT i, j, 2 * val FROM x": ["INSERT w"],
        f"{PRODUCT} ORDER BY v": ["SELECT 1"],
        f"CREATE TENSOR u AS SELECT i, v FROM ({SUMS.replace(' s ', ' v ')}) ORDER BY i": [
            "SELECT 1"
        ],
    }
    for sql, expected in titles.items():
        graphs = export(con, path, sql)["graphs"]
        assert [g["statement"] for g in graphs] == expected, sql
        before = str(con.explain(sql))
        con.execute(f"SET plan = '{path}'")
        shown = [line for line in str(con.explain(sql)).split("\n") if "plan       '" not in line]
        assert "\n".join(shown) == before
        con.execute(sql)
        assert con.notices == []
        con.execute("RESET plan")


# ---- edited plans


@pytest.mark.parametrize("sites", [2, 3, 5])
def test_an_edited_cut_changes_the_plan_and_keeps_the_answer(sites: int, path: Path) -> None:
    expected = connection().execute(PRODUCT).fetchall()
    con = connection(sites)
    export(con, path, PRODUCT)
    con.execute(f"SET plan = '{path}'; SET strategy = 'data:i'")
    for label in "ijk":
        cut = dict.fromkeys("ijk", 1) | {label: sites}
        recut(path, parts=cut, mesh=[label])
        assert con.execute(PRODUCT).fetchall() == expected
        node = report(con, PRODUCT)["nodes"][0]
        assert node["partition"] == cut
        assert node["placements"]["grid"] == [[label, sites]]
    order = [*reversed(range(sites))]
    recut(path, sites=order)
    assert con.execute(PRODUCT).fetchall() == expected
    assert report(con, PRODUCT)["nodes"][0]["cells"] == order


def test_the_mesh_orders_the_grid(path: Path) -> None:
    con = connection(8)
    export(con, path, PRODUCT)
    con.execute(f"SET plan = '{path}'")
    for mesh in (["k", "i", "j"], ["j", "k", "i"]):
        recut(path, parts={"i": 2, "j": 2, "k": 2}, mesh=mesh)
        node = report(con, PRODUCT)["nodes"][0]
        assert [label for label, _ in node["placements"]["grid"]] == mesh
    recut(path, parts={"i": 2, "j": 1, "k": 2}, copies=2, mesh=["*", "k", "i"])
    node = report(con, PRODUCT)["nodes"][0]
    assert (node["copies"], node["placements"]["grid"]) == (2, [["*", 2], ["k", 2], ["i", 2]])


@pytest.mark.parametrize("sql", sample(QUERIES[::8], QUERIES))
def test_random_cuts_give_the_answers_and_the_planned_bytes(sql: str, path: Path) -> None:
    chance = Random(QUERIES.index(sql))
    expected = connection().execute(sql).fetchall()
    for sites in sample((3,), (2, 3, 5)):
        con = connection(sites)
        content = export(con, path, sql)
        con.execute(f"SET plan = '{path}'")
        for _ in range(4):
            for node in content["graphs"][0]["nodes"]:
                cut_at_random(node, sites, chance)
            path.write_text(json.dumps(content))
            rows = con.execute(sql).fetchall()
            for row, wanted in zip(rows, expected, strict=True):
                assert row == pytest.approx(wanted, rel=1e-5), path.read_text()
            (text,) = con.execute(f"EXPLAIN (ANALYZE, FORMAT json) {sql}").fetchone() or ("{}",)
            analyzed = json.loads(text)
            sent = sum(s["bytes_sent"] for s in analyzed["per_site"])
            assert sent == analyzed["total"]["bytes_sent"]
            for node, shown in zip(content["graphs"][0]["nodes"], analyzed["nodes"], strict=True):
                assert node["parts"].items() <= shown["partition"].items()


def test_nodes_without_parts_are_planned_around_the_others(path: Path) -> None:
    con = connection(4)
    sql = QUERIES[1]  # a chain of two products
    labels = first(export(con, path, sql))["labels"]
    name = next(iter(labels))

    def one_cut(content: dict[str, Any]) -> None:
        nodes = content["graphs"][0]["nodes"]
        del nodes[1:]
        nodes[0] = {"name": nodes[0]["name"], "parts": dict.fromkeys(labels, 1) | {name: 4}}

    edit(path, one_cut)
    con.execute(f"SET plan = '{path}'")
    assert con.execute(sql).fetchall() == connection().execute(sql).fetchall()
    nodes = report(con, sql)["nodes"]
    assert nodes[0]["partition"][name] == 4
    assert nodes[1]["op"] == "contraction"
    assert np.prod(list(nodes[1]["partition"].values())) == 4
    assert f"cuts 1 of {len(nodes)} operations" in str(con.explain(sql))


def test_a_label_without_parts_is_cut_by_the_planner(path: Path) -> None:
    con = connection(4)
    export(con, path, PRODUCT)
    edit(path, lambda c: c["graphs"][0].update(nodes=[{"name": "r0", "parts": {"k": 2}}]))
    con.execute(f"SET plan = '{path}'")
    cut = report(con, PRODUCT)["nodes"][0]["partition"]
    assert cut["k"] == 2
    assert cut["i"] * cut["j"] == 2


# ---- the statement that a file is for


def test_a_file_acts_on_its_own_statement_and_others_get_one_notice(path: Path) -> None:
    con = connection(4)
    before = report(con, SUMS)
    export(con, path, PRODUCT)
    recut(path, parts={"i": 1, "j": 4, "k": 1}, mesh=["j"])
    con.execute(f"SET plan = '{path}'; {PRODUCT}; {SUMS}")
    (notice,) = con.notices
    assert f"'{path}' has no plan for this statement" in notice
    con.execute(SUMS)
    assert len(con.notices) == 1
    assert report(con, PRODUCT)["nodes"][0]["partition"]["j"] == 4
    other = report(con, SUMS)
    assert other.pop("notice") == notice
    assert other == before
    con.register("z", con.execute("FROM x").fetch_numpy(), dims=("a", "b"))
    renamed = "SELECT a, k, SUM(z.val * y.val) AS w FROM z JOIN y ON b = j GROUP BY a, k"
    assert list(report(con, renamed)["nodes"][0]["partition"].values()) == [1, 4, 1]
    assert con.execute(renamed).fetchall() == connection().execute(PRODUCT).fetchall()


def test_a_statement_of_several_plans_gets_one_notice(path: Path) -> None:
    con = connection(2)
    con.execute("CREATE TENSOR w AS SELECT * FROM x; CREATE TENSOR v AS SELECT * FROM y")
    export(con, path, PRODUCT)
    for sql in (
        "WITH a AS (UPDATE w SET val = 2 * w.val) UPDATE v SET val = 3 * v.val",
        f"SELECT * FROM ({SUMS} UNION ALL SELECT j, SUM(val) AS s FROM x GROUP BY j) ORDER BY s",
        "SELECT x.i, x.j, x.tile FROM TILES(x, 4, 2) x",
    ):
        con.execute(f"SET plan = '{path}'")
        con.execute(sql)
        (notice,) = con.notices
        assert f"'{path}' has no plan for" in notice
        con.notices.clear()
        con.execute(sql)
        assert con.notices == []


def test_a_file_for_other_sites_is_not_used(path: Path) -> None:
    con = connection(4)
    export(con, path, PRODUCT)
    con.execute(f"SET plan = '{path}'; SET sites = 3")
    con.execute(PRODUCT)
    (notice,) = con.notices
    assert f"'{path}' is for 4 sites, and there are 3" in notice
    assert report(con, PRODUCT)["nodes"] == report(connection(3), PRODUCT)["nodes"]


def test_one_site_accepts_a_file_and_does_not_use_it(path: Path) -> None:
    con = connection(1)
    expected = con.execute(PRODUCT).fetchall()
    content = export(con, path, PRODUCT)
    assert (content["sites"], first(content)["parts"]) == (1, {"i": 1, "j": 1, "k": 1})
    con.execute(f"SET plan = '{path}'")
    assert con.execute(PRODUCT).fetchall() == expected
    os.remove(path)
    assert con.execute(PRODUCT + " ").fetchall() == expected
    assert con.notices == []


def test_an_edit_acts_on_the_next_run_and_an_unchanged_file_plans_nothing(path: Path) -> None:
    con = connection(4)
    sql = "SELECT i, k, SUM(x.val * y.val * ?) AS v FROM x JOIN y USING (j) GROUP BY i, k"
    con.execute(f"EXPORT PLAN '{path}' FOR {sql}", [2.0])
    con.execute(f"SET plan = '{path}'")
    for factor in (1.0, 2.0, 3.0):
        calls = con.planner_calls
        rows = con.execute(sql, [factor]).fetchall()
        assert con.planner_calls == calls + (factor == 1.0)
        assert rows == connection().execute(sql, [factor]).fetchall()
    assert con.notices == []
    for parts in ({"i": 1, "j": 4, "k": 1}, {"i": 1, "j": 1, "k": 4}):
        recut(path, parts=parts, mesh=[*parts])
        calls = con.planner_calls
        assert con.execute(sql, [3.0]).fetchall() == rows
        assert con.planner_calls == calls + 1
    os.utime(path, ns=(0, 0))
    calls = con.planner_calls
    con.execute(sql, [3.0])
    con.execute(sql, [4.0])
    assert con.planner_calls == calls


def test_a_lost_file_is_an_error_until_it_is_back_or_reset(path: Path) -> None:
    con = connection(2)
    export(con, path, PRODUCT)
    con.execute(f"SET plan = '{path}'")
    content = path.read_text()
    path.unlink()
    with pytest.raises(einsql.OperationalError, match="cannot be read: No such file"):
        con.execute(PRODUCT)
    path.write_text(content)
    con.execute(PRODUCT)
    path.write_bytes(b"{\n\xff")
    with pytest.raises(einsql.OperationalError, match="line 2, byte 1 is no UTF-8"):
        con.execute(PRODUCT)
    con.execute("RESET plan")
    con.execute(PRODUCT)


# ---- ways to set a file


def test_a_connection_takes_the_file_as_a_setting(path: Path) -> None:
    con = connection(2)
    export(con, path, PRODUCT)
    with einsql.connect(config={"plan": str(path), "sites": 2}) as other:
        assert dict(other.execute("SHOW SETTINGS").fetchall())["plan"] == str(path)
    path.write_text("{")
    with pytest.raises(einsql.ProgrammingError, match="line 1, column 2"):
        einsql.connect(config={"plan": str(path)})
    with pytest.raises(einsql.OperationalError, match="cannot be read"):
        einsql.connect(config={"plan": f"{path}.none"})


def test_a_path_stays_where_it_was_when_it_was_set(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = connection(4)
    export(con, path, PRODUCT)
    monkeypatch.chdir(path.parent)
    con.execute("SET plan = 'p.json'")
    monkeypatch.chdir("/")
    recut(path, parts={"i": 1, "j": 4, "k": 1}, mesh=["j"])
    assert report(con, PRODUCT)["nodes"][0]["partition"]["j"] == 4


def test_einsum_takes_cuts_from_the_file(path: Path) -> None:
    con = connection(2)
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    export(con, path, PRODUCT)
    con.execute(f"SET plan = '{path}'")
    np.testing.assert_array_equal(con.einsum("ij,jk->ik", [a, b]), a @ b)
    edit(path, lambda c: c.update(sites=0))
    with pytest.raises(einsql.ProgrammingError, match="sites must be an integer"):
        con.einsum("ij,jk->ik", [a, b])
