"""EXPLAIN's sharded index notation, with each collective beside the term that it changes."""

from __future__ import annotations

from typing import Any

import numpy as np

import einsql
from tests.engine.test_sites import explained

PRODUCT = "SELECT b, f, SUM(x.val * w.val) AS val FROM x JOIN w USING (a) GROUP BY b, f"


def session(mesh: str, x: str, w: str) -> einsql.Connection:
    """A session with x[b:4, a:6] and w[a:6, f:8] under clauses of CREATE TENSOR."""
    con = einsql.connect(config={"mesh": mesh, "jit": "never"})
    for name, clauses, keys, shape in (("x", x, "ba", (4, 6)), ("w", w, "af", (6, 8))):
        con.register(f"{name}0", np.ones(shape, np.float32), dims=tuple(keys))
        con.execute(f"CREATE TENSOR {name} {clauses} AS SELECT * FROM {name}0")
    return con


def notation(report: dict[str, Any]) -> list[tuple[str, list[tuple[str, list[str], int]]]]:
    """The notation of all operations, with (collective, mesh axes, bytes)."""
    return [
        (
            line["text"],
            [(c["collective"], c["along"], c["bytes_sent"]) for c in line["collectives"]],
        )
        for node in report["nodes"]
        for line in node["notation"]
    ]


def test_weights_are_gathered_along_the_data_axis() -> None:
    con = session("data=2, model=2", "PARTITION BY (b data)", "PARTITION BY (a data, f model)")
    sql = PRODUCT.replace("SELECT b", "SELECT /*+ PARTITION(b=2, f=2) */ b")
    assert notation(explained(con, sql)) == [
        ("a_data f_model -> a f_model", [("all-gather", ["data"], 6 * 8 * 4)]),
        ("b_data a, a f_model -> b_data f_model", []),
        ("b_data f_model -> b_data f_model", []),
    ]
    text = "\n".join(row[0] for row in con.execute(f"EXPLAIN {sql}").fetchall())
    assert "     a_data f_model -> a f_model            all-gather over data 192 B\n" in text
    assert "     b_data a, a f_model -> b_data f_model\n" in text


def test_a_contracted_mesh_axis_is_reduced_and_scattered() -> None:
    con = session("model=4", "PARTITION BY (a model)", "PARTITION BY (a model)")
    con.execute("SET strategy = 'data:a'")
    lines = notation(explained(con, PRODUCT))
    assert lines[0] == (
        "b a_model, a_model f -> b_model f", [("reduce-scatter", ["model"], 3 * 4 * 8 * 4)],
    )  # fmt: skip


def test_axes_that_do_not_follow_the_mesh_are_numbered() -> None:
    con = session("data=3, model=2", "PARTITION BY (b data)", "PARTITION BY (f model)")
    report = explained(con, PRODUCT.replace("SELECT b", "SELECT /*+ PARTITION(b=2, f=3) */ b"))
    assert ("b_r0 a, a f_r1 -> b_r0 f_r1", []) in notation(report)
    con.execute("SET strategy = 'data:f'")
    lines = notation(explained(con, PRODUCT))
    assert lines[0] == ("b_data a -> b a", [("all-gather", ["data"], 4 * 4 * 6 * 4)])
    assert lines[2] == ("b a, a f_data_model -> b f_data_model", [])


def test_there_is_no_notation_without_a_mesh() -> None:
    con = session("model=4", "PARTITION BY (a model)", "PARTITION BY (a model)")
    con.execute("SET mesh = ''")
    assert all("notation" not in node for node in explained(con, PRODUCT)["nodes"])


def test_level_ia_shows_parts_without_values() -> None:
    con = einsql.connect(config={"mesh": "p=2, q=2"})
    con.register("t", np.arange(3.0).reshape(3, 1), dims=("b", "d"))
    sql = "SELECT * FROM EINSUM('b_p_q d -> b d', t, sharded := true)"
    assert "2x2 Shard(0, blocks), Shard(0, blocks)" in str(con.explain(sql, level="ia"))
    levels = con.explain(sql, level="program", verbose=True).to_dict()["levels"]
    assert set(levels) == {"einsum", "tra", "ia", "program"}


def test_level_ia_shows_several_cells_at_a_site() -> None:
    con = einsql.connect(config={"sites": 3, "strategy": "equal"})
    con.register("t", np.ones((4, 4)), dims=("i", "j"))
    sql = (
        "SELECT a.i, b.j, SUM(a.val * b.val) AS v FROM t a JOIN t b ON a.j = b.i GROUP BY a.i, b.j"
    )
    assert "of sites 0, 0, 0, 1, 1, 1, 2, 2" in str(con.explain(sql, level="ia"))


def test_level_ia_shows_every_version_that_a_site_reads_from() -> None:
    con = einsql.connect(config={"sites": 4, "strategy": "equal"})
    con.register("x", np.ones((4, 4)), dims=("i", "j"))
    con.execute("CREATE TENSOR a PARTITION BY (i 2) AS SELECT i, j, val FROM x")
    sql = "SELECT a.i, a.j, a.val + c.val AS v FROM a JOIN a c ON a.i = c.j AND a.j = c.i"
    text = str(con.explain(sql, level="ia"))
    assert "  repartition  r0 BY" in text
    assert "  repartition  r0, r1 BY" in text
