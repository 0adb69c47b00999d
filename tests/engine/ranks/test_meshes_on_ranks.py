"""Tensors that are declared over mesh axes, on MPI ranks."""

from __future__ import annotations

import numpy as np

from einsql.storage.fields import PlacedFields
from einsql.storage.objects import Tensor
from tests.engine.ranks.conftest import Connected
from tests.engine.test_ring_attention import ANSWER, RANKS, STEP, blocks, expected, prepare


def test_results_are_placed_on_ranks_as_declared(connected: Connected) -> None:
    con = connected(2)
    con.execute("SET sites = 1; SET mesh = 'data=2, model=2'")
    con.register("w0", np.arange(40.0).reshape(5, 8), dims=("a", "f"))
    shown = "DeviceMesh(data=2, model=2) [Replicate, Shard(f)]"

    def check(total: float) -> None:
        stored = con.store.get("w")
        assert isinstance(stored, Tensor)
        assert isinstance(stored.relation.fields, PlacedFields)
        assert con.execute("DESCRIBE w").fetchall()[-1][-1] == shown
        assert con.execute("SELECT SUM(val) FROM w").fetchall() == [(total,)]

    con.execute("CREATE TENSOR w PARTITION BY (f model) AS SELECT a, f, val * 2 AS val FROM w0")
    check(1560)
    con.execute("UPDATE w SET val = w.val + w0.val FROM w0 WHERE w.a = w0.a AND w.f = w0.f")
    check(2340)
    con.execute("INSERT OR REPLACE INTO w SELECT a, f, val FROM w0")
    check(780)


def test_parts_of_sums_stay_on_ranks(connected: Connected) -> None:
    con = connected(2)
    con.execute("SET sites = 1; SET mesh = 'data=2, model=2'")
    chance = np.random.default_rng(1)
    x, y = (chance.integers(-4, 5, shape).astype(np.float32) for shape in ((8, 6), (8, 4)))
    con.register("x", x, dims=("n", "d"))
    con.register("y", y, dims=("n", "k"))
    con.execute(
        "CREATE TENSOR g PARTITION BY (k model) PARTIAL(SUM) OVER (data) AS "
        "SELECT d, k, SUM(x.val * y.val) AS val FROM x JOIN y USING (n) GROUP BY d, k"
    )
    stored = con.store.get("g")
    assert isinstance(stored, Tensor)
    assert stored.relation.fields.summands is not None
    assert isinstance(stored.relation.fields.summands.fields, PlacedFields)
    for sql in ("SELECT * FROM g", "SELECT d, k, GREATEST(val, -99) AS val FROM g"):
        np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), x.T @ y)
    con.execute("SET sites = 2")
    np.testing.assert_array_equal(con.execute("SELECT * FROM g").fetch_numpy(), x.T @ y)
    con.execute("UPDATE g SET val = g.val * 2")
    np.testing.assert_array_equal(con.execute("SELECT * FROM g").fetch_numpy(), 2 * x.T @ y)


def test_the_notation_leaves_sums_unreduced_on_ranks(connected: Connected) -> None:
    con = connected(2)
    con.execute("SET sites = 1; SET mesh = 'data=2, model=2'")
    chance = np.random.default_rng(2)
    m, v = (chance.integers(-4, 5, shape).astype(np.float32) for shape in ((8, 12), (12,)))
    con.register("m", m, dims=("d", "e"))
    con.register("v", v, dims=("e",))
    text = "d_data e_model, e_model -> d_data _model"
    con.execute(f"CREATE TENSOR z AS SELECT * FROM EINSUM('{text}', m, v, sharded := true)")
    stored = con.store.get("z")
    assert isinstance(stored, Tensor)
    assert stored.relation.fields.summands is not None
    for result in ("d_data", "d_data_model", "d"):
        sql = f"SELECT * FROM EINSUM('d_data _model -> {result}', z, sharded := true)"
        np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), m @ v)
    np.testing.assert_array_equal(con.execute("SELECT * FROM z").fetch_numpy(), m @ v)


def test_ring_attention_runs_on_ranks(connected: Connected) -> None:
    con = connected(2)
    con.execute(f"SET sites = 1; SET mesh = 'r={RANKS}'")
    arrays = blocks()
    prepare(con, arrays)
    con.execute(f"FOR round IN range({RANKS}) DO {STEP}; END FOR")
    answer = con.execute(ANSWER).fetch_numpy()
    np.testing.assert_allclose(answer, expected(arrays), rtol=2e-5, atol=2e-6)
