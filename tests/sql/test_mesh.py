"""SET mesh, and PARTITION BY and REPLICATE OVER with the axes of a mesh."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import einsql
from tests.engine.test_sites import explained

PRODUCT = "SELECT b, f, SUM(x.val * w.val) AS val FROM x JOIN w USING (a) GROUP BY b, f"


def session(mesh: str = "data=2, model=4") -> einsql.Connection:
    con = einsql.connect(config={"mesh": mesh, "jit": "never"})
    chance = np.random.default_rng(5)
    for name, keys, shape in (("x0", "ba", (6, 5)), ("w0", "af", (5, 8))):
        con.register(name, chance.integers(-4, 5, shape).astype(np.float32), dims=tuple(keys))
    return con


def placement(con: einsql.Connection, name: str) -> str:
    return str(con.execute(f"DESCRIBE {name}").fetchall()[-1][-1])


def setting(con: einsql.Connection, name: str) -> str:
    return str(dict(con.execute("SHOW SETTINGS").fetchall())[name])


def test_a_mesh_sets_the_number_of_sites_if_there_is_one_site() -> None:
    con = einsql.connect()
    con.execute("SET mesh = 'Data=2, model=4'")
    assert (setting(con, "mesh"), setting(con, "sites")) == ("data=2, model=4", "8")
    con.execute("SET mesh = 'data=3'")  # the sites were those of the mesh
    assert setting(con, "sites") == "3"
    con.execute("SET sites = 6; SET mesh = 'row=2, column=3'; SET mesh = ''")
    assert (setting(con, "mesh"), setting(con, "sites")) == ("", "6")


@pytest.mark.parametrize(
    ("value", "reason", "hint"),
    [
        ("data=3, model=4", "12 points, but there are 4 sites", "'data=1, model=4' fits"),
        ("data=2, model=4", "8 points, but there are 4 sites", "'data=2, model=2' fits"),
        ("data", "cannot have the axis 'data'", "data=2, model=4"),
        ("data=0", "cannot have the axis", ""),
        ("d_a=4", "cannot have the axis 'd_a=4'", ""),
        ("data=2, data=2", 'two axes "data"', ""),
        ("data=90000", "90,000 points", "65,536"),
    ],
)
def test_a_wrong_mesh_is_refused(value: str, reason: str, hint: str) -> None:
    con = einsql.connect(config={"sites": 4})
    with pytest.raises(einsql.ProgrammingError, match=reason) as error:
        con.execute(f"SET mesh = '{value}'")
    assert hint in error.value.hint
    assert error.value.position is not None


@pytest.mark.parametrize(
    ("clauses", "shown"),
    [
        ("PARTITION BY (a data, f model)", "[Shard(a), Shard(f)]"),
        ("PARTITION BY (f model)", "[Replicate, Shard(f)]"),
        ("PARTITION BY (f model) REPLICATE OVER (data)", "[Replicate, Shard(f)]"),
        ("REPLICATE OVER (data, model)", "[Replicate, Replicate]"),
        ("PARTITION BY (f data model)", "[Shard(f), Shard(f)]"),
        # 8 pieces of 5 values: three are empty
        ("PARTITION BY (a model data)", "[StridedShard(a), Shard(a)]"),
    ],
)
def test_a_tensor_is_sharded_over_mesh_axes(clauses: str, shown: str) -> None:
    con = session()
    con.execute("CREATE TENSOR x PARTITION BY (b data) AS SELECT b, a, val FROM x0")
    con.execute(f"CREATE TENSOR w {clauses} AS SELECT a, f, val FROM w0")
    assert placement(con, "x") == "DeviceMesh(data=2, model=4) [Shard(b), Replicate]"
    assert placement(con, "w") == f"DeviceMesh(data=2, model=4) {shown}"
    rows = con.execute(PRODUCT).fetchall()
    report = explained(con, PRODUCT, "ANALYZE, ")
    for node in report["nodes"]:
        assert node["measured"]["bytes_sent"] == node["bytes_sent"]
    con.execute("SET sites = 1")
    assert con.execute(PRODUCT).fetchall() == rows
    assert not con.notices


def test_fsdp_and_tp_gather_the_weights_along_the_data_axis() -> None:
    con = session("data=2, model=2")
    con.execute("CREATE TENSOR x PARTITION BY (b data) AS SELECT b, a, val FROM x0")
    con.execute("CREATE TENSOR w PARTITION BY (f data model) AS SELECT a, f, val FROM w0")
    report = explained(con, PRODUCT.replace("SELECT b", "SELECT /*+ PARTITION(b=2, f=2) */ b"))
    moved = [c for n in report["nodes"] for c in n["collectives"] if c["bytes_sent"]]
    assert sum(c["bytes_sent"] for c in moved) == report["total"]["bytes_sent"] > 0
    con.execute("CREATE OR REPLACE TENSOR w PARTITION BY (f model) AS SELECT a, f, val FROM w0")
    report = explained(con, PRODUCT.replace("SELECT b", "SELECT /*+ PARTITION(b=2, f=2) */ b"))
    assert report["total"]["bytes_sent"] == 0


@pytest.mark.parametrize(
    ("clauses", "reason", "at"),
    [
        ("PARTITION BY (a modle)", 'data=2, model=4 has no axis "modle"', "modle"),
        ("PARTITION BY (a model, f 2)", "numbers of parts or over axes", "model"),
        ("PARTITION BY (a model, f model)", '"model" is named twice', "model)"),
        ("PARTITION BY (a model) REPLICATE OVER (model)", '"model" is named twice', "model) AS"),
        ("PARTITION BY (a data) REPLICATE (model)", "Expected OVER", "(model"),
        ("REPLICATE OVER ()", "Expected an axis", ") AS"),
        ("REPLICATE OVER (data) REPLICATE OVER (model)", "given twice", "REPLICATE OVER (m"),
        ("PARTITION BY (z model)", 'no key "z"', None),
    ],
)
def test_wrong_clauses_are_refused(clauses: str, reason: str, at: str | None) -> None:
    con, sql = session(), f"CREATE TENSOR w {clauses} AS SELECT a, f, val FROM w0"
    with pytest.raises(einsql.ProgrammingError, match=reason) as error:
        con.execute(sql)
    if at is not None:
        assert error.value.position == sql.index(at)


def test_a_declaration_is_kept_where_the_mesh_lacks_its_axis() -> None:
    con = session("rows=2")
    con.execute("SET sites = 1")
    con.execute("CREATE TENSOR w PARTITION BY (f model) AS SELECT a, f, val FROM w0")
    total = con.execute("SELECT SUM(val) FROM w").fetchall()
    assert not con.notices  # at one site nothing is placed
    con.execute("SET sites = 2")
    assert con.execute("SELECT SUM(val) FROM w").fetchall() == total
    assert con.notices == [
        'PARTITION BY (f model) of w has no effect: the mesh has no axis "model"'
    ]
    assert placement(con, "w") == ""
    con.execute("SET sites = 4")
    con.notices.clear()
    con.execute("SELECT SUM(val) FROM w")
    assert "the mesh rows=2 is without force at 4 sites" in con.notices[0]
    con.execute("SET mesh = ''")
    con.notices.clear()
    con.execute("SELECT SUM(val) FROM w")
    assert "SET mesh gives the sites no axes" in con.notices[0]
    con.execute("SET mesh = 'model=4'")
    assert placement(con, "w") == "DeviceMesh(model=4) [Shard(f)]"


def test_other_sites_leave_the_mesh_without_force() -> None:
    con = session()
    con.execute("SET sites = 3")
    assert con.notices == ["The mesh data=2, model=4 is without force at 3 sites"]


def test_the_declaration_lasts_in_files_and_changes(tmp_path: Path) -> None:
    path, folder = str(tmp_path / "d.db"), str(tmp_path / "out")
    clauses = "PARTITION BY (f data model) REPLICATE OVER (rack)"
    with einsql.connect(path) as con:
        con.execute(f"CREATE TENSOR w (a DIM(3), f DIM(8), val FLOAT) {clauses} DEFAULT 1")
        con.execute(f"EXPORT DATABASE '{folder}'")
    with einsql.connect(path, config={"mesh": "data=2, model=2, rack=2"}) as con:
        con.execute("UPDATE w SET val = val + a")
        shown = "DeviceMesh(data=2, model=2, rack=2) [Shard(f), Shard(f), Replicate]"
        assert placement(con, "w") == shown
        row = con.execute("SHOW TENSORS").fetchall()[0]
        assert row[4:6] == ("f data model; REPLICATE OVER (rack)", shown)
        assert con.execute("SELECT SUM(val) FROM w").fetchall() == [(8.0 * (1 + 2 + 3),)]
    with einsql.connect() as con:
        con.execute(f"IMPORT DATABASE '{folder}'")
        assert con.execute("SHOW TENSORS").fetchall()[0][4].startswith("f data model;")
