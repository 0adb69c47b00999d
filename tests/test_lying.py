"""Stored tensors that lie somewhere: a plan starts from there, whatever the placement is."""

from __future__ import annotations

import random

import numpy as np
import pytest

import einsql
from einsql.planning import Plan
from tests.placed_tensors import lay, random_tiles
from tests.test_sites import QUERIES, TENSORS, connection, explained

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


@pytest.mark.parametrize("seed", range(8))
def test_any_placement_of_the_inputs_gives_the_same_answers(seed: int) -> None:
    chance = random.Random(seed)
    sites = chance.choice([2, 3, 4, 6, 8, 12])
    con = connection(sites, chance.choice(["eindecomp", "exact", "paper", "equal", "data:i"]))
    con.execute(f"SET cost = '{chance.choice(['floats', 'seconds'])}'")
    for name, (dims, array) in TENSORS.items():
        lay(con, name, dims, array, random_tiles(chance, sites, array.shape), sites)
    single = connection()
    for sql in chance.sample(QUERIES, 8):
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
    product = con.execute(PRODUCT).fetch_numpy()
    (plan,) = con._plans.values()
    assert isinstance(plan, Plan)
    assert plan.placed is not None
    tiles = plan.placed.steps[plan.placed.root].tiles
    placed = lay(con, "c", "ik", np.asarray(product), tiles, sites)
    scaled = "SELECT i, k, val * 2 AS val FROM c"
    assert traffic(con, scaled) == 0
    np.testing.assert_array_equal(con.execute(scaled).fetch_numpy(), 2 * a @ b)
    # A declared cut does not count where it is known how the tensor lies.
    stored = con.store.get("c")
    con.store.put(type(stored)("c", stored.relation, stored.columns, (8, 1), (0, 1)))  # type: ignore[union-attr, call-arg, arg-type]
    assert traffic(con, scaled) == 0
    # On other sites it lies wherever it is read.
    con.execute("SET sites = 2")
    assert traffic(con, scaled) == 0
    assert placed.sites == sites


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
