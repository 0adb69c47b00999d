"""Stored tensors that lie somewhere: a plan starts from there, whatever the placement is."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import einsql
from einsql.ir.layout import (
    Layout,
    Mesh,
    Replicate,
    Shard,
    Single,
    Tiles,
    covers,
    describe,
    described,
    layout_of,
)
from einsql.ir.partition import Parts
from einsql.optimizer.decomposition.problem import nearest_cut
from einsql.planner.plan import Plan
from einsql.storage.objects import Tensor
from tests.engine.test_sites import QUERIES, TENSORS, connection, explained
from tests.support.placed_tensors import lay, on_mesh, random_layout, random_tiles
from tests.support.plans import cached
from tests.support.samples import sample

PRODUCT = "SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"
N = 64


def traffic(con: einsql.Connection, sql: str) -> int:
    """The bytes that a run sends, which are those that were predicted."""
    report = explained(con, sql, "ANALYZE, ")
    sent = sum(s["bytes_sent"] for s in report["per_site"])
    assert sent == report["total"]["bytes_sent"]
    assert [n["measured"]["bytes_sent"] for n in report["nodes"]] == [
        n["bytes_sent"] for n in report["nodes"]
    ]
    return int(sent)


@pytest.mark.parametrize("seed", sample((0, 1, 2, 5, 7), range(8)))  # each strategy and cost
def test_any_placement_of_the_inputs_gives_the_same_answers(seed: int) -> None:
    chance = random.Random(seed)
    sites = chance.choice([2, 3, 4, 6, 8, 12])
    con = connection(sites, chance.choice(["eindecomp", "exact", "paper", "equal", "data:i"]))
    con.execute(f"SET cost = '{chance.choice(['floats', 'seconds'])}'")
    for name, (dims, array) in TENSORS.items():
        lay(con, name, dims, array, random_tiles(chance, sites, array.shape), sites)
    single = connection()
    for sql in chance.sample(QUERIES, sample(3, 8)):
        rows, wanted = con.execute(sql).fetchall(), single.execute(sql).fetchall()
        assert len(rows) == len(wanted)
        for row, expected in zip(rows, wanted, strict=True):
            assert row == pytest.approx(expected, rel=1e-5), sql
        traffic(con, sql)


def test_a_result_is_read_where_it_was_left() -> None:
    sites = 8
    con = einsql.connect()
    con.execute(f"SET jit = 'never'; SET sites = {sites}")
    a, b = (np.arange(N * N, dtype=np.float32).reshape(N, N) % 7 - shift for shift in (2, 3))
    con.register("a", a, dims=("i", "j"))
    con.register("b", b, dims=("j", "k"))
    product = np.asarray(con.execute(PRODUCT).fetch_numpy())
    plan = cached(con, PRODUCT)
    assert isinstance(plan, Plan)
    assert plan.placed is not None
    lay(con, "c", "ik", product, plan.placed.steps[plan.placed.roots[0]].tiles, sites)
    scaled = "SELECT i, k, val * 2 AS val FROM c"
    assert traffic(con, scaled) == 0
    # Merged by both sites of each pair, which are in the middle of the mesh.
    assert con.execute("DESCRIBE c").fetchall()[-1][-1] == (
        "DeviceMesh(r0=2, r1=2, r2=2) [Shard(i), Shard(i), Shard(k)]"
    )
    assert traffic(con, "SELECT i, SUM(val) AS val FROM c GROUP BY i") == N * 4
    np.testing.assert_array_equal(con.execute(scaled).fetch_numpy(), 2 * a @ b)
    # A declared cut does not count where it is known how the tensor lies.
    stored = con.store.get("c")
    assert isinstance(stored, Tensor)
    con.store.put(replace(stored, partition=Parts((8, 1), (0, 1))))
    assert traffic(con, scaled) == 0


def test_a_product_of_what_lies_as_it_is_needed_sends_nothing() -> None:
    con = einsql.connect()
    con.execute("SET jit = 'never'; SET sites = 6; SET strategy = 'exact'")
    # Rows of a over r1, in two copies; columns of b over r0, three copies of each.
    mesh = Mesh((("r0", 2), ("r1", 3)))
    for name, dims, placed in (
        ("a", "ij", (Replicate(), Shard(0))),
        ("b", "jk", (Shard(1), Replicate())),
    ):
        ones = np.ones((N, N), np.float32)
        lay(con, name, dims, ones, on_mesh(Layout(mesh, placed), ones.shape), 6)
    hinted = PRODUCT.replace("SELECT", "SELECT /*+ PARTITION(i=3, k=2) */")
    assert traffic(con, hinted) == 0


def test_what_stays_whole_runs_where_its_data_lies() -> None:
    con = einsql.connect()
    con.execute("SET jit = 'never'; SET sites = 4; SET cost = 'seconds'")
    ones, whole = np.ones((N, N), np.float32), np.array([[[0, N], [0, N]]])
    lay(con, "a", "ij", ones, Tiles(np.array([3]), whole), 4)
    con.register("b", ones, dims=("j", "k"))
    sql = f"SELECT k, SUM(val) AS val FROM ({PRODUCT}) AS c GROUP BY k"
    assert traffic(con, sql) == 0
    report = explained(con, sql, "ANALYZE, ")
    assert [set(n["partition"].values()) for n in report["nodes"]] == [{1}] * 3
    assert [s["flops"] > 0 for s in report["per_site"]] == [False, False, False, True]
    con.execute("SET cost = 'floats'")
    assert traffic(con, sql) > 0


def test_collectives_start_from_where_tensors_lie() -> None:
    con = einsql.connect()
    con.execute("SET jit = 'never'; SET sites = 4; SET strategy = 'data:i'")
    ones = np.ones((N, N), np.float32)
    con.register("a", ones, dims=("i", "j"))
    rows = on_mesh(Layout(Mesh((("r0", 4),)), (Shard(0),)), ones.shape)
    found = []
    for tiles in (
        rows,  # a copy everywhere is put together from four blocks of rows
        Tiles(rows.sites, rows.boxes),  # the same, which is found out
        Tiles(np.array([0]), np.array([[[0, N], [0, N]]])),
        on_mesh(Layout(Mesh((("r0", 4),)), (Replicate(),)), ones.shape),
    ):
        lay(con, "b", "jk", ones, tiles, 4)
        node = explained(con, PRODUCT)["nodes"][0]
        found.append([(c["collective"], c["bytes_sent"]) for c in node["collectives"]])
        traffic(con, PRODUCT)
    size = N * N * 4
    assert found == [
        [("all-gather", 3 * size)], [("all-gather", 3 * size)], [("broadcast", 3 * size)], []
    ]  # fmt: skip


def test_a_changed_placement_is_a_new_plan() -> None:
    con = einsql.connect()
    con.execute("SET jit = 'never'; SET sites = 4")
    array = np.arange(16, dtype=np.float32)
    sql = "SELECT SUM(val) AS s FROM x"
    layout = Layout(Mesh((("r0", 4),)), (Shard(0),))
    plans = []
    for entry in (Shard(0), Shard(0), Single()):
        tiles = on_mesh(replace(layout, placed=(entry,)), array.shape)
        lay(con, "x", "i", array, tiles, 4)
        assert con.execute(sql).fetchall() == [(120.0,)]
        plans.append(cached(con, sql))
    assert plans[0] is plans[1]
    assert plans[1] is not plans[2]
    con.register("y", array, dims=("i",))
    lay(con, "x", "i", array, on_mesh(layout, array.shape), 4)
    before = con.store.version
    con.execute("UPDATE x SET val = x.val + 1")  # it lies nowhere any more
    assert con.store.version > before


def test_describe_says_where_a_tensor_lies_without_putting_it_together() -> None:
    con = einsql.connect()
    con.execute("SET sites = 8")
    array = np.zeros((8, 6), np.float32)
    mesh = Mesh((("r0", 2), ("r1", 4)))
    tiles = on_mesh(Layout(mesh, (Shard(0), Replicate())), array.shape)
    fields = lay(con, "w", "ij", array, tiles, 8)
    text = "DeviceMesh(r0=2, r1=4) [Shard(i), Replicate]"
    assert con.execute("DESCRIBE w").fetchall() == [
        ("i", "BIGINT", "8", "", "", ""),
        ("j", "BIGINT", "6", "", "", ""),
        ("val", "FLOAT", "", "", "dense", text),
    ]
    assert con.execute("SHOW TENSORS").fetchall() == [
        ("w", "i:8, j:6", "val FLOAT", 8 * 6 * 4, "", text, "dense", 48, 1.0)
    ]
    con.execute("EXPLAIN SELECT SUM(val) AS s FROM w")
    assert fields.asked == 0
    con.execute("CREATE TENSOR v (i DIM(8), j DIM(6), val FLOAT) PARTITION BY (j 2, i 4)")
    declared = con.execute("DESCRIBE v").fetchall()[-1]
    assert declared[-1] == "DeviceMesh(r0=2, r1=4) [Shard(j), Shard(i)]"
    con.execute("SET sites = 1")
    assert con.execute("DESCRIBE v").fetchall()[-1] == ("val", "FLOAT", "", "", "dense", "")
    assert con.execute("DESCRIBE w").fetchall()[-1] == ("val", "FLOAT", "", "", "dense", text)


def test_dtensor_terms() -> None:
    mesh = Mesh((("", 2), ("i", 1), ("*", 3), ("", 2)))
    layout = Layout(mesh, (Shard(1, depth=1), Shard(0), Replicate(), Shard(1)))
    assert describe(layout, ("i", "j")) == (
        "DeviceMesh(r0=2, r1=3, r2=2) [StridedShard(j), Replicate, Shard(j)]"
    )
    assert describe(Layout(Mesh((("", 3),)), (Single(),)), ()) == "DeviceMesh(r0=3) [Single]"
    boxes = np.array([[[0, 1]], [[1, 2]], [[2, 3]]])
    assert described(Tiles(np.array([2, 0, 2]), boxes), 3, {"i": 3}) == "3 tiles at 2 sites"
    assert described(Tiles(np.array([1]), boxes[:1]), 3, {"i": 1}) == "1 tile at 1 site"


def test_a_mesh_is_recognised_from_bare_tiles() -> None:
    chance = random.Random(5)
    for _ in range(300):
        sites, rank = chance.choice([1, 2, 3, 4, 6, 8, 12, 16]), chance.randint(0, 3)
        shape = tuple(chance.choice([1, 2, 3, 5, 8, 13]) for _ in range(rank))
        tiles = on_mesh(random_layout(chance, sites, rank), shape)
        found = layout_of(Tiles(tiles.sites, tiles.boxes, tiles.copies), sites, shape)
        assert found is not None
        assert covers(found, tiles.sites, tiles.boxes)
    rows = on_mesh(Layout(Mesh((("r0", 4),)), (Shard(0),)), (8,))
    assert layout_of(Tiles(rows.sites[[1, 0, 2, 3]], rows.boxes), 4, (8,)) is None
    assert layout_of(Tiles(rows.sites[:2], rows.boxes[:2]), 4, (8,)) is None


@pytest.mark.parametrize(
    ("intervals", "cut"),
    [
        ([[(0, 4), (4, 8)], [(0, 3), (3, 6)]], (2, 2)),
        ([[(0, 1), (1, 2), (2, 8)], [(0, 6)]], (3, 1)),  # uneven
        ([[(0, 4), (4, 8), (8, 8)], [(0, 6)]], (2, 1)),  # an empty piece is none
    ],
)
def test_the_cut_of_tiles_is_that_of_their_grid(
    intervals: list[list[tuple[int, int]]], cut: tuple[int, int]
) -> None:
    boxes = np.array([[row, column] for row in intervals[0] for column in intervals[1]])
    assert nearest_cut(Tiles(np.zeros(len(boxes), np.int64), boxes), (8, 6)) == cut


def test_the_nearest_grid_stands_for_tiles_on_none() -> None:
    boxes = np.array([[[0, 4], [0, 6]], [[4, 8], [0, 3]], [[4, 8], [3, 6]]])
    assert nearest_cut(Tiles(np.arange(3), boxes), (8, 6)) == (2, 2)


@pytest.mark.parametrize(
    ("sites", "cost", "a", "b", "words"),
    [
        (4, "floats", "j 2, i 2", "j 2, k 2", N * N // 2),
        (4, "seconds", "i 2, j 2", "j 2, k 2", N * N // 2),
        (8, "floats", "j 2, i 4", "j 4, k 2", 3 * N * N // 8),
        (8, "seconds", "j 2, i 4", "j 4, k 2", 3 * N * N // 8),
    ],
)
def test_a_square_product_sends_what_the_best_grid_does(
    sites: int, cost: str, a: str, b: str, words: int
) -> None:
    con = einsql.connect()
    con.execute(f"SET jit = 'never'; SET sites = {sites}; SET cost = '{cost}'")
    con.register("one", np.ones((N, N), np.float32), dims=("i", "j"))
    con.execute(f"CREATE TENSOR a PARTITION BY ({a}) AS SELECT i, j, val FROM one")
    con.execute(f"CREATE TENSOR b PARTITION BY ({b}) AS SELECT i AS j, j AS k, val FROM one")
    assert traffic(con, PRODUCT) == sites * words * 4
